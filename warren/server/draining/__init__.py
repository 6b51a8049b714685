"""Serve readers that take messages out of queues in ranges, and their decisions about single messages."""
