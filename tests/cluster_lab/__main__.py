"""Partitions, slow, full, failing and older disks, and shifted clocks, on three machines that are namespaces.

    make cluster-partitions                                        every fault once
    make cluster-partitions ARGS="--trials 20"                     every fault 20 times
    make cluster-partitions ARGS="--seed 7 leader-silent all-lossy"   these faults

Needs root, Debian's iproute2 and etcd-server, a C compiler, and /dev/net/tun. In a trial clients of all kinds work
while a fault begins, lasts and ends. Then all nodes are healed, and what is in the queues and in the stream is held
against what was sent, confirmed, and seen by consumers. It prints the worst time without a confirm, from the beginning
of the fault until some seconds after its end. It ends with 1 when a message is lost, invented, torn, moved or taken
back, a node is stuck, or a gap is longer than it may be.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from .faults import FAULTS, Fault, Lab
from .history import History
from .load import RULES, STREAM, Load, drained, set_up, whole_stream
from .machines import HTTP, Machine, compiled_shim, until
from .switch import PREFIX, Switch, run

NODES: Final = 3
BEFORE_S: Final = 1.5
AFTER_S: Final = 6.0
_SAID_MAX: Final = 60


@dataclass
class Row:
    """The results of the trials of one fault."""

    trials: int = 0
    confirmed: int = 0
    gaps_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def trial(lab: Lab, fault: Fault, chooser: random.Random) -> tuple[int, float, list[str]]:
    """Make a fault happen; return how many messages were confirmed, the longest gap, and what was violated."""
    history = lab.history
    history.violations.clear()
    lab.notes.clear()
    leader = lab.complete()
    load = lab.load = Load([machine.host for machine in lab.machines], history)
    before = sum(count for name, count in history.counts.items() if name.startswith("confirmed"))
    load.start()
    first = history.confirms()
    until(lambda: history.confirms() > first + 50, "the first confirms", 30.0)
    time.sleep(BEFORE_S)  # of work without a fault
    began_s = time.monotonic()
    fault.begin(lab, leader, chooser)
    time.sleep(fault.seconds)  # how long it lasts
    lab.heal()
    time.sleep(AFTER_S)
    gap_s = history.worst_gap_s(began_s, time.monotonic())
    load.stop()
    leader = lab.complete()
    history.stream(STREAM, whole_stream(leader.host))
    history.drained(drained(leader.host), RULES)
    confirmed = sum(count for name, count in history.counts.items() if name.startswith("confirmed")) - before
    found = list(history.violations)
    if fault.limit_s is not None and gap_s > fault.limit_s:
        found.append(f"{gap_s:.1f} s without a confirm, and {fault.limit_s:g} s are allowed")
    for machine in lab.machines:
        said = machine.said()
        if "Traceback" in said or "internal error" in said:
            found.append(f"{machine.name} has printed a traceback")
    return confirmed, gap_s, found


def tails(lab: Lab) -> str:
    """Return the last that each node said."""
    parts = []
    for machine in lab.machines:
        lines = [line for line in machine.said().splitlines() if " connection." not in line and " audit " not in line]
        parts.append("\n".join([machine.name, *lines[-_SAID_MAX:]]))
    return "\n".join(parts)


def machines_on(switch: Switch, directory: Path) -> list[Machine]:
    shim = compiled_shim(directory)
    machines = [Machine(switch, number, NODES, directory, shim) for number in range(1, NODES + 1)]
    for machine in machines:
        machine.start_etcd()
    return machines


def run_lab(faults: list[Fault], trials: int, seed: int, directory: Path, history: History) -> dict[str, Row]:
    rows = {fault.name: Row() for fault in faults}
    switch = Switch(f"warrenlab{os.getpid()}", NODES + 1, seed)
    machines: list[Machine] = []
    try:
        switch.enter(NODES + 1)
        machines = machines_on(switch, directory)
        lab = Lab(switch, machines, history, directory)
        set_up(lab.complete().host)
        for number in range(trials):
            for fault in faults:
                chooser = random.Random(f"{seed} {fault.name} {number}")
                print(f"{fault.name}, trial {number + 1} of {trials}", end="", flush=True)
                row = rows[fault.name]
                row.trials += 1
                try:
                    confirmed, gap_s, found = trial(lab, fault, chooser)
                except Exception:
                    traceback.print_exc()
                    row.failures.append("stuck")
                    print(tails(lab), flush=True)
                    return rows
                row.confirmed += confirmed
                row.gaps_s.append(gap_s)
                row.failures += found
                print(
                    f": {confirmed} confirmed, worst gap {gap_s:.2f} s; {'; '.join([*lab.notes, *found])}", flush=True
                )
                if found:
                    print(tails(lab), flush=True)
                    for machine in machines:
                        machine.log_path.write_text("")
    finally:
        for machine in machines:
            machine.close()
        switch.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster_lab", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("faults", nargs="*", help=", ".join(fault.name for fault in FAULTS))
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("this needs root: it makes network namespaces and devices (ip netns, /dev/net/tun)", file=sys.stderr)
        return 2
    chosen = [fault for fault in FAULTS if not given.faults or fault.name in given.faults]
    if len(chosen) != len(given.faults or FAULTS):
        parser.error("there is no such fault")
    run("ip", "netns", "list")
    print(f"seed {given.seed}, {NODES} nodes at {PREFIX}1 to {PREFIX}{NODES}, port {HTTP}", flush=True)
    history = History()
    with tempfile.TemporaryDirectory(prefix="warren-lab-") as name:
        rows = run_lab(chosen, given.trials, given.seed, Path(name), history)
    counts = history.counts
    print(f"\n{'fault':28} trials  confirmed  median gap  worst gap  failures")
    for fault, row in rows.items():
        gaps = f"{median(row.gaps_s):9.2f}s {max(row.gaps_s):9.2f}s" if row.gaps_s else f"{'-':>10} {'-':>10}"
        print(f"{fault:28} {row.trials:6} {row.confirmed:10}  {gaps}  {len(row.failures)}")
    for fault, row in rows.items():
        for failure in row.failures:
            print(f"{fault}: {failure}")
    print(f"seed {given.seed}: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}")
    return 1 if any(row.failures for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
