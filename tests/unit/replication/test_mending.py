"""Damage on a disk is mended from another node, and by nothing that does not prove itself; mending.py (1) to (3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from simulation.simulated_file_system import Fault, SimulatedFileSystem
from unit.msgstore.sealed_disk import STORE_ID, Stream, opened
from unit.replication.shipped_log import CAPACITY, ShippedLog, Wire, follower, segments
from unit.replication.shipped_log import STORE_ID as LOG_STORE_ID

from warren.msgstore.files.sealed_copy import SealedCopy
from warren.msgstore.files.sealed_files import STREAMS
from warren.msgstore.files.segment_names import segment_path
from warren.msgstore.files.store import Store
from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.msgstore.log import jobs
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES
from warren.msgstore.log.jobs import ReadJob, SealedRead
from warren.msgstore.log.records import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, STORE_TAG_BYTES
from warren.replication import questions
from warren.replication.entries import (
    FROM_LEADER,
    PIECE_BYTES,
    PREAMBLE,
    EntryError,
    HaveBytes,
    Piece,
    WantBytes,
    encoded,
    entries_of,
)
from warren.replication.leader_mender import LeaderMender
from warren.replication.mending import Mender, damaged_regions
from warren.replication.questions import Answering, Questions, answered
from warren.replication.replica_scrub import ReplicaScrub
from warren.replication.replica_store import ReplicaStore
from warren.server.store_reader import StoreReader

FRAME = FRAME_HEADER_BYTES + 64
FIRST = SEGMENT_HEADER_BYTES


class Peer(Questions):
    """A node that answers from the files in `fs`, as `change` makes of them."""

    def __init__(self, fs: SimulatedFileSystem, change: Callable[[bytes], bytes] = bytes) -> None:
        super().__init__(self._answer)
        self._fs = fs
        self._change = change
        self.asked: list[WantBytes] = []

    def _answer(self, pieces: object) -> None:
        (wanted,) = entries_of(PREAMBLE + b"".join(pieces), FROM_LEADER)  # type: ignore[arg-type]
        assert isinstance(wanted, WantBytes)
        self.asked.append(wanted)
        found = answered(self._fs, wanted)
        self.told(HaveBytes(found.number, self._change(bytes(found.data))))


def pair(count: int = 20, capacity: int = CAPACITY) -> tuple[ShippedLog, SimulatedFileSystem]:
    """Return a leader, and the disk of a follower that has the same: segments of frames, the last one open."""
    log, fs, _ = followed(count, capacity)
    return log, fs


def followed(count: int, capacity: int = CAPACITY) -> tuple[ShippedLog, SimulatedFileSystem, ReplicaStore]:
    """Return them, and the store of that follower."""
    log = ShippedLog(capacity=capacity)
    fs = SimulatedFileSystem()
    log.commit()
    replica = follower(log, fs)
    Wire(log, replica)
    log.commit(count - 1)
    return log, fs, replica


def with_streams() -> tuple[SimulatedFileSystem, SimulatedFileSystem, Stream]:
    """Return two disks with the same stream of three chunks in one file."""
    disks = []
    for _ in range(2):
        fs = SimulatedFileSystem()
        store, _found = opened(fs)
        stream = Stream(store)
        for _ in range(3):
            stream.seal(5)
        disks.append(fs)
    return disks[0], disks[1], stream


@pytest.mark.parametrize("at", [0, 8, FRAME_HEADER_BYTES, FRAME - 1])
@pytest.mark.parametrize("frame", [0, 3, 7])
def test_one_flipped_bit_anywhere_in_a_frame_is_mended(frame: int, at: int) -> None:
    log, fs = pair()
    right = segments(fs)
    fs.flip_bit(segment_path(1), FIRST + frame * FRAME + at, 3)
    mender = Mender(fs, lambda: [Peer(log.fs)])
    assert mender.mend_frames(1, FIRST + frame * FRAME)
    assert (segments(fs), mender.mended) == (right, 1)
    assert mender.mend_frames(1), "nothing is left to be mended"


def test_what_cannot_be_read_several_frames_and_all_of_a_segment_are_mended() -> None:
    log, fs = pair()
    right = segments(fs)
    fs.zero_sector(segment_path(1), 1)
    fs.flip_bit(segment_path(2), FIRST, 0)
    mender = Mender(fs, lambda: [Peer(log.fs)])
    assert mender.mend_frames(1) and mender.mend_frames(2)
    handle = fs.open(segment_path(1), writable=True)
    fs.write(handle, [bytes(fs.size(handle) - FIRST)], FIRST)
    fs.write(handle, [b"x"], FIRST)
    assert mender.mend_frames(1)
    assert segments(fs) == right
    kept = [name for name in fs.names("quarantine") if name.startswith("mended-")]
    assert len(kept) == 3, "what was damaged is kept"


BLOCKS = 1 << 15  # a segment of eight blocks of a disk


@pytest.mark.parametrize("block", range(8))
def test_a_block_that_the_disk_does_not_give_is_mended_on_either_node(block: int) -> None:
    """mending.py (1), (4): the first block has the header, the last one the unused end."""
    log, fs = pair(600, BLOCKS)
    right = segments(fs)
    for ours, theirs in ((fs, log.fs), (log.fs, fs)):
        ours.spoil(segment_path(1), block * 4096 + 1000, block * 4096 + 1008)
        mender = LeaderMender(ours, lambda theirs=theirs: [Peer(theirs)], lambda: STORE_ID)  # type: ignore[misc]
        assert mender.mend_unread(ReadJob([]), 1)
        assert (segments(ours), mender.mended) == (right, 1)
        handle = ours.open(segment_path(1), writable=False)
        assert len(ours.read(handle, BLOCKS, 0)) == ours.size(handle), "all of it can be read again"


def test_a_read_that_spans_frames_is_mended_where_the_disk_does_not_give_it() -> None:
    """Its place in the log is that of the first frame, which is intact."""
    log, fs = pair(600, BLOCKS)
    log.fs.spoil(segment_path(2), 20_000, 20_001)
    mender = LeaderMender(log.fs, lambda: [Peer(fs)], lambda: STORE_ID)
    job = ReadJob([(BLOCKS + FIRST, BLOCKS // 2 + 8192)])
    with pytest.raises(StoreUnreadableError) as raised:
        job.carry_out(log.store)
    assert mender.mend_unread(job, raised.value.segment)
    job.carry_out(log.store)


@pytest.mark.parametrize("change", [0, 33, 41, 63])
def test_a_header_that_does_not_prove_itself_is_not_taken(change: int) -> None:
    """mending.py (1)"""
    log, fs = pair()
    for disk in (fs, log.fs):
        disk.flip_bit(segment_path(1), change, 3)
    before = fs.contents()
    assert not LeaderMender(fs, lambda: [Peer(log.fs)], lambda: STORE_ID).mend_unread(ReadJob([]), 1)
    log.fs.flip_bit(segment_path(1), change, 3)
    assert not LeaderMender(fs, lambda: [Peer(log.fs)], lambda: bytes(16)).mend_unread(ReadJob([]), 1), (
        "of another store"
    )
    assert fs.contents() == before
    assert LeaderMender(fs, lambda: [Peer(log.fs)], lambda: STORE_ID).mend_unread(ReadJob([]), 1)
    assert segments(fs) == segments(log.fs)


def test_the_end_of_the_segment_that_is_being_written_is_no_damage() -> None:
    _, fs = pair(10)
    handle = fs.open(segment_path(2), writable=False)
    data = fs.read(handle, CAPACITY, 0)
    algorithm = checksum_function(default_algorithm())
    assert len(data) == CAPACITY
    assert damaged_regions(data, CAPACITY, algorithm, STORE_ID[:STORE_TAG_BYTES]) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: bytes(len(data)),
        lambda data: data[:70] + bytes([data[70] ^ 1]) + data[71:],
    ],
)
def test_bytes_that_are_not_right_are_not_written(change: Callable[[bytes], bytes]) -> None:
    log, fs = pair()
    fs.flip_bit(segment_path(1), FIRST + FRAME + 60, 3)
    before = fs.contents()
    mender = Mender(fs, lambda: [Peer(log.fs, change)])
    assert not mender.mend_frames(1)
    assert (fs.contents(), mender.mended) == (before, 0)


def test_frames_of_another_history_are_not_taken_however_whole_they_are() -> None:
    log, fs = pair()
    other = ShippedLog()
    for _ in range(20):
        job = other.job()
        other.files.commit(job, 999)  # at another time
    fs.flip_bit(segment_path(1), FIRST + 2 * FRAME + 60, 3)
    before = fs.contents()
    mender = Mender(fs, lambda: [Peer(other.fs)])
    assert not mender.mend_frames(1)
    assert fs.contents() == before
    assert Mender(fs, lambda: [Peer(other.fs), Peer(log.fs)]).mend_frames(1), "the next one has the right ones"


def test_a_power_cut_at_any_moment_leaves_only_what_was_damaged_to_be_mended_again() -> None:
    log, fs = pair()
    right = segments(fs)
    fs.flip_bit(segment_path(1), FIRST + 2 * FRAME + 60, 3)
    states: list[SimulatedFileSystem] = []

    def look(event: str) -> None:
        fs.on_operation = None
        states.extend(fs.crash_states(len(states), 6))
        fs.on_operation = look

    fs.on_operation = look
    assert Mender(fs, lambda: [Peer(log.fs)]).mend_frames(1)
    fs.on_operation = None
    assert len(states) > 20
    for state in states:
        assert Mender(state, lambda: [Peer(log.fs)]).mend_frames(1)
        assert {path: data for path, data in segments(state).items() if path == segment_path(1)} == {
            segment_path(1): right[segment_path(1)]
        }


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC, Fault.FAILED_SYNC])
def test_a_disk_that_fails_meanwhile_is_no_failure_of_the_store(fault: Fault) -> None:
    for call in range(1, 30):
        log, fs = pair()
        fs.flip_bit(segment_path(1), FIRST + 2 * FRAME + 60, 3)
        fs.fail(fs.calls(fault) + call, fault)
        Mender(fs, lambda log=log: [Peer(log.fs)]).mend_frames(1)  # type: ignore[misc]
        if not fs.failures:
            return
    raise AssertionError("the fault was never late enough")


def test_nobody_is_asked_again_for_a_while_when_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    log, fs = pair()
    fs.flip_bit(segment_path(1), FIRST + 60, 3)
    monkeypatch.setattr(questions, "ANSWER_S", 0.001)
    sent: list[object] = []
    silent = Questions(sent.append)
    mender = Mender(fs, lambda: [silent, silent])
    assert not mender.mend_frames(1)
    assert len(sent) == 2
    assert not mender.mend_frames(1)
    assert len(sent) == 2
    silent.close()
    assert silent.ask(0, 1, 0, 8) is None
    assert log.last_crc


# --- chunks of streams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 20, CHUNK_HEAD_BYTES + 3])
def test_a_damaged_chunk_is_mended_whether_its_head_can_be_read_or_not(chunk: int, at: int) -> None:
    ours, theirs, stream = with_streams()
    right = ours.contents()
    place = stream.table.segments[0].chunks[chunk]
    position, size = int(place.position), int(place.stored_bytes)
    for known in (size, 0):
        ours.flip_bit(stream.path(0), position + at, 1)
        assert Mender(ours, lambda: [Peer(theirs)]).mend_chunk(STORE_ID, 7, 0, position, known)
        kept = {path: data for path, data in ours.contents().items() if path.startswith(STREAMS)}
        assert kept == {path: data for path, data in right.items() if path.startswith(STREAMS)}


def test_a_chunk_of_another_size_or_place_is_not_written() -> None:
    ours, _, stream = with_streams()
    other = SimulatedFileSystem()
    store, _found = opened(other)
    another = Stream(store, body=b"another body ")
    another.seal(5)
    another.seal(9)
    position = int(stream.table.segments[0].chunks[1].position)
    ours.flip_bit(stream.path(0), position + 3, 1)
    before = ours.contents()
    for known in (0, int(stream.table.segments[0].chunks[1].stored_bytes)):
        assert not Mender(ours, lambda: [Peer(other)]).mend_chunk(STORE_ID, 7, 0, position, known)
    assert ours.contents() == before
    assert not Mender(ours, lambda: [Peer(other)]).mend_chunk(STORE_ID, 8, 0, 64, 100), "a file that is not there"


# --- the mending node
# --------------------------------------------------------------------------------------------------------


def test_a_leader_mends_what_a_read_has_met_and_asks_for_it_again() -> None:
    log, fs = pair()
    log.fs.flip_bit(segment_path(2), FIRST + 60, 3)
    mender = LeaderMender(log.fs, lambda: [Peer(fs)], lambda: STORE_ID)
    assert mender.mend(ReadJob([]), [CAPACITY + FIRST + FRAME_HEADER_BYTES])
    assert (segments(log.fs), mender.mended) == (segments(fs), 1)
    assert not mender.mend(ReadJob([]), [1 << 40]), "nowhere"
    log.fs.flip_bit(segment_path(1), FIRST + 60, 3)
    mender.mend_segment(1, FIRST)
    assert segments(log.fs) == segments(fs)


def test_a_leader_mends_what_a_read_has_met_in_a_segment_whose_header_is_damaged() -> None:
    log, fs = pair()
    log.fs.flip_bit(segment_path(2), 20, 3)
    log.fs.flip_bit(segment_path(2), FIRST + FRAME + 60, 3)
    mender = LeaderMender(log.fs, lambda: [Peer(fs)], lambda: STORE_ID)
    assert mender.mend(ReadJob([]), [CAPACITY + FIRST + FRAME + FRAME_HEADER_BYTES])
    assert segments(log.fs) == segments(fs)


class PlainRead(ReadJob):
    """Takes everything that is there for intact."""

    def damaged(self, checksum: Callable[[bytes, int], int]) -> list[int]:
        return [lsn for (lsn, length), data in zip(self.ranges, self.data, strict=True) if len(data) < length]


@pytest.mark.skipif(jobs.__file__.endswith(".so"), reason="a compiled class cannot be inherited from")
@pytest.mark.parametrize("filling", [b"\0", b"x"])
def test_a_segment_that_was_unusable_at_a_start_is_read_when_it_is_mended(filling: bytes) -> None:
    log, fs = pair()
    wanted = [(CAPACITY + FIRST + FRAME_HEADER_BYTES, 64)]
    right = log.store.read(wanted)
    handle = log.fs.open(segment_path(2), writable=True)
    log.fs.write(handle, [filling * log.fs.size(handle)], 0)
    log.fs.close(handle)
    store = Store(log.fs, clock_ms=lambda: 0)
    store.open()
    _, problems = store.open_segments()
    assert len(problems) == 1
    store.resume(0, 0, 2, LOG_STORE_ID, default_algorithm())
    job = PlainRead(wanted)
    peers: list[Questions] = []
    mender = LeaderMender(log.fs, lambda: peers, lambda: LOG_STORE_ID)
    StoreReader(store, checksum_function(default_algorithm()), mender).read(job)
    assert job.data == [b""]
    peers.append(Peer(fs))
    mender = LeaderMender(log.fs, lambda: peers, lambda: LOG_STORE_ID)
    StoreReader(store, checksum_function(default_algorithm()), mender).read(job)
    assert job.data == right
    assert segments(log.fs) == segments(fs)


def test_a_leader_mends_a_chunk_that_cannot_be_read() -> None:
    ours, theirs, stream = with_streams()
    place = stream.table.segments[0].chunks[1]
    ours.flip_bit(stream.path(0), int(place.position) + CHUNK_HEAD_BYTES, 1)
    job = SealedRead(7, 0, int(place.position), int(place.stored_bytes))
    assert LeaderMender(ours, lambda: [Peer(theirs)], lambda: STORE_ID).mend(job, [])


def test_a_follower_finds_and_mends_what_is_damaged_in_a_pass() -> None:
    log, fs, replica = followed(30)
    scrub = ReplicaScrub(replica, SealedCopy(fs), lambda: [Peer(log.fs)])
    right = segments(fs)
    scrub.look_at_all()
    assert (scrub.mended, scrub.damaged) == (0, 0)
    for number in (1, 2, 3):
        fs.flip_bit(segment_path(number), FIRST + 3 * FRAME + 60, 3)
    scrub.look_at_all()
    assert (segments(fs), scrub.mended, scrub.damaged) == (right, 3, 0)


def test_a_follower_finds_and_mends_a_damaged_header_in_a_pass() -> None:
    """Its next start would be refused."""
    log, fs, replica = followed(30)
    peers: list[Questions] = []
    scrub = ReplicaScrub(replica, SealedCopy(fs), lambda: peers)
    right = segments(fs)
    fs.flip_bit(segment_path(2), 20, 3)
    scrub.look_at_all()
    assert (scrub.mended, scrub.damaged) == (0, 1)
    peers.append(Peer(log.fs))
    scrub.look_at_all()
    assert (segments(fs), scrub.mended, scrub.damaged) == (right, 1, 0)


def test_zeros_where_the_checkpoint_has_frames_are_damage() -> None:
    log, fs, replica = followed(30)
    log.compact(needs=[2])
    right = segments(fs)
    peers: list[Questions] = [Peer(log.fs, lambda data: bytes(len(data)))]
    scrub = ReplicaScrub(replica, SealedCopy(fs), lambda: peers)
    handle = fs.open(segment_path(2), writable=True)
    fs.write(handle, [bytes(2 * FRAME)], fs.size(handle) - 2 * FRAME)
    fs.close(handle)
    scrub.look_at_all()
    assert (scrub.mended, scrub.damaged) == (0, 1)
    peers[0] = Peer(log.fs)
    scrub.look_at_all()
    assert (segments(fs), scrub.mended, scrub.damaged) == (right, 1, 0)


def test_a_follower_without_an_answer_counts_the_damage_until_it_is_mended() -> None:
    log, fs, replica = followed(30)
    peers: list[Questions] = [Peer(log.fs, lambda data: bytes(len(data)))]
    scrub = ReplicaScrub(replica, SealedCopy(fs), lambda: peers)
    fs.flip_bit(segment_path(1), FIRST + 3 * FRAME + 60, 3)
    for _ in range(2):
        scrub.look_at_all()
        assert (scrub.mended, scrub.damaged) == (0, 1)
    peers[0] = Peer(log.fs)
    scrub.look_at_all()
    assert (scrub.mended, scrub.damaged) == (1, 0)


@pytest.mark.parametrize("is_found_before", [True, False])
def test_damage_in_a_segment_that_is_no_longer_needed_does_not_count(is_found_before: bool) -> None:
    """(4): between two looks at it the segment may be removed, and nobody could ever mend it."""
    _, fs, replica = followed(30)
    scrub = ReplicaScrub(replica, SealedCopy(fs), list)
    fs.flip_bit(segment_path(1), FIRST + 3 * FRAME + 60, 3)
    if is_found_before:
        scrub.look_at_all()
        assert scrub.damaged == 1
        fs.unlink(segment_path(1))
        scrub.look_at_all()
    else:
        looking = scrub._all()
        assert next(looking) == 0
        fs.unlink(segment_path(1))
        for _ in looking:
            pass
    assert scrub.damaged == 0


def test_nothing_is_put_into_a_file_that_may_have_become_another_one() -> None:
    _, fs, replica = followed(10)
    generation = replica.generation
    replica.open()
    before = fs.contents()
    assert not replica.mend(generation, segment_path(1), FIRST, bytes(8))
    assert not replica.mend(replica.generation, segment_path(1), CAPACITY, bytes(8)), "no file becomes longer"
    assert not replica.mend(replica.generation, segment_path(9), 0, bytes(8))
    assert fs.contents() == before


# --- questions and answers --------------------------------------------------------------------------------------------


def test_large_places_are_asked_for_in_pieces_and_absurd_ones_are_refused() -> None:
    fs = SimulatedFileSystem()
    fs.mkdir("log")
    handle = fs.create(segment_path(1), 0)
    content = bytes(range(256)) * (2 * PIECE_BYTES // 256 + 10)
    fs.write(handle, [content], 0)
    peer = Peer(fs)
    assert peer.ask(0, 1, 0, len(content)) == content
    assert [wanted.length for wanted in peer.asked] == [PIECE_BYTES, PIECE_BYTES, 2560]
    assert peer.ask(0, 1, 0, len(content) + 1) == b""
    assert peer.ask(0, 2, 0, 8) == b""
    for length, position in ((0, 0), (PIECE_BYTES + 1, 0), (8, 1 << 63)):
        with pytest.raises(EntryError, match="does not exist"):
            list(entries_of(PREAMBLE + b"".join(encoded(WantBytes(1, 0, 1, position, length))), FROM_LEADER))


def test_who_is_asked_too_much_at_once_drops_the_rest() -> None:
    fs = SimulatedFileSystem()
    sent: list[Piece] = []

    async def main() -> None:
        answering = Answering(fs, sent.extend)
        for number in range(questions.ASKED_MAX + 5):
            answering.take(WantBytes(number, 0, 1, 0, 8), Questions(lambda _: None))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answering.run)
            with trio.fail_after(10):
                while len(sent) < 3 * questions.ASKED_MAX:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    trio.run(main)
    answers = list(entries_of(PREAMBLE + b"".join(sent), FROM_LEADER))
    assert answers == [HaveBytes(number, b"") for number in range(questions.ASKED_MAX)]
