"""Destinations: the exchange, routing key and queue that a path means, as in RabbitMQ's adapter.

    destination             SEND                                   SUBSCRIBE
    /queue/NAME             declares NAME; default exchange        declares NAME, durable unless headers say otherwise
    /amq/queue/NAME         default exchange                       NAME, which must exist
    /exchange/X[/KEY]       exchange X with routing key KEY        a queue of its own, bound to X with KEY
    /topic/KEY              amq.topic with routing key KEY         a queue of its own, bound to amq.topic with KEY
    /reply-queue/NAME       default exchange: where a reply goes   -
    /temp-queue/NAME        only in reply-to: an exclusive queue of the connection

Each part is percent-encoded UTF-8, so that a name may hold a slash. The rest of a topic or an exchange after the third
slash belongs to the routing key.

Source: RabbitMQ, "STOMP Plugin", section "Destinations".
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.errors import SYNTAX_ERROR, ConnectionException

QUEUE: Final = 0  # declared when it is used
AMQ_QUEUE: Final = 1  # must exist
EXCHANGE: Final = 2
TOPIC: Final = 3
REPLY_QUEUE: Final = 4
TEMP_QUEUE: Final = 5

TOPIC_EXCHANGE: Final = "amq.topic"
REPLY_PREFIX: Final = "/reply-queue/"
TEMP_PREFIX: Final = "/temp-queue/"
_PREFIXES: Final = (
    ("/queue/", QUEUE),
    ("/topic/", TOPIC),
    ("/exchange/", EXCHANGE),
    ("/amq/queue/", AMQ_QUEUE),
    (REPLY_PREFIX, REPLY_QUEUE),
    (TEMP_PREFIX, TEMP_QUEUE),
)


class Destination:
    """A path that was understood. `queue` is ``""`` where messages go through a named exchange."""

    def __init__(self, kind: int, exchange: str, routing_key: str, queue: str) -> None:
        self.kind = kind
        self.exchange = exchange
        self.routing_key = routing_key
        self.queue = queue


def parse_destination(path: str) -> Destination:
    """Return the meaning of `path`.

    Raises:
        ConnectionException: 502, it is not valid.
    """
    for prefix, kind in _PREFIXES:
        if path.startswith(prefix):
            return _parsed(path, kind, path[len(prefix) :])
    raise ConnectionException(
        SYNTAX_ERROR,
        f"the destination {path[:64]!a} begins with none of /queue/, /amq/queue/, /exchange/, /topic/, /reply-queue/",
    )


def _parsed(path: str, kind: int, rest: str) -> Destination:
    if kind == EXCHANGE:
        name, _, key = rest.partition("/")
        exchange = _name(path, name)
        if exchange == "":
            raise _wrong(path)
        return Destination(kind, exchange, _name(path, key), "")
    if kind == TOPIC:
        return Destination(kind, TOPIC_EXCHANGE, _name(path, rest), "")
    if rest == "" or (kind != REPLY_QUEUE and "/" in rest):
        raise _wrong(path)
    name = _name(path, rest)
    return Destination(kind, "", name, name)


def _name(path: str, encoded: str) -> str:
    try:
        name = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        raise _wrong(path) from None
    if len(name.encode()) > NAME_MAX_BYTES:
        raise ConnectionException(SYNTAX_ERROR, f"a part of the destination is longer than {NAME_MAX_BYTES} bytes")
    return name


def _wrong(path: str) -> ConnectionException:
    return ConnectionException(SYNTAX_ERROR, f"{path[:64]!a} is not a destination")


def reply_path(queue: str) -> str:
    """Return the path by which a reply reaches `queue`."""
    return REPLY_PREFIX + quote(queue, safe="", errors="surrogateescape")


def destination_of(exchange: str, routing_key: str) -> str:
    """Return the path by which a message that was published so is known."""
    if exchange == "":
        return "/queue/" + quote(routing_key, safe="", errors="surrogateescape")
    if exchange == TOPIC_EXCHANGE:
        return "/topic/" + quote(routing_key, safe="", errors="surrogateescape")
    return f"/exchange/{quote(exchange, safe='')}/{quote(routing_key, safe='', errors='surrogateescape')}"
