"""When links may begin an attempt: one after the other, however many of them fail over and over.

An attempt costs a millisecond or more, wherever it ends. Vhosts take turns, so that the links of one that has thousands
delay those of another by one attempt each.
"""

from __future__ import annotations

from typing import Final

import trio

START_EVERY_S: Final = 0.005


class Starts:
    """The links that wait. `run` is to be running."""

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
            if turn in line:  # it is given up
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
                self._lines[vhost] = line  # behind all others
            turn.set()
            await trio.sleep(START_EVERY_S)
