"""The points from which a follower can continue, and what it gets from there."""

from __future__ import annotations

from unittest import mock

import pytest
from simulation.simulated_file_system import SimulatedFileSystem
from unit.replication.shipped_log import CAPACITY, LIFE_ID, STORE_ID, ShippedLog, Wire, follower, parsed, segments
from unit.replication.test_mending import Peer

from warren.msgstore.files.sealed_copy import SealedCopy
from warren.msgstore.files.sealed_files import sealed_path
from warren.msgstore.files.segment_names import segment_path
from warren.msgstore.files.store_errors import StoreError, StoreFullError
from warren.msgstore.log.checkpoint import CheckpointReader
from warren.msgstore.log.checksum import checksum_function
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES, Columns, ColumnsWriter, Piece
from warren.msgstore.log.epoch_table import NO_LIFE
from warren.msgstore.log.jobs import DropJob, SealJob
from warren.msgstore.log.message import Envelope, build_message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES
from warren.replication import held_files, shipping
from warren.replication.entries import BeginImage, Frame, FromLeader, ImagePiece, Position, Sync, Truncate
from warren.replication.leader_mender import LeaderMender
from warren.replication.replica_scrub import ReplicaScrub
from warren.replication.replica_store import EntryRefusedError, ReplicaStore
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


def life_ids(fs: SimulatedFileSystem) -> tuple[int, list[bytes]]:
    """Return the minor of the checkpoint, and the ids of lives that it knows."""
    reader = CheckpointReader(fs.contents()["checkpoint"])
    log = MessageLog(checksum_function(reader.algorithm), 1 << 16)
    reader.fill(log)
    return reader.minor, [log.epochs.life_id(epoch) for epoch, _ in log.epochs.entries]


@pytest.mark.parametrize("is_live", [True, False])
def test_a_follower_of_an_earlier_version_gets_checkpoints_without_the_ids_of_lives(is_live: bool) -> None:
    log = ShippedLog()
    log.commit(4)
    earlier, today = SimulatedFileSystem(), SimulatedFileSystem()
    if not is_live:
        log.compact()
    wires = [Wire(log, follower(log, earlier), reads_lives=False), Wire(log, follower(log, today))]
    if is_live:
        log.compact()
    assert life_ids(earlier) == (2, [NO_LIFE])
    # A checkpoint that is written while such a follower is there is the same for all.
    assert life_ids(today) == ((2, [NO_LIFE]) if is_live else (3, [LIFE_ID]))
    assert life_ids(log.fs) == (3, [LIFE_ID])
    log.shipping.detach(wires[0].attachment)
    log.commit(1)
    log.compact()
    assert life_ids(today) == (3, [LIFE_ID])


@pytest.mark.parametrize("is_live", [True, False])
def test_a_commit_and_the_wish_to_sync_it_go_out_together_and_count_as_two(is_live: bool) -> None:
    """Two packets are two wake-ups and two acknowledgements of each follower."""
    log = ShippedLog()
    log.commit(2)
    attachment = log.attach(follower(log))
    assert list(attachment.catch_up())
    sent = attachment.sent
    given: list[list[Piece]] = []
    if is_live:
        attachment.go_live(given.append)
    log.commit(1)
    if not is_live:
        attachment.go_live(given.append)
    (pieces,) = given
    frame, sync = parsed(pieces)
    assert isinstance(frame, Frame)
    assert isinstance(sync, Sync) and sync.lsn == frame.end_lsn == log.shipping.end_lsn()
    assert attachment.sent == sent + 2


def test_what_is_written_behind_the_end_of_shipping_reaches_nobody_and_what_was_shipped_is_synced() -> None:
    log = ShippedLog()
    log.commit(1)
    attachment = log.attach(follower(log))
    assert list(attachment.catch_up())
    given: list[list[Piece]] = []
    attachment.go_live(given.append)
    end_lsn = log.shipping.end()
    log.commit(3)
    assert log.shipping.end_lsn() == end_lsn
    assert [parsed(pieces) for pieces in given] == [[Sync(end_lsn)]]


def test_a_new_follower_of_a_log_that_has_lost_its_beginning_gets_all_there_is() -> None:
    log = ShippedLog()
    log.commit(30)
    log.compact(1, 3)
    log.commit(1)
    replica = follower(log, fs := SimulatedFileSystem())
    wire = Wire(log, replica)
    assert wire.attachment.is_image
    log.commit(10)
    log.compact(2)
    assert segments(fs) == segments(log.fs)
    assert fs.contents()["checkpoint"] == log.fs.contents()["checkpoint"]
    assert replica.synced_lsn == log.shipping.end_lsn()
    assert [name for name in fs.contents() if "image" in name or "adopted" in name] == []


@pytest.mark.parametrize("is_image", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_follower_gets_a_segment_whose_header_is_damaged(is_image: bool, is_known: bool) -> None:
    """`is_known`: the leader has read the header before the disk damaged it."""
    log = ShippedLog()
    log.commit(30)
    log.compact(*([1] if is_image else []))
    right = segments(log.fs)
    if is_known:
        log.shipping.detach(log.attach(follower(log)))
    log.fs.flip_bit("log/0000000002", 20, 3)
    wire = Wire(log, follower(log, fs := SimulatedFileSystem()))
    assert wire.attachment.is_image is is_image
    assert segments(fs) == right
    follower(log, fs)


def test_a_segment_with_a_damaged_header_is_kept_for_a_follower_that_catches_up() -> None:
    log = ShippedLog()
    log.commit(30)
    right = segments(log.fs)
    log.fs.flip_bit("log/0000000002", 20, 3)
    replica = follower(log, fs := SimulatedFileSystem())
    first = log.attach(follower(log))
    log.compact(1, 2)
    wire = Wire(log, replica)
    assert not wire.attachment.is_image
    assert segments(fs) == right
    log.shipping.detach(first)


def test_a_follower_gets_all_there_is_when_segments_were_removed_while_it_was_away() -> None:
    log = ShippedLog()
    log.commit(3)
    fs = SimulatedFileSystem()
    wire = Wire(log, follower(log, fs))
    log.shipping.detach(wire.attachment)
    log.commit(30)
    log.compact(2)
    wire = Wire(log, replica := follower(log, fs))
    assert wire.attachment.is_image
    log.commit(1)
    assert segments(fs) == segments(log.fs)
    log.shipping.detach(wire.attachment)
    again = Wire(log, follower(log, fs))
    assert not again.attachment.is_image
    assert replica.received_lsn == log.shipping.end_lsn()


def lose(fs: SimulatedFileSystem, number: int) -> bytes:
    """Have the disk lose all of a segment but its size; return its bytes."""
    content = fs.contents()[segment_path(number)]
    overwrite(fs, number, bytes(len(content)))
    return content


def overwrite(fs: SimulatedFileSystem, number: int, content: bytes, at: int = 0) -> None:
    handle = fs.open(segment_path(number), writable=True)
    fs.write(handle, [content], at)
    fs.close(handle)


def forgetful(log: ShippedLog) -> ShippedLog:
    """Let the leader forget which headers it has read, as a restart does."""
    log.shipping._known.clear()
    return log


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_segment_that_is_unusable_on_the_leader_is_missing_on_a_new_follower_until_it_can_be_read(
    is_gone: bool,
) -> None:
    log = ShippedLog()
    log.commit(30)
    log.compact(1, needs=[2, 3])
    right = segments(log.fs)
    content = lose(log.fs, 2)
    if is_gone:
        log.fs.unlink(segment_path(2))
    fs = SimulatedFileSystem()
    wire = Wire(log, replica := follower(log, fs))
    assert wire.attachment.is_image
    peers = [Peer(log.fs)]
    scrub = ReplicaScrub(replica, SealedCopy(fs), lambda: peers)
    for store in (replica, follower(log, fs)):
        assert list(store.missing()) == [2]
    scrub.look_at_all()
    assert scrub.damaged == 1
    if is_gone:
        log.fs.create(segment_path(2), 0)
    overwrite(log.fs, 2, content)
    scrub.look_at_all()
    assert (scrub.damaged, replica.missing(), segments(fs)) == (0, {}, right)
    log.commit(10)
    assert segments(fs) == segments(log.fs)
    assert follower(log, fs).missing() == {}


@pytest.mark.parametrize("has_links", [True, False])
def test_a_follower_keeps_a_segment_that_is_unusable_on_the_leader(
    monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    log = ShippedLog()
    log.commit(20)
    fs = SimulatedFileSystem()
    log.shipping.detach(Wire(log, follower(log, fs)).attachment)
    log.commit(30)
    right = segments(log.fs)
    log.compact(4, needs=[1, 2, 5])
    del right[segment_path(4)]
    lose(forgetful(log).fs, 2)
    if not has_links:
        monkeypatch.setattr(fs, "link", mock.Mock(side_effect=OSError(1, "no links")))
    wire = Wire(log, replica := follower(log, fs))
    assert wire.attachment.is_image
    assert segments(fs) == right
    assert replica.missing() == {}
    log.commit(10)
    mender = LeaderMender(log.fs, lambda: [Peer(fs)], lambda: STORE_ID)
    mender.mend_segment(2, CAPACITY + SEGMENT_HEADER_BYTES)
    assert segments(log.fs) == segments(fs)


@pytest.mark.parametrize("field", ["epoch", "capacity", "base_lsn"])
def test_a_segment_of_another_history_is_not_kept_for_one_that_is_unusable_on_the_leader(field: str) -> None:
    log = ShippedLog()
    log.commit(20)
    fs = SimulatedFileSystem()
    log.shipping.detach(Wire(log, follower(log, fs)).attachment)
    log.commit(30)
    log.compact(4, needs=[1, 2, 5])
    lose(forgetful(log).fs, 2)
    replica = follower(log, fs)
    attachment = log.attach(replica)
    header = replica._segments[2]
    setattr(header, field, getattr(header, field) + 1)
    for pieces in attachment.catch_up():
        for entry in parsed(pieces):
            replica.apply(entry, log.epoch)
    assert list(replica.missing()) == [2]


def test_a_follower_keeps_the_part_that_it_has_of_a_segment_that_is_unusable_on_the_leader() -> None:
    log = ShippedLog()
    log.commit(10)
    fs = SimulatedFileSystem()
    log.shipping.detach(Wire(log, follower(log, fs)).attachment)
    log.commit(30)
    log.compact(3, needs=[1, 2])
    content = lose(forgetful(log).fs, 2)
    Wire(log, replica := follower(log, fs))
    path = segment_path(2)
    assert fs.contents()[path] == content[: len(fs.contents()[path])]
    assert list(replica.missing()) == [2]
    scrub = ReplicaScrub(replica, SealedCopy(fs), lambda: [Peer(log.fs)])
    overwrite(log.fs, 2, content)
    scrub.look_at_all()
    assert (scrub.damaged, segments(fs)) == (0, segments(log.fs))


def test_intact_frames_of_a_follower_do_not_go_for_damaged_ones_of_an_image() -> None:
    log = ShippedLog()
    log.commit(20)
    fs = SimulatedFileSystem()
    log.shipping.detach(Wire(log, follower(log, fs)).attachment)
    log.commit(30)
    log.compact(4, needs=[1, 2, 5])
    right = segments(log.fs)
    log.fs.flip_bit(segment_path(1), SEGMENT_HEADER_BYTES + 200, 3)
    log.fs.flip_bit(segment_path(2), SEGMENT_HEADER_BYTES + 80, 3)
    log.fs.flip_bit(segment_path(5), SEGMENT_HEADER_BYTES + 80, 3)
    wire = Wire(log, follower(log, fs))
    assert wire.attachment.is_image
    found = segments(fs)
    assert found.pop(segment_path(5)) != right.pop(segment_path(5))  # which it did not have
    assert found == right


def test_an_image_whose_log_cannot_be_read_to_its_end_is_refused_and_changes_nothing() -> None:
    log = ShippedLog()
    log.commit(20)
    fs = SimulatedFileSystem()
    log.shipping.detach(Wire(log, follower(log, fs)).attachment)
    log.commit(30)
    log.compact(3)
    log.commit(30)
    lose(forgetful(log).fs, 8)
    before = segments(fs)
    with pytest.raises(EntryRefusedError, match="damaged"):
        Wire(log, follower(log, fs))
    follower(log, fs)
    assert segments(fs) == before
    log.compact()
    Wire(log, follower(log, fs))


@pytest.mark.parametrize("is_kept", [False, True])
def test_whatever_a_crash_leaves_of_a_follower_that_gets_an_image_has_the_old_log_or_the_new_one(is_kept: bool) -> None:
    """`is_kept`: and the segment that it keeps."""
    log = ShippedLog()
    log.commit(20 if is_kept else 12)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    wire = Wire(log, replica)
    log.shipping.detach(wire.attachment)
    before = replica.position()
    log.commit(30)
    log.compact(4 if is_kept else 3, needs=[1, 2] if is_kept else [])
    if is_kept:
        kept = lose(forgetful(log).fs, 1)
    left: list[SimulatedFileSystem] = []
    again = follower(log, fs)
    fs.on_operation = lambda event: left.extend([*fs.crash_states(len(left), 3), fs.kill9()])
    Wire(log, again)
    fs.on_operation = None
    found = {before: 0, again.position(): 0}
    for state in left:
        survivor = ReplicaStore(state, clock_ms=lambda: 0)
        survivor.open()
        found[survivor.position()] += 1
        assert [name for name in state.contents() if "image" in name or "adopted" in name] == []
        if is_kept:
            assert state.contents()[segment_path(1)] == kept
    assert min(found.values()) > 20


def test_what_the_log_lets_go_of_is_kept_for_who_catches_up() -> None:
    log = ShippedLog()
    log.commit(30)
    replica = follower(log, fs := SimulatedFileSystem())
    with mock.patch.object(shipping, "WAITING_BYTES_MAX", 100):
        attachment = log.attach(replica)
        log.commit(30)
        log.compact(1, 2, 3, 4, 5)
        for pieces in attachment.catch_up():
            for entry in parsed(pieces):
                replica.apply(entry, log.epoch)
        assert not attachment.go_live(lambda pieces: None)
    wire = Wire(log, again := follower(log, fs))
    assert not wire.attachment.is_image
    assert again.received_lsn == log.shipping.end_lsn()
    log.shipping.settle()
    assert log.fs.names("pins") != []
    log.shipping.detach(attachment)
    log.shipping.settle()
    assert log.fs.names("pins") == []


def test_what_is_kept_is_counted_for_those_who_were_there_when_it_went() -> None:
    log = ShippedLog()
    log.commit(30)
    shipping = log.shipping
    first = log.attach(follower(log))
    log.compact(1, 2)
    segment_bytes = len(log.fs.contents()["log/0000000003"])
    assert shipping.kept_bytes(first) == 2 * segment_bytes
    second = log.attach(follower(log))
    log.commit(1)
    log.compact(3)
    assert (shipping.kept_bytes(first), shipping.kept_bytes(second)) == (3 * segment_bytes, segment_bytes)
    shipping.detach(first)
    shipping.settle()
    kept = "retained.log.0000000003"
    assert [name for name in log.fs.names("pins") if name.startswith("retained")] == [kept]
    shipping.detach(second)
    shipping.settle()
    assert log.fs.names("pins") == []
    assert shipping.kept_bytes(first) == 0


def test_files_of_streams_that_are_removed_are_counted_while_somebody_may_read_them() -> None:
    log = ShippedLog()
    log.commit(1)
    log.files.seal(SealJob(7, 0, 0, columns(0, b"sealed")))
    size = len(log.fs.contents()[sealed_path(7, 0)])
    attachment = log.attach(follower(log))
    log.files.drop_sealed(DropJob(7, [0]))
    assert log.shipping.kept_bytes(attachment) == size


def test_without_a_checkpoint_there_is_no_image() -> None:
    log = ShippedLog()
    log.commit(30)
    log.fs.unlink("log/0000000001")
    with pytest.raises(BulkNeededError, match="a checkpoint does not exist"):
        log.attach(follower(log))


def test_files_are_held_by_their_names_when_they_are_many() -> None:
    log = ShippedLog()
    log.commit(60)
    fs = SimulatedFileSystem()
    replica = follower(log, fs)
    with mock.patch.object(held_files, "HANDLES_MAX", 2):
        attachment = log.attach(replica)
    before = segments(log.fs)
    assert len(log.fs.names("pins")) == len(before) - 2
    log.compact(1, 2, 3, 4, 5)
    for pieces in attachment.catch_up():
        for entry in parsed(pieces):
            replica.apply(entry, log.epoch)
    assert segments(fs) == before
    log.shipping.detach(attachment)
    log.shipping.settle()
    assert log.fs.names("pins") == []


@pytest.mark.parametrize(
    "pieces",
    [
        [ImagePiece(1, 0, b"without an image")],
        [BeginImage(500), ImagePiece(1, 8, b"not from the beginning on")],
        [BeginImage(500), ImagePiece(1, 0, b"12345678"), ImagePiece(1, 9, b"a gap")],
        [BeginImage(500), ImagePiece(2, 0, b"the second"), ImagePiece(1, 0, b"and then the first")],
    ],
)
def test_pieces_of_an_image_that_are_not_due_are_refused(pieces: list[FromLeader]) -> None:
    log = ShippedLog()
    replica = follower(log)
    *first, last = pieces
    for piece in first:
        replica.apply(piece, log.epoch)
    with pytest.raises(EntryRefusedError, match="not due"):
        replica.apply(last, log.epoch)


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


@pytest.mark.parametrize("suffix", [".unusable", ".unusable.2"])
def test_a_follower_keeps_a_file_of_a_stream_that_is_unusable_on_the_leader(suffix: str) -> None:
    log = ShippedLog()
    log.commit(1)
    fs = SimulatedFileSystem()
    wire = Wire(log, follower(log, fs))
    for first in (0, 10, 20):
        log.files.seal(SealJob(7, first, 0, columns(first, b"body")))
    log.shipping.detach(wire.attachment)
    before = sealed(fs)
    log.fs.rename(sealed_path(7, 10), sealed_path(7, 10) + suffix)
    Wire(log, follower(log, fs))
    assert sealed(fs) == before
    log.fs.unlink(sealed_path(7, 10) + suffix)
    Wire(log, follower(log, fs))
    assert sealed(fs) == sealed(log.fs)


@pytest.mark.parametrize("at", [8, CHUNK_HEAD_BYTES + 1])
@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_intact_chunks_of_a_follower_do_not_go_for_damaged_ones(chunk: int, at: int) -> None:
    log = ShippedLog()
    log.commit(1)
    fs = SimulatedFileSystem()
    wire = Wire(log, follower(log, fs))
    path = sealed_path(7, 0)
    places = [SEGMENT_HEADER_BYTES]
    for offset in range(3):
        log.files.seal(SealJob(7, 0, places[-1] if offset else 0, columns(offset, b"body")))
        places.append(len(log.fs.contents()[path]))
    log.shipping.detach(wire.attachment)
    log.files.seal(SealJob(7, 0, places[-1], columns(3, b"more")))
    right = sealed(log.fs)
    log.fs.flip_bit(path, places[chunk] + at, 3)
    Wire(log, follower(log, fs))
    assert sealed(fs) == right


def test_who_is_not_live_yet_is_not_asked_what_it_has_done() -> None:
    log = ShippedLog()
    log.commit(1)
    attachment = log.attach(follower(log))
    assert log.shipping.sent() == {}
    count = len(list(attachment.catch_up()))
    log.commit(1)
    attachment.go_live(lambda pieces: None)
    assert log.shipping.sent() == {attachment: count + 2}  # the frame, and its sync


@pytest.mark.long
def test_nobody_is_attached_before_the_epoch_has_begun() -> None:
    log = ShippedLog()
    with pytest.raises(StoreError, match="connect again"):
        log.attach(follower(log))
    log.commit(1)
    log.attach(follower(log))
