"""pika, blocking and select connections: the compatibility suite."""
