"""The judge of the kills finds each fault that is planted, and accepts what a right pipeline may leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .flows import DELTA, PARQUET, Flow
from .ledger import Ledger, Row, Verdict, body_of, maybe_number
from .tables import Table, rows_of

SEED = 7
COUNT = 20
Rows = list[Row]


@pytest.fixture
def ledger() -> Ledger:
    """Twenty messages of a queue and of a stream, all of them confirmed but one of the queue."""
    made = Ledger(SEED)
    for source in ("queue", "stream"):
        for _ in range(COUNT):
            number, _ = made.next(source)
            if (source, number) != ("queue", 5):
                made.confirm(source, number)
    return made


def bodies(source: str) -> Rows:
    return [Row(body_of(SEED, source, number), number) for number in range(COUNT)]


STREAM = {row.offset: row.body for row in bodies("stream") if row.offset is not None}


def removed(rows: Rows) -> Rows:
    return rows[:3] + rows[4:]


def doubled(rows: Rows) -> Rows:
    return [*rows, rows[3]]


def changed(rows: Rows) -> Rows:
    return [*rows[:3], rows[3]._replace(body=rows[3].body[:-1] + b"x"), *rows[4:]]


def swapped(rows: Rows) -> Rows:
    return [*rows[:3], rows[3]._replace(body=rows[4].body), rows[4]._replace(body=rows[3].body), *rows[5:]]


def invented(rows: Rows) -> Rows:
    source = rows[0].body.split()[0].decode()
    return [*rows, Row(body_of(SEED, source, COUNT), COUNT)]


def of_another_source(rows: Rows) -> Rows:
    return [*rows, Row(body_of(SEED, "elsewhere", 3), COUNT)]


RIGHT = Verdict(rows=COUNT)
FAULTS: list[tuple[Callable[[Rows], Rows], Verdict]] = [
    (removed, replace(RIGHT, rows=COUNT - 1, lost=1)),
    (doubled, replace(RIGHT, rows=COUNT + 1, doubled=1)),
    (changed, replace(RIGHT, wrong=1, lost=1)),
    (invented, replace(RIGHT, rows=COUNT + 1, extra=1)),
    (of_another_source, replace(RIGHT, rows=COUNT + 1, wrong=1)),
]


@pytest.mark.parametrize(("fault", "verdict"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_fault_is_found_in_what_was_drained_and_in_what_was_streamed(
    ledger: Ledger, fault: Callable[[Rows], Rows], verdict: Verdict
) -> None:
    assert ledger.judge("queue", fault(bodies("queue"))) == verdict
    assert ledger.judge("stream", fault(bodies("stream")), stream=STREAM) == verdict


def test_two_rows_that_have_each_other_s_offsets_are_wrong(ledger: Ledger) -> None:
    assert ledger.judge("stream", swapped(bodies("stream")), stream=STREAM) == replace(RIGHT, wrong=2, lost=2)


def test_what_was_never_confirmed_may_be_there_once_or_not_at_all(ledger: Ledger) -> None:
    rows = bodies("queue")
    assert ledger.judge("queue", rows).is_right
    assert ledger.judge("queue", rows[:5] + rows[6:]).is_right
    assert ledger.judge("queue", [*rows, rows[5]]).doubled == 1


def test_what_waits_in_the_queue_is_not_lost_and_not_there_twice(ledger: Ledger) -> None:
    rows = bodies("queue")
    rest = [row.body for row in rows[12:]]
    assert ledger.judge("queue", rows[:12], left=rest) == Verdict(rows=12, left=8)
    assert ledger.judge("queue", rows[:13], left=rest) == Verdict(rows=13, left=8, doubled=1)
    assert ledger.judge("queue", rows[:12], left=[*rest, b"damaged"]) == Verdict(rows=12, left=9, wrong=1)


def test_a_body_says_which_message_it_is_or_that_it_is_none() -> None:
    whole = body_of(SEED, "queue", 3)
    assert maybe_number("queue", whole) == 3
    assert maybe_number("stream", whole) is None
    assert all(maybe_number("queue", whole[:at] + b"?" + whole[at + 1 :]) is None for at in range(len(whole)))
    assert [maybe_number("queue", body) for body in (b"", b" ", whole[:-1], whole + b" ")] == [None] * 4


# --- in the files of tables -----------------------------------------------------------------------------------------


def parquet_sink(directory: Path, rows: Rows) -> Callable[[], Rows]:
    """As Spark leaves it: files, of which the log of the sink names some."""
    from pyarrow import parquet

    flow = Flow("flow", "stream", PARQUET, directory)
    (flow.table / "_spark_metadata").mkdir(parents=True)
    parquet.write_table(arrow(rows), flow.table / "part-1.parquet")
    parquet.write_table(arrow(bodies("stream")), flow.table / "part-2.parquet")  # of a try that was killed
    (flow.table / "_spark_metadata" / "0").write_text(f'v1\n{{"path":"file://{flow.table}/part-1.parquet"}}')
    return lambda: list(flow.rows())


def delta_sink(directory: Path, rows: Rows) -> Callable[[], Rows]:
    deltalake = pytest.importorskip("deltalake")
    flow = Flow("flow", "stream", DELTA, directory)
    deltalake.write_deltalake(str(flow.table), arrow(rows[:9]))
    deltalake.write_deltalake(str(flow.table), arrow(rows[9:]), mode="append")
    return lambda: list(flow.rows())


def delta_table(directory: Path, rows: Rows) -> Callable[[], Rows]:
    deltalake = pytest.importorskip("deltalake")
    table = Table("table", "delta", "stream", str(directory / "delta"))
    deltalake.write_deltalake(table.to, arrow(rows))
    return lambda: list(rows_of(table, {}, {}))


def iceberg_table(directory: Path, rows: Rows) -> Callable[[], Rows]:
    pytest.importorskip("pyiceberg_core")
    from pyiceberg.catalog import load_catalog

    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}
    found = load_catalog("main", **catalog)
    found.create_namespace("shop")
    found.create_table("shop.events", arrow(rows).schema).append(arrow(rows))
    table = Table("table", "iceberg", "stream", "shop.events", "main")
    return lambda: list(rows_of(table, {"main": catalog}, {}))


def arrow(rows: Rows) -> Any:
    import pyarrow as pa

    return pa.table({"offset": pa.array([row.offset for row in rows], pa.int64()), "body": [row.body for row in rows]})


@pytest.mark.parametrize("make", [parquet_sink, delta_sink, delta_table, iceberg_table])
@pytest.mark.parametrize(("fault", "verdict"), [(list, RIGHT), *FAULTS], ids=lambda each: getattr(each, "__name__", ""))
def test_a_fault_is_found_in_a_table(
    ledger: Ledger,
    tmp_path: Path,
    make: Callable[[Path, Rows], Callable[[], Rows]],
    fault: Callable[[Rows], Rows],
    verdict: Verdict,
) -> None:
    read = make(tmp_path, fault(bodies("stream")))
    assert ledger.judge("stream", read(), stream=STREAM) == verdict
