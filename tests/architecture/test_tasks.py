"""Every task has a supervisor: an exception in a task must not end the broker."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2] / "warren"

# Calls that make a task or a thread. `serve_listeners` and its like start a task for each connection.
STARTERS = {
    "start_soon",
    "start",
    "spawn_system_task",
    "serve_tcp",
    "serve_listeners",
    "serve_ssl_over_tcp",
    "Thread",
    "Timer",
}
STARTS = re.compile(r"\b(?:" + "|".join(sorted(STARTERS)) + r")\(")
# The methods of `Supervision`: a nursery should start only these.
SUPERVISED = {"keep", "once", "begin"}
# Packages in which no broker runs.
ELSEWHERE = {"perf", "ctl", "spark_bridge", "lake"}
# Everything else that starts something: file, function and what is started, and why that cannot end the broker.
ARGUED = {
    ("links/supervisor.py", "_begin", "self._live"): "a link: catches what it raises, and shows it as its state",
    # Inside the attempt of a link, whose nursery ends with it: an exception in them is the failure of the attempt.
    ("links/amqp_client.py", "start", "self._run"): "the two halves of a link's connection",
    ("links/amqp_client.py", "start", "self._beat"): "the heartbeats of a link's connection",
    ("links/federation.py", "move", "attempt"): "one of the two things that a federation link does",
    ("links/transfer.py", "run", "guarded"): "what a link does besides forwarding",
    # Around one process of tables: an exception in them ends that process, and `keep` restarts the tables.
    ("links/lake_jobs.py", "_in_process", "process.listen_to_errors"): "reads what the process says",
    ("links/lake_jobs.py", "_in_process", "until_it_ends"): "talks to the process, until it is ended",
    ("mgmt_plugin/plugin.py", "serve_locally", "serve_http"): "a listener whose failure is that of the kept task",
    # Threads report what they raise as the failure of the store, which ends the process: that is what it is for.
    ("server/store_workers.py", "__init__", "Thread"): "a thread of the message store",
    ("server/standard_streams.py", "put", "Thread"): "writes to a descriptor, and takes every failure of that",
    ("server/network/readiness.py", "fileno", "Thread"): "it waits in `poll`, and does nothing else",
    # Inside the connection of one follower, or to a leader, whose nursery ends with it: the failure of that connection.
    ("replication/link_to_follower.py", "serve", "self.wire.send"): "sends what the kernel did not take at once",
    ("replication/link_to_follower.py", "serve", "self._end_when_asked"): "ends the connection",
    (
        "replication/link_to_follower.py",
        "serve",
        "self._lose_patience",
    ): "gives up a follower that catches up too slowly",
    ("replication/link_to_follower.py", "serve", "self._wanted.run"): "answers what the follower asks for",
    ("replication/link_to_leader.py", "run", "self._wanted.run"): "answers what the leader asks for",
    ("replication/elected_node.py", "drive", "self._driver.run"): "ends the process",
    ("replication/elected_node.py", "drive", "self.node.watch_disk"): "ends the process",
    ("replication/elected_node.py", "drive", "self.node.keep_giving_way"): "ends the process",
    ("replication/neighbours.py", "ask_positions", "self._ask"): "ends the driver, and with it the process",
    # Inside one request, or one wait, whose nursery ends with it.
    ("cluster/etcd.py", "_hedged", "try_it"): "asks one endpoint: what it raises is the failure of the request",
    ("replication/follower.py", "_while_it_leads", "give_up"): "ends a wait: its failure is that of the connection",
    # A port whose `run` is kept; a connection takes every failure of its own.
    ("replication/pre_vote.py", "run", "self._accept"): "accepts: its failure is that of the kept task",
    ("replication/pre_vote.py", "_accept", "self._serve"): "one connection: catches what it raises, and closes it",
    ("replication/link_to_leader.py", "run", "self._wire.send"): "sends what the kernel did not take at once",
    (
        "replication/link_to_leader.py",
        "__init__",
        "Thread",
    ): "the thread of a connection to a leader: its error ends it",
    ("mgmt_plugin/http/forwarding.py", "begin", "self._send_body"): "a part of one request, whose failure it is",
    ("gateway/clients.py", "end_all", "Thread"): "it waits for the last clients to hang up, and nobody waits for it",
    # The five hands of a member: a fault in one of them is a fault in ours, and the process restarts.
    **{
        ("cluster/driver.py", "run", f"self.{hand}"): "ends the driver, and with it the process"
        for hand in ("_read", "_write", "_ask", "_watch", "_wake")
    },
    # A broker in a test suite, which must see every error.
    ("testing/life.py", "spawn", "work"): "what a test has asked for: `wait_for` gives it what is raised",
    ("testing/life.py", "__init__", "Thread"): "the thread that a broker under test lives in",
}


def started(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield where something is started: the function, what is started, and the line."""
    text = path.read_text()
    if STARTS.search(text) is None:
        return
    tree = ast.parse(text)
    ours = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("warren.")
        for alias in node.names
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inner = {
            id(node)
            for nested in ast.walk(function)
            if isinstance(nested, ast.FunctionDef | ast.AsyncFunctionDef) and nested is not function
            for node in ast.walk(nested)
        }
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or id(node) in inner:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ours:
                continue
            if name in ("Thread", "Timer"):
                yield function.name, name, node.lineno
            elif name == "start" and not _is_nursery(node.func):
                continue
            elif name in STARTERS:
                yield function.name, ast.unparse(node.args[0]) if node.args else "", node.lineno


def _is_nursery(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and "nursery" in ast.unparse(function.value)


@cache
def unsupervised() -> tuple[tuple[tuple[str, str, str], int], ...]:
    return tuple(_unsupervised())


def _unsupervised() -> Iterator[tuple[tuple[str, str, str], int]]:
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        if relative.parts[0] in ELSEWHERE:
            continue
        for function, what, line in started(path):
            if what.rpartition(".")[2] in SUPERVISED:
                continue
            yield (relative.as_posix(), function, what), line


def test_every_task_has_a_supervisor() -> None:
    found = [f"{place[0]}:{line} {place[1]} starts {place[2]}" for place, line in unsupervised() if place not in ARGUED]
    assert found == []


def test_what_is_argued_exists() -> None:
    assert {place for place, _ in unsupervised()} >= set(ARGUED)


def test_supervised_is_what_the_supervision_offers() -> None:
    """`keep` may also be a link's way to it."""
    tree = ast.parse((ROOT / "server/supervision.py").read_text())
    (supervision,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Supervision"]
    offered = {
        node.name
        for node in supervision.body
        if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_")
    }
    assert offered == SUPERVISED


def test_a_task_without_a_supervisor_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "async def f(nursery, tasks, work):\n"
        "    nursery.start_soon(work)\n"
        "    nursery.start_soon(tasks.keep, 'a name', work)\n"
        "    await nursery.start(work)\n"
        "    server.start(work)\n"
    )
    assert list(started(path)) == [("f", "work", 2), ("f", "tasks.keep", 3), ("f", "work", 4)]


def test_calls_that_block_have_the_threads_of_their_purpose() -> None:
    """Trio's own threads resolve names, which never ends when a name server does not answer."""
    users = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        if "to_thread" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr == "to_thread" and ast.unparse(node.value) == "trio":
                users.append(path.relative_to(ROOT).as_posix())
    assert users == ["server/threads.py"]
