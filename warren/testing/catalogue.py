"""The metadata store of a broker under test, in memory: commits survive the broker, not the process.

1. Changes take effect in their order and are durable when `commit` returns, as in `warren.server.catalogue`. A delete
   also removes the same dependent objects (`warren.vhosts.metadata`).
2. A thing is identified by the fields of its deletion, so a new kind of change needs no code here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final, get_args

from warren.vhosts.metadata import (
    BindingPut,
    ExchangeDelete,
    MetadataChange,
    QueueDelete,
    TopicPermissionDelete,
    UserDelete,
    VhostDelete,
)

_Key = tuple[object, ...]
_KINDS: Final = {kind.__name__: kind for kind in get_args(MetadataChange)}
# Each kind that is put, in the order in which it can be loaded, with the fields that name one of it.
_NAMED_BY: Final = {
    kind: tuple(field.name for field in fields(_KINDS[name.removesuffix("Put") + "Delete"]))
    for name, kind in _KINDS.items()
    if name.endswith("Put")
}


class MemoryCatalogue:
    """A catalogue. Begins empty."""

    def __init__(self) -> None:
        self._applied: tuple[bytes, int] = (b"", 0)
        self._kept: dict[type, dict[_Key, MetadataChange]] = {kind: {} for kind in _NAMED_BY}

    def load(self) -> Iterator[MetadataChange]:
        """Yield everything kept as puts, each after those it refers to."""
        for kept in self._kept.values():
            yield from list(kept.values())

    def applied(self, store_id: bytes) -> int:
        """Return the number below which all changes of the log `store_id` are here."""
        return self._applied[1] if self._applied[0] == store_id else 0

    def commit(
        self,
        changes: Sequence[MetadataChange],
        store_id: bytes = b"",
        applied: int = 0,
        _lsn: int = 0,
        _life_id: bytes = b"",
    ) -> None:
        """Keep `changes`, and with them up to where they go in the log `store_id`."""
        if store_id:
            self._applied = (store_id, applied)
        for change in changes:
            if type(change) in self._kept:
                self._kept[type(change)][_key_of(change, type(change))] = change
            else:
                self._delete(change)

    def copy_to(self, path: Path, store_id: bytes) -> None:
        """Write all of it into a new file of SQLite."""
        # SQLAlchemy would be most of the imports.
        from warren.server.catalogue.catalogue import write_copy

        write_copy(path, self.load(), store_id, self.applied(store_id))

    def interrupt(self) -> None:
        """Do nothing: all calls are short."""

    def close(self) -> None:
        """Do nothing: it holds nothing to give back."""

    def _delete(self, change: MetadataChange) -> None:
        kind = _KINDS[type(change).__name__.removesuffix("Delete") + "Put"]
        if isinstance(change, TopicPermissionDelete) and change.exchange == "":
            self._forget(kind, user=change.user, vhost=change.vhost)
        else:
            self._kept[kind].pop(_key_of(change, kind), None)
        if isinstance(change, VhostDelete):
            for other in self._kept:
                self._forget(other, vhost=change.name)
        elif isinstance(change, UserDelete):
            for other in self._kept:
                self._forget(other, user=change.name)
        elif isinstance(change, QueueDelete):
            self._forget(BindingPut, vhost=change.vhost, destination_type="queue", destination=change.name)
        elif isinstance(change, ExchangeDelete):
            self._forget(BindingPut, vhost=change.vhost, destination_type="exchange", destination=change.name)
            self._forget(BindingPut, vhost=change.vhost, source=change.name)

    def _forget(self, kind: type, **values: str) -> None:
        """Forget the objects that have all of `values` in their fields."""
        kept = self._kept[kind]
        for key, put in list(kept.items()):
            if all(getattr(put, name, None) == value for name, value in values.items()):
                del kept[key]


def _key_of(change: MetadataChange, kind: type) -> _Key:
    return tuple(getattr(change, name) for name in _NAMED_BY[kind])
