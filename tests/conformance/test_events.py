"""The event exchange. Expected names, types and texts are those that RabbitMQ 3.10.8 sent for the same commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_harness import USER, Client, Harness, Refusal, exchange_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, Table, Timestamp, encode_table
from warren.channels.ending import force_close
from warren.vhosts.metadata import (
    BindingPut,
    ExchangePut,
    PolicyPut,
    QueuePut,
    VhostDelete,
    VhostPut,
)

from .event_listener import EVENTS, INTERNAL, NOW_MS, Listener, by, pid
from .rules import rule
from .typed_table import text, texts

PEER = "127.0.0.1:50000 -> 127.0.0.1:5672"
CLIENT_PROPERTIES = texts(
    '{<<"product">>,longstr,<<"a test">>}',
    '{<<"capabilities">>,table,[{<<"consumer_cancel_notify">>,bool,true},'
    '{<<"authentication_failure_close">>,bool,true},{<<"connection.blocked">>,bool,true}]}',
)


@pytest.fixture
def client(listener: Listener, harness: Harness) -> Client:
    """A client that the listener has forgotten the events of."""
    client = harness.channel()
    listener.take()
    return client


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
    client.send(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=True))
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
        "node": text("rabbit@localhost"),
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
    client.connection.origin.is_tls = True
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
    force_close(client.connection, "no more")
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
        "node": text("rabbit@localhost"),
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
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
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
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    (unbound, _), (deleted, headers) = listener.take()
    assert (unbound, deleted) == ("binding.deleted", "queue.deleted")
    assert headers == {**by(USER), "name": text("q"), "vhost": text("/")}
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
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
        client.call(1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False))
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
    client.call(1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False))
    assert listener.named() == [
        ("exchange.deleted", "x", USER),
        ("binding.deleted", "q", USER),
        ("binding.deleted", "x", USER),
    ]
    auto = exchange_declare("auto", auto_delete=True)
    for end, who in (
        (m.QueueUnbind(0, "q", "auto", "k", EMPTY_TABLE), USER),
        (m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False), INTERNAL),
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
    broker.restore(ExchangePut("/", "x", "direct", auto_delete=False, internal=False, arguments=EMPTY_TABLE))
    broker.restore(QueuePut("/", "q", False, EMPTY_TABLE, 2))
    harness.settle()
    assert harness.queue("kept").ready_count == 0
