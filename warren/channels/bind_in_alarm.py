"""A queue.bind that copies a history, during a memory or disk alarm: only its channel waits, and only for requests.

1. The connection is read meanwhile: acknowledgements, which end an alarm, and other channels do not wait.
2. The next method of the channel that is not an answer to a delivery waits, and the connection with it
   (`AlarmWait`): it finds the bind done, and a channel has one bind that waits, whatever it sends.
3. When the alarm is over, the bind is work of the connection as any other (`channels.jobs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.own_writes import ADDS, NOTHING
from warren.queues.long_work import Job, Steps

if TYPE_CHECKING:
    from warren.channels.peer import Peer
    from warren.exchanges.exchange import BindJob


class WaitingBind(Job):
    """Begins `bind` of `peer` when the alarm is over. `is_over`: it has."""

    def __init__(self, peer: Peer, bind: BindJob) -> None:
        self.is_over: bool = False
        self._peer = peer
        self._bind = bind

    def need(self) -> i64:
        return ADDS

    def run(self, steps: Steps) -> bool:
        self.is_over = True
        self._peer.begin(self._bind)
        return True


class AlarmWait(Job):
    """Waits for `bind`, before another request of its channel."""

    def __init__(self, bind: WaitingBind) -> None:
        self._bind = bind

    def need(self) -> i64:
        return NOTHING if self._bind.is_over else ADDS

    def run(self, steps: Steps) -> bool:
        return self._bind.is_over
