"""The web UI in a real browser, on a real broker."""
