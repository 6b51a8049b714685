"""A random client of STOMP: on its way through the scenes, in one of the versions."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from engine import Client, Engine
from stomp_harness import StompClient, stomp_client

from .foreign import publish_foreign
from .random_peer import RandomPeer
from .stomp_mutator import StompMutator
from .stomp_scenes import SCENES, StompFrame, bare, connect, declared
from .stomp_transcript import VERSIONS, StompTranscript

if TYPE_CHECKING:
    from .fuzzer import Fuzzer


class RandomStompClient(RandomPeer):
    """One client of STOMP."""

    NAME = "stomp"
    BATCH_FRAMES = 250
    # Whatever is wrong is the end of a connection.
    RATES = (0.01, 0.05, 0.2, 0.9)
    LIVES = (10, 50, 300)

    def __init__(self, fuzzer: Fuzzer, choices: random.Random) -> None:
        super().__init__(fuzzer, choices)
        self.mutator = StompMutator(choices)
        self.transcript = StompTranscript()
        self.version = choices.choice(VERSIONS)
        beats = choices.choice(["0,0", "0,0", "5000,5000", "0,1"])
        self.early = [connect(self.version, beats, choices.choice(["CONNECT", "STOMP"]))]
        self.is_early_valid = choices.random() < 0.9
        self.pending: list[StompFrame] = []
        self._scenes = 0

    @classmethod
    def connect(cls, engine: Engine) -> Client:
        return StompClient(engine).client

    @classmethod
    def witness(cls, engine: Engine) -> None:
        client = stomp_client(engine)
        client.send("SUBSCRIBE", id="w", destination="/topic/witness")
        (came,) = client.send("SEND", b"seen", destination="/topic/witness")
        assert (came.command, came.body) == ("MESSAGE", b"seen"), came
        client.hang_up()

    def behave(self) -> None:
        self.rate = 0.0
        self.is_early_valid = True
        self.pending = declared()
        self.frames_left = len(self.pending) + 1

    # --- what to send -----------------------------------------------------------------------------------------------

    def next_frame(self) -> bytes:
        is_early = len(self.early) > 0
        if is_early:
            frame = self.early.pop()
        else:
            if not self.pending:
                self._choose_scene()
            frame = self._sensible(self.pending.pop(0))
        is_mutated = self.choices.random() < self.rate and not (is_early and self.is_early_valid)
        self.sends(mutated=is_mutated)
        return self.mutator.mutated(frame, self.version) if is_mutated else frame.encode(self.version)

    def _choose_scene(self) -> None:
        choices = self.choices
        self._scenes += 1
        frames = choices.choice(SCENES)(self._scenes)
        match choices.randrange(10):
            case 0:
                frames = frames[: choices.randrange(1, len(frames) + 1)]
            case 1:
                self._scenes += 1
                frames = self._interleaved(frames, choices.choice(SCENES)(self._scenes))
            case 2 if choices.random() < 0.2:
                choices.shuffle(frames)
            case 3 if choices.random() < 0.1:
                frames = [bare("DISCONNECT", ("receipt", f"bye-{self._scenes}"))]
        self.pending = frames

    def _interleaved(self, one: list[StompFrame], other: list[StompFrame]) -> list[StompFrame]:
        sources = [one[:], other[:]]
        mixed: list[StompFrame] = []
        while sources[0] and sources[1]:
            mixed.append(self.choices.choice(sources).pop(0))
        return mixed + sources[0] + sources[1]

    def _sensible(self, frame: StompFrame) -> StompFrame:
        """Answer a delivery; without one, mostly send a heart-beat."""
        if frame.command not in ("ACK", "NACK"):
            return frame
        waiting = self.transcript.unanswered
        if not waiting:
            return frame if self.choices.random() < 0.02 else StompFrame("", [])
        at = self.choices.randrange(min(3, len(waiting)))
        subscription, name = waiting.pop(at)
        if subscription.startswith("c"):  # it was for all that went before, too
            self.transcript.unanswered = [each for each in waiting[at:] if each[0] == subscription] + [
                each for each in waiting if each[0] != subscription
            ]
        if self.version == "1.2":
            return frame._replace(headers=[("id", name), *frame.headers])
        return frame._replace(headers=[("message-id", name), ("subscription", subscription), *frame.headers])

    # --- answers ----------------------------------------------------------------------------------------------------

    def read(self, received: bytes) -> None:
        self.transcript.read(received)

    def react(self) -> None:
        if self.choices.random() < 0.02:
            publish_foreign(self.engine, self.choices, ["plain", "stream", "full"])

    def goodbye(self) -> bytes:
        return bare("DISCONNECT", ("receipt", "bye")).encode(self.version)

    def left(self) -> None:
        for what, count in self.transcript.seen.items():
            self.counts[f"received {what}"] += count
        if self.transcript.error is not None:
            self.counts[f"ERROR {self.transcript.error}"] += 1
