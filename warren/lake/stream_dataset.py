"""The messages of streams, as a dataset for SQL and notebooks.

1. Its range is fixed when it is made: offsets of streams, from a beginning to an end. Later messages are not in it.
2. A filter by queue, partition or offset leaves out other messages before they are fetched. In the sealed part a filter
   for messages that are not older than a time does so, too: the broker compares the newest time of each chunk, which is
   right also when a clock was set back. Of the tail, and for messages newer than a time, chunks are fetched, but not
   made into rows.
3. Bodies and properties are fetched only when one of their columns is asked for.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from warren.lake.json_bodies import JsonBodies
from warren.lake.pushdown import PushdownDataset, between, may_hold, narrowed
from warren.lake.ranges import Range, parts_of, rows_of
from warren.spark_bridge.bridge_errors import BridgeError
from warren.spark_bridge.columns import Chunk
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.nodes import nodes_of
from warren.spark_bridge.schema import COLUMN_NAMES, arrow_schema
from warren.spark_bridge.start_offsets import offset_at

FIRST = "first"
NEXT = "next"
MESSAGES = arrow_schema(COLUMN_NAMES)
_LATEST_US: Final = 1 << 52  # in the year 2112; newer messages are not left out either


def ranges_of(client: BrokerClient, name: str, since: str = FIRST, until: str = NEXT) -> list[Range]:
    """Return the range of a stream or super stream from `since` to `until`: words, offsets, ages or times.

    Raises:
        UsageError: it is not a stream, or a position is invalid.
    """
    found = []
    for part, (number, there) in parts_of(client, name, "its messages are read with warren export").items():
        first = min(max(there.first, offset_at(client, there, since)), there.end)
        end = min(there.end, offset_at(client, there, until))
        others = nodes_of(there, first, number)
        found.append(Range(name, number, part, there.id_at(max(first, end)), first, max(first, end), nodes=others))
    return found


class StreamDataset(PushdownDataset):
    """The rows of `ranges`. `bodies`: the columns to make of bodies, in addition to those of messages."""

    def __init__(
        self,
        client: BrokerClient,
        ranges: Sequence[Range],
        *,
        bodies: JsonBodies | None = None,
        skip_lost: bool = False,
    ) -> None:
        fields = [] if bodies is None else list(bodies.schema)
        super().__init__(pa.schema([*MESSAGES, *fields]))
        self.lost = 0  # messages that scans have skipped
        self._client = client
        self._ranges = tuple(ranges)
        self._bodies = bodies
        self._skip_lost = skip_lost

    @property
    def unfit(self) -> int:
        """How many values of bodies did not fit their columns, in all scans."""
        return 0 if self._bodies is None else self._bodies.unfit

    def _from(self, client: BrokerClient, wanted: Range, time_us: int) -> int:
        """Return an offset before which all messages of a range are older than a time."""
        try:
            found = client.resolve(wanted.name, time_ms=time_us // 1000)
            sealed = client.files(wanted.name, wanted.first, wanted.end, wanted.id).chunks
        except BridgeError:
            return wanted.first  # the broker does not have this call; or something is gone, as reading it will say
        return max(wanted.first, min(found, sealed[-1].end)) if sealed else wanted.first

    def batches(self, columns: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        made = [name for name in columns.names if name not in MESSAGES.names]
        names = [name for name in columns.names if name in MESSAGES.names]
        reading = arrow_schema([*names, "body"] if made and "body" not in names else names)
        oldest_us, _ = narrowed(filter, self.schema, "timestamp", 0, _LATEST_US)
        with copy.copy(self._client) as client:  # one client is not for several threads
            for each in self._ranges:
                queue = (pc.field("queue") == each.queue) & (pc.field("partition") == each.partition)
                first, end = narrowed(filter, self.schema, "offset", each.first, each.end, [queue])
                if oldest_us and first < end:
                    first = min(end, max(first, self._from(client, each, oldest_us)))

                def has_any(chunk: Chunk) -> bool:
                    times = between(MESSAGES.field("timestamp"), chunk.min_time_us, chunk.max_time_us)
                    return chunk.count > 0 and may_hold(filter, self.schema, times)

                wanted = each._replace(first=first, end=end)
                for batches, lost in rows_of(client, wanted, reading, skip_lost=self._skip_lost, has_any=has_any):
                    self.lost += lost
                    for batch in batches:
                        yield self._with_bodies(batch, columns, made)

    def _with_bodies(self, batch: pa.RecordBatch, columns: pa.Schema, made: Sequence[str]) -> pa.RecordBatch:
        if not made:
            return batch
        assert self._bodies is not None
        arrays = self._bodies.columns(batch.column("body"), made)
        return pa.RecordBatch.from_arrays(
            [arrays[name] if name in arrays else batch.column(name) for name in columns.names], schema=columns
        )
