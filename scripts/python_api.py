"""Write the reference of the Python packages that users import, out of their signatures and docstrings.

    scripts/python_api.py FILE

`make docs` does that. The sources are read, not imported, so nothing has to be installed for it.
"""

from __future__ import annotations

import argparse
import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = {
    "warren.testing": "[Testing with Warren](testing-with-warren.md) is the guide.",
    "warren.spark_bridge": "[Spark](spark.md) and [writing from Spark](spark-writing.md) are the guides.",
    "warren.lake": "[Tables that follow](lake.md) and [SQL](sql.md) are the guides.",
}
HEAD: Final = """# Python packages

What programs may import, with signatures and docstrings; everything else may change in any version. For publishers and
consumers use any client of AMQP ([clients.md](clients.md)). The management API is described
[route by route](api.md), and as OpenAPI at [`/api/openapi.json`](http://127.0.0.1:15672/api/openapi.json) of a running
broker, which shows it at [`/api/docs`](http://127.0.0.1:15672/api/docs).
"""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Defined = ast.ClassDef | _Function


def page(root: Path = ROOT) -> str:
    """Return the page."""
    parts = [HEAD]
    for package, guide in PACKAGES.items():
        place = root / package.replace(".", "/")
        tree = ast.parse((place / "__init__.py").read_text())
        parts.append(f"## {package}\n\n{_paragraph(tree)} {guide}\n")
        parts += [_entry(name, _home(name, tree, root)) for name in _exported(tree)]
    return "\n".join(parts)


def _exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise ValueError("a package without __all__")


def _home(name: str, tree: ast.Module, root: Path) -> ast.Module:
    """Return the module that defines a name, which `tree` may only import."""
    if any(isinstance(node, _Defined) and node.name == name for node in tree.body):
        return tree
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            path = (root / str(node.module).replace(".", "/")).with_suffix(".py")
            return _home(name, ast.parse(path.read_text()), root)
    raise ValueError(f"{name} is not defined, and not imported")


def _entry(name: str, module: ast.Module) -> str:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class(node)
        if isinstance(node, _Function) and node.name == name:
            return f"### {name}\n\n{_code(_signature(node))}\n\n{_text(node)}\n"
    raise ValueError(f"{name} is not a class or a function")


def _class(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    lines = [f"class {node.name}({bases})" if bases else f"class {node.name}"]
    methods = list(_methods(node))
    lines += [f"    {_signature(each)}" for each in methods if each.name == "__init__"]
    lines += [f"    {ast.unparse(each)}" for each in node.body if _is_field(each)]
    parts = [f"### {node.name}", _code("\n".join(lines)), _text(node)]
    for each in methods:
        if each.name != "__init__":
            parts += [f"#### {node.name}.{each.name}", _code(_signature(each)), _text(each)]
        elif ast.get_docstring(each):
            parts.append(_text(each))
    return "\n\n".join(parts) + "\n"


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_"


def _methods(node: ast.ClassDef) -> Iterator[_Function]:
    """Yield the constructor and the public methods, without those that another library describes (`setUp`)."""
    for each in node.body:
        is_public = isinstance(each, _Function) and each.name[0] != "_" and ast.get_docstring(each) is not None
        if isinstance(each, _Function) and (is_public or each.name == "__init__"):
            yield each


def _signature(node: _Function) -> str:
    kinds = [ast.unparse(each) for each in node.decorator_list]
    before = "".join(f"@{kind} " for kind in kinds if kind in ("property", "classmethod", "staticmethod"))
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{before}{word} {node.name}({ast.unparse(node.args)}){returns}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _text(node: ast.ClassDef | _Function) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "").replace("``", "`")


def _paragraph(tree: ast.Module) -> str:
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the reference of the Python packages.")
    parser.add_argument("file", type=Path)
    parser.parse_args().file.write_text(page())
