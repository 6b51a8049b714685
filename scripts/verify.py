#!/usr/bin/env python3
"""Make the attacks of docs/verification.md, and write their counts into its table.

    scripts/verify.py                                  all of them, one after the other: most of a day on two processors
    scripts/verify.py "reads that fail" leaks          these
    scripts/verify.py --log run.log --exit-code 0 --commit a1b2c3d4 "reads that fail"
                                                       the same of a run that was made by hand, or in several parts

An attack is a command, whose exit code is the verdict, and patterns that find counts in its output. Results are kept in
docs/verification.json, the latest of each attack; the table is made of that file. The output of a run is in
.cache/verify/. The exit code is 1 when an attack failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs/verification.md"
RESULTS: Final = ROOT / "docs/verification.json"
LOGS: Final = ROOT / ".cache/verify"
BEGIN: Final = "<!-- results: begin, made by make verify -->\n"
END: Final = "<!-- results: end -->\n"
PASSED: Final = r"\b(\d+) passed"


@dataclass(frozen=True)
class Attack:
    """A command, and what its output tells.

    `counts`: patterns by what they count. The first group of each match is added, or matches are counted where there is
    no group. `longest`: patterns whose first group is a time in s; the longest counts.
    """

    command: str
    counts: Mapping[str, str]
    longest: Mapping[str, str] = field(default_factory=dict)


# The names are those of the table of attacks in docs/verification.md.
ATTACKS: Final[Mapping[str, Attack]] = {
    "crash states, `kill -9`": Attack(
        "make crashtest",
        {"crash states": r"(\d+) crash states", "cycles of kills and stops": r"^cycle \d+", "tests": PASSED},
    ),
    "reads that fail": Attack(
        "WARREN_TEST_READ_CYCLES=200 scripts/test -s crash/test_failing_reads.py",
        {"cycles": r"^cycle \d+", "failed reads": r"^(\d+) reads failed", "tests": PASSED},
    ),
    "the protocol of a cluster": Attack(
        "make protocol", {"states": r": (\d+) states,", "revisions": r", (\d+) revisions:"}
    ),
    "faults of a cluster": Attack(
        "make cluster-faults", {"schedules that kept every promise": r"^(\d+) of \d+ schedules"}
    ),
    "partitions, disks and clocks of a cluster": Attack(
        'make cluster-partitions ARGS="--trials 20"',
        {
            "trials": r"^[\w-]+, trial \d+ of \d+: \d+ confirmed",
            "confirms": r"^[\w-]+, trial \d+ of \d+: (\d+) confirmed",
            "lost": r", (\d+) lost",
            "invented": r", (\d+) invented",
        },
        {
            "worst gap without a confirm": r"^(?!old-disk|all-stopped)[\w-]+, trial .* worst gap ([\d.]+) s",
            "when all nodes were stopped": r"^(?:old-disk|all-stopped)[\w-]*, trial .* worst gap ([\d.]+) s",
        },
    ),
    "models": Attack("scripts/test -s model", {"tests": PASSED}),
    "mutants": Attack(
        "make mutants mutants-cluster mutants-rules", {"found": r"^(\d+) of \d+ found", "made": r"^\d+ of (\d+) found"}
    ),
    "hostile peers": Attack(
        "make abuse",
        {
            "attacks": r"^[\w-]+ +\d+ +\d+ +\d+ +\d+ M",
            "methods": r"^ *(\d+) methods$",
            "requests": r"^ *(\d+) requests$",
        },
    ),
    "kills in the middle of attacks": Attack(
        'make abuse ARGS="--kill"',
        {"kills": r"^[\w-]+ +[\d.]+ s +[\d.]+ s", "confirms": r"^[\w-]+ +[\d.]+ s .* M +(\d+) +\d+"},
        {"longest start": r"^[\w-]+ +([\d.]+) s +[\d.]+ s"},
    ),
    "fuzzing": Attack("make fuzz", {"mutated frames": r"(\d+) mutated of \d+ frames", "tests": PASSED}),
    "leaks": Attack("make churn", {"rounds": r"^(\d+) rounds", "live objects": r"(\d+) live objects"}),
    "long life": Attack(
        "make soak HOURS=8",
        {what: rf"(?:^|, )([\d,]+) {what}\b" for what in ("sent", "confirmed", "delivered", "violations")},
    ),
    "Spark": Attack("make spark-kills", {"kills": r"^  \d+\. [^:]+: .*\(\+\d+\)$"}),
    "tables": Attack("make lake-kills", {"tests": PASSED}),
    "restored and copied brokers": Attack(
        "scripts/test -s integration/test_diverged_readers.py model/test_histories.py", {"tests": PASSED}
    ),
    "tables under schedules": Attack("scripts/test -s unit/lake/test_schedules.py", {"tests": PASSED}),
}


def counts_of(attack: Attack, output: str) -> dict[str, float]:
    """Return what `output` tells, by name, without what it does not tell."""
    found: dict[str, float] = {}
    for what, pattern in attack.counts.items():
        matches = re.findall(pattern, output, re.MULTILINE)
        if matches:
            has_group = re.compile(pattern).groups > 0
            found[what] = sum(int(each.replace(",", "")) for each in matches) if has_group else len(matches)
    for what, pattern in attack.longest.items():
        times = [float(each) for each in re.findall(pattern, output, re.MULTILINE)]
        if times:
            found[what] = max(times)
    return found


def make(name: str) -> tuple[str, int, float]:
    """Make an attack, and return its output, its exit code and how long it took in s."""
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / (re.sub(r"\W+", "-", name).strip("-") + ".log")
    print(f"{name}: {ATTACKS[name].command}, in {path.relative_to(ROOT)}", flush=True)
    began_s = time.monotonic()
    with path.open("w") as log:
        ended = subprocess.run(
            ["sh", "-c", ATTACKS[name].command], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    return path.read_text(errors="replace"), ended.returncode, time.monotonic() - began_s


def commit() -> str:
    """Return the commit that is checked out, with a mark when files differ from it."""
    described = ["git", "describe", "--always", "--abbrev=8", "--dirty", "--exclude=*"]
    return subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def told(value: float, what: str, attack: Attack) -> str:
    return f"{what} {value:g} s" if what in attack.longest else f"{value:,.0f} {what}"


def table(results: Mapping[str, dict[str, object]]) -> str:
    """Return the table of results, in Markdown."""
    lines = ["| Attack | Counts | Result | When |", "| --- | --- | --- | --- |"]
    for name, attack in ATTACKS.items():
        if name not in results:
            lines.append(f"| {name} | | | not run for this table yet |")
            continue
        result = results[name]
        counts = result["counts"]
        assert isinstance(counts, dict)
        cells = [
            name,
            ", ".join(told(value, what, attack) for what, value in counts.items()),
            "passed" if result["exit_code"] == 0 else f"**failed**, exit code {result['exit_code']}",
            f"{result['date']}, {result['commit']}, {result['processors']} processors",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, results: Mapping[str, dict[str, object]]) -> str:
    """Return the page with the table of `results` in the place of the one that it has."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Make the attacks of docs/verification.md, and write their counts.")
    parser.add_argument("names", nargs="*", metavar="ATTACK", help=f"all without one; {'; '.join(ATTACKS)}")
    parser.add_argument("--log", type=Path, action="append", help="the output of a run of the one attack that is named")
    parser.add_argument("--exit-code", type=int, help="with --log: how that run ended")
    parser.add_argument("--commit", help="with --log: what it ran of")
    given = parser.parse_args(arguments)
    names: list[str] = given.names or list(ATTACKS)
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        parser.error(f"no such attack: {unknown[0]}")
    by_hand = (given.log, given.exit_code, given.commit)
    if any(each is not None for each in by_hand) and (None in by_hand or len(names) != 1):
        parser.error("--log, --exit-code and --commit belong together, with one attack")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = 0
    for name in names:
        if given.log:
            output, exit_code, seconds = "\n".join(path.read_text() for path in given.log), given.exit_code, 0.0
        else:
            output, exit_code, seconds = make(name)
        failed += exit_code != 0
        results[name] = {
            "commit": given.commit or commit(),
            "date": datetime.date.today().isoformat(),
            "processors": os.cpu_count(),
            "seconds": round(seconds),
            "exit_code": exit_code,
            "counts": counts_of(ATTACKS[name], output),
        }
        print(f"{name}: exit code {exit_code}, {json.dumps(results[name]['counts'])}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
        PAGE.write_text(with_table(PAGE.read_text(), results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
