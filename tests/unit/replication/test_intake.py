"""The thread that applies the entries reads them from the link; while it is at the disk, the loop reads.

The numbers in parentheses are the invariants in the header of ``warren/replication/intake.py``.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import trio

from warren.replication import intake as module
from warren.replication.entries import PREAMBLE, Beacon, Committed, Entry, HaveBytes, Stop, WantBytes, encoded
from warren.replication.intake import Intake
from warren.replication.wire import Wire


def sent(*entries: Entry) -> bytes:
    return b"".join(bytes(piece) for entry in entries for piece in encoded(entry))


class Place:
    """An intake, the socket of its sender, and what it reported."""

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self.sock = theirs
        self.beacons: list[int] = []
        self.asked: list[Entry] = []
        self.ends = 0
        self.intake = Intake(
            Wire(ours), lambda beacon: self.beacons.append(beacon.number), self._on_end, self.asked.append
        )
        self.sock.sendall(PREAMBLE)

    def _on_end(self) -> None:
        self.ends += 1

    @contextmanager
    def thread(self) -> Iterator[list[Entry]]:
        """Make a thread take entries until it is over; it has ended then."""
        taken: list[Entry] = []

        def run() -> None:
            while (entry := self.intake.next()) is not None:
                taken.append(entry[0])
                self.intake.done(entry[1])

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield taken
        finally:
            thread.join(30)
            assert not thread.is_alive()


def with_place(test: Callable[[Place], None]) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            test(Place(ours, theirs))

    trio.run(main)


def until(condition: Callable[[], bool]) -> None:
    waiter = threading.Event()
    for _ in range(3000):
        if condition():
            return
        waiter.wait(0.01)
    raise AssertionError("it did not come to that in 30 s")


def test_entries_are_handed_out_in_their_order_whoever_has_read_them() -> None:
    """(1), (4)"""

    def test(place: Place) -> None:
        place.sock.sendall(sent(*map(Committed, range(100))))
        assert place.intake.maybe_read()
        assert not place.intake.is_empty()
        with place.thread() as taken:
            until(lambda: len(taken) == 100)
            place.sock.sendall(sent(*map(Committed, range(100, 200))))
            until(lambda: len(taken) == 200)
            place.sock.sendall(sent(Committed(200), Stop("enough"), Committed(201)))
        assert taken == [Committed(lsn) for lsn in range(201)]
        assert (place.intake.reason, place.intake.is_left, place.ends) == ("enough", True, 1)
        assert place.intake.queued_bytes == 0

    with_place(test)


def test_the_loop_leaves_reading_to_a_thread_that_waits_for_input() -> None:
    """(1)"""

    def test(place: Place) -> None:
        with place.thread():
            until(place.intake._reading.locked)
            assert not place.intake.maybe_read()
            place.intake.end("enough")

    with_place(test)


def test_beacons_are_told_while_the_thread_is_at_the_disk() -> None:
    """(2)"""

    def test(place: Place) -> None:
        place.sock.sendall(sent(Committed(1), Beacon(7, 0, 0, 1), Committed(2), Beacon(8, 0, 0, 1)))
        assert place.intake.maybe_read()
        assert place.beacons == [7, 8]
        assert place.intake.queued_bytes == 16
        place.sock.close()
        with place.thread() as taken:
            pass
        assert taken == [Committed(1), Committed(2)]

    with_place(test)


def test_the_loop_reads_ahead_of_the_thread_by_so_much_and_the_thread_gets_all() -> None:
    """(3)"""

    def test(place: Place) -> None:
        with mock.patch.object(module, "QUEUED_BYTES_MAX", 100):
            place.sock.sendall(sent(*map(Committed, range(20))))
            assert place.intake.maybe_read()
            assert place.intake.is_full()
            place.sock.sendall(sent(Committed(20)))
            assert not place.intake.maybe_read()
            assert place.intake.queued_bytes == 160
            with place.thread() as taken:
                until(lambda: len(taken) == 21)
                place.sock.close()
            assert not place.intake.is_full()

    with_place(test)


def test_nothing_is_read_after_the_end_and_what_was_read_is_handed_out() -> None:
    """(4)"""

    def test(place: Place) -> None:
        place.sock.sendall(sent(Committed(1)))
        assert place.intake.maybe_read()
        place.sock.sendall(sent(Committed(2)))
        place.intake.end("the link has ended")
        assert not place.intake.maybe_read()
        with place.thread() as taken:
            pass
        assert taken == [Committed(1)]
        assert (place.intake.reason, place.ends) == ("the link has ended", 1)

    with_place(test)


def test_bytes_that_are_no_entries_are_the_end_and_so_is_that_of_the_connection() -> None:
    def refused(place: Place) -> None:
        place.sock.sendall(sent(Committed(1)) + bytes([0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0]))
        assert not place.intake.maybe_read()
        assert place.intake.is_refused
        assert "kind 99" in place.intake.reason

    def closed(place: Place) -> None:
        place.sock.close()
        assert place.intake.maybe_read()  # the preamble
        assert not place.intake.maybe_read()
        assert place.intake.reason == "the leader has closed the connection"
        assert not place.intake.is_refused

    with_place(refused)
    with_place(closed)


def test_questions_and_answers_are_told_at_once_and_are_nothing_to_be_carried_out() -> None:
    """(2)"""

    def test(place: Place) -> None:
        question, answer = WantBytes(1, 0, 2, 64, 8), HaveBytes(7, b"12345678")
        place.sock.sendall(sent(Committed(64), question, answer, Committed(72)))
        until(lambda: place.intake.maybe_read() and len(place.asked) == 2)
        assert place.asked == [question, answer]
        place.sock.sendall(sent(Stop("over")))
        with place.thread() as taken:
            pass
        assert taken == [Committed(64), Committed(72)]

    with_place(test)
