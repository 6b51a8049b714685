"""A step between two places of a message fails, for lack of memory for instance: the message is in one of them."""

from __future__ import annotations

from typing import Any

import pytest
from amqp10_harness import amqp10_client
from engine_harness import Client, Harness, basic_consume, bodies, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.declarations import QueueDeclaration
from warren.amqp10 import dispositions
from warren.amqp10.performatives import MODIFIED
from warren.amqp10.values import Symbol
from warren.channels.channel_confirms import ChannelConfirms
from warren.channels.ending import close_broken
from warren.msgstore.log.batch import BatchWaiter, tell_all
from warren.msgstore.log.message import Message
from warren.queues import queue as queue_module
from warren.queues.backlog import Backlog
from warren.queues.claim_names import claims_name
from warren.queues.claims import ClaimQueue, claims_arguments
from warren.queues.delivery import DeliveryLedger, give_back
from warren.queues.held_lanes import HeldLanes
from warren.queues.least_key import LeastKey
from warren.queues.length_limit import LengthLimit
from warren.queues.long_work import REST_MS
from warren.queues.message_run import MessageRun
from warren.queues.middle_reader import MiddleReader
from warren.queues.returned_messages import ReturnedMessages
from warren.queues.selection import Selection
from warren.queues.shared_keys import SharedKeys
from warren.queues.unacked import SPARSE_MIN, UnackedDeliveries
from warren.streams import group_serving
from warren.vhosts.dead_lettering import _Waiting

pytestmark = pytest.mark.skipif(queue_module.__file__.endswith(".so"), reason="a compiled method cannot be replaced")

KINDS: list[dict[str, object]] = [{}, {"x-max-priority": 3}, {"x-key-shared": True}, {"x-queue-type": "quorum"}]


class Everything(Selection):
    """Wants every message."""

    def passes(self, message: Message, now_ms: int) -> bool:
        return True


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[int]:
    """Make the next call of a method fail; return a list with the number of calls that will."""
    real = getattr(owner, name)
    left = [1]

    def called(*given: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise MemoryError
        return real(*given, **named)

    monkeypatch.setattr(owner, name, called)
    return left


def declared(arguments: dict[str, object]) -> tuple[Harness, Client]:
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=arguments)
    return harness, client


def publish(client: Client, *numbers: int) -> None:
    client.feed(
        b"".join(publish_frames("", "q", b"%d" % number, properties={"delivery_mode": 2}) for number in numbers)
    )


def settle_with_defect(harness: Harness) -> None:
    with pytest.raises(MemoryError):
        harness.settle()
    harness.settle()


def delivered(client: Client) -> list[bytes]:
    return [body_of(each) for each in client.take() if isinstance(each.method, m.BasicDeliver)]


@pytest.mark.parametrize("arguments", KINDS)
def test_a_message_that_could_not_be_delivered_waits_in_its_place(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object]
) -> None:
    harness, client = declared(arguments)
    queue = harness.queue("q")
    queue.pause(paused=True)
    publish(client, 1, 2, 3)
    failing, consumer = harness.channel(), harness.channel()
    failing.consume("q", "c")
    fail_once(monkeypatch, UnackedDeliveries, "remember")
    queue.pause(paused=False)
    settle_with_defect(harness)
    assert (queue.ready_count, queue.unacked_count) == (3, 0)
    close_broken(failing.connection)
    consumer.consume("q", "c")
    assert delivered(consumer) == [b"1", b"2", b"3"]
    assert (queue.ready_count, queue.unacked_count) == (0, 3)
    harness.check()
    consumer.send(1, m.BasicAck(0, True))
    assert queue.persistent() == (0, 0)
    harness.check()


@pytest.mark.parametrize("arguments", KINDS)
def test_a_message_that_could_not_be_handed_over_at_once_waits(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object]
) -> None:
    harness, client = declared(arguments)
    failing, consumer = harness.channel(), harness.channel()
    failing.consume("q", "c")
    fail_once(monkeypatch, UnackedDeliveries, "remember")
    client.connection.feed(publish_frames("", "q", b"1", properties={"delivery_mode": 2}))
    settle_with_defect(harness)
    close_broken(failing.connection)
    publish(client, 2)
    consumer.consume("q", "c")
    assert delivered(consumer) == [b"1", b"2"]
    consumer.send(1, m.BasicAck(0, True))
    queue = harness.queue("q")
    assert (queue.message_count, queue.persistent()) == (0, (0, 0))
    harness.check()


@pytest.mark.parametrize("arguments", KINDS)
def test_a_message_that_could_not_be_given_to_a_get_stays(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object]
) -> None:
    harness, client = declared(arguments)
    publish(client, 1, 2)
    fail_once(monkeypatch, UnackedDeliveries, "remember")
    with pytest.raises(MemoryError):
        client.connection.feed(method_frame(1, m.BasicGet(0, "q", False)))
    other = harness.channel()
    assert bodies(other, "q") == [b"1", b"2"]
    harness.check()


def test_a_peer_to_which_nothing_could_be_written_is_ended_and_the_publisher_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of a frame may be in its outbox."""
    harness, client = declared({})
    consumer = harness.channel()
    consumer.consume("q", "c")
    fail_once(monkeypatch, DeliveryLedger, "write_content")
    client.connection.feed(publish_frames("", "q", b"1"))
    with pytest.raises(MemoryError):
        harness.settle()
    close_broken(consumer.connection)
    harness.settle()
    assert bodies(client, "q") == [b"1"]
    harness.check()


WAYS_BACK: dict[str, list[Any]] = {
    "nack": [m.BasicNack(1, False, True)],
    "reject": [m.BasicReject(1, True)],
    "all": [m.BasicNack(0, True, True)],
    "recover": [m.BasicRecover(True)],
    "close": [m.ChannelClose(0, "", 0, 0)],
}


@pytest.mark.parametrize("way", WAYS_BACK)
@pytest.mark.parametrize("arguments", KINDS)
def test_a_delivery_that_could_not_go_back_stays_unanswered_until_it_can(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object], way: str
) -> None:
    harness, client = declared(arguments)
    publish(client, 1, 2)
    holder = harness.channel()
    holder.consume("q", "c")
    harness.settle()
    queue = harness.queue("q")
    queue.pause(paused=True)
    owner = SharedKeys if "x-key-shared" in arguments else ReturnedMessages
    left = fail_once(monkeypatch, owner, "put")
    try:
        holder.connection.feed(b"".join(method_frame(1, each) for each in WAYS_BACK[way]))
        harness.settle()
    except MemoryError:
        close_broken(holder.connection)
    harness.settle()
    harness.pass_time(REST_MS / 1000)
    close_broken(holder.connection)
    harness.settle()
    queue.pause(paused=False)
    assert left == [0]
    assert bodies(client, "q") == [b"1", b"2"]
    harness.check()


def test_a_delivery_that_could_not_be_held_stays_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: dict[str, object] = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 60_000}
    harness, client = declared({"x-queue-type": "quorum", **delays})
    publish(client, 1)
    holder = harness.channel()
    holder.consume("q", "c")
    harness.settle()
    fail_once(monkeypatch, HeldLanes, "hold")
    holder.connection.feed(method_frame(1, m.BasicNack(1, False, True)))
    with pytest.raises(MemoryError):
        harness.settle()
    close_broken(holder.connection)
    harness.settle()
    harness.pass_time(REST_MS / 1000)
    queue = harness.queue("q")
    assert (queue.unacked_count, queue.ready_count) == (0, 0)
    harness.pass_time(61)
    assert bodies(client, "q") == [b"1"]
    harness.check()


def test_a_delivery_that_could_not_be_annotated_stays_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, client = declared({})
    publish(client, 1)
    receiver = amqp10_client(harness)
    receiver.receiver(0, "/queues/q")
    receiver.credit(0, 1)
    fail_once(monkeypatch, dispositions, "store_again")
    with pytest.raises(MemoryError):
        receiver.settle(0, 0, MODIFIED, fields=[True, False, {Symbol("x-a"): "b"}])
    close_broken(receiver.peer)
    harness.settle()
    harness.pass_time(REST_MS / 1000)
    assert bodies(client, "q") == [b"1"]
    harness.check()


LETTERS: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.mark.parametrize("arguments", KINDS)
def test_a_message_whose_dead_letter_could_not_be_posted_stays(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object]
) -> None:
    harness, client = declared({**LETTERS, **arguments})
    client.declare("dead")
    publish(client, 1)
    got = client.get("q")
    assert got is not None
    fail_once(monkeypatch, _Waiting, "__init__")
    with pytest.raises(MemoryError):
        client.connection.feed(method_frame(1, m.BasicReject(1, False)))
    close_broken(client.connection)
    harness.settle()
    other = harness.channel()
    assert other.get("q") is not None
    other.send(1, m.BasicReject(1, False))
    assert bodies(other, "dead") == [b"1"]
    harness.check()


@pytest.mark.parametrize("header", [{}, {"x-key-header": "key"}])
@pytest.mark.parametrize("is_bound", [False, True])
def test_a_message_of_a_shared_key_stays_when_its_dead_letter_could_not_be_posted(
    monkeypatch: pytest.MonkeyPatch, header: dict[str, object], is_bound: bool
) -> None:
    """Its delivery is settled by then, or it had none. Others of its key may be out."""
    harness, client = declared({**LETTERS, **header, "x-key-shared": True})
    publish(client, 1, 2)
    if is_bound:
        assert client.get("q") is not None
    assert client.get("q") is not None
    fail_once(monkeypatch, _Waiting, "__init__")
    with pytest.raises(MemoryError):
        client.connection.feed(method_frame(1, m.BasicReject(1, False)))
    close_broken(client.connection)
    harness.settle()
    harness.check()
    other = harness.channel()
    assert bodies(other, "q") == [b"1", b"2"]
    harness.check()


@pytest.mark.parametrize("is_selective", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}])
def test_a_waiting_consumer_gets_a_message_whose_dead_letter_could_not_be_posted(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object], is_selective: bool
) -> None:
    harness, client = declared({**LETTERS, **arguments})
    queue = harness.plain_queue("q")
    publish(client, 1)
    assert client.get("q") is not None
    waiting = harness.channel()
    waiting.consume("q")
    if is_selective:
        (consumer,) = queue.consumers
        queue.select(consumer, Everything())
    publish(client, 2)
    assert delivered(waiting) == [b"2"]
    fail_once(monkeypatch, _Waiting, "__init__")
    with pytest.raises(MemoryError):
        client.connection.feed(method_frame(1, m.BasicReject(1, False)))
    harness.settle()
    assert delivered(waiting) == [b"1"]
    harness.check()


def test_a_waiting_consumer_gets_a_message_that_came_back_before_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, client = declared({"x-max-length": 5})
    publish(client, 1)
    assert client.get("q") is not None
    waiting = harness.channel()
    waiting.consume("q")
    fail_once(monkeypatch, LengthLimit, "keep")
    with pytest.raises(MemoryError):
        client.connection.feed(method_frame(1, m.BasicReject(1, True)))
    harness.settle()
    assert delivered(waiting) == [b"1"]
    harness.check()


def test_numbers_stay_those_of_the_messages_when_one_could_not_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, client = declared({})
    queue = harness.queue("q")
    harness.broker.log.memory_bytes = 0
    harness.broker.log.under_pressure = True
    publish(client, *range(300))
    for _ in range(4):
        queue.page_out()
        harness.broker.log.close_if_due(lingered=True)
        harness.settle()
    assert queue.ready.backlog(0).middle.count
    publish(client, 300)

    class Full(list[Any]):
        def append(self, item: object) -> None:
            raise MemoryError

    tail = queue.ready.backlog(0).tail
    items = tail.items
    tail.items = Full(items)
    with pytest.raises(MemoryError):
        publish(client, 301)
    tail.items = items
    publish(client, 302)
    assert queue.ready_count == 302
    consumer = harness.channel()
    consumer.consume("q", "c")
    assert delivered(consumer) == [b"%d" % number for number in [*range(301), 302]]
    consumer.send(1, m.BasicAck(0, True))
    assert queue.persistent() == (0, 0)
    harness.check()


@pytest.mark.parametrize(
    ("owner", "name"), [(MessageRun, "append"), (Backlog, "_read_ahead"), (MiddleReader, "_read_messages")]
)
def test_messages_come_from_disk_once_when_a_read_has_failed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    harness, client = declared({})
    queue = harness.queue("q")
    log = harness.broker.log
    publish(client, *range(300))
    log.close_if_due(lingered=True)
    harness.settle()
    log.memory_bytes = 0
    log.under_pressure = True
    queue.page_out()
    assert queue.ready.backlog(0).middle.count
    left = fail_once(monkeypatch, owner, name)
    consumer = harness.channel()
    consumer.connection.feed(method_frame(1, basic_consume("q", "c")))
    for _ in range(3):
        try:
            harness.settle()
        except MemoryError:
            continue
    assert left == [0]
    assert delivered(consumer) == [b"%d" % number for number in range(300)]
    harness.check()


@pytest.mark.parametrize(("owner", "name"), [(Backlog, "append"), (UnackedDeliveries, "remember")])
def test_committed_messages_become_ready_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    harness, client = declared({"x-read-committed": True})
    failing = harness.channel()
    if owner is UnackedDeliveries:
        failing.consume("q", "c")
    harness.hold_commits = True
    for body in (b"1", b"2"):
        client.connection.feed(publish_frames("", "q", body, properties={"delivery_mode": 2}))
    harness.settle()
    fail_once(monkeypatch, owner, name)
    harness.hold_commits = False
    harness.broker.log.close_if_due(lingered=True)
    settle_with_defect(harness)
    close_broken(failing.connection)
    other = harness.channel()
    other.call(1, m.ConfirmSelect(False))
    publish(other, 3)
    harness.settle()
    assert bodies(client, "q") == [b"1", b"2", b"3"]
    harness.check()


@pytest.mark.parametrize("is_returned", [False, True])
@pytest.mark.parametrize("arguments", KINDS[:3])
def test_a_message_that_could_not_be_claimed_stays(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object], is_returned: bool
) -> None:
    harness, client = declared(arguments)
    name = claims_name("q", "c")
    harness.vhost.declare_queue(QueueDeclaration(name, durable=True, arguments=claims_arguments("q", "c")))
    claims, queue = harness.vhost.queues[name], harness.plain_queue("q")
    assert isinstance(claims, ClaimQueue)
    publish(client, 1, 2)
    if is_returned:
        assert client.get("q") is not None and client.get("q") is not None
        client.send(1, m.BasicNack(0, True, True))
    fail_once(monkeypatch, Message, "copy")
    with pytest.raises(MemoryError):
        claims.claim(queue, 10, 1 << 20, True, [])
    assert (queue.ready_count, claims.message_count) == (2, 0)
    assert claims.claim(queue, 10, 1 << 20, True, []).count == 2
    assert (queue.ready_count, claims.message_count) == (0, 2)
    harness.broker.log.force()
    harness.settle()
    harness.check()


@pytest.mark.parametrize("group", [None, "g"])
def test_a_consumer_of_a_stream_is_ended_before_it_misses_a_message(
    monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    harness, client = declared({"x-queue-type": "stream"})
    publish(client, 1, 2)
    harness.broker.log.close_if_due(lingered=True)
    harness.settle()
    failing = harness.channel()
    failing.call(1, m.BasicQos(0, 10, False))
    arguments: dict[str, object] = {"x-stream-offset": "first"}
    if group is not None:
        arguments["x-group"] = group
    fail_once(monkeypatch, UnackedDeliveries, "remember")
    failing.connection.feed(method_frame(1, basic_consume("q", "c", arguments=arguments)))
    settle_with_defect(harness)
    assert delivered(failing) == []
    close_broken(failing.connection)
    harness.settle()
    assert harness.queue("q").unacked_count == 0
    consumer = harness.channel()
    consumer.call(1, m.BasicQos(0, 10, False))
    consumer.send(1, basic_consume("q", "c", arguments=arguments))
    assert delivered(consumer) == [b"1", b"2"]
    harness.check()


@pytest.mark.parametrize("failures", [1, 100])
def test_old_deliveries_stay_in_one_place_when_memory_does_not_suffice_to_move_them(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """With a few left among many answered ones they move. The delivery that is answered meanwhile is settled."""
    harness, client = declared({})
    holder = harness.channel()
    holder.consume("q")
    client.feed(publish_frames("", "q", b"m") * (SPARSE_MIN + 100))
    left = fail_once(monkeypatch, LeastKey, "came")
    left[0] = failures
    kept = range(10, 500, 10)
    acks = [tag for tag in range(2, SPARSE_MIN + 1) if tag not in kept]
    holder.connection.feed(b"".join(method_frame(1, m.BasicAck(tag, False)) for tag in acks))
    ledger = holder.connection.channels[1].ledger
    assert left == [0]
    waiting = [1, *kept, *range(SPARSE_MIN + 1, SPARSE_MIN + 101)]
    assert [each.tag for each in ledger.unanswered() if each is not None] == waiting
    assert (ledger.unacked_count, harness.queue("q").unacked_count) == (len(waiting), len(waiting))
    harness.check()
    holder.send(1, m.BasicAck(0, True))
    assert harness.queue("q").unacked_count == 0


def test_a_consumer_of_a_group_gets_a_message_that_could_not_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, client = declared({"x-queue-type": "stream"})
    publish(client, 1, 2)
    harness.broker.log.close_if_due(lingered=True)
    harness.settle()
    client.call(1, m.BasicQos(0, 10, False))
    client.send(1, basic_consume("q", "c", arguments={"x-stream-offset": "first", "x-group": "g"}))
    assert delivered(client) == [b"1", b"2"]
    queue = harness.queue("q")
    ledger = client.connection.channels[1].ledger
    delivery = ledger.maybe_take(1)
    assert delivery is not None
    fail_once(monkeypatch, group_serving, "heappush")
    with pytest.raises(MemoryError):
        give_back(ledger, delivery, requeue=True)
    assert (queue.unacked_count, ledger.is_outstanding(1)) == (2, True)
    client.send(1, m.BasicNack(1, False, True))
    assert delivered(client) == [b"1"]
    harness.check()


def test_a_confirm_that_cannot_be_written_ends_its_peer_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of one client's confirm was a failure of the store, and the broker ended."""
    harness, first = declared({})
    earlier, second = harness.channel(), harness.channel()
    clients = (earlier, first, second)  # the last two are in one batch: the one before it is being written
    for client in clients:
        client.call(1, m.ConfirmSelect(False))
    real, broken = ChannelConfirms.write_confirmed, first.connection.channels[1].confirms

    def written(confirms: ChannelConfirms, up_to: int, count: int) -> None:
        if confirms is broken:
            raise MemoryError
        real(confirms, up_to, count)

    monkeypatch.setattr(ChannelConfirms, "write_confirmed", written)
    harness.hold_commits = True
    for client in clients:
        client.feed(publish_frames("", "q", b"1", properties={"delivery_mode": 2}))
    harness.hold_commits = False
    settle_with_defect(harness)  # of the peer, which the reactor ends
    assert first.take() == []
    assert [each.method for each in earlier.take()] == [m.BasicAck(1, False)]
    assert [each.method for each in second.take()] == [m.BasicAck(1, False)]


def test_a_waiter_that_raises_does_not_keep_the_others_from_a_commit() -> None:
    class Waiter(BatchWaiter):
        def __init__(self, error: Exception | None) -> None:
            self.error = error
            self.told: list[int] = []

        def batch_done(self, batch: int) -> None:
            self.told.append(batch)
            if self.error is not None:
                raise self.error

    waiters = [Waiter(None), Waiter(MemoryError()), Waiter(None)]
    with pytest.raises(MemoryError):
        tell_all(list(waiters), 7)
    assert [each.told for each in waiters] == [[7], [7], [7]]
