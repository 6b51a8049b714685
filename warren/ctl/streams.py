"""Commands for streams: super streams as rabbitmq-streams makes them, offsets by time, consumer groups."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from warren.ctl.client import Object
from warren.ctl.completion import exchange_names
from warren.ctl.exit_codes import usage_error
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
_SuperStream = Annotated[str, typer.Argument(metavar="NAME", autocompletion=exchange_names, show_default=False)]
_SIZE: Final = re.compile(r"(\d+)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)
_AGE: Final = re.compile(r"\d+[YMDhms]")
_DURATION: Final = re.compile(
    r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?(?<![PT])"
)
_DURATION_UNITS_S: Final = (365 * 86_400, 30 * 86_400, 7 * 86_400, 86_400, 3_600, 60, 1)


def add_super_stream(
    context: typer.Context,
    name: _SuperStream,
    partitions: Annotated[int | None, typer.Option("--partitions", metavar="N", help="3 without")] = None,
    binding_keys: Annotated[
        str | None,
        typer.Option("--binding-keys", "--routing-keys", metavar="A,B", help="One partition per key"),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="x-super-stream hashes routing keys, direct leaves the choice to publishers; "
            "direct with --binding-keys, else x-super-stream (Warren)",
        ),
    ] = None,
    max_length_bytes: Annotated[
        str | None, typer.Option("--max-length-bytes", metavar="SIZE", help="Kept per partition: 20gb, 500mb")
    ] = None,
    max_age: Annotated[str | None, typer.Option("--max-age", metavar="AGE", help="7D, 12h, or P5DT8H")] = None,
    stream_max_segment_size_bytes: Annotated[
        str | None, typer.Option("--stream-max-segment-size-bytes", metavar="SIZE")
    ] = None,
    leader_locator: Annotated[str | None, typer.Option("--leader-locator", metavar="LOCATOR")] = None,
    initial_cluster_size: Annotated[int | None, typer.Option("--initial-cluster-size", metavar="N")] = None,
) -> None:
    """Add a super stream: an exchange and its partitions."""
    if partitions is not None and binding_keys is not None:
        raise usage_error("--partitions or --binding-keys, not both")
    current = session(context)
    arguments: dict[str, Any] = {
        "max-length-bytes": _size(max_length_bytes, "--max-length-bytes"),
        "max-age": _age(max_age),
        "stream-max-segment-size-bytes": _size(stream_max_segment_size_bytes, "--stream-max-segment-size-bytes"),
        "queue-leader-locator": leader_locator,
        "initial-cluster-size": initial_cluster_size,
    }
    body: Object = {"arguments": {key: value for key, value in arguments.items() if value is not None}}
    if binding_keys is None:
        body["partitions"] = 3 if partitions is None else partitions
    else:
        body["binding-keys"] = binding_keys
    if kind is not None:
        body["type"] = kind
    current.client.put("stream", "super-streams", current.vhost, name, body=body)
    current.out.say(f'Added super stream "{name}" in vhost "{current.vhost}"')


def delete_super_stream(context: typer.Context, name: _SuperStream) -> None:
    """Delete a super stream: the exchange and its partitions with their messages."""
    current = session(context)
    current.client.delete("stream", "super-streams", current.vhost, name)
    current.out.say(f'Deleted super stream "{name}" in vhost "{current.vhost}"')


def _size(text: str | None, option: str) -> int | None:
    """Return how many bytes a text such as ``20gb`` says: ``gb`` counts in thousands, ``g`` and ``gib`` in 1024s."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise usage_error(f"{option} {text}: not a size such as 100gb or 50mb")
    number, unit, rest = found.groups()
    base = 1000 if (rest or "").lower() == "b" else 1024
    factor: int = base ** (" kmgt".index(unit.lower()) if unit else 0)
    return int(number) * factor


def _age(text: str | None) -> str | None:
    """Return an age as streams have it; an ISO 8601 duration, which rabbitmq-streams takes, in seconds."""
    if text is None or _AGE.fullmatch(text):
        return text
    found = _DURATION.fullmatch(text)
    if found is None:
        raise usage_error(f"--max-age {text}: not an age such as 7D, nor an ISO 8601 duration such as P5DT8H")
    parts = zip(found.groups(), _DURATION_UNITS_S, strict=True)
    return f"{sum(int(number or 0) * unit for number, unit in parts)}s"


def reset_stream_group(context: typer.Context, queue: Queue, group: _Group, position: _Position) -> None:
    """Move a consumer group of a stream to another position (Warren)."""
    current = session(context)
    current.client.put("warren", "streams", current.vhost, queue, "groups", group, body=_position(position))
    current.out.say(f'Reset group "{group}" of stream "{queue}" in vhost "{current.vhost}"')


def delete_stream_group(context: typer.Context, queue: Queue, group: _Group) -> None:
    """Forget a consumer group of a stream (Warren)."""
    current = session(context)
    current.client.delete("warren", "streams", current.vhost, queue, "groups", group)
    current.out.say(f'Deleted group "{group}" of stream "{queue}" in vhost "{current.vhost}"')


def stream_offset(context: typer.Context, queue: Queue, position: _Position) -> None:
    """Print the stream offset of a time or a name (Warren)."""
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
    "add_super_stream": add_super_stream,
    "delete_super_stream": delete_super_stream,
    "reset_stream_group": reset_stream_group,
    "delete_stream_group": delete_stream_group,
    "stream_offset": stream_offset,
}
