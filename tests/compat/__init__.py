"""Real AMQP 0-9-1 clients against a running broker, by client and theme."""
