"""HTTP/1.1 and JSON, as far as they know nothing of a broker."""
