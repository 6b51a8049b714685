"""The event exchange. What is expected of names, types and texts is what RabbitMQ 3.10.8 sent for the same commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from engine_harness import USER, Client, Harness, Refusal, exchange_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, Table, Timestamp, encode_table
from warren.channels.connection import Connection
from warren.queues.metadata import (
    BindingPut,
    ExchangePut,
    MetadataChange,
    PermissionDelete,
    PermissionPut,
    PolicyDelete,
    PolicyPut,
    QueuePut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
    VhostDelete,
    VhostLimitsDelete,
    VhostLimitsPut,
    VhostPut,
)

from .rules import rule
from .typed_table import Typed, text, texts, typed_table

EVENTS = "amq.rabbitmq.event"
NOW_MS = 1795285408241
PEER = "127.0.0.1:50000 -> 127.0.0.1:5672"
CLIENT_PROPERTIES = texts(
    '{<<"product">>,longstr,<<"a test">>}',
    '{<<"capabilities">>,table,[{<<"consumer_cancel_notify">>,bool,true},'
    '{<<"authentication_failure_close">>,bool,true},{<<"connection.blocked">>,bool,true}]}',
)
INTERNAL = "rmq-internal"

Event = tuple[str, dict[str, Typed]]


class Listener:
    """A queue with all events, on a connection of its own."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.now_ms = NOW_MS
        harness.broker.log.now_ms = NOW_MS
        self.client = harness.channel()
        self.client.declare("events")
        self.client.bind("events", EVENTS, "#")
        self.take()

    def take(self) -> list[Event]:
        """Return the events since the last call, without their time, which is what it must be."""
        self.harness.settle()
        events: list[Event] = []
        while (got := self.client.get("events", no_ack=True)) is not None:
            assert got.content is not None
            assert got.content.body == b""
            assert got.method.exchange == EVENTS
            properties = got.content.properties
            assert properties.headers is not None
            assert (properties.delivery_mode, properties.timestamp) == (2, self.now_ms // 1000)
            headers = typed_table(properties.headers)
            assert headers.pop("timestamp_in_ms") == ("l", self.now_ms)
            events.append((got.method.routing_key, headers))
        return events

    def one(self, key: str) -> dict[str, Typed]:
        """Return the headers of the only event since the last call."""
        events = self.take()
        assert [found for found, _ in events] == [key], events
        return events[0][1]

    def keys(self) -> list[str]:
        return [key for key, _ in self.take()]

    def named(self) -> list[tuple[str, str, str]]:
        """Return key, name or what there is of one, and who did it, of each event."""
        named = []
        for key, headers in self.take():
            for header in ("name", "destination_name", "consumer_tag", "pid"):
                if header in headers:
                    named.append((key, headers[header][1], headers.get("user_who_performed_action", ("", ""))[1]))
                    break
        return named


@pytest.fixture
def listener(harness: Harness) -> Listener:
    return Listener(harness)


@pytest.fixture
def client(listener: Listener, harness: Harness) -> Client:
    """A client that the listener has forgotten the events of."""
    client = harness.channel()
    listener.take()
    return client


def by(user: str) -> dict[str, Typed]:
    return {"user_who_performed_action": text(user)}


def pid(connection: Connection, serial: int = 0) -> Typed:
    return text(f"<warren.{NOW_MS // 1000}.{connection.key}.{serial}>")


# --- the exchange -----------------------------------------------------------------------------------------------------


@rule("rabbitmq.event.exchange", "amq.rabbitmq.event is a durable topic exchange that clients cannot publish to.")
def test_the_event_exchange_is_internal(harness: Harness) -> None:
    client = harness.channel()
    declare = exchange_declare(EVENTS, "topic", durable=True, internal=True)
    assert client.call(1, declare) == m.ExchangeDeclareOk()
    client.publish(EVENTS, "k")
    text = f"ACCESS_REFUSED - cannot publish to internal exchange '{EVENTS}' in vhost '/'"
    assert client.refusal() == Refusal("channel", 403, text, m.BasicPublish)


@rule("rabbitmq.event.exchange", "It is in vhost / only.")
def test_other_vhosts_have_no_event_exchange(harness: Harness) -> None:
    harness.broker.administer(VhostPut("other"))
    assert EVENTS not in harness.broker.vhosts["other"].exchanges


@rule("rabbitmq.event.exchange", "The routing key is the event's name: a queue gets the events that it is bound for.")
def test_queues_choose_their_events(listener: Listener, client: Client) -> None:
    client.declare("mine")
    client.bind("mine", EVENTS, "queue.*")
    client.declare("q")
    client.declare_exchange("x")
    client.send(1, m.QueueDelete(0, "q", False, False, True))
    taken = [client.get("mine", no_ack=True) for _ in range(3)]
    assert [each and each.method.routing_key for each in taken] == ["queue.created", "queue.deleted", None]


@rule("rabbitmq.event.exchange", "Who binds to it hears of the binding.")
def test_the_first_event_is_the_binding(harness: Harness) -> None:
    client = harness.channel()
    client.declare("q")
    client.bind("q", EVENTS, "#")
    first = client.get("q", no_ack=True)
    assert first is not None
    assert first.method.routing_key == "binding.created"
    assert client.get("q") is None


@rule("rabbitmq.event.exchange", "Events are persistent, so a durable queue keeps them.")
def test_events_are_stored_in_durable_queues(harness: Harness) -> None:
    client = harness.channel()
    client.declare("kept", durable=True)
    client.bind("kept", EVENTS, "#")
    harness.settle()
    (message,) = harness.queue("kept").ready.in_memory()
    assert message.persistent


@rule("rabbitmq.event.exchange", "What comes of publishing an event is no event, and no traced publish.")
def test_events_are_traced_when_delivered_only(listener: Listener, client: Client) -> None:
    client.declare("traces")
    client.bind("traces", "amq.rabbitmq.trace", "#")
    listener.take()
    listener.harness.broker.trace("/", True)
    client.declare("q")
    assert listener.keys() == ["queue.created"]
    trace = client.get("traces", no_ack=True)
    assert trace is not None
    assert trace.method.routing_key == "deliver.events"
    assert client.get("traces") is None


# --- connections, channels, consumers ---------------------------------------------------------------------------------


@rule("rabbitmq.event.user.authentication", "A login that succeeds, and then the open connection, are told.")
def test_logins_and_connections_are_told(listener: Listener, harness: Harness) -> None:
    new = harness.client(heartbeat_s=7, channel_max=100)
    (login, login_headers), (opened, opened_headers) = listener.take()
    assert login == "user.authentication.success"
    assert login_headers == {
        "ssl": ("t", False),
        "auth_mechanism": text("PLAIN"),
        "protocol": text("{0,9,1}"),
        "peer_port": ("l", 50000),
        "peer_host": text("{127,0,0,1}"),
        "connection_name": text(PEER),
        "host": text("{127,0,0,1}"),
        "name": text(USER),
        "connection_type": text("network"),
    }
    assert opened == "connection.created"
    assert opened_headers == {
        **by(USER),
        "node": text("warren"),
        "connected_at": ("l", NOW_MS),
        "client_properties": CLIENT_PROPERTIES,
        "channel_max": ("l", 100),
        "frame_max": ("l", 131072),
        "timeout": ("l", 7),
        "vhost": text("/"),
        "user": text(USER),
        "protocol": text("{0,9,1}"),
        "ssl_hash": text(""),
        "ssl_cipher": text(""),
        "ssl_key_exchange": text(""),
        "ssl_protocol": text(""),
        "auth_mechanism": text("PLAIN"),
        "peer_cert_validity": text(""),
        "peer_cert_issuer": text(""),
        "peer_cert_subject": text(""),
        "ssl": ("t", False),
        "peer_host": text("{127,0,0,1}"),
        "host": text("{127,0,0,1}"),
        "peer_port": ("l", 50000),
        "port": ("l", 5672),
        "name": text(PEER),
        "pid": pid(new.connection),
        "type": text("network"),
    }


@rule("rabbitmq.event.connection", "Whether it is TLS is told, and the name that the client gave itself.")
def test_names_and_tls_are_told(listener: Listener, harness: Harness) -> None:
    client = harness.raw_client()
    client.connection.is_tls = True
    client.start()
    properties: Table = {"connection_name": 'the "first"'}
    client.send(0, m.ConnectionStartOk(properties, "PLAIN", b"\0guest\0guest", "en_US"))
    client.expect(m.ConnectionTune)
    client.send(0, m.ConnectionTuneOk(10, 4096, 0))
    client.send(0, m.ConnectionOpen("/", "", False))
    client.expect(m.ConnectionOpenOk)
    (_, login), (_, opened) = listener.take()
    assert login["ssl"] == opened["ssl"] == ("t", True)
    assert opened["user_provided_name"] == text('the "first"')
    assert opened["client_properties"] == texts('{<<"connection_name">>,longstr,<<"the \\"first\\"">>}')
    client.hang_up()
    assert listener.one("connection.closed")["user_provided_name"] == text('the "first"')


@rule("rabbitmq.event.user.authentication", "A login that fails is told with its reason, a character each.")
@pytest.mark.parametrize("name", [USER, "nobody"])
def test_failed_logins_are_told(listener: Listener, harness: Harness, name: str) -> None:
    client = harness.raw_client()
    client.start()
    client.start_ok(name, b"wrong")
    ((failure, headers),) = listener.take()
    assert failure == "user.authentication.failure"
    reason = f"user '{name}' - invalid credentials"
    assert headers["error"] == ("A", [("l", ord(character)) for character in reason])
    assert headers["name"] == text(name)
    assert set(headers) - {"error"} == {
        "ssl",
        "auth_mechanism",
        "protocol",
        "peer_port",
        "peer_host",
        "connection_name",
        "host",
        "name",
        "connection_type",
    }
    client.send(0, m.ConnectionCloseOk())
    assert listener.keys() == ["connection.closed"]


@rule("rabbitmq.event.connection", "A connection that may not enter its vhost was never open, but is closed.")
def test_refused_vhosts_are_told(listener: Listener, harness: Harness) -> None:
    client = harness.raw_client()
    client.start()
    client.start_ok()
    client.take()
    client.send(0, m.ConnectionTuneOk(10, 4096, 0))
    client.send(0, m.ConnectionOpen("nowhere", "", False))
    assert client.refusal().code == 530
    assert listener.keys() == ["user.authentication.success", "connection.closed"]


@rule(
    "rabbitmq.event.connection",
    "Who goes before logging in was no connection.",
    deviation="RabbitMQ says connection.closed for every socket, port scanners included.",
)
def test_peers_that_never_log_in_are_not_told(listener: Listener, harness: Harness) -> None:
    for data in (b"", b"GET / HTTP/1.1\r\n", b"AMQP\0\0\x09\x01"):
        client = harness.raw_client()
        if data:
            client.feed(data)
        client.hang_up()
    assert listener.take() == []


def ask_to_close(client: Client) -> None:
    client.send(0, m.ConnectionClose(200, "bye", 0, 0))


def force_closed(client: Client) -> None:
    client.connection.force_close("no more")
    client.send(0, m.ConnectionCloseOk())


def fail(client: Client) -> None:
    client.send(5, m.BasicQosOk())
    client.send(0, m.ConnectionCloseOk())


@rule("rabbitmq.event.connection", "Whichever way a connection ends, everything in it ends first, and once.")
@pytest.mark.parametrize("way", [ask_to_close, Client.hang_up, force_closed, fail])
def test_the_end_of_a_connection_is_told(listener: Listener, client: Client, way: Callable[[Client], None]) -> None:
    client.declare("own", exclusive=True)
    client.bind("own", "amq.fanout")
    client.consume("own", "c")
    listener.take()
    way(client)
    connection = client.connection
    events = listener.take()
    assert [(key, headers.get("user_who_performed_action")) for key, headers in events] == [
        ("consumer.deleted", text(USER)),
        ("channel.closed", text(USER)),
        ("binding.deleted", text(INTERNAL)),
        ("queue.deleted", text(INTERNAL)),
        ("connection.closed", None),
    ]
    assert events[1][1] == {**by(USER), "pid": pid(connection, 1)}
    assert events[4][1] == {
        "client_properties": CLIENT_PROPERTIES,
        "node": text("warren"),
        "pid": pid(connection),
        "name": text(PEER),
    }


@rule("rabbitmq.event.channel", "A channel that is opened or closed is told, and never has the pid of another one.")
def test_channels_are_told(listener: Listener, client: Client) -> None:
    client.open(7)
    assert listener.one("channel.created") == {
        **by(USER),
        "vhost": text("/"),
        "user": text(USER),
        "number": ("l", 7),
        "connection": pid(client.connection),
        "name": text(f"{PEER} (7)"),
        "pid": pid(client.connection, 2),
    }
    client.call(7, m.ChannelClose(200, "", 0, 0))
    assert listener.one("channel.closed") == {**by(USER), "pid": pid(client.connection, 2)}
    client.open(7)
    assert listener.one("channel.created")["pid"] == pid(client.connection, 3)


@rule("rabbitmq.event.channel", "So is one that is closed because of an error.")
def test_channel_errors_are_told(listener: Listener, client: Client) -> None:
    client.refused(1, m.BasicGet(0, "nothing", False))
    assert listener.keys() == ["channel.closed", "channel.created"]


@rule("rabbitmq.event.consumer", "A consumer that comes or goes is told.")
def test_consumers_are_told(listener: Listener, client: Client) -> None:
    client.declare("q")
    listener.take()
    client.call(1, m.BasicQos(0, 3, False))
    client.consume("q", "c", exclusive=True, arguments={"x-priority": 3})
    assert listener.one("consumer.created") == {
        **by(USER),
        "arguments": texts('{<<"x-priority">>,signedint,3}'),
        "prefetch_count": ("l", 3),
        "queue": text("q"),
        "vhost": text("/"),
        "channel": pid(client.connection, 1),
        "ack_required": ("t", True),
        "exclusive": ("t", True),
        "consumer_tag": text("c"),
    }
    client.call(1, m.BasicCancel("c", False))
    assert listener.one("consumer.deleted") == {
        **by(USER),
        "queue": text("q"),
        "vhost": text("/"),
        "channel": pid(client.connection, 1),
        "consumer_tag": text("c"),
    }
    client.consume("q", "d", no_ack=True)
    assert listener.one("consumer.created")["ack_required"] == ("t", False)


@rule("rabbitmq.event.consumer", "One that loses its queue, or the right to read it, is told.")
def test_lost_consumers_are_told(listener: Listener, client: Client, harness: Harness) -> None:
    harness.add_user("u")
    reader = harness.channel("u")
    for name in ("q", "r"):
        client.declare(name)
        reader.consume(name, name)
    listener.take()
    client.call(1, m.QueueDelete(0, "q", False, False, False))
    assert listener.named() == [("consumer.deleted", "q", "u"), ("queue.deleted", "q", USER)]
    harness.permit("u", read="")
    assert listener.named() == [("consumer.deleted", "r", "u")]


@rule("rabbitmq.event.consumer", "The consumer of direct replies is none that anybody hears of.")
def test_reply_consumers_are_not_told(listener: Listener, client: Client) -> None:
    client.consume("amq.rabbitmq.reply-to", "r", no_ack=True)
    client.call(1, m.BasicCancel("r", False))
    assert listener.take() == []


# --- topology ---------------------------------------------------------------------------------------------------------


@rule("rabbitmq.event.queue", "A queue that is declared is told, once.")
def test_new_queues_are_told(listener: Listener, client: Client) -> None:
    for _ in range(2):
        client.declare("q", durable=True, arguments={"x-max-length": 5, "x-b": True})
    client.declare("q", passive=True)
    assert listener.one("queue.created") == {
        **by(USER),
        "exclusive": ("t", False),
        "owner_pid": text(""),
        "arguments": texts('{<<"x-max-length">>,signedint,5}', '{<<"x-b">>,bool,true}'),
        "auto_delete": ("t", False),
        "durable": ("t", True),
        "name": text("q"),
        "vhost": text("/"),
    }
    client.declare("own", exclusive=True, auto_delete=True)
    assert listener.one("queue.created") == {
        **by(USER),
        "exclusive": ("t", True),
        "owner_pid": pid(client.connection),
        "arguments": texts(),
        "auto_delete": ("t", True),
        "durable": ("t", False),
        "name": text("own"),
        "vhost": text("/"),
    }


@rule("rabbitmq.event.queue", "Of a quorum queue the type is told, and no owner, which it cannot have.")
def test_new_quorum_queues_are_told(listener: Listener, client: Client) -> None:
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    assert listener.one("queue.created") == {
        **by(USER),
        "type": text("rabbit_quorum_queue"),
        "exclusive": ("t", False),
        "arguments": texts('{<<"x-queue-type">>,longstr,<<"quorum">>}'),
        "auto_delete": ("t", False),
        "durable": ("t", True),
        "name": text("q"),
        "vhost": text("/"),
    }


@rule("rabbitmq.event.queue", "One that is deleted is told, after what goes with it.")
def test_deleted_queues_are_told(listener: Listener, client: Client) -> None:
    client.declare("q")
    client.bind("q", "amq.direct", "k")
    listener.take()
    client.call(1, m.QueueDelete(0, "q", False, False, False))
    (unbound, _), (deleted, headers) = listener.take()
    assert (unbound, deleted) == ("binding.deleted", "queue.deleted")
    assert headers == {**by(USER), "name": text("q"), "vhost": text("/")}
    client.call(1, m.QueueDelete(0, "q", False, False, False))
    assert listener.take() == []


@rule("rabbitmq.event.queue", "A queue that goes by itself is nobody's doing.")
def test_queues_that_go_by_themselves_are_told(listener: Listener, client: Client, harness: Harness) -> None:
    client.declare("auto", auto_delete=True)
    client.declare("old", arguments={"x-expires": 1000})
    client.consume("auto", "c")
    listener.take()
    client.call(1, m.BasicCancel("c", False))
    assert listener.named() == [("consumer.deleted", "c", USER), ("queue.deleted", "auto", INTERNAL)]
    listener.now_ms += 2000
    harness.broker.keep_time(listener.now_ms)
    assert listener.named() == [("queue.deleted", "old", INTERNAL)]


@rule("rabbitmq.event.exchange.created", "An exchange that is declared is told, once, and one that is deleted.")
def test_exchanges_are_told(listener: Listener, client: Client) -> None:
    declare = exchange_declare(
        "x", "topic", durable=True, auto_delete=True, arguments={"alternate-exchange": "amq.fanout"}
    )
    for _ in range(2):
        client.call(1, declare)
    assert listener.one("exchange.created") == {
        **by(USER),
        "policy": text(""),
        "arguments": texts('{<<"alternate-exchange">>,longstr,<<"amq.fanout">>}'),
        "internal": ("t", False),
        "auto_delete": ("t", True),
        "durable": ("t", True),
        "type": text("topic"),
        "name": text("x"),
        "vhost": text("/"),
    }
    for _ in range(2):
        client.call(1, m.ExchangeDelete(0, "x", False, False))
    assert listener.one("exchange.deleted") == {**by(USER), "name": text("x"), "vhost": text("/")}


@rule("rabbitmq.event.exchange.created", "The policy it comes under is told.")
def test_the_policy_of_a_new_exchange_is_told(listener: Listener, client: Client, harness: Harness) -> None:
    harness.broker.administer(PolicyPut("/", "p", "^x", "all", 0, '{"alternate-exchange":"amq.fanout"}'))
    listener.take()
    client.declare_exchange("x")
    assert listener.one("exchange.created")["policy"] == text("p")


@rule("rabbitmq.event.binding", "A binding that is made or removed is told, once.")
def test_bindings_are_told(listener: Listener, client: Client) -> None:
    client.declare("q")
    client.declare_exchange("x")
    listener.take()
    arguments = {"n": 7, "t": "s"}
    for _ in range(2):
        client.bind("q", "amq.topic", "a.#", arguments)
    to_queue = {
        **by(USER),
        "vhost": text("/"),
        "arguments": texts('{<<"n">>,signedint,7}', '{<<"t">>,longstr,<<"s">>}'),
        "routing_key": text("a.#"),
        "destination_kind": text("queue"),
        "destination_name": text("q"),
        "source_kind": text("exchange"),
        "source_name": text("amq.topic"),
    }
    assert listener.one("binding.created") == to_queue
    for _ in range(2):
        client.call(1, m.QueueUnbind(0, "q", "amq.topic", "a.#", encode_table(arguments)))
    assert listener.one("binding.deleted") == to_queue
    to_exchange = {
        **to_queue,
        "arguments": texts(),
        "destination_kind": text("exchange"),
        "destination_name": text("x"),
    }
    client.call(1, m.ExchangeBind(0, "x", "amq.topic", "a.#", False, EMPTY_TABLE))
    assert listener.one("binding.created") == to_exchange
    client.call(1, m.ExchangeUnbind(0, "x", "amq.topic", "a.#", False, EMPTY_TABLE))
    assert listener.one("binding.deleted") == to_exchange


@rule("rabbitmq.event.binding", "So are those that go with an exchange, and the exchange that goes with them.")
def test_what_goes_along_is_told(listener: Listener, client: Client) -> None:
    client.declare("q")
    client.declare_exchange("x")
    client.bind("q", "x", "1")
    client.call(1, m.ExchangeBind(0, "x", "amq.direct", "2", False, EMPTY_TABLE))
    listener.take()
    client.call(1, m.ExchangeDelete(0, "x", False, False))
    assert listener.named() == [
        ("exchange.deleted", "x", USER),
        ("binding.deleted", "q", USER),
        ("binding.deleted", "x", USER),
    ]
    auto = exchange_declare("auto", auto_delete=True)
    for end, who in (
        (m.QueueUnbind(0, "q", "auto", "k", EMPTY_TABLE), USER),
        (m.QueueDelete(0, "q", False, False, False), INTERNAL),
    ):
        client.call(1, auto)
        client.bind("q", "auto", "k")
        listener.take()
        client.call(1, end)
        assert listener.named()[:2] == [("exchange.deleted", "auto", who), ("binding.deleted", "q", who)]


TERMS = [
    ("l", 1 << 40, "long,1099511627776"),
    ("t", False, "bool,false"),
    ("S", 'a"b\\c\nd', 'longstr,<<"a\\"b\\\\c\\nd">>'),
    ("S", "", "longstr,<<>>"),
    ("S", "é 中", 'longstr,<<"é 中">>'),
    ("x", b"abc", 'binary,<<"abc">>'),
    ("d", 1.5, "double,1.5"),
    ("V", None, "void,undefined"),
    ("T", Timestamp(1577836800), "timestamp,1577836800"),
    ("A", [1, "a", {"k": 2}], 'array,[{signedint,1},{longstr,<<"a">>},{table,[{<<"k">>,signedint,2}]}]'),
    ("F", {"x": [], "y": {}}, 'table,[{<<"x">>,array,[]},{<<"y">>,table,[]}]'),
]


@rule("rabbitmq.event.terms", "Arguments are told as Erlang writes them.")
@pytest.mark.parametrize(("tag", "value", "term"), TERMS, ids=[term for _, _, term in TERMS])
def test_arguments_are_told_as_terms(listener: Listener, client: Client, tag: str, value: object, term: str) -> None:
    encoded = encode_table({"k": value})
    assert chr(encoded[6]) == tag
    client.declare("q", arguments={"k": value})
    assert listener.one("queue.created")["arguments"] == texts(f'{{<<"k">>,{term}}}')


@rule("rabbitmq.event.terms", "The width of an integer is told as it came.")
@pytest.mark.parametrize(
    ("raw", "term"),
    [
        (b"b\xfb", "byte,-5"),
        (b"B\xfb", "unsignedbyte,251"),
        (b"s\xff\xfe", "short,-2"),
        (b"u\xff\xfe", "unsignedshort,65534"),
        (b"i\xff\xff\xff\xfe", "unsignedint,4294967294"),
        (b"L" + b"\xff" * 8, "long,-1"),
    ],
)
def test_the_width_of_integers_is_told(listener: Listener, client: Client, raw: bytes, term: str) -> None:
    arguments = (2 + len(raw)).to_bytes(4, "big") + b"\x01k" + raw
    client.send(1, m.QueueDeclare(0, "q", False, False, False, False, True, arguments))
    assert listener.one("queue.created")["arguments"] == texts(f'{{<<"k">>,{term}}}')


@rule("abuse.event.arguments", "Arguments that no event has room for are not told; the event is.")
@pytest.mark.parametrize(
    "arguments", [{"a": 1, "b": "x" * 100000}, {"a": 1, **dict.fromkeys(map(str, range(4000)), "x")}]
)
def test_huge_arguments_are_cut(listener: Listener, client: Client, arguments: Table) -> None:
    client.declare("q", arguments=arguments)
    tag, terms = listener.one("queue.created")["arguments"]
    assert tag == "A"
    assert terms[0] == text('{<<"a">>,signedint,1}')
    assert sum(len(term[1]) for term in terms) <= 32768


# --- administration ---------------------------------------------------------------------------------------------------

ADMIN = "admin"
USER_U = UserPut("u", "hash", "rabbit_password_hashing_sha256", ("old",))
POLICY = PolicyPut("v", "p", "^a", "queues", 3, '{"max-length":5,"overflow":"drop-head"}')
SET_POLICY: dict[str, Typed] = {
    "apply-to": text("queues"),
    "priority": ("l", 3),
    "definition": ("F", {"max-length": ("l", 5), "overflow": text("drop-head")}),
    "pattern": text("^a"),
}
OPERATOR_POLICY = PolicyPut("v", "o", "^a", "queues", 3, '{"max-length":5}', True)
SET_OPERATOR_POLICY: dict[str, Typed] = {**SET_POLICY, "definition": ("F", {"max-length": ("l", 5)})}
U = {"name": text("u")}
U_IN_V = {"vhost": text("v"), "user": text("u")}
U_IN_TOPIC = {**U_IN_V, "exchange": text("amq.topic")}
LIMITS: dict[str, Typed] = {"max-connections": ("l", 5), "max-queues": ("l", 3)}


def parameter(component: str, name: str, value: dict[str, Typed] | None = None) -> dict[str, Typed]:
    shown: dict[str, Typed] = {"name": text(name), "component": text(component), "vhost": text("v")}
    return shown if value is None else {**shown, "value": ("F", value)}


CHANGES: list[tuple[str, MetadataChange, list[Event]]] = [
    (
        "add a user",
        UserPut("n", "hash", "scrypt", ("a", "b")),
        [("user.created", {"name": text("n")}), ("user.tags.set", {"name": text("n"), "tags": texts("a", "b")})],
    ),
    ("add a user without tags", UserPut("n", "hash", "scrypt"), [("user.created", {"name": text("n")})]),
    ("set tags", dataclasses.replace(USER_U, tags=("x",)), [("user.tags.set", {**U, "tags": texts("x")})]),
    ("clear tags", dataclasses.replace(USER_U, tags=()), [("user.tags.set", {**U, "tags": texts()})]),
    ("set the same", USER_U, []),
    ("change a password", dataclasses.replace(USER_U, password_hash="other"), [("user.password.changed", U)]),
    ("clear a password", dataclasses.replace(USER_U, password_hash=""), [("user.password.cleared", U)]),
    ("delete a user", UserDelete("u"), [("user.deleted", U)]),
    (
        "permit",
        PermissionPut("u", "v", "a.*", "b.*", "c.*"),
        [("permission.created", {**U_IN_V, "configure": text("a.*"), "write": text("b.*"), "read": text("c.*")})],
    ),
    ("forbid", PermissionDelete("u", "v"), [("permission.deleted", U_IN_V)]),
    (
        "permit topics",
        TopicPermissionPut("u", "v", "amq.topic", "w", "r"),
        [
            (
                "topic.permission.created",
                {**U_IN_V, "exchange": text("amq.topic"), "write": text("w"), "read": text("r")},
            )
        ],
    ),
    ("forbid topics", TopicPermissionDelete("u", "v", ""), [("topic.permission.deleted", U_IN_V)]),
    (
        "limit a vhost",
        VhostLimitsPut("v", '{"max-connections":5,"max-queues":3}'),
        [
            (
                "parameter.set",
                parameter("vhost-limits", "limits", LIMITS),
            ),
            (
                "vhost.limits.set",
                {"name": text("limits"), **LIMITS},
            ),
        ],
    ),
    ("limit a vhost as it is", VhostLimitsPut("v", '{"max-queues":10}'), []),
    (
        "unlimit a vhost",
        VhostLimitsDelete("v"),
        [
            ("parameter.cleared", parameter("vhost-limits", "limits")),
            ("vhost.limits.cleared", {"name": text("limits")}),
        ],
    ),
    (
        "limit a user",
        UserLimitsPut("u", '{"max-connections":5}'),
        [("user.limits.set", {"name": text("limits"), "username": text("u"), "max-connections": ("l", 5)})],
    ),
    ("limit a user as it is", UserLimitsPut("u", '{"max-channels":10}'), []),
    (
        "unlimit a user",
        UserLimitsDelete("u"),
        [("user.limits.cleared", {"name": text("limits"), "username": text("u")})],
    ),
    ("set a policy", POLICY, [("policy.set", {**SET_POLICY, "vhost": text("v"), "name": text("p")})]),
    (
        "set an operator policy",
        OPERATOR_POLICY,
        [
            ("parameter.set", parameter("operator_policy", "o", SET_OPERATOR_POLICY)),
            ("policy.set", {**SET_OPERATOR_POLICY, "vhost": text("v"), "name": text("o")}),
        ],
    ),
    ("clear no policy", PolicyDelete("v", "p"), []),
    ("clear no operator policy", PolicyDelete("v", "o", True), []),
]


@pytest.fixture
def peopled(harness: Harness, listener: Listener) -> Listener:
    """A listener on a broker with vhost v and user u, both limited."""
    for change in (
        VhostPut("v"),
        USER_U,
        VhostLimitsPut("v", '{"max-queues":10}'),
        UserLimitsPut("u", '{"max-channels":10}'),
    ):
        harness.broker.administer(change)
    listener.take()
    return listener


@rule("rabbitmq.event.administration", "Administrative changes are told, with who made them.")
@pytest.mark.parametrize(("change", "events"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_administrative_changes_are_told(peopled: Listener, change: MetadataChange, events: list[Event]) -> None:
    peopled.harness.broker.administer(change, ADMIN)
    assert peopled.take() == [(key, {**by(ADMIN), **headers}) for key, headers in events]


@rule(
    "rabbitmq.event.administration",
    "That a user lost the permission for the topics of one exchange is told as that.",
    deviation="RabbitMQ 3.10 says permission.deleted, which means all permissions in the vhost.",
)
def test_a_lost_topic_permission_is_told_as_such(peopled: Listener) -> None:
    peopled.harness.broker.administer(TopicPermissionDelete("u", "v", "amq.topic"), ADMIN)
    headers = peopled.one("topic.permission.deleted")
    assert headers == {**by(ADMIN), **U_IN_TOPIC}


@rule("rabbitmq.event.administration", "What is refused is not told.")
@pytest.mark.parametrize(
    "change",
    [
        PolicyPut("v", "p", "^a", "queues", 0, "not json"),
        PolicyPut("v", "p", "^a", "queues", 0, '{"max-length":-5}'),
        PolicyPut("v", "p", "(", "queues", 0, '{"max-length":5}'),
        PolicyPut("nix", "p", "^a", "queues", 0, '{"max-length":5}'),
        VhostLimitsPut("v", '{"max-queues":"x"}'),
        VhostLimitsPut("v", "[]"),
        VhostLimitsPut("nix", "{}"),
        UserLimitsPut("nobody", "{}"),
        UserLimitsPut("u", "x"),
        PermissionPut("u", "nix", "", "", ""),
        PermissionPut("u", "v", "(", "", ""),
    ],
)
def test_refused_changes_are_not_told(peopled: Listener, change: MetadataChange) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        peopled.harness.broker.administer(change, ADMIN)
    assert peopled.take() == []


@rule("rabbitmq.event.administration", "That a login has replaced the hash of a password by a better one is not told.")
def test_upgraded_hashes_are_not_told(peopled: Listener) -> None:
    upgraded = dataclasses.replace(USER_U, password_hash="better", hashing_algorithm="scrypt")
    peopled.harness.broker.administer(upgraded)
    assert peopled.take() == []
    peopled.harness.broker.administer(dataclasses.replace(upgraded, password_hash="other"), ADMIN)
    assert peopled.keys() == ["user.password.changed"]


@rule("rabbitmq.event.vhost", "A new vhost is told, after its exchanges.")
def test_new_vhosts_are_told(listener: Listener, harness: Harness) -> None:
    for _ in range(2):
        harness.broker.administer(VhostPut("v", "d", ("a", "b"), "quorum"), ADMIN)
    events = listener.take()
    created = [headers["name"][1] for key, headers in events if key == "exchange.created"]
    assert set(created) == set(harness.broker.vhosts["v"].exchanges)
    assert len(events) == len(created) + 1
    for key, headers in events[:-1]:
        exchange = harness.broker.vhosts["v"].exchanges[headers["name"][1]]
        assert key == "exchange.created"
        assert headers == {
            **by(ADMIN),
            "policy": text(""),
            "arguments": texts(),
            "internal": ("t", exchange.internal),
            "auto_delete": ("t", False),
            "durable": ("t", True),
            "type": text(exchange.type_name),
            "name": text(exchange.name),
            "vhost": text("v"),
        }
    assert events[-1] == (
        "vhost.created",
        {
            **by(ADMIN),
            "tags": text("a,b"),
            "description": text("d"),
            "cluster_state": ("F", {"warren": text("running")}),
            "tracing": ("t", False),
            "metadata": text('#{description => <<"d">>,tags => <<"a,b">>}'),
            "default_queue_type": text("quorum"),
            "name": text("v"),
        },
    )


@rule("rabbitmq.event.vhost", "A vhost that is deleted is told, after everything in it, once each.")
def test_deleted_vhosts_are_told(listener: Listener, harness: Harness) -> None:
    harness.broker.administer(VhostPut("v"))
    harness.permit(USER, vhost="v")
    client = harness.client(vhost="v")
    client.open(1)
    client.declare("own", exclusive=True)
    client.declare("q", durable=True)
    exchanges = list(harness.broker.vhosts["v"].exchanges)
    listener.take()
    harness.broker.administer(VhostDelete("v"), ADMIN)
    harness.broker.administer(VhostDelete("v"), ADMIN)
    assert listener.named() == [
        ("channel.closed", pid(client.connection, 1)[1], USER),
        ("queue.deleted", "own", INTERNAL),
        ("queue.deleted", "q", ADMIN),
        *(("exchange.deleted", name, ADMIN) for name in exchanges),
        ("vhost.deleted", "v", ADMIN),
    ]


@rule("rabbitmq.event.policy", "Each queue that comes under another policy, or under none, is told.")
def test_queues_under_policies_are_told(peopled: Listener, harness: Harness) -> None:
    vhost = harness.broker.vhosts["v"]
    quorum = encode_table({"x-queue-type": "quorum"})
    vhost.declare_queue("a1", True, False, False, EMPTY_TABLE, None)
    vhost.declare_queue("a2", True, False, False, quorum, None)
    vhost.declare_queue("b", True, False, False, EMPTY_TABLE, None)
    peopled.take()
    queues = {"a1": "rabbit_classic_queue", "a2": "rabbit_quorum_queue"}

    def told(key: str, headers: dict[str, Typed]) -> list[Event]:
        who = {**by(ADMIN), "vhost": text("v")}
        return [(key, {**headers, **who, "type": text(kind), "name": text(name)}) for name, kind in queues.items()]

    policy = dataclasses.replace(POLICY, definition='{"max-length":5}')
    for _ in range(2):
        harness.broker.administer(policy, ADMIN)
    events = peopled.take()
    shown = SET_OPERATOR_POLICY
    assert events[:-1] == told("queue.policy.updated", shown)
    assert events[-1] == ("policy.set", {**shown, **by(ADMIN), "vhost": text("v"), "name": text("p")})

    harness.broker.administer(OPERATOR_POLICY, ADMIN)
    events = peopled.take()
    assert events[0][0] == "parameter.set"
    assert events[1:-1] == told("queue.policy.updated", shown)
    assert events[-1][0] == "policy.set"

    harness.broker.administer(PolicyDelete("v", "o", True), ADMIN)
    assert peopled.take() == [
        ("parameter.cleared", {**by(ADMIN), **parameter("operator_policy", "o")}),
        *told("queue.policy.cleared", {}),
        ("operator.policy.cleared", {**by(ADMIN), "vhost": text("v"), "name": text("o")}),
    ]
    harness.broker.administer(PolicyDelete("v", "p"), ADMIN)
    assert peopled.take() == [
        *told("queue.policy.cleared", {}),
        ("policy.cleared", {**by(ADMIN), "vhost": text("v"), "name": text("p")}),
    ]


@rule("rabbitmq.event.alarm", "An alarm that begins or ends is told.")
@pytest.mark.parametrize("resource", ["memory", "disk"])
def test_alarms_are_told(listener: Listener, harness: Harness, resource: str) -> None:
    for short, key in ((True, "alarm.set"), (False, "alarm.cleared")):
        for _ in range(2):
            harness.broker.set_alarm(resource, short)
        assert listener.one(key) == {"node": text("warren"), "source": text(resource)}


@rule("rabbitmq.event.administration", "Other parts of the broker tell what is theirs in the same way.")
def test_anything_can_be_told(listener: Listener, harness: Harness) -> None:
    headers: dict[str, Any] = {"s": "t", "n": 1, "f": 0.5, "l": [1, True, None], "o": {"k": {}}, "huge": 1 << 63}
    harness.broker.emit("shovel.worker.status", {**headers, "f": True})
    assert listener.one("shovel.worker.status") == {
        "s": text("t"),
        "n": ("l", 1),
        "f": ("t", True),
        "l": ("A", [("l", 1), ("t", True), ("V", None)]),
        "o": ("F", {"k": ("F", {})}),
        "huge": text(str(1 << 63)),
    }


@rule("abuse.event.arguments", "An event that is too large or too deep goes without what makes it so.")
@pytest.mark.parametrize("value", ["x" * 70000, [[]] * 5000, {"k": "x" * 70000}])
def test_impossible_events_are_made_smaller(listener: Listener, harness: Harness, value: object) -> None:
    harness.broker.emit("parameter.set", {"name": "p", "value": value})
    assert listener.one("parameter.set") == {"name": text("p")}


# --- when nobody listens ----------------------------------------------------------------------------------------------


@rule("rabbitmq.event.exchange", "While nothing is bound to it nothing is published, and later nothing is told late.")
def test_nothing_is_told_when_nobody_listens(harness: Harness) -> None:
    client = harness.channel()
    client.declare("q")
    client.feed(method_frame(1, m.QueueDeclare(0, "r", False, False, False, False, True, EMPTY_TABLE)))
    assert len(harness.broker.own_messages) == 0
    client.bind("q", EVENTS, "queue.#")
    assert client.get("q") is None
    client.call(1, m.QueueUnbind(0, "q", EVENTS, "queue.#", EMPTY_TABLE))
    client.declare("s")
    assert client.get("q") is None


@rule("rabbitmq.event.exchange", "A broker whose vhost / was deleted goes on without.")
def test_without_the_vhost_nothing_is_told(listener: Listener, harness: Harness) -> None:
    harness.broker.administer(VhostPut("v"))
    harness.broker.administer(VhostDelete("/"))
    harness.broker.administer(VhostPut("w"))
    harness.settle()
    assert len(harness.broker.own_messages) == 0


@rule("rabbitmq.event.exchange", "What the catalogue restores at start is not told.")
def test_what_is_restored_is_not_told(harness: Harness) -> None:
    broker = harness.broker
    broker.restore(QueuePut("/", "kept", False, EMPTY_TABLE, 1))
    broker.restore(BindingPut("/", EVENTS, "kept", "queue", "#", EMPTY_TABLE))
    broker.restore(ExchangePut("/", "x", "direct", False, False, EMPTY_TABLE))
    broker.restore(QueuePut("/", "q", False, EMPTY_TABLE, 2))
    harness.settle()
    assert harness.queue("kept").ready_count == 0
