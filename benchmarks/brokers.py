"""A broker under measurement: how it is started, where it listens, which process costs the CPU, how it ends.

1. `start` returns when a connection with an open channel was accepted, and knows how long that took from the
   start of the process.
2. Every broker gets free loopback ports and a data directory of its own; `stop` keeps the directory, so that
   it can be started again on its data. `kill` leaves the directory as a crash of the process leaves it.
3. A broker confined to one core is started confined, so that it sizes itself for one core.
4. A paused broker (SIGSTOP to all its processes) uses no CPU; `stop` resumes it first.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from benchmarks import rabbitmq
from warren.perf.client import Address, BrokerError, PerfConnection
from warren.perf.process_stats import descendants

_OWN_PORTS: Final = (20000, 32000)
_START_S: Final = 90.0
_LOOK_S: Final = 0.002
_STOP_S: Final = 30.0


class Server(Protocol):
    """What every broker program has in common."""

    @property
    def pid(self) -> int:
        """Root of the process tree."""

    def start(self) -> None:
        """Start the program."""

    def stop(self) -> None:
        """Stop it and everything it started."""

    def exit_status(self) -> int | None:
        """Return how it ended by itself, None while it runs."""


class Broker(ABC):
    """One broker under a name. ``core`` is the core it is confined to, None for none."""

    def __init__(self, name: str, directory: Path, *, core: int | None) -> None:
        self.name = name
        self.directory = directory
        self.core = core
        self.product = ""
        self.address = Address()
        self._server: Server | None = None

    @property
    def pid(self) -> int:
        """Root process."""
        assert self._server is not None
        return self._server.pid

    @property
    def uri(self) -> str:
        """Where the load tool finds it."""
        return f"amqp://guest:guest@{self.address}/"

    def start(self) -> float:
        """Start and return the seconds until the first channel was open.

        Raises BrokerError when that takes too long, or it ends before.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.address = Address(port=port)
        self._server = self._new_server(port)
        begin = time.monotonic()
        self._server.start()
        while True:
            try:
                with PerfConnection.open(self.address) as connection:
                    seconds = time.monotonic() - begin
                    properties = connection.server_properties
                    self.product = f"{properties.get('product', '?')} {properties.get('version', '?')}"
                    return seconds
            except BrokerError:
                death = self.maybe_death()
                if death is not None or time.monotonic() - begin > _START_S:
                    self.stop()
                    if death is not None:
                        raise BrokerError(death) from None
                    raise
                time.sleep(_LOOK_S)

    def stop(self) -> None:
        """Stop the program, keep its data."""
        if self._server is not None:
            self.resume()
            self._server.stop()
            self._server = None

    def kill(self) -> None:
        """Kill all its processes at once (SIGKILL), keep its data."""
        self._signal_all(signal.SIGKILL)
        self.stop()

    def pause(self) -> None:
        """Freeze the broker: what waits for its turn must not disturb what is measured."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused broker."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in descendants(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def maybe_death(self) -> str | None:
        """Return how the broker ended and what it said last, None while it runs."""
        status = self._server.exit_status() if self._server is not None else None
        if status is None:
            return None
        said = (self.directory / "output.log").read_text(errors="replace").splitlines()[-3:]
        return f"the broker ended with status {status}: {' / '.join(said)}"

    @abstractmethod
    def _new_server(self, port: int) -> Server:
        """Start a server of this kind that listens on `port`."""


class WarrenBroker(Broker):
    """Warren from a checkout that holds ``.venv/bin/warren``."""

    def __init__(self, name: str, directory: Path, checkout: Path, *, core: int | None) -> None:
        super().__init__(name, directory, core=core)
        self._program = checkout / ".venv" / "bin" / "warren"
        self._version = ""
        self._http_port = 0
        if not self._program.exists():
            raise FileNotFoundError(f"{self._program} is missing: run make there first")
        # Its port is the same for all brokers; a checkout from before there were metrics does not know the option.
        help_text = subprocess.run([str(self._program), "serve", "--help"], capture_output=True, text=True, check=True)
        self._without_metrics = ["--prometheus", "off"] if "--prometheus" in help_text.stdout else []

    def start(self) -> float:
        """Start as every broker; the product is what the program says, not what it tells clients."""
        seconds = super().start()
        if not self._version:
            told = subprocess.run([str(self._program), "--version"], capture_output=True, text=True, check=True)
            self._version = told.stdout.strip()
        self.product = self._version
        return seconds

    @property
    def url(self) -> str:
        """Where its management API is, once it was started."""
        return f"http://127.0.0.1:{self._http_port}"

    def _new_server(self, port: int) -> Server:
        self._http_port = free_port()
        command = [
            *confinement(self.core),
            str(self._program),
            "serve",
            "--data-dir",
            str(self.directory / "data"),
            "--amqp",
            f"127.0.0.1:{port}",
            "--http",
            f"127.0.0.1:{self._http_port}",
            *self._without_metrics,
        ]
        return _Program(command, self.directory)


class RabbitBroker(Broker):
    """Debian's RabbitMQ."""

    def __init__(self, name: str, directory: Path, program: Path, *, core: int | None) -> None:
        super().__init__(name, directory, core=core)
        self._program = program

    def _new_server(self, port: int) -> Server:
        return rabbitmq.RabbitMQ(
            [*confinement(self.core), str(self._program)],
            self.directory,
            amqp_port=port,
            dist_port=free_port(),
            epmd_port=free_port(),
        )


class RunningBroker(NamedTuple):
    """A broker that somebody else has started: `pid` is the root of its processes."""

    name: str
    pid: int
    uri: str
    core: None = None

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the broker of ``NAME=PID=URI``. Raises ValueError."""
        name, pid, uri = text.split("=", 2)
        return cls(name, int(pid), uri)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address.from_uri(self.uri, "amqp", 5672)


@contextmanager
def started(broker: Broker) -> Iterator[Broker]:
    """Run a broker while the block runs."""
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


class _Program:
    """A single process with its output in a file."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._command = command
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with open(self._directory / "output.log", "ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, cwd=self._directory)

    def exit_status(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def confinement(core: int | None) -> list[str]:
    """Return the command prefix that confines a program to one core."""
    return [] if core is None else ["taskset", "--cpu-list", str(core)]


def free_port() -> int:
    """Return a loopback port that nothing listens on, and that Linux gives to no outgoing connection meanwhile."""
    while True:
        port = random.SystemRandom().randrange(*_OWN_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
