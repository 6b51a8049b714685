"""Large classes are listed with their reason: a new one is noticed, and an entry goes with its class's size."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2] / "warren"
METHODS_MAX = 40
FIELDS_MAX = 25
# Arguments of a constructor that are not named at the call.
POSITIONAL_MAX = 8

# The classes with more methods or fields, by module, and why. "To be divided": it has responsibilities that could have
# objects of their own. Divide rather than add an entry.
REASONS = {
    "channels/broker.py": {
        "Broker": "its fields are what the peers of one process share; its methods are within limits"
    },
    "engine_view/connections.py": {"ConnectionRow": "a record: a field for each that RabbitMQ shows"},
    "engine_view/queues.py": {"QueueRow": "a record: a field for each that RabbitMQ shows"},
    "msgstore/log/batch.py": {"Batch": "a record of one batch: rows are added to it in place, once per message"},
    "msgstore/log/message_log.py": {"MessageLog": "its fields are the log's parts and counters, read once per message"},
    "msgstore/log/queue_index.py": {"QueueIndex": "the cursors of one index, written per message"},
    "queues/rules.py": {"QueueRules": "a record: a field for each rule"},
    "server/application.py": {"Application": "it puts the parts of the process together, and ends them"},
    "server/management.py": {"Management": "a record: what plugins get"},
    "server/settings.py": {"Settings": "a record: a field for each setting"},
    "spark_bridge/options.py": {"ReadOptions": "a record: a field for each option"},
    "testing/broker.py": {
        "Broker": "the interface for test suites: a method for each thing that a test asks of a broker"
    },
    "vhosts/virtual_host.py": {"VirtualHost": "a namespace: what it has, and the commands on it"},
}


@cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    """Return each class of the package with its module."""
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if isinstance(node, ast.ClassDef)
    ]


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((each for each in methods(node) if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)


def fields(node: ast.ClassDef) -> set[str]:
    """Return the names of the fields that a class declares, or that its constructor sets."""
    found = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    made = constructor(node)
    for each in [] if made is None else ast.walk(made):
        match each:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def test_large_classes_have_their_reason() -> None:
    large: dict[str, set[str]] = {}
    for module, node in classes():
        if len(methods(node)) > METHODS_MAX or len(fields(node)) > FIELDS_MAX:
            large.setdefault(module, set()).add(node.name)
    listed = {module: set(reasons) for module, reasons in REASONS.items()}
    assert large == listed, f"the limits are {METHODS_MAX} methods and {FIELDS_MAX} fields"


def test_constructors_with_many_arguments_name_them() -> None:
    long = {
        f"{module}:{node.name}"
        for module, node in classes()
        if (made := constructor(node)) is not None and len(made.args.args) - 1 > POSITIONAL_MAX
    }
    # The first is made once for each batch, the second once in a process.
    assert long == {"msgstore/log/jobs.py:CommitJob", "replication/elected_node.py:Election"}
