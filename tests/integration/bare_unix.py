"""Run ``python -m warren``, or a script, as on a Unix without the features of Linux.

Before Warren is imported, this script removes the names that macOS or a BSD does not have. trio and Python's own
modules keep theirs, because they are ported. /proc exists but is not found. Only `poll` remains for waiting: kqueue
does not exist here.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import os.path
import re
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
from typing import Any

import trio

LINUX_ONLY: dict[types.ModuleType, str] = {
    select: "epoll|EPOLL.*|POLLRDHUP|POLLMSG",
    os: "eventfd.*|EFD_.*|memfd_create|MFD_.*|fdatasync|posix_fallocate|posix_fadvise|POSIX_FADV_.*|sched_.*affinity"
    "|O_TMPFILE|O_DIRECT|O_PATH|O_NOATIME|pidfd_open|copy_file_range|splice|getrandom|setns|unshare",
    socket: "TCP_(KEEPIDLE|CONGESTION|USER_TIMEOUT|QUICKACK|DEFER_ACCEPT|INFO)|SO_PEERCRED|AF_(NETLINK|VSOCK|PACKET)"
    "|MSG_NOSIGNAL|SOCK_(CLOEXEC|NONBLOCK)|accept4",
    signal: "SIGPWR|SIGSTKFLT|SIGPOLL",
    resource: "prlimit",
    fcntl: "F_(ADD|GET)_?SEALS|F_[GS]ETPIPE_SZ",
}


def strip() -> None:
    """Take away what only Linux has."""
    import trio._core._io_epoll as its_epoll

    kept: Any = types.ModuleType("select")
    kept.__dict__.update(vars(select))
    its_epoll.select = kept  # type: ignore[attr-defined]
    for module, names in LINUX_ONLY.items():
        for name in [name for name in vars(module) if re.fullmatch(names, name)]:
            delattr(module, name)
    socket.TCP_KEEPALIVE = 4  # type: ignore[attr-defined]
    for name in ("exists", "isdir"):
        found = getattr(os.path, name)
        setattr(os.path, name, lambda path, found=found: not str(path).startswith("/proc") and found(path))
    opened = os.open

    def open_but_proc(path: Any, *options: Any, **more: Any) -> int:
        assert not str(path).startswith("/proc"), path
        return opened(path, *options, **more)

    os.open = open_but_proc
    ctypes.CDLL = lambda name: types.SimpleNamespace()  # type: ignore[assignment, misc]


def resident() -> Any:
    """Answer as psutil does, which is not installed on Linux."""
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True).stdout
    return types.SimpleNamespace(rss=int(told) * 1024)


if __name__ == "__main__":
    assert trio.lowlevel
    psutil: Any = types.ModuleType("psutil")
    psutil.Process = lambda: types.SimpleNamespace(memory_info=resident)
    sys.modules["psutil"] = psutil
    strip()
    if sys.argv[1].endswith(".py"):
        del sys.argv[0]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        del sys.argv[1 : sys.argv.index("warren") + 1]
        from warren.__main__ import main

        main()
