"""A PostgreSQL of our own: the installed server on fresh data and a free loopback port, while the tests run.

1. Nothing of a PostgreSQL that is already there is touched or used.
2. As root the server runs as the user ``postgres``, since it refuses to be root.
3. Without an installed server the tests that need one are skipped, saying so; with CI=true they fail.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from free_ports import free_port

_USER = "warren_tests"
_EMPTY = "empty"
_START_TIMEOUT_S = 60.0
_POLL_S = 0.05


class PostgresServer:
    """A running server; hands out empty databases."""

    def __init__(self, binaries: Path, directory: Path) -> None:
        self._binaries = binaries
        self._directory = directory
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._has_empty = False
        self.port = 0

    def initialise(self) -> None:
        """Create the cluster. Its collation is not the C one: names must compare by byte regardless."""
        (self._directory / "socket").mkdir()
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            for path in (self._directory, self._directory / "socket"):
                os.chown(path, account.pw_uid, account.pw_gid)
        options = ["--auth=trust", f"--username={_USER}", "--encoding=UTF8", "--no-sync", "--no-instructions"]
        locale = ["--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US"]
        self._run("initdb", f"--pgdata={self._data}", *options, *locale)

    def start(self) -> None:
        """Start on the port of the last start, at first on a free one, and wait until it answers."""
        if self.port == 0:
            self.port = free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._directory / "socket",
            "fsync": "off",
            "max_connections": 40,
        }
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user(), str(self._binaries / "postgres"), "-D", str(self._data), *arguments],
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )
        give_up_at = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(self.conninfo("postgres")).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    raise
                time.sleep(_POLL_S)
            else:
                return

    def stop(self) -> None:
        """Stop the server; open connections are cut."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """Kill the server and the processes of its connections; `start` finds what was committed."""
        if self._process is not None:
            pid = self._process.pid
            self._process.send_signal(signal.SIGSTOP)  # it starts no more of them
            below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for each in (pid, *map(int, below)):
                os.kill(each, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def conninfo(self, database: str) -> str:
        """Return how psycopg connects to `database`."""
        return f"host=127.0.0.1 port={self.port} user={_USER} dbname={database} connect_timeout=5"

    def fresh_url(self, *, encoding: str = "UTF8") -> str:
        """Create an empty database and return the URL a broker connects to it with.

        Of the usual encoding it is a copy of the files of one that somebody has connected to: half the cost.
        """
        name = f"warren_{next(self._numbers)}"
        made_as = f"TEMPLATE {_EMPTY} STRATEGY FILE_COPY"
        if encoding != "UTF8":
            made_as = f"TEMPLATE template0 ENCODING '{encoding}' LOCALE_PROVIDER libc LOCALE 'C'"
        with psycopg.connect(self.conninfo("postgres"), autocommit=True) as connection:
            if not self._has_empty:
                connection.execute(f"CREATE DATABASE {_EMPTY} TEMPLATE template0".encode())
                psycopg.connect(self.conninfo(_EMPTY)).close()
                self._has_empty = True
            connection.execute(f"CREATE DATABASE {name} {made_as}".encode())
        return f"postgresql+psycopg://{_USER}@127.0.0.1:{self.port}/{name}"

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user(), str(self._binaries / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self._directory)
        assert done.returncode == 0, done.stderr

    @staticmethod
    def _as_user() -> list[str]:
        if os.geteuid() != 0:
            return []
        # setpriv becomes the server instead of waiting for it, so signals reach the server.
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]


def installed_binaries() -> Path:
    """Return the newest installed server's programs; skip, or fail with CI=true, without one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    reason = "no PostgreSQL server is installed (Debian: apt-get install postgresql)"
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server on fresh data, and leave nothing behind."""
    binaries = installed_binaries()
    # Not below pytest's own directory: that one only its owner may enter, and the server is another user.
    directory = Path(tempfile.mkdtemp(prefix="warren-postgres-"))
    server = PostgresServer(binaries, directory)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)
