"""STOMP 1.0, 1.1 and 1.2 for clients of the same exchanges and queues: the smallest of the protocols.

`frames` reads and writes, `peer` is a connection, `session` what it sends and is sent, `destinations` says what a path
means, `conversion` what headers do. `docs/adding-a-protocol.md` uses it as the example.
"""
