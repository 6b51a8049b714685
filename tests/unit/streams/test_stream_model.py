"""Streams against a list: messages are published, read, acknowledged, forgotten and lost at random, restarts included.

After every step each reader has got exactly the offsets that follow the last one, each with the body that was published
there, and no more than its prefetch allows; unless the disk is held, nothing that it could have is missing.
"""

from __future__ import annotations

import json
from random import Random

import pytest
from durable_harness import SHAPE, DurableHarness
from engine_harness import Client, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table, Timestamp, decode_table
from warren.streams.stream import Stream
from warren.vhosts.metadata import PolicyPut

PAGE = SHAPE.page_entries
STEPS = 120
SEEDS = range(24)
MEMORY_BYTES = (0, 30_000, 64 << 20)
OFFSET = "x-stream-offset"


class Reader:
    """A consumer. ``next``: the offset that it gets next, -1 while its place is being looked for."""

    def __init__(self, client: Client, prefetch: int, begin: int) -> None:
        self.client = client
        self.prefetch = prefetch
        self.next = begin
        self.unacked: list[int] = []


class Run:
    """One stream over several lives of its broker, and what is known about it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        # In three of four runs so few messages make a chunk that what is sealed plays a part.
        self.seals = (0, 1, 3, 20)[seed % 4]
        self.bodies: list[bytes] = []  # by offset
        self.times: list[int] = []
        self.confirmed = 0  # messages below must be there after a crash
        self.seen = 0
        self.synced = 0  # while the disk is held: messages below may be seen
        self.readers: list[Reader] = []
        self._begin(DurableHarness(memory_bytes=self.random.choice(MEMORY_BYTES)))
        arguments: Table = {"x-queue-type": "stream"}
        if self.seals:
            arguments["x-stream-max-segment-size-bytes"] = self.random.choice((1, 3000, 20_000))
        self.publisher.declare("s", durable=True, arguments=arguments)

    def _begin(self, harness: DurableHarness) -> None:
        self.harness = harness
        self.log = harness.broker.log
        self.log.sealed.chunk_messages = self.seals or self.log.sealed.chunk_messages
        self.publisher = harness.channel()
        self.publisher.call(1, m.ConfirmSelect(False))
        self.readers = []
        self._confirms_from = len(self.bodies)

    @property
    def stream(self) -> Stream:
        found = self.harness.queue("s")
        assert isinstance(found, Stream)
        return found

    # --- steps ----------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        count = self.random.choice((1, 1, 3, PAGE, 50, 200))
        frames = []
        for _ in range(count):
            size = self.random.choice((0, 10, 10, 100, 100, 1000, 5000 if count < 50 else 10))
            body = b"%d:" % len(self.bodies) + self.random.randbytes(size)
            mode = self.random.choice((1, 2))
            frames.append(publish_frames("", "s", body, properties={"delivery_mode": mode}))
            self.bodies.append(body)
            self.times.append(int(self.log.now_ms))
        self.publisher.feed(b"".join(frames))

    def consume(self) -> None:
        if len(self.readers) == 6:
            self.leave()
        first, end = self.stream.first_offset(), len(self.bodies)
        at = self.random.randrange(max(first - 5, 0), end + 5)
        second = self.random.choice(self.times or [int(self.log.now_ms)]) // 1000 + self.random.randrange(-1, 2)
        age_s = self.random.randrange(1, 20)
        begin, offset = self.random.choice(
            (
                (first, "first"),
                (end - 1, "last"),
                (end, "next"),
                (at, at),
                (at, at),
                (self._first_at(second * 1000), Timestamp(second)),
                (self._first_at(int(self.log.now_ms) - age_s * 1000), f"{age_s}s"),
            )
        )
        client = self.harness.channel()
        prefetch = self.random.choice((1, 2, 7, 100, 60_000))
        client.call(1, m.BasicQos(0, prefetch, False))
        client.consume("s", "c", arguments={OFFSET: offset})
        self.readers.append(Reader(client, prefetch, max(begin, first)))

    def _first_at(self, time_ms: int) -> int:
        """Return the first offset of what is there that is not older than a time."""
        offset = self.stream.first_offset()
        while offset < len(self.times) and self.times[offset] < time_ms:
            offset += 1
        return offset

    def answer(self) -> None:
        for reader in self.readers:
            if not reader.unacked or self.random.random() < 0.3:
                continue
            at = self.random.randrange(len(reader.unacked))
            tag = reader.unacked[at]
            multiple = self.random.random() < 0.7
            requeue = self.random.random() < 0.5
            kind = self.random.randrange(4)
            if kind == 3 and not multiple:
                reader.client.send(1, m.BasicReject(tag, requeue))
            elif kind == 2:
                reader.client.send(1, m.BasicNack(tag, multiple, requeue))
            else:
                reader.client.send(1, m.BasicAck(tag, multiple))
            del reader.unacked[0 if multiple else at : at + 1]

    def leave(self) -> None:
        if self.readers:
            reader = self.readers.pop(self.random.randrange(len(self.readers)))
            if self.random.random() < 0.5:
                reader.client.hang_up()
            else:
                reader.client.send(1, m.BasicCancel("c", False))
                reader.client.pick(m.BasicCancelOk)
                self._check_reader(reader)
                reader.client.send(1, m.BasicAck(0, True))
                reader.client.nothing()

    def page_out(self) -> None:
        self.log.under_pressure = True
        self.stream.page_out()
        self.log.force()
        self.harness.settle()
        self.stream.page_out()
        self.log.under_pressure = False
        self.harness.settle()

    def pass_time(self) -> None:
        self.harness.pass_time(self.random.choice((0.001, 0.4, 3.3)))

    def retain(self) -> None:
        limit_bytes = self.random.choice((0, 1000, 20_000, 1 << 40, 1 << 40))
        settings = self.random.choice(({"max-length-bytes": limit_bytes}, {"max-age": "3s"}, {"max-age": "20s"}))
        self.harness.broker.administer(PolicyPut("/", "p", "", "streams", 0, json.dumps(settings)))
        self.harness.settle()

    def hold(self) -> None:
        """Make the disk slow, or no longer."""
        store = self.harness.store
        if not store.hold:
            self.synced = len(self.bodies)
        store.hold = not store.hold
        self.harness.settle()

    def pause(self) -> None:
        self.stream.pause(paused=not self.stream.paused)
        self.harness.settle()

    def check_point(self) -> None:
        if not self.harness.store.hold:
            self.log.checkpoints.want()
            self.harness.settle()

    def restart(self) -> None:
        """Stop in order: everything is there afterwards."""
        self.harness.store.hold = False
        self.harness.settle()
        self.check()
        first = self.stream.first_offset()
        self._begin(self.harness.restart(clean=True, memory_bytes=self.random.choice(MEMORY_BYTES)))
        rules = self.stream.rules
        if self.seals and (rules.max_length_bytes >= 0 or rules.max_age_ms >= 0):
            # The messages that the last batch has sealed may have made room for retention.
            assert self.stream.first_offset() >= first
            first = self.stream.first_offset()
        assert (self.stream.first_offset(), self.stream.next_offset()) == (first, len(self.bodies))

    def crash(self) -> None:
        """Be killed: messages that were neither confirmed nor seen may be gone, and retention may not have happened."""
        first = self.stream.first_offset()
        self._begin(self.harness.restart(clean=False, memory_bytes=self.random.choice(MEMORY_BYTES)))
        end = self.stream.next_offset()
        assert max(self.confirmed, self.seen) <= end <= len(self.bodies)
        assert self.stream.first_offset() <= first
        del self.bodies[end:]
        del self.times[end:]
        self._confirms_from = end

    # --- claims ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check everything that must hold between two steps."""
        stream = self.stream
        held = self.harness.store.hold
        for received in self.publisher.take():
            assert isinstance(received.method, m.BasicAck)
            self.confirmed = max(self.confirmed, self._confirms_from + received.method.delivery_tag)
        if not held:
            self.synced = len(self.bodies)
            assert self.confirmed == len(self.bodies)
        for reader in self.readers:
            self._check_reader(reader)
            if not held and not stream.paused and len(reader.unacked) < reader.prefetch:
                assert reader.next >= len(self.bodies), f"{reader.next} was not delivered"
        first, end = stream.first_offset(), stream.next_offset()
        assert end == len(self.bodies)
        assert first == 0 or ((self.seals or first % PAGE == 0) and first < end)
        assert stream.ready_count == end - first
        assert stream.ready_bytes == sum(len(body) for body in self.bodies[first:])
        assert stream.unacked_count == sum(len(reader.unacked) for reader in self.readers)
        stream.check_invariants()

    def _check_reader(self, reader: Reader) -> None:
        first = self.stream.first_offset()
        for received in reader.client.deliveries():
            assert received.content is not None and received.content.properties.headers is not None
            offset = decode_table(received.content.properties.headers)[OFFSET]
            assert isinstance(offset, int)
            # Retention may have been quicker: then it continues with the oldest message of that time.
            assert offset == reader.next or (reader.next < offset <= first and (self.seals or offset % PAGE == 0))
            assert offset < self.synced, f"{offset} is not synced"
            assert body_of(received) == self.bodies[offset]
            assert not received.method.redelivered
            reader.next = offset + 1
            reader.unacked.append(received.method.delivery_tag)
            self.seen = max(self.seen, offset + 1)
        assert len(reader.unacked) <= reader.prefetch

    def end(self) -> None:
        """Read everything once more, and give everything back."""
        self.harness.store.hold = False
        self.stream.pause(paused=False)
        self.harness.settle()
        self.check()
        while self.readers:
            self.leave()
        client = self.harness.channel()
        client.call(1, m.BasicQos(0, 60_000, False))
        client.consume("s", "c", arguments={OFFSET: "first"})
        self.readers.append(Reader(client, 60_000, self.stream.first_offset()))
        self.check()
        self.publisher.call(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))
        client.expect(m.BasicCancel)
        assert self.log.resident_bytes == 0
        self.harness.write()
        self.log.check_invariants()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_reader_gets_the_offsets_that_follow_and_what_was_published_there(seed: int) -> None:
    run = Run(seed)
    steps = {
        run.publish: 30,
        run.consume: 15,
        run.answer: 25,
        run.leave: 4,
        run.page_out: 4,
        run.pass_time: 8,
        run.retain: 4,
        run.hold: 8,
        run.pause: 2,
        run.check_point: 2,
        run.restart: 2,
        run.crash: 3,
    }
    for step in run.random.choices(list(steps), list(steps.values()), k=STEPS):
        step()
        run.check()
    run.end()
