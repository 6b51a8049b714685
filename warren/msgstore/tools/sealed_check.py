"""The sealed files of streams against themselves, and against the log.

    the end of a stream's last file, and the log    torn, as a crash leaves it: the next start cuts it
      still has what would be in it
    other bytes that are not a whole chunk          damage. If the quarantine has a copy, a repair has reported it
    offsets that neither a chunk nor the log has    lost with damage, or with a file that is missing; noted when the
                                                      queue counts as many as damaged: a repair has told them before
    a file that compaction has merged, or was       left over: the next start removes it
      making
    a file that a start has set aside               a problem if `repair` can put it back

1. Where compaction has removed messages nothing is missing: its chunks stand for all of their offsets.
2. Offsets that a chunk stands for and does not have were lost in the log before, unless compaction has removed them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warren.msgstore.files.sealed_files import STREAMS
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES
from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES
from warren.msgstore.tools.lines import Line, note, problem
from warren.msgstore.tools.log_files import StoreFiles
from warren.msgstore.tools.sealed_streams import FileFacts, SealedNames, SealedStream, read_file, read_streams
from warren.msgstore.tools.stored_state import StoredState, name_fields, unsealed

# In the quarantine, before the name of a file of a stream: a bare number is that of a segment of the log.
COPY_PREFIX: Final = "stream-"


class SealedCheck:
    """One check. `state`: the live state according to the log; None when the log says nothing."""

    def __init__(self, files: StoreFiles, store_id: bytes, state: StoredState | None) -> None:
        self.files = 0
        self.chunks = 0
        self.messages = 0
        self.in_log_too = 0  # of these
        self._files = files
        self._state = state
        self._store_id = store_id
        self._copied = files.quarantined()

    def lines(self) -> Iterator[Line]:
        """Yield everything that is wrong or worth knowing."""
        names = SealedNames(self._files.fs)
        for name in names.others:
            yield note("a file that is not a segment of a stream", file=f"{STREAMS}/{name}")
        for name in names.unfinished:
            what = "an unfinished compaction: the next start removes it"
            yield note(what, file=f"{STREAMS}/{name}")
        streams = read_streams(self._files.fs, self._store_id, in_full=True)
        for name, stream_id, first in names.unusable:
            yield self._set_aside(f"{STREAMS}/{name}", stream_id, first, streams.get(stream_id))
        for stream in streams.values():
            yield from self._stream(stream)

    def _set_aside(self, path: str, stream_id: int, first: int, stream: SealedStream | None) -> Line:
        facts = read_file(self._files.fs, path, stream_id, first, self._store_id, in_full=True)
        found = {"queue_id": stream_id, "file": path, "messages": sum(chunk.count for chunk in facts.chunks)}
        if fits(facts, stream):
            return problem("a file was set aside, and `repair` can put it back", **found)
        return note("a file was set aside: its header, or none of its chunks, could be read", **found)

    def _stream(self, stream: SealedStream) -> Iterator[Line]:
        self.files += len(stream.files)
        self.chunks += len(stream.chunks)
        self.messages += stream.count
        index = None if self._state is None else self._state.log.indexes.get(stream.id)
        where = stream_fields(stream.id, index)
        if index is None and self._state is not None:
            yield note("the log does not know this stream", **where, messages=stream.count)
        tail = [] if self._state is None else tail_gap(self._state, stream)
        if index is not None and self._state is not None:
            self.in_log_too += int(index.live_count) - unsealed(self._state, index, stream.end).count
        is_told = False
        gaps = [*stream.gaps(), *tail]
        for file in stream.files:
            for line, is_damage in self._file(file, is_last=file is stream.files[-1], may_be_torn=not tail):
                is_told = is_told or is_damage
                yield {**line, **where}
        missing = sum(end - first for first, end in gaps)
        for first, end in gaps:
            place = {**where, "sequence_number": first, "messages": end - first}
            if is_told:
                yield note("messages are lost with the damaged data", **place)
            elif index is not None and index.damaged_count >= missing:
                yield note("messages are missing, and counted as damaged", **place)
            else:
                yield problem("messages are missing: neither sealed nor in the log", **place)

    def _file(self, file: FileFacts, *, is_last: bool, may_be_torn: bool) -> Iterator[tuple[Line, bool]]:
        """Yield lines, and whether each is about damage."""
        where = {"file": file.path}
        if file.fault:
            is_short = file.is_readable and file.size < SEGMENT_HEADER_BYTES + CHUNK_HEAD_BYTES
            if is_last and is_short and may_be_torn:
                yield note(f"torn, as a crash leaves it: the file {file.fault}", **where), False
            else:
                yield problem(f"the file {file.fault}", **where), True
            return
        if file.is_left_over:
            yield note("compaction has merged it into the one before: the next start removes it", **where), False
            return
        for damage in file.damages:
            place = {**where, "position": damage.position, "end_position": damage.end}
            is_end = is_last and damage.end == file.size and damage.is_readable
            if is_end and may_be_torn:
                yield note(f"torn end, as a crash leaves it: {damage.reason}", **place), False
            elif self._is_copied(file.path):
                what = f"damage that was found before, a copy is in the quarantine: {damage.reason}"
                yield note(what, **place), True
            else:
                yield problem(f"damage: {damage.reason}", **place), True
        lost = sum(chunk.end - chunk.first - chunk.count for chunk in file.chunks if not chunk.is_compacted)
        if lost:
            yield note("the log had lost messages before they were sealed", **where, messages=lost), False

    def _is_copied(self, path: str) -> bool:
        prefix = copy_prefix(path)
        return any(name.startswith(prefix) for name in self._copied)


def copy_prefix(path: str) -> str:
    """Return how the names of copies of a sealed file begin in the quarantine."""
    return f"{COPY_PREFIX}{path.removeprefix(f'{STREAMS}/')}-"


def tail_gap(state: StoredState, stream: SealedStream) -> list[tuple[int, int]]:
    """Return the range of offsets between the sealed messages and those of the log, if there is a gap."""
    index = state.log.indexes.get(stream.id)
    if index is None or not stream.chunks:
        return []
    first = unsealed(state, index, stream.end).first
    return [(stream.end, first)] if first > stream.end else []


def fits(facts: FileFacts, stream: SealedStream | None) -> bool:
    """Tell whether a file can be a segment of its stream again: its place is free, and beside the existing ones."""
    if not facts.chunks:
        return False
    if stream is None:
        return True
    if any(file.first == facts.first for file in stream.files if file is not facts):
        return False
    first, end = facts.first, facts.chunks[-1].end
    before = [chunk.end for chunk in stream.chunks if chunk.first < first]
    behind = [chunk.first for chunk in stream.chunks if chunk.first >= first]
    if (before and max(before) > first) or (behind and min(behind) < end):
        return False
    # If it would be the oldest, and offsets after it are missing, retention has removed those meanwhile.
    return bool(before) or not behind or min(behind) == end


def stream_fields(stream_id: int, index: QueueIndex | None) -> Line:
    """Return whose messages these are, as far as the log tells."""
    return {"queue_id": stream_id, **({} if index is None else name_fields(index))}
