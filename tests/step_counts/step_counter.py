"""Counts the work of the engine exactly: an import hook that has the modules of ``warren`` count what they do.

A module is loaded from its source, with calls put into its syntax tree. One step is

    each call of a function, each turn of a loop or comprehension
    eight elements that C looks at or copies at once: a slice, ``in`` on a list, ``list(x)``, ``sorted(x)``,
    ``x.remove(...)``, ``x.insert(...)``, ``insort(x, ...)``, ``b"".join(x)``, ``del x[:n]``, ``a + b`` of lists or
    bytes

1. The same input gives the same number, on every machine and every version of Python that runs the source.
2. The counts come from the source, so a compiled package is measured too: by its source.
3. Not counted: dict and set look-ups (part of the step that does them), and the work of the runtime itself (memory,
   hash tables that grow). Code that frees much at once has to be found another way.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import deque
from collections.abc import Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

# Methods of lists, deques and bytes that take time for each element of the object, or of their argument.
_WHOLE_OBJECT = ("remove", "insert", "index", "copy", "sort", "reverse", "count")
_WHOLE_ARGUMENT = ("extend", "update", "join", "intersection", "union")
_BUILTINS = ("list", "tuple", "set", "dict", "frozenset", "sorted", "sum", "min", "max", "any", "all", "heapify")
_LINEAR = (list, tuple, deque, bytes, bytearray, str)
_SIZED = (*_LINEAR, dict, set, frozenset)


class Count:
    """How many eighths of a step there were."""

    __slots__ = ("eighths",)

    def __init__(self) -> None:
        self.eighths = 0


COUNT = Count()


def tick() -> None:
    """Count one step."""
    COUNT.eighths += 8


def looked_at(found: Any) -> Any:
    """Count each element of `found`, and return it."""
    if isinstance(found, _SIZED) or type(found).__name__.startswith("dict_"):
        COUNT.eighths += len(found)
    return found


def contained(container: Any) -> Any:
    """Count what ``in`` looks at in `container` at worst, and return it."""
    if isinstance(container, (list, tuple, deque)):
        COUNT.eighths += len(container)
    return container


def copied(found: Any) -> Any:
    """Count what a slice or a sum has copied, and return it."""
    if type(found) is int:
        return found  # most sums
    if isinstance(found, _LINEAR):
        COUNT.eighths += len(found) if isinstance(found, (list, tuple, deque)) else len(found) >> 6
    return found


def argument(found: Any) -> Any:
    """Count the elements of the argument of a function in C, and return it."""
    return looked_at(found)


def popped_at(owner: Any) -> Any:
    """Count what moves when something is taken out of the middle of `owner`, and return it."""
    if isinstance(owner, list):
        COUNT.eighths += len(owner)
    return owner


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


class _Counting(ast.NodeTransformer):
    def _call(self, name: str, *arguments: ast.expr) -> ast.Call:
        return ast.Call(ast.Name(f"_work_{name}", ast.Load()), list(arguments), [])

    def _ticking(self, body: list[ast.stmt]) -> list[ast.stmt]:
        at = 0
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            at = 1  # a docstring
        # In place: there are more of them than of anything else, and a call takes three times as long.
        eighths = ast.Attribute(ast.Name("_work_count", ast.Load()), "eighths", ast.Store())
        return [*body[:at], ast.AugAssign(eighths, ast.Add(), ast.Constant(8)), *body[at:]]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.body = self._ticking(node.body)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.body = self._ticking(node.body)
        return node

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        node.body = self._ticking(node.body)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.body = self._ticking(node.body)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        node.body = self._ticking(node.body)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        # ``tick()`` is None, and so the condition holds.
        node.ifs.insert(0, ast.Compare(self._call("tick"), [ast.Is()], [ast.Constant(None)]))
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for at, operator in enumerate(node.ops):
            if isinstance(operator, (ast.In, ast.NotIn)):
                node.comparators[at] = self._call("contained", node.comparators[at])
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load):
            return self._call("copied", node)
        return node

    def visit_Delete(self, node: ast.Delete) -> ast.AST:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                target.value = self._call("popped_at", target.value)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add) or _is_number(node.left) or _is_number(node.right):
            return node
        return self._call("copied", node)

    def visit_List(self, node: ast.List) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            for starred in node.elts:
                if isinstance(starred, ast.Starred):
                    starred.value = self._call("argument", starred.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func
        if isinstance(name, ast.Name) and name.id in _BUILTINS and len(node.args) == 1:
            if not isinstance(node.args[0], ast.Starred):
                node.args[0] = self._call("argument", node.args[0])
        elif isinstance(name, ast.Name) and name.id.startswith("insort"):
            node.args[0] = self._call("popped_at", node.args[0])
        elif isinstance(name, ast.Attribute):
            if name.attr in _WHOLE_OBJECT or (name.attr == "pop" and len(node.args) == 1):
                name.value = self._call("popped_at", name.value)
            elif name.attr in _WHOLE_ARGUMENT and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
                node.args[0] = self._call("argument", node.args[0])
        return node


class _Loader(SourceLoader):
    def __init__(self, path: str) -> None:
        self._path = path

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        tree = _Counting().visit(ast.parse(data, path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def path_stats(self, path: str) -> Any:
        raise OSError  # nothing is read from, or written to, the cache of byte code

    def exec_module(self, module: ModuleType) -> None:
        for counter in (tick, looked_at, contained, copied, argument, popped_at):
            setattr(module, f"_work_{counter.__name__}", counter)
        setattr(module, "_work_count", COUNT)  # noqa: B010 - a module has no such attribute in its types
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "warren" and not fullname.startswith("warren."):
            return None
        found = PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None:
            return found
        source = Path(found.origin)
        if source.suffix == ".so":
            source = source.parent / f"{fullname.rpartition('.')[2]}.py"
        return spec_from_loader(
            fullname,
            _Loader(str(source)),
            is_package=found.submodule_search_locations is not None,
        )


def install() -> None:
    """Make everything of ``warren`` that is imported from now on count its work."""
    assert not any(name == "warren" or name.startswith("warren.") for name in sys.modules), "warren is imported already"
    sys.meta_path.insert(0, _Finder())
    gc.set_threshold(100_000, 20, 100)  # engines of thousands of things live shortly, and whole
