"""The statements of protocols in docs/…-conformance.md, each with a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
ROW = re.compile(r"^\| (.+?) \| .+ \| `([\w/]+\.py)::(\w+)` \|$", re.MULTILINE)
MQTT = re.compile(r"MQTT-(\d+\.\d+\.\d+-\d+)")
# And how many statements there are at least.
PAGES = {"mqtt-conformance.md": 100, "amqp10-conformance.md": 60, "stomp-conformance.md": 50}


def rows(page: str) -> list[tuple[str, str, str]]:
    return ROW.findall((DOCS / page).read_text())


@pytest.mark.parametrize("page", PAGES)
def test_each_statement_has_a_test_that_exists(page: str) -> None:
    found = rows(page)
    assert len(found) == (DOCS / page).read_text().count("::") > PAGES[page], "a row of another form"
    for file in {each[1] for each in found}:
        tree = ast.parse((TESTS / file).read_text())
        there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        named = {each[2] for each in found if each[1] == file}
        assert named <= there, f"{file} has no {sorted(named - there)}"


def test_statements_of_mqtt_are_there_once_and_in_order() -> None:
    found = [MQTT.fullmatch(each[0]) for each in rows("mqtt-conformance.md")]
    numbers = [[int(part) for part in re.split(r"[.-]", each[1])] for each in found if each is not None]
    assert len(numbers) == len(found) and numbers == sorted(numbers)
    assert len(set(map(tuple, numbers))) == len(numbers)
