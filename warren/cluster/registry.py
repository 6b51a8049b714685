"""Where the nodes of a cluster are: ``/warren/<cluster>/nodes/<name>``, each with a lease of its own.

    {"incarnation": "91ce…", "cluster": "broker1:25672", "version": "0.1.0", "disk_is_low": false, "level": 3}

1. Nothing is decided by it. If a node is not registered at the moment, the others use its last known address.
2. Every node reads all entries, and remembers the nodes it has seen (`seen`). So the address of a lost node stays known
   as long as one node that has seen it is running, even without the leader. When etcd does not answer, this memory does
   not change.
3. A node reads its own key with every renewal. It puts the key again if the key is gone, or has the entry of another
   process: one that was started under the same name by mistake. The lease of that process would otherwise delete the
   key for good.
4. At most `SEEN_MAX` nodes are remembered. A new one takes the place of the one that has been gone longest. While all
   of them are registered, a new one can be found (`maybe_entry`), and is not remembered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
import trio

from warren.cluster.etcd import Etcd, EtcdError, KeyValue, LeaseGone, OutcomeUnknown
from warren.cluster.etcd_record import prefix

LEASE_S: Final = 10
RENEW_S: Final = 3.0
RETRY_S: Final = 0.5
SEEN_MAX: Final = 1000  # names: someone else may write there, too
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class NodeEntry(msgspec.Struct, frozen=True):
    """A node's own entry. `cluster`: the address of its cluster port; `level`: the formats that it understands."""

    incarnation: _Text
    cluster: _Text
    version: _Text
    disk_is_low: bool = False  # it would block publishers if it led
    level: int = 1


class Seen(NamedTuple):
    """A node as it was seen last, at `seen_s` by the wall clock; gone since then if it is not registered."""

    entry: NodeEntry
    seen_s: float
    is_registered: bool


class Registry:
    """The nodes of `cluster`. `clock_s` is the wall clock."""

    def __init__(self, etcd: Etcd, cluster: str, clock_s: Callable[[], float] = time.time) -> None:
        self.late_renewals = 0  # of the lease of this node
        self.disk_is_low = False  # of this node
        self.namesake = ""  # address of another process that had this node's name at the last renewal
        self._etcd = etcd
        self._prefix = prefix(cluster) + b"nodes/"
        self._clock_s = clock_s
        self._seen: dict[str, Seen] = {}  # the one seen longest ago first

    @property
    def seen(self) -> Mapping[str, Seen]:
        """Every node that has been seen, by name."""
        return self._seen

    async def announce(self, name: str, entry: NodeEntry) -> None:
        """Keep this node registered, for ever."""
        key = self._prefix + name.encode()
        while True:
            try:
                lease = await self._etcd.grant(LEASE_S)
                await self._etcd.put(key, self._value(entry), lease)
                while True:
                    await trio.sleep(RENEW_S)
                    if await self._renewed(lease):
                        await self._hold(key, entry, lease)
            except (EtcdError, OutcomeUnknown):
                await trio.sleep(RETRY_S)

    async def _renewed(self, lease: int) -> bool:
        try:
            await self._etcd.keep_alive(lease)
            return True
        except LeaseGone:
            self.late_renewals += 1
            raise
        except EtcdError:
            self.late_renewals += 1  # no lease expires while etcd is away; the next renewal shows whether it is there
            return False

    def _value(self, entry: NodeEntry) -> bytes:
        return msgspec.json.encode(msgspec.structs.replace(entry, disk_is_low=self.disk_is_low))

    async def _hold(self, key: bytes, entry: NodeEntry, lease: int) -> None:
        """Put the key again if it is gone, another process has put it, or its value is outdated."""
        value = self._value(entry)
        try:
            found = await self._etcd.get(key)
            self.namesake = "" if found is None or _is_same(found.value, entry) else _where(found.value)
            if found is None or found.value != value:
                await self._etcd.put(key, value, lease)
        except EtcdError:
            pass  # the next renewal looks again

    async def look(self) -> None:
        """Keep `seen` up to date, for ever."""
        while True:
            try:
                self._see_all(await self._etcd.get_all(self._prefix))
            except EtcdError:
                pass  # the known nodes may still be there
            await trio.sleep(RENEW_S)

    def _see_all(self, found: Sequence[KeyValue]) -> None:
        now_s = self._clock_s()
        there = {pair.key.removeprefix(self._prefix).decode(errors="replace"): pair.value for pair in found}
        for name, seen in self._seen.items():
            if name not in there and seen.is_registered:
                self._seen[name] = seen._replace(is_registered=False)
        for name in sorted(there, key=lambda name: name not in self._seen):
            self._see(name, there[name], now_s)

    def _see(self, name: str, value: bytes, now_s: float) -> NodeEntry | None:
        entry = _maybe_entry_of(value)
        if entry is None:
            return None  # not written by a node: the entry known before stays
        if name not in self._seen and len(self._seen) >= SEEN_MAX:
            longest_ago = next(iter(self._seen))
            if self._seen[longest_ago].is_registered:
                return entry
            del self._seen[longest_ago]
        self._seen.pop(name, None)
        self._seen[name] = Seen(entry, now_s, is_registered=True)
        return entry

    async def is_registered(self, name: str) -> bool:
        """Tell whether a node runs, or did some seconds ago; False when etcd does not say."""
        try:
            return await self._etcd.get(self._prefix + name.encode()) is not None
        except EtcdError:
            return False

    async def maybe_entry(self, name: str) -> NodeEntry | None:
        """Return the entry of a node, the current one if etcd answers; None when the node was never registered."""
        try:
            found = await self._etcd.get(self._prefix + name.encode())
        except EtcdError:
            found = None
        entry = None if found is None else self._see(name, found.value, self._clock_s())
        if entry is not None:
            return entry
        seen = self._seen.get(name)
        return None if seen is None else seen.entry


def _maybe_entry_of(value: bytes) -> NodeEntry | None:
    try:
        return msgspec.json.decode(value, type=NodeEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _is_same(value: bytes, entry: NodeEntry) -> bool:
    found = _maybe_entry_of(value)
    return found is not None and msgspec.structs.replace(found, disk_is_low=entry.disk_is_low) == entry


def _where(value: bytes) -> str:
    entry = _maybe_entry_of(value)
    return "a place that is not known" if entry is None else entry.cluster
