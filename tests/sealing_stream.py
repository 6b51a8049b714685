"""A durable stream whose chunks are small, on a disk in memory that can be held, damaged and power-cycled."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

from durable_harness import DurableHarness
from engine_harness import Client, Received, body_of, publish_frames
from simulation.simulated_file_system import SimulatedFileSystem

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.msgstore.files.sealed_files import sealed_path
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES
from warren.msgstore.log.jobs import Errand, SealJob
from warren.msgstore.log.sealed_table import SealedTable
from warren.queues.browse import Cursor, Seen, look
from warren.streams.consumer import AT_TIME, Start
from warren.streams.offset_search import find
from warren.streams.stream import Stream
from warren.vhosts.metadata import PolicyPut

PAGE = 16
CHUNK = 10
OFFSET = "x-stream-offset"
VALUE = "x-stream-filter-value"
ONE_CHUNK_EACH: Table = {"x-stream-max-segment-size-bytes": 1}


class Sealing:
    """A durable stream ``s`` whose chunks have `chunk` messages; `bodies` and `times` are what was published."""

    def __init__(
        self, *, chunk: int = CHUNK, memory_bytes: int = 64 << 20, arguments: Table | None = None, seal_bytes: int = 0
    ) -> None:
        self.chunk = chunk
        self.seal_bytes = seal_bytes
        self.bodies: list[bytes] = []
        self.times: list[int] = []
        self._begin(DurableHarness(memory_bytes=memory_bytes))
        self.publisher.declare("s", durable=True, arguments={"x-queue-type": "stream"} | (arguments or {}))

    def _begin(self, harness: DurableHarness) -> None:
        self.harness = harness
        self.fs: SimulatedFileSystem = harness._fs
        self.log = harness.broker.log
        self.log.sealed.chunk_messages = self.chunk
        self.log.sealed.chunk_bytes = self.seal_bytes or self.log.sealed.chunk_bytes
        self.publisher = harness.channel()
        self.publisher.call(1, m.ConfirmSelect(False))
        self.jobs: Counter[str] = Counter()
        self._loaded = harness.store.loaded
        harness.store.loaded = self._count  # type: ignore[method-assign]

    def _count(self, read: Errand) -> None:
        self.jobs[type(read).__name__] += 1
        self._loaded(read)

    @property
    def stream(self) -> Stream:
        found = self.harness.queue("s")
        assert isinstance(found, Stream)
        return found

    @property
    def table(self) -> SealedTable:
        return self.stream.messages.sealer.table

    @property
    def live(self) -> int:
        """How many messages the log has of the stream."""
        index = self.stream.messages.index
        return 0 if index is None else int(index.live_count)

    def bounds(self) -> list[list[tuple[int, int]]]:
        return [[(int(each.first), int(each.end)) for each in segment.chunks] for segment in self.table.segments]

    def files(self) -> list[str]:
        return self.fs.names("streams")

    # --- publishing -----------------------------------------------------------------------------------------------

    def publish(self, count: int = 1, *, size: int = 0, at_once: bool = True, **properties: Any) -> None:
        """Publish `count` messages and have them confirmed; their bodies begin with their offsets."""
        frames = []
        for _ in range(count):
            body = b"%d " % len(self.bodies) + bytes(size)
            self.bodies.append(body)
            self.times.append(int(self.log.now_ms))
            frames.append(publish_frames("", "s", body, properties=properties))
        if at_once:
            self.publisher.feed(b"".join(frames))
        else:
            for each in frames:
                self.publisher.feed(each)
        self.publisher.take()
        self.seal()

    def seal(self) -> None:
        """Look at what is synced, as the next publish would."""
        self.stream.messages.sealer.step(self.stream)
        self.harness.settle()

    def publish_filtered(self, *values: str | None) -> None:
        for value in values:
            headers: Table = {} if value is None else {VALUE: value}
            self.publish(headers=encode_table(headers))

    def put_policy(self, **definition: object) -> None:
        settings = json.dumps({key.replace("_", "-"): value for key, value in definition.items()})
        self.harness.broker.administer(PolicyPut("/", "p", "", "all", 0, settings))
        self.harness.settle()

    def seal_once(self, count: int) -> None:
        """Seal one chunk of `count` messages, and none after it."""
        run = self.harness.store.run

        def run_with_one_seal() -> bool:
            if self.log.seal_jobs:
                self.log.sealed.chunk_messages = 100_000
            return run()

        self.harness.store.run = run_with_one_seal  # type: ignore[method-assign]
        self.log.sealed.chunk_messages = count
        self.seal()
        self.harness.store.run = run  # type: ignore[method-assign]

    def hold_seals(self) -> list[SealJob]:
        """Make the disk write only released chunks; return the jobs that it holds."""
        held: list[SealJob] = []
        self._run = self.harness.store.run

        def run_but_seals() -> bool:
            held.extend(self.log.seal_jobs)
            self.log.seal_jobs.clear()
            return self._run()

        self.harness.store.run = run_but_seals  # type: ignore[method-assign]
        return held

    def release(self, held: list[SealJob]) -> None:
        """Write the held chunk."""
        (job,) = held
        held.clear()
        self.log.seal_jobs.append(job)
        self._run()
        self.harness.settle()

    # --- reading --------------------------------------------------------------------------------------------------

    def consumer(self, offset: object = "first", prefetch: int = 60_000, **arguments: object) -> Client:
        client = self.harness.channel()
        client.call(1, m.BasicQos(0, prefetch, False))
        table: Table = {OFFSET: offset}
        client.consume("s", "c", arguments=table | {f"x-{k.replace('_', '-')}": v for k, v in arguments.items()})
        return client

    def offsets(self, client: Client) -> list[int]:
        """Return the offsets of what came; check the bodies."""
        found = []
        for each in client.deliveries():
            offset = offset_of(each)
            assert body_of(each) == self.bodies[offset]
            found.append(offset)
        return found

    def read(self, offset: object = "first", **arguments: Any) -> list[int]:
        """Return the offsets that a consumer gets from `offset` on."""
        client = self.consumer(offset, **arguments)
        offsets = self.offsets(client)
        client.hang_up()
        return offsets

    def sought(self, time_ms: int) -> int:
        """Return the offset at which a consumer with a start time begins."""
        told: list[int] = []
        find(self.stream, Start(AT_TIME, time_ms), told.append)
        self.harness.settle()
        (offset,) = told
        return offset

    def looked(self, *, skip: int = 0, most: int = 7) -> list[Seen]:
        """Return the messages that browsing shows, a few at a time."""
        seen: list[Seen] = []
        cursor = Cursor(skip)
        while not cursor.ended:
            told: list[list[Seen]] = []
            look(self.stream, cursor, most, told.append)
            self.harness.settle()
            (piece,) = told
            assert len(piece) <= most
            seen += piece
        return seen

    # --- what happens ---------------------------------------------------------------------------------------------

    def restart(self, *, clean: bool, down_s: float = 0, memory_bytes: int | None = None) -> None:
        self._begin(self.harness.restart(clean=clean, down_s=down_s, memory_bytes=memory_bytes))
        end = self.stream.next_offset()
        assert end == len(self.bodies), "all was confirmed"

    def pass_sealing_time(self) -> None:
        """Look at what was not sealed before a restart."""
        self.harness.pass_time(2)

    def page_out(self) -> None:
        """Remove index pages, and messages that are on disk, from memory."""
        self.log.under_pressure = True
        for _ in range(3):  # pages are written with one batch and given up with the next
            self.log.force()
            self.harness.settle()
            self.stream.messages.batch_closed()
        self.log.under_pressure = False

    def absent_pages(self) -> int:
        index = self.stream.messages.index
        return 0 if index is None else sum(page is not None and not page.resident for page in index.pages)

    def seal_without_telling(self) -> list[SealJob]:
        """Make the held disk write chunks, without telling the broker."""
        jobs, self.log.seal_jobs = self.log.seal_jobs, []
        for job in jobs:
            job.carry_out(self.harness.store._store)
        return jobs

    def delete(self) -> None:
        self.publisher.call(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))

    def damage(self, at: int) -> None:
        """Damage the chunk that an offset is in, on the disk."""
        segment, chunk = self.table.place(at)
        path = sealed_path(self.stream.store_id, int(segment.first))
        self.fs.flip_bit(path, int(chunk.position) + CHUNK_HEAD_BYTES, 0)

    def check(self) -> None:
        """Check that everything is there, once, and counted right."""
        stream = self.stream
        first, end = stream.first_offset(), stream.next_offset()
        assert end == len(self.bodies)
        assert stream.ready_count == end - first
        assert stream.ready_bytes == sum(len(body) for body in self.bodies[first:])
        stream.check_invariants()
        chunks = [bounds for segment in self.bounds() for bounds in segment]
        assert all(one[1] == other[0] for one, other in pairwise(chunks))
        assert self.read() == list(range(first, end))
        seen = self.looked()
        assert [each.place for each in seen] == list(range(first, end))
        assert [each.message.body() for each in seen] == self.bodies[first:]

    def check_memory(self) -> None:
        """Check that all memory is given back when the stream goes."""
        self.delete()
        assert self.log.resident_bytes == 0
        self.harness.write()
        self.log.check_invariants()


def offset_of(received: Received) -> int:
    assert received.content is not None and received.content.properties.headers is not None
    offset = decode_table(received.content.properties.headers)[OFFSET]
    assert isinstance(offset, int)
    return offset
