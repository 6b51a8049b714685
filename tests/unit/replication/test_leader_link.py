"""What a leader believes of one follower, and when: an end of a socket stands for the follower.

The numbers in parentheses are the invariants in the header of ``warren/replication/leader.py``.
"""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing
from simulation.simulated_file_system import SimulatedFileSystem

from warren.cluster.events import BeaconAnswered, EpochRefused, Event, Heard
from warren.msgstore.files.errors import StoreError
from warren.replication.elected_set import ElectedSet, recorded
from warren.replication.entries import PREAMBLE, Ack, EntryError, Position, SealedList, Truncate, encoded
from warren.replication.handshake import Node
from warren.replication.leader import Follower
from warren.replication.replica_store import NO_STORE
from warren.replication.shipping import Attachment
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
        self.has_begun = False
        self.need_image: set[bytes] = set()
        self.attached = trio.Event()

    def epoch(self) -> int:
        return EPOCH

    def end_lsn(self) -> int:
        return 64  # a frame is written

    def moved(self) -> None:
        pass

    def attach(self, position: Position, files: object, *, needs_image: bool) -> object:
        assert self.has_begun
        trio.from_thread.run_sync(self.attached.set)
        raise StoreError("enough")


def link(leader: Leader) -> tuple[Follower, socket.socket]:
    ours, theirs = socket.socketpair()
    return Follower(leader, Wire(ours), TWO, "nowhere", None), theirs  # type: ignore[arg-type]


def test_acks_count_when_the_follower_is_known_to_have_the_same_log() -> None:
    """(6)"""

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


def test_no_log_is_compared_before_what_begins_this_life_is_synced() -> None:
    """(5)"""

    async def main() -> None:
        leader = Leader()
        follower, sock = link(leader)
        said: list[Position | SealedList] = [Position(NO_STORE, 0, 0, 0, 0, ()), SealedList((), False)]
        follower.feed(b"".join([PREAMBLE, *(piece for entry in said for piece in encoded(entry))]))
        with sock, trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follower.serve)
                await trio.testing.wait_all_tasks_blocked()
                assert not leader.attached.is_set()
                leader.has_begun = True
                await leader.attached.wait()

    trio.run(main)


def test_what_is_counted_begins_anew_when_the_follower_has_cut_its_log() -> None:
    """`Ack.done` does: else the follower joins only when something more is written."""

    class TruncatingLeader(Leader):
        def __init__(self) -> None:
            super().__init__()
            self.answers = [Truncate(0, 0), Attachment(SimulatedFileSystem())]

        def attach(self, position: Position, files: object, *, needs_image: bool) -> object:
            return self.answers.pop(0)

    async def main() -> None:
        leader = TruncatingLeader()
        leader.has_begun = True
        follower, sock = link(leader)
        said: list[Position | SealedList] = [Position(NO_STORE, 0, 0, 0, 0, ()), SealedList((), False)]
        follower.feed(b"".join([PREAMBLE, *(piece for entry in said * 2 for piece in encoded(entry))]))
        with sock, trio.fail_after(30):
            attachment = await follower._attach()
            assert attachment is not None and attachment.sent == 0
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
