"""Carries out the actions of a `Member`, and reports events to it. Nothing else talks to a member.

    tell        an event, from whatever runs on the loop -> the member -> actions, carried out before `tell` returns
    the record  a task that reads, one that swaps, one that watches; each has one request under way at most
    others      a task that asks other nodes how far their logs go
    time        a task that tells `Tick` when the member wants to be woken

1. Actions are carried out in their order, and those of one event before the next event is handled. An event that an
   action causes waits for the other actions of the current event.
2. The outcome of a swap that raises an error counts as unknown, even if nothing was sent. If that is wrong, it costs
   only a read. The opposite mistake would cost a confirmed message.
3. The clock also counts while the machine is suspended: promises end by it.
4. A record that cannot be understood counts as not read: the member decides nothing by it, and the operator is told.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final, Protocol, assert_never

import trio

from warren.cluster.etcd import EtcdError, OutcomeUnknown
from warren.cluster.events import (
    Acknowledge,
    Action,
    AnswerBeacon,
    AskingEnded,
    AskPositions,
    Event,
    GiveWay,
    HandOver,
    KeepLives,
    Lead,
    PositionTold,
    Read,
    ReadFailed,
    RecordChanged,
    RecordRead,
    RefuseCommand,
    RefuseEpoch,
    Report,
    RequireAcks,
    Restart,
    SendBeacon,
    Serve,
    Standing,
    StopAcknowledging,
    StopServing,
    Swap,
    SwapDone,
    SwapRefused,
    SwapUnknown,
    Tick,
)
from warren.cluster.member import Member
from warren.cluster.pre_vote import ASKING_S
from warren.cluster.record import Record, RecordError, Replica, Versioned

# The clock of the member is not that of the loop, and they may drift apart: look again after this time at the latest.
SLEEP_MAX_S: Final = 1.0
# How long etcd has to answer before a node hands over: less than the time that it has for the change itself.
ANSWER_S: Final = 2.0


def passed_s() -> float:
    """Return a monotonic time in seconds, which also counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# Called with the node that has answered, the directory it has, and its answer about its log.
ToldPosition = Callable[[str, Replica | None, Standing | None], None]


class RecordStore(Protocol):
    """Where the record is: etcd, see ``etcd_record.py``."""

    async def read(self) -> Versioned | None:
        """Read it, linearizably.

        Raises:
            EtcdError: the answer did not come.
            RecordError: this node does not understand the record, or it belongs to another store.
        """

    async def swap(self, revision: int, record: Record) -> int | None:
        """Write it if it still has this revision; return the new revision, None when it had another one.

        Raises:
            EtcdError, OutcomeUnknown: the answer did not come.
        """

    def changes(self) -> AsyncIterator[Versioned]:
        """Yield the record's changes from now on, for ever."""


class Node(Protocol):
    """The node that a member decides for. Nothing here blocks; see `warren.cluster.events` for each of the actions."""

    async def ask_positions(self, nodes: frozenset[str], told: ToldPosition) -> None: ...

    def send_beacon(self, epoch: int, number: int) -> None: ...

    def answer_beacon(self, leader: Replica, epoch: int, number: int) -> None: ...

    def refuse_epoch(self, leader: Replica, epoch: int) -> None: ...

    def acknowledge(self, leader: Replica, epoch: int) -> None: ...

    def keep_lives(self, lives: tuple[str, ...]) -> None: ...

    def stop_acknowledging(self) -> None: ...

    def lead(self, epoch: int) -> None: ...

    def require_acks(self, replicas: frozenset[Replica]) -> None: ...

    def serve(self) -> None: ...

    def stop_serving(self) -> None: ...

    def hand_over(self, target: Replica) -> None: ...

    def give_way(self, target: Replica, reason: str) -> None: ...

    def refuse_command(self, reason: str) -> None: ...

    def restart(self, reason: str) -> None: ...

    def report(self, text: str) -> None: ...


class Driver:
    """Drives `member`, on behalf of `node`. `clock_s` is the clock that the member began with."""

    def __init__(self, member: Member, store: RecordStore, node: Node, clock_s: Callable[[], float] = passed_s) -> None:
        self.member = member
        self._store = store
        self._node = node
        self._clock_s = clock_s
        self._known: Record | None = None
        self._changed = trio.Event()
        self._events: deque[Event] = deque()
        self._is_telling = False
        self._told = trio.Event()
        self._was_read = trio.Event()
        self._reads = trio.Event()
        self._asking: AskPositions | None = None
        self._asks = trio.Event()
        self._asks_scope = trio.CancelScope()
        self._swap: Swap | None = None
        self._swaps = trio.Event()

    def tell(self, event: Event) -> None:
        """Pass an event to the member, and carry out its actions. Called on the loop only."""
        self._events.append(event)
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._events:
                for action in self.member.handle(self._clock_s(), self._events.popleft()):
                    self._carry_out(action)
        finally:
            self._is_telling = False
        self._told.set()
        if self.member.record is not self._known:
            self._known = self.member.record
            self._changed.set()
            self._changed = trio.Event()

    async def another_leads(self, leader: Replica | None) -> None:
        """Wait until the record names another leader than this one; None: until it names any."""
        while self.member.record is None or self.member.record.leader == leader:
            await self._changed.wait()

    def serves(self) -> bool:
        """Tell whether clients may be served at this very moment."""
        return self.member.serves(self._clock_s())

    def silence_s(self) -> float:
        """Return how long the quietest node whose promise is needed to serve has been silent; 0 when none is needed."""
        return self.member.silence_s(self._clock_s())

    async def trouble_of_record(self) -> str:
        """Read the record, and return why it cannot be changed at the moment; empty if the read shows no reason.

        The member does not get the answer of this read: it may wait for the answer of a read of its own.
        """
        try:
            with trio.fail_after(ANSWER_S):
                found = await self._store.read()
        except EtcdError as error:
            return f"etcd does not answer: {error}"
        except trio.TooSlowError:
            return f"etcd does not answer within {ANSWER_S:g} s"
        except RecordError as error:
            return str(error)
        known = self.member.record
        if found is None or known is None or found.record.epoch != known.epoch:
            return "etcd does not have the record that makes this node the leader"
        return ""

    async def run(self) -> None:
        """Take part in the cluster, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            nursery.start_soon(self._write)
            nursery.start_soon(self._ask)
            nursery.start_soon(self._watch)
            nursery.start_soon(self._wake)

    # --- actions ----------------------------------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        node = self._node
        match action:
            case Read():
                self._reads.set()
            case Swap():
                self._swap = action
                self._swaps.set()
            case AskPositions():
                self._asking = action
                self._asks_scope.cancel()
                self._asks.set()
            case SendBeacon(epoch, number):
                node.send_beacon(epoch, number)
            case AnswerBeacon(leader, epoch, number):
                node.answer_beacon(leader, epoch, number)
            case RefuseEpoch(leader, epoch):
                node.refuse_epoch(leader, epoch)
            case Acknowledge(leader, epoch):
                node.acknowledge(leader, epoch)
            case KeepLives(lives):
                node.keep_lives(lives)
            case StopAcknowledging():
                node.stop_acknowledging()
            case Lead(epoch):
                node.lead(epoch)
            case RequireAcks(replicas):
                node.require_acks(replicas)
            case Serve():
                node.serve()
            case StopServing():
                node.stop_serving()
            case HandOver(target):
                node.hand_over(target)
            case GiveWay(target, reason):
                node.give_way(target, reason)
            case RefuseCommand(reason):
                node.refuse_command(reason)
            case Restart(reason):
                node.restart(reason)
            case Report(text):
                node.report(text)
            case _:
                assert_never(action)

    # --- the record -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            await self._reads.wait()
            self._reads = trio.Event()
            try:
                found = await self._store.read()
            except EtcdError:
                self.tell(ReadFailed())
            except RecordError as error:
                self.tell(ReadFailed(str(error)))
            else:
                self.tell(RecordRead(found))
                self._was_read.set()

    async def _write(self) -> None:
        while True:
            await self._swaps.wait()
            self._swaps = trio.Event()
            swap = self._swap
            assert swap is not None
            try:
                revision = await self._store.swap(swap.revision, swap.record)
            except (EtcdError, OutcomeUnknown):
                self.tell(SwapUnknown(swap.number))
            else:
                self.tell(SwapRefused(swap.number) if revision is None else SwapDone(swap.number, revision))

    async def _watch(self) -> None:
        await self._was_read.wait()  # the member ignores news before its first read
        async for found in self._store.changes():
            self.tell(RecordChanged(found))

    # --- other nodes ------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        while True:
            await self._asks.wait()
            self._asks = trio.Event()
            asking = self._asking
            assert asking is not None
            with trio.move_on_after(ASKING_S) as self._asks_scope:
                await self._node.ask_positions(asking.nodes, partial(self._told_position, asking.number))
            self.tell(AskingEnded(asking.number))

    def _told_position(self, number: int, node: str, replica: Replica | None, standing: Standing | None) -> None:
        self.tell(PositionTold(number, node, replica, standing))

    # --- time -------------------------------------------------------------------------------------------------------

    async def _wake(self) -> None:
        while True:
            self.tell(Tick())
            self._told = trio.Event()
            now_s = self._clock_s()
            at_s = self.member.wake_at_s(now_s)
            while (left_s := at_s - self._clock_s()) > 0:
                with trio.move_on_after(min(left_s, SLEEP_MAX_S)):
                    await self._told.wait()
                    self._told = trio.Event()
                    at_s = self.member.wake_at_s(self._clock_s())
            await trio.lowlevel.checkpoint()
