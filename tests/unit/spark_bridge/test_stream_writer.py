"""The commits of a streaming query's sink: each batch, also an empty one, since batches follow each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from warren.spark_bridge.bridge_errors import NotFound
from warren.spark_bridge.control import Committed
from warren.spark_bridge.writer import BatchWriter, StreamWriter, WriteFailed, Written
from warren.spark_bridge.writer_options import CONFIRMS, STAGED, WriteOptions


class Broker:
    """Has all that was committed."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, int, list[str]]] = []
        self.purged: list[str | None] = []

    def client(self) -> Broker:
        return self

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def commit_stages(
        self, query: str, batch: int, stages: list[str], *, purge: str | None = None, **_: Any
    ) -> Committed:
        self.commits.append((query, batch, stages))
        self.purged.append(purge)
        return Committed(True, False, 0, 0)


def options(broker: Broker, delivery: str) -> WriteOptions:
    found = SimpleNamespace(connection=broker, delivery=delivery, commit_timeout_s=1.0, mandatory=True, routing_key="q")
    return cast(WriteOptions, found)


@pytest.mark.parametrize(("delivery", "commits"), [(STAGED, [("q", 3, ["s"]), ("q", 4, [])]), (CONFIRMS, [])])
def test_an_empty_batch_of_a_query_is_committed_as_well(delivery: str, commits: list[Any]) -> None:
    broker = Broker()
    writer = StreamWriter(options(broker, delivery), cast(Any, None))
    writer.commit([Written("q", "s", 5), Written("q", None, 0)], 3)
    writer.commit([Written("q", None, 0), None], 4)
    writer.commit([], 5)  # nobody knows whose batch that is
    assert broker.commits == commits


def test_a_batch_write_without_rows_is_not_committed() -> None:
    broker = Broker()
    writer = BatchWriter(options(broker, STAGED), cast(Any, None), overwrite=False)
    writer.commit([Written("q", None, 0)])
    assert broker.commits == []


@pytest.mark.parametrize("written", [[], [Written("batch", None, 0)], [Written("batch", "s", 2)]])
def test_overwriting_is_one_commit_also_without_rows(written: list[Any]) -> None:
    broker = Broker()
    writer = BatchWriter(options(broker, STAGED), cast(Any, None), overwrite=True)
    writer.query = "batch"
    writer.commit(written)
    assert broker.commits == [("batch", 0, [each.stage for each in written if each.stage])]
    assert broker.purged == ["q"]


def test_a_broker_that_is_too_old_for_overwriting_is_named_as_the_reason() -> None:
    class Older(Broker):
        def commit_stages(self, *_: Any, **given: Any) -> Committed:
            raise NotFound("replace: POST is not allowed here", 405, "method_not_allowed")

    writer = BatchWriter(options(Older(), STAGED), cast(Any, None), overwrite=True)
    with pytest.raises(WriteFailed, match="too old"):
        writer.commit([Written("batch", "s", 2)])
