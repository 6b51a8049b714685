"""URLs of SQLite files: ``sqlite:////absolute/path``, ``sqlite:///relative/path``, with ``%XX`` for bytes of a path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote_to_bytes

SQLITE: Final = "sqlite:"
_BEFORE_PATH: Final = f"{SQLITE}///"


def sqlite_url(path: Path) -> str:
    """Return the URL of the file `path`, whatever bytes its name has."""
    return _BEFORE_PATH + quote(os.fsencode(path.absolute()))


def path_of(url: str) -> Path:
    """Return the absolute path of the file that `url` names. Raises ValueError if it does not name one."""
    quoted = url.removeprefix(_BEFORE_PATH)
    if quoted == url or not quoted:
        raise ValueError("an SQLite URL needs a file (sqlite:////path/to/file)")
    if "?" in quoted:
        raise ValueError("an SQLite URL has no options; a ? in a path is written as %3F")
    path = unquote_to_bytes(quoted)
    if b"\x00" in path:
        raise ValueError("no file has a NUL in its name")
    # Absolute: SQLite has special names, such as ``:memory:``, that do not mean files.
    return Path(os.fsdecode(path)).absolute()
