"""`warren store inspect`: segments, frames, records and queues, and damage where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_directory import (
    STORE_ID,
    ack,
    message,
)

from warren.msgstore.tools.format import (
    FRAME_HEAD_BYTES,
)

from .stores import HEADERS, of_type, run, small_store


def test_inspect_shows_segments_queues_and_the_store(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    code, lines = run("inspect", store.path)
    assert code == 0
    first, second, third = of_type(lines, "segment")
    assert (first["segment"], first["base_lsn"], first["capacity"], first["epoch"]) == (1, 0, 65536, 1)
    assert (first["frames"], first["records"], first["checksum"]) == (3, 7, "crc32c")
    assert first["kinds"] == {"EPOCH": 1, "QUEUE": 2, "MESSAGE": 3, "ACK": 1}
    assert first["first_time"] == "2023-11-14T22:13:20.064+00:00"
    assert (second["frames"], second["end_lsn"]) == (2, 65536 + store.file(2).stat().st_size)
    assert (third["epoch"], third["gaps"]) == (2, [])
    names = [(line["queue_id"], line["vhost"], line["queue"]) for line in of_type(lines, "queue")]
    assert names == [(1, "/", "orders"), (2, "/tests", "käse")]
    (shown,) = of_type(lines, "store")
    assert (shown["store_id"], shown["epoch"], shown["segments"]) == (STORE_ID.hex(), 2, 3)


def test_inspect_shows_the_frames_and_records_of_one_segment(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    _, lines = run("inspect", store.path, "--segment", 2, "--records")
    assert [line["records"] for line in of_type(lines, "frame")] == [1, 2]
    assert [line["kind"] for line in of_type(lines, "record")] == ["MESSAGE", "MESSAGE", "ACK"]
    assert [line["segment"] for line in of_type(lines, "segment")] == [2]


def test_inspect_shows_one_message_in_full_by_any_lsn_inside_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    lsn = store.frame(
        message(
            (1, 5),
            (2, 9),
            body=b"\xff\x00",
            exchange="amq.headers",
            routing_key="schlüssel",
            properties={"content_type": "application/x", "priority": 7, "headers": HEADERS},
            flags=4,
        )
    )
    for inside in (0, 1, 50):
        code, (frame, record) = run("inspect", store.path, "--lsn", lsn + FRAME_HEAD_BYTES + inside)
        assert code == 0
        assert (frame["type"], frame["lsn"]) == ("frame", lsn)
        assert (record["type"], record["lsn"], record["kind"]) == ("record", lsn + FRAME_HEAD_BYTES, "MESSAGE")
        assert record["flags"] == ["MOVED"]
        assert record["places"] == [
            {"queue_id": 1, "sequence_number": 5},
            {"queue_id": 2, "sequence_number": 9},
        ]
        assert (record["exchange"], record["routing_key"]) == ("amq.headers", "schlüssel")
        assert (record["body_base64"], record["body_bytes"]) == ("/wA=", 2)
        assert record["properties"] == {
            "content_type": "application/x",
            "priority": 7,
            "headers": {
                "n": -1,
                "t": {"timestamp": 5},
                "b": {"base64": "AQ=="},
                "d": {"decimal": "1.5"},
                "f": {"float": "nan"},
                "l": ["x", {"y": True}, None],
            },
        }


def test_inspect_shows_other_records_in_full(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    lsn = store.frame(ack(7, (0, 5), (9, 1)))
    _, (_, record) = run("inspect", store.path, "--lsn", lsn + FRAME_HEAD_BYTES)
    assert (record["queue_id"], record["ranges"]) == (7, [{"first": 0, "count": 5}, {"first": 9, "count": 1}])
    assert "zero" not in record


def test_inspect_shows_damage_where_it_is(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    lsn = store.frame(message((1, 5)))
    store.frame(message((1, 6)))
    store.flip(lsn + 60)
    _, (gap,) = run("inspect", store.path, "--lsn", lsn + 8)
    assert (gap["type"], gap["lsn"], gap["what"]) == ("gap", lsn, "wrong frame crc")
    assert of_type(run("inspect", store.path)[1], "segment")[2]["gaps"] == [gap]


@pytest.mark.parametrize("options", [("--lsn", 65000), ("--lsn", 10**9), ("--segment", 9)])
def test_inspect_of_what_is_not_there_has_exit_code_2(tmp_path: Path, options: tuple[object, ...]) -> None:
    store = small_store(tmp_path / "data")
    assert run("inspect", store.path, *options) == (2, [])
