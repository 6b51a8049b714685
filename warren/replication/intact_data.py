"""Data of a follower that is intact where its leader's is damaged: it is put into what is about to replace it.

    segment of an image                   the frames here
    replacement of a file of a stream     the chunks here

Both prove themselves as those of another node do (``mending`` (1)).
"""

from __future__ import annotations

from collections.abc import Callable

from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.sealed_files import REPLACEMENT, sealed_path
from warren.msgstore.files.segment_header import SegmentHeader
from warren.msgstore.files.segment_names import segment_path
from warren.replication.incoming_image import incoming_path
from warren.replication.mending import Mender, OwnFiles, chunk_states
from warren.server.logs import get_logger

log = get_logger("replication")


class IntactData:
    """The intact data in the root directory of `fs`. Every method may raise OSError."""

    def __init__(self, fs: FileSystem, clock_ms: Callable[[], int]) -> None:
        self._fs = fs
        self._mender = Mender(
            fs,
            lambda: [OwnFiles(fs)],
            clock_ms=clock_ms,
            path_of=incoming_path,
            sealed_path_of=_replacement_path,
            tell=_tell,
        )

    def mend_segment(self, come: SegmentHeader | str, own: SegmentHeader | None, end_lsn: int | None) -> None:
        """Mend a segment that has come in an image by the one here, if it is the same one.

        `end_lsn`: up to where there are frames in the one here; None: up to the end of its file.
        """
        if own is None or not isinstance(come, SegmentHeader):
            return
        if (come.store_id, come.base_lsn, come.epoch) == (own.store_id, own.base_lsn, own.epoch):
            if end_lsn is None:
                end_lsn = own.base_lsn + self._size_of(own.number)
            self._mender.mend_frames(own.number, end_lsn=end_lsn)

    def mend_file(self, store_id: bytes, stream_id: int, segment: int) -> None:
        """Mend the replacement of a file of a stream by the file here."""
        path = _replacement_path(stream_id, segment)
        has_more = True
        while has_more:
            has_more = False
            for position, size, is_well in chunk_states(self._fs, path, store_id, stream_id, segment):
                if not is_well:
                    is_mended = self._mender.mend_chunk(store_id, stream_id, segment, position, size)
                    has_more = is_mended and not size  # after its head, which can be read now

    def _size_of(self, number: int) -> int:
        """Return the size of a segment's file, 0 for one that is gone."""
        try:
            handle = self._fs.open(segment_path(number), writable=False)
        except FileNotFoundError:
            return 0
        try:
            return self._fs.size(handle)
        finally:
            self._fs.close(handle)


def _tell(path: str, position: int, size: int) -> None:
    log.warning("damage that came from the leader was mended", file=path, position=position, bytes=size)


def _replacement_path(stream_id: int, segment: int) -> str:
    return sealed_path(stream_id, segment) + REPLACEMENT
