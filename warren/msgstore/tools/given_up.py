"""Damage that a repair has given up: `verify` finds it right after the repair, and it cannot be mended.

    given-up.json    beside the checkpoint: {"format": 1, "time_ms": ..., "problems": [...]}, the lines of `verify`

1. `verify` says of each once that it was given up. It is no longer a problem while exactly the same is found; other
   damage is. An entry whose segment has gone says nothing.
2. Bytes that the disk cannot read now are never given up: a later read may succeed.
3. Each repair replaces the file in one step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from warren.msgstore.files.file_system import FileSystem, read_exactly, write_all
from warren.msgstore.tools.lines import PROBLEM, Line, UnreadableStore, time_text

GIVEN_UP: Final = "given_up"
PATH: Final = "given-up.json"
_NEW: Final = "given-up.json.tmp"
_FORMAT: Final = 1
_UNREADABLE: Final = ("unreadable", "cannot be read", "cannot read", "cannot be opened", "Input/output error")
# Fields that change while the log grows.
_MOVING: Final = ("type", "durable_lsn")


class GivenUp:
    """The damage that the repairs of one store have given up."""

    def __init__(self, fs: FileSystem) -> None:
        """Read the file. Raises UnreadableStore: it is damaged, or a newer Warren has written it."""
        self._time = ""
        self._known: set[str] = set()
        try:
            handle = fs.open(PATH, writable=False)
        except FileNotFoundError:
            return
        try:
            document = json.loads(read_exactly(fs, handle, fs.size(handle), 0))
            if document["format"] != _FORMAT:
                raise UnreadableStore(f"messages/{PATH}: a newer Warren has written it (format {document['format']})")
            self._time = time_text(document["time_ms"])
            self._known = {_key(line) for line in document["problems"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UnreadableStore(f"messages/{PATH} is damaged: remove it, and repair again") from None
        finally:
            fs.close(handle)

    def judged(self, line: Line) -> Line:
        """Return a line of `verify`, marked as given up if it is that."""
        if line["type"] != PROBLEM or _key(line) not in self._known:
            return line
        return {**line, "type": GIVEN_UP, "repaired": self._time}


def give_up(fs: FileSystem, lines: Iterable[Line], time_ms: int) -> list[Line]:
    """Remember the problems among the lines of `verify`, durably; return them, except for unreadable files.

    Raises:
        OSError: they are not remembered.
    """
    problems = [line for line in lines if line["type"] == PROBLEM and not _is_unreadable(line)]
    with suppress(FileNotFoundError):
        fs.unlink(_NEW)
    content = json.dumps({"format": _FORMAT, "time_ms": time_ms, "problems": problems}).encode()
    handle = fs.create(_NEW, 0)
    try:
        write_all(fs, handle, [content], 0)
        fs.sync(handle)
    finally:
        fs.close(handle)
    fs.rename(_NEW, PATH)
    fs.sync_directory(".")
    return problems


def _key(line: Line) -> str:
    return json.dumps({name: value for name, value in line.items() if name not in _MOVING}, sort_keys=True)


def _is_unreadable(line: Line) -> bool:
    return any(word in str(line["what"]) for word in _UNREADABLE)
