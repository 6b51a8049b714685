"""``python -m soak --hours H [--seed N]``, in tests/: soak the installed broker, write the series and a page of it."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from . import report
from .growth import MIB
from .run import Choices, run

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="how long, fractions allowed (1)")
    parser.add_argument("--seed", type=int, help="the seed, instead of a random one")
    parser.add_argument("--disk-mib", type=int, default=0, help="a small disk of this size in memory, which gets full")
    parser.add_argument("--directory", type=Path, help="where the broker keeps its data meanwhile")
    parser.add_argument("--out", type=Path, help="where to write; default .cache/soak/SEED")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    out = given.out or ROOT / ".cache" / "soak" / str(seed)
    out.mkdir(parents=True, exist_ok=True)
    # On SIGTERM it cleans up: all processes that it started end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"seed {seed}, {given.hours:g} hours, series in {out / 'series.jsonl'}", flush=True)
    with tempfile.TemporaryDirectory(prefix="warren-soak-", dir=given.directory) as directory:
        below = Path(directory)
        choices = Choices(seed, given.hours * 3600, below, out / "series.jsonl", given.disk_mib * MIB)
        result = run(choices, lambda text: print(text, flush=True))
        if result.violations:
            (out / "warren.log").write_text((below / "warren.log").read_text(errors="replace"))
    report.write(result, out)
    print(f"written to {out / 'SOAK.md'}")
    print(", ".join(f"{count:,} {what}" for what, count in result.counts.items()))
    for violation in result.violations[:20]:
        print(f"BROKEN  {violation}")
    if result.violations:
        print(f"{result.violation_count} violations. Again: make soak HOURS={given.hours:g} SEED={seed}")
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
