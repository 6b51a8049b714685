"""Bytes that one node requests from another one over their link, and the answers.

    thread that mends        loop of this node            loop and a thread of the other one
    ask: put WANT_BYTES  ->                           ->  answered: reads its file
    waits                <-  told: HAVE_BYTES         <-

1. The asking thread waits at most `ANSWER_S`, and not at all once the link has ended.
2. The answering node reads one thing at a time for a link, and drops questions beyond `ASKED_MAX`: memory holds only
   that many. It reads only segments of its log and files of streams, at most `PIECE_BYTES` of one.
3. An answer proves nothing by itself: the asking thread checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Final

import trio

from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.sealed_files import sealed_path
from warren.msgstore.files.segment_names import segment_path
from warren.replication.entries import PIECE_BYTES, HaveBytes, OfBoth, Piece, WantBytes, encoded
from warren.server.threads import REPLICATION, in_thread

ANSWER_S: Final = 2.0
ASKED_MAX: Final = 16


class Answering:
    """The questions over one link, answered by `put` from the files in `fs`. On the loop."""

    def __init__(self, fs: FileSystem, put: Callable[[Sequence[Piece]], None]) -> None:
        self._fs = fs
        self._put = put
        self._send, self._receive = trio.open_memory_channel[WantBytes](ASKED_MAX)

    def take(self, entry: OfBoth, questions: Questions) -> None:
        """Take a question, or an answer to one of `questions`."""
        if isinstance(entry, HaveBytes):
            questions.told(entry)
            return
        with suppress(trio.WouldBlock, trio.BrokenResourceError):
            self._send.send_nowait(entry)

    async def run(self) -> None:
        """Answer, one question after the other."""
        async for wanted in self._receive:
            self._put(encoded(await in_thread(REPLICATION, answered, self._fs, wanted)))


class Questions:
    """Those over one link; `put` sends."""

    def __init__(self, put: Callable[[Sequence[Piece]], None]) -> None:
        self._put = put
        self._lock = Lock()
        self._number = 0
        self._waiting: dict[int, SimpleQueue[bytes | None]] = {}
        self._is_over = False

    def ask(self, stream_id: int, segment: int, position: int, length: int) -> bytes | None:
        """Return bytes of a file of the other node, nothing if it does not have all of them. Blocks.

        None: it does not answer.
        """
        pieces: list[bytes] = []
        for at in range(0, length, PIECE_BYTES):
            wanted = min(PIECE_BYTES, length - at)
            piece = self._ask(stream_id, segment, position + at, wanted)
            if piece is None or len(piece) != wanted:
                return None if piece is None else b""
            pieces.append(piece)
        return b"".join(pieces)

    def _ask(self, stream_id: int, segment: int, position: int, length: int) -> bytes | None:
        with self._lock:
            if self._is_over:
                return None
            self._number += 1
            number = self._number
            answer = self._waiting[number] = SimpleQueue()
        self._put(encoded(WantBytes(number, stream_id, segment, position, length)))
        try:
            return answer.get(timeout=ANSWER_S)
        except Empty:
            return None
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def told(self, entry: HaveBytes) -> None:
        """Pass on the answer of the other node. Any thread."""
        with self._lock:
            answer = self._waiting.pop(entry.number, None)
        if answer is not None:
            answer.put(bytes(entry.data))

    def close(self) -> None:
        """Note that the link has ended, and end all waits."""
        with self._lock:
            self._is_over = True
            for answer in self._waiting.values():
                answer.put(None)


def answered(fs: FileSystem, wanted: WantBytes) -> HaveBytes:
    """Return the bytes that another node wants, as far as this one has them. Blocks."""
    name = sealed_path(wanted.stream_id, wanted.segment) if wanted.stream_id else segment_path(wanted.segment)
    try:
        handle = fs.open(name, writable=False)
        try:
            return HaveBytes(wanted.number, read_exactly(fs, handle, wanted.length, wanted.position))
        finally:
            fs.close(handle)
    except OSError:
        return HaveBytes(wanted.number, b"")
