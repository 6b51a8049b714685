"""Watch the memory of the process: block publishers above the watermark, and move messages to disk before that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from warren.channels.broker import Broker
from warren.server.beats import BEAT_S, beat_after
from warren.server.logs import get_logger
from warren.server.paging import Pager
from warren.server.process_memory import resident_bytes, total_memory_bytes
from warren.server.settings import Settings

CHECK_MIN_S: Final = 0.01
SHORT_CHECK_S: Final = 0.2  # until the alarm is over
PAGING_CHECK_S: Final = 0.02  # while messages move to disk
# The most that publishers can send.
FILL_BYTES_PER_S: Final = 2 << 30
# An alarm ends this far below the watermark, so that it does not flap.
CLEAR_SHARE: Final = 0.95

log = get_logger("server")


async def watch_memory(broker: Broker, settings: Settings, settle: Callable[[], None]) -> None:
    """Block publishers, and move messages to disk, while this process takes too much. For ever."""
    total = total_memory_bytes()
    limit = settings.limits.memory_high_watermark.limit_bytes(total)
    pager = Pager(broker, min(settings.store.paging_watermark.limit_bytes(total), limit // 2))
    pause_s = BEAT_S
    while True:
        await trio.sleep_until(min(beat_after(), trio.current_time() + pause_s))
        short = broker.has_alarm("memory")
        resident = resident_bytes()
        if resident > limit and not short:
            log.warning("memory above the watermark", resident_bytes=resident, watermark_bytes=limit)
            broker.set_alarm("memory", True)
            settle()
        elif resident < limit * CLEAR_SHARE and short:
            broker.set_alarm("memory", False)
            settle()
        # The nearer the watermark, the sooner it can be crossed.
        left_s = (limit - resident) / FILL_BYTES_PER_S
        pause_s = SHORT_CHECK_S if left_s < 0 else max(left_s, CHECK_MIN_S)
        if pager.relieve(resident):
            settle()
            pause_s = min(pause_s, PAGING_CHECK_S)
