"""Every state of the promises between replicas, with clocks: that one node serves at a time, and none beyond its limit.

    cd tests && PYTHONPATH=.. ../.venv/bin/python -m cluster.promises

The first node leads. It sends beacons, and may remove a follower or hand over. Followers answer, and stand for election
at any time: only the *beginning* of their epoch has to wait for the grace time. Time advances in seconds. For each of
them a clock shows 0.9 or 1.1, varying or always the same. Between two seconds any steps may happen, or none: that
models a pause, a partition or a slow network. A request to etcd is carried out at any time until the revision changes.
A node learns the record in force at any time, or never.

Checked in every state: while the first node serves, no other node has begun an epoch. It serves while the last beacon
that all possibly recorded nodes have answered was sent less than the limit ago, by its own clock.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

LIMIT: Final = 20  # tenths of a second
GRACE: Final = 30
LEADER: Final = 0


@dataclass(frozen=True)
class Clocks:
    """How many followers there are, and what each clock may show of a second, the leader's first."""

    followers: int
    leader: tuple[int, ...]
    follower: tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """The rules that the promises keep. A test breaks each, and the check has to notice."""

    limit: int = LIMIT
    grace: int = GRACE
    limit_counts_from_sending: bool = True
    all_have_to_answer: bool = True
    unsettled_sets_count: bool = True
    late_changes_wait: bool = True
    handing_over_stops_service: bool = True


class Record(NamedTuple):
    """The contents of etcd, as far as they matter here."""

    leader: int
    by_transfer: bool
    in_sync: frozenset[int]


class Follower(NamedTuple):
    """A follower. `message`: a beacon to it under way, or its answer, and how long ago the beacon was sent."""

    heard: int  # how long ago it received the last beacon, by its own clock
    promised: int  # how long ago the beacon was sent that the leader has its last answer to, by the leader's clock
    message: tuple[bool, int] | None  # whether it is the answer
    revision: int
    has_begun: bool


class State(NamedTuple):
    """The whole state. `opened`: the proposal of the leader at the revision that it knows."""

    revision: int
    record: Record
    known_revision: int
    known: Record
    opened: frozenset[Record]
    followers: tuple[Follower, ...]
    flights: frozenset[tuple[int, Record]]


class Violation(AssertionError):
    """Two nodes serve at the same time."""


class Promises:
    """The steps from any state."""

    def __init__(self, clocks: Clocks, rules: Rules, revisions: int) -> None:
        self.clocks = clocks
        self.rules = rules
        self.revisions = revisions

    def first(self) -> State:
        record = Record(LEADER, False, frozenset(range(self.clocks.followers + 1)))
        follower = Follower(0, self.rules.limit, None, 1, False)
        return State(1, record, 1, record, frozenset(), (follower,) * self.clocks.followers, frozenset())

    def serves(self, state: State) -> bool:
        """Whether the first node serves."""
        if state.known.leader != LEADER:
            return False
        possible = {state.known, *(state.opened if self.rules.unsettled_sets_count else ())}
        if self.rules.handing_over_stops_service and any(record.leader != LEADER for record in state.opened):
            return False
        eligible = frozenset().union(*(record.in_sync for record in possible)) - {LEADER}
        if not self.rules.unsettled_sets_count and state.opened:
            eligible = min((record.in_sync for record in state.opened), key=len) - {LEADER}
        fresh = [state.followers[each - 1].promised < self.rules.limit for each in eligible]
        return all(fresh) if self.rules.all_have_to_answer else any(fresh) or not fresh

    def steps(self, state: State) -> Iterator[State]:
        """Yield every state that one step leads to."""
        for step in itertools.chain(self._ticks(state), self._etcd(state), self._lead(state), self._follow(state)):
            if any(follower.has_begun for follower in step.followers) and self.serves(step):
                raise Violation(f"two nodes serve: {step}")
            yield step

    def _ticks(self, state: State) -> Iterator[State]:
        rates = [self.clocks.leader, *[self.clocks.follower] * self.clocks.followers]
        for leader, *others in itertools.product(*rates):
            followers = tuple(
                follower._replace(
                    heard=min(follower.heard + rate, self.rules.grace),
                    promised=min(follower.promised + leader, self.rules.limit),
                    message=self._older(follower.message, leader),
                )
                for follower, rate in zip(state.followers, others, strict=True)
            )
            if followers != state.followers:
                yield state._replace(followers=followers)

    def _older(self, message: tuple[bool, int] | None, by: int) -> tuple[bool, int] | None:
        return None if message is None else (message[0], min(message[1] + by, self.rules.limit))

    def _etcd(self, state: State) -> Iterator[State]:
        for revision, record in state.flights:
            if revision == state.revision:
                yield state._replace(revision=revision + 1, record=record, flights=frozenset())
        if state.known_revision != state.revision and state.known.leader == LEADER:
            yield state._replace(known_revision=state.revision, known=state.record, opened=frozenset())

    def _propose(self, state: State, record: Record) -> Iterator[State]:
        if state.known_revision >= self.revisions or record in state.opened:
            return
        flights = state.flights
        if state.known_revision == state.revision:
            flights |= {(state.revision, record)}
        yield state._replace(opened=state.opened | {record}, flights=flights)

    def _lead(self, state: State) -> Iterator[State]:
        if state.known.leader != LEADER:
            return
        for other in state.known.in_sync - {LEADER}:
            yield from self._propose(state, state.known._replace(in_sync=state.known.in_sync - {other}))
            yield from self._propose(state, Record(other, True, state.known.in_sync))
        if state.opened:  # writing the record as it is settles what was proposed
            yield from self._propose(state, state.known)
        for index, follower in enumerate(state.followers):
            if follower.message != (False, 0):
                yield self._with(state, index, follower._replace(message=(False, 0)))
            if follower.message is not None and follower.message[0]:
                age = follower.message[1] if self.rules.limit_counts_from_sending else 0
                promised = min(age, follower.promised) if self.rules.limit_counts_from_sending else age
                yield self._with(state, index, follower._replace(message=None, promised=promised))

    def _follow(self, state: State) -> Iterator[State]:
        for index, follower in enumerate(state.followers):
            if follower.has_begun:
                continue
            me = index + 1
            if follower.message is not None and not follower.message[0]:
                answered = follower._replace(message=(True, follower.message[1]), heard=0)
                if follower.revision != state.revision or state.record.leader == LEADER:
                    yield self._with(state, index, answered)
            if follower.revision != state.revision:
                yield self._with(state, index, follower._replace(revision=state.revision))
                continue
            is_over = follower.heard >= self.rules.grace
            if state.record.leader == me:
                if state.record.by_transfer or is_over or not self.rules.late_changes_wait:
                    yield self._with(state, index, follower._replace(has_begun=True, message=None))
            elif state.record.leader == LEADER and me in state.record.in_sync and state.revision < self.revisions + 1:
                flight = (state.revision, Record(me, False, state.record.in_sync - {LEADER}))
                if flight not in state.flights:
                    yield state._replace(flights=state.flights | {flight})

    @staticmethod
    def _with(state: State, index: int, follower: Follower) -> State:
        followers = state.followers
        return state._replace(followers=(*followers[:index], follower, *followers[index + 1 :]))


@dataclass
class Explored:
    """The explored states; in `served` of them the first node serves, in `begun` another."""

    states: int
    served: int
    begun: int
    seconds: float


def explore(clocks: Clocks, rules: Rules | None = None, *, revisions: int = 2) -> Explored:
    """Look at every state.

    Raises:
        Violation: two nodes serve at the same time.
    """
    promises = Promises(clocks, rules or Rules(), revisions)
    first = promises.first()
    seen = {hash(first)}
    due = deque([first])
    served = begun = 0
    began = time.monotonic()
    while due:
        state = due.popleft()
        served += promises.serves(state)
        begun += any(follower.has_begun for follower in state.followers)
        for step in promises.steps(state):
            mark = hash(step)
            if mark not in seen:
                seen.add(mark)
                due.append(step)
    return Explored(len(seen), served, begun, time.monotonic() - began)


# One follower with clocks that change their minds; two with those that differ the most, either way.
SMALL: Final = (
    (Clocks(1, (9, 11), (9, 11)), 3),
    (Clocks(2, (9,), (11,)), 1),
)
LARGE: Final = (
    *SMALL,
    (Clocks(1, (9, 10, 11), (9, 10, 11)), 3),
    (Clocks(2, (11,), (9,)), 1),
)


def main() -> int:
    for clocks, revisions in LARGE:
        print(f"{clocks}, {revisions} revisions: {explore(clocks, revisions=revisions)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
