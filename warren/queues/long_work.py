"""Work over many things: the consumers of a queue, the bindings of an exchange, what is out for acknowledgement.

1. A turn does a bounded number of steps of such work, whatever a peer has asked for. A step is the work for one thing,
   about a microsecond when compiled; what costs more counts as several.
2. A job begins where it is asked for, so whatever is short is done at once. What is left of it is done in later turns,
   each job in its turn: a long one does not delay others by more than its share.
3. Between two turns everything is consistent. What is half done is a legal state, and each job says which.
4. What is small, of `AT_ONCE_STEPS` at most, is always done at once: it is paid for by the bytes that asked for it.

The broker owns one `LongWork`; `Broker.end_turn` goes on with it, and `Broker.has_work` tells that some is left.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64, mypyc_attr

TURN_STEPS: Final = 4000
AT_ONCE_STEPS: Final = 64
ALL_STEPS: Final = 1 << 60


class Steps:
    """How many steps are `left`. What takes one counts it down; below 0 is a step that cost more than was left."""

    def __init__(self, left: i64) -> None:
        self.left: i64 = left


@mypyc_attr(allow_interpreted_subclasses=True)  # for tests
class Job:
    """Work that can stop after each step."""

    def go_on(self, steps: Steps) -> bool:
        """Go on until no steps are left; True when all is done."""
        raise AssertionError("overridden")


class LongWork:
    """The jobs that are not done, the one that goes on next first. ``turn_steps``: how many steps a turn has."""

    def __init__(self) -> None:
        self.turn_steps: i64 = TURN_STEPS
        self._jobs: deque[Job] = deque()
        self._turn = Steps(TURN_STEPS)  # for what begins in this turn
        self._steps = self._turn  # for what begins now: those of this turn, or of the job that begins it

    def __len__(self) -> int:
        return len(self._jobs)

    def begin(self, job: Job) -> bool:
        """Do `job`, as far as this turn may; True when it is done."""
        steps = self._steps
        if steps.left < AT_ONCE_STEPS:
            steps = Steps(AT_ONCE_STEPS)
        done = job.go_on(steps)
        if not done:
            self._jobs.append(job)
        return done

    def charge(self, steps: i64) -> None:
        """Count what goes along with the work under way and costs more than that says, such as telling of it."""
        self._steps.left -= steps

    def end_turn(self) -> None:
        """Give each job its share of the steps of a turn, and what begins in the next one all of them."""
        turn = self._turn
        turn.left = self.turn_steps
        jobs = self._jobs
        left: i64 = turn.left
        count: i64 = len(jobs)
        while count > 0 and left > 0:
            share: i64 = left // count
            if share < AT_ONCE_STEPS:
                share = AT_ONCE_STEPS
            count -= 1
            job = jobs.popleft()
            steps = Steps(share)
            self._steps = steps
            if not job.go_on(steps):
                jobs.append(job)
            left -= share - steps.left
        self._steps = turn
