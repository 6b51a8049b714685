"""Debian's amqp-tools, the command line of rabbitmq-c."""
