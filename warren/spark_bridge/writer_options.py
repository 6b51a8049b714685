"""The options of a writer, checked once and before anything is written.

1. As for readers, an unknown option is an error (``options``).
2. Columns or options give the target of messages; an option wins over the column.

    option               default
    exchange             ""           the column `exchange`; without either the default exchange, which knows queues
    routingKey           -            the column `routing_key`
    queue                -            short for exchange "" and the queue's name as routingKey
    delivery             staged       staged: exactly once, needs Warren; confirms: at least once, any AMQP 0-9-1 broker
    mandatory            true         a message that no queue would get is an error, else it is dropped
    persistent           true         delivery_mode of messages, unless there is a column for it
    messageId            none         auto: QUERY/BATCH/PARTITION/ROW, unless there is a column for it
    ignoreUnknownColumns false        leave out columns that do not belong to a message, instead of refusing them
    truncate             false        allows mode overwrite, which replaces the messages of the queue
    partBytes            8m           staged: the bytes to store in one call
    commitTimeout        10m          staged: how long a commit is tried
    maxInFlight          1000         confirms: how many messages may wait for their confirms
    confirmTimeout       60s          confirms: how long to wait for one
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote, urlsplit

from warren.spark_bridge.options import (
    CONNECTION_OPTIONS,
    DEFAULT_URI,
    BrokerAddress,
    Given,
    OptionError,
    Row,
    check_names,
    connection_of,
)

STAGED: Final = "staged"
CONFIRMS: Final = "confirms"
_WRITE: Final[Mapping[str, Row]] = {
    "mandatory": ("mandatory", Given.flag),
    "persistent": ("persistent", Given.flag),
    "messageId": ("numbers_messages", lambda given, name: given.word(name, ("none", "auto")) == "auto"),
    "ignoreUnknownColumns": ("ignores_unknown_columns", Given.flag),
    "truncate": ("truncates", Given.flag),
    "partBytes": ("part_bytes", Given.size),
    "commitTimeout": ("commit_timeout_s", Given.duration_s),
    "maxInFlight": ("max_in_flight", lambda given, name: min(given.number(name, least=1), 65535)),
    "confirmTimeout": ("confirm_timeout_s", lambda given, name: max(0.001, given.duration_s(name))),
}
WRITE_OPTIONS: Final = ("exchange", "routingKey", "queue", "delivery", *_WRITE)
# The options that Spark itself passes to a sink.
_SPARKS_OWN: Final = ("checkpointLocation", "queryName", "path")

PART_BYTES: Final = 8 << 20
# The largest request that the broker takes, with room for one message more.
PART_BYTES_MAX: Final = 16 << 20
AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671


@dataclass(frozen=True)
class WriteOptions:
    """All that a writer wants to know. `exchange` and `routing_key` None: the column says it."""

    connection: BrokerAddress
    exchange: str | None = None
    routing_key: str | None = None
    delivery: str = STAGED
    mandatory: bool = True
    persistent: bool = True
    numbers_messages: bool = False
    ignores_unknown_columns: bool = False
    truncates: bool = False
    part_bytes: int = PART_BYTES
    commit_timeout_s: float = 600.0
    max_in_flight: int = 1000
    confirm_timeout_s: float = 60.0
    amqp_host: str = field(default="localhost", repr=False)
    amqp_port: int = AMQP_PORT
    amqp_tls: bool = False

    def with_password(self) -> WriteOptions:
        """Return the same with the password out of its file; see `BrokerAddress.with_password`."""
        return replace(self, connection=self.connection.with_password())


def write_options(options: Mapping[str, str], environment: Mapping[str, str] | None = None) -> WriteOptions:
    """Return the writing options in `options`.

    Raises:
        OptionError: they say nothing that can be done.
    """
    check_names(options, (*CONNECTION_OPTIONS, *WRITE_OPTIONS, *_SPARKS_OWN))
    given = Given(options)
    if given.has("path"):
        raise OptionError('option path: name where messages go, as in option("queue", "orders")')
    delivery = given.word("delivery", (STAGED, CONFIRMS)) or STAGED
    for other, names in ((STAGED, ("partBytes", "commitTimeout")), (CONFIRMS, ("maxInFlight", "confirmTimeout"))):
        for name in names:
            if delivery != other and given.has(name):
                raise OptionError(f"option {name}: has no effect with delivery {delivery}")
    exchange, routing_key = _destination(options)
    host, port, tls = _amqp_address(given, os.environ if environment is None else environment)
    made = WriteOptions(
        connection=connection_of(options, environment),
        exchange=exchange,
        routing_key=routing_key,
        delivery=delivery,
        amqp_host=host,
        amqp_port=port,
        amqp_tls=tls,
        **given.fields(_WRITE),
    )
    if made.part_bytes > PART_BYTES_MAX:
        raise OptionError(f"option partBytes: must be {PART_BYTES_MAX >> 20}m at most")
    return made


def _destination(options: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return exchange and routing key, as far as options say them. Here an empty text is the default exchange."""
    texts = {name.lower(): str(value) for name, value in options.items()}
    exchange, routing_key, queue = texts.get("exchange"), texts.get("routingkey"), texts.get("queue")
    if queue is not None:
        if exchange is not None or routing_key is not None:
            raise OptionError("option queue: excludes exchange and routingKey")
        if not queue:
            raise OptionError("option queue: no queue is named")
        return "", queue
    for name, text in (("exchange", exchange), ("routingKey", routing_key)):
        if text is not None and len(text.encode()) > 255:
            raise OptionError(f"option {name}: is longer than 255 bytes")
    return exchange, routing_key


def _amqp_address(given: Given, environment: Mapping[str, str]) -> tuple[str, int, bool]:
    parts = urlsplit(given.text("uri") or environment.get("AMQP_URI") or DEFAULT_URI)
    tls = parts.scheme.lower() == "amqps"
    try:
        port = parts.port or (AMQPS_PORT if tls else AMQP_PORT)
    except ValueError:
        raise OptionError("option uri: is not an AMQP URI") from None
    return given.text("host") or unquote(parts.hostname or "localhost"), port, tls
