"""Recent history exchanges: a fanout that remembers its last messages for destinations bound later.

1. ``history()`` holds at most ``x-recent-history-length`` messages, 20 without the argument, oldest first.
2. A message is remembered when its route passes here, matched or not, unless its header says no-store.

Routing runs before there is a message object, so `match` notes itself in `Content.rememberers`; who publishes
calls `remember` once the message exists, and delivers `history()` after a bind. Remembered messages do not
survive a restart.

Source: RabbitMQ's ``x-recent-history``.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.term_text import term_text
from warren.exchanges.content import Content
from warren.exchanges.destination import Destination
from warren.exchanges.exchange import Exchange

HISTORY_LENGTH: Final = "x-recent-history-length"
NO_STORE: Final = "x-recent-history-no-store"
DEFAULT_HISTORY_LENGTH: Final = 20
_LENGTH_MAX: Final = 0x7FFFFFFF
# The bodies that one exchange keeps: they stay in memory. The latest message is kept whatever its size.
HISTORY_BYTES_MAX: Final = 64 << 20


class RecentHistoryExchange(Exchange):
    """An exchange of type ``x-recent-history``.

    Raises:
        ChannelException: 406, the length is not a positive integer.
    """

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration)
        self.cacheable = False
        length = self.table.get(HISTORY_LENGTH, DEFAULT_HISTORY_LENGTH)
        if isinstance(length, bool) or not isinstance(length, int) or length <= 0:
            raise ChannelException(
                PRECONDITION_FAILED,
                f"Invalid argument {term_text(length)}, '{HISTORY_LENGTH}' must be a positive integer",
            )
        self._length = min(length, _LENGTH_MAX)
        self._messages: deque[object] = deque()
        self._sizes: deque[int] = deque()  # of their bodies
        self._bytes: int = 0

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        self.match_keys([routing_key], content, found)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        if content.headers.get(NO_STORE) is not True:
            content.remembered_by(self)
        found.extend(self.by_destination)

    def remember(self, message: object, size: int) -> None:
        """Keep `message`, whose body has `size` bytes; the oldest go when there are too many, or too much."""
        self._messages.append(message)
        self._sizes.append(size)
        self._bytes += size
        while len(self._messages) > self._length or (self._bytes > HISTORY_BYTES_MAX and len(self._messages) > 1):
            self._messages.popleft()
            self._bytes -= self._sizes.popleft()

    def history(self) -> list[object]:
        """Return the remembered messages, oldest first: what a newly bound destination gets."""
        return list(self._messages)
