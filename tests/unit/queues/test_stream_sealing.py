"""Streams whose chunks are small: what is sealed leaves the log, and nobody sees that it did.

In parentheses: the invariants in the header of ``queues/stream_sealer.py``, unless another module is named.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Received, body_of, publish_frames
from fuzz.engine import START_MS
from simulation.simulated_file_system import SimulatedFileSystem

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.msgstore.columns import CHUNK_HEAD_BYTES
from warren.msgstore.jobs import Errand, SealJob
from warren.msgstore.scrub import Scrubber
from warren.msgstore.sealed_files import sealed_path
from warren.msgstore.sealed_table import SealedTable
from warren.queues.browse import Cursor, Seen, look
from warren.queues.metadata import PolicyPut
from warren.queues.stream import SEGMENT_MIN_BYTES, Stream
from warren.queues.stream_consumer import AT_TIME, Start
from warren.queues.stream_sealed_reads import RAWS_MAX

PAGE = 16
CHUNK = 10
OFFSET = "x-stream-offset"
VALUE = "x-stream-filter-value"
ONE_CHUNK_EACH: Table = {"x-stream-max-segment-size-bytes": 1}


class Sealing:
    """A durable stream ``s`` whose chunks have `chunk` messages; `bodies` and `times` are what was published."""

    def __init__(
        self, *, chunk: int = CHUNK, memory_bytes: int = 64 << 20, arguments: Table | None = None, seal_bytes: int = 0
    ) -> None:
        self.chunk = chunk
        self.seal_bytes = seal_bytes
        self.bodies: list[bytes] = []
        self.times: list[int] = []
        self._begin(DurableHarness(memory_bytes=memory_bytes))
        self.publisher.declare("s", durable=True, arguments={"x-queue-type": "stream"} | (arguments or {}))

    def _begin(self, harness: DurableHarness) -> None:
        self.harness = harness
        self.fs: SimulatedFileSystem = harness._fs
        self.log = harness.broker.log
        self.log.seal_messages = self.chunk
        self.log.seal_bytes = self.seal_bytes or self.log.seal_bytes
        self.publisher = harness.channel()
        self.publisher.call(1, m.ConfirmSelect(False))
        self.jobs: Counter[str] = Counter()
        self._loaded = harness.store.loaded
        harness.store.loaded = self._count  # type: ignore[method-assign]

    def _count(self, read: Errand) -> None:
        self.jobs[type(read).__name__] += 1
        self._loaded(read)

    @property
    def stream(self) -> Stream:
        found = self.harness.queue("s")
        assert isinstance(found, Stream)
        return found

    @property
    def table(self) -> SealedTable:
        return self.stream.messages.sealer.table

    @property
    def live(self) -> int:
        """How many messages the log has of the stream."""
        index = self.stream.messages.index
        return 0 if index is None else int(index.live_count)

    def bounds(self) -> list[list[tuple[int, int]]]:
        return [[(int(each.first), int(each.end)) for each in segment.chunks] for segment in self.table.segments]

    def files(self) -> list[str]:
        return self.fs.names("streams")

    # --- publishing -----------------------------------------------------------------------------------------------

    def publish(self, count: int = 1, *, size: int = 0, at_once: bool = True, **properties: Any) -> None:
        """Publish so many and have them confirmed; their bodies begin with their offsets."""
        frames = []
        for _ in range(count):
            body = b"%d " % len(self.bodies) + bytes(size)
            self.bodies.append(body)
            self.times.append(int(self.log.now_ms))
            frames.append(publish_frames("", "s", body, properties=properties))
        if at_once:
            self.publisher.feed(b"".join(frames))
        else:
            for each in frames:
                self.publisher.feed(each)
        self.publisher.take()
        self.seal()

    def seal(self) -> None:
        """Have what is synced looked at, as the next publish would."""
        self.stream.seal()
        self.harness.settle()

    def publish_filtered(self, *values: str | None) -> None:
        for value in values:
            headers: Table = {} if value is None else {VALUE: value}
            self.publish(headers=encode_table(headers))

    def put_policy(self, **definition: object) -> None:
        settings = json.dumps({key.replace("_", "-"): value for key, value in definition.items()})
        self.harness.broker.administer(PolicyPut("/", "p", "", "all", 0, settings))
        self.harness.settle()

    def seal_once(self, count: int) -> None:
        """Have one chunk of `count` messages sealed, and none behind it."""
        run = self.harness.store.run

        def run_with_one_seal() -> bool:
            if self.log.seal_jobs:
                self.log.seal_messages = 100_000
            return run()

        self.harness.store.run = run_with_one_seal  # type: ignore[method-assign]
        self.log.seal_messages = count
        self.seal()
        self.harness.store.run = run  # type: ignore[method-assign]

    def hold_seals(self) -> list[SealJob]:
        """Have the disk not write any chunk, but for those that are released; return what it is to write."""
        held: list[SealJob] = []
        self._run = self.harness.store.run

        def run_but_seals() -> bool:
            held.extend(self.log.seal_jobs)
            self.log.seal_jobs.clear()
            return self._run()

        self.harness.store.run = run_but_seals  # type: ignore[method-assign]
        return held

    def release(self, held: list[SealJob]) -> None:
        """Have the chunk written that is held."""
        (job,) = held
        held.clear()
        self.log.seal_jobs.append(job)
        self._run()
        self.harness.settle()

    # --- reading --------------------------------------------------------------------------------------------------

    def consumer(self, offset: object = "first", prefetch: int = 60_000, **arguments: object) -> Client:
        client = self.harness.channel()
        client.call(1, m.BasicQos(0, prefetch, False))
        table: Table = {OFFSET: offset}
        client.consume("s", "c", arguments=table | {f"x-{k.replace('_', '-')}": v for k, v in arguments.items()})
        return client

    def offsets(self, client: Client) -> list[int]:
        """Return the offsets of what came; check the bodies."""
        found = []
        for each in client.deliveries():
            offset = offset_of(each)
            assert body_of(each) == self.bodies[offset]
            found.append(offset)
        return found

    def read(self, offset: object = "first", **arguments: Any) -> list[int]:
        """Return the offsets that a consumer gets who begins there."""
        client = self.consumer(offset, **arguments)
        offsets = self.offsets(client)
        client.hang_up()
        return offsets

    def sought(self, time_ms: int) -> int:
        """Return the offset at which a consumer begins who asks for a time."""
        told: list[int] = []
        self.stream.find(Start(AT_TIME, time_ms), told.append)
        self.harness.settle()
        (offset,) = told
        return offset

    def looked(self, *, skip: int = 0, most: int = 7) -> list[Seen]:
        """Return what is seen by somebody who only looks, a few at a time."""
        seen: list[Seen] = []
        cursor = Cursor(skip)
        while not cursor.ended:
            told: list[list[Seen]] = []
            look(self.stream, cursor, most, told.append)
            self.harness.settle()
            (piece,) = told
            assert len(piece) <= most
            seen += piece
        return seen

    # --- what happens ---------------------------------------------------------------------------------------------

    def restart(self, *, clean: bool, memory_bytes: int | None = None) -> None:
        self._begin(self.harness.restart(clean=clean, memory_bytes=memory_bytes))
        end = self.stream.next_offset()
        assert end == len(self.bodies), "all was confirmed"

    def pass_sealing_time(self) -> None:
        """Have what was not sealed before a restart looked at."""
        self.harness.pass_time(2)

    def page_out(self) -> None:
        """Have index pages leave memory, and messages that are on disk."""
        self.log.under_pressure = True
        for _ in range(3):  # pages are written with one batch and given up with the next
            self.log.force()
            self.harness.settle()
            self.stream.messages.batch_closed()
        self.log.under_pressure = False

    def absent_pages(self) -> int:
        index = self.stream.messages.index
        return 0 if index is None else sum(page is not None and not page.resident for page in index.pages)

    def seal_without_telling(self) -> list[SealJob]:
        """Have the disk, which is held, write chunks, and the broker not hear of it."""
        jobs, self.log.seal_jobs = self.log.seal_jobs, []
        for job in jobs:
            job.carry_out(self.harness.store._store)
        return jobs

    def delete(self) -> None:
        self.publisher.call(1, m.QueueDelete(0, "s", False, False, False))

    def damage(self, at: int) -> None:
        """Damage the chunk that an offset is in, on the disk."""
        segment, chunk = self.table.place(at)
        path = sealed_path(self.stream.store_id, int(segment.first))
        self.fs.flip_bit(path, int(chunk.position) + CHUNK_HEAD_BYTES, 0)

    def check(self) -> None:
        """Check that everything is there, once, and counted right."""
        stream = self.stream
        first, end = stream.first_offset(), stream.next_offset()
        assert end == len(self.bodies)
        assert stream.ready_count == end - first
        assert stream.ready_bytes == sum(len(body) for body in self.bodies[first:])
        stream.check_invariants()
        chunks = [bounds for segment in self.bounds() for bounds in segment]
        assert all(one[1] == other[0] for one, other in pairwise(chunks))
        assert self.read() == list(range(first, end))
        seen = self.looked()
        assert [each.place for each in seen] == list(range(first, end))
        assert [each.message.body() for each in seen] == self.bodies[first:]

    def check_memory(self) -> None:
        """Check that all memory is given back when the stream goes."""
        self.delete()
        assert self.log.resident_bytes == 0
        self.harness.write()
        self.log.check_invariants()


def offset_of(received: Received) -> int:
    assert received.content is not None and received.content.properties.headers is not None
    offset = decode_table(received.content.properties.headers)[OFFSET]
    assert isinstance(offset, int)
    return offset


# --- what is sealed leaves the log ------------------------------------------------------------------------------------


def test_a_full_chunk_is_sealed_and_the_log_forgets_it() -> None:
    """(3)"""
    s = Sealing()
    s.publisher.feed(b"".join(publish_frames("", "s", b"x") for _ in range(CHUNK)))
    assert s.bounds() == []
    s.publisher.feed(publish_frames("", "s", b"x"))
    assert s.bounds() == [[(0, CHUNK)]], "with the next batch"
    s = Sealing()
    s.publish(CHUNK - 1)
    assert (s.bounds(), s.live) == ([], CHUNK - 1)
    s.publish(1)
    assert (s.bounds(), s.live) == ([[(0, CHUNK)]], 0)
    s.publish(25)
    assert (s.bounds(), s.live) == ([[(0, 10), (10, 20), (20, 30)]], 5)
    s.check()
    s.check_memory()


@pytest.mark.parametrize("size", [200, 1000, 5000])
def test_a_chunk_is_full_by_bytes_too_and_a_large_message_has_one_of_its_own(size: int) -> None:
    """(3)"""
    s = Sealing(chunk=1000, seal_bytes=2000)
    s.publish(21, size=size, at_once=False)
    each = -(-2000 // (size + 14))
    expected = [(at, at + each) for at in range(0, 21 - each + 1, each)]
    (chunks,) = s.bounds()
    assert len(chunks) in (len(expected), len(expected) - 1)
    assert all(end - first <= each for first, end in chunks)
    s.check()


def test_segments_of_the_log_go_when_what_is_in_them_is_sealed() -> None:
    """(1)"""

    def log_bytes(chunk: int) -> int:
        s = Sealing(chunk=chunk, seal_bytes=1 << 30)
        for _ in range(40):
            s.publish(CHUNK, size=20_000)
        for _ in range(2):
            s.harness.write()
            s.log.want_checkpoint()
            s.harness.settle()
        assert len(s.read()) == 400
        return sum(len(content) for path, content in s.fs.contents().items() if path.startswith("log/"))

    assert log_bytes(100_000) > 8_000_000
    assert log_bytes(CHUNK) < 2_000_000


def test_the_index_of_what_is_sealed_goes() -> None:
    s = Sealing()
    s.publish(500)
    index = s.stream.messages.index
    assert index is not None
    assert len(index.pages) <= 2
    assert (index.next_number, index.live_count) == (500, 0)


def test_nothing_is_sealed_before_it_is_synced() -> None:
    """(2)"""
    s = Sealing()
    client = s.harness.channel()  # without confirms
    client.feed(b"".join(publish_frames("", "s", b"%d " % number) for number in range(25)))
    s.bodies = [b"%d " % number for number in range(25)]
    s.log.close_if_due(lingered=True)
    s.harness.settle()
    assert s.log.written_lsn > s.log.durable_lsn, "it is written"
    assert (s.live, s.bounds(), s.stream.messages.sealer.next) == (25, [], 0)
    s.seal()
    assert s.stream.messages.sealer.next == 0
    s.log.force()
    s.harness.settle()
    s.seal()
    assert s.bounds() == [[(0, 10), (10, 20)]]
    s.check()


def test_one_chunk_is_written_at_a_time_and_the_next_is_gathered_meanwhile() -> None:
    """(4)"""
    s = Sealing()
    held = s.hold_seals()
    for _ in range(7):
        s.publish(CHUNK)
    assert len(held) == 1
    assert s.stream.messages.sealer.next == 2 * CHUNK
    for number in range(7):
        assert len(held) == 1
        s.release(held)
        assert s.table.end == (number + 1) * CHUNK
    assert held == []
    s.check()


def test_what_is_sealed_is_as_it_was_published() -> None:
    s = Sealing(chunk=3)
    s.publisher.declare_exchange("e", "fanout")
    s.publisher.bind("s", "e")
    s.publisher.bind("s", "amq.topic", "#")
    headers: Table = {"a": 1, OFFSET: 99, "t": {"x": [True, "y"]}}
    body = bytes(range(256)) * 1000
    properties = {"content_type": "text/plain", "delivery_mode": 1, "priority": 4, "message_id": "m"}
    for exchange, key in (("e", ""), ("amq.topic", "a.b.ü"), ("", "s"), ("e", "other")):
        frames = publish_frames(exchange, key, body, properties=properties | {"headers": encode_table(headers)})
        s.publisher.feed(frames)
        s.bodies.append(body)
    s.seal()
    assert s.bounds() == [[(0, 3)]]
    for clean in (None, True, False):
        if clean is not None:
            s.restart(clean=clean)
        for frame_max in (4096, 131072):
            client = s.harness.client(frame_max_bytes=frame_max)
            client.open(1)
            client.call(1, m.BasicQos(0, 10, False))
            client.consume("s", arguments={OFFSET: "first"})
            received = client.deliveries()
            assert [(each.method.exchange, each.method.routing_key) for each in received] == [
                ("e", ""),
                ("amq.topic", "a.b.ü"),
                ("", "s"),
                ("e", "other"),
            ]
            for offset, each in enumerate(received):
                assert each.content is not None and each.content.properties.headers is not None
                assert each.content.body == body
                assert max(each.content.frame_bytes) <= frame_max
                assert decode_table(each.content.properties.headers) == headers | {OFFSET: offset}
                for name, value in properties.items():
                    assert getattr(each.content.properties, name) == value
                assert not each.method.redelivered
            client.hang_up()


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 16, 29, 30, 31, 32, 80])
def test_what_was_sealed_and_what_was_not_come_back(count: int, clean: bool) -> None:
    """(1)"""
    s = Sealing()
    s.publish(count)
    for _ in range(2):
        s.restart(clean=clean)
        s.check()
    s.publish(21)
    s.check()
    s.pass_sealing_time()
    s.restart(clean=clean)
    s.check()
    s.check_memory()


@pytest.mark.parametrize("told", [False, True], ids=["written", "entered"])
@pytest.mark.parametrize("count", [10, 15, 16, 20, 33])
def test_what_is_in_a_chunk_and_in_the_log_is_there_once(count: int, told: bool) -> None:
    """(1)"""
    s = Sealing()
    if told:
        s.publish(count)
        assert s.log.durable_lsn < s.log.next_lsn or not s.log.is_idle(), "that the log forgets it is not written yet"
    else:
        run = s.harness.store.run

        def run_but_seals() -> bool:
            return len(s.seal_without_telling()) > 0 or run()

        s.harness.store.run = run_but_seals  # type: ignore[method-assign]
        s.publish(count)
        assert (s.table.end, s.live) == (0, count)
    s.restart(clean=False)
    assert s.table.end in (10, 20, 30)
    assert s.live == count - s.table.end
    s.check()
    s.publish(20)
    s.check()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_page_of_the_index_that_is_half_sealed_counts_for_what_is_left(seed: int, clean: bool) -> None:
    """``stream_backlog.py``: entries of an absent page stay until it is here."""
    random = Random(seed)
    s = Sealing(chunk=1000)  # first much that is not sealed
    s.publish(random.randrange(40, 200))
    s.restart(clean=clean)
    s.page_out()
    assert s.absent_pages() >= len(s.bodies) // PAGE - 1
    s.chunk = random.choice((5, 7, 10, 40))
    for _ in range(4):
        s.restart(clean=clean, memory_bytes=random.choice((0, 64 << 20)))
        assert s.stream.ready_count == len(s.bodies)
        s.pass_sealing_time()
        s.check()
        s.publish(random.randrange(1, 30))
        if random.random() < 0.5:
            s.page_out()
        s.check()
    s.harness.write()
    s.restart(clean=clean)
    s.check()
    s.check_memory()


def test_chunks_that_end_within_one_absent_page_leave_what_is_behind_them() -> None:
    """``stream_backlog.py``: entries go from the beginning of a page."""
    s = Sealing(chunk=1000)
    s.publish(60)
    s.restart(clean=True)
    left = 60
    for count in (8, 1, 3, 2, 1, 1, 5, 30):
        s.page_out()
        s.seal_once(count)
        left -= count
        assert s.stream.messages.middle_count == left
        assert s.stream.ready_count == 60
        assert s.read(60 - left - 1) == list(range(60 - left - 1, 60))
    s.check()
    s.restart(clean=False)
    s.check()


def test_a_chunk_behind_one_that_ended_within_an_absent_page_leaves_what_is_behind_it() -> None:
    """``stream_backlog.py``: nothing is taken for sealed whose page is gone."""
    s = Sealing(chunk=1000)
    s.publish(3 * PAGE + 4)
    s.restart(clean=True)
    s.page_out()
    held = s.hold_seals()
    s.log.seal_messages = PAGE + 4
    s.seal()
    s.log.seal_messages = 2 * PAGE - 4
    s.seal()
    assert s.stream.messages.sealer.next == 3 * PAGE
    s.release(held)
    assert (s.table.end, s.stream.messages.middle_count) == (PAGE + 4, 2 * PAGE)
    assert s.absent_pages() >= 2, "the one in which the first chunk ends, too"
    s.release(held)
    assert (s.table.end, s.stream.messages.middle_count) == (3 * PAGE, 4)
    s.publish(2 * PAGE)
    s.release(held)
    s.check()


def test_what_a_restart_finds_unsealed_is_sealed_without_another_publish() -> None:
    s = Sealing(chunk=1000)
    s.publish(95)
    s.chunk = CHUNK
    s.restart(clean=False)
    assert s.bounds() == []
    s.pass_sealing_time()
    assert (s.table.end, s.live) == (90, 5)
    s.check()


def test_offsets_are_not_used_again_when_the_last_chunk_is_lost_and_that_is_reported() -> None:
    s = Sealing()
    s.publish(30)
    s.harness.write()
    position = int(s.table.segments[0].chunks[2].position)
    s.fs.flip_bit(f"streams/{s.files()[0]}", position, 0)
    s._begin(s.harness.restart(clean=True))
    assert s.bounds() == [[(0, 10), (10, 20)]]
    assert s.stream.next_offset() == 30
    (damage,) = s.log.damages
    assert (damage.vhost, damage.queue, damage.sequence_number) == ("/", "s", 20)
    assert s.stream.ready_count == 20
    s.publish(15)
    assert s.read() == [*range(20), *range(30, 45)]
    assert [each.place for each in s.looked()] == [*range(20), *range(30, 45)]
    s.harness.write()
    s.restart(clean=False)
    assert s.read() == [*range(20), *range(30, 45)]
    assert s.bounds() == [[(0, 10), (10, 20), (30, 40)]]
    assert s.log.damages == [], "that is said once"


def test_keys_of_what_is_sealed_are_remembered() -> None:
    s = Sealing(arguments={"x-message-deduplication": True})
    for number in [*range(25), *range(25)]:
        headers = encode_table({"x-deduplication-header": f"k{number}"})
        s.publisher.feed(publish_frames("", "s", b"%d " % number, properties={"headers": headers}))
    s.bodies = [b"%d " % number for number in range(25)]
    assert s.table.end == 20
    s.restart(clean=False)
    headers = encode_table({"x-deduplication-header": "k3"})
    s.publisher.feed(publish_frames("", "s", b"again", properties={"headers": headers}))
    s.check()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_what_is_gathered_counts_as_memory_until_it_is_written() -> None:
    """(4)"""
    s = Sealing(chunk=16 * CHUNK)
    s.publish(2 * CHUNK, size=1000)
    tail = sum(len(body) + 250 for body in s.bodies)
    assert s.log.resident_bytes >= tail + 20 * 1000, "it is gathered already"
    s.publish(14 * CHUNK)
    assert s.table.end == 16 * CHUNK
    s.check_memory()


@pytest.mark.parametrize("size", [0, 3000])
def test_while_memory_is_short_nothing_is_gathered_ahead_and_chunks_are_read_back(size: int) -> None:
    """(4)"""
    s = Sealing(chunk=100, memory_bytes=0)
    for _ in range(42):
        s.publish(CHUNK, size=size)
        assert s.stream.messages.memory_bytes() < 200_000
    assert s.table.end in (300, 400)
    assert s.jobs["_MessagesRead"] > 0
    s.check()
    s.check_memory()


def test_what_is_gathered_is_given_up_when_memory_becomes_short() -> None:
    """(4)"""
    s = Sealing(chunk=100)
    s.publish(50, size=100)
    assert s.stream.messages.sealer.next == 50
    s.log.memory_bytes = 0
    s.publish(20, size=100)
    gathered = sum(len(body) for body in s.bodies[:50])
    assert s.log.resident_bytes == s.stream.messages.memory_bytes() < gathered + 70 * 250 + gathered
    s.publish(30, size=100)
    assert s.bounds() == [[(0, 100)]]
    s.log.memory_bytes = 64 << 20
    s.publish(130)
    assert s.bounds() == [[(0, 100), (100, 200)]]
    s.check()
    s.check_memory()


def test_raw_chunks_leave_memory_when_nobody_reads_them_any_more() -> None:
    """``stream_sealed_reads.py`` (1)"""
    s = Sealing()
    s.publish(200, size=500)
    s.restart(clean=True)
    assert s.log.resident_bytes == 0
    reader = s.consumer(prefetch=25)
    assert s.offsets(reader) == list(range(25))
    assert 0 < s.log.resident_bytes < (RAWS_MAX + 2) * CHUNK * 1000
    reader.send(1, m.BasicAck(0, True))
    while s.offsets(reader):
        reader.send(1, m.BasicAck(0, True))
    assert s.log.resident_bytes == 0, "it has caught up, and stays"
    s.publish(1)
    assert s.offsets(reader) == [200]
    reader.hang_up()
    s.check_memory()


def test_all_memory_is_given_back_whoever_reads_what() -> None:
    s = Sealing(chunk=20)
    s.publish(130, size=100)
    s.restart(clean=False)
    clients = [s.consumer(at, prefetch=3) for at in (0, 25, 50, 75, 100, 125)]
    s.publish(30)
    for client in clients[::2]:
        client.hang_up()
    s.publish(30)
    for client in clients[1::2]:
        client.send(1, m.BasicCancel("c", False))
        client.hang_up()
    s.check_memory()


# --- retention --------------------------------------------------------------------------------------------------------


def test_retention_by_bytes_removes_whole_segments_and_never_the_last() -> None:
    """``stream.py`` (6)"""
    s = Sealing(arguments=ONE_CHUNK_EACH | {"x-max-length-bytes": 400})
    size = len(b"100 ") + 10
    for _ in range(30):
        s.publish(CHUNK, size=10)
        kept = s.stream.ready_bytes
        first = s.stream.first_offset()
        assert first % CHUNK == 0
        assert first == 0 or 400 <= kept < 400 + CHUNK * size
        assert len(s.files()) == len(s.table.segments) == (len(s.bodies) - first) // CHUNK
    s.put_policy(max_length_bytes=1)
    assert s.stream.first_offset() == 290
    s.check()
    s.restart(clean=False)
    assert s.stream.first_offset() == 290, "the last segment tells where the stream goes on"
    s.check()
    s.publish(CHUNK)
    assert s.bounds() == [[(300, 310)]]


def test_retention_by_age_removes_whole_segments_and_never_the_last() -> None:
    """``stream.py`` (6)"""
    s = Sealing(arguments=ONE_CHUNK_EACH | {"x-max-age": "10s"})
    for _ in range(20):
        s.publish(CHUNK)
        s.harness.pass_time(1)
        oldest = s.log.now_ms - s.times[s.stream.first_offset() + CHUNK - 1]
        assert s.stream.first_offset() % CHUNK == 0 and oldest <= 11_000
    assert s.stream.first_offset() >= 80
    s.harness.pass_time(3600)
    assert s.bounds() == [[(190, 200)]]
    s.check()
    s.restart(clean=False)
    s.harness.pass_time(3600)
    s.publish(CHUNK)
    s.harness.pass_time(3)
    assert s.bounds() == [[(200, 210)]]
    s.check()


def test_what_retention_removes_while_its_chunk_is_written_does_not_come_back() -> None:
    """(5)"""
    s = Sealing(chunk=3 * PAGE, arguments=ONE_CHUNK_EACH)
    s.publish(3 * PAGE - 1, size=100)
    s.page_out()
    held = s.hold_seals()
    s.publish(1, size=100)
    for _ in range(10):
        s.publish(20)
        s.page_out()
    assert len(held) == 1
    s.put_policy(max_length_bytes=100)
    first = s.stream.first_offset()
    while held:
        s.release(held)
        assert s.stream.first_offset() >= first
        s.stream.check_invariants()
    s.check()


def test_a_retention_that_a_crash_undoes_leaves_everything_right() -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH)
    s.publish(95)
    s.put_policy(max_length_bytes=60)
    first = s.stream.first_offset()
    assert first > 0
    for state in s.fs.crash_states(1, 12):
        catalogue = dict(s.harness._catalogue)
        again = Sealing.__new__(Sealing)
        again.chunk, again.seal_bytes, again.bodies, again.times = CHUNK, 0, s.bodies, s.times
        again._begin(DurableHarness(state, catalogue))
        assert again.stream.first_offset() <= first
        again.check()


# --- segments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [1, 1000, 5000, 1 << 20])
def test_a_segment_is_full_when_it_has_the_bytes_that_the_stream_wants(wanted: int) -> None:
    s = Sealing(arguments={"x-stream-max-segment-size-bytes": wanted})
    s.publish(400, size=50)
    body_bytes = [sum(len(body) for body in s.bodies[first:end]) for each in s.bounds() for first, end in each[-1:]]
    assert len(s.files()) == len(s.table.segments) == (1 if wanted == 1 << 20 else len(body_bytes))
    for segment in s.table.segments[:-1]:
        last = segment.chunks[-1]
        assert segment.body_bytes >= wanted or segment.file_bytes >= wanted
        assert segment.body_bytes - last.body_bytes < wanted and last.position < max(wanted, 65)
    s.check()


def test_a_stream_that_keeps_little_has_small_segments() -> None:
    s = Sealing(chunk=1000, arguments={"x-max-length-bytes": 4 * SEGMENT_MIN_BYTES})
    assert s.stream.messages.sealer.segment_bytes == SEGMENT_MIN_BYTES
    s.put_policy(max_length_bytes=100)
    assert s.stream.messages.sealer.segment_bytes == SEGMENT_MIN_BYTES
    s = Sealing(chunk=1000, arguments={"x-max-length-bytes": 400 << 20})
    assert s.stream.messages.sealer.segment_bytes == 64 << 20


# --- deletion ---------------------------------------------------------------------------------------------------------


def test_a_deleted_stream_leaves_no_file_and_no_memory() -> None:
    s = Sealing(arguments={"x-stream-max-segment-size-bytes": 300})
    s.publish(255)
    reader = s.consumer(prefetch=30)
    assert len(s.files()) > 3
    s.check_memory()
    reader.hang_up()
    assert s.files() == []
    assert [path for path in s.fs.open_paths() if path.startswith("streams/")] == []


@pytest.mark.parametrize("begins", [True, False], ids=["first-of-its-file", "behind-others"])
@pytest.mark.parametrize("written", [True, False])
def test_a_stream_that_is_deleted_while_a_chunk_is_written_leaves_nothing(begins: bool, written: bool) -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH if begins else {})
    s.publish(2 * CHUNK)
    held = s.hold_seals()
    s.publish(2 * CHUNK)
    (job,) = held
    if written:
        job.carry_out(s.harness.store._store)
    s.delete()
    if not written:
        job.carry_out(s.harness.store._store)
    s.harness.store.loaded(job)
    s.harness.settle()
    assert s.files() == []
    assert s.log.resident_bytes == 0
    s.publisher.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    s.bodies.clear()
    s.publish(15)
    s.check()


def test_a_stream_that_is_deleted_while_it_is_read_back_and_read_leaves_nothing() -> None:
    s = Sealing(chunk=100, memory_bytes=0)
    s.publish(99)
    s.page_out()
    reader = s.consumer(prefetch=5)
    s.publish(60)
    s.harness.store.hold = True
    s.publisher.feed(b"".join(publish_frames("", "s", b"x") for _ in range(60)))
    other = s.consumer(40)
    s.publisher.send(1, m.QueueDelete(0, "s", False, False, False))
    s.harness.store.hold = False
    s.harness.settle()
    assert (s.files(), s.log.resident_bytes) == ([], 0)
    for client in (reader, other):
        client.pick(m.BasicCancel)
        client.hang_up()


# --- what is read -----------------------------------------------------------------------------------------------------


def test_a_filter_passes_over_chunks_that_cannot_have_what_it_wants() -> None:
    s = Sealing()
    for value in ("a", "b", "a", None, "c"):
        s.publish_filtered(*[value] * CHUNK)
    s.publish_filtered("b", None, "c")
    s.restart(clean=False)
    expected = {"a": [0, 2], "b": [1], "c": [4], "d": []}
    for value, chunks in expected.items():
        s.jobs.clear()
        tail = {"b": [50], "c": [52]}.get(value, [])
        assert s.read(stream_filter=value) == [at for n in chunks for at in range(10 * n, 10 * n + 10)] + tail
        assert s.jobs["_Load"] == len(chunks), value
    s.jobs.clear()
    assert s.read(stream_filter=["b", "c"]) == [*range(10, 20), *range(40, 50), 50, 52]
    assert s.jobs["_Load"] == 2
    s.jobs.clear()
    assert s.read(stream_filter="d", stream_match_unfiltered=True) == [*range(30, 40), 51]
    assert s.jobs["_Load"] == 1
    s.jobs.clear()
    assert s.read() == list(range(53))
    assert s.jobs["_Load"] == 5


def test_a_filter_finds_the_one_message_in_a_chunk_of_others() -> None:
    s = Sealing()
    s.publish_filtered(*["a"] * 4, "b", *["a"] * 5, *["c"] * 10)
    assert s.read(stream_filter="b") == [4]
    s.restart(clean=True)
    assert s.read(stream_filter="b") == [4]
    assert s.read(7, stream_filter="b") == []


def test_a_chunk_is_read_once_for_all_who_wait_for_it() -> None:
    """``stream_sealed_reads.py`` (2)"""
    s = Sealing()
    s.publish(30)
    s.restart(clean=True)
    s.harness.store.hold = True
    clients = [s.consumer(at) for at in (0, 0, 3, 9, 9)]
    s.harness.store.hold = False
    s.harness.settle()
    for client, first in zip(clients, (0, 0, 3, 9, 9), strict=True):
        assert s.offsets(client) == list(range(first, 30))
    assert s.jobs["_Load"] == 3
    s.jobs.clear()
    late = s.consumer(5)
    assert s.offsets(late) == list(range(5, 30))
    assert s.jobs["_Load"] <= 3


def test_readers_at_more_places_than_are_kept_in_memory_all_get_everything() -> None:
    """``stream_sealed_reads.py`` (1)"""
    for memory_bytes in (0, 64 << 20):
        s = Sealing()
        s.publish(120, size=100)
        s.restart(clean=True, memory_bytes=memory_bytes)
        places = [0, 15, 37, 49, 52, 68, 70, 91, 103, 118]
        s.harness.store.hold = True
        clients = [s.consumer(at, prefetch=3) for at in places]
        s.harness.store.hold = False
        s.harness.settle()
        found: list[list[int]] = [[] for _ in places]
        while any(found[at][-1:] != [119] for at in range(len(places))):
            for at, client in enumerate(clients):
                came = s.offsets(client)
                assert came or found[at][-1:] == [119]
                found[at] += came
                client.send(1, m.BasicAck(0, True))
        assert found == [list(range(at, 120)) for at in places]
        for client in clients:
            client.hang_up()
        assert s.log.resident_bytes == 0


def test_a_reader_goes_from_what_is_sealed_into_the_log_and_into_memory() -> None:
    s = Sealing(chunk=50)
    s.publish(110)
    s.restart(clean=False)
    s.publish(7)
    assert s.table.end == 100
    assert (s.live, s.stream.messages.tail_from()) == (17, 110)
    for at in (0, 49, 50, 99, 100, 105, 109, 110, 113, 117):
        assert s.read(at) == list(range(at, 117))
    reader = s.consumer(98, prefetch=1)
    found = []
    while came := s.offsets(reader):
        found += came
        reader.send(1, m.BasicAck(0, True))
        if len(found) == 5:
            s.publish(40)
    assert found == list(range(98, 157))


@pytest.mark.parametrize("where", ["sealed", "log", "tail", "everywhere"])
def test_a_time_is_found_wherever_it_is(where: str) -> None:
    s = Sealing(chunk={"sealed": 10, "log": 1000, "tail": 1000, "everywhere": 40}[where])
    for _ in range(100):
        s.publish(1)
        s.harness.pass_time(1)
    if where in ("log", "everywhere"):
        s.restart(clean=True)
        s.publish(5)
    for time_ms in range(START_MS - 500, START_MS + 100_600, 3_500):
        expected = next((at for at, published in enumerate(s.times) if published >= time_ms), len(s.times))
        assert s.sought(time_ms) == expected
    assert s.sought(s.times[-1]) == s.times.index(s.times[-1])


def test_a_time_is_found_although_what_was_searched_is_sealed_meanwhile() -> None:
    s = Sealing(chunk=1000)
    for _ in range(95):
        s.publish(1)
        s.harness.pass_time(1)
    s.chunk = CHUNK
    s.restart(clean=True)
    told: list[int] = []
    s.harness.store.hold = True
    for second in (0, 13, 50, 89, 92):
        s.stream.find(Start(AT_TIME, START_MS + second * 1000), told.append)
    s.stream.seal()
    s.harness.store.hold = False
    s.harness.settle()
    s.pass_sealing_time()
    assert s.table.end == 90
    assert sorted(told) == [0, 13, 50, 89, 92]


@pytest.mark.parametrize("most", [1, 4, 100])
def test_looking_passes_over_what_is_to_be_skipped_wherever_it_is(most: int) -> None:
    s = Sealing(chunk=40)
    s.publish(115)
    s.restart(clean=False)
    s.publish(4)
    assert (s.table.end, s.live, s.stream.messages.tail_from()) == (80, 39, 115)
    for skip in (0, 1, 39, 40, 41, 79, 80, 81, 100, 114, 115, 116, 118, 119, 200):
        s.jobs.clear()
        seen = s.looked(skip=skip, most=most)
        assert [each.place for each in seen] == list(range(skip, 119))
        assert not any(each.redelivered for each in seen)
        if most == 100:
            assert s.jobs["SealedLook"] == max(0, 2 - skip // 40), "chunks that are skipped are not read"


def test_looking_at_a_stream_of_which_retention_removes_the_beginning_goes_on() -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH)
    s.publish(60)
    cursor = Cursor()
    told: list[list[Seen]] = []
    look(s.stream, cursor, 4, told.append)
    s.harness.settle()
    s.put_policy(max_length_bytes=100)
    first = s.stream.first_offset()
    assert first > 10
    while not cursor.ended:
        look(s.stream, cursor, 4, told.append)
        s.harness.settle()
    assert [each.place for piece in told for each in piece] == [*range(4), *range(first, 60)]


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_chunk_is_reported_once_and_passed_over() -> None:
    """``stream_sealed_reads.py`` (3)"""
    s = Sealing()
    for _ in range(45):
        s.publish(1)
        s.harness.pass_time(1)
    s.restart(clean=False)
    s.damage(13)
    left = [*range(10), *range(20, 45)]
    for _ in range(3):
        assert s.read() == left
        assert s.read(15) == list(range(20, 45))
        assert [each.place for each in s.looked()] == left
        assert s.sought(s.times[15]) in range(10, 21)
    (damage,) = s.log.damages
    assert (damage.vhost, damage.queue, damage.sequence_number) == ("/", "s", 10)
    assert (s.stream.ready_count, s.stream.first_offset()) == (45, 0), "it is still there, and cannot be read"
    s.check_memory()


@pytest.mark.parametrize("arguments", [{}, ONE_CHUNK_EACH], ids=["one-file", "file-each"])
@pytest.mark.parametrize("size", [1000, 0], ids=["large", "small"])
def test_a_chunk_that_nobody_can_read_and_the_log_still_has_is_sealed_again(arguments: Table, size: int) -> None:
    """``sealed_files.py`` (2), (7)"""
    s = Sealing(arguments=arguments)
    s.publish(20, size=size)
    s.harness.write()
    run = s.harness.store.run

    def run_but_seals() -> bool:
        return len(s.seal_without_telling()) > 0 or run()

    s.harness.store.run = run_but_seals  # type: ignore[method-assign]
    s.publish(12, size=size)
    s.harness.store.run = run  # type: ignore[method-assign]
    assert (s.table.end, s.live) == (20, 12)
    path = f"streams/{s.files()[-1]}"
    written = s.fs.contents()[path]
    s.fs.spoil(path, len(written) - 64, len(written))
    s.chunk = 4
    s.restart(clean=False)
    assert s.log.damages == [], "nothing is missing"
    for _ in range(3):
        s.pass_sealing_time()
        assert s.table.end >= 28
        s.check()
        s.publish(5)
        s.restart(clean=False)
    assert written in [content[: len(written)] for content in s.fs.contents().values()]
    s.fs.heal(f"streams/{s.files()[0]}")
    s.restart(clean=False)
    s.check()


def scrub(s: Sealing, scrubber: Scrubber, passes: int = 1) -> list[int]:
    """Have everything looked at so often; return how much was begun with each step."""
    begun = []
    end = scrubber.passes + passes
    while scrubber.passes < end:
        begun.append(scrubber.step())
        s.harness.settle()
    return begun


def test_the_scrubber_reads_every_chunk_once_in_a_pass_and_reports_what_is_damaged_once() -> None:
    """``scrub.py`` (1), (2)"""
    s = Sealing(arguments=ONE_CHUNK_EACH)
    s.publish(45)
    s.publisher.declare("other", durable=True, arguments={"x-queue-type": "stream"})
    s.publisher.feed(b"".join(publish_frames("", "other", bytes(range(256))) for _ in range(21)))
    s.publisher.take()
    s.publisher.declare("nothing sealed", durable=True, arguments={"x-queue-type": "stream"})
    other = s.harness.queue("other")
    assert isinstance(other, Stream)
    other.seal()
    s.harness.settle()
    sizes = [
        int(chunk.stored_bytes)
        for table in (s.table, other.messages.sealer.table)
        for segment in table.segments
        for chunk in segment.chunks
    ]
    assert len(sizes) == 4 + 2 and len(set(sizes)) == 2
    scrubber = Scrubber(s.log)
    for _ in range(2):
        assert scrub(s, scrubber) == [*sizes, 0]
    assert (scrubber.read_bytes, s.log.damages) == (2 * sum(sizes), [])
    s.restart(clean=True)
    scrubber = Scrubber(s.log)
    s.damage(13)
    s.damage(33)
    scrub(s, scrubber, passes=3)
    found = [(damage.queue, damage.sequence_number) for damage in s.log.damages]
    assert found == [("s", 10), ("s", 30)]
    assert s.read() == [*range(10), *range(20, 30), *range(40, 45)]
    assert len(s.log.damages) == 2, "a reader does not say it again"


def test_the_scrubber_finds_what_comes_and_misses_nothing_that_goes() -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH)
    scrubber = Scrubber(s.log)
    assert (scrubber.step(), scrubber.passes) == (0, 0), "there is nothing"
    s.publish(60)
    assert scrubber.step() > 0
    assert scrubber.step() == 0, "the first is not here"
    s.damage(1)
    s.damage(33)
    s.put_policy(max_length_bytes=30)  # while the first is read
    first = s.stream.first_offset()
    assert first > 33
    s.publish(10)
    begun = scrub(s, scrubber)
    assert len([size for size in begun if size]) == len(s.files())
    assert s.log.damages == []
    assert scrubber.step() > 0
    s.delete()  # likewise
    s.harness.settle()
    scrub(s, scrubber)
    assert s.log.damages == []
    assert s.log.sealed_streams == {}
    s.log.check_invariants()


def test_a_chunk_that_retention_has_removed_is_no_damage() -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH)
    s.publish(60)
    s.restart(clean=True)
    reader = s.consumer(prefetch=5)
    assert s.offsets(reader) == list(range(5))
    s.put_policy(max_length_bytes=100)
    first = s.stream.first_offset()
    found = []
    reader.send(1, m.BasicAck(0, True))
    while came := s.offsets(reader):
        found += came
        reader.send(1, m.BasicAck(0, True))
    assert found == [*range(5, 10), *range(first, 60)], "what was read already is delivered"
    assert s.log.damages == []
    reader.hang_up()


def test_counts_are_right_when_a_message_was_damaged_before_it_was_sealed() -> None:
    s = Sealing(chunk=1000)
    s.publish(60, size=100)
    s.restart(clean=True)
    index = s.stream.messages.index
    assert index is not None
    lsn = int(index.lsn_of(33))
    segment = s.log.segments.find(lsn)
    s.fs.flip_bit(f"log/{int(segment.number):010d}", lsn - int(segment.base_lsn) + 40, 1)
    s.log.seal_messages = 59
    s.pass_sealing_time()
    assert s.table.end == 60
    left = [offset for offset in range(60) if offset != 33]
    assert s.read() == left
    (damage,) = s.log.damages
    assert damage.sequence_number == 33
    assert (s.table.count, s.stream.ready_count) == (59, 59)
    assert s.stream.ready_bytes == sum(len(s.bodies[offset]) for offset in left)
    s.stream.check_invariants()
    s.put_policy(max_length_bytes=1)
    s.check_memory()


def test_counts_are_right_when_an_index_page_is_damaged_that_is_half_sealed() -> None:
    s = Sealing(chunk=1000)
    s.publish(100, size=20)
    s.restart(clean=True)
    s.page_out()
    messages, index = s.stream.messages, s.stream.messages.index
    assert index is not None
    s.seal_once(20)
    page = index.page(1)
    assert page is not None and not page.resident, "the chunk ends within the second page, which is not in memory"
    assert (s.table.end, messages.middle_count, s.live) == (20, 80, 84)
    lsn = int(page.lsn)
    segment = s.log.segments.find(lsn)
    s.fs.flip_bit(f"log/{int(segment.number):010d}", lsn - int(segment.base_lsn) + 40, 1)
    left = [*range(20), *range(32, 100)]
    assert s.read() == left
    assert (s.stream.ready_count, messages.middle_count) == (88, 68)
    assert abs(int(s.stream.ready_bytes) - sum(len(s.bodies[offset]) for offset in left)) < 5
    s.log.seal_messages = 20
    s.seal()
    assert s.read() == left
    assert s.table.count + messages.middle_count == 88


def test_a_group_whose_requeued_message_is_gone_gets_what_comes_behind_it_as_it_is() -> None:
    """``stream_group_serving.py`` (3): what is to be sent again is damaged when it is sealed."""
    s = Sealing(chunk=1000)
    s.publish(60, size=100)
    s.restart(clean=True)
    reader = s.consumer(prefetch=60, group="g")
    tags = {offset_of(each): each.method.delivery_tag for each in reader.deliveries()}
    assert list(tags) == list(range(60))
    index = s.stream.messages.index
    assert index is not None
    lsn = int(index.lsn_of(33))
    segment = s.log.segments.find(lsn)
    s.fs.flip_bit(f"log/{int(segment.number):010d}", lsn - int(segment.base_lsn) + 40, 1)
    s.stream.pause(paused=True)
    for offset in (33, 50):
        reader.send(1, m.BasicReject(tags[offset], True))
    s.log.seal_messages = 59
    s.pass_sealing_time()
    assert s.table.end == 60
    s.stream.pause(paused=False)
    s.harness.settle()
    assert s.offsets(reader) == [50]
    reader.hang_up()
