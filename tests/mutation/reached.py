"""Which statements each test reaches, recorded once and kept in `.cache/mutation/`.

Sources with a mark before each statement are run by every test of `SUITES`. A record is of a file of tests, and is
made again when that file, a module of the tests that is not one itself, or the engine has changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from .copies import ROOT, Copy
from .statements import source_paths, statements_of, with_marks

# The last one is of the engine, too: it looks for what only a collector of cycles would free.
SUITES: Final = ("conformance", "model", "property", "unit", "integration/test_memory_after_churn.py")
HERE: Final = Path(__file__).parent
KEPT: Final = ROOT / ".cache" / "mutation"
FILES_AT_ONCE: Final = 12
# For the tests of `FILES_AT_ONCE` files, with the marks.
EXPECTED_S: Final = 200.0


class Case(NamedTuple):
    """A test that passes on the unbroken sources, and how long it took there."""

    name: str
    seconds: float
    bits: int

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


class Reached:
    """The statements that all tests reach."""

    def __init__(self, tests: Iterable[Case], package: Path) -> None:
        self.tests = list(tests)
        self._first: dict[str, int] = {}
        self._lines: dict[str, list[tuple[int, str]]] = {}
        number = 0
        for path in source_paths(package):
            name = str(path.relative_to(package))
            texts = statements_of(path.read_text())
            self._first[name] = number
            self._lines[name] = [(number + place, text) for place, text in enumerate(texts)]
            number += len(texts)
        counts = [0] * number
        for test in self.tests:
            for reached_number in _numbers(test.bits):
                counts[reached_number] += 1
        self._rareness = [1 / max(1, count) for count in counts]
        self._aptness: dict[str, dict[str, float]] = {}

    def aptness(self, path: str) -> dict[str, float]:
        """Return how much each test is about a module: it counts statements there that few others reach."""
        if path not in self._aptness:
            first = self._first[path]
            mask = (1 << len(self._lines[path])) - 1
            inside = ((test.name, (test.bits >> first) & mask) for test in self.tests)
            self._aptness[path] = {
                name: sum(self._rareness[first + number] for number in _numbers(bits)) for name, bits in inside if bits
            }
        return self._aptness[path]

    def by(self, path: str, statement: int, names: tuple[str, ...]) -> list[Case]:
        """Return the tests that reach the statement.

        A statement outside functions runs on import, and so do some functions. Then the result is the tests of its
        module and of all users of the names that the statement defines.
        """
        found = self._by(1 << (self._first[path] + statement)) if statement >= 0 else []
        if found:
            return found
        uses = re.compile(rf"\b(?:{'|'.join(names) or '(?!)'})\b")
        everywhere = [line for lines in self._lines.values() for line in lines]
        users = [number for number, text in everywhere if uses.search(text)]
        return self._by(_mask([*users, *(number for number, _ in self._lines[path])]))

    def _by(self, mask: int) -> list[Case]:
        return [test for test in self.tests if test.bits & mask]


def _numbers(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    digits = f"{bits:b}"[::-1]
    at = digits.find("1")
    while at >= 0:
        yield at
        at = digits.find("1", at + 1)


def _mask(numbers: Iterable[int]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def reached(work: Path, jobs: int, say: Callable[[str], None]) -> Reached:
    """Return what each test reaches; record it first where that is not known."""
    tests = ROOT / "tests"
    files = sorted(path for suite in SUITES for path in _modules(tests / suite))
    helpers = [path for path in tests.rglob("*.py") if path.parent != HERE and not path.name.startswith("test_")]
    shared = _digest([*ROOT.glob("warren/**/*.py"), *helpers, HERE / "statements.py", HERE / "plugin.py"])
    records = {path: KEPT / f"{_digest([path])[:16]}-{shared[:16]}.json" for path in files}
    missing = [path for path in files if not records[path].exists()]
    if missing:
        say(f"recording which statements the tests of {len(missing)} files reach")
        _record(work / "marked", missing, records, jobs)
        for path in KEPT.glob("*.json"):
            if path not in records.values():
                path.unlink()
    found: list[Case] = []
    for path in files:
        for line in records[path].read_text().splitlines():
            entry = json.loads(line)
            if entry["passed"]:
                found.append(Case(entry["test"], entry["s"], int(entry["bits"], 16)))
    return Reached(found, ROOT / "warren")


def _modules(suite: Path) -> list[Path]:
    return [suite] if suite.is_file() else list(suite.rglob("test_*.py"))


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _record(root: Path, files: list[Path], records: dict[Path, Path], jobs: int) -> None:
    copy = Copy(root)
    number = 0
    for path in source_paths(copy.warren):
        text = path.read_text()
        path.write_text(with_marks(text, number))
        number += len(statements_of(text))
    (copy.warren / "seen_statements.py").write_text(f"SEEN = bytearray({number})\n")
    copy.compile()
    KEPT.mkdir(parents=True, exist_ok=True)

    def record(part: list[Path]) -> None:
        names = [str(path.relative_to(ROOT / "tests")) for path in part]
        out = root / f"{part[0].stem}-{part[0].parent.name}.reached"
        ended = copy.pytest([*names, "--reached", str(out)], EXPECTED_S)
        lines = out.read_text().splitlines() if out.exists() else []
        if not lines:
            raise RuntimeError(f"nothing was recorded of {names}:\n{ended.output}")
        of_files: dict[str, list[str]] = defaultdict(list)
        for line in lines:
            of_files[json.loads(line)["test"].partition("::")[0]].append(line + "\n")
        if not of_files.keys() <= set(names):
            raise RuntimeError(f"tests of other files were run: {of_files.keys() - set(names)}")
        for path, name in zip(part, names, strict=True):
            records[path].write_text("".join(of_files[name]))

    count = -(-len(files) // FILES_AT_ONCE)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(record, [files[place::count] for place in range(count)]))
