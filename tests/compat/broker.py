"""The broker under test: a Warren started for the session, or any running broker named by a URL.

Owns the Warren process of the compatibility suite and what tests may know about the broker.

1. Without WARREN_TEST_AMQP_URL one Warren runs for the whole session, on free loopback ports, with its own data directory.
2. With it the suite starts nothing and leaves nothing behind but what its clients forget to delete.
3. Differences between versions are decided by the announced server-properties, never by who started the broker.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika

URL_VARIABLE = "WARREN_TEST_AMQP_URL"
DEADLINE_S = 5.0
POLL_S = 0.02


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Poll `condition` until it holds; fail naming `what` when the deadline passes."""
    give_up_at = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise AssertionError(f"waited {deadline_s:.0f} s in vain for: {what}")
        time.sleep(POLL_S)


def free_port() -> int:
    """Return a loopback TCP port nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def in_ci() -> bool:
    """Tell whether a missing tool is a failure (CI=true) rather than a reason to skip."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


@dataclass(frozen=True)
class Broker:
    """Where the broker under test listens, how to log in, and what it says of itself."""

    host: str
    port: int
    username: str
    password: str
    vhost: str
    started_here: bool
    server_properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The AMQP URL with an explicit, percent-encoded vhost."""
        quoted = (urllib.parse.quote(part, safe="") for part in (self.username, self.password, self.vhost))
        username, password, vhost = quoted
        return f"amqp://{username}:{password}@{self.host}:{self.port}/{vhost}"

    def parameters(self, **changes: Any) -> pika.ConnectionParameters:
        """Return pika connection parameters; keyword arguments replace single ones."""
        credentials = pika.PlainCredentials(self.username, self.password)
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "virtual_host": self.vhost,
            "credentials": credentials,
            "heartbeat": 0,
            "blocked_connection_timeout": DEADLINE_S,
        }
        return pika.ConnectionParameters(**(settings | changes))

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor of the RabbitMQ version announced in server-properties."""
        numbers = re.match(r"(\d+)\.(\d+)", str(self.server_properties.get("version", "")))
        assert numbers is not None, f"no version in server-properties {self.server_properties!r}"
        return int(numbers[1]), int(numbers[2])

    def older_than(self, major: int, minor: int) -> bool:
        """Tell whether the announced version precedes `major.minor` (reference section 1.17)."""
        return self.version < (major, minor)

    def queue(self, name: str) -> str:
        """Return how error texts name a queue of the vhost under test."""
        return f"queue '{name}' in vhost '{self.vhost}'"

    def exchange(self, name: str) -> str:
        """Return how error texts name an exchange of the vhost under test."""
        return f"exchange '{name}' in vhost '{self.vhost}'"


def broker_from_url(url: str) -> Broker:
    """Parse WARREN_TEST_AMQP_URL; an absent vhost means "/"."""
    parts = urllib.parse.urlsplit(url)
    vhost = urllib.parse.unquote(parts.path[1:]) or "/"
    return Broker(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 5672,
        username=urllib.parse.unquote(parts.username or "guest"),
        password=urllib.parse.unquote(parts.password or "guest"),
        vhost=vhost,
        started_here=False,
    )


class WarrenProcess:
    """One `warren serve` on free ports, its output kept in a file for failing sessions."""

    def __init__(self, directory: Path) -> None:
        self.amqp_port = free_port()
        self.http_port = free_port()
        self.log_path = directory / "warren.log"
        self.data_directory = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker and wait for GET /health to answer 200."""
        executable = Path(sys.executable).parent / "warren"
        if not executable.exists():
            raise RuntimeError(f"no `warren` beside {sys.executable}: run `make` first, or set {URL_VARIABLE}")
        command = [str(executable), "serve", "--data-dir", str(self.data_directory)]
        command += ["--amqp", f"127.0.0.1:{self.amqp_port}", "--http", f"127.0.0.1:{self.http_port}"]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until(self._is_healthy, "GET /health of the started Warren")
        except BaseException:
            sys.stderr.write(self.log_tail())
            self.stop()
            raise

    def _is_healthy(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"warren serve ended with status {self._process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def stop(self) -> None:
        """Ask for a clean stop; kill when the broker does not end in time."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError("warren serve did not stop on SIGTERM") from None

    def log_tail(self, lines: int = 200) -> str:
        """Return the last lines the broker wrote."""
        if not self.log_path.exists():
            return ""
        text = self.log_path.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(["--- warren serve ---", *text, ""])
