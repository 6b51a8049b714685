"""Warren, an AMQP 0-9-1 message broker."""

__version__ = "1.0.0rc1"
