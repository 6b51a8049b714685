"""What the clients of the lab did and were told, and what the nodes have in the end.

    sent        noted before sending; it may be there in the end, once
    confirmed   confirmed or committed; it has to be there in the end, once
    seen        delivered to a consumer, which acknowledges it: it need not be in that queue in the end

1. Each message has a unique name. A found message that was not sent to that queue is invented. So is a message that was
   found, and taken, in an earlier trial.
2. The two messages of a transaction are both there, or neither.
3. An offset of a stream holds the same message whenever it is read.
4. MQTT and AMQP 1.0 may deliver twice (at least once): their clients send again by themselves.
5. A message that was seen is never taken back. Its publish, or its transaction, put the same name into other queues: it
   is there. A message that was moved by a transaction, and was seen in its new queue, is not in the old one.

Every violation is a line that says what it is about. Threads share one `History`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

SHOWN_MAX: Final = 5


@dataclass(frozen=True)
class Rules:
    """The relations between queues, by name.

    `transactions`: they have the same messages. `twice`: messages may come twice. `witnesses`: the other queues that
    got each message of a queue. `moves`: from which queue the messages of a queue came.
    """

    transactions: tuple[str, str]
    twice: frozenset[str] = frozenset()
    witnesses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    moves: Mapping[str, str] = field(default_factory=dict)


class History:
    """All that is known of a run of the lab."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sent: dict[str, set[str]] = {}
        self._confirmed: dict[str, set[str]] = {}
        self._seen: dict[str, set[str]] = {}
        self._taken: set[str] = set()
        self._offsets: dict[int, str] = {}  # of the stream, as read while it was written
        self._confirms_s: list[float] = []

    # --- what clients do ----------------------------------------------------------------------------------------------

    def sends(self, queue: str, names: Iterable[str]) -> None:
        with self._lock:
            self._sent.setdefault(queue, set()).update(names)

    def confirmed(self, queue: str, names: Iterable[str]) -> None:
        found = list(names)
        with self._lock:
            self._confirmed.setdefault(queue, set()).update(found)
            self.counts[f"confirmed {queue}"] += len(found)
            self._confirms_s.append(time.monotonic())

    def saw(self, queue: str, name: str) -> None:
        """Take a message that a consumer of a queue has got, before it acknowledges it."""
        with self._lock:
            self.counts[f"seen {queue}"] += 1
            self._seen.setdefault(queue, set()).add(name)

    def read(self, offset: int, name: str) -> None:
        """Take what a reader of the stream has got at an offset."""
        with self._lock:
            self.counts["read"] += 1
            if self._offsets.setdefault(offset, name) != name:
                self._violated(f"offset {offset} held {self._offsets[offset]}, and holds {name}")

    def confirms(self) -> int:
        with self._lock:
            return len(self._confirms_s)

    def worst_gap_s(self, from_s: float, to_s: float) -> float:
        """Return the longest time without a confirm of anything."""
        with self._lock:
            times = [time_s for time_s in self._confirms_s if from_s <= time_s <= to_s]
        marks = [from_s, *times, to_s]
        return max(later - earlier for earlier, later in itertools.pairwise(marks))

    # --- what there is in the end -------------------------------------------------------------------------------------

    def drained(self, found: Mapping[str, list[str]], rules: Rules) -> None:
        """Judge what was taken out of all queues, and forget them."""
        for queue, names in found.items():
            self._judge(queue, names, may_repeat=queue in rules.twice, left=self._left(queue, found, rules))
        self._judge_seen(found, rules)
        one, other = (set(found.get(queue, ())) for queue in rules.transactions)
        torn = one ^ other
        if torn:
            self._violated(f"{len(torn)} transactions are there by half: {_shown(torn)}")
        for queue, names in found.items():
            self._taken.update(names)
            self._sent.pop(queue, None)
            self._confirmed.pop(queue, None)
            self._taken.update(self._seen.pop(queue, ()))

    def _left(self, queue: str, found: Mapping[str, list[str]], rules: Rules) -> set[str]:
        """Return the messages that have left a queue, as far as anybody knows: acknowledged, or moved."""
        left = set(self._seen.get(queue, ()))
        for target, source in rules.moves.items():
            if source == queue:
                left |= set(found.get(target, ())) | self._seen.get(target, set())
        return left

    def _judge_seen(self, found: Mapping[str, list[str]], rules: Rules) -> None:
        for queue, witnesses in rules.witnesses.items():
            for witness in witnesses:
                back = self._seen.get(queue, set()) - set(found.get(witness, ()))
                if back:
                    self._violated(
                        f"{len(back)} messages were seen in {queue}, and were taken back: "
                        f"{witness} lacks {_shown(back)}"
                    )
        for target, source in rules.moves.items():
            back = (self._seen.get(target, set()) | set(found.get(target, ()))) & set(found.get(source, ()))
            if back:
                self._violated(f"{len(back)} messages moved to {target}, and are in {source}: {_shown(back)}")

    def stream(self, queue: str, entries: Mapping[int, str]) -> None:
        """Judge the whole stream, which stays."""
        self._judge(queue, list(entries.values()), may_repeat=False, left=set())
        for offset, name in self._offsets.items():
            there = entries.get(offset)
            if there != name:
                self._violated(f"offset {offset} was read as {name}, and is {there}")

    def _judge(self, queue: str, names: list[str], *, may_repeat: bool, left: set[str]) -> None:
        there = set(names)
        lost = self._confirmed.get(queue, set()) - there - left
        strange = (there | self._seen.get(queue, set())) - self._sent.get(queue, set())
        back = strange & self._taken
        self.counts["found"] += len(names)
        self.counts["lost"] += len(lost)
        self.counts["invented"] += len(strange)
        if lost:
            self._violated(f"{queue} lacks {len(lost)} confirmed messages: {_shown(lost)}")
        if strange - back:
            self._violated(f"{queue} has {len(strange - back)} messages that nobody sent: {_shown(strange - back)}")
        if back:
            self._violated(f"{queue} has {len(back)} messages that were taken before: {_shown(back)}")
        if len(names) != len(there) and not may_repeat:
            repeated = {name for name, count in Counter(names).items() if count > 1}
            self._violated(f"{queue} has {len(repeated)} messages twice: {_shown(repeated)}")

    def _violated(self, text: str) -> None:
        self.violations.append(text)


def _shown(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:SHOWN_MAX]) + (" …" if len(ordered) > SHOWN_MAX else "")
