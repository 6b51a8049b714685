"""Random clients that break their frames, several at a time, against one broker that must outlive them all.

What is asked of the broker, for every client and every byte:

1. No exception leaves the engine, and it comes to rest.
2. What the clients receive obeys `transcript`: normal output, or a proper close.
3. A client that is gone leaves nothing: no consumer, exclusive queue, unacked message, no byte of a body.
4. Memory is flat: between batches, with all topology deleted, the process is as small as after the first.

Everything is drawn from the seed. A batch begins with an empty vhost and a generator of its own, so that
``python -m fuzz --seed S --first B``, in tests/, plays batch B again.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from engine import Client, Engine
from peer_frames import USER

from warren.amqp import methods as m
from warren.amqp.codec import decode_method
from warren.amqp.methods import PROTOCOL_HEADER
from warren.vhosts.metadata import PermissionPut

from .mutator import Mutator
from .session import FRAME_MAX_BYTES, SCENES, WireFrame, closed, goodbye, handshake, method, opened, with_larger_frames
from .transcript import Transcript, forget_parsed

BATCH_FRAMES = 1000
CLIENTS_AT_A_TIME = 3
CHANNELS = [1, 2, 3, 2047, 0x7FFF, 0x8000, 0xFFFF]
CHANNELS_PER_CLIENT = 3
# The first batches fill free lists, caches and the interpreter's own tables.
WARM_UP_BATCHES = 5
MEASURE_EVERY_BATCHES = 5


class Memory(NamedTuple):
    """The process between two batches."""

    batch: int
    blocks: int  # allocated by Python
    resident_bytes: int


class FuzzFailure(AssertionError):
    """The broker did what no broker may do. The message says how to see it again."""


class RandomClient:
    """One client on its way through the scenes."""

    def __init__(self, fuzzer: Fuzzer, choices: random.Random) -> None:
        self.engine = fuzzer.engine
        self.counts = fuzzer.counts
        self.digest = fuzzer.digest
        self.choices = choices
        self.mutator = Mutator(choices)
        self.client: Client = self.engine.connect()
        self.transcript = Transcript(self.client.connection.frame_max_bytes)
        # Some clients are nearly good and get far, some are bad from the first frame on.
        self.rate = choices.choice([0.03, 0.1, 0.3, 0.9])
        self.frames_left = choices.choice([5, 50, 300])
        self.frame_max_bytes = choices.choice([FRAME_MAX_BYTES, FRAME_MAX_BYTES, 131072])
        self.pending = handshake(self.frame_max_bytes, choices.choice(["PLAIN", "AMQPLAIN"]))
        self.handshake_frames = len(self.pending) if choices.random() < 0.9 else 0
        self.channels = choices.sample(CHANNELS, CHANNELS_PER_CLIENT)
        self.held_back = self.mutator.protocol_header() if choices.random() < 0.03 else PROTOCOL_HEADER
        self.last_fed = b""
        self.opened: set[int] = set()  # channels for which open was sent, answered or not

    def step(self) -> bool:
        """Send one chunk and look at the answer; False when the client is done."""
        data = self.held_back + b"".join(self._next_frame() for _ in range(self.choices.randint(1, 12)))
        keep = self.choices.randint(0, min(len(data), 200)) if self.choices.random() < 0.3 else 0
        self.held_back = data[len(data) - keep :]
        self.feed(data[: len(data) - keep])
        self._react()
        return not self.client.ended and self.frames_left > 0

    def feed(self, data: bytes) -> None:
        self.last_fed = data
        self.client.connection.feed(data)
        self.engine.settle(commit=self.choices.random() < 0.9)

    def listen(self) -> None:
        """Check what was received so far."""
        self.transcript.frame_max_bytes = self.client.connection.frame_max_bytes
        received = self.client.take()
        self.digest.update(received)
        self.transcript.read(received)

    def finish(self) -> None:
        """Say goodbye or just hang up."""
        if not self.client.ended and self.choices.random() < 0.5:
            self.feed(self.held_back + b"".join(frame.encode() for frame in goodbye()))
        self.engine.wake(self.client)
        self.listen()
        self.transcript.check_at_rest()
        if self.transcript.close_seen is not None:
            self.counts[f"connection.close {self.transcript.close_seen.reply_code}"] += 1
        self.engine.hang_up(self.client)

    # --- what to send ---------------------------------------------------------------------------------------

    def _next_frame(self) -> bytes:
        if not self.pending:
            self._choose_scene()
        frame = self._sensible(self.pending.pop(0))
        self.frames_left -= 1
        self.counts["frames"] += 1
        if self.handshake_frames > 0:
            self.handshake_frames -= 1
            return frame.encode()
        if self.choices.random() >= self.rate:
            return frame.encode()
        self.counts["mutated"] += 1
        data = self.mutator.mutated(frame)
        return data + frame.encode() if self.choices.random() < 0.1 else data

    def _choose_scene(self) -> None:
        channel = self.choices.choice(self.channels)
        if channel not in self.opened and self.choices.random() < 0.99:
            self.opened.add(channel)
            self.pending = opened(channel)
            return
        frames = self.choices.choice(list(SCENES.values()))(channel)
        match self.choices.randrange(8):
            case 0:
                frames = closed(channel)
                self.opened.discard(channel)
            case 1:
                start = self.choices.randrange(len(frames))
                frames = frames[start : start + 5]
            case 2:
                other = self.choices.choice(sorted(self.opened or {channel}))
                frames = self._interleaved(frames, self.choices.choice(list(SCENES.values()))(other))
            case 3:
                self.choices.shuffle(frames)
        self.pending = frames if self.frame_max_bytes == FRAME_MAX_BYTES else with_larger_frames(frames)

    def _interleaved(self, one: list[WireFrame], other: list[WireFrame]) -> list[WireFrame]:
        sources = [one[:], other[:]]
        mixed: list[WireFrame] = []
        while sources[0] and sources[1]:
            mixed.append(self.choices.choice(sources).pop(0))
        return mixed + sources[0] + sources[1]

    def _sensible(self, frame: WireFrame) -> WireFrame:
        """Answer deliveries that were really made: most recorded tags mean nothing here."""
        channel = self.transcript.channels.get(frame.channel)
        if channel is None or frame.type != m.FRAME_METHOD or self.choices.random() < 0.1:
            return frame
        called = decode_method(frame.payload, 0, len(frame.payload))
        if not isinstance(called, m.BasicAck | m.BasicNack | m.BasicReject) or not channel.unacked:
            return frame
        tag = channel.unacked.pop(self.choices.randrange(len(channel.unacked)))
        if not isinstance(called, m.BasicReject) and called.multiple:
            channel.unacked = [other for other in channel.unacked if other > tag]
        return method(frame.channel, called._replace(delivery_tag=tag))

    # --- answers --------------------------------------------------------------------------------------------

    def _react(self) -> None:
        self.listen()
        for number in sorted(self.transcript.closed_channels):
            self.counts["channel.close"] += 1
            self.transcript.closed_channels.discard(number)
            self.pending = [frame for frame in self.pending if frame.channel != number]
            if self.choices.random() < 0.95:
                self.pending = [method(number, m.ChannelCloseOk()), *opened(number), *self.pending]
        if self.transcript.close_seen is not None and not self.client.ended:
            if self.choices.random() < 0.9:
                self.feed(method(0, m.ConnectionCloseOk()).encode())
            self.frames_left = 0


class Fuzzer:
    """Runs batches. `counts` says what the clients have met."""

    def __init__(self, seed: int, first_batch: int = 0) -> None:
        self.seed = seed
        self.batch = first_batch
        self.engine = Engine()
        self.counts: Counter[str] = Counter()
        # Of everything received: the same seed gives the same, compiled or not.
        self.digest = hashlib.sha256()
        self.memory: list[Memory] = []

    def run(self, mutated_frames: int, after_batch: Callable[[Fuzzer], None] | None = None) -> None:
        """Go on until `mutated_frames` broken frames were sent.

        Raises:
            FuzzFailure: see the module's list.
        """
        done = 0
        while self.counts["mutated"] < mutated_frames:
            self._run_batch()
            self.batch += 1
            done += 1
            if done >= WARM_UP_BATCHES and done % MEASURE_EVERY_BATCHES == 0:
                self.memory.append(self._measure())
            if after_batch is not None:
                after_batch(self)

    def _run_batch(self) -> None:
        choices = random.Random(f"{self.seed}/{self.batch}")
        goal = self.counts["mutated"] + BATCH_FRAMES
        clients = [self._well_behaved_client(choices)]
        client: RandomClient | None = None
        try:
            while self.counts["mutated"] < goal or clients:
                if len(clients) < CLIENTS_AT_A_TIME and self.counts["mutated"] < goal:
                    self.counts["connections"] += 1
                    clients.append(RandomClient(self, choices))
                client = choices.choice(clients)
                if not client.step():
                    clients.remove(client)
                    client.finish()
                    self.engine.check_idle()
                self._disturb(choices, clients)
            self.engine.settle()
            self.engine.check_idle()
            self.engine.start_over()
        except Exception as error:
            again = f"python -m fuzz --seed {self.seed} --first {self.batch}"
            last = client.last_fed if client is not None else b""
            raise FuzzFailure(f"{error!r}; again with: {again}; last fed: {last[-400:].hex(' ', 4)}") from error

    def _well_behaved_client(self, choices: random.Random) -> RandomClient:
        """A first client that makes no mistake and declares what the later ones refer to."""
        client = RandomClient(self, choices)
        client.rate = 0.0
        client.held_back = PROTOCOL_HEADER
        client.frames_left = 300
        client.pending += [*opened(9), *SCENES["exchanges"](9), *SCENES["queues"](9)]
        return client

    def _disturb(self, choices: random.Random, clients: list[RandomClient]) -> None:
        """Let the world around the clients move: time, memory alarms, slow readers, administrators."""
        engine = self.engine
        for client in clients:
            if client.client.stalled and choices.random() < 0.2:
                engine.wake(client.client)
            client.listen()
        if engine.broker.alarm_reason and choices.random() < 0.3:
            engine.broker.set_alarm("memory", False)
        if choices.random() > 0.05 or not clients:
            return
        client = choices.choice(clients)
        match choices.randrange(6):
            case 0:
                engine.advance(choices.choice([1.0, 1.0, 10.0, 40.0]))
            case 1:
                engine.broker.set_alarm("memory", True)
            case 2 | 3:
                client.client.stalled = True
            case 4:
                client.client.connection.force_close("the administrator said so")
            case _:
                pattern = choices.choice([".*", ".*", "^q", "^(e|amq)", ""])
                engine.broker.administer(PermissionPut(USER, "/", ".*", ".*", pattern))
        engine.settle()

    def _measure(self) -> Memory:
        forget_parsed()
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return Memory(self.batch, sys.getallocatedblocks(), pages * os.sysconf("SC_PAGE_SIZE"))

    def check_memory(self, growth_blocks_max: int, growth_bytes_max: int) -> None:
        """Compare the last measurement with the first.

        Raises:
            FuzzFailure: the process has grown.
        """
        assert len(self.memory) >= 2, "too few batches to tell"
        first, last = self.memory[0], self.memory[-1]
        if last.blocks - first.blocks > growth_blocks_max:
            raise FuzzFailure(f"memory grows: {first} to {last}, seed {self.seed}")
        if last.resident_bytes - first.resident_bytes > growth_bytes_max:
            raise FuzzFailure(f"resident memory grows: {first} to {last}, seed {self.seed}")
