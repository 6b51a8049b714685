"""A broker in memory for exports and imports: with snapshots that expire, drains that are deleted, and stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from warren.amqp.publishes import PublishScan, scan_publishes
from warren.spark_bridge.bridge_errors import NoDrain, NoSnapshot, Refused
from warren.spark_bridge.control import Committed, DrainSession, Snapshot

from .broker_in_memory import MemoryBroker


class Published(NamedTuple):
    """A message as it was staged."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


def publishes(frames: bytes) -> Iterator[Published]:
    """Yield the messages of a part, which the broker's own rules accept."""
    scan = PublishScan(1 << 40)
    while scan.pos < len(frames):
        at = int(scan.pos)
        scan_publishes(scan, frames, 1, 1)
        exchange_end = at + 14 + frames[at + 13]
        key_end = exchange_end + 1 + frames[exchange_end]
        header = key_end + 2  # after flags and frame end
        header_bytes = int.from_bytes(frames[header + 3 : header + 7], "big")
        body = b""
        pos = header + 8 + header_bytes
        while pos < int(scan.pos):
            size = int.from_bytes(frames[pos + 3 : pos + 7], "big")
            body += frames[pos + 7 : pos + 7 + size]
            pos += 8 + size
        yield Published(
            frames[at + 14 : exchange_end].decode(),
            frames[exchange_end + 1 : key_end].decode(),
            frames[header + 7 + 12 : header + 7 + header_bytes],
            body,
        )


@dataclass
class Watched:
    """Remembers what a run has told."""

    plans: list[tuple[int, int]] = field(default_factory=list)
    rows: int = 0
    commits: list[int] = field(default_factory=list)

    def planned(self, rows: int, bytes: int) -> None:
        self.plans.append((rows, bytes))

    def advanced(self, rows: int, bytes: int) -> None:
        self.rows += rows

    def committed(self, state: Any) -> None:
        self.commits.append(state.rows)


class ExportBroker(MemoryBroker):
    """`acked` is called with what a claim acknowledges, before that is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.acked: Callable[[Sequence[bytes]], None] = lambda bodies: None
        self.stages: dict[str, dict[int, bytes]] = {}
        self.commits: dict[tuple[str, int], int] = {}  # and how many messages each has
        self.kept_s: dict[tuple[str, int], int | None] = {}
        self.begun: set[str] = set()  # stages of commits that are not done
        self.published: list[Published] = []
        self.drains_made = 0

    def snapshot(self, queue: str, snapshot: str) -> Snapshot:
        found = self.queues.get(snapshot)
        if found is None:
            raise NoSnapshot(f"{queue}: no such snapshot", 404, "no_snapshot")
        return Snapshot(snapshot, found.id, 0, found.end, 100 * found.end, None)

    def delete_snapshot(self, queue: str, snapshot: str) -> None:
        self.queues.pop(snapshot, None)

    def open_drain(
        self,
        queue: str,
        name: str,
        owner: str = "",
        *,
        lease_s: int | None = None,
        before: tuple[int, str] | None = None,
    ) -> DrainSession:
        is_new = f"amq.drain/{queue}/{name}" not in self.sessions
        session = super().open_drain(queue, name, owner, lease_s=lease_s, before=before)
        if is_new:
            self.drains_made += 1
            self.queues[session.queue].id = f"c{self.drains_made}"
            session = session._replace(id=f"c{self.drains_made}")
        return session

    def claim(self, queue: str, name: str, epoch: int, after: int, max_rows: int, **limits: Any) -> Any:
        claims = self._claims(queue, name, epoch)
        self.acked([sent.body for sent in claims.messages if sent.offset < after])
        return super().claim(queue, name, epoch, after, max_rows, **limits)

    def delete_drain(self, queue: str, name: str, epoch: int) -> None:
        with suppress(NoDrain):
            self._claims(queue, name, epoch)
        drain = self.sessions.pop(f"amq.drain/{queue}/{name}", None)
        if drain is not None:
            assert not drain.claims.messages, "a session with claims is not deleted"
            del self.queues[f"amq.drain/{queue}/{name}"]

    # --- stages ------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Forget the commits that are not remembered without an end."""
        for each, kept_s in self.kept_s.items():
            if kept_s is not None:
                self.commits.pop(each, None)

    def put_stage(self, stage: str, part: int, frames: bytes | bytearray | memoryview) -> None:
        self._check_free(stage)
        self.stages.setdefault(stage, {})[part] = bytes(frames)

    def delete_stage(self, stage: str) -> None:
        self._check_free(stage)
        self.stages.pop(stage, None)

    def _check_free(self, stage: str) -> None:
        if stage in self.begun:
            raise Refused("is being committed", 409, "conflict")

    def commit_stages(
        self,
        query: str,
        batch: int,
        stages: Sequence[str],
        *,
        mandatory: bool = True,
        kept_s: int | None = None,
        supersedes: str | None = None,
        compare: bool = False,
        follows: bool = False,
        purge: str | None = None,
    ) -> Committed:
        if follows and query not in {known for known, _ in self.commits}:
            raise Refused(f"no batch of query {query!r} is known", 409, "missing_batches")
        are_there = all(stage in self.stages for stage in stages)
        found = [
            each
            for stage in stages
            for _, frames in sorted(self.stages.pop(stage, {}).items())
            for each in publishes(frames)
        ]
        had = self.commits.get((query, batch))
        if had is not None:
            if compare and are_there and had != len(found):
                raise Refused(f"batch {batch} was published with {had} messages", 409, "other_batch")
            return Committed(False, True, 0, 0)
        self.begun.difference_update(stages)
        self.published += found
        self.commits[query, batch] = len(found)
        self.kept_s[query, batch] = kept_s
        return Committed(True, False, len(found), 0)
