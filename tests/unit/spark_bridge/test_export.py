"""Exports: every row once, whatever happens in between; counts that are compared; directories that are respected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warren.spark_bridge import export_targets, manifest
from warren.spark_bridge.bridge_errors import AnotherQueue, BridgeError, DataLoss, NoSnapshot, UsageError
from warren.spark_bridge.control import Snapshot
from warren.spark_bridge.export import Export, ExportOptions, Planned
from warren.spark_bridge.manifest import Manifest
from warren.spark_bridge.places import Directory, note_at
from warren.spark_bridge.spark_export import SparkExport, SparkTarget
from warren.spark_bridge.table_files import TableFile, Written
from warren.spark_bridge.table_readers import SourceFile, read_pieces

from .broker_in_memory import CHUNK_ROWS, MemoryQueue
from .chunks import Sent
from .export_broker import ExportBroker, Watched
from .killing import Killed, Killer, killed_everywhere

BODY = frozenset({"body", "exchange", "routing_key"})


@pytest.fixture
def broker() -> ExportBroker:
    return ExportBroker()


def run(broker: ExportBroker, directory: Path, queue: str = "orders", **options: Any) -> Manifest:
    return Export(broker, ExportOptions(queue, directory, **options), Watched()).run()


def bodies(directory: Path, form: str = "parquet") -> list[bytes]:
    """Return the bodies in the files that the manifest names, in their order."""
    found: list[bytes] = []
    state = manifest.maybe_load(note_at(directory / manifest.NAME))
    for entry in [] if state is None else state.files:
        for piece in read_pieces(SourceFile(directory / entry.path, form, entry.partition), BODY):
            found += piece.column("body").to_pylist()
    return found


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def files_in(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


# --- modes -------------------------------------------------------------------------------------------------------


def test_a_stream_is_exported_from_its_first_to_its_last_message(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream(count=10, first=3)
    state = run(broker, tmp_path)
    assert bodies(tmp_path) == numbers(3, 13)
    assert (state.state, state.covered, state.read, state.rows, state.missing) == ("complete", 10, 10, 10, 0)
    (entry,) = state.files
    assert (entry.rows, entry.first, entry.end) == (10, {"orders": 3}, {"orders": 13})
    assert files_in(tmp_path) == [manifest.NAME, entry.path]
    document = json.loads((tmp_path / manifest.NAME).read_text())
    assert document["offsets"] == {"v": 1, "p": {"orders": {"id": "i1", "next": 13, "base": 3}}}


def test_a_second_run_goes_on_where_the_first_ended(broker: ExportBroker, tmp_path: Path) -> None:
    stream = broker.stream(count=5)
    run(broker, tmp_path)
    before = (tmp_path / manifest.NAME).read_text()
    run(broker, tmp_path)
    assert (tmp_path / manifest.NAME).read_text() == before
    stream.add(4)
    stream.trim(5)
    state = run(broker, tmp_path, start="first")
    assert bodies(tmp_path) == numbers(0, 9)
    assert (len(state.files), state.rows) == (2, 9)


def test_the_partitions_of_a_super_stream_are_exported_with_their_numbers(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream("orders", type="super-stream", partitions=("orders-0", "orders-1"))
    broker.stream("orders-0", count=3)
    broker.stream("orders-1", count=2, id="i2", first=7)
    state = run(broker, tmp_path, columns=("queue", "partition", "offset", "body"))
    (entry,) = state.files
    found = pq.read_table(tmp_path / entry.path).to_pylist()
    assert [(row["queue"], row["partition"], row["offset"]) for row in found] == [
        *[("orders", 0, offset) for offset in range(3)],
        *[("orders", 1, offset) for offset in (7, 8)],
    ]
    assert state.positions["orders-1"].next == 9
    assert (state.positions["orders-1"].queue, state.positions["orders-1"].partition) == ("orders", 1)


def test_a_queue_is_exported_as_it_was_and_stays_as_it_is(broker: ExportBroker, tmp_path: Path) -> None:
    queue = broker.queue("orders", 6)
    run(broker, tmp_path)
    assert bodies(tmp_path) == numbers(0, 6)
    assert len(queue.messages) == 6
    assert list(broker.queues) == ["orders"]  # and no snapshot is left
    queue.add(2)
    assert run(broker, tmp_path).rows == 6


def test_draining_takes_the_messages_out_and_leaves_no_session(broker: ExportBroker, tmp_path: Path) -> None:
    queue = broker.queue("orders", 6)
    run(broker, tmp_path, mode="drain")
    assert (bodies(tmp_path), queue.messages, broker.sessions) == (numbers(0, 6), [], {})
    queue.add(3)
    run(broker, tmp_path, mode="drain")
    assert bodies(tmp_path) == numbers(0, 9)


def test_a_drain_with_a_condition_is_refused_since_it_would_lose_the_other_messages(
    broker: ExportBroker, tmp_path: Path
) -> None:
    queue = broker.queue("orders", 6)
    with pytest.raises(UsageError, match="be in no file"):
        run(broker, tmp_path, mode="drain", where="offset < 3")
    assert len(queue.messages) == 6 and files_in(tmp_path) == []


def test_a_drain_is_gone_on_with_by_the_session_that_its_manifest_names(broker: ExportBroker, tmp_path: Path) -> None:
    """Wherever its directory is by then: the name of the session is made of the place where it was begun."""
    queue = broker.queue("orders", 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "read", None)  # it has claimed, and ends
        with pytest.raises(TypeError):
            run(broker, tmp_path / "here", mode="drain")
    (session,) = broker.sessions
    (tmp_path / "here").rename(tmp_path / "there")
    run(broker, tmp_path / "there", mode="drain")
    assert (bodies(tmp_path / "there"), broker.sessions) == (numbers(0, 6), {})
    queue.add(2)
    named: list[str] = []
    broker.acked = lambda _: named.extend(broker.sessions)
    run(broker, tmp_path / "there", mode="drain")
    assert bodies(tmp_path / "there") == numbers(0, 8)
    assert session not in named, "an export that was complete has the name of where it is now"


def test_a_drain_into_files_is_not_continued_with_a_broker_of_another_history(
    broker: ExportBroker, tmp_path: Path
) -> None:
    broker.life = "a" * 32
    queue = broker.queue("orders", 6)
    run(broker, tmp_path, mode="drain")
    queue.add(2)
    assert run(broker, tmp_path, mode="drain").rows == 8
    restored = ExportBroker()
    restored.life = "b" * 32
    restored.queue("orders", 8)
    with pytest.raises(DataLoss, match=r"restored from a backup\. Use another directory"):
        run(restored, tmp_path, mode="drain")
    assert (len(restored.queues["orders"].messages), len(bodies(tmp_path))) == (8, 8)
    assert run(restored, tmp_path, mode="drain", skip_lost=True).rows == 16
    restored.queues["orders"].add(1)
    assert run(restored, tmp_path, mode="drain").rows == 17


@pytest.mark.parametrize("mode", ["drain", "log"])
def test_an_older_manifest_does_not_delete_files_with_messages_that_are_nowhere_else(
    broker: ExportBroker, tmp_path: Path, mode: str
) -> None:
    queue = broker.queue("orders", 4) if mode == "drain" else broker.stream("orders", 4)
    run(broker, tmp_path, mode=mode)
    older = (tmp_path / manifest.NAME).read_bytes()
    queue.add(3)
    run(broker, tmp_path, mode=mode)
    if mode == "log":
        queue.trim(6)
    there = files_in(tmp_path)
    newer = (tmp_path / manifest.NAME).read_bytes()
    (tmp_path / manifest.NAME).write_bytes(older)
    with pytest.raises(UsageError, match=r"does not name, such as part-00001.*: it is an older copy"):
        run(broker, tmp_path, mode=mode, skip_lost=True)
    assert files_in(tmp_path) == there
    (tmp_path / manifest.NAME).write_bytes(newer)
    queue.add(1)
    run(broker, tmp_path, mode=mode)
    assert bodies(tmp_path) == numbers(0, 8)


def test_two_machines_that_drain_into_one_place_lose_nothing(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = broker.queue("orders", 2)
    run(broker, tmp_path, mode="drain")
    queue.add(2)
    load = manifest.maybe_load
    others = [lambda: run(broker, tmp_path, mode="drain")]

    def loaded(note: Any) -> Any:
        found = load(note)
        while others:
            others.pop()()  # all of it, after this one has read the manifest
            queue.add(2)
        return found

    monkeypatch.setattr(Directory, "only_one", lambda _: nullcontext())
    monkeypatch.setattr(manifest, "maybe_load", loaded)
    run(broker, tmp_path, mode="drain")
    assert bodies(tmp_path) == numbers(0, 6)


def test_released_claims_that_are_in_files_end_a_drain(broker: ExportBroker, tmp_path: Path) -> None:
    broker.queue("orders", 6)

    def acked(gone: Sequence[bytes]) -> None:
        if gone:
            raise Killed  # after the commit of the first files

    broker.acked = acked
    with pytest.raises(Killed):
        run(broker, tmp_path, mode="drain", max_file_bytes=300)
    done = len(bodies(tmp_path))
    (session,) = broker.sessions
    broker.release("orders", session.rpartition("/")[2])
    broker.acked = lambda gone: None
    with pytest.raises(DataLoss, match=f"{done} claims below {done} of orders were released although they are in"):
        run(broker, tmp_path, mode="drain")
    run(broker, tmp_path, mode="drain", skip_lost=True)
    assert len(bodies(tmp_path)) == 6 + done


def test_draining_ends_although_producers_go_on(broker: ExportBroker, tmp_path: Path) -> None:
    queue = broker.queue("orders", 6)
    broker.acked = lambda bodies: queue.add(2)
    run(broker, tmp_path, mode="drain")
    assert bodies(tmp_path) == numbers(0, 6)
    assert queue.messages


def test_nothing_there_makes_no_file(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream(count=0)
    broker.queue("empty", 0)
    assert run(broker, tmp_path / "stream").files == []
    assert run(broker, tmp_path / "snapshot", "empty").files == []
    assert run(broker, tmp_path / "drain", "empty", mode="drain").files == []


# --- what is exported --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        ("first", "next", range(3, 13)),
        ("earliest", "latest", range(3, 13)),
        ("5", "9", range(5, 9)),
        ("last", None, range(12, 13)),
        ("next", None, range(0)),
        ("2023-11-14T22:13:25+00:00", "2023-11-14T22:13:28", range(8, 11)),
        ("2100-01-01", None, range(0)),
        ("9", "4", range(0)),
    ],
)
def test_positions_are_offsets_words_and_times(
    broker: ExportBroker, tmp_path: Path, start: str, end: str | None, wanted: range
) -> None:
    stream = broker.stream(first=3)
    for number in range(10):
        stream.add(1, time_ms=1_700_000_000_000 + 1000 * number)
    run(broker, tmp_path, start=start, end=end)
    assert bodies(tmp_path) == [b"%d" % number for number in wanted]


@pytest.mark.parametrize("text", ["14", "soon-ish", "2026-99-99"])
def test_a_position_that_is_none_is_refused(broker: ExportBroker, tmp_path: Path, text: str) -> None:
    broker.stream(count=10)
    with pytest.raises(UsageError, match=text):
        run(broker, tmp_path, start=text)


def test_a_condition_leaves_rows_out_and_counts_them(broker: ExportBroker, tmp_path: Path) -> None:
    stream = broker.stream()
    for number in range(12):
        stream.add(1, routing_key="a.x" if number % 3 else "b")
    state = run(broker, tmp_path, where="routing_key like 'a.%'", columns=("body",))
    assert bodies(tmp_path) == [b"%d" % number for number in range(12) if number % 3]
    assert (state.read, state.filtered, state.rows, state.covered) == (12, 4, 8, 12)
    assert pq.read_schema(tmp_path / state.files[0].path).names == ["body"]


def test_files_are_divided_by_day(broker: ExportBroker, tmp_path: Path) -> None:
    stream = broker.stream()
    for day in (0, 0, 1, 2, 1):
        stream.add(1, time_ms=1_700_000_000_000 + day * 86_400_000)
    state = run(broker, tmp_path, partition_by="date", columns=("offset", "body"))
    found = {entry.partition["date"]: entry for entry in state.files}
    assert {day: entry.rows for day, entry in found.items()} == {"2023-11-14": 2, "2023-11-15": 2, "2023-11-16": 1}
    assert all(entry.path.startswith(f"date={day}/") for day, entry in found.items())
    assert Counter(bodies(tmp_path)) == Counter(numbers(0, 5))


def test_files_are_divided_by_a_column_whatever_is_in_it(broker: ExportBroker, tmp_path: Path) -> None:
    stream = broker.stream()
    keys = ["a/b", "..", "", "a=b%", "ü", "a/b"]
    for key in keys:
        stream.add(1, routing_key=key)
    state = run(broker, tmp_path, partition_by="routing_key")
    assert {entry.partition["routing_key"] for entry in state.files} == set(keys)
    assert all((tmp_path / entry.path).resolve().is_relative_to(tmp_path.resolve()) for entry in state.files)
    assert all(entry.path.count("/") == 1 for entry in state.files)
    assert "routing_key" not in pq.read_schema(tmp_path / state.files[0].path).names
    for entry in state.files:  # and it comes back when they are read
        for piece in read_pieces(SourceFile(tmp_path / entry.path, "parquet", entry.partition), BODY):
            assert set(piece.column("routing_key").to_pylist()) == {entry.partition["routing_key"]}


@pytest.mark.parametrize(
    ("key", "directory"),
    [
        ("", "routing_key=__HIVE_DEFAULT_PARTITION__"),
        ("ü" * 120, f"routing_key={'ü' * 120}"),
        ("€/%=\0", "routing_key=€%2F%25%3D%00"),
    ],
    ids=["empty", "letters", "signs"],
)
def test_directories_are_named_as_spark_reads_them(
    broker: ExportBroker, tmp_path: Path, key: str, directory: str
) -> None:
    broker.stream().add(1, routing_key=key)
    (entry,) = run(broker, tmp_path, partition_by="routing_key").files
    assert (tmp_path / directory / entry.path.rpartition("/")[2]).is_file()
    assert entry.partition == {"routing_key": key}


def test_rows_keep_their_order_when_they_are_divided() -> None:
    keys = [str(number * 7 % 5) for number in range(1000)]
    batch = pa.RecordBatch.from_pydict({"routing_key": keys, "offset": list(range(1000))})
    for value, rows in export_targets.divided(batch, "routing_key"):
        assert rows.column("offset").to_pylist() == [number for number in range(1000) if keys[number] == value]


def test_a_column_that_is_null_has_a_directory_too(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream(count=2)
    (entry,) = run(broker, tmp_path, partition_by="app_id").files
    assert entry.path.startswith("app_id=__HIVE_DEFAULT_PARTITION__/")
    assert entry.partition == {"app_id": None}


def test_a_file_is_complete_when_it_is_large_enough(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream(count=40)
    state = run(broker, tmp_path, max_file_bytes=1, form="json")
    assert [(entry.first["orders"], entry.end["orders"]) for entry in state.files] == [
        (first, first + 4) for first in range(0, 40, 4)
    ]
    assert bodies(tmp_path, "json") == numbers(0, 40)
    assert state.commits == 10


@pytest.mark.parametrize("partition_by", [None, "routing_key"])
def test_too_many_open_files_are_completed_early(
    broker: ExportBroker, tmp_path: Path, partition_by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_targets, "OPEN_FILES_MAX", 3)
    stream = broker.stream()
    for number in range(20):
        stream.add(1, routing_key=str(number))
    run(broker, tmp_path, partition_by=partition_by)
    assert Counter(bodies(tmp_path)) == Counter(numbers(0, 20))


def test_a_piece_with_any_number_of_values_has_only_so_many_files_open(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_targets, "OPEN_FILES_MAX", 2)
    most = 0

    class Counted(TableFile):
        opened = 0

        def __init__(self, *arguments: Any) -> None:
            nonlocal most
            super().__init__(*arguments)
            Counted.opened += 1
            most = max(most, Counted.opened)

        def close(self) -> Written:
            Counted.opened -= 1
            return super().close()

    monkeypatch.setattr(export_targets, "TableFile", Counted)
    stream = broker.stream()
    for number in range(CHUNK_ROWS):
        stream.add(1, routing_key=str(number))
    state = run(broker, tmp_path, partition_by="routing_key")
    assert most == 2 < len(state.files) == CHUNK_ROWS
    assert state.commits == 1
    assert Counter(bodies(tmp_path)) == Counter(numbers(0, CHUNK_ROWS))


@pytest.mark.parametrize(
    ("form", "compressions"),
    [
        ("parquet", ("zstd", "snappy", "gzip", "lz4", "none")),
        ("arrow", ("zstd", "lz4", "none")),
        ("json", ("none", "gzip", "zstd")),
        ("csv", ("none", "gzip", "zstd")),
    ],
)
def test_every_format_with_every_compression_has_the_same_rows(
    broker: ExportBroker, tmp_path: Path, form: str, compressions: Sequence[str]
) -> None:
    stream = broker.stream()
    for body in (b"plain", b"", b'quo"te, comma\nline', b"\xff\x00", "ü".encode(), b" "):
        stream.messages.append(Sent(stream.end, body, routing_key=f"k {len(body)}"))
    for compression in compressions:
        directory = tmp_path / compression
        run(broker, directory, form=form, compression=compression, columns=("offset", "body", "routing_key"))
        assert bodies(directory, form) == [sent.body for sent in stream.messages]


# --- crashes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["log", "snapshot", "drain"])
@pytest.mark.parametrize("partition_by", [None, "routing_key"])
def test_killed_anywhere_the_next_run_completes_it_and_every_row_is_there_once(
    mode: str, partition_by: str | None, tmp_path: Path
) -> None:
    for at in killed_everywhere(lambda: run(*fresh(mode, tmp_path), mode=mode, partition_by=partition_by, **SMALL)):
        broker, directory = current
        # Files of another size, so that those of the run before are not replaced by chance.
        options = {**SMALL, "max_file_bytes": (600, 1, 1 << 30)[at % 3]}
        state = run(broker, directory, mode=mode, partition_by=partition_by, **options)
        assert Counter(bodies(directory)) == Counter(numbers(0, 18)), at
        assert set(files_in(directory)) == {manifest.NAME, *(entry.path for entry in state.files)}, at
        if mode == "drain":
            assert broker.queues["orders"].messages == []


SMALL: dict[str, Any] = {"max_file_bytes": 600, "columns": ("offset", "routing_key", "body")}
current: tuple[ExportBroker, Path]


def fresh(mode: str, tmp_path: Path) -> tuple[ExportBroker, Path]:
    """Return a broker with 18 messages and a directory, both new."""
    global current
    broker = ExportBroker()
    queue = broker.stream() if mode == "log" else broker.queue("orders", 0)
    for number in range(18):
        queue.add(1, routing_key=f"k{number // 5}")
    directory = tmp_path / str(len(list(tmp_path.iterdir())))
    safe = set[bytes]()

    def acked(gone: Sequence[bytes]) -> None:
        safe.update(bodies(directory))
        assert safe.issuperset(gone), "acknowledged what is in no file"

    broker.acked = acked
    current = broker, directory
    return current


def test_killed_again_and_again_it_still_comes_to_an_end(tmp_path: Path) -> None:
    broker, directory = fresh("log", tmp_path)
    ends = 0
    for _ in range(200):
        with pytest.MonkeyPatch.context() as patch:
            Killer(patch, 23)
            try:
                run(broker, directory, **SMALL)
                ends += 1
                break
            except Killed:
                continue
    assert ends == 1
    assert bodies(directory) == numbers(0, 18)


def test_an_error_leaves_no_half_files(broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = broker.stream(count=20)
    monkeypatch.setattr(ExportBroker, "read", lambda self, *args, **options: iter([stream.messages[99]]))
    with pytest.raises(IndexError):
        run(broker, tmp_path)
    assert files_in(tmp_path) == []


# --- loss --------------------------------------------------------------------------------------------------------


def test_what_retention_has_removed_ends_the_export_or_is_counted(broker: ExportBroker, tmp_path: Path) -> None:
    stream = broker.stream(count=10)
    run(broker, tmp_path, end="4")
    stream.trim(6)
    with pytest.raises(DataLoss, match="from 4 to 6"):
        run(broker, tmp_path)
    state = run(broker, tmp_path, skip_lost=True)
    assert bodies(tmp_path) == [*numbers(0, 4), *numbers(6, 10)]
    assert (state.lost, state.covered, state.rows, state.positions["orders"].lost) == (2, 8, 8, 2)


def test_what_retention_removes_under_way_likewise(broker: ExportBroker, tmp_path: Path) -> None:
    stream = broker.stream(count=12)
    ask = broker.read

    def read(queue: str, first: int, end: int, id: str, **options: Any) -> Any:
        for chunk in ask(queue, first, end, id, **options):
            yield chunk
            if chunk.end == 4:
                stream.trim(9)

    broker.read = read  # type: ignore[method-assign]
    with pytest.raises(DataLoss):
        run(broker, tmp_path / "strict")
    stream.messages[:0] = [Sent(number, b"%d" % number) for number in range(9)]
    stream.first = 0
    state = run(broker, tmp_path / "lenient", skip_lost=True)
    assert bodies(tmp_path / "lenient") == [*numbers(0, 4), *numbers(9, 12)]
    assert (state.lost, state.covered, state.positions["orders"].lost) == (5, 7, 5)


def test_what_cannot_be_read_ends_the_export_or_is_counted(broker: ExportBroker, tmp_path: Path) -> None:
    stream = broker.stream(count=8)
    del stream.messages[5]
    stream.messages.append(Sent(8, b"8"))
    with pytest.raises(DataLoss, match="1 of the messages from offset 4 to 8"):
        run(broker, tmp_path)
    state = run(broker, tmp_path, skip_lost=True)
    assert bodies(tmp_path) == numbers(0, 5) + numbers(6, 8)
    assert (state.covered, state.read, state.missing) == (8, 7, 1)


def test_a_stream_that_was_made_anew_is_not_gone_on_with(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream(count=5)
    run(broker, tmp_path)
    broker.stream(count=9, id="i2")
    with pytest.raises(AnotherQueue, match="created again"):
        run(broker, tmp_path)


def test_a_snapshot_that_expired_before_the_export_went_on_is_told(broker: ExportBroker, tmp_path: Path) -> None:
    broker.queue("orders", 5)
    with pytest.MonkeyPatch.context() as patch:
        Killer(patch, 9)
        with pytest.raises(Killed):
            run(broker, tmp_path, **SMALL)
    for name in [name for name in broker.queues if name.startswith("snapshot")]:
        del broker.queues[name]
    with pytest.raises(NoSnapshot, match="delete the directory"):
        run(broker, tmp_path, **SMALL)


def test_a_snapshot_with_fewer_rows_than_planned_is_complete(broker: ExportBroker, tmp_path: Path) -> None:
    broker.queue("orders", 5)
    broker.holes = 3
    state = run(broker, tmp_path)
    assert (state.state, state.rows, state.covered, state.missing, state.lost) == ("complete", 5, 5, 0, 0)


def test_a_snapshot_that_failed_before_the_export_went_on_is_told(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.queue("orders", 5)
    with pytest.MonkeyPatch.context() as patch:
        Killer(patch, 9)
        with pytest.raises(Killed):
            run(broker, tmp_path, **SMALL)
    found = Snapshot("s", "i1", 0, 5, 0, None, "the disk is low on space")
    monkeypatch.setattr(broker, "snapshot", lambda queue, snapshot: found)
    with pytest.raises(NoSnapshot, match=r"the disk is low on space.*delete the directory"):
        run(broker, tmp_path, **SMALL)


def test_claims_that_went_elsewhere_are_told(broker: ExportBroker, tmp_path: Path) -> None:
    """An old copy of the directory must not continue as if nothing had happened since."""
    queue = broker.queue("orders", 6)
    options: dict[str, Any] = {"mode": "drain", "consumer": "c", "max_file_bytes": 100}
    broker.delete_drain = lambda queue, name, epoch: None  # type: ignore[method-assign]
    run(broker, tmp_path / "one", **options)
    queue.add(2)
    queue.messages = [sent._replace(offset=queue.first + n) for n, sent in enumerate(queue.messages)]
    run(broker, tmp_path / "two", **options)
    with pytest.raises(DataLoss, match="from 6 to 8"):
        run(broker, tmp_path / "one", **options)
    assert run(broker, tmp_path / "one", skip_lost=True, **options).rows == 6


# --- directories -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"form": "json"},
        {"columns": ("body",)},
        {"where": "offset > 5"},
        {"partition_by": "date"},
        {"compression": "none"},
        {"headers_format": "map"},
    ],
)
def test_a_directory_goes_on_with_what_it_was_begun_with(
    broker: ExportBroker, tmp_path: Path, changed: dict[str, Any]
) -> None:
    broker.stream(count=5)
    run(broker, tmp_path)
    with pytest.raises(UsageError, match="use another directory"):
        run(broker, tmp_path, **changed)


def test_a_directory_with_other_things_in_it_is_left_alone(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream(count=5)
    (tmp_path / "part-00000-deadbeef.parquet").write_bytes(b"mine")
    with pytest.raises(UsageError, match="not empty"):
        run(broker, tmp_path)
    assert files_in(tmp_path) == ["part-00000-deadbeef.parquet"]


def test_two_exports_into_one_directory_do_not_meet(broker: ExportBroker, tmp_path: Path) -> None:
    stream = broker.stream(count=5)
    other = Export(broker, ExportOptions("orders", tmp_path), Watched())
    ask = broker.read

    def read(*args: Any, **options: Any) -> Any:
        with pytest.raises(UsageError, match="another export"):
            other.run()
        return ask(*args, **options)

    broker.read = read  # type: ignore[method-assign]
    run(broker, tmp_path)
    assert len(bodies(tmp_path)) == len(stream.messages)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(lambda path: path.unlink(), "no longer exists"), (lambda path: path.write_bytes(b""), "0 bytes instead of")],
)
def test_files_that_are_not_as_they_were_are_noticed(
    broker: ExportBroker, tmp_path: Path, damage: Any, reason: str
) -> None:
    broker.stream(count=5)
    damage(tmp_path / run(broker, tmp_path).files[0].path)
    with pytest.raises(BridgeError, match=reason):
        run(broker, tmp_path)


def test_a_file_that_has_not_the_rows_that_were_written_is_noticed(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stream(count=5)
    monkeypatch.setattr(export_targets, "count_rows", lambda path, form: 4)
    with pytest.raises(BridgeError, match="4 rows instead of 5"):
        run(broker, tmp_path)


def test_the_manifest_may_be_elsewhere(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream(count=5)
    run(broker, tmp_path / "out", checkpoint=tmp_path / "state" / "m.json")
    state = run(broker, tmp_path / "out", checkpoint=tmp_path / "state" / "m.json")
    assert state.rows == 5
    assert files_in(tmp_path / "out") == [state.files[0].path]


def test_a_manifest_that_is_none_is_refused(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream(count=5)
    for text in ("{", "[]", '{"version": 9}', '{"version": 1}'):
        (tmp_path / manifest.NAME).parent.mkdir(exist_ok=True)
        (tmp_path / manifest.NAME).write_text(text)
        with pytest.raises(UsageError, match="not a manifest"):
            run(broker, tmp_path)


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"form": "orc"}, "format 'orc'"),
        ({"compression": "rar"}, "compression 'rar'"),
        ({"form": "csv", "compression": "snappy"}, "for csv it must be one of none, gzip, zstd"),
        ({"mode": "dump"}, "mode 'dump'"),
        ({"mode": "snapshot"}, "'orders' is a stream"),
        ({"columns": ("bodi",)}, "did you mean 'body'"),
        ({"columns": ("body", "body")}, "each of them once"),
        ({"columns": ()}, "at least one"),
        ({"where": "routing_key = "}, "ends too early"),
        ({"partition_by": "body"}, "by body"),
        ({"partition_by": "headers"}, "by headers"),
        ({"partition_by": "routing_key", "columns": ("routing_key",)}, "besides the partitioning column"),
        ({"headers_format": "xml"}, "headers format 'xml'"),
        ({"max_file_bytes": 0}, "must be positive"),
        ({"consumer": "c"}, "for draining"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(
    broker: ExportBroker, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    broker.stream(count=5)
    with pytest.raises(UsageError, match=reason):
        run(broker, tmp_path, **options)
    assert files_in(tmp_path) == []


def test_queues_have_no_positions(broker: ExportBroker, tmp_path: Path) -> None:
    broker.queue("orders", 5)
    with pytest.raises(UsageError, match="for streams"):
        run(broker, tmp_path, start="3")
    with pytest.raises(UsageError, match="'orders' is a classic"):
        run(broker, tmp_path, mode="log")


def test_a_plan_says_what_there_is_and_does_nothing(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream(count=10)
    broker.queue("jobs", 3)
    directory = tmp_path / "new"

    def plan(queue: str, **options: Any) -> Planned:
        return Export(broker, ExportOptions(queue, directory, **options), Watched()).plan()

    assert plan("orders", start="4") == Planned("log", (("orders", 4, 10),), 6, 600)
    assert plan("jobs") == Planned("snapshot", (("jobs", 0, 3),), 3, 300)
    assert not directory.exists()
    assert not any(asked.startswith(("snapshot", "open", "claim")) for asked in broker.asked)
    run(broker, directory)
    assert plan("orders").rows == 0


def test_who_watches_learns_the_plan_and_every_commit(broker: ExportBroker, tmp_path: Path) -> None:
    broker.stream(count=8)
    watched = Watched()
    Export(broker, replace(ExportOptions("orders", tmp_path, form="json"), max_file_bytes=1), watched).run()
    assert (watched.plans, watched.rows, watched.commits) == ([(8, 800)], 8, [4, 8])


def test_headers_may_be_maps_or_json(broker: ExportBroker, tmp_path: Path) -> None:
    stream: MemoryQueue = broker.stream()
    stream.messages.append(Sent(0, b"", b"\x20\x00\0\0\0\x07\x01kI\0\0\0\x05"))
    for form, wanted in (("map", pa.map_(pa.string(), pa.string())), ("json", pa.string())):
        directory = tmp_path / form
        (entry,) = run(broker, directory, headers_format=form).files
        table = pq.read_table(directory / entry.path)
        assert table.schema.field("headers").type == wanted or pa.types.is_map(wanted)
        assert table.column("headers").to_pylist() == [[("k", "5")] if form == "map" else '{"k":5}']


def test_delta_and_spark_want_a_directory(broker: ExportBroker) -> None:
    with pytest.raises(UsageError, match="must be a directory"):
        Export(broker, ExportOptions("orders", "s3://lake/a", form="delta"), Watched())
    with pytest.raises(UsageError, match="must be a directory"):
        SparkExport(broker, ExportOptions("orders", "s3://lake/a"), Watched(), connection={})


def test_files_that_only_an_executor_has_are_missed(tmp_path: Path) -> None:
    state = Manifest({}, {})
    schema = pa.schema([("body", pa.binary())])
    made = SparkTarget(
        place=Directory(tmp_path),
        form="parquet",
        compression="zstd",
        schema=schema,
        partition_by=None,
        state=state,
        note=note_at(tmp_path / "state.json"),
    )
    made.staging.mkdir(parents=True)
    pq.write_table(pa.table({"body": [b"x"]}, schema=schema), made.staging / "part-00000.zstd.parquet")
    made.read = made.written = 3
    with pytest.raises(BridgeError, match="Spark has written 3 rows, and 1 are below"):
        made.commit(state)
    assert (state.rows, state.filtered) == (0, 0)


def test_an_export_that_has_its_manifest_where_it_was_goes_on_with_it(broker: ExportBroker, tmp_path: Path) -> None:
    stream = broker.stream(count=5)
    run(broker, tmp_path)
    (tmp_path / manifest.NAME).rename(tmp_path / manifest.OLD_NAME)
    stream.add(2)
    assert run(broker, tmp_path).rows == 7
    assert not (tmp_path / manifest.NAME).exists()
