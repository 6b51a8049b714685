"""Single cases of streams: sharing between consumers, memory, damage, times. In parentheses: ``stream.py``."""

from __future__ import annotations

import json

import pytest
from durable_harness import DurableHarness
from engine import START_MS
from engine_harness import Client, Harness, basic_consume, body_of, publish_frames
from sealing_stream import offset_of

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, Timestamp, encode_table
from warren.msgstore.log.jobs import Errand
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.queues.browse import Cursor, Seen, look
from warren.queues.disk_reads import MessagesRead
from warren.queues.fetch import Fetch
from warren.queues.timers import NEVER
from warren.queues.unacked import deliveries_of
from warren.streams.backlog import SHORT_TAIL_MESSAGES
from warren.streams.chunk_reader import CHUNK_MESSAGES, SHORT_CHUNK_MESSAGES
from warren.streams.consumer import AT_TIME, Start
from warren.streams.offset_search import find
from warren.streams.reads import ChunkRead
from warren.streams.stream import Stream
from warren.vhosts.metadata import PolicyPut

PAGE = 16
ROUND = 500
OFFSET = "x-stream-offset"
PLENTY = 64 << 20


class Long:
    """A stream ``s`` of `count` messages, whose bodies are their numbers; all but the end is on disk only."""

    def __init__(self, count: int, *, body: bytes = b"", step_ms: int = 0) -> None:
        self.harness = Harness()
        self.client = self.harness.channel()
        self.log = self.harness.broker.log
        self.log.page_entries = PAGE
        self.client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
        found = self.harness.queue("s")
        assert isinstance(found, Stream)
        self.stream = found
        self.bodies: list[bytes] = []
        self._body = body
        self.log.memory_bytes = 0
        while len(self.bodies) < count:
            self.publish(1 if step_ms else min(ROUND, count - len(self.bodies)))
            self.log.now_ms += step_ms
            if len(self.bodies) % ROUND == 0:
                self.close_batch()
        for _ in range(3 if count else 0):  # pages are written with one batch and given up with the next
            self.close_batch()
            self.stream.messages.batch_closed()
        self.log.memory_bytes = PLENTY
        self.chunk_reads = 0
        self.reads = 0
        self._loaded = self.harness.store.loaded
        self.harness.store.loaded = self._count  # type: ignore[method-assign]

    def publish(self, count: int) -> None:
        """Publish `count` messages at once."""
        added = [b"%d" % number + self._body for number in range(len(self.bodies), len(self.bodies) + count)]
        self.bodies += added
        self.client.feed(b"".join(publish_frames("", "s", body) for body in added))

    def close_batch(self) -> None:
        self.log.close_if_due(lingered=True)
        self.harness.settle()

    def _count(self, read: Errand) -> None:
        self.reads += 1
        if isinstance(read, MessagesRead) and isinstance(read.reader, ChunkRead):
            self.chunk_reads += 1
        self._loaded(read)

    @property
    def index(self) -> QueueIndex:
        found = self.stream.messages.index
        assert found is not None
        return found

    @property
    def on_disk(self) -> int:
        """How many are on disk only."""
        return self.stream.ready.paged_out_count()

    def channel(self, prefetch: int = 60_000) -> Client:
        client = self.harness.channel()
        client.call(1, m.BasicQos(0, prefetch, False))
        return client

    def consumer(self, offset: object = "first", *, prefetch: int = 60_000) -> Client:
        client = self.channel(prefetch)
        client.consume("s", "c", arguments={OFFSET: offset})
        return client

    def read_from(self, offset: int) -> list[int]:
        """Return the offsets that a consumer gets from `offset` on; check the bodies."""
        client = self.consumer(offset)
        offsets = self.offsets(client)
        client.hang_up()
        return offsets

    def offsets(self, client: Client) -> list[int]:
        """Return the offsets of what came; check the bodies."""
        found = []
        for each in client.deliveries():
            assert body_of(each) == self.bodies[offset_of(each)]
            found.append(offset_of(each))
        return found

    def page(self, number: int) -> IndexPage:
        page = self.index.page(number)
        assert page is not None
        return page

    def read_from_disk(self) -> None:
        """Make the held disk carry out reads and nothing else."""
        while self.log.read_jobs:
            jobs, self.log.read_jobs = self.log.read_jobs, []
            for job in jobs:
                job.carry_out(self.harness.store.files)
                self.harness.store.loaded(job)
            self.harness.settle()

    def resident_pages(self) -> int:
        return sum(page is not None and page.resident for page in self.index.pages)

    def spoil(self, lsn: int) -> None:
        """Change a byte on disk."""
        segments = self.harness.store.segments
        base = max(base for base in segments if base <= lsn)
        segments[base][lsn - base + 12] ^= 0x55

    def spoil_page(self, number: int) -> None:
        page = self.page(number)
        assert not page.resident
        self.spoil(int(page.lsn))

    def spoil_message(self, offset: int) -> None:
        """Damage the record of a message; a reader loads its page for that."""
        self.stream.pause(paused=True)
        self.read_page_of(offset)
        self.spoil(int(self.index.lsn_of(offset)))
        self.stream.messages.offer_loaded([offset // PAGE])
        self.stream.pause(paused=False)

    def read_page_of(self, offset: int) -> None:
        class Reader(Fetch):
            def fetched(self, messages: object) -> None:
                """Leave the page where it is."""

        if not self.page(offset // PAGE).resident:
            Reader(self.log, self.index, [offset]).begin()
            self.harness.settle()
        assert self.page(offset // PAGE).resident

    def put_policy(self, **definition: object) -> None:
        settings = json.dumps({key.replace("_", "-"): value for key, value in definition.items()})
        self.harness.broker.administer(PolicyPut("/", "p", "", "all", 0, settings))
        self.harness.settle()

    def looked(self) -> list[Seen]:
        """Return the messages that browsing shows, a few at a time."""
        seen: list[Seen] = []
        cursor = Cursor()
        while not cursor.ended:
            told: list[list[Seen]] = []
            look(self.stream, cursor, 70, told.append)
            self.harness.settle()
            (piece,) = told
            seen += piece
        return seen

    def sought(self, time_ms: int) -> int:
        """Return the offset at which a consumer with a start time begins."""
        told: list[int] = []
        find(self.stream, Start(AT_TIME, time_ms), told.append)
        self.harness.settle()
        (offset,) = told
        return offset


# --- what consumers share ---------------------------------------------------------------------------------------------


def test_the_tail_is_short_while_memory_is_and_everything_else_is_on_disk() -> None:
    long = Long(1000)
    assert 1000 - 2 * SHORT_TAIL_MESSAGES <= long.on_disk < 1000
    assert long.resident_pages() < 15
    assert long.read_from(0) == list(range(1000))


def test_consumers_that_come_together_share_each_read() -> None:
    """(4)"""
    long = Long(3 * CHUNK_MESSAGES)
    clients = [long.channel() for _ in range(10)]
    long.stream.pause(paused=True)
    for client in clients:
        client.send(1, basic_consume("s", "c", arguments={OFFSET: "first"}))
        client.pick(m.BasicConsumeOk)
    long.stream.pause(paused=False)
    long.harness.settle()
    for client in clients:
        assert long.offsets(client) == list(range(3 * CHUNK_MESSAGES))
    assert long.chunk_reads == 3


def test_who_comes_later_to_where_somebody_is_reads_nothing() -> None:
    """(4)"""
    long = Long(CHUNK_MESSAGES)
    first = long.consumer(prefetch=10)
    assert long.offsets(first) == list(range(10))
    assert long.chunk_reads == 1
    second = long.consumer(5, prefetch=20)
    assert long.offsets(second) == list(range(5, 25))
    first.send(1, m.BasicAck(0, True))
    assert long.offsets(first) == list(range(10, 20))
    assert long.chunk_reads == 1


def test_who_follows_close_behind_reads_nothing() -> None:
    """(4)"""
    long = Long(2 * CHUNK_MESSAGES + 500)
    assert long.read_from(len(long.bodies) - 1) == [len(long.bodies) - 1]
    store = long.harness.store
    store.hold = True
    first, second = long.consumer(), long.channel()
    store.hold = False
    while long.chunk_reads == 0:
        assert store.run()
    store.hold = True
    long.harness.settle()
    assert long.offsets(first) == list(range(CHUNK_MESSAGES))
    second.consume("s", arguments={OFFSET: "first"})
    assert long.offsets(second) == list(range(CHUNK_MESSAGES))


@pytest.mark.parametrize("count", [0, 600])
def test_what_is_delivered_to_many_is_made_once(count: int) -> None:
    long = Long(count)
    clients = [long.consumer() for _ in range(3)]
    long.publish(5)
    offsets = [long.offsets(client) for client in clients]
    assert offsets == [list(range(count + 5))] * 3
    one, *others = [deliveries_of(long.stream, consumer.ledger.unanswered())[-5:] for consumer in long.stream.consumers]
    for other in others:
        assert all(mine.message is theirs.message for mine, theirs in zip(one, other, strict=True))


def test_while_memory_is_short_chunks_are_small() -> None:
    """(4)"""
    long = Long(500)
    long.log.memory_bytes = 0
    resident_bytes = int(long.log.resident_bytes)
    client = long.consumer(prefetch=1)
    assert long.offsets(client) == [0]
    cost = int(long.log.resident_bytes) - resident_bytes
    assert SHORT_CHUNK_MESSAGES * 250 < cost < (SHORT_CHUNK_MESSAGES + 1) * 260


def test_what_large_messages_take_is_bounded() -> None:
    """(4)"""
    long = Long(400, body=b"x" * 20_000)
    resident_bytes = int(long.log.resident_bytes)
    client = long.consumer(prefetch=1)
    assert long.offsets(client) == [0]
    assert 0 < int(long.log.resident_bytes) - resident_bytes < 1_100_000
    long.log.memory_bytes = 0
    second = long.consumer(100, prefetch=1)
    resident_bytes = int(long.log.resident_bytes)
    assert long.offsets(second) == [100]
    assert long.read_from(0) == list(range(400))


def test_nobody_waits_until_another_has_had_everything() -> None:
    long = Long(0)
    long.publish(6000)
    long.close_batch()
    clients = [long.channel() for _ in range(3)]
    long.stream.pause(paused=True)
    for client in clients:
        client.send(1, basic_consume("s", "c", arguments={OFFSET: "first"}))
    long.stream.pause(paused=False)
    for _ in range(3):
        long.stream.drain()
    assert all(consumer.outstanding > 0 for consumer in long.stream.consumers)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "hang up", "delete"])
def test_all_memory_is_given_back(how: str) -> None:
    long = Long(3000)
    resident_bytes, pages = int(long.log.resident_bytes), long.resident_pages()
    clients = [long.consumer(offset, prefetch=prefetch) for offset, prefetch in ((0, 1), (5, 3), (1500, 7), (2990, 2))]
    assert int(long.log.resident_bytes) > resident_bytes
    for client in clients:
        if how == "cancel":
            client.send(1, m.BasicCancel("c", False))
        elif how == "hang up":
            client.hang_up()
    if how == "delete":
        long.client.call(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))
        assert long.log.resident_bytes == 0
        assert not long.harness.indexes
    else:
        assert long.log.resident_bytes == resident_bytes
        assert long.resident_pages() <= pages + 1
        long.stream.check_invariants()


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_what_comes_from_disk_for_somebody_who_is_gone_is_not_kept(how: str) -> None:
    long = Long(3000)
    assert long.read_from(2999) == [2999]  # published messages are visible from now on
    resident_bytes = int(long.log.resident_bytes)
    client = long.channel()
    store = long.harness.store
    store.hold = True
    client.consume("s", "c", arguments={OFFSET: "first"})
    if how == "cancel":
        client.send(1, m.BasicCancel("c", False))
    else:
        long.stream.close()
        resident_bytes = 0
    store.hold = False
    long.harness.settle()
    assert long.reads > 0 and not long.stream.consumers
    assert long.log.resident_bytes == resident_bytes


def test_a_deleted_stream_has_no_timer() -> None:
    long = Long(0)
    assert long.harness.broker.timers.next_ms() == NEVER
    long.put_policy(max_age="1h")
    assert long.harness.broker.timers.next_ms() < NEVER
    long.client.call(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))
    assert long.harness.broker.timers.next_ms() == NEVER


def test_reading_everything_gives_the_memory_of_the_index_back() -> None:
    long = Long(5000)
    resident_bytes, pages = int(long.log.resident_bytes), long.resident_pages()
    client = long.consumer()
    assert long.offsets(client) == list(range(5000))
    assert long.resident_pages() <= pages
    # The tail, as it came and as it was delivered.
    assert long.log.resident_bytes == 2 * resident_bytes + SHORT_TAIL_MESSAGES * len(encode_table({OFFSET: 1 << 40}))


# --- what is visible --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comes_first", [True, False])
def test_what_somebody_is_to_see_is_synced_whoever_else_asks_for_that(comes_first: bool) -> None:
    """(2)"""
    long = Long(0)
    long.harness.store.hold = True
    client = long.channel()
    if comes_first:
        client.consume("s", arguments={OFFSET: "first"})
    long.publish(1)
    if not comes_first:
        client.consume("s", arguments={OFFSET: "first"})
    assert [job.sync for job in long.log.commit_jobs] == [True]
    client.nothing()


def test_a_consumer_that_retention_has_overtaken_sees_nothing_that_is_not_synced() -> None:
    """(2)"""
    long = Long(0)
    long.log.memory_bytes = 0
    long.put_policy(max_length_bytes=0)
    long.publish(SHORT_CHUNK_MESSAGES)
    client = long.consumer(prefetch=SHORT_CHUNK_MESSAGES)
    long.publish(16)
    assert len(long.offsets(client)) == SHORT_CHUNK_MESSAGES
    visible = len(long.bodies)
    long.harness.store.hold = True
    long.publish(32 * PAGE + SHORT_TAIL_MESSAGES - visible)  # one batch: all but the tail leaves memory with it
    long.publish(1)
    assert long.stream.first_offset() == 32 * PAGE > visible
    client.send(1, m.BasicAck(0, True))
    client.nothing()
    long.harness.store.hold = False
    long.harness.settle()
    assert long.offsets(client) == list(range(32 * PAGE, 32 * PAGE + SHORT_CHUNK_MESSAGES))
    long.stream.check_invariants()


def test_what_another_has_read_is_not_seen_before_it_is_synced() -> None:
    """(2)"""
    long = Long(20)
    assert long.read_from(19) == [19]
    long.log.memory_bytes = 0
    long.publish(600)  # with nobody to see it: written, and not synced
    long.close_batch()
    long.log.memory_bytes = PLENTY
    assert long.on_disk > 500
    long.harness.store.hold = True
    first, second = long.consumer(prefetch=10), long.channel()
    long.read_from_disk()
    assert long.offsets(first) == list(range(10))
    long.stream.pause(paused=True)
    second.consume("s", arguments={OFFSET: 5})
    long.put_policy(max_length_bytes=0)
    assert long.stream.first_offset() > 500
    long.stream.pause(paused=False)
    long.harness.settle()
    second.nothing()
    long.harness.store.hold = False
    long.harness.settle()
    assert long.offsets(second) == list(range(long.stream.first_offset(), 620))


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_message_is_passed_over_and_reported_once() -> None:
    long = Long(600)
    long.spoil_message(100)
    expected = [offset for offset in range(600) if offset != 100]
    assert long.read_from(0) == expected
    assert long.read_from(90) == expected[90:]
    assert [(damage.queue, damage.sequence_number) for damage in long.log.damage.reports] == [("s", 100)]
    assert (long.index.damaged_count, long.stream.ready_count) == (1, 600)
    assert long.read_from(100) == expected[100:]


def test_a_damaged_page_is_passed_over_and_reported_once() -> None:
    long = Long(600)
    long.spoil_page(5)
    expected = [offset for offset in range(600) if offset // PAGE != 5]
    for first in (0, 5 * PAGE, 6 * PAGE - 1):
        assert long.read_from(first) == [offset for offset in expected if offset >= first]
    assert [(damage.queue, damage.sequence_number) for damage in long.log.damage.reports] == [("s", -1)]
    assert (long.index.damaged_count, long.stream.ready_count) == (PAGE, 600 - PAGE)
    assert long.stream.ready_bytes == sum(len(long.bodies[offset]) for offset in expected)
    long.stream.check_invariants()


def test_a_damaged_page_that_two_are_reading_is_lost_once() -> None:
    long = Long(600)
    long.spoil_page(5)
    client = long.channel()
    consumes = [basic_consume("s", str(first), arguments={OFFSET: first}) for first in (5 * PAGE + 7, 5 * PAGE)]
    client.feed(b"".join(method_frame(1, consume) for consume in consumes))
    deliveries = [each for each in client.take() if isinstance(each.method, m.BasicDeliver)]
    assert len(deliveries) == 2 * (600 - 6 * PAGE)
    assert len(long.log.damage.reports) == 1
    assert (long.index.damaged_count, long.stream.ready_count) == (PAGE, 600 - PAGE)
    long.stream.check_invariants()


def test_when_all_that_is_on_disk_is_damaged_the_rest_is_served() -> None:
    long = Long(600)
    lost = [number for number in range(600 // PAGE) if not long.page(number).resident]
    for number in lost:
        long.spoil_page(number)
    expected = [offset for offset in range(600) if offset // PAGE not in lost]
    client = long.consumer()
    assert long.offsets(client) == expected
    long.publish(1)
    assert long.offsets(client) == [600]
    assert [damage.sequence_number for damage in long.log.damage.reports] == [-1] * len(lost)


def test_retention_passes_over_damage() -> None:
    long = Long(600 * PAGE)
    for number in range(400):
        long.stream.page_damaged(long.page(number))
    long.log.now_ms += 10_000
    long.put_policy(max_age="10s")
    long.harness.pass_time(2)
    first = long.stream.first_offset()
    assert first > 590 * PAGE and first % PAGE == 0
    assert long.read_from(0) == list(range(first, 600 * PAGE))
    assert long.stream.ready_count == 600 * PAGE - first
    long.stream.check_invariants()


# --- times ------------------------------------------------------------------------------------------------------------


def times_of(long: Long, count: int, step_ms: int) -> list[int]:
    return [START_MS + number * step_ms for number in range(count)]


def first_at(times: list[int], time_ms: int) -> int:
    return next((offset for offset, each in enumerate(times) if each >= time_ms), len(times))


def test_the_first_message_at_or_after_a_time_is_found_wherever_it_is() -> None:
    """(5)"""
    long = Long(400, step_ms=3)
    times = times_of(long, 400, 3)
    assert 100 < long.on_disk < 390
    pages = long.resident_pages()
    for time_ms in [0, *range(START_MS - 2, times[-1] + 5), START_MS + 10**12]:
        long.reads = 0
        assert long.sought(time_ms) == first_at(times, time_ms), time_ms - START_MS
        assert long.reads <= 2 * 10, "a page and a message for each step"
    assert long.resident_pages() <= pages


def test_of_messages_of_the_same_time_the_first_is_found() -> None:
    """(5)"""
    long = Long(0)
    long.log.memory_bytes = 0
    times: list[int] = []
    for run in (1, 40, 1, 200, 3, 100, 16, 64):
        long.publish(run)
        times += [int(long.log.now_ms)] * run
        long.close_batch()
        long.log.now_ms += 10
    assert long.on_disk > 200
    for time_ms in range(START_MS - 5, times[-1] + 15, 5):
        assert long.sought(time_ms) == first_at(times, time_ms), time_ms - START_MS


def test_a_search_passes_over_damaged_messages_and_pages() -> None:
    """(5)"""
    long = Long(400, step_ms=3)
    for number in (3, 4, 9, 10, 11, 12):
        long.spoil_page(number)
    for offset in (0, 1, 100, 101, 102, 103, 210):
        long.spoil_message(offset)
    gone = {offset for offset in range(400) if offset // PAGE in (3, 4, 9, 10, 11, 12)}
    gone |= {0, 1, 100, 101, 102, 103, 210}
    there = [offset for offset in range(400) if offset not in gone]
    for offset in (*range(240), 399):
        found = long.sought(START_MS + offset * 3)
        # It may be a message that cannot be read: the first delivered one counts.
        assert min(each for each in there if each >= found) == min(each for each in there if each >= offset)
    damaged = [int(damage.sequence_number) for damage in long.log.damage.reports]
    assert sorted(damaged) == [-1] * 6 + [0, 1, 100, 101, 102, 103, 210]


def test_a_search_passes_over_many_pages_that_are_gone() -> None:
    """(5)"""
    long = Long(300 * PAGE)
    for number in range(2, 290):
        long.stream.page_damaged(long.page(number))
    assert long.sought(START_MS) == 0
    assert long.sought(START_MS + 1) == 300 * PAGE
    assert long.read_from(0) == [*range(2 * PAGE), *range(290 * PAGE, 300 * PAGE)]


@pytest.mark.parametrize("how", ["delete", "cancel"])
def test_a_search_of_somebody_who_is_gone_ends(how: str) -> None:
    long = Long(300 * PAGE)
    client = long.channel()
    long.harness.store.hold = True
    client.consume("s", "c", arguments={OFFSET: Timestamp(START_MS // 1000)})
    if how == "delete":
        long.client.send(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))
        client.expect(m.BasicCancel)
    else:
        client.call(1, m.BasicCancel("c", False))
    long.harness.store.hold = False
    long.harness.settle()
    assert long.reads > 0
    client.nothing()


def test_what_comes_while_somebody_searches_is_delivered_too() -> None:
    """(5)"""
    long = Long(400, step_ms=3)
    client = long.channel()
    long.harness.store.hold = True
    client.consume("s", "c", arguments={OFFSET: Timestamp((START_MS + 999) // 1000)})
    long.publish(5)
    client.nothing()
    long.harness.store.hold = False
    long.harness.settle()
    begin = first_at(times_of(long, 405, 3), START_MS + 999 - (START_MS + 999) % 1000)
    assert long.offsets(client) == list(range(begin, 405))


# --- looking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, PAGE, 100, 1000])
def test_a_look_sees_everything_in_memory_and_on_disk_and_changes_nothing(count: int) -> None:
    long = Long(count)
    resident_bytes, pages = int(long.log.resident_bytes), long.resident_pages() if count else 0
    for _ in range(2):
        seen = long.looked()
        assert [each.message.body() for each in seen] == long.bodies
        assert [each.place for each in seen] == list(range(count))
        assert not any(each.redelivered for each in seen)
    assert long.log.resident_bytes == resident_bytes
    if count:
        assert long.resident_pages() <= pages
    assert long.stream.ready_count == count
    assert long.read_from(0) == list(range(count))


@pytest.mark.parametrize("clean", [True, False])
def test_a_look_after_a_restart_sees_the_same(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(100):
        client.publish("", "s", b"%d" % number)
    harness.write()
    harness = harness.restart(clean=clean)
    told: list[list[Seen]] = []
    look(harness.queue("s"), Cursor(), 1000, told.append)
    harness.settle()
    (seen,) = told
    assert [(each.place, each.message.body()) for each in seen] == [(n, b"%d" % n) for n in range(100)]
    assert not any(each.redelivered for each in seen)


def test_a_look_sees_what_retention_has_left() -> None:
    long = Long(1000)
    long.put_policy(max_length_bytes=500)
    first = long.stream.first_offset()
    assert first > 0
    assert [each.message.body() for each in long.looked()] == long.bodies[first:]


def test_retention_by_bytes_counts_what_is_on_disk_only() -> None:
    long = Long(1000)
    for limit_bytes in (2000, 1000):
        long.put_policy(max_length_bytes=limit_bytes)
        first = long.stream.first_offset()
        assert long.stream.ready_bytes == sum(len(body) for body in long.bodies[first:])
        assert limit_bytes <= long.stream.ready_bytes < limit_bytes + PAGE * 3


def test_a_look_reports_no_damage() -> None:
    long = Long(600)
    long.spoil_page(5)
    long.spoil_message(10)
    seen = [each.place for each in long.looked()]
    assert seen == [offset for offset in range(600) if offset != 10 and offset // PAGE != 5]
    assert not long.log.damage.reports
    assert long.stream.ready_count == 600


def test_what_a_filter_looks_at_counts_against_the_turn() -> None:
    """(5): a filter without matches passes over few messages at a time when their headers are long."""
    harness = Harness()
    client = harness.channel()
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    headers: Table = {f"h{number}": "v" * 100 for number in range(400)}
    for _ in range(100):
        client.publish("", "s", b"", headers=encode_table(headers | {"x-stream-filter-value": "b"}))
    harness.settle()
    stream = harness.queue("s")
    assert isinstance(stream, Stream)
    stream.paused = True
    client.call(1, m.BasicQos(0, 10, False))
    client.consume("s", arguments={OFFSET: "first", "x-stream-filter": "a"})
    (consumer,) = stream.consumers
    stream.paused = False
    stream.drain()
    assert 0 < stream.offset_of(consumer) < 10
    harness.settle()
    assert stream.offset_of(consumer) == 100


def test_filters_look_at_what_comes_from_disk_too() -> None:
    arguments: Table = {OFFSET: "first", "x-stream-filter": "a", "x-stream-match-unfiltered": True}
    long = Long(600)
    client = long.channel(prefetch=100)
    client.consume("s", arguments=arguments)
    assert long.offsets(client) == list(range(100))
