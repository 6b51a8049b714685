"""Files that others write and a commit of them make the table that `append` makes. table (4); delta_files (1), (2)."""

from __future__ import annotations

import json
import math
import pickle
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from warren.lake.delta_files import TEXT_MAX, Statistics
from warren.lake.object_stores import with_environment
from warren.lake.options import NO_PARTITIONS, TableOptions
from warren.lake.table import Table, Written
from warren.lake.table_errors import Conflict

from .conftest import Delta, Iceberg, OpenTable
from .test_tables import DAY_S, KEYS, SCHEMA, files_in, grown_old, marks, offsets, rows


def sent(table: Table, some: pa.Table) -> list[Written]:
    """Return files that were written somewhere else."""
    writer = pickle.loads(pickle.dumps(table.writer()))
    found: list[Written] = pickle.loads(pickle.dumps(writer.write(some)))
    return found


def test_files_and_marks_are_one_commit(opened: OpenTable) -> None:
    table, other = opened(SCHEMA), opened()
    table.load(KEYS)
    table.append(SCHEMA.empty_table(), marks(1, 0))
    files = [*sent(table, rows(0, 2)), *sent(table, rows(2, 3)), *sent(table, rows(3, 3))]
    other.load(KEYS)
    table.add(files, marks(1, 3))
    assert table.marks() == marks(1, 3)
    with pytest.raises(Conflict):
        other.add(files, marks(1, 3))
    table.add([], marks(1, 4))
    table.append(rows(4, 5), marks(1, 5))
    other.load(KEYS)
    assert other.marks() == marks(1, 5) and other.columns() == table.columns()
    assert offsets(opened) == [0, 1, 2, 4]
    found = opened.rows().sort_by("offset").to_pylist()
    assert [(row["body"], row["priority"], row["headers"]) for row in found[:3]] == [
        (b"%d" % number, None, [("k", "v")]) for number in range(3)
    ]


@pytest.mark.parametrize("options", [TableOptions(), TableOptions(partition_by=NO_PARTITIONS)])
def test_no_reader_can_tell_who_has_written_a_file(on_disk: OpenTable, options: TableOptions) -> None:
    table = on_disk(SCHEMA, options)
    table.load(KEYS)
    table.append(rows(0, 3), marks(1, 3))
    before = said_of_files(on_disk)
    table.add(sent(table, rows(0, 3)), marks(1, 6))
    both = said_of_files(on_disk)
    assert len(both) == 2 * len(before) and all(both.count(each) == 2 for each in before)


def said_of_files(opened: OpenTable) -> list[Any]:
    """Return what a table says of each of its files, but for names, sizes and times."""
    if isinstance(opened, Iceberg):
        files = [task.file for task in opened.catalog().load_table("shop.orders").scan().plan_files()]
        return [
            (
                *(str(file.partition), file.record_count, dict(file.null_value_counts), dict(file.value_counts)),
                *(dict(file.lower_bounds), dict(file.upper_bounds), file.spec_id, file.sort_order_id),
                "/data/warren-1/" in file.file_path,
            )
            for file in files
        ]
    assert isinstance(opened, Delta)
    found = []
    for path in Path(opened.place, "_delta_log").glob("*.json"):
        for line in map(json.loads, path.read_text().splitlines()):
            if "add" in line:
                each = line["add"]
                found.append(
                    (each["partitionValues"], json.loads(each["stats"].replace(".000Z", "Z")), each["dataChange"])
                )
    return found


def test_files_that_nobody_adds_are_deleted_or_found_as_waste(on_disk: OpenTable, tmp_path: Path) -> None:
    table = on_disk(SCHEMA)
    table.load(KEYS)
    table.append(rows(0, 2), marks(1, 2))
    before = files_in(tmp_path)
    writer = table.writer()
    files = writer.write(rows(2, 4))
    writer.delete(files)
    writer.delete(files)
    assert files_in(tmp_path) == before
    left = writer.write(rows(2, 4))
    grown_old(files_in(tmp_path), 8 * DAY_S)
    assert table.maintain(time.time()).orphans == len(left) == 2
    assert files_in(tmp_path) - before <= {path for path in files_in(tmp_path) if path.suffix == ".avro"}
    assert offsets(on_disk) == [0, 1]


def test_a_writer_knows_nothing_of_a_catalogue(iceberg: Iceberg) -> None:
    table = iceberg(SCHEMA)
    table.load(KEYS)
    table.append(SCHEMA.empty_table(), marks(1, 0))
    assert b"catalog.db" not in pickle.dumps(table.writer())


def statistics_of(rows: pa.Table) -> dict[str, Any]:
    found = Statistics(rows.schema)
    found.add(rows)
    return found.document()


def test_statistics_are_right_or_not_there() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    found = statistics_of(
        pa.table(
            {
                "long": pa.array([3, None, 1], pa.int64()),
                "double": [1.5, math.nan, 0.0],
                "infinite": [1.5, math.inf, 0.0],
                "short": ["b", "a", None],
                "text": ["b", "x" * (TEXT_MAX + 1), None],
                "at": pa.array([moment, None, None], pa.timestamp("us", "UTC")),
                "far": pa.array([2**62, None, None], pa.timestamp("us", "UTC")),
                "day": pa.array([date(2026, 1, 2), date(1, 1, 1), None], pa.date32()),
                "flag": [True, False, None],
                "raw": [b"a", b"b", None],
                "none": pa.nulls(3, pa.string()),
                "map": pa.array([[("k", "v")], None, None], pa.map_(pa.string(), pa.string())),
            }
        )
    )
    assert found["numRecords"] == 3
    at = "2026-01-02T03:04:05.678Z"
    assert found["minValues"] == {"long": 1, "short": "a", "at": at, "day": "0001-01-01", "flag": False}
    assert found["maxValues"] == {"long": 3, "short": "b", "at": at, "day": "2026-01-02", "flag": True}
    assert found["nullCount"]["none"] == 3 and found["nullCount"]["long"] == 1 and "map" not in found["nullCount"]
    wide = statistics_of(pa.table({f"c{number}": [number] for number in range(40)}))
    assert len(wide["minValues"]) == len(wide["nullCount"]) == 32


def test_other_machines_are_told_where_a_store_is_and_not_who_asks() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://store", "AWS_REGION": "here", "AWS_SECRET_ACCESS_KEY": "secret"}
    told = {"AWS_ENDPOINT_URL": "http://store", "AWS_DEFAULT_REGION": "here"}
    assert with_environment("s3://lake/orders", {"k": "v"}, environment) == {"k": "v", **told}
    given = {"Endpoint": "http://other", "AWS_REGION": "there"}
    assert with_environment("s3://lake/orders", given, environment) == given
    assert with_environment("file:///lake/orders", {}, environment) == {}
