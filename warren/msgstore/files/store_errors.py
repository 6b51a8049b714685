"""The errors of the disk, in three kinds: temporary ones, lasting ones, and reads that fail at the moment."""

from __future__ import annotations


class StoreError(Exception):
    """The store could not do its job. The text is one line that names the file and the reason."""


class StoreFullError(StoreError):
    """A resource has run out that others may free: space, quota, descriptors. The same job works again later."""


class StoreUnreadableError(StoreError):
    """The disk does not give something now. That is not damage: nothing follows from it, and the read is repeated.

    `segment`: the number of the segment of the log, 0 for another file. `lsn`: the place in the log, else -1. `passes`:
    waiting may help. A directory in the place of the file, or a missing right, stays until an operator acts.
    """

    def __init__(self, path: str, why: str, segment: int = 0, lsn: int = -1, *, passes: bool = True) -> None:
        super().__init__(f"{path} cannot be read: {why}")
        self.path = path
        self.why = why
        self.segment = segment
        self.lsn = lsn
        self.passes = passes


class StoreFailedError(StoreError):
    """The disk has failed, or reported a failure: earlier writes may be lost. The process must stop."""
