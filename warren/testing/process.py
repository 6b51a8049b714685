"""`warren serve` as a process of its own, for tests of things that a broker in their own process cannot show.

    with WarrenProcess() as warren:
        connection = pika.BlockingConnection(pika.URLParameters(warren.url))

1. The ports are free ones, and belong to this process from the beginning: bound and never listening. They stay the same
   until `close`, and no other program gets them while the broker is down.
2. `start` returns when the broker has said that it listens. It fails, with the last lines of the log, when the broker
   has ended or is silent for too long.
3. The settings are those given here. Variables WARREN_* of the environment and files of the user are ignored;
   WARREN_SELECTOR is not a setting, and applies.
4. After `close` nothing is left: neither the process nor its directory, unless that was given. A process that is
   forgotten is killed when this one ends.

It imports nothing of the broker.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote
from weakref import finalize

HOST: Final = "127.0.0.1"
START_S: Final = 30.0
# Longer than a broker takes at most to stop.
STOP_S: Final = 20.0
POLL_S: Final = 0.01
SHOWN_LINES: Final = 40
_LISTENING: Final = re.compile(r"^ +listening +\S", re.MULTILINE)


class ProcessFailed(RuntimeError):
    """The broker did not start or not end; the message has the end of its log."""


class WarrenProcess:
    """A broker in a process of its own; a context manager that starts and closes it.

    `settings` are those of `warren serve` by their names, such as ``{"limits.heartbeat_s": 5}``. With `data_dir` the
    data are kept there, else in a temporary directory. `user` is the first user of a broker without data.
    """

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        user: str = "guest",
        password: str = "guest",
        settings: Mapping[str, object] | None = None,
        start_within_s: float = START_S,
    ) -> None:
        self.user = user
        self.password = password
        self._start_within_s = start_within_s
        self._process: subprocess.Popen[bytes] | None = None
        self._places = [_reserved(), _reserved()]
        self.port, self.management_port = (int(place.getsockname()[1]) for place in self._places)
        self._directory = Path(tempfile.mkdtemp(prefix="warren-process-"))
        self.data_dir = self._directory / "data" if data_dir is None else Path(data_dir).absolute()
        self.log_path = self._directory / "warren.log"
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if name == "WARREN_SELECTOR" or not name.startswith("WARREN_")
        }
        self._environment |= {_variable(name): _text(value) for name, value in self._settings(settings or {}).items()}
        self._running: list[subprocess.Popen[bytes]] = []
        self._forget = finalize(self, _end, self._directory, os.getpid(), self._running)

    def _settings(self, given: Mapping[str, object]) -> dict[str, object]:
        ours = {
            "data_dir": self.data_dir,
            "amqp": f"{HOST}:{self.port}",
            "http": f"{HOST}:{self.management_port}",
            "prometheus": "off",
            "default_user": self.user,
            "default_pass": self.password,
        }
        taken = sorted(set(given) & {"data_dir", "amqp", "http", "default_user", "default_pass"})
        if taken:
            raise ValueError(f"{', '.join(taken)}: WarrenProcess sets that itself")
        return ours | dict(given)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print(self.told(), file=sys.stderr)
        self.close()

    def __repr__(self) -> str:
        return f"<WarrenProcess {self.url} {'up' if self.is_up else 'down'}>"

    @property
    def url(self) -> str:
        """The URL for the first user in the vhost ``/``."""
        return f"amqp://{quote(self.user, safe='')}:{quote(self.password, safe='')}@{HOST}:{self.port}/%2F"

    @property
    def management_url(self) -> str:
        """The URL of the management API, without a user."""
        return f"http://{HOST}:{self.management_port}"

    @property
    def pid(self) -> int | None:
        """The number of the process; None while it is down."""
        return self._process.pid if self._process is not None and self.is_up else None

    @property
    def is_up(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Run; return when clients can connect.

        Raises:
            ProcessFailed: it ended, or said nothing for too long.
            RuntimeError: it runs already, or is closed.
        """
        if self.is_up or not self._forget.alive:
            raise RuntimeError("the broker runs already" if self.is_up else "the broker is closed")
        with self.log_path.open("ab") as log:
            told_before = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "warren", "serve"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                # Ctrl-C is for the tests: this one is stopped by them.
                start_new_session=True,
            )
        self._process = process
        self._running[:] = [process]
        deadline_s = time.monotonic() + self._start_within_s
        while not _LISTENING.search(self._log()[told_before:].decode(errors="replace")):
            if process.poll() is not None:
                raise ProcessFailed(f"the broker ended with code {process.returncode}.\n{self.told()}")
            if time.monotonic() >= deadline_s:
                self.kill()
                raise ProcessFailed(f"the broker did not listen within {self._start_within_s:g} s.\n{self.told()}")
            time.sleep(POLL_S)
        return self

    def stop(self) -> int:
        """Stop in order, as an operator does; return the exit code.

        Raises:
            ProcessFailed: it did not end.
        """
        process = self._require()
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(f"the broker did not stop within {STOP_S:g} s.\n{self.told()}") from None

    def kill(self) -> None:
        """End it at once, with SIGKILL."""
        process = self._require()
        process.kill()
        process.wait()

    def restart(self) -> None:
        """Stop in order and start again, at the same ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it for good, and remove its files, except a `data_dir` that was given."""
        try:
            if self.is_up:
                self.stop()
        finally:
            self._forget()
            for place in self._places:
                place.close()

    def logs(self) -> str:
        """Return its log, of all of its lives. Not after `close`."""
        return self._log().decode(errors="replace")

    def _log(self) -> bytes:
        return self.log_path.read_bytes() if self.log_path.exists() else b""

    def told(self) -> str:
        """Return the end of its log, with a heading, for a person whose test has failed."""
        lines = self.logs().splitlines()
        left_out = [f"({len(lines) - SHOWN_LINES} lines before these)"] if len(lines) > SHOWN_LINES else []
        return "\n".join(["Its log:", *left_out, *lines[-SHOWN_LINES:]]) if lines else "It has written no log."

    def _require(self) -> subprocess.Popen[bytes]:
        if self._process is None or not self.is_up:
            raise RuntimeError("the broker is not running")
        return self._process


def _reserved() -> socket.socket:
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind((HOST, 0))
    return place


def _variable(name: str) -> str:
    return "WARREN_" + name.upper().replace(".", "_")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _end(directory: Path, owner: int, running: list[subprocess.Popen[bytes]]) -> None:
    if os.getpid() != owner:  # a child that was forked
        return
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()
    shutil.rmtree(directory, ignore_errors=True)
