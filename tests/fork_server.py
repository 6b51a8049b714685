"""Starts brokers by forking a process that has imported everything: a start costs a fifth of the processor's time.

Owns that process, one for each process of tests, made with the first start and ended with its maker. Also watches its
children: they are not ours, so `subprocess` cannot. Knows only the imports of brokers.

The same as with ``python -m warren``: the arguments, the environment, the working directory, the umask, output,
signals, and its end, but for the objects of modules, which are not freed. Different: the command line in /proc, the
limits of resources (those of the server's start, unless others are asked for), the seed of hashes, and the cost of a
password (`cheap_passwords.py`). A start with a program in
front of it, or with another environment for the interpreter, does not fork: see `fork`.

One socket takes requests: a datagram of JSON (arguments, environment, working directory, umask, limits, mounts) with
three descriptors, which are stdout, stderr and the socket of this one child. On that come two lines: the number of the
process, and how it ended, as `subprocess.Popen.returncode` says it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final

REQUEST_BYTES_MAX: Final = 1 << 18
DEADLINE_S: Final = 120.0
# They differ from start to start. The interpreter does not look at them, and libraries only when they are used.
_ANY_VALUE: Final = ("WARREN_", "PYTEST_", "COLUMNS", "AWS_", "PYICEBERG_", "NOTIFY_SOCKET", "WATCHDOG_USEC")
# Of the fork server: as it was before any test. A test changes its own for a while, and it may be the first to fork.
_ENVIRONMENT: Final = dict(os.environ)


class Forked:
    """A child of the fork server, with what `subprocess.Popen` has of it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lines = control.makefile("rb", buffering=0)
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.pid = int(self._lines.readline())
        try:
            self._handle: int | None = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._handle = None  # it has ended, and poll() says how

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        with self._lock:
            if self.returncode is None and select.select([self._control], [], [], 0)[0]:
                line = self._lines.readline()
                assert line, "the fork server has ended"
                self.returncode = int(line)
                self._let_go()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, when it has.

        Raises:
            subprocess.TimeoutExpired: it runs for longer than that.
        """
        if self.returncode is None:
            with contextlib.suppress(ValueError):  # another thread has seen the end meanwhile
                select.select([self._control], [], [], timeout)
        code = self.poll()
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        with self._lock:
            if self._handle is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, number)

    def _let_go(self) -> None:
        self._lines.close()
        self._control.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class _Server:
    """The process that forks, seen from the one that asks."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            # Its stdout is nobody's terminal, so what a child prints is written as it is into a file. Its directory is
            # that of the tests, wherever the first of them has gone: PYTHONPATH may be relative.
            program = Path(__file__).resolve()
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(program), str(theirs.fileno())],
                cwd=program.parent,
                env=_ENVIRONMENT,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.end)

    def fork(self, request: Mapping[str, Any], out: IO[bytes], log: IO[bytes]) -> Forked:
        """Make it start a child."""
        control, theirs = socket.socketpair()
        with theirs:
            data = json.dumps(request).encode()
            assert len(data) < REQUEST_BYTES_MAX
            with self._lock:
                socket.send_fds(self._socket, [data], [out.fileno(), log.fileno(), theirs.fileno()])
        return Forked(control)

    def end(self) -> None:
        """Release it, and wait: from then on its children's processor time counts as ours."""
        self._socket.close()
        self._process.wait(DEADLINE_S)


_server: _Server | None = None
_making = threading.Lock()


def fork(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    out: IO[bytes],
    log: IO[bytes],
    *,
    limits: Mapping[str, int] | None = None,
    mounts_of: int = 0,
) -> Forked | None:
    """Start ``warren ARGUMENTS``; None when a fork would not be what was asked for.

    That is the case when the environment differs, in what Python or a library may look at when it starts, from that of
    the fork server. `limits`: its limits of resources, by their names in `resource`. `mounts_of`: the process whose
    mounts it has.
    """
    global _server
    if _of_the_interpreter(environment) != _of_the_interpreter(_ENVIRONMENT):
        return None
    with _making:
        if _server is None:
            _server = _Server()
    umask = os.umask(0)
    os.umask(umask)
    request = {"arguments": list(arguments), "environment": dict(environment), "directory": os.getcwd(), "umask": umask}
    request |= {"limits": dict(limits or {}), "mounts_of": mounts_of}
    return _server.fork(request, out, log)


def _of_the_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if not name.startswith(_ANY_VALUE)}


# --- the process that forks -------------------------------------------------------------------------------------------


def import_all() -> list[ModuleType]:
    """Import what a broker imports before it serves, but for the module that is run."""
    # What libraries import late.
    import encodings.idna
    import importlib.readers

    import sqlalchemy.dialects.sqlite

    import warren.gateway.plugin
    import warren.links.plugin
    import warren.mgmt_plugin.plugin
    import warren.replication.node
    import warren.server.application
    import warren.server.catalogue.catalogue
    import warren.server.cli
    import warren.server.histories
    import warren.server.logs
    import warren.server.process_memory
    import warren.server.setting_checks

    return [encodings.idna, importlib.readers, sqlalchemy.dialects.sqlite, warren]


def make_passwords_cheap() -> None:
    """Make passwords cheap, as the tests do, but keep modules of tests off the import path of brokers."""
    sys.path.insert(0, str(Path(__file__).parent))
    import cheap_passwords

    del sys.path[0]
    cheap_passwords.make_passwords_cheap()


def serve_forks(requests: socket.socket) -> None:
    """Fork a child for each request, and report how each ended, until the last client has closed. Children return."""
    children: dict[int, socket.socket] = {}
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    # Ctrl-C is for the tests, which end what they have started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if woken in ready:
                woken.recv(4096)
                _tell_of_the_ended(children)
            if requests not in ready:
                continue
            data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
            if not data:
                sys.exit()
            out, log, control_descriptor = descriptors
            control = socket.socket(fileno=control_descriptor)
            pid = os.fork()
            if pid == 0:
                break
            os.close(out)
            os.close(log)
            children[pid] = control
            control.sendall(b"%d\n" % pid)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in (requests, woken, wakes, control, *children.values()):
        each.close()
    become(json.loads(data), out, log)


def _tell_of_the_ended(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with children.pop(pid) as control, contextlib.suppress(OSError):  # the client may be gone
            control.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def become(request: Mapping[str, Any], out: int, log: int) -> None:
    """Be what was asked for, but for running it."""
    for descriptor, standard in ((out, 1), (log, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    if request["mounts_of"]:
        _enter_mounts(request["mounts_of"])
    for name, most in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))
    os.chdir(request["directory"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["warren", *request["arguments"]]
    # By this a node of a cluster replaces its process.
    sys.orig_argv[1:] = ["-P", "-m", "warren", *request["arguments"]]


def _enter_mounts(process: int) -> None:
    """Enter the mount namespace of a process, as nsenter does."""
    namespace = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    make_passwords_cheap()
    import_all()
    # A broker looks at all objects before it starts. Those that are here it need not: looking at them copies them, too.
    gc.collect()
    gc.freeze()
    assert threading.active_count() == len(list(Path("/proc/self/task").iterdir())) == 1
    serve_forks(requests)
    try:
        runpy.run_module("warren", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            leave(end.code or 0)
        raise


def leave(code: int) -> None:
    """End this process as the interpreter does, but leave its objects where they are.

    To free those of all modules that were imported before the fork copies every page that they are on.
    """
    getattr(threading, "_shutdown")()  # noqa: B009 - it has no type; waits for threads that are not daemons
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
