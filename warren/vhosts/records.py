"""Values that the broker remembers for a vhost across restarts, besides its topology: small, and known by name.

A value and messages that are stored in the same turn are in one frame of the log: after a crash both are there, or
neither. The commits of staged messages use this, for example (`server.staging.commit_notes`).

1. A name has one value; storing another one replaces the record in its place.
2. Nothing may be stored or forgotten before `is_restoring` is False.
3. Clients cannot see, change or remove these values, and policies do not apply to them. They are deleted with their
   vhost. A value that is stored after that is forgotten at once: it must not reach a later vhost of the same name.

    record of the lane `VHOST_RECORDS`
         0   8  serial number        if damage leaves two records of a name, the larger one is the newer
         8   2  name_bytes
        10      name (UTF-8), value
"""

from __future__ import annotations

from collections.abc import Iterable

from mypy_extensions import i64

from warren.msgstore.log.message_log import MessageLog
from warren.queues.lanes import VHOST_RECORDS
from warren.queues.record_lane import RecordLane


class VhostRecord:
    """A value and the numbers of its record. `number`: its place in the lane; `serial`: stored in the record."""

    def __init__(self, number: i64, serial: i64, value: bytes) -> None:
        self.number: i64 = number
        self.serial: i64 = serial
        self.value = value


class VhostRecords(RecordLane):
    """The records of one vhost."""

    def __init__(self, log: MessageLog, vhost: str) -> None:
        super().__init__(log, vhost, "", VHOST_RECORDS)
        self._records: dict[str, VhostRecord] = {}
        self._free: list[int] = []  # unused numbers below the next number
        self._serial: i64 = 0

    def __len__(self) -> int:
        return len(self._records)

    def maybe_value(self, name: str) -> bytes | None:
        """Return the value remembered under `name`; None: there is nothing."""
        record = self._records.get(name)
        return None if record is None else record.value

    def names(self) -> list[str]:
        """Return all names. There may be very many: the caller should read their values in pieces."""
        return list(self._records)

    def values(self, prefix: str) -> list[tuple[str, bytes]]:
        """Return the names that begin with `prefix`, with their values."""
        return [(name, record.value) for name, record in self._records.items() if name.startswith(prefix)]

    def has_lost_some(self) -> bool:
        """Tell whether values are missing since the start: their records are damaged."""
        return self.lost_count > 0

    def store(self, name: str, value: bytes) -> None:
        """Remember `value` under `name`, in place of an earlier value. The caller settles the turn."""
        assert not self.is_restoring
        if self.is_closed:
            return
        self._serial += 1
        record = self._records.get(name)
        number: i64
        if record is not None:
            number = record.number
        elif self._free:
            number = self._free.pop()
        else:
            number = self.next_number
            self.next_number = number + 1
        raw_name = name.encode()
        head = int(self._serial).to_bytes(8, "big") + len(raw_name).to_bytes(2, "big")
        self.put(number, head + raw_name + value, 0)
        # Not before: that may fail.
        if record is None:
            self._records[name] = VhostRecord(number, self._serial, value)
        else:
            record.value = value
            record.serial = self._serial

    def forget(self, name: str) -> bool:
        """Forget the value under `name`; False when there is nothing. The caller settles the turn."""
        assert not self.is_restoring
        record = self._records.pop(name, None)
        if record is None:
            return False
        self.drop(record.number)
        self._free.append(int(record.number))
        return True

    def found(self, number: i64, body: bytes, time_ms: i64) -> None:
        """Restore a record; of two with the same name, keep the newer one and drop the other."""
        name_end = 10 + int.from_bytes(body[8:10], "big")
        serial: i64 = int.from_bytes(body[:8], "big")
        name = body[10:name_end].decode()
        if serial > self._serial:
            self._serial = serial
        known = self._records.get(name)
        dropped: i64 = -1
        if known is None or known.serial < serial:
            self._records[name] = VhostRecord(number, serial, body[name_end:])
            if known is not None:
                dropped = known.number
        else:
            dropped = number
        if dropped >= 0:
            self.drop(dropped)
            self._free.append(int(dropped))

    def unused(self, numbers: Iterable[int]) -> None:
        self._free.extend(numbers)

    def all_found(self) -> None:
        """Note that everything was read; from now on the smallest free numbers are used first."""
        self._free.reverse()

    def close(self) -> None:
        """Release everything: the vhost is deleted."""
        super().close()
        self.log.reclamation.add_named(self._records, 0)
        self._records = {}
        self._free = []

    def check_invariants(self) -> None:
        """Assert that memory and index agree. For tests."""
        self.check_numbers([int(record.number) for record in self._records.values()])
