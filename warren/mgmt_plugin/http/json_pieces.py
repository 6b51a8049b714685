"""JSON of long answers, encoded piece by piece while it is sent.

1. A piece is encoded in one go, and is short: a run of up to `RUN` short values, or `TEXT` characters of a text. So any
   piece takes only a fraction of a millisecond.
2. The pieces together are the text that `encode_json` would have made of the whole.
3. `Rows` are described when their turn comes, so memory does not hold descriptions that wait. Each row is encoded in
   one go, whatever its size: the frames of clients bound what they can put into one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import msgspec

RUN: Final = 16
TEXT: Final = 16 << 10
_DEPTH: Final = 3


class Rows:
    """A list of an answer, whose items are described when they are sent. Items that are `gone` by then are left out."""

    def __init__(
        self, items: Collection[Any], describe: Callable[[Any], object], gone: Callable[[Any], bool] | None = None
    ) -> None:
        self._items = items
        self._describe = describe
        self._gone = gone
        self.count = 0  # of those that were described so far

    def pieces(self) -> Iterator[bytes]:
        """Yield the list as JSON; an empty piece is a row that no longer exists."""
        opening = b"["
        for item in self._items:
            if self._gone is not None and self._gone(item):
                yield b""
                continue
            self.count += 1
            yield opening + encode_json(self._describe(item))
            opening = b","
        yield b"[]" if opening == b"[" else b"]"


class LongText:
    """A text of an answer that is made when it is sent, each time its JSON is asked for."""

    def __init__(self, pieces: Callable[[], Iterator[str]]) -> None:
        self._pieces = pieces

    def __str__(self) -> str:
        return "".join(self._pieces())

    def pieces(self) -> Iterator[bytes]:
        """Yield the text as JSON."""
        yield b'"'
        for piece in self._pieces():
            for at in range(0, len(piece), TEXT):
                yield encode_json(piece[at : at + TEXT])[1:-1]
        yield b'"'


def encode_json(value: object) -> bytes:
    """Encode an answer, or a part of one, in one go."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, msgspec.MsgspecError):
        # Half a surrogate pair, out of a client's bytes.
        return json.dumps(value).encode()


def json_pieces(value: object) -> Iterator[bytes]:
    """Yield `value` as JSON. Keys are texts."""
    if isinstance(value, Rows | LongText):
        yield from value.pieces()
    elif _is_short(value, _DEPTH):
        yield encode_json(value)
    elif isinstance(value, str):
        yield from LongText(lambda: iter([value])).pieces()
    elif isinstance(value, dict):
        opening = b"{"
        for key, inner in value.items():
            yield opening + encode_json(key) + b":"
            yield from json_pieces(inner)
            opening = b","
        yield b"}"
    elif isinstance(value, list | tuple):
        yield from _list_pieces(value)
    else:
        yield encode_json(value)


def _list_pieces(values: list[Any] | tuple[Any, ...]) -> Iterator[bytes]:
    opening = b"["
    run: list[Any] = []
    for value in values:
        is_short = _is_short(value, _DEPTH)
        if run and (not is_short or len(run) == RUN):
            yield opening + encode_json(run)[1:-1]
            opening = b","
            run = []
        if is_short:
            run.append(value)
        else:
            yield opening
            yield from json_pieces(value)
            opening = b","
    if run:
        yield opening + encode_json(run)[1:-1]
        opening = b","
    yield b"[]" if opening == b"[" else b"]"


def _is_short(value: object, depth: int) -> bool:
    """Tell whether a value may be encoded in one go."""
    if isinstance(value, str):
        return len(value) <= TEXT // RUN
    if isinstance(value, dict):
        return len(value) <= 4 * RUN and depth > 0 and all(_is_short(each, depth - 1) for each in value.values())
    if isinstance(value, list | tuple):
        return len(value) <= RUN and depth > 0 and all(_is_short(each, depth - 1) for each in value)
    return not isinstance(value, Rows | LongText)
