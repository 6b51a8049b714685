"""Common behaviour of streams and claim queues: messages by offset, synced or not yet, read in ranges, damaged.

In parentheses: the invariants in the header of the module that is named.
"""

from __future__ import annotations

import pytest
from column_rows import Row, rows_of
from durable_harness import DurableHarness
from simulation.simulated_file_system import SimulatedFileSystem

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import Table
from warren.msgstore.files.segment_names import segment_path
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.claim_names import claims_name
from warren.queues.claims import ClaimQueue, claims_arguments
from warren.queues.offset_backlog import CLOSED_MAX
from warren.queues.offset_columns import RANGE_BYTES, RANGE_MESSAGES, read_columns
from warren.queues.offset_queue import OffsetQueue

PAGE = 16  # entries of an index page of `DurableHarness`
STREAM: Table = {"x-queue-type": "stream"}


class Kept:
    """An offset queue. Nothing is written but by `sync`, `write`, and clean restarts; nothing is sealed."""

    name = "s"

    def __init__(self) -> None:
        self.fs = SimulatedFileSystem()
        self.harness = DurableHarness(self.fs)
        self.harness.broker.log.sealed.chunk_bytes = 1 << 30
        self.publisher = self.harness.channel()
        self.declare()

    def declare(self) -> None:
        self.publisher.declare(self.name, durable=True, arguments=STREAM)

    def fill(self, *bodies: bytes) -> None:
        """Publish messages, one after the other."""
        for body in bodies:
            self.publisher.publish("", self.name, body)

    @property
    def queue(self) -> OffsetQueue:
        found = self.harness.queue(self.name)
        assert isinstance(found, OffsetQueue)
        return found

    @property
    def index(self) -> QueueIndex:
        index = self.queue.offsets.index
        assert index is not None
        return index

    def bounds(self) -> tuple[int, int, int]:
        """Return the first offset, where what is synced ends, and the next offset."""
        return self.queue.first_offset(), self.queue.synced_end(), self.queue.next_offset()

    def write(self) -> None:
        """Write everything, without a sync."""
        self.harness.broker.log.close_if_due(lingered=True)
        self.harness.settle()

    def sync(self) -> None:
        self.harness.write()

    def restart(self, *, clean: bool) -> None:
        """After a clean stop everything, and every full page of the index, is on disk only."""
        self.harness = self.harness.restart(clean=clean)
        self.publisher = self.harness.channel()

    def chunk(self, first: int, end: int) -> tuple[list[Row], int]:
        """Return the rows of a chunk, and where it ends."""
        told: list[tuple[list[Row], int]] = []
        read_columns(
            self.queue,
            first,
            end,
            bodies=True,
            properties=True,
            told=lambda columns, following: told.append((rows_of(b"".join(columns.encode())), following)),
        )
        self.harness.settle()
        (found,) = told
        return found

    def rows(self, first: int, end: int) -> list[Row]:
        """Return all rows of a range."""
        rows: list[Row] = []
        while first < end:
            more, following = self.chunk(first, end)
            assert first < following <= end
            rows += more
            first = following
        return rows

    def damage(self, lsn: int) -> None:
        """Change a bit of the record at `lsn`."""
        segment = self.harness.broker.log.segments.find(lsn)
        self.fs.flip_bit(segment_path(int(segment.number)), lsn - int(segment.base_lsn) + 12, 0)

    def give_up_pages(self) -> None:
        """Put full pages of the index on disk only."""
        log = self.harness.broker.log
        memory_bytes, log.memory_bytes = log.memory_bytes, 0
        for _ in range(3):
            self.fill(b"more")
            self.sync()
        log.memory_bytes = memory_bytes

    def reported(self) -> list[tuple[str, int]]:
        return [(each.queue, each.sequence_number) for each in self.harness.broker.log.damage.reports]


class KeptClaims(Kept):
    name = claims_name("q", "c")

    def declare(self) -> None:
        self.publisher.declare("q", durable=True)
        self.harness.vhost.declare_queue(
            QueueDeclaration(self.name, durable=True, arguments=claims_arguments("q", "c"))
        )
        self.harness.settle()

    def fill(self, *bodies: bytes) -> None:
        for body in bodies:
            self.publisher.publish("", "q", body)
        claims = self.queue
        assert isinstance(claims, ClaimQueue)
        while claims.claim(self.harness.plain_queue("q"), len(bodies), 1 << 40, True, []).count:
            self.harness.settle()


@pytest.fixture(params=[Kept, KeptClaims], ids=["stream", "claims"])
def kept(request: pytest.FixtureRequest) -> Kept:
    made = request.param()
    assert isinstance(made, Kept)
    return made


def numbered(count: int, body: bytes = b"") -> list[bytes]:
    return [b"%d" % number + body for number in range(count)]


# --- what is synced ---------------------------------------------------------------------------------------------------


def test_offsets_follow_each_other_and_go_on_after_a_restart(kept: Kept) -> None:
    """``offset_backlog.py`` (1), (2)"""
    assert kept.bounds() == (0, 0, 0)
    kept.fill(*numbered(20))
    assert kept.bounds() == (0, 0, 20)
    kept.sync()
    assert kept.bounds() == (0, 20, 20)
    for clean in (False, True):
        before = kept.queue.next_offset()
        kept.restart(clean=clean)
        assert kept.bounds() == (0, before, before)
        kept.fill(b"another")
        kept.sync()
        assert kept.bounds() == (0, before + 1, before + 1)


def test_what_is_written_and_not_synced_does_not_count_as_synced(kept: Kept) -> None:
    """``offset_backlog.py`` (2)"""
    kept.fill(b"0")
    kept.sync()
    count = 2 * CLOSED_MAX
    for _ in range(count):
        kept.fill(b"more")
        kept.write()
        assert kept.bounds() == (0, 1, kept.queue.next_offset())
    kept.sync()
    assert kept.bounds() == (0, count + 1, count + 1)


def test_a_batch_that_is_being_synced_does_not_hide_the_one_before(kept: Kept) -> None:
    """``offset_backlog.py`` (2)"""
    kept.fill(b"0")
    kept.sync()
    kept.harness.store.hold = True
    kept.fill(b"1")
    kept.sync()
    assert kept.bounds() == (0, 1, 2)
    kept.harness.store.hold = False
    kept.harness.settle()
    assert kept.bounds() == (0, 2, 2)


# --- ranges -----------------------------------------------------------------------------------------------------------


def test_a_range_is_the_same_from_memory_and_from_disk(kept: Kept) -> None:
    bodies = numbered(5 * PAGE + 3)
    kept.fill(*bodies)
    kept.sync()
    before = kept.rows(0, len(bodies))
    assert [(row.offset, row.body) for row in before] == list(enumerate(bodies))
    for clean in (True, False):
        kept.restart(clean=clean)
        assert kept.rows(0, len(bodies)) == before
        assert kept.rows(PAGE + 1, 3 * PAGE) == before[PAGE + 1 : 3 * PAGE]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_chunk_has_no_more_than_so_many_messages(kept: Kept, on_disk: bool) -> None:
    """``offset_columns.py`` (1)"""
    kept.fill(*numbered(RANGE_MESSAGES + 100))
    kept.sync()
    if on_disk:
        kept.restart(clean=True)
    rows, following = kept.chunk(50, kept.queue.synced_end())
    assert (len(rows), following) == (RANGE_MESSAGES, RANGE_MESSAGES + 50)
    assert len(kept.rows(following, kept.queue.synced_end())) == 50


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_chunk_of_large_messages_is_not_much_larger_than_a_message(kept: Kept, on_disk: bool) -> None:
    """``offset_columns.py`` (1)"""
    kept.fill(*numbered(5, bytes(RANGE_BYTES // 2)))
    kept.sync()
    if on_disk:
        kept.restart(clean=True)
    rows, following = kept.chunk(0, 5)
    assert 0 < len(rows) == following <= 2
    assert [row.offset for row in kept.rows(following, 5)] == list(range(following, 5))


def test_a_queue_that_is_deleted_while_it_is_read_tells_what_there_was_or_nothing(kept: Kept) -> None:
    kept.fill(*numbered(PAGE + 1))
    kept.sync()
    kept.restart(clean=True)
    kept.harness.store.hold = True
    told: list[int] = []
    read_columns(
        kept.queue, 0, PAGE, bodies=True, properties=True, told=lambda columns, following: told.append(following)
    )
    kept.harness.settle()
    assert told == []
    kept.harness.broker.delete_queue(kept.harness.vhost, kept.queue, "somebody")
    kept.harness.store.hold = False
    kept.harness.settle()
    assert told in ([], [PAGE])
    assert kept.reported() == []


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_message_is_reported_once_left_out_and_still_counted(kept: Kept) -> None:
    """``offset_queue.py`` (1)"""
    count = 2 * PAGE
    kept.fill(*numbered(count))
    kept.sync()
    lsn = int(kept.index.lsn_of(5))
    kept.restart(clean=True)  # else it may be in memory
    kept.damage(lsn)
    for _ in range(3):
        assert [row.offset for row in kept.rows(0, count)] == [*range(5), *range(6, count)]
    assert kept.reported() == [(kept.name, 5)]
    assert (kept.queue.ready_count, kept.index.damaged_count) == (count, 1)
    assert kept.bounds() == (0, count, count)


def test_a_damaged_page_is_reported_once_and_its_messages_count_no_more(kept: Kept) -> None:
    """``offset_queue.py`` (1)"""
    count = 20 * PAGE
    kept.fill(*numbered(count))
    kept.give_up_pages()
    page = kept.index.page(1)
    assert page is not None and not page.resident
    kept.damage(int(page.lsn))
    count_before, bytes_before = kept.queue.ready_count, kept.queue.ready_bytes
    told: list[int] = []
    for _ in range(2):  # both wait for the page
        read_columns(
            kept.queue, PAGE, 3 * PAGE, bodies=True, properties=True, told=lambda _, following: told.append(following)
        )
    kept.harness.settle()
    assert told == [3 * PAGE, 3 * PAGE]
    assert [row.offset for row in kept.rows(0, count)] == [*range(PAGE), *range(2 * PAGE, count)]
    assert kept.reported() == [(kept.name, -1)]
    assert (kept.queue.ready_count, kept.index.damaged_count) == (count_before - PAGE, PAGE)
    assert kept.queue.ready_bytes == bytes_before - sum(len(b"%d" % number) for number in range(PAGE, 2 * PAGE))
