"""The broker's own writes, and their limit: dead letters, returns that are counted, copies for history and the like.

Publishers wait for the disk and for alarms where they are read. Writes of the broker without a publisher wait here: all
of them together have one share of each batch of the log.

    need      waits for                                            used by
    NOTHING   nothing                                              calls that write nothing, or hold the batch open
    PACED     its share of the batch                               returns: their queues hand out nothing meanwhile
    WRITES    that, and for the disk to have more than its floor   dead letters, delayed messages that are due
    ADDS      that, and for memory                                 copies: history, retained messages
    AHEAD     the contents of a large commit to be on the disk     tx.commit, see ``bodies_ahead.py``
    HOLD      a batch that can be held open                        commits and publishes that take several turns

1. A batch has at most `batch_bytes // 2` of this, and one message more. A batch with its share is closed soon, and
   synced: the next one begins with a share of its own. So a confirm waits no longer than without own writes, and half
   of every batch is left for publishers.
2. Waiting moves nothing: a message whose dead letter waits has its old place in the log, and a copy that waits is not
   made. A crash loses only things that are made again, and doubles nothing.
3. PACED and WRITES do not wait for memory: they move existing messages, and queues are paged out. Returns do not wait
   for space on the disk: consumers that should free some would get nothing. They write nothing then
   (`may_store_returns`): a count of deliveries is in memory only.
4. Released messages do not cost much for their bytes but for their queues: after `GIVEN_MAX` of these in a turn, the
   next message waits for another turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog
    from warren.msgstore.log.queue_index import IndexOwner

# This many queues get own messages in a turn; the last message may exceed it.
GIVEN_MAX: Final = 2048

NOTHING: Final = 0
PACED: Final = 1
WRITES: Final = 2
ADDS: Final = 3
AHEAD: Final = 4
HOLD: Final = 5  # not one of the broker's own: it has no share


class OwnWrites:
    """The share of the open batch of `log`. `disk_is_short`, `memory_is_short`: set with the alarms."""

    def __init__(self, log: MessageLog) -> None:
        self.disk_is_short: bool = False
        self.memory_is_short: bool = False
        self._log = log
        self._batch: i64 = 0  # of which `_bytes` are
        self._bytes: i64 = 0
        self._depth: i64 = 0  # writes that began and have not ended: one may lead to another
        self._before: i64 = 0  # the size of the open batch when the first of them began, and its number
        self._begun_in: i64 = 0
        self.waiters: list[IndexOwner] = []  # they want to write, and are called by `call_waiters`
        self.given: i64 = 0  # how many queues publishes of the broker went to in this turn

    def now_ms(self) -> i64:
        """Return the wall time of this turn."""
        return self._log.now_ms

    def may(self, need: i64) -> bool:
        """Tell whether something with this `need` may write now."""
        if need == NOTHING:
            return True
        if need == AHEAD:
            return self._log.ahead_file.is_free()
        if need == HOLD:
            return self._log.holdable_or_close()
        if need >= WRITES and self.disk_is_short:
            return False
        if need >= ADDS and self.memory_is_short:
            return False
        if self.room() > 0:
            return True
        self._close_soon()  # a share may have become smaller since it was written
        return False

    def room(self) -> i64:
        """Return how much more the open batch takes, in bytes."""
        log = self._log
        share: i64 = log.batch_bytes // 2
        return share if self._batch != log.batch.number else share - self._bytes

    def may_give(self) -> bool:
        """Tell whether another message that the broker publishes may go to its queues in this turn, see (4)."""
        return self.given < GIVEN_MAX

    def may_store_returns(self) -> bool:
        """Tell whether there is space for a message to be stored again because it has come back."""
        return not self.disk_is_short

    def begin(self) -> None:
        """Begin to count the bytes of a write. `end` follows."""
        self._depth += 1
        if self._depth > 1:
            return
        batch = self._log.batch
        self._begun_in = batch.number
        self._before = batch.row_bytes

    def end(self) -> None:
        """Count a finished write's part of the open batch, and close the batch when it has its share."""
        self._depth -= 1
        if self._depth > 0:
            return
        log = self._log
        batch = log.batch
        if self._batch != batch.number:
            self._batch = batch.number
            self._bytes = 0
        wrote: i64 = batch.row_bytes
        if self._begun_in == batch.number:
            wrote -= self._before
        self._bytes += wrote
        if self.room() <= 0:
            self._close_soon()

    def _close_soon(self) -> None:
        """Close the open batch, which has its share, and sync it."""
        batch = self._log.batch
        if batch.is_begun and not (batch.is_forced and batch.wants_sync):
            self._log.force()

    def call_when_open(self, waiter: IndexOwner) -> None:
        """Wake `waiter` when something with the need WRITES may write."""
        self.waiters.append(waiter)

    def call_waiters(self) -> None:
        """Call the waiters, if they may write. Those left over when enough was given come first in the next turn."""
        if self.waiters and self.may(WRITES):
            waiters = self.waiters
            self.waiters = []
            called: i64 = 0
            try:
                for waiter in waiters:
                    if not self.may_give():
                        break
                    called += 1
                    waiter.batch_closed()
            finally:
                if called < len(waiters):
                    self.waiters = waiters[called:] + self.waiters
