"""A leader's knowledge of one follower over time: an end of a socket stands for the follower.

The numbers in parentheses are the invariants in the header of ``warren/replication/link_to_follower.py``.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing
from simulation.simulated_file_system import SimulatedFileSystem

from warren.cluster.events import BeaconAnswered, EpochRefused, Event, Heard, Objected
from warren.cluster.events import Position as Committed
from warren.msgstore.files.store_errors import StoreError
from warren.msgstore.log.epoch_table import EpochTable
from warren.replication.catching_up import CatchUps
from warren.replication.elected_set import ElectedSet, recorded
from warren.replication.entries import (
    PREAMBLE,
    Ack,
    CatalogueCopy,
    Decoder,
    EntryError,
    ImagePiece,
    Objection,
    Position,
    SealedList,
    Stop,
    Sync,
    Truncate,
    encoded,
)
from warren.replication.handshake import Node
from warren.replication.link_to_follower import AT_ONCE_BYTES, HEARD_EVERY_S, LinkToFollower
from warren.replication.replica_store import NO_STORE
from warren.replication.shipping import Attachment, Shipping
from warren.replication.wire import Wire

ME = Node("one", b"1" * 16)
TWO = Node("two", b"2" * 16)
EPOCH = 7


class Leader:
    """As much of a leader as its link needs. `shipping` is this object, too."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.elected = self.in_sync = ElectedSet(ME, self.told.append, 0.0)
        self.shipping = self
        self.file_system = SimulatedFileSystem()
        self.has_begun = False
        self.attached = trio.Event()
        self.catch_ups = CatchUps()
        self.remembered = self.catch_ups.begin(TWO)
        self.kept = 0

    def epoch(self) -> int:
        return EPOCH

    def written_lsn(self) -> int:
        return 64

    def kept_bytes(self, attachment: Attachment) -> int:
        return self.kept

    def free_bytes(self) -> int:
        return 100

    def moved(self) -> None:
        pass

    def attach(self, position: Position, files: object, *, needs_image: bool, reads_lives: bool) -> object:
        assert self.has_begun
        trio.from_thread.run_sync(self.attached.set)
        raise StoreError("enough")


class Attaching(Leader):
    """A leader that has something for its follower, in this order. It is the broker around itself, too."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = True
        self.host = self
        self.answers: list[Truncate | Attachment] = []
        self.detached: list[Attachment] = []
        self.watched: dict[int, Callable[[], None]] = {}

    def attach(self, position: Position, files: object, *, needs_image: bool, reads_lives: bool) -> object:
        return self.answers.pop(0)

    def detach(self, attachment: Attachment) -> None:
        self.detached.append(attachment)

    def watch(self, fd: int, on_readable: Callable[[], None]) -> None:
        self.watched[fd] = on_readable

    def unwatch(self, fd: int) -> None:
        del self.watched[fd]

    async def copy_metadata(self) -> tuple[int, list[object]]:
        return 5, []

    def settle(self) -> None:
        pass


def link(leader: Leader) -> tuple[LinkToFollower, socket.socket]:
    ours, theirs = socket.socketpair()
    return LinkToFollower(leader, Wire(ours), TWO, "nowhere", None), theirs  # type: ignore[arg-type]


def place(position: Position) -> bytes:
    """Return the bytes of a follower that says where it is. It has no files of streams."""
    return b"".join([*encoded(position), *encoded(SealedList((), False))])


NOWHERE = place(Position(NO_STORE, 0, 0, 0, 0, ()))
IN_THIS_LIFE = place(Position(NO_STORE, 0, 0, 0, 0, ((EPOCH, 64),)))
IN_STEP = Position(bytes(16), 1, 64, 0, 0, ())


def missing(number: int) -> Attachment:
    """Return the missing part, for a follower that has all frames."""
    attachment = Attachment(SimulatedFileSystem(), number)
    attachment.position, attachment.end_lsn = IN_STEP, 64
    return attachment


def test_acks_count_when_the_follower_is_known_to_have_the_same_log() -> None:
    """(1)"""

    async def main() -> None:
        follower, sock = link(Leader())
        with sock:
            follower._take(Ack(500, 400, 0, 0, EPOCH))
            assert (follower.replica.received_lsn, follower.replica.synced_lsn) == (0, 0)
            follower._attachment = object()  # type: ignore[assignment]
            follower._take(Ack(500, 400, 0, 0, EPOCH))
            assert (follower.replica.received_lsn, follower.replica.synced_lsn) == (500, 400)
            follower.wire.close()

    trio.run(main)


def test_the_member_hears_which_beacon_was_answered_and_of_a_greater_epoch() -> None:
    async def main() -> None:
        leader = Leader()
        follower, sock = link(leader)
        with sock:
            follower._take(Ack(0, 0, 0, 3, EPOCH))
            with pytest.raises(EntryError):
                follower._take(Ack(0, 0, 0, 0, EPOCH + 1))
            follower.wire.close()
        assert leader.told == [BeaconAnswered(recorded(TWO), EPOCH, 3), EpochRefused(recorded(TWO), EPOCH + 1)]

    trio.run(main)


def test_the_member_hears_that_a_follower_has_as_committed_what_is_not_here() -> None:
    async def main() -> None:
        leader = Leader()
        follower, sock = link(leader)
        with sock:
            follower._take(Objection(4, 1000))
            follower.wire.close()
        assert leader.told == [Objected(recorded(TWO), Committed(4, 1000))]

    trio.run(main)


def test_the_member_hears_at_once_of_a_new_answer_and_now_and_then_of_other_acks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It decides again each time, and there may be an ack for every message."""
    now_s = 100.0
    monkeypatch.setattr("warren.replication.link_to_follower.time.monotonic", lambda: now_s)

    async def main() -> None:
        nonlocal now_s
        leader = Leader()
        follower, sock = link(leader)
        with sock:
            for beacon in (3, 3, 3, 4, 4):
                follower._take(Ack(0, 0, 0, beacon, EPOCH))
            assert leader.told == [BeaconAnswered(recorded(TWO), EPOCH, 3), BeaconAnswered(recorded(TWO), EPOCH, 4)]
            now_s += 2 * HEARD_EVERY_S
            for _ in range(2):
                follower._take(Ack(0, 0, 0, 4, EPOCH))
            assert leader.told[2:] == [BeaconAnswered(recorded(TWO), EPOCH, 4)]
            follower.wire.close()

    trio.run(main)


def test_no_log_is_compared_before_what_begins_this_life_is_synced() -> None:
    """(4)"""

    async def main() -> None:
        leader = Leader()
        follower, sock = link(leader)
        follower.feed(PREAMBLE + NOWHERE)
        with sock, trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follower.serve)
                await trio.testing.wait_all_tasks_blocked()
                assert not leader.attached.is_set()
                leader.has_begun = True
                await leader.attached.wait()

    trio.run(main)


def test_a_follower_that_has_come_while_the_leader_recovers_waits_for_its_first_commit() -> None:
    """(4)"""

    async def main() -> None:
        leader = Leader()
        leader.shipping = Shipping(SimulatedFileSystem(), EpochTable())  # type: ignore[assignment]
        follower, sock = link(leader)
        follower.feed(PREAMBLE + NOWHERE)
        with sock, trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follower.serve)
                await trio.testing.wait_all_tasks_blocked()
                leader.shipping = leader  # the log is recovered
                leader.has_begun = True
                await leader.attached.wait()
        assert follower._reason == "enough"

    trio.run(main)


def test_what_is_counted_begins_anew_when_the_follower_has_cut_its_log() -> None:
    """`Ack.done` does: else the follower joins only when something more is written."""

    async def main() -> None:
        leader = Attaching()
        leader.answers = [Truncate(0, 0), Attachment(SimulatedFileSystem())]
        follower, sock = link(leader)
        follower.feed(PREAMBLE + 2 * NOWHERE)
        with sock, trio.fail_after(30):
            attachment = await follower._attach()
            assert attachment is not None and attachment.sent == 0
            follower.wire.close()

    trio.run(main)


def test_a_follower_for_which_too_much_was_written_gets_that_over_the_same_link() -> None:
    """(2)"""

    class Behind(Attaching):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = missing(1), missing(2)
            self.first.is_behind = True
            self.answers = [self.first, self.second]
            self.is_settled = trio.Event()

        def attach(self, position: Position, files: object, *, needs_image: bool, reads_lives: bool) -> object:
            assert not self.detached, "what is kept for the first one is kept until there is the second"
            return super().attach(position, files, needs_image=needs_image, reads_lives=reads_lives)

        def settle(self) -> None:
            trio.from_thread.run_sync(self.is_settled.set)

    async def main() -> None:
        leader = Behind()
        follower, sock = link(leader)
        follower.feed(PREAMBLE + IN_THIS_LIFE)
        decoder = Decoder((CatalogueCopy, Sync, Truncate))
        decoder.feed(PREAMBLE)

        async def next_entry() -> object:
            while (entry := decoder.maybe_entry()) is None:
                decoder.feed(await trio.to_thread.run_sync(sock.recv, 1 << 16))
            return entry

        with sock, trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follower.serve)
                assert [await next_entry() for _ in range(3)] == [
                    CatalogueCopy(5, False, ()),
                    Sync(64),
                    Truncate(64, EPOCH),
                ]
                sock.sendall(IN_THIS_LIFE)
                assert await next_entry() == Sync(64), "it has the metadata already"
                await leader.is_settled.wait()
                assert leader.detached == [leader.first]
                assert leader.second.is_live
                assert leader.second.image_piece is ImagePiece, "it has told no level"
                assert follower.replica.is_live
                nursery.cancel_scope.cancel()
        assert leader.detached == [leader.first, leader.second]

    trio.run(main)


class Ending(Attachment):
    """The missing part of a follower, whose link is ended while that is read."""

    def __init__(self, end: Callable[[], None], *, is_all: bool) -> None:
        super().__init__(SimulatedFileSystem(), 1)
        self.position, self.end_lsn = IN_STEP, 64
        self.end, self.is_all = end, is_all

    def catch_up(self) -> Iterator[list[bytes | memoryview]]:
        trio.from_thread.run_sync(self.end)
        yield [b"some"]
        if not self.is_all:
            yield [bytes(AT_ONCE_BYTES)]
            raise AssertionError("nothing more is read")


@pytest.mark.parametrize("is_all", [True, False])
def test_a_link_that_ends_while_files_are_read_has_not_caught_its_follower_up(is_all: bool) -> None:
    """(5): one that was given up waits, and another link may have its replica by then."""

    async def main() -> None:
        leader = Attaching()
        follower, sock = link(leader)
        ending = Ending(lambda: follower.end("it has connected again"), is_all=is_all)
        leader.answers = [ending]
        follower.feed(PREAMBLE + IN_THIS_LIFE)
        with sock, trio.fail_after(30):
            await follower.serve()
        assert not follower.replica.is_live and not ending.is_live
        assert leader.catch_ups.maybe(TWO) is leader.remembered, "it is still behind"

    trio.run(main)


@pytest.mark.parametrize("says", [b"", b"".join(encoded(Stop("its disk is full")))], ids=["nothing", "why"])
def test_a_link_that_has_ended_is_not_looked_at_while_a_thread_reads_for_it(says: bytes) -> None:
    """An end stays readable: every turn of the reactor would look at it until the disk answers."""
    looked: list[tuple[dict[int, Callable[[], None]], bool]] = []

    async def main() -> None:
        leader = Attaching()
        follower, sock = link(leader)

        def end() -> None:
            sock.sendall(says) if says else sock.close()
            for on_readable in list(leader.watched.values()):
                on_readable()
                looked.append((dict(leader.watched), follower.questions._is_over))

        leader.answers = [Ending(end, is_all=True)]
        follower.feed(PREAMBLE + IN_THIS_LIFE)
        with sock, trio.fail_after(30):
            await follower.serve()
        assert looked == [({}, True)], "nor is it asked for bytes"

    trio.run(main)


def test_an_acknowledgement_that_comes_over_an_ended_link_counts_for_nothing() -> None:
    """(5): its follower has connected again, and may have less by now."""

    async def main() -> None:
        leader = Leader()
        follower, sock = link(leader)
        with sock:
            follower._attachment = Attachment(SimulatedFileSystem())
            follower.end("it has connected again")
            follower._take(Ack(500, 400, 0, 3, EPOCH))
            assert (follower.replica.received_lsn, follower.replica.synced_lsn) == (0, 0)
            assert leader.told == []
            follower._take(Stop("its disk is full"))
            assert follower.stopped == "its disk is full", "why it has gone is of use"
            follower.wire.close()

    trio.run(main)


def test_a_follower_that_reads_what_it_is_sent_is_heard_of() -> None:
    async def main() -> None:
        leader = Leader()
        follower, sock = link(leader)
        with sock:
            follower.wire.put([bytes(8 << 20)])  # more than the kernel takes
            follower.note_progress(1.0)
            assert leader.told == [Heard(recorded(TWO))]
            follower.note_progress(2.0)
            assert leader.told == [Heard(recorded(TWO))], "nothing went on since"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follower.wire.send)
                with trio.fail_after(30):
                    while follower.wire.sent_bytes == follower._sent_bytes:
                        await trio.to_thread.run_sync(sock.recv, 1 << 16)
                nursery.cancel_scope.cancel()
            follower.note_progress(3.0)
            assert leader.told == [Heard(recorded(TWO))] * 2
            follower.wire.close()

    trio.run(main)


def test_a_follower_for_which_too_much_is_kept_is_disconnected_and_told_why() -> None:
    """(2)"""

    async def main() -> None:
        leader = Leader()
        follower, sock = link(leader)
        with sock:
            follower._attachment = Attachment(SimulatedFileSystem())
            follower._maybe_give_up(50, 100, 0.0)
            assert not follower._ended.is_set()
            follower._maybe_give_up(51, 100, 0.0)
            assert follower._ended.is_set()
            decoder = Decoder((Stop,))
            decoder.feed(PREAMBLE + sock.recv(1 << 16))
            told = decoder.maybe_entry()
            assert isinstance(told, Stop) and "too slow" in told.text and "begin again in 5 s" in told.text
            follower._maybe_give_up(51, 100, 0.0)
            assert leader.remembered.waits_s(0.0) == 5, "it is given up once"
            follower.wire.close()

    trio.run(main)


def test_a_follower_that_was_given_up_stays_connected_and_is_attached_when_it_has_waited() -> None:
    """(2)"""

    async def main() -> None:
        leader = Leader()
        leader.has_begun = True
        leader.remembered.give_up("slow", time.monotonic())
        follower, sock = link(leader)
        follower.feed(PREAMBLE + NOWHERE)
        with sock, trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follower.serve)
                sock.send(b"".join(encoded(Ack(0, 0, 0, 3, EPOCH))))
                while BeaconAnswered(recorded(TWO), EPOCH, 3) not in leader.told:
                    await trio.sleep(0.01)
                assert not leader.attached.is_set()
                leader.remembered._admitted_s = 0.0
                await leader.attached.wait()

    trio.run(main)
