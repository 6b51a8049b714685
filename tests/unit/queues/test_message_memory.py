"""The memory of messages, with any large part: the body, the headers, or the frames around it."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Client, Harness, publish_frames
from peer_frames import content_header
from sealing_stream import Sealing

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.amqp.field_table import Table, encode_table
from warren.exchanges.recent_history_exchange import REMEMBERED_BYTES, RecentHistoryExchange
from warren.msgstore.log.message import MESSAGE_OVERHEAD_BYTES, Envelope, Message, build_message
from warren.msgstore.log.message_log import ALL_WAIT, NO_WAIT, PAGED_BYTES_MAX
from warren.queues.backlog import SHORT_HEAD_BYTES, SHORT_HEAD_MESSAGES
from warren.queues.base_queue import BaseQueue
from warren.queues.lanes import DELAYED
from warren.queues.shared_keys import SHORT_ASIDE_MAX
from warren.server.paging import Pager
from warren.streams.backlog import SHORT_TAIL_BYTES, TAIL_BYTES
from warren.vhosts.dead_lettering import LINE_MAX_BYTES

LARGE = 20_000  # bytes of headers of each message; the bodies are empty
COUNT = 400
SHARE = 1 << 20
PERSISTENT = 2


def properties(size: int = LARGE, more: Table | None = None, **others: Any) -> dict[str, Any]:
    return {"headers": encode_table({"large": "x" * size} | (more or {})), **others}


def message(size: int = LARGE, body: bytes = b"") -> Message:
    encoded = content_header(properties(size), 0)[12:]
    return build_message(Envelope("", "q"), encoded, body, 0, False)


def broker() -> tuple[Harness, Client]:
    harness = Harness()
    harness.broker.log.memory_bytes = SHARE
    return harness, harness.channel()


def fill(client: Client, count: int = COUNT, *, exchange: str = "", key: str = "q", **more: Any) -> None:
    client.feed(publish_frames(exchange, key, properties=properties(**more)) * count)


def write(harness: Harness, *, pressure: bool = False) -> None:
    """Make the pager free memory, and write what it gives; `pressure`: the whole process has too little."""
    pager = Pager(harness.broker, 1)
    for _ in range(12):
        pager.relieve(2 if pressure else 0)
        harness.broker.log.close_if_due(lingered=True)
        harness.settle()


def held_bytes(queue: BaseQueue) -> int:
    """Return the frames of all messages that wait in memory."""
    return sum(int(each.content_bytes()) for each in queue.ready.in_memory())


# --- one message ------------------------------------------------------------------------------------------------------


def test_a_message_takes_its_headers_its_body_and_what_keeping_it_costs() -> None:
    empty = message(0)
    assert message(LARGE).memory_bytes - empty.memory_bytes == LARGE
    assert message(0, b"x" * 50).memory_bytes - empty.memory_bytes == 50 + m.FRAME_OVERHEAD_BYTES
    assert empty.memory_bytes == len(empty.content) + MESSAGE_OVERHEAD_BYTES


def test_joining_the_pieces_of_a_message_does_not_change_what_it_counts_for() -> None:
    whole = message(LARGE, b"x" * 1000)
    content = whole.content
    cut = [content[:100], content[100:500], content[500:]]
    pieces = Message(whole.envelope, b"", 1, 1000, whole.frame_max_bytes, False, cut)
    assert pieces.memory_bytes > whole.memory_bytes
    before = int(pieces.memory_bytes)
    pieces.joined()
    assert pieces.memory_bytes == before
    assert pieces.copy().memory_bytes == whole.memory_bytes


def test_a_body_in_small_frames_takes_what_they_take() -> None:
    harness, client = broker()
    client.declare("q")
    size = 20_000
    client.feed(
        method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))
        + frame(m.FRAME_HEADER, 1, b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\0\0")
        + frame(m.FRAME_BODY, 1, b"x") * size
    )
    [waiting] = harness.queue("q").ready.in_memory()
    assert waiting.body_bytes == size
    assert harness.broker.log.resident_bytes > size * (1 + m.FRAME_OVERHEAD_BYTES + 33), "each frame is an object"


def test_the_keys_of_bcc_count() -> None:
    harness, client = broker()
    client.declare("q")
    keys = [f"k{number}" for number in range(100)]
    client.publish("", "q", headers=encode_table({"BCC": keys}))
    assert harness.broker.log.resident_bytes > sum(len(key) for key in keys) + 100 * 49
    harness.queue("q").purge()
    harness.settle()
    assert harness.broker.log.resident_bytes == 0


# --- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [1, PERSISTENT], ids=["transient", "persistent"])
@pytest.mark.parametrize(
    "arguments", [{}, {"x-max-priority": 3}, {"x-key-shared": True}], ids=["plain", "priorities", "key-shared"]
)
def test_large_headers_leave_memory(arguments: Table, mode: int) -> None:
    harness, client = broker()
    client.declare("q", durable=True, arguments=arguments)
    queue = harness.queue("q")
    fill(client, delivery_mode=mode, priority=2)
    assert harness.broker.log.resident_bytes > COUNT * LARGE or mode == PERSISTENT
    write(harness, pressure=mode != PERSISTENT)
    assert held_bytes(queue) <= SHORT_HEAD_BYTES
    assert queue.ready.paged_out_count() >= COUNT - SHORT_HEAD_MESSAGES
    assert held_bytes(queue) <= harness.broker.log.resident_bytes <= 2 * SHARE
    harness.check()
    client.consume("q", no_ack=True)
    harness.settle()
    assert len(client.deliveries()) == COUNT
    assert harness.broker.log.resident_bytes == 0


def test_what_leaves_memory_for_large_headers_is_written_in_bounded_pieces() -> None:
    harness, client = broker()
    client.declare("q")
    fill(client, 1000)
    write(harness, pressure=True)
    assert harness.queue("q").ready.paged_out_count() > 0
    assert harness.store.largest_frame_bytes < PAGED_BYTES_MAX + 2 * LARGE


def test_publishers_wait_when_large_headers_wait_to_be_written() -> None:
    harness, client = broker()
    client.declare("q", durable=True)
    log = harness.broker.log
    harness.store.hold = True
    fill(client, 1, delivery_mode=PERSISTENT)
    log.close_if_due(lingered=True)
    published = 0
    while log.pressure() != ALL_WAIT:
        fill(client, 1, delivery_mode=PERSISTENT)
        published += 1
        assert published * LARGE < 2 * log.batch_bytes
    harness.store.hold = False
    harness.settle()
    assert log.pressure() == NO_WAIT


def test_large_headers_that_are_set_aside_count_until_they_are_taken() -> None:
    harness, client = broker()
    client.declare("q", arguments={"x-key-shared": True})
    client.call(1, m.BasicQos(0, 1, False))
    client.consume("q")
    other = harness.channel()
    other.consume("q")
    fill(client, SHORT_ASIDE_MAX * 2)
    harness.settle()
    queue = harness.queue("q")
    assert held_bytes(queue) <= harness.broker.log.resident_bytes
    write(harness, pressure=True)
    assert queue.ready.paged_out_count() > 0
    assert held_bytes(queue) <= harness.broker.log.resident_bytes < SHORT_HEAD_BYTES + (SHORT_ASIDE_MAX + 4) * LARGE
    queue.purge()
    harness.settle()
    assert harness.broker.log.resident_bytes == 0


@pytest.mark.parametrize("mode", [1, PERSISTENT], ids=["transient", "persistent"])
@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "stream"}], ids=["queue", "stream"])
def test_delayed_messages_with_large_headers_leave_memory(mode: int, arguments: Table) -> None:
    harness, client = broker()
    client.declare("q", durable=True, arguments=arguments)
    fill(client, more={"x-delay": 60_000}, delivery_mode=mode)
    queue = harness.queue("q")
    write(harness, pressure=mode != PERSISTENT)
    lane = queue.held(DELAYED)
    assert lane is not None and lane.count == COUNT
    kept = sum(int(each.content_bytes()) for each in lane.memory.messages.values())
    assert kept <= harness.broker.log.resident_bytes <= SHARE
    assert lane.in_memory_count() < COUNT // 8
    lane.check_invariants()


def test_a_message_that_was_replaced_in_its_queue_leaves_nothing_behind() -> None:
    """A retry puts another message, with another header, where the first one was."""
    harness, client = broker()
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3})
    fill(client, 20, delivery_mode=PERSISTENT)
    for _ in range(2):
        for _ in range(20):
            assert client.get("q") is not None
        client.send(1, m.BasicNack(0, multiple=True, requeue=True))
        harness.settle()
    harness.check()
    harness.queue("q").purge()
    harness.settle()
    assert harness.broker.log.resident_bytes == 0


# --- streams ----------------------------------------------------------------------------------------------------------


def test_the_tail_of_a_stream_is_as_short_as_its_headers_are_large() -> None:
    harness, client = broker()
    client.declare("q", durable=True, arguments={"x-queue-type": "stream"})
    for _ in range(10):
        fill(client, COUNT // 10)
        harness.broker.log.close_if_due(lingered=True)
        harness.settle()
    queue = harness.queue("q")
    assert held_bytes(queue) <= 2 * TAIL_BYTES + COUNT // 10 * LARGE
    assert queue.ready.paged_out_count() > COUNT // 2
    write(harness)
    assert held_bytes(queue) <= harness.broker.log.resident_bytes
    harness.check()


def test_what_is_read_of_a_stream_counts_as_it_was_read_and_as_it_is_delivered() -> None:
    harness, client = broker()
    log = harness.broker.log
    log.memory_bytes = 0
    client.declare("q", durable=True, arguments={"x-queue-type": "stream"})
    fill(client)
    write(harness)
    before = int(log.resident_bytes)
    assert before <= 2 * SHORT_TAIL_BYTES + LARGE
    log.memory_bytes = 64 << 20
    client.call(1, m.BasicQos(0, 1, False))
    client.consume("q", arguments={"x-stream-offset": "first"})
    harness.settle()
    [delivered] = client.deliveries()
    assert log.resident_bytes - before > 2 * LARGE, "what was read, and the one that was sent"
    client.call(1, m.BasicCancel(delivered.method.consumer_tag, False))
    harness.settle()
    assert log.resident_bytes <= before
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    harness.settle()
    assert log.resident_bytes == 0


def test_sealing_and_reading_a_stream_with_large_headers_gives_all_memory_back() -> None:
    sealing = Sealing()
    publisher = sealing.publisher
    for _ in range(5):
        publisher.feed(publish_frames("", "s", properties=properties(delivery_mode=PERSISTENT)) * 10)
        sealing.harness.write()
    reader = sealing.harness.channel()
    reader.call(1, m.BasicQos(0, 100, False))
    reader.consume("s", arguments={"x-stream-offset": "first"})
    sealing.harness.settle()
    assert len(reader.deliveries()) == 50
    sealing.stream.check_invariants()
    publisher.take()
    publisher.call(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))
    sealing.harness.settle()
    assert sealing.log.resident_bytes == 0


# --- elsewhere --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_what_a_transaction_has_published_counts_until_its_end(end: str) -> None:
    harness, client = broker()
    log = harness.broker.log
    other = harness.channel()
    other.declare("waiting", durable=True)
    fill(other, 40, key="waiting", delivery_mode=PERSISTENT)
    write(harness)
    assert harness.queue("waiting").ready.paged_out_count() == 0, "it fits"
    client.declare("q", durable=True)
    client.call(1, m.TxSelect())
    before = int(log.resident_bytes)
    fill(client, delivery_mode=PERSISTENT)
    assert log.resident_bytes - before >= COUNT * LARGE
    write(harness)
    log.memory_bytes = 0
    if end == "commit":
        client.call(1, m.TxCommit())
    elif end == "rollback":
        client.call(1, m.TxRollback())
    else:
        client.call(1, m.ChannelClose(200, "", 0, 0))
    write(harness)
    queue = harness.queue("q")
    assert queue.ready_count == (COUNT if end == "commit" else 0)
    assert log.resident_bytes <= 2 * SHORT_HEAD_BYTES
    for name in ("q", "waiting"):
        harness.queue(name).purge()
    harness.settle()
    assert log.resident_bytes == 0
    harness.check()


def test_dead_letters_with_large_headers_make_their_publishers_wait() -> None:
    harness, client = broker()
    vhost = harness.broker.vhosts["/"]
    client.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    queue = harness.plain_queue("q")
    line = vhost.letters
    line._begun = True  # nothing continues it
    large = message(1 << 20)
    for _ in range(LINE_MAX_BYTES // (1 << 20)):
        assert not vhost.is_crowded
        line.post(queue, large, -1, "expired")
    assert vhost.is_crowded
    line.close()
    assert line.in_line.waiting_bytes == 0


def test_a_recent_history_counts_what_its_messages_take() -> None:
    harness, client = broker()
    client.declare_exchange("h", "x-recent-history", arguments={"x-recent-history-length": 1_000_000})
    exchange = harness.broker.vhosts["/"].exchanges["h"]
    assert isinstance(exchange, RecentHistoryExchange)
    fill(client, 10, exchange="h")
    waiting = [each for each in exchange.history() if isinstance(each, Message)]
    assert len(waiting) == 10
    assert exchange._bytes == sum(int(each.memory_bytes) + REMEMBERED_BYTES for each in waiting) > 10 * LARGE


def test_the_figures_of_the_api_are_those_of_bodies() -> None:
    harness, client = broker()
    client.declare("q", durable=True, arguments={"x-max-length-bytes": 1000, "x-overflow": "reject-publish"})
    frames = publish_frames("", "q", b"x" * 10, properties=properties(delivery_mode=PERSISTENT))
    client.feed(frames * 100)
    write(harness)
    queue = harness.queue("q")
    assert (queue.ready_count, queue.ready_bytes, queue.message_bytes) == (100, 1000, 1000)
    in_memory = sum(int(each.body_bytes) for each in queue.ready.in_memory())
    assert queue.ready.paged_out_bytes() == 1000 - in_memory > 0
