"""A journal of the metadata and the log that stores it, on a disk in memory, without a broker."""

from __future__ import annotations

from memory_store import MemoryDisk, memory_log

from warren.queues.long_work import LongWork
from warren.vhosts.metadata import MetadataChange
from warren.vhosts.metadata_journal import MetadataJournal

STORE_ID = b"the id of a log."


class JournalledLog:
    """Begins with what is on `disk`."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk(memory_log(page_entries=16))
        self.log = self.disk.log
        self.log.store_id = STORE_ID
        self.work = LongWork()
        self.journal = MetadataJournal(self.log, self.work)

    def settle(self) -> None:
        """Carry out what the log asks for, and have nothing linger."""
        self.log.close_if_due(lingered=True)
        while self.disk.run():
            self.log.close_if_due()

    def make_durable(self, *changes: MetadataChange) -> None:
        """Append changes, and have them written."""
        for change in changes:
            self.journal.append(change)
        self.settle()

    def damage(self, *numbers: int) -> None:
        """Spoil the records of changes on disk."""
        index = self.journal.lane.index
        assert index is not None
        for number in numbers:
            lsn = int(index.lsn_of(number))
            base = max(base for base in self.disk.segments if base <= lsn)
            self.disk.segments[base][lsn - base + 20] ^= 0x55
