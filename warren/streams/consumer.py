"""The wishes of a stream's consumer: where to begin, and which messages.

``x-stream-offset`` is ``first``, ``last``, ``next`` (the default), an offset, a timestamp, or an age such as ``1h``.
``x-stream-filter`` is one value or several: a message is delivered if its header ``x-stream-filter-value`` is one of
them, and with ``x-stream-match-unfiltered`` also if it does not have that header, or an empty one. A protocol may
define more wishes of its consumers: a `Selection` (``queues.selection``).

Source: RabbitMQ, "Streams"; texts were seen on 3.10.8, where ``bogus`` and ``true`` end in an internal error.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TYPE_NAMES, Timestamp, decode_table, find_tag, maybe_value
from warren.amqp.properties import FLAGS_OFFSET, HEADERS, headers_of
from warren.amqp.term_text import term_text
from warren.msgstore.log.columns import filter_mask, may_have
from warren.msgstore.log.message import HEADER_AT, Message
from warren.msgstore.log.sealed_table import SealedChunk
from warren.queues.arguments import LONG_TYPES, STREAM, age_ms
from warren.queues.lanes import NUMBER_MASK
from warren.queues.selection import COST_UNIT, Selection

OFFSET: Final = "x-stream-offset"
FILTER: Final = "x-stream-filter"
MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
_FILTER_VALUE: Final = b"x-stream-filter-value"
_RAW_FILTER_VALUE: Final = b"\x15x-stream-filter-value"

OFFSET_MAX: Final = NUMBER_MASK  # no stream reaches this offset
# Later times never come. In microseconds, the unit of sealed chunks, this still fits into an i64.
LATEST_MS: Final = 1 << 52

# Looking for this many values in the filter of a chunk costs as much as delivering a message.
VALUES_UNIT: Final = 16

# Where a consumer begins.
AT_OFFSET: Final = 0
AT_TIME: Final = 1
AT_FIRST: Final = 2
AT_LAST: Final = 3
AT_NEXT: Final = 4
_NAMED: Final = {"first": AT_FIRST, "last": AT_LAST, "next": AT_NEXT}


class Start:
    """Where to begin. ``value`` is an offset, or with `AT_TIME` a time in ms since the epoch; see `at_time`."""

    def __init__(self, kind: i64, value: i64) -> None:
        self.kind: i64 = kind
        self.value: i64 = value


def at_time(time_ms: int) -> Start:
    """Return the beginning at a time in ms since the epoch, however large or small."""
    return Start(AT_TIME, i64(max(0, min(time_ms, LATEST_MS))))


class Filter(Selection):
    """Which messages a consumer wants."""

    def __init__(self, values: list[str], unfiltered: bool) -> None:
        super().__init__()
        # RabbitMQ takes a message with an empty value as one without.
        self._values = {*values, ""} if unfiltered else set(values)
        self._masks = [filter_mask(value) for value in self._values]
        self._unfiltered: bool = unfiltered

    def passes(self, message: Message, now_ms: i64) -> bool:
        value = filter_value_of(message)
        self.cost = (i64(read_i32_be(message.header_frame(), 3)) & 0xFFFFFFFF) // COST_UNIT
        return self._unfiltered if value is None else value in self._values

    def may_be_in(self, chunk: SealedChunk) -> bool:
        """Tell whether a chunk may have a wanted message; False is certain."""
        bits = chunk.filter
        self.cost = 1
        if bits is None or (self._unfiltered and chunk.has_unfiltered):
            return True
        self.cost += len(self._masks) // VALUES_UNIT
        return may_have(bits, self._masks)


def filter_value_of(message: Message) -> str | None:
    """Return the filter value of `message`; None: it does not have that header."""
    frame = message.header_frame()
    if i64(read_i16_be(frame, HEADER_AT + FLAGS_OFFSET)) & HEADERS == 0:
        return None
    header = message.header_payload()
    if header.find(_RAW_FILTER_VALUE) < 0:  # `in` makes an exception, and drops it
        return None
    value = maybe_value(headers_of(header), _FILTER_VALUE)
    return value if isinstance(value, str) else None


def start_of(queue_name: str, vhost_name: str, encoded: bytes, now_ms: i64) -> Start:
    """Return where the arguments of a basic.consume say to begin.

    Raises:
        ChannelException: 406, it is not one of those that the module header names.
    """
    if not find_tag(encoded, OFFSET):
        return Start(AT_NEXT, 0)
    value = decode_table(encoded)[OFFSET]
    # In this order: once narrowed to an int, compiled code has lost what kind of int it was.
    if isinstance(value, Timestamp):
        return at_time(int(value) * 1000)
    if isinstance(value, str):
        named = _NAMED.get(value)
        if named is not None:
            return Start(named, 0)
        age = age_ms(value)
        if age > 0:
            return at_time(int(now_ms - age))
    elif isinstance(value, int) and not isinstance(value, bool):
        return Start(AT_OFFSET, i64(min(max(value, 0), OFFSET_MAX)))
    kind = TYPE_NAMES[find_tag(encoded, OFFSET)]
    raise _invalid(OFFSET, queue_name, vhost_name, f"{{invalid_stream_offset_arg,{{{kind},{term_text(value)}}}}}")


def filter_of(queue_name: str, vhost_name: str, encoded: bytes) -> Filter | None:
    """Return the filter that the arguments of a basic.consume ask for.

    Raises:
        ChannelException: 406, it is neither a text nor an array of texts.
    """
    if not find_tag(encoded, FILTER):
        return None
    table = decode_table(encoded)
    wanted = table[FILTER]
    listed: list[object] = wanted if isinstance(wanted, list) else [wanted]
    values = [value for value in listed if isinstance(value, str)]
    if len(values) < len(listed):
        kind = TYPE_NAMES[find_tag(encoded, FILTER)]
        raise _invalid(FILTER, queue_name, vhost_name, f"{{invalid_stream_filter_arg,{{{kind},{term_text(wanted)}}}}}")
    unfiltered = table.get(MATCH_UNFILTERED, False)
    if not isinstance(unfiltered, bool):
        kind = TYPE_NAMES[find_tag(encoded, MATCH_UNFILTERED)]
        raise _invalid(MATCH_UNFILTERED, queue_name, vhost_name, f"{{unacceptable_type,{kind}}}")
    return Filter(values, unfiltered)


def check_priority(queue_name: str, vhost_name: str, encoded: bytes) -> None:
    """Refuse a priority: every consumer of a stream gets every message.

    Raises:
        ChannelException: 406.
    """
    if find_tag(encoded, "x-priority"):
        text = f"invalid arg 'x-priority' for queue '{queue_name}' in vhost '{vhost_name}' of queue type "
        raise ChannelException(PRECONDITION_FAILED, text + LONG_TYPES[STREAM])


def _invalid(name: str, queue_name: str, vhost_name: str, reason: str) -> ChannelException:
    text = f"invalid arg '{name}' for queue '{queue_name}' in vhost '{vhost_name}': {reason}"
    return ChannelException(PRECONDITION_FAILED, text)
