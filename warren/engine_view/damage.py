"""Damage on disk, by queue: listed, and given up."""

from __future__ import annotations

from collections.abc import Callable

from warren.msgstore.log.message_log import MessageLog
from warren.queues.damage import DamagedPlace as DamagedPlace
from warren.queues.damage import damaged_messages, damaged_places, give_up_damage


class Damage:
    """The damage of one engine. `settle` ends the turn of a command."""

    def __init__(self, log: MessageLog, settle: Callable[[], None]) -> None:
        self._log = log
        self._settle = settle

    def messages(self) -> int:
        """Return how many messages are known to be damaged on disk."""
        return damaged_messages(self._log)

    def places(self, most: int) -> list[DamagedPlace]:
        """Return at most `most` damaged places, by queue."""
        return damaged_places(self._log, most)

    def give_up(self, vhost: str, queue: str) -> int:
        """Forget the damaged data of a queue; return how many messages there were."""
        count = give_up_damage(self._log, vhost, queue)
        self._settle()
        return count
