"""Starts Debian's rabbitmq-server with fresh data on free loopback ports, as the current user, and stops it.

1. As shipped: no plugin, no configuration file but one that is put into the directory, the Erlang flags of the
   package (busy waiting of idle schedulers included).
2. Nothing of an installed RabbitMQ is touched: node name, ports, port mapper, cookie, data and logs are its
   own, under the directory given.
3. When `stop` returns, all its processes have ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

_LIBRARY_PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_STOP_S: Final = 30.0


def maybe_program() -> Path | None:
    """Return the server program: the package's own one, which runs as any user, or the one on PATH."""
    if _LIBRARY_PROGRAM.exists():
        return _LIBRARY_PROGRAM
    found = shutil.which("rabbitmq-server")
    return Path(found) if found else None


def maybe_install() -> Path | None:
    """Return the server program, installing Debian's package when it is missing and we are root; None when
    that cannot be.
    """
    program = maybe_program()
    if program is not None or os.geteuid() != 0 or not shutil.which("apt-get"):
        return program
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", "rabbitmq-server"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"apt-get could not install rabbitmq-server: {done.stderr.strip().splitlines()[-1:]}")
    return maybe_program()


def environment(
    directory: Path, name: str, home: Path, *, amqp_port: int, dist_port: int, epmd_port: int
) -> dict[str, str]:
    """Return the environment of a node called `name` on `directory`; `home` has the cookie, which a cluster shares."""
    return {
        **os.environ,
        "HOME": str(home),
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(amqp_port),
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "rabbitmq-env.conf"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "ERL_CRASH_DUMP": str(directory / "erl_crash.dump"),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


class RabbitMQ:
    """One node, started by ``command``. ``pid`` is the root of its process tree."""

    def __init__(self, command: list[str], directory: Path, *, amqp_port: int, dist_port: int, epmd_port: int) -> None:
        self._directory = directory
        self._environment = environment(
            directory, "bench@localhost", directory, amqp_port=amqp_port, dist_port=dist_port, epmd_port=epmd_port
        )
        self._command = command
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the start script, the parent of the Erlang machine."""
        assert self._server is not None
        return self._server.pid

    def start(self) -> None:
        """Start port mapper and server; who wants to know when it accepts connections must try."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with open(self._directory / "output.log", "ab") as output:
            epmd = shutil.which("epmd") or "epmd"
            self._epmd = subprocess.Popen([epmd], env=self._environment, stdout=output, stderr=output)
            self._server = subprocess.Popen(
                self._command, env=self._environment, stdout=output, stderr=output, start_new_session=True
            )

    def exit_status(self) -> int | None:
        """Return how the server ended by itself, None while it runs."""
        return self._server.poll() if self._server is not None else None

    def stop(self) -> None:
        """Stop in order: SIGTERM to the server's process group, then SIGKILL to what remains, then the port
        mapper.
        """
        if self._server is not None:
            for signal_number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(self._server.pid, signal_number)
                    self._server.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    continue
                except ProcessLookupError:
                    break
            self._server.wait()
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd.wait()
