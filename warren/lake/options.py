"""Choices for reading into a table and keeping it, also for programs without Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

DAY: Final = "day"
NO_PARTITIONS: Final = "none"
PUBLISH_DATE: Final = "publish_date"  # the name of a partition by day
PARTITIONINGS: Final = (DAY, NO_PARTITIONS)
TARGET_FILE_BYTES: Final = 128 << 20


class Limits(NamedTuple):
    """How much is read at once: of many small messages `rows`, of large ones about `bytes`."""

    rows: int = 500_000
    bytes: int = 128 << 20


@dataclass(frozen=True)
class TableOptions:
    """How a table is made and kept. `partition_by`: the day of ``timestamp``, or nothing.

    `compact_files`: so many small files of a partition become one; `keep_s`: how long older states can be read;
    `orphan_s`: how old files have to be that are in no state at all to be removed, and how often they are looked for.
    """

    partition_by: str = DAY
    target_file_bytes: int = TARGET_FILE_BYTES
    compact_files: int = 16
    keep_s: float = 24 * 3600.0
    orphan_s: float = 24 * 3600.0
