"""Streams as a streaming source: each message once, over crashes of anything, into a sink that takes a batch once.

1. The first `latestOffset` resolves where a query begins. The start is part of the end that it returns, which Spark
   writes down before it reads. `initialOffset` resolves nothing, as Spark calls it several times, and again after a
   crash.
2. `partitions` needs nothing but the two offsets, and `read` nothing but its piece: a batch that is repeated is the
   same batch. Driver and executors share no state.
3. The start that `latestOffset` is given is committed by Spark. The broker is told that the query has come this far as
   soon as it is known that the broker has that history. Spark calls `commit` late or, for the last batch, never; it
   does nothing here.
4. With AvailableNow no batch goes beyond where the streams ended when the first one was planned. Streams that
   appear later wait for the next run.
5. Messages that are gone, a stream that was deleted and created again, and a broker with another history than the one
   that was read (``lives``) end the query. With failOnDataLoss false it continues: after the messages that are gone, or
   where the histories have diverged. The offset counts the skipped messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from warren.spark_bridge.bridge_errors import AnotherQueue, BridgeError, DataLoss, Diverged, Gone, NotFound
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.limits import shares, within_bytes
from warren.spark_bridge.lives import Lives, Remembered, id_at
from warren.spark_bridge.offsets import Position, begin, document, is_sentinel, positions_of, sentinel
from warren.spark_bridge.options import DRAIN, LATEST, NEXT, OptionError, ReadOptions
from warren.spark_bridge.pieces import Range, client_of_task, cut, maybe_left_of, read
from warren.spark_bridge.spark_types import to_arrow
from warren.spark_bridge.topology import Missing, Part, another_queue, is_asked_for, look, offset_of
from warren.spark_bridge.worker_output import say

# Spark asks an idle source a hundred times a second.
IDLE_PAUSE_S: Final = 0.05
IDLE_PAUSES: Final = 4  # a look at many partitions takes long: it is made after so many times that
IDLE_PAUSE_MAX_S: Final = 5.0
_HINT: Final = "Set failOnDataLoss=false to continue after the gap"

Offset = dict[str, Any]
Clock = Callable[[], float]
Sleep = Callable[[float], None]


class Pace:
    """Pauses after an empty answer, so that the broker is not asked again at once."""

    def __init__(self, clock: Clock, sleep: Sleep) -> None:
        self.clock = clock
        self._sleep = sleep
        self._idle_until: float | None = None
        self._asked_at = 0.0

    def wait(self) -> None:
        """Wait, if the last question was answered with nothing just now."""
        now = self.clock()
        if self._idle_until is not None and now < self._idle_until:
            self._sleep(self._idle_until - now)
        self._asked_at = self.clock()

    def answered(self, *, something: bool) -> None:
        """Remember whether the answer had anything."""
        now = self.clock()
        pause_s = min(max(IDLE_PAUSE_S, IDLE_PAUSES * (now - self._asked_at)), IDLE_PAUSE_MAX_S)
        self._idle_until = None if something else now + pause_s


class QueryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The common part of the readers that Spark asks for one batch after the other."""

    def __init__(
        self, options: ReadOptions, schema: StructType, *, clock: Clock = time.monotonic, sleep: Sleep = time.sleep
    ) -> None:
        self.options = options
        self.schema = schema
        self._pace = Pace(clock, sleep)
        self._client: BrokerClient | None = None
        self._is_available_now = False
        self._remembered = Remembered("the checkpoint", say)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "options": self.options.for_tasks(), "_client": None}

    @property
    def client(self) -> BrokerClient:
        """Return the client of this process."""
        if self._client is None:
            self._client = self.options.connection.client()
        return self._client

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return maxOffsetsPerTrigger; Spark knows one limit only, the others are kept in `latestOffset`."""
        return ReadMaxRows(self.options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query where its sources end; the next `latestOffset` determines that end."""
        self._is_available_now = True

    def commit(self, end: Offset) -> None:
        """Do nothing; see the header."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece, on an executor."""
        piece = partition.value
        return read(client_of_task(self.options, piece), self.options, piece, to_arrow(self.schema))

    def _cut(self, ranges: list[Range], hint: str) -> Sequence[InputPartition]:
        """Return the pieces of `ranges`.

        Raises:
            DataLoss: messages of them are gone, and failOnDataLoss is not false; `hint` ends the reason.
        """
        if not self.options.fail_on_data_loss:
            ranges = [left for each in ranges if (left := maybe_left_of(self.client, each))]
        try:
            return cut(self.client, self.options, ranges)
        except (AnotherQueue, Diverged, Gone, NotFound) as error:
            raise DataLoss(f"{error}. {hint}") from None


class StreamReader(QueryReader):
    """Reads streams, on from offsets that Spark remembers."""

    def __init__(
        self, options: ReadOptions, schema: StructType, *, clock: Clock = time.monotonic, sleep: Sleep = time.sleep
    ) -> None:
        super().__init__(options, schema, clock=clock, sleep=sleep)
        self._targets: dict[str, int] | None = None  # of AvailableNow
        self._ends: dict[str, Position] = {}  # as they were seen last
        self._told: dict[str, int] = {}  # how far the broker knows that we are
        self._lives: dict[str, Lives | None] = {}  # of the streams, as they were seen last
        self._last_batch_at: float | None = None
        self._turn = 0

    # --- what Spark asks on the driver, always the same reader -----------------------------------------------------

    def initialOffset(self) -> Offset:
        """Return the offset before the first batch: it has only the wanted beginning of the query."""
        return sentinel(str(self.options.start or LATEST))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return where the next batch ends; `start` when there is nothing to read."""
        self._pace.wait()
        before = positions_of(start)
        positions, ends = self._seen(before, starting=is_sentinel(start))
        self._report({name: position for name, position in positions.items() if name in before})
        for name, rows in self._rows(positions, ends, limit).items():
            if rows:
                positions[name] = self._at(name, positions[name], positions[name].next + rows)
        self._turn += 1
        is_new = is_sentinel(start) or bare(positions) != bare(before)
        self._pace.answered(something=is_new)
        return document(positions) if is_new else start

    def reportLatestOffset(self) -> Offset | None:
        """Return the ends of the streams at the last look: they show how far the query is behind."""
        return document(self._ends) if self._ends else None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the pieces between two offsets."""
        before = positions_of(start)
        ranges = [
            Range(
                position.queue or name,
                position.partition,
                name,
                id_at(position.id, position.life),
                begin(name, position, before.get(name)),
                position.next,
            )
            for name, position in positions_of(end).items()
        ]
        return self._cut([each for each in ranges if each.first < each.end], _HINT)

    # --- what there is -----------------------------------------------------------------------------------------------

    def _seen(self, before: Mapping[str, Position], *, starting: bool) -> tuple[dict[str, Position], dict[str, int]]:
        """Return the start of each stream, and its end; with a base when the start is not where the query left it."""
        positions: dict[str, Position] = {}
        ends: dict[str, int] = {}
        for part in look(self.client, self.options):
            if isinstance(part, Missing):
                if starting or (part.queue not in before and self.options.fail_on_data_loss):
                    raise OptionError(f"queue {part.queue!r} cannot be read: {part.reason}")
                continue
            if not part.is_stream:
                raise OptionError(_no_stream(part))
            if self._targets is not None and part.name not in self._targets:
                continue
            self._lives[part.name] = part.found.lives
            positions[part.name] = self._position(part, before.get(part.name), starting=starting)
            ends[part.name] = part.found.end
        if before and not any(is_asked_for(self.options, each.queue or name) for name, each in before.items()):
            raise OptionError(another_queue(sorted(before)))
        for name in before:
            if name not in positions:
                self._gone(name, before[name])
        self._ends = {
            name: position._replace(next=ends[name], base=None, lost=0, life=None)
            for name, position in positions.items()
        }
        if self._is_available_now:
            if self._targets is None:
                self._targets = dict(ends)
            ends = {name: min(end, self._targets[name]) for name, end in ends.items()}
        return positions, ends

    def _position(self, part: Part, before: Position | None, *, starting: bool) -> Position:
        first, end, incarnation = part.found.first, part.found.end, part.found.id
        if before is None:
            base = first
            if starting:
                given = self.options.start
                place = NEXT if given is None else given.of(part.queue, part.partition)
                base = offset_of(
                    self.client, part, place, self.options, "startingOffsets" if given is None else given.option
                )
            queue = part.queue if part.is_partition else None
            begun = Position(incarnation, base, base=base, queue=queue, partition=part.partition)
            return self._at(part.name, begun, base)
        position = before._replace(base=None)
        if before.id != incarnation:
            self._lost(f"stream {part.name!r} was deleted and created again; it was read up to offset {before.next}")
            return self._at(part.name, position._replace(id=incarnation, base=first), first)
        divergence = self._remembered.maybe_divergence(part.name, part.found.lives, before.life, before.next)
        if divergence is not None:
            self._lost(divergence.text)
            base = max(first, divergence.offset or 0)
            return self._at(part.name, position._replace(base=base), base)
        if before.next < first:
            self._lost(f"the offsets from {before.next} to {first} of stream {part.name!r} are gone, by its retention")
            position = position._replace(base=first, lost=before.lost + first - before.next)
            return self._at(part.name, position, first)
        if before.next > end:
            self._lost(f"stream {part.name!r} ends at offset {end}, and had been read up to {before.next}")
            return self._at(part.name, position._replace(base=end), end)
        return position

    def _at(self, name: str, position: Position, offset: int) -> Position:
        """Return the position at `offset`, with the life of the broker that wrote the offset before it."""
        lives = self._lives[name]
        return position._replace(next=offset, life=None if lives is None else lives.at(offset))

    def _gone(self, name: str, before: Position) -> None:
        """Decide about a stream that was read before and no longer exists."""
        if self._targets is not None and name not in self._targets:
            return
        queue = before.queue or name
        if not is_asked_for(self.options, queue):
            say(f"stream {name!r} is no longer subscribed to; it was read up to offset {before.next}")
            return
        self._lost(f"stream {name!r} no longer exists; it had been read up to offset {before.next}")

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{what}. {_HINT}")
        say(what)

    # --- how much of it -----------------------------------------------------------------------------------------------

    def _rows(self, positions: Mapping[str, Position], ends: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return how many rows of each stream the next batch has."""
        waiting = {name: max(0, ends[name] - position.next) for name, position in positions.items()}
        if isinstance(limit, ReadAllAvailable):
            return waiting
        if self._is_too_little(sum(waiting.values())):
            return {}
        given = shares(waiting, limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.max_rows, self._turn)
        most_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.max_bytes
        if most_bytes is None:
            return given

        def plan(name: str, rows: int, size: int) -> tuple[int, int]:
            first = positions[name].next
            try:
                found = self.client.plan(name, first, first + rows, positions[name].id, max_bytes=size)
            except (AnotherQueue, Diverged, Gone, NotFound) as error:  # just now: the next look decides about that
                say(str(error))
                return 0, 0
            return found.bounds[-1] - first, sum(found.bytes)

        return within_bytes(given, most_bytes, plan, self._turn)

    def _is_too_little(self, rows: int) -> bool:
        """Tell whether minOffsetsPerTrigger delays the batch, and maxTriggerDelay does not end that."""
        if self.options.min_rows is None or self._is_available_now:
            return False
        now = self._pace.clock()
        is_late = self._last_batch_at is None or now - self._last_batch_at >= self.options.max_delay_s
        if rows < self.options.min_rows and not is_late:
            return True
        self._last_batch_at = now
        return False

    def _report(self, before: Mapping[str, Position]) -> None:
        """Report the query's progress to the broker; a failure does not stop the query."""
        name = self.options.consumer_name
        if name is None or not self.options.store_offsets:
            return
        for stream, position in before.items():
            if self._told.get(stream) == position.next:
                continue
            self._told[stream] = position.next
            try:
                self.client.store_offset(stream, name, position.next, position.life)
            except BridgeError as error:
                say(f"the broker does not keep how far {name!r} is: {error}")


def bare(positions: Mapping[str, Position]) -> dict[str, Position]:
    """Return `positions` without their bases."""
    return {name: position._replace(base=None) for name, position in positions.items()}


def _no_stream(part: Part) -> str:
    return (
        f"queue {part.name!r} is {part.found.type}, and its messages are gone once they are acknowledged: "
        f'to empty it say so with option("mode", "{DRAIN}")'
    )
