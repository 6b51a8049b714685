"""Commands for streams (Warren): offsets by time, and consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Final

import typer

from warren.ctl.client import Object
from warren.ctl.errors import usage_error
from warren.ctl.session import session
from warren.ctl.words import Queue

_Group = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]
_Position = Annotated[
    str,
    typer.Argument(
        metavar="POSITION",
        help="OFFSET, first, last, next, an age (1h), a time (2026-11-22T08:00)",
        show_default=False,
    ),
]


def reset_stream_group(context: typer.Context, queue: Queue, group: _Group, position: _Position) -> None:
    """Have a consumer group of a stream go on from somewhere else (Warren)."""
    current = session(context)
    current.client.put("warren", "streams", current.vhost, queue, "groups", group, body=_position(position))
    current.out.say(f'Reset group "{group}" of stream "{queue}" in vhost "{current.vhost}"')


def delete_stream_group(context: typer.Context, queue: Queue, group: _Group) -> None:
    """Forget a consumer group of a stream (Warren)."""
    current = session(context)
    current.client.delete("warren", "streams", current.vhost, queue, "groups", group)
    current.out.say(f'Deleted group "{group}" of stream "{queue}" in vhost "{current.vhost}"')


def stream_offset(context: typer.Context, queue: Queue, position: _Position) -> None:
    """Print the offset in a stream that a time or a name stands for (Warren)."""
    current = session(context)
    found = current.client.post("warren", "streams", current.vhost, queue, "offset", body=_position(position))
    current.out.document(found.value) if current.out.is_json else current.out.result(str(found.value["offset"]))


def _position(text: str) -> Object:
    if text.isdecimal():
        return {"offset": int(text)}
    if "-" in text:
        try:
            return {"time_ms": round(datetime.fromisoformat(text).timestamp() * 1000)}
        except ValueError as error:
            raise usage_error(f"POSITION: {error}") from None
    return {"offset": text}


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "reset_stream_group": reset_stream_group,
    "delete_stream_group": delete_stream_group,
    "stream_offset": stream_offset,
}
