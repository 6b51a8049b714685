"""Readers that take messages out of queues in ranges, and what they decide about single ones."""
