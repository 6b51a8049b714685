"""Real etcd, with any number of processes on loopback and free ports.

Without an installed etcd the tests that need one are skipped, saying so; with CI=true they fail.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from free_ports import free_port

START_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.05


def installed_etcd() -> str:
    """Return the program; skip, or fail with CI=true, if it is not installed."""
    found = shutil.which("etcd")
    if found is not None:
        return found
    reason = "etcd is not installed (Debian: apt-get install etcd-server)"
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(reason)
    pytest.skip(reason)


class EtcdProcess:
    """A member: its directory, its ports, and its process while it runs."""

    def __init__(self, name: str, directory: Path, client_port: int, peer_port: int, scheme: str) -> None:
        self.name = name
        self.directory = directory
        self.endpoint = f"{scheme}://127.0.0.1:{client_port}"
        self.peer = f"http://127.0.0.1:{peer_port}"
        self.process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """End it with SIGKILL, also when it is stopped."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


class EtcdCluster:
    """All members of a cluster."""

    def __init__(self, directory: Path, members: int, options: Sequence[str] = (), scheme: str = "http") -> None:
        self._program = installed_etcd()
        self._directory = directory
        self._options = options
        ports = [free_port() for _ in range(2 * members)]
        self.members = [
            EtcdProcess(f"m{number}", directory / f"m{number}", ports[2 * number], ports[2 * number + 1], scheme)
            for number in range(members)
        ]

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def start(self, member: EtcdProcess) -> None:
        """Start a member that is not running; it continues with what is in its directory."""
        if member.process is not None:
            return
        everybody = ",".join(f"{each.name}={each.peer}" for each in self.members)
        arguments = {
            "name": member.name,
            "data-dir": str(member.directory),
            "listen-client-urls": member.endpoint,
            "advertise-client-urls": member.endpoint,
            "listen-peer-urls": member.peer,
            "initial-advertise-peer-urls": member.peer,
            "initial-cluster": everybody,
            "initial-cluster-token": str(self._directory),
        }
        command = [self._program, *(f"--{name}={value}" for name, value in arguments.items()), *self._options]
        with (self._directory / f"{member.name}.log").open("ab") as log:
            member.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)

    def start_all(self) -> None:
        for member in self.members:
            self.start(member)

    def kill_all(self) -> None:
        for member in self.members:
            member.kill()

    def heal(self) -> None:
        """Start all members, and wait until each of them answers."""
        for member in self.members:
            if member.process is not None:
                member.signal(signal.SIGCONT)
        self.start_all()
        for member in self.members:
            self.wait_for(member)

    def wait_for(self, member: EtcdProcess) -> None:
        """Wait until a member answers with what the majority has."""
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                ask(member.endpoint, "kv/range", {"key": text("x")})
                return
            except (OSError, ValueError):
                assert member.process is not None and member.process.poll() is None, f"{member.name} has ended"
                assert time.monotonic() < give_up_at, f"{member.name} does not answer"
                time.sleep(POLL_S)

    def leader(self) -> EtcdProcess:
        """Return the member that leads."""
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            for member in self.members:
                status = ask(member.endpoint, "maintenance/status", {})
                if status.get("leader") == status["header"]["member_id"]:
                    return member
            assert time.monotonic() < give_up_at, "no member leads"
            time.sleep(POLL_S)


def text(key: str) -> str:
    return b64encode(key.encode()).decode()


def ask(endpoint: str, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
    """Ask a member something, by another client than the one under test."""
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(f"{endpoint}/v3/{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        raise OSError(f"{path}: {error.code} {error.read()!r}") from None


@contextmanager
def running_etcd(
    directory: Path, members: int = 1, options: Sequence[str] = (), scheme: str = "http"
) -> Iterator[EtcdCluster]:
    """Run a cluster on fresh data, and leave no process behind. With ``https`` nobody waits for it."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster = EtcdCluster(directory, members, options, scheme)
    try:
        cluster.start_all()
        if scheme == "http":
            cluster.heal()
        yield cluster
    finally:
        cluster.kill_all()
