"""The events that a `Member` handles, and the actions that it requests.

Events come one at a time, each with the time of the node's own clock, which also counts while the machine is suspended.
The driver must carry out actions in their order: an action that stops something comes before one that starts something.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warren.cluster.record import Ask, Record, Replica, Versioned


class Position(NamedTuple):
    """How far a synced log goes: the epoch of its last frame, and the LSN after it. The epoch is compared first."""

    epoch: int
    lsn: int

    def __str__(self) -> str:
        return f"LSN {self.lsn} of epoch {self.epoch}"


class Standing(NamedTuple):
    """A node's report about its log: how far it goes, and up to where the node knows it to be committed."""

    position: Position
    committed: Position


# --- events: etcd -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordRead:
    """A linearizable read was answered. None: there is no such key."""

    found: Versioned | None


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """A read failed, or was not answered. `reason`: advice for an operator; empty if there is nothing to do."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """The watch has reported a record, perhaps late."""

    found: Versioned


@dataclass(frozen=True, slots=True)
class SwapDone:
    """The compare-and-swap of this number succeeded; the key has this mod revision now."""

    number: int
    revision: int


@dataclass(frozen=True, slots=True)
class SwapRefused:
    """etcd made the comparison, and the key had another revision. An error of etcd never counts as this."""

    number: int


@dataclass(frozen=True, slots=True)
class SwapUnknown:
    """Any other outcome: the swap may have been done, may still be done, or may never be done."""

    number: int


# --- events: other replicas -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeaconReceived:
    """A leader has announced that it leads."""

    leader: Replica
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class BeaconAnswered:
    """A replica has answered the beacon of this number and epoch: it promises not to stand for the grace time."""

    replica: Replica
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class EpochRefused:
    """A replica knows of a greater epoch than ours."""

    replica: Replica
    epoch: int


@dataclass(frozen=True, slots=True)
class PositionTold:
    """A node has answered the questions of this number. None: a node of an older version does not report its log."""

    number: int
    node: str
    replica: Replica | None = None
    standing: Standing | None = None


@dataclass(frozen=True, slots=True)
class AskingEnded:
    """No more answers to the questions of this number will come: all nodes have answered, or the time is over."""

    number: int


@dataclass(frozen=True, slots=True)
class Objected:
    """A replica has frames as committed, up to this position, that our log lacks."""

    replica: Replica
    committed: Position


@dataclass(frozen=True, slots=True)
class Heard:
    """Bytes move over the link with a replica: it is there, though its answers may be late, behind much other data."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection with a replica was closed, by either side."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """Connecting again was answered with ECONNREFUSED: the machine is there, the process is not."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class Synced:
    """A replica has acknowledged, in our epoch, that its log is synced up to this LSN; or our own log is."""

    replica: Replica
    lsn: int


@dataclass(frozen=True, slots=True)
class LifeTold:
    """A replica has everything, and reports the life of its directory: the id of its current process."""

    replica: Replica
    life: str


@dataclass(frozen=True, slots=True)
class NearlyCaughtUp:
    """A replica outside the set has so little left to fetch that commits may wait for it from now on."""

    replica: Replica


# --- events: this node ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Positioned:
    """As a follower: how far our own log is synced."""

    position: Position


@dataclass(frozen=True, slots=True)
class Appended:
    """As a leader: how far the log goes that was sent to the replicas."""

    lsn: int


@dataclass(frozen=True, slots=True)
class CommittedUpTo:
    """As a leader: how far our log is committed."""

    lsn: int


@dataclass(frozen=True, slots=True)
class DiskWaits:
    """When the oldest job of our disk began; None when the disk has no job."""

    since_s: float | None


@dataclass(frozen=True, slots=True)
class DisksShort:
    """The names of the nodes whose disks are short of space: this one now, others by their last reports."""

    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Recovered:
    """After `Lead`: the log is recovered, and the record of the new epoch is committed."""


@dataclass(frozen=True, slots=True)
class TransferRequested:
    """Another node should lead: an administrator wants it, or this process was told to stop. None: any that can."""

    node: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    """An administrator requests a change for a node. `is_there`: that node runs, as far as is known."""

    ask: Ask
    node: str
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryRequested:
    """An administrator declares the data of this node to be the truth, whatever is lost.

    `beyond`: by how much the new epoch must exceed all epochs known here, since other nodes may have begun more.
    """

    accepts_loss: bool
    beyond: int


@dataclass(frozen=True, slots=True)
class Drained:
    """After `HandOver`: clients are gone, writing has stopped, and our log ends at this LSN."""

    lsn: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: see `Member.wake_at_s`."""


Event = (
    RecordRead
    | ReadFailed
    | RecordChanged
    | SwapDone
    | SwapRefused
    | SwapUnknown
    | BeaconReceived
    | BeaconAnswered
    | EpochRefused
    | PositionTold
    | AskingEnded
    | Objected
    | Heard
    | LinkLost
    | LinkRefused
    | Synced
    | LifeTold
    | NearlyCaughtUp
    | Positioned
    | Appended
    | CommittedUpTo
    | DiskWaits
    | DisksShort
    | Recovered
    | TransferRequested
    | Drained
    | ChangeRequested
    | RecoveryRequested
    | Tick
)


# --- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """Read the record, linearizably, and answer with `RecordRead` or `ReadFailed`."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Write the record if the key still has this mod revision (0: the key does not exist), and report the outcome."""

    number: int
    revision: int
    record: Record


@dataclass(frozen=True, slots=True)
class AskPositions:
    """Ask these nodes how far their logs go, and report each answer as it comes. This cancels earlier questions."""

    number: int
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class SendBeacon:
    """Send a beacon to all replicas that are connected."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class AnswerBeacon:
    """Answer a beacon."""

    leader: Replica
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class RefuseEpoch:
    """Tell a leader that a greater epoch has begun."""

    leader: Replica
    epoch: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Follow this leader: cut the log to the common part, take its frames, acknowledge those of this epoch only."""

    leader: Replica
    epoch: int


@dataclass(frozen=True, slots=True)
class KeepLives:
    """Keep only these lives in the directory, durably, before any other action; the last one is the current life."""

    lives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopAcknowledging:
    """Acknowledge nothing until the next `Acknowledge`."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Recover the log as the leader of this epoch, and begin the epoch in it; when that is committed, `Recovered`.

    The record that begins the epoch must be synced here before this node compares its log with another replica's, or
    sends anything of it. Otherwise this node would know nothing of the epoch after a restart. It could acknowledge
    frames of the previous epoch, and so confirm messages that a replica which has followed this node has cut off.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class RequireAcks:
    """Commit what all of these replicas have synced, and nothing else. This node is one of them."""

    replicas: frozenset[Replica]


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve clients while `Member.serves` is true: ask it in every turn of the loop."""


@dataclass(frozen=True, slots=True)
class StopServing:
    """Hold deliveries and gets back."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Disconnect the clients, write and ship all that is in memory, then write nothing more, and report `Drained`.

    This process does not serve again: it hands over, or ends.
    """

    target: Replica


@dataclass(frozen=True, slots=True)
class GiveWay:
    """Hand over to this node, since our disk holds commits up. It is carried out like an administrator's command.

    Nothing has to be written for it that the log does not have yet. If it is impossible now, it is requested again
    later.
    """

    target: Replica
    reason: str


@dataclass(frozen=True, slots=True)
class RefuseCommand:
    """Say why the last command is refused; this node continues."""

    reason: str


@dataclass(frozen=True, slots=True)
class Restart:
    """End the process and begin a new one, as a follower: memory may hold messages that were never committed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the operator."""

    text: str


Action = (
    Read
    | Swap
    | AskPositions
    | SendBeacon
    | AnswerBeacon
    | RefuseEpoch
    | Acknowledge
    | KeepLives
    | StopAcknowledging
    | Lead
    | RequireAcks
    | Serve
    | StopServing
    | HandOver
    | GiveWay
    | RefuseCommand
    | Restart
    | Report
)
