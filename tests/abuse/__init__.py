"""Hostile peers beside an innocent one: what they do, what it costs the other, and what has to hold."""
