"""Ranges of offsets of streams as rows, from the files of a broker on this machine or over the data port.

1. A range is read whole, or reading it fails with `DataLoss`. With `skip_lost` messages that are gone or unreadable are
   skipped and counted; messages that compaction by key has removed are not missing.
2. Memory holds at most one answer of the broker, or 8 MiB of a file, in addition to the batches that were handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from warren.spark_bridge import nodes
from warren.spark_bridge.bridge_errors import AnotherQueue, DataLoss, Diverged, Gone, UsageError
from warren.spark_bridge.columns import Chunk, Context, to_record_batches
from warren.spark_bridge.control import BrokerClient, Description
from warren.spark_bridge.local_files import read_chunks_here
from warren.spark_bridge.options import AUTO
from warren.spark_bridge.schema import FROM_PROPERTIES

STREAMS: Final = ("stream", "super-stream")
SKIP: Final = "With skip_lost they are passed over"


class Range(NamedTuple):
    """The offsets [first, end) of the stream, or queue of claims, `name`; its rows are of `queue` and `partition`.

    `id`: see `id_at` of ``spark_bridge.lives``. `in_files`: whether the broker may have some of it in files; `nodes`:
    which are asked before the broker itself.
    """

    queue: str
    partition: int
    name: str
    id: str
    first: int
    end: int
    in_files: bool = True
    nodes: tuple[str, ...] = ()


def parts_of(client: BrokerClient, name: str, otherwise: str) -> dict[str, tuple[int, Description]]:
    """Return the streams that a stream or super stream consists of by their names, with their numbers.

    Raises:
        UsageError: it is a queue; the text ends with `otherwise`.
    """
    found = client.describe(name)
    if found.type not in STREAMS:
        raise UsageError(f"{name!r} is {found.type} and no stream: {otherwise}")
    if found.partitions is None:
        return {found.name: (0, found)}
    return {part: (number, client.describe(part)) for number, part in enumerate(found.partitions)}


def rows_of(
    client: BrokerClient,
    wanted: Range,
    schema: pa.Schema,
    *,
    skip_lost: bool,
    has_any: Callable[[Chunk], bool] = lambda _: True,
) -> Iterator[tuple[list[pa.RecordBatch], int]]:
    """Yield the rows of a range chunk by chunk, with the number of messages that were skipped in each.

    `has_any`: whether a chunk may have a row that is asked for; of the others no rows are made.
    """
    context = Context(wanted.queue, wanted.partition)
    at = wanted.first
    while at < wanted.end:
        try:
            for chunk in _chunks(client, wanted, at, schema):
                first, end = max(at, chunk.first), min(chunk.end, wanted.end)
                if end <= first:
                    continue
                low, high = chunk.rows(first, end)
                lost = 0 if chunk.is_compacted else end - first - (high - low)
                if lost and not skip_lost:
                    raise DataLoss(
                        f"{lost} of the messages from {first} to {end} of {wanted.name!r} cannot be read. {SKIP}"
                    )
                rows = to_record_batches(chunk, schema, context, first=first, end=end) if has_any(chunk) else ()
                yield list(rows), lost
                at = end
            return
        except (AnotherQueue, Diverged):
            raise
        except Gone as error:
            if not skip_lost:
                raise DataLoss(f"{error}. {SKIP}") from None
        there = client.describe(wanted.name).first
        behind = min(max(at + 1, there), wanted.end)
        yield [], behind - at
        at = behind


def _chunks(client: BrokerClient, wanted: Range, first: int, schema: pa.Schema) -> Iterator[Chunk]:
    """Yield the chunks that cover a range from `first` on."""
    bodies = "body" in schema.names
    properties = not FROM_PROPERTIES.isdisjoint(schema.names)

    def over_the_port(low: int, high: int) -> Iterator[Chunk]:
        return nodes.read(client, wanted.nodes, wanted.name, low, high, wanted.id, bodies=bodies, properties=properties)

    if not wanted.in_files:
        return over_the_port(first, wanted.end)
    return read_chunks_here(client, wanted.name, first, wanted.end, wanted.id, AUTO, over_the_port)
