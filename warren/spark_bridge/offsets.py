"""The position of a query: the JSON that Spark keeps in its checkpoint.

    before the first batch    {"v": 1, "init": "latest"}
    streams                   {"v": 1, "p": {"orders": {"id": "i1", "next": 1500}, ...}}
    drained queues            {"v": 1, "d": {"orders": {"id": "i2", "next": 1500}, ...}}

    of each stream, or queue, by its name
        id      the incarnation of the stream, or of the queue of the claims, that `next` counts in
        next    the offset to read next
        base    where the query began with it; only in the offset in which it appears for the first time
        life    the life of the broker that wrote the last offset below `next` (``lives``); absent when it is not known
        lost    how many offsets were skipped because they were gone; absent when none were
        of, n   of a stream that is a partition of a super stream: which one, and its number
        from    the name of the queue of the claims

1. Before the first batch an offset does not depend on the broker: Spark asks for it several times, and again after a
   crash. The beginning of the query is in the end of its first batch, which Spark writes down before it reads anything.
2. Spark compares offsets as text: the same places make the same text.
3. An offset with another version, or of another mode, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from warren.spark_bridge.bridge_errors import BridgeError

VERSION: Final = 1
STREAMS: Final = "p"
CLAIMS: Final = "d"


class OffsetError(BridgeError, ValueError):
    """An offset in a checkpoint from which this query cannot continue."""


class Position(NamedTuple):
    """How far one stream or queue was read; see the header."""

    id: str
    next: int
    base: int | None = None
    lost: int = 0
    queue: str | None = None
    partition: int = 0
    claims: str | None = None
    life: str | None = None


Positions = Mapping[str, Position]


def sentinel(where: str) -> dict[str, Any]:
    """Return the offset before the first batch; `where` is for people."""
    return {"v": VERSION, "init": where}


def is_sentinel(offset: Mapping[str, Any]) -> bool:
    """Tell whether `offset` is the one before the first batch."""
    return "init" in offset


def document(positions: Positions, kind: str = STREAMS) -> dict[str, Any]:
    """Return the offset that says `positions`."""
    return {"v": VERSION, kind: {name: _entry(positions[name]) for name in sorted(positions)}}


def _entry(position: Position) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": position.id, "next": position.next}
    if position.life is not None:
        entry["life"] = position.life
    if position.base is not None:
        entry["base"] = position.base
    if position.lost:
        entry["lost"] = position.lost
    if position.queue is not None:
        entry["of"] = position.queue
        entry["n"] = position.partition
    if position.claims is not None:
        entry["from"] = position.claims
    return entry


def positions_of(offset: Mapping[str, Any], kind: str = STREAMS) -> dict[str, Position]:
    """Return the positions in `offset`; nothing for the one before the first batch.

    Raises:
        OffsetError: it is of another version or mode, or not ours.
    """
    if offset.get("v") != VERSION:
        raise OffsetError(f"the checkpoint has offsets of version {offset.get('v')!r}, and this can read {VERSION}")
    if is_sentinel(offset):
        return {}
    entries = offset.get(kind)
    if not isinstance(entries, Mapping):
        other = "a query that drains queues" if kind == STREAMS else "a query that reads streams"
        raise OffsetError(f"the checkpoint is that of {other}: use another checkpoint for another mode")
    try:
        return {
            name: Position(
                id=str(entry["id"]),
                next=int(entry["next"]),
                base=None if entry.get("base") is None else int(entry["base"]),
                lost=int(entry.get("lost", 0)),
                queue=entry.get("of"),
                partition=int(entry.get("n", 0)),
                claims=entry.get("from"),
                life=None if entry.get("life") is None else str(entry["life"]),
            )
            for name, entry in entries.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OffsetError(f"the checkpoint has an offset that cannot be read: {error!r}") from None


def begin(name: str, position: Position, before: Position | None) -> int:
    """Return from which offset a batch reads `name`; it ends at `position`, the one before it ended at `before`.

    Raises:
        OffsetError: neither of them says it.
    """
    if position.base is not None:
        return position.base
    if before is None or before.id != position.id:
        raise OffsetError(f"the checkpoint does not say where {name!r} begins")
    return before.next
