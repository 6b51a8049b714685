"""Dynamic shovels: the parameter, and one attempt to move messages from a queue or exchange to another broker.

1. A stored parameter has passed `validate`; `parse` can fail only for a parameter that was stored in another way.
2. `Shovel.attempt` returns only when src-delete-after is reached; any other end raises. After a lost connection the
   next attempt continues with the rest of the limit, so the limit is met exactly.
3. Publishes to a queue are mandatory: if the queue is deleted meanwhile, the attempt ends before the message is acked.
   Publishes to an exchange are not: the owner of the exchange decides whether a queue is bound to it.

Source: RabbitMQ's dynamic shovels, keys and sentences of 3.10; ``src-predeclared``, ``dest-predeclared`` and the
protocol ``local`` of later versions. AMQP 1.0 is not spoken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from warren.amqp import methods
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.amqp.numbers import seconds_of
from warren.amqp.properties import BasicProperties
from warren.amqp_client.channel import Delivery
from warren.amqp_client.client_errors import BrokerError
from warren.links import forwarding, transfer, validation
from warren.links.amqp_client import Channel, LinkConnection, LinkError
from warren.links.amqp_uri import BrokerUri, parse_uri
from warren.links.endpoints import Endpoints, ensure_queue, parse_uris, prefetch
from warren.links.transfer import Publish, Transfer
from warren.links.validation import Json, optional, required

COMPONENT: Final = "shovel"
RECONNECT_DELAY_S: Final = 5.0
PROTOCOLS: Final = ("amqp091", "local")
ACK_MODES: Final = (transfer.NO_ACK, transfer.ON_PUBLISH, transfer.ON_CONFIRM)
_NUMERIC_PROPERTIES: Final = {"delivery_mode": 1 << 8, "priority": 1 << 8, "timestamp": 1 << 64}


def _small_number(limit: int) -> validation.Validator:
    def validate(name: str, value: Json) -> list[str]:
        problems = validation.number(name, value)
        if not problems and isinstance(value, int | float) and not 0 <= value < limit:
            return [f"{name} should be a number from 0 to {limit - 1}, actually was {validation.term(value)}"]
        return problems

    return validate


_PROPERTIES: Final = tuple(
    optional(name, _small_number(_NUMERIC_PROPERTIES[name]) if name in _NUMERIC_PROPERTIES else validation.short_text)
    for name in (
        "content_type",
        "content_encoding",
        "delivery_mode",
        "priority",
        "correlation_id",
        "reply_to",
        "expiration",
        "message_id",
        "timestamp",
        "type",
        "user_id",
        "app_id",
        "cluster_id",
    )
)


def _publish_properties(name: str, value: Json) -> list[str]:
    return validation.fields(name, value, _PROPERTIES)


def validate(name: str, value: Json, *, user: str = "", may_connect: Callable[[str], bool] | None = None) -> list[str]:
    """Return the errors in the parameter, one sentence each; empty when it may be stored.

    `may_connect`: whether `user`, who sets it, may use a vhost of this broker; None: do not check.
    """

    def may_use(uri: str) -> str | None:
        parsed = parse_uri(uri)
        if not parsed.is_local or may_connect is None or may_connect(parsed.vhost):
            return None
        return f'user "{user}" may not connect to vhost "{parsed.vhost}"'

    uris = validation.uris(may_use)
    known = (
        optional("reconnect-delay", validation.number),
        optional("ack-mode", validation.choice(*ACK_MODES)),
        optional("src-protocol", validation.choice(*PROTOCOLS)),
        required("src-uri", uris),
        optional("src-exchange", validation.short_text),
        optional("src-exchange-key", validation.short_text),
        optional("src-queue", validation.short_text),
        optional("src-queue-args", validation.table),
        optional("src-consumer-args", validation.table),
        optional("src-predeclared", validation.boolean),
        optional("prefetch-count", validation.number),
        optional("src-prefetch-count", validation.number),
        optional("delete-after", validation.delete_after),
        optional("src-delete-after", validation.delete_after),
        optional("dest-protocol", validation.choice(*PROTOCOLS)),
        required("dest-uri", uris),
        optional("dest-exchange", validation.short_text),
        optional("dest-exchange-key", validation.short_text),
        optional("dest-queue", validation.short_text),
        optional("dest-queue-args", validation.table),
        optional("dest-predeclared", validation.boolean),
        optional("add-forward-headers", validation.boolean),
        optional("add-timestamp-header", validation.boolean),
        optional("dest-add-forward-headers", validation.boolean),
        optional("dest-add-timestamp-header", validation.boolean),
        optional("publish-properties", _publish_properties),
        optional("dest-publish-properties", _publish_properties),
        optional("dest-properties", _publish_properties),
    )
    given: Mapping[str, Json] = value if isinstance(value, dict) else {}
    problems = []
    if value == [] or isinstance(value, dict):
        if "src-exchange" in given and "src-queue" in given:
            problems.append("Cannot specify 'src-exchange' and 'src-queue'")
        elif "src-exchange" not in given and "src-queue" not in given:
            problems.append("Must specify 'src-exchange' or 'src-queue'")
        if "dest-exchange" in given and "dest-queue" in given:
            problems.append("Cannot specify 'dest-exchange' and 'dest-queue'")
        after = _first(given, "src-delete-after", "delete-after")
        if given.get("ack-mode") == transfer.NO_ACK and isinstance(after, int) and not isinstance(after, bool):
            problems.append("Cannot specify 'no-ack' and numerical 'delete-after'")
    return problems + validation.fields(name, value, known)


def _first(given: Mapping[str, Any], *keys: str) -> Any:
    """Return the value of the first key that is given: the newer name of a setting wins."""
    return next((given[key] for key in keys if key in given), None)


@dataclass(frozen=True)
class Definition:
    """A parsed shovel parameter. Names that are None were not given. ``parameter``: the stored value."""

    parameter: Json = field(repr=False)
    src_uris: tuple[BrokerUri, ...]
    src_protocol: str
    src_queue: str | None
    src_exchange: str | None
    src_exchange_key: str
    src_queue_arguments: bytes
    src_consumer_arguments: bytes
    src_predeclared: bool
    prefetch_count: int
    delete_after: str | int
    dest_uris: tuple[BrokerUri, ...]
    dest_protocol: str
    dest_queue: str | None
    dest_exchange: str | None
    dest_exchange_key: str | None
    dest_queue_arguments: bytes
    dest_predeclared: bool
    add_forward_headers: bool
    add_timestamp_header: bool
    publish_properties: tuple[tuple[str, Any], ...]
    ack_mode: str
    reconnect_delay_s: float


def _arguments(value: Any) -> bytes:
    return encode_table(dict(value)) if value else EMPTY_TABLE


def _properties(value: Any) -> tuple[tuple[str, Any], ...]:
    chosen = sorted((value or {}).items())
    return tuple((name, int(entry) if name in _NUMERIC_PROPERTIES else entry) for name, entry in chosen)


def parse(name: str, value: Json) -> Definition:
    """Parse a shovel parameter.

    Raises:
        LinkError: it is not valid.
    """
    problems = validate(name, value)
    if problems:
        raise LinkError("; ".join(problems))
    assert isinstance(value, dict)
    after = _first(value, "src-delete-after", "delete-after")
    return Definition(
        parameter=value,
        # Unlike those of federation, URIs of shovels without a vhost mean vhost /.
        src_uris=parse_uris(value["src-uri"], "/"),
        src_protocol=value.get("src-protocol", "amqp091"),
        src_queue=value.get("src-queue"),
        src_exchange=value.get("src-exchange"),
        src_exchange_key=value.get("src-exchange-key", ""),
        src_queue_arguments=_arguments(value.get("src-queue-args")),
        src_consumer_arguments=_arguments(value.get("src-consumer-args")),
        src_predeclared=value.get("src-predeclared", False),
        prefetch_count=prefetch(_first(value, "src-prefetch-count", "prefetch-count")),
        delete_after="never" if after is None else after,
        dest_uris=parse_uris(value["dest-uri"], "/"),
        dest_protocol=value.get("dest-protocol", "amqp091"),
        dest_queue=value.get("dest-queue"),
        dest_exchange=value.get("dest-exchange"),
        dest_exchange_key=value.get("dest-exchange-key"),
        dest_queue_arguments=_arguments(value.get("dest-queue-args")),
        dest_predeclared=value.get("dest-predeclared", False),
        add_forward_headers=bool(_first(value, "dest-add-forward-headers", "add-forward-headers")),
        add_timestamp_header=bool(_first(value, "dest-add-timestamp-header", "add-timestamp-header")),
        publish_properties=_properties(
            _first(value, "dest-publish-properties", "dest-properties", "publish-properties")
        ),
        ack_mode=value.get("ack-mode", transfer.ON_CONFIRM),
        reconnect_delay_s=seconds_of(value.get("reconnect-delay"), RECONNECT_DELAY_S),
    )


class Shovel:
    """One shovel over all its attempts."""

    def __init__(self, vhost: str, name: str, definition: Definition, endpoints: Endpoints) -> None:
        self.vhost = vhost
        self.name = name
        self.definition = definition
        self._endpoints = endpoints
        self._src_uri = definition.src_uris[0]
        self._dest_uri = definition.dest_uris[0]
        self._remaining: int | None = None
        self._forwarded_before = 0
        self._transfer: Transfer | None = None
        if isinstance(definition.delete_after, int):
            self._remaining = definition.delete_after

    @property
    def reconnect_delay_s(self) -> float:
        return self.definition.reconnect_delay_s

    async def attempt(self, running: Callable[[], None]) -> None:
        """Connect, call `running` and move messages; return when src-delete-after is reached.

        Raises:
            BrokerError: the error that ended it before.
        """
        failure: BrokerError | None = None
        opened: list[LinkConnection] = []
        async with trio.open_nursery() as nursery:
            try:
                await self._attempt(nursery, opened, running)
            except BrokerError as error:
                failure = error.fresh()
            finally:
                self._end_transfer()
                for connection in opened:
                    await connection.close()
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure.fresh()

    def _end_transfer(self) -> None:
        if self._transfer is None:
            return
        self._forwarded_before += self._transfer.forwarded
        if self._remaining is not None and self._transfer.to_settle is not None:
            self._remaining = self._transfer.to_settle
        self._transfer = None

    async def _attempt(self, nursery: trio.Nursery, opened: list[LinkConnection], running: Callable[[], None]) -> None:
        definition = self.definition
        name = f"Shovel {self.name}"
        source, self._src_uri = await self._endpoints.open(nursery, self.vhost, definition.src_uris, name)
        opened.append(source)
        destination, self._dest_uri = await self._endpoints.open(nursery, self.vhost, definition.dest_uris, name)
        # The destination is closed first: acks that follow from its confirms still have to go out to the source.
        opened.insert(0, destination)
        outbound = await destination.open_channel()
        if definition.dest_queue is not None:
            create = not definition.dest_predeclared
            await ensure_queue(destination, definition.dest_queue, definition.dest_queue_arguments, create=create)
        if definition.ack_mode == transfer.ON_CONFIRM:
            await outbound.confirm_select()
        inbound = await source.open_channel()
        queue = await self._declare_source(source, inbound)
        if self._remaining == 0:
            return
        limits = [count for count in (definition.prefetch_count, self._remaining) if count]
        no_ack = definition.ack_mode == transfer.NO_ACK
        if limits and not no_ack:
            await inbound.qos(prefetch(min(limits)))
        # No `Transfer` runs yet. That is safe: when it starts, it notices everything that has happened before.
        await inbound.consume(queue, no_ack=no_ack, arguments=definition.src_consumer_arguments)
        self._transfer = Transfer(inbound, outbound, definition.ack_mode, self._rewriter(), self._remaining)
        running()
        await self._transfer.run()

    async def _declare_source(self, source: LinkConnection, inbound: Channel) -> str:
        definition = self.definition
        if definition.src_queue is not None:
            create = not definition.src_predeclared
            length = await ensure_queue(source, definition.src_queue, definition.src_queue_arguments, create=create)
            if definition.delete_after == "queue-length" and self._remaining is None:
                self._remaining = length
            return definition.src_queue
        assert definition.src_exchange is not None
        declared = await inbound.declare_queue(
            QueueDeclaration("", durable=False, exclusive=True, arguments=definition.src_queue_arguments)
        )
        if definition.delete_after == "queue-length":
            self._remaining = 0
        bind = methods.QueueBind(
            0,
            declared.queue,
            definition.src_exchange,
            definition.src_exchange_key,
            no_wait=False,
            arguments=EMPTY_TABLE,
        )
        await inbound.call(bind, methods.QueueBindOk)
        return declared.queue

    # --- messages -----------------------------------------------------------------------------------------------

    def _rewriter(self) -> Callable[[Delivery, bool], Publish]:
        definition = self.definition
        to_queue = definition.dest_queue
        exchange = "" if to_queue is not None else definition.dest_exchange
        routing_key = to_queue if to_queue is not None else definition.dest_exchange_key
        header_entry = forwarding.table_value(self._header_entry()) if definition.add_forward_headers else b""
        writes_headers = bool(header_entry) or definition.add_timestamp_header

        def rewrite(delivery: Delivery, annotated: bool) -> Publish:
            properties = delivery.properties
            if definition.publish_properties or (annotated and writes_headers):
                properties = self._properties(properties, header_entry, annotated=annotated)
            return Publish(
                delivery.exchange if exchange is None else exchange,
                delivery.routing_key if routing_key is None else routing_key,
                properties,
                to_queue is not None,
            )

        return rewrite

    def _header_entry(self) -> Table:
        definition = self.definition
        named = (
            ("shovelled-by", self._endpoints.host.cluster_name),
            ("shovel-type", "dynamic"),
            ("shovel-name", self.name),
            ("shovel-vhost", self.vhost),
            ("src-uri", self._src_uri.shown),
            ("dest-uri", self._dest_uri.shown),
            ("src-queue", definition.src_queue),
            ("src-exchange", definition.src_exchange),
            ("src-exchange-key", definition.src_exchange_key if definition.src_exchange is not None else None),
            ("dest-queue", definition.dest_queue),
            ("dest-exchange", definition.dest_exchange),
            ("dest-exchange-key", definition.dest_exchange_key),
        )
        return {key: text for key, text in named if text is not None}

    def _properties(self, encoded: bytes, header_entry: bytes, *, annotated: bool) -> bytes:
        properties: BasicProperties = forwarding.decode(encoded)
        for name, value in self.definition.publish_properties:
            setattr(properties, name, value)
        if header_entry and annotated:
            headers = properties.headers or EMPTY_TABLE
            properties.headers = forwarding.prepended(
                headers, forwarding.SHOVELLED, header_entry, forwarding.ENTRIES_MAX
            )
        if self.definition.add_timestamp_header and annotated:
            now = forwarding.long_value(int(self._endpoints.host.now()))
            headers = properties.headers or EMPTY_TABLE
            properties.headers = forwarding.with_value(headers, forwarding.SHOVELLED_TIMESTAMP, now)
        return properties.encode()

    # --- status -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Json]:
        """Return the fields of a running shovel, as /api/shovels names them; no credentials."""
        definition = self.definition
        status: dict[str, Json] = {
            "src_uri": self._src_uri.shown,
            "src_protocol": definition.src_protocol,
            "dest_protocol": definition.dest_protocol,
            "dest_uri": self._dest_uri.shown,
        }
        if definition.src_queue is not None:
            status["src_queue"] = definition.src_queue
        else:
            status |= {"src_exchange": definition.src_exchange, "src_exchange_key": definition.src_exchange_key}
        if definition.dest_queue is not None:
            status["dest_queue"] = definition.dest_queue
        if definition.dest_exchange is not None:
            status["dest_exchange"] = definition.dest_exchange
        if definition.dest_exchange_key is not None:
            status["dest_exchange_key"] = definition.dest_exchange_key
        current = self._transfer
        status["blocked_status"] = "blocked" if current is not None and current.blocked else "running"
        status["forwarded"] = self._forwarded_before + (current.forwarded if current is not None else 0)
        status["pending"] = current.pending if current is not None else 0
        if self._remaining is not None:
            left = current.to_settle if current is not None else self._remaining
            status["remaining"] = left
        return status
