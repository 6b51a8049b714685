"""Links between the nodes of one machine that a test cuts and heals, in one direction or in both.

Each link is a relay with its own port. `route_shim.c`, preloaded into a node, decides which connections go through the
node's links: a node knows the true addresses of the others, but its connections reach the relays.

1. A link that is cut loses nothing and says nothing: bytes wait where they are, as those of TCP that are sent again
   and again, and so does the end of a connection. Healed, it passes on all of it, late.
2. Nobody listens at a relay whose target does not listen, unless it is cut: a connection is refused then, as by a
   machine that is there and a process that is not.
"""

from __future__ import annotations

import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from struct import pack
from typing import Final

import pytest
from compat.broker import in_ci
from free_ports import free_port

_SOURCE: Final = Path(__file__).with_name("route_shim.c")
_TURN_MS: Final = 20
_LOOK_S: Final = 0.05  # the interval of checks for listeners
_BYTES: Final = 1 << 16
_LISTENS: Final = "0A"
_RESET: Final = pack("ii", 1, 0)  # SO_LINGER: closing is a reset


def compiled_shim(directory: Path) -> Path:
    """Compile the shim into `directory`; skip the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        assert not in_ci(), "there is no C compiler"
        pytest.skip("there is no C compiler (cc)")
    library = directory / "route_shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


def wrapper(shim: Path, routes: Mapping[int, int]) -> list[str]:
    """Return the command under which a process comes out at other ports than it connects to."""
    pairs = ",".join(f"{true}:{relayed}" for true, relayed in routes.items())
    return ["env", f"LD_PRELOAD={shim}", f"ROUTE_SHIM={pairs}"]


class _Connection:
    """An accepted one (`near`), and its continuation (`far`). Bytes that were read and not sent wait in `pending`."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near = near
        self.far = far
        self.pending: dict[socket.socket, bytes] = {near: b"", far: b""}
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self, *, reset: bool = False) -> None:
        for sock in (self.near, self.far):
            if reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.close()


class Link:
    """The bytes from one process to another one at `target_port`, by way of `port`."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = free_port()
        self.there = True  # bytes to the target pass
        self.back = True
        self.listener: socket.socket | None = None
        self.connections: list[_Connection] = []

    @property
    def is_whole(self) -> bool:
        return self.there and self.back


class Network:
    """All links of a test, and the thread that serves them. Cut and heal from any thread."""

    def __init__(self) -> None:
        self._links: list[Link] = []
        self._lock = threading.Lock()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def link(self, target_port: int) -> Link:
        """Return a new link; before `start` only."""
        link = Link(target_port)
        self._links.append(link)
        return link

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End all connections."""
        self._is_over = True
        self._thread.join()
        for link in self._links:
            if link.listener is not None:
                link.listener.close()
            for connection in link.connections:
                connection.close()

    def cut(self, link: Link, *, there: bool = True, back: bool = True) -> None:
        """Block everything in these directions."""
        with self._lock:
            link.there = link.there and not there
            link.back = link.back and not back

    def heal(self) -> None:
        """Pass everything."""
        with self._lock:
            for link in self._links:
                link.there = link.back = True

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        look_s = 0.0
        while not self._is_over:
            poll = select.poll()
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + _LOOK_S
                listening = _listening_ports()
            with self._lock:
                wanted: dict[int, int] = {}
                for link in self._links:
                    self._listen(link, listening)
                    self._watch(link, wanted)
            for descriptor, events in wanted.items():
                poll.register(descriptor, events)
            ready = {descriptor for descriptor, _ in poll.poll(_TURN_MS)}
            with self._lock:
                for link in self._links:
                    self._serve(link, ready)

    def _listen(self, link: Link, listening: set[int]) -> None:
        is_there = link.target_port in listening
        if link.listener is None and (is_there or not link.is_whole):
            link.listener = socket.create_server(("127.0.0.1", link.port), backlog=100)
            link.listener.setblocking(False)
        elif link.listener is not None and link.is_whole and not is_there:
            link.listener.close()
            link.listener = None

    def _watch(self, link: Link, wanted: dict[int, int]) -> None:
        if link.listener is not None and link.is_whole:
            wanted[link.listener.fileno()] = select.POLLIN
        for connection in link.connections:
            for source, target, passes in _directions(link, connection):
                if passes and connection.pending[target]:
                    wanted[target.fileno()] = wanted.get(target.fileno(), 0) | select.POLLOUT
                elif passes:
                    wanted[source.fileno()] = wanted.get(source.fileno(), 0) | select.POLLIN

    def _serve(self, link: Link, ready: set[int]) -> None:
        if link.listener is not None and link.listener.fileno() in ready and link.is_whole:
            self._accept(link)
        for connection in list(link.connections):
            try:
                goes_on = all(
                    _moved(connection, source, target, ready)
                    for source, target, passes in _directions(link, connection)
                    if passes
                )
            except BlockingIOError:
                continue
            except OSError:
                connection.close(reset=True)
                link.connections.remove(connection)
                continue
            if not goes_on:
                connection.close()
                link.connections.remove(connection)

    def _accept(self, link: Link) -> None:
        assert link.listener is not None
        try:
            near, _ = link.listener.accept()
        except OSError:
            return
        try:
            far = socket.create_connection(("127.0.0.1", link.target_port))
        except OSError:
            near.close()
            return
        link.connections.append(_Connection(near, far))


def _directions(link: Link, connection: _Connection) -> list[tuple[socket.socket, socket.socket, bool]]:
    return [(connection.near, connection.far, link.there), (connection.far, connection.near, link.back)]


def _moved(connection: _Connection, source: socket.socket, target: socket.socket, ready: set[int]) -> bool:
    """Move some bytes; tell whether the source has more to come. Raises OSError."""
    pending = connection.pending
    if not pending[target] and source.fileno() in ready:
        try:
            data = source.recv(_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        pending[target] = data
    if pending[target]:
        try:
            pending[target] = pending[target][target.send(pending[target]) :]
        except BlockingIOError:
            return True
    return True


def _listening_ports() -> set[int]:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    columns = (line.split() for line in lines)
    return {int(column[1].rpartition(":")[2], 16) for column in columns if column[3] == _LISTENS}
