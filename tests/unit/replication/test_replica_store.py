"""A follower repeats entries that fit, refuses those that do not, and never pretends to have them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation.simulated_file_system import Fault, SimulatedFileSystem
from unit.replication.shipped_log import STORE_ID, ShippedLog, Wire, follower, parsed, segments
from unit.replication.test_shipping import columns

from warren.msgstore.files.sealed_files import sealed_path
from warren.msgstore.files.store import Store
from warren.msgstore.files.store_errors import StoreError, StoreFailedError, StoreFullError, StoreUnreadableError
from warren.msgstore.log.jobs import SealJob
from warren.msgstore.log.records import FRAME_HEADER_BYTES
from warren.replication.entries import (
    Beacon,
    BeginImage,
    BeginSegment,
    CaughtUp,
    Committed,
    Frame,
    FromLeader,
    Sync,
    Truncate,
    Unlink,
)
from warren.replication.replica_store import EPOCH_STRIDE, EntryRefusedError, HistoryLostError, ReplicaStore
from warren.replication.sealed_inventory import SCANS_MAX


def entries(log: ShippedLog, replica: ReplicaStore) -> list[FromLeader]:
    return [entry for pieces in log.attach(replica).catch_up() for entry in parsed(pieces)]


def test_a_follower_has_the_same_bytes_whenever_it_came() -> None:
    log = ShippedLog()
    log.commit(3)
    disks = [SimulatedFileSystem(), SimulatedFileSystem()]
    early = follower(log, disks[0])
    Wire(log, early)
    log.commit(20)
    late = follower(log, disks[1])
    Wire(log, late)
    log.commit(2)
    assert segments(disks[0]) == segments(disks[1]) == segments(log.fs)
    assert early.ack().synced_lsn == late.ack().synced_lsn == log.shipping.end_lsn()


def test_a_follower_goes_on_in_the_middle_of_a_segment_after_a_restart() -> None:
    log = ShippedLog()
    log.commit(3)
    fs = SimulatedFileSystem()
    wire = Wire(log, follower(log, fs))
    log.shipping.detach(wire.attachment)
    log.commit(2)
    disk = fs.kill9()
    again = follower(log, disk)
    assert again.position().segment == 1
    Wire(log, again)
    assert segments(disk) == segments(log.fs)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda frame: replace(frame, payload=(bytes(64),)), "damaged"),
        (lambda frame: replace(frame, head=frame.head[:44] + bytes(8) + frame.head[52:]), "damaged"),
        (lambda frame: replace(frame, head=frame.head[:8] + (8).to_bytes(8, "big") + frame.head[16:]), "LSN 8"),
        (lambda frame: Unlink(0, (1,)), "the checkpoint needs it"),
        (lambda frame: Sync(1 << 40), "it ends at"),
        (lambda frame: CaughtUp(1 << 40), "it ends at"),
        (lambda frame: BeginSegment(bytes(64)), "does not begin like a segment"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(change, text: str) -> None:  # type: ignore[no-untyped-def]
    log = ShippedLog()
    log.commit(2)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    *before, frame, _sync = entries(log, replica)
    for entry in before:
        replica.apply(entry, 1)
    contents, ack = fs.contents(), replica.ack()
    with pytest.raises(EntryRefusedError, match=text):
        replica.apply(change(frame), 1)
    assert (fs.contents(), replica.ack()) == (contents, ack)
    replica.apply(frame, 1)


def test_a_frame_that_does_not_continue_the_chain_is_refused() -> None:
    log = ShippedLog()
    log.commit(2)
    replica = follower(log)
    segment, first, second, _sync = entries(log, replica)
    replica.apply(segment, 1)
    with pytest.raises(EntryRefusedError, match="and the log ends at 64"):
        replica.apply(second, 1)
    other = ShippedLog()
    other.files.commit(other.job(), 999)  # at another time
    (_, other_first, _) = entries(other, follower(other))
    replica.apply(other_first, 1)
    assert isinstance(first, Frame)
    with pytest.raises(EntryRefusedError, match="does not continue"):
        replica.apply(second, 1)


def test_an_entry_for_which_there_was_no_room_is_carried_out_when_there_is() -> None:
    log = ShippedLog()
    log.commit(10)
    fs = SimulatedFileSystem(capacity=0)
    replica = ReplicaStore(fs, clock_ms=lambda: 0)
    replica.open()
    with pytest.raises(StoreFullError):
        replica.follow(1, STORE_ID)
    fs.capacity = None
    replica.follow(1, STORE_ID)
    for entry in entries(log, replica):
        fs.capacity = 0
        done = replica.done
        try:
            replica.apply(entry, 1)
        except StoreFullError:
            assert replica.done == done
            fs.capacity = None
            replica.apply(entry, 1)
    assert segments(fs) == segments(log.fs)


def test_after_a_failed_sync_nothing_is_acknowledged_any_more() -> None:
    log = ShippedLog()
    log.commit(1)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    *before, sync = entries(log, replica)
    for entry in before:
        replica.apply(entry, 1)
    synced = replica.synced_lsn
    fs.fail(fs.calls(Fault.FAILED_SYNC) + 1, Fault.FAILED_SYNC)
    with pytest.raises(StoreFailedError):
        replica.apply(sync, 1)
    with pytest.raises(StoreFailedError):
        replica.apply(sync, 1)
    assert replica.synced_lsn == synced


def test_a_leader_of_the_past_is_not_followed_and_neither_is_one_of_another_store() -> None:
    log = ShippedLog(epoch=5)
    log.commit(2)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    Wire(log, replica)
    with pytest.raises(EntryRefusedError, match="epoch 4"):
        replica.follow(4, STORE_ID)
    replica = ReplicaStore(fs.kill9())
    replica.open()
    with pytest.raises(EntryRefusedError, match="epoch 4"):
        replica.follow(4, STORE_ID)
    with pytest.raises(EntryRefusedError, match="begin with an empty one"):
        replica.follow(6, bytes(15) + b"x")
    replica.follow(6, STORE_ID)
    with pytest.raises(EntryRefusedError, match="no longer followed"):
        replica.apply(Sync(0), 5)


def test_a_follower_that_was_catching_up_is_nobody_elses_store_until_it_is_in_sync() -> None:
    log = ShippedLog()
    log.commit(2)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    Wire(log, replica)
    with pytest.raises(StoreError, match="not in sync"):
        replica.promote()
    with pytest.raises(StoreError, match="catching up with its leader"):
        Store(fs.kill9()).open()
    replica.apply(CaughtUp(log.shipping.end_lsn()), 1)
    replica.promote()
    Store(fs.kill9()).open()


@pytest.mark.parametrize("lives", [1, 2])
@pytest.mark.parametrize("entry", [Truncate(64, 1), BeginImage(64)])
def test_what_the_frames_here_say_is_committed_is_never_given_up(entry: FromLeader, lives: int) -> None:
    log = ShippedLog()
    log.commit(3)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    Wire(log, replica)
    last_lsn = log.shipping.end_lsn() - FRAME_HEADER_BYTES - 64
    if lives == 2:
        replica = follower(log, fs.kill9())
    assert (replica.committed_lsn, replica.committed()) == (last_lsn, (1, last_lsn))
    with pytest.raises(HistoryLostError, match="lacks what was confirmed") as lost:
        replica.apply(entry, 1)
    assert (lost.value.epoch, lost.value.lsn) == (1, last_lsn)
    assert replica.received_lsn == log.shipping.end_lsn()
    replica.apply(Truncate(last_lsn, 1), 1)
    assert replica.received_lsn == last_lsn


def test_what_is_committed_is_cut_off_on_the_word_of_a_person() -> None:
    log = ShippedLog()
    log.commit(3)
    fs = SimulatedFileSystem()
    Wire(log, follower(log, fs))
    for epoch, may in ((EPOCH_STRIDE, False), (1 + EPOCH_STRIDE, True)):
        replica = ReplicaStore(fs.kill9(), clock_ms=lambda: 0)
        replica.open()
        replica.follow(epoch, STORE_ID)
        if may:
            replica.apply(Truncate(64, 1), epoch)
            assert (replica.received_lsn, replica.committed_lsn) == (64, 0)
        else:
            with pytest.raises(HistoryLostError):
                replica.apply(Truncate(64, 1), epoch)


def test_only_what_is_here_is_committed_here() -> None:
    log = ShippedLog()
    log.commit(3)
    replica = follower(log)
    Wire(log, replica)
    replica.apply(Beacon(1, 1 << 40, 0, 1), 1)
    assert replica.committed_lsn < replica.received_lsn
    replica.apply(Committed(1 << 40), 1)
    assert replica.committed_lsn == replica.received_lsn


def test_to_cut_where_the_log_ends_is_to_say_again_what_is_here() -> None:
    log = ShippedLog()
    log.commit(3)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    wire = Wire(log, replica)
    log.commit(1, sync=False)
    before, position = segments(fs), replica.position()
    assert replica.synced_lsn < replica.received_lsn
    replica.apply(Truncate(position.lsn, 1), 1)
    assert (replica.done, replica.position(), segments(fs)) == (0, position, before)
    assert replica.synced_lsn == replica.received_lsn
    assert fs.names("quarantine") == []
    log.shipping.detach(wire.attachment)
    log.commit(2)
    Wire(log, replica)
    assert segments(fs) == segments(log.fs)


def test_what_is_cut_off_is_in_the_quarantine_and_entries_are_counted_anew() -> None:
    log = ShippedLog()
    log.commit(10)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    Wire(log, replica)
    before = segments(fs)
    lsn = 64 + 56 + 64
    log.epoch += EPOCH_STRIDE  # all of that is committed, and a person gives it up
    replica.follow(log.epoch, STORE_ID)
    replica.apply(Truncate(lsn, 1), log.epoch)
    assert (replica.done, replica.received_lsn, replica.synced_lsn) == (0, lsn, lsn)
    (kept,) = fs.kill9().crash_states(0, 1)
    assert list(segments(kept)) == ["log/0000000001"]
    copies = {
        path[len("quarantine/") :][:10]: data.rstrip(b"\0") for path, data in kept.contents().items() if "quar" in path
    }
    assert copies == {path.removeprefix("log/"): data for path, data in before.items()}
    Wire(log, replica)
    assert segments(fs) == segments(log.fs)


def test_what_was_never_confirmed_is_kept_for_a_while_when_it_is_cut_off() -> None:
    """(6): see cut_copies.py."""
    log = ShippedLog()
    log.commit(3)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    Wire(log, replica)
    lsn = replica.received_lsn
    log.commit(1)
    end = replica.received_lsn
    before = segments(fs)["log/0000000001"]
    replica.follow(log.epoch + 1, STORE_ID)
    replica.apply(Truncate(lsn, 1), log.epoch + 1)
    assert replica.received_lsn == lsn
    (name,) = fs.names("quarantine")
    assert name.startswith(f"cut-0000000001-{end - lsn}-")
    found = fs.contents()[f"quarantine/{name}"]
    assert found[lsn:] == before[lsn:end] and not found[64:lsn].strip(b"\0")


def test_a_file_of_a_stream_that_cannot_be_read_before_a_link_stays_and_is_tried_again() -> None:
    """(7)"""
    log = ShippedLog()
    fs = SimulatedFileSystem()
    log.commit()
    log.files.seal(SealJob(7, 0, 0, columns(0, b"sealed")))
    replica = follower(log, fs)
    Wire(log, replica)
    before = fs.contents()
    reads = [True]
    fs.fails_read = lambda path, offset, length: path.startswith("streams/") and bool(reads and reads.pop())
    with pytest.raises(StoreUnreadableError):
        replica.follow(log.epoch, STORE_ID)
    assert fs.contents() == before
    replica.follow(log.epoch, STORE_ID)
    (file,) = replica.sealed_files()
    assert (file.stream_id, file.segment) == (7, 0)


def test_a_file_of_a_stream_that_can_never_be_read_is_shipped_again() -> None:
    """(7)"""
    log = ShippedLog()
    fs = SimulatedFileSystem()
    log.commit()
    log.files.seal(SealJob(7, 0, 0, columns(0, b"sealed")))
    replica = follower(log, fs)
    Wire(log, replica)
    path = sealed_path(7, 0)
    right = fs.contents()[path]
    fs.spoil(path, 0, 8)
    for _ in range(SCANS_MAX):
        with pytest.raises(StoreUnreadableError):
            replica.follow(log.epoch, STORE_ID)
        assert fs.contents()[path] == right
    replica.follow(log.epoch, STORE_ID)
    assert replica.sealed_files() == []
    Wire(log, replica)
    assert fs.contents()[path] == right
