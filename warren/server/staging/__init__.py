"""Messages that are stored first and published later, in whole and exactly once."""
