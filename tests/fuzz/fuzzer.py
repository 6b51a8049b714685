"""Random clients that break their frames, several at a time, against one broker that must outlive them all.

The requirements, for every client and every byte:

1. No exception leaves the engine, and it comes to rest.
2. What the clients receive obeys the transcript of their protocol: normal output, or a proper close.
3. A client that is gone leaves nothing behind: consumers, exclusive queues, unacked messages and bytes of bodies go.
4. Memory is flat: between batches, with all topology deleted, the process is as small as after the first.
5. Other clients continue: one that publishes to itself after each batch gets its messages.

Everything is drawn from the seed. A batch begins with an empty vhost and a generator of its own, so that
``python -m fuzz --protocol P --seed S --first B``, in tests/, plays batch B again.
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
from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp.methods import PROTOCOL_HEADER
from warren.channels.ending import force_close
from warren.vhosts.metadata import PermissionPut

from .mutator import Mutator
from .random_peer import RandomPeer
from .session import (
    FRAME_MAX_BYTES,
    SCENES,
    WireFrame,
    closed,
    goodbye,
    handshake,
    method,
    opened,
    publish,
    with_larger_frames,
)
from .transcript import Transcript, forget_parsed

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


class RandomClient(RandomPeer):
    """One client of 0-9-1 on its way through the scenes."""

    NAME = "0-9-1"
    BATCH_FRAMES = 1000

    def __init__(self, fuzzer: Fuzzer, choices: random.Random) -> None:
        super().__init__(fuzzer, choices)
        self.mutator = Mutator(choices)
        self.transcript = Transcript(self.client.connection.login.frame_max_bytes)
        self.frame_max_bytes = choices.choice([FRAME_MAX_BYTES, FRAME_MAX_BYTES, 131072])
        self.pending = handshake(self.frame_max_bytes, choices.choice(["PLAIN", "AMQPLAIN"]))
        self.handshake_frames = len(self.pending) if choices.random() < 0.9 else 0
        self.channels = choices.sample(CHANNELS, CHANNELS_PER_CLIENT)
        self.held_back = self.mutator.protocol_header() if choices.random() < 0.03 else PROTOCOL_HEADER
        self.opened: set[int] = set()  # channels for which open was sent, answered or not

    @classmethod
    def connect(cls, engine: Engine) -> Client:
        return engine.connect()

    @classmethod
    def witness(cls, engine: Engine) -> None:
        client = engine.connect()
        frames = [
            *handshake(),
            *opened(1),
            method(1, m.QueueDeclare(0, "w", False, False, True, False, False, EMPTY_TABLE)),
        ]
        frames += [*publish(1, "", "w", {}, b"seen"), method(1, m.BasicGet(0, "w", True))]
        client.connection.feed(PROTOCOL_HEADER + b"".join(frame.encode() for frame in frames))
        engine.settle()
        assert client.take().endswith(b"seen\xce"), "somebody else was not served"
        engine.hang_up(client)

    def behave(self) -> None:
        self.rate = 0.0
        self.held_back = PROTOCOL_HEADER
        self.frames_left = 300
        self.pending += [*opened(9), *SCENES["exchanges"](9), *SCENES["queues"](9)]

    def read(self, received: bytes) -> None:
        self.transcript.frame_max_bytes = self.client.connection.login.frame_max_bytes
        self.transcript.read(received)

    def goodbye(self) -> bytes:
        return b"".join(frame.encode() for frame in goodbye())

    def left(self) -> None:
        self.transcript.check_at_rest()
        if self.transcript.close_seen is not None:
            self.counts[f"connection.close {self.transcript.close_seen.reply_code}"] += 1

    # --- what to send ---------------------------------------------------------------------------------------

    def next_frame(self) -> bytes:
        if not self.pending:
            self._choose_scene()
        frame = self._sensible(self.pending.pop(0))
        is_mutated = False
        if self.handshake_frames > 0:
            self.handshake_frames -= 1
        else:
            is_mutated = self.choices.random() < self.rate
        self.sends(mutated=is_mutated)
        if not is_mutated:
            return frame.encode()
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

    def react(self) -> None:
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

    def __init__(self, seed: int, first_batch: int = 0, kind: type[RandomPeer] = RandomClient) -> None:
        self.seed = seed
        self.kind = kind
        self.batch = first_batch
        self.engine = Engine()
        self.counts: Counter[str] = Counter()
        # Of everything received: the same seed gives the same, compiled or not.
        self.digest = hashlib.sha256()
        self.memory: list[Memory] = []  # the first measurement and the last

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
                self.memory[1:] = [self._measure()]  # all of them would be what grows
            if after_batch is not None:
                after_batch(self)

    def _run_batch(self) -> None:
        choices = random.Random(f"{self.seed}/{self.batch}")
        goal = self.counts["mutated"] + self.kind.BATCH_FRAMES
        client = self.kind(self, choices)  # a first one declares what the later ones refer to
        client.behave()
        clients: list[RandomPeer] = [client]
        try:
            while self.counts["mutated"] < goal or clients:
                if len(clients) < CLIENTS_AT_A_TIME and self.counts["mutated"] < goal:
                    self.counts["connections"] += 1
                    clients.append(self.kind(self, choices))
                client = choices.choice(clients)
                if not client.step():
                    clients.remove(client)
                    client.finish()
                    self.engine.check_idle()
                self._disturb(choices, clients)
            self.engine.settle()
            self.engine.check_idle()
            self._calm_down()
            self.kind.witness(self.engine)
            self.engine.start_over()
        except Exception as error:
            again = f"python -m fuzz --protocol {self.kind.NAME} --seed {self.seed} --first {self.batch}"
            last = client.last_fed
            raise FuzzFailure(f"{error!r}; again with: {again}; last fed: {last[-400:].hex(' ', 4)}") from error

    def _disturb(self, choices: random.Random, clients: list[RandomPeer]) -> None:
        """Change the world around the clients: time, memory alarms, slow readers, administrators."""
        engine = self.engine
        for client in clients:
            if client.client.stalled and choices.random() < 0.2:
                engine.wake(client.client)
            client.listen()
        if engine.broker.flow.alarm_reason and choices.random() < 0.3:
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
                force_close(client.client.connection, "the administrator said so")
            case _:
                pattern = choices.choice([".*", ".*", "^q", "^(e|amq)", ""])
                engine.broker.administer(PermissionPut(USER, "/", ".*", ".*", pattern))
        engine.settle()

    def _calm_down(self) -> None:
        """Take back what was disturbed: clients no longer wait, and the user has all permissions again."""
        self.engine.broker.set_alarm("memory", False)
        self.engine.broker.administer(PermissionPut(USER, "/", ".*", ".*", ".*"))
        self.engine.settle()

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
