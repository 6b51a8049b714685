"""Store messages first and publish them later, completely and exactly once."""
