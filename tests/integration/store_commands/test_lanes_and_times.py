"""`warren store` and queues with lanes: priorities, delayed messages, messages that expire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from store_directory import StoreDirectory, ack, checkpoint_page, checkpoint_queue, epoch, message, page, queue

from warren.msgstore.log.checksum import CRC32C, checksum
from warren.msgstore.log.records import NOTES_FROM
from warren.msgstore.tools.format import EXPIRES, EXPIRING, FRAME_HEAD_BYTES, MOVED, TIMED, Checkpoint

from .stores import Lines, dumped, of_type, problems, repaired, run

NOW_MS = 1_700_000_000_000
LATER_MS = 1_800_000_000_000
SHORT_LIVED: dict[str, Any] = {"flags": EXPIRES, "properties": {"expiration": "60000"}, "time_ms": NOW_MS}


def store_with_lanes(path: Path) -> StoreDirectory:
    """Three lanes of one queue, one of which expires, and another queue."""
    store = StoreDirectory(path)
    store.frame(epoch(1), queue(1, "orders", lane=2), queue(2, "orders"), queue(3, "orders", lane=256))
    store.frame(queue(4, "other"), queue(5, "gone", lane=7, transient=True))
    store.frame(message((1, 0), body=b"low"), message((2, 0), body=b"high", time_ms=NOW_MS))
    store.frame(message((3, 0), body=b"held", time_ms=LATER_MS), message((1, 1), body=b"short-lived", **SHORT_LIVED))
    store.frame(message((2, 1), (4, 0), body=b"both"))
    return store


def lanes(lines: Lines) -> list[tuple[object, ...]]:
    return [tuple(line.get(name) for name in ("queue", "lane", "messages")) for line in of_type(lines, "queue")]


def test_inspect_shows_the_lanes_of_queues(tmp_path: Path) -> None:
    store = store_with_lanes(tmp_path / "data")
    code, lines = run("inspect", store.path)
    shown = of_type(lines, "queue")
    assert code == 0
    assert [(line["queue_id"], line["queue"], line.get("lane")) for line in shown] == [
        (1, "orders", 2),
        (2, "orders", None),
        (3, "orders", 256),
        (4, "other", None),
        (5, "gone", 7),
    ]
    assert ["lane" in line for line in shown] == [True, False, True, False, True]


def test_inspect_shows_the_time_of_a_message_and_the_lane_of_a_queue(tmp_path: Path) -> None:
    store = store_with_lanes(tmp_path / "data")
    records = of_type(run("inspect", store.path, "--records")[1], "record")
    flags = {record["lsn"]: record["flags"] for record in records if record["kind"] == "MESSAGE"}
    assert list(flags.values()) == [[], ["TIMED"], ["TIMED"], ["TIMED", "EXPIRES"], []]
    times = [run("inspect", store.path, "--lsn", lsn)[1][1].get("time_ms") for lsn in flags]
    assert times == [None, NOW_MS, LATER_MS, NOW_MS, None]
    queues = [record["lsn"] for record in records if record["kind"] == "QUEUE"]
    assert [run("inspect", store.path, "--lsn", lsn)[1][1]["lane"] for lsn in queues] == [2, 0, 256, 0, 7]


def test_what_the_broker_notes_for_itself_is_no_message(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    store.frame(epoch(1), queue(1, "orders"), queue(2, "orders", lane=NOTES_FROM))
    store.frame(message((1, 0), body=b"order"), message((2, 0), body=b"key of an order"))
    code, lines = run("dump-queue", store.path, "--queue", "orders")
    assert (code, [line["body"] for line in lines]) == (0, ["order"])
    assert lanes(run("inspect", store.path)[1]) == [("orders", None, 1), ("orders", NOTES_FROM, 1)]


def test_dump_queue_prints_lane_after_lane(tmp_path: Path) -> None:
    store = store_with_lanes(tmp_path / "data")
    code, lines = run("dump-queue", store.path, "--queue", "orders")
    assert code == 0
    shown = [tuple(line.get(name) for name in ("lane", "sequence_number", "time_ms", "body")) for line in lines]
    assert shown == [
        (None, 0, NOW_MS, "high"),
        (None, 1, None, "both"),
        (2, 0, None, "low"),
        (2, 1, NOW_MS, "short-lived"),
        (256, 0, LATER_MS, "held"),
    ]
    assert lines[3] == {
        "type": "message",
        "vhost": "/",
        "queue": "orders",
        "lane": 2,
        "sequence_number": 1,
        "redelivered": None,
        "exchange": "",
        "routing_key": "q",
        "properties": {"expiration": "60000"},
        "time_ms": NOW_MS,
        "body_bytes": 11,
        "body": "short-lived",
    }


def test_export_says_lane_and_time_and_counts_a_queue_once(tmp_path: Path) -> None:
    store = store_with_lanes(tmp_path / "data")
    output = tmp_path / "out"
    code, lines = run("export", store.path, "--output", output)
    assert (code, lines) == (0, [{"type": "summary", "queues": 2, "messages": 6, "problems": 0}])
    rows = [json.loads(row) for row in output.read_text().splitlines()]
    assert [(row["queue"], row.get("lane"), row.get("time_ms")) for row in rows] == [
        ("orders", None, NOW_MS),
        ("orders", None, None),
        ("orders", 2, None),
        ("orders", 2, NOW_MS),
        ("orders", 256, LATER_MS),
        ("other", None, None),
    ]


def test_a_store_with_lanes_and_times_has_no_problem(tmp_path: Path) -> None:
    store = store_with_lanes(tmp_path / "data")
    code, (summary,) = run("verify", store.path)
    assert (code, summary["queues"], summary["messages"], summary["records"]) == (0, 2, 6, 11)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (0, "the lengths in a message do not add up"),
        (EXPIRES, "the lengths in a message do not add up"),
        (TIMED | EXPIRES, None),
    ],
    ids=["untimed", "expires", "both"],
)
def test_a_time_that_is_not_where_the_flags_say_is_a_problem(tmp_path: Path, flags: int, what: str | None) -> None:
    store = store_with_lanes(tmp_path / "data")
    lsn = store.frame(message((2, 2), body=b"x", time_ms=NOW_MS))
    rewrite_flags(store, lsn, flags)
    assert problems(run("verify", store.path)[1])[:1] == ([] if what is None else [what])


def test_a_message_that_expires_from_no_time_on_is_a_problem(tmp_path: Path) -> None:
    store = store_with_lanes(tmp_path / "data")
    lsn = store.frame(message((2, 2), body=b"x"))
    rewrite_flags(store, lsn, EXPIRES)
    assert problems(run("verify", store.path)[1]) == ["a message expires and has no time"]


def rewrite_flags(store: StoreDirectory, lsn: int, flags: int) -> None:
    """Change the flags of the only record of the last frame, and put both checksums right."""
    data = store.file().read_bytes()
    frame = bytearray(data[store.offset(lsn) :])
    length = int.from_bytes(frame[60:64], "big")
    frame[FRAME_HEAD_BYTES + 9] = flags
    frame[56:60] = checksum(CRC32C, bytes(frame[60 : 56 + length])).to_bytes(4, "big")
    frame[52:56] = checksum(CRC32C, bytes(frame[:52] + frame[56:])).to_bytes(4, "big")
    store.file().write_bytes(data[: store.offset(lsn)] + bytes(frame))


def test_a_problem_with_a_message_tells_its_lane(tmp_path: Path) -> None:
    store = store_with_lanes(tmp_path / "data")
    wrong = checkpoint_queue(1, "orders", lane=2, next_number=1, pages=[checkpoint_page(0, [(64, 100, 3)])])
    store.checkpoint(wrong, live_refs={1: 1})
    (problem,) = of_type(run("verify", store.path)[1], "problem")
    assert (problem["what"], problem["queue_id"], problem["lane"]) == ("no intact message", 1, 2)
    (problem,) = of_type(run("dump-queue", store.path, "--queue", "orders")[1], "problem")
    assert problem["lane"] == 2
    lines = repaired(store)
    assert [line["lane"] for line in of_type(lines, "action") if "lane" in line] == [2]
    assert lanes(lines) == [("orders", 2, 0)]


@pytest.mark.parametrize("without", ["checkpoint", "page"])
def test_repair_keeps_lanes_and_what_expires(tmp_path: Path, without: str) -> None:
    store = store_with_lanes(tmp_path / "data")
    short_lived = next(
        record
        for record in of_type(run("inspect", store.path, "--records")[1], "record")
        if "EXPIRES" in record["flags"]
    )
    entries = [(0, 0, 0, 0), (short_lived["lsn"], EXPIRING, short_lived["length"], 11)]
    page_lsn = store.frame(ack(1, (0, 1)), page(1, 0, entries)) + FRAME_HEAD_BYTES + 40
    lost = checkpoint_page(0, [], lsn=page_lsn, length=64, live_count=1, body_bytes=11)
    store.checkpoint(
        checkpoint_queue(1, "orders", lane=2, next_number=2, pages=[lost], has_expiring=True), live_refs={1: 2}
    )
    store.frame(epoch(1))
    assert run("verify", store.path)[0] == 0
    path = store.path / "messages" / "checkpoint"
    if without == "checkpoint":
        path.write_bytes(b"nonsense")
    else:
        store.flip(page_lsn + 20)
    lines = repaired(store)
    assert lanes(lines)[-1 if without == "page" else 1] == ("orders", 2, 1)
    found = next(found for found in Checkpoint.parse(path.read_bytes()).queues if found.queue_id == 1)
    assert (found.lane, found.index_flags) == (2, 1)
    (entry,) = [entry for page in found.pages for entry in page.entries if entry.location["lsn"]]
    assert entry.location == {"lsn": short_lived["lsn"], "flags": EXPIRING}
    expected = ["short-lived"] if without == "page" else ["high", "both", "short-lived", "held"]
    assert dumped(store.path, "orders") == expected


def test_queues_that_have_lost_their_names_are_counted_one_by_one(tmp_path: Path) -> None:
    store = store_with_lanes(tmp_path / "data")
    store.begin_segment()
    store.frame(message((1, 2), (2, 2), (3, 1), body=b"nameless"))
    store.file(1).unlink()
    lines = repaired(store)
    assert lanes(lines) == [("", None, 1)] * 3
    assert of_type(lines, "summary")[0]["queues"] == 3


def test_a_message_that_has_replaced_another_is_the_only_one_after_any_repair(tmp_path: Path) -> None:
    for name, ack_of_it in (("whole", [ack(1, (0, 1))]), ("without-its-ack", [])):
        store = StoreDirectory(tmp_path / name)
        store.frame(epoch(1), queue(1, "orders"), message((1, 0), body=b"first"))
        store.frame(*ack_of_it, message((1, 0), body=b"second", **SHORT_LIVED))
        if ack_of_it:
            assert run("verify", store.path)[0] == 0
            assert dumped(store.path, "orders") == ["second"]
        (store.path / "messages" / "checkpoint").write_bytes(b"nonsense")
        repaired(store)
        assert dumped(store.path, "orders") == ["second"]
        (found,) = Checkpoint.parse((store.path / "messages" / "checkpoint").read_bytes()).queues
        assert (found.pages[0].live_count, found.pages[0].body_bytes, found.index_flags) == (1, 6, 1)


def test_what_compaction_has_moved_keeps_its_time(tmp_path: Path) -> None:
    store = store_with_lanes(tmp_path / "data")
    store.begin_segment()
    moved = {**SHORT_LIVED, "flags": EXPIRES | MOVED}
    store.frame(message((1, 1), body=b"short-lived", **moved))
    assert run("verify", store.path)[0] == 0
    (line,) = [line for line in run("dump-queue", store.path, "--queue", "orders")[1] if line["body"] == "short-lived"]
    assert (line["lane"], line["time_ms"]) == (2, NOW_MS)
