"""A broker in memory with the answers of `BrokerClient`, for readers that are tested without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, Self, cast

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from unit.spark_bridge.chunks import Sent, chunk_of
from warren.spark_bridge.bridge_errors import AnotherQueue, Diverged, Fenced, Gone, NoDrain, NotFound
from warren.spark_bridge.columns import Chunk, read_chunks
from warren.spark_bridge.control import (
    BrokerClient,
    Claim,
    DataToken,
    Description,
    DrainSession,
    Failed,
    RangeCuts,
    SealedFiles,
    Snapshot,
)
from warren.spark_bridge.lives import Lives
from warren.spark_bridge.options import BrokerAddress, ReadOptions, read_options
from warren.spark_bridge.pieces import Range

CHUNK_ROWS = 4
ROW_BYTES = 100


@dataclass
class MemoryQueue:
    """A queue or stream: `messages` from offset `first` on; `partitions` make it a super stream."""

    type: str = "stream"
    id: str = "i1"
    first: int = 0
    messages: list[Sent] = field(default_factory=list)
    partitions: tuple[str, ...] | None = None
    lives: list[tuple[str, int]] | None = None
    acked: int = 0  # of claims

    @property
    def end(self) -> int:
        return self.first + len(self.messages)

    def add(self, count: int, **fields: Any) -> None:
        """Append messages whose bodies are their offsets."""
        for _ in range(count):
            self.messages.append(Sent(self.end, b"%d" % self.end, **fields))

    def told_lives(self) -> Lives | None:
        """Return its lives as a broker tells them."""
        return None if self.lives is None else Lives(self.lives, self.end)

    def trim(self, first: int) -> None:
        """Forget the messages below `first`."""
        del self.messages[: first - self.first]
        self.first = first


class Drain(NamedTuple):
    """A session: its claimed messages are in a queue of their own."""

    epoch: int
    claims: MemoryQueue


class MemoryBroker(BrokerClient):
    """Its queues are in `queues`; `asked` has the calls there were."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[str, MemoryQueue] = {}
        self.sessions: dict[str, Drain] = {}
        self.groups: dict[tuple[str, str], int] = {}
        self.asked: list[str] = []
        self.failures: dict[int, int] = {}  # by the first offset of a batch
        self.limit: int | None = None
        self.holes = 0  # at the end of a snapshot, as of one that is begun and has fewer rows than it could have
        self.life = ""  # of this broker, which its first claim of a session enters; empty: it tells none

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.append("close")

    def stream(self, name: str = "orders", count: int = 0, **fields: Any) -> MemoryQueue:
        """Make a stream."""
        queue = MemoryQueue(**fields)
        queue.add(count)
        self.queues[name] = queue
        return queue

    def queue(self, name: str, count: int) -> MemoryQueue:
        """Make a classic queue."""
        return self.stream(name, count, type="classic")

    def _there(self, name: str, id: str | None = None, end: int = 0) -> MemoryQueue:
        found = self.queues.get(name)
        if found is None:
            raise NotFound(f"{name}: Object not found", 404)
        queue_id, _, life = (id or found.id).partition("@")
        if found.id != queue_id:
            raise AnotherQueue(f"{name}: another queue", 409)
        self._check_life(found, name, life or None, end)
        return found

    def _check_life(self, queue: MemoryQueue, name: str, life: str | None, offset: int) -> None:
        lives = queue.told_lives()
        divergence = None if lives is None or life is None else lives.maybe_divergence(name, life, offset)
        if divergence is not None:
            raise Diverged(divergence.text, 409, "diverged")

    def maybe_token(self, queue: str, ttl_s: int, url: str | None = None) -> DataToken | None:
        return None

    def describe(self, queue: str) -> Description:
        self.asked.append(f"describe {queue}")
        found = self._there(queue)
        count = len(found.messages)
        return Description(
            vhost="/",
            name=queue,
            type=found.type,
            id=found.id,
            first=found.first,
            end=found.end,
            bytes=ROW_BYTES * count,
            messages=count,
            partitions=found.partitions,
            lives=found.told_lives(),
        )

    def descriptions(self) -> list[Description]:
        return [self.describe(name) for name in self.queues]

    def plan(
        self,
        queue: str,
        first: int,
        end: int,
        id: str,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        piece_bytes: int = 64 << 20,
        snapshot: str | None = None,
    ) -> RangeCuts:
        self.asked.append(f"plan {queue} {first} {end}")
        found = self._there(snapshot or queue, id, end)
        if first < found.first:
            raise Gone(f"the oldest offset is {found.first}", 410)
        assert end <= found.end and max_rows is None
        if max_bytes is not None:
            end = min(end, first + max(1, max_bytes // ROW_BYTES))
        step = max(1, piece_bytes // ROW_BYTES // CHUNK_ROWS) * CHUNK_ROWS
        bounds = (*range(first, end, step), end) if first < end else (first,)
        sizes = tuple(ROW_BYTES * (after - before) for before, after in pairwise(bounds))
        return RangeCuts(id, found.first, found.end, bounds, sizes)

    def read(
        self,
        queue: str,
        first: int,
        end: int,
        id: str,
        *,
        bodies: bool = True,
        properties: bool = True,
        snapshot: str | None = None,
    ) -> Iterator[Chunk]:
        self.asked.append(f"read {queue} {first} {end} {'b' * bodies}{'p' * properties}")
        holes = self.holes if snapshot is not None else 0
        last = min(end, self._there(snapshot or queue).end - holes)
        for at in range(first // CHUNK_ROWS * CHUNK_ROWS, last, CHUNK_ROWS):
            found = self._there(snapshot or queue, id, end)
            if max(at, first) < found.first:
                raise Gone(f"the oldest offset is {found.first}", 410)
            low, high = max(at, found.first), min(at + CHUNK_ROWS, found.end - holes)
            there = [sent for sent in found.messages if low <= sent.offset < high]
            yield from read_chunks(chunk_of(there, low, high, bodies=bodies, properties=properties))
        if last < end:
            yield from read_chunks(chunk_of([], max(first, last), end, compacted=True))

    def files(self, queue: str, first: int, end: int, id: str) -> SealedFiles:
        return SealedFiles("", "/nowhere", {}, ())

    def resolve(self, queue: str, offset: int | str | None = None, *, time_ms: int | None = None) -> int:
        found = self._there(queue)
        if time_ms is not None:
            return next((sent.offset for sent in found.messages if sent.time_ms >= time_ms), found.end)
        return {"first": found.first, "last": max(found.first, found.end - 1), "next": found.end}[str(offset)]

    def store_offset(self, queue: str, group: str, offset: int, life: str | None = None) -> None:
        self._check_life(self._there(queue), queue, life, offset)
        self.groups[queue, group] = offset

    def make_snapshot(self, queue: str, *, ttl_s: int = 3600, unacked: bool = False) -> Snapshot:
        self.asked.append(f"snapshot {queue} {ttl_s} {unacked}")
        found = self._there(queue)
        name = f"snapshot-{len(self.queues)}"
        messages = [sent._replace(offset=number) for number, sent in enumerate(found.messages)]
        messages += [Sent(found.end + number) for number in range(self.holes)]
        self.queues[name] = MemoryQueue("snapshot", found.id, 0, messages)
        return Snapshot(name, found.id, 0, len(messages), ROW_BYTES * len(messages), None)

    # --- drains ------------------------------------------------------------------------------------------------------

    def open_drain(
        self,
        queue: str,
        name: str,
        owner: str = "",
        *,
        lease_s: int | None = None,
        before: tuple[int, str] | None = None,
    ) -> DrainSession:
        self.asked.append(f"open {queue} {name}" + (f" for {lease_s} s" if lease_s else ""))
        self._there(queue)
        claims = f"amq.drain/{queue}/{name}"
        open_before = self.sessions.get(claims)
        if open_before is None:
            if before is not None and before[1] != self.life:
                raise Diverged("the data were restored from a backup", 409, "diverged")
            self.queues[claims] = MemoryQueue("classic", "c1", lives=[] if self.life else None)
        drain = Drain(1 if open_before is None else open_before.epoch + 1, self.queues[claims])
        self.sessions[claims] = drain
        there = drain.claims
        life = self.life or None
        return DrainSession(
            drain.epoch, claims, there.id, there.first, there.end, there.told_lives(), there.acked, life
        )

    def _claims(self, queue: str, name: str, epoch: int) -> MemoryQueue:
        drain = self.sessions.get(f"amq.drain/{queue}/{name}")
        if drain is None:
            raise NoDrain(f"nobody has opened drain {name!r}", 404, "no_drain")
        if drain.epoch != epoch:
            raise Fenced("somebody else has opened it", 409, "fenced")
        return drain.claims

    def claim(
        self,
        queue: str,
        name: str,
        epoch: int,
        after: int,
        max_rows: int,
        *,
        max_bytes: int | None = None,
        until: int | None = None,
        life: str | None = None,
    ) -> Claim:
        self.asked.append(f"claim {queue} {after} {max_rows} {max_bytes}")
        claims = self._claims(queue, name, epoch)
        self._check_life(claims, queue, life, after)
        if after > claims.first:
            claims.trim(after)
            claims.acked = after
        source = self._there(queue)
        if claims.end <= after or not claims.messages:
            ready = [sent for sent in source.messages if until is None or sent.offset < until][:max_rows]
            if self.life and ready and (claims.lives is None or self.life not in dict(claims.lives)):
                claims.lives = [*(claims.lives or []), (self.life, claims.end)]
            claims.messages += [sent._replace(offset=claims.end + number) for number, sent in enumerate(ready)]
            source.trim(source.first + len(ready))
        lives = claims.told_lives()
        return Claim(claims.first, claims.end, None if lives is None else lives.at(claims.end))

    def mark(self, queue: str, name: str, epoch: int) -> int:
        self.asked.append(f"mark {queue} {epoch}")
        self._claims(queue, name, epoch)
        return self._there(queue).end

    def fail(self, queue: str, name: str, epoch: int, first: int, end: int) -> Failed:
        self.asked.append(f"fail {queue} {first} {end}")
        self._claims(queue, name, epoch)
        self.failures[first] = self.failures.get(first, 0) + 1
        return Failed(self.failures[first], self.limit)

    def release(self, queue: str, name: str, epoch: int | None = None) -> int:
        drain = self.sessions[f"amq.drain/{queue}/{name}"]
        source = self._there(queue)
        back = drain.claims.messages[:]
        drain.claims.trim(drain.claims.end)
        source.messages = [*back, *source.messages]
        source.first -= len(back)
        source.messages = [sent._replace(offset=source.first + n) for n, sent in enumerate(source.messages)]
        self.sessions[f"amq.drain/{queue}/{name}"] = drain._replace(epoch=drain.epoch + 1)
        return len(back)


class _Here(NamedTuple):
    """Stands for a connection: there is one broker, and it is here."""

    broker: MemoryBroker

    def client(self) -> MemoryBroker:
        return self.broker


def options_for(broker: MemoryBroker, *, streaming: bool, **given: object) -> ReadOptions:
    """Return options that reach `broker`."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    found = read_options({"subscribe": "orders"} | texts, streaming=streaming, environment={})
    return replace(found, connection=cast(BrokerAddress, _Here(broker)))


def ranges(pieces: Sequence[InputPartition]) -> list[tuple[str, int, int]]:
    """Return what is read by `pieces`."""
    found: list[Range] = [piece.value for piece in pieces]
    return [(each.name, each.first, each.end) for each in found]


def bodies(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    """Return the bodies in `batches`."""
    return [body for batch in batches for body in batch.column("body").to_pylist()]
