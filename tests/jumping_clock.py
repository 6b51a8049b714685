"""A clock of trio that jumps over every wait, and over no work of a thread.

trio's own jump, `autojump_threshold`, comes after a stated real time in which no task ran: on a busy machine a worker
thread takes longer, and a deadline passes that nobody missed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio
import trio.testing


def run_jumping(test: Callable[[], Awaitable[object]], is_busy: Callable[[], bool] = lambda: False) -> None:
    """Run `test` on a clock that moves to the next deadline when every task waits and no worker thread is at work.

    `is_busy` tells whether other threads are, which trio does not know. It may not be False before what they have done
    is known to the loop (`run_sync_soon`).
    """
    clock = trio.testing.MockClock()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_jump_over_waits, clock, is_busy)
            await test()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


async def _jump_over_waits(clock: trio.testing.MockClock, is_busy: Callable[[], bool]) -> None:
    while True:
        await trio.testing.wait_all_threads_completed()
        was_busy = is_busy()
        await trio.testing.wait_all_tasks_blocked(0.001)
        jump_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
        at_work = was_busy or is_busy() or trio.testing.active_thread_count() > 0
        if not at_work and 0 < jump_s < math.inf:
            clock.jump(jump_s)
