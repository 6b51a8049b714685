"""All names that comments and docstrings cite exist: one in single backquotes is of the package, or of a library."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2] / "warren"
CITED: Final = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
# A literal of more characters is a text, and no name.
NAME_LENGTH_MAX: Final = 60
OF_LIBRARIES: Final = {"SSLObject", "getpeercert"}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield what has a name in `tree`; also what is named by a literal, a command or a field of JSON for instance."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name, asname=given):
                yield from (given or name).split(".")
            case ast.Constant(value=str(name)) if len(name) <= NAME_LENGTH_MAX:
                yield name


def test_the_names_that_a_header_cites_exist() -> None:
    paths = sorted(ROOT.rglob("*.py"))
    known = set(OF_LIBRARIES)
    for path in paths:
        known.update(path.relative_to(ROOT).with_suffix("").parts)
        known.update(names_in(ast.parse(path.read_text())))
    unknown = [
        f"{path.relative_to(ROOT)}:{number}: {cited}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for cited in CITED.findall(line)
        if not known.issuperset(cited.split("."))
    ]
    assert not unknown
