"""The findings of a run, as a page and for a terminal."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from .flows import LEASE_S
from .plan import AVAILABLE_NOW, ON_CLUSTER, PLANNER, VICTIMS, WORKER
from .run import Outcome

_WHOLE: Final = ["rows", "left", "lost", "doubled", "extra", "wrong"]
_PACKAGES: Final = ("pyspark", "pyarrow", "deltalake", "pyiceberg")


def table(head: list[str], rows: list[list[object]]) -> list[str]:
    """Return the lines of a table: texts first, then numbers."""
    kinds = [" --- " if isinstance(cell, str) else " --: " for cell in (rows[0] if rows else head)]
    lines = [head, *([f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows)]
    made = ["| " + " | ".join(line) + " |" for line in lines]
    return [made[0], "|" + "|".join(kinds) + "|", *made[1:]]


def verdict_lines(outcome: Outcome) -> list[str]:
    """Return what became of each flow."""
    rows: list[list[object]] = [
        [name, *(getattr(verdict, what) for what in _WHOLE)] for name, verdict in outcome.verdicts.items()
    ]
    return table(["flow", "rows", "left in the queue", *_WHOLE[2:]], rows)


def kill_lines(outcome: Outcome) -> list[str]:
    """Return the victims and the moments of the kills."""
    by_victim = Counter(each.kill.victim for each in outcome.carried)
    rows: list[list[object]] = []
    for victim in VICTIMS:
        moments = Counter(each.kill.moment for each in outcome.carried if each.kill.victim == victim)
        said = ", ".join(f"{moment} {count}" for moment, count in moments.most_common())
        rows.append([victim, said, by_victim[victim]])
    return table(["killed", "moments", "kills"], rows)


def where_lines(outcome: Outcome) -> list[str]:
    """Return in whose work the kills were, and how much work that was."""
    by_place = Counter(each.kill.where for each in outcome.carried)
    rows: list[list[object]] = []
    for name, batches in outcome.batches.items():
        rows.append([f"Spark: {name}", by_place[name], batches, outcome.failures[name]])
    for name, commits in outcome.commits.items():
        rows.append([f"warren lake: {name}", by_place[name], commits, 0])
    return table(
        ["the moment was in the work of", "kills", "batches or commits", "times Spark gave the query up"], rows
    )


def markdown(outcome: Outcome) -> str:
    """Return the page."""
    lives = outcome.lives
    on_cluster = sum(life.kind == ON_CLUSTER for life in lives)
    available_now = sum(life.kind == AVAILABLE_NOW for life in lives)
    processes = sum(each.processes for each in outcome.carried if each.kill.victim in (WORKER, PLANNER))
    verdict = "right" if outcome.is_right else "NOT RIGHT"
    lines = [
        "# Kills of a pipeline",
        "",
        "Written by `make spark-kills`; do not edit. How: [testing](../docs/testing.md#kills-of-a-pipeline).",
        "",
        f"**{len(outcome.carried)} kills counted, {outcome.asked} asked for: every flow is {verdict}.**"
        if outcome.is_right
        else f"**{len(outcome.carried)} kills counted, {outcome.asked} asked for: NOT every flow is right.**",
        "",
        f"- Seed {outcome.seed}; {outcome.seconds / 60:.0f} minutes.",
        f"- {_machine()}.",
        f"- warren {version('warren-broker')}{_commit()}, engine {_engine()}, Python {platform.python_version()}; "
        + ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
        + ".",
        f"- {outcome.published:,} messages were published to five sources, each once.",
        f"- {len(lives)} lives of a driver with six queries, {on_cluster} of them on a cluster with two executors and "
        f"speculation ({outcome.speculated:,} tasks begun once more); {available_now} with AvailableNow again and "
        "again, the others with processingTime.",
        f"- Of the queue that two queries emptied one has {outcome.shared['left']:,} rows, the other "
        f"{outcome.shared['right']:,}.",
        f"- {outcome.again:,} claims went back, since their query was away for longer than its lease of {LEASE_S} s. "
        f"{outcome.again_and_there:,} of these messages were in the table by then, and left out when they came again.",
        f"- A kill of Python workers or planners was one of all that there were: {processes} processes.",
        "",
        *verdict_lines(outcome),
        "",
        "*lost*: confirmed, and nowhere; *doubled*: there twice; *extra*: nobody has published it; *wrong*: another "
        "body than was published, or than the stream has at that offset. *left in the queue*: waits in the queue that "
        "was emptied into the table.",
        "",
        *kill_lines(outcome),
        "",
        *where_lines(outcome),
        "",
    ]
    if outcome.losses:
        lines += ["Queries that say that something is lost:", "", *(f"- {each}" for each in outcome.losses), ""]
    return "\n".join(lines)


def _machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _engine() -> str:
    from warren.queues import queue

    return "interpreted" if str(queue.__file__).endswith(".py") else "compiled"


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return f" at commit {found.stdout.strip()}" if found.returncode == 0 else ""
