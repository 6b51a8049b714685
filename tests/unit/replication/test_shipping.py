"""Where a follower can go on from, and what it gets from there."""

from __future__ import annotations

from unittest import mock

import pytest
from simulation.simulated_file_system import SimulatedFileSystem
from unit.replication.shipped_log import STORE_ID, ShippedLog, Wire, follower, segments

from warren.msgstore.files.errors import StoreError, StoreFullError
from warren.msgstore.files.sealed_files import sealed_path
from warren.msgstore.log.columns import Columns, ColumnsWriter
from warren.msgstore.log.jobs import DropJob, SealJob
from warren.msgstore.log.message import Envelope, build_message
from warren.replication import shipping
from warren.replication.entries import Position, Truncate
from warren.replication.shipping import BulkNeededError, OtherStoreError


def columns(first: int, body: bytes) -> Columns:
    writer = ColumnsWriter()
    writer.add(first, build_message(Envelope("", "s"), b"\0\0", body, 0, True), False)
    return writer.finish(first, first + 1)


def sealed(fs: SimulatedFileSystem) -> dict[str, bytes]:
    return {path: data for path, data in fs.contents().items() if path.startswith("streams/")}


def test_a_commit_that_had_no_room_reaches_a_follower_that_came_meanwhile_once() -> None:
    log = ShippedLog()
    log.commit(1)
    job = log.job()
    used = sum(map(len, log.fs.contents().values()))
    with mock.patch.object(log.fs, "write", side_effect=OSError(28, "full")), pytest.raises(StoreFullError):
        log.files.commit(job, 0)
    assert sum(map(len, log.fs.contents().values())) == used
    fs = SimulatedFileSystem()
    Wire(log, follower(log, fs))
    log.files.commit(job, 0)
    log.commit(1)
    assert segments(fs) == segments(log.fs)


def test_a_follower_for_which_too_much_waits_has_to_connect_again_with_less_to_catch_up() -> None:
    log = ShippedLog()
    log.commit(1)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    attachment = log.attach(replica)
    with mock.patch.object(shipping, "WAITING_BYTES_MAX", 1000):
        log.commit(20)
    assert not attachment.go_live(lambda pieces: None)
    log.shipping.detach(attachment)
    Wire(log, replica)
    assert segments(fs) == segments(log.fs)


def test_a_follower_of_a_log_that_has_lost_its_beginning_needs_a_copy() -> None:
    log = ShippedLog()
    log.commit(30)
    log.fs.unlink("log/0000000001")
    with pytest.raises(BulkNeededError, match="beginning of the log"):
        log.attach(follower(log))


def test_a_gap_in_the_log_is_no_way_to_go_on() -> None:
    log = ShippedLog()
    log.commit(3)
    replica = follower(log)
    wire = Wire(log, replica)
    log.shipping.detach(wire.attachment)
    log.commit(30)
    log.fs.unlink("log/0000000002")
    with pytest.raises(BulkNeededError, match="does not go on"):
        list(log.attach(replica).catch_up())


def test_the_directory_of_another_store_is_refused() -> None:
    log = ShippedLog()
    log.commit(1)
    with pytest.raises(OtherStoreError, match="begin with an empty directory"):
        log.shipping.attach(Position(bytes(16), 1, 64, 0, 0, ((1, 64),)), [])


def test_a_follower_that_has_more_than_the_leader_has_to_cut_it_off() -> None:
    log = ShippedLog()
    log.commit(2)
    end = log.shipping.end_lsn()
    longer = Position(STORE_ID, 1, end + 120, 0, 7, ((1, 64),))
    assert log.shipping.attach(longer, []) == Truncate(end, 1)
    later = Position(STORE_ID, 2, 2000, 0, 7, ((1, 64), (2, 1088)))
    assert log.shipping.attach(later, []) == Truncate(end, 1)
    with pytest.raises(BulkNeededError):
        log.shipping.attach(Position(STORE_ID, 1, end, 0, 7, ((9, 64),)), [])


def test_files_of_streams_become_those_of_the_leader() -> None:
    log = ShippedLog()
    log.commit(1)
    fs = SimulatedFileSystem()
    wire = Wire(log, follower(log, fs))
    for first in (0, 10, 20):
        log.files.seal(SealJob(7, first, 0, columns(first, b"one of these")))
    assert sealed(fs) == sealed(log.fs)
    log.shipping.detach(wire.attachment)
    size = len(log.fs.contents()[sealed_path(7, 10)])
    log.files.drop_sealed(DropJob(7, [0]))
    log.files.seal(SealJob(7, 10, 0, columns(10, b"ONE OF THESE")))  # as long as before, and another
    log.files.seal(SealJob(7, 20, len(log.fs.contents()[sealed_path(7, 20)]), columns(21, b"more")))
    log.files.seal(SealJob(7, 30, 0, columns(30, b"new")))
    assert len(log.fs.contents()[sealed_path(7, 10)]) == size
    assert sealed(fs) != sealed(log.fs)
    Wire(log, follower(log, fs.kill9()))
    again = fs.kill9()
    wire = Wire(log, follower(log, again))
    assert sealed(again) == sealed(log.fs)


def test_who_is_not_live_yet_is_not_asked_what_it_has_done() -> None:
    log = ShippedLog()
    log.commit(1)
    attachment = log.attach(follower(log))
    assert log.shipping.sent() == {}
    count = len(list(attachment.catch_up()))
    log.commit(1)
    attachment.go_live(lambda pieces: None)
    assert log.shipping.sent() == {attachment: count + 2}  # the frame, and its sync


def test_nobody_is_attached_before_the_epoch_has_begun() -> None:
    log = ShippedLog()
    with pytest.raises(StoreError, match="connect again"):
        log.attach(follower(log))
    log.commit(1)
    log.attach(follower(log))
