"""Commands that move and copy messages between queues, inside the broker (Warren).

The broker does the work; the command watches, and Ctrl-C stops it where it is. Moved messages stay moved.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from warren.ctl.client import Object, last_segment
from warren.ctl.completion import exchange_names, queue_names
from warren.ctl.exit_codes import CtlError, ExitCode, usage_error
from warren.ctl.session import CommandSession, session
from warren.ctl.words import Queue, counted

_POLL_S: Final = 0.2
_DONE: Final = {"move": "moved", "copy": "copied"}


class Source(StrEnum):
    """Which messages of a queue can be moved."""

    READY = "ready"
    PARKED = "parked"


_ToQueue = Annotated[
    str | None, typer.Option("--to-queue", metavar="QUEUE", help="Put them there", autocompletion=queue_names)
]
_ToExchange = Annotated[
    str | None,
    typer.Option("--to-exchange", metavar="EXCHANGE", help="Publish them there", autocompletion=exchange_names),
]
_WithKey = Annotated[
    str | None, typer.Option("--with-key", metavar="KEY", help="With --to-exchange: replaces their own routing key")
]
_State = Annotated[Source, typer.Option("--state", help="Which messages")]
_Count = Annotated[int | None, typer.Option("--count", "-c", metavar="N", min=1, help="Maximum number")]
_Rate = Annotated[int | None, typer.Option("--rate", metavar="N", min=1, help="Maximum number per second")]
_Key = Annotated[str | None, typer.Option("--routing-key", "-k", metavar="KEY", help="Only messages with it")]
_Header = Annotated[str | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="Only messages with it")]
_Body = Annotated[str | None, typer.Option("--body", metavar="TEXT", help="Only messages whose payload contains this")]


def _between(mode: str, summary: str) -> Callable[..., None]:
    """Return the command that transfers messages in this mode: both have the same options."""

    def transfer(
        context: typer.Context,
        queue: Queue,
        to_queue: _ToQueue = None,
        to_exchange: _ToExchange = None,
        with_key: _WithKey = None,
        state: _State = Source.READY,
        count: _Count = None,
        rate: _Rate = None,
        routing_key: _Key = None,
        header: _Header = None,
        body: _Body = None,
    ) -> None:
        destination = _destination(to_queue, to_exchange, with_key)
        _run(session(context), queue, mode, destination, state, count, rate, _filter(routing_key, header, body))

    transfer.__doc__ = summary
    return transfer


move: Final = _between("move", "Move messages of a queue to another queue or to an exchange.")
copy: Final = _between("copy", "Copy messages of a queue to another queue or to an exchange.")


def redrive(
    context: typer.Context,
    queue: Queue,
    state: _State = Source.READY,
    count: _Count = None,
    rate: _Rate = None,
    routing_key: _Key = None,
    header: _Header = None,
    body: _Body = None,
) -> None:
    """Send dead letters back to the queue they first came from."""
    chosen = _filter(routing_key, header, body)
    _run(session(context), queue, "move", {"origin": True}, state, count, rate, chosen)


def _destination(queue: str | None, exchange: str | None, key: str | None) -> Object:
    if (queue is None) == (exchange is None):
        raise usage_error("either --to-queue or --to-exchange is required")
    if queue is not None:
        if key is not None:
            raise usage_error("--with-key is only for --to-exchange")
        return {"queue": queue}
    return {"exchange": exchange, "routing_key": key}


def _filter(routing_key: str | None, header: str | None, body: str | None) -> Object:
    given = {"routing_key": routing_key, "header": header, "body": body}
    return {key: value for key, value in given.items() if value is not None}


def _run(
    current: CommandSession,
    queue: str,
    mode: str,
    destination: Object,
    state: Source,
    count: int | None,
    rate: int | None,
    chosen: Object,
) -> None:
    body: Object = {"mode": mode, "state": state.value, "destination": destination, "count": count, "filter": chosen}
    if rate is not None:
        body["rate"] = rate
    client = current.client
    location = client.post("warren", "queues", current.vhost, queue, "transfers", body=body).location
    if location is None:
        raise CtlError("the broker did not name the transfer")
    path = ("warren", "transfers", current.vhost, last_segment(location))
    try:
        found = _watch(current, path, wanted=not current.out.is_json)
    except KeyboardInterrupt:
        client.delete(*path)
        found = client.maybe_get(*path) or {"transferred": 0}
        raise CtlError(f"stopped: {_outcome(found, mode)}", ExitCode.INTERRUPTED) from None
    if found["state"] != "done":
        raise CtlError(f"{found.get('error') or found['state']}: {_outcome(found, mode)}")
    if current.out.is_json:
        current.out.document(found)
    else:
        current.out.say(_outcome(found, mode))


def _outcome(found: Object, mode: str) -> str:
    return f"{counted(found['transferred'], 'message')} {_DONE[mode]}"


def _watch(current: CommandSession, path: tuple[str, ...], *, wanted: bool) -> Object:
    """Return the transfer when it has ended."""
    with _progress(wanted=wanted) as show:
        while True:
            found = current.client.get_object(*path)
            show(found)
            if found["state"] != "running":
                return found
            time.sleep(_POLL_S)


@contextmanager
def _progress(*, wanted: bool) -> Iterator[Callable[[Object], Any]]:
    """Show a bar on standard error while the block runs, when that is a terminal."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("messages", total=None)
        yield lambda found: bar.update(task, total=found.get("total"), completed=found["transferred"])


COMMANDS: Final[dict[str, Callable[..., None]]] = {"move": move, "copy": copy, "redrive": redrive}
