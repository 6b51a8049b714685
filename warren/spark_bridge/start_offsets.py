"""The beginning or end of a stream's reader, in words for people: a word, an offset, an age or a time.

first, earliest     the oldest message that is there
next, latest        after the newest
last                the newest chunk
1500                an offset
1h, 7D              an age, as `x-stream-offset` takes them
2026-01-31T12:00    a time; without a zone it is UTC
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.control import BrokerClient, Description

_WORDS: Final = {"earliest": "first", "first": "first", "latest": "next", "next": "next", "last": "last"}


def offset_at(client: BrokerClient, part: Description, text: str) -> int:
    """Return the offset of `part` that `text` stands for. One that is given as a number may be anywhere.

    Raises:
        UsageError: it is none of these. BridgeError: the broker cannot say.
    """
    word = _WORDS.get(text.lower())
    if word == "first":
        return part.first
    if word == "next":
        return part.end
    if text.isascii() and text.isdigit():
        return int(text)
    if word is None and "-" in text:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(f"{text!r} is not an offset, an age or a time") from None
        time_ms = round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
        found = client.resolve(part.name, time_ms=time_ms)
    else:
        found = client.resolve(part.name, word or text)
    return min(max(found, part.first), part.end)
