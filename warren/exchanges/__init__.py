"""Exchange types, bindings and routing: from an exchange, a routing key and a content to the queues that get it."""
