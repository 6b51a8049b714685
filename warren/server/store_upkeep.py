"""What time asks of the message store: batches close, syncs and checkpoints come, segments are compacted and scrubbed.

The times are those of ``message_store.py`` (5). A task that may fail without harm is restarted (``supervision.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from warren.msgstore.log.compaction import PIECE_BYTES, Compaction
from warren.msgstore.log.message_log import LINGER_S, MessageLog
from warren.msgstore.log.scrub import PIECE_BYTES as SCRUB_PIECE_BYTES
from warren.msgstore.log.scrub import Scrubber
from warren.server.beats import next_beat
from warren.server.disk_space import DiskSpace
from warren.server.settings import StoreSettings
from warren.server.supervision import ESSENTIAL, Supervision
from warren.server.unread_jobs import UnreadJobs

SYNC_WITHIN_S: Final = 1.0
# How long without writes before an unneeded checkpoint is taken, and how often that may happen.
IDLE_S: Final = 1.0
# Between two checkpoints that are taken for another reason than the length of the log.
CHECKPOINT_PAUSE_S: Final = 5.0
# How long unneeded segments wait for a checkpoint while others write, if they are too few to justify one.
DEAD_KEPT_S: Final = 60.0
COMPACTION_IDLE_S: Final = 1.0
# Compaction, the release of pages and scrubbing wait no longer for a read that fails.
READ_FAILS_S: Final = 5.0
# At most this often everything is read again.
SCRUB_EVERY_S: Final = 3600.0
SCRUB_IDLE_S: Final = 5.0

_WATCH_S: Final = SYNC_WITHIN_S / 2
_POLL_S: Final = 0.02


class StoreUpkeep:
    """The tasks of the message store of `message_log`; `settle` lets the engine finish its turn."""

    def __init__(
        self,
        message_log: MessageLog,
        settings: StoreSettings,
        space: DiskSpace,
        unread: UnreadJobs,
        settle: Callable[[], None],
        tasks: Supervision,
    ) -> None:
        self.is_stopping = False
        self._log = message_log
        self._settings = settings
        self._space = space
        self._unread = unread
        self._settle = settle
        self._tasks = tasks
        self._compaction = Compaction(message_log)
        self._opened = trio.Event()
        message_log.on_open = self.on_open

    async def run(self) -> None:
        """Close batches in time, sync, take checkpoints in quiet times, watch the disk, compact, scrub. For ever."""
        async with trio.open_nursery() as nursery:
            keep = self._tasks.keep
            nursery.start_soon(keep, "store linger", self._linger, ESSENTIAL)
            nursery.start_soon(keep, "store sync", self._watch_writes, ESSENTIAL)
            nursery.start_soon(keep, "disk watch", self._space.watch, ESSENTIAL)
            nursery.start_soon(keep, "reads that fail", self._unread.run, ESSENTIAL)
            nursery.start_soon(keep, "compaction", self._compact)
            if self._settings.scrub_bytes_per_s:
                nursery.start_soon(keep, "scrubbing", self._scrub)

    def on_open(self) -> None:
        """Start the time of a batch that has been opened."""
        if not self._opened.is_set():
            self._opened.set()

    async def _linger(self) -> None:
        message_log = self._log
        while True:
            await self._opened.wait()
            await trio.sleep(LINGER_S)
            # Another batch may have been opened meanwhile: then it is written a little early.
            if message_log.in_flight is None:
                self._opened = trio.Event()
                if not message_log.is_idle():
                    message_log.close_if_due(lingered=True)
                    self._settle()

    async def _watch_writes(self) -> None:
        message_log = self._log
        unsynced_lsn = -1  # the last LSN that was still unsynced in the previous round
        last_lsn = -1
        checkpoint_lsn = -1
        quiet_since = checkpoint_s = trio.current_time()
        while True:
            is_covered = message_log.next_lsn <= min(message_log.durable_lsn, message_log.checkpoints.lsn)
            if message_log.is_idle() and is_covered and not message_log.is_reclaiming() and not self._gain_bytes():
                await self._opened.wait()  # all that was written is synced and in a checkpoint
            await trio.sleep(_WATCH_S)
            if self.is_stopping:
                continue
            now = trio.current_time()
            if message_log.next_lsn != last_lsn:
                last_lsn = int(message_log.next_lsn)
                quiet_since = now
            if unsynced_lsn > message_log.durable_lsn:
                message_log.force()
                self._settle()
            unsynced_lsn = int(message_log.written_lsn)
            if message_log.checkpoints.lsn != checkpoint_lsn:
                checkpoint_lsn = int(message_log.checkpoints.lsn)
                checkpoint_s = now
            if now - checkpoint_s < CHECKPOINT_PAUSE_S:
                continue
            is_quiet = now - quiet_since >= IDLE_S
            if (is_quiet and message_log.next_lsn > checkpoint_lsn) or self._gains_space(now - checkpoint_s, is_quiet):
                checkpoint_s = now
                message_log.checkpoints.want()
                self._settle()

    def _gains_space(self, since_s: float, is_quiet: bool) -> bool:
        """Tell whether a checkpoint is worth its cost for the segments that it releases. `since_s`: since the last one.

        Without it a drained backlog would stay on disk until the log has grown by ``store.checkpoint_bytes``. That
        takes weeks if a client publishes only a little every second.
        """
        gain_bytes = self._gain_bytes()
        if is_quiet or since_s >= DEAD_KEPT_S or self._space.is_low:
            return gain_bytes > 0
        return gain_bytes >= self._log.checkpoints.every_bytes

    def _gain_bytes(self) -> int:
        return int(self._log.segments.gain_bytes(self._log.checkpoints.lsn, self._space.is_low))

    async def _compact(self) -> None:
        """Move live data out of sparse segments, a piece at a time."""
        compaction = self._compaction
        doomed = self._log.doomed
        pause_s = PIECE_BYTES / self._settings.compaction_bytes_per_s
        while True:
            if self._unread.failing_s(compaction.reading) >= READ_FAILS_S:
                compaction.leave()
            if self._unread.failing_s(doomed.reading) >= READ_FAILS_S:
                doomed.leave()
                self._settle()
            if self.is_stopping or self._log.is_congested() or self._space.shortages:
                await next_beat(COMPACTION_IDLE_S)
            elif compaction.is_busy():
                await trio.sleep(_POLL_S)
            elif compaction.step(urgent=self._space.is_low):
                self._settle()
                await trio.sleep(pause_s)
            else:
                await next_beat(COMPACTION_IDLE_S)

    async def _scrub(self) -> None:
        """Read sealed data again, a piece at a time, to find corruption that no read has met yet."""
        scrubber = Scrubber(self._log)
        begun_bytes = 0
        passes = 0
        pass_began = trio.current_time()
        while True:
            await trio.sleep(max(begun_bytes, SCRUB_PIECE_BYTES) / self._settings.scrub_bytes_per_s)
            if scrubber.passes > passes:
                passes = int(scrubber.passes)
                await trio.sleep_until(pass_began + SCRUB_EVERY_S)
                pass_began = trio.current_time()
            reading = scrubber.reading
            if reading is not None and not reading.is_left and self._unread.failing_s(reading) >= READ_FAILS_S:
                self._unread.leave(reading)
            begun_bytes = 0 if self.is_stopping else scrubber.step()
            if begun_bytes:
                self._settle()
            elif not scrubber.is_busy():
                await trio.sleep(SCRUB_IDLE_S)  # no sealed data

    def compacted_segments(self) -> int:
        """Return the number of segments emptied since the start."""
        return int(self._compaction.segments_done)

    def moved_bytes(self) -> int:
        """Return the number of bytes copied for that."""
        return int(self._compaction.moved_bytes)
