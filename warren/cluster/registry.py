"""Where the nodes of a cluster are: ``/warren/<cluster>/nodes/<name>``, each with a lease of its own.

    {"incarnation": "91ce…", "cluster": "broker1:25672", "version": "0.1.0"}

Nothing is decided by it. A node that is not registered at the moment is reached where it was registered last.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import trio

from warren.cluster.etcd import Etcd, EtcdError, LeaseGone, OutcomeUnknown
from warren.cluster.etcd_record import prefix

LEASE_S: Final = 10
RENEW_S: Final = 3.0
RETRY_S: Final = 0.5
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class NodeEntry(msgspec.Struct, frozen=True):
    """What a node says of itself. `cluster` is the address of its cluster port, for other nodes."""

    incarnation: _Text
    cluster: _Text
    version: _Text


class Registry:
    """The nodes of `cluster`."""

    def __init__(self, etcd: Etcd, cluster: str) -> None:
        self._etcd = etcd
        self._prefix = prefix(cluster) + b"nodes/"
        self._known: dict[str, NodeEntry] = {}

    async def announce(self, name: str, entry: NodeEntry) -> None:
        """Have this node be registered, for ever."""
        key, value = self._prefix + name.encode(), msgspec.json.encode(entry)
        while True:
            try:
                lease = await self._etcd.grant(LEASE_S)
                await self._etcd.put(key, value, lease)
                while True:
                    await trio.sleep(RENEW_S)
                    await self._renewed(lease)
            except (EtcdError, OutcomeUnknown):
                await trio.sleep(RETRY_S)

    async def _renewed(self, lease: int) -> None:
        try:
            await self._etcd.keep_alive(lease)
        except LeaseGone:
            raise
        except EtcdError:
            pass  # as long as etcd is away no lease expires; the next time says whether it is there

    async def maybe_entry(self, name: str) -> NodeEntry | None:
        """Return what is known of a node, as of now if etcd answers; None when it was never there."""
        try:
            found = await self._etcd.get(self._prefix + name.encode())
        except EtcdError:
            found = None
        if found is not None:
            try:
                self._known[name] = msgspec.json.decode(found.value, type=NodeEntry)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                pass  # something else wrote it: what was known before is as good
        return self._known.get(name)
