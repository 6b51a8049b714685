"""Define the errors that keep the broker from starting, each one line for the person who started it.

1. The text of a `StartError` is one line. It names what was asked for and what prevented it, and does not contain
   credentials.
2. The exit code is 2 for settings that cannot be used, 1 for a machine that does not allow them.
"""

from __future__ import annotations

import errno
import os


class StartError(Exception):
    """The broker cannot start, or a command cannot run, for a reason outside the program."""

    exit_code = 1


class SettingsError(StartError):
    """A setting is unknown, has the wrong type, is out of range or contradicts another."""

    exit_code = 2


class CatalogueError(StartError):
    """The metadata store cannot be reached, read or written."""


def listen_error(what: str, host: str, port: int, error: OSError) -> StartError:
    """Explain why listening failed. `what` is the setting that named the address (``amqp``, ``http`` ...)."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        reason = "the port is in use"
    elif error.errno == errno.EADDRNOTAVAIL:
        reason = "this machine does not have that address"
    elif error.errno in (errno.EACCES, errno.EPERM):
        reason = "not permitted (ports below 1024 need a privilege)"
    elif error.errno is not None and error.errno > 0:
        reason = os.strerror(error.errno)
    else:
        reason = error.strerror or str(error)
    return StartError(f"cannot listen on {address} ({what}): {reason}")
