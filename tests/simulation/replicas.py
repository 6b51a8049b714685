"""A leader and two followers, each on a disk of its own, under one seed: crashes, lost links, take-overs, rejoins.

The leader is the broker of `workloads.Life`, whose store is shipped; the followers are `ReplicaStore`s. When it is lost
a recorded member takes over: the same `Machine` continues on the other disk. Links keep the order, with any delay.
Instead of a cluster there is this: `members` is the recorded set, durable and never smaller than `min_in_sync`; epochs
are counted; a follower that the leader no longer knows gets a copy of its disk, as an operator would make it.

    C1  every recorded member's disk has all confirmed messages, whatever a power cut leaves of it
    C2  only states at the end of a batch come back; a follower does not acknowledge entries of a deposed leader
    C4  logs are equal up to the last commit
    C5  whatever a power cut leaves of any follower, at any moment, is a disk that recovers to a state the leader was in
    C7  a chunk that the log may have forgotten is on the disk of every recorded member
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from simulation.crashes import Judge, ReadBack
from simulation.machine import MUTATING, Machine
from simulation.paper_queues import Messages, Stored, Violation
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import STORE_ID, Frame, Shape, Snapshot
from simulation.workloads import Life, PowerCut
from warren.msgstore.files.sealed_files import sealed_path
from warren.msgstore.files.segment_header import SegmentHeader, parsed_header
from warren.msgstore.files.segment_names import LOG, maybe_segment_number, segment_path
from warren.msgstore.files.store import CATCHING_UP, Store
from warren.msgstore.files.store_errors import StoreFullError
from warren.msgstore.log.columns import Columns, ColumnsWriter, Piece
from warren.msgstore.log.jobs import CommitJob, DropJob, SealJob
from warren.msgstore.log.message import Envelope, build_message
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES
from warren.replication.entries import (
    FROM_LEADER,
    PREAMBLE,
    Ack,
    CaughtUp,
    Committed,
    Decoder,
    Entry,
    Sync,
    Truncate,
    encoded,
)
from warren.replication.replica_store import EntryRefusedError, ReplicaStore
from warren.replication.segment_frames import SegmentFrames
from warren.replication.shipping import Attachment, BulkNeededError, ShippedStore, Shipping
from warren.server.store_threads import StoreFiles

NODES: Final = 3
STREAM: Final = 900
_ENVELOPE: Final = Envelope("", "s")


class FollowerCut(PowerCut):
    """The power of a follower is cut."""


class Link:
    """The bytes under way between a leader and a follower."""

    def __init__(self, epoch: int, attachment: Attachment) -> None:
        self.epoch = epoch
        self.attachment = attachment
        self.catch_up: Iterator[list[Piece]] | None = attachment.catch_up()
        self.is_behind = False  # too much was written meanwhile
        self.entries: deque[bytes] = deque([PREAMBLE])
        self.acks: deque[Ack] = deque()
        self.acked = Ack(0, 0, 0, 0, epoch)
        self.join_lsn = -1  # it is about to join, and needs all up to here
        self.caught_up_at = -1  # how many entries it has had with CAUGHT_UP
        self._decoder = Decoder(FROM_LEADER)
        self._entry: Entry | None = None  # for which there may be no room yet

    def put(self, pieces: list[Piece]) -> None:
        self.entries.append(b"".join(pieces))

    def send(self) -> bool:
        """Send one entry of the files, or go over to live ones; False when it is live."""
        if self.catch_up is None:
            return False
        pieces = next(self.catch_up, None)
        if pieces is not None:
            self.put(pieces)
        else:
            self.catch_up = None
            self.is_behind = not self.attachment.go_live(self.put)
        return True

    def deliver(self, replica: ReplicaStore) -> bool:
        """Pass the next entry to the follower; False without an entry, or without room for it."""
        while self._entry is None:
            self._entry = self._decoder.maybe_entry()
            if self._entry is None:
                if not self.entries:
                    return False
                self._decoder.feed(self.entries.popleft())
        try:
            replica.apply(self._entry, self.epoch)  # type: ignore[arg-type]  # the decoder takes no others
        except StoreFullError:
            return False
        self.acks.append(replica.ack())
        self._entry = None
        return True


class Node:
    """A machine with a disk. `replica` is None on the leader, and while it is down."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.fs = SimulatedFileSystem()
        self.replica: ReplicaStore | None = None
        self.link: Link | None = None
        self.needs_image = False
        self.late: Link | None = None  # of a leader that was deposed


class Leader(Machine):
    """The broker, whose store is shipped, and whose commits wait for `committed_by`."""

    def __init__(self, fs: SimulatedFileSystem, messages: Messages, shape: Shape, life: ReplicatedLife) -> None:
        super().__init__(fs, messages, shape)
        self._life = life
        self._epoch = 0
        self._rests = False
        self._ever: dict[int, Frame] = {}  # by crc

    def new_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    @property
    def epoch(self) -> int:
        return self._epoch

    def files_of(self, store: Store) -> StoreFiles:
        store.commits_alone = False
        self.shipping = Shipping(self.fs, self.log.epochs)
        return ShippedStore(store, self.shipping)

    def is_committed(self, job: CommitJob) -> bool:
        if job.sync:
            end_lsn = int(job.end_lsn())
            if not self._life.all_have(end_lsn):
                return False
            self.store.commit_reached(end_lsn)
            self.shipping.publish(Committed(end_lsn))
        job.committed_lsn = self.store.committed_lsn
        return True

    def commit(self) -> bool:
        tries = self.retries
        if super().commit():
            return True
        # Each try of a commit without room ships a SYNC. The answers to it are not progress.
        return self._rests and self._life.move_links() and self.retries == tries

    def rest(self) -> bool:
        self._rests = True
        try:
            return super().rest()
        finally:
            self._rests = False

    def _cut_frames(self) -> None:
        """Take the frames that lead to the last one, from whichever leader they are."""
        self._ever.update((frame.crc, frame) for frame in [*self.frames, *_frames_of(self.fs)])
        chain: list[Frame] = []
        crc = int(self.log.last_crc)
        while crc:
            chain.append(self._ever[crc])
            crc = int.from_bytes(chain[-1].data[36:40], "big")
        self.frames = chain[::-1]

    def is_serving(self) -> bool:
        """Whether the beginning of this epoch is committed: nothing is delivered before."""
        return bool(self.log.done_batch >= 1)


class ReplicatedLife(Life):
    """A life with followers. `counts` says how often what has happened."""

    def __init__(self, seed: int, *, limit: int = 3, explore: float = 0.1) -> None:
        self.nodes = [Node(number) for number in range(NODES)]
        self.leader = self.nodes[0]
        self.members = {self.leader}
        self.counts: Counter[str] = Counter()
        self._earlier: list[Snapshot] = []  # states that may come back instead while a new leader has not served yet
        self._stopped_clean: Stored | None = None  # when the last leader went that has served
        # Chunks by stream segment and position, which the log has forgotten.
        self.forgotten: dict[tuple[int, int], bytes] = {}
        self._sealing: tuple[SealJob, bytes, dict[Attachment, int]] | None = None
        self._files: list[int] = []  # of the stream, by their first offsets
        self._ends: dict[int, int] = {}  # of each file that ever was
        self._sealed_end = 0
        self._tail = 0  # where the next chunk goes in the last file; 0: it begins one
        super().__init__(seed, limit=limit, explore_every=12)
        self._explore = explore
        self.min_in_sync = self.random.choice((1, 2))
        self._sudden_follower = self.random.choice((0.0, 0.003, 0.01))
        own: list[tuple[Callable[[], object], float]] = [
            (self._move_links, 30),
            (self._catch_up, 8),
            (self._connect, 8),
            (self._join, 8),
            (self._lose_link, 0.5),
            (self._leave, 0.7),
            (self._crash_follower, 0.5),
            (self._kill_follower, 0.3),
            (self._fill_follower, 0.5),
            (self._depose, 1.5),
            (self._late_entries, 4),
            (self._seal, 1.5),
            (self._seal_done, 3),
            (self._drop_sealed, 0.3),
            (self._swap_sealed, 0.4),
        ]
        self._own = [operation for operation, _ in own]
        self._own_weights = [weight * self.random.choice((0.5, 1, 1, 2)) for _, weight in own]
        self._operations += self._own
        self._weights += self._own_weights

    def _new_machine(self, fs: SimulatedFileSystem) -> Machine:
        self._judge_followers = Judge(self.messages, self.shape)
        self.leading = Leader(fs, self.messages, self.shape, self)
        self.leader.fs = fs
        return self.leading

    # --- operations of a single broker, now in a cluster -----------------------------------------------------------

    def _surviving(self, operation: Callable[[], object]) -> None:
        own = getattr(operation, "__name__", "") in {each.__name__ for each in self._own}
        if not own and not self.leading.is_serving() and operation not in (self._turn, self._commit, self._read):
            (operation,) = self.random.choices(self._own, self._own_weights)
            self.trace.append(operation.__name__)
        super()._surviving(operation)
        if self.random.random() < 0.05:
            self.check_logs()

    def _change(self) -> None:
        """The leader's disk is about to change."""
        self.changes += 1
        if self.changes % self.explore_every == 0:
            for state in self.machine.fs.crash_states(self.random.getrandbits(32), self.limit):
                self.counts["states"] += 1
                self._judge_member(self.judge.read(state), self.machine.durable)
        if self.random.random() < self.sudden:
            raise PowerCut

    def _restart(self, fs: SimulatedFileSystem, promised: int) -> None:
        super()._restart(fs, promised)  # the first start of all
        self.leader.fs = self.machine.fs

    def _cut(self) -> None:
        self._leader_is_lost(self._any_crash_state(), self.machine.durable)

    def _kill(self) -> None:
        self._leader_is_lost(self.machine.fs.kill9(), self.machine.written)

    def _stop(self) -> None:
        self.machine.stop()
        if not self.machine.failed:
            self._kill()

    def _fill_follower(self) -> None:
        """Leave a follower's disk little or no room, or give it back."""
        fs = self._follower().fs
        used = sum(len(data) for data in fs.contents().values())
        fs.capacity = used + self.random.choice((0, 100, 2000)) if fs.capacity is None else None

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Repeat a seal until it has room; here it has room at once."""
        fs = self.machine.fs
        fs.capacity, capacity = None, fs.capacity
        yield
        fs.capacity = capacity

    def _drain_at_rest(self) -> None:
        """Everybody comes back, and all is well in the end."""
        self._explore = self._sudden_follower = 0.0
        for node in self.nodes:
            node.fs.capacity = None
        self.machine.on_crash_point = None
        self.machine.fs.capacity = None
        for _ in range(400):
            for node in self._followers():
                self._connect(node)
                self._catch_up(node)
            self.move_links()
            for node in self._followers():
                self._join(node)
            self.leading.commit()
            are_live = all(node.link is not None and node.link.catch_up is None for node in self._followers())
            if len(self.members) == NODES and are_live and self.leading.is_serving():
                break
        else:
            raise Violation(f"members are {[node.number for node in self.members]} after everything is well again")
        self._seal_done()
        super()._drain_at_rest()
        self.move_links()
        self.check_logs()
        for node in self.nodes:
            self._judge_states(node)

    # --- the leader goes --------------------------------------------------------------------------------------------

    def _leader_is_lost(self, left: SimulatedFileSystem, promised: int) -> None:
        old = self.leader
        old.fs = left
        self._part()
        others = [node for node in sorted(self.members, key=_number) if node is not old]
        restarts = not others or self.random.random() < 0.3
        self._take_over(old if restarts else self.random.choice(others), old, promised)

    def _depose(self) -> None:
        """Another member takes over, while the old leader has entries under way."""
        others = [node for node in sorted(self.members, key=_number) if node is not self.leader]
        if others:
            old = self.leader
            old.fs = self.machine.fs.kill9()
            self._part()
            self._take_over(self.random.choice(others), old, self.machine.written)

    def _part(self) -> None:
        """The leader is gone: its entries may still arrive, and the answers are not read."""
        for node in self._followers():
            if node.link is not None:
                node.link.attachment.close_files()
                node.late, node.link = node.link, None
        self._sealing = None

    def _take_over(self, node: Node, old: Node, promised: int) -> None:
        """Take over. `promised`: what the disk of `old` has, if that node continues."""
        self.counts["take-overs" if node is not old else "restarts"] += 1
        while True:
            if node is not old:
                promised = self.machine.durable
                if not self._promoted(node):
                    continue
            if self.leading.is_serving():
                self._stopped_clean = self.machine.stopped_clean
            else:
                self.machine.stopped_clean = self._stopped_clean  # nothing was delivered since
            found = self.judge.read(node.fs.kill9())
            recovered = self._judge_member(found, promised)
            if self.leading.is_serving():
                self._earlier = []
            self._earlier += self.machine.allowed[self.machine.durable :]
            node.late = None
            self.leader = node
            self.machine.fs = node.fs
            node.fs.capacity = None
            self._take_over_files(node)
            try:
                self.machine.start(recovered)
                break
            except PowerCut:
                node.fs = self._any_crash_state()
                promised = self.machine.durable
                old = node
        for other in self.nodes:
            if other is not node and other.replica is None and len(self.members) > self.min_in_sync:
                self.members.discard(other)

    def _promoted(self, node: Node) -> bool:
        """Make a follower's directory one to start with; False when its power was cut meanwhile."""

        def promote() -> None:
            replica = self._running(node)
            replica.open()
            replica.promote(force=True)  # it is a recorded member
            replica.close()

        if not self._on(node, promote):
            return False
        node.replica = None
        return True

    # --- links ------------------------------------------------------------------------------------------------------

    def _followers(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.leader]

    def _follower(self) -> Node:
        return self.random.choice(self._followers())

    def all_have(self, lsn: int) -> bool:
        """Tell whether all nodes that a commit waits for have the log synced up to there."""
        required = [node for node in self._followers() if node in self.members or _is_joining(node)]
        return all(node.link is not None and node.link.acked.synced_lsn >= lsn for node in required)

    def _running(self, node: Node) -> ReplicaStore:
        if node.replica is None:
            node.fs.on_operation = partial(self._follower_changes, node)
            node.replica = ReplicaStore(node.fs, clock_ms=lambda: 0)
        return node.replica

    def _on(self, node: Node, action: Callable[[], object]) -> bool:
        """Make a follower do something; False when its power was cut."""
        try:
            action()
        except FollowerCut:
            self._lose(node, self._crash_state(node))
            return False
        except StoreFullError:
            node.fs.capacity = None
            return False
        return True

    def _connect(self, node: Node | None = None) -> None:
        node = node or self._follower()
        if node.link is None and self.machine.written:
            self._on(node, partial(self._attach, node))

    def _attach(self, node: Node) -> None:
        replica = self._running(node)
        replica.open()
        replica.follow(self.leading.epoch, STORE_ID)
        self._attach_here(node, replica)

    def _attach_again(self, node: Node) -> None:
        """A follower says where it is, over the same link, and gets what was written while it caught up."""
        link, replica = node.link, node.replica
        assert link is not None and replica is not None
        while link.deliver(replica):
            pass
        if link.entries or link._entry is not None:
            return  # no room left
        replica.apply(Truncate(link.attachment.end_lsn, self.leading.epoch), self.leading.epoch)
        self.counts["again"] += 1
        self._attach_here(node, replica)
        self.leading.shipping.detach(link.attachment)
        if node.link is link:
            node.link = None  # it gets a copy

    def _attach_here(self, node: Node, replica: ReplicaStore) -> None:
        for _ in range(3):
            try:
                found = self.leading.shipping.attach(
                    replica.position(), replica.sealed_files(), needs_image=node.needs_image
                )
            except BulkNeededError:
                self._copy(node)
                return
            if isinstance(found, Attachment):
                node.link = Link(self.leading.epoch, found)
                self.counts["links"] += 1
                if found.is_image:
                    self.counts["images"] += 1
                    if node in self.members:
                        raise Violation("a recorded member needs a copy of everything")
                return
            assert isinstance(found, Truncate)
            self.counts["truncations"] += 1
            replica.apply(found, self.leading.epoch)
        raise Violation("a follower is told again and again to cut its log")

    def _copy(self, node: Node) -> None:
        """Give a follower a copy of the leader's disk, as a backup is."""
        if node in self.members:
            raise Violation("a recorded member needs a copy of everything")
        self.counts["copies"] += 1
        (node.fs,) = self.machine.fs.crash_states(0, 1)
        node.replica = None

    def _catch_up(self, node: Node | None = None) -> None:
        node = node or self._follower()
        if node.link is None:
            return
        try:
            while node.link.send() and self.random.random() < 0.9:
                pass
            if node.link.catch_up is None:
                node.needs_image = False
            if node.link.is_behind:
                self._on(node, partial(self._attach_again, node))
        except BulkNeededError:
            node.link.entries.clear()
            self._lose_link(node)
            node.needs_image = True

    def _move_links(self) -> None:
        node = self._follower()
        for _ in range(self.random.choice((1, 2, 8))):
            if node.link is not None:
                self._move(node)

    def move_links(self) -> bool:
        """Deliver everything that is under way; False when that was nothing."""
        moved = False
        for node in self._followers():
            while node.link is not None and self._move(node):
                moved = True
        return moved

    def _move(self, node: Node) -> bool:
        """Deliver one thing, at either end."""
        link = node.link
        assert link is not None and node.replica is not None
        if link.acks and (not link.entries or self.random.random() < 0.5):
            link.acked = link.acks.popleft()
            self._acked(node, link)
            return True
        replica = node.replica
        moved: list[bool] = []
        self._on(node, lambda: moved.append(link.deliver(replica)))
        return moved != [False]

    def _acked(self, node: Node, link: Link) -> None:
        if link.caught_up_at < 0 and 0 <= link.join_lsn <= link.acked.synced_lsn >= self.leading.store.committed_lsn:
            link.attachment.publish(encoded(CaughtUp(link.acked.synced_lsn)))
            link.caught_up_at = link.attachment.sent
        elif 0 <= link.caught_up_at <= link.acked.done and node not in self.members:
            self.members.add(node)
            self.counts["joins"] += 1

    def _join(self, node: Node | None = None) -> None:
        """Make commits wait for a follower that is live; it joins when it has what there is by now."""
        node = node or self._follower()
        link = node.link
        if link is not None and link.catch_up is None and not link.is_behind and link.join_lsn < 0:
            link.join_lsn = self.leading.shipping.end_lsn()
            link.attachment.publish(encoded(Sync(link.join_lsn)))
            self._acked(node, link)

    def _lose_link(self, node: Node | None = None) -> None:
        """A connection ends; some of what was under way may still come."""
        node = node or self._follower()
        link = node.link
        if link is not None:
            self.leading.shipping.detach(link.attachment)
            for _ in range(self.random.choice((0, 0, 1, 5))):
                if node.link is link and link.entries and node.replica is not None:
                    self._on(node, partial(link.deliver, node.replica))
            node.link = None

    def _leave(self) -> None:
        """A member is left out, with the end of its link."""
        node = self._follower()
        if len(self.members) > self.min_in_sync or node not in self.members:
            self._lose_link(node)
            self.members.discard(node)

    def _late_entries(self) -> None:
        """Deliver the late entries of a deposed leader."""
        node = self._follower()
        late = node.late
        if late is None or node.replica is None:
            return
        replica = node.replica

        before = len(late.acks)

        def deliver() -> None:
            try:
                while late.deliver(replica) and self.random.random() < 0.8:
                    pass
            except EntryRefusedError:
                self.counts["refused"] += 1
                node.late = None

        self._on(node, deliver)
        if node.link is not None and len(late.acks) > before:
            raise Violation("an entry of a deposed leader is carried out, and acknowledged")

    # --- followers fail ---------------------------------------------------------------------------------------------

    def _crash_follower(self) -> None:
        node = self._follower()
        if node.replica is not None:
            self._lose(node, self._crash_state(node))

    def _kill_follower(self) -> None:
        node = self._follower()
        if node.replica is not None:
            self._lose(node, node.fs.kill9())

    def _lose(self, node: Node, left: SimulatedFileSystem) -> None:
        self.counts["follower crashes"] += 1
        if node.link is not None:
            self.leading.shipping.detach(node.link.attachment)
        node.link = node.late = node.replica = None
        node.fs = left

    def _crash_state(self, node: Node) -> SimulatedFileSystem:
        return self.random.choice(list(node.fs.crash_states(self.random.getrandbits(32), self.limit)))

    def _follower_changes(self, node: Node, event: str) -> None:
        when, operation, _ = event.split(" ", 2)
        if when == "before" and operation in MUTATING:
            if self.random.random() < self._explore:
                self._judge_states(node)
            if self.random.random() < self._sudden_follower:
                raise FollowerCut

    # --- what must hold ---------------------------------------------------------------------------------------------

    def _judge_states(self, node: Node) -> None:
        """C1, C2, C5, C7: whatever a power cut leaves now is right."""
        hook, node.fs.on_operation = node.fs.on_operation, None
        for state in node.fs.crash_states(self.random.getrandbits(32), self.limit):
            self.counts["states"] += 1
            try:
                self._judge_state(node, state)
            except StoreFullError as error:  # of that disk: the follower itself has room for what it does
                raise Violation(f"a start needs room: {error}") from None
        node.fs.on_operation = hook

    def _judge_state(self, node: Node, state: SimulatedFileSystem) -> None:
        is_catching_up = CATCHING_UP in state.names(".")
        if is_catching_up or self.random.random() < 0.3:
            replica = ReplicaStore(state, clock_ms=lambda: 0)
            replica.open()
            replica.promote(force=True)
            replica.close()
        if not state.names("."):
            return
        if node in self.members:
            self._judge_forgotten(node, state)
        found = self._judge_followers.read(state)
        if node in self.members:
            self._judge_member(found, self.machine.durable)
            return
        if found.damaged:
            raise Violation(f"a healthy disk is said to be damaged: {found.reports}")
        known = self.machine.history + self.machine.allowed
        if not any(snapshot.numbers == found.numbers for snapshot in reversed(known)):
            raise Violation(f"a follower has what never was: {found.numbers}")

    def _judge_member(self, found: ReadBack, promised: int) -> Snapshot:
        """Return the state that came back: of this leader, or of those before as long as this one has never served."""
        try:
            return self.judge.judge(self.machine, found, promised)
        except Violation:
            if not self.leading.is_serving():
                for snapshot in self._earlier:
                    if snapshot.numbers == found.numbers and snapshot.places in (None, found.places):
                        return snapshot
            raise

    def _judge_forgotten(self, node: Node, state: SimulatedFileSystem) -> None:
        contents = state.contents()
        for (segment, position), chunk in self.forgotten.items():
            data = contents.get(sealed_path(STREAM, segment), b"")
            if data[position : position + len(chunk)] != chunk:
                raise Violation(f"node {node.number} lacks the chunk at {position} of {segment}, which was forgotten")

    def check_logs(self) -> None:
        """C4: every frame that is committed is the same wherever it is."""
        frames = {frame.lsn: frame.crc for frame in self.machine.frames}
        for node in self._followers():
            hook, node.fs.on_operation = node.fs.on_operation, None
            for frame in _frames_of(node.fs) if node in self.members else ():
                if frame.lsn < self.leading.store.committed_lsn and frames.get(frame.lsn) != frame.crc:
                    raise Violation(f"node {node.number} has another frame at {frame.lsn} than the leader")
            node.fs.on_operation = hook

    # --- streams ----------------------------------------------------------------------------------------------------

    def _seal(self) -> None:
        """Seal a chunk of a stream that the log has all of, as it were."""
        if self._sealing is not None or not self.leading.is_serving():
            return
        if not self._files or self._tail == 0 or self.random.random() < 0.3:
            self._files.append(self._sealed_end)
            self._tail = 0
        first, count = self._sealed_end, self.random.choice((1, 5, 40))
        job = SealJob(STREAM, self._files[-1], self._tail, _columns(first, count))
        with self._room():
            self.machine.files.seal(job)
        data = self.machine.fs.contents()[sealed_path(STREAM, job.segment)]
        self._sealed_end = self._ends[job.segment] = first + count
        self._tail = len(data)
        self._sealing = (job, data[job.placed_at :], self.leading.shipping.sent())
        self._seal_done()

    def _seal_done(self) -> None:
        """Forget the sealed chunks, once all nodes that a commit waits for have them."""
        if self._sealing is None:
            return
        job, chunk, sent = self._sealing
        if all(_has_done(node.link, sent) for node in self._followers() if node in self.members or _is_joining(node)):
            self._sealing = None
            self.forgotten[(job.segment, job.placed_at)] = chunk
            self.counts["chunks"] += 1

    def _drop_sealed(self) -> None:
        if len(self._files) > 1 and self._sealing is None:
            first = self._files.pop(0)
            self._remember(first)
            with self._room():
                self.machine.files.drop_sealed(DropJob(STREAM, [first]))

    def _swap_sealed(self) -> None:
        """Rewrite a file of a stream, and put the new one in its place."""
        if len(self._files) > 1 and self._sealing is None:
            first = self._files[0]
            job = SealJob(STREAM, first, 0, _columns(first, self._ends[first] - first))
            job.is_replacement = True
            with self._room():
                self.machine.files.seal(job)
                self._remember(first)
                self.machine.files.swap_sealed(STREAM, [first])

    def _remember(self, segment: int) -> None:
        """Forget the chunks of a file that nothing asks for any longer."""
        self.forgotten = {place: chunk for place, chunk in self.forgotten.items() if place[0] != segment}

    def _take_over_files(self, node: Node) -> None:
        """Continue as a new leader with its files, in a new one; unreported chunks may be missing."""
        self._judge_forgotten(node, node.fs)
        contents = node.fs.contents()
        self._sealing = None
        self._files = sorted({segment for segment in self._ends if sealed_path(STREAM, segment) in contents})
        self._sealed_end = max(
            [segment + 1 for segment, _ in self.forgotten] + [self._ends[f] for f in self._files] + [0]
        )
        self._tail = 0


def _number(node: Node) -> int:
    return node.number


def _is_joining(node: Node) -> bool:
    return node.link is not None and node.link.join_lsn >= 0


def _has_done(link: Link | None, sent: dict[Attachment, int]) -> bool:
    """Tell whether a follower has done the `sent` work; a follower that has connected since has it once caught up."""
    if link is None:
        return False
    mark = sent.get(link.attachment, link.caught_up_at)
    return 0 <= mark <= link.acked.done


def _columns(first: int, count: int) -> Columns:
    writer = ColumnsWriter()
    for offset in range(first, first + count):
        writer.add(offset, build_message(_ENVELOPE, b"\0\0", b"body %d" % offset, 0, True), False)
    return writer.finish(first, first + count)


def _frames_of(fs: SimulatedFileSystem) -> Iterator[Frame]:
    """Yield all frames in the segments on a disk."""
    for name in fs.names(LOG) if LOG in fs.names(".") else ():
        number = maybe_segment_number(name)
        if number is None:
            continue
        handle = fs.open(segment_path(number), writable=False)
        header = parsed_header(fs.read(handle, SEGMENT_HEADER_BYTES, 0), fs.size(handle), name)
        assert isinstance(header, SegmentHeader)
        frames = SegmentFrames(fs, handle, header)
        lsn = frames.first_lsn
        while (found := frames.maybe_frame(lsn)) is not None:
            yield Frame(lsn, found[0].crc, found[1])
            lsn += found[0].end
        fs.close(handle)
