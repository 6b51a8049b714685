"""`warren store` on a disk that cannot read some of what is sealed, before and after the broker has been there."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, publish_frames
from simulation.simulated_file_system import SimulatedFileSystem

from warren.amqp import methods as m
from warren.msgstore.files.store import Store
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES
from warren.msgstore.log.sealed_table import SealedTable
from warren.msgstore.tools.dumping import dump, matching_queues
from warren.msgstore.tools.inspection import inspect
from warren.msgstore.tools.lines import Line
from warren.msgstore.tools.log_files import StoreFiles
from warren.msgstore.tools.repairing import Repair
from warren.msgstore.tools.sealed_streams import read_streams
from warren.msgstore.tools.stored_state import LogReader, recovered
from warren.msgstore.tools.verification import verify
from warren.queues.browse import Cursor, Seen, look
from warren.streams.stream import Stream

CHUNK = 5
SIZE = 2000  # of a body: chunks are larger than a block of the disk


class Broker:
    """A broker with the stream ``s``, of which 23 messages were published; their bodies do not compress."""

    def __init__(self, *, files: int) -> None:
        self._begin(DurableHarness())
        arguments: dict[str, object] = {
            "x-queue-type": "stream",
            "x-stream-max-segment-size-bytes": 50_000 if files == 1 else 20_000,
        }
        self.client.declare("s", durable=True, arguments=arguments)
        self.random = Random(1)
        self.bodies: list[bytes] = []
        self.publish(23)

    def _begin(self, harness: DurableHarness) -> None:
        self.harness = harness
        self.fs: SimulatedFileSystem = harness._fs
        harness.broker.log.sealed.chunk_messages = CHUNK
        self.client: Client = harness.channel()
        self.client.call(1, m.ConfirmSelect(False))

    @property
    def stream(self) -> Stream:
        found = self.harness.queue("s")
        assert isinstance(found, Stream)
        return found

    @property
    def table(self) -> SealedTable:
        return self.stream.messages.sealer.table

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.bodies.append(self.random.randbytes(SIZE))
            self.client.feed(publish_frames("", "s", self.bodies[-1]))
        self.harness.write()
        self.seal()

    def seal(self) -> None:
        self.stream.messages.sealer.step(self.stream)
        self.harness.settle()

    def stop(self, *, clean: bool = True) -> None:
        self.harness = self.harness.restart(clean=clean)
        self.harness.store.close()

    def start(self) -> None:
        self._begin(self.harness.restart(clean=False))

    def path(self, segment: int) -> str:
        return f"streams/{self.stream.store_id:010d}-{int(self.table.segments[segment].first):020d}"

    def seen(self) -> list[int]:
        """Return the offsets that the broker serves."""
        seen: list[Seen] = []
        cursor = Cursor()
        while not cursor.ended:
            told: list[list[Seen]] = []
            look(self.stream, cursor, 5, told.append)
            self.harness.settle()
            seen += told[0]
        assert all(each.message.body() == self.bodies[each.place] for each in seen)
        return [each.place for each in seen]


def verified(fs: SimulatedFileSystem) -> tuple[list[object], list[object]]:
    """Return the problems and the notes of `verify`."""
    lines = list(verify(StoreFiles(fs)))
    return told(lines, "problem"), told(lines, "note")


def told(lines: list[Line], kind: str) -> list[object]:
    return [line["what"] for line in lines if line["type"] == kind]


def dumped(fs: SimulatedFileSystem) -> tuple[list[object], list[object]]:
    """Return the offsets that `dump-queue` prints, and its problems."""
    files = StoreFiles(fs)
    with LogReader(files) as reader:
        state = recovered(files, reader)
        lines = list(dump(state, matching_queues(state, "/", "s"), read_streams(fs, state.log.store_id)))
    return [line["sequence_number"] for line in lines if line["type"] == "message"], told(lines, "problem")


def repair(fs: SimulatedFileSystem, *, apply: bool) -> list[object]:
    store = Store(fs)
    if apply:
        store.open()
    return told(list(Repair(StoreFiles(fs), store if apply else None).lines()), "action")


MISSING = "messages are missing: what was sealed is damaged, or not there"
UNREADABLE = "damage: the disk cannot read it"


@pytest.mark.parametrize("place", [0, CHUNK_HEAD_BYTES + 6000], ids=["head", "body"])
@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("chunk", [1, 3])
def test_a_chunk_that_the_disk_cannot_read_is_a_problem_and_the_others_are_dumped(
    place: int, files: int, chunk: int
) -> None:
    broker = Broker(files=files)
    assert [len(segment.chunks) for segment in broker.table.segments] == ([4] if files == 1 else [2, 2])
    segment, bad = broker.table.place(5 * chunk)
    path = broker.path(broker.table.segments.index(segment))
    at = int(bad.position) + place
    broker.stop()
    broker.fs.spoil(path, at, at + 64)
    before = broker.fs.contents()
    left = [offset for offset in range(23) if offset // 5 != chunk]
    problems, notes = verified(broker.fs)
    assert (problems, notes) == ([UNREADABLE], ["messages are lost with the damaged data"])
    assert dumped(broker.fs) == (left, [MISSING])
    (shown,) = [line for line in inspect(StoreFiles(broker.fs)) if line["type"] == "queue" and "lane" not in line]
    sealed = shown["sealed"]
    assert isinstance(sealed, dict)
    assert (shown["messages"], sealed["chunks"], sealed["damaged"]) == (18, 3, 1)
    assert repair(broker.fs, apply=False) == repair(broker.fs, apply=True)
    assert verified(broker.fs) == (
        [],
        [
            "damage that was found before, a copy is in the quarantine: the disk cannot read it",
            "messages are lost with the damaged data",
        ],
    )
    after = broker.fs.contents()
    assert {path: after[path] for path in before if path != "checkpoint"} == {
        path: content for path, content in before.items() if path != "checkpoint"
    }
    (copy,) = [content for name, content in after.items() if name.startswith("quarantine/stream-")]
    assert copy[: at - at % 4096] == before[path][: at - at % 4096]
    assert copy[at : at + 64] == bytes(64)
    broker.start()
    broker.harness.store.gives_up = True
    assert broker.seen() == left
    broker.publish(2)
    assert broker.seen() == [*left, 23, 24]
    broker.stop(clean=False)
    assert (verified(broker.fs)[0], dumped(broker.fs)[0]) == ([], [*left, 23, 24])


def test_an_end_that_the_disk_cannot_read_is_never_taken_for_a_torn_one() -> None:
    broker = Broker(files=1)
    run = broker.harness.store.run
    log = broker.harness.broker.log

    def run_but_seals() -> bool:
        jobs, log.seal_jobs = log.seal_jobs, []
        for job in jobs:
            job.carry_out(broker.harness.store._store)
        return run()

    broker.harness.store.run = run_but_seals  # type: ignore[method-assign]
    path = broker.path(0)
    end = len(broker.fs.contents()[path])
    broker.publish(2)
    whole = len(broker.fs.contents()[path])
    assert whole > end
    broker.fs.spoil(path, end + 1000, end + 1064)
    broker.harness.store.close()
    problems, notes = verified(broker.fs)
    assert (problems, notes) == ([UNREADABLE], [])
    assert dumped(broker.fs) == (list(range(25)), []), "the log has them"
    broker.start()
    broker.seal()
    assert broker.seen() == list(range(25))
    broker.stop()
    assert verified(broker.fs) == ([UNREADABLE], []), "it is there still"
    assert dumped(broker.fs) == (list(range(25)), [])
    broker.fs.heal(path)
    assert (verified(broker.fs), dumped(broker.fs)) == (([], []), (list(range(25)), []))


@pytest.mark.parametrize("segment", [0, 1])
def test_a_header_that_the_disk_cannot_read_is_made_again_and_the_file_comes_back(segment: int) -> None:
    broker = Broker(files=2)
    path = broker.path(segment)
    lost = range(10 * segment, 10 * segment + 10)
    broker.stop()
    broker.fs.spoil(path, 0, 64)
    assert verified(broker.fs)[0] == ["the file has a header that cannot be read"]
    broker.start()
    left = [offset for offset in range(23) if offset not in lost]
    assert broker.seen() == left
    broker.stop()
    assert verified(broker.fs)[0] == ["the file has a header that cannot be read"]  # it keeps its name
    assert repair(broker.fs, apply=False) == repair(broker.fs, apply=True)
    assert verified(broker.fs)[0] == []
    broker.start()
    assert broker.seen() == list(range(23))


def test_a_file_that_cannot_be_opened_is_told_by_every_tool() -> None:
    broker = Broker(files=2)
    path = broker.path(0)
    broker.stop()

    def hook(event: str) -> None:
        if event == f"before open {path}":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    broker.fs.on_operation = hook
    assert verified(broker.fs)[0] == ["the file cannot be opened: Input/output error"]
    assert dumped(broker.fs) == (list(range(10, 23)), [])
    assert repair(broker.fs, apply=False)[0] == "set aside: the file cannot be opened: Input/output error"
    assert [line["fault"] for line in inspect(StoreFiles(broker.fs)) if line["type"] == "sealed" and "fault" in line]
