"""How far a long command is, on standard error: standard output belongs to its result.

On a terminal it is one line that is rewritten and taken away at the end. Elsewhere it is a line every `LINE_S`, so
that a log shows that the command works; a command that is done sooner says nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, Self, TextIO

from warren.ctl.words import size_text

LINE_S: Final = 5.0
REDRAW_S: Final = 0.2
_CLEAR: Final = "\r\x1b[K"


class Progress:
    """Counts bytes of one piece of work; use it as a context manager. `total_bytes` 0: not known."""

    def __init__(
        self,
        what: str,
        total_bytes: int = 0,
        *,
        wanted: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._stream = stream or sys.stderr
        self._on_terminal = self._stream.isatty()
        self._wanted = wanted
        self._clock = clock
        self._done_bytes = 0
        self._next_s = clock() + (REDRAW_S if self._on_terminal else LINE_S)
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn and self._on_terminal:
            self._write(_CLEAR)
        self._drawn = False

    def advance(self, size: int) -> None:
        """Count `size` bytes more, and tell the sum when it is time."""
        self._done_bytes += size
        if not self._wanted or self._clock() < self._next_s:
            return
        self._next_s = self._clock() + (REDRAW_S if self._on_terminal else LINE_S)
        self._drawn = True
        self._write(f"{_CLEAR}{self._text()}" if self._on_terminal else f"{self._text()}\n")

    def _text(self) -> str:
        done = f"{self._what}: {size_text(self._done_bytes)}"
        # What is read twice counts twice, so a total may be passed.
        if not 0 < self._done_bytes <= self._total_bytes:
            return done
        return f"{done} of {size_text(self._total_bytes)}, {100 * self._done_bytes // self._total_bytes} %"

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._wanted = False  # it is not worth a failed command
