"""The files of the log, and bringing it back after a stop."""
