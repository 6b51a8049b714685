"""What counts as all of the memory, and that large blocks are given back."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from warren.server.process_memory import resident_bytes, total_memory_bytes

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
from warren.server.process_memory import resident_bytes, return_large_blocks
assert return_large_blocks()
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
