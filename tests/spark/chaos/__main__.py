"""Kill drivers, executors, workers, brokers, `warren lake`, catalogues and an object store, and judge every row.

    python -m spark.chaos --kills 100 --seed 7            # in tests/; `make spark-kills`

It prints each kill, and at the end what became of every flow; exit code 1: something is not right. With a hundred kills
or more the page is written, benchmarks/SPARK_KILLS.md; with `--report FILE` always, to there.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

from .report import kill_lines, markdown, verdict_lines, where_lines
from .run import Outcome, Run
from .world import running_world

WHOLE: Final = 100
PAGE: Final = Path(__file__).parents[3] / "benchmarks" / "SPARK_KILLS.md"


def main(arguments: list[str]) -> int:
    """Make one run, and return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else nobody would end what runs
    parser = argparse.ArgumentParser(prog="spark.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=WHOLE)
    parser.add_argument("--seed", type=int, default=None, help="a random one, if it is not given")
    parser.add_argument("--report", type=Path, default=None, help="where the page is written")
    parser.add_argument("--directory", type=Path, default=None, help="where everything lies; it is kept")
    told = parser.parse_args(arguments)
    seed = random.SystemRandom().getrandbits(32) if told.seed is None else told.seed
    directory = Path(tempfile.mkdtemp(prefix="warren-kills-")) if told.directory is None else told.directory
    _say(f"seed {seed}, {told.kills} kills, in {directory}")
    outcome = run(directory, seed, told.kills)
    for lines in (verdict_lines(outcome), kill_lines(outcome), where_lines(outcome), outcome.losses):
        _say("\n".join(["", *lines]))
    _say(f"\n{'all right' if outcome.is_right else 'NOT RIGHT'}: {len(outcome.carried)} kills, seed {seed}")
    page = PAGE if told.report is None and told.kills >= WHOLE else told.report
    if page is not None:
        page.write_text(markdown(outcome))
    if outcome.is_right and told.directory is None:
        shutil.rmtree(directory)
    return 0 if outcome.is_right else 1


def run(directory: Path, seed: int, kills: int) -> Outcome:
    """Make one run below `directory`."""
    with running_world(directory, seed) as world:
        return Run(world, seed, kills, _say).whole()


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
