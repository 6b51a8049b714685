"""Imports: messages that are what they were, each published once; and the files that they come from."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import os
import struct
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from property.wire import property_sets, thorough

from warren.amqp.field_table import decode_table, encode_table
from warren.spark_bridge import import_files, table_readers
from warren.spark_bridge.bridge_errors import BridgeError, Refused, UsageError
from warren.spark_bridge.control import Committed
from warren.spark_bridge.export import Export, ExportOptions
from warren.spark_bridge.import_files import Import, ImportOptions, ImportState
from warren.spark_bridge.schema import TIMESTAMP_TYPE
from warren.spark_bridge.table_readers import DamagedFile, micros_of
from warren.spark_bridge.text_rows import json_lines

from .chunks import Sent
from .export_broker import ExportBroker, Published, Watched
from .killing import killed_everywhere
from .test_properties_to_arrow import properties_of, python_text, without_repeated_keys

FORMATS = ("parquet", "arrow", "json", "csv")
SECONDS_MAX = ((1 << 63) - 1) // 1_000_000


@pytest.fixture
def broker() -> ExportBroker:
    return ExportBroker()


def publish(broker: ExportBroker, directory: Path, **options: Any) -> ImportState:
    return Import(broker, ImportOptions(directory, **options), Watched()).run()


def exported(broker: ExportBroker, directory: Path, messages: list[Sent], **options: Any) -> Path:
    stream = broker.stream()
    stream.messages = [sent._replace(offset=number) for number, sent in enumerate(messages)]
    Export(broker, ExportOptions("orders", directory, **options), Watched()).run()
    return directory


def some(count: int) -> list[Sent]:
    return [Sent(number, b"%d" % number, exchange="ex", routing_key=f"k{number % 3}") for number in range(count)]


def write_parquet(directory: Path, columns: dict[str, Any], name: str = "rows.parquet") -> Path:
    directory.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), directory / name)
    return directory


# --- what comes out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_what_was_exported_is_published_as_it_was(form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every property, every type of header, every body: octet by octet."""

    @given(st.lists(st.tuples(property_sets, st.binary(max_size=30) | st.text(max_size=9).map(str.encode)), max_size=6))
    @thorough(40)
    def holds(given_messages: list[tuple[dict[str, Any], bytes]]) -> None:
        broker = ExportBroker()
        sent = []
        for number, (values, body) in enumerate(given_messages):
            made: dict[str, Any] = {}
            for name, value in values.items():
                if name == "headers":
                    made[name] = without_repeated_keys(value)
                elif name == "timestamp":
                    made[name] = value % SECONDS_MAX
                else:
                    made[name] = python_text(value) if isinstance(value, str) else value
            if any(isinstance(value, str) and len(value.encode()) > 255 for value in made.values()):
                return
            sent.append(Sent(number, body, properties_of(made), f"e{number % 2}", f"ü.{number}"))
        directory = exported(broker, tmp_path_factory.mktemp("out"), sent, form=form)
        state = publish(broker, directory)
        assert broker.published == [
            Published(each.exchange, each.routing_key, each.properties, each.body) for each in sent
        ]
        assert (state.rows, state.published) == (len(sent), len(sent))

    holds()


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_compressed_texts_are_read(broker: ExportBroker, tmp_path: Path, form: str, compression: str) -> None:
    publish(broker, exported(broker, tmp_path, some(50), form=form, compression=compression))
    assert [each.body for each in broker.published] == [sent.body for sent in some(50)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("headers_format", ["map", "json"])
def test_headers_in_other_formats_become_what_comes_nearest(
    broker: ExportBroker, tmp_path: Path, form: str, headers_format: str
) -> None:
    table = {"s": "text", "i": 5, "none": None, "list": [1, "x"], "typed": {"t": "S", "s": "no"}}
    sent = [Sent(0, b"", b"\x20\x00" + encode_table(table)), Sent(1, b"", b"\0\0")]
    publish(broker, exported(broker, tmp_path, sent, form=form, headers_format=headers_format))
    first, second = broker.published
    texts = {"s": "text", "i": "5", "none": None, "list": '[1,"x"]', "typed": '{"t":"S","s":"no"}'}
    assert decode_table(first.properties[2:]) == (table if headers_format == "json" else texts)
    assert second.properties == b"\0\0"


def test_exchange_and_routing_key_may_be_others(broker: ExportBroker, tmp_path: Path) -> None:
    directory = exported(broker, tmp_path, some(2))
    publish(broker, directory, exchange="to", routing_key="there")
    publish(broker, directory, exchange="to")
    publish(broker, directory, exchange="", routing_key_column="message_id")
    assert [(each.exchange, each.routing_key) for each in broker.published] == [
        ("to", "there"),
        ("to", "there"),
        ("to", "k0"),
        ("to", "k1"),
        ("", ""),
        ("", ""),
    ]


def test_rows_divided_by_a_column_get_it_back(broker: ExportBroker, tmp_path: Path) -> None:
    publish(broker, exported(broker, tmp_path, some(9), partition_by="routing_key"))
    assert sorted((each.routing_key, each.body) for each in broker.published) == sorted(
        (sent.routing_key, sent.body) for sent in some(9)
    )


def test_properties_may_be_left_out(broker: ExportBroker, tmp_path: Path) -> None:
    sent = [Sent(0, b"", properties_of({"user_id": "ann", "app_id": "x", "expiration": "1"}))]
    publish(broker, exported(broker, tmp_path, sent), without=("user_id", "expiration"))
    assert broker.published[0].properties == properties_of({"app_id": "x"})


def test_a_large_message_is_cut_into_frames_and_has_a_part_of_its_own(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_files, "PART_BYTES", 1000)
    parts: list[int] = []
    put = broker.put_stage

    def put_stage(stage: str, part: int, frames: bytes | bytearray | memoryview) -> None:
        parts.append(len(frames))
        put(stage, part, frames)

    broker.put_stage = put_stage  # type: ignore[method-assign]
    sent = [Sent(0, b"a" * 600), Sent(1, b"b" * 300_000), Sent(2, b"c" * 600), Sent(3, b"d" * 100)]
    publish(broker, exported(broker, tmp_path, sent))
    assert [each.body for each in broker.published] == [each.body for each in sent]
    assert len(parts) == 3 and parts[1] > 300_000


@pytest.mark.parametrize("form", ["json", "csv"])
def test_texts_larger_than_what_is_read_at_a_time_stay_whole(
    broker: ExportBroker, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_readers, "PIECE_BYTES", 1000)
    sizes = [1] * 300 + [0, 3, 400, 1, 60, 0, 900, 2]
    sent = [Sent(number, b'line\n"quote", ' * size) for number, size in enumerate(sizes)]
    publish(broker, exported(broker, tmp_path, sent, form=form))
    assert [each.body for each in broker.published] == [each.body for each in sent]


def test_a_large_row_group_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs make row groups of a million rows."""
    piece_bytes = 256 << 10
    monkeypatch.setattr(table_readers, "PIECE_BYTES", piece_bytes)
    kinds = pa.array(["a", "b"] * 8192).dictionary_encode()
    columns = {"body": [os.urandom(1024) for _ in range(16384)], "type": kinds, "routing_key": ["k"] * 16384}
    write_parquet(tmp_path, columns)
    assert pq.read_metadata(tmp_path / "rows.parquet").num_row_groups == 1
    source = table_readers.SourceFile(tmp_path / "rows.parquet", "parquet")
    before = pa.total_allocated_bytes()
    rows = 0
    for piece in table_readers.read_pieces(source, frozenset(columns)):
        assert piece.nbytes <= 2 * piece_bytes
        assert pa.total_allocated_bytes() - before < 16 * piece_bytes
        assert piece.column("body").to_pylist() == columns["body"][rows : rows + piece.num_rows]
        rows += piece.num_rows
    assert rows == 16384


# --- once --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_killed_anywhere_every_message_is_published_once(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_files, "COMMIT_ROWS", 7)
    monkeypatch.setattr(table_readers, "PIECE_ROWS", 3)
    directory = exported(ExportBroker(), tmp_path / "out", some(20), form=form)
    broker = ExportBroker()
    state = tmp_path / "state.json"

    def work() -> None:
        nonlocal broker
        broker = ExportBroker()
        state.unlink(missing_ok=True)
        publish(broker, directory, checkpoint=state)

    for at in killed_everywhere(work):
        ended = publish(broker, directory, checkpoint=state)
        assert [each.body for each in broker.published] == [sent.body for sent in some(20)], at
        assert (ended.rows, ended.published) == (20, 20)


def test_a_run_goes_on_in_the_middle_of_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version may read files in other pieces."""
    broker = ExportBroker()
    directory = exported(broker, tmp_path, some(20))
    commit = broker.commit_stages
    monkeypatch.setattr(import_files, "COMMIT_ROWS", 7)
    monkeypatch.setattr(table_readers, "PIECE_ROWS", 3)
    with monkeypatch.context() as patch:
        calls = iter([commit])
        patch.setattr(broker, "commit_stages", lambda *args, **options: next(calls)(*args, **options))
        with pytest.raises(StopIteration):
            publish(broker, directory)
    assert len(broker.published) == 9
    monkeypatch.setattr(table_readers, "PIECE_ROWS", 16)
    publish(broker, directory)
    assert [each.body for each in broker.published] == [sent.body for sent in some(20)]


class Killed(BaseException):
    """The process is gone."""


def begun(broker: ExportBroker, directory: Path, *, is_done: bool = True) -> None:
    """Kill a run in its first commit; `is_done`: the broker made the commit nevertheless."""
    commit = broker.commit_stages

    def commit_stages(query: str, batch: int, stages: Any, **options: Any) -> Committed:
        if is_done:
            commit(query, batch, stages, **options)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "commit_stages", commit_stages)
        with pytest.raises(Killed):
            publish(broker, directory)
    assert len(broker.published) == (5 if is_done else 0)


@pytest.mark.parametrize("is_done", [False, True])
def test_a_commit_that_was_begun_has_no_other_rows_when_an_export_has_added_some(
    broker: ExportBroker, tmp_path: Path, *, is_done: bool
) -> None:
    directory = exported(broker, tmp_path, some(5))
    begun(broker, directory, is_done=is_done)
    broker.queues["orders"].add(3)
    Export(broker, ExportOptions("orders", directory), Watched()).run()
    state = publish(broker, directory)
    assert [each.body for each in broker.published] == [b"%d" % number for number in range(8)]
    assert (state.rows, state.published) == (8, 8)


def test_a_commit_is_remembered_until_the_import_is_repeated_and_not_for_ever(
    broker: ExportBroker, tmp_path: Path
) -> None:
    directory = exported(broker, tmp_path, some(5))
    begun(broker, directory)
    broker.wait()
    assert publish(broker, directory).published == 5
    assert len(broker.published) == 5
    broker.queues["orders"].add(3)
    Export(broker, ExportOptions("orders", directory), Watched()).run()
    for _ in range(2):
        broker.wait()
        assert publish(broker, directory).published == 8
    assert len(broker.published) == 8
    broker.wait()
    last = max(broker.commits)
    assert broker.kept_s[last] is None and (last[0], last[1] + 1) in broker.kept_s


def test_an_import_does_not_go_on_with_a_broker_that_was_restored_to_before_its_beginning(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = exported(broker, tmp_path, some(20))
    monkeypatch.setattr(import_files, "COMMIT_ROWS", 7)
    monkeypatch.setattr(table_readers, "PIECE_ROWS", 3)
    commit = broker.commit_stages
    with monkeypatch.context() as patch:
        calls = iter([commit])
        patch.setattr(broker, "commit_stages", lambda *args, **options: next(calls)(*args, **options))
        with pytest.raises(StopIteration):
            publish(broker, directory)
    broker.commits.clear()
    broker.published.clear()
    for _ in range(2):
        with pytest.raises(BridgeError, match="another --checkpoint"):
            publish(broker, directory)
    assert broker.published == []


@pytest.mark.parametrize("is_done", [False, True])
def test_an_import_that_was_killed_at_its_end_publishes_what_was_added(
    broker: ExportBroker, tmp_path: Path, *, is_done: bool
) -> None:
    directory = exported(broker, tmp_path, some(5))
    commit = broker.commit_stages

    def commit_stages(query: str, batch: int, stages: Any, **options: Any) -> Committed:
        if is_done or stages:
            found = commit(query, batch, stages, **options)
        if not stages:
            raise Killed
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "commit_stages", commit_stages)
        with pytest.raises(Killed):
            publish(broker, directory)
    broker.queues["orders"].add(3)
    Export(broker, ExportOptions("orders", directory), Watched()).run()
    broker.wait()
    assert publish(broker, directory).published == 8
    assert [batch for _, batch in broker.commits][-3:] == [1, 2, 3]


@pytest.mark.parametrize("rows", [2, 16])
def test_a_commit_that_was_begun_has_the_same_rows_in_other_pieces(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    directory = exported(broker, tmp_path, some(20))
    monkeypatch.setattr(import_files, "COMMIT_ROWS", 5)
    monkeypatch.setattr(table_readers, "PIECE_ROWS", 5)
    begun(broker, directory)
    monkeypatch.setattr(import_files, "COMMIT_ROWS", 3)  # as of another version
    monkeypatch.setattr(table_readers, "PIECE_ROWS", rows)
    publish(broker, directory)
    assert [each.body for each in broker.published] == [sent.body for sent in some(20)]


def test_a_commit_that_the_broker_has_begun_is_continued(broker: ExportBroker, tmp_path: Path) -> None:
    """One that stopped at a full queue, say: its stage can neither be written nor deleted."""
    directory = exported(broker, tmp_path, some(5))
    begun(broker, directory, is_done=False)
    broker.begun = set(broker.stages)
    assert publish(broker, directory).published == 5
    assert [each.body for each in broker.published] == [sent.body for sent in some(5)]


def test_parts_of_a_run_that_was_killed_are_not_published_besides(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = exported(broker, tmp_path, some(5))
    with monkeypatch.context() as patch:
        patch.setattr(import_files, "PART_BYTES", 1)
        begun(broker, directory, is_done=False)
    assert publish(broker, directory).published == 5
    assert [each.body for each in broker.published] == [sent.body for sent in some(5)]


def test_a_commit_that_lacks_rows_by_now_is_an_error(broker: ExportBroker, tmp_path: Path) -> None:
    write_parquet(tmp_path, {"body": [b"%d" % number for number in range(5)]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "commit_stages", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            publish(broker, tmp_path, exchange="", routing_key="q")
    write_parquet(tmp_path, {"body": [b"0"]})
    note = next((tmp_path / "_manifest").glob("import-*"))
    state = json.loads(note.read_text())
    state["files"] = [["rows.parquet", (tmp_path / "rows.parquet").stat().st_size]]
    note.write_text(json.dumps(state))
    with pytest.raises(DamagedFile, match="4 rows less than a commit that was begun"):
        publish(broker, tmp_path, exchange="", routing_key="q")


def test_what_an_export_has_added_is_published_by_the_next_run(broker: ExportBroker, tmp_path: Path) -> None:
    directory = exported(broker, tmp_path, some(5))
    assert publish(broker, directory).before == 0
    assert publish(broker, directory).before == 5
    broker.queues["orders"].add(3)
    Export(broker, ExportOptions("orders", directory), Watched()).run()
    assert publish(broker, directory).published == 8
    assert [each.body for each in broker.published] == [b"%d" % number for number in range(8)]


def test_an_import_to_somewhere_else_begins_anew(broker: ExportBroker, tmp_path: Path) -> None:
    directory = exported(broker, tmp_path, some(5))
    publish(broker, directory)
    publish(broker, directory, exchange="other")
    assert [each.exchange for each in broker.published] == ["ex"] * 5 + ["other"] * 5
    with pytest.raises(UsageError, match="to another target"):
        publish(
            broker,
            directory,
            exchange="third",
            checkpoint=next((directory / "_manifest").glob("import-*")),
        )


def test_two_imports_of_the_same_to_the_same_do_not_meet(broker: ExportBroker, tmp_path: Path) -> None:
    directory = exported(broker, tmp_path, some(5))
    refused: list[str] = []

    class Second(Watched):
        def planned(self, rows: int, bytes: int) -> None:
            with pytest.raises(UsageError, match="another import") as caught:
                publish(broker, directory, routing_key="q")
            refused.append(str(caught.value))
            publish(broker, directory, routing_key="elsewhere")

    Import(broker, ImportOptions(directory, routing_key="q"), Second()).run()
    assert len(refused) == 1
    assert Counter(each.routing_key for each in broker.published) == {"q": 5, "elsewhere": 5}
    assert publish(broker, directory, routing_key="q").before == 5


def test_a_full_queue_is_waited_for_and_a_refusal_is_not(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_files, "_RETRY_PAUSE_S", 0.0)
    directory = exported(broker, tmp_path, some(5))
    commit = broker.commit_stages
    errors = ["queue_full", "conflict", "queue_full"]

    def commit_stages(*args: Any, **options: Any) -> Committed:
        if errors:
            raise Refused("no", 409, errors.pop(0))
        return commit(*args, **options)

    broker.commit_stages = commit_stages  # type: ignore[method-assign]
    publish(broker, directory)
    assert len(broker.published) == 5
    errors.append("no_stage")
    with pytest.raises(Refused):
        publish(broker, directory, exchange="again")


def test_what_goes_to_no_queue_fails_or_is_counted(broker: ExportBroker, tmp_path: Path) -> None:
    directory = exported(broker, tmp_path, some(5))

    def commit_stages(*args: Any, **options: Any) -> Committed:
        return Committed(False, False, 0, 2) if options["mandatory"] else Committed(True, False, 5, 2)

    broker.commit_stages = commit_stages  # type: ignore[method-assign]
    with pytest.raises(BridgeError, match=r"2 of the messages from row 0 to 5 would go to no queue.*--unroutable drop"):
        publish(broker, directory)
    state = publish(broker, directory, mandatory=False)
    assert (state.rows, state.published, state.unroutable) == (5, 3, 2)


def test_a_broker_that_counts_otherwise_is_not_believed(broker: ExportBroker, tmp_path: Path) -> None:
    directory = exported(broker, tmp_path, some(5))
    broker.commit_stages = lambda *args, **options: Committed(True, False, 4, 0)  # type: ignore[method-assign]
    with pytest.raises(BridgeError, match=r"5 messages were staged.* 4"):
        publish(broker, directory)


# --- files -------------------------------------------------------------------------------------------------------


def test_files_of_others_are_read_whatever_their_types(broker: ExportBroker, tmp_path: Path) -> None:
    keys = pa.array(["k0", "k1"]).dictionary_encode()
    time = datetime(2026, 1, 2, tzinfo=UTC)
    columns = {
        "body": pa.array(["one", "two"], pa.large_string()),
        "exchange": pa.array(["", None]),
        "routing_key": keys,
        "priority": pa.array([1, None], pa.int64()),
        "message_timestamp": pa.array([time, time], pa.timestamp("ms", tz="UTC")),
        "colour": pa.array(["red", "blue"]),
        "headers": pa.array([[("a", "b")], []], pa.map_(pa.string(), pa.string())),
    }
    write_parquet(tmp_path / "in", columns)
    feather.write_feather(pa.table(columns), tmp_path / "in" / "z.arrow", compression="lz4")
    publish(broker, tmp_path / "in")
    assert [(each.exchange, each.routing_key, each.body) for each in broker.published] == [
        ("", "k0", b"one"),
        ("", "k1", b"two"),
    ] * 2
    wanted = {
        "headers": encode_table({"a": "b"}),
        "delivery_mode": 2,
        "priority": 1,
        "timestamp": int(time.timestamp()),
    }
    assert broker.published[0].properties == properties_of(wanted)


def test_texts_of_others_are_read(broker: ExportBroker, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"body": {"n": 1}, "priority": 3, "headers": {"k": 1}}\n\n{"body": "é", "message_timestamp": ')
        file.write('"2026-01-02T03:04:05+01:00"}\n')
    with (tmp_path / "b.csv").open("w", newline="") as csv_file:
        csv.writer(csv_file).writerows([["body", "routing_key"], ['a "b"\nc', "k"], ["", "k"]])
    (tmp_path / "_hidden.csv").write_text("body\nno\n")
    (tmp_path / "readme.txt").write_text("no")
    publish(broker, tmp_path, exchange="", routing_key="q")
    assert [each.body for each in broker.published] == [b'{"n": 1}', "é".encode(), b'a "b"\nc', b""]
    first, second = broker.published[:2]
    assert first.properties == properties_of({"headers": encode_table({"k": 1}), "delivery_mode": 2, "priority": 3})
    assert second.properties == properties_of({"delivery_mode": 2, "timestamp": 1767319445})


def test_a_header_with_a_number_that_64_bits_cannot_hold_is_a_damaged_file(
    broker: ExportBroker, tmp_path: Path
) -> None:
    row = {"body": "x", "headers": {"n": {"t": "l", "i": 1 << 70}}}
    (tmp_path / "rows.json").write_text(json.dumps(row))
    with pytest.raises(DamagedFile, match=r"rows.json.*column headers"):
        publish(broker, tmp_path, exchange="", routing_key="q")


def test_base64_may_have_lines_as_spark_writes_them(broker: ExportBroker, tmp_path: Path) -> None:
    body = bytes(range(256))
    lines = base64.encodebytes(body).decode().strip().replace("\n", "\r\n")
    (tmp_path / "a.json").write_text(json.dumps({"body_base64": lines}) + "\n")
    publish(broker, tmp_path, exchange="", routing_key="q")
    assert [each.body for each in broker.published] == [body]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.json", '{"body": "x"}\n{"body"\n', "row 1"),
        ("a.json", "[]\n", "no JSON object"),
        ("a.json", '{"body": "x", "priority": "high"}\n', "column priority"),
        ("a.json", '{"body": "x", "priority": 300}\n', "priority of row 0 is 300"),
        ("a.json", '{"body": null}\n', "body of row 0 is null"),
        ("a.json", '{"body_base64": "?"}\n', "column body"),
        ("a.json", '{"body": "x", "headers": "["}\n', "column headers"),
        ("a.json", '{"body": "x", "headers": [1]}\n', "no JSON object"),
        ("a.json", '{"body": "x", "message_timestamp": "soon"}\n', "column message_timestamp"),
        ("a.json", '{"body": "\\ud800"}\n', "a.json"),
        ("a.json", '{"body": ' + "[" * 100_000, "row 0"),
        ("a.json", '{"body": "x", "headers": {"h": {"t": "A", "json": "' + "[" * 100_000 + '"}}}', "a row cannot"),
        ("a.csv", "body,app_id\nx\n", "a.csv"),
        ("a.csv", "body,body\nx,y\n", "exists 2 times"),
        ("a.parquet", "PAR1 or not", "a.parquet"),
        ("a.arrow", "ARROW1 or not", "a.arrow"),
        ("a.json.gz", "no gzip", "a.json.gz"),
    ],
)
def test_what_cannot_be_read_is_told_and_nothing_of_it_published(
    broker: ExportBroker, tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DamagedFile, match=reason):
        publish(broker, tmp_path, exchange="", routing_key="q")
    assert broker.published == []


def test_an_arrow_file_whose_lengths_are_wrong_is_not_read_beyond_its_end(broker: ExportBroker, tmp_path: Path) -> None:
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema([("body", pa.binary())])) as file:
        file.write_table(pa.table({"body": pa.array([b"one", b"two", b""], pa.binary())}))
    written = (tmp_path / "a.arrow").read_bytes()
    bounds = struct.pack("<4i", 0, 3, 6, 6)
    assert written.count(bounds) == 1
    (tmp_path / "a.arrow").write_bytes(written.replace(bounds, struct.pack("<4i", 0, 3, 9, 6)))
    with pytest.raises(DamagedFile, match=r"a\.arrow"):
        publish(broker, tmp_path, exchange="", routing_key="q")
    assert broker.published == []


def test_files_that_changed_are_not_gone_on_with(broker: ExportBroker, tmp_path: Path) -> None:
    directory = write_parquet(tmp_path / "in", {"body": ["a"]})
    publish(broker, directory, exchange="", routing_key="q")
    write_parquet(directory, {"body": ["a", "b"]})
    with pytest.raises(UsageError, match="not those of the import"):
        publish(broker, directory, exchange="", routing_key="q")


def test_a_file_that_is_not_what_the_export_wrote_is_refused(broker: ExportBroker, tmp_path: Path) -> None:
    directory = exported(broker, tmp_path, some(5), form="json")
    (path,) = directory.glob("part-*.json")
    path.write_bytes(path.read_bytes().replace(b'"3"', b'"4"'))
    with pytest.raises(DamagedFile, match="is not what was written"):
        publish(broker, directory)
    assert broker.published == []


def test_rows_that_have_no_place_to_go_are_refused(broker: ExportBroker, tmp_path: Path) -> None:
    directory = write_parquet(tmp_path / "in", {"body": ["a"]})
    with pytest.raises(UsageError, match="--exchange"):
        publish(broker, directory)
    with pytest.raises(UsageError, match="--routing-key"):
        publish(broker, directory, exchange="")
    bodiless = write_parquet(tmp_path / "bodiless", {"exchange": [""], "routing_key": ["q"]})
    with pytest.raises(UsageError, match="no column body"):
        publish(broker, bodiless)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"without": ("body",)}, "'body' is not a property"),
        ({"routing_key": "a", "routing_key_column": "b"}, "not both"),
        ({"routing_key_column": "colour"}, "cannot be the routing key"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    broker: ExportBroker, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    write_parquet(tmp_path, {"body": ["a"]})
    with pytest.raises(UsageError, match=reason):
        publish(broker, tmp_path, **options)


def test_a_directory_without_files_is_refused(broker: ExportBroker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no files"):
        publish(broker, tmp_path)
    with pytest.raises(UsageError, match="not a directory"):
        publish(broker, tmp_path / "nowhere")


def test_a_plan_says_how_much_is_done(broker: ExportBroker, tmp_path: Path) -> None:
    directory = exported(broker, tmp_path, some(5))

    def plan() -> tuple[int, int | None, int]:
        found = Import(broker, ImportOptions(directory), Watched()).plan()
        return found.files, found.rows, found.done

    assert plan() == (1, 5, 0)
    publish(broker, directory)
    assert plan() == (1, 5, 5)


# --- texts -------------------------------------------------------------------------------------------------------


@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1))
@example(-62_167_219_200_000_001)  # the last moment of the year -1
@example(-62_167_219_200_000_000)
@example(-93_692_592_000_000_000)
@example(-377_736_739_200_000_000)
@example(253_402_300_800_000_000)
def test_times_of_any_year_come_back_from_their_text(micros: int) -> None:
    batch = pa.RecordBatch.from_pydict({"t": pa.array([micros]).view(TIMESTAMP_TYPE)})
    (text,) = json.loads(json_lines(batch)).values()
    assert micros_of(text) == micros


def test_times_with_zones_are_understood() -> None:
    assert micros_of("1970-01-01T01:00:00+01:00") == 0
    assert micros_of("1970-01-01 00:00:00.5Z") == 500_000
    for text in ("1970-13-01T00:00:00Z", "1970-01-32T00:00:00Z", "noon", ""):
        with pytest.raises(ValueError, match=r"time|isoformat|month|day"):
            micros_of(text)
    assert micros_of("294247-01-10T04:00:54.775807Z") == (1 << 63) - 1
    for text in ("294247-01-10T04:00:54.775808Z", "-300000-01-01T00:00:00Z", "9999999999-01-01T00:00:00Z"):
        with pytest.raises(ValueError, match="beyond the years"):
            micros_of(text)


@given(st.lists(st.text(), min_size=1, max_size=5), st.floats())
def test_json_lines_are_json(texts: list[str], number: float) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            'na"me': pa.array([*texts, None], pa.string()),
            "d": pa.array([number] * (len(texts) + 1)),
            "m": pa.array([[(text, text)] for text in texts] + [None], pa.map_(pa.string(), pa.string())),
        }
    )
    found = [json.loads(line) for line in json_lines(batch).split(b"\n")[:-1]]
    assert [row.get('na"me') for row in found] == [*texts, None]
    assert [row.get("m") for row in found] == [*({text: text} for text in texts), None]
    assert all(repr(float(row["d"])) == repr(number) for row in found)


PERSISTENT, TRANSIENT = b"\x10\x00\x02", b"\x00\x00"


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl", "csv"])
@pytest.mark.parametrize("without", [(), ("delivery_mode",)])
def test_messages_of_files_without_delivery_mode_are_persistent_unless_that_is_left_out(
    broker: ExportBroker, tmp_path: Path, form: str, without: tuple[str, ...]
) -> None:
    table = pa.table({"body": [b"a", b"b"], "routing_key": ["k", "l"]})
    path = tmp_path / f"rows.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "arrow":
        feather.write_feather(table, path, compression="uncompressed")
    elif form == "jsonl":
        path.write_bytes(b'{"body":"a","routing_key":"k"}\n{"body":"b","routing_key":"l"}\n')
    else:
        path.write_bytes(b"body,routing_key\na,k\nb,l\n")
    publish(broker, tmp_path, exchange="ex", without=without)
    assert {each.properties for each in broker.published} == {TRANSIENT if without else PERSISTENT}


def test_a_delivery_mode_that_a_file_has_holds(broker: ExportBroker, tmp_path: Path) -> None:
    table = pa.table({"body": [b"a", b"b"], "delivery_mode": pa.array([None, 2], pa.int16())})
    pq.write_table(table, tmp_path / "rows.parquet")
    publish(broker, tmp_path, exchange="ex", routing_key="k")
    assert [each.properties for each in broker.published] == [TRANSIENT, PERSISTENT]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("columns", [None, "offset,body,routing_key,exchange"])
def test_what_was_exported_is_transient_only_if_it_is_known_to_have_been(
    broker: ExportBroker, tmp_path: Path, form: str, columns: str | None
) -> None:
    given = {} if columns is None else {"columns": tuple(columns.split(","))}
    publish(broker, exported(broker, tmp_path / "out", some(3), form=form, **given))
    assert {each.properties for each in broker.published} == {TRANSIENT if columns is None else PERSISTENT}


def test_an_empty_file_of_csv_has_no_rows(broker: ExportBroker, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"")
    with gzip.open(tmp_path / "b.csv.gz", "wb"):
        pass
    (tmp_path / "c.csv").write_bytes(b"body\nx\n")
    assert publish(broker, tmp_path, exchange="ex", routing_key="k").published == 1


@pytest.mark.parametrize("value", [pa.array([1_712_010_112]), pa.array([1.5]), pa.array(["1712010112345"])])
def test_a_number_is_no_time(broker: ExportBroker, tmp_path: Path, value: pa.Array) -> None:
    pq.write_table(pa.table({"body": [b"a"], "message_timestamp": value}), tmp_path / "rows.parquet")
    with pytest.raises(DamagedFile, match="does not say its unit"):
        publish(broker, tmp_path, exchange="ex", routing_key="k")


def test_a_message_that_no_part_can_hold_is_named_before_anything_of_its_commit_is_sent(
    broker: ExportBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_files, "PART_BYTES_MOST", 1000)
    pq.write_table(pa.table({"body": [b"a", b"b" * 2000, b"c"]}), tmp_path / "rows.parquet")
    with pytest.raises(DamagedFile, match=r"row 1 becomes a message of 20.. bytes"):
        publish(broker, tmp_path, exchange="ex", routing_key="k")
    assert broker.published == []
