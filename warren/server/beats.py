"""Beats: when what an idle broker does again and again is done, all of it together.

To wake up takes an idle process longer than most of what it then does. Tasks that sleep each for a time of their own
wake it up one by one; those that sleep until a beat do so once.
"""

from __future__ import annotations

from typing import Final

import trio

BEAT_S: Final = 0.5


def beat_after(period_s: float = BEAT_S) -> float:
    """Return when trio's clock shows a multiple of `period_s` next, which is `BEAT_S` times a power of two."""
    return (trio.current_time() // period_s + 1) * period_s


async def next_beat(period_s: float = BEAT_S) -> None:
    """Sleep until then."""
    await trio.sleep_until(beat_after(period_s))
