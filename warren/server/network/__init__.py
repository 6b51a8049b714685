"""Sockets: who may connect, TLS, and the reactor that reads and writes them."""
