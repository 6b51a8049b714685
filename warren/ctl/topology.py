"""Commands for queues, exchanges and bindings: make them, delete them, see where a message would go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from warren.ctl.client import Object
from warren.ctl.exit_codes import CtlError, ExitCode, usage_error
from warren.ctl.session import CommandSession, session
from warren.ctl.words import ArgumentTexts, Exchange, Queue, json_object, key_values

_ArgumentsJson = Annotated[str | None, typer.Option("--arguments", metavar="JSON", help="All arguments at once")]
_Durable = Annotated[bool, typer.Option("--durable/--transient", help="Survives a restart of the broker")]
_AutoDelete = Annotated[bool, typer.Option("--auto-delete", help="Deleted with its last consumer or binding")]
_IfUnused = Annotated[bool, typer.Option("--if-unused", help="Only if unused")]
_Key = Annotated[str, typer.Option("--routing-key", "-k", metavar="KEY")]
_Destination = Annotated[str, typer.Argument(metavar="DESTINATION")]
_DestinationType = Annotated[str, typer.Option("--destination-type", metavar="KIND", help="queue or exchange")]
_Headers = Annotated[list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="May be repeated")]


def declare_queue(
    context: typer.Context,
    queue: Queue,
    durable: _Durable = True,
    auto_delete: _AutoDelete = False,
    kind: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="classic, quorum or stream")] = None,
    argument: ArgumentTexts = None,
    arguments: _ArgumentsJson = None,
) -> None:
    """Declare a queue."""
    current = session(context)
    given = _arguments(argument, arguments)
    if kind is not None:
        given["x-queue-type"] = kind
    body = {"durable": durable, "auto_delete": auto_delete, "arguments": given}
    current.client.put("queues", current.vhost, queue, body=body)
    current.out.say(f'Declared queue "{queue}" in vhost "{current.vhost}"')


def delete_queue(
    context: typer.Context,
    queue: Queue,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if empty")] = False,
    if_unused: _IfUnused = False,
) -> None:
    """Delete a queue with its messages."""
    current = session(context)
    conditions = {"if-empty": if_empty, "if-unused": if_unused}
    query = {name: "true" for name, wanted in conditions.items() if wanted}
    current.client.delete("queues", current.vhost, queue, query=query)
    current.out.say(f'Deleted queue "{queue}" in vhost "{current.vhost}"')


def purge_queue(context: typer.Context, queue: Queue) -> None:
    """Drop the ready messages of a queue."""
    current = session(context)
    current.client.delete("queues", current.vhost, queue, "contents")
    current.out.say(f'Purged queue "{queue}" in vhost "{current.vhost}"')


def pause_queue(context: typer.Context, queue: Queue) -> None:
    """Stop deliveries of a queue; publishing continues (Warren)."""
    current = session(context)
    current.client.put("warren", "queues", current.vhost, queue, "pause")
    current.out.say(f'Paused queue "{queue}" in vhost "{current.vhost}"')


def resume_queue(context: typer.Context, queue: Queue) -> None:
    """Resume delivery from a paused queue (Warren)."""
    current = session(context)
    current.client.delete("warren", "queues", current.vhost, queue, "pause")
    current.out.say(f'Resumed queue "{queue}" in vhost "{current.vhost}"')


def declare_exchange(
    context: typer.Context,
    exchange: Exchange,
    kind: Annotated[str, typer.Option("--type", metavar="TYPE", help="direct, fanout, topic, headers, …")] = "direct",
    durable: _Durable = True,
    auto_delete: _AutoDelete = False,
    internal: Annotated[bool, typer.Option("--internal", help="Only other exchanges publish to it")] = False,
    argument: ArgumentTexts = None,
    arguments: _ArgumentsJson = None,
) -> None:
    """Declare an exchange."""
    current = session(context)
    body = {
        "type": kind,
        "durable": durable,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": _arguments(argument, arguments),
    }
    current.client.put("exchanges", current.vhost, exchange, body=body)
    current.out.say(f'Declared exchange "{exchange}" in vhost "{current.vhost}"')


def delete_exchange(context: typer.Context, exchange: Exchange, if_unused: _IfUnused = False) -> None:
    """Delete an exchange and its bindings."""
    current = session(context)
    query = {"if-unused": "true"} if if_unused else {}
    current.client.delete("exchanges", current.vhost, exchange, query=query)
    current.out.say(f'Deleted exchange "{exchange}" in vhost "{current.vhost}"')


def bind(
    context: typer.Context,
    source: Exchange,
    destination: _Destination,
    routing_key: _Key = "",
    destination_type: _DestinationType = "queue",
    argument: ArgumentTexts = None,
    arguments: _ArgumentsJson = None,
) -> None:
    """Bind a queue or an exchange to an exchange."""
    current = session(context)
    body = {"routing_key": routing_key, "arguments": _arguments(argument, arguments)}
    current.client.post(*_between(current, source, destination, destination_type), body=body)
    current.out.say(f'Bound {destination_type} "{destination}" to exchange "{source}" with key "{routing_key}"')


def unbind(
    context: typer.Context,
    source: Exchange,
    destination: _Destination,
    routing_key: _Key = "",
    destination_type: _DestinationType = "queue",
    argument: ArgumentTexts = None,
    arguments: _ArgumentsJson = None,
) -> None:
    """Remove the binding with this key and these arguments."""
    current = session(context)
    path = _between(current, source, destination, destination_type)
    wanted = _arguments(argument, arguments)
    for binding in current.client.get_list(*path):
        if binding["routing_key"] == routing_key and binding["arguments"] == wanted:
            current.client.delete(*path, binding["properties_key"])
            current.out.say(f'Removed the binding of {destination_type} "{destination}" to exchange "{source}"')
            return
    raise CtlError(
        f'not found: a binding of {destination_type} "{destination}" to exchange "{source}" with key "{routing_key}" '
        "and these arguments",
        ExitCode.NOT_FOUND,
    )


def route(
    context: typer.Context,
    exchange: Exchange,
    routing_key: Annotated[str, typer.Argument(metavar="ROUTING_KEY")] = "",
    header: _Headers = None,
    path: Annotated[bool, typer.Option("--path", help="Show every step of the route")] = False,
) -> None:
    """Show the queues that a message would reach, without publishing it (Warren)."""
    current = session(context)
    body = {"exchange": exchange, "routing_key": routing_key, "headers": key_values(header, "--header")}
    found: Object = current.client.post("warren", "route", current.vhost, body=body).value
    if path:
        columns = ("exchange", "destination", "destination_type", "routing_key")
        current.out.rows(columns, ([step.get(column) for column in columns] for step in found["path"]))
    else:
        current.out.rows(("queue",), ([queue] for queue in found["queues"]))
    if found["unroutable"]:
        raise CtlError(f'unroutable: no queue receives messages of exchange "{exchange}" with key "{routing_key}"')


def _arguments(texts: list[str] | None, text: str | None) -> dict[str, Any]:
    whole = {} if text is None else json_object(text, "--arguments")
    return whole | key_values(texts, "--argument")


def _between(current: CommandSession, source: str, destination: str, destination_type: str) -> tuple[str, ...]:
    if destination_type not in ("queue", "exchange"):
        raise usage_error(f"--destination-type {destination_type}: must be queue or exchange")
    return ("bindings", current.vhost, "e", source, destination_type[0], destination)


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "declare_queue": declare_queue,
    "delete_queue": delete_queue,
    "purge_queue": purge_queue,
    "pause_queue": pause_queue,
    "resume_queue": resume_queue,
    "declare_exchange": declare_exchange,
    "delete_exchange": delete_exchange,
    "bind": bind,
    "unbind": unbind,
    "route": route,
}
