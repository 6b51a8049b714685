"""The scripts of the management pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import warren.mgmt_plugin

SCRIPTS = Path(warren.mgmt_plugin.__file__).parent / "static" / "js"
# Calls that make elements of a text: they would interpret a queue's name instead of showing it.
MAKES_ELEMENTS = re.compile(
    r"[iI]nnerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|\beval\("
)
# Of the vendors' scripts too, which are minified.
IMPORTS = re.compile(r"""^(?:import|export)\s?[^;]*?from\s?['"](\.[^'"]+)""", re.MULTILINE)


@pytest.mark.parametrize("script", sorted(SCRIPTS.rglob("*.js")), ids=lambda path: str(path.relative_to(SCRIPTS)))
def test_texts_are_shown_as_text_and_make_no_elements(script: Path) -> None:
    assert not MAKES_ELEMENTS.search(script.read_text())


def imported_by(script: Path) -> set[Path]:
    """Return the scripts that a script imports when it is loaded, and what they import, itself included."""
    found: set[Path] = set()
    waiting = [script]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            imports = IMPORTS.findall(path.read_text())
            waiting += [(path.parent / name).resolve() for name in imports]
    return found


def test_all_that_the_first_page_imports_is_fetched_at_once() -> None:
    page = (SCRIPTS.parent / "index.html").read_text()
    preloaded = re.findall(r'<link rel="modulepreload" href="([^"]+)">', page)
    preloaded += re.findall(r'<script src="([^"]+)" type="module">', page)
    static = SCRIPTS.parent.resolve()
    wanted = {str(path.relative_to(static)) for path in imported_by(static / "js" / "main.js")}
    assert sorted(preloaded) == sorted(wanted)
