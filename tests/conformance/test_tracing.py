"""The firehose. Expected names and types are those that RabbitMQ 3.10.8 sent for the same commands."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import USER, Client, Harness, Received, body_of, content_frames, exchange_declare, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table, with_length
from warren.amqp.properties import BasicProperties
from warren.vhosts.metadata import VhostDelete, VhostPut

from .rules import rule
from .typed_table import Typed, text, texts, typed_table

TRACE = "amq.rabbitmq.trace"
PEER = "127.0.0.1:50000 -> 127.0.0.1:5672"
PLACE = {"vhost": text("/"), "connection": text(PEER), "channel": ("I", 1), "user": text(USER)}


class Trace:
    """One copy as it came out of the queue ``traces``."""

    def __init__(self, received: Received) -> None:
        assert received.content is not None
        assert received.method.exchange == TRACE
        self.key: str = received.method.routing_key
        self.body = received.content.body
        self.properties = received.content.properties
        assert self.properties.headers is not None
        self.headers = typed_table(self.properties.headers)

    @property
    def traced(self) -> dict[str, Typed]:
        """The properties of the message that was copied."""
        tag, table = self.headers["properties"]
        assert tag == "F"
        typed: dict[str, Typed] = table
        return typed


class Firehose:
    """A queue with all copies, on a connection of its own."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.client = harness.channel()
        self.client.declare("traces")
        self.client.bind("traces", TRACE, "#")

    def on(self) -> Firehose:
        self.harness.broker.trace("/", True)
        return self

    def off(self) -> None:
        self.harness.broker.trace("/", False)

    def take(self) -> list[Trace]:
        """Return the copies since the last call."""
        traces = []
        while (got := self.client.get("traces", no_ack=True)) is not None:
            traces.append(Trace(got))
        return traces

    def one(self) -> Trace:
        """Return the only copy since the last call."""
        (trace,) = self.take()
        return trace

    def keys(self) -> list[str]:
        return [trace.key for trace in self.take()]


@pytest.fixture
def firehose(harness: Harness) -> Firehose:
    return Firehose(harness)


def nested(depth: int) -> Table:
    table: Table = {}
    for _ in range(depth):
        table = {"t": table}
    return table


# --- what is copied ---------------------------------------------------------------------------------------------------


@rule("rabbitmq.trace.publish", "A traced publish comes with its body, and with where it came from and goes to.")
def test_a_publish_is_copied(firehose: Firehose, client: Client) -> None:
    client.declare("q")
    firehose.on()
    client.publish("", "q", b"hello", content_type="text/plain")
    trace = firehose.one()
    assert (trace.key, trace.body) == ("publish.", b"hello")
    assert trace.headers == {
        "exchange_name": text(""),
        "routing_keys": texts("q"),
        "properties": ("F", {"content_type": text("text/plain")}),
        "node": text("rabbit@localhost"),
        **PLACE,
        "routed_queues": texts("q"),
    }


@rule("rabbitmq.trace.deliver", "A traced delivery comes with its body, and with who got it.")
def test_a_delivery_is_copied(firehose: Firehose, client: Client) -> None:
    client.declare("q")
    client.consume("q", no_ack=True)
    client.bind("q", "amq.topic", "a.b")
    firehose.on()
    client.publish("amq.topic", "a.b", b"hello")
    publish, deliver = firehose.take()
    assert publish.key == "publish.amq.topic"
    assert (deliver.key, deliver.body) == ("deliver.q", b"hello")
    assert deliver.headers == {
        "exchange_name": text("amq.topic"),
        "routing_keys": texts("a.b"),
        "properties": ("F", {}),
        "node": text("rabbit@localhost"),
        "redelivered": ("I", 0),
        **PLACE,
    }


@rule("rabbitmq.trace.deliver", "So does what basic.get takes, and whether it was delivered before.")
def test_gets_and_redeliveries_are_copied(firehose: Firehose, client: Client) -> None:
    client.declare("q")
    client.publish("", "q", b"m")
    firehose.on()
    for redelivered in (0, 1):
        client.get("q")
        trace = firehose.one()
        assert (trace.key, trace.headers["redelivered"]) == ("deliver.q", ("I", redelivered))
        client.send(1, m.BasicRecover(True))
        client.expect(m.BasicRecoverOk)
    client.send(1, m.BasicConsume(0, "q", "", False, False, False, True, EMPTY_TABLE))
    assert [body_of(each) for each in client.deliveries()] == [b"m"]
    assert firehose.one().headers["redelivered"] == ("I", 1)


@rule("rabbitmq.trace.properties", "All properties are shown: texts as longstr, numbers as signedint.")
def test_all_properties_are_shown(firehose: Firehose, client: Client) -> None:
    headers = encode_table({"n": 1, "s": "x"})
    strings: dict[str, Any] = {
        "content_type": "a/b",
        "content_encoding": "e",
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "type": "é",
        "user_id": USER,
        "app_id": "ap",
        "cluster_id": "cl",
    }
    numbers: dict[str, Any] = {"delivery_mode": 2, "priority": 4, "timestamp": 1795285475}
    firehose.on()
    client.publish("", "q", b"", headers=headers, **strings, **numbers)
    assert firehose.one().traced == {
        "headers": ("F", {"n": ("I", 1), "s": text("x")}),
        **{name: text(value) for name, value in strings.items()},
        **{name: ("I", value) for name, value in numbers.items()},
    }


@rule(
    "rabbitmq.trace.properties",
    "A timestamp keeps its value.",
    deviation="RabbitMQ cuts it to 32 bits, which turns milliseconds into nonsense; here it is a long then.",
)
@pytest.mark.parametrize(
    ("timestamp", "shown"),
    [
        (0x7FFFFFFF, ("I", 0x7FFFFFFF)),
        (1795285475123, ("l", 1795285475123)),
        (0xFFFFFFFFFFFFFFFF, ("I", -1)),
    ],
)
def test_timestamps_keep_their_value(firehose: Firehose, client: Client, timestamp: int, shown: Typed) -> None:
    firehose.on()
    client.publish("", "q", b"", timestamp=timestamp)
    assert firehose.one().traced == {"timestamp": shown}


@rule("rabbitmq.trace.properties", "Bytes that are no UTF-8 are passed on as they came.")
def test_odd_bytes_are_passed_on(firehose: Firehose, client: Client) -> None:
    firehose.on()
    client.publish("", "q", b"", type="\udcff")
    assert firehose.one().traced == {"type": ("S", b"\xff")}


@rule("rabbitmq.trace.publish", "All its routing keys are shown, those of BCC too, but not the BCC header.")
def test_carbon_copies_are_shown(firehose: Firehose, client: Client) -> None:
    client.declare("a")
    client.declare("b")
    firehose.on()
    client.publish("", "a", b"", headers=encode_table({"CC": ["b"], "BCC": ["c"]}))
    trace = firehose.one()
    assert trace.headers["routing_keys"] == texts("a", "b", "c")
    assert trace.headers["routed_queues"] == texts("a", "b")
    assert trace.traced == {"headers": ("F", {"CC": texts("b")})}


@rule(
    "rabbitmq.trace.deliver",
    "Of a delivery the routing key and those of CC are shown.",
    deviation="RabbitMQ shows those of BCC as well; here nothing that could remain of them is kept with a message.",
)
def test_the_carbon_copies_of_a_delivery_are_shown(firehose: Firehose, client: Client) -> None:
    client.declare("a")
    client.publish("", "a", b"", headers=encode_table({"CC": ["b"], "BCC": ["c"]}))
    firehose.on()
    client.get("a")
    assert firehose.one().headers["routing_keys"] == texts("a", "b")


@rule("rabbitmq.trace.publish", "What no queue takes is traced too, mandatory or not.")
@pytest.mark.parametrize("mandatory", [False, True])
def test_what_nobody_wants_is_copied(firehose: Firehose, client: Client, mandatory: bool) -> None:
    firehose.on()
    client.publish("", "nobody", b"m", mandatory=mandatory)
    assert firehose.one().headers["routed_queues"] == texts()


@rule("rabbitmq.trace.publish", "In a transaction a publish is traced when it is made, and stays so after a rollback.")
@pytest.mark.parametrize("end", [m.TxCommit(), m.TxRollback()])
def test_publishes_of_transactions_are_copied(firehose: Firehose, client: Client, end: Any) -> None:
    client.declare("q")
    client.call(1, m.TxSelect())
    firehose.on()
    client.publish("", "q", b"m")
    assert firehose.keys() == ["publish."]
    client.call(1, end)
    assert firehose.keys() == []


@rule("rabbitmq.trace.publish", "A refused publish is not traced.")
def test_refused_publishes_are_not_copied(firehose: Firehose, client: Client) -> None:
    firehose.on()
    client.publish("nowhere", "k", b"m")
    assert client.refusal().code == 404
    assert firehose.take() == []


@rule("rabbitmq.trace.publish", "A copy is transient, and does not expire with what it is a copy of.")
def test_copies_are_transient(harness: Harness, firehose: Firehose, client: Client) -> None:
    harness.broker.keep_time(1000000)
    client.declare("kept", durable=True, arguments={"x-message-ttl": 60000})
    client.bind("kept", TRACE, "#")
    client.declare("q")
    client.consume("q", no_ack=True)
    firehose.on()
    client.publish("", "q", b"m", delivery_mode=2, expiration="1000")
    harness.broker.keep_time(1030000)
    copies = harness.queue("kept").ready.in_memory()
    assert [(copy.envelope.routing_key, copy.persistent) for copy in copies] == [
        ("publish.", False),
        ("deliver.q", False),
    ]
    firehose.take()
    client.publish("", "nobody", b"m", delivery_mode=2, expiration="0")
    trace = firehose.one()
    assert set(vars_of(trace.properties)) == {"headers"}
    assert trace.traced == {"delivery_mode": ("I", 2), "expiration": text("0")}


def vars_of(properties: BasicProperties) -> dict[str, object]:
    """Return the properties that are there."""
    names = [name for name in dir(properties) if not name.startswith("_") and name != "encode"]
    return {name: value for name in names if (value := getattr(properties, name)) is not None}


@rule("rabbitmq.trace.publish", "Large bodies are copied whole, however they came.")
@pytest.mark.parametrize("cut", [0, 200, 50000])
def test_large_bodies_are_copied(firehose: Firehose, client: Client, cut: int) -> None:
    body = bytes(range(256)) * 1000
    client.declare("q")
    client.consume("q", no_ack=True)
    firehose.on()
    frames = publish_frames("", "q", body)
    client.feed(frames[:cut])
    client.feed(frames[cut:])
    assert [(trace.key, trace.body) for trace in firehose.take()] == [("publish.", body), ("deliver.q", body)]
    assert client.bodies() == [body]


@rule("rabbitmq.trace.publish", "A consumer of copies with a small frame_max gets them in small frames.")
def test_copies_fit_the_frames_of_who_takes_them(harness: Harness, firehose: Firehose, client: Client) -> None:
    listener = harness.client(frame_max_bytes=4096)
    listener.open(1)
    listener.consume("traces", no_ack=True)
    firehose.on()
    client.publish("", "q", bytes(10000))
    (trace,) = listener.deliveries()
    assert trace.content is not None
    assert trace.content.body == bytes(10000)
    assert max(trace.content.frame_bytes) <= 4096


# --- what is not ------------------------------------------------------------------------------------------------------


@rule("rabbitmq.trace.switch", "Nothing is traced before tracing is on, nor after it is off.")
def test_tracing_is_switched(firehose: Firehose, client: Client, other: Client) -> None:
    client.declare("q")
    # The route is known to the channel by now.
    client.publish("", "q", b"1")
    client.publish("", "q", b"2")
    assert firehose.take() == []
    firehose.on()
    client.publish("", "q", b"3")
    other.publish("", "q", b"4")
    late = firehose.harness.channel()
    late.publish("", "q", b"5")
    client.open(2)
    client.publish("", "q", b"6", number=2)
    assert [trace.body for trace in firehose.take()] == [b"3", b"4", b"5", b"6"]
    assert client.get("q", no_ack=True) is not None
    assert firehose.keys() == ["deliver.q"]
    firehose.off()
    for each in (client, other, late):
        each.publish("", "q", b"7")
    assert client.get("q", no_ack=True) is not None
    assert firehose.take() == []
    assert client.declare("q", passive=True).message_count == 7


@rule("rabbitmq.trace.switch", "On twice is on, off twice is off; what vhost there is not cannot be traced.")
def test_switching_twice_changes_nothing(firehose: Firehose, client: Client) -> None:
    firehose.on().on()
    client.publish("", "q", b"1")
    assert firehose.keys() == ["publish."]
    firehose.off()
    firehose.off()
    client.publish("", "q", b"2")
    assert firehose.take() == []
    with pytest.raises(ValueError, match="vhost 'nix' does not exist"):
        firehose.harness.broker.trace("nix", True)


@rule("rabbitmq.trace.switch", "Vhosts are traced one by one.")
def test_other_vhosts_are_not_traced(harness: Harness, firehose: Firehose, client: Client) -> None:
    harness.broker.administer(VhostPut("quiet"))
    harness.permit(USER, vhost="quiet")
    quiet = harness.client(vhost="quiet")
    quiet.open(1)
    for vhost_client in (quiet, client):
        vhost_client.declare("q")
        vhost_client.declare("own traces")
        vhost_client.bind("own traces", TRACE, "#")
    firehose.on()
    quiet.publish("", "q", b"m")
    assert quiet.get("q", no_ack=True) is not None
    assert quiet.get("own traces") is None
    assert firehose.take() == []


@rule("rabbitmq.trace.switch", "Confirms, returns and cached routes are as ever while a vhost is traced.")
def test_publishing_works_as_ever(firehose: Firehose, client: Client) -> None:
    client.declare("q")
    client.call(1, m.ConfirmSelect(False))
    firehose.on()
    client.publish("", "q", b"1")
    assert client.expect(m.BasicAck) == m.BasicAck(1, False)
    client.publish("", "nobody", b"2", mandatory=True)
    returned, confirmed = client.take()
    assert isinstance(returned.method, m.BasicReturn)
    assert confirmed.method == m.BasicAck(2, False)
    assert len(firehose.take()) == 2


@rule("rabbitmq.trace.direct-reply-to", "A reply is traced as a publish that goes to no queue, and not as a delivery.")
def test_replies_are_not_copied_as_deliveries(firehose: Firehose, client: Client, other: Client) -> None:
    client.declare("q")
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    firehose.on()
    client.publish("", "q", b"question", reply_to="amq.rabbitmq.reply-to")
    question = other.get("q", no_ack=True)
    assert question is not None
    assert question.content is not None
    reply_to = question.content.properties.reply_to
    assert reply_to is not None
    asked, taken = firehose.take()
    assert asked.traced == taken.traced == {"reply_to": text(reply_to)}
    other.publish("", reply_to, b"answer")
    assert client.bodies() == [b"answer"]
    trace = firehose.one()
    assert (trace.key, trace.headers["routed_queues"]) == ("publish.", texts())


# --- copies of copies -------------------------------------------------------------------------------------------------


@rule("rabbitmq.trace.recursion", "Copies are not traced as they are delivered.")
def test_copies_are_not_copied(firehose: Firehose, client: Client, other: Client) -> None:
    other.declare("more")
    other.bind("more", TRACE, "#")
    other.consume("more", no_ack=True)
    firehose.on()
    client.publish("", "q", b"m")
    assert other.bodies() == [b"m"]
    assert firehose.keys() == ["publish."]
    assert firehose.take() == []


@rule("rabbitmq.trace.recursion", "What reaches the trace exchange through a binding is a message like any other.")
def test_what_is_bound_into_the_trace_exchange_is_traced_once(firehose: Firehose, client: Client) -> None:
    client.declare_exchange("in")
    assert client.call(1, m.ExchangeBind(0, TRACE, "in", "publish.x", False, EMPTY_TABLE)) == m.ExchangeBindOk()
    client.declare("q")
    client.bind("q", TRACE, "#")
    client.consume("q", no_ack=True)
    firehose.on()
    client.publish("in", "publish.x", b"m")
    received = [(each.method.exchange, each.method.routing_key) for each in client.deliveries()]
    assert received == [("in", "publish.x"), (TRACE, "publish.in"), (TRACE, "deliver.q")]


@rule("rabbitmq.trace.recursion", "The trace exchange bound to exchanges that lead back to it makes no more copies.")
def test_circles_of_exchanges_end(firehose: Firehose, client: Client) -> None:
    client.declare_exchange("round", "fanout")
    for destination, source in (("round", TRACE), (TRACE, "round")):
        client.call(1, m.ExchangeBind(0, destination, source, "#", False, EMPTY_TABLE))
    client.declare("q")
    client.bind("q", "round")
    client.consume("q", no_ack=True)
    firehose.on()
    client.publish("", "nobody", b"m")
    assert [each.method.routing_key for each in client.deliveries()] == ["publish."]
    assert firehose.keys() == ["publish."]


@rule("rabbitmq.trace.recursion", "Copies that die and are delivered elsewhere are not traced either.")
def test_copies_that_die_are_not_copied(firehose: Firehose, client: Client) -> None:
    client.declare_exchange("dead", "fanout")
    client.declare("full", arguments={"x-max-length": 0, "x-dead-letter-exchange": "dead"})
    client.bind("full", TRACE, "#")
    client.declare("q")
    client.bind("q", "dead")
    client.consume("q", no_ack=True)
    firehose.on()
    client.publish("", "nobody", b"m")
    assert client.bodies() == [b"m"]
    assert firehose.keys() == ["publish."]


@rule("rabbitmq.trace.dead-letters", "A dead letter is not traced as it is published, but as it is delivered.")
def test_dead_letters_are_copied_when_delivered(firehose: Firehose, client: Client) -> None:
    client.declare_exchange("dead", "fanout")
    client.declare("full", arguments={"x-max-length": 0, "x-dead-letter-exchange": "dead"})
    client.declare("q")
    client.bind("q", "dead")
    client.consume("q", no_ack=True)
    firehose.on()
    client.publish("", "full", b"m")
    publish, deliver = firehose.take()
    assert (publish.key, deliver.key) == ("publish.", "deliver.q")
    assert deliver.headers["exchange_name"] == text("dead")
    headers = deliver.traced["headers"][1]
    assert headers["x-first-death-queue"] == text("full")


# --- what clients could break -----------------------------------------------------------------------------------------


@rule("abuse.trace.headers", "Headers that are too large or too deep for a copy are left out of it.")
@pytest.mark.parametrize("headers", [{"large": "x" * 100000}, nested(14), dict.fromkeys(map(str, range(4090)), 1)])
def test_impossible_headers_are_left_out(firehose: Firehose, client: Client, headers: Table) -> None:
    client.declare_exchange("by headers", "headers")
    client.call(1, m.ExchangeBind(0, "by headers", TRACE, "#", False, EMPTY_TABLE))
    client.declare("q")
    client.consume("q", no_ack=True)
    firehose.on()
    client.publish("", "q", b"m", headers=encode_table(headers), type="t")
    traces = firehose.take()
    assert [trace.key for trace in traces] == ["publish.", "deliver.q"]
    for trace in traces:
        assert trace.traced == {"type": text("t")}
        assert trace.body == b"m"
    assert client.bodies() == [b"m"]


@rule("abuse.trace.headers", "Of more keys or queues than a copy has room for the first are shown.")
def test_too_many_keys_are_cut(firehose: Firehose, client: Client) -> None:
    copies = [f"{number:04}" for number in range(4000)]
    firehose.on()
    client.publish("", "nobody", b"m", headers=encode_table({"CC": copies}))
    trace = firehose.one()
    assert trace.headers["routing_keys"] == texts("nobody", *copies[:999])
    assert trace.traced == {}


@rule("abuse.trace.headers", "Long names are cut in the routing key, not in the headers.")
def test_long_names_are_cut_in_the_key(firehose: Firehose, client: Client) -> None:
    name = "é" * 127
    client.declare(name)
    client.publish("", name, b"m")
    firehose.on()
    assert client.get(name, no_ack=True) is not None
    trace = firehose.one()
    assert trace.key == "deliver." + "é" * 123
    assert trace.headers["routing_keys"] == texts(name)


@rule("abuse.trace.headers", "A CC that is no array does not hurt when it comes to be delivered.")
def test_a_strange_cc_is_no_key(harness: Harness, firehose: Firehose, client: Client) -> None:
    # A publish with it is refused; a header within a header looks the same to a quick glance.
    client.declare("q")
    client.publish("", "q", b"m", headers=with_length(b"\x01xF" + encode_table({"CC": 1})))
    firehose.on()
    assert client.get("q", no_ack=True) is not None
    assert firehose.one().headers["routing_keys"] == texts("q")
    harness.check()


@rule("rabbitmq.trace.switch", "A queue that goes away with copies on their way to it takes none.")
def test_copies_for_a_deleted_queue_vanish(firehose: Firehose, client: Client) -> None:
    client.declare("more")
    client.bind("more", TRACE, "#")
    firehose.on()
    delete = m.QueueDelete(0, "more", if_unused=False, if_empty=False, no_wait=True)
    client.feed(publish_frames("", "nobody", b"m") + method_frame(1, delete))
    assert firehose.keys() == ["publish."]


@rule("rabbitmq.trace.switch", "A vhost that goes away with copies on their way to its queues takes none.")
def test_copies_for_a_deleted_vhost_vanish(harness: Harness) -> None:
    harness.broker.administer(VhostPut("v"))
    harness.permit(USER, vhost="v")
    client = harness.client(vhost="v")
    client.open(1)
    client.declare("q")
    client.bind("q", TRACE, "#")
    harness.broker.trace("v", True)
    queue = harness.broker.vhosts["v"].queues["q"]
    client.connection.feed(publish_frames("", "nobody", b"m"))
    harness.broker.administer(VhostDelete("v"))
    harness.settle()
    assert (queue.published, queue.ready_count) == (0, 0)


@rule("rabbitmq.trace.recursion", "A copy that comes of handing out the broker's own messages is not left behind.")
def test_the_copy_of_a_delivered_event_makes_a_turn_due(harness: Harness, firehose: Firehose, client: Client) -> None:
    client.declare("events")
    client.bind("events", "amq.rabbitmq.event", "queue.created")
    client.consume("events", no_ack=True)
    firehose.on()
    firehose.client.connection.feed(
        method_frame(1, m.QueueDeclare(0, "new", False, False, False, False, True, EMPTY_TABLE))
    )
    harness.broker.end_turn()
    assert harness.broker.has_work()
    harness.broker.end_turn()
    assert not harness.broker.has_work()
    assert firehose.keys() == ["deliver.events"]


@rule("rabbitmq.trace.publish", "A content under way while tracing is switched ends as it began, and nothing breaks.")
@pytest.mark.parametrize("first", [False, True])
def test_switching_in_the_middle_of_a_content(firehose: Firehose, client: Client, first: bool) -> None:
    client.declare("q")
    firehose.harness.broker.trace("/", first)
    client.feed(method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)))
    firehose.harness.broker.trace("/", not first)
    client.feed(content_frames(1, b"m"))
    assert firehose.take() == []
    got = client.get("q", no_ack=True)
    assert got is not None
    assert body_of(got) == b"m"


@rule("rabbitmq.trace.publish", "Remembered by an exchange with history, copies come to queues bound later.")
def test_copies_are_remembered(firehose: Firehose, client: Client) -> None:
    assert client.call(1, exchange_declare("recent", "x-recent-history")) == m.ExchangeDeclareOk()
    client.call(1, m.ExchangeBind(0, "recent", TRACE, "#", False, EMPTY_TABLE))
    firehose.on()
    client.publish("", "nobody", b"m")
    client.declare("late")
    client.bind("late", "recent")
    late = client.get("late", no_ack=True)
    assert late is not None
    assert Trace(late).key == "publish."
