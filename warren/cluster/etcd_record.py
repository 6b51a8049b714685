"""The record of a cell, as a key of etcd: ``/warren/<cluster>/cells/0``.

A record of another store than this node's is ignored: a node that uses a cluster's name by mistake takes no part.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

import trio

from warren.cluster.etcd import Etcd, EtcdError, KeyValue
from warren.cluster.etcd_watch import Watch
from warren.cluster.record import Record, RecordError, Versioned, decode, encode

RETRY_S: Final = 0.25


def prefix(cluster: str) -> bytes:
    """Return the common beginning of all keys of a cluster."""
    return f"/warren/{cluster}/".encode()


class EtcdRecord:
    """The record of the cell of `cluster`. `store` returns the id of this node's store; empty before it has one."""

    def __init__(self, etcd: Etcd, cluster: str, store: Callable[[], str]) -> None:
        self._etcd = etcd
        self._key = prefix(cluster) + b"cells/0"
        self._store = store

    async def read(self) -> Versioned | None:
        """Read it, linearizably; see `driver.RecordStore`."""
        found = await self._etcd.get(self._key)
        return None if found is None else self._versioned(found.value, found.revision)

    async def swap(self, revision: int, record: Record) -> int | None:
        """Replace it; see `driver.RecordStore`."""
        return await self._etcd.swap(self._key, revision, encode(record))

    async def changes(self) -> AsyncIterator[Versioned]:
        """Yield the current record, and then each change.

        A record that cannot be understood is left out here. The next read reports it.
        """
        found, revision = await self._first()
        if found is not None:
            versioned = self._maybe_versioned(found.value, found.revision)
            if versioned is not None:
                yield versioned
        watch = Watch(self._etcd, self._key, revision + 1)
        try:
            while True:
                for change in await watch.next():
                    versioned = None if change.value is None else self._maybe_versioned(change.value, change.revision)
                    if versioned is not None:
                        yield versioned
        finally:
            with trio.CancelScope(shield=True):
                await watch.close()

    async def _first(self) -> tuple[KeyValue | None, int]:
        while True:
            try:
                return await self._etcd.get_at(self._key)
            except EtcdError:
                await trio.sleep(RETRY_S)

    def _maybe_versioned(self, value: bytes, revision: int) -> Versioned | None:
        try:
            return self._versioned(value, revision)
        except RecordError:
            return None

    def _versioned(self, value: bytes, revision: int) -> Versioned:
        record = decode(value)
        ours = self._store()
        if ours and record.store != ours:
            raise RecordError(
                f"etcd has the record of store {record.store}, and this data directory is of {ours}: give each cluster "
                "a name of its own (cluster_name), or begin with an empty data directory"
            )
        return Versioned(revision, record)
