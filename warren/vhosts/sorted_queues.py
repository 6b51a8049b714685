"""The queues of a vhost in the order of their names, for lists of the API that show a page of them.

1. A list belongs to one version of the topology. It is made on demand, or comes from a caller that has sorted in steps.
"""

from __future__ import annotations

from mypy_extensions import i64

from warren.queues.base_queue import BaseQueue


class SortedQueues:
    """The queues in `queues`, sorted. `version`: that of the vhost's topology, at this moment."""

    def __init__(self, queues: dict[str, BaseQueue]) -> None:
        self._queues = queues
        self._sorted: list[BaseQueue] = []
        self._version: i64 = 0

    def are_of(self, version: i64) -> bool:
        """Tell whether there is a sorted list of this version."""
        return self._version == version

    def get(self, version: i64) -> list[BaseQueue]:
        """Return them; not to be changed."""
        if self._version != version:
            self.keep([self._queues[name] for name in sorted(self._queues)], version)
        return self._sorted

    def keep(self, queues: list[BaseQueue], version: i64) -> None:
        """Keep a sorted list of a version, which the caller has made."""
        self._version = version
        self._sorted = queues

    def forget(self) -> None:
        """Forget the list: it refers to a queue that is deleted."""
        self._sorted = []
