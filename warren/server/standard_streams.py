"""Write to stdout and stderr in threads, so that the broker never waits for their readers.

1. `put` never waits and never fails. Lines that come while `QUEUE_BYTES` are queued are dropped and counted.
2. Lines that a stream does not take, because its disk is full or its reader is gone, are dropped and counted as well.
3. `say_dropped` gives the line that reports dropped lines; it is written before the next line.
4. `finish` waits `FINISH_S` at most. The threads are daemons that write to descriptors, not to buffers with locks: one
   that hangs in a write does not keep the process from its end.
5. The descriptors 0 to 2 are never those of data: `open_missing` fills the gaps before anything else is opened.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

QUEUE_BYTES: Final = 1 << 20
FINISH_S: Final = 1.0
WRITE_BYTES: Final = 64 << 10
RETRY_MS: Final = 1000


def _count_nothing(lines: int) -> str:
    return ""


class StreamWriter:
    """Writes to `descriptor` in a thread of its own, started by the first text. Call `put` in one thread only."""

    def __init__(self, descriptor: int) -> None:
        self.say_dropped: Callable[[int], str] = _count_nothing
        self._descriptor = descriptor
        self._queue: SimpleQueue[bytes | threading.Event] = SimpleQueue()  # `put` is safe in a signal handler
        self._thread: threading.Thread | None = None
        # Each is changed by one thread only.
        self._put_bytes = 0
        self._taken_bytes = 0
        self._refused_lines = 0
        self._lost_lines = 0
        self._told_lines = 0

    def put(self, text: str) -> None:
        """Write `text`, of whole lines, in the thread."""
        data = text.encode(errors="backslashreplace")
        if self._put_bytes - self._taken_bytes + len(data) > QUEUE_BYTES:
            self._refused_lines += data.count(b"\n")
            return
        self._put_bytes += len(data)
        self._queue.put(data)
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name=f"warren-fd-{self._descriptor}", daemon=True)
            self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Wait until everything is written; False if that takes longer than `timeout_s`."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def _live(self) -> None:
        queue = self._queue
        while True:
            item = queue.get()
            parts: list[bytes] = []
            size = 0
            while isinstance(item, bytes):
                parts.append(item)
                size += len(item)
                if size >= WRITE_BYTES or queue.empty():
                    break
                item = queue.get()
            if parts:
                self._write(b"".join(parts))
                self._taken_bytes += size
            self._tell_dropped()
            if isinstance(item, threading.Event):
                item.set()

    def _tell_dropped(self) -> None:
        dropped = self._refused_lines + self._lost_lines
        lines = dropped - self._told_lines
        if lines:
            text = self.say_dropped(lines).encode(errors="backslashreplace")
            if not text or self._try_write(text):
                self._told_lines = dropped

    def _write(self, data: bytes) -> None:
        if not self._try_write(data):
            self._lost_lines += data.count(b"\n")

    def _try_write(self, data: bytes) -> bool:
        """Write everything, however long that takes; False if the stream fails."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                # Another process has made the pipe or terminal that we share non-blocking.
                waiting = select.poll()
                waiting.register(self._descriptor, select.POLLOUT)
                waiting.poll(RETRY_MS)
            except OSError:
                return False
        return True


OUTPUT: Final = StreamWriter(1)
ERRORS: Final = StreamWriter(2)


def finish() -> None:
    """Wait a moment for the output before the process ends."""
    for writer in (OUTPUT, ERRORS):
        writer.finish(FINISH_S)


def open_missing() -> None:
    """Open closed ones among stdin, stdout and stderr to nowhere: otherwise the next file would get such a number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
