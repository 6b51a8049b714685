"""Commands for drains: what readers have claimed of queues, given back or thrown away (Warren)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from warren.ctl.session import session
from warren.ctl.words import Queue, counted

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the reader", show_default=False)]


def release_drain(context: typer.Context, queue: Queue, name: _Name) -> None:
    """Return the claims of a drain to its queue; its current reader is refused from then on (Warren)."""
    current = session(context)
    path = ("warren", "drains", current.vhost, queue, name, "release")
    found = current.client.post(*path, body={}).value
    if current.out.is_json:
        current.out.document(found)
    else:
        released = counted(found["released"], "message")
        current.out.say(f'Released {released} of drain "{name}" of queue "{queue}" in vhost "{current.vhost}"')


def delete_drain(
    context: typer.Context,
    queue: Queue,
    name: _Name,
    discard: Annotated[bool, typer.Option("--discard", help="Including its claimed messages, which are lost")] = False,
) -> None:
    """Forget a drain (Warren)."""
    current = session(context)
    query = {"discard": "true"} if discard else {}
    current.client.delete("warren", "drains", current.vhost, queue, name, query=query)
    current.out.say(f'Deleted drain "{name}" of queue "{queue}" in vhost "{current.vhost}"')


COMMANDS: Final[dict[str, Callable[..., None]]] = {"release_drain": release_drain, "delete_drain": delete_drain}
