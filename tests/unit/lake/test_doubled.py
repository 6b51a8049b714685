"""Rows that are in a table twice are found and taken out, and no others. doubled (1) to (4); delta_table (2), (7)."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pytest

from warren.lake.delta_log import Commit, commit_of, suspects
from warren.lake.doubled import Part, Span, Spans, look, runs_of, take_out
from warren.lake.options import NO_PARTITIONS, TableOptions
from warren.lake.table import Table
from warren.lake.table_errors import Conflict

from .conftest import Delta, OpenOnDisk, OpenTable
from .test_tables import DAY_US, KEYS, SCHEMA, marks, offsets, rows

OPTIONS = TableOptions(partition_by=NO_PARTITIONS, compact_files=2, keep_s=0.0)
OPTIONS_KEEPING = replace(OPTIONS, keep_s=7200.0)
ORDERS = Part("orders", 0)


def filled(opened: OpenTable, options: TableOptions = OPTIONS, count: int = 4) -> Table:
    """Return a table with a commit for each row."""
    table = opened(SCHEMA, options)
    table.load(KEYS)
    for number in range(count):
        table.append(rows(number, number + 1), marks(1, number + 1))
    return table


def loaded(opened: OpenTable) -> Table:
    table = opened(options=OPTIONS)
    table.load(KEYS)
    return table


def maintain(table: Table) -> int:
    return table.maintain(datetime.now().timestamp() + 60).rewritten


@pytest.mark.parametrize("seed", range(5))
def test_spans_are_what_sets_are(seed: int) -> None:
    chance = random.Random(seed)
    spans, numbers = Spans(), set[int]()
    for _ in range(60):
        first = chance.randrange(100)
        span = Span(first, first + chance.randrange(1, 12))
        there = spans.add(span)
        assert {each for part in there for each in range(*part)} == numbers & set(range(*span))
        numbers |= set(range(*span))
        assert [each for part in spans for each in range(*part)] == sorted(numbers)
        inner = set(range(min(numbers), max(numbers)))
        assert {each for part in spans.gaps() for each in range(*part)} == inner - numbers


def test_runs_have_no_holes_and_tell_each_offset_as_often_as_it_is_there() -> None:
    found = list(runs_of([rows(5, 8), rows(0, 2), rows(6, 7)]))
    assert found == [(ORDERS, Span(0, 2)), (ORDERS, Span(5, 7)), (ORDERS, Span(6, 8))]


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_compactions_of_the_same_files_one_is_a_conflict(on_disk: OpenOnDisk, *, is_first: bool) -> None:
    filled(on_disk)
    one, other = loaded(on_disk), loaded(on_disk)
    if not is_first:
        one, other = other, one
    assert maintain(one) == 4
    with pytest.raises(Conflict):
        maintain(other)
    assert offsets(on_disk) == [0, 1, 2, 3]


def test_a_compaction_of_another_program_that_began_before_ours_fails_after_it(delta: Delta) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    table = filled(delta, OPTIONS_KEEPING)
    theirs = DeltaTable(delta.place)
    assert maintain(table) == 4
    with pytest.raises(CommitFailedError):
        theirs.optimize.compact()
    assert offsets(delta) == [0, 1, 2, 3]


def test_after_a_compaction_of_another_program_ours_is_a_conflict(delta: Delta) -> None:
    from deltalake import DeltaTable

    table = filled(delta)
    DeltaTable(delta.place).optimize.compact()
    with pytest.raises(Conflict):
        maintain(table)
    assert offsets(delta) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("is_compacted_again", [True, False])
def test_rows_that_late_compactions_of_others_have_doubled_are_taken_out(
    delta: Delta, *, is_compacted_again: bool, is_restarted: bool
) -> None:
    from deltalake import DeltaTable, write_deltalake

    table = filled(delta)
    before = delta.rows().sort_by("offset")
    theirs = [DeltaTable(delta.place) for _ in range(3)]
    for each in theirs:
        each.optimize.compact()
    if is_compacted_again:
        write_deltalake(delta.place, rows(9, 10), mode="append")
        DeltaTable(delta.place).optimize.compact()
    assert delta.rows().num_rows == 12 + is_compacted_again
    if is_restarted:
        table = loaded(delta)
        table.append(SCHEMA.empty_table(), {**table.marks(), "epoch": 2})  # as a follower that takes over
    table.load(KEYS)
    found = look(table, table.suspects())
    assert take_out(table, found) == 8
    there = delta.rows().sort_by("offset")
    assert there.slice(0, 4).equals(before) and there.num_rows == 4 + is_compacted_again
    table.load(KEYS)
    assert not table.suspects()
    table.append(rows(4, 5), marks(1, 5))
    assert offsets(delta)[:5] == [0, 1, 2, 3, 4]


def test_nothing_is_suspected_where_others_compact_one_after_the_other(delta: Delta) -> None:
    from deltalake import DeltaTable

    table = filled(delta)
    DeltaTable(delta.place).optimize.compact()
    table.load(KEYS)
    assert not table.suspects()
    table.append(rows(4, 5), marks(1, 5))
    DeltaTable(delta.place).optimize.compact()
    DeltaTable(delta.place).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    table.load(KEYS)
    assert not table.suspects()
    assert offsets(delta) == [0, 1, 2, 3, 4]


def test_only_rows_that_are_the_same_are_taken_out(opened: OpenTable) -> None:
    table = opened(SCHEMA, OPTIONS)
    table.load(KEYS)
    table.append(rows(0, 4), marks(1, 4))
    later = pa.array([(number + 1) * DAY_US for number in range(2)], SCHEMA.field("timestamp").type)
    at = SCHEMA.get_field_index("timestamp")
    again = rows(0, 2).set_column(at, SCHEMA.field(at), later)
    table.append(pa.concat_tables([again, rows(2, 4), rows(3, 4)]), marks(1, 4))  # of a stream that was made again
    table.append(rows(8, 9), marks(1, 9))
    table.load(KEYS)
    found = look(table)
    assert found.missing() == {ORDERS: [Span(4, 8)]}
    assert take_out(table, found) == 3
    assert offsets(opened) == [0, 0, 1, 1, 2, 3, 8]
    table.load(KEYS)
    assert take_out(table, look(table)) == 0
    assert table.marks() == marks(1, 9)


def test_what_was_refused_is_not_missing(opened: OpenTable) -> None:
    table = opened(SCHEMA, OPTIONS)
    table.load(KEYS)
    table.append(pa.concat_tables([rows(0, 2), rows(5, 7)]), marks(1, 7))
    table.load(KEYS)
    aside = look(table)
    for span in (Span(2, 4), Span(8, 9)):
        aside.held[ORDERS].add(span)
    assert look(table).missing() == {ORDERS: [Span(2, 5)]}
    assert look(table).missing(aside) == {ORDERS: [Span(4, 5), Span(7, 8)]}


def test_a_commit_is_late_if_it_takes_out_what_is_not_there() -> None:
    said = b'{"commitInfo":{}}\n{"remove":{"path":"a","dataChange":false}}\n\n{"add":{"path":"d"}}\n'
    assert commit_of(7, said) == Commit(7, frozenset("a"), frozenset("d"))

    def commit(version: int, removed: str, added: str) -> Commit:
        return Commit(version, frozenset(removed), frozenset(added))

    first, late = commit(1, "ab", "d"), commit(2, "bc", "e")
    assert suspects([first, commit(2, "c", "e")], lambda: "abc") == frozenset()
    assert suspects([first, late], lambda: "abc") == frozenset("e")
    assert suspects([first, late, commit(3, "", "f"), commit(4, "ef", "g")], lambda: "abc") == frozenset("g")
    assert suspects([commit(1, "", "a")], lambda: pytest.fail("asked")) == frozenset()
