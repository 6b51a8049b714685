"""AMQP 0-9-1 on the wire: the leaf that every other package may import."""
