"""Streams on a disk whose reads fail from time to time, with kills and stops in between: nothing on it was changed.

1. While reads fail, what a reader gets is right and comes late. Nothing counts as damaged.
2. A start whose log cannot be read is refused, and changes no file. A start that cannot read sealed files serves the
   rest. It is tried on a copy of the disk: messages are published there, and the next start, which reads everything,
   has them and all that were there before.
"""

from __future__ import annotations

from random import Random

from durable_harness import DurableHarness
from engine_harness import publish_frames

from simulation.failing_reads import FailingReads
from simulation.paper_queues import Violation
from simulation.sealing import PLENTY, SHAPE, SealingLife
from warren.amqp import methods as m
from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.streams.stream import Stream


class UnreadSealingLife(SealingLife):
    """A `SealingLife` on such a disk; no power is cut. `refused`: starts that ended; `tolerated`: that did not."""

    def __init__(self, seed: int) -> None:
        self._chooser = Random(seed)
        self.failing = FailingReads(self._chooser)
        self.refused = self.tolerated = 0
        # Retention removes the oldest messages that are known, and those that were not read are older.
        self._retains = self._chooser.random() < 0.4
        self._is_starting = True
        super().__init__(seed, 0)
        self._fs.fails_read = self._fails
        self._is_starting = False

    def _fails(self, path: str, offset: int, length: int) -> bool:
        return not self._is_starting and self.failing(path, offset, length)

    def step(self) -> None:
        """Do something, anything, while reads may fail."""
        if self.failing.kind:
            if self._chooser.random() < 0.3:
                self.failing.heal()
        elif self._chooser.random() < 0.4:
            self.failing.begin()
        super().step()
        self._judge_damage(self.harness)

    def retain(self) -> None:
        """Remove the oldest messages, in some of the lives."""
        if self._retains:
            super().retain()

    def check(self) -> None:
        """Look at the broker when all reads succeed."""
        self.failing.heal()
        super().check()
        self._judge_damage(self.harness)

    def _judge_damage(self, harness: DurableHarness) -> None:
        if harness.broker.log.damage.reports or harness.broker.log.damage.indexes:
            raise Violation(f"a read that failed is taken for damage: {harness.broker.log.damage.reports}")

    def _start(self) -> None:
        self._fs.fails_read = self._fails
        if not self._retains:
            self._try_start()
        self._is_starting = True
        super()._start()
        self._is_starting = False
        if self.harness.sealed_problems:
            raise Violation(f"the start says {self.harness.sealed_problems}")

    def _try_start(self) -> None:
        """Start a copy of the disk while reads fail, and once more when they do not."""
        fs = self._fs.kill9()
        before = fs.contents()
        failing = FailingReads(self._chooser)
        failing.begin()
        only_streams = self._chooser.random() < 0.7
        fs.fails_read = lambda path, offset, length: (
            (path.startswith("streams/") or not only_streams) and failing(path, offset, length)
        )
        catalogue = dict(self.harness._catalogue)
        try:
            found = DurableHarness(fs, catalogue, int(self.log.now_ms), self._memory(), SHAPE)
        except StoreUnreadableError:
            self.refused += 1
            after = fs.contents()
            if any(data != before.get(path, data) for path, data in after.items() if not path.startswith("streams/")):
                raise Violation("a start that was refused has changed a file") from None
            return
        self.tolerated += failing.hits > 0
        found.broker.log.sealed.chunk_messages = self.chunk
        ends = {name: int(found.queue(name).next_offset()) for name in self.known}  # type: ignore[attr-defined]
        client = found.channel()
        client.call(1, m.ConfirmSelect(False))
        more = [b"more %d" % number for number in range(self._chooser.choice((0, self.chunk + 1)))]
        for name in self.known:
            client.feed(b"".join(publish_frames("", name, body) for body in more))
            stream = found.queue(name)
            assert isinstance(stream, Stream)
            stream.messages.sealer.step(stream)
        found.settle()
        fs.fails_read = None
        found.settle()
        self._judge_damage(found)
        found.stop(clean=self._chooser.random() < 0.5)
        again = DurableHarness(fs.kill9(), found._catalogue, int(self.log.now_ms), self._memory(), SHAPE)
        if again.sealed_problems:
            raise Violation(f"the start after reads that failed says {again.sealed_problems}")
        reader = again.channel()
        reader.call(1, m.BasicQos(0, PLENTY, False))
        for name, end in ends.items():
            first = again.queue(name).first_offset()  # type: ignore[attr-defined]
            if more:
                if self._judge_stream(again, reader, name, first, more, end) != end + len(more):
                    raise Violation(f"{name} lost what came while reads failed")
            else:
                self._judge_stream(again, reader, name, first, [])
        self._judge_damage(again)
