"""The file that the next segment begins with, and the space that is free when one is not needed.

    log/ahead     contents of its first batch are in it (``msgstore.files.contents_ahead``): first choice
    log/spare     preallocated while there is time
    log/new       made when it is needed; of a beginning that failed it is used again

1. When the disk is full, the spare goes first, then the part of the last segment of the previous process that its
   frames do not need.
2. Where there is no space for a whole segment, a file begins empty: it may have space for the acks that make some.

`prepare_spare` belongs to the housekeeper, the rest to the committer, but for `makes_room`, which both call. The lock
guards the spare and the end that recovery found.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from warren.msgstore.files.contents_ahead import ContentsAhead, NewFile
from warren.msgstore.files.fail_stop import NO_SPACE, SHORTAGES
from warren.msgstore.files.file_system import FileSystem, unlink_if_there
from warren.msgstore.files.segment_names import segment_path
from warren.msgstore.log.jobs import CommitJob

SPARE: Final = "log/spare"
NEW: Final = "log/new"


class NewSegments:
    """The files that become segments of the store in the root of `fs`. All methods may raise OSError."""

    def __init__(self, fs: FileSystem, ahead: ContentsAhead) -> None:
        self.lock = Lock()
        self.recovered_end: tuple[int, int] | None = None  # number and length of an earlier process's last segment
        self._fs = fs
        self._ahead = ahead
        self._spare: NewFile | None = None
        self._new: NewFile | None = None  # of a beginning that failed

    def prepare_spare(self, size: int) -> None:
        """Preallocate the next segment, unless that is done already."""
        if self._spare is None:
            unlink_if_there(self._fs, SPARE)
            self._spare = NewFile(SPARE, self._fs.create(SPARE, size), size)

    def file_for(self, job: CommitJob) -> NewFile:
        """Return the file for the segment that `job` begins. The caller holds the lock until it is `taken`."""
        ahead = self._ahead.maybe_file(job)
        if ahead is not None:
            return ahead
        capacity = int(job.capacity)
        spare = self._spare
        if spare is not None and spare.size == capacity:
            return spare
        new = self._new
        if new is not None and new.size != capacity:
            # Its segment has begun with a spare that was made meanwhile.
            self._new = None
            self._fs.close(new.handle)
            self._fs.unlink(NEW)
        if self._new is None:
            self._new = NewFile(NEW, self._create_new(capacity), capacity)
        return self._new

    def _create_new(self, capacity: int) -> int:
        """Preallocate, or see (2)."""
        try:
            return self._fs.create(NEW, capacity)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
        return self._fs.create(NEW, 0)

    def taken(self, file: NewFile) -> None:
        """Note that `file` is a segment, and has its name."""
        self._ahead.begun(file)
        if file is self._spare:
            self._spare = None
        elif file is self._new:
            self._new = None

    def take_files(self) -> list[NewFile]:
        """Return all files, for the end of the store: the caller closes and removes them."""
        files = [file for file in (self._spare, self._new, self._ahead.maybe_take_file()) if file is not None]
        self._spare = self._new = None
        return files

    def makes_room(self, error: OSError) -> bool:
        """Free the space that can be spared, when `error` is a shortage; tell whether some was freed."""
        if error.errno not in SHORTAGES:
            return False
        return self._give_up_spare() or (error.errno in NO_SPACE and self._cut_recovered())

    def _give_up_spare(self) -> bool:
        with self.lock:
            spare = self._spare
            if spare is None:
                return False
            try:
                self._fs.close(spare.handle)
                self._fs.unlink(spare.path)
            finally:
                # Last: a reader that sees None makes another one under this name.
                self._spare = None
        return True

    def _cut_recovered(self) -> bool:
        with self.lock:
            if self.recovered_end is None:
                return False
            number, length = self.recovered_end
            try:
                handle = self._fs.open(segment_path(number), writable=True)
            except FileNotFoundError:
                self.recovered_end = None
                return False
            try:
                is_longer = self._fs.size(handle) > length
                if is_longer:
                    self._fs.truncate(handle, length)
            finally:
                self._fs.close(handle)
            self.recovered_end = None
        return is_longer
