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
    "msgstore": {"amqp"},
    "queues": {"amqp", "exchanges", "msgstore"},
    "channels": {"amqp", "exchanges", "msgstore", "queues"},
    "server": {"amqp", "exchanges", "msgstore", "queues", "channels"},
    "perf": {"amqp"},
    "testing": {"amqp", "exchanges", "msgstore", "queues", "channels", "server"},  # on top: nobody imports it
    "ctl": {"amqp"},
    "links": {"amqp"},
    "mgmt_plugin": {"amqp", "exchanges", "msgstore", "queues", "channels", "server"},
    "spark_bridge": set(),  # it runs where there is no broker
}
ENGINE = ("amqp", "exchanges", "msgstore", "queues", "channels")
# Who may cross, and why.
EXCEPTIONS = {
    ("server/commands.py", "perf"),  # `warren perf` is a command like any other
    ("server/cli.py", "ctl"),  # and so is `warren ctl`, which is to start fast
    ("server/commands.py", "ctl"),
    # The links themselves know AMQP only; these two connect them to the broker.
    *(("links/broker_host.py", package) for package in ("exchanges", "queues", "server")),
    ("links/plugin.py", "server"),
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
    "math",
    "itertools",
    "construct",  # the specification written once; only ``amqp/specification.py``
    "crc32c",  # checksums of the store, only ``msgstore/checksum.py``
    "hashlib",  # long keys of messages are remembered by their hash
    "json",  # definitions of policies and limits, read once when they are set
    "librt",
    "mypy_extensions",
    "re2",  # patterns of permissions and policies
    "typing",
    "urllib",  # quoting, for names in the management API
    "zlib",  # checksums of the store
}


def compiled_half() -> set[str]:
    """Return the modules of the message store that keep its books: those that are compiled."""
    for node in ast.parse((ROOT.parent / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED_STORE":
            return set(ast.literal_eval(node.value))
    raise AssertionError("setup.py has no COMPILED_STORE")


STORE_ENGINE = compiled_half()


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


def engine_modules(package: str) -> list[Path]:
    found = modules(package)
    return [path for path in found if path.stem in STORE_ENGINE] if package == "msgstore" else found


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_package_has_its_arrows() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    plugins = {name for name in packages if name.endswith(("_plugin", "_bridge"))}
    assert plugins <= set(ARROWS)
    assert packages == set(ARROWS)


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


def test_only_the_program_itself_imports_a_plugin() -> None:
    importers = set()
    for path in ROOT.rglob("*.py"):
        for module, _ in imports(path):
            target = module.split(".")[1:2]
            if target and target[0].endswith(("_plugin", "_bridge")) and target[0] != path.relative_to(ROOT).parts[0]:
                importers.add(relative(path))
    assert importers == {"__main__.py"}


@pytest.mark.parametrize("package", ENGINE)
def test_the_engine_touches_nothing_outside(package: str) -> None:
    wrong = []
    for path in engine_modules(package):
        for module, line in imports(path):
            top = module.split(".")[0]
            if top in FORBIDDEN_IN_ENGINE or (top != "warren" and top not in ALLOWED_OUTSIDERS):
                wrong.append(f"{relative(path)}:{line} imports {module}")
    assert wrong == []


@pytest.mark.parametrize("package", ENGINE)
def test_the_engine_opens_and_prints_nothing(package: str) -> None:
    for path in engine_modules(package):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "print", "input", "eval", "exec", "hash", "id"), (
                    f"{relative(path)}:{node.lineno} calls {node.func.id}"
                )


def test_the_engine_half_of_the_store_does_not_know_the_other() -> None:
    assert {path.stem for path in engine_modules("msgstore")} == STORE_ENGINE
    for path in engine_modules("msgstore") + modules("queues") + modules("channels"):
        for module, line in imports(path):
            if module.startswith("warren.msgstore."):
                assert module.split(".")[2] in STORE_ENGINE, f"{relative(path)}:{line} imports {module}"


def test_construct_stays_in_the_specification() -> None:
    """Of the wire, and of the files of the message store."""
    users = {relative(path) for path in ROOT.rglob("*.py") if any(name == "construct" for name, _ in imports(path))}
    assert users == {"amqp/specification.py", "msgstore/format.py"}
