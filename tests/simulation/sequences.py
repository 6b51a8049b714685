"""Short sequences of operations, each carried out to its end, for trying all of them.

Faults of stores show within a few operations, if the crash is close to an operation that makes data durable.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Final

from simulation.crashes import Judge
from simulation.machine import Machine
from simulation.paper_queues import Messages, Violation
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.small_store import Shape
from warren.queues.backlog import SHORT_HEAD_MESSAGES
from warren.queues.held_messages import DEAD_LETTERED, RELEASED
from warren.queues.lanes import PARKED

SHAPE: Final = Shape(segment_bytes=1024, page_entries=4)
# With memory always short: no more of a queue is loaded than has to be.
SHORT_SHAPE: Final = Shape(segment_bytes=1024, page_entries=4, memory_bytes=0)
LIMIT: Final = 16


class Sequence:
    """A broker that is led through letters of the alphabet. Crash states are judged during the last one."""

    def __init__(self, judge: Judge, limit: int = LIMIT, fs: SimulatedFileSystem | None = None) -> None:
        self.judge = judge
        self.limit = limit
        self.machine = Machine(fs or SimulatedFileSystem(), judge.messages, judge.shape)
        self._random = Random(0)
        self._restart(self.machine.fs, 0)

    def run(self, letters: str, *, judged: int = 1) -> None:
        """Do what the letters say; judge all crash states from the last `judged` of them on."""
        self._random.seed(letters)
        for at, letter in enumerate(letters):
            if at == len(letters) - judged:
                self.machine.on_crash_point = self._judge
            LETTERS[letter](self)
        if judged:
            self._judge()
        self.machine.on_crash_point = None
        self.machine.check()
        self.machine.check_replay()

    def _judge(self) -> None:
        self.judge.power_cuts(self.machine, self._random.getrandbits(32), self.limit)

    def _restart(self, fs: SimulatedFileSystem, promised: int) -> None:
        recovered = self.judge.judge(self.machine, self.judge.read(fs.kill9()), promised)
        self.machine.fs = fs
        self.machine.start(recovered)

    # --- letters ----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Write what has gathered, and sync it where that was asked for."""
        self.machine.turn(lingered=True)
        self.machine.commit()
        self.machine.turn()

    def publish(self) -> None:
        self._in_queue("a", confirm=True)

    def publish_unconfirmed(self) -> None:
        self._in_queue("a", confirm=False)

    def _in_queue(self, name: str, *, confirm: bool) -> None:
        self.machine.declare(name)
        self.machine.publish([name], confirm=confirm)
        self._write()

    def fan_out(self) -> None:
        self._fan_out(60)

    def big_fan_out(self) -> None:
        self._fan_out(9000)

    def _fan_out(self, body_bytes: int) -> None:
        self.machine.declare("a")
        self.machine.declare("b")
        self.machine.publish(["a", "b"], body_bytes, confirm=True)
        self._write()

    def transient(self) -> None:
        self.machine.declare("a")
        self.machine.publish(["a"], persistent=False)
        self._write()

    def get(self) -> None:
        for name in ("a", "b"):
            if name in self.machine.queues:
                self._get(name)

    def _get(self, name: str) -> None:
        if not self.machine.get(name):
            self.machine.rest()
            self.machine.get(name)

    def ack(self) -> None:
        for tag in self.machine.outstanding_tags()[:1]:
            self.machine.ack(tag)
        self._write()

    def ack_all_for_sure(self) -> None:
        for tag in self.machine.outstanding_tags()[-1:]:
            self.machine.ack(tag, multiple=True)
        self.machine.confirm()
        self._write()

    def requeue(self) -> None:
        for tag in self.machine.outstanding_tags()[-1:]:
            self.machine.requeue(tag, failed=False)

    def purge(self) -> None:
        if "a" in self.machine.queues:
            self.machine.purge("a")
        self._write()

    def delete(self) -> None:
        if "a" in self.machine.queues:
            self.machine.delete("a")
        self._write()

    def transaction(self) -> None:
        self.machine.declare("a")
        self.machine.declare("b")
        self.machine.publish(["a"])
        self.machine.publish(["b"], 300)
        for tag in self.machine.outstanding_tags()[:1]:
            self.machine.ack(tag)
        self.machine.confirm()
        self._write()

    def bodies_ahead(self) -> None:
        """Make a confirmed publish between the portions of a larger batch."""
        self.machine.declare("a")
        self.machine.declare("b")
        self.machine.plan(2, [9000, 20, 8500])
        self.machine.turn()
        self.machine.commit()
        self._in_queue("a", confirm=True)
        self.machine.rest()
        self.machine.publish_planned(["a", "b"])
        self._write()

    def checkpoint(self) -> None:
        self.machine.log.checkpoints.want()
        self.machine.rest()

    def compact(self) -> None:
        self.checkpoint()
        while not self.machine.unread and self.machine.compaction.step(urgent=True) and self.machine.rest():
            pass
        self.checkpoint()

    def ack_while_compacting(self) -> None:
        """Put the copies and an acknowledgement into one batch."""
        self.checkpoint()
        while not self.machine.unread and self.machine.compaction.step(urgent=True):
            self.machine.turn()
            while self.machine.read() or self.machine.finish():
                self.machine.turn()
            if self.machine.failed:
                return
        self.ack()

    def page_out(self) -> None:
        """Publish more than the queue keeps in memory when that is short, transient messages as well."""
        log = self.machine.log
        log.memory_bytes = 0
        log.under_pressure = True
        self.machine.declare("a")
        for n in range(SHORT_HEAD_MESSAGES + 4):
            self.machine.publish(["a"], 0, persistent=n % 8 != 0)
        self._write()
        self.machine.queues["a"].page_out()
        self._write()
        self._write()

    # --- letters about what queues do beyond first in, first out -----------------------------------------------------

    def _declare(self, *names: str) -> None:
        for name in names:
            self.machine.declare(name)

    def expiring(self) -> None:
        """The second one expires before the first."""
        self._declare("e", "l")
        self.machine.publish(["e"], 20)
        self.machine.publish(["e"], 20, expiration_ms=1000, confirm=True)
        self._write()

    def long_expiring(self) -> None:
        """After a restart it is longer than what is loaded of it; some of it expires in the middle."""
        self._declare("e", "l")
        for n in range(9):
            self.machine.publish(["e"], 9000, expiration_ms=1000 if n % 3 else -1)
        self.machine.confirm()
        self._write()

    def counted(self) -> None:
        self._declare("q", "w")
        self.machine.publish(["q"], 20, confirm=True)
        self._write()

    def held(self) -> None:
        self._declare("r")
        self.machine.hold("r", 4000)
        self.machine.hold("r", 2000, confirm=True)
        self._write()

    def priorities(self) -> None:
        self._declare("p", "l")
        self.machine.publish(["p"], 20)
        self.machine.publish(["p"], 20, priority=2, expiration_ms=2000)
        self.machine.publish(["p"], 20, priority=2, confirm=True)
        self._write()

    def too_long(self) -> None:
        self._declare("m", "l")
        for _ in range(4):
            self.machine.publish(["m"], 20)
        self.machine.confirm()
        self._write()

    def at_least_once(self) -> None:
        """The second letter is refused."""
        self._declare("u", "f")
        for _ in range(3):
            self.machine.publish(["u"], 20)
        self.machine.confirm()
        self._write()
        for _ in range(2):
            self._get("u")
        for tag in list(self.machine.paper.queues["u"].unacked):
            self.machine.reject(tag)
        self._write()

    def get_from_all(self) -> None:
        for name in self.machine.queues:
            self._get(name)

    def fail(self) -> None:
        """Give everything back, as what could not be done."""
        for tag in self.machine.outstanding_tags():
            self.machine.requeue(tag, failed=True)
        self._write()

    def reject(self) -> None:
        for tag in self.machine.outstanding_tags():
            self.machine.reject(tag)
        self.machine.confirm()
        self._write()

    def pass_time(self) -> None:
        """Do everything that is due in between."""
        self.machine.pass_time(2500)
        self.machine.rest_in_time()

    def take_held(self) -> None:
        """Dead-letter what is parked, else release what is held."""
        machine = self.machine
        for name in machine.queues:
            machine.take_held(name, DEAD_LETTERED if machine.paper.queues[name].held[PARKED] else RELEASED)
        machine.confirm()
        self._write()

    def drop_held(self) -> None:
        for name in self.machine.queues:
            self.machine.drop_held(name)
        self._write()

    def transaction_of_all(self) -> None:
        """Publish to three queues, acknowledge, reject and give back, in one."""
        self._declare("e", "l", "p", "q", "w")
        machine = self.machine
        machine.publish(["e", "p", "q"], 20)
        machine.publish(["q"], 300, priority=1)
        for n, tag in enumerate(machine.outstanding_tags()):
            (machine.ack, machine.reject, machine.requeue)[n % 3](tag)
        machine.confirm()
        self._write()

    # --- letters about the end of the process -----------------------------------------------------------------------

    def stop_and_start(self) -> None:
        self.machine.stop()
        # After a failed sync the next process would read what is not on the disk.
        if not self.machine.failed:
            self._restart(self.machine.fs.kill9(), self.machine.written)

    def kill_and_start(self) -> None:
        self._restart(self.machine.fs.kill9(), self.machine.written)

    def power_cut(self) -> None:
        """Nothing that was not synced is left."""
        states = list(self.machine.fs.crash_states(0, 2))
        self._restart(states[-1], self.machine.durable)

    def torn_power_cut(self) -> None:
        """Something in between is left."""
        states = list(self.machine.fs.crash_states(self._random.getrandbits(32), self.limit))
        self._restart(self._random.choice(states), self.machine.durable)


LETTERS: Final[dict[str, Callable[[Sequence], None]]] = {
    "p": Sequence.publish,
    "f": Sequence.fan_out,
    "g": Sequence.get,
    "k": Sequence.ack,
    "K": Sequence.ack_all_for_sure,
    "t": Sequence.transaction,
    "c": Sequence.checkpoint,
    "m": Sequence.compact,
    "i": Sequence.kill_and_start,
    "P": Sequence.power_cut,
    # Those above are the small alphabet.
    "A": Sequence.ack_while_compacting,
    "s": Sequence.stop_and_start,
    "u": Sequence.publish_unconfirmed,
    "B": Sequence.big_fan_out,
    "T": Sequence.transient,
    "r": Sequence.requeue,
    "x": Sequence.purge,
    "d": Sequence.delete,
    "o": Sequence.page_out,
    "Q": Sequence.torn_power_cut,
    "a": Sequence.bodies_ahead,
    # And of queues that do more.
    "e": Sequence.expiring,
    "O": Sequence.long_expiring,
    "q": Sequence.counted,
    "h": Sequence.held,
    "y": Sequence.priorities,
    "l": Sequence.too_long,
    "U": Sequence.at_least_once,
    "G": Sequence.get_from_all,
    "n": Sequence.fail,
    "j": Sequence.reject,
    "v": Sequence.pass_time,
    "b": Sequence.take_held,
    "z": Sequence.drop_held,
    "w": Sequence.transaction_of_all,
}
SMALL: Final = "pfgkKtcmiP"
PLAIN_LETTERS: Final = SMALL + "AsuBTrxdoQa"
RULED_LETTERS: Final = "eqhylUGnjvbzwkcmisP"
# The beginnings of sequences: nothing; three segments, a checkpoint and a delivery under way; the same after a restart
# that has written index pages.
SETUPS: Final = ("", "pfptgpc", "ppppspppppg")
# Something of everything: with deliveries under way and letters that nobody took; the same after a restart, with what
# expires in the middle of a queue that is longer than memory.
RULED_SETUPS: Final = ("", "eqhyUGnGjUc", "OhqyUGnGjlQ")


def all_sequences(letters: str, longest: int) -> list[str]:
    """Return every sequence of at most `longest` letters, those with the same beginning next to each other."""
    found = ["".join(word) for length in range(1, longest + 1) for word in product(letters, repeat=length)]
    return sorted(found)


def try_sequences(sequences: list[str], setup: str, limit: int = LIMIT, shape: Shape = SHAPE) -> int:
    """Run each after `setup`; return how many different crash states of the disk were recovered."""
    states = 0
    judge = Judge(Messages(), shape)
    beginning = ""
    for letters in sequences:
        if letters[:1] != beginning:
            # A memory of seen disks helps with sequences that begin alike, and takes space.
            states += judge.states
            judge = Judge(Messages(), shape)
            beginning = letters[:1]
        # The messages are numbered alike in each run, and a number and a size make a message.
        judge.messages = Messages()
        try:
            Sequence(judge, limit).run(setup + letters)
        except AssertionError as error:
            raise Violation(f"after {setup + letters!r}: {error}") from error
    return states + judge.states
