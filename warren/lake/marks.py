"""The position of a table in its source: a few numbers that are committed together with rows.

    key             number
    epoch           of the writer that may write; each that starts takes the next one
    source          fingerprint of the source of the table: vhost, name, and whether it is drained
    id/STREAM       fingerprint of the incarnation of a stream, or of the session of a drain
    next/STREAM     the offset after the last one that is in the table
    life/STREAM     fingerprint of the life of the broker that wrote that last one (``spark_bridge.lives``), or 0

1. Rows and the numbers that say how far they go are one commit of the table. Nothing else is stored anywhere.
2. Iceberg keeps them in the summary of a snapshot, Delta as versions of transactions: so they are numbers. If the table
   is rolled back to an older state, they are rolled back as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final, NamedTuple

EPOCH: Final = "epoch"
SOURCE: Final = "source"
ID: Final = "id/"
NEXT: Final = "next/"
LIFE: Final = "life/"

Marks = Mapping[str, int]


class Place(NamedTuple):
    """How far a stream is in a table: `next` is the offset to be read next, `id` the fingerprint of its incarnation.

    `life`: the fingerprint of the life that has written the last offset below `next`; 0: it is not known.
    """

    id: int
    next: int
    life: int = 0


Places = Mapping[str, Place]
NO_PLACES: Final[Places] = {}


def fingerprint(text: str) -> int:
    """Return a number that stands for `text`: 63 bits, since tables keep signed ones."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1


def marks_of(places: Places) -> dict[str, int]:
    """Return the numbers that say `places`."""
    marks = {}
    for name, place in places.items():
        marks[ID + name] = place.id
        marks[NEXT + name] = place.next
        marks[LIFE + name] = place.life  # also if it is not known: Delta keeps what is not replaced
    return marks


def places_of(marks: Marks) -> dict[str, Place]:
    """Return the meaning of the numbers for streams."""
    found = {}
    for key, number in marks.items():
        name = key.removeprefix(NEXT)
        if name != key and ID + name in marks:
            found[name] = Place(marks[ID + name], number, marks.get(LIFE + name, 0))
    return found


def keys_of(names: list[str]) -> list[str]:
    """Return the keys of all numbers that a table can have that follows the streams `names`."""
    return [EPOCH, SOURCE, *(prefix + name for name in names for prefix in (ID, NEXT, LIFE))]


def furthest(one: Places, other: Places) -> dict[str, Place]:
    """Return the places of `other`, and of `one` those that are further in a stream of the same incarnation."""
    found = {**one, **other}
    for name, place in one.items():
        if found[name].id == place.id and place.next > found[name].next:
            found[name] = place
    return found


def is_ahead(one: Places, other: Places) -> bool:
    """Tell whether `one` is further than `other`, in a stream of the same incarnation or in one that `other` lacks."""
    return any(
        name not in other or (other[name].id == place.id and place.next > other[name].next)
        for name, place in one.items()
    )
