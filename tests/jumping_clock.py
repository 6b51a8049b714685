"""A clock of trio that jumps over every wait, and over no work of a thread.

trio's own jump, `autojump_threshold`, comes after a stated real time in which no task ran: on a busy machine a worker
thread takes longer, and a deadline passes that nobody missed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio
import trio.testing


def run_jumping(test: Callable[[], Awaitable[object]]) -> None:
    """Run `test` on a clock that moves to the next deadline when every task waits and no worker thread is at work."""
    clock = trio.testing.MockClock()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_jump_over_waits, clock)
            await test()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


async def _jump_over_waits(clock: trio.testing.MockClock) -> None:
    while True:
        await trio.testing.wait_all_threads_completed()
        await trio.testing.wait_all_tasks_blocked(0.001)
        jump_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if trio.testing.active_thread_count() == 0 and 0 < jump_s < math.inf:
            clock.jump(jump_s)
