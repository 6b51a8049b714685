"""Every state of the protocol within bounds: three nodes, some epochs, some frames, and all possible faults.

    cd tests && PYTHONPATH=.. ../.venv/bin/python -m cluster.protocol --seconds 600

This model checks that confirms need no clock, so it has no clock: a node may stand, remove, add and hand over at any
moment. The transitions of the record are those of ``warren/cluster/record.py``; the rest is the protocol in short. It
does not use the code of the members, which random worlds test (``world.py``).

Messages that are late or lost, pauses, partitions and nodes that are down need no steps of their own: a possible step
may be delayed for any time. To this end a leader's log of an epoch stays in the network for good, and a follower may
take its next entry at any time. A request to etcd stays as well, and may be carried out at any time until the revision
changes. Commits are made as soon as they can be: nothing depends on one, so that is the worst moment.

Checked in every state:

    C1  the log of each leader of a later epoch has all committed entries, now or from now on
    C2  two leaders do not commit different entries
    C3  an epoch is begun once
    T   a leader by transfer has all entries that its predecessor has sent, committed or not
    R   a recorded replica has everything that is committed, and the record is valid
    L   a directory that was never restored is not taken for a restored one

A disk may go back: to a copy of it that was made at any moment, once the record knows a later life of that directory,
or a floor beyond the end of the copy (`Bounds.restores`), one at a time. R does not hold for that replica until it has
everything again; C1 does. The model assumes that its node reads the record before it acknowledges. Its promises are
gone with its disk, and a leader that does not know of its end may ask for them.

Whether a commit may wait for fewer replicas than all in sync is a rule, too (`commit_waits_for_all`).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from warren.cluster.record import (
    LeaderBy,
    Life,
    Record,
    Refusal,
    Replica,
    added,
    forgotten,
    left,
    removed,
    renewed,
    taken_over,
    transferred,
)

NODES: Final = ("a", "b", "c")
UNKNOWN: Final = -1
WALK_STEPS_MAX: Final = 200
NO_SET: Final[frozenset[int]] = frozenset()
Log = tuple[int, ...]  # the epochs of the entries; an epoch has one log, so place and epoch say which entry it is


@dataclass(frozen=True)
class Bounds:
    """How much may happen. The first state has revision 1 and epoch 1, led by the first node, all in sync."""

    revisions: int
    epochs: int
    frames: int
    crashes: int = 0
    wipes: int = 0
    min_in_sync: int = 1
    in_sync: int = 3
    forgets: int = 0
    restores: int = 0
    # The second node's disk has a copy: 1 of an earlier life, 2 of this one and below the floor; 3 has that one in its
    # place already, with a frame that was committed before.
    copied: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.__dict__.items())


@dataclass(frozen=True)
class Rules:
    """The rules that the protocol keeps. A test breaks each, and the check has to notice."""

    unknown_may_be_done: bool = True
    read_settles_nothing: bool = True
    set_before_requires_acks: bool = True
    join_needs_all: bool = True
    join_requires_acks_first: bool = True
    older_epochs_are_refused: bool = True
    only_the_set_stands: bool = True
    incarnations_count: bool = True
    sync_before_commit: bool = True
    epoch_is_synced_before_it_is_sent: bool = True
    handing_over_writes_nothing: bool = True
    target_has_all: bool = True
    who_hands_over_does_so_for_good: bool = True
    lives_are_compared: bool = True
    floor_is_compared: bool = True
    restored_forgets_its_lives: bool = True
    lives_before_are_kept: bool = True
    lives_are_recorded_when_caught_up: bool = True
    commit_waits_for_all: bool = True


class Node(NamedTuple):
    """A node: `incarnation` and `log` are its disk, the rest is gone with its process."""

    incarnation: int
    log: Log
    leads: int  # the epoch, 0 for none
    revision: int  # that it knows
    record: int
    first_epoch: int
    follows: int
    opened: frozenset[int]  # records that it has proposed at that revision
    stood: frozenset[int]
    joining: tuple[int, int, int] | None  # a node, its incarnation, and how much it has to have
    hands_over: bool = False  # it writes nothing more
    forgot: int = 0  # how many nodes its administrator has had it forget
    lives: tuple[int, ...] = (0,)  # on its disk, too: the current one last
    began_at: tuple[int, int] = (0, 0)  # where its log ended at the start of the process
    is_restored: bool = False  # as it judges by itself
    is_judged: bool = False


class Begun(NamedTuple):
    """An epoch: its leader, and the entries that the leader has sent."""

    owner: int
    log: Log
    begins: int


class State(NamedTuple):
    """Everything. `flights`: requests that etcd may still carry out: the revision that they compare, and the record."""

    revision: int
    record: int
    nodes: tuple[Node, ...]
    begun: tuple[Begun | None, ...]
    acked: tuple[tuple[int, ...], ...]
    flights: frozenset[tuple[int, int]]
    committed: Log
    frames: int
    crashes: int
    wipes: int
    restores: int = 0
    born: int = 0  # lives so far, in a world with restores
    copy: tuple[int, Log, tuple[int, ...]] | None = None  # of whose disk, and what was on it
    older: int = UNKNOWN  # the node whose disk has gone back, and has not everything yet
    back: frozenset[int] = NO_SET  # nodes whose disks have ever gone back


def _end_of(log: Log) -> tuple[int, int]:
    return (log[-1] if log else 0, len(log))


class Violation(AssertionError):
    """A promise is broken in a state that can be reached."""


class Protocol:
    """The steps from any state. Records are numbers here, so that states are small."""

    def __init__(self, bounds: Bounds, rules: Rules | None = None) -> None:
        self.bounds = bounds
        self.rules = rules or Rules()
        self._records: list[Record] = []
        self._numbers: dict[Record, int] = {}
        self._members: list[frozenset[tuple[int, int]]] = []
        self._changes: dict[tuple[object, ...], int | None] = {}

    def first(self) -> State:
        replicas = [self._replica(node, 0) for node in range(3)]
        in_sync = frozenset(replicas[: self.bounds.in_sync])
        record = Record("s", 1, replicas[0], LeaderBy.FIRST, in_sync, frozenset(NODES), self.bounds.min_in_sync)
        if self.bounds.restores:
            lives = frozenset(Life(each.node, "0") for each in in_sync)
            record = replace(record, lives=lives, floor=(1, 1))
        number = self._number(record)
        nodes = [Node(0, (1,), 0, 1, number, 1, 1, NO_SET, NO_SET, None) for _ in range(3)]
        nodes[0] = nodes[0]._replace(leads=1, follows=0)
        epochs = self.bounds.epochs + 1
        begun: list[Begun | None] = [None] * epochs
        begun[1] = Begun(0, (1,), 1)
        acked = [(0, 0, 0)] * epochs
        acked[1] = (1, 1, 1)
        bounds = self.bounds
        return State(
            1, number, tuple(nodes), tuple(begun), tuple(acked), frozenset(), (1,),
            bounds.frames, bounds.crashes, bounds.wipes, bounds.restores,
            copy=(None, (1, (1,), (UNKNOWN,)), (1, (), (0,)), None)[bounds.copied],
        ) if bounds.copied < 3 else self._gone_back(number, tuple(nodes), tuple(begun), tuple(acked))  # fmt: skip

    def _gone_back(
        self, record: int, nodes: tuple[Node, ...], begun: tuple[Begun | None, ...], acked: tuple[tuple[int, ...], ...]
    ) -> State:
        bounds, log = self.bounds, (1, 1)
        a, b, c = (node._replace(log=log) for node in nodes)
        fresh = self._restarted(b._replace(log=()), 1)
        return State(
            1, record, (a, fresh, c), (begun[0], Begun(0, log, 1), *begun[2:]), (acked[0], (2, 0, 2), *acked[2:]),
            frozenset(), log, bounds.frames, bounds.crashes, bounds.wipes, 0, 1, None, 1, frozenset({1}),
        )  # fmt: skip

    # --- records ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _replica(node: int, incarnation: int) -> Replica:
        return Replica(NODES[node], str(incarnation))

    def _number(self, record: Record) -> int:
        number = self._numbers.get(record)
        if number is None:
            fault = record.fault()
            if fault is not None:
                raise Violation(f"R: {fault}")
            number = self._numbers[record] = len(self._records)
            self._records.append(record)
            self._members.append(frozenset((NODES.index(each.node), int(each.incarnation)) for each in record.in_sync))
        return number

    def _change(
        self, kind: str, number: int, node: int, incarnation: int, epoch: int, other: int, of: int, life: int = 0
    ) -> int | None:
        """Return the record that a node wants; `life`: of the one that leads next, or joins."""
        key = (kind, number, node, incarnation, epoch, other, of, life)
        if key not in self._changes:
            record, me, peer = self._records[number], self._replica(node, incarnation), self._replica(other, of)
            if kind == "stand":
                if not self.rules.only_the_set_stands:
                    record = replace(record, in_sync=record.in_sync | {me})
                if not self.rules.incarnations_count:
                    others = frozenset(each for each in record.in_sync if each.node != me.node)
                    was_in_sync = any(each.node == me.node for each in record.in_sync)
                    record = replace(record, in_sync=others | ({me} if was_in_sync else set()))
                changed = taken_over(record, me, epoch, life=str(life) if record.lives else None)
            elif kind == "leave":
                changed = left(record, me)
            elif kind == "remove":
                changed = removed(record, me, epoch, peer)
            elif kind == "forget":
                changed = forgotten(record, peer.node)
            elif kind == "add":
                changed = added(record, me, epoch, peer, 3, str(life) if record.lives else None)
            else:
                changed = transferred(record, me, epoch, peer)
            self._changes[key] = None if isinstance(changed, Refusal) else self._number(changed)
        return self._changes[key]

    # --- steps ------------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[State]:
        """Yield every state that one step leads to, commits included."""
        for step in self._steps(state):
            yield self._look(self._commit(step))

    def _steps(self, state: State) -> Iterator[State]:
        for flight in state.flights:
            if flight[0] == state.revision:
                yield state._replace(revision=state.revision + 1, record=flight[1], flights=frozenset())
        for index, node in enumerate(state.nodes):
            if node.revision != state.revision:
                yield self._learn(state, index)
            elif node.opened and not self.rules.read_settles_nothing:
                yield self._with(state, index, node._replace(opened=NO_SET))
            if node.leads:
                yield from self._lead(state, index, node)
            else:
                yield from self._follow(state, index, node)
            if state.crashes:
                born = state.born + 1 if self.bounds.restores else 0
                fresh = self._restarted(node, born)
                if fresh != node:
                    yield self._with(state, index, fresh)._replace(crashes=state.crashes - 1, born=born)
            if state.wipes and not node.leads:
                yield self._wiped(state, index, node)
            if state.restores and state.copy is None and node.log:
                yield state._replace(copy=(index, node.log, node.lives))
        if state.restores and state.copy is not None and state.older == UNKNOWN and self._is_told(state, state.copy):
            yield self._restored(state, state.copy)

    @staticmethod
    def _with(state: State, index: int, node: Node) -> State:
        nodes = state.nodes
        return state._replace(nodes=(*nodes[:index], node, *nodes[index + 1 :]))

    def _restarted(self, node: Node, born: int = 0) -> Node:
        fresh = Node(node.incarnation, node.log, 0, UNKNOWN, UNKNOWN, UNKNOWN, 0, NO_SET, NO_SET, None)
        if not self.bounds.restores:
            return fresh
        before = node.lives if self.rules.lives_before_are_kept else ()
        return fresh._replace(lives=(*before, born), began_at=_end_of(node.log))

    def _is_told(self, state: State, copy: tuple[int, Log, tuple[int, ...]]) -> bool:
        """Whether the record knows more of a directory than a copy of it does."""
        index, log, lives = copy
        record = self._records[state.record]
        life = record.life_of(self._replica(index, state.nodes[index].incarnation))
        return life is not None and (int(life) not in lives or _end_of(log) < record.floor)

    def _restored(self, state: State, copy: tuple[int, Log, tuple[int, ...]]) -> State:
        index, log, lives = copy
        born = state.born + 1
        fresh = self._restarted(state.nodes[index]._replace(log=log, lives=lives), born)
        acked = tuple(tuple(0 if at == index else each for at, each in enumerate(row)) for row in state.acked)
        gone = state._replace(
            acked=acked, restores=state.restores - 1, born=born, copy=None, older=index, back=state.back | {index}
        )
        return self._with(gone, index, fresh)

    def _judged(self, state: State, index: int, known: Node, record: Record) -> Node:
        """Compare the directory with what is on record, as `Member` does."""
        if not self.bounds.restores:
            return known
        life = record.life_of(self._replica(index, known.incarnation))
        is_start, known = not known.is_judged, known._replace(is_judged=True)
        if life is None:
            return known  # it is added when it has everything
        if int(life) == known.lives[-1]:
            return known._replace(is_restored=False, lives=known.lives[-1:])
        if known.is_restored:
            return known
        is_other = self.rules.lives_are_compared and int(life) not in known.lives
        is_behind = self.rules.floor_is_compared and is_start and known.began_at < record.floor
        if is_other or is_behind:
            if index not in state.back:
                raise Violation(f"L: {NODES[index]} takes its directory for a restored one")
            lives = known.lives[-1:] if self.rules.restored_forgets_its_lives else known.lives
            return known._replace(is_restored=True, lives=lives)
        at = known.lives.index(int(life)) if int(life) in known.lives else 0
        return known._replace(lives=known.lives[at:])

    def _wiped(self, state: State, index: int, node: Node) -> State:
        fresh = self._restarted(node)._replace(incarnation=node.incarnation + 1, log=())
        acked = tuple(tuple(0 if at == index else each for at, each in enumerate(row)) for row in state.acked)
        return self._with(state, index, fresh)._replace(acked=acked, wipes=state.wipes - 1)

    def _learn(self, state: State, index: int) -> State:
        """Read, or see what a watch tells."""
        node, record = state.nodes[index], self._records[state.record]
        known = node._replace(revision=state.revision, record=state.record, opened=NO_SET)
        if node.revision == UNKNOWN:
            known = known._replace(first_epoch=record.epoch)
        if node.leads:
            if record.epoch > node.leads:
                born = state.born + 1 if self.bounds.restores else 0
                return self._with(state, index, self._restarted(node, born))._replace(born=born)
            if node.joining is not None and node.joining[:2] in self._members[state.record]:
                known = known._replace(joining=None)
            return self._with(state, index, known)
        known = self._judged(state, index, known, record)
        if not self._may_lead(known, index, record):
            return self._with(state, index, known)
        epoch = record.epoch
        if state.begun[epoch] is not None:
            raise Violation(f"C3: {NODES[index]} begins epoch {epoch}, which was begun before")
        if node.log[: len(state.committed)] != state.committed:
            raise Violation(f"C1: {NODES[index]} begins epoch {epoch} without what was committed")
        before = state.begun[epoch - 1]
        if record.by is LeaderBy.TRANSFER and before is not None and node.log[: len(before.log)] != before.log:
            raise Violation(f"T: {NODES[index]} takes over with {node.log}, and its predecessor has sent {before.log}")
        log = (*node.log, epoch)
        if self.rules.epoch_is_synced_before_it_is_sent:
            known = known._replace(log=log)
        begun = (*state.begun[:epoch], Begun(index, log, len(log)), *state.begun[epoch + 1 :])
        known = known._replace(leads=epoch, follows=0)
        return self._with(state, index, known)._replace(begun=begun)

    def _may_lead(self, node: Node, index: int, record: Record) -> bool:
        if record.leader != self._replica(index, node.incarnation) or node.follows >= record.epoch:
            return False
        if node.is_restored:
            return False
        if node.log and node.log[-1] >= record.epoch:
            return False
        is_new = record.epoch > node.first_epoch
        return is_new and (record.epoch in node.stood or record.by is LeaderBy.TRANSFER)

    def _propose(self, state: State, index: int, node: Node, change: int | None) -> Iterator[State]:
        if change is None or node.revision >= self.bounds.revisions:
            return
        if self._records[change].epoch > self.bounds.epochs:
            return
        flight = (node.revision, change)
        if change in node.opened and (flight in state.flights or node.revision != state.revision):
            return
        flights = state.flights | {flight} if node.revision == state.revision else state.flights
        if self.rules.unknown_may_be_done:
            node = node._replace(opened=node.opened | {change})
        yield self._with(state, index, node)._replace(flights=flights)

    # --- a follower -------------------------------------------------------------------------------------------------

    def _follow(self, state: State, index: int, node: Node) -> Iterator[State]:
        if node.revision != UNKNOWN:
            log_epoch = node.log[-1] if node.log else 0
            arguments = (node.record, index, node.incarnation, log_epoch, index, node.incarnation)
            change = self._change("stand", *arguments, node.lives[-1])
            if node.is_restored:
                yield from self._propose(state, index, node, self._change("leave", *arguments))
            elif change is not None and self._records[node.record].epoch >= node.follows:
                stood = node._replace(stood=node.stood | {self._records[change].epoch}, follows=node.follows)
                yield from self._propose(state, index, stood, change)
        if node.revision == UNKNOWN and index in state.back:
            return
        for epoch, begun in enumerate(state.begun):
            if begun is not None and begun.owner != index and epoch >= self._floor(node):
                yield from self._take(state, index, node, epoch, begun.log)

    def _floor(self, node: Node) -> int:
        if not self.rules.older_epochs_are_refused:
            return 0
        record_epoch = 0 if node.revision == UNKNOWN else self._records[node.record].epoch
        return max(node.follows, record_epoch, node.log[-1] if node.log else 0)

    def _take(self, state: State, index: int, node: Node, epoch: int, log: Log) -> Iterator[State]:
        """Cut what differs, or take one entry, sync and acknowledge it."""
        same = 0
        for ours, theirs in zip(node.log, log, strict=False):
            if ours != theirs:
                break
            same += 1
        own = node.log
        if same < len(own) and same < len(log):
            own = own[:same]
        elif same == len(own) < len(log):
            own = log[: same + 1]
            same += 1
        row = state.acked[epoch]
        acked = state.acked
        if same > row[index]:
            row = (*row[:index], same, *row[index + 1 :])
            acked = (*acked[:epoch], row, *acked[epoch + 1 :])
        taken = node._replace(log=own, follows=epoch)
        if taken != node or acked is not state.acked:
            yield self._with(state, index, taken)._replace(acked=acked)

    # --- a leader ---------------------------------------------------------------------------------------------------

    def _lead(self, state: State, index: int, node: Node) -> Iterator[State]:
        epoch = node.leads
        begun = state.begun[epoch]
        assert begun is not None
        if len(node.log) < len(begun.log):
            yield self._with(state, index, node._replace(log=begun.log))
        may_end = node.revision < self.bounds.revisions and epoch < self.bounds.epochs
        if may_end and not node.hands_over and node.joining is None:
            yield self._with(state, index, node._replace(hands_over=True))
        if node.hands_over and not self.rules.who_hands_over_does_so_for_good:
            yield self._with(state, index, node._replace(hands_over=False))
        if state.frames and not (node.hands_over and self.rules.handing_over_writes_nothing):
            later = state.begun[epoch + 1] if epoch + 1 < len(state.begun) else None
            if later is not None and self._records[state.record].by is LeaderBy.TRANSFER:
                raise Violation(f"T: {NODES[index]} writes, and has handed over")
            longer = begun._replace(log=(*begun.log, epoch))
            sent = (*state.begun[:epoch], longer, *state.begun[epoch + 1 :])
            yield state._replace(begun=sent, frames=state.frames - 1)
        for other, peer in enumerate(state.nodes):
            if other == index:
                continue
            arguments = (node.record, index, node.incarnation, epoch, other)
            members = self._members[node.record]
            if (other, peer.incarnation) in members:
                has_all = state.acked[epoch][other] >= len(begun.log) or not self.rules.target_has_all
                if node.hands_over and has_all:
                    yield from self._propose(state, index, node, self._change("transfer", *arguments, peer.incarnation))
                if node.forgot < self.bounds.forgets:
                    change = self._change("forget", *arguments, peer.incarnation)
                    yield from self._propose(state, index, node._replace(forgot=node.forgot + 1), change)
            elif node.joining is None:
                yield self._with(state, index, node._replace(joining=(other, peer.incarnation, len(begun.log))))
            elif node.joining[:2] == (other, peer.incarnation) and (
                state.acked[epoch][other] >= node.joining[2] or not self.rules.join_needs_all
            ):
                change = self._change("add", *arguments, peer.incarnation, peer.lives[-1])
                yield from self._propose(state, index, node, change)
            for member, incarnation in members:
                if member == other:
                    yield from self._propose(state, index, node, self._change("remove", *arguments, incarnation))
        if node.joining is not None:
            yield self._with(state, index, node._replace(joining=None))
        if self.bounds.restores:
            yield from self._propose(state, index, node, self._renewal(state, index, node, begun))

    def _renewal(self, state: State, index: int, node: Node, begun: Begun) -> int | None:
        """Return the record with the lives of those that have everything, and how far is committed."""
        length = self._committed_by(state, index, node, begun)
        committed = state.committed
        if committed[-1] == node.leads and committed == begun.log[: len(committed)]:
            length = max(length, len(committed))  # it remembers its commits, even if others have lost them since
        if length < begun.begins:
            return None
        row = state.acked[node.leads]
        lives = {NODES[index]: str(node.lives[-1])}
        for other, incarnation in self._members[node.record]:
            has_all = row[other] >= length or not self.rules.lives_are_recorded_when_caught_up
            if other != index and state.nodes[other].incarnation == incarnation and has_all:
                lives[NODES[other]] = str(state.nodes[other].lives[-1])
        record = self._records[node.record]
        change = renewed(record, self._replica(index, node.incarnation), node.leads, lives, (node.leads, length))
        return None if isinstance(change, Refusal) or change == record else self._number(change)

    def _committed_by(self, state: State, index: int, node: Node, begun: Begun) -> int:
        """Return how far a leader may commit its log."""
        row = state.acked[node.leads]
        length = len(node.log) if self.rules.sync_before_commit else len(begun.log)
        lengths = [length]
        for other, incarnation in self._required(state, node):
            if other != index:
                is_there = state.nodes[other].incarnation == incarnation
                lengths.append(row[other] if is_there else 0)
        if not self.rules.commit_waits_for_all:
            lengths = sorted(lengths, reverse=True)[: self._records[node.record].least]
        return min(length, *lengths)

    def _required(self, state: State, node: Node) -> set[tuple[int, int]]:
        required: set[tuple[int, int]] = set()
        if self.rules.set_before_requires_acks or not node.opened:
            required |= self._members[node.record]
        for number in node.opened:
            required |= self._members[number]
        if node.joining is not None and self.rules.join_requires_acks_first:
            required.add(node.joining[:2])
        return required

    def _commit(self, state: State) -> State:
        """Make every leader commit what it may."""
        for index, node in enumerate(state.nodes):
            if not node.leads:
                continue
            begun = state.begun[node.leads]
            assert begun is not None
            length = self._committed_by(state, index, node, begun)
            if length < begun.begins:
                continue
            log = begun.log[:length]
            shorter = min(length, len(state.committed))
            if log[:shorter] != state.committed[:shorter]:
                raise Violation(f"C2: {NODES[index]} commits {log}, and {state.committed} was committed")
            for epoch in range(node.leads + 1, len(state.begun)):
                later = state.begun[epoch]
                is_led = later is not None and state.nodes[later.owner].leads == epoch
                if later is not None and is_led and later.log[:length] != log:
                    raise Violation(f"C1: epoch {epoch} is led without {log}, which {NODES[index]} commits")
            if length > len(state.committed):
                state = state._replace(committed=log)
        return state

    def _look(self, state: State) -> State:
        for index, incarnation in self._members[state.record]:
            node = state.nodes[index]
            has_all = node.log[: len(state.committed)] == state.committed
            if index == state.older:
                state = state._replace(older=UNKNOWN) if has_all else state
            elif node.incarnation == incarnation and not has_all and self.rules.commit_waits_for_all:
                raise Violation(f"R: {NODES[index]} is in sync with {node.log}, and {state.committed} is committed")
        return state


@dataclass
class Explored:
    """The explored states. `is_complete`: every state within the bounds."""

    states: int
    steps: int
    seconds: float
    is_complete: bool

    def __str__(self) -> str:
        how = "all of them" if self.is_complete else "not all"
        return f"{self.states} states, {how}, {self.steps} steps, {self.seconds:.1f} s"


def explore(bounds: Bounds, rules: Rules | None = None, *, seconds: float = 3600.0) -> Explored:
    """Look at every state within the bounds, nearest first, for at most `seconds`.

    Raises:
        Violation: a promise is broken; the text ends with how.
    """
    protocol = Protocol(bounds, rules)
    first = protocol.first()
    seen = {hash(first)}  # of 64 bits: two states of millions that share one are unlikely enough
    due = deque([first])
    steps = 0
    began = time.monotonic()
    while due:
        if steps % 1024 < 8 and time.monotonic() - began > seconds:
            break
        for state in protocol.steps(due.popleft()):
            steps += 1
            mark = hash(state)
            if mark not in seen:
                seen.add(mark)
                due.append(state)
    return Explored(len(seen), steps, time.monotonic() - began, not due)


def wander(bounds: Bounds, rules: Rules | None = None, *, walks: int, seed: int = 1) -> Explored:
    """Take random walks as far as the bounds allow: deeper than every state can be looked at.

    Raises:
        Violation: a promise is broken; the text ends with how.
    """
    protocol = Protocol(bounds, rules)
    choose = random.Random(seed)
    seen: set[int] = set()
    steps = 0
    began = time.monotonic()
    for _ in range(walks):
        state = protocol.first()
        for _ in range(WALK_STEPS_MAX):
            following = list(protocol.steps(state))
            if not following:
                break
            steps += len(following)
            seen.update(map(hash, following))
            state = choose.choice(following)
    return Explored(len(seen), steps, time.monotonic() - began, is_complete=False)


# Within these every state is looked at.
SMALL: Final = (
    Bounds(revisions=2, epochs=2, frames=1),
    Bounds(revisions=2, epochs=2, frames=1, in_sync=2),
    Bounds(revisions=2, epochs=2, frames=1, wipes=1, min_in_sync=2, in_sync=2),
    Bounds(revisions=2, epochs=2, frames=1, crashes=1),
    Bounds(revisions=2, epochs=2, frames=1, min_in_sync=2, restores=1),
)
LARGE: Final = (
    *SMALL,
    Bounds(revisions=2, epochs=2, frames=1, crashes=1, in_sync=2),
    Bounds(revisions=2, epochs=2, frames=1, min_in_sync=2, forgets=1),
    Bounds(revisions=2, epochs=2, frames=2),
    Bounds(revisions=3, epochs=2, frames=1),
    Bounds(revisions=3, epochs=3, frames=1),
)
# In these one walks.
WIDE: Final = (
    Bounds(revisions=6, epochs=3, frames=3, crashes=2),
    Bounds(revisions=6, epochs=3, frames=3, crashes=2, wipes=1, min_in_sync=2, forgets=2),
    Bounds(revisions=6, epochs=3, frames=3, crashes=2, min_in_sync=2, restores=2),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="explore the protocol of a cluster")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each of the bounds")
    parser.add_argument("--walks", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    try:
        for bounds in LARGE:
            print(f"{bounds}: {explore(bounds, seconds=chosen.seconds)}", flush=True)
        for bounds in WIDE:
            print(f"{bounds}: {wander(bounds, walks=chosen.walks, seed=chosen.seed)}", flush=True)
    except Violation as violation:
        print(f"{bounds}: {violation}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
