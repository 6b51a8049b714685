"""A page that says something else than what happens is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import WarrenProcess

from .page import Command, Reader, differs, read_page

PROGRAMS = """# A page
```python
# echo.py
import sys
# Here
print(*sys.argv[1:])
```
```python
# forever.py
import signal
print("ready\\none")
signal.pause()
```
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def follow(tmp_path: Path, broker: WarrenProcess, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(PROGRAMS + text)
    Reader(read_page(path), tmp_path, broker).follow()


def test_a_page_is_taken_apart_at_its_headings(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PROGRAMS + "## A\n```console\n$ python echo.py\n$ a\nb\n^C\n```\n## B\n```console\n$ c\n```\n")
    page = read_page(path)
    assert set(page.programs) == {"echo.py", "forever.py"}
    first = [Command("python echo.py", ()), Command("a", ("b",), is_interrupted=True)]
    assert page.sections == [first, [Command("c", ())]]


def test_a_page_that_is_right_passes(tmp_path: Path, broker: WarrenProcess) -> None:
    follow(tmp_path, broker, "```console\n$ python forever.py\nready\none\n^C\n```\n")
    forever = "```console\n$ python forever.py\nready\none\n^C\n```\n"
    follow(tmp_path, broker, forever + forever)
    follow(tmp_path, broker, "```console\n$ python forever.py\n…\none\n…\n^C\n```\n")
    follow(tmp_path, broker, "```console\n$ python echo.py in 1 s, a b\nin 7.5 s, …\n```\n")


@pytest.mark.parametrize(
    "terminal",
    [
        "$ python echo.py one\ntwo\n",
        "$ python echo.py one\n",
        "$ python echo.py\none\n",
        "$ python forever.py\nready\n^C\n",
        "$ python forever.py\nready\ntwo\n^C\n",
        "$ python forever.py\nready\none\n^C\n```\n```console\n$ python forever.py\nready\ntwo\n^C\n",
    ],
)
def test_a_page_that_is_wrong_fails(tmp_path: Path, broker: WarrenProcess, terminal: str) -> None:
    with pytest.raises(AssertionError):
        follow(tmp_path, broker, f"```console\n{terminal}```\n")


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("a", "b"),
        ("3 messages", "4 messages"),
        ("a… c", "a b"),
        ("a.c", "abc"),
        ("took 3 s", "took 3 h"),
        ("…\nb", "a"),
    ],
)
def test_lines_that_differ_are_told_apart(expected: str, printed: str) -> None:
    assert differs(expected.splitlines(), printed.splitlines())


@pytest.mark.parametrize(("expected", "printed"), [("a  b", "a\tb"), ("a … c", "a b c"), ("4,200/s", "17/s")])
def test_what_may_differ_may(expected: str, printed: str) -> None:
    assert not differs(expected.splitlines(), printed.splitlines())
