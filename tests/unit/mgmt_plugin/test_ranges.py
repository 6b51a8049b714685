"""Ranges of streams whose disk takes its time: chunks that are sealed, removed or deleted during a read.

In parentheses: the invariants in the header of ``mgmt_plugin/resources/data_port.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from column_rows import Row, chunks_of
from durable_harness import DurableHarness
from engine_harness import publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import QueueRef
from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.resources.data_port import _cut_off, answer_of
from warren.mgmt_plugin.resources.ranges import StreamRanges, Wanted
from warren.msgstore.log.columns import Piece
from warren.streams.stream import Stream

EVERYTHING = Wanted(True, True)


class Streams:
    """A stream ``s`` whose first `on_disk` messages are on disk only; chunks have ten messages from `seal` on."""

    def __init__(self, on_disk: int, arguments: Table | None = None) -> None:
        self.harness = DurableHarness()
        self._channel()
        self.publisher.declare("s", durable=True, arguments={"x-queue-type": "stream"} | (arguments or {}))
        self.publish(0, on_disk)
        if on_disk:
            self.harness = self.harness.restart(clean=True)
            self._channel()

    def _channel(self) -> None:
        self.publisher = self.harness.channel()
        self.publisher.call(1, m.ConfirmSelect(False))

    @property
    def stream(self) -> Stream:
        found = self.harness.queue("s")
        assert isinstance(found, Stream)
        return found

    @property
    def ranges(self) -> StreamRanges:
        return StreamRanges(EngineView(self.harness.broker, self.harness.settle), QueueRef(self.stream))

    def publish(self, first: int, end: int) -> None:
        self.publisher.feed(b"".join(publish_frames("", "s", b"%d" % number) for number in range(first, end)))

    def seal(self) -> None:
        self.harness.broker.log.sealed.chunk_messages = 10
        self.stream.messages.sealer.step(self.stream)
        self.harness.settle()

    def hold(self) -> None:
        self.harness.store.hold = True

    def release(self) -> None:
        self.harness.store.hold = False
        self.harness.settle()

    async def rows(self, first: int, end: int) -> list[Row]:
        """Read a range as the data port does."""
        ranges, rows, at = self.ranges, [], first
        while at < end:
            pieces, following = await ranges.read(at, end, EVERYTHING)
            assert at < following <= end
            found = [row for chunk in chunks_of(b"".join(pieces)) for row in chunk.rows]
            rows += [row for row in found if at <= row.offset < following]
            at = following
        return rows


def run(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test)


async def until_waiting() -> None:
    """Run the other task until it waits for the disk."""
    await trio.testing.wait_all_tasks_blocked()


def test_what_is_not_synced_is_not_there() -> None:
    """(3)"""
    s = Streams(5)
    s.hold()
    s.publish(5, 8)
    assert s.ranges.bounds() == (0, 5)
    s.release()
    assert s.ranges.bounds() == (0, 8)


def test_what_is_sealed_while_it_is_read_from_the_log_is_told_from_where_it_is() -> None:
    """(2): the log has forgotten some of it when the read comes back."""
    s = Streams(35)
    found: list[Row] = []

    async def test() -> None:
        async def read() -> None:
            found.extend(await s.rows(0, 35))

        async with trio.open_nursery() as nursery:
            s.hold()
            nursery.start_soon(read)
            await until_waiting()
            (reading,) = s.harness.broker.log.read_jobs
            s.harness.broker.log.read_jobs.clear()
            s.harness.store.hold = False
            s.seal()
            assert s.stream.messages.sealed_end() == 30
            reading.carry_out(s.harness.store._store)
            s.harness.store.loaded(reading)
            s.harness.settle()

    run(test)
    assert [row.offset for row in found] == list(range(35))
    assert [row.body for row in found] == [b"%d" % number for number in range(35)]


@pytest.mark.parametrize("sealed", [True, False])
def test_what_retention_removes_while_it_is_read_is_gone_and_said_to_be(sealed: bool) -> None:
    """(2)"""
    s = Streams(80, {"x-stream-max-segment-size-bytes": 1})
    if sealed:
        s.seal()
    refused: list[HttpError] = []

    async def test() -> None:
        async def read() -> None:
            with pytest.raises(HttpError) as caught:
                await s.rows(0, 80)
            refused.append(caught.value)

        async with trio.open_nursery() as nursery:
            s.hold()
            nursery.start_soon(read)
            await until_waiting()
            jobs = list(s.harness.broker.log.read_jobs)
            s.harness.broker.log.read_jobs.clear()
            s.stream.rules.max_length_bytes = 20
            s.stream.apply_rules(s.stream.rules)
            assert s.stream.first_offset() > 0
            s.release()  # files are gone, the log has forgotten
            for job in jobs:
                job.carry_out(s.harness.store._store)
                s.harness.store.loaded(job)
            s.harness.settle()

    run(test)
    assert [error.status for error in refused] == [410]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_stream_that_is_deleted_while_it_is_read_is_not_found(sealed: bool) -> None:
    s = Streams(40)
    if sealed:
        s.seal()
    refused: list[HttpError] = []

    async def test() -> None:
        async def read() -> None:
            with pytest.raises(HttpError) as caught:
                await s.rows(0, 40)
            refused.append(caught.value)

        async with trio.open_nursery() as nursery:
            s.hold()
            nursery.start_soon(read)
            await until_waiting()
            s.publisher.send(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))

    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [error.status for error in refused] == [404]


def test_the_tail_is_told_at_once_and_no_further_than_it_is_synced() -> None:
    s = Streams(0)
    s.publish(0, 30)
    s.hold()
    s.publish(30, 40)
    found: Any = None

    async def test() -> None:
        nonlocal found
        found = await s.rows(5, s.ranges.bounds()[1])

    run(test)
    assert [row.offset for row in found] == list(range(5, 30))


@pytest.mark.parametrize("sealed", [True, False])
def test_long_ranges_are_planned_in_pieces(monkeypatch: pytest.MonkeyPatch, sealed: bool) -> None:
    monkeypatch.setattr("warren.mgmt_plugin.http.scheduler.SLICE_S", -1.0)  # every task that may give way does so
    monkeypatch.setattr("warren.mgmt_plugin.resources.ranges.RANGE_MESSAGES", 10)
    s = Streams(400)
    if sealed:
        s.seal()
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    async def test() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            bounds, sizes = await s.ranges.cut(0, 400, 1)
            assert (bounds[0], bounds[-1], len(sizes)) == (0, 400, len(bounds) - 1)
            assert len(sizes) == 40 <= passes
            before = passes
            assert len(await s.ranges.files(0, 400)) == (40 if sealed else 0)
            assert passes - before >= (40 if sealed else 0)
            nursery.cancel_scope.cancel()

    trio.run(test)


class LargeChunks:
    """Ranges of chunks of a message each, of which one is as large as all that may be held."""

    id = "i"
    queue: QueueRef | None = None

    def bounds(self) -> tuple[int, int]:
        return 0, 3

    async def cut(
        self, first: int, end: int, piece_bytes: int, most_bytes: int | None = None
    ) -> tuple[list[int], list[int]]:
        raise AssertionError("nothing is cut here: the ranges are given")

    async def read(self, first: int, end: int, wanted: Wanted) -> tuple[list[Piece], int]:
        return [bytes(1000 if first == 1 else 10)], first + 1


def test_a_chunk_for_which_there_is_no_room_beside_others_has_an_answer_of_its_own() -> None:
    async def answers() -> None:
        told: list[tuple[int, int]] = []
        at = 0
        while at < 3:
            held = 0

            def hold(more: int) -> None:
                nonlocal held
                if held + more > 1000:
                    raise HttpError(503, "overloaded", "too many large requests at once")
                held += more

            blocks, at = await answer_of(LargeChunks(), at, 3, EVERYTHING, hold)
            told.append((sum(map(len, blocks)), at))
        assert told == [(10, 1), (1000, 2), (10, 3)]

        def refuse(more: int) -> None:
            raise HttpError(503, "overloaded", "too many large requests at once")

        with pytest.raises(HttpError):
            await answer_of(LargeChunks(), 0, 3, EVERYTHING, refuse)

    run(answers)


BODY = 2000


def planned(ranges: StreamRanges, first: int, end: int, most_bytes: int) -> int:
    """Return the end of a plan of at most `most_bytes` bytes."""
    found: list[int] = []

    async def test() -> None:
        bounds, sizes = await _cut_off(*await ranges.cut(first, end, most_bytes // 8 + 1, most_bytes), most_bytes)
        assert len(bounds) == len(sizes) + 1 and sum(sizes) <= most_bytes
        found.append(bounds[-1])

    run(test)
    return found[0]


@pytest.mark.parametrize("where", ["sealed", "log", "memory"])
def test_limits_count_bodies_as_they_are_uncompressed(where: str) -> None:
    s = Streams(0)
    s.publisher.feed(b"".join(publish_frames("", "s", b"x" * BODY) for _ in range(200)))
    if where == "sealed":
        s.seal()
        stored = sum(int(chunk.stored_bytes) for _, chunk in s.stream.messages.sealer.table.chunks_between(0, 200))
        assert stored < 200 * BODY // 20
    elif where == "log":
        s.harness = s.harness.restart(clean=True)
    at, ends = 0, []
    while at < 200:
        at = planned(s.ranges, at, 200, 25 * BODY)
        ends.append(at)
    steps = [end - first for first, end in zip([0, *ends], ends, strict=False)]
    assert all(22 <= step <= 25 for step in steps[:-1]), steps  # frames and properties are bytes, too


def test_batches_within_a_chunk_do_not_become_smaller() -> None:
    s = Streams(0)
    s.harness.broker.log.sealed.chunk_messages = 160
    s.publisher.feed(b"".join(publish_frames("", "s", b"x" * BODY) for _ in range(160)))
    s.stream.messages.sealer.step(s.stream)
    s.harness.settle()
    assert s.stream.messages.sealed_end() == 160
    at, steps = 0, []
    while at < 160:
        following = planned(s.ranges, at, 160, 40 * BODY)
        steps.append(following - at)
        at = following
    assert all(step >= 38 for step in steps[:-1]), steps


def test_large_messages_behind_many_small_ones_are_counted_one_by_one() -> None:
    s = Streams(0)
    s.publish(0, 300)
    s.publisher.feed(b"".join(publish_frames("", "s", b"x" * 100_000) for _ in range(20)))
    assert planned(s.ranges, 300, 320, 350_000) == 303
    assert planned(s.ranges, 310, 320, 10) == 311  # a message at least
    assert planned(s.ranges, 290, 320, 350_000) == 303
