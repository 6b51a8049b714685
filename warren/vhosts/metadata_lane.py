"""Changes of the metadata in the message log: they become durable there first, and wait for SQL.

    append -> a record in the open batch -> written and synced -> read -> applied to SQL -> settled

    record of the lane `METADATA`, whose number is that of the change: a JSON object in UTF-8
        v         1; a larger one is refused
        change    the kind of change: the name of its class in ``vhosts.metadata``
        ...       its fields: text, numbers and truth values as in JSON, several texts as an array, bytes as
                  hexadecimal digits. A missing field has the default of its class.

1. The changes of a store are numbered over all its lives. SQL remembers up to which number it has all of them
   (`applied`). A change that SQL has is settled, so the live records are those that SQL lacks.
2. Only durable records are read, so SQL is never ahead of the log.
3. A waiting change has an entry of 16 bytes in the index in memory. It is read from the log when SQL is ready for it,
   however long SQL has been away.
4. A number below the end without a record is a lost change. The reader is told, and decides.
5. A damaged record stays, even if SQL has later changes. Only an operator gives it up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, get_args

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.fetch import Fetch
from warren.queues.lanes import METADATA
from warren.queues.record_lane import RecordLane
from warren.vhosts.metadata import MetadataChange

VERSION: Final = 1
# At most this many changes, or this many bytes of them, are read at a time.
READ_MAX: Final = 512
READ_BYTES_MAX: Final = 1 << 20

_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in get_args(MetadataChange)}


def encode_change(change: MetadataChange) -> bytes:
    """Return the record of a change."""
    record: dict[str, object] = {"v": VERSION, "change": type(change).__name__}
    for name in change.__slots__:
        value = getattr(change, name)
        record[name] = value.hex() if isinstance(value, bytes) else value
    return json.dumps(record, separators=(",", ":")).encode()


def decode_change(body: bytes) -> MetadataChange:
    """Return the change of a record.

    Raises:
        ValueError: it was written by another version, or is not a change.
    """
    record: dict[str, Any] = json.loads(body)
    version = record.pop("v", None)
    name = record.pop("change", None)
    kind = _KINDS.get(name)
    if version != VERSION or kind is None:
        raise ValueError(f"a change of the metadata was written by a newer Warren ({name}, version {version})")
    known = {each.name: str(each.type) for each in fields(kind)}
    values: dict[str, object] = {}
    for field, value in record.items():
        if field not in known:
            raise ValueError(f"a change of the metadata was written by a newer Warren ({name}.{field})")
        if known[field] == "bytes":
            values[field] = bytes.fromhex(value)
        elif isinstance(value, list):
            values[field] = tuple(value)
        else:
            values[field] = value
    change: MetadataChange = kind(**values)
    return change


class MetadataLane(RecordLane):
    """The changes that SQL does not have. The numbers below `durable` are on disk, those below `applied` in SQL."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__(log, "", "", METADATA)
        self.durable: i64 = 0
        self.applied: i64 = 0

    def append(self, change: MetadataChange) -> int:
        """Store a change in the open batch; return its number."""
        number: i64 = self.next_number
        self.put(number, encode_change(change), 0)
        self.next_number = number + 1  # only now: a number without a record counts as a lost change
        return int(number)

    def begin(self, applied: int) -> None:
        """Begin at a start: SQL has all changes below `applied`, and recovery may have found others in the log."""
        for index in self.log.indexes.values():
            if index.lane == METADATA:
                index.owner = self
                self.index = index
                self.next_number = index.next_number
        # The changes in SQL were durable in this log once. If the log is an older copy, it continues after them.
        if applied > self.next_number:
            self.next_number = applied
        self.durable = self.next_number
        self.applied = applied
        found = self.index
        if found is not None:
            size = int(found.page_entries)
            numbers: list[int] = []
            for page_number, page in enumerate(found.pages, int(found.first_page)):
                if page is not None:
                    numbers += range(page_number * size, min((page_number + 1) * size, applied))
            if numbers:
                _AppliedRead(self, self.log, found, numbers).begin()

    def drop_applied(self, numbers: list[int], messages: list[Message | None]) -> None:
        """Forget records that SQL already had at the start; damaged ones stay."""
        for number, message in zip(numbers, messages, strict=True):
            if message is not None:
                self.drop(number)

    def is_behind(self) -> bool:
        """Tell whether SQL lacks a durable change."""
        return self.applied < self.durable

    def read(self, done: Callable[[int, list[bytes | None]], None]) -> None:
        """Read the next changes for SQL; `done` gets the number of the first, and their records.

        None stands for a record that is damaged, or was lost before. The caller settles the turn.
        """
        end: i64 = self.applied + READ_MAX
        if end > self.durable:
            end = self.durable
        numbers = [int(number) for number in range(int(self.applied), int(end))]
        index = self.index
        if index is None:
            done(int(self.applied), [None] * len(numbers))
            return
        _ChangesRead(self.log, index, numbers, done).begin()

    def applied_to(self, end: int) -> None:
        """Settle all changes below `end`, which SQL has. The caller settles the turn."""
        index = self.index
        if index is not None:
            self.log.batch.settle_range(index, self.applied, end)
        self.applied = end


class _AppliedRead(Fetch):
    """Reads changes that SQL has and that the log has not forgotten, to find the damaged ones."""

    def __init__(self, lane: MetadataLane, log: MessageLog, index: QueueIndex, numbers: list[int]) -> None:
        super().__init__(log, index, numbers, READ_BYTES_MAX)
        self._lane = lane

    def fetched(self, messages: list[Message | None]) -> None:
        self._lane.drop_applied(self.numbers, messages)
        self.fetch_rest()


class _ChangesRead(Fetch):
    def __init__(
        self,
        log: MessageLog,
        index: QueueIndex,
        numbers: list[int],
        done: Callable[[int, list[bytes | None]], None],
    ) -> None:
        super().__init__(log, index, numbers, READ_BYTES_MAX)
        self._done = done

    def fetched(self, messages: list[Message | None]) -> None:
        self._done(self.numbers[0], [None if message is None else message.body() for message in messages])
