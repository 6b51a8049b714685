"""A leader and two followers on disks whose reads fail while a follower connects or catches up.

Nothing on the disks is changed by that. A link that cannot continue ends, and the next one begins where the follower
is. No recorded member gets a copy, nothing that was committed is cut off, and what `simulation.replicas` lists holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from simulation.failing_reads import FailingReads
from simulation.replicas import Node, ReplicatedLife
from simulation.simulated_file_system import SimulatedFileSystem
from warren.msgstore.files.store_errors import StoreFailedError, StoreFullError, StoreUnreadableError


class UnreadReplicatedLife(ReplicatedLife):
    """A `ReplicatedLife` on such disks. `failed`: how many reads have failed."""

    def __init__(self, seed: int) -> None:
        self._chooser = Random(seed)
        self.failed = 0
        super().__init__(seed)

    def _attach(self, node: Node) -> None:
        fs, leading = node.fs, self.machine.fs
        try:
            with self._failing(fs if self._chooser.random() < 0.5 else leading):
                super()._attach(node)
        except StoreFullError:
            raise
        except (OSError, StoreFailedError, StoreUnreadableError) as error:
            self.counts["links that failed"] += 1
            node.link = None
            if isinstance(error, StoreFailedError) and node.replica is not None:
                node.replica.close()  # the process ends, and the next one begins
                node.replica = None

    def _catch_up(self, node: Node | None = None) -> None:
        node = node or self._follower()
        try:
            with self._failing(self.machine.fs):
                super()._catch_up(node)
        except (OSError, StoreUnreadableError):
            self.counts["links that failed"] += 1
            if node.link is not None:
                node.link.entries.clear()
                self._lose_link(node)

    @contextmanager
    def _failing(self, fs: SimulatedFileSystem) -> Iterator[None]:
        """Make reads of a disk fail meanwhile, or not."""
        if self._chooser.random() < 0.6 or self._explore == 0:
            yield
            return
        failing = FailingReads(self._chooser)
        failing.begin()
        fs.fails_read = failing
        try:
            yield
        finally:
            fs.fails_read = None
            self.failed += failing.hits
