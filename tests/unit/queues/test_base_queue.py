"""What the kinds of queues have in common, and what each of them is asked. In parentheses: ``queues.base_queue``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_harness import Harness

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import AmqpError
from warren.amqp.field_table import Table, encode_table
from warren.queues.base_queue import BaseQueue
from warren.queues.claim_names import claims_name
from warren.queues.claims import ClaimQueue, claims_arguments
from warren.queues.delivery import Consumer
from warren.queues.lanes import DELAYED
from warren.queues.queue import Queue
from warren.streams.stream import Stream

CLAIMS = claims_name("q", "c")
STREAM: Table = {"x-queue-type": "stream"}


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def kinds(harness: Harness) -> dict[type[BaseQueue], BaseQueue]:
    """Return a queue of each kind."""
    client = harness.channel()
    client.declare("q", durable=True)
    client.declare("s", durable=True, arguments=STREAM)
    harness.vhost.declare_queue(QueueDeclaration(CLAIMS, durable=True, arguments=claims_arguments("q", "c")))
    harness.settle()
    return {Queue: harness.queue("q"), Stream: harness.queue("s"), ClaimQueue: harness.queue(CLAIMS)}


def test_the_kinds_are_siblings(kinds: dict[type[BaseQueue], BaseQueue]) -> None:
    for kind, queue in kinds.items():
        assert [other for other in kinds if isinstance(queue, other)] == [kind]


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [(Stream, 540, "queue.purge not supported by stream queues queue 's'"), (ClaimQueue, 403, f"queue '{CLAIMS}'")],
)
def test_what_a_kind_does_not_have_is_refused(
    kinds: dict[type[BaseQueue], BaseQueue], harness: Harness, kind: type[BaseQueue], code: int, text: str
) -> None:
    queue = kinds[kind]
    ledger = harness.channel().connection.channels[1].ledger
    consumer = Consumer(ledger, queue, "t", no_ack=True, exclusive=False, priority=0, prefetch=1, arguments=bytes(4))
    asked: list[Callable[[], object]] = [queue.purge, lambda: queue.add_consumer(consumer)]
    found: list[AmqpError] = []
    for ask in asked:
        with pytest.raises(AmqpError) as refused:
            ask()
        found.append(refused.value)
    assert {error.reply_code for error in found} == {code}
    assert found[0].explanation.startswith(text)


def test_nothing_of_a_stream_stays_when_it_is_deleted_before_a_delayed_message_is_due(
    kinds: dict[type[BaseQueue], BaseQueue], harness: Harness
) -> None:
    client, stream = harness.channel(), kinds[Stream]
    for mode in (1, 2):
        client.publish("", "s", b"later", headers=encode_table({"x-delay": 10_000}), delivery_mode=mode)
    lane = stream.held(DELAYED)
    assert lane is not None and lane.count == 2
    assert (stream.message_count, stream.published) == (0, 2)
    harness.broker.delete_queue(harness.vhost, stream)
    harness.pass_time(20)
    harness.check()
    assert (lane.count, stream.message_count, stream.held(DELAYED)) == (0, 0, None)
    assert harness.broker.log.resident_bytes == 0
