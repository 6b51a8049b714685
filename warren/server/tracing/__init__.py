"""Spans of messages that belong to somebody's trace, on their way to a collector."""
