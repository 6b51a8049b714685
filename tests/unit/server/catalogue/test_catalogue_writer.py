"""SQL follows the log: durable changes are applied in order, with the number of the last one.

The log is a real one on a disk in memory; SQL is a list.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest
import trio
import trio.testing
from journalled_log import STORE_ID, JournalledLog
from jumping_clock import run_jumping
from memory_store import MemoryDisk

from warren.server.catalogue.catalogue import CatalogueError
from warren.server.catalogue.writer import AT_ONCE, POSITION_EVERY_S, POSITION_FIRST_S, CatalogueWriter
from warren.server.start_errors import StartError
from warren.vhosts.metadata import (
    BindingPut,
    MetadataChange,
    PermissionPut,
    QueueDelete,
    QueuePut,
    UserPut,
    VhostPut,
)
from warren.vhosts.metadata_lane import READ_MAX, encode_change

EMPTY = bytes(4)


def queue(number: int) -> QueuePut:
    return QueuePut("/", str(number), False, EMPTY, number)


def binding(number: int) -> BindingPut:
    return BindingPut("/", "amq.direct", str(number), "queue", "k", EMPTY)


class FakeStore:
    """Keeps batches; refuses the next `refusals`; holds commits while `gate` is closed."""

    def __init__(self, *stored: MetadataChange) -> None:
        self.stored = stored
        self.lsns: list[int] = []
        self.batches: list[list[MetadataChange]] = []
        self.number = 0
        self.attempts = 0
        self.refusals = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    @property
    def changes(self) -> list[MetadataChange]:
        return [change for batch in self.batches for change in batch]

    def applied(self, store_id: bytes, /) -> int:
        assert store_id == STORE_ID
        return self.number

    def commit(
        self, changes: Sequence[MetadataChange], store_id: bytes, applied: int, lsn: int, life_id: bytes, /
    ) -> None:
        assert store_id == STORE_ID
        self.attempts += 1
        self.entered.set()
        self.gate.wait()
        if self.refusals > 0:
            self.refusals -= 1
            raise CatalogueError("metadata store: gone")
        self.batches.append(list(changes))
        self.number = applied
        self.lsns.append(lsn)

    def load(self) -> Iterator[MetadataChange]:
        yield from self.stored


class Fixture(JournalledLog):
    """A journal, its log, and the writer that has SQL follow it; `again` is the next life of the process."""

    def __init__(self, store: FakeStore | None = None, disk: MemoryDisk | None = None) -> None:
        super().__init__(disk)
        self.store = store or FakeStore()
        self.now_s = 1000.0
        self.writer = CatalogueWriter(self.store, self.journal, self.settle, clock_s=lambda: self.now_s)
        self.journal.on_durable = self.writer.note_durable

    def again(self) -> Fixture:
        """Die, and restart with the same log and the same SQL."""
        self.settle()
        for index in self.log.indexes.values():
            index.owner = None
        return Fixture(self.store, self.disk)

    def catch_up(self) -> None:
        self.writer.catch_up(self.settle)

    async def entered(self) -> None:
        await trio.to_thread.run_sync(self.store.entered.wait)
        self.store.entered.clear()


def run(test: Callable[[Fixture, trio.Nursery], Awaitable[None]], fixture: Fixture | None = None) -> Fixture:
    """Run `test` beside the writer on a clock that jumps over every wait."""
    tried = fixture or Fixture()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tried.writer.run)
            try:
                await test(tried, nursery)
            finally:
                tried.store.gate.set()
            nursery.cancel_scope.cancel()

    run_jumping(main)
    return tried


async def until(condition: Callable[[], bool], poll_s: float = 0.01) -> None:
    while not condition():
        await trio.sleep(poll_s)


# --- following --------------------------------------------------------------------------------------------------------


def test_changes_are_applied_in_order_and_then_leave_the_log() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.make_durable(queue(1), queue(2))
        assert await f.writer.drain(trio.current_time() + 60)
        f.make_durable(queue(3))
        assert await f.writer.drain(trio.current_time() + 60)
        assert f.store.changes == [queue(1), queue(2), queue(3)]
        assert f.store.number == 3

    fixture = run(test)
    fixture.settle()
    (index,) = fixture.log.indexes.values()
    assert index.live_count == 0


def test_sql_learns_how_far_the_log_is_synced_also_when_nothing_changes() -> None:
    """(7)"""

    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.log.recovered_lsn = 64
        f.log.void_below_lsn = f.log.durable_lsn
        nursery.start_soon(f.writer.keep_position)
        await trio.sleep(2 * POSITION_FIRST_S)
        assert f.store.lsns == [64], "what the start has found, as long as nothing is written"
        await trio.sleep(3 * POSITION_EVERY_S)
        assert f.store.lsns == [64], "once"
        f.make_durable(queue(1))
        await until(lambda: f.store.number == 1)
        assert f.store.lsns[1:] == [f.log.durable_lsn]
        f.log.force()
        f.settle()
        f.log.durable_lsn += 8  # as messages do
        await trio.sleep(POSITION_EVERY_S)
        assert f.store.lsns[2:] == [f.log.durable_lsn]
        f.log.durable_lsn += 8
        assert await f.writer.drain(trio.current_time() + 60)
        assert f.store.lsns[3:] == [f.log.durable_lsn], "and at a clean stop"
        f.store.refusals = 1
        f.log.durable_lsn += 8
        assert await f.writer.drain(trio.current_time() + 60)
        assert f.writer.healthy

    run(test)


def test_who_follows_sql_is_told_of_what_it_has_before_the_log_forgets_it() -> None:
    told: list[tuple[int, list[bytes | None], int]] = []
    fixture = Fixture()

    def note(first: int, bodies: Sequence[bytes | None]) -> None:
        (index,) = fixture.log.indexes.values()
        told.append((first, list(bodies), int(index.live_count)))
        assert fixture.store.changes, "SQL has it"

    fixture.writer = CatalogueWriter(fixture.store, fixture.journal, fixture.settle, on_applied=note)
    fixture.journal.on_durable = fixture.writer.note_durable

    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.make_durable(queue(1), queue(2))
        assert await f.writer.drain(trio.current_time() + 60)
        applied, changes = await f.writer.copy()
        assert (applied, changes) == (2, list(f.store.load()))

    run(test, fixture)
    assert told == [(0, [encode_change(queue(1)), encode_change(queue(2))], 2)]


def test_how_far_sql_is_behind_is_counted_in_changes_and_in_seconds_of_the_oldest() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        assert (f.writer.waiting(), f.writer.behind_s()) == (0, 0)
        f.store.refusals = 3
        f.make_durable(queue(1), queue(2))
        await until(lambda: not f.writer.healthy)
        f.now_s += 100
        f.make_durable(queue(3))
        f.now_s += 5
        assert (f.writer.waiting(), f.writer.behind_s()) == (3, 105)
        await until(lambda: f.writer.waiting() == 1)
        assert f.writer.behind_s() == 5
        await until(lambda: f.writer.waiting() == 0)
        assert f.writer.behind_s() == 0

    run(test)


def test_a_ticket_is_reached_when_the_log_has_the_change_whatever_sql_does() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.store.refusals = 1000
        ticket = f.journal.append(queue(1))
        assert f.journal.committed_ticket < ticket
        f.settle()
        assert f.journal.committed_ticket == ticket
        await until(lambda: f.store.attempts > 3)
        assert f.store.batches == []

    run(test)


def test_what_is_not_durable_is_not_applied() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.disk.hold = True
        f.journal.append(queue(1))
        f.settle()
        await trio.testing.wait_all_tasks_blocked()
        assert f.store.attempts == 0
        f.disk.hold = False
        f.settle()
        assert await f.writer.drain(trio.current_time() + 60)
        assert f.store.changes == [queue(1)]

    run(test)


def test_what_gathers_during_a_commit_is_the_next_batch() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.store.gate.clear()
        f.make_durable(queue(0))
        await f.entered()
        f.make_durable(*(queue(number) for number in range(1, 100)))
        f.store.gate.set()
        assert await f.writer.drain(trio.current_time() + 60)
        assert [len(batch) for batch in f.store.batches] == [1, 99]

    run(test)


def test_very_many_changes_are_applied_in_pieces() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.make_durable(*(queue(number) for number in range(2 * READ_MAX + 10)))
        assert await f.writer.drain(trio.current_time() + 60)
        assert [len(batch) for batch in f.store.batches] == [READ_MAX, READ_MAX, 10]
        assert f.store.changes == [queue(number) for number in range(2 * READ_MAX + 10)]

    run(test)


def test_a_refused_batch_is_repeated_until_it_succeeds() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.store.refusals = 20
        f.make_durable(queue(1), queue(2))
        start = trio.current_time()
        await until(lambda: f.store.number == 2, poll_s=0.5)
        assert f.store.attempts == 21
        assert f.store.batches == [[queue(1), queue(2)]]
        assert 5.0 * 14 <= trio.current_time() - start <= 5.0 * 21

    run(test)


def test_health_follows_the_store_and_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        assert f.writer.healthy
        f.store.refusals = 6
        f.make_durable(queue(1))
        await until(lambda: f.store.attempts >= 4)
        assert not f.writer.healthy
        assert f.writer.reason == "metadata store: gone"
        await until(lambda: f.store.number == 1)
        assert f.writer.healthy
        assert f.writer.reason == ""

    with caplog.at_level(logging.INFO, logger="warren"):
        run(test)
    assert [record.getMessage() for record in caplog.records] == [
        "metadata store unavailable; changes wait in the message log",
        "metadata store available again",
    ]


def test_nobody_waits_for_a_store_that_refuses_when_the_broker_stops() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.store.refusals = 1000
        f.make_durable(queue(1))
        start = trio.current_time()
        assert not await f.writer.drain(start + 30)
        assert trio.current_time() < start + 1
        assert f.store.batches == []

    run(test)


def test_drain_gives_up_at_its_deadline_when_the_store_does_not_answer() -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        assert await f.writer.drain(trio.current_time())
        f.disk.hold = True
        f.journal.append(queue(1))
        f.settle()
        deadline = trio.current_time() + 30
        assert not await f.writer.drain(deadline)
        assert trio.current_time() >= deadline

    run(test)


def test_drain_gives_up_at_its_deadline_when_the_store_does_not_take_the_last_position() -> None:
    """It has every change, so nothing has shown yet that it does not answer."""
    f = Fixture()
    rescue = threading.Timer(10, f.store.gate.set)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(f.writer.run)
            f.make_durable(queue(1))
            assert await f.writer.drain(trio.current_time() + 60)
            f.log.durable_lsn += 8
            f.store.entered.clear()
            f.store.gate.clear()
            rescue.start()
            assert await f.writer.drain(trio.current_time() + 0.1)
            assert f.store.entered.is_set() and not f.store.gate.is_set()
            f.store.gate.set()
            nursery.cancel_scope.cancel()

    trio.run(main)
    rescue.cancel()


def test_a_fault_of_the_program_ends_run_which_goes_on_with_the_same_changes() -> None:
    class Broken(FakeStore):
        faults = 1

        def commit(
            self, changes: Sequence[MetadataChange], store_id: bytes, applied: int, lsn: int, life_id: bytes, /
        ) -> None:
            if self.faults:
                self.faults -= 1
                raise ValueError("a name no database stores")
            super().commit(changes, store_id, applied, lsn, life_id)

    fixture = Fixture(Broken())
    fixture.make_durable(queue(1))
    with pytest.raises(ValueError, match="no database stores"):
        trio.run(fixture.writer.run)

    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.make_durable(queue(2))
        assert await f.writer.drain(trio.current_time() + 60)

    assert run(test, fixture).store.changes == [queue(1), queue(2)]


# --- the next start ---------------------------------------------------------------------------------------------------


def test_a_start_applies_what_the_log_has_and_sql_lacks() -> None:
    before = Fixture()
    before.catch_up()
    before.make_durable(queue(1), queue(2))
    after = before.again()
    after.catch_up()
    assert after.store.batches == [[queue(1), queue(2)]]
    after.make_durable(queue(3))
    last = after.again()
    last.catch_up()
    assert last.store.batches == [[queue(1), queue(2)], [queue(3)]]
    assert last.store.number == 3


def test_a_start_settles_what_sql_has_already() -> None:
    before = Fixture()
    before.make_durable(queue(1), queue(2))
    before.store.number = 1  # the process died before the log knew
    after = before.again()
    after.catch_up()
    assert after.store.changes == [queue(2)]
    after.settle()
    (index,) = after.log.indexes.values()
    assert index.live_count == 0


def test_very_many_changes_are_applied_at_a_start_in_larger_pieces() -> None:
    before = Fixture()
    count = AT_ONCE + 2 * READ_MAX
    before.make_durable(*(queue(number) for number in range(count)))
    after = before.again()
    after.catch_up()
    assert after.store.changes == [queue(number) for number in range(count)]
    assert len(after.store.batches) == 2


def test_a_new_log_begins_where_nothing_is_applied() -> None:
    fixture = Fixture()
    fixture.catch_up()
    assert fixture.store.batches == []
    assert fixture.journal.lane.next_number == 0


def test_numbers_go_on_behind_what_sql_has_when_the_log_is_an_older_copy() -> None:
    fixture = Fixture()
    fixture.store.number = 50
    fixture.catch_up()
    fixture.make_durable(queue(1))
    after = fixture.again()
    after.catch_up()
    assert after.store.changes == [queue(1)]
    assert after.store.number == 51


def test_changes_of_a_newer_version_keep_the_broker_from_starting() -> None:
    before = Fixture()
    lane = before.journal.lane
    lane.put(lane.next_number, b'{"v":2,"change":"QueuePut"}', 0)
    lane.next_number += 1
    before.settle()
    after = before.again()
    with pytest.raises(StartError, match=r"written by a newer Warren \(QueuePut, version 2\)"):
        after.catch_up()
    assert after.store.batches == []


# --- what is lost -----------------------------------------------------------------------------------------------------


def test_behind_a_damaged_change_is_applied_what_does_not_need_it(caplog: pytest.LogCaptureFixture) -> None:
    before = Fixture(FakeStore(VhostPut("/"), UserPut("u", "", "")))
    before.make_durable(
        queue(1),
        VhostPut("lost"),
        queue(2),  # lost
        binding(1),
        binding(2),
        PermissionPut("u", "/", "", "", ""),
        PermissionPut("u", "lost", "", "", ""),
        PermissionPut("nobody", "/", "", "", ""),
        QueueDelete("/", "2"),
        queue(2),
        binding(2),
    )
    before.damage(1, 2)
    after = before.again()
    with caplog.at_level(logging.INFO, logger="warren"):
        after.catch_up()
    assert after.store.changes == [
        queue(1),
        binding(1),
        PermissionPut("u", "/", "", "", ""),
        QueueDelete("/", "2"),
        queue(2),
        binding(2),
    ]
    assert after.store.number == 11
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == [
        "changes of the metadata are lost: damaged in the message log, or the metadata store is an older one",
        *["a change of the metadata refers to what is lost, and is left out"] * 3,
    ]


def test_a_change_that_is_damaged_while_the_broker_runs_is_said_to_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def test(f: Fixture, nursery: trio.Nursery) -> None:
        f.store.gate.clear()
        f.make_durable(VhostPut("v"))
        await f.entered()
        f.make_durable(queue(1), queue(2))
        f.damage(1)
        f.store.gate.set()
        assert await f.writer.drain(trio.current_time() + 60)
        f.make_durable(binding(1), binding(2))
        assert await f.writer.drain(trio.current_time() + 60)

    with caplog.at_level(logging.ERROR, logger="warren"):
        fixture = run(test, Fixture(FakeStore(VhostPut("/"))))
    assert fixture.store.changes == [VhostPut("v"), queue(2), binding(2)]
    assert [record.getMessage() for record in caplog.records] == [
        "changes of the metadata are lost: damaged in the message log, or the metadata store is an older one",
        "a change of the metadata refers to what is lost, and is left out",
    ]


def test_an_older_copy_of_sql_is_said_to_lack_what_the_log_no_longer_has(caplog: pytest.LogCaptureFixture) -> None:
    before = Fixture(FakeStore(VhostPut("/")))
    before.make_durable(queue(1), queue(2), queue(3))
    before.catch_up()
    before.make_durable(binding(3), queue(4))
    before.store.number = 1
    before.store.batches.clear()
    after = before.again()
    with caplog.at_level(logging.ERROR, logger="warren"):
        after.catch_up()
    assert after.store.changes == [queue(4)]
    assert [record.getMessage() for record in caplog.records] == [
        "changes of the metadata are lost: damaged in the message log, or the metadata store is an older one",
        "a change of the metadata refers to what is lost, and is left out",
    ]
