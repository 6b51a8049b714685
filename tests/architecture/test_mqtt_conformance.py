"""The statements of MQTT 5 in docs/mqtt-conformance.md, each with a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "mqtt-conformance.md"
ROW = re.compile(r"^\| MQTT-(\d+\.\d+\.\d+-\d+) \| .+ \| `([\w/]+\.py)::(\w+)` \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str]]:
    return ROW.findall(PAGE.read_text())


def test_each_statement_has_a_test_that_exists() -> None:
    found = rows()
    assert len(found) == PAGE.read_text().count("::") > 100, "a row of another form"
    for file in {each[1] for each in found}:
        tree = ast.parse((TESTS / file).read_text())
        there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        named = {each[2] for each in found if each[1] == file}
        assert named <= there, f"{file} has no {sorted(named - there)}"


def test_statements_are_there_once_and_in_order() -> None:
    ids = [each[0] for each in rows()]
    numbers = [[int(part) for part in re.split(r"[.-]", each)] for each in ids]
    assert numbers == sorted(numbers)
    assert len(set(ids)) == len(ids)
