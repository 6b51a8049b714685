"""Print the tests of what changed, as arguments for pytest in tests/: `scripts/check` runs them.

    scripts/changed_tests.py           what differs from main, committed or not; when nothing does, the last commit
    scripts/changed_tests.py COMMIT    what differs from that commit
    scripts/changed_tests.py --added   only test functions that are new or different, to be run many times

Which tests belong to a file is found by names and imports:

    warren/queues/delay.py      tests/unit/queues/test_delay*.py, and what else in that folder imports it; all of the
                                folder when there is neither. In tests/conformance and tests/property test_delay*.py,
                                and test_queue*.py for the package
    tests/unit/x/test_y.py      itself; another file of tests/: the quick tests that import it
    anything                    tests/architecture

Suites that start brokers, browsers and databases are not for this: tests of theirs that changed are named on stderr.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
QUICK: Final = ("architecture", "conformance", "property", "unit")
ALWAYS: Final = "architecture"
# Suites in one process: their new tests are run many times. Others start brokers, browsers and databases.
IN_ONE_PROCESS: Final = (*QUICK, "golden", "model", "simulation", "step_counts")
MAIN_BRANCHES: Final = ("main", "origin/main")


def changed_files(base: str) -> list[str]:
    """Return what differs between `base` and the working tree, what git does not know yet included."""
    return sorted({*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")})


def default_base() -> str:
    """Return the commit where this branch left main, or the one before the last when nothing differs from that."""
    for branch in MAIN_BRANCHES:
        found = _git("merge-base", branch, "HEAD", fails=True)
        if found and changed_files(found[0]):
            return found[0]
    return "HEAD" if changed_files("HEAD") else "HEAD~1"


def _git(*arguments: str, fails: bool = False) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=not fails)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


class Suites:
    """The tests of a tree that are quick, by name and by what they import."""

    def __init__(self, tests: Path) -> None:
        self._tests = tests
        self._files = sorted(path for suite in QUICK for path in (tests / suite).rglob("*.py"))
        self._imports = {path: set(_imported(path.read_text())) for path in self._files}

    def of_changes(self, changed: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return the arguments for pytest, relative to tests/, and the changed tests that are not run."""
        chosen = {self._tests / ALWAYS}
        left_out = []
        for name in changed:
            path = PurePosixPath(name)
            if path.parts[0] == "warren" and len(path.parts) > 2:
                chosen |= self._of_source(path)
            elif path.parts[0] == "tests" and path.suffix == ".py":
                chosen |= self._of_test(self._tests.parent / name)
                if path.parts[1] not in QUICK and path.name.startswith("test_"):
                    left_out.append(name)
        folders = {path for path in chosen if path.is_dir()}
        kept = folders | {path for path in chosen if not folders.intersection(path.parents)}
        return sorted(str(path.relative_to(self._tests)) for path in kept), left_out

    def _of_source(self, path: PurePosixPath) -> set[Path]:
        stem = path.stem
        folder = self._tests / "unit" / path.parts[1]
        module = ".".join(path.with_suffix("").parts)
        mirror = self._tests_in(folder)
        own = {file for file in mirror if _is_named(file, stem) or module in self._imports[file]}
        shared = self._tests_in(self._tests / "conformance") + self._tests_in(self._tests / "property")
        named = {file for file in shared if _is_named(file, stem) or _is_named(file, path.parts[1].removesuffix("s"))}
        return named | (own or ({folder} if mirror else set()))

    def _of_test(self, path: Path) -> set[Path]:
        if path.name.startswith("test_"):
            return {path} if path in self._imports else set()
        return {
            file
            for file in self._files
            if file.name.startswith("test_") and any(path.stem in name.split(".") for name in self._imports[file])
        }

    def _tests_in(self, folder: Path) -> list[Path]:
        return [file for file in self._files if folder in file.parents and file.name.startswith("test_")]


def _is_named(test: Path, subject: str) -> bool:
    return re.fullmatch(rf"test_{re.escape(subject)}s?(_\w+)?\.py", test.name) is not None


def _imported(source: str) -> Iterable[str]:
    """Yield the modules that a source names in its imports; for ``from a import b`` both ``a`` and ``a.b``."""
    for module, names in re.findall(r"^[ \t]*from ([\w.]+) import (\([^)]*\)|[^\n]*)", source, re.MULTILINE):
        yield module
        for name in re.findall(r"\w+", names):
            yield f"{module}.{name}"
    yield from re.findall(r"^[ \t]*import ([\w.]+)", source, re.MULTILINE)


def added_tests(base: str) -> tuple[list[str], list[str]]:
    """Return the ids of test functions that are not so at `base`, relative to tests/, and those that are not run."""
    added: list[str] = []
    left_out: list[str] = []
    for name in changed_files(base):
        path = PurePosixPath(name)
        if path.parts[0] != "tests" or not path.name.startswith("test_") or not (ROOT / name).exists():
            continue
        before = "\n".join(_git("show", f"{base}:{name}", fails=True))
        ids = [f"{path.relative_to('tests')}::{test}" for test in new_tests(before, (ROOT / name).read_text())]
        (added if path.parts[1] in IN_ONE_PROCESS else left_out).extend(ids)
    return added, left_out


def new_tests(before: str, after: str) -> list[str]:
    """Return the names of test functions of a source, ``Class::name`` in classes, that it did not have so `before`."""
    known = _tests_of(before)
    return [name for name, text in _tests_of(after).items() if known.get(name) != text]


def _tests_of(source: str) -> dict[str, str]:
    """Return the test functions of a source by name, with their decorators, without comments and layout."""
    found = {}
    for node in ast.parse(source).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        for each in inside:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_"):
                prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
                found[prefix + each.name] = ast.dump(each)
    return found


def main() -> None:
    """Print the arguments."""
    parser = argparse.ArgumentParser(description="Print the tests of what changed, as arguments for pytest in tests/.")
    parser.add_argument("base", nargs="?", help="a commit")
    parser.add_argument("--added", action="store_true", help="only test functions that are new or different")
    asked = parser.parse_args()
    base = asked.base or default_base()
    if asked.added:
        chosen, left_out = added_tests(base)
    else:
        chosen, left_out = Suites(ROOT / "tests").of_changes(changed_files(base))
    if left_out:
        print("changed, and not run here:", *left_out, file=sys.stderr)
    print(*chosen)


if __name__ == "__main__":
    main()
