"""Delays that a publisher asks for: which headers, and what they mean.

    x-delay         integer, ms from now; RabbitMQ's delayed message exchange has the same header
    x-deliver-at    integer, ms since the epoch, or a timestamp (seconds)

1. Whichever of the two is later counts. A time that has come, a negative number, or a value of another type is no
   delay: what other brokers ignore must not close a channel.
2. A message that was delayed says so: its ``x-delay`` is negative when it is delivered, as RabbitMQ's exchange does it,
   and so does not delay it again in the next broker.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import Timestamp, decode_table
from warren.amqp.properties import headers_of
from warren.msgstore.message import Message
from warren.queues.dead_letter import with_header

DELAY: Final = "x-delay"
DELIVER_AT: Final = "x-deliver-at"
DELAY_MAX_MS: Final = 315360000000


def due_time_ms(header: bytes, now_ms: int) -> int:
    """Return until when a message with this content header payload is to be held, in ms since the epoch; 0: not.

    Raises:
        ChannelException: 406, further away than ten years.
    """
    # Keys are short strings: their length octet is part of what we look for.
    if b"\x07x-delay" not in header and b"\x0cx-deliver-at" not in header:
        return 0
    headers = headers_of(header)
    if not headers:
        return 0
    table = decode_table(headers)
    due_ms = 0
    delay = table.get(DELAY)
    if isinstance(delay, int) and not isinstance(delay, bool) and delay > 0:
        due_ms = now_ms + delay
    at = table.get(DELIVER_AT)
    if isinstance(at, Timestamp):
        due_ms = max(due_ms, int(at) * 1000)
    elif isinstance(at, int) and not isinstance(at, bool):
        due_ms = max(due_ms, at)
    if due_ms <= now_ms:
        return 0
    if due_ms - now_ms > DELAY_MAX_MS:
        raise ChannelException(PRECONDITION_FAILED, f"delay of {due_ms - now_ms} ms is more than {DELAY_MAX_MS} ms")
    return due_ms


def without_delay(message: Message) -> Message:
    """Return `message` with the sign of its ``x-delay`` changed."""
    delay = decode_table(headers_of(message.header_payload())).get(DELAY)
    if isinstance(delay, int) and not isinstance(delay, bool) and delay > 0:
        return with_header(message, DELAY, -delay)
    return message
