"""Queues emptied into a table: each message claimed in the broker's log first, and acknowledged once Spark has it safe.

    latestOffset(start = k)   the broker acks all claims below k for good, then claims what comes next: [k, e)
    partitions, read          claims are read like a stream, as often as it takes
    the next latestOffset     is given e once Spark has committed the batch up to e

1. The start that `latestOffset` is given is committed by Spark; `commit` comes late, or for the last batch never, and
   does nothing here.
2. A claim that the driver did not know of when it died is still there after its restart: the query adopts it. So no
   message is claimed twice, and no claim is left over.
3. One query has a session, that is a queue and a consumerName. A query opens it first, which shuts out its previous
   owner: that one fails at its next step, before it can claim or acknowledge anything.
4. With AvailableNow only messages from before the first plan are claimed, so the query ends while producers continue.
5. With failedBatches count a batch that a previous driver began, and that Spark repeats, counts as a failed delivery of
   its messages. Messages that fail more often than their queue allows are left out of the batch, and the broker gives
   them up when it acknowledges the batch. The answer of `fail` decides both.
6. A checkpoint that ends before the acknowledged claims is an older copy: the query fails whatever failOnDataLoss says.
   Its batches would have numbers that were used, and sinks skip those. The broker can tell that from released claims.
7. With claimTtl the broker takes claims back when it hears nothing of the session. While the query runs it marks the
   session, however long a batch takes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
)
from pyspark.sql.types import StructType

from warren.spark_bridge.bridge_errors import DataLoss
from warren.spark_bridge.control import DrainSession
from warren.spark_bridge.heartbeat import Heartbeat
from warren.spark_bridge.lives import id_at
from warren.spark_bridge.loads import maybe_load_of, owner_of
from warren.spark_bridge.offsets import CLAIMS, Position, begin, document, is_sentinel, positions_of, sentinel
from warren.spark_bridge.options import DRAIN, OptionError, ReadOptions
from warren.spark_bridge.pieces import Range
from warren.spark_bridge.stream import Clock, Offset, QueryReader, Sleep, bare
from warren.spark_bridge.topology import another_queue
from warren.spark_bridge.worker_output import say

_ALL_ROWS: Final = (1 << 31) - 1
_RESTORED: Final = (
    "A sink that knows batches by their numbers, as Spark's files are, skips what comes next, and it would be "
    "acknowledged: so failOnDataLoss=false does not continue here. Start the query with a new checkpoint and a new "
    "output: it begins with what is not acknowledged"
)


class DrainReader(QueryReader):
    """Empties queues."""

    def __init__(
        self, options: ReadOptions, schema: StructType, *, clock: Clock = time.monotonic, sleep: Sleep = time.sleep
    ) -> None:
        assert options.consumer_name is not None
        super().__init__(options, schema, clock=clock, sleep=sleep)
        self.name = options.consumer_name
        self._sessions: dict[str, DrainSession] = {}
        self._heartbeat: Heartbeat | None = None
        self._marks: dict[str, int] = {}
        self._compared: set[str] = set()  # queues whose history was compared with that of the checkpoint
        self._claimed: set[str] = set()  # queues of which this driver has claimed something, or adopted it

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_heartbeat": None}

    # --- what Spark asks on the driver, always the same reader -----------------------------------------------------

    def initialOffset(self) -> Offset:
        """Return the offset before the first batch."""
        return sentinel(DRAIN)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Ack claims below `start`, claim the next ones, and return their end; `start`: nothing is ready."""
        self._pace.wait()
        before = positions_of(start, CLAIMS)
        if before and not before.keys() & set(self.options.queues):
            raise OptionError(another_queue(sorted(before)))
        positions: dict[str, Position] = {}
        rows = None if isinstance(limit, ReadAllAvailable) else self.options.max_rows
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        sizes = None if isinstance(limit, ReadAllAvailable) else self.options.max_bytes
        for number, queue in enumerate(self.options.queues):
            left = len(self.options.queues) - number
            position = self._position(queue, before.get(queue))
            most = _ALL_ROWS if rows is None else max(1, rows // left)
            if rows is not None and rows < 1:
                positions[queue] = position
                continue
            claimed = self.client.claim(
                queue,
                self.name,
                self._session(queue).epoch,
                position.next,
                most,
                max_bytes=None if sizes is None else max(1, sizes // len(self.options.queues)),
                until=self._mark(queue),
                life=position.life,
            )
            self._claimed.add(queue)
            if rows is not None:
                rows -= claimed.end - claimed.first
            if claimed.end != position.next:
                position = position._replace(next=claimed.end, life=claimed.life)
            positions[queue] = position
        for queue in before:
            if queue not in positions:
                say(f"queue {queue!r} is no longer drained; claims from offset {before[queue].next} on may be left")
        is_new = is_sentinel(start) or bare(positions) != bare(before)
        self._pace.answered(something=is_new)
        return document(positions, CLAIMS) if is_new else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the pieces between two offsets."""
        before = positions_of(start, CLAIMS)
        ranges = []
        for queue, position in positions_of(end, CLAIMS).items():
            first = begin(queue, position, before.get(queue))
            if first < position.next:
                session = self._session(queue)  # taken over before anything is read again
                claims = position.claims or session.queue
                id = id_at(position.id, position.life)
                wanted = Range(queue, 0, claims, id, first, position.next, in_files=False)
                if self.options.counts_failures and queue not in self._claimed:
                    # Planned by a driver that is gone: this one has not asked yet where a batch is to end.
                    failed = self.client.fail(queue, self.name, session.epoch, first, position.next)
                    wanted = wanted._replace(failures=failed.times, limit=failed.limit)
                ranges.append(wanted)
        return self._cut(ranges, "The session was deleted or released, or the checkpoint is an old copy")

    def stop(self) -> None:
        """Stop renewing the leases of the claims."""
        if self._heartbeat is not None:
            self._heartbeat.stop()

    # --- sessions --------------------------------------------------------------------------------------------------

    def _session(self, queue: str) -> DrainSession:
        """Return the session of a queue; the first time it is opened, or taken over."""
        found = self._sessions.get(queue)
        if found is None:
            lease_s = self.options.claim_ttl_s
            found = self.client.open_drain(queue, self.name, owner_of(maybe_load_of(self.schema)), lease_s=lease_s)
            self._sessions[queue] = found
            if lease_s is not None:
                if self._heartbeat is None:
                    self._heartbeat = Heartbeat(self.options.connection.client, self.name, lease_s)
                self._heartbeat.keep(queue, found.epoch)
        return found

    def _mark(self, queue: str) -> int | None:
        if not self._is_available_now:
            return None
        if queue not in self._marks:
            self._marks[queue] = self.client.mark(queue, self.name, self._session(queue).epoch)
        return self._marks[queue]

    def _position(self, queue: str, before: Position | None) -> Position:
        """Return the offset at which to claim from a queue, with a base when it is not where the query left it."""
        session = self._session(queue)
        # Once: the session has the lives of when it was opened, and what this query has claimed since is newer. The
        # broker compares with each claim.
        is_compared = queue in self._compared
        self._compared.add(queue)
        base = session.first
        lives = session.lives
        life = None if lives is None else lives.at(base)
        begun = Position(session.id, base, base=base, claims=session.queue, life=life)
        if before is None:
            return begun
        if before.id != session.id:
            self._lost(f"queue {queue!r}, or its session {self.name!r}, was deleted and created again")
            return begun
        if not is_compared:
            divergence = self._remembered.maybe_divergence(queue, lives, before.life, before.next)
            if divergence is not None:
                self._lost(divergence.text)
                return begun
        if session.acked is not None and before.next < session.acked:
            # Also with failOnDataLoss false: sinks know batches by their numbers, and would skip the next ones.
            raise DataLoss(
                f"of queue {queue!r} claims up to {session.acked} were acknowledged in session {self.name!r}, "
                f"and the checkpoint ends at {before.next}: it is an older copy. {_RESTORED}"
            )
        if before.next < session.first:
            self._lost(
                f"of queue {queue!r} the claims from {before.next} to {session.first} of session {self.name!r} were "
                "released, and come again"
            )
            return begun._replace(lost=before.lost + session.first - before.next)
        if not is_compared and (count := session.coming_again(before.base or 0, before.next)):
            self._lost(
                f"of queue {queue!r} {count} claims below {session.first} of session {self.name!r} were released after "
                "the query had committed them, and come again"
            )
        return before._replace(base=None)

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{what}. Set failOnDataLoss=false to continue with what is there")
        say(what)
