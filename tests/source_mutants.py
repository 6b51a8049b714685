"""Mutants of the sources: what is broken on purpose, and which tests notice it.

A mutant is a list of exact replacements in a copy of the sources, each of which must match once: when a change of the
sources keeps a mutant from applying, this fails, and the mutant must be rewritten. The tests run interpreted, until
their first failure. Before the mutants they have to pass unbroken.

Exit codes: 0 all mutants were found, 1 some were not, 2 a mutant does not apply or the tests fail unbroken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

TESTS: Final = Path(__file__).parent
SOURCES: Final = TESTS.parent / "warren"
TIMEOUT_S: Final = 600
# pytest's exit code for failed tests; other codes mean other trouble.
FAILED: Final = 1


class Change(NamedTuple):
    """In this file, this text becomes that."""

    path: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One mutant. `harm`: what an operator would see one day."""

    name: str
    harm: str
    changes: tuple[Change, ...]


def mutant(name: str, harm: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, harm, tuple(Change(*change) for change in changes))


def lines(*texts: str, indent: int = 8) -> str:
    """Return lines of source, the first indented by `indent` and the others relative to it."""
    return "".join(f"{' ' * indent}{text}\n" for text in texts)


def apply(change: Change, root: Path) -> None:
    """Make the replacement in the copy at `root`; exit when it does not match exactly once."""
    path = root / "warren" / change.path
    text = path.read_text()
    count = text.count(change.old)
    if count != 1:
        print(f"{change.path}: matches {count} times, not once:\n{change.old}")
        sys.exit(2)
    path.write_text(text.replace(change.old, change.new))


def mutated_copy(root: Path, broken: Mutant | None) -> None:
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(SOURCES, root / "warren", ignore=ignored)
    for change in broken.changes if broken is not None else ():
        apply(change, root)


def try_mutant(broken: Mutant | None, tests: Sequence[str], environment: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether `tests` failed on the source with `broken`, interpreted, and a line about how."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", "-q", "--tb=line", *tests]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        mutated_copy(root, broken)
        variables = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"} | dict(environment)
        try:
            result = subprocess.run(
                command, cwd=TESTS, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return True, "it does not come to an end"
    if result.returncode not in (0, FAILED):
        print(result.stdout[-2000:], result.stderr[-2000:])
        sys.exit(2)
    lines = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "/", "E "))]
    return result.returncode == FAILED, lines[0] if lines else ""


def try_mutants(
    names: list[str],
    mutants: Sequence[Mutant],
    tests_of: Callable[[Mutant | None], Sequence[str]],
    environment: Mapping[str, str],
) -> int:
    """Try the mutants of these names, of no names all, each by its tests, and return the exit code.

    `tests_of` None are those that the unbroken source has to pass first.
    """
    chosen = [broken for broken in mutants if not names or broken.name in names]
    if len(chosen) != (len(names) or len(mutants)):
        print(f"the mutants are: {' '.join(broken.name for broken in mutants)}")
        return 2
    for broken in chosen:
        with tempfile.TemporaryDirectory() as directory:
            mutated_copy(Path(directory), broken)
    failed, line = try_mutant(None, tests_of(None), environment)
    if failed:
        print(f"the tests fail unbroken: {line}")
        return 2
    survivors = 0
    for broken in chosen:
        start_s = time.monotonic()
        found, line = try_mutant(broken, tests_of(broken), environment)
        survivors += not found
        verdict = "found" if found else "SURVIVES"
        print(f"{broken.name:32} {verdict:9} {time.monotonic() - start_s:5.0f} s  {broken.harm}", flush=True)
        if found:
            print(f"{'':32} {line.rpartition('/')[2][:160]}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} found")
    return 1 if survivors else 0
