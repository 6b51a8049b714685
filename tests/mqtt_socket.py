"""A client of MQTT on a socket, or on what looks like one."""

from __future__ import annotations

import socket

from mqtt_packets import Packet, connect_packet, maybe_first_packet
from web_socket_peer import WebSocketOn

from warren.mqtt.packets import packet, text


class MqttSocket:
    """A client on a socket."""

    def __init__(self, sock: socket.socket | WebSocketOn) -> None:
        self._sock = sock
        self._received = b""
        sock.settimeout(30)

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def take(self) -> Packet:
        """Return the next packet; EOFError without one."""
        while (first := maybe_first_packet(self._received)) is None:
            data = self._sock.recv(65536)
            if not data:
                raise EOFError
            self._received += data
        found, self._received = first
        return found

    def call(self, data: bytes) -> Packet:
        self.send(data)
        return self.take()

    def close(self) -> None:
        self._sock.close()


def connect(client_id: str, *, clean: bool = True, user: str = "guest", password: str = "guest") -> bytes:
    return connect_packet(4, client_id, clean=clean, user=user, password=password)


def subscribe(filter_: str, qos: int = 1) -> bytes:
    return packet(8, 2, b"\0\x01" + text(filter_) + bytes((qos,)))
