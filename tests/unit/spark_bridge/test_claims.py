"""Single claims settled by tasks: only those of the session that the task has found first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from warren.spark_bridge import Claims
from warren.spark_bridge.bridge_errors import AnotherQueue, BridgeError, Fenced
from warren.spark_bridge.claims import DEAD_LETTER
from warren.spark_bridge.control import DrainSession
from warren.spark_bridge.drain import DrainReader
from warren.spark_bridge.loads import marked, maybe_load_of
from warren.spark_bridge.options import BrokerAddress
from warren.spark_bridge.schema import spark_schema

from .broker_in_memory import MemoryBroker, _Here, options_for

CLAIMS = "amq.drain/orders/nightly"


class SettlingBroker(MemoryBroker):
    """Remembers what was settled."""

    def __init__(self) -> None:
        super().__init__()
        self.settled: list[int] = []
        self.owner = ""

    def open_drain(self, queue: str, name: str, owner: str = "", **more: Any) -> DrainSession:
        self.owner = owner
        return super().open_drain(queue, name, owner, **more)

    def drain(self, queue: str, name: str) -> dict[str, Any]:
        epoch = self.sessions[f"amq.drain/{queue}/{name}"].epoch
        return {"claims": f"amq.drain/{queue}/{name}", "epoch": epoch, "owner": self.owner}

    def settle(self, queue: str, name: str, id: str, ranges: Sequence[tuple[int, int]], how: str, **more: Any) -> None:
        self._there(f"amq.drain/{queue}/{name}", id)
        if more.get("epoch") is not None:
            self._claims(queue, name, more["epoch"])
        self.settled += [offset for first, end in ranges for offset in range(first, end)]


@pytest.mark.parametrize(("is_deleted", "refusal"), [(False, Fenced), (True, AnotherQueue)])
def test_a_task_settles_no_claims_of_a_session_that_came_later(is_deleted: bool, refusal: type[BridgeError]) -> None:
    broker = SettlingBroker()
    broker.queue("orders", 10)
    broker.open_drain("orders", "nightly")
    claims = Claims("nightly")
    claims._connection = cast(BrokerAddress, _Here(broker))

    def columns(*offsets: int) -> tuple[pa.Array, pa.Array, pa.Array]:
        return pa.array(["orders"] * len(offsets)), pa.array(offsets), pa.array([True] * len(offsets))

    def batches() -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
        yield columns(0, 1)
        yield columns(4)
        if is_deleted:
            del broker.sessions[CLAIMS]
        broker.open_drain("orders", "nightly")
        broker.queues[CLAIMS].id = "c2" if is_deleted else "c1"
        yield columns(5)

    with pytest.raises(refusal):
        list(claims.settled(batches()))
    assert broker.settled == [0, 1, 4]
    claims.settle_rows(pa.table({"queue": ["orders"], "offset": [6]}), DEAD_LETTER)
    assert broker.settled == [0, 1, 4, 6]


def test_rows_that_were_read_before_another_query_opened_the_session_settle_nothing() -> None:
    """A driver that was shut out, or a frame that was kept, has numbers that are claims of the later query, too."""
    broker = SettlingBroker()
    broker.queue("orders", 10)
    claims = Claims("nightly")
    claims._connection = cast(BrokerAddress, _Here(broker))
    rows = pa.table({"queue": ["orders"], "offset": [0]})

    def open_for(load: str) -> str | None:
        schema = marked(spark_schema(), load)
        reader = DrainReader(options_for(broker, streaming=True, mode="drain", consumerName="nightly"), schema)
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        return maybe_load_of(schema)

    first, second = open_for("one"), open_for("two")
    assert (first, second) == ("one", "two")
    with pytest.raises(Fenced, match="opened by 'Spark two'"):
        claims.settle_rows(rows, DEAD_LETTER, load=first)
    with pytest.raises(Fenced):
        list(claims.settled(iter([(pa.array(["orders"]), pa.array([0]), pa.array([True]))]), first))
    assert broker.settled == []
    claims.settle_rows(rows, DEAD_LETTER, load=second)
    claims.settle_rows(rows, DEAD_LETTER, load=maybe_load_of(spark_schema()))
    assert broker.settled == [0, 0]
