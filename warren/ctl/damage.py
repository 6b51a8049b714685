"""The command that gives up what is damaged on the broker's disk (Warren)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from warren.ctl.session import session
from warren.ctl.words import Queue, counted


def give_up_damage(
    context: typer.Context,
    queue: Queue,
    unreadable: Annotated[
        bool, typer.Option("--unreadable", help="Include unreadable messages, and mark them damaged")
    ] = False,
) -> None:
    """Give up the damaged messages of a queue: they are lost, and their space is freed (Warren)."""
    current = session(context)
    body = {"vhost": current.vhost, "queue": queue, "unreadable": unreadable}
    found = current.client.post("warren", "damage", "give-up", body=body).value
    if current.out.is_json:
        current.out.document(found)
        return
    messages = counted(found["messages"], "damaged message")
    current.out.say(f'Gave up {messages} of queue "{queue}" in vhost "{current.vhost}"')
    if found["reads"]:
        current.out.say(f"{counted(found['reads'], 'read')} end with what the disk returns: check list_damage again")


COMMANDS: Final[dict[str, Callable[..., None]]] = {"give_up_damage": give_up_damage}
