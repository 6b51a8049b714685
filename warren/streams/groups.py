"""Consumer groups of a stream: the offset that each has reached, by name, remembered across restarts.

A consumer with the argument ``x-group`` begins at the offset of its group; ``x-stream-offset`` counts only for a new
group. Which consumer of a group is served is `streams.group_serving`'s business.

1. Everything below the committed offset was acknowledged or rejected, or passed over by a filter. Messages that were
   delivered and not answered, or that are requeued, are never below it: the next consumer gets them again, flagged
   redelivered if that is in the same life of the broker.
2. The committed offset is stored when the group begins, so that the group gets every message confirmed after that. It
   is stored again `COMMIT_MS` after it has moved, and when the active consumer leaves. After a crash at most the
   messages since the last time are delivered again.
3. A record of the lane `STREAM_GROUPS` is offset, serial number and name, and replaced in its place. The serial
   number tells the newer of two, should damage leave both.
4. A group that has stored nothing and has no consumer is not remembered.
5. Unacked messages, and messages answered after the oldest of them, are at most `BEHIND_MAX` more than the prefetch.
6. A stream has at most `GROUPS_MAX` groups: each is remembered until somebody deletes it.
7. A message flagged redelivered was sent to the group before, in this life of the broker. Only a group that was reset
   to and fro more than `RANGES_MAX` times may also flag messages in gaps between the ranges it was sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TYPE_NAMES, decode_table, find_tag
from warren.amqp.term_text import term_text
from warren.msgstore.log.message_log import MessageLog
from warren.queues.lanes import STREAM_GROUPS
from warren.queues.record_lane import RecordLane

GROUP: Final = "x-group"
COMMIT_MS: Final = 1_000
BEHIND_MAX: Final = 20_000
GROUPS_MAX: Final = 10_000
RANGES_MAX: Final = 64
_NEVER: Final = 1 << 62  # no stream reaches this offset


class Progress:
    """The offsets that a consumer of a group was sent, and which of them it has answered."""

    def __init__(self) -> None:
        self._sent: deque[int] = deque()
        self._answered: set[int] = set()

    def __len__(self) -> int:
        """Return how many were sent since the oldest that is not answered."""
        return len(self._sent)

    def sent(self, offset: int) -> None:
        """Note that this offset was sent; offsets ascend."""
        self._sent.append(offset)

    def answered(self, offset: int) -> None:
        """Note that this offset, which was sent, is acknowledged or rejected."""
        sent = self._sent
        if sent[0] != offset:
            self._answered.add(offset)
            return
        sent.popleft()
        while sent and sent[0] in self._answered:
            self._answered.remove(sent.popleft())

    def committed(self, following: i64) -> i64:
        """Return the offset below which everything is answered, when `following` is the next to be sent."""
        return self._sent[0] if self._sent else following


class SentRanges:
    """Which offsets were sent: ranges that ascend and do not touch."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def add(self, first: int, end: int) -> None:
        """Add the offsets from `first` up to `end`."""
        firsts, ends = self._firsts, self._ends
        # Every range that this one overlaps or touches is merged with it.
        begin = bisect_right(ends, first - 1)
        stop = bisect_right(firsts, end)
        if begin < stop:
            first = min(first, firsts[begin])
            end = max(end, ends[stop - 1])
        firsts[begin:stop] = [first]
        ends[begin:stop] = [end]
        if len(firsts) > RANGES_MAX:
            del firsts[1], ends[0]

    def at(self, offset: i64) -> tuple[int, int]:
        """Return the range that contains `offset`, or else the next one; beyond all offsets without one."""
        found = bisect_right(self._ends, int(offset))
        return (self._firsts[found], self._ends[found]) if found < len(self._ends) else (_NEVER, _NEVER)


class Group:
    """One group. ``committed`` is the offset at which it continues, -1: not known yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed: i64 = -1
        self.committed_ms: i64 = 0  # when that was stored last, 0: never
        self.sent = SentRanges()  # to any consumer, in this life; those of the active one are added when it stops
        self.number: i64 = -1  # of its record, -1: none
        self.stored: i64 = -1  # the offset in that


class Member:
    """A consumer of a group: whether it is the active one, and the offsets it was sent since it began.

    ``again`` is a heap of offsets that it has given back. They come before everything else; then it continues at
    ``resume``. Only answers to deliveries from ``first_tag`` on count. ``instance`` sorts the consumers of a partition:
    those of one connection and channel belong together, older connections come first.
    """

    def __init__(self, group: Group, instance: tuple[int, int, int]) -> None:
        self.group = group
        self.instance = instance
        self.active: bool = False
        self.progress = Progress()
        self.first_tag: i64 = 0
        self.again: list[int] = []
        self.resume: i64 = 0
        self._run_first: i64 = 0
        self._run_end: i64 = 0
        # The range of offsets that the group was sent before and that come next.
        self._seen_first: i64 = 0
        self._seen_end: i64 = 0

    def restart(self, next_tag: i64) -> None:
        """Forget which messages it was sent: it begins again, or is no longer served."""
        if self._run_end > self._run_first:
            self.group.sent.add(int(self._run_first), int(self._run_end))
        self._run_first = self._run_end = 0
        self._seen_first = self._seen_end = 0
        self.progress = Progress()
        self.first_tag = next_tag
        self.again = []

    def sends(self, offset: i64) -> bool:
        """Note that the message at `offset` is sent, not a requeued one; tell whether the group was sent it before."""
        if self._run_end == 0:
            self._run_first = offset
        self._run_end = offset + 1
        self.progress.sent(int(offset))
        if offset >= self._seen_end:
            first, end = self.group.sent.at(offset)
            self._seen_first = first
            self._seen_end = end
        return offset >= self._seen_first

    def has_room(self, prefetch: i64) -> bool:
        """Tell whether it may be sent something: its oldest unanswered message must not be too far back."""
        return len(self.again) > 0 or len(self.progress) < prefetch + BEHIND_MAX


class StreamGroups(RecordLane):
    """The groups of one stream, in the order of their first consumers."""

    def __init__(self, log: MessageLog, vhost: str, name: str, on_found: Callable[[], None]) -> None:
        super().__init__(log, vhost, name, STREAM_GROUPS)
        self._on_found = on_found  # told when everything from before a restart is there
        self.groups: dict[str, Group] = {}
        self._free: list[int] = []  # numbers below the next one
        self._serial: i64 = 0
        self._found: list[tuple[int, int, int, int, str]] = []  # serial, number, offset, time in ms, name

    def group(self, name: str) -> Group:
        """Return the group called `name`, from now on there."""
        group = self.groups.get(name)
        if group is None:
            group = Group(name)
            self.groups[name] = group
        return group

    def store(self, group: Group) -> None:
        """Store how far `group` has come, if that has changed; not before everything stored earlier was found."""
        if self.is_restoring or group.committed < 0 or group.committed == group.stored:
            return
        number: i64 = group.number
        if number >= 0:
            pass  # its record is replaced
        elif self._free:
            number = self._free.pop()
        else:
            number = self.next_number
            self.next_number = number + 1
        self._serial += 1
        words = int(group.committed).to_bytes(8, "big") + int(self._serial).to_bytes(8, "big")
        self.put(number, words + group.name.encode(), self.log.now_ms)
        group.number = number  # not before: that may fail
        group.stored = group.committed
        group.committed_ms = self.log.now_ms

    def forget(self, group: Group) -> None:
        """Forget a group, which has no consumers."""
        del self.groups[group.name]
        if group.number >= 0:
            self.drop(group.number)
            self._free.append(int(group.number))

    def found(self, number: i64, body: bytes, time_ms: i64) -> None:
        """Take a record over."""
        offset = int.from_bytes(body[:8], "big")
        serial = int.from_bytes(body[8:16], "big")
        self._found.append((serial, int(number), offset, int(time_ms), body[16:].decode()))

    def all_found(self) -> None:
        """Restore the groups: everything was read, and the newest record of each counts."""
        found = self._found
        self._found = []
        found.sort(reverse=True)
        taken: set[int] = set()
        for serial, number, offset, time_ms, name in found:
            if serial > self._serial:
                self._serial = serial
            group = self.group(name)
            if group.number >= 0:
                self.drop(number)
                continue
            group.number = number
            group.stored = offset
            taken.add(number)
            if group.committed < 0:  # else it was reset meanwhile
                group.committed = offset
                group.committed_ms = time_ms
        free: i64 = self.next_number - 1
        while free >= 0:
            if int(free) not in taken:
                self._free.append(int(free))
            free -= 1
        self._on_found()

    def close(self) -> None:
        """Release everything: the stream is deleted."""
        super().close()
        self.groups.clear()
        self._free = []
        self._found = []
        # The groups and the stream refer to each other: do not leave them to the cyclic collector.
        self._on_found = _nobody_waits


def group_name_of(queue_name: str, vhost_name: str, encoded: bytes) -> str:
    """Return the group that the arguments of a basic.consume name; ``""``: none.

    Raises:
        ChannelException: 406, it is not a text of 1 to 255 bytes.
    """
    tag = find_tag(encoded, GROUP)
    if not tag:
        return ""
    value = decode_table(encoded)[GROUP]
    if isinstance(value, str) and 0 < len(value.encode()) <= NAME_MAX_BYTES:
        return value
    text = f"invalid arg '{GROUP}' for queue '{queue_name}' in vhost '{vhost_name}': "
    text += f"{{invalid_group,{{{TYPE_NAMES[tag]},{term_text(value)}}}}}"
    raise ChannelException(PRECONDITION_FAILED, text)


def _nobody_waits() -> None:
    """Do nothing, as the listener of a stream that is gone."""
