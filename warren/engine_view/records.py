"""What the broker remembers for a vhost across restarts, by name; clients do not see it. See `vhosts.records`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from warren.vhosts.virtual_host import VirtualHost


class RecordsOfVhost(Protocol):
    """The records of one vhost. A caller settles the turn after changes."""

    def maybe_value(self, name: str, /) -> bytes | None:
        """Return the value remembered under `name`."""

    def values(self, prefix: str, /) -> list[tuple[str, bytes]]:
        """Return the names that begin with `prefix`, with their values."""

    def has_lost_some(self) -> bool:
        """Tell whether values are missing since the start: their records are damaged."""

    def store(self, name: str, value: bytes, /) -> None:
        """Remember `value` under `name`, in place of an earlier value."""

    def forget(self, name: str, /) -> bool:
        """Forget the value under `name`; False when there is nothing."""


class Records:
    """The records of the vhosts of one engine."""

    def __init__(self, vhosts: Mapping[str, VirtualHost]) -> None:
        self._vhosts = vhosts

    def are_restoring(self, vhost: str) -> bool:
        """Tell whether the records of a vhost are still being read from disk."""
        found = self._vhosts.get(vhost)
        return found is not None and found.records.is_restoring

    def of(self, vhost: str) -> RecordsOfVhost:
        """Return the records of a vhost; they do not go to another vhost of its name.

        Raises:
            KeyError: there is no such vhost.
        """
        return self._vhosts[vhost].records

    def are_of(self, records: RecordsOfVhost, vhost: str) -> bool:
        """Tell whether these are the records of a vhost still: it was not deleted, nor declared again."""
        found = self._vhosts.get(vhost)
        return found is not None and found.records is records
