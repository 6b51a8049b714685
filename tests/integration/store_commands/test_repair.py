"""`warren store repair`: dry first, then for real, and nothing is gone afterwards."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from store_directory import (
    STORE_ID,
    StoreDirectory,
    ack,
    epoch,
    message,
    queue,
    queue_deleted,
)

from warren.msgstore.files.file_system import OsFileSystem
from warren.msgstore.files.recovery import recover
from warren.msgstore.files.store import Store
from warren.msgstore.log.checkpoint import seal
from warren.msgstore.log.checksum import CRC32C, checksum_function
from warren.msgstore.log.message import Envelope, build_message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.tools.format import (
    FRAME_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    Checkpoint,
    SegmentHeader,
)
from warren.msgstore.tools.lines import UnreadableStore
from warren.msgstore.tools.log_files import StoreFiles
from warren.msgstore.tools.repairing import Repair
from warren.server.data_dir import LOCK_NAME
from warren.server.links_mark import PLACE

from .stores import (
    StreamStore,
    actions,
    bodies,
    checkpointed_store,
    dumped,
    of_type,
    repaired,
    rewrite_header,
    run,
    small_store,
    with_forged_frame,
)


def test_a_whole_store_needs_no_repair(tmp_path: Path) -> None:
    for store in (small_store(tmp_path / "a"), checkpointed_store(tmp_path / "b")):
        store.path.chmod(0o700)
        (store.path / LOCK_NAME).touch()
        before = store.snapshot()
        assert run("repair", store.path)[0] == 0
        code, lines = run("repair", store.path, "--apply")
        assert (code, lines[0]["what"]) == (0, "nothing to repair")
        after = store.snapshot()
        assert after.pop(PLACE)
        assert {**after, LOCK_NAME: b""} == before


def test_repair_makes_a_missing_checkpoint_again_as_far_as_the_log_goes(tmp_path: Path) -> None:
    store = checkpointed_store(tmp_path / "data")
    (store.path / "messages" / "checkpoint").unlink()
    store.file(1).rename(tmp_path / "gone")
    assert run("verify", store.path)[0] == 1
    lines = repaired(store)
    assert actions(lines)[0].startswith("the index is made again from the log")
    assert "at least once" in str(of_type(lines, "note"))
    (line,) = of_type(lines, "queue")
    assert (line["queue_id"], line["queue"], line["messages"]) == (1, "", 3)
    _, exported = run("export", store.path, "--output", tmp_path / "out")
    assert exported[0]["messages"] == 3
    rows = [json.loads(row) for row in (tmp_path / "out").read_text().splitlines()]
    assert bodies(rows) == ["second", "third", "fourth"]


def test_repair_replaces_a_checkpoint_that_cannot_be_read_and_keeps_it(tmp_path: Path) -> None:
    store = checkpointed_store(tmp_path / "data")
    path = store.path / "messages" / "checkpoint"
    path.write_bytes(path.read_bytes()[:-1])
    lines = repaired(store)
    assert actions(lines) == ["the checkpoint is replaced: its checksum is wrong", "a new checkpoint is written"]
    # The page in the log says that the second message was gone.
    assert dumped(store.path, "orders") == ["first", "second", "third", "fourth"]
    assert (store.path / "messages" / "quarantine" / "checkpoint-0").exists()


def test_repair_takes_what_is_whole_of_a_rotten_segment_and_keeps_a_copy(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.flip(store.file(1).read_bytes().index(b"both"))
    corrupt = store.file(1).read_bytes()
    assert run("verify", store.path)[0] == 1
    lines = repaired(store)
    assert actions(lines) == ["copied to the quarantine: corruption in synced data", "a new checkpoint is written"]
    assert dumped(store.path, "orders") == ["one", "two" * 1000, "three", "four"]
    (copy,) = (store.path / "messages" / "quarantine").glob("0000000001*")
    assert copy.read_bytes() == corrupt


def test_repair_makes_a_damaged_header_again_from_the_frames(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    whole = store.file(2).read_bytes()
    store.file(2).write_bytes(bytes(40) + whole[40:])
    # As large as the biggest of the others, up to where the next one begins.
    rewrite_header(store, 3, capacity=4 * 65536)
    lines = repaired(store)
    assert actions(lines)[0].startswith("the header is made again from the frames")
    assert store.file(2).read_bytes() == whole
    assert dumped(store.path, "orders") == ["one", "two" * 1000, "three", "four"]


def test_the_first_frame_tells_repair_whose_a_segment_is_when_nothing_else_does(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    store.frame(epoch(1), queue(1, "orders"), message((1, 0), body=b"kept"))
    store.frame(message((1, 1), body=b"kept too"))
    with store.file().open("r+b") as file:
        file.write(bytes(SEGMENT_HEADER_BYTES))
    lines = repaired(store)
    assert actions(lines)[0].startswith("the header is made again from the frames")
    assert SegmentHeader.parse(store.file().read_bytes()).store_id == STORE_ID[:8] + bytes(8)
    assert dumped(store.path, "orders") == ["kept", "kept too"]


@pytest.mark.parametrize("tag", [b"guessing", bytes(8)])
def test_what_may_be_a_publishers_does_not_tell_repair_whose_a_segment_is(tmp_path: Path, tag: bytes) -> None:
    store = StoreDirectory(tmp_path / "data")
    with_forged_frame(store, tag)
    with store.file().open("r+b") as file:
        file.write(bytes(SEGMENT_HEADER_BYTES + FRAME_HEAD_BYTES))
    code, lines = run("repair", store.path)
    assert code == 1
    assert actions(lines)[0].endswith("and no frame of this store is intact")
    assert of_type(lines, "summary")[0]["messages"] == 0


def test_repair_puts_a_segment_without_any_frame_aside(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.file(2).write_bytes(b"this is no segment at all")
    lines = repaired(store)
    assert actions(lines)[0].startswith("moved to the quarantine: segment header")
    assert not store.file(2).exists()
    assert dumped(store.path, "orders") == ["one", "two" * 1000, "four"]


def test_repair_drops_what_was_in_a_missing_segment(tmp_path: Path) -> None:
    store = checkpointed_store(tmp_path / "data")
    store.file(1).unlink()
    lines = repaired(store)
    assert actions(lines) == [
        "dropped from the index: its segment is missing",
        "no longer expected: the segment is missing",
        "a new checkpoint is written",
    ]
    assert of_type(lines, "queue")[0]["damaged"] == 1
    assert dumped(store.path, "orders") == ["second", "third", "fourth"]


def test_repair_finds_the_messages_of_a_lost_page_in_the_log(tmp_path: Path) -> None:
    store = checkpointed_store(tmp_path / "data")
    path = store.path / "messages" / "checkpoint"
    checkpoint = Checkpoint.parse(path.read_bytes())
    lost = checkpoint.queues[0].pages[0]
    lost.live_count = 9
    path.write_bytes(Checkpoint.build(checkpoint))
    store.flip(lost.lsn + 20)
    assert run("verify", store.path)[0] == 1
    lines = repaired(store)
    (line,) = [line for line in of_type(lines, "action") if "page" in line["what"]]
    assert (line["messages"], line["found"]) == (9, 2)
    assert of_type(lines, "queue")[0]["damaged"] == 7
    assert dumped(store.path, "orders") == ["first", "gone", "second", "third", "fourth"]


def test_repair_reads_the_whole_log_as_acknowledgements_and_deletions_say(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.frame(queue(3, "gone"), message((3, 0), (1, 5), body=b"for both"))
    store.frame(queue_deleted(3), queue(4, "amq.gen-1", transient=True))
    store.frame(message((4, 0), (2, 2), body=b"fan-out"), message((1, 6), body=b"x", flags=2))
    store.begin_segment()
    store.frame(message((1, 1), body=b"moved", flags=4), ack(1, (40, 2)))
    (store.path / "messages" / "checkpoint").write_bytes(b"nonsense")
    lines = repaired(store)
    shown = [(line["vhost"], line["queue"], line["messages"]) for line in of_type(lines, "queue")]
    assert shown == [("/", "orders", 5), ("/tests", "käse", 2)]
    assert dumped(store.path, "orders") == ["moved", "two" * 1000, "three", "four", "for both"]
    whole = Checkpoint.parse((store.path / "messages" / "checkpoint").read_bytes())
    assert (whole.next_queue_id, whole.next_segment, whole.next_base_lsn) == (5, 5, 4 * 65536)
    assert {q.queue_id: (q.next_number, q.delivered_below) for q in whole.queues} == {1: (42, 42), 2: (3, 3)}
    assert whole.previous_crc == store.previous_crc


def test_a_torn_tail_needs_no_repair(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.frame(message((1, 5), body=b"x" * 100))
    os.truncate(store.file(), store.offset(store.end_lsn) - 50)
    code, lines = run("repair", store.path)
    assert (code, lines[0]["what"]) == (0, "nothing to repair")


def test_what_nothing_can_mend_is_given_up_and_told_once(tmp_path: Path) -> None:
    """A frame is missing whose records nobody refers to: verify said 1 for ever."""
    store = small_store(tmp_path / "data")
    store.path.chmod(0o700)
    data = store.file(1).read_bytes()
    store.file(1).write_bytes(data[: data.index(b"two") - 60] + bytes(len(data) - data.index(b"two") + 60))
    code, before = run("verify", store.path)
    assert code == 1
    assert run("repair", store.path)[0] == 1
    code, lines = run("repair", store.path, "--apply")
    assert code == 0
    given_up = of_type(lines, "given_up")
    assert given_up
    code, after = run("verify", store.path)
    assert (code, of_type(after, "problem")) == (3, [])
    told = of_type(after, "given_up")
    assert [line["what"] for line in told] == [line["what"] for line in given_up]
    assert all(line["repaired"] for line in told)
    (summary,) = of_type(after, "summary")
    assert (summary["problems"], summary["given_up"]) == (0, len(told))
    assert of_type(before, "summary")[0]["problems"] >= len(told)
    code, again = run("repair", store.path, "--apply")
    assert (code, again[0]["what"]) == (0, "nothing to repair")


def test_other_damage_than_what_was_given_up_is_a_problem(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    store.path.chmod(0o700)
    store.flip(store.file(1).read_bytes().index(b"both"))
    assert run("repair", store.path, "--apply")[0] == 0
    for copy in (store.path / "messages" / "quarantine").iterdir():
        if copy.name.startswith("0000000001"):
            copy.unlink()  # as when the quarantine is emptied
    assert run("verify", store.path)[0] == 3
    data = bytearray(store.file(2).read_bytes())
    data[data.index(b"three")] ^= 1
    store.file(2).write_bytes(data)
    assert run("verify", store.path)[0] == 1


def test_a_record_of_repairs_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    (store.path / "messages" / "given-up.json").write_text("{}")
    assert run("verify", store.path)[0] == 2


@pytest.mark.parametrize("seed", range(24))
def test_after_a_repair_nothing_is_wrong_but_what_it_has_given_up(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    makers: list[Callable[[Path], StoreDirectory | StreamStore]] = [small_store, checkpointed_store, StreamStore]
    store = random.choice(makers)(tmp_path / "data")
    store.path.chmod(0o700)
    for _ in range(random.choice([1, 1, 2, 3])):
        files = sorted(path for path in (store.path / "messages").rglob("*") if path.is_file())
        _damage(random, random.choice(files))
    run("repair", store.path, "--apply")
    code, lines = run("verify", store.path)
    assert code in (0, 3), (seed, lines)
    assert run("repair", store.path)[0] == 0


def _damage(random: Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    if not data or random.random() < 0.2:
        path.unlink()
        return
    at = random.randrange(min(len(data), 3000))
    match random.choice(["cut", "flip", "zero", "grow"]):
        case "cut":
            del data[at:]
        case "flip":
            data[at] ^= 1 << random.randrange(8)
        case "zero":
            data[at : at + 64] = bytes(len(data[at : at + 64]))
        case "grow":
            data += random.randbytes(100)
    path.write_bytes(data)


class FailingFiles(OsFileSystem):
    """A disk that does not give the second half of one file, as long as `path` is set."""

    path = ""

    def open(self, path: str, *, writable: bool) -> int:
        handle = super().open(path, writable=writable)
        self.failing = handle if path == self.path else -1
        return handle

    def read(self, handle: int, length: int, offset: int) -> bytes:
        if handle == self.failing and offset + length > self.size(handle) // 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(handle, length, offset)


@pytest.mark.parametrize("path", ["log/0000000001", "log/0000000002", "checkpoint"])
def test_nothing_is_repaired_while_the_disk_does_not_give_a_part_of_the_log(tmp_path: Path, path: str) -> None:
    """(5)"""
    store = checkpointed_store(tmp_path / "data")
    before = store.snapshot()
    fs = FailingFiles(str(store.path / "messages"))
    fs.path = path
    with pytest.raises(UnreadableStore, match=f"does not give all of {path}: nothing was changed"):
        list(Repair(StoreFiles(fs), Store(fs)).lines())
    assert store.snapshot() == before
    fs.path = ""
    assert "nothing to repair" in [line.get("what") for line in Repair(StoreFiles(fs), None).lines()]


def live_once(store: StoreDirectory, *, body: bytes = b"later", checkpoint: bool = False) -> None:
    """Recover the store with a broker's log, and store a message of the first queue."""
    files = Store(OsFileSystem(str(store.path / "messages")))
    files.open()
    log = MessageLog(checksum_function(CRC32C), 65536)
    recover(files, log, STORE_ID)
    files.resume(int(log.last_crc), int(log.next_lsn), int(log.epoch), log.store_id, log.algorithm)
    log.begin_epoch(int(log.epoch), 1, bytes(16))
    index = log.indexes[1]
    message = build_message(Envelope("", "q"), b"\0\0", body, 4096, True)
    log.batch.add(index, message, int(index.next_number))
    if checkpoint:
        log.checkpoints.want()
    log.close_if_due()
    for job in log.commit_jobs:
        files.commit(job, 1)
        log.committed(job)
    for taken in log.checkpoint_jobs:
        files.write_checkpoint(seal(taken.content, log.checksum, int(taken.last_crc)))
    files.close()


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_start_serves_a_segment_whose_header_is_damaged(tmp_path: Path, number: int, *, checkpoint: bool) -> None:
    """Else its messages would be lost: others would get their numbers, before a repair serves them again."""
    store = small_store(tmp_path / "data")
    store.path.chmod(0o700)
    whole = store.file(number).read_bytes()
    store.file(number).write_bytes(bytes(40) + whole[40:])
    live_once(store, body=b"five", checkpoint=checkpoint)
    live_once(store, body=b"six")
    everything = ["one", "two" * 1000, "three", "four", "five", "six"]
    assert dumped(store.path, "orders") == everything
    assert run("verify", store.path)[0] == 1
    _, lines = run("repair", store.path, "--apply")
    assert actions(lines)[0].startswith("the header is made again from the frames")
    assert dumped(store.path, "orders") == everything
    assert run("verify", store.path)[0] == 0
    assert store.file(number).read_bytes()[64:] == whole[64:]


def test_a_start_serves_the_only_segment_when_its_header_is_damaged(tmp_path: Path) -> None:
    store = StoreDirectory(tmp_path / "data")
    store.frame(epoch(1), queue(1, "orders"), message((1, 0), body=b"one"))
    store.path.chmod(0o700)
    store.file(1).write_bytes(bytes(64) + store.file(1).read_bytes()[64:])
    live_once(store)
    assert dumped(store.path, "orders") == ["one", "later"]


def test_a_copy_of_a_segment_under_another_number_is_not_served(tmp_path: Path) -> None:
    """Its place in the log is taken."""
    store = small_store(tmp_path / "data")
    store.path.chmod(0o700)
    store.file(9).write_bytes(store.file(2).read_bytes())
    live_once(store)
    assert dumped(store.path, "orders") == ["one", "two" * 1000, "three", "four", "later"]
    _, lines = run("repair", store.path, "--apply")
    assert actions(lines)[0].startswith("moved to the quarantine: segment header: it is that of segment 2")
    assert run("verify", store.path)[0] == 0
