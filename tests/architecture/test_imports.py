"""Imports go one way, and the engine touches neither clock, chance, disk nor network."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "warren"
TESTS = Path(__file__).parents[1]
# Modules that the suites share although they belong to one of them.
SUITES_SHARED = {("conftest", "integration"), ("durable_harness", "simulation"), ("sealing_stream", "simulation")}

# Each package with the ones it may import, besides itself.
ARROWS: dict[str, set[str]] = {
    "amqp": set(),
    "amqp_client": {"amqp"},
    "msgstore/log": {"amqp"},
    "msgstore/files": {"msgstore/log"},
    "msgstore/tools": {"amqp", "msgstore/log", "msgstore/files"},
    "queues": {"amqp", "msgstore/log"},
    "exchanges": {"amqp", "msgstore/log", "queues"},
    "streams": {"amqp", "msgstore/log", "queues"},
    "vhosts": {"amqp", "exchanges", "msgstore/log", "queues", "streams"},
    "channels": {"amqp", "exchanges", "msgstore/log", "queues", "vhosts"},
    "amqp10": {"amqp", "exchanges", "msgstore/log", "queues", "streams", "vhosts", "channels"},
    "mqtt": {"amqp", "exchanges", "msgstore/log", "queues", "vhosts", "channels"},
    "stomp": {"amqp", "msgstore/log", "queues", "channels"},
    "engine_view": {"amqp", "exchanges", "msgstore/log", "queues", "streams", "vhosts", "channels", "mqtt"},
    "server": {"amqp", "backup", "exchanges", "msgstore", "queues", "streams", "vhosts", "channels", "engine_view"},
    "replication": {"msgstore/log", "msgstore/files", "vhosts", "server", "cluster"},
    "gateway": {"amqp", "server"},
    "perf": {"amqp", "amqp_client", "amqp10"},  # codecs only
    "testing": {"amqp", "msgstore/log", "msgstore/files", "queues", "vhosts", "channels", "server"},  # on top
    "backup": set(),  # the format of a backup directory, for its writers and readers
    "ctl": {"amqp", "backup"},
    "links": {"amqp", "amqp_client"},
    "cluster": set(),  # it decides for any store
    "mgmt_plugin/http": {"amqp", "server"},
    "mgmt_plugin": {"amqp", "exchanges", "msgstore/log", "queues", "streams", "vhosts", "channels", "server"}
    | {"engine_view", "msgstore/files"},  # the data port reads sealed chunks where they lie
    # It runs without a broker, on executors that get it as a zip and have no compiled package, so no `amqp` either.
    "spark_bridge": set(),
    "lake": {"spark_bridge"},  # likewise: it reads through the same client
}
ENGINE: list[str] = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["warren"]["compiled-packages"]
PROTOCOLS = [package for package in ENGINE if "channels" in ARROWS[package]]
ARROWS["server"].update(PROTOCOLS)
# The allowed crossings, with their reasons.
EXCEPTIONS = {
    ("server/commands.py", "perf"),  # `warren perf` is a command like any other
    ("server/cli.py", "ctl"),  # and so is `warren ctl`, which has to start fast
    ("server/commands.py", "ctl"),
    # Every help page and every progress looks the same. Executors do not import these commands.
    *((f"{name}.py", "ctl") for name in ("server/command_examples", "server/store_commands", "spark_bridge/commands")),
    ("testing/life.py", "mgmt_plugin"),  # like the program, it puts broker and plugins together
    ("server/cli.py", "replication"),  # which of the two runs: a broker alone, or one with followers or a leader
    # The links themselves know AMQP only; these two connect them to the broker.
    *(("links/broker_host.py", package) for package in ("engine_view", "vhosts", "server")),
    ("links/plugin.py", "server"),
    # One module validates tables, for a file and for a parameter. The follower is a process of its own.
    ("links/lake_host.py", "lake"),
    *(("links/lake_host.py", package) for package in ("server", "engine_view")),
    ("links/client_tls.py", "server"),  # which files are read, and in which threads, is one rule for the process
}
# The modules of `channels` for AMQP 0-9-1 only. All protocols share the others, which do not know any protocol. The
# exception is the broker, which makes the connections of this process to itself.
AMQP_0_9_1 = {"channel", "channel_confirms", "connection", "direct", "content_channel", "fast_path", "handshake"}
KNOW_AMQP_0_9_1 = {"broker"}
# What management and metrics may know of the engine besides its view: values of requests and answers, names, numbers.
VALUES = {"amqp", "msgstore.log.columns", "queues.arguments", "queues.counters", "vhosts.metadata", "vhosts.pattern"}
# What knows the engine by its view alone.
KNOW_THE_VIEW = (
    "mgmt_plugin",
    "links",
    "server/draining",
    "server/shares",
    "server/staging",
    "server/copies/snapshots",
    "server/copies/backups",
)
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
    "sqlite3",
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
    "difflib",  # the nearest key to a misspelt one of a policy
    "importlib",  # finds the wheel for checksums of the store, only ``msgstore/log/checksum.py``
    "hashlib",  # long keys of messages are remembered by their hash
    "json",  # definitions of policies and limits, read once when they are set
    "librt",
    "mypy_extensions",
    "re2",  # patterns of permissions and policies
    "typing",
    "urllib",  # quoting, for names in the management API
    "zlib",  # checksums of the store
}


@cache
def imports(path: Path) -> tuple[tuple[str, int], ...]:
    """Return each imported module with its line, also those inside functions and under TYPE_CHECKING."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
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
    """Return the modules of a package, without those of a part that has arrows of its own."""
    return [path for path in sorted((ROOT / package).rglob("*.py")) if package_of(relative(path)) == package]


def package_of(path: str) -> str:
    """Return the key of `ARROWS` for the path of a module or package; its first folder without a key."""
    parts = path.removesuffix(".py").split("/")
    known = ["/".join(parts[:length]) for length in (2, 1)]
    return next((name for name in known if name in ARROWS), parts[0])


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_package_has_its_arrows() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == {name.split("/")[0] for name in ARROWS}
    # Divided without a rest: a module of the store belongs to one of its parts.
    assert [path.name for path in (ROOT / "msgstore").glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("package", ARROWS)
def test_packages_import_along_the_arrows_only(package: str) -> None:
    assert modules(package)
    wrong = []
    for path in modules(package):
        for module, line in imports(path):
            parts = module.split(".")
            if parts[0] != "warren" or len(parts) == 1 or not (ROOT / parts[1]).is_dir():
                continue
            target = package_of("/".join(parts[1:]))
            names = {target, target.split("/")[0]}
            inside = package in names
            if not inside and not names & ARROWS[package] and (relative(path), parts[1]) not in EXCEPTIONS:
                wrong.append(f"{relative(path)}:{line} imports {module}")
    assert wrong == []


def test_the_half_of_channels_that_protocols_share_knows_none_of_them() -> None:
    shared = [path for path in modules("channels") if path.stem not in AMQP_0_9_1 | KNOW_AMQP_0_9_1]
    assert len(shared) > len(AMQP_0_9_1)
    own = {f"warren.channels.{name}" for name in AMQP_0_9_1}
    wrong = [
        f"{relative(path)}:{line} imports {module}"
        for path in shared
        for module, line in imports(path)
        if module in own
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PROTOCOLS)
def test_a_protocol_uses_what_is_shared_and_no_other_protocol(package: str) -> None:
    own = {f"warren.channels.{name}" for name in AMQP_0_9_1 | KNOW_AMQP_0_9_1}
    for path in modules(package):
        for module, line in imports(path):
            if path.name in ("peer.py", "sessions.py") and module == "warren.channels.broker":
                continue  # a type
            assert module not in own, f"{relative(path)}:{line} imports {module}"
            assert module.split(".")[1:2] not in [[each] for each in PROTOCOLS if each != package]


def test_the_registry_alone_knows_the_exchange_types_that_act_on_messages() -> None:
    """Other modules know the methods of `Exchange`: a new type is a file and a row of the registry."""
    acting = {
        f"warren.exchanges.{path.stem}"
        for path in (ROOT / "exchanges").glob("*_exchange.py")
        if any(
            isinstance(node, ast.FunctionDef) and node.name == "publish"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert len(acting) >= 2
    knowing = {relative(path) for path in ROOT.rglob("*.py") for module, _ in imports(path) if module in acting}
    assert knowing == {"exchanges/registry.py", "exchanges/history_bind.py"}  # the second is a part of a type


def test_users_of_the_view_know_the_engine_by_nothing_else() -> None:
    looking = set()
    for path in sorted(ROOT.rglob("*.py")):
        if not relative(path).startswith(KNOW_THE_VIEW):
            continue
        for module, line in imports(path):
            name = module.removeprefix("warren.")
            package = package_of(name.replace(".", "/"))
            if module.startswith("warren.") and package in ENGINE and not {name, package} & VALUES:
                looking.add(f"{relative(path)}:{line} imports {module}")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("broker", "_broker"):
                looking.add(f"{relative(path)}:{node.lineno} has a broker")
    assert looking == set()


def test_exceptions_are_in_use() -> None:
    for path, target in EXCEPTIONS:
        assert any(module.startswith(f"warren.{target}") for module, _ in imports(ROOT / path)), (path, target)


def test_only_who_puts_a_broker_together_imports_a_plugin() -> None:
    importers = set()
    for path in ROOT.rglob("*.py"):
        for module, _ in imports(path):
            target = module.split(".")[1:2]
            if target and target[0].endswith(("_plugin", "_bridge")) and target[0] != path.relative_to(ROOT).parts[0]:
                importers.add(relative(path))
    # The follower of queues into tables does not belong to a broker either; it reads as the bridge does.
    assert {name for name in importers if not name.startswith("lake/")} == {"__main__.py", "testing/life.py"}


@pytest.mark.parametrize("package", [*ENGINE, "engine_view"])
def test_the_engine_touches_nothing_outside(package: str) -> None:
    wrong = []
    allowed = ALLOWED_OUTSIDERS | ({"msgspec"} if package == "engine_view" else set())
    for path in modules(package):
        for module, line in imports(path):
            top = module.split(".")[0]
            if top in FORBIDDEN_IN_ENGINE or (top != "warren" and top not in allowed):
                wrong.append(f"{relative(path)}:{line} imports {module}")
    assert wrong == []


@pytest.mark.parametrize("package", ENGINE)
def test_the_engine_opens_and_prints_nothing(package: str) -> None:
    for path in modules(package):
        tree = ast.parse(path.read_text())
        # A hash differs from process to process: it may say where something is in a dict, and nothing else.
        hashing = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__hash__"]
        in_hashing = {node for function in hashing for node in ast.walk(function)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id == "hash" and node in in_hashing:
                    continue
                assert node.func.id not in ("open", "print", "input", "eval", "exec", "hash", "id"), (
                    f"{relative(path)}:{node.lineno} calls {node.func.id}"
                )


def test_construct_stays_in_the_specification() -> None:
    """Of the wire, and of the files of the message store."""
    users = {relative(path) for path in ROOT.rglob("*.py") if any(name == "construct" for name, _ in imports(path))}
    assert users == {"amqp/specification.py", "msgstore/tools/format.py"}


# --- the tests themselves ---------------------------------------------------------------------------------------------


def test_what_the_suites_share_imports_no_suite() -> None:
    suites = {path.parent.name for path in TESTS.glob("*/__init__.py")}
    found = {
        (path.stem, imported.split(".")[0])
        for path in TESTS.glob("*.py")
        for imported, _ in imports(path)
        if imported.split(".")[0] in suites
    }
    assert found == SUITES_SHARED


def test_only_who_asks_for_a_database_needs_its_driver() -> None:
    without = "import sys; sys.modules['psycopg'] = None; import conftest"
    subprocess.run([sys.executable, "-c", without], cwd=TESTS, check=True)


def test_modules_of_tests_have_names_of_their_own() -> None:
    """Two that pytest takes for the same are an error as soon as both run, which no run of one of them shows."""
    paths: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        name, folder = path.stem, path.parent
        while (folder / "__init__.py").exists():
            name, folder = f"{folder.name}.{name}", folder.parent
        paths.setdefault(name, []).append(str(path.relative_to(TESTS)))
    assert [found for found in paths.values() if len(found) > 1] == []
