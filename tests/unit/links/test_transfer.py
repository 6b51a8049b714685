"""Between two channels: when the source is told that a message has arrived, and what happens to one that has not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from warren.amqp_client.channel import Confirm, Delivery, Returned
from warren.amqp_client.client_errors import BrokerError
from warren.amqp_client.frames import NO_PROPERTIES
from warren.links.amqp_client import Channel, LinkError, Signal
from warren.links.transfer import BATCH, BATCH_HEADER_BYTES, RETRY_S, Publish, Transfer


class PaperConnection:
    def __init__(self, where: str) -> None:
        self.where = where
        self.blocked_reason: str | None = None
        self.flushes = 0
        self.is_full = False
        self.room = Signal()

    async def writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while self.blocked_reason is not None:
            await self.room.wait()

    async def has_room(self) -> None:
        while self.is_full:
            await self.room.wait()

    async def flushed(self) -> None:
        await trio.lowlevel.checkpoint()
        self.flushes += 1


class PaperChannel:
    """The part of a channel that a transfer sees, with a log of what the transfer does to it."""

    def __init__(self, where: str) -> None:
        self.connection = PaperConnection(where)
        self.changed = Signal()
        self.deliveries: list[Delivery] = []
        self.confirms: list[Confirm] = []
        self.returned: list[Returned] = []
        self.cancelled: set[str] = set()
        self.failure: BrokerError | None = None
        self.log: list[object] = []
        self.keys: list[str] = []
        self.published = 0

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        assert multiple
        self.log.append(("ack", delivery_tag))

    def requeue(self, delivery_tag: int) -> None:
        self.log.append(("requeue", delivery_tag))

    def publish(self, exchange: str, key: str, properties: bytes, body: bytes, *, mandatory: bool) -> int:
        self.log.append(body)
        self.keys.append(key)
        self.published += 1
        return self.published

    def takes(self, properties: bytes) -> bool:
        return len(properties) <= 20

    def take_deliveries(self, limit: int) -> list[Delivery]:
        taken, self.deliveries = self.deliveries[:limit], self.deliveries[limit:]
        return taken

    def take_confirms(self) -> list[Confirm]:
        taken, self.confirms = self.confirms, []
        return taken

    # --- what the test lets happen ------------------------------------------------------------------------------

    async def deliver(self, *tags: int) -> None:
        self.deliveries += [Delivery(tag, False, "x", "k", NO_PROPERTIES, b"%d" % tag) for tag in tags]
        self.changed.wake()
        await wait_all_tasks_blocked()

    async def confirm(self, sequence: int, *, multiple: bool = False, accepted: bool = True) -> None:
        self.confirms.append(Confirm(sequence, multiple, accepted))
        self.changed.wake()
        await wait_all_tasks_blocked()

    async def fail(self, text: str) -> None:
        self.failure = LinkError(text)
        self.changed.wake()
        await wait_all_tasks_blocked()


def forward_odd(delivery: Delivery, annotated: bool) -> Publish | None:
    return None if delivery.delivery_tag % 2 == 0 else forward(delivery, annotated)


def forward(delivery: Delivery, annotated: bool) -> Publish | None:
    return Publish("x", "k", delivery.properties, True)


Test = Callable[[Transfer, PaperChannel, PaperChannel], Awaitable[None]]


def run(test: Test, ack_mode: str = "on-confirm", limit: int | None = None, rewrite: Any = forward) -> str:
    """Run a transfer while `test` runs; return why it ended: ``""`` for its limit, ``"still runs"``."""
    outcome = "still runs"

    async def main() -> None:
        source, destination = PaperChannel("source"), PaperChannel("destination")
        transfer = Transfer(cast(Channel, source), cast(Channel, destination), ack_mode, rewrite, limit)

        async def move() -> None:
            nonlocal outcome
            try:
                await transfer.run()
                outcome = ""
            except BrokerError as error:
                outcome = str(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            await wait_all_tasks_blocked()
            await test(transfer, source, destination)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock())
    return outcome


def test_on_confirm_the_source_hears_nothing_before_the_destination_has_confirmed() -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(5, 6, 7)
        assert destination.log == [b"5", b"6", b"7"]
        assert (source.log, transfer.pending) == ([], 3)
        await destination.confirm(2)
        assert source.log == []
        await destination.confirm(1)
        assert source.log == [("ack", 6)]
        await destination.confirm(3, multiple=True)
        assert (source.log, transfer.pending, transfer.forwarded) == ([("ack", 6), ("ack", 7)], 0, 3)

    assert run(test) == "still runs"


def test_on_publish_it_hears_when_the_bytes_are_on_their_way() -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(5, 6)
        assert (source.log, destination.connection.flushes) == ([("ack", 6)], 1)

    run(test, "on-publish")


def test_no_ack_says_nothing() -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(5, 6)
        assert (source.log, destination.log) == ([], [b"5", b"6"])

    run(test, "no-ack")


def test_what_is_not_forwarded_is_acked_in_its_turn() -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(2)
        assert (source.log, destination.log) == ([("ack", 2)], [])
        await source.deliver(3, 4)
        assert source.log == [("ack", 2)]
        await destination.confirm(1)
        assert source.log == [("ack", 2), ("ack", 4)]

    run(test, rewrite=forward_odd)


def test_a_message_without_room_for_what_the_link_writes_goes_on_without_that() -> None:
    def annotate(delivery: Delivery, annotated: bool) -> Publish | None:
        written = delivery.properties + bytes(20) if annotated else delivery.properties
        return Publish("x", "k" if annotated else "bare", written, True)

    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(1)
        await destination.confirm(1)
        assert (destination.keys, source.log) == (["bare"], [("ack", 1)])

    assert run(test, rewrite=annotate) == "still runs"


def test_a_message_that_the_link_cannot_leave_as_it_is_is_settled() -> None:
    def annotate(delivery: Delivery, annotated: bool) -> Publish | None:
        return Publish("x", "k", delivery.properties + bytes(20), True) if annotated else None

    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(1)
        assert (destination.log, source.log) == ([], [("ack", 1)])

    assert run(test, rewrite=annotate) == "still runs"


def test_a_refused_message_goes_back_and_nothing_is_published_for_a_while() -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(1, 2)
        await destination.confirm(1, accepted=False)
        await destination.confirm(2)
        assert source.log == [("requeue", 1), ("ack", 2)]
        assert transfer.blocked
        await source.deliver(3)
        assert destination.log == [b"1", b"2"]
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(RETRY_S + 0.01)
        await wait_all_tasks_blocked()
        assert destination.log == [b"1", b"2", b"3"]
        assert not transfer.blocked

    run(test)


def test_nothing_is_published_to_a_blocked_destination() -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        destination.connection.blocked_reason = "low on memory"
        await source.deliver(1)
        assert destination.log == [] and transfer.blocked
        destination.connection.blocked_reason = None
        destination.connection.room.wake()
        await wait_all_tasks_blocked()
        assert destination.log == [b"1"]

    run(test)


def test_nothing_is_taken_from_a_source_that_does_not_read_its_acks() -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        source.connection.is_full = True
        await source.deliver(1)
        assert destination.log == []
        source.connection.is_full = False
        source.connection.room.wake()
        await wait_all_tasks_blocked()
        assert destination.log == [b"1"]

    assert run(test) == "still runs"


def test_a_destination_that_confirms_nothing_gets_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.links.transfer.PENDING_MAX", 10)

    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(*range(1, 1000))
        assert transfer.pending == BATCH
        await destination.confirm(45, multiple=True)
        assert transfer.pending == 5 + BATCH
        await destination.confirm(destination.published, multiple=True, accepted=False)
        assert transfer.pending == 0 and len(source.log) == 1 + 5 + BATCH

    assert run(test) == "still runs"


def test_a_returned_message_ends_it_before_its_confirm_counts() -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(1)
        destination.returned.append(Returned(312, "NO_ROUTE", "", "k"))
        await destination.confirm(1)
        assert source.log == []

    assert run(test) == "destination has no queue for a message with routing key 'k'"


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
@pytest.mark.parametrize("side", ["source", "destination"])
def test_the_end_of_either_side_ends_it(ack_mode: str, side: str) -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await (source if side == "source" else destination).fail(f"{side} is gone")

    assert run(test, ack_mode) == f"{side} is gone"


def test_a_consumer_that_the_source_cancels_ends_it() -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        source.cancelled.add("tag")
        source.changed.wake()

    assert run(test) == "source cancelled the consumer: its queue is gone, or an operator did it"


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
def test_a_limit_ends_it_with_exactly_so_many_messages(ack_mode: str) -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(1, 2, 3, 4, 5)
        assert destination.log == [b"1", b"2", b"3"]
        await destination.confirm(3, multiple=True)

    assert run(test, ack_mode, 3) == ""


def test_a_refused_message_does_not_count_for_the_limit() -> None:
    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        await source.deliver(1, 2, 3)
        await destination.confirm(1, accepted=False)
        await destination.confirm(2)
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(RETRY_S + 0.01)
        await wait_all_tasks_blocked()
        assert destination.log == [b"1", b"2", b"3"]
        assert transfer.to_settle == 1
        await destination.confirm(3)
        assert source.log == [("requeue", 1), ("ack", 2), ("ack", 3)]

    assert run(test, limit=2) == ""


def test_messages_with_large_headers_leave_others_their_turns() -> None:
    """Links read and write headers: fifty of 128 KiB would take as long as all of them at once."""

    def rewrite(delivery: Delivery, annotated: bool) -> Publish | None:
        seen.append(steps)
        return forward(delivery, annotated)

    seen: list[int] = []
    steps = 0

    async def test(transfer: Transfer, source: PaperChannel, destination: PaperChannel) -> None:
        nonlocal steps
        deliveries = [Delivery(tag, False, "", "", bytes(BATCH_HEADER_BYTES), b"") for tag in range(1, BATCH + 1)]
        source.deliveries += deliveries
        source.changed.wake()
        while len(seen) < BATCH:
            steps += 1
            await trio.lowlevel.checkpoint()

    run(test, "no-ack", rewrite=rewrite)
    assert len(set(seen)) >= BATCH // 4
