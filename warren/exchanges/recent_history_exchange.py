"""Recent history exchanges: a fanout that remembers its last messages for queues bound later.

1. It holds at most ``x-recent-history-length`` messages, 20 without the argument, of `HISTORY_BYTES_MAX` bytes at most.
   It keeps the latest message whatever its size, unless the exchanges of its vhost together hold more than
   `HISTORIES_BYTES_MAX`. Then an exchange that remembers a message forgets its own until the total is small enough.
2. An accepted message is remembered if its route passes here, even if it matches no binding. A message whose header
   says no-store is not remembered.
3. The remembered messages are a chain, from the oldest to an end that the next message will fill. A reader of the chain
   (``history_bind``) misses nothing: messages that are no longer remembered still lead to the others.

Remembered messages do not survive a restart.

Source: RabbitMQ's ``x-recent-history``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.term_text import term_text
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.exchange import BindJob, Exchange
from warren.exchanges.exchange_host import ExchangeHost, RememberedBytes
from warren.exchanges.history_bind import HistoryBind, Remembered
from warren.msgstore.log.message import Message
from warren.queues.destination import Destination
from warren.queues.long_work import Steps
from warren.queues.outcome import ACCEPTED

if TYPE_CHECKING:
    from warren.queues.base_queue import BaseQueue

HISTORY_LENGTH: Final = "x-recent-history-length"
NO_STORE: Final = "x-recent-history-no-store"
DEFAULT_HISTORY_LENGTH: Final = 20
_LENGTH_MAX: Final = 0x7FFFFFFF
# The most bytes of memory for the messages of one exchange, besides the latest one (1).
HISTORY_BYTES_MAX: Final = 64 << 20
# The same for all exchanges of a vhost together.
HISTORIES_BYTES_MAX: Final = 256 << 20
# The cost of remembering a message, besides the message: its place in the chain, and names it does not share.
REMEMBERED_BYTES: Final = 292


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
        self._end = Remembered()
        self.oldest = self._end
        self.memory = RememberedBytes()  # shared by all of a vhost, once it is in one
        self._bytes: i64 = 0
        self.count: i64 = 0  # of the remembered messages
        self.remembered: i64 = 0  # of all messages that it has ever remembered
        # Binds whose queue does not have the whole history yet. They count as use of the exchange, as bindings do.
        self.pending: dict[Binding, None] = {}

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        self.match_keys([routing_key], content, found)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        if content.headers.get(NO_STORE) is not True:
            content.acts(self, takes=False)
            content.steps_left -= len(self.pending)  # the binds that wait for it (`history_bind` (5))
        found.extend(self.by_destination)

    def enter(self, host: ExchangeHost) -> None:
        self.memory = host.remembered_bytes

    def publish(self, message: Message) -> i64:
        if not self.deleted:  # it may be deleted since the routing: then nothing would forget the message
            self.remember(message, message.memory_bytes)
        return ACCEPTED

    def is_used(self) -> bool:
        return len(self.bindings) > 0 or len(self.pending) > 0

    def maybe_bind_job(
        self, host: ExchangeHost, queue: BaseQueue, binding: Binding, by: str, done: Callable[[int], None]
    ) -> BindJob | None:
        source = binding.source
        source.check_binding(binding.routing_key, binding.arguments)
        return HistoryBind(host, self, queue, binding, by, done)

    def forget(self, steps: Steps) -> bool:
        while self.count > 0:
            if steps.left <= 0:
                return False
            steps.left -= 1
            self.forget_oldest()
        return True

    def remember(self, message: object, size: i64) -> None:
        """Keep `message`, which takes `size` bytes; forget the oldest when there are too many messages or bytes."""
        latest = self._end
        latest.message = message
        latest.size = size + REMEMBERED_BYTES
        self._end = Remembered()
        latest.following = self._end
        self._bytes += latest.size
        self.memory.total += latest.size
        self.count += 1
        self.remembered += 1
        while self.count > self._length or (self._bytes > HISTORY_BYTES_MAX and self.count > 1):
            self.forget_oldest()
        while self.count > 0 and self.memory.total > HISTORIES_BYTES_MAX:
            self.forget_oldest()

    def history(self) -> list[object]:
        """Return the remembered messages, oldest first."""
        found: list[object] = []
        remembered = self.oldest
        while remembered.following is not None:
            found.append(remembered.message)
            remembered = remembered.following
        return found

    def forget_oldest(self) -> None:
        """Forget the oldest message. There is one."""
        oldest = self.oldest
        assert oldest.following is not None
        self.oldest = oldest.following
        self._bytes -= oldest.size
        self.memory.total -= oldest.size
        self.count -= 1
