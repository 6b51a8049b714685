"""A watch of one key in etcd: its changes and its value, in order, however often the connection to etcd fails.

1. A watch resumes at another endpoint, after the last revision that it reported. If etcd has compacted the changes
   since then, a read replaces them. So every value that stays for a while is reported, and never an older one after a
   newer one.
2. If a member reports nothing for `IDLE_S`, the watch reads the key from this same member, linearizably. A member that
   is cut off from this node, or from the other members, does not answer in time, and another endpoint takes its place.
   `Traffic.watched_s` has the time of the last answer: the last reported value was current at that time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import msgspec
import trio

from warren.cluster.etcd import Etcd, EtcdError, Refused
from warren.cluster.etcd_wire import (
    ANSWER_BYTES_MAX,
    BROKEN,
    OK,
    EtcdConnection,
    Event,
    Nonsense,
    Stream,
    WatchAnswer,
    decoded,
    error_text,
    text,
)

IDLE_S: Final = 1.0
WATCH_RETRY_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Change:
    """A key was written, or deleted (no `value`), at this revision."""

    key: bytes
    value: bytes | None
    revision: int


class Watch:
    """The changes of one key. Used by one task."""

    def __init__(self, etcd: Etcd, key: bytes, from_revision: int) -> None:
        self._etcd = etcd
        self._key = key
        self._from = from_revision
        self._at = 0
        self._connection: EtcdConnection | None = None
        self._buffer = bytearray()

    async def next(self) -> list[Change]:
        """Wait for changes, however long etcd is away, and return them in order."""
        while True:
            endpoint = self._etcd.endpoints[self._at % len(self._etcd.endpoints)]
            try:
                changes = await self._changes(endpoint)
                self._etcd.traffic.watched_s = time.monotonic()
                if changes:
                    return changes
                continue
            except Refused as refused:
                if refused.is_old_token:
                    self._etcd.forget_token()
            except (EtcdError, *BROKEN):
                pass
            await self.close()
            self._at += 1
            await trio.sleep(WATCH_RETRY_S)

    async def close(self) -> None:
        """Close the connection; the next call of `next` opens another one."""
        connection, self._connection = self._connection, None
        self._buffer.clear()
        if connection is not None:
            await connection.close()

    async def _changes(self, endpoint: str) -> list[Change]:
        if self._connection is None:
            await self._begin(endpoint)
        line = None
        with trio.move_on_after(IDLE_S):
            line = await self._line()
        if line is None:
            return await self._asked_for(endpoint)
        stream = decoded(line, Stream)
        if stream.error is not None:
            raise Refused(endpoint, 0, str(stream.error))
        answer = decoded(bytes(stream.result), WatchAnswer)
        self._etcd.check_cluster(endpoint, answer.header)
        if answer.canceled:
            await self.close()
            if answer.compact_revision == 0:
                raise Nonsense("the watch was cancelled")
            return await self._read_instead()
        return self._news(answer.events)

    async def _begin(self, endpoint: str) -> None:
        token = await self._etcd.token(endpoint)
        self._connection = connection = await self._etcd.open(endpoint)
        request = {"create_request": {"key": text(self._key), "start_revision": str(self._from)}}
        with trio.fail_after(self._etcd.attempt_s):
            await connection.send("watch", msgspec.json.encode(request), token)
            status = await connection.receive_head()
        if status != OK:
            with trio.fail_after(self._etcd.attempt_s):
                raise Refused(endpoint, status, error_text(await connection.receive_part()))

    async def _line(self) -> bytes:
        assert self._connection is not None
        while True:
            line, end, rest = self._buffer.partition(b"\n")
            if end:
                self._buffer = rest
                return bytes(line)
            part = await self._connection.receive_part()
            if not part:
                raise Nonsense("the watch has ended")
            self._buffer += part
            if len(self._buffer) > ANSWER_BYTES_MAX:
                raise Nonsense(f"a piece of news of more than {ANSWER_BYTES_MAX} bytes")

    def _news(self, events: list[Event]) -> list[Change]:
        changes = []
        for event in events:
            if event.kv.key == self._key and event.kv.mod_revision >= self._from:
                self._from = event.kv.mod_revision + 1
                value = None if event.type == "DELETE" else event.kv.value
                changes.append(Change(event.kv.key, value, event.kv.mod_revision))
        return changes

    async def _asked_for(self, endpoint: str) -> list[Change]:
        """Read the key at this endpoint, and return its value unless it was reported before."""
        found = await self._etcd.get_from(endpoint, self._key)
        if found is None or found.revision < self._from:
            return []
        self._from = found.revision + 1
        return [Change(found.key, found.value, found.revision)]

    async def _read_instead(self) -> list[Change]:
        """Return the current value, in place of changes that were compacted before they could be reported."""
        found, revision = await self._etcd.get_at(self._key)
        begins, self._from = self._from, max(self._from, revision + 1)
        if found is None:
            return [Change(self._key, None, revision)]
        return [Change(found.key, found.value, found.revision)] if found.revision >= begins else []
