"""Small words for building exchanges, queues, bindings and contents in tests."""

from __future__ import annotations

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.amqp.properties import BasicProperties
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.exchanges.registry import create_exchange
from warren.exchanges.routing import route
from warren.queues.destination import Destination

_CLASS_WEIGHT_SIZE = b"\x00\x3c\x00\x00" + bytes(8)
# Decoding this fails: routing must not look inside.
UNREADABLE = b""


def queue(name: str) -> Destination:
    """Return what routing sees of a queue."""
    made = Destination(name)
    made.is_queue = True
    return made


def exchange(type_name: str, name: str = "x", seed: int = 1, **arguments: object) -> Exchange:
    """Return a durable exchange; underscores in argument names stand for dashes. A delayed one routes like direct."""
    table: dict[str, object] = {key.replace("_", "-"): value for key, value in arguments.items()}
    if type_name == "x-delayed-message":
        table.setdefault("x-delayed-type", "direct")
    return create_exchange(ExchangeDeclaration(name, type_name, durable=True, arguments=encode_table(table)), seed=seed)


def table_bytes(arguments: dict[str, object] | None) -> bytes:
    return EMPTY_TABLE if arguments is None else encode_table(arguments)


def bind(
    source: Exchange,
    destination: Destination,
    routing_key: str = "",
    arguments: dict[str, object] | None = None,
) -> bool:
    """Check and add a binding, as the vhost does."""
    encoded = table_bytes(arguments)
    source.check_binding(routing_key, encoded)
    return source.bind(Binding(source, destination, routing_key, encoded))


def unbind(
    source: Exchange,
    destination: Destination,
    routing_key: str = "",
    arguments: dict[str, object] | None = None,
) -> Binding | None:
    return source.unbind(destination, routing_key, table_bytes(arguments))


def properties_content(properties: BasicProperties) -> Content:
    return Content(_CLASS_WEIGHT_SIZE + properties.encode())


def headers_content(headers: dict[str, object] | None) -> Content:
    """Return the content of a message with `headers`, or without any."""
    properties = BasicProperties()
    properties.headers = None if headers is None else encode_table(headers)
    return properties_content(properties)


def unbind_all(source: Exchange, destination: Destination | None = None) -> list[Binding]:
    """Remove and return every binding of `source`, or those to `destination`, in the order of binding."""
    chosen = [each for each in source.bindings if destination in (None, each.destination)]
    for each in chosen:
        source.unbind(each.destination, each.routing_key, each.arguments)
    return chosen


def matched(source: Exchange, routing_key: str = "", content: Content | None = None) -> list[str]:
    """Return the names of what `source` alone matches, as often as it does."""
    found: list[Destination] = []
    source.match(routing_key, headers_content(None) if content is None else content, found)
    return [destination.name for destination in found]


def routed(source: Exchange, *routing_keys: str, others: tuple[Exchange, ...] = ()) -> list[str]:
    """Return the names of the queues that a message with `routing_keys` reaches, in the order of the walk."""
    found: list[Destination] = []
    exchanges = {known.name: known for known in (source, *others)}
    route(source, list(routing_keys), headers_content(None), exchanges, found)
    return [destination.name for destination in found]
