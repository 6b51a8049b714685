"""Followers of a broker: the changes of its store's files, shipped and repeated in a directory elsewhere."""
