"""What a command works with: the connection, the output and the vhost, from the options that all commands share.

The shared options are those of `shared_options`. They may stand before or after the
command's name; the later one wins. Nothing is read or connected before a command asks for it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import typer

from warren.ctl import config
from warren.ctl.output import Format, Output

if TYPE_CHECKING:
    from warren.ctl.client import Client

FLAGS: Final = "warren.ctl.flags"
_SESSION: Final = "warren.ctl.session"


class CommandSession:
    """One run of one command."""

    def __init__(self, flags: dict[str, Any]) -> None:
        self._flags = flags
        self._client: Client | None = None
        self._output: Output | None = None
        self._values: dict[str, Any] | None = None

    @property
    def client(self) -> Client:
        """The connection to the API; it is opened by the first request."""
        if self._client is None:
            from warren.ctl.client import Client

            self._client = Client(config.target(self._gathered()))
        return self._client

    @property
    def out(self) -> Output:
        """Where answers go."""
        if self._output is None:
            silent = bool(self._flags.get("silent"))
            self._output = Output(
                Format(self._flags.get("formatter", Format.TABLE)),
                quiet=silent or bool(self._flags.get("quiet")),
                headers=not (silent or self._flags.get("no_table_headers")),
            )
        return self._output

    @property
    def vhost(self) -> str:
        """The vhost that was named, or the one of the profile, or ``/``."""
        return str(self._gathered().get("vhost", config.DEFAULT_VHOST))

    @property
    def maybe_vhost(self) -> str | None:
        """The vhost that was named, None without one: for commands that look at all of them then."""
        named = self._gathered().get("vhost")
        return None if named is None else str(named)

    def client_as(self, username: str, password: str) -> Client:
        """Return another connection, for other credentials."""
        from warren.ctl.client import Client

        return Client(self.client.target._replace(username=username, password=password))

    def impatient(self, timeout_s: float) -> None:
        """Wait for answers no longer than this, and never ask for a password: a shell is completing a word."""
        self._values = {"password": "guest", **self._gathered(), "timeout": timeout_s}

    def _gathered(self) -> dict[str, Any]:
        if self._values is None:
            self._values = config.gather(self._flags, os.environ)
        return self._values


def session(context: typer.Context) -> CommandSession:
    """Return the session of this run."""
    meta = context.meta
    if _SESSION not in meta:
        meta[_SESSION] = CommandSession(meta.setdefault(FLAGS, {}))
    found = meta[_SESSION]
    assert isinstance(found, CommandSession)
    return found
