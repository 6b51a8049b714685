"""Streams: queues whose messages stay."""
