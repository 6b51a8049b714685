"""The gate of a replicated store: a commit is reported when all required nodes have it (``in_sync``).

1. A commit for which clients wait for a sync is complete when all have synced it, and only then counts as committed.
2. A life has begun (`has_begun`) when its first commit is synced here, even if other nodes do not have it yet.
3. Without a store there is nothing to commit.
"""

from __future__ import annotations

import time

from warren.msgstore.files.store import Store
from warren.msgstore.log.jobs import CommitJob
from warren.replication.in_sync import InSyncSet


class CommitGate:
    """Between the committer of `store` and its engine; see ``server.store_threads.Gate``."""

    def __init__(self, in_sync: InSyncSet) -> None:
        self.store: Store | None = None
        self.has_begun = False  # the beginning of this life is synced here
        self._in_sync = in_sync

    def is_open(self, job: CommitJob) -> bool:
        """Tell whether all required nodes have the commit."""
        assert self.store is not None
        end_lsn = int(job.end_lsn())
        self.has_begun |= job.sync
        if not self._in_sync.has(end_lsn, synced=job.sync, now_s=time.monotonic()):
            return False
        if job.sync:
            self.store.commit_reached(end_lsn)
        job.committed_lsn = self.store.committed_lsn
        return True

    def waits(self, job: CommitJob) -> bool:
        """Tell whether a required node has yet to acknowledge the commit."""
        return self.has_begun and self._in_sync.lacks(int(job.end_lsn()), synced=job.sync)

    def is_short(self) -> bool:
        """Tell whether too few nodes answer to commit anything."""
        return self._in_sync.is_short(time.monotonic())

    def trouble(self) -> str:
        """Return why commits wait."""
        return "too few replicas have what is written (min_in_sync)" if self.is_short() else ""
