"""Send spans of messages that belong to a client's trace to a collector."""
