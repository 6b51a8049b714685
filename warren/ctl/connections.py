"""Commands that close connections of clients, and cancel their consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Annotated, Final

import typer

from warren.ctl.completion import connection_names
from warren.ctl.exit_codes import CtlError, ExitCode
from warren.ctl.session import CommandSession, session
from warren.ctl.words import User, counted

_Connection = Annotated[
    str,
    typer.Argument(metavar="CONNECTION", help="Its name, as in list_connections name", autocompletion=connection_names),
]
_Reason = Annotated[str, typer.Argument(metavar="REASON", help="Reason sent to the client")]
_Channel = Annotated[
    int, typer.Argument(metavar="CHANNEL", help="The number of its channel, as in list_consumers number")
]
_Tag = Annotated[str, typer.Argument(metavar="CONSUMER_TAG", help="Its tag, as in list_consumers consumer_tag")]
_WhyCancelled = Annotated[
    str, typer.Argument(metavar="REASON", help="Reason for the log, and for a client of AMQP 1.0")
]
_DEFAULT_REASON: Final = "Closed by warren ctl"
_WHY_CANCELLED: Final = "Cancelled by warren ctl"


def close_connection(context: typer.Context, connection: _Connection, reason: _Reason = _DEFAULT_REASON) -> None:
    """Close one connection."""
    current = session(context)
    current.client.delete("connections", connection, headers={"X-Reason": _header(reason)})
    current.out.say(f'Closed connection "{connection}"')


def cancel_consumer(
    context: typer.Context,
    connection: _Connection,
    channel: _Channel,
    tag: _Tag,
    reason: _WhyCancelled = _WHY_CANCELLED,
) -> None:
    """Cancel one consumer; its connection stays open (Warren)."""
    current = session(context)
    headers = {"X-Reason": _header(reason)}
    current.client.delete("consumers", current.vhost, connection, str(channel), tag, headers=headers)
    current.out.say(f'Cancelled consumer "{tag}"')


def close_all_connections(
    context: typer.Context,
    reason: _Reason = _DEFAULT_REASON,
    everywhere: Annotated[bool, typer.Option("--global", help="Of all vhosts, not only of --vhost")] = False,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Maximum number")] = None,
) -> None:
    """Close the connections of a vhost, or all."""
    current = session(context)
    vhost = None if everywhere else current.vhost
    _close(current, lambda item: vhost is None or item.get("vhost") == vhost, reason, limit)


def close_all_user_connections(context: typer.Context, user: User, reason: _Reason = _DEFAULT_REASON) -> None:
    """Close the connections of a user."""
    _close(session(context), lambda item: item.get("user") == user, reason, None)


def _close(
    current: CommandSession, belongs: Callable[[dict[str, object]], bool], reason: str, limit: int | None
) -> None:
    # All names first: pages shift while connections go.
    pages = current.client.pages("connections", query={"columns": "name,user,vhost"})
    names = [str(item["name"]) for page in pages for item in page if belongs(item)]
    closed = sum(_maybe_close(current, islice(names, limit), reason))
    current.out.say(f"Closed {counted(closed, 'connection')}")


def _maybe_close(current: CommandSession, names: Iterable[str], reason: str) -> Iterable[bool]:
    """Close each; yield whether it was still there."""
    for name in names:
        try:
            current.client.delete("connections", name, headers={"X-Reason": _header(reason)})
        except CtlError as error:
            if error.exit_code is not ExitCode.NOT_FOUND:
                raise
            yield False
        else:
            yield True


def _header(text: str) -> str:
    """Return text that can stand in a header: one line, UTF-8 as http.client sends it."""
    return " ".join(text.split()).encode(errors="backslashreplace").decode("latin-1")


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "cancel_consumer": cancel_consumer,
    "close_connection": close_connection,
    "close_all_connections": close_all_connections,
    "close_all_user_connections": close_all_user_connections,
}
