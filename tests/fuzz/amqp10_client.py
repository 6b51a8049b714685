"""A random client of AMQP 1.0: on its way through the scenes, with sessions that it begins, and ends, at any time."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, cast

from amqp10_harness import Amqp10Client, amqp10_client, message
from engine import Client, Engine

from warren.amqp10.peer import Amqp10Peer
from warren.amqp10.performatives import (
    AMQP_HEADER,
    ATTACH,
    DETACH,
    DISPOSITION,
    FLOW,
    SASL_HEADER,
    TRANSFER,
)
from warren.amqp10.values import UInt

from .amqp10_mutator import Amqp10Mutator
from .amqp10_scenes import HANDLES, QUEUES, SCENES, Wire, begin, close, declared, detach, end, opening, sasl
from .amqp10_transcript import SILENT, Amqp10Transcript
from .foreign import publish_foreign
from .random_peer import RandomPeer

if TYPE_CHECKING:
    from .fuzzer import Fuzzer

CHANNELS = (0, 1, 2, 63)
# Frames for a peer that takes less than 4096 bytes may be cut into many transfers.
FRAME_SIZES = (512, 4096, 131072)
FIRST_IDS = (0, 0, 5, 0xFFFFFFF0)


class RandomAmqp10Client(RandomPeer):
    """One client of AMQP 1.0."""

    NAME = "amqp10"
    BATCH_FRAMES = 250
    RATES = (0.03, 0.1, 0.3, 0.9)
    LIVES = (10, 50, 300)

    def __init__(self, fuzzer: Fuzzer, choices: random.Random) -> None:
        super().__init__(fuzzer, choices)
        self.peer = cast(Amqp10Peer, self.client.connection)
        self.mutator = Amqp10Mutator(choices)
        self.transcript = Amqp10Transcript()
        idle_ms = choices.choice([None, 5000, 60_000])
        self.early: list[Wire] = [sasl(), opening(choices.choice(FRAME_SIZES), idle_ms)]
        self.is_early_valid = choices.random() < 0.9
        self.pending: list[Wire] = []
        self.channels = choices.sample(CHANNELS, 2)
        self.begun: set[int] = set()  # sessions for which begin was sent, answered or not
        self.next_ids: dict[int, int] = {}
        self.held_back = self.mutator.protocol_header() if choices.random() < 0.03 else SASL_HEADER

    @classmethod
    def connect(cls, engine: Engine) -> Client:
        return Amqp10Client(engine).client

    @classmethod
    def witness(cls, engine: Engine) -> None:
        client = amqp10_client(engine)
        (attached,) = client.receiver(0, None, dynamic=True)
        source: Any = attached.field(5)
        client.sender(1, source.value[0])
        client.credit(0, 10)
        came = client.transfer(1, message(b"seen"), settled=True)
        assert [each.payload[-4:] for each in came if each.name == "transfer"] == [b"seen"], came
        client.hang_up()

    def behave(self) -> None:
        self.rate = 0.0
        self.is_early_valid = True
        self.held_back = SASL_HEADER
        self.early = [sasl(), opening(131072)]
        self.begun.add(0)
        self.pending = [begin(0), *declared(0)]
        self.frames_left = len(self.pending) + 2

    # --- what to send -----------------------------------------------------------------------------------------------

    def next_frame(self) -> bytes:
        if self.early:
            return self._next_early_frame()
        if not self.pending:
            self._choose_scene()
        wire = self.pending.pop(0)
        if self.choices.random() >= 0.05:
            wire = self._sensible(wire)
        is_mutated = self.choices.random() < self.rate
        self.sends(mutated=is_mutated)
        return self.mutator.mutated(wire) if is_mutated else wire.encode()

    def _next_early_frame(self) -> bytes:
        wire = self.early.pop(0)
        is_mutated = not self.is_early_valid and self.choices.random() < self.rate
        self.sends(mutated=is_mutated)
        data = self.mutator.mutated(wire) if is_mutated else wire.encode()
        return data + AMQP_HEADER if len(self.early) == 1 else data

    def _choose_scene(self) -> None:
        choices = self.choices
        channel = choices.choice(self.channels)
        if channel not in self.begun:
            self.begun.add(channel)
            self.next_ids[channel] = choices.choice(FIRST_IDS)
            self.pending = [begin(channel)]
            return
        handle = self._free_handle(channel)
        if handle is None:
            self.pending = [detach(channel, each) for each in HANDLES]
            return
        frames = choices.choice(SCENES)(channel, handle)
        match choices.randrange(10):
            case 0:
                frames = [end(channel)]
                self.begun.discard(channel)
            case 1 | 2:
                frames = frames[: choices.randrange(1, len(frames) + 1)]
            case 3:
                first = frames[0]
                rest = frames[1:]
                choices.shuffle(rest)
                frames = [first, *rest]
            case 4:
                other = choices.choice(sorted(self.begun))
                spare = self._free_handle(other)
                if spare is not None and (other != channel or abs(spare - handle) > 1):
                    frames = self._interleaved(frames, choices.choice(SCENES)(other, spare))
        self.pending = frames

    def _free_handle(self, channel: int) -> int | None:
        """Return a handle that no link has, nor its neighbour, which a scene may want, too."""
        session = self.transcript.sessions.get(channel)
        used = set(session.links) if session is not None else set()
        free = [
            handle
            for at, handle in enumerate(HANDLES)
            if handle not in used and HANDLES[(at + 1) % len(HANDLES)] not in used
        ]
        return self.choices.choice(free) if free else None

    def _interleaved(self, one: list[Wire], other: list[Wire]) -> list[Wire]:
        sources = [one[:], other[:]]
        mixed: list[Wire] = []
        while sources[0] and sources[1]:
            mixed.append(self.choices.choice(sources).pop(0))
        return mixed + sources[0] + sources[1]

    def _sensible(self, wire: Wire) -> Wire:
        """Put in numbers that mean something: of deliveries that were made, and how many have come."""
        fields = wire.fields[:]
        session = self.transcript.sessions.get(wire.channel)
        if wire.code == TRANSFER and isinstance(fields[1], int):
            number = self.next_ids.get(wire.channel, 0)
            self.next_ids[wire.channel] = (number + 1) & 0xFFFFFFFF
            fields[1] = UInt(number)
        elif session is None:
            return wire
        elif wire.code == FLOW:
            fields[0] = UInt(session.transfers)
            if fields[4] is not None:
                fields[5] = UInt(session.counts.get(fields[4], 0))
        elif wire.code == DISPOSITION and session.unsettled:
            at = self.choices.randrange(min(3, len(session.unsettled)))
            fields[1] = UInt(session.unsettled.pop(at))
            if fields[2] is not None:
                count = self.choices.choice((0, 0, 1, 5, 1000))
                fields[2] = UInt(min(fields[1] + count, session.next_delivery_id))
                session.unsettled = [each for each in session.unsettled if not fields[1] <= each <= fields[2]]
        return wire._replace(fields=fields)

    # --- answers ----------------------------------------------------------------------------------------------------

    def read(self, received: bytes) -> None:
        self.transcript.frame_max_bytes = int(self.peer.peer_frame_bytes)
        self.transcript.read(received)

    def react(self) -> None:
        if self.choices.random() < 0.02:
            publish_foreign(self.engine, self.choices, list(QUEUES))
        transcript = self.transcript
        for channel in sorted(transcript.ended_sessions):
            self.pending = [each for each in self.pending if each.channel != channel]
            self.begun.discard(channel)
            if self.choices.random() < 0.95:
                self.pending.insert(0, end(channel))
        transcript.ended_sessions.clear()
        for channel, handle in sorted(transcript.detached):
            self.pending = [each for each in self.pending if each.channel != channel or not _is_of(each, handle)]
            if self.choices.random() < 0.95:
                self.pending.insert(0, detach(channel, handle))
        transcript.detached.clear()
        if transcript.stage == SILENT and not self.client.ended:
            if self.choices.random() < 0.9:
                self.feed(close().encode())
            self.frames_left = 0

    def goodbye(self) -> bytes:
        return close().encode()

    def left(self) -> None:
        for what, count in self.transcript.seen.items():
            self.counts[f"received {what}"] += count
        condition = self.transcript.close_condition
        if condition is not None:
            self.counts[f"close {condition or 'without an error'}"] += 1


def _is_of(wire: Wire, handle: int) -> bool:
    """Tell whether a frame is of the link with that handle."""
    at = {ATTACH: 1, FLOW: 4, TRANSFER: 0, DETACH: 0}.get(wire.code)
    return at is not None and at < len(wire.fields) and wire.fields[at] == handle
