"""A leader with two followers, for clients that connect to one of these instead of to a broker by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from broker_process import WarrenProcess, wait_until
from free_ports import free_port

CLUSTER_VARIABLE = "WARREN_TEST_CLUSTER"


def is_asked_for() -> bool:
    """Tell whether the clients should connect to a follower."""
    return os.environ.get(CLUSTER_VARIABLE, "") not in ("", "0")


@contextmanager
def follower_of_cluster(directory: Path) -> Iterator[WarrenProcess]:
    """Run three nodes, all in sync, and yield one that does not lead."""
    secret = directory / "secret"
    secret.write_text("what the nodes of this test share")
    port = free_port()
    leader = _node(directory, "one", {"cluster-listen": f"127.0.0.1:{port}"}, secret)
    followers = [_node(directory, name, {"follow": f"127.0.0.1:{port}"}, secret) for name in ("two", "three")]
    with ExitStack() as running:
        for node in (leader, *followers):
            running.enter_context(node)
        for node in followers:
            wait_until(lambda node=node: node.health_of("follower") == 200, "the followers to be in sync")  # type: ignore[misc]
        yield followers[0]


def _node(directory: Path, name: str, flags: dict[str, str], secret: Path) -> WarrenProcess:
    # A follower's ports are chosen explicitly: it opens the same ports again when it leads.
    ports = {listener: f"127.0.0.1:{free_port()}" for listener in ("amqp", "http")}
    return WarrenProcess(
        directory / name, ports | flags | {"cluster-secret-file": str(secret)}, {"node_name": f"rabbit@{name}"}
    )
