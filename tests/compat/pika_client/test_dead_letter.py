"""Dead lettering: causes, target and contents of a dead letter, repeated deaths, cycles, order.

1. A message is dead-lettered when it is rejected, expires or is one too many; never on ack, purge or delete.
2. A letter goes to the dead-letter exchange like a message published there, with its history and no expiration.
3. The publisher does not learn when no queue takes it.
"""

from __future__ import annotations

from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import (
    Connect,
    collect,
    drain,
    hold,
    ready,
    round_trip,
    wait_for_ready,
)

Letter = tuple[str, str, BasicProperties, bytes]

# The arguments of a queue for each cause of death; all but the first cause act by themselves.
CAUSES: dict[str, dict[str, Any]] = {
    "rejected": {},
    "expired": {"x-message-ttl": 1},
    "maxlen": {"x-max-length": 0},
    "maxlen on refusal": {"x-max-length": 0, "x-overflow": "reject-publish-dlx"},
}
every_cause = pytest.mark.parametrize("cause", CAUSES)


def declare(channel: BlockingChannel, names: Names, dlx: str, **arguments: Any) -> str:
    """Declare a queue that dead-letters to the exchange `dlx`."""
    queue = names.queue()
    more = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": dlx} | more)
    return queue


def graveyard(channel: BlockingChannel, names: Names) -> tuple[str, str]:
    """Declare a fanout exchange with one queue; return both names."""
    dlx, letters = names.exchange("dlx"), names.queue("letters")
    channel.exchange_declare(dlx, "fanout")
    channel.queue_declare(letters)
    channel.queue_bind(letters, dlx)
    return dlx, letters


def mortal_queue(channel: BlockingChannel, names: Names, cause: str, dlx: str) -> str:
    """Declare a queue whose messages die of `cause`."""
    arguments = {name.removeprefix("x-").replace("-", "_"): value for name, value in CAUSES[cause].items()}
    return declare(channel, names, dlx, **arguments)


def kill(channel: BlockingChannel, queue: str, cause: str, body: bytes = b"x") -> None:
    """Publish to a queue from `mortal_queue` and see to it that the message dies."""
    channel.basic_publish("", queue, body)
    if cause == "rejected":
        channel.basic_reject(hold(channel, queue), requeue=False)


def letters_of(channel: BlockingChannel, queue: str, count: int = 1) -> list[Letter]:
    """Wait for `count` letters; return exchange, routing key, properties and body of each."""
    return [
        (method.exchange or "", method.routing_key or "", properties, body)
        for method, properties, body in collect(channel, queue, count)
    ]


# messages that die


@every_cause
def test_a_message_that_dies_goes_to_the_dead_letter_exchange(
    channel: BlockingChannel, names: Names, cause: str
) -> None:
    dlx, letters = graveyard(channel, names)
    queue = mortal_queue(channel, names, cause, dlx)
    kill(channel, queue, cause, b"a body")
    exchange, key, _, body = letters_of(channel, letters)[0]
    assert (exchange, key, body) == (dlx, queue, b"a body")
    assert drain(channel, queue) == drain(channel, letters) == []


# messages that do not


@pytest.mark.parametrize("end", ["ack", "requeue", "purge", "delete", "reject-publish", "channel close", "recover"])
def test_no_other_end_of_a_message_dead_letters(connect: Connect, names: Names, end: str) -> None:
    connection = connect()
    watcher, channel = connection.channel(), connection.channel()
    dlx, letters = graveyard(watcher, names)
    full: dict[str, Any] = {"max_length": 1, "overflow": "reject-publish"} if end == "reject-publish" else {}
    queue = declare(watcher, names, dlx, **full)
    watcher.basic_publish("", queue, b"spared")
    wait_for_ready(watcher, queue, 1)
    if end == "ack":
        channel.basic_ack(hold(channel, queue))
    elif end == "requeue":
        channel.basic_nack(hold(channel, queue), requeue=True)
    elif end == "purge":
        channel.queue_purge(queue)
    elif end == "delete":
        channel.queue_delete(queue)
    elif end == "reject-publish":
        watcher.basic_publish("", queue, b"refused")
    elif end == "channel close":
        hold(channel, queue)
        channel.close()
    else:
        hold(channel, queue)
        channel.basic_recover(requeue=True)
    # a letter that follows on the same way finds none before it
    sent = declare(watcher, names, dlx)
    kill(watcher, sent, "rejected", b"the only letter")
    assert [body for *_, body in letters_of(watcher, letters)] == [b"the only letter"]
    if end in {"requeue", "channel close", "recover"}:
        assert drain(watcher, queue) == [b"spared"]
    assert drain(watcher, letters) == []


# where to


def test_the_headers_written_at_death_can_be_routed_by(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = names.exchange("dlx"), names.queue("letters")
    channel.exchange_declare(dlx, "headers")
    channel.queue_declare(letters)
    # "all" leaves out what begins with x-
    channel.queue_bind(letters, dlx, "", {"x-match": "all-with-x", "x-first-death-reason": "expired"})
    kill(channel, mortal_queue(channel, names, "rejected", dlx), "rejected", b"rejected")
    kill(channel, mortal_queue(channel, names, "expired", dlx), "expired", b"expired")
    assert [body for *_, body in letters_of(channel, letters)] == [b"expired"]
    assert drain(channel, letters) == []


def test_an_internal_exchange_may_be_the_dead_letter_exchange(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = names.exchange("dlx"), names.queue("letters")
    channel.exchange_declare(dlx, "fanout", internal=True)
    channel.queue_declare(letters)
    channel.queue_bind(letters, dlx)
    kill(channel, declare(channel, names, dlx), "rejected")
    letters_of(channel, letters)


def test_letters_without_a_route_go_to_the_alternate_exchange(channel: BlockingChannel, names: Names) -> None:
    alternate, letters = graveyard(channel, names)
    dlx = names.exchange("dlx")
    channel.exchange_declare(dlx, "direct", arguments={"alternate-exchange": alternate})
    queue = declare(channel, names, dlx)
    kill(channel, queue, "rejected")
    # the exchange of a message is the one it was published to
    assert letters_of(channel, letters)[0][:2] == (dlx, queue)


# where nobody takes them


def test_a_dead_letter_exchange_declared_later_or_anew_serves(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = names.exchange("dlx"), names.queue("letters")
    queue = declare(channel, names, dlx)
    channel.queue_declare(letters)
    for body in (b"first", b"second"):
        kill(channel, queue, "rejected", b"lost")
        round_trip(channel)
        channel.exchange_declare(dlx, "fanout")
        channel.queue_bind(letters, dlx)
        kill(channel, queue, "rejected", body)
        assert [body for *_, body in letters_of(channel, letters)] == [body]
        channel.exchange_delete(dlx)
    assert drain(channel, letters) == []


@pytest.mark.parametrize(
    ("overflow", "kept"), [("drop-head", b"second"), ("reject-publish", b"first"), ("reject-publish-dlx", b"first")]
)
def test_a_full_queue_for_letters_keeps_to_its_own_rule(
    channel: BlockingChannel, names: Names, overflow: str, kept: bytes
) -> None:
    dlx, letters = names.exchange("dlx"), names.queue("letters")
    channel.exchange_declare(dlx, "fanout")
    channel.queue_declare(letters, arguments={"x-max-length": 1, "x-overflow": overflow})
    channel.queue_bind(letters, dlx)
    last = names.queue("last")
    channel.queue_declare(last)
    channel.queue_bind(last, dlx)
    queue = declare(channel, names, dlx)
    for body in (b"first", b"second"):
        kill(channel, queue, "rejected", body)
    letters_of(channel, last, 2)
    assert drain(channel, letters) == [kept]


# order and transactions


def test_a_rejection_in_a_transaction_dead_letters_at_the_commit(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    for body in (b"rolled back", b"rejected"):
        channel.basic_publish("", queue, body)
    channel.tx_select()
    tags = [hold(channel, queue) for _ in range(2)]
    channel.basic_reject(tags[0], requeue=False)
    channel.tx_rollback()
    channel.basic_reject(tags[1], requeue=False)
    assert ready(channel, letters) == 0
    channel.tx_commit()
    assert [body for *_, body in letters_of(channel, letters)] == [b"rejected"]
    assert drain(channel, letters) == []


def test_durable_queues_dead_letter_persistent_messages(channel: BlockingChannel, names: Names) -> None:
    letters, queue = names.queue("letters"), names.queue()
    channel.queue_declare(letters, durable=True)
    channel.queue_declare(
        queue,
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters, "x-max-length": 0},
    )
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number, BasicProperties(delivery_mode=2))
    found = letters_of(channel, letters, 20)
    assert [body for *_, body in found] == [b"%d" % number for number in range(20)]
    assert {properties.delivery_mode for _, _, properties, _ in found} == {2}
