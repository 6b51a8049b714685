"""Work over HTTP in pieces: the limit for all requests together before everything else has its turn.

    beginning    parse a head, find its user, give a short answer: 1 unit, and 1 for each KiB of the head
    slice        a piece of long work, about `SLICE_S`: `SLICE_UNITS`

1. A round is one pass of trio's loop over what is ready; the reactor has its turn in each. A round has `ROUND_UNITS`,
   and one beginning or slice more at most. Beginnings go first, except for one slice. So a short request does not wait
   for long ones.
2. Work belongs to an account: the address of a peer, or its user as soon as the head is known. Accounts take turns in
   beginnings, and in slices; within an account it is first come, first served. So a client with many requests delays
   the others by one turn at most, however many requests it sends.
3. While nothing waits a beginning has a whole slice: work that is shorter never waits.

The account of a task, and the end of its turn, are variables of its context: the tasks that it starts inherit them.
Work of the broker's own has the account ``""``.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Final

import trio

SLICE_S: Final = 0.001
ROUND_UNITS: Final = 16
SLICE_UNITS: Final = 8
BEGINNING_SHARE: Final = 0.25  # of a slice, until a beginning counts as long work
HEAD_BYTES_PER_UNIT: Final = 1024

_account: Final[ContextVar[str]] = ContextVar("account of the work over HTTP", default="")
_until_s: Final[ContextVar[float]] = ContextVar("until when it has its turn", default=float("-inf"))


def work_for(account: str) -> None:
    """Charge the work of this task from now on to `account`."""
    _account.set(account)


class _Line:
    """Tasks that wait, each with the units that it will take: accounts take turns."""

    def __init__(self) -> None:
        self._accounts: dict[str, dict[trio.lowlevel.Task, int]] = {}  # whose turn is next first

    def __bool__(self) -> bool:
        return bool(self._accounts)

    def has(self, account: str) -> bool:
        """Tell whether some task of `account` waits."""
        return account in self._accounts

    async def wait(self, account: str, units: int) -> None:
        """Wait until `let_one_go` resumes this task."""
        task = trio.lowlevel.current_task()
        own = self._accounts.setdefault(account, {})
        own[task] = units

        def leave(_: object) -> trio.lowlevel.Abort:
            del own[task]
            if not own:
                del self._accounts[account]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)

    def let_one_go(self) -> int:
        """Resume the next task, and return its units."""
        account = next(iter(self._accounts))
        own = self._accounts.pop(account)
        task = next(iter(own))
        units = own.pop(task)
        if own:
            self._accounts[account] = own  # after the others
        trio.lowlevel.reschedule(task)
        return units


class Scheduler:
    """Hands out the turns of one run of trio's loop."""

    def __init__(self) -> None:
        self._beginnings = _Line()
        self._slices = _Line()
        self._left = ROUND_UNITS  # of this round
        self._round_ends = False  # a call of `_next_round` is under way

    async def begin(self, account: str, head_bytes: int = 0) -> None:
        """Begin with a request of `account`, in this round if there is something left of it."""
        units = 1 + head_bytes // HEAD_BYTES_PER_UNIT
        work_for(account)
        self._end_round()
        allowed_s = SLICE_S * BEGINNING_SHARE
        if self._left <= 0 or self._beginnings.has(account):
            await self._beginnings.wait(account, units)
        elif self._left >= SLICE_UNITS and not self._slices:
            self._left -= max(units, SLICE_UNITS)
            allowed_s = SLICE_S
        else:
            self._left -= units
        _until_s.set(time.perf_counter() + allowed_s)

    async def next_turn(self) -> None:
        """Wait for a slice of a later round."""
        self._end_round()
        await self._slices.wait(_account.get(), SLICE_UNITS)
        _until_s.set(time.perf_counter() + SLICE_S)

    def _end_round(self) -> None:
        if not self._round_ends:
            self._round_ends = True
            trio.lowlevel.current_trio_token().run_sync_soon(self._next_round)

    def _next_round(self) -> None:
        self._round_ends = False
        self._left = ROUND_UNITS
        self._let_go(self._beginnings, SLICE_UNITS if self._slices else 0)
        self._let_go(self._slices, 0)
        if self._left < ROUND_UNITS:
            self._end_round()

    def _let_go(self, line: _Line, keep_units: int) -> None:
        while line and self._left > keep_units:
            self._left -= line.let_one_go()


_SCHEDULER: Final[trio.lowlevel.RunVar[Scheduler]] = trio.lowlevel.RunVar("scheduler of HTTP")


def scheduler() -> Scheduler:
    """Return the object that hands out turns in this run of the loop."""
    try:
        return _SCHEDULER.get()
    except LookupError:
        made = Scheduler()
        _SCHEDULER.set(made)
        return made


async def give_way() -> None:
    """Yield to others when the turn of this task is over: call this between small pieces of work."""
    if time.perf_counter() > _until_s.get():
        await scheduler().next_turn()
