"""The record of the in-sync set in the directory of a leader that was not elected (``cluster_state``).

1. A set takes effect when it is on disk; it is written until it is. While it is being written, all nodes in the old and
   in the new one are asked (``in_sync``).
2. A follower that has left the set is disconnected, and told why: it must catch up again, and takes note that it may
   lack messages that were confirmed since.
3. One set is written at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from warren.replication import cluster_state
from warren.replication.cluster_state import ClusterState
from warren.replication.followers import Followers
from warren.replication.handshake import Node
from warren.replication.in_sync import InSyncSet, Replica
from warren.replication.rare_warnings import RareWarnings
from warren.server.logs import get_logger
from warren.server.threads import REPLICATION, in_thread

RETRY_S: Final = 1.0

log = get_logger("replication")


class SetRecord:
    """The state in `directory`, and the changes of its set."""

    def __init__(self, directory: Path, state: ClusterState, in_sync: InSyncSet, followers: Followers) -> None:
        self._directory = directory
        self._state = state
        self._in_sync = in_sync
        self._followers = followers
        self._warnings = RareWarnings()
        self._proposed = trio.Event()
        self._proposal: frozenset[Node] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of this life."""
        return self._state.epoch

    def begin(self, epoch: int, leader: Node) -> None:
        """Note the epoch of this life, and who leads it. It is written with the next set."""
        self._state = replace(self._state, epoch=epoch, leader=leader)

    def propose(self, members: frozenset[Node]) -> None:
        """Propose a set to write."""
        self._proposal = members
        self._proposed.set()

    async def run(self, decide: Callable[[], None]) -> None:
        """Write each set that is proposed, and `decide` then. For ever."""
        while True:
            await self._proposed.wait()
            members = self._proposal
            assert members is not None
            state = cluster_state.recorded(self._state, members)
            await self._write(state)
            self._proposed = trio.Event()
            self._proposal = None
            self._state = state
            before = self._in_sync.members
            left = self._in_sync.recorded(members, time.monotonic())
            for node in members - before:
                log.info("a follower is in sync: confirms wait for it", node=str(node), in_sync=len(members))
            for replica in left:
                self._say_left(replica, len(members))
            decide()

    def _say_left(self, replica: Replica, count: int) -> None:
        link = self._followers.maybe_link(replica.node)
        if link is None:
            reason = "its connection has ended" if not replica.is_awaited else "it has not come back"
        else:
            reason = link.stopped or "it does not answer, or does not make progress"
        log.warning(
            "a follower has left the in-sync set: confirms no longer wait for it",
            node=str(replica.node),
            reason=reason,
            in_sync=count,
        )
        if link is not None:
            link.end("it has left the in-sync set: nothing was heard from it, or it did not keep up")

    async def _write(self, state: ClusterState) -> None:
        while True:
            try:
                await in_thread(REPLICATION, cluster_state.write, self._directory, state)
                return
            except OSError as error:
                self._warnings.say(
                    "the in-sync set cannot be recorded; it stays as it is", reason=error.strerror or str(error)
                )
            await trio.sleep(RETRY_S)
