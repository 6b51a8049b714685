"""Stores whose checkpoint and files do not fit: cut, missing, corrupt, counted wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer.testing
from store_directory import (
    StoreDirectory,
    ack,
    checkpoint_page,
    checkpoint_queue,
    checkpoint_segment,
    epoch,
    life,
    message,
    page,
    queue,
)

from warren.msgstore.log.checksum import CRC32C
from warren.msgstore.tools.format import (
    FRAME_HEAD_BYTES,
    Checkpoint,
    Record,
)
from warren.server.store_commands import store_app

from .stores import actions, bodies, checkpointed_store, dumped, of_type, problems, repaired, run, small_store


def test_what_a_recovery_cut_off_is_noted_and_does_not_count(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    store.frame(epoch(1), queue(1, "orders"))
    synced = store.frame(message((1, 0), body=b"kept"))
    crc = store.previous_crc
    torn = store.frame(message((1, 1), body=b"torn"), durable_lsn=synced)
    store.frame(message((1, 2), body=b"whole, behind the torn one"), durable_lsn=synced)
    store.flip(torn + 80)
    store.restart(crc)
    store.frame(epoch(2), message((1, 1), body=b"again"))
    code, lines = run("verify", store.path)
    assert code == 0
    (note,) = of_type(lines, "note")
    assert (note["what"], note["lsn"]) == ("left over from before a recovery cut the log here", torn)
    assert dumped(store.path, "orders") == ["kept", "again"]
    assert run("repair", store.path)[0] == 0
    (store.path / "messages" / "checkpoint").write_bytes(b"nonsense")
    repaired(store)
    assert dumped(store.path, "orders") == ["kept", "again"]


def test_a_checkpoint_says_where_a_segment_ended_when_the_next_is_gone(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    at = store.frame(epoch(1), queue(1, "orders"), message((1, 0), body=b"kept"))
    crc = store.previous_crc
    end = store.end_lsn
    torn = store.frame(message((1, 1), body=b"torn"), durable_lsn=at)
    store.flip(torn + 80)
    store.restart(crc)
    store.frame(epoch(2))
    store.begin_segment()
    store.frame()
    entry = (at + FRAME_HEAD_BYTES + 24 + 40, len(Record.build(message((1, 0), body=b"kept"), algorithm=CRC32C)), 4)
    kept = checkpoint_queue(1, "orders", next_number=1, pages=[checkpoint_page(0, [entry])])
    segments = [
        checkpoint_segment(1, 0, 65536, end, 1, 70),
        checkpoint_segment(3, 2 * 65536, 65536, store.end_lsn, 0, 0),
    ]
    store.checkpoint(kept, live_refs={}, segments=segments)
    store.file(2).unlink()
    code, lines = run("verify", store.path)
    assert (code, [line["lsn"] for line in of_type(lines, "note")]) == (0, [torn])
    assert dumped(store.path, "orders") == ["kept"]


def test_a_checkpoint_knows_of_frames_that_are_missing_at_the_end_of_a_segment(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    store.frame(epoch(1), queue(1, "orders"))
    lsn = store.frame(message((1, 0)))
    end = store.end_lsn
    store.begin_segment()
    store.checkpoint(checkpoint_queue(1, "orders", next_number=1), live_refs={})
    os.truncate(store.file(1), store.offset(lsn))
    code, lines = run("verify", store.path)
    (problem,) = of_type(lines, "problem")
    assert (code, problem["what"]) == (1, "frames are missing at the end")
    assert (problem["lsn"], problem["end_lsn"]) == (lsn, end)


def test_what_a_checkpoint_reaches_beyond_was_synced(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    store.frame(epoch(1), queue(1, "orders"))
    lsn = store.frame(message((1, 0), body=b"gone"), ack(1, (0, 1)))
    store.checkpoint(checkpoint_queue(1, "orders", next_number=1), live_refs={})
    store.flip(lsn + 80)
    code, lines = run("verify", store.path)
    assert (code, problems(lines)) == (1, ["corruption in synced data: wrong frame crc"])
    assert actions(repaired(store)) == [
        "copied to the quarantine: corruption in synced data",
        "a new checkpoint is written",
    ]


def test_a_missing_segment_that_the_checkpoint_needs_is_a_problem(tmp_path: Path) -> None:
    store = checkpointed_store(tmp_path / "data")
    store.file(1).unlink()
    code, lines = run("verify", store.path)
    assert code == 1
    assert problems(lines) == ["a segment is missing that the checkpoint needs", "its segment is missing"]
    assert of_type(lines, "problem")[0]["messages"] == 1
    assert bodies(run("dump-queue", store.path, "--queue", "orders")[1]) == ["second", "third", "fourth"]


def test_a_segment_that_is_gone_by_right_is_none_missing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.frame(ack(1, (0, 5)))
    store.checkpoint(
        checkpoint_queue(1, "orders", next_number=5), checkpoint_queue(2, "käse", next_number=2), live_refs={}
    )
    store.file(1).unlink()
    store.file(2).unlink()
    assert (run("verify", store.path)[0], dumped(store.path, "orders")) == (0, [])


@pytest.mark.long
def test_a_checkpoint_with_a_flipped_bit_is_a_problem_and_nothing_is_read_with_it(tmp_path: Path) -> None:
    store = checkpointed_store(tmp_path / "data")
    path = store.path / "messages" / "checkpoint"
    for offset in range(0, path.stat().st_size, 7):
        data = bytearray(path.read_bytes())
        data[offset] ^= 4
        (tmp_path / "checkpoint").write_bytes(data)
        flipped = (tmp_path / "checkpoint").read_bytes()
        original = path.read_bytes()
        path.write_bytes(flipped)
        code, lines = run("verify", store.path)
        assert code == 1, offset
        assert problems(lines)[0].startswith("checkpoint: "), offset
        assert run("dump-queue", store.path, "--queue", "orders") == (2, [])
        path.write_bytes(original)


@pytest.mark.parametrize(
    ("queue_id", "shift", "number", "what"),
    [
        (1, 0, 1, None),
        (1, 8, 1, "no intact message"),
        (2, 0, 1, "the message there belongs to another place"),
        (1, 0, 3, "the message there belongs to another place"),
    ],
)
def test_an_index_entry_leads_to_its_own_message_or_is_a_problem(
    tmp_path: Path, queue_id: int, shift: int, number: int, what: str | None
) -> None:
    store = small_store(tmp_path / "data")
    one = of_type(run("inspect", store.path, "--records")[1], "record")[4]
    entries = [(0, 0, 0)] * number + [(one["lsn"] + shift, one["length"], 3)]
    checkpoint = checkpoint_queue(queue_id, "orders", next_number=4, pages=[checkpoint_page(0, entries)])
    store.checkpoint(checkpoint, live_refs={1: 1})
    code, lines = run("verify", store.path)
    assert (code, problems(lines)) == (0, []) if what is None else (1, [what])


def test_a_page_that_is_not_where_the_checkpoint_says_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    lost = checkpoint_page(0, [], lsn=120, length=24, live_count=9)
    store.checkpoint(checkpoint_queue(1, "orders", next_number=9, pages=[lost]), live_refs={1: 10})
    assert problems(run("verify", store.path)[1]) == ["a page of the index with 9 messages is lost"]


def test_the_page_of_another_queue_or_number_is_none(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    store.frame(epoch(1), queue(1, "orders"), page(1, 1, []), page(2, 0, []))
    records = of_type(run("inspect", store.path, "--records")[1], "record")
    for other in records[2:]:
        lost = checkpoint_page(0, [], lsn=other["lsn"], length=other["length"], live_count=1)
        store.checkpoint(checkpoint_queue(1, "orders", next_number=9, pages=[lost]), live_refs={1: 2})
        assert problems(run("verify", store.path)[1]) == ["a page of the index with 1 messages is lost"]


def test_what_was_paged_out_and_means_nothing_after_a_restart_is_none_of_a_page(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    first = message((1, 0), body=b"persistent")
    store.frame(epoch(1), queue(1, "orders"), first, message((1, 1), body=b"transient", flags=2))
    kept, dropped = of_type(run("inspect", store.path, "--records")[1], "record")[2:]
    entries = [(kept["lsn"], 0, kept["length"], 10), (dropped["lsn"], 2, dropped["length"], 9)]
    page_lsn = store.frame(page(1, 0, entries)) + FRAME_HEAD_BYTES
    shown = checkpoint_page(0, [], lsn=page_lsn, length=64, live_count=1, body_bytes=10)
    store.checkpoint(checkpoint_queue(1, "orders", next_number=2, pages=[shown]), live_refs={1: 2})
    assert run("verify", store.path)[0] == 0
    assert dumped(store.path, "orders") == ["persistent"]


def test_references_that_a_segment_counts_wrong_are_a_problem(tmp_path: Path) -> None:
    store = checkpointed_store(tmp_path / "data")
    data = Checkpoint.parse((store.path / "messages" / "checkpoint").read_bytes())
    data.segments[0].live_refs = 7
    (store.path / "messages" / "checkpoint").write_bytes(Checkpoint.build(data))
    assert problems(run("verify", store.path)[1]) == ["1 references to a segment that counts 7"]
    assert actions(repaired(store)) == ["1 references counted, not 7", "a new checkpoint is written"]


@pytest.mark.parametrize("command", [["inspect"], ["verify"], ["repair", "--apply"]], ids=lambda each: each[0])
def test_a_checkpoint_of_a_newer_warren_is_left_alone(tmp_path: Path, command: list[str]) -> None:
    store = small_store(tmp_path / "data")
    store.checkpoint(checkpoint_queue(1, "orders", next_number=5), live_refs={})
    newer = store.checkpoint_of_version(1, 4)
    store.path.chmod(0o700)
    done = typer.testing.CliRunner().invoke(store_app, [command[0], str(store.path), *command[1:]])
    assert done.exit_code == 2
    assert "format version 1.4" in done.stderr and "a newer Warren has written this store" in done.stderr
    assert (store.path / "messages" / "checkpoint").read_bytes() == newer


def test_inspect_shows_the_epochs_that_a_checkpoint_knows(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    epochs = [
        {"epoch": 1, "first_lsn": 64, "life_id": (b"l" * 16).hex()},
        {"epoch": 2, "first_lsn": 2 * 65536 + 64, "life_id": bytes(16).hex()},
    ]
    written = [{**each, "life_id": bytes.fromhex(str(each["life_id"]))} for each in epochs]
    store.checkpoint(checkpoint_queue(1, "orders", next_number=5), live_refs={}, epochs=written)
    (shown,) = of_type(run("inspect", store.path)[1], "checkpoint")
    assert shown["epochs"] == epochs


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_repaired_checkpoint_knows_the_epochs_of_the_log(tmp_path: Path, has_checkpoint: bool) -> None:
    store = checkpointed_store(tmp_path / "data")
    path = store.path / "messages" / "checkpoint"
    path.write_bytes(path.read_bytes() if has_checkpoint else b"nonsense")
    store.restart(store.previous_crc)
    at = store.frame(epoch(2), life(2, b"l" * 16))
    store.frame()
    store.flip(store.frame(message((1, 90), body=b"damaged")) + 80)
    store.frame()
    repaired(store)
    latest = Checkpoint.parse(path.read_bytes()).epochs[-1]
    assert (latest.epoch, latest.first_lsn, latest.life_id) == (2, at, b"l" * 16)
