"""`warren store verify`: what is whole, torn, corrupt or foreign in the segments of a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_directory import (
    STORE_ID,
    StoreDirectory,
    epoch,
    message,
    queue,
)

from warren.msgstore.log.checksum import CRC32, CRC32C, checksum
from warren.msgstore.tools.format import (
    ALIGNMENT_BYTES,
    FRAME_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
)

from .stores import dumped, of_type, problems, repaired, rewrite_header, run, small_store, with_forged_frame


@pytest.mark.parametrize("algorithm", [CRC32C, CRC32])
def test_a_whole_store_has_no_problem(tmp_path: Path, algorithm: int) -> None:
    store = small_store(tmp_path / "data", algorithm=algorithm)
    store.preallocate()
    code, (summary,) = run("verify", store.path)
    assert code == 0
    assert summary == {
        "type": "summary",
        "store_id": STORE_ID.hex(),
        "segments": 3,
        "frames": 7,
        "records": 12,
        "payload_bytes": summary["payload_bytes"],
        "durable_lsn": summary["durable_lsn"],
        "end_lsn": store.end_lsn,
        "queues": 2,
        "messages": 5,
        "problems": 0,
    }


@pytest.mark.parametrize("name", ["spare", "new", "ahead"])
def test_a_segment_in_the_making_is_not_worth_a_note(tmp_path: Path, name: str) -> None:
    """A crash leaves it, and the next start removes it."""
    store = small_store(tmp_path / "data")
    store.file(1).with_name(name).write_bytes(bytes(100))
    code, lines = run("verify", store.path)
    assert code == 0
    assert of_type(lines, "note") == []


@pytest.mark.parametrize("cut", [8, 9, 56, 57])
def test_a_last_frame_that_was_cut_is_a_torn_tail_and_no_problem(tmp_path: Path, cut: int) -> None:
    store = small_store(tmp_path / "data")
    lsn = store.frame(message((1, 5), body=b"x" * 100))
    os.truncate(store.file(), store.offset(store.end_lsn) - cut)
    store.preallocate()
    code, lines = run("verify", store.path)
    assert code == 0
    (note,) = of_type(lines, "note")
    assert note["what"].startswith("torn tail")
    assert (note["segment"], note["lsn"]) == (3, lsn)


def test_what_was_written_and_not_synced_may_be_damaged_before_frames_that_are_whole(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    synced = store.end_lsn
    damaged = store.frame(message((1, 5), body=b"lost"), durable_lsn=synced)
    store.frame(message((1, 6), body=b"written in the meantime"), durable_lsn=synced)
    store.flip(damaged + 70)
    code, lines = run("verify", store.path)
    assert code == 0
    assert [line["lsn"] for line in of_type(lines, "note")] == [damaged]


@pytest.mark.parametrize("place", [0, 5, 9, 20, 53, 60, 100])
def test_a_flipped_bit_below_what_was_synced_is_rot(tmp_path: Path, place: int) -> None:
    store = small_store(tmp_path / "data")
    lsn = store.frame(message((1, 5), body=b"x" * 100))
    end = store.end_lsn
    store.frame(message((1, 6), body=b"behind"))
    store.flip(lsn + place)
    code, lines = run("verify", store.path)
    assert code == 1
    (problem,) = of_type(lines, "problem")
    assert problem["what"].startswith("corruption in synced data")
    assert (problem["segment"], problem["lsn"], problem["end_lsn"]) == (3, lsn, end)
    assert of_type(lines, "summary")[0]["problems"] == 1


def test_rot_in_a_frame_that_holds_the_image_of_a_frame_does_not_bring_that_to_life(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    store.frame(epoch(1), queue(1, "q"))
    # A frame that is right in every respect for the place where it will lie, in the body of a message.
    other = StoreDirectory(tmp_path / "other")
    other.end_lsn = store.end_lsn + 256
    other.frame(message((1, 66), body=b"forged"))
    forged = other.file().read_bytes()[SEGMENT_HEADER_BYTES:]
    lsn = store.end_lsn
    probe = len(message((1, 0), body=b"")["body"]["content"])
    start = FRAME_HEAD_BYTES + 24 + 16 + len("q") + probe + 7
    store.frame(message((1, 0), body=bytes(256 - start) + forged))
    assert store.file().read_bytes()[store.offset(lsn) + 256 :].startswith(forged)
    assert (lsn + 256) % ALIGNMENT_BYTES == 0
    behind = store.frame(message((1, 1), body=b"behind"))
    store.flip(lsn + 100)
    code, lines = run("verify", store.path)
    assert code == 1
    (problem,) = of_type(lines, "problem")
    assert (problem["lsn"], problem["end_lsn"]) == (lsn, behind)


def test_a_forged_frame_in_a_torn_tail_is_named_and_does_not_count(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    lsn, forged = with_forged_frame(store)
    os.truncate(store.file(), store.offset(store.end_lsn) - 50)
    store.preallocate()
    code, lines = run("verify", store.path)
    assert code == 0
    torn, named = of_type(lines, "note")
    assert (torn["what"][:9], torn["lsn"]) == ("torn tail", lsn)
    assert named == {
        "type": "note",
        "what": "a frame of another store, which does not count",
        "segment": 3,
        "lsn": forged,
    }
    (gap,) = of_type(run("inspect", store.path)[1], "segment")[2]["gaps"]
    assert (gap["lsn"], gap["foreign_lsn"]) == (lsn, forged)
    code, lines = run("repair", store.path)
    assert code == 0
    assert [line["what"] for line in of_type(lines, "note")] == [named["what"], "nothing to repair"]
    assert dumped(store.path, "orders") == ["one", "two" * 1000, "three", "four"]


def test_a_forged_frame_in_rot_is_named_and_does_not_count(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    lsn, forged = with_forged_frame(store)
    behind = store.frame(message((1, 10), body=b"behind"))
    store.flip(lsn + 4)  # the length: nobody knows where the next frame is
    code, lines = run("verify", store.path)
    assert code == 1
    (problem,) = of_type(lines, "problem")
    assert (problem["lsn"], problem["end_lsn"]) == (lsn, behind)
    (named,) = of_type(lines, "note")
    assert (named["what"], named["lsn"]) == ("a frame of another store, which does not count", forged)
    lines = repaired(store)
    assert of_type(lines, "note")[0] == named
    assert 66 not in [line["sequence_number"] for line in run("dump-queue", store.path, "--queue", "orders")[1]]


def test_a_frame_of_another_store_in_the_place_of_the_next_frame_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    lsn = store.frame(message((1, 5), body=b"x"), store_tag=b"guessing")
    code, lines = run("verify", store.path)
    assert code == 1
    (problem,) = of_type(lines, "problem")
    reason = "the frame is that of another store, with the tag 6775657373696e67"
    assert problem["what"] == f"nothing counts from here on, and no crash leaves this: {reason}"
    assert problem["lsn"] == lsn
    _, (gap,) = run("inspect", store.path, "--lsn", lsn)
    assert (gap["what"], gap["foreign_lsn"]) == (reason, lsn)
    assert of_type(run("repair", store.path)[1], "note")[0]["lsn"] == lsn
    assert dumped(store.path, "orders") == ["one", "two" * 1000, "three", "four"]


def test_half_a_frame_head_is_torn_and_not_of_another_store(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    lsn = store.frame(message((1, 5), body=b"x"))
    os.truncate(store.file(), store.offset(lsn) + 44)
    store.preallocate()
    code, lines = run("verify", store.path)
    assert (code, [line["what"] for line in of_type(lines, "note")]) == (
        0,
        ["torn tail, as a crash leaves it: half a frame head"],
    )


def test_a_damaged_segment_header_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    data = bytearray(store.file(2).read_bytes())
    data[40] ^= 1
    store.file(2).write_bytes(data)
    code, lines = run("verify", store.path)
    assert code == 1
    (what,) = problems(lines)
    assert what.startswith("segment header: ")


def test_frames_that_are_missing_at_the_end_of_a_segment_are_noticed_by_the_next(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    store.frame(epoch(1), queue(1, "q"))
    lsn = store.frame(message((1, 0), body=b"gone"))
    store.begin_segment()
    behind = store.frame(message((1, 1)))
    os.truncate(store.file(1), store.offset(lsn))
    code, lines = run("verify", store.path)
    assert code == 1
    (problem,) = of_type(lines, "problem")
    assert problem["what"].startswith("frames are missing before this one")
    assert problem["lsn"] == behind


def test_a_segment_of_another_store_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.begin_segment(store_id=bytes(16))
    assert problems(run("verify", store.path)[1]) == [f"a segment of another store, {'0' * 32}"]


def test_a_segment_under_the_name_of_another_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.file(3).rename(store.file(4))
    assert problems(run("verify", store.path)[1]) == ["segment header: it is that of segment 3"]


def test_segments_that_overlap_are_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    rewrite_header(store, 1, capacity=65536 + 8)
    what = "the segment begins at LSN 65536, inside the one before it"
    assert problems(run("verify", store.path)[1]) == [what]


def test_a_segment_with_another_algorithm_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.begin_segment()
    rewrite_header(store, 4, algorithm=CRC32)
    assert problems(run("verify", store.path)[1]) == ["checksum algorithm 2 in a store with 1"]


def test_a_file_larger_than_its_segment_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    os.truncate(store.file(), 65536 + 8)
    assert problems(run("verify", store.path)[1]) == ["the file has 65544 bytes, more than its capacity of 65536"]


def test_a_durable_lsn_beyond_its_frame_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    beyond = store.end_lsn + 8
    store.frame(durable_lsn=beyond)
    assert problems(run("verify", store.path)[1]) == [f"durable LSN {beyond} beyond the frame itself"]


def test_an_epoch_that_goes_back_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.epoch = 1
    store.frame()
    assert problems(run("verify", store.path)[1]) == ["epoch 1 after epoch 2"]


def test_a_frame_with_another_number_of_records_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    at = store.offset(store.frame(queue(3, "c")))
    data = bytearray(store.file().read_bytes())
    data[at + 40 : at + 44] = (2).to_bytes(4, "big")
    crc = checksum(CRC32C, bytes(data[at + 56 :]), checksum(CRC32C, bytes(data[at : at + 52])))
    data[at + 52 : at + 56] = crc.to_bytes(4, "big")
    store.file().write_bytes(data)
    assert problems(run("verify", store.path)[1]) == ["1 records in a frame of 2"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: data[:4] + bytes(4) + data[8:], "impossible record length 0"),
        (lambda data: data[:-1] + b"\x01", "padding that is not zeros"),
        (lambda data: data[:20] + b"\xff" + data[21:], "wrong record crc"),
    ],
    ids=["length", "padding", "crc"],
)
def test_a_wrong_record_in_a_frame_with_a_right_crc_is_a_problem(
    tmp_path: Path, change: Callable[[bytes], bytes], what: str
) -> None:
    store = small_store(tmp_path / "data")
    at = store.offset(store.frame(queue(3, "c")))
    data = store.file().read_bytes()
    data = data[: at + 56] + change(data[at + 56 :])
    crc = checksum(CRC32C, data[at + 56 :], checksum(CRC32C, data[at : at + 52]))
    store.file().write_bytes(data[: at + 52] + crc.to_bytes(4, "big") + data[at + 56 :])
    assert problems(run("verify", store.path)[1])[0] == what


def test_a_durable_lsn_that_goes_back_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    durable_lsn = store.frame()
    store.frame(durable_lsn=8)
    assert problems(run("verify", store.path)[1]) == [f"durable LSN 8 after {durable_lsn}"]


def test_an_epoch_that_does_not_say_so_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.epoch = 3
    store.begin_segment()
    store.frame(queue(9, "q"))
    assert problems(run("verify", store.path)[1]) == ["epoch 3 does not begin with an EPOCH record"]


def test_an_epoch_whose_first_segment_is_gone_by_right_need_not_say_so(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.begin_segment()
    store.frame(message((1, 5)))
    store.file(3).unlink()
    assert run("verify", store.path)[0] == 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda body: body.update(content=body["content"][:-1] + b"x"), "the content is not whole AMQP frames"),
        (lambda body: body.update(content=body["content"][:-1]), "the content is not whole AMQP frames"),
        (lambda body: body.update(channel=9), "the content is not whole AMQP frames"),
        (lambda body: body.update(frame_max_bytes=10), "a frame in the content is larger than the message says"),
        (lambda body: body.update(content=body["content"][:22]), "the content is not as long as its header says"),
        (lambda body: body.update(content=b""), "the content is not as long as its header says"),
    ],
    ids=["end", "short", "channel", "frame-max", "no-body", "empty"],
)
def test_content_that_is_not_what_a_client_sends_is_a_problem(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], what: str
) -> None:
    store = small_store(tmp_path / "data")
    wrong = message((1, 5), body=b"x" * 100)
    change(wrong["body"])
    store.frame(wrong)
    assert problems(run("verify", store.path)[1])[0] == what


def test_files_that_are_not_segments_are_noted(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    (store.log / "notes.txt").write_text("mine")
    code, lines = run("verify", store.path)
    assert code == 0
    assert [(line["what"], line["file"]) for line in of_type(lines, "note")] == [
        ("a file that is not a segment", "notes.txt")
    ]
