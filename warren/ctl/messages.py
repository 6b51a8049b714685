"""Commands that publish a message, take some, or look at them where they are."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warren.ctl.client import Object
from warren.ctl.completion import exchange_names
from warren.ctl.exit_codes import CtlError, usage_error
from warren.ctl.session import CommandSession, session
from warren.ctl.words import Queue, key_values, texts_by_key

_COLUMNS: Final = ("routing_key", "exchange", "redelivered", "payload_bytes", "payload")
_PEEK_COLUMNS: Final = ("position", *_COLUMNS)
_NUMBERS: Final = ("delivery_mode", "priority", "timestamp")
_Exchange = Annotated[
    str, typer.Option("--exchange", "-x", metavar="EXCHANGE", help="Default: the default exchange, so the key names "
    "a queue", autocompletion=exchange_names, show_default=False)
]  # fmt: skip
_Count = Annotated[int, typer.Option("--count", "-c", metavar="N", min=1, help="Maximum number of messages")]
_Truncate = Annotated[int | None, typer.Option("--truncate", metavar="BYTES", min=0, help="Maximum size shown of each")]
_Raw = Annotated[bool, typer.Option("--raw", help="Only the payloads, each with a newline, as bytes")]


class AckMode(StrEnum):
    """What becomes of messages that were taken."""

    ACK_REQUEUE_TRUE = "ack_requeue_true"
    ACK_REQUEUE_FALSE = "ack_requeue_false"
    REJECT_REQUEUE_TRUE = "reject_requeue_true"
    REJECT_REQUEUE_FALSE = "reject_requeue_false"


class State(StrEnum):
    """Where messages of a queue can be."""

    READY = "ready"
    UNACKED = "unacked"
    DELAYED = "delayed"
    PARKED = "parked"
    UNDELIVERED = "undelivered"


def publish(
    context: typer.Context,
    payload: Annotated[str | None, typer.Argument(metavar="PAYLOAD", help="Default: standard input")] = None,
    exchange: _Exchange = "",
    routing_key: Annotated[str, typer.Option("--routing-key", "-k", metavar="KEY")] = "",
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Payload from a file")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="May be repeated")
    ] = None,
    prop: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="content_type, correlation_id, expiration, …"),
    ] = None,
    persistent: Annotated[
        bool, typer.Option("--persistent/--transient", help="Store it: it survives a restart in a durable queue")
    ] = True,
) -> None:
    """Publish one message and wait until it is confirmed; exit code 1 when no queue took it."""
    current = session(context)
    content = _content(payload, file)
    properties: dict[str, Any] = dict(texts_by_key(prop, "--property"))
    for name in _NUMBERS:
        if name in properties:
            properties[name] = _number(name, properties[name])
    properties.setdefault("delivery_mode", 2 if persistent else 1)
    if header:
        properties["headers"] = key_values(header, "--header")
    body: Object = {"properties": properties, "routing_key": routing_key}
    try:
        body |= {"payload": content.decode(), "payload_encoding": "string"}
    except UnicodeDecodeError:
        body |= {"payload": base64.b64encode(content).decode(), "payload_encoding": "base64"}
    # The API calls the default exchange by its other name.
    name = exchange or "amq.default"
    answer = current.client.post("exchanges", current.vhost, name, "publish", body=body).value
    if not answer["routed"]:
        raise CtlError(f'published to exchange "{name}", but no queue took it')
    current.out.say(f"Published {len(content)} bytes")


def get(
    context: typer.Context,
    queue: Queue,
    count: _Count = 1,
    ack_mode: Annotated[
        AckMode, typer.Option("--ack-mode", help="ack_requeue_false removes them; ack_requeue_true puts them back")
    ] = AckMode.ACK_REQUEUE_TRUE,
    truncate: _Truncate = None,
    raw: _Raw = False,
) -> None:
    """Get messages from a queue; by default put them back, marked as redelivered."""
    current = session(context)
    body: Object = {"count": count, "ackmode": ack_mode.value, "encoding": "auto"}
    if truncate is not None:
        body["truncate"] = truncate
    found = current.client.post("queues", current.vhost, queue, "get", body=body).value
    _show(current, found, _COLUMNS, raw=raw)


def peek(
    context: typer.Context,
    queue: Queue,
    state: Annotated[State, typer.Option("--state", help="Which messages")] = State.READY,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Start at this position")] = 0,
    count: _Count = 10,
    routing_key: Annotated[str | None, typer.Option("--routing-key", "-k", metavar="KEY", help="Only with it")] = None,
    header: Annotated[str | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="Only with it")] = None,
    body: Annotated[
        str | None, typer.Option("--body", metavar="TEXT", help="Only if the payload contains this")
    ] = None,
    truncate: _Truncate = None,
    raw: _Raw = False,
) -> None:
    """Look at messages without taking them (Warren)."""
    current = session(context)
    given = {
        "state": state.value,
        "offset": str(offset),
        "count": str(count),
        "routing_key": routing_key,
        "header": header,
        "body": body,
        "truncate": None if truncate is None else str(truncate),
    }
    query = {key: value for key, value in given.items() if value is not None}
    found = current.client.get_object("warren", "queues", current.vhost, queue, "messages", query=query)
    _show(current, found["items"], _PEEK_COLUMNS, raw=raw)
    current.out.say(f"{found['total']} {state.value} in all" + ("; more with --offset" if found["more"] else ""))


def _show(current: CommandSession, found: list[Object], columns: tuple[str, ...], *, raw: bool) -> None:
    if raw:
        for message in found:
            sys.stdout.buffer.write(_payload(message) + b"\n")
        sys.stdout.buffer.flush()
    elif current.out.is_json:
        current.out.document(found)
    else:
        current.out.rows(columns, ([message.get(column) for column in columns] for message in found))


def _payload(message: Object) -> bytes:
    text: str = message["payload"]
    return base64.b64decode(text) if message["payload_encoding"] == "base64" else text.encode()


def _content(payload: str | None, file: Path | None) -> bytes:
    if payload is not None and file is not None:
        raise usage_error("give a payload or --file, not both")
    if payload is not None:
        return payload.encode(errors="surrogateescape")
    if file is None or str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise usage_error(f"{file}: {error.strerror}") from None


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise usage_error(f"--property {name}={text}: must be a number") from None


COMMANDS: Final[dict[str, Callable[..., None]]] = {"publish": publish, "get": get, "peek": peek}
