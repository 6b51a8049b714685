"""Handle sockets: admission, TLS, and the reactor that reads and writes them."""
