"""The follower: keeps the directory that its leader ships to it, answers, and is promoted on request.

    loop     connects and connects again; answers beacons, also while the disk is busy; HTTP
    thread   reads entries, carries them out, one after the other, and acknowledges (`_Worker`); while it is at the disk
             the loop reads (``intake``)

1. A directory is continued from its own state. Frames that the leader never had are cut off when it says so. Nothing
   else is removed. Committed frames are never cut off: the follower objects (OBJECTION), and the link ends. A follower
   acknowledges a message as synced before the leader confirms it.
2. A standby is promoted without `accept_loss` if it was in sync in this life, its link ended while it was, and that
   was less than `SURE_S` ago. Otherwise its leader may have confirmed more since: promoting it means to accept that.
   The time when it was last in sync survives restarts (``last_contact.py``). While the leader answers, promotion is
   refused.
3. From the beginning of a promotion on, the follower acknowledges nothing. The promotion ends its life: the same
   process recovers the directory and is a leader (``node.py``).
4. Where nodes are elected (`Election`) promotion by hand is refused. This node follows the node that the record names.
   It compares its log with that of a leader when its member has had a beacon of it answered, and says nothing more over
   that link when the member has it stop. When the record names another leader, connecting, a link, and a pause end at
   once.
5. A disk without space ends the link, with that reason: the leader continues without this follower, which tries again.
   A disk that fails ends the process with exit code 3, as it does for a broker.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, Protocol, TypeVar

import trio

from warren.cluster.driver import passed_s
from warren.cluster.events import Position, Standing
from warren.msgstore.files.store_errors import StoreError, StoreFullError, StoreUnreadableError
from warren.replication import cluster_state, last_contact
from warren.replication.cluster_state import ClusterState
from warren.replication.cut_copies import Quarantine
from warren.replication.entries import (
    PREAMBLE,
    Ack,
    Beacon,
    HaveBytes,
    Objection,
    OfBoth,
    Stop,
    Truncate,
    encoded,
    sealed_lists,
)
from warren.replication.format_level import ANSWERS_FROM, LEVEL, LEVEL_TOLD, OBJECTION_FROM, told_level
from warren.replication.handshake import FollowerSide, Node, Refused
from warren.replication.identity import Identity
from warren.replication.intake import Intake
from warren.replication.last_contact import Contact
from warren.replication.leader_clock import LeaderClock
from warren.replication.metadata_copy import MetadataCopy
from warren.replication.passage import connect, meet_leader, pass_on, some
from warren.replication.pre_vote import Told, ask
from warren.replication.questions import Answering, Questions
from warren.replication.replica_copy import ReplicaCopy
from warren.replication.replica_scrub import ReplicaScrub
from warren.replication.replica_store import (
    EPOCH_STRIDE,
    NO_STORE,
    EntryRefusedError,
    HistoryLostError,
    ReplicaStore,
)
from warren.replication.wire import Wire
from warren.server import links_mark
from warren.server.client_of_node import ClientOfNode
from warren.server.logs import get_logger
from warren.server.management import Health, NoLeader, NotPromoted, Passage, ReadableCopy
from warren.server.replication import ClusterRefusal
from warren.server.setting_kinds import Endpoint
from warren.server.settings import DISK_FREE_RESUME_SHARE
from warren.server.threads import REPLICATION, in_thread

# Less than the grace time of a member: one that waits for a machine that is gone has to hear of the next leader.
CONNECT_S: Final = 2.0
# The pause before the next attempt: doubled each time, and short again after a link over which something has come.
PAUSE_S: Final = (0.2, 5.0)
SILENT_S: Final = 3.0  # a leader sends beacons much more often
RECEIVED_S: Final = 0.25  # how often received data is reported
LOOK_S: Final = 0.05  # how often the loop looks whether the thread is at the disk, and does not read
PROBE_S: Final = 1.0
SURE_S: Final = 60.0  # of silence, in which loss need not be accepted
MAY_LACK: Final = "Confirmed messages may be missing here"
CONTACT_EVERY_S: Final = 10.0  # how often it is written that this standby is in sync
CONTACT_LOOK_S: Final = 1.0  # how soon the first time
# A leader that starts again takes the next epoch, and a follower that is promoted another one than that, and than
# another follower that is promoted, too. Epochs have 32 bits.
EPOCHS_APART: Final = 1 << 20

log = get_logger("replication")

T = TypeVar("T")


class Election(Protocol):
    """Decides which node to follow. It reports its decisions by `Follower.answer` and the like."""

    async def leader_address(self) -> Endpoint | None:
        """Return the last known address of the leader; None without one, or when this node leads."""

    async def another_leads(self) -> None:
        """Wait until another leader is known than the one that `leader_address` was about last."""

    def heard(self, leader: Node, epoch: int, beacon: int, own: Position) -> None:
        """A leader has announced that it leads; this node's log is synced up to `own`."""

    def received(self, leader: Node) -> None:
        """Something has come from a leader: it is there."""

    def lost(self, leader: Node, own: Position) -> None:
        """The link to a leader has ended."""

    def refused(self) -> None:
        """The leader's address refuses connections, or has a process that does not lead: the old leader is gone."""

    def recover(self, *, accepts_loss: bool) -> str:
        """Make this node's data the truth, and have this node lead; raises ClusterRefusal."""

    def trouble_of_directory(self) -> str:
        """Return why this node's directory is not to be trusted; empty when it is."""


class Follower:
    """A follower called `name` of the leader at `endpoint`. `replica` has been opened; so has `metadata`.

    Without an endpoint it is told which leader to follow: `obey`.
    """

    def __init__(
        self,
        endpoint: Endpoint | None,
        identity: Identity,
        name: str,
        directory: Path,
        state: ClusterState,
        replica: ReplicaStore,
        metadata: MetadataCopy,
    ) -> None:
        self.me = state.me(name)
        self.metadata = metadata
        self.urls: list[str] = []  # of its management API, as others reach it
        self.disk_free_min_bytes = 0
        self.over = trio.Event()  # its life as a follower
        self.is_promoted = False
        self.failure = ""  # the failure of the disk: its content is unknown since
        self.reason = "not connected yet"  # why it is not connected
        self.leader: Node | None = state.leader
        self.leader_committed_lsn = 0
        self.leader_clock = LeaderClock()
        self._endpoint = endpoint
        self._identity = identity
        self._directory = directory
        self._state = state
        self._keeping = Lock()
        self._replica = replica
        self._copy = ReplicaCopy(replica, metadata)
        self._quarantine = Quarantine(replica.file_system)
        self.scrub = ReplicaScrub(replica, self._copy.sealed, self.askable)
        self._link: _Link | None = None
        self._election: Election | None = None
        self._elected_epoch = 0
        self._promoted_epoch = 0
        self._promoting = False
        self._contact = last_contact.maybe_read(directory)  # None: it is not known when this node was in sync
        self._is_contact_of_this_life = False
        self._heard_s = self._lost_s = time.monotonic()  # the last contact, and the end of the last link
        self._link_heard_s = self._lost_s  # the leader, over the last link
        self._is_disk_low = False
        self._told = ""

    # --- status and commands ----------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the answer for ``/api/cluster/status``."""
        replica = self._replica
        link = self._link
        return {
            "role": "follower",
            "node": self.me.name,
            "epoch": replica.epoch,
            "leader": None if self.leader is None else self.leader.name,
            "leader_address": None if self._endpoint is None else str(self._endpoint),
            "connected": link is not None,
            "in_sync": self._is_in_sync(),
            "received_lsn": replica.received_lsn,
            "synced_lsn": replica.synced_lsn,
            "committed_lsn": self._known_committed_lsn(),
            "lag_bytes": max(0, self._known_committed_lsn() - replica.synced_lsn),
            "disconnected_s": None if link is not None else self._disconnected_s(),
            "last_in_sync_ms": None if self._contact is None else self._contact.time_ms,
            "in_sync_since_start": self._is_contact_of_this_life,
            "min_in_sync": self._state.min_in_sync,
            "clock_skew_ms": self.leader_clock.skew_ms() if link is not None else None,
            "format_level": LEVEL,
            "served_bytes": self._copy.served_bytes,
            "mended": self.scrub.mended,
            "damaged": self.scrub.damaged,
            **self._quarantine.usage(),
            "trouble": "" if link is not None else self.reason,
        }

    def health(self) -> Health:
        """Tell whether this follower has everything that its leader has."""
        if self._link is None:
            return Health(False, f"not following: {self.reason}")
        if self._replica.is_catching_up:
            return Health(False, "not in sync yet")
        return Health(True)

    async def promote(self, accept_loss: bool) -> dict[str, Any]:
        """End following and have this process continue as a leader; return a report of it.

        Raises:
            NotPromoted: for the stated reason; it continues to follow.
        """
        if self._election is not None:
            raise NotPromoted("the nodes of this cluster elect their leader by themselves")
        if self._promoting:
            raise NotPromoted("it is being promoted already")
        if self._link is not None or await self._leader_answers():
            raise NotPromoted(
                f"the leader at {self._endpoint} answers: stop it first, or there are two that confirm messages"
            )
        doubt = self._doubt()
        if doubt and not accept_loss:
            raise NotPromoted(
                f"{doubt} Promote another follower, or bring the leader back; with --accept-loss what is here is all "
                "there is"
            )
        self._promoting = True
        log.warning(
            "promoted: this node is a leader from now on", accept_loss=accept_loss, lsn=self._replica.synced_lsn
        )
        self.is_promoted = True
        self.over.set()
        return {"lsn": self._replica.synced_lsn, "epoch": self.next_epoch(), "note": doubt or self._note()}

    async def recover(self, accept_loss: bool) -> dict[str, Any]:
        """Make this node's data the truth for all nodes, and have this one lead.

        Raises:
            NotPromoted: for the stated reason; it continues to follow.
        """
        if self._election is None:
            raise NotPromoted("the nodes do not elect their leader here: see `warren ctl cluster promote`")
        try:
            node = self._election.recover(accepts_loss=accept_loss)
        except ClusterRefusal as refusal:
            raise NotPromoted(str(refusal)) from None
        return {"node": node, "epoch": self._replica.epoch, "synced_lsn": self._replica.synced_lsn}

    def current_leader(self) -> Node | None:
        """Return the leader that this node follows at the moment."""
        return self.leader if self._link is not None else None

    def leader_silent_s(self) -> float:
        """Return for how long nothing has been heard of a leader."""
        link = self._link
        return time.monotonic() - (self._link_heard_s if link is None else link.heard_s)

    async def to_leader(self, client: ClientOfNode) -> Passage:
        """Connect a client of this node to the leader.

        Raises:
            NoLeader: it cannot be.
        """
        if self._endpoint is None:
            raise NoLeader("nobody leads")
        return await pass_on(self._endpoint, self._identity, self.me, client)

    def readable(self) -> ReadableCopy | None:
        """Return the data here for readers, while it has everything that was confirmed."""
        link = self._link
        if link is None or not link.has_begun or self._replica.is_catching_up or self.over.is_set():
            return None
        return self._copy

    def askable(self) -> list[Questions]:
        """Return the link to a leader that answers questions, while this node is in sync with it. Any thread."""
        link = self._link
        return [link.questions] if link is not None and link.may_be_asked and self.readable() is not None else []

    def next_epoch(self) -> int:
        """Return the epoch of this node as a leader: the one it was elected for, or one that its leader has not taken
        by starting again meanwhile.
        """
        if self._elected_epoch:
            return self._elected_epoch
        if not self._promoted_epoch:
            known = max(self._replica.epoch, self._state.epoch)
            self._promoted_epoch = known + EPOCH_STRIDE + secrets.randbelow(EPOCHS_APART)
        return self._promoted_epoch

    def _doubt(self) -> str:
        """Return why confirmed messages may be missing here; empty when nothing speaks for that."""
        if self._replica.is_catching_up or self._replica.synced_lsn == 0:
            return f"{MAY_LACK}: this follower was not in sync with its leader; {self._last()}."
        if not self._is_contact_of_this_life:
            return (
                f"{MAY_LACK}: this follower has not been in sync with its leader since it was started; {self._last()}. "
                "What the leader confirmed after that is not here."
            )
        silent_s = self._silent_s()
        if silent_s is None or silent_s >= SURE_S:
            return (
                f"{MAY_LACK}: {self._last()}. What the leader confirmed after that, alone or with another follower, "
                "is not here."
            )
        return ""

    def _note(self) -> str:
        if self._state.min_in_sync > 1:
            return ""
        return (
            f"The link to the leader was lost {self._silent_s() or 0:.0f} s ago. Its min_in_sync is 1: what it has "
            "confirmed alone after that is not here."
        )

    def _last(self) -> str:
        """Return when this node was in sync, and with which leader."""
        contact = self._contact
        if contact is None:
            return "it is not known when it was"
        behind = contact.committed_lsn - contact.synced_lsn
        lacked = f", and lacked {behind} bytes of what was committed then" if behind > 0 else ""
        before = "" if self._is_contact_of_this_life else ", before this start"
        return (
            f"it was in sync with {contact.leader} up to LSN {contact.synced_lsn} at {contact.time_text()}, "
            f"{self._silent_s():.0f} s ago{before}{lacked}"
        )

    def _is_in_sync(self) -> bool:
        """Tell whether this node has all its leader has, or a standby had it when its link ended, in this life."""
        if self._replica.is_catching_up or self._replica.synced_lsn == 0:
            return False
        return self._election is not None or self._is_contact_of_this_life

    def _known_committed_lsn(self) -> int:
        """Return up to where the log is known here to be committed."""
        contact = self._contact
        told = max(self.leader_committed_lsn, self._replica.committed_lsn)
        return told if contact is None else max(told, contact.committed_lsn)

    def _silent_s(self) -> float | None:
        """Return how long ago this node was in sync; None when that is not known."""
        if self._contact is None:
            return None
        if self._is_contact_of_this_life:
            return round(time.monotonic() - self._heard_s, 3)
        return round(max(0.0, time.time() - self._contact.time_ms / 1000), 3)

    def _disconnected_s(self) -> float | None:
        """Return for how long the leader has been missing; None when that is not known."""
        has_met = self._election is not None or self._is_contact_of_this_life
        return round(time.monotonic() - self._lost_s, 3) if has_met else self._silent_s()

    async def _leader_answers(self) -> bool:
        """Tell whether there is a leader that proves itself."""
        try:
            with trio.fail_after(PROBE_S):
                wire = await self._connected()
        except (OSError, trio.TooSlowError):
            return False
        try:
            with trio.fail_after(PROBE_S):
                await meet_leader(wire, self._identity, self.me)
        except (Refused, trio.TooSlowError):
            return False
        finally:
            wire.close()
        return True

    def obey(self, election: Election) -> None:
        """Follow the leader that `election` names, from the beginning on."""
        self._election = election

    # --- from its member --------------------------------------------------------------------------------------------

    def answer(self, epoch: int, beacon: int) -> None:
        """Answer a beacon of the leader of `epoch`; compare logs with it, if that is due, and take its frames."""
        if self._link is not None and self._link.epoch == epoch:
            self._link.begin()
            self._link.answer(beacon)

    def elected(self, epoch: int) -> None:
        """End following, and have this process continue as the leader of `epoch`."""
        self._elected_epoch = epoch
        self.is_promoted = True
        self.over.set()

    def stop_acknowledging(self) -> None:
        """Stop acknowledging: nothing more is said over this link."""
        if self._link is not None:
            self._link.fail("this node no longer follows that leader")

    def refuse(self, epoch: int) -> None:
        """Tell the leader that an epoch has begun which is greater than its own."""
        if self._link is not None:
            self._link.refuse(epoch)

    # --- its life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow for ever, or until the disk fails."""
        least, most = PAUSE_S
        pause_s = least
        while True:
            # A node that may be elected must notice soon that a process is gone, or that another one leads.
            is_patient = self._election is None
            try:
                goes_on = await self._follow_once()
            except _AnotherLeadsError:
                self._gone("another node leads by now")
            except Refused as refused:
                self._gone(refused.reason)
                is_patient = refused.leads
                if self._election is not None and not refused.leads:
                    self._election.refused()
            except EntryRefusedError as error:
                self._gone(str(error))
            except trio.TooSlowError:
                self._gone(f"the leader does not answer within {CONNECT_S:g} s")
            except OSError as error:
                self._gone(f"no connection: {error.strerror or error}")
                if self._election is not None and _is_refusal(error):
                    self._election.refused()
            except StoreFullError as error:
                self._gone(f"the disk is full: {error}")
                is_patient = True
            except StoreUnreadableError as error:
                self._gone(str(error))
                is_patient = True
            except StoreError as error:
                self.failure = str(error)
                self.over.set()
                return
            else:
                is_patient = not goes_on
            if not is_patient:
                pause_s = least
            with trio.move_on_after(pause_s):
                await self._another_leads()
            pause_s = min(2 * pause_s, most)

    async def _another_leads(self) -> None:
        if self._election is None:
            await trio.sleep_forever()
        else:
            await self._election.another_leads()

    async def _while_it_leads(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work, and give it up when another node leads.

        Raises:
            _AnotherLeadsError: it was given up.
            Exception: the work has failed.
        """
        done: list[T] = []
        failed: list[Exception] = []
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await self._another_leads()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            try:
                done.append(await work())
            except Exception as error:
                failed.append(error)
            nursery.cancel_scope.cancel()
        if failed:
            raise failed[0]
        if not done:
            raise _AnotherLeadsError
        return done[0]

    def _note_contact(self, heard_s: float) -> None:
        """Note that the leader was heard then (monotonic), if this is a standby that was in sync."""
        replica = self._replica
        if self._election is None and self.leader is not None and not replica.is_catching_up:
            time_ms = int((time.time() - (time.monotonic() - heard_s)) * 1000)
            self._contact = Contact(time_ms, self.leader.name, self._known_committed_lsn(), replica.synced_lsn)
            self._is_contact_of_this_life = True
            self._heard_s = heard_s

    async def keep_contact(self) -> None:
        """Write now and then that this standby is in sync. For ever."""
        written = self._contact
        while True:
            contact = self._contact
            if contact is None or contact is written:
                await trio.sleep(CONTACT_LOOK_S)
                continue
            await in_thread(REPLICATION, partial(last_contact.write, self._directory, contact))
            written = contact
            await trio.sleep(CONTACT_EVERY_S)

    def write_contact(self) -> None:
        """Write when this standby was in sync, or forget it if this node leads from now on. Blocks. Raises OSError."""
        if self.is_promoted:
            last_contact.forget(self._directory)
        elif self._contact is not None:
            last_contact.write(self._directory, self._contact)

    def _gone(self, reason: str) -> None:
        """Log why the link is missing, once for each reason."""
        self.reason = reason
        if reason != self._told:
            self._told = reason
            log.warning("not following", leader=str(self._endpoint), reason=reason)

    async def _follow_once(self) -> bool:
        """Follow over one link until it ends; tell whether to try again soon: not if the leader has sent it nothing."""
        if self._election is not None:
            self._endpoint = await self._election.leader_address() or self._endpoint
            if self._endpoint is None:
                self._gone("nobody leads")
                return True
        wire = await self._while_it_leads(self._connected)
        try:
            side, store = await self._while_it_leads(partial(self._met, wire))
            leader = side.leader
            assert leader is not None
            await self._remember(leader, store)
            epoch = store.epoch
            link = _Link(wire, self._replica, epoch, store.store_id, self)
            if self._election is None:
                link.begin()
            link.may_be_asked = store.level >= ANSWERS_FROM
            link.may_object = store.level >= OBJECTION_FROM
            self._link = link
            self._told = ""
            log.info("following", leader=str(leader), address=str(self._endpoint), epoch=epoch)
            try:
                await self._while_it_leads(partial(link.run, side.rest()))
            finally:
                self._link_heard_s = link.heard_s
                self._link = None
                self._lost_s = time.monotonic()
                self._note_contact(link.came_s)
                if self._election is not None:
                    self._election.lost(leader, self.own_position())
            self._gone(link.reason)
        finally:
            wire.close()
        return self._replica.done > 0

    def own_position(self) -> Position:
        """Return how far the log is synced here."""
        return Position(self._replica.epoch, self._replica.synced_lsn)

    def standing(self) -> Standing:
        """Return how far the log is synced here, and up to where it is committed."""
        return Standing(self.own_position(), self._replica.committed())

    def store(self) -> str:
        """Return the id of the store here, empty without one."""
        store_id = self._replica.store_id
        return "" if store_id == NO_STORE else store_id.hex()

    async def position_of(self, endpoint: Endpoint) -> Told:
        """Ask another node how far its log goes; raises OSError and Refused."""
        return await ask(endpoint, self._identity, self.me, self.store())

    @property
    def disk_began_s(self) -> float | None:
        """Since when the disk has worked on one thing, by the member's clock; None when it does not."""
        return None if self._link is None else self._link.disk_began_s

    def is_disk_low(self) -> bool:
        """Tell whether there is so little space that publishers would be blocked if this node led."""
        least = self.disk_free_min_bytes * (DISK_FREE_RESUME_SHARE if self._is_disk_low else 1)
        with suppress(OSError):
            self._is_disk_low = self._replica.file_system.free_bytes() < least
        return self._is_disk_low

    def received(self) -> None:
        """Something has come from the leader."""
        if self._election is not None and self.leader is not None:
            self._election.received(self.leader)

    def heard(self, link: _Link, entry: Beacon) -> None:
        """The leader has sent a beacon."""
        self.leader_committed_lsn = entry.committed_lsn
        self.leader_clock.told(entry.epoch, entry.time_ms)
        if self._election is None:
            link.answer(entry.number)
            self._note_contact(time.monotonic())
        elif self.leader is not None:
            self._election.heard(self.leader, entry.epoch, entry.number, self.own_position())

    async def _connected(self) -> Wire:
        assert self._endpoint is not None
        with trio.fail_after(CONNECT_S):
            return await connect(self._endpoint, self._identity)

    async def _met(self, wire: Wire) -> tuple[FollowerSide, _StoreOfLeader]:
        with trio.fail_after(CONNECT_S):
            side = await meet_leader(wire, self._identity, self.me)
            return side, await self._introduce(wire, side)

    async def _introduce(self, wire: Wire, side: FollowerSide) -> _StoreOfLeader:
        """Prove this node's identity; return the leader's answer about its store.

        Raises:
            Refused: the leader does not take this follower.
        """
        applied = self.metadata.applied(self._replica.store_id)
        about = {"store": self.store(), "applied": applied, "http": self.urls, "life": self._state.life}
        if self._election is not None:
            about["trouble"] = self._election.trouble_of_directory()
        wire.put([side.prove(about | LEVEL_TOLD)])
        while (store := side.welcomed()) is None:
            side.feed(await some(wire))
        return _StoreOfLeader(store)

    async def _remember(self, leader: Node, store: _StoreOfLeader) -> None:
        self.leader = leader
        # The directory becomes that broker's: its metadata say whether links are held.
        await in_thread(REPLICATION, links_mark.release, self._directory)
        changes = {"leader": leader, "epoch": store.epoch, "min_in_sync": store.min_in_sync, "in_sync": frozenset()}
        await in_thread(REPLICATION, self._keep, changes)

    def keep_lives(self, lives: tuple[str, ...]) -> None:
        """Have the directory know these lives only, durably. Raises OSError."""
        self._keep({"lives": lives})

    def _keep(self, changes: Mapping[str, Any]) -> None:
        with self._keeping:
            state = replace(self._state, **changes)
            if state != self._state:
                cluster_state.write(self._directory, state)
                self._state = state


class _AnotherLeadsError(Exception):
    """The record names another leader than the one that this node was about to follow."""


class _StoreOfLeader:
    """A leader's answer about its store.

    Raises:
        Refused: it says something else.
    """

    def __init__(self, store: Mapping[str, Any]) -> None:
        epoch, min_in_sync, store_id = store.get("epoch"), store.get("min_in_sync"), store.get("store")
        if not isinstance(epoch, int) or not isinstance(min_in_sync, int) or not isinstance(store_id, str):
            raise Refused("the leader does not say which store it has")
        self.epoch = epoch
        self.min_in_sync = min_in_sync
        self.store_id = bytes.fromhex(store_id)
        self.level = told_level(store.get("level"))


class _Link:
    """One connection to the leader, once both have proved themselves."""

    def __init__(self, wire: Wire, replica: ReplicaStore, epoch: int, store_id: bytes, follower: Follower) -> None:
        self.reason = ""
        self.heard_s = time.monotonic()  # the leader, unless this node is the one that does not read
        self.may_be_asked = False
        self.may_object = False
        self.epoch = epoch
        self._store_id = store_id
        self._has_begun = False
        self._wire = wire
        self._replica = replica
        self._follower = follower
        self._token = trio.lowlevel.current_trio_token()
        self._changed = trio.Event()  # nothing more comes
        self.questions = Questions(wire.put)
        self._wanted = Answering(replica.file_system, wire.put)
        self._intake = Intake(wire, self._on_beacon, self._on_end, self._on_question)
        self._worker = _Worker(wire, replica, epoch, self._intake, self._object)

    @property
    def came_s(self) -> float:
        """When something came from the leader last (monotonic)."""
        return self._intake.came_s

    @property
    def has_begun(self) -> bool:
        """Whether the entries of the leader are accepted."""
        return self._worker.has_begun

    def begin(self) -> None:
        """Compare logs, and accept the entries of the leader then."""
        if not self._has_begun:
            self._has_begun = True
            self._follower.metadata.begin(self._store_id)
            self._worker.begin(self._store_id)

    def answer(self, beacon: int) -> None:
        """Answer a beacon: at once, since the worker may be waiting for its disk."""
        self._worker.beacon = beacon
        if self._worker.has_begun:
            self._worker.acknowledge()

    def refuse(self, epoch: int) -> None:
        """Tell the leader of an epoch that is greater than its own, and hang up."""
        self._wire.put(encoded(Ack(0, 0, 0, 0, epoch)))
        self.fail(f"it leads epoch {self.epoch}, and epoch {epoch} has begun")

    def _object(self, lost: HistoryLostError) -> None:
        """Tell the leader which committed frames it does not have. From the thread."""
        if self.may_object:
            self._wire.put(encoded(Objection(lost.epoch, lost.lsn)))

    def fail(self, reason: str) -> None:
        """Say nothing more over this link, and have it end."""
        self._wire.fail(reason)

    @property
    def disk_began_s(self) -> float | None:
        """Since when the thread has worked on one entry; None when it does not."""
        return self._worker.began_s

    async def run(self, data: bytes) -> None:
        """Carry out entries until the link ends.

        Raises:
            StoreError: the worker could not carry something out.
        """
        worker = self._worker
        self._wire.put([PREAMBLE])  # before the thread says anything
        self._intake.feed(data)
        worker.start()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wire.send)
                nursery.start_soon(self._wanted.run)
                self.reason = await self._watch()
                nursery.cancel_scope.cancel()
        finally:
            self.questions.close()
            self._intake.end("the link has ended")
            with trio.CancelScope(shield=True):
                await in_thread(REPLICATION, worker.finish)
        if worker.error is not None:
            raise worker.error

    async def _watch(self) -> str:
        """Read input while the thread is at the disk, and watch that some comes; return why none does."""
        intake, told_s = self._intake, time.monotonic()
        while not intake.is_over:
            with trio.move_on_after(LOOK_S):
                if intake.maybe_read():
                    await self._wire.readable()
                else:
                    await self._changed.wait()
            if intake.came_s - told_s >= RECEIVED_S:
                told_s = intake.came_s
                self._follower.received()
            now_s = time.monotonic()
            self.heard_s = now_s if intake.is_full() else max(self.heard_s, intake.came_s)
            if now_s - self.heard_s >= SILENT_S:
                return "the leader is silent"
        if intake.is_left:
            self._worker.leave()
        elif intake.is_refused:
            self._wire.put(encoded(Stop(intake.reason)))
        return intake.reason

    def _on_beacon(self, entry: Beacon) -> None:
        self._soon(partial(self._follower.heard, self, entry))

    def _on_question(self, entry: OfBoth) -> None:
        if isinstance(entry, HaveBytes):
            self.questions.told(entry)  # at once: a thread waits for it
        else:
            self._soon(partial(self._wanted.take, entry, self.questions))

    def _on_end(self) -> None:
        self._soon(self._changed.set)

    def _soon(self, call: Callable[[], object]) -> None:
        """Have the loop make a call; from the thread, too."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call)


class _Worker:
    """The thread that reads entries and carries them out, and acknowledges when it has synced or has nothing to do.

    It reads its entries by itself: between the arrival of a frame and the write there is one wake-up.
    """

    def __init__(
        self,
        wire: Wire,
        replica: ReplicaStore,
        epoch: int,
        intake: Intake,
        told_lost: Callable[[HistoryLostError], None],
    ) -> None:
        self.error: StoreError | None = None
        self.beacon = 0
        self.has_begun = False  # and acknowledges from now on
        self.began_s: float | None = None  # when it began with the entry that it works on
        self._wire = wire
        self._replica = replica
        self._epoch = epoch
        self._intake = intake
        self._object = told_lost
        self._store_id: SimpleQueue[bytes | None] = SimpleQueue()  # with which it should begin; None: it is over
        self._has_left = False
        self._thread = Thread(target=self._run, name="replica", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def begin(self, store_id: bytes) -> None:
        """Tell the leader where this follower is, and accept its entries from then on."""
        self._store_id.put(store_id)

    def leave(self) -> None:
        """Note, after all work read so far, that the leader continues without this follower."""
        self._has_left = True

    def finish(self) -> None:
        """Carry out the entries that were read, and end; nothing more is read. Blocks."""
        self._store_id.put(None)
        self._thread.join()

    def tell_position(self) -> None:
        """Tell the leader where this follower is."""
        self._wire.put(encoded(self._replica.position()))
        for files in sealed_lists(self._replica.sealed_files()):
            self._wire.put(encoded(files))

    def acknowledge(self) -> None:
        """Tell the leader how far this follower is. Any thread."""
        self._wire.put(encoded(self._replica.ack(self.beacon)))

    def _run(self) -> None:
        replica, intake = self._replica, self._intake
        try:
            store_id = self._store_id.get()
            if store_id is None:
                return
            replica.follow(self._epoch, store_id)
            self.tell_position()
            self.has_begun = True
            self.acknowledge()
            while (taken := intake.next()) is not None:
                entry, size = taken
                synced_lsn, done = replica.synced_lsn, replica.done
                self.began_s = passed_s()
                replica.apply(entry, self._epoch)
                self.began_s = None
                intake.done(size)
                if isinstance(entry, Truncate):
                    self.tell_position()
                elif (intake.is_empty() or replica.synced_lsn > synced_lsn) and replica.done > done:
                    self.acknowledge()
            if self._has_left:
                replica.follow(self._epoch, replica.store_id)
        except StoreError as error:
            if isinstance(error, HistoryLostError):
                self._object(error)
            self._end(error)
        except Exception as error:
            log.error("internal error, the connection is closed", exception=error)
            self._end(EntryRefusedError(f"internal error: {error!r}"))

    def _end(self, error: StoreError) -> None:
        self.error = error
        self._wire.put(encoded(Stop(str(error))))
        self._wire.fail(str(error))
        self._intake.end(str(error))


def _is_refusal(error: OSError) -> bool:
    """Tell whether an address refuses connections; trio has the reason as the cause."""
    causes: list[BaseException | None] = [error, error.__cause__]
    if isinstance(error.__cause__, BaseExceptionGroup):
        causes = list(error.__cause__.exceptions)
        return all(isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED for cause in causes)
    return any(isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED for cause in causes)
