"""Ranges of a snapshot that is read while it is being made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from column_rows import Chunk, chunks_of
from unit.spark_bridge.chunks import Sent, chunk_of

from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.resources import ranges as ranges_module
from warren.mgmt_plugin.resources.data_port import answer_of
from warren.mgmt_plugin.resources.ranges import SnapshotRanges, Wanted
from warren.server.copies.snapshots import (
    FAILED,
    READY,
    Deleted,
    DiskLow,
    QueueGone,
    Snapshot,
    SnapshotChunk,
    SnapshotError,
)

EVERYTHING = Wanted(True, True)
MOST = 50


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    path = tmp_path / "file"
    path.touch()
    return Snapshot("1", "/", "q", "id", "guest", cast(Any, None), path, 0, 60.0, 60_000, MOST, 100)


def write(snapshot: Snapshot, count: int) -> None:
    """Add a chunk of `count` rows."""
    first = snapshot.written
    data = chunk_of([Sent(first + number, b"%d" % (first + number)) for number in range(count)])
    position = snapshot.path.stat().st_size
    with snapshot.path.open("ab") as file:
        file.write(data)
    snapshot.count += count
    snapshot.add_chunk(SnapshotChunk(first, first + count, position, len(data), 100 * count))


async def answer(snapshot: Snapshot, first: int, end: int = MOST) -> tuple[list[Chunk], int]:
    """Return what one request gets."""
    pieces, at = await answer_of(SnapshotRanges(snapshot), first, end, EVERYTHING, lambda size: None)
    return chunks_of(b"".join(pieces)), at


def test_written_rows_come_at_once_and_the_next_request_waits(snapshot: Snapshot) -> None:
    write(snapshot, 10)
    write(snapshot, 5)

    async def read() -> None:
        chunks, at = await answer(snapshot, 0)
        assert [(each.first, each.end) for each in chunks] == [(0, 10), (10, 15)] and at == 15
        chunks, at = await answer(snapshot, 12)
        assert [row.offset for row in chunks[0].rows] == list(range(10, 15)) and at == 15
        async with trio.open_nursery() as nursery:
            got: list[int] = []

            async def later() -> None:
                chunks, at = await answer(snapshot, 17)
                got.append(at)
                assert [row.offset for row in chunks[0].rows] == [17, 18]

            nursery.start_soon(later)
            await trio.testing.wait_all_tasks_blocked()
            write(snapshot, 2)  # not yet what is waited for
            await trio.testing.wait_all_tasks_blocked()
            assert not got
            write(snapshot, 2)
        assert got == [19]

    trio.run(read)


def test_a_complete_one_says_that_the_missing_rows_were_never_there(snapshot: Snapshot) -> None:
    write(snapshot, 10)
    snapshot.end_as(READY)

    async def read() -> None:
        chunks, at = await answer(snapshot, 0)
        assert [(each.first, each.end, len(each.rows)) for each in chunks] == [(0, 10, 10), (10, MOST, 0)]
        assert at == MOST
        chunks, at = await answer(snapshot, 20, 30)
        assert [(each.first, each.end, each.rows) for each in chunks] == [(20, 30, [])] and at == 30
        bounds, sizes = await SnapshotRanges(snapshot).cut(0, MOST, 500)
        assert bounds == [0, 10, MOST] and len(sizes) == 2

    trio.run(read)


def test_rows_that_do_not_come_for_a_while_are_asked_for_again(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges_module, "PROGRESS_S", 0.0)
    write(snapshot, 10)
    assert trio.run(answer, snapshot, 10) == ([], 10)


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (DiskLow("the disk is low"), 507, "disk_low"),
        (QueueGone("gone"), 404, "no_queue"),
        (Deleted("deleted"), 404, "no_snapshot"),
    ],
)
def test_one_that_fails_cannot_be_read_and_wakes_its_readers(
    snapshot: Snapshot, error: SnapshotError, status: int, word: str
) -> None:
    write(snapshot, 10)

    async def read() -> None:
        async def refused(first: int) -> None:
            with pytest.raises(HttpError) as refusal:
                await answer(snapshot, first)
            assert (refusal.value.status, refusal.value.error) == (status, word)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, 10)
            await trio.testing.wait_all_tasks_blocked()
            snapshot.error = error
            snapshot.end_as(FAILED)
        await refused(0)

    trio.run(read)


def test_a_plan_cuts_where_chunks_are_and_the_rest_evenly(snapshot: Snapshot) -> None:
    snapshot.most = 100_000
    write(snapshot, 10)
    write(snapshot, 10)

    async def plan() -> None:
        bounds, sizes = await SnapshotRanges(snapshot).cut(0, 100_000, 1000)
        assert bounds[:3] == [0, 10, 20] and bounds[-1] == 100_000
        assert len(sizes) == len(bounds) - 1 and 10 < len(sizes) < 50

    trio.run(plan)
