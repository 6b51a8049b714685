"""Requests to /management and their responses."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from amqp10_harness import Amqp10Client, Frame, amqp10_client, section, sections
from engine_harness import Harness

from warren.amqp import methods as m
from warren.amqp.field_table import Timestamp as Seconds
from warren.amqp.field_table import encode_table
from warren.amqp10.links import HEAD_BYTES
from warren.amqp10.management import RESPONSES_MAX, RESPONSES_MAX_BYTES
from warren.amqp10.values import Array, Byte, Int, Short, Symbol, UByte, UInt, UShort, Uuid
from warren.queues.counters import MessageCounts

from .test_publishing import error_of

PAIRED = {Symbol("paired"): True}


class Response(NamedTuple):
    status: str
    body: Any
    correlation: object


class Manager:
    """A client with a link pair."""

    def __init__(self, harness: Harness, credit: int = 1000) -> None:
        self.client: Amqp10Client = amqp10_client(harness)
        name = "management"
        assert len(self.client.sender(0, "/management", name=name, properties=PAIRED, mode=1)) == 2
        assert len(self.client.receiver(1, "/management", name=name, properties=PAIRED, mode=1)) == 1
        self.client.credit(1, credit)
        self._number = 0

    def payload(self, method: str, path: str, body: object = None) -> bytes:
        self._number += 1
        head = section(0x73, [Uuid(self._number.to_bytes(16, "big")), None, path, method, "$me"])
        return head + section(0x77, body)

    def ask(self, method: str, path: str, body: object = None) -> Response:
        (found,) = self.client.transfer(0, self.payload(method, path, body), settled=True)
        return self.response(found)

    def response(self, found: Frame) -> Response:
        assert found.name == "transfer" and found.field(0) == 1 and found.field(4) is True
        parts = sections(found.payload)
        assert parts[0x74] == {"http:response": "1.1"}
        return Response(parts[0x73][3], parts[0x77], parts[0x73][5])


def test_a_queue_is_declared_described_purged_and_deleted(harness: Harness) -> None:
    manager = Manager(harness)
    body = {"durable": True, "arguments": {"x-queue-type": "quorum", "x-max-length": 10}}
    created = manager.ask("PUT", "/queues/a%2Fb", body)
    assert created.status == "201" and created.correlation == Uuid((1).to_bytes(16, "big"))
    assert created.body["name"] == "a/b" and created.body["type"] == "quorum"
    assert manager.ask("PUT", "/queues/a%2Fb", body).status == "200"
    assert manager.ask("PUT", "/queues/a%2Fb", {"durable": True}).status == "409"
    harness.channel().publish("", "a/b", b"x")
    found = manager.ask("GET", "/queues/a%2Fb")
    assert found.status == "200"
    assert (found.body["message_count"], found.body["consumer_count"], found.body["durable"]) == (1, 0, True)
    assert found.body["arguments"] == {"x-queue-type": "quorum", "x-max-length": 10}
    assert manager.ask("DELETE", "/queues/a%2Fb/messages")[:2] == ("200", {"message_count": 1})
    assert manager.ask("DELETE", "/queues/a%2Fb")[:2] == ("200", {"message_count": 0})
    assert manager.ask("GET", "/queues/a%2Fb").status == "404"
    assert manager.ask("DELETE", "/queues/a%2Fb").status == "200"  # as in 0-9-1


def test_exchanges_and_bindings(harness: Harness) -> None:
    manager = Manager(harness)
    manager.ask("PUT", "/queues/q", {})
    assert manager.ask("PUT", "/exchanges/e", {"type": "topic", "durable": False})[:2] == ("204", None)
    assert manager.ask("PUT", "/exchanges/e2", {}).status == "204"
    assert manager.ask("PUT", "/exchanges/e2", {"type": "fanout"}).status == "409"
    assert manager.ask("PUT", "/exchanges/e3", {"type": "none"}).status == "409"
    for body in (
        {"source": "e", "binding_key": "a.#", "destination_queue": "q"},
        {"source": "e", "binding_key": "a.#", "destination_queue": "q", "arguments": {"x": 1}},
        {"source": "e", "binding_key": "k", "destination_exchange": "e2", "arguments": {}},
    ):
        assert manager.ask("POST", "/bindings", body).status == "204"
    listed = manager.ask("GET", "/bindings?src=e&dstq=q&key=a.%23")
    assert listed.status == "200" and len(listed.body) == 2
    for binding in listed.body:
        assert (binding["source"], binding["binding_key"], binding["destination_queue"]) == ("e", "a.#", "q")
    with_arguments = next(each for each in listed.body if each["arguments"])
    assert with_arguments["arguments"] == {"x": 1}
    assert manager.ask("DELETE", with_arguments["location"]).status == "204"
    assert manager.ask("DELETE", with_arguments["location"]).status == "404"
    assert manager.ask("DELETE", "/bindings/src=e;dstq=q;key=a.%23;args=").status == "204"
    assert manager.ask("GET", "/bindings?src=e&dstq=q&key=a.%23").body == []
    assert len(manager.ask("GET", "/bindings?src=e&dste=e2&key=k").body) == 1
    assert manager.ask("DELETE", "/bindings/src=e;dste=e2;key=k;args=").status == "204"
    assert manager.ask("DELETE", "/exchanges/e").status == "204"
    assert "e" not in harness.vhost.exchanges


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/queues/none", None, "404"),
        ("PUT", "/queues/amq.q", {}, "403"),
        ("PUT", "/queues/q", None, "400"),
        ("PUT", "/queues/q", "text", "400"),
        ("PUT", "/queues/q", {"durable": "yes"}, "400"),
        ("PUT", "/queues/q", {"arguments": []}, "400"),
        ("PUT", "/queues/q", {"arguments": {"x-max-length": "many"}}, "409"),
        ("POST", "/queues/q", {}, "405"),
        ("PUT", "/queues/%zz", {}, "400"),
        ("DELETE", "/queues/", None, "400"),
        ("PUT", "/exchanges/amq.e", {}, "403"),
        ("PUT", "/exchanges/e", {"type": 5}, "400"),
        ("GET", "/exchanges/e", None, "405"),
        ("POST", "/bindings", {}, "400"),
        ("POST", "/bindings", {"source": "none", "binding_key": "", "destination_queue": "none"}, "404"),
        ("POST", "/bindings", {"source": "x" * 256, "binding_key": "", "destination_queue": "q"}, "400"),
        ("GET", "/bindings", None, "400"),
        ("DELETE", "/bindings/src=e", None, "400"),
        ("PUT", "/auth/tokens", b"token", "501"),
        ("GET", "/", None, "404"),
        ("", "", None, "404"),
    ],
)
def test_what_is_wrong_is_told_by_the_status_and_costs_nothing(
    harness: Harness, method: str, path: str, body: object, status: str
) -> None:
    manager = Manager(harness)
    refused = manager.ask(method, path, body)
    assert refused.status == status and isinstance(refused.body, str)
    assert manager.ask("PUT", "/queues/good", {}).status == "201"


def test_rights_are_asked_for(harness: Harness) -> None:
    harness.channel().declare("q")
    manager = Manager(harness)
    harness.permit("guest", configure="own", write="own", read="own")
    for method, path, body in (
        ("PUT", "/queues/other", {}),
        ("GET", "/queues/q", None),
        ("DELETE", "/queues/q", None),
        ("DELETE", "/queues/q/messages", None),
        ("PUT", "/exchanges/other", {}),
        ("POST", "/bindings", {"source": "amq.topic", "binding_key": "", "destination_queue": "q"}),
        ("GET", "/bindings?src=amq.topic&dstq=q&key=", None),
    ):
        assert manager.ask(method, path, body).status == "403", path


def test_responses_tell_what_is_durable_in_the_order_of_the_requests(harness: Harness) -> None:
    manager = Manager(harness)
    harness.store.hold = True
    requests = [
        manager.payload("PUT", "/queues/one", {"durable": True}),
        manager.payload("PUT", "/queues/two", {"durable": False}),
        manager.payload("GET", "/queues/none"),
    ]
    for request in requests:
        assert manager.client.transfer(0, request, settled=True) == []
    harness.store.hold = False
    harness.settle()
    found = [manager.response(each).status for each in manager.client.take()]
    assert found == ["201", "201", "404"]


def test_responses_wait_for_credit_and_are_not_too_many(harness: Harness) -> None:
    manager = Manager(harness, credit=0)
    for _ in range(3):
        assert manager.client.transfer(0, manager.payload("GET", "/queues/none"), settled=True) == []
    found = manager.client.credit(1, 2)
    assert len(found) == 2
    assert len(manager.client.credit(1, 5, count=2)) == 1
    manager.client.credit(1, 0, count=3)
    for _ in range(RESPONSES_MAX):
        assert manager.client.transfer(0, manager.payload("GET", "/queues/none"), settled=True) == []
    (end,) = manager.client.transfer(0, manager.payload("GET", "/queues/none"), settled=True)
    assert end.name == "end" and error_of(end) == "amqp:resource-limit-exceeded"


def test_large_responses_that_wait_for_credit_are_fewer(harness: Harness) -> None:
    manager = Manager(harness, credit=0)
    harness.channel().declare("q", arguments={"x-what": "a" * 50_000})
    asked = 0
    while not (found := manager.client.transfer(0, manager.payload("GET", "/queues/q"), settled=True)):
        asked += 1
    assert asked == RESPONSES_MAX_BYTES // 50_000 + 1
    assert error_of(found[0]) == "amqp:resource-limit-exceeded"


def test_a_request_that_is_too_large_is_refused(harness: Harness) -> None:
    manager = Manager(harness)
    room = HEAD_BYTES - len(manager.payload("PUT", "/queues/q", {"x": "v" * 1000})) + 1000

    def send(payload: bytes) -> Frame:
        for at in range(0, HEAD_BYTES - 100_000, 100_000):
            manager.client.transfer(0, payload[at : at + 100_000], settled=True, more=True, delivery_id=7)
        (found,) = manager.client.transfer(0, payload[at + 100_000 :], settled=True, delivery_id=7)
        return found

    assert manager.response(send(manager.payload("PUT", "/queues/q", {"x": "v" * room}))).status == "201"
    refused = send(manager.payload("PUT", "/queues/q", {"x": "v" * (room + 1)}))
    assert error_of(refused) == "amqp:link:message-size-exceeded"


def test_a_list_that_is_too_large_is_refused(harness: Harness) -> None:
    owner = harness.channel()
    owner.declare("q")
    path = "/bindings?src=amq.direct&dstq=q&key=k"
    for at in range(120):
        owner.bind("q", "amq.direct", "k", {"n": at, "large": "a" * 3_000})
    manager = Manager(harness)
    refused = manager.ask("GET", path)
    assert refused.status == "400" and "over HTTP" in refused.body
    for at in range(110):
        owner.call(1, m.QueueUnbind(0, "q", "amq.direct", "k", encode_table({"n": at, "large": "a" * 3_000})))
    listed = manager.ask("GET", path)
    assert listed.status == "200" and len(listed.body) == 10
    assert manager.ask("DELETE", listed.body[0]["location"]).status == "204"
    assert manager.ask("DELETE", "/bindings/src=amq.direct;dstq=q;key=k;args=no").status == "404"
    assert len(manager.ask("GET", path).body) == 9


def test_arguments_of_0_9_1_may_be_anything(harness: Harness) -> None:
    owner = harness.channel()
    arguments: dict[str, Any] = {"t": Seconds((1 << 64) - 1), "n": None, "l": [1], "f": 0.5, "b": b"b"}
    owner.declare("q", arguments=arguments)
    owner.bind("q", "amq.direct", "k", arguments)
    manager = Manager(harness)
    shown = {"t": ((1 << 63) - 1) // 1000 * 1000, "f": 0.5, "b": b"b"}
    assert manager.ask("GET", "/queues/q").body["arguments"] == shown
    assert manager.ask("GET", "/bindings?src=amq.direct&dstq=q&key=k").body[0]["arguments"] == shown


def test_numbers_in_arguments_keep_their_type(harness: Harness) -> None:
    # The clients of RabbitMQ remove the binding whose arguments in the list are equal to theirs: Java and C# tell an
    # int from a long.
    manager = Manager(harness)
    numbers = {
        "byte": Byte(-1),
        "ubyte": UByte(255),
        "short": Short(-2),
        "ushort": UShort(65535),
        "int": Int(-3),
        "uint": UInt(4294967295),
        "long": 4,
        "large": 1 << 40,
    }
    assert manager.ask("PUT", "/queues/q", {"arguments": {**numbers, "x-max-length": Int(5)}}).status == "201"
    body = {"source": "amq.headers", "binding_key": "k", "destination_queue": "q", "arguments": numbers}
    assert manager.ask("POST", "/bindings", body).status == "204"
    (binding,) = manager.ask("GET", "/bindings?src=amq.headers&dstq=q&key=k").body
    assert _types(binding["arguments"]) == _types(numbers)
    assert _types(manager.ask("GET", "/queues/q").body["arguments"]) == _types({**numbers, "x-max-length": Int(5)})
    assert manager.ask("DELETE", binding["location"]).status == "204"


def test_a_plus_in_a_query_is_a_space(harness: Harness) -> None:
    # RabbitMQ's clients for Java and C# encode a query as forms do, a path with percent signs only.
    owner = harness.channel()
    for name in ("a b", "a+b"):
        owner.declare(name)
        owner.bind(name, "amq.direct", f"key of {name}", {"n": 1})
    manager = Manager(harness)
    for query, name in (("a+b&key=key+of+a+b", "a b"), ("a%2Bb&key=key%20of%20a%2Bb", "a+b")):
        (binding,) = manager.ask("GET", f"/bindings?src=amq.direct&dstq={query}").body
        assert (binding["destination_queue"], binding["binding_key"]) == (name, f"key of {name}")
        assert manager.ask("DELETE", binding["location"]).status == "204"
    assert manager.ask("GET", "/queues/a+b").body["name"] == "a+b"


def _types(arguments: dict[str, Any]) -> dict[str, tuple[type, Any]]:
    return {name: (type(value), value) for name, value in arguments.items()}


def test_replicas_are_an_array_of_texts(harness: Harness) -> None:
    created = Manager(harness).ask("PUT", "/queues/q", {})
    assert created.body["replicas"] == Array(0xB1, [created.body["leader"]])


def test_a_purge_of_a_stream_is_a_bad_request(harness: Harness) -> None:
    manager = Manager(harness)
    manager.ask("PUT", "/queues/s", {"arguments": {"x-queue-type": "stream"}})
    refused = manager.ask("DELETE", "/queues/s/messages")
    assert refused.status == "400" and "stream" in refused.body


def test_an_unsettled_request_is_accepted(harness: Harness) -> None:
    manager = Manager(harness)
    accepted, found = manager.client.transfer(0, manager.payload("GET", "/queues/none"))
    assert accepted.name == "disposition" and manager.response(found).status == "404"


def test_deliveries_and_responses_share_the_ids_of_a_session(harness: Harness) -> None:
    harness.channel().declare("q")
    manager = Manager(harness)
    manager.client.receiver(2, "/queues/q")
    manager.client.credit(2, 10)
    harness.channel().publish("", "q", b"x")
    harness.settle()
    (first,) = manager.client.take()
    (second,) = manager.client.transfer(0, manager.payload("GET", "/queues/q"), settled=True)
    harness.channel().publish("", "q", b"y")
    harness.settle()
    (third,) = manager.client.take()
    assert [each.field(1) for each in (first, second, third)] == [0, 1, 2]
    counts = MessageCounts()
    manager.client.peer.channels[1].add_counts(counts)
    assert (counts.deliver, counts.deliver_no_ack) == (2, 0)
    manager.client.settle(0, 2, 0x24)
    assert harness.queue("q").message_count == 0
    harness.check()


def test_nothing_grows_while_memory_is_short(harness: Harness) -> None:
    manager = Manager(harness)
    harness.broker.set_alarm("memory", True)
    harness.settle()
    assert UInt(0) == 0
    assert manager.client.transfer(0, manager.payload("GET", "/queues/none"), settled=True) == []
    harness.broker.set_alarm("memory", False)
    harness.settle()
    assert [manager.response(each).status for each in manager.client.take()] == ["404"]
