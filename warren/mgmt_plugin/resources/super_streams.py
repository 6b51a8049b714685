"""Super streams: listed, described, made in one step, deleted with their partitions.

Paths, bodies and texts of refusals are those of RabbitMQ's plugin ``rabbitmq_stream_management`` 4.x, which has ``PUT``
and the lists. Here ``PUT`` of an existing super stream is accepted when it declares the same. A number of partitions
makes an exchange that hashes routing keys unless `type` says ``direct``.
"""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar, Final

import msgspec

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration
from warren.engine_view.engine_view import EngineView
from warren.engine_view.exchanges import Placed
from warren.engine_view.permissions import CONFIGURE
from warren.engine_view.super_streams import DIRECT, PARTITIONS_MAX, SUPER_STREAM, SUPER_STREAM_TYPE
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.names import the_vhost, visible_vhost_names
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, created, not_found
from warren.mgmt_plugin.terms import table_from_json, table_to_json
from warren.queues.arguments import BY_KEY, INTEGER


class NewSuperStream(msgspec.Struct):
    """A super stream: a number of `partitions`, or `binding-keys`, with commas between them.

    `type` is that of the exchange, `arguments` (``max-age``, ``max-length-bytes``, …) are those of the partitions.
    """

    partitions: Any = None
    binding_keys: str | None = msgspec.field(default=None, name="binding-keys")
    type: str | None = None
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


def _wanted(body: NewSuperStream) -> int | list[str]:
    """Return the value of ``x-super-stream`` that asks for the partitions.

    Raises:
        HttpError: 400.
    """
    if body.partitions is None and body.binding_keys is None:
        raise bad_request("Must specify partitions or binding keys")
    if body.binding_keys is not None:
        if body.partitions is not None:
            raise bad_request("Specify partitions or binding keys, not both")
        keys = [key for key in map(str.strip, body.binding_keys.split(",")) if key]
        if not keys:
            raise bad_request("The number of binding keys must be greater than 0")
        if len(keys) > PARTITIONS_MAX:
            raise bad_request(f"The number of binding keys must not exceed {PARTITIONS_MAX}")
        if len(keys) > len(set(keys)):
            raise bad_request("Duplicate binding keys found")
        return keys
    try:
        count = integer(body.partitions) if isinstance(body.partitions, str) else int(body.partitions)
    except (TypeError, ValueError, OverflowError):
        raise bad_request("The partitions must be a number") from None
    if count < 1:
        raise bad_request("The partition number must be greater than 0")
    if count > PARTITIONS_MAX:
        raise bad_request(f"The partition number must not exceed {PARTITIONS_MAX}")
    return count


def _stream_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as streams have them: RabbitMQ's come without ``x-``, and numbers as texts."""
    arguments: dict[str, Any] = {}
    for name, value in given.items():
        key = name.removeprefix("x-")
        row = BY_KEY.get(key)
        arguments["x-" + key] = value
        if row is not None and row.kind == INTEGER and isinstance(value, str):
            with contextlib.suppress(ValueError):  # the rules of arguments report the error
                arguments["x-" + key] = integer(value)
    return arguments


_ALL: Final = "/api/stream/super-streams"
_ONE: Final = f"{_ALL}/{{vhost}}/{{name}}"
_SEE: Final = Access.VHOST_VISIBLE
_USE: Final = Access.VHOST


class SuperStreamHandlers(Handlers):
    """Handlers of super streams."""

    def __init__(self, view: EngineView) -> None:
        self._view = view

    def describe(self, of: Placed) -> Described:
        """Return a super stream with its partitions, in order."""
        row = self._view.super_streams.row(of)
        return {
            "name": row.name,
            "vhost": of[0],
            "type": row.type,
            "arguments": table_to_json(row.arguments),
            "partition_count": len(row.partitions),
            "partitions": [
                {
                    "name": each.name,
                    "routing_key": each.routing_key,
                    "order": "not_found" if each.order is None else each.order,
                    "state": "running",
                    "messages": each.messages,
                    "first_offset": each.first_offset,
                    "next_offset": each.next_offset,
                }
                for each in row.partitions
            ],
        }

    def _the_super_stream(self, call: Call) -> Placed:
        found = self._view.super_streams.maybe(call.params["vhost"], call.params["name"])
        if found is None:
            raise not_found()
        return found

    async def list_super_streams(self, call: Call) -> Response:
        found: list[Placed] = []
        for vhost in visible_vhost_names(call):
            found += self._view.super_streams.in_order(vhost)
        return await answer_list(call, found, self.describe, self._view.exchanges.KEYS)

    async def show_super_stream(self, call: Call) -> Described:
        return self.describe(self._the_super_stream(call))

    async def make_super_stream(self, call: Call) -> Response:
        body = await call.body(NewSuperStream)
        wanted = _wanted(body)
        name = call.params["name"]
        kind = body.type or (SUPER_STREAM_TYPE if isinstance(wanted, int) else DIRECT)
        if kind not in (SUPER_STREAM_TYPE, DIRECT):
            raise bad_request(f"The type must be {SUPER_STREAM_TYPE} or {DIRECT}")
        new = self._view.exchanges.maybe(the_vhost(call), name) is None
        arguments = table_from_json(_stream_arguments(body.arguments) | {SUPER_STREAM: wanted})
        with call.client() as client:
            await client.call(ExchangeDeclaration(name, kind, durable=True, arguments=arguments))
        return created(new=new)

    async def delete_super_stream(self, call: Call) -> None:
        # From here on nothing is awaited until everything is sent: nothing of it changes, and it goes in one batch.
        row = self._view.super_streams.row(self._the_super_stream(call))
        with call.client() as client:
            call.authorize(CONFIGURE, "exchange", row.name)
            partitions = [each.name for each in row.partitions]
            for partition in partitions:
                call.authorize(CONFIGURE, "queue", partition)
            client.send(
                m.ExchangeDelete(0, row.name, if_unused=False, no_wait=False),
                *(
                    m.QueueDelete(0, partition, if_unused=False, if_empty=False, no_wait=False)
                    for partition in partitions
                ),
            )
            for _ in range(1 + len(partitions)):
                await client.reply()

    ROUTES: ClassVar = (
        Route("GET", _ALL, Access.USER, list_super_streams, "Super streams of all vhosts", query=QUERY),
        Route("GET", f"{_ALL}/{{vhost}}", _SEE, list_super_streams, "Super streams of a vhost", query=QUERY),
        Route("GET", _ONE, _SEE, show_super_stream, "A super stream and its partitions"),
        Route("PUT", _ONE, _USE, make_super_stream, "Create a super stream and its partitions", NewSuperStream),
        Route("DELETE", _ONE, _USE, delete_super_stream, "Delete a super stream with its partitions"),
    )
