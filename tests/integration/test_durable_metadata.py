"""The promise of declare-ok for a durable object: it is there after kill -9, whole, on SQLite and on PostgreSQL.

Random topology is declared over one pipelined connection while the process is killed at a random moment. Replies come
in the order of the requests, so after the next start the store must hold what the first n requests lead to, for one n
that is at least the number of replies received. It does whether SQL has followed before, or could not be written.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sqlite3
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from broker_process import WarrenProcess, wait_until
from compat.pika_client.wire import Ended, WireClient
from pika import BasicProperties, frame, spec

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import with_length
from warren.server.catalogue.catalogue import Catalogue
from warren.server.catalogue.schema import SCHEMA_VERSION
from warren.vhosts.metadata import BindingPut, ExchangePut, MetadataChange, QueuePut

from .peers import Traffic, broker_at, connect, next_body, open_wire, publish_frames
from .postgres import PostgresServer, running_postgres

CYCLES: Final = int(os.environ.get("WARREN_TEST_CRASH_CYCLES", "20"))
EMPTY = bytes(4)
IN_FLIGHT_MAX = 60
ANY_ID = 0


def _entry(key: str, tag: str, payload: bytes) -> bytes:
    raw = key.encode()
    return bytes([len(raw)]) + raw + tag.encode() + payload


SCALARS = [
    ("t", b"\x01"),
    ("b", b"\xff"),
    ("B", b"\xff"),
    ("s", b"\x80\x00"),
    ("u", b"\xff\xff"),
    ("I", b"\x80\x00\x00\x00"),
    ("i", b"\xff\xff\xff\xff"),
    ("l", b"\x80" + bytes(7)),
    ("L", b"\x7f" + b"\xff" * 7),
    ("f", struct.pack(">f", 1.5)),
    ("d", struct.pack(">d", -0.0)),
    ("D", b"\x02\x00\x00\x01\x00"),
    ("T", b"\x00" * 4 + b"\x60" + b"\x00" * 3),
    ("S", with_length("sn\u00f6 \U0001f407".encode())),
    ("S", with_length(b"\xff\xfe not utf-8")),
    ("x", with_length(bytes(range(256)))),
    ("V", b""),
]
NESTED = [
    ("A", with_length(b"".join(tag.encode() + payload for tag, payload in SCALARS))),
    ("F", with_length(b"".join(_entry(f"k{n}", tag, payload) for n, (tag, payload) in enumerate(SCALARS)))),
]
EVERY_TYPE = with_length(
    b"".join(_entry(f"x-{n}-\u00e9", tag, payload) for n, (tag, payload) in enumerate(SCALARS + NESTED))
)


class Topology:
    """Random valid requests, and what the catalogue must hold after them."""

    def __init__(self, chooser: random.Random, run: str) -> None:
        self.rows: dict[tuple[str, ...], MetadataChange] = {}
        self._chooser = chooser
        self._run = run
        self._made = 0

    def next_request(self) -> Any:
        """Return a method that the broker will accept now, and note what it does."""
        exchanges = self._of(ExchangePut)
        queues = self._of(QueuePut)
        kinds = ["exchange", "queue", "queue"]
        if exchanges and queues:
            kinds += ["bind"] * 4 + ["bind exchange", "unbind", "delete queue", "delete exchange"]
        kind = self._chooser.choice(kinds)
        if kind == "exchange":
            return self._declare_exchange()
        if kind == "queue":
            return self._declare_queue()
        if kind == "bind":
            return self._bind(self._chooser.choice(exchanges).name, self._chooser.choice(queues).name, "queue")
        if kind == "bind exchange":
            return self._bind(self._chooser.choice(exchanges).name, self._chooser.choice(exchanges).name, "exchange")
        if kind == "unbind":
            bindings = self._of(BindingPut)
            return self._unbind(self._chooser.choice(bindings)) if bindings else self._declare_queue()
        gone = self._chooser.choice(queues if kind == "delete queue" else exchanges)
        return self._delete(gone)

    def _of(self, kind: type[Any]) -> list[Any]:
        return [row for row in self.rows.values() if isinstance(row, kind)]

    def _name(self) -> str:
        self._made += 1
        script = self._chooser.choice(
            ["plain", "\u00fcmla\u00fct", "\u5154", "\U0001f407", "a b/c%20'\";--", "NFD e\u0301"]
        )
        return f"{script} {self._run}.{self._made}"

    def _arguments(self) -> bytes:
        return self._chooser.choice([EMPTY, EVERY_TYPE, with_length(_entry("x-n", *self._chooser.choice(SCALARS)))])

    def _declare_exchange(self) -> Any:
        kind = self._chooser.choice(["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-random"])
        row = ExchangePut("/", self._name(), kind, False, self._chooser.random() < 0.2, self._arguments(), "guest")
        self.rows["exchange", row.name] = row
        return m.ExchangeDeclare(0, row.name, row.type, False, True, False, row.internal, False, row.arguments)

    def _declare_queue(self) -> Any:
        row = QueuePut("/", self._name(), self._chooser.random() < 0.2, self._arguments(), ANY_ID)
        self.rows["queue", row.name] = row
        return m.QueueDeclare(0, row.name, False, True, False, row.auto_delete, False, row.arguments)

    def _bind(self, source: str, destination: str, kind: str) -> Any:
        exchange = self.rows["exchange", source]
        assert isinstance(exchange, ExchangePut)
        # A consistent hash takes a weight for a binding key.
        key = str(self._chooser.randint(1, 9))
        if exchange.type != "x-consistent-hash":
            key = self._chooser.choice([key, "", "a.*.#", "k\u00e9y", "k" * 255])
        arguments = self._arguments()
        row = BindingPut("/", source, destination, kind, key, arguments)
        self.rows["binding", source, destination, kind, key, arguments.hex()] = row
        if kind == "queue":
            return m.QueueBind(0, destination, source, key, False, arguments)
        return m.ExchangeBind(0, destination, source, key, False, arguments)

    def _unbind(self, row: BindingPut) -> Any:
        del self.rows[
            "binding", row.source, row.destination, row.destination_type, row.routing_key, row.arguments.hex()
        ]
        if row.destination_type == "queue":
            return m.QueueUnbind(0, row.destination, row.source, row.routing_key, row.arguments)
        return m.ExchangeUnbind(0, row.destination, row.source, row.routing_key, False, row.arguments)

    def _delete(self, gone: ExchangePut | QueuePut) -> Any:
        kind = "queue" if isinstance(gone, QueuePut) else "exchange"
        del self.rows[kind, gone.name]
        for key, row in list(self.rows.items()):
            if not isinstance(row, BindingPut):
                continue
            to_it = (row.destination_type, row.destination) == (kind, gone.name)
            if to_it or (kind == "exchange" and row.source == gone.name):
                del self.rows[key]
        if kind == "queue":
            return m.QueueDelete(0, gone.name, if_unused=False, if_empty=False, no_wait=False)
        return m.ExchangeDelete(0, gone.name, if_unused=False, no_wait=False)


def _stored(url: str) -> set[MetadataChange]:
    """Return what the catalogue holds; which ids queues got is the broker's affair, as long as they differ."""
    catalogue = Catalogue.open(url)
    try:
        rows = [row for row in catalogue.load() if isinstance(row, ExchangePut | QueuePut | BindingPut)]
    finally:
        catalogue.close()
    ids = [row.queue_id for row in rows if isinstance(row, QueuePut)]
    assert len(set(ids)) == len(ids)
    assert ANY_ID not in ids
    return {replace(row, queue_id=ANY_ID) if isinstance(row, QueuePut) else row for row in rows}


def _declare_until_it_dies(
    process: WarrenProcess, topology: Topology, chooser: random.Random, *, after_an_answer: bool
) -> tuple[int, list[set[MetadataChange]]]:
    """Return how many requests were answered, and what the catalogue holds after 0, 1, 2 ... of them.

    `after_an_answer`: the moment of the kill is counted from the first answer, else from the first request.
    """
    client = open_wire(process)
    states = [set(topology.rows.values())]
    answered = 0

    def take_answer() -> None:
        nonlocal answered
        got = client.next_frame()
        assert isinstance(got, frame.Method)
        assert not isinstance(got.method, spec.Channel.Close | spec.Connection.Close), got.method
        answered += 1
        if after_an_answer and answered == 1:
            killer.start()

    killer = threading.Timer(chooser.uniform(0.0, 0.15), process.kill)
    if not after_an_answer:
        killer.start()
    try:
        while True:
            batch = b""
            for _ in range(chooser.randint(1, 20)):
                batch += method_frame(1, topology.next_request())
                states.append(set(topology.rows.values()))
            client.send_bytes(batch)
            while len(states) - 1 - answered > IN_FLIGHT_MAX:
                take_answer()
    except (Ended, OSError):
        # Answers sent before the end count.
        try:
            while True:
                take_answer()
        except (Ended, OSError):
            pass
    killer.join()
    client.close()
    return answered, states


@contextmanager
def _unwritable(url: str) -> Iterator[None]:
    """Keep all others from writing to the tables."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            yield
    else:
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            connection.execute("LOCK TABLE warren_applied IN EXCLUSIVE MODE")
            yield


def _check_kill_9(process: WarrenProcess, url: str, cycles: int, seed: int, *, lags: bool = False) -> None:
    print(f"seed {seed}")
    chooser = random.Random(seed)
    answered_in_all = 0
    process.start()
    topology = Topology(chooser, "0")
    for cycle in range(1, cycles + 1):
        before = set(topology.rows.values())
        with _unwritable(url) if lags else nullcontext():
            answered, states = _declare_until_it_dies(process, topology, chooser, after_an_answer=cycle % 2 == 0)
        answered_in_all += answered
        if lags:
            assert _stored(url) == before, "SQL has followed"
        process.start()  # SQL has all of it then
        process.kill()
        stored = _stored(url)
        first_difference = stored ^ states[answered]
        assert any(stored == state for state in states[answered:]), (
            f"cycle {cycle}: the store holds no state from the {answered} acknowledged requests on; "
            f"it differs from that in {first_difference}"
        )
        process.start()
        topology = Topology(chooser, str(cycle))
        for row in stored:
            match row:
                case ExchangePut():
                    topology.rows["exchange", row.name] = row
                case QueuePut():
                    topology.rows["queue", row.name] = row
                case BindingPut():
                    key = (row.source, row.destination, row.destination_type, row.routing_key, row.arguments.hex())
                    topology.rows["binding", *key] = row
        _check_served(process, stored)
    print(f"{answered_in_all} acknowledged requests in {cycles} cycles")
    assert answered_in_all > 0


def _check_served(process: WarrenProcess, stored: set[MetadataChange]) -> None:
    """Declare everything again, equally: a difference would close the channel with 406."""
    requests = b""
    count = 0
    for row in stored:
        match row:
            case ExchangePut():
                flags = (False, True, row.auto_delete, row.internal, False)
                requests += method_frame(1, m.ExchangeDeclare(0, row.name, row.type, *flags, row.arguments))
            case QueuePut():
                requests += method_frame(1, m.QueueDeclare(0, row.name, True, False, False, False, False, EMPTY))
                flags = (False, True, False, row.auto_delete, False)
                requests += method_frame(1, m.QueueDeclare(0, row.name, *flags, row.arguments))
                count += 1
            case _:
                continue
        count += 1
    with open_wire(process) as client:
        sender = threading.Thread(target=client.send_bytes, args=(requests,))
        sender.start()
        for _ in range(count):
            got = client.next_frame()
            assert isinstance(got, frame.Method)
            assert isinstance(got.method, spec.Queue.DeclareOk | spec.Exchange.DeclareOk), got.method
        sender.join()


def test_everything_acknowledged_survives_kill_9_at_random_moments_and_nothing_is_half(tmp_path: Path) -> None:
    process = WarrenProcess(tmp_path)
    try:
        url = f"sqlite:///{process.data_directory / 'catalogue.db'}"
        _check_kill_9(process, url, cycles=CYCLES, seed=random.randrange(1 << 32))
    finally:
        process.kill()


@pytest.mark.long
def test_the_same_holds_with_postgresql(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.fresh_url()
    process = WarrenProcess(tmp_path, flags={"metadata-url": url})
    try:
        _check_kill_9(process, url, cycles=max(2, CYCLES // 3), seed=random.randrange(1 << 32))
    finally:
        process.kill()


def test_what_sql_does_not_have_is_in_the_log(tmp_path: Path) -> None:
    process = WarrenProcess(tmp_path)
    try:
        url = f"sqlite:///{process.data_directory / 'catalogue.db'}"
        _check_kill_9(process, url, cycles=max(2, CYCLES // 3), seed=random.randrange(1 << 32), lags=True)
    finally:
        process.kill()


@pytest.mark.long
def test_what_postgresql_does_not_have_is_in_the_log(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.fresh_url()
    process = WarrenProcess(tmp_path, flags={"metadata-url": url})
    try:
        _check_kill_9(process, url, cycles=max(2, CYCLES // 3), seed=random.randrange(1 << 32), lags=True)
    finally:
        process.kill()


@pytest.fixture(params=["sqlite", "postgresql"])
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WarrenProcess]:
    """A broker that is not started yet, on each kind of store."""
    flags = {}
    if request.param == "postgresql":
        flags["metadata-url"] = request.getfixturevalue("postgres").fresh_url()
    broker = WarrenProcess(tmp_path, flags=flags)
    yield broker
    broker.kill()


@pytest.mark.long
def test_every_kind_of_binding_routes_as_before_after_kill_9(process: WarrenProcess) -> None:
    process.start()
    match_all = {"x-match": "all", "colour": "r\u00f8d", "size": 3, "fine": True}
    channel = connect(process).channel()
    for kind in ("direct", "fanout", "topic", "headers", "x-consistent-hash", "x-modulus-hash", "x-random"):
        channel.exchange_declare(f"\u5154 {kind}", kind, durable=True)
        channel.queue_declare(f"q {kind}", durable=True)
    channel.exchange_declare("behind", "fanout", durable=True, internal=True)
    channel.exchange_declare("with spare", "direct", durable=True, arguments={"alternate-exchange": "behind"})
    channel.exchange_declare("history", "x-recent-history", durable=True, arguments={"x-recent-history-length": 2})
    channel.queue_declare("q history", durable=True)
    channel.queue_bind("q history", "history", "")
    channel.queue_bind("q direct", "\u5154 direct", "k\u00e9y")
    channel.queue_bind("q fanout", "\u5154 fanout", "")
    channel.queue_bind("q topic", "\u5154 topic", "a.*.#")
    channel.queue_bind("q headers", "\u5154 headers", "", arguments=match_all)
    channel.queue_bind("q x-consistent-hash", "\u5154 x-consistent-hash", "3")
    channel.queue_bind("q x-modulus-hash", "\u5154 x-modulus-hash", "")
    channel.queue_bind("q x-random", "\u5154 x-random", "")
    channel.exchange_bind("behind", "\u5154 direct", "to exchange")
    channel.queue_bind("q fanout", "behind", "")
    channel.queue_bind("q direct", "amq.topic", "predeclared.#")
    # Neither of these may come back.
    channel.queue_bind("q direct", "\u5154 direct", "unbound")
    channel.queue_unbind("q direct", "\u5154 direct", "unbound")
    channel.queue_declare("transient", durable=False)
    channel.queue_declare("exclusive", durable=True, exclusive=True)
    channel.exchange_declare("transient", "fanout", durable=False)
    channel.exchange_bind("transient", "\u5154 fanout", "")
    process.kill()
    process.start()

    fits = BasicProperties(headers={"colour": "r\u00f8d", "size": 3, "fine": True})
    fits_not = BasicProperties(headers={"colour": "r\u00f8d", "size": 4, "fine": True})
    published = [
        ("\u5154 direct", "k\u00e9y", None, ["q direct"]),
        ("\u5154 direct", "unbound", None, []),
        ("\u5154 direct", "to exchange", None, ["q fanout"]),
        ("\u5154 fanout", "x", None, ["q fanout"]),
        ("\u5154 topic", "a.b.c.d", None, ["q topic"]),
        ("\u5154 topic", "b.a", None, []),
        ("\u5154 headers", "", fits, ["q headers"]),
        ("\u5154 headers", "", fits_not, []),
        ("\u5154 x-consistent-hash", "anything", None, ["q x-consistent-hash"]),
        ("\u5154 x-modulus-hash", "anything", None, ["q x-modulus-hash"]),
        ("\u5154 x-random", "anything", None, ["q x-random"]),
        ("with spare", "nowhere", None, ["q fanout"]),
        ("amq.topic", "predeclared.a", None, ["q direct"]),
        ("history", "", None, ["q history"]),
    ]
    with connect(process) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        queues = ["q history", *(f"q {kind}" for kind in ("direct", "fanout", "topic", "headers"))]
        queues += ["q x-consistent-hash", "q x-modulus-hash", "q x-random"]
        for exchange, key, properties, expected in published:
            channel.basic_publish(exchange, key, b"m", properties)
            got = [queue for queue in queues if channel.basic_get(queue, auto_ack=True)[0]]
            assert got == expected, (exchange, key)
        for name in ("transient", "exclusive"):
            with WireClient(broker_at(process)) as looker:
                looker.handshake()
                looker.open_channel()
                looker.send(1, spec.Queue.Declare(queue=name, passive=True))
                assert looker.expect_channel_close(1)[0] == 404
        with WireClient(broker_at(process)) as looker:
            looker.handshake()
            looker.open_channel()
            looker.send(1, spec.Exchange.Declare(exchange="transient", passive=True))
            assert looker.expect_channel_close(1)[0] == 404


def test_names_with_control_characters_are_refused_and_the_broker_goes_on(process: WarrenProcess) -> None:
    process.start()
    for request in (
        spec.Queue.Declare(queue="nul \x00 inside", durable=True),
        spec.Exchange.Declare(exchange="nul \x00 inside", durable=True),
    ):
        with open_wire(process) as client:
            client.send(1, request)
            assert client.expect_channel_close(1)[0] == 406
    with open_wire(process) as client:
        client.send(1, spec.Queue.Declare(queue="q", durable=True))
        client.expect(spec.Queue.DeclareOk, 1)
        # A binding key is any short string.
        client.send(1, spec.Queue.Bind(queue="q", exchange="amq.direct", routing_key="nul \x00 inside"))
        client.expect(spec.Queue.BindOk, 1)
        process.kill()
    process.start()
    with open_wire(process) as client:
        client.send_bytes(publish_frames("amq.direct", "nul \x00 inside", b"found"))
        client.send(1, spec.Basic.Get(queue="q", no_ack=True))
        assert next_body(client, spec.Basic.GetOk) == b"found"


@pytest.mark.long
def test_a_newer_schema_in_postgresql_is_refused_in_one_line_with_exit_code_1_and_left_alone(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.fresh_url()

    def set_version(version: int) -> None:
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            connection.execute(f"UPDATE warren_schema SET version = {version}".encode())

    with WarrenProcess(tmp_path, flags={"metadata-url": url}) as process:
        with connect(process) as client:
            client.channel().queue_declare("kept", durable=True)
        process.stop()
        set_version(SCHEMA_VERSION + 98)
        before = process.log()
        process.spawn()
        assert process.wait() == 1
        said = process.log().removeprefix(before)
        assert said.count("\n") == 1
        assert said.startswith("warren: metadata store ")
        assert f"newer Warren (schema version {SCHEMA_VERSION + 98}, this one knows {SCHEMA_VERSION})" in said
        set_version(SCHEMA_VERSION)
        process.start()
        with connect(process) as client:
            client.channel().queue_declare("kept", passive=True)


@pytest.mark.long
def test_while_postgresql_is_away_declarations_are_answered_and_messages_flow(tmp_path: Path) -> None:
    with (
        running_postgres() as server,
        WarrenProcess(tmp_path, flags={"metadata-url": server.fresh_url()}) as process,
        Traffic(process) as traffic,
    ):
        opened = socket.create_connection(("127.0.0.1", process.amqp_port), timeout=30)
        with WireClient(broker_at(process), opened) as declarer, connect(process) as other:
            declarer.handshake()
            declarer.open_channel(1)
            declarer.open_channel(2)
            server.stop()
            declarer.send(1, spec.Queue.Declare(queue="meanwhile", durable=True))
            declarer.send(1, spec.Queue.Bind(queue="meanwhile", exchange="amq.direct", routing_key="k"))
            declarer.send(2, spec.Queue.Declare(queue="meanwhile too", durable=True))
            declarer.expect(spec.Queue.DeclareOk, 1)
            declarer.expect(spec.Queue.BindOk, 1)
            declarer.expect(spec.Queue.DeclareOk, 2)
            wait_until(lambda: process.health() == 503, "GET /health to say that the store is away")

            channel = other.channel()
            channel.confirm_delivery()
            queue = channel.queue_declare("", exclusive=True).method.queue
            for number in range(20):
                channel.basic_publish("", queue, str(number).encode())
                assert channel.basic_get(queue, auto_ack=True)[2] == str(number).encode()
            seen = traffic.count
            wait_until(lambda: traffic.count > seen + 100, "messages to flow")

            server.start()
            wait_until(lambda: process.health() == 200, "GET /health to recover")
        process.kill()
        process.start()
        with connect(process) as again:
            again.channel().queue_declare("meanwhile", passive=True)
            again.channel().queue_declare("meanwhile too", passive=True)


@pytest.mark.long
def test_a_postgresql_that_does_not_answer_keeps_no_broker_from_stopping(tmp_path: Path) -> None:
    with running_postgres() as server:
        url = server.fresh_url()
        process = WarrenProcess(tmp_path, flags={"metadata-url": url})
        process.start()
        with psycopg.connect(server.conninfo("postgres"), autocommit=True) as other:
            found = other.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s", (url.rsplit("/", 1)[1],)
            ).fetchall()
        assert len(found) == 1
        os.kill(found[0][0], signal.SIGSTOP)
        try:
            with open_wire(process) as client:
                client.send(1, spec.Queue.Declare(queue="meanwhile", durable=True))
                client.expect(spec.Queue.DeclareOk, 1)
            process.stop()
        finally:
            os.kill(found[0][0], signal.SIGCONT)
        process.start()
        with connect(process) as again:
            again.channel().queue_declare("meanwhile", passive=True)
        process.stop()


@pytest.mark.long
def test_a_broker_that_stops_while_postgresql_is_away_knows_at_its_next_start_what_was_declared(tmp_path: Path) -> None:
    with running_postgres() as server:
        process = WarrenProcess(tmp_path, flags={"metadata-url": server.fresh_url()})
        process.start()
        with open_wire(process) as client:
            server.stop()
            client.send(1, spec.Queue.Declare(queue="meanwhile", durable=True))
            client.expect(spec.Queue.DeclareOk, 1)
            wait_until(lambda: process.health() == 503, "GET /health to say that the store is away")
        process.stop()
        server.start()
        process.start()
        with connect(process) as again:
            again.channel().queue_declare("meanwhile", passive=True)
        process.stop()
