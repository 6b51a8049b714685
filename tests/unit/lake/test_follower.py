"""A table has each message once, after any kill and beside any other writer. follower (1) to (4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from unit.spark_bridge.broker_in_memory import MemoryBroker
from unit.spark_bridge.export_broker import ExportBroker
from warren.lake.body_schema import BodySchema
from warren.lake.commands import opener_of
from warren.lake.decoder import FieldDecoder, MessageDecoder, refused_schema
from warren.lake.follower import Follower, OpenTables
from warren.lake.job import Job
from warren.lake.options import Limits
from warren.lake.source import DrainSource, StreamSource
from warren.lake.table import Table
from warren.lake.table_errors import NotOurs, Overtaken
from warren.spark_bridge.bridge_errors import AnotherQueue, DataLoss, Fenced, UsageError

from .memory_table import MemoryTable, MemoryTables


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def broker() -> ExportBroker:
    return ExportBroker()


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables()


def follower(
    broker: MemoryBroker,
    tables: OpenTables,
    *,
    name: str = "orders",
    json: bool = False,
    schema: BodySchema | None = None,
    drain: bool = False,
    rows: int = 100,
    **options: Any,
) -> Follower:
    """Return a program that follows `name`, as if it had just been started."""
    source = DrainSource(broker, name, "lake", "a test", **options) if drain else StreamSource(broker, name, **options)
    decoder = FieldDecoder(schema=schema) if json else MessageDecoder()
    made = Follower(source, decoder, tables, f"/{name}{drain}", limits=Limits(rows, 1 << 30), sleep=lambda _: None)
    made.open()
    return made


def run(made: Follower) -> int:
    """Follow to the end, and return how many steps there were."""
    steps = 0
    while made.step().moved:
        steps += 1
    return steps


def offsets(tables: MemoryTables) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in tables.rows())


def test_a_table_has_what_the_stream_has_and_goes_on(broker: ExportBroker, tables: MemoryTables) -> None:
    stream = broker.stream(count=10, first=3)
    first = follower(broker, tables, rows=4)
    assert first.waiting() == 10
    assert run(first) == 3
    assert offsets(tables) == [(0, offset) for offset in range(3, 13)]
    assert [row["body"] for row in tables.rows()] == [b"%d" % offset for offset in range(3, 13)]
    stream.add(2)
    assert first.step().rows == 2  # the one that is running
    stream.add(2)
    assert run(follower(broker, tables)) == 1  # and another
    assert offsets(tables) == [(0, offset) for offset in range(3, 17)]


def test_a_new_table_begins_where_it_is_told_even_if_it_was_killed_before_the_first_row(
    broker: ExportBroker, tables: MemoryTables
) -> None:
    stream = broker.stream(count=5)
    follower(broker, tables, start="next")
    stream.add(3)
    run(follower(broker, tables, start="next"))
    assert offsets(tables) == [(0, 5), (0, 6), (0, 7)]


def test_partitions_are_followed_with_their_numbers_and_so_are_new_ones(
    broker: ExportBroker, tables: MemoryTables
) -> None:
    whole = broker.stream("orders", type="super-stream", partitions=("orders-0", "orders-1"))
    broker.stream("orders-0", count=3)
    broker.stream("orders-1", count=9, id="i2")
    made = follower(broker, tables, rows=4)
    made.step()
    # Nobody starves.
    assert {row["partition"] for row in tables.rows()} == {0, 1}
    broker.stream("orders-2", count=2, id="i3")
    whole.partitions = ("orders-0", "orders-1", "orders-2")
    run(made)
    assert offsets(tables) == [(part, at) for part, count in ((0, 3), (1, 9), (2, 2)) for at in range(count)]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_partition_that_goes_before_it_was_read_is_a_loss(
    broker: ExportBroker, tables: MemoryTables, *, is_deleted: bool, is_restarted: bool
) -> None:
    whole = broker.stream("orders", type="super-stream", partitions=("orders-0", "orders-1"))
    broker.stream("orders-0", count=1)
    left = broker.stream("orders-1", count=1, id="i2")
    made = follower(broker, tables)
    run(made)
    left.add(1)
    whole.partitions = ("orders-0",)
    if is_deleted:
        del broker.queues["orders-1"]
    if is_restarted:
        made = follower(broker, tables)
    with pytest.raises(DataLoss, match=r"orders-1.* had been read up to 1"):
        made.step()
    broker.queues["orders-0"].add(1)
    run(follower(broker, tables, skip_lost=True))
    assert offsets(tables) == [(0, 0), (0, 1), (1, 0)]


def test_a_partition_that_was_read_may_be_taken_out(broker: ExportBroker, tables: MemoryTables) -> None:
    whole = broker.stream("orders", type="super-stream", partitions=("orders-0", "orders-1"))
    broker.stream("orders-0", count=1)
    broker.stream("orders-1", count=1, id="i2")
    made = follower(broker, tables)
    run(made)
    whole.partitions = ("orders-0",)
    broker.queues["orders-0"].add(1)
    assert made.step().rows == 1
    whole.partitions = ("orders-0", "orders-1")
    broker.queues["orders-1"].add(1)
    run(made)
    assert offsets(tables) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_what_is_refused_is_in_the_other_table_and_the_place_is_in_both(
    broker: ExportBroker, tables: MemoryTables
) -> None:
    stream = broker.stream()
    for body in (b'{"n": 1}', b"x", b'{"n": 2}', b'{"n": "y"}'):
        stream.add(1)
        stream.messages[-1] = stream.messages[-1]._replace(body=body)
    run(follower(broker, tables, json=True))
    assert [(row["offset"], row["n"]) for row in tables.rows()] == [(0, 1), (2, 2)]
    assert [(row["offset"], row["body"]) for row in tables.refused()] == [(1, b"x"), (3, b'{"n": "y"}')]
    assert all(row["reason"] for row in tables.refused())


# --- killed ----------------------------------------------------------------------------------------------------------


def killed_everywhere(make: Callable[[], Any], work: Callable[[Any], object]) -> Iterator[Any]:
    """Yield what `make` made after `work` was killed on it, at one place later each time."""
    for at in range(1, 1000):
        left = at

        def step() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed

        def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                step()
                made = original(*args, **kwargs)
                step()
                return made

            return call

        thing = make()
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in (
                *((MemoryTable, name) for name in ("append", "load")),
                *((ExportBroker, name) for name in ("claim", "read", "open_drain", "describe")),
            ):
                patch.setattr(owner, name, wrapped(getattr(owner, name)))
            try:
                work(thing)
            except Killed:
                pass
            else:
                assert at > 20, "nothing was in the way"
                return
        yield thing


BODIES = (b'{"n": 1}', b"x", b'{"n": 2, "m": 0.5}', b'{"n": "y"}', b'{"m": 1, "k": "z"}')


def mixed(count: int, *, partitions: bool) -> ExportBroker:
    """Return a broker with a stream of bodies of which some are refused."""
    broker = ExportBroker()
    names = ["orders"]
    if partitions:
        names = ["orders-0", "orders-1"]
        broker.stream("orders", type="super-stream", partitions=tuple(names))
    for number, name in enumerate(names):
        broker.stream(name, id=f"i{number}")
        grow(broker, name, count)
    return broker


LATER_MS = 1_800_000_000_000


def grow(broker: ExportBroker, name: str, count: int, **fields: Any) -> None:
    queue = broker.queues[name]
    for _ in range(count):
        queue.add(1, **fields)
        body = BODIES[(queue.end * 7 + len(name)) % len(BODIES)]
        queue.messages[-1] = queue.messages[-1]._replace(body=body)


@pytest.mark.parametrize("partitions", [False, True])
def test_killed_anywhere_each_message_of_a_stream_is_in_one_table_once(partitions: bool) -> None:
    def make() -> tuple[ExportBroker, MemoryTables]:
        return mixed(6, partitions=partitions), MemoryTables()

    def work(thing: tuple[ExportBroker, MemoryTables]) -> None:
        run(follower(*thing, json=True, rows=5))

    for broker, tables in killed_everywhere(make, work):
        streams = [name for name, queue in broker.queues.items() if queue.type == "stream"]
        for name in streams:
            grow(broker, name, 3)
        run(follower(broker, tables, json=True, rows=8))  # the next one plans more than the one that was killed
        found = sorted((row["partition"], row["offset"]) for row in [*tables.rows(), *tables.refused()])
        assert found == [(part, offset) for part in range(len(streams)) for offset in range(9)]
        assert tables.refused()


def test_killed_anywhere_each_message_of_a_drained_queue_is_in_the_table_once() -> None:
    def make() -> tuple[ExportBroker, MemoryTables]:
        broker = ExportBroker()
        broker.queue("orders", 12)
        return broker, MemoryTables()

    def work(thing: tuple[ExportBroker, MemoryTables]) -> None:
        run(follower(*thing, drain=True, rows=5))

    for broker, tables in killed_everywhere(make, work):
        broker.queues["orders"].add(3)
        work((broker, tables))
        assert sorted(int(row["body"]) for row in tables.rows()) == list(range(15))
        assert broker.queues["orders"].messages == []
        assert broker.sessions["amq.drain/orders/lake"].claims.messages == []  # the last one is acknowledged, too


def test_a_step_that_is_repeated_decides_the_same_whichever_stream_had_its_turn_first(
    broker: ExportBroker, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tuple(f"orders-{number}" for number in range(11))  # which is not the order of the letters
    broker.stream("orders", type="super-stream", partitions=names)
    for number, name in enumerate(names):
        queue = broker.stream(name, id=f"i{number}")
        queue.add(1)
        body = b'{"n": "text"}' if number in (2, 3) else b'{"n": %d}' % number
        queue.messages[-1] = queue.messages[-1]._replace(body=body)
    first = follower(broker, tables, json=True)
    for _ in range(3):  # of the names in order it is the turn of orders-2
        first._source.plan({}, Limits())
    assert tables.main is not None
    kept = tables.main
    original = MemoryTable.append

    def append(table: MemoryTable, *args: Any) -> None:
        if table.stored is kept:
            raise Killed
        original(table, *args)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryTable, "append", append)
        with pytest.raises(Killed):
            first.step()
    assert tables.refused() and not tables.rows()
    run(follower(broker, tables, json=True))
    places = [row["partition"] for row in [*tables.rows(), *tables.refused()]]
    assert sorted(places) == list(range(11))


def test_a_large_step_that_is_repeated_is_done_in_parts_unless_it_finds_columns(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = ExportBroker()
    broker.stream(count=1)
    grow(broker, "orders", 40)
    assert follower(broker, tables, json=True, rows=10).step().rows
    before = len(tables.rows()) + len(tables.refused())
    first = follower(broker, tables, json=True, rows=1000)
    stored = tables.main
    original = MemoryTable.append

    def append(table: MemoryTable, *args: Any) -> None:
        if table.stored is stored:
            raise Killed
        original(table, *args)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryTable, "append", append)
        with pytest.raises(Killed):
            first.step()
    made = follower(broker, tables, json=True, rows=4)
    step = made.step()
    assert step.moved and step.rows + step.refused == 4 and step.waiting
    run(made)
    found = sorted(row["offset"] for row in [*tables.rows(), *tables.refused()])
    assert before == 10 and found == list(range(41))


def killed_between(made: Follower, tables: MemoryTables) -> None:
    """Make a step that is killed when refused messages are committed, and rows are not."""
    stored, original = tables.main, MemoryTable.append

    def append(table: MemoryTable, *args: Any) -> None:
        if table.stored is stored:
            raise Killed
        original(table, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryTable, "append", append)
        with pytest.raises(Killed):
            made.step()
    assert tables.refused()


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("is_narrower", [False, True])
def test_a_step_that_is_repeated_with_another_schema_loses_and_doubles_nothing(
    tables: MemoryTables, *, is_narrower: bool, rows: int
) -> None:
    broker = mixed(10, partitions=False)
    schemas = [None, BodySchema({"n": "long"}, is_open=False)]
    before, after = schemas if is_narrower else reversed(schemas)
    killed_between(follower(broker, tables, json=True, schema=before), tables)
    aside = len(tables.refused())
    grow(broker, "orders", 5)
    run(follower(broker, tables, json=True, schema=after, rows=rows))
    assert sorted(row["offset"] for row in [*tables.rows(), *tables.refused()]) == list(range(15))
    assert is_narrower == (len([row for row in tables.refused() if row["offset"] < 10]) > aside)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_what_a_killed_step_has_refused_is_found_in_files(tmp_path: Path, form: str) -> None:
    pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg_core")
    broker = mixed(10, partitions=False)
    job = Job(f"{tmp_path}/shop.orders", stream="orders", format=form, body="json").check()
    opened = opener_of(job)

    def killed(columns: pa.Schema, refused: pa.Schema | None) -> tuple[Table, Table | None]:
        table, aside = opened(columns, refused)
        append = table.append

        def dying(rows: pa.Table, *more: Any) -> None:
            if rows.num_rows:
                raise Killed
            append(rows, *more)

        table.append = dying  # type: ignore[assignment, method-assign]
        return table, aside

    with pytest.raises(Killed):
        follower(broker, killed, json=True).step()
    grow(broker, "orders", 3)
    run(follower(broker, opened, json=True, schema=BodySchema({"n": "long"}, is_open=False), rows=4))
    found = []
    for table in opened(FieldDecoder().first_columns(), refused_schema()):
        assert table is not None
        table.load([])
        for file in table.files():
            found += [offset for rows in table.read(file, ["offset"]) for offset in rows.column("offset").to_pylist()]
    assert sorted(found) == list(range(13))


@pytest.mark.parametrize("is_recreated", [False, True])
def test_killed_anywhere_each_message_of_another_stream_in_its_place_is_in_one_table_once(is_recreated: bool) -> None:
    ours, theirs = "a" * 32, "b" * 32

    def make() -> tuple[ExportBroker, MemoryTables]:
        broker, tables = mixed(6, partitions=False), MemoryTables()
        stream = broker.queues["orders"]
        stream.lives = [(ours, 0)]
        run(follower(broker, tables, json=True))
        if is_recreated:
            stream = broker.stream(id="i9")
        else:  # the broker was restored
            del stream.messages[2:]
            stream.lives = [(ours, 0), (theirs, 2)]
        grow(broker, "orders", 3, time_ms=LATER_MS)
        return broker, tables

    def work(thing: tuple[ExportBroker, MemoryTables]) -> None:
        run(follower(*thing, json=True, rows=2, skip_lost=True))

    for broker, tables in killed_everywhere(make, work):
        grow(broker, "orders", 2, time_ms=LATER_MS)
        run(follower(broker, tables, json=True, rows=5, skip_lost=True))
        found = sorted(row["offset"] for row in [*tables.rows(), *tables.refused()])
        begin = 0 if is_recreated else 2
        assert found == sorted([*range(6), *range(begin, begin + 5)])


def test_what_a_step_had_begun_to_read_may_be_gone(tables: MemoryTables) -> None:
    """The broker was restored to the middle of a step that has committed what it refused."""
    ours, theirs = "a" * 32, "b" * 32
    broker = mixed(10, partitions=False)
    stream = broker.queues["orders"]
    stream.lives = [(ours, 0)]
    killed_between(follower(broker, tables, json=True), tables)
    aside = {row["offset"] for row in tables.refused()}
    del stream.messages[4:]
    stream.lives = [(ours, 0), (theirs, 4)]
    with pytest.raises(DataLoss, match="diverged at offset 4, and it had been read up to 10"):
        follower(broker, tables, json=True).step()
    for more in (0, 3, 3):
        grow(broker, "orders", more, time_ms=LATER_MS)
        run(follower(broker, tables, json=True, skip_lost=True))
        found = sorted(row["offset"] for row in [*tables.rows(), *tables.refused()])
        assert found == sorted([*range(stream.end), *(each for each in aside if each >= 4)])


def test_a_drained_queue_acknowledges_nothing_that_is_not_in_the_table(
    broker: ExportBroker, tables: MemoryTables
) -> None:
    broker.queue("orders", 9)

    def acked(bodies: Any) -> None:
        assert set(bodies) <= {row["body"] for row in tables.rows()}

    broker.acked = acked
    run(follower(broker, tables, drain=True, rows=2))
    assert len(tables.rows()) == 9


# --- others ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("json", [False, True])
def test_who_was_overtaken_commits_nothing_more(json: bool) -> None:
    broker, tables = mixed(6, partitions=False), MemoryTables()
    first = follower(broker, tables, json=json, rows=2)
    first.step()
    second = follower(broker, tables, json=json, rows=2)
    before = len(tables.rows()) + len(tables.refused())
    with pytest.raises(Overtaken, match="another process follows 'orders'"):
        first.step()
    assert len(tables.rows()) + len(tables.refused()) == before
    run(second)
    assert sorted(row["offset"] for row in [*tables.rows(), *tables.refused()]) == list(range(6))


def test_who_was_overtaken_learns_of_it_while_nothing_comes(broker: ExportBroker, tables: MemoryTables) -> None:
    broker.stream(count=1)
    first = follower(broker, tables)
    assert run(first) == 1
    follower(broker, tables)
    with pytest.raises(Overtaken):
        first.step()


def test_the_broker_is_told_how_far_the_table_is(broker: ExportBroker, tables: MemoryTables) -> None:
    stream = broker.stream(count=5)
    made = follower(broker, tables, rows=3, group="lake")
    made.step()
    assert broker.groups == {("orders", "lake"): 3}
    broker.groups.clear()
    stream.add(1)
    run(made)
    assert broker.groups == {("orders", "lake"): 6}


def test_two_that_step_in_any_order_leave_each_message_once() -> None:
    """The second takes over at each moment of a step of the first, between its two commits as well."""
    for at in range(1, 40):
        broker, tables = mixed(6, partitions=True), MemoryTables()
        first = follower(broker, tables, json=True, rows=5)
        left = at
        second: list[Follower] = []
        with pytest.MonkeyPatch.context() as patch:

            def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **kwargs: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        grow(broker, "orders-0", 4)  # noqa: B023
                        second.append(follower(broker, tables, json=True, rows=5))  # noqa: B023
                        second[0].step()  # noqa: B023
                    return original(*args, **kwargs)

                return call

            for owner, name in ((MemoryTable, "append"), (MemoryTable, "load"), (ExportBroker, "read")):
                patch.setattr(owner, name, wrapped(getattr(owner, name)))
            try:
                run(first)
            except Overtaken:
                pass
        run(second[0] if second else first)
        found = sorted((row["partition"], row["offset"]) for row in [*tables.rows(), *tables.refused()])
        assert len(found) == len(set(found)) == sum(len(queue.messages) for queue in broker.queues.values()), at
        if not second:
            return
    raise AssertionError("the first one never comes to an end")


def test_a_commit_of_another_program_makes_a_step_begin_again(
    broker: ExportBroker, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stream(count=3)
    made = follower(broker, tables)
    assert tables.main is not None
    stored = tables.main
    original = ExportBroker.read

    def read(*args: Any, **kwargs: Any) -> Any:
        stored.version += 1 if stored.version < 5 else 0
        return original(*args, **kwargs)

    monkeypatch.setattr(ExportBroker, "read", read)
    assert made.step().rows == 3
    assert offsets(tables) == [(0, 0), (0, 1), (0, 2)]


def test_what_was_made_before_another_program_added_a_column_is_made_again(tables: MemoryTables) -> None:
    broker = mixed(6, partitions=False)
    made = follower(broker, tables, json=True)
    stored = tables.main
    assert stored is not None
    original = MemoryTable.append
    with pytest.MonkeyPatch.context() as patch:

        def append(table: MemoryTable, rows: Any, *others: Any) -> None:
            if table.stored is stored and stored.version < 3:
                stored.version += 1
                stored.schema = stored.schema.append(pa.field(f"theirs{stored.version}", pa.string()))
            original(table, rows, *others)

        patch.setattr(MemoryTable, "append", append)
        run(made)
    assert stored.version > 3
    found = sorted(row["offset"] for row in [*tables.rows(), *tables.refused()])
    assert found == list(range(6)) and "theirs3" in tables.rows()[-1]


def test_a_session_that_a_restored_broker_lacks_ends_it(broker: ExportBroker, tables: MemoryTables) -> None:
    broker.queue("orders", 4)
    run(follower(broker, tables, drain=True))
    broker.delete_drain("orders", "lake", 1)
    queue = broker.queue("orders", 6)  # the backup has the messages that the table has
    with pytest.raises(DataLoss, match=r"session 'lake' of 'orders', read up to 4, is another one .* restored"):
        follower(broker, tables, drain=True)
    assert len(queue.messages) == 6
    run(follower(broker, tables, drain=True, skip_lost=True))
    assert len(tables.rows()) == 10
    run(follower(broker, tables, drain=True))


def test_released_claims_that_are_rows_end_it(broker: ExportBroker, tables: MemoryTables) -> None:
    broker.queue("orders", 5)
    follower(broker, tables, drain=True, rows=3).step()
    broker.release("orders", "lake")  # before the step that acknowledges them
    with pytest.raises(DataLoss, match="3 claims below 3 of 'orders' were released, and are rows"):
        follower(broker, tables, drain=True)
    run(follower(broker, tables, drain=True, skip_lost=True))
    assert len(tables.rows()) == 8
    run(follower(broker, tables, drain=True))


def test_a_new_table_gets_what_was_released_before_it(broker: ExportBroker) -> None:
    broker.queue("orders", 5)
    follower(broker, MemoryTables(), drain=True, rows=3).step()
    broker.release("orders", "lake")
    tables = MemoryTables()
    for _ in range(3):
        follower(broker, tables, drain=True, rows=2).step()
    assert [int(row["body"]) for row in tables.rows()] == list(range(5))


def test_of_a_drain_that_another_one_has_opened_nothing_is_claimed(broker: ExportBroker, tables: MemoryTables) -> None:
    broker.queue("orders", 4)
    first = follower(broker, tables, drain=True, rows=1)
    first.step()
    broker.open_drain("orders", "lake")
    with pytest.raises(Fenced):
        first.step()


def test_a_table_follows_one_source_only(broker: ExportBroker, tables: MemoryTables) -> None:
    broker.stream(count=1)
    broker.stream("others", count=1)
    follower(broker, tables)
    with pytest.raises(NotOurs, match="follows another source"):
        follower(broker, tables, name="others")


# --- what is gone ----------------------------------------------------------------------------------------------------


def test_what_retention_has_removed_ends_it_or_is_counted(broker: ExportBroker, tables: MemoryTables) -> None:
    stream = broker.stream(count=4)
    run(follower(broker, tables))
    stream.add(6)
    stream.trim(7)
    with pytest.raises(DataLoss, match="offsets from 4 to 7 of 'orders' are gone"):
        follower(broker, tables).step()
    step = follower(broker, tables, skip_lost=True).step()
    assert (step.rows, step.lost) == (3, 3)
    assert offsets(tables) == [(0, offset) for offset in (0, 1, 2, 3, 7, 8, 9)]


def test_a_stream_that_was_made_anew_ends_it(broker: ExportBroker, tables: MemoryTables) -> None:
    broker.stream(count=4)
    run(follower(broker, tables))
    broker.stream(count=2, id="i9")
    with pytest.raises(DataLoss, match="created again"):
        follower(broker, tables).step()
    assert not issubclass(UsageError, AnotherQueue)
    assert follower(broker, tables, skip_lost=True).step().rows == 2


def test_claims_that_were_acknowledged_for_another_table_end_it(broker: ExportBroker, tables: MemoryTables) -> None:
    broker.queue("orders", 6)
    first = follower(broker, tables, drain=True, rows=2)
    first.step()
    assert tables.main is not None
    before = (dict(tables.main.marks), list(tables.main.rows))
    run(first)
    tables.main.marks, tables.main.rows = before  # the table is taken back to an older state
    with pytest.raises(DataLoss, match="the claims from 2 to 6 of 'orders' are gone"):
        follower(broker, tables, drain=True)


def test_a_queue_is_no_stream(broker: ExportBroker, tables: MemoryTables) -> None:
    broker.queue("orders", 1)
    with pytest.raises(UsageError, match="drain it"):
        follower(broker, tables)


def test_once_ends_although_more_comes(broker: ExportBroker, tables: MemoryTables) -> None:
    stream = broker.stream(count=5)
    made = follower(broker, tables, rows=2)
    made.stop_here()
    while made.step().moved:
        stream.add(3)
    assert offsets(tables) == [(0, offset) for offset in range(5)]
