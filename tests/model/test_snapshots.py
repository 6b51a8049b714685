"""Snapshots of random queues, made while clients work on them, against a list of the messages that waited at their
beginning.

Messages that waited then and stayed are in the snapshot, once and in order; later ones are not. The queue is as it
would be without it. A run is played again by its seed, which it prints:

    WARREN_TEST_SNAPSHOTS_SEED=7 WARREN_TEST_SNAPSHOTS_RUNS=1
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final, cast
from unittest import mock

import pytest
import trio
import trio.testing
from column_rows import Row, rows_of
from durable_harness import DurableHarness
from engine_harness import body_of, publish_frames
from simulation.small_store import Shape
from trio.testing import MockClock

from warren.amqp import methods as m
from warren.channels.broker import Broker
from warren.engine_view import browsing as browsing_module
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import QueueRef
from warren.msgstore.log import columns
from warren.server.copies import snapshots as snapshots_module
from warren.server.copies.snapshots import (
    Broken,
    Busy,
    Deleted,
    DiskLow,
    QueueGone,
    Snapshot,
    SnapshotError,
    Snapshots,
    TooMany,
)
from warren.server.management import Management
from warren.server.settings import Settings, StoreSettings
from warren.server.shares import Quota
from warren.server.supervision import Supervision
from warren.vhosts.metadata import UserPut, VhostDelete, VhostPut

from .restarting_broker import RestartingBroker
from .test_claims import KINDS, rest, seen_in

RUNS: Final = int(os.environ.get("WARREN_TEST_SNAPSHOTS_RUNS", "30"))
SEED: Final = int(os.environ.get("WARREN_TEST_SNAPSHOTS_SEED", "0"))
START_MS: Final = 1_700_000_000_000
LEVELS: Final = 4
PUBLISHED_MAX: Final = 600


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "UNACKED_AT_ONCE", 4)
    monkeypatch.setattr(snapshots_module, "BLOCK_SHIFT", 2)
    monkeypatch.setattr(browsing_module, "RUN_DELIVERIES", 4)


class Desk:
    """The part of the broker's management that snapshots need. `between`: called in turns of clients."""

    def __init__(self, harness: RestartingBroker) -> None:
        self.harness = harness
        self.minimum_bytes = 0
        self.between: Callable[[], None] = lambda: None
        self.view = EngineView(harness.broker, self.settle)

    @property
    def broker(self) -> Broker:
        return self.harness.broker

    tasks = Supervision()

    @property
    def settings(self) -> Settings:
        return Settings(store=StoreSettings(disk_free_min_bytes=self.minimum_bytes))

    def settle(self) -> None:
        self.harness.settle()
        rest(self.harness)
        self.between()


class Place:
    """A broker with a queue, and its snapshots in a directory."""

    def __init__(self, directory: Path, memory_bytes: int = 128 << 20, **arguments: Any) -> None:
        self.broker = RestartingBroker(Shape(1 << 17, 4), START_MS, memory_bytes)
        self.client = self.broker.channel()
        self.client.declare("q", durable=True, arguments=arguments)
        self.desk = Desk(self.broker)
        self.directory = directory / "snapshots"
        self.snapshots = Snapshots(cast(Management, self.desk), directory)
        self.published = 0

    def publish(self, count: int, **properties: Any) -> list[bytes]:
        bodies = [b"%d" % number for number in range(self.published, self.published + count)]
        self.published += count
        given = {"delivery_mode": 2} | properties
        self.client.feed(b"".join(publish_frames("", "q", body, properties=given) for body in bodies))
        return bodies

    def make(self, *, unacked: bool = False) -> tuple[Snapshot, list[Row]]:
        """Make a snapshot, and read it."""

        async def made() -> Snapshot | SnapshotError:
            async with trio.open_nursery() as nursery:
                try:
                    found = self.snapshots.begin(
                        QueueRef(self.broker.queue("q")), "id", "", 60, nursery, unacked=unacked
                    )
                except SnapshotError as error:
                    return error
                await found.over.wait()
            return found if found.error is None else found.error

        snapshot = trio.run(made)
        if isinstance(snapshot, SnapshotError):
            raise snapshot
        data = snapshot.path.read_bytes()
        rows: list[Row] = []
        at = 0
        for first, end, position, size, _ in snapshot.chunks:
            assert (first, position) == (len(rows), at)
            rows += rows_of(data[position : position + size])
            at += size
            assert len(rows) == end
        assert at == len(data) and snapshot.count == len(rows)
        assert snapshot.bytes == sum(len(row.body) for row in rows)
        return snapshot, rows


def test_what_clients_have_is_added_in_pieces_and_by_place(tmp_path: Path) -> None:
    place = Place(tmp_path)
    bodies = place.publish(200)
    for _ in range(2):
        place.client.send(1, *[m.BasicGet(0, "q", False) for _ in range(100)])
        place.client.take()
        place.client.send(1, m.BasicNack(0, multiple=True, requeue=True))
    place.client.send(1, *[m.BasicGet(0, "q", False) for _ in range(100)])
    place.client.take()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def made() -> Snapshot:
        async with trio.open_nursery() as nursery:
            found = place.snapshots.begin(QueueRef(place.broker.queue("q")), "id", "", 60, nursery, unacked=True)
            nursery.start_soon(others)
            await found.over.wait()
            nursery.cancel_scope.cancel()
        return found

    snapshot = trio.run(made)
    rows = rows_of(snapshot.path.read_bytes())
    assert [row.body for row in rows] == bodies
    assert turns > 2 * 100 // 4


def test_what_a_session_of_another_protocol_has_is_in_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    bodies = place.publish(3)
    session = place.broker.broker.open_direct("guest", "/")
    session.command(m.BasicGet(0, "q", False))
    place.broker.settle()
    assert [row.body for row in place.make(unacked=True)[1]] == bodies


class Run:
    """A queue under one seed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.dice = Random(seed)
        self.place = Place(directory, self.dice.choice((0, 128 << 20)), **self.dice.choice(KINDS))
        self.tags: dict[bytes, int] = {}  # messages at the client
        self.touched: set[bytes] = set()  # messages that it got or returned since the snapshot began

    def publish(self) -> None:
        priority = self.dice.randrange(LEVELS)
        self.place.publish(self.dice.choice((1, 5, 30)), priority=priority, delivery_mode=self.dice.choice((1, 2)))

    def get(self) -> None:
        client = self.place.client
        for _ in range(self.dice.choice((1, 3, 10))):
            client.send(1, m.BasicGet(0, "q", False))
            received = client.take()
            if not received:
                rest(self.place.broker)
                received = client.take()
            (answer,) = received
            if isinstance(answer.method, m.BasicGetEmpty):
                return
            self.tags[body_of(answer)] = answer.method.delivery_tag
            self.touched.add(body_of(answer))

    def answer(self) -> None:
        for body in self.dice.sample(sorted(self.tags), self.dice.randint(0, len(self.tags))):
            tag = self.tags.pop(body)
            returns = self.dice.random() < 0.6
            self.place.client.send(
                1, m.BasicNack(tag, multiple=False, requeue=True) if returns else m.BasicAck(tag, False)
            )
            self.touched.add(body)

    def work(self) -> None:
        ways = (self.publish, self.get, self.answer)
        self.dice.choice(ways if self.place.published < PUBLISHED_MAX else ways[1:])()

    def waiting(self) -> list[tuple[bytes, bool]]:
        queue = self.place.broker.queue("q")
        return [(each.message.body(), each.redelivered) for each in seen_in(self.place.broker, queue)]

    def run(self) -> None:
        for _ in range(8):
            for _ in range(self.dice.randrange(12)):
                self.work()
            rest(self.place.broker)
            self.still()
            self.busy()

    def still(self) -> None:
        """Make one while nobody works: it is what waits, and changes nothing."""
        before = self.waiting()
        queue = self.place.broker.queue("q")
        counts = (int(queue.ready_count), int(queue.unacked_count), int(queue.delivered), int(queue.counts().get))
        unacked = self.dice.random() < 0.5
        _, rows = self.place.make(unacked=unacked)
        had = rows[: len(self.tags)] if unacked else []
        assert {row.body for row in had} == (set(self.tags) if unacked else set())
        assert all(row.redelivered for row in had)
        assert [(row.body, row.redelivered) for row in rows[len(had) :]] == before
        assert self.waiting() == before
        assert counts == (
            int(queue.ready_count),
            int(queue.unacked_count),
            int(queue.delivered),
            int(queue.counts().get),
        )

    def busy(self) -> None:
        """Make one while clients work."""
        before = [body for body, _ in self.waiting()]
        had = set(self.tags)
        unacked = self.dice.random() < 0.5
        self.touched.clear()
        self.place.desk.between = lambda: self.work() if self.dice.random() < 0.5 else None
        with mock.patch.object(snapshots_module, "LOOK_MESSAGES", self.dice.choice((1, 3, 20))):
            _, rows = self.place.make(unacked=unacked)
        self.place.desk.between = lambda: None
        found = [row.body for row in rows]
        assert len(found) == len(set(found)), "twice"
        if unacked:
            assert set(found[: len(had)]) == had
        assert set(found) <= set(before) | had, "it came later"
        aside = {
            message.body() for _, message in self.place.broker.queue("q").ready.returned.between(0, 1 << 60, 1 << 30)
        }
        stayed = [body for body in before if body not in self.touched and body not in aside]
        assert [body for body in found if body in set(stayed)] == stayed


def test_a_snapshot_has_what_waited_when_it_was_begun(tmp_path: Path) -> None:
    seed = SEED or SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    for number in range(RUNS):
        directory = tmp_path / str(number)
        directory.mkdir()
        try:
            Run(seed + number, directory).run()
        except BaseException:
            print(f"WARREN_TEST_SNAPSHOTS_SEED={seed + number} WARREN_TEST_SNAPSHOTS_RUNS=1")
            raise


# --- one by one -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}, {"x-key-shared": True}])
def test_a_snapshot_comes_to_an_end_however_fast_publishers_are(tmp_path: Path, arguments: dict[str, Any]) -> None:
    place = Place(tmp_path, **arguments)
    bodies = place.publish(50)
    place.client.send(1, m.BasicGet(0, "q", False))  # so that what shares its key is set aside
    (first,) = place.client.take()
    assert body_of(first) == bodies[0]

    def publish() -> None:
        place.publish(10, priority=3)

    place.desk.between = publish
    with mock.patch.object(snapshots_module, "LOOK_MESSAGES", 5):
        _, rows = place.make()
    assert [row.body for row in rows] == bodies[1:]
    assert place.published > 100


def test_chunks_are_of_a_size_and_written_as_they_come(tmp_path: Path) -> None:
    place = Place(tmp_path)
    bodies = place.publish(100)
    with mock.patch.object(columns, "CHUNK_MESSAGES", 30):
        snapshot, rows = place.make()
    if not columns.__file__.endswith(".so"):
        assert [(first, end) for first, end, *_ in snapshot.chunks] == [(0, 30), (30, 60), (60, 90), (90, 100)]
    assert [row.body for row in rows] == bodies


@pytest.mark.parametrize("count", [40, 2000])
def test_the_first_rows_are_there_after_one_look_however_many_there_are(tmp_path: Path, count: int) -> None:
    place = Place(tmp_path)
    bodies = place.publish(count)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    place.desk.between = look

    async def read() -> tuple[int, list[Row]]:
        async with trio.open_nursery() as nursery:
            snapshot = place.snapshots.begin(QueueRef(place.broker.queue("q")), "id", "", 60, nursery, unacked=False)
            assert snapshot.most == count
            await snapshot.progress()
            at = looks
            chunk = snapshot.maybe_chunk(snapshot.written - 1)
            assert chunk is not None and not snapshot.ready
            rows = rows_of(snapshot.path.read_bytes()[chunk.position : chunk.position + chunk.size])
            await snapshot.over.wait()
        return at, rows

    with mock.patch.object(snapshots_module, "LOOK_MESSAGES", 10):
        at, rows = trio.run(read)
    assert at <= 2 and looks >= count // 10
    assert [row.body for row in rows] == bodies[:10]


def test_a_snapshot_never_has_more_rows_than_it_could_have_when_it_began(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish(50)
    place.client.send(1, *[m.BasicGet(0, "q", False) for _ in range(20)])
    place.client.take()

    def give_back() -> None:
        place.desk.between = lambda: None
        place.client.send(1, m.BasicNack(0, multiple=True, requeue=True))
        place.publish(30)

    place.desk.between = give_back
    with mock.patch.object(snapshots_module, "LOOK_MESSAGES", 3):
        snapshot, rows = place.make()
    assert len(rows) <= snapshot.most == 50


def test_a_file_that_would_make_the_disk_short_is_given_up(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish(10)
    place.desk.minimum_bytes = 1 << 60
    with pytest.raises(DiskLow):
        place.make()
    assert list(place.directory.iterdir()) == []


def test_a_file_that_cannot_be_written_is_given_up(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish(10)
    place.directory.write_text("a file is in the way")
    with pytest.raises(DiskLow):
        place.make()


def test_nothing_is_begun_while_there_is_an_alarm(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.broker.broker.set_alarm("disk", True)
    with pytest.raises(DiskLow):
        place.make()
    assert not place.directory.exists()


def test_a_queue_that_is_deleted_meanwhile_has_no_snapshot(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish(50)

    def delete() -> None:
        place.desk.between = lambda: None
        place.client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))

    place.desk.between = delete
    with mock.patch.object(snapshots_module, "LOOK_MESSAGES", 5), pytest.raises(QueueGone):
        place.make()
    assert list(place.directory.iterdir()) == []


def test_a_snapshot_that_is_deleted_while_it_is_made_is_gone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish(50)

    def delete() -> None:
        place.desk.between = lambda: None
        (snapshot,) = place.snapshots.of(["/"])
        trio.lowlevel.spawn_system_task(place.snapshots.delete, snapshot)

    place.desk.between = delete
    with pytest.raises(Deleted):
        place.make()
    assert list(place.directory.iterdir()) == [] and place.snapshots.of(["/"]) == []


def test_so_many_are_made_at_a_time_and_kept_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    queue = place.broker.queue("q")

    async def begin() -> None:
        async with trio.open_nursery() as nursery:
            made = [place.snapshots.begin(QueueRef(queue), "id", "", 60, nursery, unacked=False) for _ in range(2)]
            with pytest.raises(Busy):
                place.snapshots.begin(QueueRef(queue), "id", "", 60, nursery, unacked=False)
            for each in made:
                await each.over.wait()
            monkeypatch.setattr(snapshots_module, "KEPT_QUOTA", Quota(2, 2))
            with pytest.raises(TooMany):
                place.snapshots.begin(QueueRef(queue), "id", "", 60, nursery, unacked=False)
            await place.snapshots.delete(made[0])
            made.append(place.snapshots.begin(QueueRef(queue), "id", "", 60, nursery, unacked=False))
            await made[2].over.wait()
            assert {*place.directory.iterdir()} == {each.path for each in made[1:]}

    trio.run(begin)


def test_a_user_has_a_share_of_the_snapshots_and_an_administrator_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    queue = place.broker.queue("q")
    place.broker.broker.access.apply(UserPut("root", "", "", ("administrator",)))
    monkeypatch.setattr(snapshots_module, "MAKING_QUOTA", Quota(3, 2))
    monkeypatch.setattr(snapshots_module, "KEPT_QUOTA", Quota(6, 3))

    async def begin() -> None:
        async with trio.open_nursery() as nursery:

            def one(user: str) -> Snapshot:
                return place.snapshots.begin(QueueRef(queue), "id", user, 60, nursery, unacked=False)

            made = [one("greedy"), one("greedy")]
            with pytest.raises(Busy, match="user 'greedy' has 2 snapshots in the making"):
                one("greedy")
            made.append(one("other"))
            with pytest.raises(Busy, match="there are 3"):
                one("third")
            made.append(one("root"))
            for each in made:
                await each.over.wait()
            await one("greedy").over.wait()
            with pytest.raises(TooMany, match="user 'greedy' has 3 snapshots"):
                one("greedy")
            await one("other").over.wait()
            with pytest.raises(TooMany, match="there are 6"):
                one("third")
            await one("root").over.wait()

    trio.run(begin)


def test_what_an_earlier_process_left_is_removed_and_all_at_the_end(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish(5)
    place.directory.mkdir()
    (place.directory / "7").write_text("left")

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.snapshots.run)
            while (place.directory / "7").exists():
                await trio.sleep(0)
            found = place.snapshots.begin(QueueRef(place.broker.queue("q")), "id", "", 60, nursery, unacked=False)
            await found.over.wait()
            assert found.path.exists()
            nursery.cancel_scope.cancel()

    trio.run(live)
    assert list(place.directory.iterdir()) == []


def test_a_start_that_takes_long_removes_no_snapshot_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    place.publish(5)
    place.directory.mkdir()
    (place.directory / "7").write_text("left")
    is_made = threading.Event()
    empty = snapshots_module._empty

    def late(*arguments: Any) -> None:
        assert is_made.wait(30)
        empty(*arguments)

    monkeypatch.setattr(snapshots_module, "_empty", late)

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.snapshots.run)
            found = place.snapshots.begin(QueueRef(place.broker.queue("q")), "id", "", 60, nursery, unacked=False)
            await found.over.wait()
            is_made.set()
            while (place.directory / "7").exists():
                await trio.sleep(0)
            await trio.testing.wait_all_tasks_blocked()
            assert found.path.exists()
            nursery.cancel_scope.cancel()

    trio.run(live)


def test_a_snapshot_ends_with_its_vhost_even_if_that_is_declared_again(tmp_path: Path) -> None:
    harness = DurableHarness()
    harness.channel().declare("q", durable=True)
    snapshots = Snapshots(cast(Management, Desk(cast(RestartingBroker, harness))), tmp_path)
    clock = MockClock()  # by hand: it would run on while threads work, and they know nothing of it

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(snapshots.run)
            await trio.testing.wait_all_tasks_blocked()
            made = snapshots.begin(QueueRef(harness.queue("q")), "id", "", 1000, nursery, unacked=False)
            await made.over.wait()
            assert snapshots.maybe_find("/", "q", made.id) is made and snapshots.of(["/"]) == [made]
            harness.broker.administer(VhostDelete("/"), "")
            harness.settle()
            harness.broker.administer(VhostPut("/"), "")
            assert snapshots.maybe_find("/", "q", made.id) is None and snapshots.of(["/"]) == []
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(snapshots_module.CHECK_S)
            while made.path.exists():
                await trio.sleep(0)
            assert not snapshots._snapshots
            nursery.cancel_scope.cancel()

    trio.run(live, clock=clock)


def test_files_are_removed_in_a_thread_since_large_ones_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    place.publish(5)
    loop, removed = threading.get_ident(), []
    unlink = snapshots_module._unlink

    def noting(path: Path) -> None:
        assert threading.get_ident() != loop
        removed.append(path)
        unlink(path)

    monkeypatch.setattr(snapshots_module, "_unlink", noting)

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.snapshots.run)
            queue = QueueRef(place.broker.queue("q"))
            made = []
            for is_cancelled in (False, True, False):
                each = place.snapshots.begin(queue, "id", "", 60, nursery, unacked=False)
                if is_cancelled:
                    each.scope.cancel()
                await each.over.wait()
                made.append(each)
            deleted, failed, ended = made
            with trio.CancelScope() as scope:
                scope.cancel()
                await place.snapshots.delete(deleted)
            assert not deleted.path.exists() and ended.path.exists()
            assert place.snapshots.of(["/"]) == [ended, failed]
            nursery.cancel_scope.cancel()
        assert set(removed) == {deleted.path, failed.path, ended.path}

    trio.run(live)
    assert list(place.directory.iterdir()) == []


def test_a_snapshot_noted_before_a_restart_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    before, after = Place(tmp_path), Place(tmp_path)

    async def make(place: Place) -> Snapshot:
        async with trio.open_nursery() as nursery:
            made = place.snapshots.begin(QueueRef(place.broker.queue("q")), "id", "", 60, nursery, unacked=False)
            await made.over.wait()
        return made

    async def find() -> None:
        # In one run of trio: the clock of each run begins at a random time.
        noted, made = await make(before), await make(after)
        assert after.snapshots.maybe_find(made.vhost, made.queue, made.id) is made
        assert after.snapshots.maybe_find(made.vhost, made.queue, noted.id) is None

    trio.run(find)


def test_a_snapshot_that_fails_by_a_defect_says_so_and_leaves_no_file(tmp_path: Path) -> None:
    """(9) Readers that were not told would wait for ever."""
    place = Place(tmp_path)
    place.publish(100)
    broken = mock.patch.object(snapshots_module._Maker, "_forget_places", side_effect=MemoryError)
    with broken, pytest.raises(Broken, match="see the broker's log"):
        place.make()
    assert list(place.directory.iterdir()) == []
    _, rows = place.make()
    assert len(rows) == 100
