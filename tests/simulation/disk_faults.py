"""Sequences of operations on a disk that fails once, and on one that rots.

After an error a broker either continues and finds its job done later (there was no space), or stops (anything else). In
both cases everything promised before survives a power cut; a job under way was not promised to any client.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from simulation.crashes import Judge, ReadBack, read_back
from simulation.machine import Machine
from simulation.paper_queues import Entry, Messages, Violation
from simulation.sequences import LETTERS, SHAPE, Sequence
from simulation.simulated_file_system import Fault, SimulatedFileSystem
from simulation.small_store import Shape, snapshot_of
from warren.msgstore.files.store_errors import StoreError, StoreFullError
from warren.msgstore.log.checkpoint import CheckpointReader
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES
from warren.msgstore.log.replay import FrameHead

# Read faults differ: unreadable records are reported, and are there again later.
CHANGES: Final = ("create", "write", "truncate", "rename", "mkdir", "unlink", "sync", "sync_directory")
_AFTERWARDS: Final = "pgKc"


@dataclass(slots=True)
class Outcome:
    """The result of one fault. `hit` names the operation, empty when there were fewer."""

    states: int = 0
    hit: str = ""
    stopped: bool = False


class FaultySequence(Sequence):
    """A sequence on a disk that fails once."""

    def __init__(self, judge: Judge, fs: SimulatedFileSystem, limit: int) -> None:
        self.disk = fs
        self.stopped = False
        super().__init__(judge, limit, fs)

    def _restart(self, fs: SimulatedFileSystem, promised: int) -> None:
        try:
            super()._restart(fs, promised)
        except StoreError as error:
            # The process does not start: the next one finds a disk that is well, and what a power cut left.
            self.stopped = not isinstance(error, StoreFullError)
            super()._restart(self._after_power_cut(), self.machine.durable)

    def _after_power_cut(self) -> SimulatedFileSystem:
        states = list(self.machine.fs.crash_states(self._random.getrandbits(32), self.limit))
        return self._random.choice(states)

    def run_to_the_end(self, letters: str) -> None:
        """Do what the letters say, with a restart where the disk makes the broker stop, and some more afterwards."""
        self._random.seed(letters)
        for letter in letters + _AFTERWARDS:
            LETTERS[letter](self)
            self._revive()
            self.machine.check()
        self.machine.rest()
        self._revive()
        if not self.machine.rest():
            raise Violation("the disk is well again, and the broker does not come to rest")
        self._judge()
        self.machine.check_replay()

    def _revive(self) -> None:
        while self.machine.failed:
            self.stopped = True
            self._judge()
            self._restart(self._after_power_cut(), self.machine.durable)


def try_fault(letters: str, fault: Fault, operation: str, nth_call: int, limit: int) -> Outcome:
    """Run `letters` with one fault in them, and judge what power cuts leave then and at the end."""
    fs = SimulatedFileSystem()
    fs.fail(nth_call, fault, operation)
    judge = Judge(Messages(), SHAPE)
    try:
        sequence = FaultySequence(judge, fs, limit)
        sequence.run_to_the_end(letters)
    except AssertionError as error:
        raise Violation(f"{fault.name} in call {nth_call} of {operation} during {letters!r}: {error}") from error
    return Outcome(judge.states, fs.failures[0] if fs.failures else "", sequence.stopped)


class Corruption:
    """A store at rest, everything on the disk, of which single bits and sectors are spoiled one after the other."""

    def __init__(self, letters: str, shape: Shape = SHAPE) -> None:
        self.letters = letters
        self.judge = Judge(Messages(), shape)
        sequence = Sequence(self.judge)
        sequence.run(letters, judged=0)
        self.machine: Machine = sequence.machine
        self.machine.force()
        if not self.machine.rest():
            raise Violation("a healthy disk was in the way")
        self.disk = next(self.machine.fs.crash_states(0, 1))
        self.whole = read_back(self.disk.kill9(), self.judge.messages, shape)
        self.reported = 0
        self.harmless = 0

    def _checkpoint_lsn(self) -> int:
        checkpoint = self.disk.contents().get("checkpoint")
        return CheckpointReader(checkpoint).lsn if checkpoint else 0

    def _claimed(self, first: int, end: int) -> int:
        """Return up to which LSN everything was durable, by the checkpoint and the frames outside of these LSNs."""
        frames = [frame for frame in self.machine.frames if frame.lsn >= end or frame.lsn + len(frame.data) <= first]
        return max([self._checkpoint_lsn(), *(FrameHead(frame.data, 0).durable_lsn for frame in frames)])

    def spoil(self, random: Random) -> None:
        """Spoil a place of the disk that is chosen at random, and judge what becomes of it."""
        contents = self.disk.contents()
        path = random.choice([path for path, data in sorted(contents.items()) if data])
        disk = self.disk.kill9()
        size = len(contents[path])
        if random.random() < 0.2:
            sector = random.randrange((size + 511) // 512)
            disk.zero_sector(path, sector)
            place = f"sector {sector} of {path} is zero"
            first, end = sector * 512, sector * 512 + 512
        else:
            # Most of a preallocated file is empty: more often something that is used.
            used = len(contents[path].rstrip(b"\0"))
            first = random.randrange(used if random.random() < 0.9 and used else size)
            bit = random.randrange(8)
            disk.flip_bit(path, first, bit)
            place = f"bit {bit} of byte {first} of {path} is flipped"
            end = first + 1
        try:
            self._judge(disk, path, first, end)
        except AssertionError as error:
            raise Violation(f"after {self.letters!r}, {place}: {error}") from error

    def _judge(self, disk: SimulatedFileSystem, path: str, first: int, end: int) -> None:
        try:
            found = read_back(disk.kill9(), self.judge.messages, self.judge.shape, spoiled=True)
        except StoreError as error:
            # Without a checkpoint everything hangs on the first segment.
            if path != "checkpoint" and "checkpoint" in self.disk.contents():
                raise Violation(f"corruption in a segment keeps the broker from starting: {error}") from None
            self.reported += 1
            return
        self._judge_served(found)
        if found.damaged:
            self.reported += 1
        else:
            self._judge_silence(found, path, first, end)
            self.harmless += 1
        self._live_on(disk, found)

    def _live_on(self, disk: SimulatedFileSystem, found: ReadBack) -> None:
        """A broker on that disk neither loses what it found, nor what it is given."""
        machine = Machine(disk, self.judge.messages, self.judge.shape)
        machine.spoiled = True
        machine.catalogue = dict(self.machine.catalogue)
        machine.now_ms = 0  # so that nothing is due
        lanes = {key: int(index.lane) for key, index in self.machine.log.indexes.items()}
        stored = {
            key: tuple(Entry(lanes.get(key, 0), n, version, True, True, ms) for n, (version, ms) in enumerate(numbers))
            for key, numbers in found.numbers.items()
        }
        machine.start(snapshot_of(stored))
        for name in ("a", "b", "new"):
            machine.declare(name)
            machine.publish([name], confirm=True)
        for _ in range(2):
            machine.log.checkpoints.want()
            machine.rest()
            while machine.compaction.step(urgent=True):
                machine.rest()
        expected = snapshot_of(machine.stored()).numbers
        machine.stop()
        again = read_back(machine.fs.kill9(), self.judge.messages, self.judge.shape, spoiled=True)
        if again.numbers != expected:
            raise Violation(f"some time later {again.numbers} is left of {expected}")

    def _judge_served(self, found: ReadBack) -> None:
        """Nothing is served that was not published to that queue, and everything in order."""
        for queue_id, numbers in found.numbers.items():
            places = self.machine.ever_in(queue_id)
            strange = set(numbers) - places.keys()
            if strange:
                raise Violation(f"queue {queue_id} serves {strange}, which were never in it")
            if sorted(set(numbers), key=places.__getitem__) != list(numbers):
                raise Violation(f"queue {queue_id} serves {numbers}")

    def _judge_silence(self, found: ReadBack, path: str, first: int, end: int) -> None:
        """Nothing was reported: then nothing is missing, and what was replayed is intact.

        The end of the log may be taken for a torn write, unless a later record says that it was durable.
        """
        same = found.numbers == self.whole.numbers
        if not path.startswith("log/") or first < SEGMENT_HEADER_BYTES:
            raise Violation(f"corruption is passed over: {found.numbers}, not {self.whole.numbers}")
        number = int(path.removeprefix("log/"))
        base_lsn = next(int(s.base_lsn) for s in self.machine.log.segments.segments if s.number == number)
        claimed = self._claimed(base_lsn + first, base_lsn + end)
        for frame in self.machine.frames:
            hit = frame.lsn < base_lsn + end and base_lsn + first < frame.lsn + len(frame.data)
            if hit and frame.lsn < claimed and not (same and frame.lsn < self._checkpoint_lsn()):
                raise Violation(
                    f"corruption at LSN {base_lsn + first} is passed over, and the disk says that it was durable up to "
                    f"{claimed}: {found.numbers}, {self.whole.numbers} before"
                )
