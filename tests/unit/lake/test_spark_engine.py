"""Executors make the same table as one process, and each continues after the other. spark_engine (1) to (4)."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from unit.spark_bridge.export_broker import ExportBroker
from warren.lake import spark_engine
from warren.lake.body_schema import BodySchema
from warren.lake.decoder import Decoder, FieldDecoder, MessageDecoder
from warren.lake.follower import Follower
from warren.lake.options import Limits
from warren.lake.source import StreamSource
from warren.lake.spark_engine import SparkEngine, joined
from warren.lake.table_errors import Overtaken
from warren.spark_bridge.bridge_errors import DataLoss, UsageError
from warren.spark_bridge.control import BrokerClient, DataToken

from .cluster_here import ClusterHere
from .conftest import OpenTable
from .memory_table import MemoryTable, MemoryTables, MemoryWriter
from .test_follower import Killed, grow, killed_everywhere, mixed, run


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_engine, "SMALLEST_BYTES", 400)  # four messages of the broker in memory


@pytest.fixture
def broker() -> ExportBroker:
    return ExportBroker()


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables()


def follower(
    broker: ExportBroker,
    tables: Any,
    *,
    cluster: ClusterHere | None = None,
    decoder: Decoder | None = None,
    rows: int = 8,
    **options: Any,
) -> Follower:
    """Return a program that follows "orders": by itself, or with a cluster."""
    decoder = decoder or FieldDecoder()
    limits = Limits(rows, 1 << 30)
    engine = None
    if cluster is not None:
        skip_lost = options.get("skip_lost", False)
        engine = SparkEngine(broker, cluster, decoder, limits, skip_lost=skip_lost)
    source = StreamSource(broker, "orders", **options)
    made = Follower(source, decoder, tables, "/orders", limits=limits, engine=engine, sleep=lambda _: None)
    made.open()
    return made


def contents(tables: MemoryTables) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of both tables, in the order of offsets."""
    both = []
    for rows in (tables.rows(), tables.refused()):
        both.append(
            sorted(({**row, "headers": None} for row in rows), key=lambda row: (row["partition"], row["offset"]))
        )
    return both[0], both[1]


def offsets(tables: MemoryTables) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in [*tables.rows(), *tables.refused()])


@pytest.mark.parametrize("partitions", [False, True])
def test_both_make_the_same_table_when_the_columns_are_known(partitions: bool) -> None:
    broker = mixed(30, partitions=partitions)
    here, there = MemoryTables(), MemoryTables()
    cluster = ClusterHere()
    for tables, engine in ((here, None), (there, cluster)):
        first = follower(broker, tables)
        while len(first._there().table.columns()) < len(FieldDecoder().first_columns()) + 3:
            first.step()
        run(follower(broker, tables, cluster=engine))
    assert contents(here) == contents(there)
    assert there.refused() and max(cluster.ran) > 2


def test_a_step_takes_as_many_pieces_as_the_cluster_has_room_for(broker: ExportBroker, tables: MemoryTables) -> None:
    broker.stream(count=100)
    cluster = ClusterHere(slots=3)
    made = follower(broker, tables, cluster=cluster, decoder=MessageDecoder(), rows=8)
    assert made.rows_max == 3 * 2 * 8
    step = made.step()
    assert (step.rows, step.waiting, cluster.ran) == (48, 52, [6])
    run(made)
    assert offsets(tables) == [(0, offset) for offset in range(100)]


def test_columns_that_are_found_are_made_in_one_place_and_the_rest_on_the_cluster(
    broker: ExportBroker, tables: MemoryTables
) -> None:
    stream = broker.stream()
    for number in range(64):
        stream.add(1)
        body = b'{"n": 1}' if number < 30 else b'{"n": 1, "late": 2.5}'
        stream.messages[-1] = stream.messages[-1]._replace(body=body)
    cluster = ClusterHere(slots=4)
    made = follower(broker, tables, cluster=cluster)
    steps = []
    while (step := made.step()).moved:
        steps.append(step.rows)
    # "n" is found here; up to before "late" by the cluster; "late" here; the rest by the cluster.
    assert steps == [8, 16, 8, 32]
    assert offsets(tables) == [(0, offset) for offset in range(64)]
    assert [row.get("late") for row in contents(tables)[0]] == [None] * 30 + [2.5] * 34


def test_a_step_that_ends_before_its_plan_has_not_the_life_of_the_end(
    broker: ExportBroker, tables: MemoryTables
) -> None:
    """The broker is restored to where both histories are the same: the table must not take it for another one."""
    stream = broker.stream("orders")
    for number in range(32):
        stream.add(1)
        body = b'{"n": 1, "late": 2}' if number == 20 else b'{"n": 1}'
        stream.messages[-1] = stream.messages[-1]._replace(body=body)
    stream.lives = [("a" * 32, 0), ("b" * 32, 20)]
    decoder = FieldDecoder(schema=BodySchema({"n": "long"}))
    assert follower(broker, tables, cluster=ClusterHere(2), decoder=decoder, rows=8).step().rows == 16
    del stream.messages[18:]
    stream.add(4)
    stream.lives = [("a" * 32, 0), ("c" * 32, 18)]
    run(follower(broker, tables, cluster=ClusterHere(2), decoder=decoder, rows=8))
    assert offsets(tables) == [(0, offset) for offset in range(22)]


def test_what_was_written_behind_a_column_that_was_found_is_deleted(
    broker: ExportBroker, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = broker.stream()
    for number in range(32):
        stream.add(1)
        body = b'{"late": 1}' if number == 9 else b'{"n": 1}' if number % 2 else b"x"
        stream.messages[-1] = stream.messages[-1]._replace(body=body)
    follower(broker, tables, rows=2).step()
    deleted: list[int] = []
    monkeypatch.setattr(MemoryWriter, "delete", lambda _, files: deleted.extend(file.entry.num_rows for file in files))
    made = follower(broker, tables, cluster=ClusterHere(slots=4))
    assert made.step().rows + made.step().rows > 0
    assert sum(deleted) > 0
    run(made)
    assert offsets(tables) == [(0, offset) for offset in range(32)]


def test_tasks_that_run_in_any_order_and_more_than_once_change_nothing() -> None:
    broker = mixed(40, partitions=True)
    plain, odd = MemoryTables(), MemoryTables()
    run(follower(broker, plain, cluster=ClusterHere()))
    cluster = ClusterHere()
    cluster.backwards, cluster.tries = True, 2
    run(follower(broker, odd, cluster=cluster))
    assert contents(plain) == contents(odd)


@pytest.mark.parametrize("first", [False, pytest.param(True, marks=pytest.mark.long)])
def test_killed_anywhere_the_other_engine_goes_on(first: bool) -> None:
    def make() -> tuple[ExportBroker, MemoryTables]:
        return mixed(5, partitions=True), MemoryTables()

    def engine(is_spark: bool) -> ClusterHere | None:
        return ClusterHere() if is_spark else None

    def work(thing: tuple[ExportBroker, MemoryTables]) -> None:
        run(follower(*thing, cluster=engine(first), rows=4))

    for broker, tables in killed_everywhere(make, work):
        streams = [name for name, queue in broker.queues.items() if queue.type == "stream"]
        for name in streams:
            grow(broker, name, 2)
        run(follower(broker, tables, cluster=engine(not first), rows=3))
        assert offsets(tables) == [(part, offset) for part in range(len(streams)) for offset in range(7)]
        assert tables.refused()


@pytest.mark.parametrize("seed", range(12))
def test_engines_that_are_killed_by_turns_leave_each_message_once(seed: int) -> None:
    chance = random.Random(seed)
    broker, tables = mixed(0, partitions=True), MemoryTables()
    streams = ["orders-0", "orders-1"]
    for _ in range(12):
        for name in streams:
            queue = broker.queues[name]
            for _ in range(chance.randrange(12)):
                queue.add(1)
                body = chance.choice(
                    [b"x", b'{"n": 1}', b'{"n": 1.5}', b'{"n": "t"}', b'{"f%d": 1}' % chance.randrange(9)]
                )
                queue.messages[-1] = queue.messages[-1]._replace(body=body)
        cluster = chance.choice([None, ClusterHere(chance.randrange(1, 4))])
        left = chance.randrange(1, 12)

        def dies(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    raise Killed
                return original(*args, **kwargs)

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryTable, "append", dies(MemoryTable.append))
            patch.setattr(MemoryTable, "load", dies(MemoryTable.load))
            try:
                run(follower(broker, tables, cluster=cluster, rows=chance.randrange(1, 9)))
            except Killed:
                pass
    run(follower(broker, tables))
    found = offsets(tables)
    assert found == [(part, at) for part, name in enumerate(streams) for at in range(broker.queues[name].end)]


def test_who_was_overtaken_while_tasks_ran_commits_nothing(broker: ExportBroker, tables: MemoryTables) -> None:
    broker.stream(count=12)
    second: list[Follower] = []

    class Slow(ClusterHere):
        def run(self, work: Any) -> Any:
            made = super().run(work)
            second.append(follower(broker, tables, decoder=MessageDecoder()))
            return made

    first = follower(broker, tables, cluster=Slow(), decoder=MessageDecoder())
    with pytest.raises(Overtaken):
        first.step()
    assert not tables.rows()
    run(second[0])
    assert offsets(tables) == [(0, offset) for offset in range(12)]


def test_messages_that_are_gone_end_it_or_are_counted(
    broker: ExportBroker, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = broker.stream(count=20)

    class Late(ClusterHere):
        def run(self, work: Any) -> Any:
            stream.trim(6)
            return super().run(work)

    with pytest.raises(DataLoss, match="the oldest offset is 6"):
        follower(broker, tables, cluster=Late(), decoder=MessageDecoder()).step()
    assert not tables.rows()
    stream.first, stream.messages = 0, [*broker.stream("copy", count=6).messages, *stream.messages]
    made = follower(broker, tables, cluster=Late(), decoder=MessageDecoder(), skip_lost=True)
    step = made.step()
    assert (step.rows, step.lost) == (14, 6)


def test_executors_without_a_library_are_a_matter_of_usage(
    broker: ExportBroker, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stream(count=1)

    def write(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'pyiceberg'", name="pyiceberg")

    monkeypatch.setattr(MemoryWriter, "write", write)
    with pytest.raises(UsageError, match=r"executors have no pyiceberg: pip install './warren\[lake\]' there"):
        follower(broker, tables, cluster=ClusterHere(), decoder=MessageDecoder()).step()


def test_a_task_has_a_token_and_no_password_where_there_is_a_listener_of_data_alone(
    broker: ExportBroker, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stream(count=1)
    clients: list[BrokerClient] = []

    class Looks(ClusterHere):
        def run(self, work: Any) -> Any:
            clients.extend(piece.client for piece in work.pieces)
            raise Killed

    monkeypatch.setattr(ExportBroker, "maybe_token", lambda *_: DataToken("t0ken", "http://data:15680"))
    with pytest.raises(Killed):
        follower(broker, tables, cluster=Looks(), decoder=MessageDecoder()).step()
    (client,) = clients
    assert client.url == "http://data:15680"
    sent = pickle.dumps(client)
    assert b"t0ken" in sent and b"Basic" not in sent and b"guest" not in sent


@pytest.mark.parametrize(
    ("bounds", "sizes", "limits", "made"),
    [
        ((0,), (), Limits(5, 100), [0]),
        ((0, 4, 8, 10), (40, 40, 20), Limits(100, 100), [0, 10]),
        ((0, 4, 8, 10), (40, 40, 20), Limits(100, 80), [0, 8, 10]),
        ((0, 4, 8, 10), (400, 40, 20), Limits(100, 80), [0, 4, 10]),
        ((0, 4, 8, 10), (40, 40, 20), Limits(6, 1000), [0, 4, 10]),
        ((3, 20), (40,), Limits(5, 1000), [3, 8, 13, 18, 20]),
        ((0, 10, 11), (40, 1), Limits(5, 1000), [0, 5, 10, 11]),
    ],
)
def test_pieces_are_joined_up_to_what_a_task_may_have(
    bounds: tuple[int, ...], sizes: tuple[int, ...], limits: Limits, made: list[int]
) -> None:
    assert joined(bounds, sizes, limits) == made


# --- tables on disk --------------------------------------------------------------------------------------------------


class Opened:
    """Opens the table of a test, which nothing is refused from."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table

    def __call__(self, columns: Any, refused: Any) -> tuple[Any, None]:
        return self._table(columns), None


def test_tables_on_disk_are_gone_on_with_by_either(on_disk: OpenTable, broker: ExportBroker) -> None:
    stream = broker.stream()
    for number, cluster in enumerate([ClusterHere(), None, ClusterHere(3), None]):
        stream.add(20)
        made = follower(broker, Opened(on_disk), cluster=cluster, decoder=MessageDecoder())
        run(made)
        assert sorted(on_disk.rows().column("offset").to_pylist()) == list(range(20 * number + 20))
    rows = on_disk.rows().sort_by("offset").to_pylist()
    assert [row["body"] for row in rows] == [b"%d" % number for number in range(80)]
    assert len({tuple(row) for row in rows}) == 1


def test_the_commit_of_another_program_costs_a_commit_and_no_job(on_disk: OpenTable, broker: ExportBroker) -> None:
    broker.stream(count=10)
    others: list[Any] = []

    class Disturbed(ClusterHere):
        def run(self, work: Any) -> Any:
            made = super().run(work)
            if len(self.ran) == 1:
                other = on_disk()
                other.load(["epoch"])
                marks = first._there().table.marks()
                other.append(other.columns().empty_table(), marks)
                others.append(other)
            return made

    cluster = Disturbed()
    first = follower(broker, Opened(on_disk), cluster=cluster, decoder=MessageDecoder())
    assert first.step().rows == 10 and others and len(cluster.ran) == 1
    assert sorted(on_disk.rows().column("offset").to_pylist()) == list(range(10))
