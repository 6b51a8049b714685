"""The scripts of the management pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import warren.mgmt_plugin

SCRIPTS = Path(warren.mgmt_plugin.__file__).parent / "static" / "js"
# What makes elements of a text: a name of a queue would be obeyed, not shown.
MAKES_ELEMENTS = re.compile(
    r"[iI]nnerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|\beval\("
)


@pytest.mark.parametrize("script", sorted(SCRIPTS.rglob("*.js")), ids=lambda path: str(path.relative_to(SCRIPTS)))
def test_texts_are_shown_as_text_and_make_no_elements(script: Path) -> None:
    assert not MAKES_ELEMENTS.search(script.read_text())
