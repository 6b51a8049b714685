"""`warren store` and what is sealed of streams: every message once, damage told, and what a start would do about it."""

from __future__ import annotations

import json
import os
import zlib
from base64 import b64decode
from functools import partial
from pathlib import Path

import pytest
from store_directory import STORE_ID, TIME_MS, ack, checkpoint_page, checkpoint_queue, message, queue_deleted

from warren.amqp.specification import ContentHeader
from warren.msgstore.files.file_system import OsFileSystem
from warren.msgstore.files.recovery import log_has, recover
from warren.msgstore.files.sealed_files import CLEAR_BYTES
from warren.msgstore.files.store import Store
from warren.msgstore.log.columns import BODIES, CHUNK_HEAD_BYTES
from warren.msgstore.tools.stored_state import new_log

from .stores import (
    HEADERS,
    Lines,
    StreamStore,
    actions,
    bodies,
    body_at,
    of_type,
    problems,
    repaired,
    run,
)

EVENTS = [body_at(offset).decode() for offset in range(24)]
FIRST, LAST = (f"streams/0000000002-{number:020d}" for number in (0, 10))


def events(store: StreamStore) -> tuple[list[object], list[tuple[str, int, int]]]:
    """Return what `dump-queue` prints of the stream, and what, from where and how many it says are missing."""
    code, lines = run("dump-queue", store.path, "--queue", "events")
    missing = [(line["what"], line["sequence_number"], line["messages"]) for line in of_type(lines, "problem")]
    assert code == (1 if missing else 0)
    numbers = [line["sequence_number"] for line in of_type(lines, "message")]
    assert bodies(lines) == [body_at(number).decode() for number in numbers]
    return numbers, missing


def notes(lines: Lines) -> list[str]:
    return [line["what"] for line in of_type(lines, "note")]


def started(store: StreamStore) -> list[str]:
    """Open a broker's store; return what is wrong, as it sees it."""
    begun = Store(OsFileSystem(str(store.path / "messages")))
    begun.open()
    log = new_log()
    recover(begun, log, STORE_ID)
    found = begun.scan_sealed(STORE_ID, partial(log_has, log))
    begun.close()
    return found.problems


# --- what is whole ----------------------------------------------------------------------------------------------------


def test_a_stream_is_dumped_from_its_files_and_the_log_each_message_once(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    code, lines = run("dump-queue", store.path, "--queue", "events")
    assert (code, bodies(lines)) == (0, EVENTS)
    assert [line["sequence_number"] for line in lines] == list(range(24))
    in_log, sealed = lines[22], lines[3]
    differs = {"sequence_number", "time_ms", "body", "body_bytes"}
    assert {key: value for key, value in sealed.items() if key not in differs} == {
        key: value for key, value in in_log.items() if key not in differs
    }
    assert (sealed["time_ms"], in_log["time_ms"]) == (TIME_MS + 3, TIME_MS + 22)


def test_an_export_has_what_is_sealed_with_every_type_tag(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    code, lines = run("export", store.path, "--output", tmp_path / "out")
    assert (code, lines) == (0, [{"type": "summary", "queues": 2, "messages": 25, "problems": 0}])
    exported = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [line.get("body") for line in exported] == [*EVENTS, "order"]
    headers = {line["content_header"] for line in exported[10:23]}  # their bodies have one size
    assert len(headers) == 1, "the same in a chunk as in the log"
    header = ContentHeader.parse(b64decode(headers.pop()))
    assert (header.body_size, header.properties["headers"]) == (8, HEADERS)
    only = tmp_path / "only"
    assert run("export", store.path, "--output", only, "--queue", "orders")[1][0]["messages"] == 1


def test_verify_and_inspect_count_what_is_sealed(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    code, (summary,) = run("verify", store.path)
    assert (code, summary["messages"], summary["problems"]) == (0, 25, 0)
    assert summary["sealed"] == {"files": 2, "chunks": 4, "messages": 20}
    code, lines = run("inspect", store.path)
    assert code == 0
    first, last = of_type(lines, "sealed")
    assert (first["file"], last["file"]) == (FIRST, LAST)
    assert first == {
        "type": "sealed",
        "file": FIRST,
        "queue_id": 2,
        "vhost": "/",
        "queue": "events",
        "file_bytes": store.size(0),
        "chunks": 2,
        "compacted": 0,
        "messages": 10,
        "body_bytes": 70,
        "first_sequence_number": 0,
        "next_sequence_number": 10,
        "first_time": "2023-11-14T22:13:20.000+00:00",
        "last_time": "2023-11-14T22:13:20.009+00:00",
        "gaps": [],
    }
    orders, shown = of_type(lines, "queue")
    assert "sealed" not in orders
    assert (shown["messages"], shown["body_bytes"], shown["next_sequence_number"]) == (24, sum(map(len, EVENTS)), 24)
    assert shown["sealed"] == {
        "segments": 2,
        "chunks": 4,
        "messages": 20,
        "first_sequence_number": 0,
        "next_sequence_number": 20,
        "stored_bytes": store.size(0) + store.size(10),
        "damaged": 0,
    }


@pytest.mark.parametrize(
    "arguments", [("inspect",), ("verify",), ("dump-queue", "--queue", "events"), ("repair",)], ids=lambda a: a[0]
)
def test_reading_changes_nothing_whatever_a_start_would_do(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    store = StreamStore(tmp_path / "data")
    store.flip(0, store.places[1])
    os.truncate(store.file(10), store.size(10) - 64)
    store.log.frame(message((2, 24)))
    store.file(0).with_suffix(".new").write_bytes(b"half")
    before = store.snapshot()
    run(arguments[0], store.path, *arguments[1:])
    assert store.snapshot() == before


def test_what_compaction_has_removed_is_not_missing(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.file(0).unlink()
    store.seal([2, 7], 0, 0, end=10, compacted=True)
    assert run("verify", store.path)[0] == 0
    assert of_type(run("inspect", store.path)[1], "sealed")[0]["compacted"] == 1
    assert events(store) == ([2, 7, *range(10, 24)], [])


def test_what_compaction_has_left_over_does_not_count(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.file(0).unlink()
    store.seal([2, 7, 11], 0, 0, end=15, compacted=True)
    store.seal(range(15, 20), 15, 0)
    store.file(0).with_suffix(".new").write_bytes(b"half")
    code, lines = run("verify", store.path)
    assert (code, [(line["what"], line["file"]) for line in of_type(lines, "note")]) == (
        0,
        [
            ("an unfinished compaction: the next start removes it", f"{FIRST}.new"),
            ("compaction has merged it into the one before: the next start removes it", LAST),
        ],
    )
    assert events(store) == ([2, 7, 11, *range(15, 24)], [])
    assert run("repair", store.path)[0] == 0
    assert started(store) == []
    assert (notes(run("verify", store.path)[1]), events(store)[0]) == ([], [2, 7, 11, *range(15, 24)])


def test_what_the_log_had_lost_before_it_was_sealed_is_noted(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.file(0).unlink()
    store.seal([0, 1, 4, 5, 6, 7, 8, 9], 0, 0)
    code, lines = run("verify", store.path)
    (line,) = of_type(lines, "note")
    what = "the log had lost messages before they were sealed"
    assert (code, line["what"], line["file"], line["messages"]) == (0, what, FIRST, 2)


def test_retention_leaves_nothing_that_is_missed(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.file(0).unlink()
    assert (run("verify", store.path)[0], events(store)) == (0, (list(range(10, 24)), []))


def test_a_stream_that_the_log_does_not_know_is_noted_and_exported(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.log.frame(queue_deleted(2))
    code, lines = run("verify", store.path)
    (line,) = of_type(lines, "note")
    assert (code, line["what"], line["queue_id"]) == (0, "the log does not know this stream", 2)
    assert of_type(lines, "summary")[0]["messages"] == 21
    code, lines = run("export", store.path, "--output", tmp_path / "out")
    assert (code, lines[0]["queues"], lines[0]["messages"]) == (0, 2, 21)
    exported = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert (exported[1]["queue"], exported[1]["queue_id"], exported[1]["body"]) == (None, 2, "event 0")
    code, lines = run("export", store.path, "--output", tmp_path / "only", "--queue", "orders")
    assert (code, lines[0]["queues"], lines[0]["messages"]) == (0, 1, 1)
    shown = of_type(run("inspect", store.path)[1], "queue")[1]
    assert (shown["queue"], shown["deleted"], shown["sealed"]["messages"]) == ("events", True, 20)


def test_files_that_are_no_segments_are_noted(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    (store.path / "messages" / "streams" / "notes.txt").write_text("mine")
    store.file(0).with_suffix(".mine").write_text("mine")
    code, lines = run("verify", store.path)
    assert (code, [line["file"] for line in of_type(lines, "note")]) == (0, [f"{FIRST}.mine", "streams/notes.txt"])


# --- what is not ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (0, "there is no chunk"),
        (20, "the head of a chunk is damaged"),
        (180, "the head of a chunk is damaged"),
        (CHUNK_HEAD_BYTES, "wrong crc of a chunk"),
        (CHUNK_HEAD_BYTES + 60, "wrong crc of a chunk"),
    ],
)
@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_a_flipped_bit_in_a_chunk_costs_that_chunk(tmp_path: Path, place: int, what: str, chunk: int) -> None:
    store = StreamStore(tmp_path / "data")
    file, position = (FIRST, LAST)[chunk // 2], store.places[chunk]
    store.flip(chunk // 2 * 10, position + place)
    code, lines = run("verify", store.path)
    (problem,) = of_type(lines, "problem")
    assert (code, problem["what"]) == (1, f"damage: {what}")
    assert (problem["file"], problem["position"]) == (file, position)
    assert (problem["vhost"], problem["queue"]) == ("/", "events")
    lost = range(5 * chunk, 5 * chunk + 5)
    shown = of_type(run("inspect", store.path)[1], "queue")[1]
    assert (shown["messages"], shown["sealed"]["damaged"], shown["sealed"]["chunks"]) == (19, 1, 3)
    left = [number for number in range(24) if number not in lost]
    if chunk == 0:  # nobody can tell what was before the first that is whole
        assert events(store) == (left, [])
        return
    assert notes(lines) == ["messages are lost with the damaged data"]
    missing = ("messages are missing: what was sealed is damaged, or not there", 5 * chunk, 5)
    assert events(store) == (left, [missing])


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        (56 + 8 * BODIES + 4, 999, "no zstd frame that can be read: error when determining content size"),
        (12, 4, "5 offsets of 4 messages"),
        (48, 9, "half of a number among the names"),
    ],
    ids=["size", "count", "routes"],
)
def test_a_chunk_whose_checksums_are_right_and_whose_columns_are_not_is_damage(
    tmp_path: Path, place: int, value: int, what: str
) -> None:
    store = StreamStore(tmp_path / "data")
    data = bytearray(store.file(0).read_bytes())
    at = store.places[1]
    data[at + place : at + place + 4] = value.to_bytes(4, "little")
    data[at + 188 : at + 192] = zlib.crc32(data[at : at + 188]).to_bytes(4, "little")
    store.file(0).write_bytes(data)
    assert problems(run("verify", store.path)[1]) == [f"damage: a chunk that does not fit together: {what}"]
    numbers, missing = events(store)
    assert numbers == [*range(5), *range(10, 24)]
    assert missing == [(f"a chunk that does not fit together: {what}", 5, value if place == 12 else 5)]
    assert actions(repaired_sealed(store))[:2] == [
        f"copied to the quarantine: a chunk that does not fit together: {what}",
        "counted as damaged: neither sealed nor in the log",
    ]


def test_repair_copies_a_damaged_file_and_counts_what_is_lost(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.flip(0, store.places[1] + 250)
    corrupt = store.file(0).read_bytes()
    lines = repaired_sealed(store)
    assert actions(lines) == [
        "copied to the quarantine: wrong crc of a chunk",
        "counted as damaged: neither sealed nor in the log",
        "a new checkpoint is written",
    ]
    (copy,) = (store.path / "messages" / "quarantine").glob("stream-*")
    assert (copy.read_bytes(), store.file(0).read_bytes()) == (corrupt, corrupt)
    assert (of_type(lines, "queue")[0]["damaged"], of_type(lines, "queue")[0]["messages"]) == (5, 19)
    assert of_type(lines, "summary")[0]["messages"] == 20
    assert notes(run("verify", store.path)[1]) == [
        "damage that was found before, a copy is in the quarantine: wrong crc of a chunk",
        "messages are lost with the damaged data",
    ]
    assert started(store) == [], "only heads are looked at"
    assert events(store)[0] == [*range(5), *range(10, 24)]


def repaired_sealed(store: StreamStore) -> Lines:
    return repaired(store.log)


@pytest.mark.parametrize("size", [1, CHUNK_HEAD_BYTES - 1, CHUNK_HEAD_BYTES + 64, -1])
def test_a_torn_end_whose_messages_the_log_still_has_is_none_to_worry_about(tmp_path: Path, size: int) -> None:
    store = StreamStore(tmp_path / "data")
    whole = store.size(10)
    store.seal(range(20, 24), 10, whole)
    os.truncate(store.file(10), whole + size if size > 0 else store.size(10) + size)
    code, lines = run("verify", store.path)
    (line,) = of_type(lines, "note")
    assert (code, line["what"].partition(":")[0]) == (0, "torn end, as a crash leaves it")
    assert (line["position"], line["end_position"]) == (whole, store.size(10))
    assert run("repair", store.path)[0] == 0
    assert events(store) == (list(range(24)), [])
    assert started(store) == []
    assert (store.size(10), run("verify", store.path)[1][0]["type"]) == (whole, "summary")


def test_a_torn_end_of_a_file_that_is_not_the_last_is_damage(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    os.truncate(store.file(0), store.size(0) - 1)
    assert problems(run("verify", store.path)[1]) == ["damage: the file ends in a chunk"]


@pytest.mark.parametrize("size", [0, 10, 63, 64, 200])
def test_a_file_that_was_just_begun_is_torn(tmp_path: Path, size: int) -> None:
    store = StreamStore(tmp_path / "data")
    store.seal(range(20, 24), 20, 0)
    os.truncate(store.file(20), size)
    code, lines = run("verify", store.path)
    assert code == 0
    assert [line.partition(":")[0].partition(",")[0] for line in notes(lines)] in (["torn"], ["torn end"], [])
    assert run("repair", store.path)[0] == 0
    assert started(store) == []
    assert not store.file(20).exists()


def test_a_file_that_was_just_begun_is_not_torn_when_the_log_has_forgotten_what_was_in_it(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.log.frame(ack(2, (17, 4)))
    store.seal(range(20, 21), 20, 0)
    os.truncate(store.file(20), 10)
    assert problems(run("verify", store.path)[1]) == ["the file does not begin like a segment of a stream"]
    lines = repaired_sealed(store)
    assert actions(lines)[:2] == [
        "set aside: the file does not begin like a segment of a stream",
        "counted as damaged: neither sealed nor in the log",
    ]
    assert of_type(lines, "queue")[0]["damaged"] == 1


@pytest.mark.parametrize("how", ["corruption", "cut", "gone"])
def test_an_end_that_the_log_does_not_have_any_more_is_lost(tmp_path: Path, how: str) -> None:
    store = StreamStore(tmp_path / "data")
    store.log.frame(ack(2, (17, 4)))  # up to 21, and 20 is sealed here only:
    store.file(10).unlink()
    for first in (10, 14):
        position = 0 if first == 10 else store.size(10)
        store.seal(range(first, first + (4 if first == 10 else 7)), 10, position)
    if how == "corruption":
        store.flip(10, store.places[-1] + CHUNK_HEAD_BYTES)
    else:
        os.truncate(store.file(10), store.places[-1] + (300 if how == "cut" else 0))
    damaged = store.file(10).read_bytes()
    code, lines = run("verify", store.path)
    assert code == 1
    whats = {
        "corruption": "damage: wrong crc of a chunk",
        "cut": "damage: the file ends in a chunk",
        "gone": "messages are missing: neither sealed nor in the log",
    }
    assert problems(lines) == [whats[how]]
    missing = ("messages are missing: what was sealed is damaged, or not there", 14, 7)
    assert events(store) == ([*range(14), *range(21, 24)], [missing])
    lines = repaired_sealed(store)
    assert of_type(lines, "queue")[0]["damaged"] == 7
    copies = [copy.read_bytes() for copy in (store.path / "messages" / "quarantine").glob("stream-*")]
    assert copies == ([] if how == "gone" else [damaged])
    problem = [] if how == "gone" else [f"{LAST} is damaged at byte {store.places[-1]}"]
    assert (started(store), store.file(10).read_bytes()) == (problem, damaged), "it is evidence"
    code, lines = run("verify", store.path)
    found_before = f"damage that was found before, a copy is in the quarantine: {whats[how].partition(': ')[2]}"
    lost = [found_before, "messages are lost with the damaged data"]
    assert (code, notes(lines)) == (0, ["messages are missing, and counted as damaged"] if how == "gone" else lost)


def test_what_the_log_has_forgotten_and_nobody_has_sealed_is_missing(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.log.frame(ack(2, (17, 7)))
    (problem,) = of_type(run("verify", store.path)[1], "problem")
    assert (problem["what"], problem["sequence_number"], problem["messages"]) == (
        "messages are missing: neither sealed nor in the log",
        20,
        4,
    )
    assert events(store)[1] == [("messages are missing: what was sealed is damaged, or not there", 20, 4)]


def test_a_file_that_is_missing_is_a_problem_until_it_is_repaired(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.seal(range(20, 24), 20, 0)
    store.file(10).unlink()
    code, lines = run("verify", store.path)
    (problem,) = of_type(lines, "problem")
    assert (code, problem["what"]) == (1, "messages are missing: neither sealed nor in the log")
    assert (problem["sequence_number"], problem["messages"]) == (10, 10)
    missing = ("messages are missing: what was sealed is damaged, or not there", 10, 10)
    assert events(store) == ([*range(10), *range(20, 24)], [missing])
    lines = repaired_sealed(store)
    assert actions(lines)[0] == "counted as damaged: neither sealed nor in the log"
    assert notes(run("verify", store.path)[1]) == ["messages are missing, and counted as damaged"]


@pytest.mark.parametrize("at", [0, 20, 35, 45, 62], ids=["magic", "store", "stream", "first", "crc"])
@pytest.mark.parametrize("has_begun", [False, True], ids=["found", "set-aside"])
@pytest.mark.parametrize("segment", [0, 10])
def test_repair_makes_a_damaged_header_again(tmp_path: Path, at: int, has_begun: bool, segment: int) -> None:
    store = StreamStore(tmp_path / "data")
    store.log.frame(ack(2, (17, 3)))
    whole = store.file(segment).read_bytes()
    store.flip(segment, at)
    corrupt = store.file(segment).read_bytes()
    path = (FIRST, LAST)[segment // 10]
    if has_begun:
        assert len(started(store)) == 1
        path += ".unusable"
    code, lines = run("verify", store.path)
    assert code == 1
    told = of_type(lines, "problem")[0]
    assert told["file"] == path
    assert told["what"].startswith("a file was set aside, and" if has_begun else "the file ")
    assert of_type(run("inspect", store.path)[1], "sealed")[has_begun or segment // 10]["messages"] == 10
    assert events(store)[0] == [number for number in range(24) if not segment <= number < segment + 10]
    lines = repaired_sealed(store)
    assert actions(lines)[0].startswith("the header is made again: the file ")
    assert store.file(segment).read_bytes() == whole
    (copy,) = (store.path / "messages" / "quarantine").glob("stream-*")
    assert copy.read_bytes() == corrupt
    assert started(store) == []
    assert (notes(run("verify", store.path)[1]), events(store)) == ([], (list(range(24)), []))


def test_a_file_whose_place_is_taken_stays_where_it_was_set_aside(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.flip(10, 0)
    evidence = store.file(10).read_bytes()
    started(store)
    aside = store.file(10).with_suffix(".unusable")
    store.seal(range(10, 20), 10, 0)
    code, lines = run("verify", store.path)
    (line,) = of_type(lines, "note")
    assert (code, line["file"], line["messages"]) == (0, f"{LAST}.unusable", 10)
    assert run("repair", store.path)[0] == 0
    assert aside.read_bytes() == evidence
    # Nor does it come back before what retention has left.
    store.file(0).unlink()
    store.file(10).unlink()
    store.seal(range(22, 24), 22, 0)
    assert (run("verify", store.path)[0], run("repair", store.path)[0]) == (0, 0)


def test_a_file_does_not_come_back_over_what_is_torn_or_beside_what_was_sealed_again(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.flip(10, 0)
    evidence = store.file(10).read_bytes()
    started(store)
    store.log.frame(message((2, 10), body=body_at(10)))  # the log has it again, as after a power cut
    store.file(10).write_bytes(b"torn")
    assert notes(run("verify", store.path)[1])[0].startswith("a file was set aside: its header")
    store.path.chmod(0o700)
    assert run("repair", store.path, "--apply")[0] == 0
    assert store.file(10).read_bytes() == b"torn"
    store.file(10).unlink()
    store.seal(range(12, 20), 12, 0)
    lines = repaired_sealed(store)
    assert actions(lines) == ["counted as damaged: neither sealed nor in the log", "a new checkpoint is written"]
    assert store.file(10).with_suffix(".unusable").read_bytes() == evidence


def test_a_file_without_a_header_and_a_whole_chunk_is_set_aside(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.log.frame(ack(2, (17, 3)))
    store.file(10).write_bytes(b"no segment at all" * 30)
    store.file(10).with_suffix(".unusable").write_bytes(b"from before")
    assert problems(run("verify", store.path)[1])[0] == "the file does not begin like a segment of a stream"
    lines = repaired_sealed(store)
    assert actions(lines)[0] == "set aside: the file does not begin like a segment of a stream"
    assert not store.file(10).exists()
    assert store.file(10).with_suffix(".unusable").read_bytes() == b"from before"
    assert store.file(10).with_suffix(".unusable.2").read_bytes() == b"no segment at all" * 30
    assert of_type(lines, "queue")[0]["damaged"] == 10
    assert events(store)[0] == [*range(10), *range(20, 24)]


def test_a_file_of_another_store_is_a_problem_and_its_chunks_do_not_count(tmp_path: Path) -> None:
    store, other = StreamStore(tmp_path / "data"), StreamStore(tmp_path / "other")
    other._sealed.store_id = bytes(16)
    other.file(0).unlink()
    other.seal(range(10), 0, 0)
    store.file(0).write_bytes(other.file(0).read_bytes())
    lines = run("verify", store.path)[1]
    assert problems(lines) == [f"the file is of another store, {bytes(16).hex()}"]
    assert events(store) == (list(range(10, 24)), [])
    assert actions(repaired_sealed(store))[0].startswith("set aside: the file is of another store")


def test_a_later_format_cannot_be_read(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    data = bytearray(store.file(0).read_bytes())
    data[8] = 2
    data[60:64] = zlib.crc32(data[:60]).to_bytes(4, "little")
    store.file(0).write_bytes(data)
    assert run("dump-queue", store.path, "--queue", "events") == (2, [])
    assert run("verify", store.path)[0] == 2


@pytest.mark.parametrize("segment", [10, 15])
def test_a_chunk_that_was_sealed_again_counts_once(tmp_path: Path, segment: int) -> None:
    """The end of a file could not be read for a while: see ``sealed_files.py`` (2), (7)."""
    store = StreamStore(tmp_path / "data")
    store.seal(range(15, 22), segment, CLEAR_BYTES if segment == 10 else 0)
    code, lines = run("verify", store.path)
    assert (code, lines[0]["sealed"]["chunks"], lines[0]["messages"]) == (0, 4, 25)
    assert events(store) == (list(range(24)), [])
    assert started(store) == []


def test_zeros_where_a_chunk_should_be_are_damage(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    data = bytearray(store.file(0).read_bytes())
    data[store.places[0] : store.places[1]] = bytes(store.places[1] - store.places[0])
    store.file(0).write_bytes(data)
    assert problems(run("verify", store.path)[1]) == ["damage: there is no chunk"]


def test_a_page_of_the_index_that_is_lost_costs_nothing_that_is_sealed(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "data")
    store.file(0).unlink()
    store.file(10).unlink()
    store.seal(range(256), 0, 0)
    lost = checkpoint_page(0, [], lsn=120, length=24, live_count=9)
    store.log.checkpoint(checkpoint_queue(2, "events", next_number=256, pages=[lost]), live_refs={1: 10})
    assert events(store) == (list(range(256)), [])
    store.file(0).unlink()
    store.seal(range(250), 0, 0)
    assert events(store)[1] == [("a page of the index is lost", 0, 9)]


def test_a_checkpoint_that_knows_the_stream_is_enough(tmp_path: Path) -> None:
    """Everything is sealed, and the log has forgotten all of it."""
    store = StreamStore(tmp_path / "data")
    store.seal(range(20, 24), 10, store.size(10))
    orders = checkpoint_queue(1, "orders", next_number=1)
    store.log.checkpoint(orders, checkpoint_queue(2, "events", next_number=24), live_refs={})
    store.log.file(1).unlink()
    code, lines = run("verify", store.path)
    assert (code, of_type(lines, "summary")[0]["messages"]) == (0, 24)
    assert events(store) == (list(range(24)), [])
