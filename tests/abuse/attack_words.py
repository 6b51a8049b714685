"""The words of attacks: frames, requests, handshakes and connections of hostile peers; and the registry of attacks."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import NamedTuple

from mqtt_socket import MqttSocket, connect
from tls_peer import TlsPeer

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.mqtt.packets import packet, text

from .attacker import Attacker

VHOST = "abuse"
BODY_BYTES = 32 << 20  # the most that a request may have
DEADLINE_S = 60.0
# Repetition ends by itself, whatever the broker does.
LOAD_S = float(os.environ.get("WARREN_TEST_ABUSE_LOAD_S", "4"))
# HTTPS handshakes take turns by address: a client at the attacker's address would wait behind the attacker.
ELSEWHERE = ("127.0.0.2", 0)


class Ports(NamedTuple):
    """Where the broker listens on the loopback interface."""

    amqp: int
    http: int
    amqps: int
    https: int
    mqtt: int


Attack = Callable[[Ports], None]
ENTERED: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Enter an attack under its name."""
    ENTERED[function.__name__.replace("_", "-")] = function
    return function


def queue(name: str, arguments: Table | None = None, *, exclusive: bool = False, durable: bool = False) -> bytes:
    """Declare a queue on channel 1, without a reply."""
    encoded = encode_table(arguments or {})
    return method_frame(1, m.QueueDeclare(0, name, False, durable, exclusive, False, True, encoded))


def exchange(name: str, kind: str) -> bytes:
    return method_frame(1, m.ExchangeDeclare(0, name, kind, False, False, False, False, True, EMPTY_TABLE))


def bind(name: str, source: str, key: str = "", arguments: Table | None = None) -> bytes:
    return method_frame(1, m.QueueBind(0, name, source, key, True, encode_table(arguments or {})))


def consume(name: str, tag: str) -> bytes:
    return method_frame(1, m.BasicConsume(0, name, tag, False, False, False, True, EMPTY_TABLE))


def hostile(ports: Ports, user: str = "mallory") -> Attacker:
    return Attacker(ports.amqp, VHOST, user, user)


def until_closed(step: Callable[[], object], rounds: int = 1_000_000) -> None:
    """Repeat until the load has lasted long enough, or the broker has had enough of it."""
    end_s = time.monotonic() + LOAD_S
    for _ in range(rounds):
        if time.monotonic() > end_s:
            return
        try:
            step()
        except OSError:
            return


def request(method: str, path: str, body: bytes = b"", user: str | None = "mallet", headers: str = "") -> bytes:
    """Return a request that is the last of its connection."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}"
    head += f"Content-Length: {len(body)}\r\n"
    if user is not None:
        head += "Authorization: Basic " + base64.b64encode(f"{user}:{user}".encode()).decode() + "\r\n"
    return head.encode() + b"\r\n" + body


def ask_http(
    ports: Ports, method: str, path: str, body: bytes = b"", user: str | None = "mallet", headers: str = ""
) -> bytes:
    """Send one request on a connection of its own; return the answer, whatever it is."""
    with contextlib.suppress(ConnectionError), raw_http(ports) as sock:
        sock.sendall(request(method, path, body, user, headers))
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))
    return b""


def raw_http(ports: Ports) -> socket.socket:
    return socket.create_connection(("127.0.0.1", ports.http), timeout=DEADLINE_S)


def device(ports: Ports, client_id: str) -> MqttSocket:
    """Return an MQTT client of mallory."""
    client = MqttSocket(socket.create_connection(("127.0.0.1", ports.mqtt), timeout=DEADLINE_S))
    client.call(connect(client_id, user=f"{VHOST}:mallory", password="mallory"))
    return client


def subscribe_to(filters: list[str], qos: int = 1) -> bytes:
    """Return one SUBSCRIBE."""
    return packet(8, 2, b"\0\x01" + b"".join(text(each) + bytes((qos,)) for each in filters))


def client_hello() -> bytes:
    """Return the beginning of a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    handshake = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()


def tls(port: int) -> TlsPeer:
    return TlsPeer(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
