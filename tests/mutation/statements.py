"""The statements of functions, numbered: they locate mutants, and tests reach them.

A statement has the same number in every walk over the same text. The statements in a compound statement (`if`, `for`, a
function in a function) have their own numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# The packages whose statements are broken; more of the engine is reached through them, and tested elsewhere.
PACKAGES: Final = ("queues", "exchanges", "channels", "vhosts")


def source_paths(package: Path) -> list[Path]:
    """Return the modules of `PACKAGES` in the package at that path, in the order of their names."""
    return sorted(path for name in PACKAGES for path in (package / name).rglob("*.py"))


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements directly in `node`."""
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value:
            if isinstance(value[0], ast.stmt):
                yield value
            elif isinstance(value[0], ast.excepthandler | ast.match_case):
                for part in value:
                    yield part.body


def blocks_of_functions(tree: ast.AST, is_function: bool = False) -> Iterator[list[ast.stmt]]:
    """Yield every list of statements that is in a function, the outer one before those in it."""
    for block in blocks(tree):
        if is_function:
            yield block
        for statement in block:
            inside = is_function or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from blocks_of_functions(statement, inside)


def statements(tree: ast.Module) -> list[ast.stmt]:
    """Return the statements of functions; a statement's number is its place in this list."""
    return [statement for block in blocks_of_functions(tree) for statement in block]


def is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def with_marks(text: str, first: int) -> str:
    """Return the source with a mark before each statement: `SEEN[first + its number] = 1`."""
    tree = ast.parse(text)
    number = first
    marks: dict[int, ast.stmt] = {}
    for statement in statements(tree):
        marks[id(statement)] = ast.parse(f"__seen__[{number}] = 1").body[0]
        number += 1
    for block in list(blocks_of_functions(tree)):
        block[:] = [each for statement in block for each in _marked(statement, marks[id(statement)])]
    after = sum(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in tree.body)
    after += bool(tree.body) and is_docstring(tree.body[0])
    tree.body[after:after] = ast.parse("from warren.seen_statements import SEEN as __seen__").body
    return ast.unparse(ast.fix_missing_locations(tree))


def _marked(statement: ast.stmt, mark: ast.stmt) -> list[ast.stmt]:
    # A docstring stays the first thing of its function, and a nonlocal name may not be used before it is declared one.
    return [statement, mark] if is_docstring(statement) or isinstance(statement, ast.Nonlocal) else [mark, statement]


def statements_of(text: str) -> list[str]:
    """Return the text of each statement, by number; of a compound one, the text before what it contains."""
    found = []
    for statement in statements(ast.parse(text)):
        inner = [block[0].lineno for block in blocks(statement)]
        lines = text.splitlines()[statement.lineno - 1 : statement.end_lineno]
        found.append("\n".join(lines[: min(inner) - statement.lineno] if inner else lines))
    return found
