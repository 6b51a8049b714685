"""Virtual hosts: which there are, their settings, and sums over their queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from warren.vhosts.metadata import VhostPut
from warren.vhosts.virtual_host import VirtualHost

PIECE: Final = 256  # a fraction of a millisecond
VhostLengths = tuple[int, int, int, int]


class VhostRow(msgspec.Struct, frozen=True):
    """A vhost: its record in the metadata, its limits by their names, and whether it is traced."""

    record: VhostPut
    limits: dict[str, int]
    tracing: bool


class Vhosts:
    """The vhosts of one engine, and what is true of each as a whole. Iterates over their names."""

    def __init__(self, vhosts: Mapping[str, VirtualHost]) -> None:
        self._vhosts = vhosts

    def __contains__(self, name: object) -> bool:
        return name in self._vhosts

    def __iter__(self) -> Iterator[str]:
        return iter(self._vhosts)

    def __len__(self) -> int:
        return len(self._vhosts)

    def row(self, name: str) -> VhostRow:
        """Return a vhost.

        Raises:
            KeyError: the vhost does not exist.
        """
        vhost = self._vhosts[name]
        return VhostRow(vhost.record, vhost.limits, vhost.tracing)

    def maybe_row(self, name: str) -> VhostRow | None:
        """Return a vhost."""
        return self.row(name) if name in self._vhosts else None

    def rows(self, names: Iterable[str]) -> list[VhostRow]:
        """Return the vhosts with these names that there are."""
        return [row for name in names if (row := self.maybe_row(name)) is not None]

    def has_claims(self, name: str) -> bool:
        """Tell whether a message on its way to very many queues may make others repetitions."""
        vhost = self._vhosts.get(name)
        return vhost is not None and vhost.has_claims()

    def length_pieces(self, name: str) -> Iterator[VhostLengths]:
        """Yield how many messages, ready ones, unacked ones and consumers some queues have, until there are no more."""
        vhost = self._vhosts.get(name)
        queues = iter(() if vhost is None else list(vhost.queues.values()))
        while piece := list(islice(queues, PIECE)):
            messages = ready = unacked = consumers = 0
            for queue in piece:
                messages += int(queue.message_count)
                ready += int(queue.ready_count)
                unacked += int(queue.unacked_count)
                consumers += len(queue.consumers)
            yield messages, ready, unacked, consumers
