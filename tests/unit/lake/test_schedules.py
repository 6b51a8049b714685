"""Two programs that follow one stream into one table, others that compact and clean it up, and any order of all that.

1. One actor runs at a time, from one `point` to the next: before and after everything that reads or commits. The seed
   says which one, whether one is stopped for a while, and whether one is killed.
2. Another program's compaction reads the table at one point and commits at a later one, as if it took that long.
3. In the end one program follows to the end, alone: the table has each message once.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from unit.spark_bridge.export_broker import ExportBroker
from warren.lake import delta_files, delta_table, iceberg_table
from warren.lake.decoder import MessageDecoder
from warren.lake.doubled import look
from warren.lake.follower import Follower
from warren.lake.options import NO_PARTITIONS, Limits, TableOptions
from warren.lake.source import StreamSource
from warren.lake.table import Table
from warren.lake.table_errors import Conflict, Overtaken

from .conftest import Delta, Iceberg

SEEDS = int(os.environ.get("WARREN_TEST_LAKE_SCHEDULES", "3"))
FIRST_SEED = int(os.environ.get("WARREN_TEST_LAKE_FIRST_SEED", "1"))
TURNS = 260
FOLLOWERS = ("one", "other")
COLUMNS = ("queue", "partition", "offset", "timestamp", "body")


class Killed(BaseException):
    """The process is gone."""


class Actor:
    """A program, in a thread that runs only when it is its turn."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.is_done = False
        self.is_killed = False
        self.asleep = 0  # turns for which it is stopped
        self.failure: BaseException | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(body,), name=name, daemon=True)
        self._thread.start()

    def _run(self, body: Callable[[], None]) -> None:
        self._go.acquire()
        try:
            body()
        except BaseException as error:
            self.failure = error
        self.is_done = True
        self._back.release()

    def turn(self) -> None:
        """Run it to its next point."""
        self._go.release()
        self._back.acquire()
        if self.failure is not None and not isinstance(self.failure, Killed):
            raise self.failure

    def point(self) -> None:
        self._back.release()
        self._go.acquire()
        if self.is_killed:
            self.is_killed = False
            raise Killed


class Stage:
    """All actors of one test."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.actors: dict[str, Actor] = {}
        self.kills = self.mended = 0  # followers, and rows that were there twice

    def point(self) -> None:
        """Stop here until it is this actor's turn again; nothing for others."""
        actor = self.actors.get(threading.current_thread().name)
        if actor is not None:
            actor.point()

    def add(self, name: str, body: Callable[[], None]) -> None:
        self.actors[name] = Actor(name, body)

    def run(self, turns: int) -> None:
        chance = self.chance
        for _ in range(turns):
            awake = [each for each in self.actors.values() if not each.is_done]
            for each in awake:
                each.asleep = max(0, each.asleep - 1)
            ready = [each for each in awake if not each.asleep]
            if not ready:
                continue
            actor = chance.choice(ready)
            happening = chance.random()
            if happening < 0.02:
                actor.asleep = chance.randrange(5, 40)
            elif happening < 0.05 and actor.name in FOLLOWERS:
                actor.is_killed = True
            actor.turn()

    def end(self) -> None:
        """Kill all of them."""
        for actor in self.actors.values():
            while not actor.is_done:
                actor.is_killed = True
                actor.turn()


def with_points(stage: Stage, patch: pytest.MonkeyPatch) -> None:
    """Make a point before and after everything that reads or commits."""
    import deltalake
    from deltalake.table import TableAlterer
    from pyiceberg.table import Transaction

    for owner, name in (
        (delta_files.DeltaWriter, "write"),
        (delta_table.DeltaTable, "load"),
        (deltalake.DeltaTable, "create_write_transaction"),
        (deltalake.DeltaTable, "vacuum"),
        (deltalake.DeltaTable, "update_incremental"),
        (TableAlterer, "set_table_properties"),
        (delta_files.DeltaWriter, "rewrite"),
        (iceberg_table.IcebergTable, "load"),
        (iceberg_table.IcebergTable, "_replace"),
        (Transaction, "commit_transaction"),
    ):
        patch.setattr(owner, name, pointed(stage, getattr(owner, name)))


def pointed(stage: Stage, function: Callable[..., Any]) -> Callable[..., Any]:
    def between(*arguments: Any, **more: Any) -> Any:
        stage.point()
        found = function(*arguments, **more)
        stage.point()
        return found

    return between


def follower_of(broker: ExportBroker, open_table: Callable[[pa.Schema], Table], stage: Stage | None) -> Follower:
    def open_tables(columns: pa.Schema, _: pa.Schema | None) -> tuple[Table, None]:
        return open_table(columns), None

    sleep = (lambda _: stage.point()) if stage is not None else (lambda _: None)
    source = StreamSource(broker, "orders")
    return Follower(source, MessageDecoder(COLUMNS), open_tables, "/orders", limits=Limits(4, 1 << 30), sleep=sleep)


def follow(made: Callable[[], Follower], stage: Stage) -> None:
    """Follow, begin again after a kill or when another one has the table, and compact now and then."""
    while True:
        try:
            one = made()
            one.open()
            for _ in range(stage.chance.randrange(2, 12)):
                with suppress(Conflict):
                    stage.mended += one.step().mended
                if stage.chance.random() < 0.4:
                    with suppress(Conflict):
                        one.maintain(datetime.now().timestamp() + 60)
                stage.point()
        except (Killed, Conflict, Overtaken) as error:
            if isinstance(error, Killed):
                stage.kills += 1
        stage.point()


def compact_delta(place: str, stage: Stage) -> None:
    """Compact as another program does: of what it has read some time before."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    while True:
        found = DeltaTable(place)
        stage.point()
        with suppress(DeltaError, OSError):  # others have committed, or deleted what it was about to read
            found.optimize.compact()
        stage.point()


def vacuum_delta(place: str, stage: Stage) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    while True:
        with suppress(DeltaError, OSError):
            DeltaTable(place).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        stage.point()


def compact_iceberg(iceberg: Iceberg, stage: Stage) -> None:
    from pyiceberg.exceptions import CommitFailedException, ValidationException
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    while True:
        found = iceberg.catalog().load_table("shop.orders")
        tasks = list(found.scan().plan_files())
        rows = found.scan().to_arrow()
        stage.point()
        if len(tasks) > 1:
            with suppress(CommitFailedException, ValidationException, OSError), found.transaction() as transaction:
                files = list(_dataframe_to_data_files(table_metadata=transaction.table_metadata, df=rows, io=found.io))
                with transaction.update_snapshot().overwrite() as update:
                    for task in tasks:
                        update.delete_data_file(task.file)
                    for file in files:
                        update.append_data_file(file)
        stage.point()


def expire_iceberg(iceberg: Iceberg, stage: Stage) -> None:
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    while True:
        found = iceberg.catalog().load_table("shop.orders")
        at = found.current_snapshot()
        if at is not None and iceberg_table._maybe_marks(at) is not None:
            with suppress(CommitFailedException, ValidationException, ValueError):  # others have released them
                found.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
        stage.point()


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Stage]]:
    made: list[Stage] = []

    def make(seed: int) -> Stage:
        print(f"seed {seed}: WARREN_TEST_LAKE_FIRST_SEED={seed} WARREN_TEST_LAKE_SCHEDULES=1")
        made.append(Stage(seed))
        with_points(made[-1], monkeypatch)
        return made[-1]

    yield make
    for stage in made:
        stage.end()


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_table_has_each_message_once_whatever_the_order(
    request: pytest.FixtureRequest, stages: Callable[[int], Stage], form: str, seed: int
) -> None:
    place: Delta | Iceberg = request.getfixturevalue(form)
    broker = ExportBroker()
    stream = broker.stream(count=5)
    stage = stages(seed)
    keep_s = stage.chance.choice([0.0, 7200.0])
    options = TableOptions(partition_by=NO_PARTITIONS, compact_files=3, keep_s=keep_s, orphan_s=3600.0)

    def opened(columns: pa.Schema) -> Table:
        return place(columns, options)

    first = follower_of(broker, opened, None)
    first.open()
    first.step()

    def publish() -> None:
        while True:
            stream.add(stage.chance.randrange(1, 6))
            stage.point()

    for name in FOLLOWERS:
        stage.add(name, lambda: follow(lambda: follower_of(broker, opened, stage), stage))
    if isinstance(place, Delta):
        stage.add("compaction", lambda: compact_delta(place.place, stage))
        stage.add("cleaning", lambda: vacuum_delta(place.place, stage))
    else:
        stage.add("compaction", lambda: compact_iceberg(place, stage))
        stage.add("cleaning", lambda: expire_iceberg(place, stage))
    stage.add("publisher", publish)
    stage.run(TURNS)
    stage.end()
    last = follower_of(broker, opened, None)
    last.open()
    while (step := last.step()).moved or step.mended:
        stage.mended += step.mended
    last.maintain(datetime.now().timestamp() + 60)
    table = opened(MessageDecoder(COLUMNS).first_columns())
    table.load([])
    found = look(table)
    print(f"{stream.end} messages, {stage.kills} followers killed, {stage.mended} rows that were there twice")
    assert not found.doubled and not found.missing()
    assert sorted(place.rows().column("offset").to_pylist()) == list(range(stream.end))
