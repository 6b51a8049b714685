"""Copy a broker: all of it, for backups and followers, or the messages of one queue."""
