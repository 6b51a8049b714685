"""Copies of what a broker has: of everything, for backups and followers, and of one queue."""
