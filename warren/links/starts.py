"""Links begin their attempts, and give up lost connections, one after the other, however many links exist.

Each of these costs a millisecond or more. Vhosts take turns to start links, so a vhost with thousands of links delays
the start of a link of another vhost by one attempt only. If many connections are lost at once, they are given up in the
order in which the losses were noticed.
"""

from __future__ import annotations

from typing import Final

import trio

START_EVERY_S: Final = 0.005
END_EVERY_S: Final = 0.005


class Starts:
    """The links that wait for their start. `run` has to be running."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[trio.Event, None]] = {}  # by vhost; the next first, in both
        self._some = trio.Event()

    async def wait(self, vhost: str) -> None:
        """Wait until an attempt of a link of `vhost` may begin."""
        turn = trio.Event()
        self._lines.setdefault(vhost, {})[turn] = None
        self._some.set()
        try:
            await turn.wait()
        finally:
            line = self._lines.get(vhost, {})
            if turn in line:  # the link was cancelled before its turn came
                del line[turn]
                if not line:
                    del self._lines[vhost]

    async def run(self) -> None:
        """Give turns until cancelled."""
        while True:
            if not self._lines:
                self._some = trio.Event()
                await self._some.wait()
                continue
            vhost = next(iter(self._lines))
            line = self._lines.pop(vhost)
            turn = next(iter(line))
            del line[turn]
            if line:
                self._lines[vhost] = line  # after all others
            turn.set()
            await trio.sleep(START_EVERY_S)


class Ends:
    """Gives turns to lost connections. A connection that is lost alone is given up at once."""

    def __init__(self) -> None:
        self._line = trio.Lock()  # first come, first served; a cancelled link leaves no gap
        self._next_s = 0.0

    async def wait(self) -> None:
        """Wait until the caller's connection may be given up."""
        async with self._line:
            await trio.sleep_until(self._next_s)
            self._next_s = trio.current_time() + END_EVERY_S
