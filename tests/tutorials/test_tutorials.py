"""The tutorials: every program runs, and everything that a page says is printed is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from broker_process import WarrenProcess

from .page import ROOT, Reader, read_page, require

PAGES = sorted((ROOT / "docs" / "tutorials").glob("[0-9]*.md"))
# Spark gives the workers of a streaming query 10 s to start, whatever its settings: a busy machine may need more.
TOO_SLOW = "failed to connect back"
TRIES = 5
# The first pages are run by `make test`, the others with the long tests.
AT_ONCE = ("1-first-message", "2-work-queues")
HEADINGS = ["What you will have", "What happens in the broker", "What can go wrong", "What next"]


def marks_of(path: Path) -> list[pytest.MarkDecorator]:
    return [] if path.stem in AT_ONCE else [pytest.mark.long]


@pytest.mark.parametrize("path", [pytest.param(path, marks=marks_of(path), id=path.stem) for path in PAGES])
def test_a_tutorial_does_what_it_says(path: Path, tmp_path: Path) -> None:
    if "pyspark" in path.read_text():
        require("java", "openjdk-17-jre-headless")
        pytest.importorskip("pyspark")
    for left in reversed(range(TRIES)):
        directory = tmp_path / str(left)
        try:
            with WarrenProcess(directory / "broker") as broker:
                Reader(read_page(path), directory, broker, environment={"PYSPARK_PYTHON": sys.executable}).follow()
        except AssertionError as error:
            if TOO_SLOW not in str(error) or not left:
                raise
        else:
            return


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_tutorial_uses_each_of_its_programs_and_has_all_parts(path: Path) -> None:
    page = read_page(path)
    typed = " ".join(command.line for section in page.sections for command in section)
    assert page.programs and page.sections
    assert [name for name in page.programs if name not in typed] == []
    headings = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
    assert [heading for heading in HEADINGS if heading not in headings] == []
