"""Random faults, one after the other, on three nodes under load: ``make cluster-faults N=20 SEED=7``.

A schedule is a cluster of its own with `FAULTS_EACH` faults; the next schedule has the next seed. The cluster's
progress at the time of a fault depends on the machine: the same seed gives the same kinds of case, but not the same
bytes.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Final

from cluster.etcd_processes import running_etcd

from .fault_cluster import FAULTS, FaultCluster, suffer
from .network import compiled_shim

FAULTS_EACH: Final = 5
SECONDS: Final = (0.5, 2.0, 2.5, 3.5, 5.0, 15.0)  # around what decides: 1 s, 2 s and 3 s


def run_schedule(seed: int, counts: Counter[str]) -> None:
    """Run one schedule, printing what it does; raises AssertionError when a promise is broken."""
    chooser = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="warren-faults-") as name:
        directory = Path(name)
        with running_etcd(directory / "etcd") as etcd:
            cluster = FaultCluster(directory, etcd, compiled_shim(directory), chooser)
            try:
                for _ in range(FAULTS_EACH):
                    fault = chooser.choice(FAULTS)
                    seconds = chooser.choice(SECONDS)
                    began_s = time.monotonic()
                    print(f"  {fault.__name__} for {seconds:g} s", end="", flush=True)
                    suffer(cluster, fault, seconds)
                    print(f", {time.monotonic() - began_s:.1f} s in all", flush=True)
                    counts[fault.__name__] += 1
            except BaseException:
                print(f"\n{cluster.tails()}", flush=True)
                raise
            finally:
                cluster.close()
            counts.update(cluster.history.counts)


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 20
    seed = int(arguments[1]) if len(arguments) > 1 else random.SystemRandom().randrange(1 << 32)
    counts: Counter[str] = Counter()
    failed = []
    for number in range(count):
        print(f"schedule {number + 1} of {count}, seed {seed + number}", flush=True)
        try:
            run_schedule(seed + number, counts)
        except Exception:
            traceback.print_exc()
            failed.append(seed + number)
    print(", ".join(f"{number} {what}" for what, number in sorted(counts.items())))
    print(f"{count - len(failed)} of {count} schedules kept every promise; failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
