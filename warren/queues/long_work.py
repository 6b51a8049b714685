"""Work over many things: the consumers of a queue, the bindings of an exchange, unacked deliveries.

1. A turn does a bounded number of steps of such work, whatever a peer has asked for. A step is the work for one thing,
   about a microsecond when compiled; work that costs more counts as several.
2. A job begins where it is asked for, so a short one is done at once. The rest of a longer one is done in later turns,
   each job in its turn: a long one does not delay others by more than its share. The steps that others leave go to the
   jobs that need more: one that works beside a thousand that wait for it is not a thousand times slower.
3. Between two turns everything is consistent: a half-done job leaves a legal state, and each job says which.
4. A small job, of `AT_ONCE_STEPS` at most, is always done at once: the bytes that asked for it have paid for it.
5. A job that writes says so (`Job.need`), and waits until it may (``msgstore.log.own_writes``). It tells how much it
   has written (`Steps.wrote`), `BYTES_PER_STEP` being a step, and stops when the batch is full. A waiting job is not
   called before.
6. A job that meets a defect of ours takes no other one with it: it is reported (``defects``), and rests for `REST_MS`
   before it continues, or it ends (`Job.failed`). While it fails again and again, only the first failure is reported.
   The same holds for code that serves several parties in one loop (`LongWork.report`).

The broker owns one `LongWork`; `Broker.end_turn` continues it, and `Broker.has_work` tells whether some is left.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeVar

from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.own_writes import HOLD, NOTHING, WRITES, OwnWrites
from warren.queues.timers import Timer, TimerQueue

TURN_STEPS: Final = 4000
AT_ONCE_STEPS: Final = 64
ALL_STEPS: Final = 1 << 60
BYTES_PER_STEP: Final = 16 << 10
REST_MS: Final = 1000

_Thing = TypeVar("_Thing")


def backwards(things: list[_Thing]) -> list[_Thing]:
    """Reverse `things` for a job that takes them from the end: what it keeps to its end is freed in a single turn."""
    things.reverse()
    return things


class Steps:
    """How many steps are `left`. Each piece of work subtracts its steps; the last one may take it below 0.

    ``room``: how many bytes may be written.
    """

    def __init__(self, left: i64) -> None:
        self.left: i64 = left
        self.room: i64 = ALL_STEPS
        self.put_by: i64 = 0  # the steps that were left at an interruption

    def wrote(self, size: i64) -> None:
        """Count roughly `size` written bytes; have the job stop when there is no more room."""
        self.left -= size // BYTES_PER_STEP
        self.room -= size
        if self.room <= 0:
            self.interrupt()

    def interrupt(self) -> None:
        """Stop the job after this step, although steps are left."""
        if self.left > 0:
            self.put_by = self.left
            self.left = 0

    def resume(self) -> None:
        """Restore the steps that were left at an interruption."""
        self.left += self.put_by
        self.put_by = 0


@mypyc_attr(allow_interpreted_subclasses=True)  # for tests
class Job:
    """Work that can stop after each step."""

    def run(self, steps: Steps) -> bool:
        """Continue until no steps are left; True when all is done."""
        raise AssertionError("overridden")

    def need(self) -> i64:
        """Return what the next step has to wait for: one of the needs of ``msgstore.log.own_writes``."""
        return NOTHING

    def failed(self) -> bool:
        """Give back what it holds after a defect of ours. True: it continues later, and skips what it cannot do.

        It is not called again otherwise.
        """
        return False


class _Rest(Timer):
    """A job that rests after a failure."""

    def __init__(self, work: LongWork, job: Job) -> None:
        super().__init__()
        self._work = work
        self._job = job

    def due(self, now_ms: i64) -> None:
        self._work.resume(self._job)


class LongWork:
    """The unfinished jobs, the next one first. ``turn_steps``: the number of steps in a turn.

    `own`: the conditions that jobs that write wait for; None: they need not wait. ``defects``: those that jobs and
    others have met, for the shell to take. `timers`: of jobs that rest.
    """

    def __init__(self, own: OwnWrites | None = None, timers: TimerQueue | None = None) -> None:
        self.turn_steps: i64 = TURN_STEPS
        self.defects: list[Exception] = []
        self._own = own
        self._timers = TimerQueue() if timers is None else timers
        self._failing: dict[Job, _Rest] = {}  # jobs whose latest call has failed
        self._jobs: deque[Job] = deque()
        self._waiting: list[deque[Job]] = [deque() for _ in range(HOLD + 1)]  # by need
        self._waiting_count: i64 = 0
        self._turn = Steps(TURN_STEPS)  # for jobs that begin in this turn
        self._steps = self._turn  # for a job that begins now: those of this turn, or of the job that begins it

    def __len__(self) -> int:
        return len(self._jobs) + int(self._waiting_count)

    def take_defects(self) -> list[Exception]:
        """Return the defects that were met, for the log."""
        taken = self.defects
        self.defects = []
        return taken

    def report(self, error: Exception) -> None:
        """Report a defect that one of several parties has met; the caller continues with the others."""
        self.defects.append(error)

    def is_due(self) -> bool:
        """Tell whether some job can continue now."""
        if self._jobs:
            return True
        own = self._own
        if own is None:
            return False
        if self._waiting_count > 0:
            for need, waiting in enumerate(self._waiting):
                if waiting and own.may(need):
                    return True
        return len(own.waiters) > 0 and own.may(WRITES)

    def begin(self, job: Job) -> bool:
        """Do `job`, as far as this turn may; True when it is done."""
        steps = self._steps
        if steps.left < AT_ONCE_STEPS:
            steps = Steps(AT_ONCE_STEPS)
        try:
            done = self._go_on(job, steps)
        except Exception as error:
            self._failed(job, error)
            return False
        if not done:
            self._jobs.append(job)
        return done

    def resume(self, job: Job) -> None:
        """Continue a job that has rested."""
        self._jobs.append(job)

    def rest(self, job: Job) -> bool:
        """Continue `job` after a pause; tell whether this is the first failure in a row."""
        rest = self._failing.get(job)
        is_first = rest is None
        if rest is None:
            rest = _Rest(self, job)
            self._failing[job] = rest
        now_ms: i64 = 0 if self._own is None else self._own.now_ms()
        self._timers.at(now_ms + REST_MS, rest)
        return is_first

    def _failed(self, job: Job, error: Exception) -> None:
        if job.failed():
            if not self.rest(job):
                return  # reported already
        else:
            self._failing.pop(job, None)
        self.defects.append(error)

    def _go_on(self, job: Job, steps: Steps) -> bool:
        """Continue a job, as far as it may and the steps go; True when all is done."""
        own = self._own
        if own is None:
            done = job.run(steps)
            steps.resume()
            return done
        while True:
            need: i64 = job.need()
            if not own.may(need):
                return False
            if need in (NOTHING, HOLD):
                done = job.run(steps)
            else:
                room: i64 = steps.room  # of a job that has begun this one
                steps.room = own.room()
                own.begin()
                try:
                    done = job.run(steps)
                finally:
                    own.end()
                    steps.room = room
            if steps.put_by > 0:
                steps.resume()
            if done:
                return True
            if steps.left <= 0 or job.need() == need:
                return False

    def charge(self, steps: i64) -> None:
        """Count side effects of the work under way that cost more than it declares, such as events."""
        self._steps.left -= steps

    def end_turn(self) -> None:
        """Give each job its share of the steps of a turn; jobs that begin in the next turn have all of its steps."""
        turn = self._turn
        turn.left = self.turn_steps
        jobs = self._jobs
        own = self._own
        if own is not None:
            own.given = 0
            if own.waiters:
                own.call_waiters()
            if self._waiting_count > 0:
                for of_need, waiting in enumerate(self._waiting):
                    if waiting and own.may(of_need):
                        self._waiting_count -= len(waiting)
                        jobs.extend(waiting)
                        waiting.clear()
        left: i64 = turn.left
        count: i64 = len(jobs)
        hungry: deque[Job] = deque()  # have used up their shares
        try:
            while left > 0:
                if count == 0:
                    if not hungry:
                        break
                    count = len(hungry)
                    jobs.extendleft(reversed(hungry))
                    hungry.clear()
                share: i64 = left // count
                if share < AT_ONCE_STEPS:
                    share = AT_ONCE_STEPS
                count -= 1
                job = jobs.popleft()
                need: i64 = job.need()
                if need != NOTHING and own is not None and not own.may(need):
                    self._waiting[need].append(job)
                    self._waiting_count += 1
                    left -= 1
                    continue
                steps = Steps(share)
                self._steps = steps
                try:
                    done = self._go_on(job, steps)
                except Exception as error:
                    self._failed(job, error)
                    done = True
                else:
                    if self._failing and job in self._failing:
                        del self._failing[job]
                if not done:
                    if steps.left > 0:
                        jobs.append(job)
                    else:
                        hungry.append(job)
                left -= share - steps.left
        finally:
            jobs.extend(hungry)
        self._steps = turn
