"""Files of streams that go, on a disk that is cut off at any moment: not before it is committed that nobody needs them.

The threads of the store work in every order: the one that removes files may be quicker than the one that writes frames,
and the one that writes checkpoints quicker than both. Before every change of the disk the power is cut, and the process
killed, and another broker begins: a stream is there as it was, or what made its files superfluous is in the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import permutations
from typing import Final

import pytest
from durable_harness import DurableHarness
from engine_harness import body_of, publish_frames
from sealing_stream import ONE_CHUNK_EACH, Sealing, offset_of

from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.msgstore.log.jobs import DropJob, Errand
from warren.msgstore.log.removals import FILES_AT_ONCE
from warren.streams.raw_chunk import SealedLook

MESSAGES: Final = 35
STATES: Final = 12 if int(os.environ.get("WARREN_TEST_CRASH_STATES", "110000")) >= 10_000 else 5  # of each change
CHANGES: Final = {"create", "write", "truncate", "rename", "unlink", "sync", "sync_directory"}
COMMITTER: Final = ("commit_jobs",)
READER: Final = ("read_jobs",)
HOUSEKEEPER: Final = ("seal_jobs", "checkpoint_jobs", "unlink_jobs")
Order = tuple[tuple[str, ...], ...]
ORDERS = pytest.mark.parametrize("order", list(permutations((COMMITTER, READER, HOUSEKEEPER))), ids=range(6))
FIRST: Final = encode_table({"x-stream-offset": "first"})


class Cuts:
    """Looks at the disks that a power cut, or the end of the process, may leave while something is done.

    `order`: which thread works first whenever it has something to do.
    """

    def __init__(self, sealing: Sealing, order: Order, judge: Callable[[DurableHarness], None]) -> None:
        self.harness = sealing.harness
        self.judge = judge
        self.disks = 0
        self._order = order
        self._run = self.harness.store.run
        self.harness.store.run = self._run_first  # type: ignore[method-assign]
        self.harness._fs.on_operation = self._cut

    def _run_first(self) -> bool:
        """Run the first thread that has something to do."""
        log = self.harness.broker.log
        for jobs in self._order:
            others = [name for each in self._order if each != jobs for name in each]
            kept = {name: getattr(log, name) for name in others}
            for name in others:
                setattr(log, name, [])
            did = self._run()
            for name in others:
                setattr(log, name, kept[name] + getattr(log, name))
            if did:
                return True
        return False

    def _cut(self, event: str) -> None:
        when, operation, _ = event.split(" ", 2)
        if when == "before" and operation in CHANGES:
            self.look()

    def look(self) -> None:
        """Begin with what is on the disk now."""
        fs = self.harness._fs
        for state in [fs.kill9(), *fs.crash_states(self.disks, STATES)]:
            self.disks += 1
            found = DurableHarness(state, dict(self.harness._catalogue), int(self.harness.broker.log.now_ms))
            assert found.sealed_problems == []
            self.judge(found)
            found.store.close()

    def end(self) -> int:
        """Look at the end, too; return how many disks it were."""
        self.look()
        print(f"{self.disks} crash states")
        self.harness._fs.on_operation = lambda event: None
        return self.disks


def read(harness: DurableHarness, bodies: list[bytes]) -> list[int]:
    """Return the offsets that a consumer of the stream gets; their bodies are right."""
    client = harness.channel()
    client.call(1, m.BasicQos(0, 1000, False))
    client.send(1, m.BasicConsume(0, "s", "c", False, False, False, True, FIRST))
    harness.settle()
    offsets = []
    for each in client.deliveries():
        offsets.append(offset_of(each))
        assert body_of(each) == bodies[offsets[-1]]
    return offsets


def sealed_stream(**arguments: object) -> Sealing:
    sealing = Sealing(arguments=ONE_CHUNK_EACH | arguments, memory_bytes=0)
    sealing.publish(MESSAGES)
    assert len(sealing.files()) == 3
    return sealing


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_read_waits_for_one_removal_however_many_files_go(is_deleted: bool) -> None:
    """(5): of a stream that is deleted they are many at once, and by a policy many removals."""
    sealing = Sealing(arguments=ONE_CHUNK_EACH, memory_bytes=0)
    sealing.publish(500)
    log, store, store_id = sealing.log, sealing.harness.store, sealing.stream.store_id
    segment, chunk = sealing.table.place(499)
    done: list[str] = []
    loaded = store.loaded

    def note(read: Errand) -> None:
        done.append(type(read).__name__)
        if isinstance(read, DropJob):
            assert 0 < len(read.segments) <= FILES_AT_ONCE
            if done.count("DropJob") == 1:
                log.read_jobs.append(SealedLook(store_id, segment, chunk, 499, 1, lambda _found, _following: None))
        loaded(read)

    store.loaded = note  # type: ignore[method-assign]
    assert len(sealing.files()) == 50
    if is_deleted:
        sealing.delete()
    else:
        sealing.put_policy(max_length_bytes=0)
    sealing.harness.settle()
    assert len(sealing.files()) == (0 if is_deleted else 1)
    assert done.count("DropJob") == (4 if is_deleted else 49)
    assert done.index("SealedLook") <= 2


@ORDERS
@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_stream_is_deleted_with_all_its_files_or_has_them_all(order: Order, with_checkpoint: bool) -> None:
    """The checkpoint is taken with the batch that says so: files that a crash has left are removed all the same."""
    sealing = sealed_stream()
    found: list[bool] = []

    def judge(harness: DurableHarness) -> None:
        is_there = "s" in harness.vhost.queues
        found.append(is_there)
        if is_there:
            assert read(harness, sealing.bodies) == list(range(MESSAGES)), "files are gone before it is deleted"
        else:
            assert harness._fs.names("streams") == [], "files of a deleted stream are left"

    cuts = Cuts(sealing, order, judge)
    if with_checkpoint:
        sealing.log.checkpoints.want()
    sealing.delete()
    sealing.harness.settle()
    assert cuts.end() > 20
    assert set(found) == {True, False}, "no crash was before it, or none behind it"
    assert sealing.files() == []


@ORDERS
def test_files_of_a_stream_go_with_a_policy_that_is_in_the_log(order: Order) -> None:
    sealing = sealed_stream()
    found: list[bool] = []

    def judge(harness: DurableHarness) -> None:
        has_policy = bool(harness.vhost.policies.policies)
        found.append(has_policy)
        offsets = read(harness, sealing.bodies)
        assert offsets[-1] == MESSAGES - 1
        if not has_policy:
            assert offsets[0] == 0, "files are gone because of a policy that nobody has set"

    cuts = Cuts(sealing, order, judge)
    sealing.put_policy(max_length_bytes=0)
    assert cuts.end() > 15
    assert set(found) == {True, False}, "no crash was before it, or none behind it"
    assert len(sealing.files()) == 1


@ORDERS
def test_files_of_a_stream_go_with_a_policy_that_is_imported_when_the_import_is_in_the_log(order: Order) -> None:
    """While the journal is held the policy is in no batch."""
    sealing = sealed_stream()
    sealing.publisher.declare("other", durable=True)

    def judge(harness: DurableHarness) -> None:
        if not harness.vhost.policies.policies:
            assert read(harness, sealing.bodies)[0] == 0, "files are gone because of a policy that nobody has set"

    cuts = Cuts(sealing, order, judge)
    journal = sealing.harness.broker.journal
    journal.hold()
    sealing.put_policy(max_length_bytes=0)
    sealing.publisher.feed(publish_frames("", "other", b"meanwhile", properties={"delivery_mode": 2}))
    sealing.publisher.take()
    assert len(sealing.files()) == 3
    journal.release()
    sealing.harness.settle()
    assert cuts.end() > 20
    assert len(sealing.files()) == 1


@ORDERS
def test_files_of_a_stream_go_with_the_messages_that_make_it_too_long(order: Order) -> None:
    sealing = sealed_stream()
    kept = sum(map(len, sealing.bodies)) - 5
    sealing.put_policy(max_length_bytes=kept)
    before = sealing.stream.first_offset()

    def judge(harness: DurableHarness) -> None:
        offsets = read(harness, sealing.bodies)
        assert offsets == list(range(offsets[0], offsets[-1] + 1))
        assert offsets[0] == before or sum(map(len, sealing.bodies[offsets[0] : offsets[-1] + 1])) >= kept

    cuts = Cuts(sealing, order, judge)
    sealing.publish(15)
    cuts.end()
    assert sealing.stream.first_offset() > before


@ORDERS
def test_what_compaction_puts_in_the_place_of_files_is_read_from_then_on_and_not_before(order: Order) -> None:
    sealing = sealed_stream(**{"x-cleanup": "compact"})
    bodies = sealing.bodies
    promised = len(bodies)

    def judge(harness: DurableHarness) -> None:
        offsets = read(harness, bodies)
        assert promised - 1 <= offsets[-1] < len(bodies), "they all have one key"
        assert offsets == sorted(set(offsets))

    cuts = Cuts(sealing, order, judge)
    for _ in range(3):
        sealing.publish(10)
        assert sealing.read()[-1] == len(bodies) - 1
        promised = len(bodies)
    cuts.end()
    sealing.restart(clean=True)  # messages in memory are as they were published
    assert sealing.read()[0] > 0, "it was compacted"
