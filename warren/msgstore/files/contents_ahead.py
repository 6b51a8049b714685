"""The file of a batch to come: contents that are on the disk before their frame is.

    log/ahead     nothing yet | chunk | chunk | … | chunk         the name of a segment comes with its header

1. Of the first batch of a segment whole chunks may be in the file before it has its name, durably (`PortionJob`). The
   commit leaves out a chunk only if the very same object was written and synced at its place (`unwritten`).
2. Whatever becomes of such a file before, nothing depends on it: without space, or descriptors, it is removed, and the
   commit writes everything.
3. At most one batch has a file. The plan (``msgstore.log.bodies_ahead``) says which.

Everything here belongs to the committer, but for `cut`: no frame is written while it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from warren.msgstore.files.fail_stop import NO_SPACE, SHORTAGES
from warren.msgstore.files.file_system import FileSystem, unlink_if_there, write_all
from warren.msgstore.log.bodies_ahead import BodiesAhead
from warren.msgstore.log.jobs import CommitJob, PortionJob
from warren.msgstore.log.records import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES

AHEAD: Final = "log/ahead"
# Where the first chunk of a batch stands.
_FIRST_AT: Final = SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class NewFile:
    """A preallocated file without a header."""

    path: str
    handle: int
    size: int


class _Ahead:
    """A file with chunks of the plan's batch: `chunks` are durable, by their offsets."""

    def __init__(self, plan: BodiesAhead, file: NewFile) -> None:
        self.plan = plan
        self.file = file
        self.chunks: dict[int, bytes] = {}


class ContentsAhead:
    """The contents that the store in the root of `fs` has ahead of their frames.

    `sync` makes a file durable; `fail` gives up on the disk, with what was done and the error. Both raise
    StoreFailedError.
    """

    def __init__(
        self, fs: FileSystem, sync: Callable[[int, str], None], fail: Callable[[str, OSError], NoReturn]
    ) -> None:
        self._fs = fs
        self._sync = sync
        self._fail = fail
        self._ahead: _Ahead | None = None  # for the segment that will begin with its plan
        self._begun: _Ahead | None = None  # of the segment that is being written

    def write(self, job: PortionJob) -> None:
        """Write chunks of a batch to come, and sync them; without any, remove their file.

        Raises:
            StoreFailedError: the content of the disk is unknown.
        """
        plan = job.bodies
        assert plan is not None
        ahead = self._ahead
        try:
            if ahead is None or ahead.plan is not plan or not job.chunks:
                self.remove()
                if not job.chunks:
                    return
                unlink_if_there(self._fs, AHEAD)
                file = NewFile(AHEAD, self._fs.create(AHEAD, int(job.file_bytes)), int(job.file_bytes))
                ahead = self._ahead = _Ahead(plan, file)
            offset = start = _FIRST_AT + job.positions[0]
            run: list[bytes] = []
            for position, chunk in zip(job.positions, job.chunks, strict=True):
                at = _FIRST_AT + position
                if at != offset:
                    write_all(self._fs, ahead.file.handle, run, start)
                    run = []
                    start = at
                run.append(chunk)
                offset = at + len(chunk)
            write_all(self._fs, ahead.file.handle, run, start)
        except OSError as error:
            if error.errno not in SHORTAGES:
                self._fail(f"write {AHEAD}", error)
            self.remove()
            return
        self._sync(ahead.file.handle, AHEAD)
        for position, chunk in zip(job.positions, job.chunks, strict=True):
            ahead.chunks[_FIRST_AT + position] = chunk

    def remove(self) -> None:
        """Remove the file of a batch to come, if there is one; its bytes are written with their frame.

        Raises:
            StoreFailedError: the disk does not allow it.
        """
        ahead = self._ahead
        if ahead is None:
            return
        self._ahead = None
        try:
            self._fs.close(ahead.file.handle)
            unlink_if_there(self._fs, AHEAD)
        except OSError as error:
            if error.errno not in SHORTAGES:
                self._fail(f"remove {AHEAD}", error)

    def gives_up(self, job: CommitJob, error: OSError) -> bool:
        """Free the space of a batch to come for this one, which did not fit; tell whether there was one."""
        if error.errno not in NO_SPACE or self._ahead is None or self._ahead.plan is job.bodies:
            return False
        self.remove()
        return True

    def maybe_file(self, job: CommitJob) -> NewFile | None:
        """Return the file with contents of this batch, to begin its segment with."""
        ahead = self._ahead
        return ahead.file if ahead is not None and ahead.plan is job.bodies else None

    def begun(self, file: NewFile) -> None:
        """Note that a segment has begun with `file`, which has its name now."""
        self._begun = None
        if self._ahead is not None and file is self._ahead.file:
            self._begun, self._ahead = self._ahead, None

    def cut(self, length: int) -> None:
        """Note that the begun file was cut to `length` bytes: later chunks are written with their frame."""
        begun = self._begun
        if begun is not None:
            begun.chunks = {at: chunk for at, chunk in begun.chunks.items() if at + len(chunk) <= length}

    def ended(self) -> None:
        """Forget the begun file: the batch with which its segment began is written."""
        self._begun = None

    def unwritten(self, chunks: list[bytes], job: CommitJob) -> list[tuple[int, list[bytes]]]:
        """Return the chunks of a frame that were not written ahead, and their offsets; count the others in the job."""
        offset = int(job.lsn - job.base_lsn)
        begun = self._begun
        if begun is None:
            return [(offset, chunks)]
        runs: list[tuple[int, list[bytes]]] = []
        run: list[bytes] = []
        job.ahead_bytes = 0
        for chunk in chunks:
            if begun.chunks.get(offset) is chunk:
                run = []
                job.ahead_bytes += len(chunk)
            elif run:
                run.append(chunk)
            else:
                run = [chunk]
                runs.append((offset, run))
            offset += len(chunk)
        return runs

    def maybe_take_file(self) -> NewFile | None:
        """Return the file of a batch to come, for the end of the store: the caller closes and removes it."""
        ahead, self._ahead = self._ahead, None
        return None if ahead is None else ahead.file
