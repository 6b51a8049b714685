"""Bytes between two nodes: in order, never blocking the sender, and bounded. A pair of sockets stands for the network.

The numbers in parentheses are the invariants in the header of ``warren/replication/wire.py``.
"""

from __future__ import annotations

import socket
import threading
from itertools import pairwise
from unittest import mock

import pytest
import trio
import trio.testing

from warren.replication import wire
from warren.replication.wire import SEND_AT_ONCE_BYTES, Wire


async def received(receiver: Wire, count: int) -> bytes:
    data = b""
    while len(data) < count:
        some = await receiver.received()
        assert some
        data += some
    return data


async def _order() -> None:
    left, right = socket.socketpair()
    sender, receiver = Wire(left), Wire(right)
    whole = bytes(range(256)) * 40_000
    halves = [memoryview(whole)[at : at + 100_001] for at in range(0, len(whole), 100_001)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.send)

        # From another thread, as the committer does, and more than the kernel takes.
        def put() -> None:
            for half in halves:
                sender.put([half[:7], b"", half[7:]])

        thread = threading.Thread(target=put)
        thread.start()
        assert await received(receiver, len(whole)) == whole
        thread.join()
        assert sender.backlog_bytes == 0
        assert sender.sent_bytes == len(whole)
        nursery.cancel_scope.cancel()
    sender.close()
    assert await receiver.received() == b""
    assert receiver.is_over
    receiver.close()


def test_what_is_put_arrives_in_order_whatever_the_kernel_takes_at_a_time() -> None:
    """(1)"""
    trio.run(_order)


async def _bound() -> None:
    left, right = socket.socketpair()
    sender = Wire(left, backlog_bytes_max=1 << 20)
    for _ in range(1000):
        sender.put([bytes(100_000)])
        if sender.failure:
            break
    assert "bytes wait to be sent" in sender.failure
    assert sender.backlog_bytes == 0
    assert sender.receive() == b""
    sender.put([b"more"])
    assert sender.backlog_bytes == 0
    with trio.fail_after(5):
        await sender.send()
    sender.close()
    right.close()


def test_a_side_that_does_not_read_ends_the_wire_instead_of_filling_memory() -> None:
    """(2), (3)"""
    trio.run(_bound)


async def _gone() -> None:
    left, right = socket.socketpair()
    sender = Wire(left)
    assert sender.receive() is None
    right.close()
    assert await sender.received() == b""
    sender.put([b"into nothing"])
    sender.put([b"into nothing"])
    assert sender.failure
    sender.close()


def test_who_sends_to_nobody_is_not_told_but_who_reads_is() -> None:
    """(5)"""
    trio.run(_gone)


async def _failed() -> None:
    left, right = socket.socketpair()
    failing = Wire(left)

    async def read() -> None:
        assert await failing.received() == b""

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        threading.Thread(target=failing.fail, args=("the disk is full",)).start()
    assert failing.failure == "the disk is full"
    failing.close()
    right.close()


def test_another_thread_can_end_it_and_who_waits_for_input_learns_of_it() -> None:
    trio.run(_failed)


class GreedyWire(Wire):
    """One whose kernel takes all it is given, at once."""

    def _send(self) -> int:
        return min(self.backlog_bytes, 1 << 18)


async def _passes() -> None:
    left, right = socket.socketpair()
    sender = GreedyWire(left)
    sender._backlog.append(memoryview(bytes(16 * SEND_AT_ONCE_BYTES)))
    sender.backlog_bytes = 16 * SEND_AT_ONCE_BYTES
    sender._wake()
    found: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.send)
        while not found or found[-1]:
            found.append(sender.backlog_bytes)
            await trio.sleep(0)
        nursery.cancel_scope.cancel()
    taken = [before - after for before, after in pairwise(found)]
    assert max(taken) <= 2 * SEND_AT_ONCE_BYTES, "tasks of one pass run in any order"
    sender.close()
    right.close()


def test_much_that_waits_is_sent_bit_by_bit_and_others_have_their_turns_between() -> None:
    """(3)"""
    trio.run(_passes)


async def _pushed() -> None:
    left, right = socket.socketpair()
    sender, receiver = Wire(left), Wire(right)
    whole = bytes(range(256)) * 40_000
    woken: list[bool] = []

    def push() -> None:
        is_sent = sender.push([whole[:1000], whole[1000:]])
        woken.append(sender._waiting.is_set())
        while not is_sent:
            is_sent = sender.push(())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, push)
        assert await received(receiver, len(whole)) == whole
    assert sender.backlog_bytes == 0
    assert sender.sent_bytes == len(whole)
    assert woken == [False], "the loop has nothing to do with it"
    sender.close()
    receiver.close()


def test_a_thread_that_pushes_sends_all_of_it_by_itself() -> None:
    """(4)"""
    with mock.patch.object(wire, "PUSH_S", 30.0):
        trio.run(_pushed)


async def _stands_still() -> None:
    left, right = socket.socketpair()
    sender, receiver = Wire(left), Wire(right)
    whole = bytes(8 << 20)
    assert not await trio.to_thread.run_sync(sender.push, [whole])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.send)
        assert await received(receiver, len(whole)) == whole
        nursery.cancel_scope.cancel()
    right.close()
    assert await trio.to_thread.run_sync(sender.push, [whole]), "of a wire that has failed nothing waits"
    sender.close()
    receiver._sock.close()


@pytest.mark.long
def test_what_is_pushed_to_a_side_that_does_not_read_waits_as_what_is_put_does() -> None:
    """(4)"""
    with mock.patch.object(wire, "PUSH_S", 0.01):
        trio.run(_stands_still)
