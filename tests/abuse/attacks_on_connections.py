"""Attacks without a login or a permission: idle connections, wrong passwords, TLS handshakes, and large requests."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.methods import HEARTBEAT_FRAME

from .attack_words import (
    DEADLINE_S,
    ELSEWHERE,
    LOAD_S,
    VHOST,
    Ports,
    ask_http,
    attack,
    client_hello,
    raw_http,
    request,
    tls,
    until_closed,
)
from .attacker import login_frames


@attack
def cookies(ports: Ports) -> None:
    """Twenty browsers with 16 kB of cookie each."""
    cookie = 'Cookie: warren="' + "\\\\" * 7_500 + '"\r\n'
    until_closed(lambda: [ask_http(ports, "GET", "/api/overview", user=None, headers=cookie) for _ in range(20)])


@attack
def one_byte_chunks(ports: Ports) -> None:
    """A body of 60,000 chunks of one byte."""
    head = b"POST /api/warren/session HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with contextlib.suppress(ConnectionError), raw_http(ports) as sock:
        sock.sendall(head + b"1\r\n[\r\n" * 60_000 + b"0\r\n\r\n")
        sock.recv(1 << 16)


@attack
def idle_http_connections(ports: Ports) -> None:
    """As many HTTP connections as allowed, without a request."""
    with contextlib.ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(raw_http(ports))
        time.sleep(LOAD_S / 2)


@attack
def idle_amqp_connections(ports: Ports) -> None:
    """Two thousand AMQP connections that never say a word."""
    with contextlib.ExitStack() as stack:
        for _ in range(2_000):
            stack.enter_context(socket.create_connection(("127.0.0.1", ports.amqp), timeout=DEADLINE_S))
        time.sleep(LOAD_S / 2)


@attack
def wrong_passwords(ports: Ports) -> None:
    """Logins with wrong passwords, from the address that others come from, too."""
    guesses = iter(range(1_000_000))

    def guess() -> None:
        socks = [socket.create_connection(("127.0.0.1", ports.amqp), timeout=DEADLINE_S) for _ in range(20)]
        for sock in socks:
            sock.sendall(login_frames("guest", f"guess{next(guesses)}", "/"))
        for sock in socks:
            sock.recv(4096)
            sock.close()

    until_closed(guess, 20)


@attack
def client_hellos(ports: Ports) -> None:
    """TLS handshakes that are begun and never finished, as many as a core can begin."""
    hello = client_hello()

    def burst() -> None:
        socks = [socket.create_connection(("127.0.0.1", ports.amqps), timeout=DEADLINE_S) for _ in range(100)]
        for sock in socks:
            with contextlib.suppress(ConnectionError):
                sock.sendall(hello)
        for sock in socks:
            sock.close()

    until_closed(burst)


@attack
def key_updates(ports: Ports) -> None:
    """TLS connections that only ask for new keys, which takes the broker longer than any other record."""
    peers = [tls(ports.amqps) for _ in range(8)]
    peers += [tls(ports.https) for _ in range(8)]
    for peer, asked in [(peer, peer.key_updates(2500)) for peer in peers]:
        with contextlib.suppress(ConnectionError):
            peer.sock.sendall(asked)
    time.sleep(1)


@attack
def one_byte_records(ports: Ports) -> None:
    """TLS records of one byte each, on many connections."""
    peers = [tls(ports.amqps) for _ in range(30)]
    for peer in peers:
        peer.sock.sendall(peer.record(login_frames("mallory", "mallory", VHOST)))
    for peer, sent in [(peer, peer.records(HEARTBEAT_FRAME * 500, 1)) for peer in peers]:
        with contextlib.suppress(ConnectionError):
            peer.sock.sendall(sent)
    time.sleep(1)


@attack
def handshakes_byte_by_byte(ports: Ports) -> None:
    """A ClientHello in single bytes on 200 connections, of AMQP and of HTTPS."""
    hello = client_hello()
    for port in (ports.amqps, ports.https):
        socks = [socket.create_connection(("127.0.0.1", port), DEADLINE_S, ELSEWHERE) for _ in range(200)]
        end_s = time.monotonic() + LOAD_S / 2
        for at in range(len(hello) - 1):
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.sendall(hello[at : at + 1])
            if time.monotonic() > end_s:
                break
        for sock in socks:
            sock.close()


@attack
def plain_text_on_tls_ports(ports: Ports) -> None:
    """Protocol headers, requests and garbage where TLS is spoken, each hung up on or left."""
    texts = [login_frames("guest", "guest", "/"), request("GET", "/api/overview"), os.urandom(1 << 16), b"\x16\x03\x01"]

    def burst() -> None:
        socks = [
            socket.create_connection(("127.0.0.1", port), DEADLINE_S, ELSEWHERE)
            for port in (ports.amqps, ports.https)
            for _ in range(20)
        ]
        for at, sock in enumerate(socks):
            with contextlib.suppress(ConnectionError):
                sock.sendall(texts[at % len(texts)])
        for sock in socks:
            sock.close()

    until_closed(burst)


@attack
def tls_peers_that_do_not_read(ports: Ports) -> None:
    """Over TLS they ask for replies, and for all metrics, and read nothing of them; then they vanish."""
    peers = [tls(ports.amqps) for _ in range(20)]
    for peer in peers:
        peer.sock.sendall(peer.record(login_frames("mallory", "mallory", VHOST)))
        asked = method_frame(1, m.ChannelOpen("")) + method_frame(1, m.BasicQos(0, 1, False)) * 200_000
        peer.sock.setblocking(False)
        with contextlib.suppress(OSError):
            for at in range(0, len(asked), 1 << 14):
                peer.sock.send(peer.record(asked[at : at + (1 << 14)]))
    web = [tls(ports.https) for _ in range(20)]
    for peer in web:
        with contextlib.suppress(OSError):
            peer.sock.sendall(peer.record(request("GET", "/api/definitions")))
    time.sleep(LOAD_S)
    for peer in [*peers, *web]:
        peer.close()


@attack
def deep_json(ports: Ports) -> None:
    """32 MB of empty lists, by a user without any permission for them."""
    body = b"[" + b"[]," * 10_600_000 + b"[]]"
    for path in (f"/api/warren/route/{VHOST}", "/api/definitions", "/api/warren/session"):
        ask_http(ports, "POST", path, body, "mallory")
