"""``python -m abuse [--kill] [NAME …]``, in tests/: make the attacks one by one, and print their cost.

Without ``--kill``: how long an innocent client waited, and the largest memory and store. With it: how long the broker
takes to start after a kill in the middle of each attack; the exit code is 1 when one takes longer than `kills.START_S`,
or when a confirmed message is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from . import kills, scene
from .attacks import ATTACKS


def attack(names: list[str]) -> int:
    """Make each attack to its end."""
    print(f"{'worst wait in ms':32} confirm   login  health    peak    rest   store  lasted")
    for name in names:
        with tempfile.TemporaryDirectory(prefix="warren-abuse-") as directory:
            process = scene.broker(Path(directory), name)
            process.start()
            try:
                scene.admit(process)
                outcome = scene.run(process, name)
            except Exception as error:
                print(f"{name:32} {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            finally:
                process.kill()
        waits = "  ".join(f"{outcome.worst_s.get(what, 0) * 1000:6.0f}" for what in ("confirm", "login", "health"))
        sizes = (outcome.peak_bytes, outcome.rest_bytes, outcome.store_bytes)
        memory = " ".join(f"{size >> 20:5} M" for size in sizes)
        print(f"{name:32}  {waits} {memory} {outcome.lasted_s:5.1f} s {' '.join(outcome.failures)[:200]}", flush=True)
    return 0


def kill(names: list[str]) -> int:
    """Kill the broker in the middle of each attack."""
    print(f"{'start after a kill':32} ready in    empty   killed after   store    confirmed    found")
    failed = 0
    for name in names:
        for restart in kills.restarts(name):
            is_bad = restart.lost() > 0 or restart.ready_s > kills.START_S
            failed += is_bad
            counts = f"{restart.store_bytes >> 20:5} M {restart.confirmed:12} {restart.found:8}"
            verdict = "  BAD" if is_bad else ""
            times = f"{restart.ready_s:6.2f} s {restart.fresh_s:6.2f} s {restart.after_s:12.1f} s"
            print(f"{name:32} {times} {counts}{verdict}", flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the attacks one by one, and print their cost.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks; without one all")
    parser.add_argument("--kill", action="store_true", help="kill the broker in the middle, and start it again")
    asked = parser.parse_args()
    os.environ.setdefault("WARREN_TEST_ABUSE_NICE", "10")
    names = asked.names or list(ATTACKS)
    return kill(names) if asked.kill else attack(names)


if __name__ == "__main__":
    sys.exit(main())
