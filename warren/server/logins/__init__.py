"""Who logs in: names and passwords checked off the reactor."""
