"""The follower: keeps the directory that its leader ships to it, answers, and is promoted on request.

    connect (``introduction.py``) -> follow over one link (``link_to_leader.py``) until it ends -> a pause -> again

1. A directory is continued from its own state. Frames that the leader never had are cut off when it says so. Nothing
   else is removed. Committed frames are never cut off: the follower objects (OBJECTION), and the link ends. A follower
   acknowledges a message as synced before the leader confirms it.
2. A standby is promoted while its leader does not answer, and without `accept_loss` only if nothing speaks for a loss
   (``promotion.py``).
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
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import trio

from warren.cluster.events import Position, Standing
from warren.msgstore.files.store_errors import StoreError, StoreFullError, StoreUnreadableError
from warren.replication import last_contact
from warren.replication.cluster_state import ClusterState, KeptState
from warren.replication.cut_copies import Quarantine
from warren.replication.entries import Beacon
from warren.replication.format_level import ANSWERS_FROM, LEVEL, OBJECTION_FROM
from warren.replication.free_space import FreeSpace
from warren.replication.handshake import Node, Refused
from warren.replication.identity import Identity
from warren.replication.introduction import CONNECT_S, Introduction, StoreOfLeader
from warren.replication.last_contact import Contact
from warren.replication.leader_clock import LeaderClock
from warren.replication.link_to_leader import LinkToLeader
from warren.replication.metadata_copy import MetadataCopy
from warren.replication.passage import pass_on
from warren.replication.pre_vote import Told, ask
from warren.replication.promotion import Promotion
from warren.replication.questions import Questions
from warren.replication.replica_copy import ReplicaCopy
from warren.replication.replica_scrub import ReplicaScrub
from warren.replication.replica_store import NO_STORE, EntryRefusedError, ReplicaStore
from warren.server import links_mark
from warren.server.client_of_node import ClientOfNode
from warren.server.following import NoLeader, NotPromoted, Passage, ReadableCopy
from warren.server.logs import get_logger
from warren.server.management import Health
from warren.server.replication import ClusterRefusal
from warren.server.setting_kinds import Endpoint
from warren.server.threads import REPLICATION, in_thread

# The pause before the next attempt: doubled each time, and short again after a link over which something has come.
PAUSE_S: Final = (0.2, 5.0)
CONTACT_EVERY_S: Final = 10.0  # how often it is written that this standby is in sync
CONTACT_LOOK_S: Final = 1.0  # how soon the first time
log = get_logger("replication")

T = TypeVar("T")


class Election(Protocol):
    """Decides which node to follow. It reports its decisions by `Follower.answer` and the like."""

    async def leader_address(self) -> Endpoint | None:
        """Return the last known address of the leader; None without one, or when this node leads."""

    async def another_leads(self) -> None:
        """Wait until another leader is known than the one that `leader_address` was about last."""

    def heard(self, leader: Node, epoch: int, beacon: int, own: Position) -> None:
        """Note that a leader has announced itself; this node's log is synced up to `own`."""

    def received(self, leader: Node) -> None:
        """Note that something has come from a leader: it is there."""

    def lost(self, leader: Node, own: Position) -> None:
        """Note that the link to a leader has ended."""

    def refused(self) -> None:
        """Note that the leader is gone: its address refuses connections, or has a process that does not lead."""

    def recover(self, *, accepts_loss: bool) -> str:
        """Make this node's data the truth, and have this node lead; raises ClusterRefusal."""

    def trouble_of_directory(self) -> str:
        """Return why this node's directory is not to be trusted; empty when it is."""


class Life:
    """The time for which a node follows. `over`: from then on it connects to no leader and acknowledges nothing."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self._scope = trio.CancelScope()

    async def run(self, follow: Callable[[], Awaitable[None]]) -> None:
        if not self.over.is_set():
            with trio.CancelScope() as self._scope:
                await follow()

    def end(self) -> None:
        self.over.set()
        self._scope.cancel()


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
        self.life = Life()
        self.failure = ""  # the failure of the disk: its content is unknown since
        self.reason = "not connected yet"  # why it is not connected
        self.leader: Node | None = state.leader
        self.leader_committed_lsn = 0
        self.leader_clock = LeaderClock()
        self.promotion = Promotion(last_contact.maybe_read(directory))
        self.space = FreeSpace(replica.file_system)
        self._endpoint = endpoint
        self._identity = identity
        self._introduction = Introduction(identity, self.me)
        self._directory = directory
        self._kept = KeptState(directory, state)
        self._replica = replica
        self._copy = ReplicaCopy(replica, metadata)
        self._quarantine = Quarantine(replica.file_system)
        self.scrub = ReplicaScrub(replica, self._copy.sealed, self.askable)
        self._link: LinkToLeader | None = None
        self._election: Election | None = None
        self._lost_s = time.monotonic()  # the end of the last link
        self._link_heard_s = self._lost_s  # the leader, over the last link
        self._told = ""

    # --- status and commands ----------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the answer for ``/api/cluster/status``."""
        replica, contact = self._replica, self.promotion.contact
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
            "last_in_sync_ms": None if contact is None else contact.time_ms,
            "in_sync_since_start": self.promotion.is_of_this_life,
            "min_in_sync": self._kept.state.min_in_sync,
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
            raise NotPromoted("the nodes of this cluster elect their leader")
        if self.promotion.is_done:
            raise NotPromoted("it is being promoted already")
        assert self._endpoint is not None
        answers = self._link is not None or await self._introduction.is_answered(self._endpoint)
        if answers or self.current_leader() is not None:  # it may have come while it was asked
            raise NotPromoted(
                f"the leader at {self._endpoint} answers: stop it first, or two nodes would confirm messages"
            )
        has_all = not self._replica.is_catching_up and self._replica.synced_lsn > 0
        doubt = self.promotion.doubt(has_all=has_all, now_s=time.monotonic(), wall_s=time.time())
        if doubt and not accept_loss:
            raise NotPromoted(
                f"{doubt} Promote another follower, or bring the leader back; with --accept-loss only the "
                "data here is kept"
            )
        log.warning(
            "promoted: this node is a leader from now on", accept_loss=accept_loss, lsn=self._replica.synced_lsn
        )
        self.promotion.is_done = True
        self.life.end()
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
        if link is None or not link.has_begun or self._replica.is_catching_up or self.life.over.is_set():
            return None
        return self._copy

    def askable(self) -> list[Questions]:
        """Return the link to a leader that answers questions, while this node is in sync with it. Any thread."""
        link = self._link
        return [link.questions] if link is not None and link.may_be_asked and self.readable() is not None else []

    def next_epoch(self) -> int:
        """Return the epoch of this node as a leader."""
        return self.promotion.epoch(max(self._replica.epoch, self._kept.state.epoch))

    def _note(self) -> str:
        if self._kept.state.min_in_sync > 1:
            return ""
        return (
            f"The link to the leader was lost {self._silent_s() or 0:.0f} s ago. Its min_in_sync is 1: what it has "
            "confirmed alone after that is not here."
        )

    def _is_in_sync(self) -> bool:
        """Tell whether this node has all its leader has, or a standby had it when its link ended, in this life."""
        if self._replica.is_catching_up or self._replica.synced_lsn == 0:
            return False
        return self._election is not None or self.promotion.is_of_this_life

    def _known_committed_lsn(self) -> int:
        """Return up to where the log is known here to be committed."""
        contact = self.promotion.contact
        told = max(self.leader_committed_lsn, self._replica.committed_lsn)
        return told if contact is None else max(told, contact.committed_lsn)

    def _silent_s(self) -> float | None:
        """Return how long ago this node was in sync; None when that is not known."""
        return self.promotion.silent_s(time.monotonic(), time.time())

    def _disconnected_s(self) -> float | None:
        """Return for how long the leader has been missing; None when that is not known."""
        has_met = self._election is not None or self.promotion.is_of_this_life
        return round(time.monotonic() - self._lost_s, 3) if has_met else self._silent_s()

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
        self.promotion.elect(epoch)
        self.life.end()

    def stop_acknowledging(self) -> None:
        """Stop acknowledging: nothing more is said over this link."""
        if self._link is not None:
            self._link.fail("this node no longer follows that leader")

    def refuse(self, epoch: int) -> None:
        """Notify the leader that an epoch has begun which is greater than its own."""
        if self._link is not None:
            self._link.refuse(epoch)

    # --- its life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until this node leads, or until the disk fails."""
        await self.life.run(self._follow)

    async def _follow(self) -> None:
        least, most = PAUSE_S
        pause_s = least
        while True:
            # A node that may be elected must notice soon that a process is gone, or that another one leads.
            is_patient = self._election is None
            try:
                may_retry_soon = await self._follow_once()
            except _AnotherLeadsError:
                self._gone("another node is the leader now")
            except Refused as refused:
                self._gone(refused.reason)
                is_patient = refused.leads
                if self._election is not None and not refused.leads:
                    self._election.refused()
            except EntryRefusedError as error:
                self._gone(str(error))
            except trio.TooSlowError:
                self._gone(f"the leader did not answer within {CONNECT_S:g} s")
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
                self.life.end()
                return
            else:
                is_patient = not may_retry_soon
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

    def note_contact(self, heard_s: float) -> None:
        """Note that the leader was heard then (monotonic), if this is a standby that was in sync."""
        replica = self._replica
        if self._election is None and self.leader is not None and not replica.is_catching_up:
            time_ms = int((time.time() - (time.monotonic() - heard_s)) * 1000)
            contact = Contact(time_ms, self.leader.name, self._known_committed_lsn(), replica.synced_lsn)
            self.promotion.note(contact, heard_s)

    async def keep_contact(self) -> None:
        """Write now and then that this standby is in sync. For ever."""
        written = self.promotion.contact
        while True:
            contact = self.promotion.contact
            if contact is None or contact is written:
                await trio.sleep(CONTACT_LOOK_S)
                continue
            await in_thread(REPLICATION, partial(last_contact.write, self._directory, contact))
            written = contact
            await trio.sleep(CONTACT_EVERY_S)

    def write_contact(self) -> None:
        """Write when this standby was in sync, or forget it if this node leads from now on. Blocks. Raises OSError."""
        if self.promotion.is_done:
            last_contact.forget(self._directory)
        elif self.promotion.contact is not None:
            last_contact.write(self._directory, self.promotion.contact)

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
        wire = await self._while_it_leads(partial(self._introduction.connect, self._endpoint))
        try:
            side, store = await self._while_it_leads(partial(self._introduction.meet, wire, self._about))
            leader = side.leader
            assert leader is not None
            await self._remember(leader, store)
            epoch = store.epoch
            link = LinkToLeader(wire, self._replica, epoch, store.store_id, self)
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
                self.note_contact(link.came_s)
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

    def received(self) -> None:
        """Report that something has come from the leader."""
        if self._election is not None and self.leader is not None:
            self._election.received(self.leader)

    def heard(self, link: LinkToLeader, entry: Beacon) -> None:
        """Handle a beacon of the leader."""
        self.leader_committed_lsn = entry.committed_lsn
        self.leader_clock.told(entry.epoch, entry.time_ms)
        if self._election is None:
            link.answer(entry.number)
            self.note_contact(time.monotonic())
        elif self.leader is not None:
            self._election.heard(self.leader, entry.epoch, entry.number, self.own_position())

    def _about(self) -> dict[str, Any]:
        """Return this node's report for a leader."""
        applied = self.metadata.applied(self._replica.store_id)
        about = {"store": self.store(), "applied": applied, "http": self.urls, "life": self._kept.state.life}
        if self._election is not None:
            about["trouble"] = self._election.trouble_of_directory()
        return about

    async def _remember(self, leader: Node, store: StoreOfLeader) -> None:
        self.leader = leader
        # The directory becomes that broker's: its metadata say whether links are held.
        await in_thread(REPLICATION, links_mark.release, self._directory)
        keep = partial(
            self._kept.keep, leader=leader, epoch=store.epoch, min_in_sync=store.min_in_sync, in_sync=frozenset()
        )
        await in_thread(REPLICATION, keep)

    def keep_lives(self, lives: tuple[str, ...]) -> None:
        """Keep only these lives in the directory, durably. Raises OSError."""
        self._kept.keep(lives=lives)


class _AnotherLeadsError(Exception):
    """The record names another leader than the one that this node was about to follow."""


def _is_refusal(error: OSError) -> bool:
    """Tell whether an address refuses connections; trio has the reason as the cause."""
    causes: list[BaseException | None] = [error, error.__cause__]
    if isinstance(error.__cause__, BaseExceptionGroup):
        causes = list(error.__cause__.exceptions)
        return all(isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED for cause in causes)
    return any(isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED for cause in causes)
