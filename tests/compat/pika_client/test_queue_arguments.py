"""Arguments of queue.declare: values that are accepted and kept, and a refusal that leaves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long

from ..broker import Broker
from ..conftest import Names
from .dialogue import channel_closed_with

TEN_YEARS_MS = 315_360_000_000
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


# of other queue types


def test_a_refused_declaration_leaves_no_queue(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.queue()
    connection = channel.connection
    with channel_closed_with(406, refusal(broker, queue, "x-max-length", "{value_negative,-1}")):
        channel.queue_declare(queue, arguments={"x-max-length": -1})
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        connection.channel().queue_declare(queue, passive=True)


# redeclaring


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
