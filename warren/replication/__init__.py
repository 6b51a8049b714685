"""Followers of a broker: what its store does to its files, shipped and repeated in a directory elsewhere."""
