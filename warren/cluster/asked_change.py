"""A change of the record that an administrator has asked a leader for, about one node (`Ask`).

1. There is one at a time. It is wanted until it is on record, or until `command_s` are over; repeating the command
   renews the time. A proposal that is under way at that time may still come into force.
2. A node is not forgotten while it runs, or if it was useful a moment ago: the cluster would lose a live copy.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

from warren.cluster.events import ChangeRequested
from warren.cluster.peers import Peers
from warren.cluster.record import Ask, Record, Refusal, Replica, asked, named
from warren.cluster.timers import NEVER, Timers


class AskedChange:
    """The change that was asked for last."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._asked: tuple[Ask, str] | None = None
        self._until_s = NEVER

    def ask(self, now_s: float, record: Record, request: ChangeRequested, peers: Peers) -> str:
        """Accept a command, and return an empty text; or return why not."""
        change = asked(record, request.ask, request.node)
        if isinstance(change, Refusal):
            return change.reason
        if change != record and request.ask is Ask.FORGET and self._is_there(now_s, record, request, peers):
            return f"{request.node} runs, or ran some seconds ago: stop it for good first, and wait a moment"
        if now_s < self._until_s and self._asked not in (None, (request.ask, request.node)):
            return "another change is in progress: try again"
        self._asked = (request.ask, request.node)
        self._until_s = now_s + self._timers.command_s
        return ""

    def wanted(self, now_s: float, record: Record) -> Record | None:
        """Return the record with the change; None when it has the change already, or nothing is asked for."""
        if self._asked is None:
            return None
        change = asked(record, *self._asked)
        if isinstance(change, Record) and change != record and now_s < self._until_s:
            return change
        self._asked = None
        return None

    def _is_there(self, now_s: float, record: Record, request: ChangeRequested, peers: Peers) -> bool:
        replica = named(record, request.node)
        return request.is_there or (isinstance(replica, Replica) and peers.is_useful(replica, now_s))
