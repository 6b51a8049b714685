"""Attacks of hostile peers: single inputs, each of which is valid and cheap to send, and bounded in count and time.

``python -m abuse.attacks NAME AMQP_PORT HTTP_PORT AMQPS_PORT HTTPS_PORT MQTT_PORT``, in tests/, makes one of them, in a
process of its own, so that it does not slow down the innocent client that is measured beside it. ``mallory`` has no tag
and may do everything in vhost ``abuse``; ``mallet`` is a policymaker there; some attacks do not log in.

An attack that is refused (a close, a 4xx, a hang-up) has been answered well. `test_attacks` lists the requirements.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from mqtt_packets import publish_packet
from mqtt_socket import MqttSocket, connect
from peer_frames import content_header
from tls_peer import TlsPeer

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.amqp.methods import HEARTBEAT_FRAME
from warren.mqtt.packets import packet, text

from .attacker import Attacker, login_frames, publish_frames

VHOST = "abuse"
BODY_BYTES = 32 << 20  # the most that a request may have
DEADLINE_S = 60.0
# Repetition ends by itself, whatever the broker does.
LOAD_S = float(os.environ.get("WARREN_TEST_ABUSE_LOAD_S", "4"))
# How far attackers give way to the broker and the bystander: they have machines of their own.
NICE = int(os.environ.get("WARREN_TEST_ABUSE_NICE", "0"))
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
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Enter an attack under its name."""
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


# --- words ----------------------------------------------------------------------------------------------------------


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


# --- without a login ------------------------------------------------------------------------------------------------


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


# --- the share of turns ---------------------------------------------------------------------------------------------


@attack
def tiny_methods(ports: Ports) -> None:
    """Eight connections that pipeline the smallest methods there are."""
    clients = [hostile(ports) for _ in range(8)]
    burst = method_frame(1, m.BasicQos(0, 0, False)) * 8_000 + method_frame(1, m.BasicGet(0, "q", False)) * 2_000
    clients[0].pump([queue("q")])
    clients[0].barrier()

    def everybody() -> None:
        for client in clients:
            client.pump([burst])

    until_closed(everybody)


@attack
def heartbeats_and_no_reading(ports: Ports) -> None:
    """A consumer that reads nothing, and sends heartbeats."""
    client = hostile(ports)
    client.pump([queue("q"), consume("q", "never-reads")])
    client.barrier()
    until_closed(lambda: client.send(publish_frames("", "q", b"x" * 100_000) * 10 + HEARTBEAT_FRAME))


# --- work that multiplies -------------------------------------------------------------------------------------------


@attack
def letters_in_circles(ports: Ports) -> None:
    """Ten queues without room, whose dead letters go to all ten."""
    client = hostile(ports)
    full: Table = {"x-max-length": 0, "x-dead-letter-exchange": "round"}
    names = [f"full{number}" for number in range(10)]
    client.pump([exchange("round", "fanout"), *(queue(name, full) + bind(name, "round") for name in names)])
    client.pump([publish_frames("round", "", b"once")])
    client.barrier()
    client.pump([method_frame(1, m.ExchangeDelete(0, "round", if_unused=False, no_wait=True))])
    client.barrier()


@attack
def twenty_thousand_consumers(ports: Ports) -> None:
    """A socket with 20,000 consumers of one queue, which closes."""
    client = hostile(ports)
    client.open(2)
    client.pump([queue("q")])
    client.barrier()
    for channel in (1, 2):
        consumer = m.BasicConsume(0, "q", "", False, False, False, True, EMPTY_TABLE)
        client.pump(method_frame(channel, consumer._replace(consumer_tag=f"c{number}")) for number in range(10_000))
        client.barrier(channel)
    client.close()


@attack
def carbon_copies(ports: Ports) -> None:
    """A message with 4,000 more routing keys, for 20,000 bindings."""
    client = hostile(ports)
    client.pump([exchange("wide", "topic"), *(queue(f"w{number}") for number in range(20))])
    client.pump(bind(f"w{number % 20}", "wide", f"#.{number}.#") for number in range(10_000))
    client.pump(bind(f"w{number % 20}", "wide", f"*.{number}.#") for number in range(10_000))
    client.barrier()
    keys = [f"{number}.{number + 1}.{number + 2}" for number in range(4_000)]
    client.pump([publish_frames("wide", "0", b"many", {"headers": {"CC": keys}})])
    client.barrier()
    client.pump([method_frame(1, m.ExchangeDelete(0, "wide", if_unused=False, no_wait=True))])
    client.barrier()


@attack
def topic_of_hashes(ports: Ports) -> None:
    """Binding keys of many ``#``, and a routing key that fits each of them in many ways."""
    client = hostile(ports)
    patterns = ["#.a" * count + ".#" for count in range(1, 40)]
    client.pump([exchange("hashes", "topic"), queue("h")])
    client.pump(bind("h", "hashes", pattern.lstrip(".")) for pattern in patterns)
    client.pump([publish_frames("hashes", ".".join("a" * 127), b"where")] * 5)
    client.barrier()
    client.pump([method_frame(1, m.ExchangeDelete(0, "hashes", if_unused=False, no_wait=True))])
    client.barrier()


@attack
def route_question(ports: Ports) -> None:
    """Where would a message go that 2,000 bindings match?"""
    client = hostile(ports)
    client.pump([exchange("asked", "topic"), queue("a")])
    client.pump(bind("a", "asked", f"#.{number}") for number in range(1_000))
    client.pump(bind("a", "asked", "k.#", {"number": number}) for number in range(2_000))
    client.barrier()
    ask_http(
        ports, "POST", f"/api/warren/route/{VHOST}", json.dumps({"exchange": "asked", "routing_key": "k"}).encode()
    )
    client.pump([method_frame(1, m.ExchangeDelete(0, "asked", if_unused=False, no_wait=True))])
    client.barrier()


@attack
def many_bindings(ports: Ports) -> None:
    """An exchange with 300,000 bindings, which is deleted."""
    client = hostile(ports)
    client.pump([exchange("many", "direct"), queue("m")])
    client.pump(bind("m", "many", f"{number}") for number in range(300_000))
    client.barrier()
    client.pump([method_frame(1, m.ExchangeDelete(0, "many", if_unused=False, no_wait=False))])
    client.barrier()


@attack
def wide_publishes(ports: Ports) -> None:
    """Persistent messages to 20,000 durable queues each."""
    client = hostile(ports)
    client.pump([exchange("wide", "fanout")])
    for number in range(20_000):
        client.pump([queue(f"wide{number}", durable=True), bind(f"wide{number}", "wide")])
    client.barrier()
    client.pump([publish_frames("wide", "", b"x", {"delivery_mode": 2}) for _ in range(4)])
    client.barrier()


@attack
def remembered_messages(ports: Ports) -> None:
    """An exchange that remembers 50,000 messages without bodies, to which ten queues are bound."""
    client = hostile(ports)
    arguments = encode_table({"x-recent-history-length": 50_000})
    client.pump(
        [method_frame(1, m.ExchangeDeclare(0, "past", "x-recent-history", False, False, False, False, True, arguments))]
    )
    client.pump([publish_frames("past", "", b"") * 1000 for _ in range(50)])
    client.pump(queue(f"late{number}") + bind(f"late{number}", "past") for number in range(10))
    client.barrier()


@attack
def consumers_of_all_priorities(ports: Ports) -> None:
    """20,000 consumers of one queue with a priority each, all without room, and messages for them."""
    client = hostile(ports)
    client.pump([queue("ranks"), method_frame(1, m.BasicQos(0, 1, False))])
    for number in range(20_000):
        ranked = encode_table({"x-priority": number})
        client.pump([method_frame(1, m.BasicConsume(0, "ranks", f"c{number}", False, False, False, True, ranked))])
    client.pump([publish_frames("", "ranks", b"x") * 1000 for _ in range(25)])
    client.barrier()


@attack
def unread_listings(ports: Ports) -> None:
    """Lists of 20,000 queues, sixty at a time, sorted and not, of which nothing is read."""
    client = hostile(ports)
    client.pump(queue(f"listed{number}") for number in range(20_000))
    client.barrier()

    def burst() -> None:
        with contextlib.ExitStack() as socks:
            for number in range(60):
                sock = socks.enter_context(raw_http(ports))
                sort = "?sort=idle_since" if number % 2 else ""
                sock.sendall(request("GET", f"/api/queues/{VHOST}{sort}"))
            time.sleep(LOAD_S / 3)

    until_closed(burst)


@attack
def exclusive_queues(ports: Ports) -> None:
    """A connection with 50,000 exclusive queues, which is gone."""
    client = hostile(ports)
    client.pump(queue(f"x{number}", exclusive=True) for number in range(50_000))
    client.barrier()
    client.close()


@attack
def expiries_with_dead_letters(ports: Ports) -> None:
    """500,000 messages that expire in the same moment, and become dead letters in another queue."""
    client = hostile(ports)
    expiring: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 3_000}
    client.pump([queue("dead", {"x-max-length": 1_000}), queue("expiring", expiring)])
    batch = publish_frames("", "expiring", b"x") * 1_000
    client.pump(batch for _ in range(500))
    client.barrier()
    time.sleep(LOAD_S)


# --- what the broker writes by itself -------------------------------------------------------------------------------

MEGABYTE = bytes(1 << 20)
STORED = {"delivery_mode": 2}
TO_DEAD: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@attack
def letters_of_a_megabyte(ports: Ports) -> None:
    """One publish of 1 MiB to 1,000 queues without room, whose dead letters go to one: 1 GiB to be written."""
    client = hostile(ports)
    client.pump([queue("dead", durable=True), exchange("all", "fanout")])
    full = {**TO_DEAD, "x-max-length": 0}
    for number in range(1000):
        client.pump([queue(f"none{number}", full, durable=True), bind(f"none{number}", "all")])
    client.barrier()
    client.pump([publish_frames("all", "", MEGABYTE, STORED)])
    client.barrier()
    time.sleep(LOAD_S)


@attack
def large_messages_remembered(ports: Ports) -> None:
    """1,000 messages of 60 kB that an exchange remembers, and 30 queues that are bound to it."""
    client = hostile(ports)
    arguments = encode_table({"x-recent-history-length": 1000})
    client.pump(
        [method_frame(1, m.ExchangeDeclare(0, "past", "x-recent-history", False, True, False, False, True, arguments))]
    )
    client.pump(publish_frames("past", "", MEGABYTE[:60_000], STORED) for _ in range(1000))
    client.pump(queue(f"late{number}", durable=True) + bind(f"late{number}", "past") for number in range(30))
    client.barrier()


@attack
def quorum_consumer_leaves(ports: Ports) -> None:
    """A consumer of a quorum queue with 300 MB unacknowledged, which hangs up."""
    client = hostile(ports)
    client.pump([queue("quorum", {"x-queue-type": "quorum"}, durable=True), consume("quorum", "takes-all")])
    client.pump(publish_frames("", "quorum", MEGABYTE, STORED) for _ in range(300))
    client.barrier()
    client.close()


@attack
def large_messages_rejected(ports: Ports) -> None:
    """One basic.nack for 300 messages of 1 MiB, which are dead-lettered."""
    client = hostile(ports)
    client.pump([queue("dead", durable=True), queue("live", TO_DEAD, durable=True), consume("live", "takes-all")])
    client.pump(publish_frames("", "live", MEGABYTE, STORED) for _ in range(300))
    client.barrier()
    client.pump([method_frame(1, m.BasicNack(0, multiple=True, requeue=False))])
    client.barrier()
    time.sleep(LOAD_S / 2)


@attack
def large_messages_expire(ports: Ports) -> None:
    """300 messages of 1 MiB with a dead letter exchange, which expire in the same moment."""
    client = hostile(ports)
    client.pump([queue("dead", durable=True), queue("old", {**TO_DEAD, "x-message-ttl": 5_000}, durable=True)])
    client.pump(publish_frames("", "old", MEGABYTE, STORED) for _ in range(300))
    client.barrier()
    time.sleep(5 + LOAD_S / 2)


def transaction(ports: Ports) -> Attacker:
    """Return a client with a transaction on channel 1, and a durable queue."""
    client = hostile(ports)
    client.pump([queue("committed", durable=True), method_frame(1, m.TxSelect())])
    client.read_until(m.TxSelectOk, 1)
    return client


def commit(client: Attacker) -> None:
    client.pump([method_frame(1, m.TxCommit())])
    client.read_until(m.TxCommitOk, 1)


@attack
def commit_of_large_messages(ports: Ports) -> None:
    """Commits of 60 messages of 1 MiB, which are as large as they may be."""
    client = transaction(ports)
    for _ in range(5):
        client.pump(publish_frames("", "committed", MEGABYTE, STORED) for _ in range(60))
        commit(client)


@attack
def commit_of_many_messages(ports: Ports) -> None:
    """Commits of 50,000 messages, which are about as large as they may be."""
    client = transaction(ports)
    batch = publish_frames("", "committed", b"x" * 100, STORED) * 1_000
    for _ in range(4):
        client.pump(batch for _ in range(50))
        commit(client)


@attack
def transactions_without_end(ports: Ports) -> None:
    """Four channels that publish 300 MiB each in a transaction; it is too large long before that."""
    for _ in range(4):
        client = transaction(ports)
        with contextlib.suppress(ConnectionError):
            client.pump(publish_frames("", "committed", MEGABYTE, STORED) for _ in range(300))
            commit(client)
        client.close()


@attack
def commit_for_many_queues(ports: Ports) -> None:
    """One tx.commit of 200 messages for 1,000 queues each."""
    client = transaction(ports)
    client.pump([exchange("all", "fanout")])
    client.pump(queue(f"all{at}", durable=True) + bind(f"all{at}", "all") for at in range(1_000))
    client.pump(publish_frames("all", "", b"x" * 1_000, STORED) for _ in range(200))
    commit(client)


@attack
def commit_of_many_acks(ports: Ports) -> None:
    """One tx.commit of 200,000 acknowledgements."""
    client = transaction(ports)
    other = hostile(ports)
    batch = publish_frames("", "committed", b"x" * 100, STORED) * 1_000
    other.pump(batch for _ in range(200))
    other.barrier()
    client.pump([consume("committed", "takes-all")])
    client.barrier()
    other.close()
    client.pump([publish_frames("", "committed", b"last", STORED), method_frame(1, m.BasicAck(0, True))])
    commit(client)


@attack
def commit_of_requeues(ports: Ports) -> None:
    """One tx.commit that gives 300 messages of 1 MiB back to a quorum queue, which stores them again."""
    client = transaction(ports)
    other = hostile(ports)
    other.pump([queue("quorum", {"x-queue-type": "quorum"}, durable=True)])
    other.pump(publish_frames("", "quorum", MEGABYTE, STORED) for _ in range(300))
    other.barrier()
    client.pump([consume("quorum", "takes-all")])
    client.barrier()
    client.pump(
        [
            method_frame(1, m.BasicNack(0, multiple=True, requeue=True)),
            method_frame(1, m.BasicCancel("takes-all", True)),
        ]
    )
    commit(client)


@attack
def filters_of_everything(ports: Ports) -> None:
    """60,000 times the filter of everything in one SUBSCRIBE at QoS 1, with 20 MB retained; nothing is read."""
    client = device(ports, "retains")
    for at in range(200):
        client.call(publish_packet(f"a/{at}", MEGABYTE[:100_000], 1, 1, retain=True))
    hungry = device(ports, "hungry")
    hungry.send(subscribe_to(["#"] * 60_000))
    time.sleep(LOAD_S)


@attack
def many_filters_of_everything(ports: Ports) -> None:
    """1,024 filters each of which fits all of 20 MB retained, in one SUBSCRIBE at QoS 1; nothing is read."""
    client = device(ports, "retains")
    levels = "abcdefghij"
    for at in range(200):
        client.call(publish_packet("/".join([*levels, str(at)]), MEGABYTE[:100_000], 1, 1, retain=True))
    parts = [
        ["+" if number >> at & 1 else level for at, level in enumerate(levels)] for number in range(1 << len(levels))
    ]
    hungry = device(ports, "hungry")
    hungry.send(subscribe_to(["/".join([*each, "#"]) for each in parts]))
    time.sleep(LOAD_S)


@attack
def many_unacked(ports: Ports) -> None:
    """A channel with 300,000 unacknowledged deliveries, which closes."""
    client = hostile(ports)
    client.pump([queue("unacked"), consume("unacked", "takes-all")])
    batch = publish_frames("", "unacked", b"x") * 1_000
    client.pump(batch for _ in range(300))
    client.barrier()
    client.close()


# --- memory ---------------------------------------------------------------------------------------------------------


@attack
def unfinished_bodies(ports: Ports) -> None:
    """A connection with 700 MB of contents, none of which ends."""
    client = hostile(ports)
    channels = range(2, 102)
    client.open(*channels)
    piece = b"x" * 130_000

    def parts() -> Iterator[bytes]:
        for channel in channels:
            yield method_frame(channel, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))
            yield frame(m.FRAME_HEADER, channel, content_header({}, 16_000_000))
        for _ in range(54):
            for channel in channels:
                yield frame(m.FRAME_BODY, channel, piece)

    with contextlib.suppress(OSError, AssertionError):
        client.sock.settimeout(LOAD_S)
        for part in parts():
            client.sock.sendall(part)
    time.sleep(LOAD_S / 2)
    client.close()


@attack
def announced_bodies(ports: Ports) -> None:
    """Two thousand contents of which nothing but the size has come."""
    client = hostile(ports)
    channels = range(2, 2_000)
    client.open(*channels)
    for channel in channels:
        client.send(method_frame(channel, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)))
        client.send(frame(m.FRAME_HEADER, channel, content_header({}, 16_000_000)))
    time.sleep(LOAD_S / 4)
    client.close()


@attack
def headers_bindings(ports: Ports) -> None:
    """Bindings with large arguments, as many as fit into the load."""
    client = hostile(ports)
    client.pump([exchange("headers", "headers"), queue("h")])
    numbers = iter(range(1_000_000))

    def some() -> None:
        large = [bind("h", "headers", "", {"n": number, "large": "x" * 10_000}) for number in islice(numbers, 500)]
        client.pump(large)

    until_closed(some)
    with contextlib.suppress(OSError):
        client.pump([method_frame(1, m.ExchangeDelete(0, "headers", if_unused=False, no_wait=True))])
        client.barrier()


# --- what is read and written in bulk ---------------------------------------------------------------------------------


@attack
def parts_for_very_many_exchanges(ports: Ports) -> None:
    """A stage whose messages are for half a million exchanges, each of which has to be permitted."""
    publishes = b"".join(publish_frames(f"e{at}", "", b"") for at in range(500_000))
    ask_http(ports, "PUT", f"/api/warren/stages/{VHOST}/wide/0", publishes[:BODY_BYTES], "mallory")


@attack
def uploads_that_stop(ports: Ports) -> None:
    """Parts of stages that are announced, sent but for their last bytes, and left; more than fit into memory."""
    body = b"x" * BODY_BYTES
    asked = request("PUT", f"/api/warren/stages/{VHOST}/stopped/0", body, "mallory")[:-100]
    socks = [raw_http(ports) for _ in range(60)]
    for sock in socks:
        sock.settimeout(0.05)
        with contextlib.suppress(OSError):
            sock.sendall(asked)
    time.sleep(1)
    for sock in socks:
        sock.close()


@attack
def thousands_of_drains(ports: Ports) -> None:
    """Sessions that are opened on very many queues, with leases, and never used."""
    attacker = hostile(ports)
    attacker.pump(queue(f"drained{at}") for at in range(20_000))
    attacker.barrier()
    with contextlib.suppress(ConnectionError), raw_http(ports) as sock:
        end_s = time.monotonic() + 3 * LOAD_S
        for at in range(4000):
            if time.monotonic() > end_s:
                break
            path = f"/api/warren/drains/{VHOST}/drained{at % 200}/c{at // 200}/open"
            body = b'{"owner": "x", "lease_s": 1}'
            head = request("POST", path, body, "mallory").replace(b"Connection: close\r\n", b"")
            sock.sendall(head)
            received = sock.recv(1 << 16)
            if not received:
                return
    time.sleep(2)


@attack
def snapshot_of_what_is_unacked(ports: Ports) -> None:
    """A snapshot with all that a client has of a queue, which is as much as it may have."""
    attacker = hostile(ports)
    attacker.pump([queue("taken")])
    attacker.pump(islice(iter(lambda: publish_frames("", "taken", b""), None), 400_000))
    attacker.barrier()
    attacker.pump([consume("taken", "t")])
    attacker.barrier()
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        attacker.sock.settimeout(1)
        try:
            attacker.sock.recv(1 << 20)
        except TimeoutError:
            break
    for _ in range(3):
        ask_http(ports, "POST", f"/api/warren/snapshots/{VHOST}/taken", b'{"unacked": true}', "mallory")


@attack
def commits_of_very_many_queries(ports: Ports) -> None:
    """Batches of nothing, each of another query, which is remembered; then what is remembered is asked for."""
    end_s = time.monotonic() + 3 * LOAD_S
    with contextlib.suppress(ConnectionError):
        socks = [raw_http(ports) for _ in range(8)]
        for at in range(100_000):
            for number, sock in enumerate(socks):
                body = json.dumps({"query": f"{at}-{number}" + "q" * 200, "batch": 1, "stages": []}).encode()
                head = request("POST", f"/api/warren/stages/{VHOST}/commit", body, "mallory")
                sock.sendall(head.replace(b"Connection: close\r\n", b""))
            for sock in socks:
                sock.recv(1 << 16)
            if time.monotonic() > end_s:
                break
    for _ in range(5):
        ask_http(ports, "GET", f"/api/warren/stages/{VHOST}/commits", user="mallet")


@attack
def thousands_of_stages(ports: Ports) -> None:
    """Stages of a message each, and lists of all of them."""
    part = publish_frames("", "nowhere", b"")
    end_s = time.monotonic() + 3 * LOAD_S
    with contextlib.suppress(ConnectionError):
        socks = [raw_http(ports) for _ in range(8)]
        for at in range(1200):
            for number, sock in enumerate(socks):
                head = request("PUT", f"/api/warren/stages/{VHOST}/s{at}-{number}/0", part, "mallory")
                sock.sendall(head.replace(b"Connection: close\r\n", b""))
            for sock in socks:
                sock.recv(1 << 16)
            if time.monotonic() > end_s:
                break
    for _ in range(5):
        ask_http(ports, "GET", f"/api/warren/stages/{VHOST}", user="mallet")


@attack
def staged_batch_for_very_many_places(ports: Ports) -> None:
    """A batch that comes to 200,000 places, of queues one of which might refuse it."""
    client = hostile(ports)
    refusing: Table = {"x-max-length": 1_000_000, "x-overflow": "reject-publish"}
    client.pump([exchange("staged", "fanout")])
    for number in range(500):
        client.pump([queue(f"staged{number}", refusing, durable=True), bind(f"staged{number}", "staged")])
    client.barrier()
    ask_http(
        ports,
        "PUT",
        f"/api/warren/stages/{VHOST}/placed/0",
        publish_frames("staged", "", b"x", {"delivery_mode": 2}) * 400,
        "mallory",
    )
    body = json.dumps({"query": "placed", "batch": 1, "stages": ["placed"]}).encode()
    answer = ask_http(ports, "POST", f"/api/warren/stages/{VHOST}/commit", body, "mallory")
    assert b'"committed":true' in answer, answer


# --- links ----------------------------------------------------------------------------------------------------------


@attack
def federation_of_every_queue(ports: Ports) -> None:
    """A policy that has each of very many queues ask for a link to each of ten upstreams, which are not there."""
    attacker = hostile(ports)
    attacker.pump(queue(f"federated{at}") for at in range(3000))
    attacker.barrier()
    for at in range(10):
        value = b'{"value": {"uri": "amqp://127.0.0.1:1"}}'
        ask_http(ports, "PUT", f"/api/parameters/federation-upstream/{VHOST}/up{at}", value)
    body = b'{"pattern": "^federated", "apply-to": "queues", "definition": {"federation-upstream-set": "all"}}'
    ask_http(ports, "PUT", f"/api/policies/{VHOST}/federated", body)
    time.sleep(LOAD_S)
    attacker.pump(queue(f"federated{at}") for at in range(3000, 3100))
    attacker.barrier()
    time.sleep(LOAD_S)


@attack
def shovels_in_circles(ports: Ports) -> None:
    """Shovels from a queue to itself, and from two queues to each other; others whose peers are not there."""
    uri = f"amqp://mallory:mallory@127.0.0.1:{ports.amqp}/{VHOST}"
    names: list[str] = []
    attacker = hostile(ports)
    attacker.pump([queue("a"), queue("b"), *[publish_frames("", "a", b"") for _ in range(2000)]])
    attacker.barrier()
    for source, destination in ("aa", "ab", "ba"):
        value = {"src-uri": uri, "src-queue": source, "dest-uri": uri, "dest-queue": destination}
        body = json.dumps({"value": value | {"dest-add-forward-headers": True}}).encode()
        names.append(source + destination)
        ask_http(ports, "PUT", f"/api/parameters/shovel/{VHOST}/{names[-1]}", body)
    for at in range(100):
        value = {"src-uri": "amqp://127.0.0.1:1", "src-queue": "a", "dest-uri": uri, "dest-queue": "b"}
        body = json.dumps({"value": value | {"reconnect-delay": 0.001}}).encode()
        names.append(f"failing{at}")
        ask_http(ports, "PUT", f"/api/parameters/shovel/{VHOST}/{names[-1]}", body)
    time.sleep(LOAD_S)
    for name in names:
        ask_http(ports, "DELETE", f"/api/parameters/shovel/{VHOST}/{name}")


# --- values ---------------------------------------------------------------------------------------------------------


@attack
def endless_numbers(ports: Ports) -> None:
    """Numbers of 400 digits, infinities and the like, where an API takes numbers."""
    shovel = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    for number in ("9" * 400, "1e400", "-1", "NaN", "1e-400", '"' + "9" * 4_999 + '"', str(1 << 64)):
        for key in ("reconnect-delay", "src-prefetch-count", "src-delete-after"):
            value = json.dumps(shovel)[:-1] + f', "{key}": {number}' + "}"
            body = '{"value": ' + value + "}"
            ask_http(ports, "PUT", f"/api/parameters/shovel/{VHOST}/endless", body.encode())
        for key in ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"):
            body = f'{{"pattern": ".*", "definition": {{"{key}": {number}}}}}'
            ask_http(ports, "PUT", f"/api/policies/{VHOST}/endless", body.encode())
    time.sleep(1)
    ask_http(ports, "DELETE", f"/api/parameters/shovel/{VHOST}/endless")
    ask_http(ports, "DELETE", f"/api/policies/{VHOST}/endless")


@attack
def certificates_of_devices(ports: Ports) -> None:
    """Forty shovels whose certificates of authorities are a terminal that never ends."""
    for number in range(40):
        uri = "amqps://127.0.0.1:1?cacertfile=/dev/zero"
        value: dict[str, Any] = {"src-uri": uri, "src-queue": "a", "dest-uri": uri, "dest-queue": "b"}
        ask_http(ports, "PUT", f"/api/parameters/shovel/{VHOST}/device{number}", json.dumps({"value": value}).encode())
    time.sleep(LOAD_S)
    for number in range(40):
        ask_http(ports, "DELETE", f"/api/parameters/shovel/{VHOST}/device{number}")


def main() -> None:
    name, *ports = sys.argv[1:]
    os.nice(NICE)
    with contextlib.suppress(OSError):
        ATTACKS[name](Ports(*map(int, ports)))


if __name__ == "__main__":
    main()
