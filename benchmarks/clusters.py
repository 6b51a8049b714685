"""A cluster on loopback: three nodes of Warren and the etcd by which they elect, or three of RabbitMQ.

1. Ports are chosen beforehand and stay with a process over its restarts: others have been told of them.
2. All that the processes write is below one directory, and `close` leaves none of them behind.
3. A process is signalled by its own id. It may be stopped (SIGSTOP), killed, and started again on its data.
4. Every wait is for a condition; one that is in vain says what the process has said last.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import rabbitmq
from benchmarks.brokers import free_port
from warren.perf.client import Address, BrokerError, PerfConnection

NUMBERS: Final = ("one", "two", "three")
ALL_IN_SYNC_S: Final = 120.0
ETCD_ANSWERS_S: Final = 60.0
RABBIT_STARTS_S: Final = 120.0
_ANSWER_S: Final = 1.0
_LOOK_S: Final = 0.02
_END_S: Final = 20.0
_GUEST: Final = "Basic " + base64.b64encode(b"guest:guest").decode()


class ClusterError(Exception):
    """The cluster cannot be started, or does not do what was waited for. The text is for the person who runs it."""


def wait_for(condition: Callable[[], bool], what: str, most_s: float) -> None:
    """Wait until `condition` holds. Raises ClusterError."""
    give_up_at = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise ClusterError(f"waited {most_s:g} s in vain for {what}")
        time.sleep(_LOOK_S)


class Process:
    """A program, in a session of its own, with its output in a file of `directory`."""

    def __init__(
        self, name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.directory = directory
        self._command = list(command)
        self.environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    @property
    def pid(self) -> int:
        """Process id; also after its end."""
        assert self._process is not None
        return self._process.pid

    @property
    def state(self) -> str:
        """``running``, ``stopped`` or ``gone``."""
        if self._process is None or self._process.poll() is not None:
            return "gone"
        return "stopped" if self._is_stopped else "running"

    def start(self) -> None:
        """Start it, unless it runs; it continues with its directory."""
        if self.state == "gone":
            self.directory.mkdir(parents=True, exist_ok=True)
            self._is_stopped = False
            with self._log_path.open("ab") as log:
                # Not in the checkout: its sources would be imported instead of what is installed. In a session of its
                # own, since Ctrl-C is meant for the program that started it.
                self._process = subprocess.Popen(
                    self._command,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    env=self.environment,
                    start_new_session=True,
                )

    def stop(self) -> None:
        """Have it stand still, as it is."""
        self._signal(signal.SIGSTOP)
        self._is_stopped = True

    def go(self) -> None:
        """Resume it if it is paused, or start it if it has ended."""
        self._signal(signal.SIGCONT)
        self._is_stopped = False
        self.start()

    def kill(self) -> None:
        """End it as ``kill -9`` does, with all that it has started."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def end(self) -> None:
        """End it in order, or else by force."""
        if self._process is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def said_last(self) -> str:
        """Return the end of its output."""
        try:
            return " / ".join(self._log_path.read_text(errors="replace").splitlines()[-3:])
        except FileNotFoundError:
            return "nothing"

    def check(self) -> None:
        """Raises ClusterError when it has ended."""
        if self.state == "gone":
            raise ClusterError(f"{self.name} has ended: {self.said_last()}")

    @property
    def _log_path(self) -> Path:
        return self.directory / "output.log"

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)


class Etcd:
    """An etcd of so many members. Raises ClusterError when none is installed."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise ClusterError("etcd is not installed; on Debian: apt-get install etcd-server")
        clients, peers = ([f"http://127.0.0.1:{free_port()}" for _ in range(count)] for _ in range(2))
        self.endpoints = clients
        self.members: list[Process] = []
        for number, (client, peer) in enumerate(zip(clients, peers, strict=True), 1):
            options = {
                "name": f"etcd{number}",
                "data-dir": str(directory / f"etcd{number}" / "data"),
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": ",".join(f"etcd{other}={url}" for other, url in enumerate(peers, 1)),
                "initial-cluster-token": directory.name,
            }
            command = [program, *(f"--{name}={value}" for name, value in options.items())]
            self.members.append(Process(f"etcd{number}", command, directory / f"etcd{number}"))

    def start(self) -> None:
        """Start all members, and wait until each of them knows what the majority has."""
        for member in self.members:
            member.start()
        for member, endpoint in zip(self.members, self.endpoints, strict=True):
            wait_for(partial(self._answers, member, endpoint), f"{member.name} to answer", ETCD_ANSWERS_S)

    def _answers(self, member: Process, endpoint: str) -> bool:
        member.check()
        key = base64.b64encode(b"x").decode()
        return maybe_answer(f"{endpoint}/v3/kv/range", json.dumps({"key": key}).encode()) is not None

    def kill(self) -> None:
        """Take it away: kill all members."""
        for member in self.members:
            member.kill()


class Node(Process):
    """A node of Warren that takes part in an election. `program` is what ``serve`` is put behind."""

    def __init__(self, number: str, directory: Path, program: Sequence[str], etcd: Etcd, secret: Path) -> None:
        self.address = Address(port=free_port())
        self._http = f"127.0.0.1:{free_port()}"
        options = {
            "node": f"rabbit@{number}",
            "data-dir": str(directory / number / "data"),
            "amqp": str(self.address),
            "http": self._http,
            "prometheus": "off",
            "cluster-listen": f"127.0.0.1:{free_port()}",
            "cluster-secret-file": str(secret),
            "etcd": ",".join(etcd.endpoints),
            "replicas": "3",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        super().__init__(options["node"], [*program, "serve", *words], directory / number)

    @property
    def url(self) -> str:
        """Where its management API is."""
        return f"http://{self._http}"

    def maybe_status(self) -> dict[str, Any] | None:
        """Return what it says of the cluster; None when it says nothing."""
        if self.state != "running":
            return None
        found = maybe_answer(f"{self.url}/api/cluster/status", authorization=_GUEST)
        return found if isinstance(found, dict) else None

    def leads(self) -> bool:
        """Tell whether it leads, and serves clients."""
        status = self.maybe_status()
        return status is not None and status["role"] == "leader" and self._serves()

    def _serves(self) -> bool:
        return maybe_answer(f"{self.url}/health/leader") is not None


class RabbitNode(Process):
    """A node of RabbitMQ. The nodes of a cluster are told of each other by `config`."""

    def __init__(self, name: str, directory: Path, program: Path, config: str, epmd_port: int) -> None:
        self.address = Address(port=free_port())
        own = directory / name.partition("@")[0]
        own.mkdir()
        (own / "rabbitmq.conf").write_text(config)
        told = rabbitmq.environment(
            own, name, directory, amqp_port=self.address.port, dist_port=free_port(), epmd_port=epmd_port
        )
        super().__init__(name, [str(program)], own, told)


class Cluster(ABC):
    """Three nodes below `directory`."""

    nodes: Sequence[Node] | Sequence[RabbitNode]

    @abstractmethod
    def start(self) -> None:
        """Start everything, and wait until all nodes are in sync. Raises ClusterError."""

    @abstractmethod
    def wait_until_complete(self) -> Process:
        """Wait until all nodes are in sync; return one that leads what is declared at it. Raises ClusterError."""

    def addresses(self) -> list[Address]:
        """Return where clients connect to, in the order of the nodes."""
        return [node.address for node in self.nodes]

    def address_of(self, process: Process) -> Address:
        """Return where clients of this node connect to."""
        return next(node.address for node in self.nodes if node is process)

    def close(self) -> None:
        """End everything."""
        for node in self.nodes:
            node.kill()


class WarrenCluster(Cluster):
    """Three nodes of Warren, and three members of etcd."""

    def __init__(self, directory: Path, program: Sequence[str]) -> None:
        self.etcd = Etcd(directory)
        self._directory = directory
        self._program = list(program)
        secret = directory / "cluster.secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        self.nodes: list[Node] = [Node(number, directory, program, self.etcd, secret) for number in NUMBERS]

    def start(self) -> None:
        self.etcd.start()
        for node in self.nodes:
            node.start()
        self.wait_until_complete()

    def maybe_leader(self) -> Node | None:
        """Return who leads and serves clients, if somebody does."""
        return next((node for node in self.nodes if node.leads()), None)

    def wait_until_complete(self) -> Node:
        """Wait until all nodes are in sync, and return the leader. Raises ClusterError."""
        wait_for(lambda: len(self.in_sync()) == len(self.nodes), "all nodes to be in sync", ALL_IN_SYNC_S)
        leader = self.maybe_leader()
        return leader if leader is not None else self.wait_until_complete()

    def transfer(self, name: str = "") -> str:
        """Have the leader hand over to the node of that name, or any; return what ``warren ctl`` says of it."""
        leader = self.maybe_leader()
        if leader is None:
            raise ClusterError("nobody leads at the moment")
        command = [*self._program, "ctl", "--url", leader.url, "cluster", "transfer", *filter(None, [name])]
        done = subprocess.run(command, cwd=self._directory, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip()

    def in_sync(self) -> set[str]:
        """Return the names of those without which nothing is confirmed, the leader's included; none without one."""
        leader = self.maybe_leader()
        status = leader.maybe_status() if leader is not None else None
        if status is None:
            return set()
        following = {row["node"] for row in status["followers"] if row["connected"] and not row["catching_up"]}
        return {status["node"], *following.intersection(status["in_sync"])}

    def close(self) -> None:
        super().close()
        self.etcd.kill()


class RabbitCluster(Cluster):
    """Three nodes of RabbitMQ: who declares a queue at one of them has it led there."""

    def __init__(self, directory: Path, program: Path) -> None:
        epmd_port = free_port()
        names = [f"{number}@localhost" for number in NUMBERS]
        lines = ["cluster_formation.peer_discovery_backend = classic_config"]
        lines += [f"cluster_formation.classic_config.nodes.{at} = {name}" for at, name in enumerate(names, 1)]
        cookie = directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(10).upper())
        cookie.chmod(0o400)
        self.nodes: list[RabbitNode] = [
            RabbitNode(name, directory, program, "\n".join(lines) + "\n", epmd_port) for name in names
        ]
        told = {**os.environ, "ERL_EPMD_PORT": str(epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        self._epmd = Process("epmd", [shutil.which("epmd") or "epmd"], directory / "epmd", told)
        self._control = program.with_name("rabbitmqctl")
        self._turn = 0

    def start(self) -> None:
        self._epmd.start()
        for node in self.nodes:  # one after the other, or each of them may begin a cluster of its own
            node.start()
            wait_for(partial(self._is_up, node), f"{node.name} to start", RABBIT_STARTS_S)
        self.wait_until_complete()

    def wait_until_complete(self) -> RabbitNode:
        """Wait until each node knows that all run; return them in turn."""
        for node in self.nodes:
            wait_for(partial(self._is_up, node), f"{node.name} to start", RABBIT_STARTS_S)
            if not self._ctl(node, "await_online_nodes", str(len(self.nodes))):
                raise ClusterError(f"the nodes of RabbitMQ do not find each other: {node.said_last()}")
        self._turn += 1
        return self.nodes[(self._turn - 1) % len(self.nodes)]

    def _is_up(self, node: RabbitNode) -> bool:
        node.check()
        try:
            PerfConnection.open(node.address).close()
        except BrokerError:
            return False
        return True

    def _ctl(self, node: RabbitNode, *words: str) -> bool:
        command = [str(self._control), "--timeout", "60", *words]
        return subprocess.run(command, env=node.environment, capture_output=True, check=False).returncode == 0

    def close(self) -> None:
        super().close()
        self._epmd.kill()


def maybe_answer(url: str, body: bytes | None = None, authorization: str = "") -> Any:
    """Return the JSON that a server answers with; None without a good answer within a second."""
    request = urllib.request.Request(url, body, {"Authorization": authorization} if authorization else {})
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            return json.loads(answer.read() or b"{}")
    except (OSError, ValueError, urllib.error.HTTPError):
        return None
