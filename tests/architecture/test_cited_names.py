"""All names that comments and docstrings cite exist: one in single backquotes is of the package, or of a library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2] / "warren"
CITED: Final = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
NAME: Final = re.compile(r"[A-Za-z_]\w*")
DOCSTRING: Final = re.compile(r'"""[\s\S]*?"""')
COMMENT: Final = re.compile(r"(?m)(?:^|(?<=\s))#\s.*$")
LITERAL: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")
OF_LIBRARIES: Final = {"SSLObject", "getpeercert"}


def names_in(text: str) -> set[str]:
    """Return what has a name in a source; also what is named by a literal, a command or a field of JSON for instance.

    Without a syntax tree: that takes ten times as long for the whole package.
    """
    return set(NAME.findall(LITERAL.sub(_without_prose, COMMENT.sub("", DOCSTRING.sub("", text)))))


def _without_prose(literal: re.Match[str]) -> str:
    """Return a literal that is a name, of others only the expressions in them."""
    found = literal[0]
    return found if " " not in found else " ".join(EXPRESSION.findall(found))


def test_the_names_that_a_header_cites_exist() -> None:
    paths = sorted(ROOT.rglob("*.py"))
    known = set(OF_LIBRARIES)
    for path in paths:
        known.update(path.relative_to(ROOT).with_suffix("").parts)
        known |= names_in(path.read_text())
    unknown = [
        f"{path.relative_to(ROOT)}:{number}: {cited}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for cited in CITED.findall(line)
        if not known.issuperset(cited.split("."))
    ]
    assert not unknown
