"""A small broker over a simulated disk, driven by hand: real queues, log, store, compaction and recovery.

1. Nothing happens by itself. The operations call the engine as a channel would; `turn`, `commit`, `read` and `finish`
   are the broker's turn and the two threads, and the driver decides when they get to run.
2. Whenever a batch is closed, the machine records the contents of the paper queues (`allowed`), and which of these
   states the broker has promised to keep: `durable` over a power cut, `written` over a killed process.
3. Each message that a client gets has to be the one on paper: the oldest message, byte for byte, flagged as redelivered
   when it may have been delivered before.
4. An answer that may go to a client only after a sync (a confirm, tx.commit-ok) is the number of a batch, as for
   tx.commit-ok in a channel.
5. The catalogue of queues is a dict, durable at once, or later if it is slow. Its changes come in order, and it learns
   of a queue's deletion once the log has that on disk. Queues that only the log knows are kept and not served
   (`Paper.orphans`).
6. The clock stands still until the driver lets time pass. The effects happen when the timers are checked.
7. Messages that leave a queue without a client pass `_Host`, and there the paper learns of them first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Final, cast

from ledger_view import outstanding_tags
from life_ids import new_life_id

from simulation.paper_queues import (
    HELD_LANES,
    UNDELIVERED_RETRY_MS,
    Entry,
    Messages,
    Paper,
    PaperQueue,
    Stored,
    Version,
    Violation,
)
from simulation.queue_kinds import PLAIN, kind_of
from simulation.sent_deliveries import Delivered, parse_deliveries
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import STORE_ID, Frame, Shape, Snapshot, open_store, places_of, snapshot_of
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.outbox import Outbox
from warren.msgstore.files.store import Store
from warren.msgstore.files.store_errors import StoreError, StoreFailedError, StoreFullError, StoreUnreadableError
from warren.msgstore.log.bodies_ahead import BodiesAhead
from warren.msgstore.log.checkpoint import seal
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.compaction import Compaction
from warren.msgstore.log.jobs import CheckpointJob, CommitJob, Errand, ReadJob, UnlinkJob
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.records import (
    CHUNK_MIN_BYTES,
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    STORE_TAG_BYTES,
    head_bytes,
)
from warren.msgstore.log.replay import Replay, maybe_frame
from warren.msgstore.log.segments import Segment
from warren.queues.arguments import QueueArguments
from warren.queues.base_queue import BaseQueue, owns
from warren.queues.basic_get import answer_get
from warren.queues.consumer import Consumer
from warren.queues.dead_letter import EXPIRED, MAXLEN
from warren.queues.delivery import DeliveryLedger
from warren.queues.effective_policy import NO_POLICY
from warren.queues.held_messages import RELEASED, HeldMessage, HeldMessages
from warren.queues.lanes import DELAYED, UNDELIVERED
from warren.queues.origin import CHANNEL
from warren.queues.outcome import REFUSED
from warren.queues.queue import Queue
from warren.queues.queue_host import QueueHost
from warren.queues.rules import rules_of
from warren.queues.timers import TimerQueue
from warren.queues.turns import Turns
from warren.server.store_threads import StoreFiles
from warren.vhosts.metadata import VhostPut
from warren.vhosts.metadata_journal import Journal
from warren.vhosts.virtual_host import VirtualHost

STORE_TAG: Final = STORE_ID[:STORE_TAG_BYTES]
VHOST: Final = "/"
MUTATING: Final = frozenset({"create", "write", "truncate", "rename", "mkdir", "unlink", "sync", "sync_directory"})
START_MS: Final = 10**9
EPOCH_AT: Final = 32  # in the head of a frame
_STEPS_MAX: Final = 10000


class _Host(QueueHost):
    """Has the machine look at what leaves a queue."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(VHOST, machine.log, machine.timers)
        self._machine = machine

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> Message | None:
        return self._machine.dead_letter(queue, message, reason)

    def send_letter(self, queue: Queue, letter: Message) -> int:
        return self._machine.send_letter(queue, letter)


class Machine:
    """The broker. `messages` and `fs` outlive it; `start` begins a life, on a disk that may be anything."""

    def __init__(self, fs: SimulatedFileSystem, messages: Messages, shape: Shape) -> None:
        self.fs = fs
        self.messages = messages
        self.shape = shape
        self.paper = Paper(messages)
        self.now_ms = START_MS
        self.catalogue: dict[str, int] = {}
        self._declared: deque[tuple[str, int, int]] = deque()  # for the catalogue: name, queue id or 0, after batch
        self.catalogue_is_slow = False  # it learns of nothing until it is not
        self.allowed: list[Snapshot] = [snapshot_of({}, {})]  # by batch of this life; before the first, what was found
        self.history: list[Snapshot] = []  # states allowed in earlier lives
        self.durable = 0  # a power cut leaves this batch or a later one
        self.written = 0  # a killed process leaves this one or a later one
        self.stopped_clean: Stored | None = None  # as long as nothing was delivered since
        self.on_crash_point: Callable[[], None] | None = None
        self.failed = False  # the store has said that the process must stop
        self.retries = 0  # jobs that did not fit
        self.lives = 0
        self.fails_read: Callable[[str, int, int], bool] | None = None  # for what the reader does
        self.unread: list[Errand] = []  # reads that failed
        self.spoiled = False  # something on the disk is damaged: the books of the log need not add up
        self.commits: deque[CommitJob] = deque()
        self.carried_out: CommitJob | None = None  # and not reported yet
        self.frames: list[Frame] = []  # every frame that is part of the log, from the first one on

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self, recovered: Snapshot) -> None:
        """Begin a life on `fs`, from which `recovered` comes back."""
        self.failed = False
        self.lives += 1
        self.fs.on_operation = self._operation
        self.store, self.log, found, _ = open_store(self.fs, self.shape, self.new_epoch())
        self.files = self.files_of(self.store)
        self.carried_out = None
        self.log.now_ms = self.now_ms
        self._plan: BodiesAhead | None = None
        self._planned: list[tuple[Version, Message]] = []  # the messages of that plan
        sizes = self.log.ahead_file.sizes
        sizes.batch_bytes_min = sizes.content_bytes_min = sizes.portion_bytes = CHUNK_MIN_BYTES
        sizes.room_bytes = 4096
        if not self.spoiled:
            self._cut_frames()
            self._check_epochs()
        self.history += self.allowed
        self.allowed = [recovered]
        self.durable = self.written = 0
        if not found.clean:
            self.stopped_clean = None
        self.queues: dict[str, Queue] = {}
        self.consumers: dict[str, Consumer] = {}
        self.runnable: list[BaseQueue] = []
        self.outbox = Outbox(1, [])
        self.served: list[Turns] = []
        self.turns = Turns(self.outbox, self.served)
        self.ledger = DeliveryLedger(1, self.turns, 0)
        self.timers = TimerQueue()
        self.vhost = VirtualHost(VhostPut(VHOST), Journal(), self.runnable, 0, self.log, self.timers)
        self.vhost.queues = cast("dict[str, BaseQueue]", self.queues)  # the same: neither knows another kind
        self._host = _Host(self)
        self._unsent_bytes = 0  # of the outbox, taken from it and looked at
        self._getting = ("", False)  # from which queue, without an acknowledgement
        self._asked: set[str] = set()  # queues that have to release held messages
        self._answered: set[str] = set()  # those of them that have done so
        self.compaction = Compaction(self.log)
        self.commits.clear()
        self.reader: deque[Errand | CheckpointJob | UnlinkJob] = deque()
        self.finished: deque[Errand | CheckpointJob] = deque()
        self.unread = []
        self._sync_waits: list[int] = []
        self._holds = False
        self._declared.clear()
        self._restore(recovered.stored, clean=found.clean)
        log = self.log
        self.store.resume(log.last_crc, log.next_lsn, log.epoch, log.store_id, log.algorithm)
        log.begin_epoch(log.epoch, self.lives, new_life_id())
        self.turn()
        while self.commits and not self.failed:
            # However often the disk has no room; but what waits for followers is committed later.
            if not self.commit() and self.carried_out is not None:
                break

    def new_epoch(self) -> int | None:
        """Return the epoch of the life that begins; None for the one that recovery finds to be the next."""
        return None

    def files_of(self, store: Store) -> StoreFiles:
        """Return what the threads of the store work with."""
        return store

    def is_committed(self, job: CommitJob) -> bool:
        """Tell whether what the committer has carried out can be reported."""
        return True

    def _restore(self, stored: Stored, *, clean: bool) -> None:
        """Give the queues of the catalogue what recovery found; other lanes than 0 by name, as the broker does."""
        log = self.log
        self.paper.queues = {}
        self.paper.orphans = dict(stored)
        found: dict[str, list[Entry]] = {}
        for name, queue_id in self.catalogue.items():
            log.next_queue_id = max(log.next_queue_id, queue_id + 1)
            queue = self.queues[name] = self._new_queue(name, queue_id)
            index = log.indexes.get(queue_id)
            if index is not None:
                queue.restore(index, clean)
            found[name] = list(self.paper.orphans.pop(queue_id, ()))
        for key, index in list(log.indexes.items()):
            if index.lane and index.name in self.queues and owns(self.queues[index.name], index):
                self.queues[index.name].restore(index, clean)
                found[index.name] += self.paper.orphans.pop(key, ())
        for name, entries in found.items():
            self.paper.restore(name, self.catalogue[name], entries, clean=clean)

    def _cut_frames(self) -> None:
        """Forget the frames that are lost; the last may have been written just before the crash."""
        last_crc = int(self.log.last_crc)
        if self.commits:
            job = self.commits[0]
            data = self._read_now(int(job.lsn), FRAME_HEADER_BYTES + int(job.payload_bytes))
            head = maybe_frame(self.log.checksum, STORE_TAG, data, 0, job.lsn)
            if head is not None and head.crc == last_crc:
                self.frames.append(Frame(head.lsn, head.crc, data))
        crcs = [frame.crc for frame in self.frames]
        del self.frames[crcs.index(last_crc) + 1 if last_crc else 0 :]

    def _check_epochs(self) -> None:
        """Compare the epochs that recovery found with the frames that are left, and with the files."""
        log = self.log
        begun: list[tuple[int, int]] = []
        for frame in self.frames:
            epoch = int.from_bytes(frame.data[EPOCH_AT : EPOCH_AT + 4], "big")
            if not begun or epoch > begun[-1][0]:
                begun.append((epoch, frame.lsn))
        found = log.epochs.entries
        left = begun[len(begun) - len(found) :]
        segments = log.segments.segments
        oldest_lsn = int(segments[0].base_lsn) + SEGMENT_HEADER_BYTES if segments else 0
        # The last frame of a forgotten epoch is in no file, and no epoch begins where it ended.
        may_be_forgotten = [entry for entry, behind in pairwise(begun) if behind[1] < oldest_lsn]
        if found != left or not set(begun) - set(left) <= set(may_be_forgotten):
            raise Violation(f"recovery knows the epochs {found}, and the frames are of {begun}, from {oldest_lsn} on")
        headers, _ = self.store.open_segments()
        if log.epoch <= max([epoch for epoch, _ in begun] + [header.epoch for header in headers], default=0):
            raise Violation(f"epoch {log.epoch} begins again")

    def _operation(self, event: str) -> None:
        if self.on_crash_point is not None:
            when, operation, _ = event.split(" ", 2)
            if when == "before" and operation in MUTATING:
                self.on_crash_point()

    def outstanding_tags(self) -> list[int]:
        """Return the tags that wait for an answer, ascending."""
        return outstanding_tags(self.ledger)

    def stop(self) -> None:
        """End in order, as far as the disk lets us: give everything back, write it, take the last checkpoint."""
        for name in list(self.consumers):
            self.cancel(name)
        for tag in self.outstanding_tags():
            self.requeue(tag)
        if self.rest():
            self.log.checkpoints.want(clean=True)
            self.stopped_clean = self.stored()
            if self.rest():
                assert self.log.is_idle()
        try:
            self.files.close()
        except StoreError as error:
            self.failed = isinstance(error, StoreFailedError)

    def _new_queue(self, name: str, queue_id: int, *, durable: bool = True) -> Queue:
        kind = kind_of(name)
        arguments = kind.arguments()
        queue = Queue(
            QueueDeclaration(name, durable=durable, arguments=arguments),
            owner=None,
            runnable=self.runnable,
            host=self._host,
            store_id=queue_id,
        )
        if kind is not PLAIN:
            queue.parsed = QueueArguments(QueueDeclaration(name, durable=durable, arguments=arguments), VHOST)
            rules = rules_of(queue.parsed, NO_POLICY)
            if rules.max_priority > 0:
                queue.ready.make_lanes(int(rules.max_priority) + 1)
            queue.apply_rules(rules)
        return queue

    # --- what clients do --------------------------------------------------------------------------------------------

    def declare(self, name: str, *, durable: bool = True) -> None:
        """Declare a queue; nothing happens when it is there."""
        if name in self.queues:
            return
        queue_id = self.log.new_queue_id() if durable else 0
        if durable:
            self._declared.append((name, queue_id, 0))
            self._tell_catalogue()
        self.queues[name] = self._new_queue(name, queue_id, durable=durable)
        self.paper.queues[name] = PaperQueue(name, queue_id, durable)

    def delete(self, name: str) -> None:
        """Delete a queue with all that is in it."""
        if name in self.consumers:
            self.cancel(name)
        queue = self.queues.pop(name)
        queue.close()
        del self.paper.queues[name]
        if queue.durable:
            self.force()
            self._declared.append((name, 0, self._sync_waits[-1]))

    def _tell_catalogue(self) -> None:
        while self._declared and self._declared[0][2] <= self.durable and not self.catalogue_is_slow:
            name, queue_id, _ = self._declared.popleft()
            if queue_id:
                self.catalogue[name] = queue_id
            else:
                del self.catalogue[name]

    def delete_orphans(self) -> None:
        """Delete what only the log knows, as an operator would."""
        for queue_id in [key for key in self.log.indexes if key not in self.catalogue.values()]:
            self.log.delete_queue(self.log.indexes[queue_id])
        self.paper.orphans = {}

    def publish(
        self,
        names: list[str],
        body_bytes: int = 40,
        *,
        persistent: bool = True,
        confirm: bool = False,
        priority: int = -1,
        expiration_ms: int = -1,
    ) -> None:
        """Publish one message to these queues."""
        version = self.messages.new(body_bytes, persistent=persistent, priority=priority, expiration_ms=expiration_ms)
        self._publish(names, version, None, persistent=persistent, expiration_ms=expiration_ms)
        if confirm:
            self.confirm()
        self._sent()

    def plan(self, places: int, bodies: list[int]) -> None:
        """Write the contents of messages before they are published, as a large tx.commit does."""
        if self._plan is not None:
            return
        plan = BodiesAhead(self.log.ahead_file.sizes, self.log.frame_bytes)
        self._planned = []
        for body_bytes in bodies:
            version = self.messages.new(body_bytes)
            message = self.messages.publish(version, self.messages.plain_time_of(version))
            plan.add(message, head_bytes(message, places))
            self._planned.append((version, message))
        if plan.is_worth_it():
            self.log.ahead_file.begin(plan)
            self._plan = plan

    def publish_planned(self, names: list[str]) -> None:
        """Publish the planned messages to these queues, in one batch, if they are on the disk."""
        plan, file = self._plan, self.log.ahead_file
        if plan is None or not plan.is_done or not file.has_room(plan):
            return
        file.attach(plan)
        self._plan = None
        for version, message in self._planned:
            self._publish(names, version, message, persistent=True, expiration_ms=-1)
        self.confirm()
        self._sent()

    def _publish(
        self, names: list[str], version: Version, made: Message | None, *, persistent: bool, expiration_ms: int
    ) -> None:
        time_ms = self.messages.plain_time_of(version)
        ruled = expiration_ms >= 0 or any(kind_of(name) is not PLAIN for name in names)
        if ruled:
            # The queues share it, and so its time.
            time_ms = 0
            taking = [name for name in names if not self.paper.queues[name].is_full()]
            own = [self.paper.time_at(name, version, self.now_ms) for name in taking]
            times = dict.fromkeys(taking, max(own, default=0))
            for at, name in enumerate(taking):
                if kind_of(name).at_least_once and not persistent:
                    times[name] = max(own[: at + 1])  # it made a copy that is persistent
        message = made or self.messages.publish(version, time_ms)
        message.time_ms = time_ms
        for name in names:
            queue = self.queues[name]
            refused = self.paper.queues[name].is_full()
            if not refused:
                self.paper.enter(name, version, times[name] if ruled else time_ms, persistent=persistent)
            if ruled and message.expiration_ms >= 0:
                queue.need_keeper()
            if (queue.publish(message) == REFUSED) != refused:
                raise Violation(f"{version} is refused by {name!r}: {not refused}")
            self._look()

    def hold(self, name: str, delay_ms: int, *, confirm: bool = False) -> None:
        """Publish a message with a delay."""
        version = self.messages.new(40)
        message = self.messages.publish(version, 0)
        message.due_ms = self.now_ms + delay_ms
        self.paper.hold(name, DELAYED, Entry(0, 0, version, True, False, 0), int(message.due_ms))
        self.queues[name].hold(message, message.due_ms, CHANNEL)
        self._look()
        if confirm:
            self.confirm()

    def hold_batch(self) -> None:
        """Keep the batch open over turns, as a long tx.commit does; it may be written in portions."""
        self._holds = self._holds or self.log.hold_batch()

    def release_batch(self) -> None:
        """Allow the held batch to be closed."""
        if self._holds:
            self._holds = False
            self.log.release_batch()

    def confirm(self) -> None:
        """Promise that what has happened so far is durable once its batch is done, as confirms and tx.commit-ok do."""
        batch = self.log.close_soon(True)
        if batch:
            self._sync_waits.append(batch)

    def get(self, name: str, *, no_ack: bool = False) -> bool:
        """Get the next message; False if the queue is empty, or the message has still to be read."""
        queue = self.queues[name]
        if not queue.ready.ready_or_fetch():
            return False
        self._getting = (name, no_ack)
        got = answer_get(queue, self.ledger, no_ack)
        self._look()
        self._sent()
        return got

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a delivery, or all up to this one."""
        tags = [other for other in self.outstanding_tags() if other <= tag] if multiple else [tag]
        for settled in tags:
            self.paper.settle(settled)
        self.ledger.ack(tag, multiple)
        self._look()
        self._sent()

    def reject(self, tag: int) -> None:
        """Reject a delivery for good."""
        (delivery,) = self.ledger.take(tag, False)
        self.ledger.release(delivery)
        self.paper.reject(tag)
        delivery.queue.reject(delivery)
        self._returned(delivery.queue)

    def requeue(self, tag: int, *, failed: bool = True, delay_ms: int = -1) -> None:
        """Give a delivery back. `failed`: it counts towards a limit. `delay_ms`: the delay that the client asks for."""
        (delivery,) = self.ledger.take(tag, False)
        self.ledger.release(delivery)
        self.paper.requeue(tag, self.now_ms, failed=failed, delay_ms=delay_ms)
        delivery.queue.requeue(delivery, failed=failed, delay_ms=delay_ms)
        self._returned(delivery.queue)

    def _returned(self, queue: BaseQueue) -> None:
        self._look()
        queue.wake()
        on_paper = self.paper.queues.get(queue.name)
        if on_paper is not None and on_paper.leaving is not None:
            raise Violation(f"{on_paper.leaving} should have left {queue.name!r}, and has not")

    def purge(self, name: str) -> None:
        """Drop what is ready."""
        count = self.queues[name].purge()
        ready = self.paper.queues[name].ready
        if count != len(ready):
            raise Violation(f"purge dropped {count} messages of {len(ready)}")
        ready.clear()

    def consume(self, name: str, prefetch: int) -> None:
        """Begin to consume a queue, once."""
        queue = self.queues[name]
        if name not in self.consumers:
            consumer = Consumer(
                self.ledger, queue, name, no_ack=False, exclusive=False, priority=0, prefetch=prefetch, arguments=b""
            )
            self.consumers[name] = consumer
            self.ledger.add_consumer(consumer)
            queue.add_consumer(consumer)

    def cancel(self, name: str) -> None:
        """End what `consume` began."""
        consumer = self.consumers.pop(name)
        del self.ledger.consumers[name]
        consumer.queue.remove_consumer(consumer)

    def take_held(self, name: str, purpose: int) -> None:
        """Release or dead-letter the earliest message that a queue holds now, as an operator would."""
        keeper = self.queues[name].keeper
        for lane in (keeper.lanes.held, keeper.lanes.parked) if keeper is not None else ():
            if lane is not None:
                lane.list_earliest(1, partial(self._take_listed, name, lane, purpose))
                break
        self._look()

    def _take_listed(self, name: str, lane: HeldMessages, purpose: int, listed: list[HeldMessage]) -> None:
        if listed:
            if purpose == RELEASED:
                self._asked.add(name)
            lane.take([listed[0].number], purpose, lambda _: self._answered.add(name))

    def drop_held(self, name: str) -> None:
        """Drop everything that a queue holds, as an operator would."""
        keeper = self.queues[name].keeper
        for lane in (keeper.lanes.held, keeper.lanes.parked) if keeper is not None else ():
            if lane is not None:
                held = self.paper.queues[name].held[int(lane.code)]
                count = lane.clear()
                if count != len(held):
                    raise Violation(f"{count} held messages are dropped, of {held}")
                held.clear()

    # --- what happens to messages -----------------------------------------------------------------------------------

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> Message | None:
        """`message` is leaving `queue`: on paper first."""
        name = queue.name
        version = self._version_of(message)
        waited = self.paper.queues[name].leaving is None and reason in (EXPIRED, MAXLEN)
        self._look(name if waited else "", version)
        entry = self.paper.leave(name, version, reason, self.now_ms)
        letter = version.died(name, reason)
        taken = self.paper.send(name, letter, self.now_ms, persistent=entry.persistent)
        refused = self.vhost.dead_letter(queue, message, reason)
        if taken != (refused is None):
            raise Violation(f"{letter} of {name!r} is taken: {refused is None}")
        if not taken and kind_of(name).at_least_once:
            kept = entry._replace(message=letter, delivered=False)
            self.paper.hold(name, UNDELIVERED, kept, self.now_ms + UNDELIVERED_RETRY_MS)
        return refused

    def send_letter(self, queue: Queue, message: Message) -> int:
        """`queue` sends a letter again that was not taken."""
        self._look()
        version = self._version_of(message)
        entry = self.paper.take_undelivered(queue.name, version, self.now_ms)
        taken = self.paper.send(queue.name, version, self.now_ms, persistent=entry.persistent, again=True)
        delay_ms = int(self.vhost.send_letter(queue, message))
        if delay_ms != (0 if taken else UNDELIVERED_RETRY_MS):
            raise Violation(f"{version} of {queue.name!r} is taken: {not taken}")
        if not taken:
            self.paper.keep_undelivered(queue.name, entry, self.now_ms + UNDELIVERED_RETRY_MS)
        return delay_ms

    def _version_of(self, message: Message) -> Version:
        version = self.messages.version_of(message)
        if version is None:
            raise Violation(f"a message that nobody published: {message.joined()!r}")
        return version

    def _look(self, leaving_from: str = "", leaving: Version | None = None) -> None:
        """Bring the paper up to what was released and delivered. One message may have left a queue just now."""
        data = b"".join(self.outbox.take())
        self._unsent_bytes += len(data)
        delivered = [(entry.consumer_tag or self._getting[0], entry) for entry in parse_deliveries(data, self.messages)]
        for name, queue in self.queues.items():
            keeper = queue.keeper
            if keeper is None or (keeper.lanes.held is None and keeper.lanes.parked is None) or self.spoiled:
                continue
            # Those that left just now, first in, first out, and those that are still there.
            found = [entry.message for source, entry in delivered if source == name]
            found += [leaving] if name == leaving_from else []
            released = int(queue.ready_count) + len(found) - len(self.paper.queues[name].ready)
            if released > 0:
                found += [self._version_of(message) for message in queue.ready.in_memory()]
                self.paper.release(name, found, released, self.now_ms, asked=name in self._asked)
        self._asked -= self._answered
        self._answered.clear()
        for name, entry in delivered:
            self._delivered(name, entry, no_ack=not entry.consumer_tag and self._getting[1])

    def _sent(self) -> None:
        """The client has read everything."""
        size, self._unsent_bytes = self._unsent_bytes, 0
        if self.outbox.sent(size):
            self.turns.wake()

    def _delivered(self, name: str, delivered: Delivered, *, no_ack: bool) -> None:
        self.stopped_clean = None
        if not self.paper.queues[name].ready:
            raise Violation(f"queue {name!r} is empty, and message {delivered.message} came")
        entry = self.paper.take(name, None if no_ack else delivered.tag)
        if entry.message != delivered.message:
            raise Violation(f"message {entry.message} was due from {name!r}, {delivered.message} came")
        if entry.delivered != delivered.redelivered:
            raise Violation(f"message {entry.message}: redelivered is {delivered.redelivered}")
        if self.paper.deadline_ms(name, entry) <= self.now_ms:
            raise Violation(f"message {entry.message} is delivered behind its deadline")

    # --- the broker's turn and the threads --------------------------------------------------------------------------

    def force(self) -> None:
        """Close and sync the open batch."""
        self._sync_waits.append(int(self.log.batch.number))
        self.log.force()

    def turn(self, *, lingered: bool = False) -> None:
        """End a turn: hand out deliveries, close the batch if it is time."""
        if self.failed:
            return
        served = self.served[:]
        self.served.clear()
        for turns in served:
            turns.serve()
            self._look()
        runnable = self.runnable[:]
        self.runnable.clear()
        for queue in runnable:
            queue.drain()
            self._look()
        self._sent()
        self.log.reclamation.take_apart(1)
        closing = int(self.log.batch.number)
        self.log.close_if_due(lingered=lingered)
        if self.log.batch.number != closing:
            places = None if self.spoiled else places_of(self.log, self._read_now)
            self.allowed.append(snapshot_of(self.stored(), places))
        self._collect()

    def _collect(self) -> None:
        log = self.log
        commits, log.commit_jobs = log.commit_jobs, []
        self.commits.extend(commits)
        # Reads requested before a segment was given up are done before it is removed.
        reads, log.read_jobs = log.read_jobs, []
        checkpoints, log.checkpoint_jobs = log.checkpoint_jobs, []
        unlinks, log.unlink_jobs = log.unlink_jobs, []
        seals, log.seal_jobs = log.seal_jobs, []
        self.reader.extend([*reads, *seals, *checkpoints, *unlinks])
        for batch in [batch for batch in self._sync_waits if batch <= log.done_batch]:
            self._sync_waits.remove(batch)
            self.durable = max(self.durable, batch)
        self._tell_catalogue()

    def commit(self) -> bool:
        """Make the committer do its job, and report what is committed; False without a job, or if it failed."""
        if self.carried_out is None and not self._carry_out():
            return False
        job = self.carried_out
        if job is None or self.failed or not self.is_committed(job):
            return False
        self.carried_out = None
        if job.sync and not job.is_continued:
            self.durable = int(job.batch)
        self.log.committed(job)
        self._look()
        self._collect()
        return True

    def _carry_out(self) -> bool:
        if not self.commits or self.failed:
            return False
        job = self.commits[0]
        try:
            self.files.commit(job, 0)
        except (StoreFullError, StoreFailedError) as error:
            self.retries += 1
            self.failed = isinstance(error, StoreFailedError)
            if self.log.done_batch >= job.batch:
                raise Violation(f"batch {job.batch} is done, and is not on the disk") from error
            return False
        self.commits.popleft()
        self.carried_out = job
        if not job.is_continued:
            self.written = int(job.batch)
        if job.record_count:
            data = self._read_now(int(job.lsn), FRAME_HEADER_BYTES + int(job.payload_bytes))
            self.frames.append(Frame(int(job.lsn), int(job.crc), data))
        return True

    def read(self) -> bool:
        """Make the reader do one job; False without a job, or if it failed."""
        if not self.reader or self.failed:
            return False
        job = self.reader[0]
        try:
            if isinstance(job, Errand):
                self.fs.fails_read = self.fails_read
                job.carry_out(self.files)
            elif isinstance(job, CheckpointJob):
                self.files.write_checkpoint(seal(job.content, self.log.checksum, int(job.last_crc)))
            else:
                self.files.release(job.segments)
                self.files.unlink(job.segments)
        except StoreFullError:
            self.retries += 1
            if not isinstance(job, Errand):
                self.reader.rotate(-1)
            return False
        except StoreUnreadableError:
            assert isinstance(job, Errand)
            self.reader.popleft()
            self.unread.append(job)
            return True
        except StoreFailedError:
            self.failed = True
            return False
        finally:
            self.fs.fails_read = None
        self.reader.popleft()
        if not isinstance(job, UnlinkJob):
            self.finished.append(job)
        return True

    def read_again(self) -> None:
        """Make the reader try again what it could not read."""
        self.reader.extend(self.unread)
        self.unread = []

    def finish(self) -> bool:
        """Make the loop take note of what the reader did; False when that is nothing."""
        if not self.finished or self.failed:
            return False
        job = self.finished.popleft()
        if isinstance(job, Errand):
            job.finished()
            self._look()
            self._sent()
        else:
            self.log.checkpoints.written(job)
        self._collect()
        return True

    def rest(self) -> bool:
        """Run all parts until nothing is left to do; False when the disk prevents it."""
        self.release_batch()
        for _ in range(_STEPS_MAX):
            self.turn(lingered=not self.log.is_idle())
            if not (self.commit() or self.read() or self.finish()):
                if self.commits or self.carried_out is not None or self.reader or self.failed:
                    return False
                if self.log.is_idle() and self.log.reclamation.is_empty() and not self.runnable and not self.served:
                    return True
        raise Violation("the broker does not come to rest")

    def spare(self) -> None:
        """Make the reader make a segment ahead."""
        if self.failed:
            return
        try:
            self.files.prepare_spare(self.shape.segment_bytes)
        except StoreFullError:
            self.retries += 1
        except StoreFailedError:
            self.failed = True

    def pass_time(self, ms: int) -> None:
        """Advance the clock, without a check of the timers."""
        self.now_ms += ms
        self.log.now_ms = self.now_ms

    def keep_time(self) -> None:
        """Do what is due."""
        self.timers.run_due(self.now_ms)
        self._look()
        self._sent()

    def rest_in_time(self) -> bool:
        """Run all parts until nothing is left to do now; False when the disk prevents it.

        Then nothing is late: no waiting message has expired or does not fit, and no held message is due.
        """
        while self.rest():
            if self.timers.next_ms() > self.now_ms:
                if self.unread:
                    return True  # and what that is about may be late
                self._check_nothing_is_late()
                return True
            self.keep_time()
        return False

    def stored(self) -> Stored:
        """Return what a restart should bring back if it came now and everything were on disk."""
        indexes = sorted(self.log.indexes.items(), key=lambda item: item[0])  # the latest of a name are served
        return self.paper.stored({(index.name, int(index.lane)): key for key, index in indexes})

    def ever_in(self, queue_id: int) -> dict[tuple[Version, int], int]:
        """Return the messages that were ever stored in an index, with their times, and their places in it."""
        snapshots = self.history + self.allowed
        entries = [entry for snapshot in snapshots for entry in snapshot.stored.get(queue_id, ())]
        return {(entry.message, entry.time_ms): entry.place for entry in entries}

    def _read_now(self, lsn: int, length: int) -> bytes:
        return self.store.read([(lsn, length)])[0]

    # --- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the queues with the paper, and the books of the log with each other."""
        for name, queue in self.queues.items():
            queue.check_invariants()
            on_paper = self.paper.queues[name]
            if queue.ready_count != len(on_paper.ready) or queue.unacked_count != len(on_paper.unacked):
                raise Violation(f"queue {name!r} counts {queue.ready_count} ready and {queue.unacked_count} unacked")
            if queue.ready_bytes != sum(self.messages.body_bytes(entry.message) for entry in on_paper.ready):
                raise Violation(f"queue {name!r} counts {queue.ready_bytes} bytes")
            for code, count in self._held_counts(queue).items():
                if count != len(on_paper.held[code]):
                    raise Violation(f"queue {name!r} holds {count} in lane {code}, not {on_paper.held[code]}")
        self.log.check_invariants()

    def _held_counts(self, queue: Queue) -> dict[int, int]:
        lanes = {code: queue.held(code) for code in HELD_LANES}
        return {code: 0 if lane is None else int(lane.count) for code, lane in lanes.items()}

    def _check_nothing_is_late(self) -> None:
        for name, queue in self.paper.queues.items():
            late = [entry for entry in queue.ready if self.paper.deadline_ms(name, entry) <= self.now_ms]
            late += [entry for held in queue.held.values() for entry in held if queue.due_ms(entry) <= self.now_ms]
            if late or (not queue.kind.refuses and 0 <= queue.kind.max_length < len(queue.ready)):
                raise Violation(f"at {self.now_ms} queue {name!r} has {queue.ready} and holds {queue.held}")

    def check_replay(self) -> None:
        """Replay every frame from the first one on: that has to give what the last written batch was closed with."""
        log = MessageLog(checksum_function(default_algorithm()), self.shape.segment_bytes, self.shape.page_entries)
        log.segments.add(Segment(1, 0, 1 << 60))

        def read(lsn: int, length: int) -> bytes:
            frame = self.frames[bisect_right(self.frames, lsn, key=lambda frame: frame.lsn) - 1]
            return frame.data[lsn - frame.lsn : lsn - frame.lsn + length]

        replay = Replay(log, read)
        for frame in self.frames:
            head = maybe_frame(log.checksum, STORE_TAG, frame.data, 0, frame.lsn)
            assert head is not None
            replay.frame(frame.data, head)
        while log.read_jobs:
            jobs, log.read_jobs = log.read_jobs, []
            for job in jobs:
                assert isinstance(job, ReadJob)
                job.data = [read(lsn, length) for lsn, length in job.ranges]
                job.finished()
        log.reclamation.release_pages()
        places = places_of(log, read)
        if places != self.allowed[self.written].places:
            raise Violation(f"replayed from the beginning: {places}, not {self.allowed[self.written].places}")
