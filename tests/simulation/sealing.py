"""Streams under power cuts: the whole engine seals, retains and compacts on a disk that is cut off at any moment.

    a, b    streams; messages for the exchange ``both`` are in both of them and in the queue ``q``
    k       a stream that is compacted by its routing keys

1. A message that was confirmed, or seen by a consumer, is there after every power cut with its offset and its body,
   once. Other messages follow without a gap, as they were published.
2. Retention may be undone, and nothing else.
3. A message published to several queues is in all of them or in none.
4. Of a compacted stream the last message of each key is there.
5. A disk after a power cut works as any other: new messages are stored, sealed and found, also after the next cut.
6. `warren store` finds on it the messages that the broker serves, and no error.
"""

from __future__ import annotations

import json
from base64 import b64decode
from random import Random
from typing import Final

from durable_harness import DurableHarness
from engine_harness import Client, body_of, publish_frames

from simulation.paper_queues import Violation
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import Shape
from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.msgstore.log.compaction import Compaction
from warren.msgstore.log.jobs import SealJob
from warren.msgstore.tools.dumping import dump, matching_queues
from warren.msgstore.tools.lines import PROBLEM
from warren.msgstore.tools.log_files import StoreFiles
from warren.msgstore.tools.sealed_streams import read_streams
from warren.msgstore.tools.stored_state import LogReader, recovered
from warren.msgstore.tools.verification import verify
from warren.queues.browse import Cursor, Seen, look
from warren.streams.stream import Stream
from warren.vhosts.metadata import PolicyPut

SHAPE: Final = Shape(segment_bytes=4096, page_entries=4)
OFFSET: Final = "x-stream-offset"
FIRST: Final = encode_table({OFFSET: "first"})
PLENTY: Final = 60_000
LOOKED_INTO: Final = 0.1  # of the disks: the tools read them from the beginning to the end
MEMORY_BYTES: Final = (0, 20_000, 64 << 20)
_CHANGES: Final = ("create", "write", "truncate", "rename", "unlink", "sync", "sync_directory")


class Killed(BaseException):
    """The process is gone, in the middle of what it was doing."""


class Known:
    """The known state of a stream: the body and the key of every offset, and up to where it was promised."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[str] = []
        self.shared: list[bool] = []  # whether it was published to all
        self.promised = 0


class SealingLife:
    """One broker over many lives. `states` is how many disks were judged; there are at most `most`."""

    def __init__(self, seed: int, most: int) -> None:
        self.random = Random(seed)
        self.states = 0
        self.most = most
        self.known = {"a": Known(), "b": Known(), "k": Known()}
        self.chunk = self.random.choice((1, 3, 7))
        self._chance = 0.0
        self._killed_in = 0  # the number of matching changes of the disk until the kill; 0: no kill
        self._killed_at = ""
        self._fs = SimulatedFileSystem()
        self._begin(DurableHarness(self._fs, memory_bytes=self._memory(), shape=SHAPE))
        small: Table = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": self.random.choice((1, 400, 3000))}
        for name in self.known:
            self.publisher.declare(
                name, durable=True, arguments=small | ({"x-cleanup": "compact"} if name == "k" else {})
            )
        self.publisher.declare("q", durable=True)
        self.publisher.call(1, m.ExchangeDeclare(0, "both", "fanout", False, True, False, False, False, bytes(4)))
        self.publisher.call(1, m.ExchangeDeclare(0, "keys", "topic", False, True, False, False, False, bytes(4)))
        for name in ("a", "b", "q"):
            self.publisher.bind(name, "both")
        self.publisher.bind("k", "keys", "#")
        self._fs.on_operation = self._cut
        self._chance = self.random.choice((0.03, 0.1))

    def _memory(self) -> int:
        return self.random.choice(MEMORY_BYTES)

    def _begin(self, harness: DurableHarness) -> None:
        self.harness = harness
        self.log = harness.broker.log
        self.log.sealed.chunk_messages = self.chunk
        self.compaction = Compaction(self.log)
        self._held_seals: list[SealJob] = []
        self._holds_seals = False
        self._run_store = harness.store.run
        harness.store.run = self._run_but_seals  # type: ignore[method-assign]
        self.publisher = harness.channel()
        self.publisher.call(1, m.ConfirmSelect(False))
        self.other = harness.channel()  # without confirms
        self.reader: Client | None = None
        self._unconfirmed: list[list[tuple[str, int]]] = []  # by delivery tag: the places of a publish
        self._tag = 0

    def _run_but_seals(self) -> bool:
        """Make the disk do what it is asked for; chunks may take longer."""
        if self._holds_seals:
            self._held_seals += self.log.seal_jobs
            self.log.seal_jobs.clear()
        elif self._held_seals and not self.harness.store.hold:
            self.log.seal_jobs[:0] = self._held_seals
            self._held_seals.clear()
        return self._run_store()

    # --- steps ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do something, anything."""
        try:
            self._do_something()
        except Killed:
            self._killed_in = 0
            self._go_on(self._fs.kill9())

    def _do_something(self) -> None:
        steps = {
            self.publish: 12,
            self.seal: 4,
            self.linger: 3,
            self.hold: 3,
            self.hold_seals: 3,
            self.retain: 2,
            self.check_point: 2,
            self.compact_log: 3,
            self.read: 2,
            self.pass_time: 2,
            self.page_out: 1,
            self.restart: 1,
            self.lose_power: 2,
            self.be_killed: 2,
        }
        (chosen,) = self.random.choices(list(steps), list(steps.values()))
        chosen()
        self._note_confirms()

    def publish(self) -> None:
        confirmed = self.random.random() < 0.7
        client = self.publisher if confirmed else self.other
        frames = []
        for _ in range(self.random.choice((1, 1, 2, 5, 15))):
            exchange, key, names = self.random.choice(
                (
                    ("", "a", ["a"]),
                    ("", "b", ["b"]),
                    ("both", "", ["a", "b"]),
                    ("keys", f"k{self.random.randrange(4)}", ["k"]),
                )
            )
            places = []
            for name in names:
                known = self.known[name]
                places.append((name, len(known.bodies)))
                known.keys.append(key)
                known.shared.append(exchange == "both")
            body = b"%s %d " % (key.encode(), places[0][1]) + self.random.randbytes(self.random.choice((0, 5, 80, 700)))
            for name in names:
                self.known[name].bodies.append(body)
            mode = self.random.choice((1, 2)) if exchange != "both" else 2
            frames.append(publish_frames(exchange, key, body, properties={"delivery_mode": mode}))
            if confirmed:
                self._unconfirmed.append(places)
        client.feed(b"".join(frames))

    def _note_confirms(self) -> None:
        for received in self.publisher.take():
            assert isinstance(received.method, m.BasicAck), received
            while self._tag < received.method.delivery_tag:
                for name, offset in self._unconfirmed[self._tag]:
                    known = self.known[name]
                    known.promised = max(known.promised, offset + 1)
                self._tag += 1

    def seal(self) -> None:
        """Look at what is synced, as with the next batch."""
        for name in self.known:
            stream = self.stream(name)
            stream.messages.sealer.step(stream)
        self.harness.settle()

    def linger(self) -> None:
        """Write what nobody waits for, without a sync."""
        self.log.close_if_due(lingered=True)
        self.harness.settle()

    def hold(self) -> None:
        """Make the disk slow, or no longer."""
        self.harness.store.hold = not self.harness.store.hold
        self.harness.settle()

    def hold_seals(self) -> None:
        """Make chunks slow, or no longer, while everything else continues."""
        self._holds_seals = not self._holds_seals
        self.harness.settle()

    def retain(self) -> None:
        settings = self.random.choice(
            ({"max-length-bytes": self.random.choice((0, 300, 3000, 1 << 40))}, {"max-age": "3s"})
        )
        self.harness.broker.administer(PolicyPut("/", "p", "[ab]", "streams", 0, json.dumps(settings)))
        self.harness.settle()

    def check_point(self) -> None:
        if not self.harness.store.hold:
            self.log.checkpoints.want()
            self.harness.settle()

    def compact_log(self) -> None:
        for _ in range(5):
            if not self.harness.store.hold and self.compaction.step(urgent=True):
                self.harness.settle()

    def read(self) -> None:
        """Make a reader see the synced messages, and stay or go."""
        if self.reader is None:
            self.reader = self.harness.channel()
            self.reader.call(1, m.BasicQos(0, PLENTY, False))
            for name in self.known:
                self.reader.send(1, m.BasicConsume(0, name, name, False, False, False, True, FIRST))
        for received in self.reader.deliveries():
            assert received.content is not None and received.content.properties.headers is not None
            offset = decode_table(received.content.properties.headers)[OFFSET]
            assert isinstance(offset, int)
            known = self.known[received.method.consumer_tag]
            known.promised = max(known.promised, offset + 1)
            if body_of(received) != known.bodies[offset]:
                raise Violation(f"offset {offset} of {received.method.consumer_tag} is another message")
        if self.random.random() < 0.5:
            self.reader.hang_up()
            self.reader = None

    def pass_time(self) -> None:
        self.harness.pass_time(self.random.choice((0.1, 2.0)))

    def page_out(self) -> None:
        self.log.under_pressure = True
        for name in self.known:
            self.stream(name).page_out()
        self.log.force()
        self.harness.settle()
        self.log.under_pressure = False

    def restart(self) -> None:
        """Stop in order: nothing is lost."""
        self.harness.store.hold = self._holds_seals = False
        self.harness.settle()
        self._note_confirms()
        self.harness.stop(clean=True)
        self._start()
        for known in self.known.values():
            known.promised = len(known.bodies)

    def lose_power(self) -> None:
        """Go on with one of the disks that a power cut now may leave."""
        states = list(self._fs.crash_states(self.random.getrandbits(32), 6))
        self._go_on(self.random.choice(states))

    def be_killed(self) -> None:
        """Be killed soon, in the middle of something."""
        self._killed_at = self.random.choice(("", "before sync streams", "before sync_directory streams"))
        self._killed_in = self.random.randrange(1, 4 if self._killed_at else 30)

    def _go_on(self, fs: SimulatedFileSystem) -> None:
        """Start another process on a disk."""
        self._fs = fs
        fs.on_operation = self._cut
        self._start()
        for name, known in self.known.items():
            end = self.stream(name).next_offset()
            if not known.promised <= end <= len(known.bodies):
                raise Violation(f"{name} ends at {end}, promised are {known.promised} of {len(known.bodies)}")
            del known.bodies[end:], known.keys[end:], known.shared[end:]
            known.promised = end

    def _start(self) -> None:
        """Begin the next process on the disk."""
        catalogue, now_ms = dict(self.harness._catalogue), int(self.log.now_ms)
        self._begin(DurableHarness(self._fs, catalogue, now_ms, self._memory(), SHAPE))

    def stream(self, name: str) -> Stream:
        found = self.harness.queue(name)
        assert isinstance(found, Stream)
        return found

    # --- power cuts -------------------------------------------------------------------------------------------------

    def _cut(self, event: str) -> None:
        """Look at some of the disks that a power cut just now may leave; or be killed."""
        if self._killed_in and event.split()[1] in _CHANGES and event.startswith(self._killed_at):
            self._killed_in -= 1
            if self._killed_in == 0:
                raise Killed
        if self.states >= self.most or event.split()[1] not in _CHANGES or self.random.random() > self._chance:
            return
        catalogue = self.harness._catalogue
        firsts = {name: self.stream(name).first_offset() for name in self.known}
        for state in self._fs.crash_states(self.random.getrandbits(32), 4):
            self.states += 1
            try:
                self._judge(state, dict(catalogue), firsts)
            except (Violation, AssertionError) as error:
                raise Violation(f"power cut {event}: {error}") from error

    def _judge(
        self, fs: SimulatedFileSystem, catalogue: dict[tuple[object, ...], object], firsts: dict[str, int]
    ) -> None:
        dumped = _dumped(fs) if self.random.random() < LOOKED_INTO else None
        found = DurableHarness(fs, catalogue, int(self.log.now_ms), self._memory(), SHAPE)
        found.broker.log.sealed.chunk_messages = self.chunk
        if found.sealed_problems:
            raise Violation(f"the start says {found.sealed_problems}")
        if dumped is not None:
            self._judge_dump(found, dumped)
        client = found.channel()
        client.call(1, m.BasicQos(0, PLENTY, False))
        client.call(1, m.ConfirmSelect(False))
        ends = {name: self._judge_stream(found, client, name, firsts[name], []) for name in self.known}
        shared = {name: sum(self.known[name].shared[: ends[name]]) for name in ("a", "b")}
        shared["q"] = int(found.queue("q").message_count)
        if len(set(shared.values())) > 1:
            raise Violation(f"what was published to all is there so often: {shared}")
        # The broker continues.
        more = [b"more %d" % number for number in range(self.chunk + 1)]
        for name in self.known:
            client.feed(b"".join(publish_frames("", name, body) for body in more))
        client.take()
        for name in self.known:
            stream = found.queue(name)
            assert isinstance(stream, Stream)
            stream.messages.sealer.step(stream)
        found.settle()
        firsts = {name: found.queue(name).first_offset() for name in self.known}  # type: ignore[attr-defined]
        for name, end in ends.items():
            if self._judge_stream(found, client, name, firsts[name], more, end) != end + len(more):
                raise Violation(f"{name} does not end behind what came")
        if self.random.random() < 0.3:
            states = list(fs.crash_states(self.random.getrandbits(32), 5))
            again = DurableHarness(self.random.choice(states), catalogue, int(self.log.now_ms), 0, SHAPE)
            reader = again.channel()
            reader.call(1, m.BasicQos(0, PLENTY, False))
            for name, end in ends.items():
                if self._judge_stream(again, reader, name, firsts[name], more, end) != end + len(more):
                    raise Violation(f"{name} lost what came, after another power cut")

    def _judge_dump(self, found: DurableHarness, dumped: dict[str, list[tuple[int, bytes]]]) -> None:
        """Look whether the tools have found what the broker serves; retention may have begun since."""
        for name in self.known:
            stream = found.queue(name)
            assert isinstance(stream, Stream)
            seen = _looked(found, stream)
            if [each for each in dumped.get(name, []) if each[0] >= stream.first_offset()] != seen:
                raise Violation(f"{name}: `warren store` finds {dumped.get(name)}, the broker has {seen}")

    def _judge_stream(
        self, found: DurableHarness, client: Client, name: str, first: int, more: list[bytes], behind: int = 0
    ) -> int:
        """Check that a stream has its messages, with `more` published from offset `behind` on."""
        known, stream = self.known[name], found.queue(name)
        assert isinstance(stream, Stream)
        bodies = known.bodies[:behind] + more if more else known.bodies
        keys = known.keys[:behind] + [name] * len(more) if more else known.keys
        promised = len(bodies) if more else known.promised
        begin, end = stream.first_offset(), stream.next_offset()
        if not promised <= end <= len(bodies):
            raise Violation(f"{name} ends at {end}, promised are {promised} of {len(bodies)}")
        keeps_all = stream.rules.max_length_bytes < 0 and stream.rules.max_age_ms < 0
        if begin > first and keeps_all:
            raise Violation(f"{name} begins at {begin}, not at {first}")
        last = {key: offset for offset, key in enumerate(keys[:end])}
        for kind, messages in (("reads", _read(client, name)), ("looks", _looked(found, stream))):
            offsets = [offset for offset, _ in messages]
            if any(offset >= len(bodies) or bodies[offset] != body for offset, body in messages):
                raise Violation(f"{name}: who {kind} finds other messages")
            if name == "k":
                if offsets != sorted(set(offsets)) or not set(last.values()) <= set(offsets):
                    raise Violation(f"{name}: who {kind} finds {offsets}; the last of each key are {last}")
            else:
                # Retention may be at work meanwhile.
                oldest = offsets[0] if offsets else end
                if not begin <= oldest <= stream.first_offset() or offsets != list(range(oldest, end)):
                    raise Violation(f"{name}: who {kind} finds {offsets} of {begin} to {end}")
        begin = stream.first_offset()
        if name != "k" and (stream.message_count, stream.ready_bytes) != (
            end - begin,
            sum(map(len, bodies[begin:end])),
        ):
            raise Violation(f"{name} counts {stream.message_count} messages with {stream.ready_bytes} bytes")
        stream.check_invariants()
        return end

    def check(self) -> None:
        """Look at the broker as it is."""
        self._killed_in = 0
        self.harness.store.hold = self._holds_seals = False
        self.harness.settle()
        self._note_confirms()
        client = self.harness.channel()
        client.call(1, m.BasicQos(0, PLENTY, False))
        for name in self.known:
            end = self._judge_stream(self.harness, client, name, self.stream(name).first_offset(), [])
            assert end == len(self.known[name].bodies)


def _dumped(fs: SimulatedFileSystem) -> dict[str, list[tuple[int, bytes]]]:
    """Return what `warren store dump-queue` would print, by queue; a power cut is nothing that `verify` minds."""
    files = StoreFiles(fs)
    problems = [line for line in verify(files) if line["type"] == PROBLEM]
    if problems:
        raise Violation(f"`warren store verify` says {problems}")
    found: dict[str, list[tuple[int, bytes]]] = {}
    with LogReader(files) as reader:
        state = recovered(files, reader)
        sealed = read_streams(fs, state.log.store_id)
        for line in dump(state, matching_queues(state, None, None), sealed):
            assert line["type"] == "message", line
            body = str(line["body"]).encode() if "body" in line else b64decode(str(line["body_base64"]))
            number = line["sequence_number"]
            assert isinstance(number, int)
            found.setdefault(str(line["queue"]), []).append((number, body))
    return found


def _read(client: Client, name: str) -> list[tuple[int, bytes]]:
    """Return the messages that a consumer gets from the first one on."""
    client.send(1, m.BasicConsume(0, name, "c", False, False, False, True, FIRST))
    read = []
    for received in client.deliveries():
        assert received.content is not None and received.content.properties.headers is not None
        offset = decode_table(received.content.properties.headers)[OFFSET]
        assert isinstance(offset, int)
        read.append((offset, body_of(received)))
    client.call(1, m.BasicCancel("c", False))
    client.send(1, m.BasicAck(0, True))
    return read


def _looked(found: DurableHarness, stream: Stream) -> list[tuple[int, bytes]]:
    """Return the messages that browsing shows."""
    seen: list[Seen] = []
    cursor = Cursor()
    while not cursor.ended:
        told: list[list[Seen]] = []
        look(stream, cursor, 5, told.append)
        found.settle()
        (piece,) = told
        seen += piece
    return [(each.place, each.message.body()) for each in seen]
