"""Imports go one way, and the engine touches neither clock, chance, disk nor network."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "warren"

# Each package with the ones it may import, besides itself.
ARROWS: dict[str, set[str]] = {
    "amqp": set(),
    "exchanges": {"amqp"},
    "queues": {"amqp", "exchanges"},
    "channels": {"amqp", "exchanges", "queues"},
    "server": {"amqp", "exchanges", "queues", "channels"},
    "perf": {"amqp"},
}
ENGINE = ("amqp", "exchanges", "queues", "channels")
# Who may cross, and why.
EXCEPTIONS = {
    ("server/commands.py", "perf"),  # `warren perf` is a command like any other
}
FORBIDDEN_IN_ENGINE = {
    "asyncio",
    "datetime",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "socket",
    "sqlalchemy",
    "ssl",
    "structlog",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "trio",
    "uuid",
}
ALLOWED_OUTSIDERS = {"__future__", "base64", "bisect", "collections", "dataclasses", "decimal", "heapq", "io"} | {
    "itertools",
    "construct",  # the specification written once; only ``amqp/specification.py``
    "librt",
    "mypy_extensions",
    "re2",  # permission patterns
    "typing",
    "urllib",  # quoting, for names in the management API
}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each imported module with its line, those inside functions and behind TYPE_CHECKING included."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            assert node.module is not None
            yield node.module, node.lineno
            for alias in node.names:
                if (ROOT.parent / node.module.replace(".", "/") / alias.name).with_suffix(".py").exists():
                    yield f"{node.module}.{alias.name}", node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            assert name not in ("__import__", "import_module"), f"{path}:{node.lineno}: a hidden import"


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_package_has_its_arrows() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    plugins = {name for name in packages if name.endswith(("_plugin", "_bridge"))}
    assert packages - plugins == set(ARROWS)


@pytest.mark.parametrize("package", ARROWS)
def test_packages_import_along_the_arrows_only(package: str) -> None:
    assert modules(package)
    wrong = []
    for path in modules(package):
        for module, line in imports(path):
            parts = module.split(".")
            if parts[0] != "warren" or len(parts) == 1 or not (ROOT / parts[1]).is_dir():
                continue
            target = parts[1]
            allowed = target == package or target in ARROWS[package] or (relative(path), target) in EXCEPTIONS
            if not allowed:
                wrong.append(f"{relative(path)}:{line} imports {module}")
    assert wrong == []


def test_exceptions_are_in_use() -> None:
    for path, target in EXCEPTIONS:
        assert any(module.startswith(f"warren.{target}") for module, _ in imports(ROOT / path)), (path, target)


def test_nobody_imports_a_plugin() -> None:
    for package in ARROWS:
        for path in modules(package):
            for module, line in imports(path):
                assert not module.startswith(("warren.mgmt_plugin", "warren.spark_bridge")), f"{path}:{line}"


@pytest.mark.parametrize("package", ENGINE)
def test_the_engine_touches_nothing_outside(package: str) -> None:
    wrong = []
    for path in modules(package):
        for module, line in imports(path):
            top = module.split(".")[0]
            if top in FORBIDDEN_IN_ENGINE or (top != "warren" and top not in ALLOWED_OUTSIDERS):
                wrong.append(f"{relative(path)}:{line} imports {module}")
    assert wrong == []


@pytest.mark.parametrize("package", ENGINE)
def test_the_engine_opens_and_prints_nothing(package: str) -> None:
    for path in modules(package):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "print", "input", "eval", "exec", "hash", "id"), (
                    f"{relative(path)}:{node.lineno} calls {node.func.id}"
                )


def test_construct_stays_in_the_specification() -> None:
    users = [relative(path) for path in ROOT.rglob("*.py") if any(name == "construct" for name, _ in imports(path))]
    assert users == ["amqp/specification.py"]
