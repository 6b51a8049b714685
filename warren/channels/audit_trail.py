"""Log lines for objects that clients delete and purge over AMQP: by which user, from where, and how many messages.

    audit  did="queue.delete orders"  vhost=shop  user=app  peer=10.0.0.7:51234  messages=12

1. A line is written for queue.delete and exchange.delete of an object that others may rely on: it is durable and
   neither exclusive nor auto-delete. A line is also written for queue.purge of such a queue that was not empty. Objects
   that come and go with their clients have no line. Declares, binds and unbinds have no line either: clients repeat
   them at each start, and the event exchange reports them.
2. A user has at most `LINES_MAX` lines from one tick to the next. All further changes share one line with their number:
   so no change is silent, and no client can fill the disk of the log.
3. Changes that the management API makes for its users have their lines there (``mgmt_plugin/audit.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LINES_MAX: Final = 50
NOT_OF_MESSAGES: Final = -1
EVENT: Final = "audit"


class AuditTrail:
    """Counts the changes of each user since the last tick; `note` adds a notice for the log."""

    def __init__(self, note: Callable[[str, str, dict[str, object]], None]) -> None:
        self._note = note
        self._counts: dict[str, int] = {}

    def changed(self, did: str, vhost: str, user: str, peer: str, messages: int = NOT_OF_MESSAGES) -> None:
        """Log what `user` did; `messages`: so many went with it."""
        count = self._counts.get(user, 0) + 1
        self._counts[user] = count
        if count > LINES_MAX:
            return
        fields: dict[str, object] = {"did": did, "vhost": vhost, "user": user, "peer": peer}
        if messages != NOT_OF_MESSAGES:
            fields["messages"] = messages
        self._note("info", EVENT, fields)

    def tick(self) -> None:
        """Log the number of changes that had no line of their own."""
        if not self._counts:
            return
        counts = self._counts
        self._counts = {}
        for user, count in counts.items():
            if count > LINES_MAX:
                self._note(
                    "warning", EVENT, {"did": "more deletes and purges", "user": user, "count": count - LINES_MAX}
                )
