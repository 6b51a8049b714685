"""AMQP 0-9-1 from the client's side, without a socket.

    connection   one connection: bytes in, bytes out, handshake, channel 0, channels
    channel      one channel: requests and replies, contents, confirms, and the bounds on what a peer may send
    blocking     a connection over a blocking socket, for programs that do one thing after the other
    frames       messages as bytes, and the frames in a buffer
    errors       why a connection or channel ended          redaction   URIs without what is secret in them

The driver for trio is part of `warren.links`, because it shares the bounds of all links. The codec is `warren.amqp`.
"""
