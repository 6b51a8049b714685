"""The size of all memory, and the return of large blocks."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from warren.server.process_memory import resident_by_psutil, resident_bytes, total_memory_bytes

MIB = 1 << 20


def machine(root: Path, groups: str, limits: dict[str, str]) -> Path:
    """Lay out /proc and /sys of a machine with 8 GiB."""
    files = {
        "proc/meminfo": "MemTotal:        8388608 kB\nMemFree: 1 kB\n",
        "proc/self/cgroup": groups,
        **limits,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("", {}, 8 << 30),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, 8 << 30),
        ("0::/\n", {"sys/fs/cgroup/memory.max": f"{512 * MIB}\n"}, 512 * MIB),
        (
            "0::/a/b\n",
            {"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1048576\n"},
            MIB,
        ),
        (
            "0::/a/b\n",
            {"sys/fs/cgroup/a/b/memory.max": "2048\n", "sys/fs/cgroup/memory.max": "1048576"},
            2048,
        ),
        ("0::/../../x\n", {"sys/fs/cgroup/memory.max": "4096\n"}, 4096),
        ("0::/\n", {"sys/fs/cgroup/memory.max": f"{64 << 30}\n"}, 8 << 30),
        ("3:cpu:/\n2:memory,x:/d\n", {"sys/fs/cgroup/memory/d/memory.limit_in_bytes": "8192\n"}, 8192),
        ("2:memory:/d\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 8 << 30),
    ],
)
def test_the_total_is_the_smallest_limit_above_the_process(
    tmp_path: Path, groups: str, limits: dict[str, str], expected: int
) -> None:
    assert total_memory_bytes(machine(tmp_path, groups, limits)) == expected


def test_the_total_of_this_machine_holds_this_process() -> None:
    assert 0 < resident_bytes() < total_memory_bytes()


_CHECK_PASSWORDS = """
import threading
from warren.server.logins.passwords import DUMMY_HASH, verify_password
from warren.server.process_memory import keep_little_free, resident_bytes
assert keep_little_free()
def check():
    verify_password(b"x", DUMMY_HASH)
def round_of_two():
    threads = [threading.Thread(target=check) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
before = resident_bytes()
for _ in range(4): round_of_two()
print(resident_bytes() - before)
"""


def test_checked_passwords_leave_no_memory_behind() -> None:
    grown = subprocess.run([sys.executable, "-c", _CHECK_PASSWORDS], capture_output=True, text=True, check=True)
    assert int(grown.stdout) < 8 * MIB


_THREADS_THAT_USE_THE_HEAP = """
import ctypes, threading
from warren.server.process_memory import keep_little_free
class Heaps(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t), ("others", ctypes.c_size_t * 9)]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Heaps
assert keep_little_free()
turns = threading.Lock()
def use():
    alive.wait()
    with turns:
        del [bytes(256 << 10) for _ in range(12)][:]
    alive.wait()
for count in (8, 16):
    alive = threading.Barrier(count)
    threads = [threading.Thread(target=use) for _ in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    library.malloc_trim(0)
    print(library.mallinfo2().bytes)
"""


def test_threads_that_use_the_heap_one_after_the_other_use_the_same_memory() -> None:
    ran = subprocess.run([sys.executable, "-c", _THREADS_THAT_USE_THE_HEAP], capture_output=True, text=True, check=True)
    of_8, of_16 = map(int, ran.stdout.split())
    assert of_16 - of_8 < 1 * MIB  # and not 3 MiB for each of eight threads more


def test_looking_at_the_memory_takes_no_descriptor() -> None:
    """Where none is left, it is what tells publishers to wait."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resident_bytes()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        assert resident_bytes() > 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_forked_process_looks_at_its_own_memory() -> None:
    resident_bytes()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        before_bytes = resident_bytes()
        # Not from the heap: tests before this one may have left as much there, free and resident.
        with mmap.mmap(-1, 64 * MIB) as ballast:
            ballast[:: mmap.PAGESIZE] = b"x" * (64 * MIB // mmap.PAGESIZE)
            os.write(writer, b"%d" % (resident_bytes() - before_bytes))
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reader, 30)) > 32 * MIB
    os.close(reader)
    os.close(writer)


def test_a_system_without_proc_is_asked_through_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    psutil = SimpleNamespace(Process=lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=7 * MIB)))
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    assert resident_by_psutil() == 7 * MIB
