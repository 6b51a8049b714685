"""The record of a cell in etcd: the leader, and the replicas that have every confirmed message.

The value of one key, as JSON; each change is one compare-and-swap on the revision at which the key was read:

    {"format": 1,
     "store": "5f0c…",                                 which store this is; a replica of another one has no place here
     "epoch": 7,                                       one more with every leader
     "leader": {"node": "a", "incarnation": "91ce…"},
     "by": "take-over",                                how it came to lead: first, take-over, transfer or recovery
     "in_sync": [{"node": …, "incarnation": …}, …],    whose acks a commit needs, the leader among them
     "assigned": ["a", "b", "c"],                      the nodes that should have a replica
     "min_in_sync": 2,
     "drained": ["c"],                                 nodes that must not lead; left out when empty
     "forgotten": ["d"],                               nodes that were sent away for good; the same
     "lives": {"a": "07aa…", "b": "c31d…"},            which life of its directory each node in sync had; the same
     "floor": [7, 81920]}                              up to which epoch and LSN the log was committed then; the same

1. The leader is in sync, a node is in the set once at most, and every node in sync is assigned.
2. At least ``min_in_sync`` replicas are in sync, or all assigned ones where these are fewer. A change that would leave
   fewer is refused: commits stall instead, so every replica recorded as in sync has every confirmed message.
3. An epoch has one leader. Each new leader has a greater epoch than all before, in the record and in its own log.
4. Only the leader of an epoch adds to the set, and only a replica of the set can lead the next one. `recovered` is the
   exception: an administrator accepts what may be lost.
5. A drained node does not stand, unless all nodes in the set except the leader on record are drained. A forgotten node
   is not assigned, and joins again only with an empty directory.
6. A replica is a node and the incarnation of its data directory: a node that comes back empty is another replica.
7. A life is a random id, made at each start of a process on a directory. The leader records the life of a node once the
   node has everything. A directory that does not know its recorded life, or whose log ends before the floor at the
   start, is a restored copy. Its node does not stand (`Member`), and leaves the set by itself, if enough remain
   (`left`).

A transition returns the new record, or a `Refusal` with the reason. Transitions neither read nor write anything.
A record that a newer Warren wrote, or that is not exactly of this form, is refused as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

import msgspec

FORMAT: Final = 1
RECORD_BYTES_MAX: Final = 64 << 10
REPLICAS_MAX: Final = 99
MAJORITY: Final = 0  # for a requested ``min_in_sync``: the majority of the assigned nodes
NAME_LENGTH_MAX: Final = 255
NO_FLOOR: Final = (0, 0)


class RecordError(Exception):
    """This version does not understand the value in etcd as a record. The text says what to do."""


class LeaderBy(Enum):
    """How the leader of an epoch came to lead."""

    FIRST = "first"
    TAKE_OVER = "take-over"
    TRANSFER = "transfer"
    RECOVERY = "recovery"


@dataclass(frozen=True, slots=True, order=True)
class Replica:
    """A data directory: the node that has it, and the random name that it was made with."""

    node: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.node}/{self.incarnation}"


@dataclass(frozen=True, slots=True, order=True)
class Life:
    """The life that a node in sync had when it was known to have everything."""

    node: str
    id: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The change is not possible. `reason` is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Record:
    """A valid record: see the header for its fields and their rules."""

    store: str
    epoch: int
    leader: Replica
    by: LeaderBy
    in_sync: frozenset[Replica]
    assigned: frozenset[str]
    min_in_sync: int
    drained: frozenset[str] = frozenset()
    forgotten: frozenset[str] = frozenset()
    lives: frozenset[Life] = frozenset()
    floor: tuple[int, int] = NO_FLOOR

    def life_of(self, replica: Replica) -> str | None:
        """Return the recorded life of a replica in sync; None without one: an older Warren may have written it."""
        if replica not in self.in_sync:
            return None
        return next((life.id for life in self.lives if life.node == replica.node), None)

    @property
    def least(self) -> int:
        """How many replicas have to stay in sync."""
        return min(self.min_in_sync, len(self.assigned))

    def may_stand(self, replica: Replica) -> bool:
        """Tell whether a replica is in the set and may stand: a drained one only if all but the leader are drained."""
        rest = {other.node for other in self.in_sync - {self.leader}} or {replica.node}
        return replica in self.in_sync and (replica.node not in self.drained or rest <= self.drained)

    def fault(self) -> str | None:
        """Return the fault of the record, None when it is valid."""
        nodes = [replica.node for replica in self.in_sync]
        if self.leader not in self.in_sync:
            return "its leader is not in sync"
        if len(set(nodes)) != len(nodes):
            return "a node is in sync twice"
        if not self.assigned.issuperset(nodes):
            return "a node is in sync and not assigned"
        if len(self.assigned) > REPLICAS_MAX or len(self.forgotten) > REPLICAS_MAX:
            return f"more than {REPLICAS_MAX} nodes are assigned, or forgotten"
        if not self.assigned.issuperset(self.drained) or self.assigned & self.forgotten:
            return "a node is drained and not assigned, or assigned and forgotten"
        if len(nodes) < self.least:
            return f"{len(nodes)} in sync, and {self.least} are required"
        living = [life.node for life in self.lives]
        if len(set(living)) != len(living) or not set(nodes).issuperset(living):
            return "a node has two lives, or one that is not in sync has any"
        return None


@dataclass(frozen=True, slots=True)
class Versioned:
    """A record, and the mod revision of its key, which a compare-and-swap compares."""

    revision: int
    record: Record


# --- transitions ------------------------------------------------------------------------------------------------------


def first(store: str, leader: Replica, min_in_sync: int) -> Record:
    """Return the record of a new store: one replica, which leads; others are added when they have caught up."""
    in_sync = frozenset({leader})
    return Record(store, 1, leader, LeaderBy.FIRST, in_sync, frozenset({leader.node}), min_in_sync)


def taken_over(
    record: Record,
    candidate: Replica,
    log_epoch: int,
    answering: frozenset[Replica] | None = None,
    life: str | None = None,
) -> Record | Refusal:
    """Make a replica of the set the leader; the previous leader leaves the set, if enough remain.

    `log_epoch` is the greatest epoch that the candidate's log knows of: the record may have an older one, if etcd was
    restored from a backup. `life` is that of the candidate's process.
    The replicas that are `answering` stay in the set, except the previous leader. If these are too few, others stay as
    well: first the previous leader if it answers, then silent replicas, then the previous leader if it is silent.
    """
    if candidate not in record.in_sync:
        return Refusal(f"{candidate} is not in sync: it may lack what was confirmed")
    in_sync = _without_leader(record, candidate)
    if answering is not None:
        in_sync = _with_answering(record, candidate, answering)
    epoch = max(record.epoch, log_epoch) + 1
    changed = _of_set(record, in_sync, {} if life is None else {candidate.node: life})
    return dataclasses.replace(changed, epoch=epoch, leader=candidate, by=LeaderBy.TAKE_OVER)


def removed(record: Record, leader: Replica, epoch: int, replica: Replica) -> Record | Refusal:
    """Take a replica out of the set, by the leader of an epoch."""
    refusal = _unless_led_by(record, leader, epoch)
    if refusal is not None:
        return refusal
    if replica == leader:
        return Refusal("a leader does not remove itself")
    if replica not in record.in_sync:
        return Refusal(f"{replica} is not in sync")
    if len(record.in_sync) <= record.least:
        return Refusal(f"{record.least} replicas have to be in sync")
    return _of_set(record, record.in_sync - {replica})


def left(record: Record, replica: Replica) -> Record | Refusal:
    """Take a replica out of the set at its own request: its directory is a restored copy."""
    if replica == record.leader:
        return Refusal("a leader does not remove itself")
    if replica not in record.in_sync:
        return Refusal(f"{replica} is not in sync")
    rest = record.in_sync - {replica}
    if len(rest) < record.least:
        return Refusal(f"{record.least} replicas have to be in sync")
    return _of_set(record, rest)


def renewed(
    record: Record, leader: Replica, epoch: int, lives: Mapping[str, str], floor: tuple[int, int]
) -> Record | Refusal:
    """Record the lives of nodes in sync that are known to have everything, and how far the log is committed."""
    refusal = _unless_led_by(record, leader, epoch)
    if refusal is not None:
        return refusal
    return dataclasses.replace(_of_set(record, record.in_sync, lives), floor=max(record.floor, floor))


def added(
    record: Record, leader: Replica, epoch: int, replica: Replica, replicas: int, life: str | None = None
) -> Record | Refusal:
    """Add a replica that has everything, by the leader of an epoch; at most `replicas` nodes are assigned.

    It replaces an earlier incarnation of its node, whose directory is gone. `life` is that of its own process.
    """
    refusal = _unless_led_by(record, leader, epoch)
    if refusal is not None:
        return refusal
    if replica in record.in_sync:
        return Refusal(f"{replica} is in sync already")
    if replica.node == leader.node:
        return Refusal(f"the leader has the node {replica.node}")
    if replica.node not in record.assigned and len(record.assigned) >= min(replicas, REPLICAS_MAX):
        return Refusal(f"{len(record.assigned)} nodes are assigned: forget one of them first")
    others = frozenset(other for other in record.in_sync if other.node != replica.node)
    assigned = record.assigned | {replica.node}
    forgotten = record.forgotten - {replica.node}
    known = dataclasses.replace(record, lives=frozenset(each for each in record.lives if each.node != replica.node))
    changed = _of_set(known, others | {replica}, {} if life is None else {replica.node: life})
    return dataclasses.replace(changed, assigned=assigned, forgotten=forgotten)


def required(record: Record, leader: Replica, epoch: int, min_in_sync: int) -> Record | Refusal:
    """Require so many replicas in sync from now on, by the leader of an epoch; `MAJORITY`: of the assigned nodes.

    The record stays as it is while it already requires as many: both numbers are limited by how many are assigned.
    """
    refusal = _unless_led_by(record, leader, epoch)
    if refusal is not None:
        return refusal
    wanted = min_in_sync or len(record.assigned) // 2 + 1
    least = min(wanted, len(record.assigned))
    if least == record.least:
        return record
    if len(record.in_sync) < least:
        return Refusal(f"{len(record.in_sync)} in sync, and {least} would be required")
    return dataclasses.replace(record, min_in_sync=wanted)


def transferred(record: Record, leader: Replica, epoch: int, target: Replica) -> Record | Refusal:
    """Hand over to another replica of the set, by the leader of an epoch, which no longer serves.

    The process of `leader` restarts, so it leaves the set if enough replicas remain: commits must not wait for it.
    """
    refusal = _unless_led_by(record, leader, epoch)
    if refusal is not None:
        return refusal
    if target == leader:
        return Refusal(f"{target.node} leads already")
    if target not in record.in_sync:
        return Refusal(f"{target} is not in sync")
    in_sync = _without_leader(record, target)
    return dataclasses.replace(_of_set(record, in_sync), epoch=epoch + 1, leader=target, by=LeaderBy.TRANSFER)


def named(record: Record, node: str) -> Replica | Refusal:
    """Return the replica in sync of a node: one that may lead."""
    for replica in record.in_sync:
        if replica.node == node:
            return replica
    if node in record.assigned:
        return Refusal(f"{node} is not in sync: it may lack what was confirmed")
    return Refusal(_unknown(record, node))


def forgotten(record: Record, node: str) -> Record | Refusal:
    """Remove a node from the assigned ones, and its replica from the set."""
    if node not in record.assigned:
        return Refusal(_unknown(record, node))
    if node == record.leader.node:
        return Refusal(f"{node} leads: transfer leadership to another node first")
    in_sync = frozenset(replica for replica in record.in_sync if replica.node != node)
    if len(record.forgotten) >= REPLICAS_MAX:
        return Refusal(
            f"{REPLICAS_MAX} nodes are forgotten already: let one of them join again, with an empty directory"
        )
    changed = dataclasses.replace(
        _of_set(record, in_sync),
        assigned=record.assigned - {node},
        drained=record.drained - {node},
        forgotten=record.forgotten | {node},
    )
    if len(in_sync) < changed.least:
        return Refusal(f"without {node} {len(in_sync)} would be in sync, and {changed.least} are required")
    return changed


def readmitted(record: Record, node: str) -> Record:
    """Readmit a node that was forgotten: it has come back with an empty directory."""
    return dataclasses.replace(record, forgotten=record.forgotten - {node})


def drained(record: Record, node: str) -> Record | Refusal:
    """Bar a node from leading until it is revived."""
    if node not in record.assigned:
        return Refusal(_unknown(record, node))
    return dataclasses.replace(record, drained=record.drained | {node})


def revived(record: Record, node: str) -> Record | Refusal:
    """Lift the bar: the node may lead again."""
    if node not in record.assigned:
        return Refusal(_unknown(record, node))
    return dataclasses.replace(record, drained=record.drained - {node})


class Ask(Enum):
    """The changes that an administrator may ask for about one node."""

    FORGET = "forget"
    READMIT = "readmit"
    DRAIN = "drain"
    REVIVE = "revive"


def asked(record: Record, ask: Ask, node: str) -> Record | Refusal:
    """Return the record with the requested change; the same one if it has that already."""
    match ask:
        case Ask.FORGET:
            return record if node in record.forgotten else forgotten(record, node)
        case Ask.READMIT:
            return readmitted(record, node)
        case Ask.DRAIN:
            return drained(record, node)
        case Ask.REVIVE:
            return revived(record, node)


def recovered(record: Record, survivor: Replica, log_epoch: int) -> Record:
    """Restart the record with one replica, whatever it lacks: only on the word of an administrator.

    The others are assigned again when they join, and drop everything that the survivor does not have.
    """
    return Record(
        store=record.store,
        epoch=max(record.epoch, log_epoch) + 1,
        leader=survivor,
        by=LeaderBy.RECOVERY,
        in_sync=frozenset({survivor}),
        assigned=frozenset({survivor.node}),
        min_in_sync=record.min_in_sync,
    )


def made_anew(store: str, survivor: Replica, log_epoch: int, min_in_sync: int) -> Record:
    """Return a new record for a store whose record etcd has lost: only on the word of an administrator."""
    return recovered(first(store, survivor, min_in_sync), survivor, log_epoch)


def _unknown(record: Record, node: str) -> str:
    return f"{node} is not a node of this cluster; its nodes are {', '.join(sorted(record.assigned))}"


def _of_set(record: Record, in_sync: frozenset[Replica], lives: Mapping[str, str] | None = None) -> Record:
    """Return the record with this set. Each of its nodes keeps its life, or gets the one in `lives`."""
    nodes = {replica.node for replica in in_sync}
    known = {life.node: life.id for life in record.lives} | dict(lives or {})
    kept = frozenset(Life(node, life) for node, life in known.items() if node in nodes)
    return dataclasses.replace(record, in_sync=in_sync, lives=kept)


def _without_leader(record: Record, next_leader: Replica) -> frozenset[Replica]:
    """Return the set without the current leader, if enough remain and it is not the next leader."""
    rest = record.in_sync - ({record.leader} - {next_leader})
    return rest if len(rest) >= record.least else record.in_sync


def _with_answering(record: Record, candidate: Replica, answering: frozenset[Replica]) -> frozenset[Replica]:
    """Return the best set for a candidate: the replicas that answer, and others only if these are too few.

    Each replica in sync has everything that is committed, so any of them may stay.
    """
    there = answering & record.in_sync
    kept = {candidate} | (there - {record.leader})
    rest = sorted(record.in_sync - kept, key=lambda other: (other not in there, other == record.leader, other))
    return frozenset(kept | set(rest[: max(0, record.least - len(kept))]))


def _unless_led_by(record: Record, leader: Replica, epoch: int) -> Refusal | None:
    if (record.leader, record.epoch) == (leader, epoch):
        return None
    return Refusal(f"{record.leader} leads epoch {record.epoch}")


# --- JSON -------------------------------------------------------------------------------------------------------------

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _ReplicaDocument(msgspec.Struct, forbid_unknown_fields=True):
    node: _Name
    incarnation: _Name


class _Document(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: int
    store: _Name
    epoch: _Number
    leader: _ReplicaDocument
    by: LeaderBy
    in_sync: Annotated[list[_ReplicaDocument], msgspec.Meta(max_length=REPLICAS_MAX)]
    assigned: Annotated[list[_Name], msgspec.Meta(max_length=REPLICAS_MAX)]
    min_in_sync: Annotated[int, msgspec.Meta(ge=1, le=REPLICAS_MAX)]
    drained: Annotated[list[_Name], msgspec.Meta(max_length=REPLICAS_MAX)] = []
    forgotten: Annotated[list[_Name], msgspec.Meta(max_length=REPLICAS_MAX)] = []
    lives: Annotated[dict[_Name, _Name], msgspec.Meta(max_length=REPLICAS_MAX)] = {}
    floor: tuple[_Count, _Count] = NO_FLOOR


class _Format(msgspec.Struct):
    """The fields that are read first: a newer format may have any other fields."""

    format: int


def encode(record: Record) -> bytes:
    """Return the JSON of a record; equal records have equal bytes."""
    document = _Document(
        format=FORMAT,
        store=record.store,
        epoch=record.epoch,
        leader=_ReplicaDocument(record.leader.node, record.leader.incarnation),
        by=record.by,
        in_sync=[_ReplicaDocument(replica.node, replica.incarnation) for replica in sorted(record.in_sync)],
        assigned=sorted(record.assigned),
        min_in_sync=record.min_in_sync,
        drained=sorted(record.drained),
        forgotten=sorted(record.forgotten),
        lives={life.node: life.id for life in sorted(record.lives)},
        floor=NO_FLOOR if record.floor == NO_FLOOR else record.floor,  # the default itself is left out
    )
    return msgspec.json.encode(document)


def decode(value: bytes) -> Record:
    """Return the record that JSON stands for.

    Raises:
        RecordError: it is of a newer format, or not exactly a record.
    """
    if len(value) > RECORD_BYTES_MAX:
        raise RecordError(f"the record in etcd has {len(value)} bytes: something else than Warren wrote it")
    try:
        written_as = msgspec.json.decode(value, type=_Format).format
        if written_as > FORMAT:
            raise RecordError(
                f"the record in etcd has format {written_as}, this Warren knows {FORMAT}: "
                "a newer one leads the cluster, upgrade this node"
            )
        document = msgspec.json.decode(value, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"the record in etcd is not one of Warren's: {error}") from None
    in_sync = [Replica(each.node, each.incarnation) for each in document.in_sync]
    record = Record(
        store=document.store,
        epoch=document.epoch,
        leader=Replica(document.leader.node, document.leader.incarnation),
        by=document.by,
        in_sync=frozenset(in_sync),
        assigned=frozenset(document.assigned),
        min_in_sync=document.min_in_sync,
        drained=frozenset(document.drained),
        forgotten=frozenset(document.forgotten),
        lives=frozenset(Life(node, life) for node, life in document.lives.items()),
        floor=document.floor,
    )
    fault = record.fault()
    if document.format != FORMAT:
        fault = f"there is no format {document.format}"
    elif len(record.in_sync) != len(in_sync) or len(record.assigned) != len(document.assigned):
        fault = "it names something twice"
    if fault is not None:
        raise RecordError(f"the record in etcd is not one of Warren's: {fault}")
    return record
