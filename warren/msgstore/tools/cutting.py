"""Cutting the log of a stopped store off at an earlier place, to restore its earlier state.

1. It is cut after a whole frame, and not before the checkpoint: the log no longer has the frames from before that.
2. The sealed files of a stream are cut, too: a chunk with messages from after the place is removed, if the log still
   has those from before. If compaction has put both into one chunk, the chunk stays, and a line says so.
3. Messages that retention or compaction of a stream has removed since then stay away.
4. It changes the store that it is given: give it a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.recovery import log_has
from warren.msgstore.files.sealed_files import STREAMS, maybe_sealed_name
from warren.msgstore.files.segment_names import LOG, segment_path
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES, maybe_head
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES as STREAM_HEADER_BYTES
from warren.msgstore.tools.lines import Line, UnreadableStore, note
from warren.msgstore.tools.log_files import IntactFrame, StoreFiles
from warren.msgstore.tools.stored_state import LogReader, read_checkpoint, recovered

# Tells whether a frame is still to be there.
Belongs = Callable[[IntactFrame], bool]


class CutError(Exception):
    """The place is not in the log; the text says which places are."""


class Cut:
    """Where the log was cut: after the frame with the `time_ms`, 0 when that is not known."""

    def __init__(self, lsn: int, time_ms: int) -> None:
        self.lsn = lsn
        self.time_ms = time_ms


def cut_log(fs: FileSystem, belongs: Belongs) -> Cut:
    """Cut the log of the store in the root of `fs` before the first frame that does not belong to it.

    Raises:
        CutError: that is before the checkpoint. UnreadableStore: it cannot be read. OSError: it cannot be changed.
    """
    files = StoreFiles(fs)
    checkpoint, fault = read_checkpoint(files)
    if fault is not None:
        raise UnreadableStore(f"checkpoint: {fault}")
    cut = _place(files, 0 if checkpoint is None else checkpoint.lsn, belongs)
    for number in reversed(files.segments):
        with files.segment(number) as segment:
            if segment.header is None:
                raise UnreadableStore(f"segment {number}: {segment.fault}")
            base_lsn, size = int(segment.header.base_lsn), segment.size
        if base_lsn >= cut.lsn:
            fs.unlink(segment_path(number))
        elif base_lsn + size > cut.lsn:
            _truncate(fs, segment_path(number), cut.lsn - base_lsn)
    fs.sync_directory(LOG)
    return cut


def _place(files: StoreFiles, checkpoint_lsn: int, belongs: Belongs) -> Cut:
    """Return the end of the last frame that belongs to the log."""
    cut = Cut(0, 0)
    for number in files.segments:
        with files.segment(number) as segment:
            if segment.header is None:
                raise UnreadableStore(f"segment {number}: {segment.fault}")
            if int(segment.header.base_lsn) + int(segment.header.capacity) <= checkpoint_lsn:
                continue
            for frame in segment.frames():
                if not isinstance(frame, IntactFrame):
                    continue
                if not belongs(frame):
                    if cut.lsn < checkpoint_lsn:
                        raise CutError(_too_early(files, checkpoint_lsn))
                    return cut
                cut = Cut(frame.end_lsn, frame.time_ms)
    if cut.lsn < checkpoint_lsn:
        return Cut(checkpoint_lsn, 0)  # the log has no later frame, and the earlier ones have been removed
    return cut


def _too_early(files: StoreFiles, checkpoint_lsn: int) -> str:
    return f"the log of this backup goes back to LSN {checkpoint_lsn}: choose a later place, or an earlier backup"


def cut_streams(fs: FileSystem) -> Iterator[Line]:
    """Cut the sealed files of streams to the messages that the cut log knows; yield those that could not be cut.

    Raises:
        UnreadableStore: the log cannot be read. OSError: it cannot be changed.
    """
    files = StoreFiles(fs)
    with LogReader(files) as reader:
        log = recovered(files, reader).log
    for name in fs.names(STREAMS):
        named = maybe_sealed_name(name)
        if named is not None:
            yield from _cut_stream(fs, f"{STREAMS}/{name}", log, named[0])
    fs.sync_directory(STREAMS)


def _cut_stream(fs: FileSystem, path: str, log: MessageLog, stream_id: int) -> Iterator[Line]:
    index = log.indexes.get(stream_id)
    if index is None:
        fs.unlink(path)  # it was not declared yet
        return
    handle = fs.open(path, writable=False)
    position = STREAM_HEADER_BYTES
    try:
        size = fs.size(handle)
        while position < size:
            head = maybe_head(read_exactly(fs, handle, CHUNK_HEAD_BYTES, position))
            if head is None:
                return  # damaged, as it was in the broker
            if head.end > index.next_number:
                if log_has(log, stream_id, int(head.first)):
                    break
                what = "messages from behind the place stay: compaction has put them together with earlier ones"
                yield note(what, vhost=index.vhost, queue=index.name)
            position += int(head.chunk_bytes)
    finally:
        fs.close(handle)
    if position >= size:
        return
    if position == STREAM_HEADER_BYTES:
        fs.unlink(path)
    else:
        _truncate(fs, path, position)


def _truncate(fs: FileSystem, path: str, size: int) -> None:
    handle = fs.open(path, writable=True)
    try:
        fs.truncate(handle, size)
        fs.sync(handle)
    finally:
        fs.close(handle)
