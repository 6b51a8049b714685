"""Log users in: check names and passwords off the reactor."""
