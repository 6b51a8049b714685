"""Sequences of operations on a disk whose reads fail: once, for a while, or until it heals; all, a file's, a page's.

Nothing on the disk is changed, so nothing may follow from it: while reads fail, what a queue says is right and comes
late, and when they succeed again everything is there. A start in between is refused, or finds what the paper says.
"""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.crashes import Judge
from simulation.paper_queues import Messages, Violation
from simulation.sequences import LETTERS, SHORT_SHAPE, Sequence
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import Shape, open_store
from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES

KINDS: Final = ("once", "for a while", "all", "one file", "one page")
PAGE_BYTES: Final = 256


class FailingReads:
    """Tells which reads fail. `hits`: how many have."""

    def __init__(self, random: Random) -> None:
        self.kind = ""
        self.hits = 0
        self._random = random
        self._left = 0
        self._place: tuple[str, int] | None = None  # of what is sticky: the first that is read

    def begin(self) -> None:
        """Make reads fail from now on, in a way that is chosen."""
        self.kind = self._random.choice(KINDS)
        self._left = 1 if self.kind == "once" else self._random.randint(2, 6)
        self._place = None

    def heal(self) -> None:
        """Make all reads succeed."""
        self.kind = ""

    def __call__(self, path: str, offset: int, length: int) -> bool:
        if not self.kind:
            return False
        if self.kind in ("once", "for a while"):
            self._left -= 1
            fails = self._left >= 0
        elif self.kind == "all":
            fails = True
        else:
            if self._place is None:
                self._place = path, offset + self._random.randrange(length)
            first, at = self._place
            fails = path == first and (self.kind == "one file" or offset - PAGE_BYTES < at < offset + length)
        self.hits += fails
        return fails


class _BehindTheHeader:
    """Fails all reads of a segment but that of its header."""

    def __init__(self, path: str) -> None:
        self.hits = 0
        self._path = path

    def __call__(self, path: str, offset: int, length: int) -> bool:
        fails = path == self._path and offset + length > SEGMENT_HEADER_BYTES
        self.hits += fails
        return fails


class UnreadSequence(Sequence):
    """A sequence on such a disk."""

    def __init__(self, judge: Judge, limit: int, seed: int) -> None:
        self.refused = 0
        self._chooser = Random(seed)
        self.failing = FailingReads(self._chooser)
        super().__init__(judge, limit)
        self.machine.fails_read = self.failing

    def _restart(self, fs: SimulatedFileSystem, promised: int) -> None:
        """Start, and see before what a start makes of a disk whose reads fail."""
        if self.failing.kind:
            self._start_refused(fs, self.failing)
        segments = [path for path in sorted(fs.contents()) if path.startswith("log/0")]
        for path in segments[-2:]:
            self._start_refused(fs, _BehindTheHeader(path))
        super()._restart(fs, promised)

    def _start_refused(self, fs: SimulatedFileSystem, failing: FailingReads | _BehindTheHeader) -> None:
        disk = fs.kill9()
        before = disk.contents()
        disk.fails_read = failing
        hits = failing.hits
        try:
            open_store(disk, self.judge.shape)
            if failing.hits != hits:
                raise Violation("a start passes over a read that failed")
        except StoreUnreadableError:
            self.refused += 1
            after = {path: data for path, data in disk.contents().items() if path in before}
            if after != before:
                raise Violation("a start that was refused has changed a file") from None

    def run_to_the_end(self, letters: str) -> None:
        """Do what the letters say while reads fail from time to time; then all of them succeed, and all is there."""
        self._random.seed(letters)
        for letter in letters:
            if self.failing.kind:
                if self._chooser.random() < 0.3:
                    self.failing.heal()
            elif self._chooser.random() < 0.5:
                self.failing.begin()
            LETTERS[letter](self)
            self.machine.read_again()
            self.machine.check()
        self.failing.heal()
        self.machine.read_again()
        if not self.machine.rest():
            raise Violation("all reads succeed, and the broker does not come to rest")
        if self.machine.log.damage.reports or self.machine.log.damage.indexes:
            raise Violation("a read that failed is taken for damage")
        self._judge()
        self.machine.check()
        self.machine.check_replay()
        for name in list(self.machine.queues):
            while self.machine.paper.queues[name].ready:
                self._get(name)
        self.machine.check()


def try_reads(letters: str, seed: int, shape: Shape = SHORT_SHAPE) -> tuple[int, int]:
    """Run `letters`; return how many reads have failed, and how many starts were refused."""
    sequence = UnreadSequence(Judge(Messages(), shape), 4, seed)
    try:
        sequence.run_to_the_end(letters)
    except AssertionError as error:
        raise Violation(f"reads that fail, seed {seed}, during {letters!r}: {error}") from error
    return sequence.failing.hits, sequence.refused
