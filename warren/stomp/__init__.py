"""STOMP 1.0, 1.1 and 1.2 for clients of the same exchanges and queues: the smallest of the protocols.

`frames` reads and writes, `peer` is a connection, `session` its messages and subscriptions, `destinations` the meaning
of a path, `conversion` the meaning of headers. `docs/adding-a-protocol.md` uses it as the example.
"""
