"""Messages from the view of a test: published ones, waiting ones, and how a test names the one it means."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final

from warren.amqp.field_table import Table, decode_table, encode_table
from warren.amqp.properties import BasicProperties, decode_properties
from warren.msgstore.log.message import Message

SHOWN_BYTES: Final = 80
SHOWN_MAX: Final = 20

# The expectation for a body: its bytes, its text, its meaning as JSON, or a function that tests it.
Body = bytes | str | dict[str, Any] | list[Any] | Callable[[bytes], bool]
# The expectation for a name: the name itself, or a pattern that is searched in it.
Text = str | re.Pattern[str]


@dataclass(frozen=True, kw_only=True)
class Properties:
    """The properties of a message; None: not sent. `headers` is never None."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table = field(default_factory=dict)
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    @property
    def time(self) -> datetime | None:
        """The timestamp as a time, in UTC."""
        return None if self.timestamp is None else datetime.fromtimestamp(self.timestamp, UTC)

    def encoded(self) -> BasicProperties:
        """Return them as the engine has them."""
        made = BasicProperties()
        for name in _NAMES:
            setattr(made, name, getattr(self, name))
        if self.headers:
            made.headers = encode_table(self.headers)
        return made


_NAMES: Final = tuple(each.name for each in fields(Properties) if each.name != "headers")


@dataclass(frozen=True, kw_only=True)
class _Message:
    vhost: str
    exchange: str
    routing_key: str
    properties: Properties
    body: bytes

    @property
    def headers(self) -> Table:
        """The headers, empty without."""
        return self.properties.headers

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the body parsed as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class PublishedMessage(_Message):
    """A message that a client published and the broker accepted.

    `queues` are those that it went to, none when it was returned or dropped; `connection` is the name its publisher
    gave to the connection, else ``host:port``.
    """

    queues: tuple[str, ...]
    user: str
    connection: str

    def __str__(self) -> str:
        to = ", ".join(self.queues) if self.queues else "nowhere"
        return f"{_shown(self)} to {to}"


@dataclass(frozen=True, kw_only=True)
class QueuedMessage(_Message):
    """A message that waits in `queue`. `redelivered`: it came back there."""

    queue: str
    redelivered: bool

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Where and why it was dead-lettered, the latest first."""
        listed = self.headers.get("x-death")
        return tuple(map(_death, listed)) if isinstance(listed, list) else ()

    def __str__(self) -> str:
        return _shown(self) + (" redelivered" if self.redelivered else "")


@dataclass(frozen=True, kw_only=True)
class Death:
    """An entry of x-death: a message was dead-lettered by `queue`, `count` times, for `reason`."""

    queue: str
    reason: str
    count: int
    exchange: str
    routing_keys: tuple[str, ...]


def _death(entry: Any) -> Death:
    return Death(
        queue=entry["queue"],
        reason=entry["reason"],
        count=entry["count"],
        exchange=entry["exchange"],
        routing_keys=tuple(entry["routing-keys"]),
    )


def _shown(message: _Message) -> str:
    body = repr(message.body[:SHOWN_BYTES]) + ("…" if len(message.body) > SHOWN_BYTES else "")
    parts = [f"exchange={message.exchange!r}", f"routing_key={message.routing_key!r}", f"body={body}"]
    if message.headers:
        parts.append(f"headers={message.headers!r}")
    if message.vhost != "/":
        parts.append(f"vhost={message.vhost!r}")
    return " ".join(parts)


def properties_of(message: Message) -> Properties:
    """Decode the properties of an engine's message."""
    header = message.header_payload()
    found = decode_properties(header, 0, len(header))
    headers: Table = decode_table(found.headers) if found.headers is not None else {}
    return Properties(headers=headers, **{name: getattr(found, name) for name in _NAMES})


class Wanted:
    """Which messages are meant: all that fit everything given."""

    def __init__(
        self,
        exchange: Text | None = None,
        routing_key: Text | None = None,
        body: Body | None = None,
        headers: Mapping[str, object] | None = None,
        vhost: str | None = None,
        queue: str | None = None,
    ) -> None:
        self._exchange = exchange
        self._routing_key = routing_key
        self._body = body
        self._headers = headers
        self._vhost = vhost
        self._queue = queue

    def fits(self, message: _Message) -> bool:
        """Tell whether `message` is one of them."""
        return not self.differences(message)

    def differences(self, message: _Message) -> list[str]:
        """Name the parts of `message` that are not as wanted."""
        found: list[str] = []
        if not _text_fits(self._exchange, message.exchange):
            found.append("exchange")
        if not _text_fits(self._routing_key, message.routing_key):
            found.append("routing_key")
        if self._body is not None and not _body_fits(self._body, message.body):
            found.append("body")
        if self._headers is not None:
            found += [
                f"headers[{name!r}]"
                for name, value in self._headers.items()
                if name not in message.headers or message.headers[name] != value
            ]
        if self._vhost is not None and message.vhost != self._vhost:
            found.append("vhost")
        if self._queue is not None and self._queue not in getattr(message, "queues", ()):
            found.append("queue")
        return found

    def __str__(self) -> str:
        given = {
            "exchange": self._exchange,
            "routing_key": self._routing_key,
            "body": self._body,
            "headers": self._headers,
            "vhost": self._vhost,
            "queue": self._queue,
        }
        shown = [f"{name}={_shown_wish(value)}" for name, value in given.items() if value is not None]
        return " with " + ", ".join(shown) if shown else ""

    def explain(self, all_of_them: Sequence[_Message], what: str = "Published") -> str:
        """List the messages, each with its difference, for a person whose test has failed."""
        if not all_of_them:
            return "Nothing was published." if what == "Published" else "Nothing waits there."
        lines = [f"{what}, {len(all_of_them)} in all:"]
        first = max(0, len(all_of_them) - SHOWN_MAX)
        if first:
            lines.append(f"  ({first} before these)")
        for number, message in enumerate(all_of_them[first:], start=first + 1):
            differences = self.differences(message)
            remark = f"   <- differs in {', '.join(differences)}" if differences else "   <- fits"
            lines.append(f"  {number}. {message}{remark}")
        return "\n".join(lines)


def _shown_wish(value: object) -> str:
    if isinstance(value, re.Pattern):
        return f"/{value.pattern}/"
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(value)


def _text_fits(wanted: Text | None, text: str) -> bool:
    if wanted is None:
        return True
    return wanted == text if isinstance(wanted, str) else wanted.search(text) is not None


def _body_fits(wanted: Body, body: bytes) -> bool:
    if isinstance(wanted, bytes):
        return wanted == body
    if isinstance(wanted, str):
        return wanted.encode() == body
    if callable(wanted):
        return bool(wanted(body))
    try:
        return bool(json.loads(body) == wanted)
    except ValueError:
        return False
