"""The examples of docs/testing-with-warren.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import warren.testing
from warren.testing import (
    Broker,
    BrokerTestCase,
    ConnectionView,
    PublishedMessage,
    QueuedMessage,
    QueueView,
    WarrenProcess,
)
from warren.testing.assertions import Assertions

from .test_plugin import run

PAGE = (Path(__file__).parents[3] / "docs" / "testing-with-warren.md").read_text()
OWNERS = (
    Broker,
    Assertions,
    BrokerTestCase,
    WarrenProcess,
    QueueView,
    ConnectionView,
    PublishedMessage,
    QueuedMessage,
)
EXAMPLES = {
    block.split()[1].rstrip(","): block
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
}


@pytest.mark.long
def test_the_examples_pass(tmp_path: Path) -> None:
    """All in one session: a process of pytest costs more than most of them."""
    for name, text in EXAMPLES.items():
        (tmp_path / name).write_text(text)
    output = run(tmp_path)
    tests = [len(re.findall(r"^ *(?:async )?def test_", text, re.MULTILINE)) for text in EXAMPLES.values()]
    assert min(tests) > 0
    assert f"{sum(tests)} passed" in output, output


def test_there_is_an_example_for_each_client() -> None:
    text = "".join(EXAMPLES.values())
    assert all(f"import {module}\n" in text or f"from {module} " in text for module in ("pika", "aio_pika", "celery"))


def test_everything_public_has_a_word() -> None:
    for owner in OWNERS:
        names = {name for name in vars(owner) if not name.startswith("_")}
        names -= {"disk", "tear", "setUpClass", "run"}  # for the parts of the package
        assert sorted(name for name in names if not re.search(rf"\b{name}\b", PAGE)) == [], owner
    assert warren.testing.__doc__ is not None and "docs/testing-with-warren.md" in warren.testing.__doc__
    for option in ("warren_vhosts", "warren_users", "warren_management", "--warren-port"):
        assert option in PAGE
