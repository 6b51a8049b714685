"""Group commit: what gathers while one commit runs is the next; nothing is reported before its commit.

Rows of deleted queues go last: after the message store has deleted the queues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.testing
from jumping_clock import run_jumping

from warren.server.catalogue import CatalogueError
from warren.server.catalogue_writer import CatalogueWriter
from warren.vhosts.metadata import (
    ExchangeDelete,
    MetadataChange,
    MetadataJournal,
    QueueDelete,
    QueuePut,
    VhostDelete,
    VhostPut,
)


def queue(number: int) -> QueuePut:
    return QueuePut("/", str(number), False, b"\x00\x00\x00\x00", number)


class FakeStore:
    """Keeps batches; refuses the next `refusals`; holds commits while `gate` is closed."""

    def __init__(self) -> None:
        self.batches: list[list[MetadataChange]] = []
        self.attempts = 0
        self.refusals = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def commit(self, changes: Sequence[MetadataChange], /) -> None:
        self.attempts += 1
        self.entered.set()
        self.gate.wait()
        if self.refusals > 0:
            self.refusals -= 1
            raise CatalogueError("metadata store: gone")
        self.batches.append(list(changes))


class FakeMessageStore:
    """Has deleted what it was asked to when `durable` is set; counts who waited for that."""

    def __init__(self) -> None:
        self.durable = trio.Event()
        self.durable.set()
        self.waits = 0

    async def deleted(self) -> None:
        self.waits += 1
        await self.durable.wait()


class Fixture:
    def __init__(self) -> None:
        self.store = FakeStore()
        self.message_store = FakeMessageStore()
        self.journal = MetadataJournal()
        self.tickets: list[int] = []
        self.writer = CatalogueWriter(self.store, self.journal, self._committed, self.message_store.deleted)

    def _committed(self, ticket: int) -> None:
        self.journal.committed(ticket)
        self.tickets.append(ticket)

    def append(self, *numbers: int) -> None:
        for number in numbers:
            self.journal.append(queue(number))

    async def entered(self) -> None:
        await trio.to_thread.run_sync(self.store.entered.wait)
        self.store.entered.clear()


def run(test: Callable[[Fixture, trio.Nursery], Awaitable[None]]) -> None:
    """Run `test` beside the writer on a clock that jumps over every wait."""
    fixture = Fixture()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fixture.writer.run)
            try:
                await test(fixture, nursery)
            finally:
                fixture.store.gate.set()
            nursery.cancel_scope.cancel()

    run_jumping(main)


def test_changes_are_committed_in_order_and_reported_by_ticket() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.append(1, 2)
        assert await f.writer.drain(trio.current_time() + 60)
        f.append(3)
        assert await f.writer.drain(trio.current_time() + 60)
        assert [c for batch in f.store.batches for c in batch] == [queue(1), queue(2), queue(3)]
        assert f.tickets == [2, 3]

    run(test)


def test_what_was_appended_before_the_writer_ran_is_committed_too() -> None:
    fixture = Fixture()
    fixture.append(1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fixture.writer.run)
            assert await fixture.writer.drain(trio.current_time() + 60)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert fixture.tickets == [1]


def test_what_gathers_during_a_commit_is_the_next_batch() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.store.gate.clear()
        f.append(0)
        await f.entered()
        f.append(*range(1, 1000))
        assert f.tickets == []
        f.store.gate.set()
        assert await f.writer.drain(trio.current_time() + 60)
        assert [len(batch) for batch in f.store.batches] == [1, 999]
        assert f.tickets == [1, 1000]

    run(test)


def test_a_refused_batch_is_repeated_whole_until_it_succeeds_and_nothing_is_reported_before() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.store.refusals = 20
        f.append(1, 2)
        start = trio.current_time()
        assert await f.writer.drain(start + 1000)
        assert f.store.attempts == 21
        assert f.store.batches == [[queue(1), queue(2)]]
        assert f.tickets == [2]
        assert 5.0 * 14 <= trio.current_time() - start <= 5.0 * 21

    run(test)


def test_health_follows_the_store_and_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        assert f.writer.healthy
        f.store.refusals = 6
        f.append(1)
        while f.store.attempts < 4:
            await trio.sleep(0.05)
        await trio.testing.wait_all_tasks_blocked()
        assert not f.writer.healthy
        assert f.writer.reason == "metadata store: gone"
        assert await f.writer.drain(trio.current_time() + 1000)
        assert f.writer.healthy
        assert f.writer.reason == ""

    with caplog.at_level(logging.INFO, logger="warren"):
        run(test)
    assert [record.getMessage() for record in caplog.records] == [
        "metadata store unavailable; declarations wait",
        "metadata store available again",
    ]


def test_drain_gives_up_at_its_deadline() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        assert await f.writer.drain(trio.current_time())
        f.store.refusals = 1000
        f.append(1)
        deadline = trio.current_time() + 30
        assert not await f.writer.drain(deadline)
        assert trio.current_time() >= deadline
        assert f.tickets == []

    run(test)


def test_a_commit_that_has_begun_is_reported_even_when_the_writer_is_cancelled() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.store.gate.clear()
        f.append(1)
        await f.entered()
        nursery.cancel_scope.cancel()
        f.store.gate.set()

    fixture: list[Fixture] = []

    async def remember(f: Fixture, nursery: trio.Nursery) -> None:
        fixture.append(f)
        await test(f, nursery)

    run(remember)
    assert fixture[0].tickets == [1]


@pytest.mark.parametrize("deletion", [QueueDelete("/", "q"), ExchangeDelete("/", "e"), VhostDelete("v")])
def test_rows_are_deleted_after_the_message_store_has_deleted_the_queues(deletion: MetadataChange) -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.message_store.durable = trio.Event()
        for change in (queue(1), deletion, queue(2)):
            f.journal.append(change)
        await trio.testing.wait_all_tasks_blocked()
        assert f.message_store.waits == 1
        f.append(3)
        await trio.testing.wait_all_tasks_blocked()
        assert f.store.attempts == 0
        assert f.tickets == []
        f.message_store.durable.set()
        assert await f.writer.drain(trio.current_time() + 60)
        assert f.store.batches == [[queue(1), deletion, queue(2)], [queue(3)]]
        assert f.tickets == [3, 4]
        assert f.message_store.waits == 1

    run(test)


def test_what_deletes_no_queue_does_not_wait_for_the_message_store() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.message_store.durable = trio.Event()
        f.append(1)
        f.journal.append(VhostPut("v"))
        assert await f.writer.drain(trio.current_time() + 60)
        assert f.message_store.waits == 0

    run(test)


def test_a_deletion_that_sql_refuses_is_repeated_without_asking_the_message_store_again() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.store.refusals = 3
        f.journal.append(QueueDelete("/", "q"))
        assert await f.writer.drain(trio.current_time() + 1000)
        assert f.store.attempts == 4
        assert f.message_store.waits == 1

    run(test)


def test_a_writer_cancelled_before_the_message_store_has_deleted_leaves_the_rows() -> None:
    fixture: list[Fixture] = []

    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        fixture.append(f)
        f.message_store.durable = trio.Event()
        f.journal.append(QueueDelete("/", "q"))
        await trio.testing.wait_all_tasks_blocked()

    run(test)
    assert fixture[0].store.attempts == 0
    assert fixture[0].tickets == []


def test_without_a_message_store_deletions_wait_for_nothing() -> None:
    store, journal = FakeStore(), MetadataJournal()
    writer = CatalogueWriter(store, journal, journal.committed)
    journal.append(QueueDelete("/", "q"))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            assert await writer.drain(trio.current_time() + 60)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert store.batches == [[QueueDelete("/", "q")]]


def test_a_fault_of_the_program_ends_run_which_goes_on_with_the_same_batch() -> None:
    class Broken(FakeStore):
        faults = 1

        def commit(self, changes: Sequence[MetadataChange], /) -> None:
            if self.faults:
                self.faults -= 1
                raise ValueError("a name no database stores")
            super().commit(changes)

    store, journal = Broken(), MetadataJournal()
    writer = CatalogueWriter(store, journal, journal.committed)
    journal.append(queue(1))
    with pytest.raises(ValueError, match="no database stores"):
        trio.run(writer.run)
    journal.append(queue(2))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            assert await writer.drain(trio.current_time() + 60)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert store.batches == [[queue(1)], [queue(2)]]
