"""Directories of backups, which `warren ctl backup` writes and `warren store restore` reads. Knows no broker."""
