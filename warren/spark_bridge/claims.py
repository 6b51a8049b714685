"""Single messages of a drained queue settled by a query: acknowledged, dead-lettered, or put back.

    foreachBatch(batch, number):  Claims("nightly").dead_letter(batch.where(...))      noted with the broker, at once
    Spark commits the batch, and asks for the next one                                 carried out by the broker

1. The broker carries out a decision about a message when the query acknowledges the message, once. A batch that is
   repeated decides again, and the last decision counts; a batch that never finishes has decided nothing. So each
   decision is carried out exactly once with its batch.
2. A message without a decision is acknowledged. A message that is already acknowledged can no longer be settled.
3. Rows settle claims of the session that they were read in. A session that another query has opened for a load of its
   own is refused (`loads`). A task settles claims of the session that it has found first: if that is deleted and
   opened again meanwhile, or another query opens it, the task fails, and the claims of others stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warren.spark_bridge.bridge_errors import Fenced, UsageError
from warren.spark_bridge.loads import maybe_load_of, owner_of
from warren.spark_bridge.options import CONNECTION_OPTIONS, Given, check_names, connection_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ACK: Final = "ack"
DEAD_LETTER: Final = "dead_letter"
REQUEUE: Final = "requeue"
KEY: Final = ("queue", "offset")
# In one request; each is three values of JSON, of which a body may have 20,000.
RANGES_MAX: Final = 5000


class Claims:
    """The claims of the query with `consumer_name`; `options` and names give the broker, as for reading."""

    def __init__(self, consumer_name: str, options: Mapping[str, object] | None = None, **more: Any) -> None:
        given = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in {**(options or {}), **more}.items()
        }
        check_names(given, CONNECTION_OPTIONS)
        self._name = consumer_name
        # A file with a password is read here: executors may not have it.
        self._connection = connection_of(given).with_password()

    def ack(self, frame: DataFrame) -> None:
        """Acknowledge the messages of `frame` with the batch, whatever was decided before."""
        self._settle(frame, ACK)

    def dead_letter(self, frame: DataFrame) -> None:
        """Dead-letter the messages of `frame` with the batch, as their queue says.

        Raises:
            Refused: it has no dead letter exchange.
        """
        self._settle(frame, DEAD_LETTER)

    def requeue(self, frame: DataFrame, after: str | None = None) -> None:
        """Requeue the messages of `frame` with the batch; this counts as a failed delivery.

        `after`: a time such as 30s, before which they are not delivered; None: the queue's own delay.
        """
        delay_ms = None if after is None else round(Given({"after": after or "0"}).duration_s("after") * 1000)
        self._settle(frame, REQUEUE, delay_ms)

    def _settle(self, frame: DataFrame, how: str, delay_ms: int | None = None) -> None:
        check_key(frame.columns)
        self.settle_rows(frame.select(*KEY).toArrow(), how, delay_ms, load=maybe_load_of(frame.schema))

    def settle_rows(
        self,
        rows: pa.Table | pa.RecordBatch,
        how: str,
        delay_ms: int | None = None,
        found: dict[str, tuple[str, int]] | None = None,
        load: str | None = None,
    ) -> None:
        """Settle the messages that columns `queue` and `offset` name.

        `found`: the sessions of earlier rows, id and epoch by queue: it must still be these, and new ones are added.
        `load`: the one that the rows come from; None: it is not known.

        Raises:
            Fenced: a query of another load has opened the session.
        """
        if not rows.num_rows:
            return
        found = {} if found is None else found
        queues, offsets = rows.column("queue"), rows.column("offset")
        with self._connection.client() as client:
            for queue in pc.unique(queues).to_pylist():
                ranges = _ranges(offsets.filter(pc.equal(queues, queue)).to_numpy())
                if queue not in found:
                    session = client.drain(queue, self._name)
                    if load is not None and session.get("owner") != owner_of(load):
                        raise Fenced(
                            f"drain {self._name!r} of queue {queue!r} was opened by {session.get('owner')!r} since "
                            "these rows were read: settle the rows that the current query reads"
                        )
                    found[queue] = client.describe(str(session["claims"])).id, int(session["epoch"])
                id, epoch = found[queue]
                for first in range(0, len(ranges), RANGES_MAX):
                    wanted = ranges[first : first + RANGES_MAX]
                    client.settle(queue, self._name, id, wanted, how, delay_ms=delay_ms, epoch=epoch)

    def without(self, frame: DataFrame, condition: Column) -> DataFrame:
        """Return `frame` without the rows for which `condition` holds: these are dead-lettered when it is evaluated."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.functions import arrow_udf  # which needs no pandas

        check_key(frame.columns)
        load = maybe_load_of(frame.schema)

        def kept(columns: Iterator[tuple[pa.Array, pa.Array, pa.Array]]) -> Iterator[pa.Array]:
            return self.settled(columns, load)

        # Not deterministic, as far as Spark is concerned: it stays where it is in the plan.
        make: Any = arrow_udf
        settle = make(kept, "boolean").asNondeterministic()
        return frame.where(settle(*KEY, F.coalesce(condition, F.lit(False))))

    def settled(
        self, columns: Iterator[tuple[pa.Array, pa.Array, pa.Array]], load: str | None = None
    ) -> Iterator[pa.Array]:
        """Dead-letter rows in a task, given by queue, offset and a flag; yield which rows are left."""
        found: dict[str, tuple[str, int]] = {}
        for queues, offsets, is_bad in columns:
            rows = pa.RecordBatch.from_arrays([queues, offsets], names=list(KEY))
            self.settle_rows(rows.filter(is_bad), DEAD_LETTER, found=found, load=load)
            yield pc.invert(is_bad)


def check_key(columns: list[str]) -> None:
    """Make sure that a data frame says which messages its rows are of.

    Raises:
        UsageError: it does not.
    """
    missing = [name for name in KEY if name not in columns]
    if missing:
        raise UsageError(f"the data frame needs the column {missing[0]}, which names the message of a row")


def _ranges(offsets: Any) -> list[tuple[int, int]]:
    """Return offsets in any order as ranges."""
    numbers = np.unique(offsets)
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [(int(each[0]), int(each[-1]) + 1) for each in np.split(numbers, cuts)]
