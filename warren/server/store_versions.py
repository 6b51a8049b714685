"""Note which Warren made a message store, and which wrote it last: the file ``written-by.json`` beside the log.

    created_by         the version; null: an older Warren, which did not say so
    last_written_by    the version of the last start
    since_ms           when that version has started on it first, ms since the Unix epoch

1. If the version is another one, a start writes the file before anything else in the store, and not before it has
   read all of it: a start that refuses a newer format leaves the name of the version to start instead.
2. The file decides nothing: formats have numbers of their own. It tells a person which version to start instead.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from warren import __version__
from warren.server.durable_file import replace_file
from warren.server.logs import get_logger
from warren.server.start_errors import StartError

NAME: Final = "written-by.json"
_BYTES_MAX: Final = 1 << 16
_NEWER: Final = "newer Warren"  # in every refusal of a format
_UNKNOWN: Final = "cannot be restored"  # in every refusal of metadata, which a newer Warren may know
_ADVICE: Final = "start the newer version, or restore a backup that was made before the upgrade"

log = get_logger("server")


@dataclass(frozen=True, slots=True)
class Versions:
    """See the header."""

    created_by: str | None
    last_written_by: str
    since_ms: int


def maybe_read(messages: Path) -> Versions | None:
    """Return the versions in the directory of a message store; None if they cannot be read."""
    try:
        with (messages / NAME).open("rb") as file:
            return parsed(file.read(_BYTES_MAX))
    except (OSError, ValueError):
        return None


def parsed(content: bytes) -> Versions:
    """Return the versions in the file. Raises ValueError."""
    found = json.loads(content)
    try:
        created_by, last_written_by, since_ms = found["created_by"], found["last_written_by"], found["since_ms"]
    except (TypeError, KeyError):
        raise ValueError("not the versions of a store") from None
    if not isinstance(last_written_by, str) or not isinstance(created_by, str | None) or not isinstance(since_ms, int):
        raise ValueError("not the versions of a store")
    return Versions(created_by, last_written_by, since_ms)


def note(messages: Path, *, is_new: bool, version: str = __version__) -> Versions:
    """Note that a version writes the store from now on; return the versions. On a full disk that is noted later."""
    known = maybe_read(messages)
    if known is not None and known.last_written_by == version and not is_new:
        return known
    if known is not None and not is_new:
        log.info("another version of Warren wrote the message store last", last=known.last_written_by, now=version)
    created_by = version if is_new else None if known is None else known.created_by
    noted = Versions(created_by, version, time.time_ns() // 1_000_000)
    content = json.dumps(asdict(noted)).encode() + b"\n"
    try:
        replace_file(messages / NAME, lambda _: content)
    except OSError as error:
        log.warning(
            "the version of this Warren is not recorded in the message store", reason=error.strerror or str(error)
        )
    return noted


def explained(reason: str, messages: Path, version: str = __version__) -> str:
    """Return why a store is refused; with both versions and what to do, if a newer Warren has written it."""
    known = maybe_read(messages)
    is_of_another = known is not None and known.last_written_by != version and _UNKNOWN in reason
    if _NEWER not in reason and not is_of_another:
        return reason
    last = f", and Warren {known.last_written_by} has written the message store last" if known is not None else ""
    return f"{reason}; this is Warren {version}{last}; {_ADVICE}"


@contextmanager
def told(messages: Path) -> Iterator[None]:
    """Make a StartError of the block name both versions and what to do, if a newer Warren has written the store."""
    try:
        yield
    except StartError as error:
        error.args = (explained(str(error), messages),)
        raise
