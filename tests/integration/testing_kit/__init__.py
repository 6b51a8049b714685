"""`warren.testing` with the clients that it is for."""
