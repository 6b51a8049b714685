"""What a user may set or meet has a line in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from warren.amqp.errors import REPLY_NAMES
from warren.server.settings import KEYS

DOCS = Path(__file__).parents[2] / "docs"


def text_of(name: str) -> str:
    path = DOCS / name
    assert path.exists(), f"docs/{name} is missing"
    return path.read_text()


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_is_documented(key: str) -> None:
    assert re.search(rf"`{re.escape(key)}`", text_of("configuration.md")), f"{key} has no line in docs/configuration.md"


def test_no_setting_is_documented_that_does_not_exist() -> None:
    sections = {key.partition(".")[0] for key in KEYS if "." in key}
    named = re.findall(r"`([a-z_]+\.[a-z_]+)`", text_of("configuration.md"))
    assert [name for name in named if name.partition(".")[0] in sections and name not in KEYS] == []


@pytest.mark.parametrize("code", sorted(REPLY_NAMES))
def test_every_reply_code_is_documented(code: int) -> None:
    """In any page: a line with the number, and its name as it stands in reply texts."""
    pages = [path.read_text() for path in sorted(DOCS.rglob("*.md")) if path.name != "conformance.md"]
    lines = [line for page in pages for line in page.splitlines() if re.search(rf"\b{code}\b", line)]
    assert any(REPLY_NAMES[code] in line for line in lines), f"no page has a line for {code} {REPLY_NAMES[code]}"
