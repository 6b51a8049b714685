"""Damage that reads of the message store have found: it is logged, and its segments are kept, or mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warren.msgstore.files.recovery import ADVICE
from warren.msgstore.log.message_log import MessageLog
from warren.server.logs import get_logger
from warren.server.store_workers import Job, MendJob, QuarantineJob

_DAMAGES_LOGGED_MAX: Final = 20

log = get_logger("message_store")


class StoreDamage:
    """The damage that `message_log` reports. `keep_house` has the housekeeper do a job."""

    def __init__(
        self,
        message_log: MessageLog,
        keep_house: Callable[[Job], None],
        clock_ms: Callable[[], int],
        *,
        is_mended: bool,
    ) -> None:
        # Segments of the log in which scrubbing has found damaged frames that are not mended, and when, in ms since
        # 1970.
        self.segments: dict[int, int] = {}
        self._log = message_log
        self._keep_house = keep_house
        self._clock_ms = clock_ms
        self._is_mended = is_mended
        self._quarantined: set[int] = set()

    def tell(self) -> None:
        """Log the new damage, and have the segments kept, and mended if another node may have the bytes."""
        damages = self._log.damage.take()
        for damage in damages[:_DAMAGES_LOGGED_MAX]:
            if damage.queue or damage.sequence_number >= 0:
                log.error(
                    "data of a queue is damaged on disk and not served",
                    vhost=damage.vhost,
                    queue=damage.queue,
                    sequence_number=damage.sequence_number,
                    segment=damage.segment,
                    lsn=damage.lsn,
                )
            else:
                log.error("the message log is damaged on disk", segment=damage.segment, lsn=damage.lsn, advice=ADVICE)
        if len(damages) > _DAMAGES_LOGGED_MAX:
            log.error("further damage on disk", places=len(damages) - _DAMAGES_LOGGED_MAX)
        if not self._is_mended:
            for damage in damages:
                if damage.segment >= 0 and not damage.queue and damage.sequence_number < 0:
                    self.segments.setdefault(int(damage.segment), self._clock_ms())
        hurt = {int(damage.segment) for damage in damages if damage.segment >= 0}  # damage of streams is in other files
        for segment in hurt - self._quarantined:
            self._quarantined.add(segment)
            self._keep_house(QuarantineJob(segment))
        if self._is_mended:
            for damage in damages[:_DAMAGES_LOGGED_MAX]:
                if damage.segment >= 0:
                    self._keep_house(MendJob(damage.segment, damage.lsn))
