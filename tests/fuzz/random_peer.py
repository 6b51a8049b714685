"""One client on its way through frames of its protocol, some of which it breaks; the fuzzer plays several of them.

A protocol derives from `RandomPeer`, and adds the next frames to send, the frames that may be received, and how a
client continues after a refusal. Everything is drawn from the generator that is handed in.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, ClassVar

from engine import Client, Engine

if TYPE_CHECKING:
    from .fuzzer import Fuzzer


class RandomPeer:
    """One client. `held_back`: frames that it has made and not sent yet; `rate`: of the frames that it breaks."""

    NAME: ClassVar[str]  # of the protocol, for playing a batch again
    BATCH_FRAMES: ClassVar[int]  # how many of them are broken in a batch
    RATES: ClassVar[tuple[float, ...]] = (0.03, 0.1, 0.3, 0.9)
    LIVES: ClassVar[tuple[int, ...]] = (5, 50, 300)

    def __init__(self, fuzzer: Fuzzer, choices: random.Random) -> None:
        self.engine = fuzzer.engine
        self.counts = fuzzer.counts
        self.digest = fuzzer.digest
        self.choices = choices
        self.client: Client = self.connect(self.engine)
        # Some clients are nearly good and get far, some are bad from the first frame on.
        self.rate = choices.choice(self.RATES)
        self.frames_left = choices.choice(self.LIVES)
        self.held_back = b""
        self.last_fed = b""

    # --- what a protocol overrides ----------------------------------------------------------------------------------

    @classmethod
    def connect(cls, engine: Engine) -> Client:
        """Accept a connection."""
        raise AssertionError("overridden")

    @classmethod
    def witness(cls, engine: Engine) -> None:
        """Check that another client, which publishes to itself, gets its messages."""
        raise AssertionError("overridden")

    def behave(self) -> None:
        """Make no mistake, and declare what others refer to."""
        raise AssertionError("overridden")

    def next_frame(self) -> bytes:
        """Return what is sent next."""
        raise AssertionError("overridden")

    def goodbye(self) -> bytes:
        """Return what says that the client leaves."""
        raise AssertionError("overridden")

    def read(self, received: bytes) -> None:
        """Check what was received.

        Raises:
            AssertionError: no broker may send it.
        """
        raise AssertionError("overridden")

    def react(self) -> None:
        """Go on after what was received."""

    def left(self) -> None:
        """Check all that was received, at the end."""

    # --- what all do ------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Send one chunk and look at the answer; False when the client is done."""
        data = self.held_back + b"".join(self.next_frame() for _ in range(self.choices.randint(1, 12)))
        keep = self.choices.randint(0, min(len(data), 200)) if self.choices.random() < 0.3 else 0
        self.held_back = data[len(data) - keep :]
        self.feed(data[: len(data) - keep])
        self.listen()
        self.react()
        return not self.client.ended and self.frames_left > 0

    def feed(self, data: bytes) -> None:
        self.last_fed = data
        self.client.connection.feed(data)
        self.engine.settle(commit=self.choices.random() < 0.9)

    def listen(self) -> None:
        """Check what was received so far."""
        received = self.client.take()
        self.digest.update(received)
        self.read(received)

    def finish(self) -> None:
        """Say goodbye or just hang up."""
        if not self.client.ended and self.choices.random() < 0.5:
            self.feed(self.held_back + self.goodbye())
        self.engine.wake(self.client)
        self.listen()
        self.left()
        self.engine.hang_up(self.client)

    def sends(self, *, mutated: bool) -> None:
        """Count a frame."""
        self.frames_left -= 1
        self.counts["frames"] += 1
        if mutated:
            self.counts["mutated"] += 1
