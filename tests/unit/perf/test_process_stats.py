"""process_stats.py: a process tree read from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from warren.perf import process_stats


def test_this_process_has_memory_and_has_used_cpu() -> None:
    found = process_stats.sample(os.getpid())
    assert found.rss_bytes > 1_000_000
    assert found.cpu_us > 0


# A process of the test's own: other child processes of this one come and go.
PARENT = """
import subprocess, sys
burn = "import time\\nwhile time.process_time() < 0.2: pass\\nprint('burnt', flush=True)\\ninput()"
print("alone", flush=True)
input()
child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print("burnt", flush=True)
input()
child.communicate(b"\\n")
print("waited", flush=True)
input()
"""


def test_cpu_of_a_child_is_counted_while_it_runs_and_after_it_was_waited_for() -> None:
    samples = {}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        for state in ("alone", "burnt", "waited"):
            assert parent.stdout.readline().decode().strip() == state
            samples[state] = process_stats.sample(parent.pid)
            parent.stdin.write(b"\n")
            parent.stdin.flush()
    assert [each.processes for each in samples.values()] == [1, 2, 1]
    assert samples["burnt"].cpu_us - samples["alone"].cpu_us > 150_000
    assert samples["waited"].cpu_us >= samples["burnt"].cpu_us


def test_what_a_process_makes_the_disk_write_is_counted() -> None:
    with tempfile.TemporaryFile(dir=Path(__file__).parent, buffering=0) as file:
        before = process_stats.written_bytes(os.getpid())
        file.write(bytes(1 << 20))
        os.fsync(file.fileno())
        assert process_stats.written_bytes(os.getpid()) - before >= 1 << 20


def test_a_process_that_is_gone_is_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    with pytest.raises(ProcessLookupError, match=str(child.pid)):
        process_stats.sample(child.pid)
