"""What the kinds of queues have in common, and what each of them is asked. In parentheses: ``queues.base_queue``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_harness import Harness

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import AmqpError
from warren.amqp.field_table import Table, encode_table
from warren.queues.base_queue import BaseQueue
from warren.queues.claim_names import claims_name
from warren.queues.claims import ClaimQueue, claims_arguments
from warren.queues.consumer import Consumer
from warren.queues.lanes import DELAYED
from warren.queues.queue import Queue
from warren.streams.stream import Stream
from warren.vhosts.metadata import PolicyPut

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
    assert harness.channel().refused(1, m.BasicGet(0, queue.name, True)).code == code


def test_the_last_claims_cannot_be_deleted_and_none_be_bound(
    kinds: dict[type[BaseQueue], BaseQueue], harness: Harness
) -> None:
    claims, queue = kinds[ClaimQueue], harness.plain_queue("q")
    harness.channel().publish("", "q", b"a")
    for each in kinds.values():
        each.check_allows("queue.delete")
        if each is not claims:
            each.check_allows("queue.bind")
    assert isinstance(claims, ClaimQueue)
    claims.claim(queue, 1, 100, True, [])
    for method in ("queue.delete", "queue.bind"):
        with pytest.raises(AmqpError) as refused:
            claims.check_allows(method)
        assert refused.value.reply_code == 403


def test_a_queue_has_a_room_while_it_may_refuse_publishes_and_claims_never_have_any(
    kinds: dict[type[BaseQueue], BaseQueue], harness: Harness
) -> None:
    assert kinds[Queue].maybe_room() is None and kinds[Stream].maybe_room() is None
    room = kinds[ClaimQueue].maybe_room()
    assert room is not None and not room.has_space_for(1, 0)
    for definition, has_room in (
        ('{"max-length": 2}', False),
        ('{"overflow": "reject-publish"}', False),
        ('{"max-length": 2, "overflow": "reject-publish"}', True),
        ('{"max-length-bytes": 2, "overflow": "reject-publish-dlx"}', True),
    ):
        harness.broker.administer(PolicyPut("/", "p", "^q$", "queues", 0, definition))
        harness.settle()
        assert (kinds[Queue].maybe_room() is not None) == has_room
    room = kinds[Queue].maybe_room()
    assert room is not None and room.has_space_for(5, 2) and not room.has_space_for(1, 3)


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
