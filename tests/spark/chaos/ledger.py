"""The published messages, one by one, and the judge that compares rows with them.

1. A message is published once, in any case. Its body follows from the seed, its source and its number, and ends with a
   checksum of the rest. So a reader knows whether it is one of ours, which one, and whether it is whole.
2. A confirmed message has to be somewhere. A message that was sent and never confirmed may be somewhere, once. Anything
   else was never published.
3. For a stream the broker says which body has which offset, so there nothing is left open.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Row(NamedTuple):
    """A row of a table, or a message; `offset`: in the stream that it is of."""

    body: bytes
    offset: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The faults of a table; `rows`: their number, `left`: messages of its source that still wait in the broker."""

    rows: int = 0
    left: int = 0
    lost: int = 0
    doubled: int = 0
    extra: int = 0
    wrong: int = 0

    @property
    def is_right(self) -> bool:
        return (self.lost, self.doubled, self.extra, self.wrong) == (0, 0, 0, 0)


def body_of(seed: int, source: str, number: int) -> bytes:
    """Return the body of message `number` of a source."""
    chance = random.Random(f"{seed} {source} {number}")
    text = f"{source} {number} {chance.randbytes(chance.choice([0, 8, 60, 400])).hex()}"
    return f"{text} {zlib.crc32(text.encode()):08x}".encode()


def maybe_number(source: str, body: bytes) -> int | None:
    """Return which message of a source a body is; None: it is damaged, or of none."""
    text, _, checksum = body.rpartition(b" ")
    words = text.split(b" ")
    if checksum != b"%08x" % zlib.crc32(text) or len(words) != 3 or words[0] != source.encode():
        return None
    return int(words[1])


@dataclass
class Ledger:
    """The messages published to each source, by number, and those of them that were confirmed."""

    seed: int
    sent: Counter[str] = field(default_factory=Counter)
    confirmed: dict[str, set[int]] = field(default_factory=dict)

    def next(self, source: str) -> tuple[int, bytes]:
        """Return the number and the body of the next message of a source, which counts as sent."""
        number = self.sent[source]
        self.sent[source] += 1
        return number, body_of(self.seed, source, number)

    def confirm(self, source: str, number: int) -> None:
        """Note that a message was confirmed."""
        self.confirmed.setdefault(source, set()).add(number)

    def judge(
        self,
        source: str,
        rows: Iterable[Row],
        *,
        stream: Mapping[int, bytes] | None = None,
        left: Iterable[bytes] = (),
    ) -> Verdict:
        """Judge the messages of a source, wherever they are.

        `stream`: the bodies of the stream by offset, when that is what should be in `rows`. `left`: messages waiting in
        the queue that was drained into `rows`.
        """
        found: Counter[int] = Counter()
        extra = wrong = 0
        table, waiting = list(rows), [Row(body) for body in left]
        for row in [*table, *waiting]:
            number = maybe_number(source, row.body)
            if number is not None and number >= self.sent[source]:
                extra += 1
            elif number is None or row.body != self._body_at(source, number, row.offset, stream):
                wrong += 1
            else:
                found[number] += 1
        if stream is None:
            wanted = self.confirmed.get(source, set())
        else:
            wanted = {number for body in stream.values() if (number := maybe_number(source, body)) is not None}
        doubled = sum(times - 1 for times in found.values())
        return Verdict(len(table), len(waiting), len(wanted - found.keys()), doubled, extra, wrong)

    def _body_at(
        self, source: str, number: int, offset: int | None, stream: Mapping[int, bytes] | None
    ) -> bytes | None:
        """Return what a row has to say that is message `number`, and of a stream at `offset`."""
        if stream is None or offset is None:
            return body_of(self.seed, source, number)
        return stream.get(offset)
