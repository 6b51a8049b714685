"""Reading back what a crash left, and comparing it with what the broker had promised by then.

Invariants, as the tests name them; all but I9 follow from one comparison: the recovered state is that of the paper
queues when some batch was closed, and not an earlier batch than the last one promised.

    I1  what was confirmed comes back unless it was settled       I5  a batch is there whole or not at all
    I2  nothing else comes back, and no other bytes               I7  dying during recovery changes nothing
    I3  in order, nothing twice                                   I9  corruption is reported, and never served
    I4  what was settled durably does not come back               I11 nothing is confirmed while commits fail

Recovered messages are flagged as redelivered: all after a crash, after a clean stop those that had been delivered.

A message is in one place: the recovered messages are compared lane by lane, and so a message that is on its way from
one queue to another, from where it is held to where it is ready, or from one version to the next, is in both or in none
of them only if some batch was closed with that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulation.machine import VHOST, Machine
from simulation.paper_queues import Messages, Version, Violation
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import Numbers, Opened, Places, Shape, Snapshot, open_store, places_of, snapshot_of
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.outbox import Outbox
from warren.msgstore.files.store import Store
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.backlog import Backlog
from warren.queues.basic_get import answer_get
from warren.queues.delivery import DeliveryLedger
from warren.queues.held_messages import HeldMessage
from warren.queues.lanes import HELD_FROM, NUMBER_MASK
from warren.queues.queue import Queue
from warren.queues.queue_host import QueueHost
from warren.queues.timers import TimerQueue
from warren.queues.turns import Turns


@dataclass(slots=True)
class ReadBack:
    """The messages that a new process finds. `numbers`: the messages of each index; `redelivered`: which of them are
    flagged.

    A held message is not flagged before it is released.
    """

    numbers: Numbers = field(default_factory=dict)
    redelivered: dict[int, tuple[bool, ...]] = field(default_factory=dict)
    places: Places = field(default_factory=dict)
    clean: bool = False
    damaged: bool = False
    reports: list[str] = field(default_factory=list)
    read: list[tuple[QueueIndex, int, Message]] = field(default_factory=list)


def read_back(fs: SimulatedFileSystem, messages: Messages, shape: Shape, *, spoiled: bool = False) -> ReadBack:
    """Recover the store on `fs` and read everything through the queues. Raises StoreError, as recovery does.

    `spoiled`: something on the disk is damaged, so that the books need not add up.
    """
    opened = open_store(fs, shape)
    found = ReadBack(clean=opened.found.clean, damaged=opened.found.damaged)
    found.reports = [event.text for event in opened.found.events]
    for index in list(opened.log.indexes.values()):
        if index.damaged_count:
            found.damaged = True
        if index.lane >= HELD_FROM:
            _read_held(opened, index, messages, found, spoiled=spoiled)
        else:
            _read_ready(opened, index, messages, found)
    while run_reads(opened.store, opened.log):
        pass
    if opened.log.damage.reports:
        found.damaged = True
        found.reports += [f"message {damage.sequence_number}" for damage in opened.log.damage.reports]
    if not spoiled and not found.damaged:
        found.places = places_of(opened.log, lambda lsn, length: opened.store.read([(lsn, length)])[0])
        opened.log.check_invariants()
        _settle_all(opened, found)
    found.read = []
    return found


def run_reads(store: Store, log: MessageLog) -> bool:
    """Read what the log asks for now; False when that is nothing."""
    jobs, log.read_jobs = log.read_jobs, []
    for job in jobs:
        job.carry_out(store)
        job.finished()
    return bool(jobs)


def _read_ready(opened: Opened, index: QueueIndex, messages: Messages, found: ReadBack) -> None:
    """Read one lane of what is ready, through a queue that has no rules and nothing else."""
    log = opened.log
    queue = Queue(
        QueueDeclaration(index.name, durable=True, arguments=b""),
        owner=None,
        runnable=[],
        host=QueueHost(VHOST, log, TimerQueue()),
    )
    if index.lane:
        queue.ready.make_lanes(int(index.lane) + 1)
    queue.restore(index, found.clean)
    outbox = Outbox(1, [], 1 << 40)
    ledger = DeliveryLedger(1, Turns(outbox, []), 0)
    redelivered: list[bool] = []
    while queue.ready_count:
        if not queue.ready.ready_or_fetch():
            if not run_reads(opened.store, log) and queue.ready_count:
                raise Violation("a queue waits for messages that nobody reads")
            continue
        answer_get(queue, ledger, False)
        # basic.get-ok: a frame head of 7 bytes, two ids, the tag.
        redelivered.append(outbox.take()[0][7 + 4 + 8] == 1)
    read = [(int(delivery.sequence_number) & NUMBER_MASK, delivery.message) for delivery in ledger.take(0, True)]
    _note(messages, found, index, read)
    if read:
        found.redelivered[int(index.queue_id)] = tuple(redelivered)


def _note(messages: Messages, found: ReadBack, index: QueueIndex, read: list[tuple[int, Message]]) -> None:
    if read:
        found.numbers[int(index.queue_id)] = tuple(
            (messages.stored_version(message) or Version(-1), int(message.time_ms)) for _, message in read
        )
    found.read += [(index, number, message) for number, message in read]


def _read_held(opened: Opened, index: QueueIndex, messages: Messages, found: ReadBack, *, spoiled: bool) -> None:
    """Read what is held, in the order of the numbers; the queue has to find the same deadlines."""
    log = opened.log
    queue = Queue(
        QueueDeclaration(index.name, durable=True, arguments=b""),
        owner=None,
        runnable=[],
        host=QueueHost(VHOST, log, TimerQueue()),
    )
    queue.restore(index, found.clean)
    keeper = queue.need_keeper()
    (lane,) = (lane for lane in (keeper.lanes.held, keeper.lanes.parked, keeper.lanes.undelivered) if lane is not None)
    listed: list[HeldMessage] = []
    while lane.scanning and run_reads(opened.store, log):
        pass
    lane.list_earliest(1 << 30, listed.extend)
    while run_reads(opened.store, log):
        pass
    backlog = Backlog(log, lambda lost, lost_bytes: None)
    backlog.restore(index)
    read: list[tuple[int, Message]] = []
    while not backlog.is_empty():
        if not backlog.ready_or_fetch():
            if not run_reads(opened.store, log) and not backlog.is_empty():
                raise Violation("a lane waits for messages that nobody reads")
            continue
        message = backlog.pop()
        read.append((int(backlog.popped_number), message))
    _note(messages, found, index, read)
    stored = sorted((int(message.time_ms), number) for number, message in read)
    deadlines = [(held.until_ms, held.number) for held in listed]
    if not spoiled and deadlines != stored:
        raise Violation(f"the deadlines {stored} came back as {deadlines}")


def _settle_all(opened: Opened, found: ReadBack) -> None:
    """I6: when everything is acknowledged, nothing but the last page of each index keeps a segment alive."""
    log = opened.log
    for index, number, message in found.read:
        log.batch.settle(index, message, number)
    log.check_invariants()
    pages = sum(page is not None and page.lsn != 0 for index in log.indexes.values() for page in index.pages)
    references = sum(int(segment.live_refs) for segment in log.segments.segments)
    if references != pages or pages > len(log.indexes):
        raise Violation(f"everything is settled, and {references} references are left, {pages} of them of pages")


class Judge:
    """Looks at crash states. `states` counts the different disks that were recovered, `points` the moments."""

    def __init__(self, messages: Messages, shape: Shape) -> None:
        self.messages = messages
        self.shape = shape
        self.states = 0
        self.points = 0
        self._seen: dict[int, ReadBack] = {}

    def read(self, state: SimulatedFileSystem) -> ReadBack:
        """Return what comes back from `state`, from memory when it did before."""
        key = hash(tuple(state.contents().items()))
        found = self._seen.get(key)
        if found is None:
            self.states += 1
            found = self._seen[key] = read_back(state, self.messages, self.shape)
        return found

    def power_cuts(self, machine: Machine, seed: int, limit: int) -> None:
        """Judge what a power cut now may leave of the disk of `machine`."""
        self.points += 1
        for state in machine.fs.crash_states(seed, limit):
            self.judge(machine, self.read(state), machine.durable)

    def judge(self, machine: Machine, found: ReadBack, promised: int) -> Snapshot:
        """Return which of the states that `machine` allows, from batch `promised` on, came back.

        The log has it at the places that were found, also after a clean stop, of which no batch has the state.
        """
        if found.damaged:
            raise Violation(f"a healthy disk is said to be damaged: {found.reports}")
        for snapshot in machine.allowed[promised:]:
            if snapshot.numbers == found.numbers and snapshot.places in (None, found.places):
                self._judge_flags(machine, found)
                stored = machine.stopped_clean if machine.stopped_clean and found.clean else snapshot.stored
                return snapshot_of(stored, found.places)
        raise Violation(explain(machine, found, promised))

    def _judge_flags(self, machine: Machine, found: ReadBack) -> None:
        if not found.clean:
            if not all(all(flags) for flags in found.redelivered.values()):
                raise Violation("after a crash a message is not flagged as redelivered")
            return
        stopped = machine.stopped_clean
        if stopped is None:
            raise Violation("a crash is taken for a clean stop")
        for queue_id, entries in stopped.items():
            expected = tuple(entry.delivered for entry in entries)
            if entries[0].lane >= HELD_FROM or queue_id in machine.paper.orphans:
                continue
            if found.redelivered[queue_id] != expected:
                raise Violation(f"after a clean stop the redelivered flags are {found.redelivered}, not {expected}")


def explain(machine: Machine, found: ReadBack, promised: int) -> str:
    """Return in words how far `found` is from what it may be."""
    lines = [f"came back: {found.numbers}"]
    lines += [f"batch {promised + n}: {s.numbers}" for n, s in enumerate(machine.allowed[promised:][-6:])]
    return "what came back was never there:\n" + "\n".join(lines)
