"""The files of sealed streams on a disk that loses what was not synced: replacing them, and whole lives.

In parentheses: the invariants in the header of ``msgstore/files/sealed_files.py``.
"""

from __future__ import annotations

from random import Random

import pytest
from simulation.simulated_file_system import SimulatedFileSystem
from unit.msgstore.sealed_disk import (
    Q,
    Stream,
    bodies_of,
    bounds,
    chunk_of,
    opened,
    read,
    rows_of,
    same,
)

from warren.msgstore.files.sealed_files import STREAMS
from warren.msgstore.log.columns import ColumnsWriter, maybe_head
from warren.msgstore.log.jobs import SealJob
from warren.msgstore.log.message import build_message
from warren.msgstore.log.sealed_table import SealedSegment, SealedTable

# --- replacing --------------------------------------------------------------------------------------------------------


def replacement(stream: Stream, firsts: list[int], end: int, kept: list[int]) -> SealJob:
    """Return a job that writes a file to replace some segments: with the offsets `kept`."""
    writer = ColumnsWriter(compacted=True)
    for offset in kept:
        writer.add(offset, build_message(Q, b"\0\0", stream.body_at(offset), 0, True), False)
    job = SealJob(stream.id, firsts[0], 0, writer.finish(firsts[0], end))
    job.is_replacement = True
    return job


def test_segments_are_replaced_in_one_step_or_not_at_all() -> None:
    """(4)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    for _ in range(4):
        stream.seal(3, begins=True)
    before = rows_of(store, 7, stream.table)
    kept = [1, 5, 8]
    after = {offset: before[offset] for offset in [*kept, 9, 10, 11]}
    seen: list[list[int]] = []

    def look(event: str) -> None:
        for state in fs.crash_states(len(seen), 8):
            again, found = opened(state)
            rows = rows_of(again, 7, found.tables[7])
            assert (found.problems, found.tables[7].end) == ([], 12)
            assert rows in (before, after), event
            assert not any(name.endswith(".new") for name in state.names(STREAMS))
            seen.append(list(rows))

    fs.on_operation = look
    replacement(stream, [0, 3, 6], 9, kept).carry_out(store)
    store.swap_sealed(7, [0, 3, 6])
    fs.on_operation = None
    assert list(before) in seen and list(after) in seen
    look("at the end")
    assert seen[-1] == list(after), "it is durable"
    assert set(fs.open_paths()) == {"streams/0000000007-00000000000000000009"}
    made = opened(fs)[1].tables[7]
    assert bounds(made) == [[(0, 9)], [(9, 12)]]


def test_a_read_that_comes_after_a_swap_finds_the_new_file() -> None:
    """(4)"""
    store, _ = opened(SimulatedFileSystem())
    stream = Stream(store)
    stream.seal(3, begins=True)
    stream.seal(3, begins=True)
    assert len(rows_of(store, 7, stream.table)) == 6
    job = replacement(stream, [0], 3, [2])
    job.carry_out(store)
    store.swap_sealed(7, [0])
    assert bodies_of(read(store, 7, 0, chunk_of(job))) == stream.body_at(2)


def test_a_replacement_that_is_given_up_leaves_nothing() -> None:
    """(4)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(3, begins=True)
    stream.seal(3, begins=True)
    replacement(stream, [0], 3, [2]).carry_out(store)
    store.unmake_sealed(7, 0)
    assert fs.names(STREAMS) == ["0000000007-00000000000000000000", "0000000007-00000000000000000003"]
    assert fs.open_paths() == [stream.path(1)]
    replacement(stream, [0], 3, [2]).carry_out(store)
    stream.drop_oldest()
    store.unmake_sealed(7, 0)
    assert fs.names(STREAMS) == ["0000000007-00000000000000000003"], "nor when retention is quicker"
    assert fs.open_paths() == [stream.path(0)]


# --- power cuts -------------------------------------------------------------------------------------------------------


class Life:
    """Two streams that are sealed, cut and replaced at random, with a power cut at every moment.

    `kept`: the reported messages of each, by offset, that were not given up since; `ever`: all messages ever meant to
    be sealed.
    """

    def __init__(self, seed: int, states: int) -> None:
        self.random = Random(seed)
        self.fs = SimulatedFileSystem()
        self.store, _ = opened(self.fs)
        self.streams = [Stream(self.store, 7, self.random.randbytes(90)), Stream(self.store, 8)]
        self.kept: dict[int, dict[int, bytes]] = {7: {}, 8: {}}
        self.ever: dict[int, dict[int, bytes]] = {7: {}, 8: {}}
        self.reached = {7: 0, 8: 0}
        self.looked = 0
        self._states = states
        self.fs.on_operation = self.look

    def look(self, event: str) -> None:
        """Cut the power: reported segments are there, whole, and all others were planned."""
        for state in [*self.fs.crash_states(self.random.getrandbits(32), self._states), self.fs.kill9()]:
            self.looked += 1
            self.judge(state, event)

    def judge(self, state: SimulatedFileSystem, event: str) -> None:
        store, found = opened(state)
        for stream in self.streams:
            table = found.tables.get(stream.id, SealedTable())
            rows = rows_of(store, stream.id, table)
            assert rows.items() >= self.kept[stream.id].items(), event
            assert rows.items() <= self.ever[stream.id].items(), event
            assert table.end >= self.reached[stream.id]
            assert int(table.count) == len(rows)
            # Torn or leftover files do not get in the way of the next life.
            next_life = Stream(store, stream.id, b"next life ")
            next_life.table = table
            next_life.seal(2, begins=not table.segments or self.random.random() < 0.3)
            assert len(rows_of(store, stream.id, table)) == len(rows) + 2
        # A second power cut finds what the first one had left.
        (after,) = state.crash_states(0, 1)
        _, again = opened(after)
        for stream in self.streams:
            if stream.id in found.tables:
                assert same(again.tables[stream.id], found.tables[stream.id])

    def step(self) -> None:
        stream = self.random.choice(self.streams)
        segments = stream.table.segments
        kind = self.random.choices(("seal", "drop", "replace", "restart"), (6, 1, 2, 1))[0]
        if kind == "seal":
            job = stream.job(self.random.randrange(1, 6), begins=self.random.random() < 0.4)
            first = int(stream.table.end)
            rows = {offset: stream.body_at(offset) for offset in range(first, first + int(_count_of(job)))}
            self.ever[stream.id] |= rows
            job.carry_out(self.store)
            stream.enter(job)
            self.kept[stream.id] |= rows
            self.reached[stream.id] = int(stream.table.end)
        elif kind == "drop" and len(segments) > 1:
            end = int(segments[0].end)
            self.kept[stream.id] = {at: body for at, body in self.kept[stream.id].items() if at >= end}
            stream.drop_oldest()
        elif kind == "replace" and len(segments) > 1:
            self.replace(stream, self.random.randrange(1, len(segments)))
        elif kind == "restart":
            self.store.close()
            self.store, found = opened(self.fs)
            for each in self.streams:
                each.store = self.store
                assert same(found.tables.get(each.id, SealedTable()), each.table)

    def replace(self, stream: Stream, count: int) -> None:
        old = stream.table.segments[:count]
        firsts = [int(segment.first) for segment in old]
        end = int(old[-1].end)
        rows = self.kept[stream.id]
        stays = [offset for offset in rows if offset < end and self.random.random() < 0.5]
        for offset in [offset for offset in rows if offset < end and offset not in stays]:
            del rows[offset]
        job = replacement(stream, firsts, end, stays)
        job.carry_out(self.store)
        made = SealedSegment(firsts[0])
        made.add(chunk_of(job))
        assert stream.table.replace(old, made)
        self.store.swap_sealed(stream.id, firsts)


def _count_of(job: SealJob) -> int:
    head = maybe_head(bytes(job.columns.encode()[0]))
    assert head is not None
    return int(head.count)


@pytest.mark.parametrize("seed", range(6))
def test_after_any_power_cut_what_was_reported_is_there_and_nothing_half(seed: int) -> None:
    """(1), (2), (4)"""
    life = Life(seed, states=3)
    for _ in range(10):
        life.step()
    assert life.looked > 50
