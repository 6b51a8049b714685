"""Break the rules of the engine at random: of each mutant a test has to fail.

    make mutants-rules                                          300 mutants, of a seed that is printed
    make mutants-rules ARGS="--seed 7 --count 50"
    make mutants-rules ARGS="--seed 7 --only queues/expiry"     only of modules whose path contains that
    make mutants-rules ARGS="--seed 7 --again"                  those that survived the last time with that seed

A mutant is tried first on the tests that are likely to notice it, at most `FIRST`, then on more of those that reach it,
and again on many more.
It is noticed when one fails, or does not end. Those that survive are written to `.cache/mutation/SEED.survivors`.

Exit codes: 0 at least `--least` percent were noticed, 1 fewer, 2 the tests fail unbroken.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from .copies import ROOT, Copy
from .mutants import Mutant, mutants
from .reached import KEPT, Case, Reached, reached
from .statements import source_paths


class Portion(NamedTuple):
    """The limits of tests that run together: the number of files, of tests, and of seconds without a mutant."""

    files: int
    tests: int
    seconds: float


FIRST: Final = Portion(12, 40, 3.0)
THEN: Final = Portion(40, 250, 8.0)
# Those that have survived, when they are tried again.
LAST: Final = Portion(100, 600, 12.0)
# So that of two tests that take no time the one that is more about a module comes first.
STARTED_S: Final = 0.02


class Verdict(NamedTuple):
    """`by`: the test that failed, or what else has happened."""

    mutant: Mutant
    noticed: bool
    by: str
    seconds: float


def portions(mutant: Mutant, known: Reached, sizes: Iterable[Portion] = (FIRST, THEN)) -> list[list[Case]]:
    """Return the tests to try: of those that reach it the ones that are about its module first, and quick ones."""
    aptness = known.aptness(mutant.path)

    def likelihood(test: Case) -> float:
        return aptness.get(test.name, 0.0) / (test.seconds + STARTED_S)

    of_files: dict[str, list[Case]] = defaultdict(list)
    for test in sorted(known.by(mutant.path, mutant.statement, mutant.names), key=likelihood, reverse=True):
        of_files[test.file].append(test)
    taken: set[str] = set()
    return [part for portion in sizes if (part := _portion(portion, of_files, taken))]


def _portion(portion: Portion, of_files: dict[str, list[Case]], taken: set[str]) -> list[Case]:
    """Return a test of each file in turn until the portion is full, those of a file together; add them to `taken`."""
    waiting = {file: [test for test in tests if test.name not in taken] for file, tests in of_files.items()}
    files = [file for file in of_files if waiting[file]][: portion.files]
    found: dict[str, list[Case]] = {file: [] for file in files}
    count, seconds = 0, 0.0
    while any(waiting[file] for file in files) and count < portion.tests:
        for file in files:
            if waiting[file] and count < portion.tests:
                test = waiting[file].pop(0)
                if seconds + test.seconds <= portion.seconds or not count:
                    found[file].append(test)
                    taken.add(test.name)
                    count += 1
                    seconds += test.seconds
    return [test for file in files for test in found[file]]


def run(copy: Copy, tests: list[Case]) -> tuple[bool, str]:
    """Return whether a test has failed, and which."""
    chosen = copy.root / "chosen"
    chosen.write_text("".join(test.name + "\n" for test in tests))
    files = list(dict.fromkeys(test.file for test in tests))
    ended = copy.pytest(["-x", "--chosen", str(chosen), *files], sum(test.seconds for test in tests))
    if ended.exit_code is None:
        return True, "it does not come to an end"
    lines = [line for line in ended.output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return ended.exit_code != 0, (lines or ended.output.splitlines()[-1:] or [f"exit code {ended.exit_code}"])[0]


def try_mutant(copy: Copy, mutant: Mutant, tests: list[list[Case]]) -> Verdict:
    """Break the copy, run the tests, and mend it."""
    began_s = time.monotonic()
    path = copy.warren / mutant.path
    source = path.read_bytes()
    path.write_bytes(mutant.applied(source))
    try:
        by = f"{sum(map(len, tests))} tests have reached it"
        for part in tests:
            noticed, by_test = run(copy, part)
            if noticed:
                return Verdict(mutant, True, by_test, time.monotonic() - began_s)
        return Verdict(mutant, False, by, time.monotonic() - began_s)
    finally:
        path.write_bytes(source)


def all_mutants(only: str) -> list[Mutant]:
    package = ROOT / "warren"
    names = [(path, str(path.relative_to(package))) for path in source_paths(package)]
    return [mutant for path, name in names if only in name for mutant in mutants(name, path.read_text())]


class Run:
    """The mutants of one seed, and how they end."""

    def __init__(self, seed: int, jobs: int, work: Path) -> None:
        self.verdicts: list[Verdict] = []
        self._jobs = jobs
        self._survivors = KEPT / f"{seed}.survivors"
        self._copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copy = Copy(work / f"copy-{number}")
            copy.compile()
            self._copies.put(copy)

    def survivors_of_last_time(self, found: list[Mutant]) -> list[Mutant]:
        names = self._survivors.read_text().splitlines()
        return [mutant for mutant in found if str(mutant) in names]

    def passes_unbroken(self, chosen: list[list[list[Case]]]) -> bool:
        """Run all tests that are chosen for any mutant on the copies as they are."""
        tests = sorted({test for parts in chosen for part in parts for test in part})
        print(f"{len(tests)} tests are chosen, and are run unbroken", flush=True)
        files = sorted({test.file for test in tests})
        shares = [
            [test for test in tests if test.file in files[place :: 2 * self._jobs]] for place in range(2 * self._jobs)
        ]

        def passes(share: list[Case]) -> bool:
            copy = self._copies.get()
            failed, by = run(copy, share) if share else (False, "")
            self._copies.put(copy)
            if failed:
                print(by)
            return not failed

        with ThreadPoolExecutor(self._jobs) as pool:
            return all(list(pool.map(passes, shares)))

    def try_all(self, found: list[Mutant], chosen: list[list[list[Case]]]) -> None:
        def try_one(mutant: Mutant, tests: list[list[Case]]) -> None:
            copy = self._copies.get()
            verdict = try_mutant(copy, mutant, tests)
            self._copies.put(copy)
            self.verdicts.append(verdict)
            word = "noticed " if verdict.noticed else "SURVIVES"
            print(
                f"{len(self.verdicts):4} {word} {verdict.seconds:4.0f} s  {mutant}\n{'':14}{verdict.by[:160]}",
                flush=True,
            )

        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(try_one, found, chosen))
        self._survivors.write_text("".join(f"{each.mutant}\n" for each in self.verdicts if not each.noticed))

    def summary(self) -> float:
        """Print what was noticed, by kind, and return how much, in percent."""
        kinds = Counter(verdict.mutant.kind for verdict in self.verdicts)
        noticed = Counter(verdict.mutant.kind for verdict in self.verdicts if verdict.noticed)
        for kind, count in sorted(kinds.items()):
            print(f"{kind:12} {noticed[kind]:4} of {count:4} noticed")
        percent = 100 * noticed.total() / max(1, kinds.total())
        print(f"{noticed.total()} of {kinds.total()} noticed: {percent:.1f} %")
        return percent


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="mutation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--least", type=float, default=70.0)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        known: Reached = reached(work, options.jobs, lambda line: print(line, flush=True))
        every = all_mutants(options.only)
        run = Run(options.seed, options.jobs, work)
        if options.again:
            found = run.survivors_of_last_time(every)
        else:
            found = random.Random(options.seed).sample(every, min(options.count, len(every)))
        print(f"{len(found)} of {len(every)} mutants")
        sizes = (FIRST, LAST) if options.again else (FIRST, THEN)
        chosen = [portions(each, known, sizes) for each in found]
        if not run.passes_unbroken(chosen):
            return 2
        run.try_all(found, chosen)
        return 0 if run.summary() >= options.least else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
