"""A table's behaviour when the broker's history differs from the history in the table."""

from __future__ import annotations

from typing import Any

import pytest

from unit.spark_bridge.broker_in_memory import MemoryBroker, MemoryQueue
from warren.lake.decoder import MessageDecoder
from warren.lake.marks import EPOCH, Place, keys_of, marks_of, places_of
from warren.lake.options import Limits
from warren.lake.source import DrainSource, Plan, StreamSource
from warren.spark_bridge.bridge_errors import DataLoss

from .conftest import Delta

OURS, THEIRS = "a" * 32, "b" * 32


def restored(stream: MemoryQueue, count: int, more: int) -> None:
    """Restore the broker to `count` messages, and give it `more` since."""
    del stream.messages[count:]
    stream.add(more)
    stream.lives = [(OURS, 0), (THEIRS, count)]


def planned(source: Any, marks: dict[str, int], limits: Limits | None = None) -> Plan:
    """Return the next plan of a writer that has just started on a table with `marks`."""
    places = places_of(marks)
    found: Plan = source.plan({**places, **source.begin(places)}, limits or Limits())
    return found


def test_a_stream_of_another_history_ends_the_table_or_is_read_from_where_it_diverged() -> None:
    broker = MemoryBroker()
    stream = broker.stream("s", 20, lives=[(OURS, 0)])
    marks = marks_of(planned(StreamSource(broker, "s"), {}).after)
    assert marks["next/s"] == 20 and marks["life/s"] > 0
    for more in (0, 30):
        restored(stream, 10, more)
        with pytest.raises(DataLoss, match="diverged at offset 10, and it had been read up to 20"):
            planned(StreamSource(broker, "s"), marks)
        plan = planned(StreamSource(broker, "s", skip_lost=True), marks)
        assert [(each.first, each.end) for each in plan.ranges] == ([(10, 40)] if more else [])
        assert plan.after["s"].next == 10 + more


def test_a_table_without_lives_is_read_on_and_has_them_then() -> None:
    broker = MemoryBroker()
    broker.stream("s", 20, lives=[(OURS, 0)])
    source = StreamSource(broker, "s")
    (begun,) = source.begin({}).values()
    plan = planned(source, marks_of({"s": Place(begun.id, 15)}))
    assert [(each.first, each.end) for each in plan.ranges] == [(15, 20)]
    assert plan.after["s"].life != 0


def test_a_drain_of_another_history_acknowledges_nothing() -> None:
    broker = MemoryBroker()
    broker.queue("q", 20)
    broker.open_drain("q", "c")
    claims = broker.queues["amq.drain/q/c"]
    claims.lives = [(OURS, 0)]
    plan = planned(DrainSource(broker, "q", "c", "test"), {}, Limits(rows=20))
    marks = marks_of(plan.after)
    assert marks["next/q"] == 20
    for more in (0, 30):
        restored(claims, 10, more)
        with pytest.raises(DataLoss, match=r"diverged at offset 10.* may come again, as further rows"):
            planned(DrainSource(broker, "q", "c", "test"), marks)
        assert claims.first == 0


def test_a_drain_knows_its_life_where_nothing_was_claimed_and_where_a_step_is_repeated() -> None:
    broker = MemoryBroker()
    broker.life = OURS
    queue = broker.queue("q", 20)
    source = DrainSource(broker, "q", "c", "test")
    places = dict(source.begin({}))

    def step() -> Plan:
        found: Plan = source.plan(places, Limits(rows=10))
        return found

    places |= step().after
    again = step()
    assert [(each.first, each.end) for each in again.ranges] == [(10, 20)]
    assert step() == again  # the step has failed, and is done again
    places |= again.after
    assert step().ranges == ()
    assert step().ranges == ()
    queue.add(5)
    assert [(each.first, each.end) for each in step().ranges] == [(20, 25)]


def test_a_life_that_is_not_known_replaces_the_one_before(delta: Delta) -> None:
    """In a Delta table a number stays until it is replaced: the life before would be compared with the new offset."""
    table = delta(MessageDecoder().first_columns())
    for place in (Place(1, 10, 7), Place(1, 20)):
        table.load(keys_of(["s"]))
        table.append(table.columns().empty_table(), {EPOCH: 1, **marks_of({"s": place})})
        table.load(keys_of(["s"]))
        assert places_of(table.marks()) == {"s": place}
