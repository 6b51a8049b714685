"""Rows made by the executors of a Spark cluster: each reads a part of a plan and writes files, the driver commits them.

    driver      plan, cut it into pieces          the marks of the table say where it begins
    executor    read a piece, decode it, write    files, in no state of the table yet; their entries go to the driver
    driver      commit refused messages, then     as of any engine (``follower.py``)
                the files, with the marks

1. A piece has the limits of a step of `Here`, and is made by the same code, for the table at the start of the step.
2. A piece that finds a column is not written, and ends the result for its stream: `Here` makes it in the next step, and
   executors make the following ones again. A piece that finds no column does not affect others (engine (2)).
3. Only the result of a piece that the driver received counts, once. Tries that failed, were lost, or were one of two
   may have written files; those are not in any commit, and are removed like all orphans.
4. Executors do not use a catalogue and do not commit. Where the broker has a listener of data alone they have a token
   for the stream, else they log in as the driver does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from warren.lake.decoder import Decoder
from warren.lake.engine import Made
from warren.lake.marks import Place
from warren.lake.options import Limits
from warren.lake.ranges import Range, rows_of
from warren.lake.source import Plan
from warren.lake.table import Table, Writer, Written
from warren.spark_bridge.bridge_errors import DamagedChunk, DataLoss, NotAllowed, NotFound, UsageError
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.nodes import in_turn

SMALLEST_BYTES: Final = 16 << 20  # less is not worth a task, and a file
WAVES: Final = 2  # a step has this many pieces for each task that can run at a time
TOKEN_S: Final = 3600
# Errors that are the same on any executor, however often the task is repeated.
_SAID: Final = (DataLoss, DamagedChunk, NotAllowed, NotFound, UsageError, ModuleNotFoundError)


class Piece(NamedTuple):
    """The range of a task, and the client for it."""

    range: Range
    client: BrokerClient


@dataclass(frozen=True)
class PieceMade:
    """The result of a task. `finds`: nothing was written, as columns were found; `error`: an error for good."""

    rows: int = 0
    refused: int = 0
    lost: int = 0
    bytes: int = 0
    files: Sequence[Written] = ()
    refused_files: Sequence[Written] = ()
    finds: bool = False
    error: Exception | None = None


@dataclass(frozen=True)
class Work:
    """The common part of all tasks of a step; called with the number of a piece. It can be pickled."""

    decoder: Decoder
    columns: pa.Schema
    skip_lost: bool
    rows: Writer
    refused: Writer | None
    pieces: tuple[Piece, ...]

    def __call__(self, number: int) -> PieceMade:
        """Make a piece.

        Raises:
            Exception: an error that a repetition may solve.
        """
        try:
            return self._made(self.pieces[number])
        except _SAID as error:
            return PieceMade(error=error)

    def _made(self, piece: Piece) -> PieceMade:
        lost = 0

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal lost
            with piece.client as client:
                for rows, passed_over in rows_of(client, piece.range, self.decoder.reading(), skip_lost=self.skip_lost):
                    lost += passed_over
                    yield from rows

        found = self.decoder.decode(self.columns, batches())
        if found.changes:
            return PieceMade(finds=True)
        aside = () if self.refused is None else self.refused.write(found.refused)
        files = self.rows.write(found.rows)
        return PieceMade(found.rows.num_rows, found.refused.num_rows, lost, found.rows.nbytes, files, aside)


class Cluster(Protocol):
    """A cluster that runs tasks. `slots`: how many at a time."""

    @property
    def slots(self) -> int: ...

    def run(self, work: Work) -> list[PieceMade]:
        """Return the result for each piece.

        Raises:
            BridgeError: a task has failed as often as it may.
        """


class SparkEngine:
    """Has a cluster make the rows of plans. `limits`: of a piece, which is in the memory of a task."""

    def __init__(
        self, client: BrokerClient, cluster: Cluster, decoder: Decoder, limits: Limits, *, skip_lost: bool
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._decoder = decoder
        self._piece = limits
        self._skip_lost = skip_lost

    @property
    def limits(self) -> Limits:
        """How much a step takes."""
        pieces = WAVES * self._cluster.slots
        return Limits(self._piece.rows * pieces, self._piece.bytes * pieces)

    def maybe_make(self, plan: Plan, table: Table, refused: Table | None) -> Made | None:
        pieces = self._cut(plan.ranges)
        writer = table.writer()
        aside = None if refused is None else refused.writer()
        work = Work(self._decoder, table.columns(), self._skip_lost, writer, aside, pieces)
        made = self._cluster.run(work) if pieces else []
        for each in made:
            if isinstance(each.error, ModuleNotFoundError):
                raise UsageError(f"executors have no {each.error.name}: pip install './warren[lake]' there")
            if each.error is not None:
                raise each.error
        taken = _taken(pieces, made)
        left = [each for number, each in enumerate(made) if number not in taken]
        writer.delete([file for each in left for file in each.files])
        if aside is not None:
            aside.delete([file for each in left for file in each.refused_files])
        if pieces and not taken:
            return None
        kept = [made[number] for number in taken]
        files = [file for each in kept for file in each.files]
        refused_files = [file for each in kept for file in each.refused_files]
        after: dict[str, Place] = dict(plan.after)
        ends = {each.name: each.first for each in plan.ranges}
        ends |= {pieces[number].range.name: pieces[number].range.end for number in taken}
        for name, end in ends.items():
            if end != after[name].next:  # the life there is not known: that of the end may be later
                after[name] = after[name]._replace(next=end, life=0)

        def append_refused(marks: Mapping[str, int]) -> None:
            assert refused is not None, "nothing is refused by a decoder that does not say so"
            refused.add(refused_files, marks)

        return Made(
            covered=sum(pieces[number].range.end - pieces[number].range.first for number in taken),
            after=after,
            rows=sum(each.rows for each in kept),
            refused=sum(each.refused for each in kept),
            lost=sum(each.lost for each in kept),
            bytes=sum(each.bytes for each in kept),
            append=lambda marks: table.add(files, marks),
            append_refused=append_refused,
        )

    def _cut(self, ranges: Sequence[Range]) -> tuple[Piece, ...]:
        """Return the pieces of a plan: as many as there are slots, if they are not too small, or more."""
        plans = [
            self._client.plan(each.name, each.first, each.end, each.id, piece_bytes=SMALLEST_BYTES) for each in ranges
        ]
        total = sum(sum(plan.bytes) for plan in plans)
        size = min(self._piece.bytes, max(SMALLEST_BYTES, -(-total // self._cluster.slots)))
        pieces: list[Piece] = []
        for each, plan in zip(ranges, plans, strict=True):
            if plan.bounds[0] != each.first or plan.bounds[-1] != each.end:
                raise DataLoss(f"{each.name}: the offsets from {each.first} to {each.end} cannot be cut")
            token = self._client.maybe_token(each.name, TOKEN_S)
            client = self._client if token is None else self._client.with_token(token)
            for first, end in pairwise(joined(plan.bounds, plan.bytes, Limits(self._piece.rows, size))):
                nodes = in_turn(plan.nodes, len(pieces)) if token is None and first < plan.sealed else ()
                pieces.append(Piece(each._replace(first=first, end=end, nodes=nodes), client))
        return tuple(pieces)


def joined(bounds: Sequence[int], sizes: Sequence[int], limits: Limits) -> list[int]:
    """Return `bounds` with as few as possible between the first and the last, so that no piece is beyond `limits`.

    `sizes`: the bytes between them. A range with more bytes than that is left as it is, one with more rows is cut.
    """
    made = [bounds[0]]
    size = 0
    for (first, end), more in zip(pairwise(bounds), sizes, strict=True):
        if first > made[-1] and (size + more > limits.bytes or end - made[-1] > limits.rows):
            made.append(first)
            size = 0
        size += more
        while end - made[-1] > limits.rows:
            made.append(made[-1] + limits.rows)
            size = 0
    return [*made, bounds[-1]] if bounds[-1] > made[-1] else made


def _taken(pieces: Sequence[Piece], made: Sequence[PieceMade]) -> list[int]:
    """Return which pieces count: of each stream those before the first that finds columns."""
    ended: set[str] = set()
    taken = []
    for number, (piece, each) in enumerate(zip(pieces, made, strict=True)):
        if each.finds:
            ended.add(piece.range.name)
        elif piece.range.name not in ended:
            taken.append(number)
    return taken
