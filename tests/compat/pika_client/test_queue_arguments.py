"""Arguments of queue.declare: values that are accepted and kept, and a refusal that leaves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long

from ..broker import Broker
from ..conftest import Names
from .dialogue import channel_closed_with

DLX = {"x-dead-letter-exchange": "somewhere"}


def refusal(broker: Broker, queue: str, key: str, reason: str) -> str:
    """The text of 406 for an argument with an impossible type or value."""
    return f"PRECONDITION_FAILED - invalid arg '{key}' for {broker.queue(queue)}: {reason}"


# accepted


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": long(5), "x-expires": long(60_000), "x-max-length": 2**63 - 1},
        {"x-queue-type": "classic", "x-queue-version": 2, "x-queue-mode": "lazy", "x-single-active-consumer": False},
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
        ("x-expires", 2**63 - 1, "{value_too_large,9223372036854775807}"),
        ("x-max-length", -(2**63), "{value_negative,-9223372036854775808}"),
        ("x-max-priority", 2**40, "{max_value_exceeded,1099511627776}"),
    ],
)
def test_a_number_out_of_range_is_refused(
    channel: BlockingChannel, names: Names, broker: Broker, key: str, value: int, reason: str
) -> None:
    queue = names.queue()
    with channel_closed_with(406, refusal(broker, queue, key, reason)):
        channel.queue_declare(queue, arguments={key: value})


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
