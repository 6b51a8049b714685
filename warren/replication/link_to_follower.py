"""The leader's end of the link to one follower, from the follower's proof to its end.

    Position, SealedList  ->  attach  ->  metadata, files  ->  entries, as they are written    ->  gone
                          <-  Truncate                     <-  too much was written meanwhile: once more

1. A follower's acknowledgements count once it is known to have the same log: before that its LSNs may be those of
   another history.
2. A follower that catches up is given up when it stands still, or when too much is kept for it. It then waits before it
   is given anything again (``catching_up``). When more is written meanwhile than may wait in memory, it says its
   position again, over the same link, and gets the rest from the files, too.
3. Until it is fed a task reads its entries; from then on they are read in turns of the reactor, until the link ends.
   A thread may still read files for it then.
4. Nothing of the log is compared with it, or sent to it, before the beginning of the leader's life is synced there.
5. A link that has ended counts no acknowledgement, and has caught up nobody. Its follower may be connected over another
   link by then, which has the same replica, and may have less than it had; or it was given up, and has to wait.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from warren.cluster.events import Position as Committed
from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.store_errors import StoreError
from warren.replication.catching_up import CatchUps
from warren.replication.elected_set import ElectedSet
from warren.replication.entries import (
    FROM_FOLLOWER,
    Ack,
    CatalogueCopy,
    CaughtUp,
    Decoder,
    Entry,
    EntryError,
    ImageBytes,
    ImagePiece,
    Objection,
    OfBoth,
    Position,
    SealedFile,
    SealedList,
    Stop,
    Truncate,
    encoded,
)
from warren.replication.format_level import IMAGE_BYTES_FROM, LIVES_FROM, understood
from warren.replication.handshake import Node
from warren.replication.in_sync import InSyncSet
from warren.replication.questions import Answering, Questions
from warren.replication.shipping import Attachment, BulkNeededError, Pieces, Shipping
from warren.replication.wire import Wire
from warren.server.logs import get_logger
from warren.server.replication import Host
from warren.server.threads import REPLICATION, in_thread
from warren.vhosts.metadata_lane import encode_change

# A follower that catches up is sent this much at a time, by a thread that is asked again after this pause.
AT_ONCE_BYTES: Final = 1 << 20
AT_ONCE_S: Final = 0.05
AHEAD_BYTES: Final = 4 << 20  # of the metadata
DRAINED_S: Final = 0.005
PATIENCE_S: Final = 1.0  # how often it is looked whether a follower that catches up gets on
SAID_MAX: Final = 1000  # entries of a follower that wait: each names thousands of files
RETURN_S: Final = 10.0  # for a follower that should connect again
COPY_BYTES: Final = 1 << 20  # of the metadata, in one entry
ATTACH_S: Final = 0.1  # how often it is looked whether it can be given anything
HEARD_EVERY_S: Final = 0.05  # how often a member hears of acknowledgements that answer no new beacon

Kind = TypeVar("Kind", Position, SealedList)

log = get_logger("replication")


class Feeder(Protocol):
    """The parts of the leader that a link needs."""

    in_sync: InSyncSet
    elected: ElectedSet | None
    shipping: Shipping  # one that was elected has another while it recovers
    catch_ups: CatchUps

    @property
    def has_begun(self) -> bool:
        """Whether the beginning of its life is synced there."""

    @property
    def host(self) -> Host:
        """The broker around the leader."""

    @property
    def file_system(self) -> FileSystem:
        """Where its store is."""

    def epoch(self) -> int:
        """Return the epoch of this life."""

    def moved(self) -> None:
        """React to a move of the gate: it may have opened."""


class LinkToFollower:
    """The connection of one follower, from its proof to its end. `applied`: the changes that its SQL has."""

    def __init__(self, leader: Feeder, wire: Wire, node: Node, address: str, applied: object) -> None:
        self.wire = wire
        self.node = node
        self.address = address
        self.stopped = ""  # why it has ended the connection, as it says
        self.urls: tuple[str, ...] = ()  # of its management API
        self.level = 1
        self.version: str | None = None
        self.trouble = ""  # with its directory, as told when it connected
        self.questions = Questions(wire.put)
        self._wanted = Answering(leader.file_system, wire.put)
        self.replica = leader.in_sync.connected(node, time.monotonic())
        self._leader = leader
        self._applied = applied
        self._decoder = Decoder(FROM_FOLLOWER)
        self._came: deque[Entry] = deque()  # its entries that were not handled yet
        self._attachment: Attachment | None = None
        self._ended = trio.Event()
        self._watched: int | None = None  # its descriptor, while turns of the reactor read it
        self._reason = ""
        self._catching_up = leader.catch_ups.begin(node)
        self._noted_at = 0  # the number of entries it has carried out when it has taken note
        self._sent_bytes = 0
        self._done = 0  # the number of entries it has carried out
        self._answered = 0  # the last beacon that the member knows to be answered
        self._heard_s = -math.inf  # when the member was told so last

    def feed(self, data: bytes) -> None:
        """Handle the bytes that came after the handshake."""
        self._decoder.feed(data)

    def end(self, reason: str) -> None:
        """End the connection, and tell the follower why."""
        if not self._ended.is_set():
            self._reason = reason
            self.wire.put(encoded(Stop(reason)))
            self._ended.set()

    async def serve(self) -> None:
        """Feed the follower until it is gone."""
        log.info("a follower has connected", node=str(self.node), address=self.address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.wire.send)
            nursery.start_soon(self._wanted.run)
            try:
                nursery.start_soon(self._end_when_asked, nursery.cancel_scope)
                nursery.start_soon(self._lose_patience)
                await self._feed_it()
            except EntryError as error:
                self.end(str(error))
            except StoreError as error:
                self.end(str(error))
            except OSError as error:
                self.end(f"the files of the leader cannot be read: {error.strerror or error}")
            finally:
                if self._attachment is not None and not self._attachment.is_behind:
                    self._leader.shipping.detach(self._attachment)
                self.questions.close()
                self.wire.close()
                nursery.cancel_scope.cancel()
        reason = self.stopped or self._reason or self.wire.failure
        log.info("a follower has gone", node=str(self.node), reason=reason)

    async def forget(self) -> None:
        """Release the files that the log keeps for it; a little later if it should connect again at once."""
        if self._attachment is not None:
            try:
                if self._attachment.is_behind and not self._catching_up.waits_s(time.monotonic()):
                    await trio.sleep(RETURN_S)
            finally:
                self._leader.shipping.detach(self._attachment)
            await in_thread(REPLICATION, self._leader.shipping.settle)

    async def _end_when_asked(self, scope: trio.CancelScope) -> None:
        await self._ended.wait()
        scope.cancel()

    async def _lose_patience(self) -> None:
        """Give the follower up if continuing is useless, until it has caught up."""
        while not self.replica.is_live:
            await trio.sleep(PATIENCE_S)
            if self._attachment is None:
                continue
            if self._catching_up.is_to_be_told(time.monotonic()):
                log.info("a follower catches up", node=str(self.node), sent_bytes=self.wire.sent_bytes)
            shipping = self._leader.shipping
            kept_bytes = shipping.kept_bytes(self._attachment)
            with suppress(OSError):
                free_bytes = await in_thread(REPLICATION, shipping.free_bytes) if kept_bytes else 0
                self._maybe_give_up(kept_bytes, free_bytes, time.monotonic())

    def _maybe_give_up(self, kept_bytes: int, free_bytes: int, now_s: float) -> None:
        self._catching_up.takes(self.wire.sent_bytes, self.wire.backlog_bytes, now_s)
        reason = self._catching_up.reason_to_give_up(kept_bytes, free_bytes, now_s)
        if reason and not self._ended.is_set():
            waits_s = self._catching_up.give_up(reason, now_s)
            log.warning("a follower that catches up is given up", node=str(self.node), reason=reason, waits_s=waits_s)
            self.end(f"{reason}; it may begin again in {waits_s:g} s")

    async def _feed_it(self) -> None:
        attachment = await self._attach()
        while attachment is not None:
            before, self._attachment = self._attachment, attachment
            if before is not None:
                self._leader.shipping.detach(before)  # not earlier: files kept for the old one are kept for this one
            self._catching_up.begin(self.wire.sent_bytes, time.monotonic())
            if await self._feed_until_behind(attachment):
                return
            log.info("more was written while a follower caught up: it is sent as well", node=str(self.node))
            self.wire.put(encoded(Truncate(attachment.end_lsn, self._leader.epoch())))  # to say where it is
            attachment = await self._attach()

    async def _feed_until_behind(self, attachment: Attachment) -> bool:
        """Send it the missing data, and then live entries; False when too many of those have come meanwhile."""
        leader = self._leader
        self._watched = self.wire.fileno()
        leader.host.watch(self._watched, self._readable)
        try:
            self._readable()
            await self._copy_metadata(attachment)
            attachment.image_piece = ImageBytes if self.level >= IMAGE_BYTES_FROM else ImagePiece
            try:
                await self._catch_up(attachment.catch_up())
            except BulkNeededError:
                self._catching_up.needs_image = True
                raise
            self._catching_up.needs_image = False
            if not attachment.go_live(self.wire.put):
                return False
            leader.catch_ups.end(self.node)
            self.replica.is_live = True
            await in_thread(REPLICATION, leader.shipping.settle)
            await trio.sleep_forever()
        finally:
            self._unwatch()
        return True

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._leader.host.unwatch(self._watched)
            self._watched = None

    # --- before it is fed -------------------------------------------------------------------------------------------

    async def _attach(self) -> Attachment | None:
        """Find out where the follower is, and have it cut frames that the leader never had; None when it has gone."""
        leader = self._leader
        position = await self._next(Position)
        while not self._may_begin():
            with trio.move_on_after(ATTACH_S):
                if not await self._read_some():
                    return None
        shipping = leader.shipping
        files: list[SealedFile] = []
        while position is not None:
            more = True
            while more:
                listed = await self._next(SealedList)
                if listed is None:
                    return None
                files += listed.files
                more = listed.has_more
            attach = partial(
                shipping.attach,
                position,
                files,
                needs_image=self._catching_up.needs_image,
                reads_lives=self.level >= LIVES_FROM,
            )
            found = await in_thread(REPLICATION, attach)
            if isinstance(found, Attachment):
                if found.is_image:
                    log.info("a follower gets a copy of everything", node=str(self.node), lsn=found.end_lsn)
                self._applied = self._applied if leader.epoch() in dict(position.epochs) else None
                return found
            assert isinstance(found, Truncate)
            log.warning("a follower cuts off data that this leader never had", node=str(self.node), lsn=found.lsn)
            self._applied = None
            self.wire.put(encoded(found))
            files = []
            position = await self._next(Position)
        return None

    def _may_begin(self) -> bool:
        """Tell whether it can be given anything now."""
        leader = self._leader
        has_begun = leader.has_begun and leader.shipping.written_lsn() > 0
        return has_begun and not self._catching_up.waits_s(time.monotonic())

    async def _next(self, kind: type[Kind]) -> Kind | None:
        """Wait for an entry of this kind; None when the follower has gone."""
        while True:
            while self._came:
                entry = self._came.popleft()
                if isinstance(entry, kind):
                    return entry
                raise EntryError(f"{type(entry).__name__} where {kind.__name__} belongs")
            if not await self._read_some():
                return None

    async def _read_some(self) -> bool:
        """Handle its answers to beacons, and keep its other entries in `_came`; False when it has gone."""
        while (entry := self._decoder.maybe_entry()) is None:
            data = await self.wire.received()
            if not data:
                return False
            self._decoder.feed(data)
        if isinstance(entry, Ack | Objection | Stop | OfBoth):
            self._take(entry)
        elif len(self._came) < SAID_MAX:
            self._came.append(entry)
        else:
            raise EntryError("too many statements about the files of streams")
        return True

    async def _copy_metadata(self, attachment: Attachment) -> None:
        """Send all that SQL has, unless the follower has it from this leader."""
        leader = self._leader
        applied, changes = await leader.host.copy_metadata()
        if applied == self._applied:
            return
        self._applied = applied
        records: list[bytes] = []
        size = 0
        for change in changes:
            record = understood(encode_change(change), self.level)
            records.append(record)
            size += len(record)
            if size > COPY_BYTES:
                self._put(attachment, CatalogueCopy(applied, True, tuple(records)))
                records, size = [], 0
                await self._drained()
        self._put(attachment, CatalogueCopy(applied, False, tuple(records)))

    async def _catch_up(self, entries: Iterator[Pieces]) -> None:
        """Send the content of the files."""

        def some() -> bool:
            """Read and send some of it; False at its end. Neither is done on the loop."""
            give_up_s = time.monotonic() + AT_ONCE_S
            is_sent = self.wire.push(())
            while is_sent and time.monotonic() < give_up_s:
                taken: Pieces = []
                size = 0
                for pieces in entries:
                    taken += pieces
                    size += sum(map(len, pieces))
                    if size >= AT_ONCE_BYTES:
                        break
                if not taken:
                    return False
                is_sent = self.wire.push(taken)
            return True

        while not self._ended.is_set() and await in_thread(REPLICATION, some):
            pass
        if self._ended.is_set():
            # A thread is waited for by a task that is cancelled, too: this one ends here.
            await trio.sleep_forever()

    def _put(self, attachment: Attachment, entry: Entry) -> None:
        """Send an entry that comes before those of the files."""
        attachment.sent += 1
        self.wire.put(encoded(entry))

    async def _drained(self) -> None:
        while self.wire.backlog_bytes > AHEAD_BYTES:
            await trio.sleep(DRAINED_S)

    # --- while it is fed --------------------------------------------------------------------------------------------

    def caught_up(self) -> None:
        """Send the follower notice that it has caught up."""
        attachment = self._attachment
        assert attachment is not None
        attachment.publish(encoded(CaughtUp(self.replica.synced_lsn)))
        self._noted_at = attachment.sent

    def has_carried_out_all(self) -> bool:
        """Tell whether it has done all that it was sent."""
        return self._attachment is not None and self._done >= self._attachment.sent

    def note_progress(self, now_s: float) -> None:
        """Check whether it reads its entries: its answers to beacons come after those."""
        if self.wire.backlog_bytes and self.wire.sent_bytes > self._sent_bytes:
            self._leader.in_sync.takes(self.replica, now_s)
        self._sent_bytes = self.wire.sent_bytes

    def _readable(self) -> None:
        """Read the input that has arrived. In a turn of the reactor, and raises nothing."""
        try:
            data = self.wire.receive()
            if data == b"":
                self._ended.set()
            elif data is not None:
                self._decoder.feed(data)
            while (entry := self._decoder.maybe_entry()) is not None:
                self._take(entry)
        except EntryError as error:
            self.end(str(error))
        except Exception as error:
            log.error("internal error, the connection is closed", follower=str(self.node), exception=error)
            self.end("an internal error of the leader")
        if self._ended.is_set():
            # Its end would be looked at in every turn until the thread that reads for it has come back from the disk,
            # and a question to it would wait for an answer that nobody reads.
            self._unwatch()
            self.questions.close()

    def _take(self, entry: Entry) -> None:
        if isinstance(entry, Stop):
            self.stopped = entry.text
            self._ended.set()
            return
        if isinstance(entry, OfBoth):
            self._wanted.take(entry, self.questions)
            return
        if isinstance(entry, Objection):
            self._objected(entry)
            return
        if not isinstance(entry, Ack):
            raise EntryError(f"{type(entry).__name__} while it is fed")
        if self._ended.is_set():
            return
        leader = self._leader
        if entry.epoch not in (0, leader.epoch()):
            if leader.elected is not None:
                leader.elected.refused(self.replica, entry.epoch)
            raise EntryError(f"an acknowledgement for the leader of epoch {entry.epoch}")
        has_our_log = self._attachment is not None
        received_lsn, synced_lsn = (entry.received_lsn, entry.synced_lsn) if has_our_log else (0, 0)
        now_s = time.monotonic()
        leader.in_sync.acknowledged(self.replica, received_lsn, synced_lsn, now_s)
        if leader.elected is not None and entry.beacon:
            self._tell_answered(leader.elected, entry.beacon, now_s)
        self._done = entry.done
        if self._noted_at and not self.replica.is_noted and entry.done >= self._noted_at:
            leader.in_sync.noted(self.replica)
        leader.moved()

    def _objected(self, entry: Objection) -> None:
        """Report that a follower has committed frames that are missing here: this store is older, and may not lead."""
        log.error(
            "this leader lacks committed data of a follower: was its data directory restored from a copy?",
            node=str(self.node),
            epoch=entry.epoch,
            lsn=entry.lsn,
        )
        if self._leader.elected is not None:
            self._leader.elected.objected(self.replica, Committed(entry.epoch, entry.lsn))

    def _tell_answered(self, elected: ElectedSet, beacon: int, now_s: float) -> None:
        """Report an answer to the member: immediately if it is new, now and then if it is known.

        The member decides again each time, and there may be an acknowledgement for every message.
        """
        if beacon > self._answered or now_s - self._heard_s >= HEARD_EVERY_S:
            self._answered, self._heard_s = beacon, now_s
            elected.answered(self.replica, self._leader.epoch(), beacon)
