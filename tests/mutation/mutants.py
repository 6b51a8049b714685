"""The mutants of a module: one small change of its syntax each, as a person might get it wrong.

Strings, type hints, decorators, assertions with what only they need, and what is written to the log are left alone,
and so is what would fail wherever it is reached: the first assignment of a name or attribute.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from .statements import blocks, is_docstring, statements

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
# Larger numbers that a module, a class or a parameter has given a name are sizes and times, which may be one more.
NAMED_MAX: Final = 9
# Assertions of their own.
CHECKS: Final = {"check_invariants", "check_numbers"}
# Methods whose calls are texts for operators.
LOGGING: Final = {"note"}
HINTS: Final = {"cast", "TypeVar", "NewType", "TypedDict", "NamedTuple"}


@dataclass(frozen=True)
class Mutant:
    """The bytes `begin` to `end` of the module at `path` (in the package) become `new`.

    `statement` is the number of the statement that it is in, or -1: then `names` are those that the statement gives.
    """

    path: str
    line: int
    column: int
    kind: str
    begin: int
    end: int
    old: str
    new: str
    statement: int
    names: tuple[str, ...]

    def applied(self, source: bytes) -> bytes:
        return source[: self.begin] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line}:{self.column} {self.kind}: {old[:100]}  ->  {new[:100]}"


def mutants(path: str, text: str) -> list[Mutant]:
    """Return all mutants of the module, in the order of their places."""
    tree = ast.parse(text)
    found = list(_Finder(path, text, tree).find())
    return sorted(found, key=lambda each: (each.begin, each.end, each.kind, each.new))


class _Finder:
    """Walks over a module; `_statement` and `_names` are where it is."""

    def __init__(self, path: str, text: str, tree: ast.Module) -> None:
        self._path = path
        self._tree = tree
        self._source = text.encode()
        starts = [0]
        for line in self._source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts
        self._numbers = {id(each): number for number, each in enumerate(statements(tree))}
        self._statement = -1
        self._names: tuple[str, ...] = ()
        self._types: dict[str, str] = {}
        self._is_constructor = False
        self._is_default = False

    def find(self) -> Iterator[Mutant]:
        for statement in self._tree.body:
            yield from self._statement_mutants(statement)

    def _mutant(self, kind: str, old: ast.expr | ast.stmt, new: ast.expr | ast.stmt) -> Mutant:
        assert old.end_lineno is not None and old.end_col_offset is not None
        begin = self._starts[old.lineno - 1] + old.col_offset
        end = self._starts[old.end_lineno - 1] + old.end_col_offset
        text = ast.unparse(new)
        if isinstance(new, ast.BoolOp | ast.Compare | ast.UnaryOp):
            text = f"({text})"
        was = self._source[begin:end].decode()
        place = self._path, old.lineno, old.col_offset + 1
        return Mutant(*place, kind, begin, end, was, text, self._statement, self._names)

    def _statement_mutants(self, node: ast.stmt) -> Iterator[Mutant]:
        if (
            isinstance(node, ast.Import | ast.ImportFrom)
            or is_docstring(node)
            or _is_assertion(node)
            or _is_logging(node)
        ):
            return
        around = (self._statement, self._names, self._types, self._is_constructor)
        self._statement = self._numbers.get(id(node), -1)
        if self._statement < 0:
            self._names = self._names or _names_given(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._function_mutants(node)
        else:
            yield from self._dropped(node)
            yield from self._branches(node)
            for child in [] if isinstance(node, ast.ClassDef) else ast.iter_child_nodes(node):
                if isinstance(child, ast.expr) and child is not getattr(node, "annotation", None):
                    yield from self._expression_mutants(child)
            for block in blocks(node):
                for statement in block:
                    yield from self._statement_mutants(statement)
        self._statement, self._names, self._types, self._is_constructor = around

    def _function_mutants(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Mutant]:
        if node.name in CHECKS:
            return
        self._types = _types(node)
        self._is_constructor = node.name == "__init__"
        # The defaults are used by the body.
        self._statement = self._numbers[id(node.body[0])]
        self._is_default = True
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                yield from self._expression_mutants(default)
        self._is_default = False
        for statement in node.body:
            yield from self._statement_mutants(statement)

    def _dropped(self, node: ast.stmt) -> Iterator[Mutant]:
        """The statement is not there."""
        if self._statement < 0:
            return
        match node:
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Raise():
                is_droppable = True
            case ast.Return() | ast.Break() | ast.Continue():
                is_droppable = True
            case ast.Assign(targets=targets):
                is_droppable = not self._is_constructor and all(
                    isinstance(each, ast.Attribute | ast.Subscript) for each in targets
                )
            case _:
                is_droppable = False
        if is_droppable:
            yield self._mutant("dropped", node, ast.Pass())

    def _branches(self, node: ast.stmt) -> Iterator[Mutant]:
        """One branch of an `if` is never taken."""
        if isinstance(node, ast.If) and self._statement >= 0:
            yield self._mutant("never", node.test, ast.Constant(False))
            if node.orelse:
                yield self._mutant("always", node.test, ast.Constant(True))

    def _expression_mutants(self, node: ast.expr) -> Iterator[Mutant]:
        yield from self._changed(node)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and _name(node.func) in HINTS):
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._expression_mutants(child)
            elif isinstance(child, ast.keyword):
                yield from self._expression_mutants(child.value)
            elif isinstance(child, ast.comprehension):
                for part in (child.iter, *child.ifs):
                    yield from self._expression_mutants(part)

    def _changed(self, node: ast.expr) -> Iterator[Mutant]:
        match node:
            case ast.Compare(ops=[operator]):
                new = copy.copy(node)
                new.ops = [COMPARISONS[type(operator)]()]
                yield self._mutant("comparison", node, new)
            case ast.BoolOp(op=operator, values=values):
                other = ast.And() if isinstance(operator, ast.Or) else ast.Or()
                yield self._mutant("and/or", node, ast.BoolOp(other, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._mutant("no not", node, operand)
            case ast.Constant(value=bool(value)):
                yield self._mutant("true/false", node, ast.Constant(not value))
            case ast.Constant(value=int(value)) if value <= NAMED_MAX or (
                self._statement >= 0 and not self._is_default
            ):
                yield self._mutant("one more", node, ast.Constant(value + 1))
                yield self._mutant("one less", node, ast.Constant(value - 1))
            case ast.IfExp(body=body, orelse=orelse):
                yield self._mutant("always", node, body)
                yield self._mutant("never", node, orelse)
            case ast.Call(args=[*arguments]):
                yield from self._swapped(node, arguments)
            case _:
                pass

    def _swapped(self, node: ast.Call, arguments: list[ast.expr]) -> Iterator[Mutant]:
        """Two arguments beside each other that are of one type, as far as the function says, change places."""
        for place, (left, right) in enumerate(pairwise(arguments)):
            kind = self._type(left)
            if kind is not None and kind == self._type(right) and ast.dump(left) != ast.dump(right):
                new = copy.copy(node)
                new.args = [*arguments[:place], right, left, *arguments[place + 2 :]]
                yield self._mutant("swapped", node, new)

    def _type(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant):
            return type(node.value).__name__
        return self._types.get(node.id) if isinstance(node, ast.Name) else None


def _types(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    """Return the type of each parameter and local variable that says it."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    types = {each.arg: ast.unparse(each.annotation) for each in arguments if each.annotation is not None}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            types[node.target.id] = ast.unparse(node.annotation)
    return {name: "int" if kind == "i64" else kind for name, kind in types.items()}


def _names_given(node: ast.stmt) -> tuple[str, ...]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return tuple(each.id for each in targets if isinstance(each, ast.Name))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_assertion(node: ast.stmt) -> bool:
    """Tell whether it says what is never so, that a method is overridden for instance."""
    raised = node.exc if isinstance(node, ast.Raise) else None
    name = _name(raised.func if isinstance(raised, ast.Call) else raised) if raised is not None else ""
    return isinstance(node, ast.Assert) or name in ("AssertionError", "NotImplementedError")


def _is_logging(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value.func) in LOGGING
