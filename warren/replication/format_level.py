"""The formats of links and files that a node understands, as one number: each level includes all lower ones.

    1    version 0.1.0
    2    answers WANT_BYTES, understands IMAGE_BYTES
    3    reads checkpoints of minor 3, with ids of lives; other nodes get them without the ids. Understands OBJECTION,
         and answers how far its log goes (``pre_vote``)
    4    knows the user that declared an exchange; other nodes get such a change without it

A node says its level when it proves itself, or takes a follower in; without a level it has level 1. A node is sent only
what it understands: so two versions work together while the nodes are upgraded one after the other. All other content
of files can be read, or skipped, by a node of level 1.
"""

from __future__ import annotations

import json
from typing import Final

from warren import __version__

LEVEL: Final = 4
ANSWERS_FROM: Final = 2
IMAGE_BYTES_FROM: Final = 2
LIVES_FROM: Final = 3
OBJECTION_FROM: Final = 3
POSITION_FROM: Final = 3
DECLARED_BY_FROM: Final = 4
LEVEL_TOLD: Final = {"level": LEVEL, "version": __version__}
VERSION_CHARS_MAX: Final = 64
TROUBLE_CHARS_MAX: Final = 500


def understood(record: bytes, level: int) -> bytes:
    """Return the record of a change of the metadata (``vhosts.metadata_lane``) as a node of `level` understands it.

    It refuses a field that it does not know, and ends.
    """
    if level >= DECLARED_BY_FROM or b'"ExchangePut"' not in record:
        return record
    change = json.loads(record)
    change.pop("declared_by", None)
    return json.dumps(change, separators=(",", ":")).encode()


def told_version(value: object) -> str | None:
    """Return the version that another node has told, if it is one."""
    return value if isinstance(value, str) and 0 < len(value) <= VERSION_CHARS_MAX else None


def told_life(value: object) -> str:
    """Return the life that another node has told; empty without one."""
    return value if isinstance(value, str) and len(value) <= VERSION_CHARS_MAX else ""


def told_trouble(value: object) -> str:
    """Return the trouble that another node has told of its directory; empty without any."""
    return value[:TROUBLE_CHARS_MAX] if isinstance(value, str) else ""


def told_level(value: object) -> int:
    """Return the level that another node has told; 1 without one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else 1
