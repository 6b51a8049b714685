"""Arguments of queue.declare: all refused values and their errors, unchecked values, and redeclaring.

Other tests show the effects of each argument; these only show which values are allowed. Quorum queues are in
test_quorum.py.
"""

from __future__ import annotations

import struct
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long

from ..broker import Broker
from ..conftest import Names
from .dialogue import channel_closed_with, cut, ready
from .wire import WireClient

TEN_YEARS_MS = 315_360_000_000
NUMBERS = ["x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority"]
TEXTS = ["x-overflow", "x-dead-letter-routing-key"]
DLX = {"x-dead-letter-exchange": "somewhere"}


def refusal(broker: Broker, queue: str, key: str, reason: str) -> str:
    """The text of 406 for an argument with an impossible type or value."""
    return f"PRECONDITION_FAILED - invalid arg '{key}' for {broker.queue(queue)}: {reason}"


# accepted


@pytest.mark.parametrize(
    "arguments",
    [
        *({key: value} for key in ("x-message-ttl", "x-max-length", "x-max-length-bytes") for value in (0, 1, long(5))),
        *({key: value} for key in ("x-max-length", "x-max-length-bytes") for value in (2**40, 2**63 - 1)),
        {"x-message-ttl": TEN_YEARS_MS},
        {"x-expires": long(60_000)},
        {"x-expires": TEN_YEARS_MS},
        *({"x-max-priority": value} for value in (0, 1, 10, 255)),
        *({"x-overflow": value} for value in ("drop-head", "reject-publish", "reject-publish-dlx")),
        {"x-dead-letter-exchange": ""},
        DLX,
        DLX | {"x-dead-letter-routing-key": ""},
        DLX | {"x-dead-letter-routing-key": "key"},
        {"x-single-active-consumer": True},
        {"x-single-active-consumer": False},
        {"x-queue-type": "classic"},
        {"x-queue-version": 2},
        {"x-queue-mode": "default"},
        {"x-queue-mode": "lazy"},
        DLX
        | {
            "x-dead-letter-routing-key": "key",
            "x-message-ttl": 60_000,
            "x-expires": 120_000,
            "x-max-length": 10,
            "x-max-length-bytes": 1000,
            "x-overflow": "reject-publish-dlx",
            "x-max-priority": 5,
            "x-single-active-consumer": True,
        },
    ],
    ids=str,
)
@pytest.mark.parametrize("durable", [False, True])
def test_what_is_possible_is_accepted_and_accepted_again(
    channel: BlockingChannel, names: Names, arguments: dict[str, Any], durable: bool
) -> None:
    queue = names.queue()
    for _ in range(2):
        assert channel.queue_declare(queue, durable=durable, arguments=arguments).method.queue == queue


@pytest.mark.parametrize("value", [1, -1, "text", None, True, [1, [2]], {"deep": {"er": 1}}, Decimal("1.5")])
def test_an_argument_nobody_knows_may_be_anything(channel: BlockingChannel, names: Names, value: Any) -> None:
    queue = names.queue()
    channel.queue_declare(queue, arguments={"x-colour": value, "colour": value})
    assert ready(channel, queue) == 0


# refused numbers


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", TEN_YEARS_MS + 1, "{value_too_large,315360000001}"),
        ("x-expires", 0, "{value_zero,0}"),
        ("x-expires", -5, "{value_negative,-5}"),
        ("x-expires", 2**63 - 1, "{value_too_large,9223372036854775807}"),
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length", -(2**63), "{value_negative,-9223372036854775808}"),
        ("x-max-length-bytes", -1, "{value_negative,-1}"),
        ("x-max-priority", -1, "{value_negative,-1}"),
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-max-priority", 2**40, "{max_value_exceeded,1099511627776}"),
        ("x-queue-version", 3, "\"unsupported queue version '3'\""),
    ],
)
def test_a_number_out_of_range_is_refused(
    channel: BlockingChannel, names: Names, broker: Broker, key: str, value: int, reason: str
) -> None:
    queue = names.queue()
    with channel_closed_with(406, refusal(broker, queue, key, reason)):
        channel.queue_declare(queue, arguments={key: value})


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("5", "longstr"),
        ("many", "longstr"),
        ("", "longstr"),
        (True, "bool"),
        (None, "void"),
        (Decimal("1.5"), "decimal"),
        ([1], "array"),
        ({"a": 1}, "table"),
        (datetime(2020, 1, 1), "timestamp"),
        (b"5", "binary"),
    ],
)
def test_a_number_of_another_type_is_refused_by_the_name_of_the_type(
    channel: BlockingChannel, names: Names, broker: Broker, key: str, value: Any, kind: str
) -> None:
    queue = names.queue()
    with channel_closed_with(406, refusal(broker, queue, key, f'"expected integer, got {kind}"')):
        channel.queue_declare(queue, arguments={key: value})


WIDTHS: dict[str, tuple[str, Any]] = {
    "byte": ("b", 5),
    "unsignedbyte": ("B", 5),
    "short": ("s", 5),
    "unsignedshort": ("u", 5),
    "signedint": ("I", 5),
    "unsignedint": ("i", 5),
    "long": ("l", 5),
}
FORMATS = {"s": "h", "u": "H", "I": "i", "i": "I", "l": "q"}


def declare_with(wire: WireClient, queue: str, key: str, tag: str, value: float) -> None:
    """Send queue.declare with a single argument of the field type `tag`, exclusive, so that it ends with the socket."""
    pair = bytes([len(key)]) + key.encode() + tag.encode() + struct.pack(">" + FORMATS.get(tag, tag), value)
    name = bytes([len(queue)]) + queue.encode()
    payload = struct.pack(">HHH", 50, 10, 0) + name + b"\x04" + struct.pack(">I", len(pair)) + pair
    wire.send_bytes(struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce")


@pytest.mark.parametrize("key", NUMBERS)
def test_an_integer_of_any_width_is_an_integer(broker: Broker, names: Names, key: str) -> None:
    with WireClient(broker) as wire:
        wire.handshake()
        wire.open_channel(1)
        for tag, value in WIDTHS.values():
            declare_with(wire, names.queue(), key, tag, value)
            wire.expect(spec.Queue.DeclareOk, 1)
        wire.end()


@pytest.mark.parametrize(("tag", "kind"), [("f", "float"), ("d", "double")])
def test_a_floating_point_number_is_no_integer(broker: Broker, names: Names, tag: str, kind: str) -> None:
    queue = names.queue()
    with WireClient(broker) as wire:
        wire.handshake()
        wire.open_channel(1)
        declare_with(wire, queue, "x-max-length", tag, 5.0)
        text = refusal(broker, queue, "x-max-length", f'"expected integer, got {kind}"')
        assert wire.expect_channel_close(1) == (406, cut(text), (50, 10))
        wire.end()


# refused texts


@pytest.mark.parametrize("key", [*TEXTS, "x-single-active-consumer"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [(5, "signedint"), (long(5), "long"), (None, "void"), (["a"], "array"), ({"a": 1}, "table"), (b"a", "binary")],
)
def test_a_value_of_another_type_is_refused_by_the_name_of_the_type(
    channel: BlockingChannel, names: Names, broker: Broker, key: str, value: Any, kind: str
) -> None:
    queue = names.queue()
    with channel_closed_with(406, refusal(broker, queue, key, f"{{unacceptable_type,{kind}}}")):
        channel.queue_declare(queue, arguments=DLX | {key: value})


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("x-overflow", "", "invalid_overflow"),
        ("x-overflow", "drop-tail", "invalid_overflow"),
        ("x-overflow", "Drop-Head", "invalid_overflow"),
        ("x-overflow", True, "{unacceptable_type,bool}"),
        ("x-dead-letter-routing-key", "key", "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", "", "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", True, "{unacceptable_type,bool}"),
        ("x-single-active-consumer", "true", "{unacceptable_type,longstr}"),
        ("x-single-active-consumer", 1, "{unacceptable_type,signedint}"),
        ("x-queue-type", "classical", "\"unsupported queue type 'classical'\""),
        ("x-queue-type", "Quorum", "\"unsupported queue type 'Quorum'\""),
        ("x-queue-type", True, "{unacceptable_type,bool}"),
        ("x-queue-version", "2", '"expected integer, got longstr"'),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(
    channel: BlockingChannel, names: Names, broker: Broker, key: str, value: Any, reason: str
) -> None:
    queue = names.queue()
    with channel_closed_with(406, refusal(broker, queue, key, reason)):
        channel.queue_declare(queue, arguments={key: value})


@pytest.mark.parametrize(
    ("value", "kind"),
    [(5, "signedint"), (True, "bool"), (None, "void"), (["a"], "array"), ({"a": 1}, "table"), (b"a", "binary")],
)
def test_a_dead_letter_exchange_that_is_no_text_is_refused_in_words_of_its_own(
    channel: BlockingChannel, names: Names, broker: Broker, value: Any, kind: str
) -> None:
    queue = names.queue()
    text = f"PRECONDITION_FAILED - invalid type '{kind}' for arg 'x-dead-letter-exchange' in {broker.queue(queue)}"
    with channel_closed_with(406, text):
        channel.queue_declare(queue, arguments={"x-dead-letter-exchange": value})


# of other queue types


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x-delivery-limit", 3),
        ("x-dead-letter-strategy", "at-least-once"),
        ("x-quorum-initial-group-size", 1),
        ("x-max-in-memory-length", 1),
        ("x-max-in-memory-bytes", 1),
        ("x-max-age", "1h"),
        ("x-stream-max-segment-size-bytes", 100),
        ("x-initial-cluster-size", 1),
    ],
)
def test_a_classic_queue_refuses_what_only_other_types_know(
    channel: BlockingChannel, names: Names, broker: Broker, key: str, value: Any
) -> None:
    if key == "x-delivery-limit" and broker.is_warren:
        pytest.skip("Warren limits deliveries in classic queues as well")
    queue = names.queue()
    text = f"PRECONDITION_FAILED - invalid arg '{key}' for {broker.queue(queue)} of queue type rabbit_classic_queue"
    with channel_closed_with(406, text):
        channel.queue_declare(queue, arguments={key: value})


def test_a_refused_declaration_leaves_no_queue(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.queue()
    connection = channel.connection
    with channel_closed_with(406, refusal(broker, queue, "x-max-length", "{value_negative,-1}")):
        channel.queue_declare(queue, arguments={"x-max-length": -1})
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        connection.channel().queue_declare(queue, passive=True)


def test_an_impossible_redeclaration_is_first_of_all_another_one(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    text = "received the value '-1' of type 'signedint' but current is none"
    with channel_closed_with(
        406, f"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for {broker.queue(queue)}: {text}"
    ):
        channel.queue_declare(queue, arguments={"x-max-length": -1})


# redeclaring


PAIRS: list[tuple[str, Any, Any, str]] = [
    ("x-message-ttl", 60_000, 70_000, "signedint"),
    ("x-message-ttl", 60_000, 0, "signedint"),
    ("x-expires", 60_000, 70_000, "signedint"),
    ("x-max-length", 1, 2, "signedint"),
    ("x-max-length-bytes", long(10), long(20), "long"),
    ("x-max-priority", 5, 6, "signedint"),
    ("x-overflow", "drop-head", "reject-publish", "longstr"),
    ("x-dead-letter-exchange", "a", "b", "longstr"),
    ("x-single-active-consumer", True, False, "bool"),
]


def shown(value: Any) -> str:
    """Return how a value appears in error texts."""
    return str(value).lower() if isinstance(value, bool) else str(int(value) if isinstance(value, int) else value)


@pytest.mark.parametrize(("key", "first", "second", "kind"), PAIRS)
def test_a_redeclaration_with_another_value_is_refused(
    channel: BlockingChannel, names: Names, broker: Broker, key: str, first: Any, second: Any, kind: str
) -> None:
    queue = names.queue()
    channel.queue_declare(queue, arguments={key: first})
    text = f"received '{shown(second)}' but current is '{shown(first)}'"
    with channel_closed_with(406, f"PRECONDITION_FAILED - inequivalent arg '{key}' for {broker.queue(queue)}: {text}"):
        channel.queue_declare(queue, arguments={key: second})


@pytest.mark.parametrize(("key", "value", "_other", "kind"), PAIRS)
@pytest.mark.parametrize("before", [False, True])
def test_an_argument_that_comes_or_goes_is_refused_on_redeclaration(
    channel: BlockingChannel, names: Names, broker: Broker, key: str, value: Any, _other: Any, kind: str, before: bool
) -> None:
    queue = names.queue()
    channel.queue_declare(queue, arguments={key: value} if before else None)
    described = f"the value '{shown(value)}' of type '{kind}'"
    received, current = ("none", described) if before else (described, "none")
    text = f"inequivalent arg '{key}' for {broker.queue(queue)}: received {received} but current is {current}"
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_declare(queue, arguments=None if before else {key: value})


def test_another_dead_letter_routing_key_is_refused(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.queue()
    channel.queue_declare(queue, arguments=DLX | {"x-dead-letter-routing-key": "a"})
    text = f"inequivalent arg 'x-dead-letter-routing-key' for {broker.queue(queue)}: received 'b' but current is 'a'"
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_declare(queue, arguments=DLX | {"x-dead-letter-routing-key": "b"})


def test_the_queue_keeps_the_rules_it_was_declared_with(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.queue()
    connection = channel.connection
    channel.queue_declare(queue, arguments={"x-max-length": 1})
    text = f"inequivalent arg 'x-max-length' for {broker.queue(queue)}: received '5' but current is '1'"
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_declare(queue, arguments={"x-max-length": 5})
    again = connection.channel()
    for _ in range(5):
        again.basic_publish("", queue, b"x")
    assert again.queue_purge(queue).method.message_count == 1


# what versions do differently


def test_the_first_version_of_classic_queues_is_accepted_while_there_is_one(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = names.queue()
    if not broker.is_warren and broker.behaves_like(4, 3):
        with channel_closed_with(406, refusal(broker, queue, "x-queue-version", "\"unsupported queue version '1'\"")):
            channel.queue_declare(queue, arguments={"x-queue-version": 1})
    else:
        channel.queue_declare(queue, arguments={"x-queue-version": 1})
        assert ready(channel, queue) == 0


@pytest.mark.parametrize("mode", ["eager", ""])
def test_an_unknown_queue_mode_is_refused_as_long_as_there_are_modes(
    channel: BlockingChannel, names: Names, broker: Broker, mode: str
) -> None:
    queue = names.queue()
    if broker.older_than(4, 3):
        with channel_closed_with(406, refusal(broker, queue, "x-queue-mode", f"\"unsupported queue mode '{mode}'\"")):
            channel.queue_declare(queue, arguments={"x-queue-mode": mode})
    else:
        channel.queue_declare(queue, arguments={"x-queue-mode": mode})
        assert ready(channel, queue) == 0


@pytest.mark.parametrize("queue_type", ["", "undefined"])
def test_no_queue_type_at_all_was_not_always_the_default_one(
    channel: BlockingChannel, names: Names, broker: Broker, queue_type: str
) -> None:
    queue = names.queue()
    if broker.behaves_like(3, 13):
        channel.queue_declare(queue, arguments={"x-queue-type": queue_type})
    else:
        reason = f"\"unsupported queue type '{queue_type}'\""
        with channel_closed_with(406, refusal(broker, queue, "x-queue-type", reason)):
            channel.queue_declare(queue, arguments={"x-queue-type": queue_type})
