"""Removes the bindings of a queue or exchange that has been deleted, step by step (``queues.long_work``).

1. A deleted queue or exchange is no longer in its directory, and is ``deleted``: nothing is routed to it, even if it
   still has bindings. A new declaration of its name makes another destination, with bindings of its own.
2. The catalogue drops bindings together with either end, at once. Only one thing is journalled here: the deletion of an
   auto-delete exchange that has lost its last binding.
3. The deletion of an exchange may cause that of another one. These are handled one after the other, without recursion,
   since their chain may be as long as there are exchanges.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.queues.destination import Destination
from warren.queues.long_work import Job, Steps, backwards
from warren.vhosts.super_streams import partitions_moved

if TYPE_CHECKING:
    from warren.vhosts.virtual_host import VirtualHost

# Includes the work of watchers outside of the engine, which are not compiled.
BINDING_STEPS: Final = 6
# The index of an exchange may have a place for each word of a key, and for each argument.
INDEXED_BYTES_PER_STEP: Final = 16


def unbinding_steps(binding: Binding) -> i64:
    """Return the steps that the removal of `binding` takes."""
    indexed: i64 = len(binding.routing_key) + len(binding.arguments)
    return BINDING_STEPS + indexed // INDEXED_BYTES_PER_STEP


class Unbinding(Job):
    """Removes the bindings of `gone`, those from it and then those to it, in the name of `by`."""

    def __init__(self, vhost: VirtualHost, gone: Destination, by: str) -> None:
        self._vhost = vhost
        self._by = by
        self._gone: deque[Destination] = deque([gone])
        self._begun: bool = False  # whether the first of them was begun
        self._outgoing: list[Binding] = []
        self._has_outgoing: bool = False
        self._destinations: list[Destination] = []
        self._sources: list[Exchange] = []
        self._unbound: list[Binding] = []  # removed from the current source, and not yet reported to watchers
        self._is_unbound: bool = False

    def run(self, steps: Steps) -> bool:
        while self._gone:
            gone = self._gone[0]
            if not self._begun:
                self._begin(gone)
            forgotten = not isinstance(gone, Exchange) or gone.forget(steps)
            if not (forgotten and self._take_outgoing(gone, steps) and self._take_incoming(gone, steps)):
                return False
            self._begun = False
            self._gone.popleft()
        return True

    def failed(self) -> bool:
        return True

    def _begin(self, gone: Destination) -> None:
        self._has_outgoing = False
        self._destinations = []
        if isinstance(gone, Exchange):
            self._has_outgoing = True
            self._outgoing = backwards(list(gone.bindings.values()))
            if gone.is_super_stream:
                self._destinations = list(gone.by_destination)
        self._sources = backwards(self._vhost.incoming.take(gone))
        self._begun = True

    def _take_outgoing(self, gone: Destination, steps: Steps) -> bool:
        if not self._has_outgoing or not isinstance(gone, Exchange):
            return True
        vhost = self._vhost
        outgoing = self._outgoing
        while outgoing:
            if steps.left <= 0:
                return False
            binding = outgoing.pop()
            steps.left -= unbinding_steps(binding)
            if gone.unbind(binding.destination, binding.routing_key, binding.arguments) is not None:
                vhost.incoming.forget(binding)
                vhost.watcher.binding_deleted(vhost.name, binding, self._by)
        self._has_outgoing = False
        partitions_moved(gone, self._destinations)
        return True

    def _take_incoming(self, gone: Destination, steps: Steps) -> bool:
        vhost = self._vhost
        while self._sources:
            source = self._sources[-1]
            while not self._is_unbound:
                if steps.left <= 0:
                    return False
                first = source.by_destination.get(gone)
                steps.left -= BINDING_STEPS if first is None else unbinding_steps(first)
                if first is None:
                    self._is_unbound = True
                    self._unbound.reverse()
                    partitions_moved(source, [])
                    if vhost.is_to_auto_delete(source):
                        vhost.take_exchange_out(source, self._by)
                        self._gone.append(source)
                else:
                    source.unbind(gone, first.routing_key, first.arguments)
                    self._unbound.append(first)
            while self._unbound:
                if steps.left <= 0:
                    return False
                steps.left -= 1
                vhost.watcher.binding_deleted(vhost.name, self._unbound.pop(), self._by)
            self._is_unbound = False
            self._sources.pop()
        return True
