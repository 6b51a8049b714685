"""Ranges of offsets cut into pieces for single tasks, and the reading of one piece.

1. A piece contains everything that its task needs to know of the queue. It has a token for the queue where the broker
   has a listener of data alone; else the reader has the broker's URL and the login.
2. Reading a piece again gives the same rows in the same order, or fails; except for rows that compaction by key has
   removed.
3. A piece is read whole or its task fails. If rows are missing without an error in a range that existed when it was
   planned, that is a loss of data, unless compaction has removed them. With failOnDataLoss false they are skipped, and
   a line on stderr says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from warren.spark_bridge import nodes
from warren.spark_bridge.bridge_errors import DataLoss, Gone, NotFound
from warren.spark_bridge.columns import Chunk, Context, to_record_batches
from warren.spark_bridge.control import BrokerClient, DataToken, RangeCuts
from warren.spark_bridge.filters import Filters
from warren.spark_bridge.local_files import read_chunks_here
from warren.spark_bridge.nodes import in_turn
from warren.spark_bridge.options import ALWAYS, NEVER, OptionError, ReadOptions
from warren.spark_bridge.schema import FROM_PROPERTIES
from warren.spark_bridge.worker_output import say
from warren.spark_bridge.worker_pipe import end_quietly_when_nobody_reads

SMALLEST_PIECE_BYTES: Final = 1 << 20  # less is not worth a task, unless minPartitions asks for it


class Range(NamedTuple):
    """The offsets [first, end) of the stream, snapshot or queue of claims `name`; `id`: see `id_at` of ``lives``.

    Its rows are said to be of `queue` and `partition`. `in_files`: whether the broker may have some of it in files.
    `failures`, `limit`: how often a reader has failed with claims, and how often it may: see ``drain``.
    `nodes`: which are asked before the broker itself (``nodes.py``). `token`: with which a task reads it, and asks no
    other node; None: as the reader itself.
    """

    queue: str
    partition: int
    name: str
    id: str
    first: int
    end: int
    snapshot: str | None = None
    in_files: bool = True
    failures: int = 0
    limit: int | None = None
    nodes: tuple[str, ...] = ()
    token: DataToken | None = None


class Piece(InputPartition):
    """The range of one task."""

    value: Range


def cut(client: BrokerClient, options: ReadOptions, ranges: Iterable[Range]) -> list[Piece]:
    """Return the pieces of `ranges`, in their order; nothing for an empty range.

    As many as it takes for none to have more than targetPartitionBytes, and at least minPartitions, or one for each
    core when they are large enough. They are cut where the broker cuts best, and again where maxRecordsPerPartition
    asks for it.
    """
    ranges = [each for each in ranges if each.first < each.end]
    if not ranges:
        return []
    plans = [_cuts(client, each, options.partition_bytes) for each in ranges]
    wanted = options.min_partitions or os.cpu_count() or 1
    if sum(len(plan.bounds) - 1 for plan in plans) < wanted:
        total = sum(sum(plan.bytes) for plan in plans)
        smallest = SMALLEST_PIECE_BYTES if options.min_partitions is None else 1
        size = max(smallest, -(-total // wanted))
        if size < options.partition_bytes:
            # Only those that have more than that: the others would come out the same.
            plans = [
                _cuts(client, each, size) if sum(plan.bytes) > size else plan
                for each, plan in zip(ranges, plans, strict=True)
            ]
    pieces: list[Piece] = []
    for each, plan in zip(ranges, plans, strict=True):
        token = _maybe_token(client, options, each.name)
        others = plan.nodes if options.nodes != NEVER and each.in_files and each.snapshot is None else ()
        for first, end in pairwise(_with_rows(plan.bounds, options.max_partition_rows)):
            asked = in_turn(others, len(pieces)) if first < plan.sealed and token is None else ()
            pieces.append(Piece(each._replace(first=first, end=end, nodes=asked, token=token)))
    return pieces


def _maybe_token(client: BrokerClient, options: ReadOptions, name: str) -> DataToken | None:
    """Return the token for tasks to read `name`; None: they log in as the planner does.

    Raises:
        OptionError: they must not, and the broker has no listener for them.
    """
    if options.data_port == NEVER:
        return None
    found = client.maybe_token(name, options.token_ttl_s, options.data_url)
    if found is None and options.data_port == ALWAYS:
        raise OptionError(
            f"option dataPort: {client.url} has no listener of data alone for {name!r} (setting data or datas)"
        )
    return found


def client_of_task(options: ReadOptions, piece: Range) -> BrokerClient:
    """Return the client of a task, which is given back when it has read `piece`."""
    token = piece.token
    if token is None:
        return options.connection.client()
    return replace(options.connection, url=token.url, password="", password_file=None, token=token.token).client()


def maybe_left_of(client: BrokerClient, wanted: Range) -> Range | None:
    """Return the remaining part of a planned range, and report the missing one; None: nothing remains."""
    try:
        found = client.describe(wanted.name)
    except NotFound:
        say(f"{wanted.name} no longer exists")
        return None
    id, _, life = wanted.id.partition("@")
    if found.id != id:
        say(f"{wanted.name} was deleted and created again")
        return None
    end = wanted.end
    divergence = found.lives.maybe_divergence(wanted.name, life, end) if found.lives is not None and life else None
    if divergence is not None:
        say(divergence.text)
        end = min(end, divergence.offset or 0)
        wanted = wanted._replace(id=found.id_at(end))
    if found.first > wanted.first:
        say(f"the offsets from {wanted.first} to {found.first} of {wanted.name} are gone")
    left = wanted._replace(first=max(wanted.first, found.first), end=min(end, found.end))
    return left if left.first < left.end else None


def _cuts(client: BrokerClient, wanted: Range, piece_bytes: int) -> RangeCuts:
    """Return where the broker cuts a range."""
    plan = client.plan(
        wanted.name, wanted.first, wanted.end, wanted.id, piece_bytes=piece_bytes, snapshot=wanted.snapshot
    )
    if plan.bounds[0] != wanted.first or plan.bounds[-1] != wanted.end:
        raise DataLoss(
            f"{wanted.name}: asked for the offsets from {wanted.first} to {wanted.end}, "
            f"and the broker has a plan for those from {plan.bounds[0]} to {plan.bounds[-1]}"
        )
    return plan


def _with_rows(bounds: Sequence[int], most: int | None) -> Sequence[int]:
    """Return `bounds` with others between them, so that nothing has more than `most` rows."""
    if most is None:
        return bounds
    made = [bounds[0]]
    for first, end in pairwise(bounds):
        count = -(-(end - first) // most)
        made += [first + (end - first) * number // count for number in range(1, count + 1)]
    return made


def read(
    client: BrokerClient, options: ReadOptions, piece: Range, schema: pa.Schema, filters: Filters | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `piece` as batches of exactly `schema`; with `filters` only those that pass.

    Raises:
        DataLoss: some of the rows no longer exist.
    """
    end_quietly_when_nobody_reads()
    context = Context(piece.queue, piece.partition, piece.failures)
    found = 0
    with client:
        for chunk, first, end in _chunks(client, options, piece, schema):
            low, high = chunk.rows(first, end)
            found += end - first if chunk.is_compacted else high - low
            if filters is None:
                batches = to_record_batches(chunk, schema, context, first=first, end=end)
                yield from batches if not _may_give_up(piece) else _not_given_up(chunk, piece, batches, low, high)
            else:
                yield from filters.batches(chunk, schema, context, first=first, end=end)
    if context.undecodable_bodies:
        say(f"{piece.name}: {context.undecodable_bodies} bodies are not UTF-8, and null")
    missing = piece.end - piece.first - found
    if missing:
        what = f"{piece.name}: {missing} of the messages from offset {piece.first} to {piece.end} cannot be read"
        if options.fail_on_data_loss:
            raise DataLoss(f"{what}. With failOnDataLoss false they are skipped")
        say(what)


def _chunks(
    client: BrokerClient, options: ReadOptions, piece: Range, schema: pa.Schema
) -> Iterator[tuple[Chunk, int, int]]:
    """Yield the chunks that cover `piece`, each with the range of offsets to use.

    Rows that retention has removed meanwhile are left out, if that is allowed.
    """
    bodies = "body" in schema.names
    properties = not FROM_PROPERTIES.isdisjoint(schema.names) or _may_give_up(piece)

    def over_the_port(first: int, end: int) -> Iterator[Chunk]:
        return nodes.read(
            client,
            piece.nodes,
            piece.name,
            first,
            end,
            piece.id,
            bodies=bodies,
            properties=properties,
            snapshot=piece.snapshot,
        )

    def from_anywhere(first: int) -> Iterator[Chunk]:
        if options.local_files == NEVER or not piece.in_files or piece.snapshot is not None:
            return over_the_port(first, piece.end)
        return read_chunks_here(client, piece.name, first, piece.end, piece.id, options.local_files, over_the_port)

    at = piece.first
    while at < piece.end:
        try:
            for chunk in from_anywhere(at):
                if chunk.end > at:
                    yield chunk, at, min(chunk.end, piece.end)
                    at = chunk.end
            return
        except Gone:
            if options.fail_on_data_loss:
                raise
        at = max(at + 1, client.describe(piece.name).first)


def _may_give_up(piece: Range) -> bool:
    return piece.limit is not None and piece.failures > 0


def _not_given_up(
    chunk: Chunk, piece: Range, batches: Iterable[pa.RecordBatch], low: int, high: int
) -> Iterator[pa.RecordBatch]:
    """Yield those of the rows [low, high) that may be repeated; the broker gives up the others by the same rule."""
    assert piece.limit is not None
    mask = chunk.delivery_counts(low, high) + piece.failures <= piece.limit
    at = 0
    for batch in batches:
        kept = batch.filter(pa.array(mask[at : at + batch.num_rows]))
        at += batch.num_rows
        if kept.num_rows:
            yield kept
    if not mask.all():
        say(f"{piece.queue}: {int((~mask).sum())} messages have failed more than {piece.limit} times, and are left out")
