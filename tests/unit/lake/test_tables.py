"""All tables. table (1) to (3); iceberg_table (1) to (5); delta_table (1) to (5), (7); orphans (1) to (3)."""

from __future__ import annotations

import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warren.lake import kinds
from warren.lake.decoder import message_schema
from warren.lake.marks import Place, keys_of, marks_of, places_of
from warren.lake.options import NO_PARTITIONS, TableOptions
from warren.lake.table import Change, with_columns
from warren.lake.table_errors import Conflict, NotOurs

from .conftest import Delta, Iceberg, OpenOnDisk, OpenTable

SCHEMA = message_schema(["queue", "partition", "offset", "timestamp", "body", "priority", "headers"])
KEYS = keys_of(["orders"])
DAY_US = 86_400_000_000


def rows(first: int, end: int, schema: pa.Schema = SCHEMA, **more: Any) -> pa.Table:
    """Return rows of the offsets [first, end), a day after the other."""
    numbers = range(first, end)
    found = pa.table(
        {
            "queue": ["orders"] * len(numbers),
            "partition": pa.array([0] * len(numbers), pa.int32()),
            "offset": pa.array(numbers, pa.int64()),
            "timestamp": pa.array([number * DAY_US for number in numbers], pa.timestamp("us", tz="UTC")),
            "body": [b"%d" % number for number in numbers],
            "headers": pa.array([[("k", "v")]] * len(numbers), SCHEMA.field("headers").type),
            **more,
        }
    )
    return with_columns(found, schema)


def marks(epoch: int, next: int) -> dict[str, int]:
    return {"epoch": epoch, "source": 2**63 - 1, **marks_of({"orders": Place(7, next)})}


def offsets(opened: OpenTable) -> list[int]:
    return sorted(opened.rows().column("offset").to_pylist())


def test_rows_and_marks_are_one_commit(opened: OpenTable) -> None:
    table = opened(SCHEMA)
    table.load(KEYS)
    assert table.marks() == {}
    table.append(SCHEMA.empty_table(), marks(1, 0))
    table.append(rows(0, 3), marks(1, 3))
    assert table.marks() == marks(1, 3)
    other = opened()
    other.load(KEYS)
    assert other.marks() == marks(1, 3) and places_of(other.marks()) == {"orders": Place(7, 3)}
    assert other.columns().names == SCHEMA.names
    assert [other.columns().field(name).type for name in SCHEMA.names] == [field.type for field in SCHEMA]
    found = opened.rows().sort_by("offset").to_pylist()
    assert [(row["offset"], row["body"], row["priority"], row["headers"]) for row in found] == [
        (number, b"%d" % number, None, [("k", "v")]) for number in range(3)
    ]


def test_a_table_that_somebody_else_has_changed_takes_nothing(opened: OpenTable) -> None:
    first = opened(SCHEMA)
    second = opened(SCHEMA)
    for table in (first, second):
        table.load(KEYS)
    first.append(rows(0, 2), marks(1, 2))
    for _ in range(2):
        with pytest.raises(Conflict):
            second.append(rows(0, 2), marks(1, 2))
    second.load(KEYS)
    assert second.marks() == marks(1, 2)
    second.append(rows(2, 3), marks(1, 3))
    with pytest.raises(Conflict):
        first.append(rows(2, 3), marks(1, 3))
    assert offsets(opened) == [0, 1, 2]


def test_a_commit_of_another_program_is_a_conflict_as_well(on_disk: OpenTable) -> None:
    table = on_disk(SCHEMA)
    table.load(KEYS)
    table.append(rows(0, 2), marks(1, 2))
    if isinstance(on_disk, Iceberg):
        on_disk.catalog().load_table("shop.orders").delete("offset == 0")
    else:
        from deltalake import DeltaTable

        assert isinstance(on_disk, Delta)
        DeltaTable(on_disk.place).delete("offset = 0")
    with pytest.raises(Conflict):
        table.append(rows(2, 3), marks(1, 3))
    table.load(KEYS)
    assert table.marks() == marks(1, 2)
    table.append(rows(2, 3), marks(1, 3))
    assert offsets(on_disk) == [1, 2]


def test_columns_come_with_the_rows_that_have_them(opened: OpenTable) -> None:
    table = opened(SCHEMA)
    table.load(KEYS)
    table.append(rows(0, 1), marks(1, 1))
    changes = [Change(f"a_{kind}", kind, True) for kind in kinds.ARROW]
    schema = pa.schema([*SCHEMA, *(pa.field(f"a_{kind}", each) for kind, each in kinds.ARROW.items())])
    added = {f"a_{kind}": pa.nulls(1, each) for kind, each in kinds.ARROW.items()}
    table.append(rows(1, 2, schema, **(added | {"a_long": [5], "a_string": ["x"]})), marks(1, 2), changes)
    other = opened()
    other.load(KEYS)
    assert other.columns() == table.columns()
    assert [kinds.kind_of_type(other.columns().field(f"a_{kind}").type) for kind in kinds.ARROW] == list(kinds.ARROW)
    found = opened.rows().sort_by("offset").to_pylist()
    assert [(row["a_long"], row["a_string"]) for row in found] == [(None, None), (5, "x")]


def test_a_change_that_does_not_come_through_changes_nothing(opened: OpenTable) -> None:
    first, second = opened(SCHEMA), opened(SCHEMA)
    second.load(KEYS)
    first.load(KEYS)
    first.append(rows(0, 1), marks(1, 1))
    schema = SCHEMA.append(pa.field("n", pa.int64()))
    with pytest.raises(Conflict):
        second.append(rows(0, 1, schema, n=[1]), marks(1, 1), [Change("n", kinds.LONG, True)])
    second.load(KEYS)
    assert "n" not in second.columns().names


def test_small_files_become_large_ones_and_no_row_is_another(on_disk: OpenTable, tmp_path: Path) -> None:
    options = TableOptions(partition_by=NO_PARTITIONS, compact_files=3, keep_s=0.0)
    table = on_disk(SCHEMA, options)
    table.load(KEYS)
    for number in range(5):
        table.append(rows(number, number + 1), marks(1, number + 1))
    before = on_disk.rows().sort_by("offset").to_pylist()
    kept = table.maintain(time.time() + 60)
    assert (kept.rewritten, kept.written) == (5, 1)
    assert on_disk.rows().sort_by("offset").to_pylist() == before
    assert table.marks() == marks(1, 5)
    table.append(rows(5, 6), marks(1, 6))
    kept = table.maintain(time.time() + 60)
    assert kept.rewritten == 0
    assert offsets(on_disk) == list(range(6))
    # Nothing but what is in the table is left on the disk.
    assert sum(pq.read_metadata(path).num_rows for path in tmp_path.rglob("*.parquet")) == 6


def test_small_files_of_other_days_stay_apart(on_disk: OpenTable, tmp_path: Path) -> None:
    table = on_disk(SCHEMA, TableOptions(compact_files=3, keep_s=0.0))
    table.load(KEYS)
    for number in range(4):
        table.append(pa.concat_tables([rows(0, 2)]), marks(1, number + 1))
    kept = table.maintain(time.time() + 60)
    assert (kept.rewritten, kept.written) == (8, 2)
    table.load(KEYS)
    assert table.marks() == marks(1, 4)
    table.maintain(time.time() + 60)
    days = {path.parent.name for path in tmp_path.rglob("*.parquet")}
    assert days == {"publish_date=1970-01-01", "publish_date=1970-01-02"}
    assert offsets(on_disk) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_table_of_another_program_is_refused(opened: OpenTable) -> None:
    table = opened(SCHEMA)
    if isinstance(opened, Iceberg):
        opened.catalog().load_table("shop.orders").append(rows(0, 1))
    elif isinstance(opened, Delta):
        from deltalake import write_deltalake

        with_day = rows(0, 1).append_column("publish_date", pa.array(["1970-01-01"]))
        write_deltalake(opened.place, with_day, mode="append")
    else:
        table.append(rows(0, 1), {})
    table.load(KEYS)
    with pytest.raises(NotOurs):
        table.marks()


# --- Iceberg ---------------------------------------------------------------------------------------------------------


def test_marks_outlive_commits_of_others_and_their_expiry(iceberg: Iceberg) -> None:
    table = iceberg(SCHEMA)
    table.load(KEYS)
    table.append(rows(0, 2), marks(1, 2))
    theirs = iceberg.catalog().load_table("shop.orders")
    theirs.delete("offset == 0")
    table.load(KEYS)
    assert table.marks() == marks(1, 2)
    table.maintain(0.0)
    theirs.refresh()
    from datetime import datetime, timedelta

    theirs.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    table = iceberg()
    table.load(KEYS)
    assert table.marks() == marks(1, 2)


def test_a_table_that_is_taken_back_takes_its_marks_back(iceberg: Iceberg) -> None:
    table = iceberg(SCHEMA)
    table.load(KEYS)
    table.append(rows(0, 2), marks(1, 2))
    theirs = iceberg.catalog().load_table("shop.orders")
    was = theirs.current_snapshot().snapshot_id
    table.append(rows(2, 4), marks(1, 4))
    theirs.refresh()
    theirs.manage_snapshots().rollback_to_snapshot(was).commit()
    table.load(KEYS)
    assert table.marks() == marks(1, 2)
    assert offsets(iceberg) == [0, 1]


def test_no_commit_is_tried_again_whatever_the_table_says(iceberg: Iceberg) -> None:
    iceberg(SCHEMA)
    theirs = iceberg.catalog().load_table("shop.orders")
    with theirs.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "10", "commit.retry.min-wait-ms": "1"})
    first, second = iceberg(), iceberg()
    for table in (first, second):
        table.load(KEYS)
    first.append(rows(0, 0), marks(1, 0))
    with pytest.raises(Conflict):
        second.append(rows(0, 2), marks(1, 2))
    assert offsets(iceberg) == []
    theirs.refresh()
    assert theirs.properties["commit.retry.num-retries"] == "10"


def test_what_old_snapshots_have_in_common_with_a_tagged_one_stays(iceberg: Iceberg) -> None:
    table = iceberg(SCHEMA, TableOptions(partition_by=NO_PARTITIONS, compact_files=3, keep_s=0.0))
    table.load(KEYS)
    for number in range(6):
        table.append(rows(number, number + 1), marks(1, number + 1))
        if number in (1, 2):  # the second one has a kept parent and a child that goes
            theirs = iceberg.catalog().load_table("shop.orders")
            theirs.manage_snapshots().create_tag(theirs.current_snapshot().snapshot_id, f"tag{number}").commit()
            table.load(KEYS)
    assert table.maintain(time.time() + 60).expired
    theirs = iceberg.catalog().load_table("shop.orders")
    for number in (1, 2):
        found = theirs.scan(snapshot_id=theirs.snapshot_by_name(f"tag{number}").snapshot_id).to_arrow()
        assert found.num_rows == number + 1


@pytest.mark.parametrize("seed", range(2))
def test_no_file_is_deleted_that_a_kept_snapshot_needs(iceberg: Iceberg, seed: int) -> None:
    chance = random.Random(seed)
    table = iceberg(SCHEMA, TableOptions(partition_by=NO_PARTITIONS, compact_files=3, keep_s=0.0))
    table.load(KEYS)
    counts: dict[int, int] = {}  # of the rows of each snapshot
    for number in range(14):
        table.load(KEYS)
        table.append(rows(number, number + 1), marks(1, number + 1))
        theirs = iceberg.catalog().load_table("shop.orders")
        found = theirs.current_snapshot().snapshot_id
        counts[found] = theirs.scan().to_arrow().num_rows
        happening = chance.random()
        if happening < 0.3:
            table.maintain(0.0)  # nothing is that old
        elif happening < 0.4:
            theirs.manage_snapshots().create_tag(found, f"tag{number}").commit()
        elif happening < 0.55 and theirs.current_snapshot().parent_snapshot_id:
            theirs.manage_snapshots().rollback_to_snapshot(theirs.current_snapshot().parent_snapshot_id).commit()
        time.sleep(0.002)  # no two snapshots of one millisecond
        if happening > 0.8:
            table.load(KEYS)
            kept = sorted(each.timestamp_ms for each in theirs.snapshots())
            table.maintain(chance.choice(kept) / 1000)
        theirs = iceberg.catalog().load_table("shop.orders")
        for each in theirs.snapshots():
            if each.snapshot_id in counts:
                assert theirs.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows == counts[each.snapshot_id]
    assert len(theirs.snapshots()) < len(counts)


def test_an_integer_becomes_a_long_one(iceberg: Iceberg) -> None:
    narrow = SCHEMA.append(pa.field("n", pa.int32()))
    table = iceberg(narrow)
    table.load(KEYS)
    table.append(rows(0, 1, narrow, n=pa.array([1], pa.int32())), marks(1, 1))
    wide = SCHEMA.append(pa.field("n", pa.int64()))
    table.append(rows(1, 2, wide, n=[2**40]), marks(1, 2), [Change("n", kinds.LONG, False)])
    assert sorted(iceberg.rows().column("n").to_pylist()) == [1, 2**40]


def test_rows_are_found_by_the_day_they_were_published(iceberg: Iceberg) -> None:
    table = iceberg(SCHEMA)
    table.load(KEYS)
    table.append(rows(0, 3), marks(1, 3))
    scan = iceberg.catalog().load_table("shop.orders").scan("timestamp >= '1970-01-03T00:00:00+00:00'")
    assert len(list(scan.plan_files())) == 1
    assert scan.to_arrow().column("offset").to_pylist() == [2]


@pytest.mark.parametrize("moment_us", [1_764_298_800_000 * 1_000_000, -(1 << 62)])
def test_moments_that_python_does_not_know_are_kept(on_disk: OpenTable, moment_us: int) -> None:
    kind = pa.timestamp("us", tz="UTC")
    schema = SCHEMA.append(pa.field("message_timestamp", kind))
    table = on_disk(schema, TableOptions(compact_files=2))
    table.load(KEYS)
    given = rows(0, 1, schema, message_timestamp=pa.array([moment_us], kind))
    table.append(given, marks(1, 1))
    table.append(rows(0, 1, schema), marks(1, 2))
    table.add(table.writer().write(given), marks(1, 3))
    assert table.maintain(time.time()).rewritten == 3
    found = on_disk.rows().column("message_timestamp").cast(pa.int64()).to_pylist()
    assert sorted(found, key=str) == sorted([moment_us, None, moment_us], key=str)


@pytest.mark.parametrize("writes_files", [False, True])
def test_partitions_that_would_have_a_row_twice_are_refused(iceberg: Iceberg, *, writes_files: bool) -> None:
    from pyiceberg.transforms import IdentityTransform

    schema = SCHEMA.append(pa.field("total", pa.float64()))
    iceberg(schema, TableOptions(partition_by=NO_PARTITIONS))
    with iceberg.catalog().load_table("shop.orders").update_spec() as spec:
        spec.add_field("total", IdentityTransform(), "by_total")
    table = iceberg()
    table.load(KEYS)
    whole = rows(0, 2, schema, total=[1.5, 2.5])
    table.append(whole, marks(1, 2))
    zeros = rows(2, 4, schema, total=[0.0, -0.0])
    write = table.writer().write if writes_files else partial(table.append, marks=marks(1, 4))
    with pytest.raises(NotOurs, match="must not be partitioned"):
        write(zeros)
    table.load(KEYS)
    assert table.marks() == marks(1, 2) and offsets(iceberg) == [0, 1]


def test_a_catalogue_whose_file_was_brought_back_is_used_again(iceberg: Iceberg, tmp_path: Path) -> None:
    from sqlalchemy.exc import OperationalError

    table = iceberg(SCHEMA)
    table.load(KEYS)
    table.append(rows(0, 1), marks(1, 1))
    there = tmp_path / "catalog.db"
    backup = there.read_bytes()
    there.unlink()
    there.write_bytes(backup)
    with pytest.raises(OperationalError):
        table.append(rows(1, 2), marks(1, 2))
    table.load(KEYS)
    table.append(rows(1, 2), marks(1, 2))
    assert offsets(iceberg) == [0, 1]


def test_the_name_of_an_iceberg_table_has_a_namespace(iceberg: Iceberg) -> None:
    from warren.lake.iceberg_table import open_table

    with pytest.raises(NotOurs, match=r"NAMESPACE\.TABLE"):
        open_table(iceberg.catalog(), "orders", SCHEMA, TableOptions())


# --- Delta -----------------------------------------------------------------------------------------------------------


def test_marks_are_in_checkpoints(delta: Delta) -> None:
    from deltalake import DeltaTable

    table = delta(SCHEMA)
    table.load(KEYS)
    for number in range(3):
        table.append(rows(number, number + 1), marks(1, number + 1))
    theirs = DeltaTable(delta.place)
    theirs.create_checkpoint()
    for path in Path(delta.place, "_delta_log").glob("*.json"):
        path.unlink()
    table = delta()
    table.load(KEYS)
    assert table.marks() == marks(1, 3)
    assert offsets(delta) == [0, 1, 2]


# --- what the killed leave --------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


def killed(*_: Any, **__: Any) -> None:
    raise Killed


def files_in(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.suffix in (".parquet", ".avro")}


def grown_old(paths: set[Path], age_s: float) -> None:
    for path in paths:
        os.utime(path, (time.time() - age_s,) * 2)


HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def test_what_a_killed_writer_has_left_is_removed_after_a_day(
    iceberg: Iceberg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table import Transaction

    options = TableOptions(keep_s=30 * DAY_S)
    table = iceberg(SCHEMA, options)
    table.load(KEYS)
    table.append(rows(0, 2), marks(1, 2))
    before = files_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", killed)
        with pytest.raises(Killed):
            table.append(rows(2, 4), marks(1, 4))
    left = files_in(tmp_path) - before
    assert {path.suffix for path in left} == {".parquet", ".avro"} and len(left) == 4
    table = iceberg(options=options)
    table.load(KEYS)
    table.append(rows(2, 4), marks(2, 4))
    for each in files_in(tmp_path):
        assert {"warren-1", "warren-2"} & set(each.parts)
    assert table.maintain(time.time()).orphans == 0  # it is too young
    grown_old(files_in(tmp_path), 2 * DAY_S)
    there = files_in(tmp_path)
    assert table.maintain(time.time() + HOUR_S).orphans == 0  # it was looked for an hour ago
    kept = table.maintain(time.time() + DAY_S)
    assert kept.orphans == 4 and there - files_in(tmp_path) == left
    assert offsets(iceberg) == [0, 1, 2, 3]
    assert table.maintain(time.time() + 3 * DAY_S).orphans == 0
    table.append(rows(4, 5), marks(2, 5))
    assert offsets(iceberg) == [0, 1, 2, 3, 4]


def test_what_others_have_left_or_are_about_to_commit_stays(
    iceberg: Iceberg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table import Transaction

    table = iceberg(SCHEMA)
    table.load(KEYS)
    table.append(rows(0, 2), marks(1, 2))
    before = files_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", killed)
        theirs, newer = iceberg.catalog().load_table("shop.orders"), iceberg()
        with pytest.raises(Killed):
            theirs.append(rows(0, 1))
        newer.load(KEYS)
        with pytest.raises(Killed):
            newer.append(rows(2, 3), marks(2, 3))
    assert len(files_in(tmp_path) - before) == 6
    grown_old(files_in(tmp_path), 30 * DAY_S)
    there = files_in(tmp_path)
    assert table.maintain(time.time()).orphans == 0
    assert files_in(tmp_path) == there


def test_folders_of_writers_that_have_nothing_left_go(iceberg: Iceberg, tmp_path: Path) -> None:
    options = TableOptions(partition_by=NO_PARTITIONS, compact_files=3, keep_s=0.0)
    table = iceberg(SCHEMA, options)
    for epoch in range(1, 5):
        table.load(KEYS)
        table.append(rows(epoch, epoch + 1), marks(epoch, epoch + 1))
    table.maintain(time.time() + DAY_S)
    assert {path.name for path in tmp_path.rglob("warren-*")} >= {"warren-1", "warren-4"}
    table.maintain(time.time() + 3 * DAY_S)
    [data] = tmp_path.rglob("data")
    assert [path.name for path in data.iterdir()] == ["warren-4"]
    assert offsets(iceberg) == [1, 2, 3, 4]


def test_a_commit_that_fails_changes_no_property(iceberg: Iceberg) -> None:
    first, second = iceberg(SCHEMA), iceberg()
    for table in (first, second):
        table.load(KEYS)
    first.append(rows(0, 1), marks(1, 1))
    for _ in range(2):
        with pytest.raises(Conflict):
            second.append(rows(0, 1), marks(1, 1))
    second.load(KEYS)
    second.append(rows(1, 2), marks(1, 2))
    second.maintain(time.time())
    properties = iceberg.catalog().load_table("shop.orders").properties
    assert not {"write.data.path", "write.metadata.path"} & properties.keys()
    [data, *_] = iceberg.catalog().load_table("shop.orders").scan().plan_files()
    assert data.file.file_path.count("warren-1") == 1


def test_files_that_were_merged_stay_for_the_time_that_is_asked_for(on_disk: OpenOnDisk) -> None:
    table = on_disk(SCHEMA, TableOptions(compact_files=2, keep_s=1800.0))
    table.load(KEYS)
    table.append(rows(0, 1), marks(1, 1))
    before = on_disk.rows_of_now()
    table.append(rows(0, 1), marks(1, 2))
    assert table.maintain(time.time()).rewritten == 2
    assert before().num_rows == 1


def test_the_log_of_a_delta_table_forgets_what_was_deleted(delta: Delta) -> None:
    from deltalake import DeltaTable

    for keep_s, hours in ((86_400.0, 25), (86_400.0, 25), (5_400.0, 3)):
        table = delta(SCHEMA, TableOptions(keep_s=keep_s))
        table.load(KEYS)
        table.append(rows(0, 1), marks(1, hours))
        table.maintain(time.time())
        table.load(KEYS)
        assert table.marks() == marks(1, hours)
        said = DeltaTable(delta.place).metadata().configuration
        assert said["delta.deletedFileRetentionDuration"] == f"interval {hours} hours"
        assert said["delta.checkpointInterval"] == "50"


def test_what_is_in_no_version_of_a_delta_table_goes_after_a_week(delta: Delta) -> None:
    table = delta(SCHEMA, TableOptions(partition_by=NO_PARTITIONS))
    table.load(KEYS)
    table.append(rows(0, 2), marks(1, 2))
    [data] = Path(delta.place).glob("*.parquet")
    name = "part-00000-d8b65d01-e3d0-4c8d-a69f-6e59c97cd6bf-c000.zstd.parquet"
    old, young, other = (Path(delta.place, each) for each in (name, name.replace("d8", "d9"), "notes.txt"))
    for path, age_s in ((old, 8 * DAY_S), (young, 6 * DAY_S), (other, 30 * DAY_S), (data, 30 * DAY_S)):
        if path is not data:
            path.write_bytes(b"x")
        grown_old({path}, age_s)
    assert table.maintain(time.time()).orphans == 1
    assert not old.exists() and young.exists() and other.exists() and data.exists()
    assert table.marks() == marks(1, 2) and offsets(delta) == [0, 1]
