"""`make check` finds the tests of what changed (`scripts/changed_tests.py`)."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "changed_tests.py"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return the tests/ of a small tree."""
    files = {
        "unit/queues/test_delay.py": "",
        "unit/queues/test_delay_pages.py": "",
        "unit/queues/test_timers.py": "from warren.queues import delay, lanes\n",
        "unit/queues/test_rules.py": "from warren.queues.rules import (\n    Rules,\n)\nfrom harness import Harness\n",
        "unit/server/test_delay.py": "",
        "conformance/test_delay.py": "import harness\n",
        "conformance/test_delays_of_old.py": "",
        "conformance/test_queue_arguments.py": "",
        "conformance/test_basic.py": "",
        "property/test_rules.py": "",
        "integration/test_delay.py": "import harness\n",
        "harness.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tests"


BEFORE = """
@pytest.mark.parametrize("n", [1])
def test_same(n): ...
def test_changed(): assert 1
class TestMany:
    def test_inside(self): ...
def helper(): ...
"""
AFTER = """
@pytest.mark.parametrize("n", [1])
def test_same(n):
    ...  # a comment
def test_changed(): assert 2
class TestMany:
    def test_inside(self): ...
    async def test_new_inside(self): ...
def helper(): return 1
def test_new(): ...
"""


def test_only_tests_that_are_new_or_say_something_else_count_as_added() -> None:
    assert SCRIPT["new_tests"](BEFORE, AFTER) == ["test_changed", "TestMany::test_new_inside", "test_new"]
    assert SCRIPT["new_tests"]("", BEFORE) == ["test_same", "test_changed", "TestMany::test_inside"]
    assert SCRIPT["new_tests"](BEFORE, BEFORE.replace("[1]", "[1, 2]")) == ["test_same"]


QUEUES = "conformance/test_queue_arguments.py"


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        (
            "warren/queues/delay.py",
            {
                "conformance/test_delay.py",
                "conformance/test_delays_of_old.py",
                "unit/queues/test_timers.py",
                "unit/queues/test_delay.py",
                "unit/queues/test_delay_pages.py",
                QUEUES,
            },
        ),
        ("warren/queues/rules.py", {"unit/queues/test_rules.py", "property/test_rules.py", QUEUES}),
        ("warren/queues/places.py", {"unit/queues", QUEUES}),
        ("warren/spark_bridge/frames.py", set()),
        ("warren/__init__.py", set()),
        ("tests/harness.py", {"unit/queues/test_rules.py", "conformance/test_delay.py"}),
        ("tests/unit/server/test_delay.py", {"unit/server/test_delay.py"}),
        ("tests/unit/server/test_deleted.py", set()),
        ("docs/queues.md", set()),
    ],
)
def test_the_tests_of_a_file_are_those_of_its_name_and_those_that_import_it(
    tree: Path, changed: str, chosen: set[str]
) -> None:
    assert SCRIPT["Suites"](tree).of_changes([changed]) == (sorted({"architecture", *chosen}), [])


def test_tests_in_a_folder_that_is_run_are_not_named_twice(tree: Path) -> None:
    chosen, _ = SCRIPT["Suites"](tree).of_changes(["warren/queues/places.py", "warren/queues/rules.py"])
    assert chosen == ["architecture", QUEUES, "property/test_rules.py", "unit/queues"]


def test_changed_tests_that_start_brokers_are_named_and_not_run(tree: Path) -> None:
    changed = ["tests/integration/test_delay.py"]
    assert SCRIPT["Suites"](tree).of_changes(changed) == (["architecture"], changed)


def test_each_package_of_the_broker_has_tests_that_are_found() -> None:
    """`testing` has its tests in integration/testing_kit."""
    suites = SCRIPT["Suites"](ROOT / "tests")
    packages = [path.name for path in (ROOT / "warren").iterdir() if (path / "__init__.py").exists()]
    without = [name for name in packages if len(suites.of_changes([f"warren/{name}/nothing.py"])[0]) == 1]
    assert without == ["testing"]
