"""Chunks read from their files: tasks on the broker's machine need the data port only for messages not yet in files.

1. With `localFiles` auto a file is read only if it is the very one that the broker means: this is the same run of the
   same machine, and device and inode are those in the broker's answer. A path alone proves nothing: other brokers have
   such paths, too. With always the path is trusted, for file systems that machines share.
2. A chunk is used only if its checksums are right and it is the expected one. A chunk that is missing, not readable,
   replaced or damaged is read over the data port instead: the rows are the same.
3. Only regular files are opened, and opening never waits.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import pyarrow as pa

from warren.spark_bridge.bridge_errors import DamagedChunk, NotFound, Refused
from warren.spark_bridge.columns import Chunk, let_go, read_chunks
from warren.spark_bridge.control import BrokerClient, SealedChunk, SealedFiles
from warren.spark_bridge.options import AUTO

READ_BYTES: Final = 8 << 20
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Run(NamedTuple):
    """Chunks that lie one after the other in a file."""

    file: str
    position: int
    chunks: tuple[SealedChunk, ...]

    @property
    def first(self) -> int:
        """The offset that it begins with."""
        return self.chunks[0].first

    @property
    def end(self) -> int:
        """The offset that it ends at."""
        return self.chunks[-1].end

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return sum(chunk.bytes for chunk in self.chunks)


def read_chunks_here(
    client: BrokerClient,
    queue: str,
    first: int,
    end: int,
    id: str,
    which: str,
    over_the_port: Callable[[int, int], Iterator[Chunk]],
) -> Iterator[Chunk]:
    """Yield chunks that cover [first, end) of a stream, from files where they are at hand; the outer ones reach beyond.

    `which`: the option localFiles. `over_the_port` does the same over the data port.
    """
    try:
        listed = client.files(queue, first, end, id)
    except (NotFound, Refused):  # the broker does not have this call; or the queue is gone, as the data port will say
        listed = None
    if listed is None or (which == AUTO and not (listed.boot and listed.boot == _maybe_boot_id())):
        yield from over_the_port(first, end)
        return
    files = _Files(listed, which)
    at = first
    try:
        for run in _runs(listed.chunks):
            if run.end <= at or run.first >= end:
                continue
            if run.first > at:
                yield from over_the_port(at, run.first)
                at = run.first
            chunks = files.maybe_read(run)
            yield from over_the_port(at, min(run.end, end)) if chunks is None else let_go(chunks)
            at = run.end
    finally:
        files.close()
    if at < end:
        yield from over_the_port(at, end)


def _runs(chunks: Iterable[SealedChunk]) -> Iterator[Run]:
    """Yield chunks together that can be read in one go."""
    run: Run | None = None
    for chunk in chunks:
        if (
            run is not None
            and (chunk.file, chunk.position, chunk.first) == (run.file, run.position + run.bytes, run.end)
            and run.bytes + chunk.bytes <= READ_BYTES
        ):
            run = run._replace(chunks=(*run.chunks, chunk))
            continue
        if run is not None:
            yield run
        run = Run(chunk.file, chunk.position, (chunk,))
    if run is not None:
        yield run


class _Files:
    """The files of a stream, opened as they are needed; None stands for one that cannot be used."""

    def __init__(self, listed: SealedFiles, which: str) -> None:
        self._listed = listed
        self._which = which
        self._open: dict[str, int | None] = {}

    def close(self) -> None:
        """Close all of them."""
        for descriptor in self._open.values():
            if descriptor is not None:
                os.close(descriptor)

    def maybe_read(self, run: Run) -> list[Chunk] | None:
        """Return the chunks of a run; None: they are not there as they were said to be."""
        if run.file not in self._open:
            self._open[run.file] = self._maybe_open(run.file)
        descriptor = self._open[run.file]
        if descriptor is None:
            return None
        buffer = pa.allocate_buffer(run.bytes)
        view = memoryview(buffer)
        at = 0
        try:
            while at < run.bytes:
                read = os.preadv(descriptor, [view[at:]], run.position + at)
                if read == 0:
                    return None
                at += read
            chunks = list(read_chunks(buffer))
        except (OSError, DamagedChunk):
            return None
        there = [(chunk.first, chunk.end, chunk.bytes) for chunk in chunks]
        return chunks if there == [(chunk.first, chunk.end, chunk.bytes) for chunk in run.chunks] else None

    def _maybe_open(self, name: str) -> int | None:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            return None
        try:
            descriptor = os.open(Path(self._listed.directory) / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        found = os.fstat(descriptor)
        is_meant = self._which != AUTO or self._listed.inodes.get(name) == (found.st_dev, found.st_ino)
        if not stat.S_ISREG(found.st_mode) or not is_meant:
            os.close(descriptor)
            return None
        return descriptor


def _maybe_boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None
