"""A thread writes the broker's output. Numbers are those of `server/standard_streams.py`."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from warren.server.standard_streams import QUEUE_BYTES, StreamWriter

LINE = "x" * 999 + "\n"


def test_what_is_put_is_written_in_its_order() -> None:
    reading, writing = os.pipe()
    writer = StreamWriter(writing)
    for number in range(100):
        writer.put(f"{number}\n")
    assert writer.finish(60)
    assert os.read(reading, 1 << 16).split() == [b"%d" % number for number in range(100)]
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_pipe_that_nobody_reads_holds_nobody_up_and_what_was_dropped_is_told(blocking: bool) -> None:
    """(1) (3)"""
    reading, writing = os.pipe()
    os.set_blocking(writing, blocking)
    writer = StreamWriter(writing)
    writer.say_dropped = "{} dropped\n".format
    count = 2 * QUEUE_BYTES // len(LINE)
    for _ in range(count):
        writer.put(LINE)
    assert not writer.finish(0)
    with open(reading, encoding="ascii") as lines:
        dropped = 0
        seen = 0
        while seen + dropped < count:
            line = next(lines)
            if line == LINE:
                seen += 1
            else:
                dropped += int(line.removesuffix(" dropped\n"))
        assert dropped > 0 and seen >= QUEUE_BYTES // len(LINE) - 1
        assert writer.finish(60)
        writer.put("again\n")
        assert next(lines) == "again\n"
    os.close(writing)


def test_a_full_disk_loses_lines_and_tells_them_later(tmp_path: Path) -> None:
    """(2) (3)"""
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        os.write(full, b"x")
    writer = StreamWriter(full)
    writer.say_dropped = "{} dropped\n".format
    writer.put("one\ntwo\n")
    assert writer.finish(60)
    room = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(room, full)
    writer.put("three\n")
    assert writer.finish(60)
    assert (tmp_path / "log").read_text() == "three\n2 dropped\n"
    os.close(room)
    os.close(full)


def test_nothing_that_is_opened_becomes_a_standard_stream() -> None:
    """(5)"""
    code = (
        "import os; from warren.server.standard_streams import open_missing; open_missing();"
        "print([os.readlink(f'/proc/self/fd/{each}') for each in range(3)] if os.path.isdir('/proc/self/fd') else '');"
        "os._exit(0 if os.open('/', os.O_RDONLY) > 2 else 1)"
    )
    done = subprocess.run(["sh", "-c", f'exec "{sys.executable}" -c "{code}" <&- >&- 2>&-'], check=False, timeout=60)
    assert done.returncode == 0
