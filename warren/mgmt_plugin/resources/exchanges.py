"""Exchanges and bindings: listed, described, declared, bound, unbound, deleted."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote

import msgspec

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.field_table import EMPTY_TABLE
from warren.engine_view.bindings import QUEUE
from warren.engine_view.counters import EXCHANGE_STATS
from warren.engine_view.engine_view import EngineView
from warren.engine_view.exchanges import Placed
from warren.engine_view.refs import BindingRef, DestinationRef, ExchangeRef
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.server import HttpError, Response
from warren.mgmt_plugin.listing import (
    MANY,
    QUERY,
    RANK_BYTES,
    Described,
    answer_list,
    answer_page,
    in_order,
    plain_page,
)
from warren.mgmt_plugin.metrics.statistics import RANGE_QUERY, Ranges, Statistics
from warren.mgmt_plugin.names import exchange_name, the_queue, visible_vhost_names
from warren.mgmt_plugin.resources.binding_list import BindingList, Row, bindings_between, maybe_binding
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, created, not_found
from warren.mgmt_plugin.terms import table_from_json, table_to_json, text

EXCHANGE: Final = "exchange"
_UNKNOWN_USER: Final = "unknown"  # as RabbitMQ calls it


class ExchangeBody(msgspec.Struct):
    """An exchange to be declared."""

    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Any = None


class NewBinding(msgspec.Struct):
    """A binding to be made."""

    routing_key: str = ""
    arguments: Any = None


def describe_binding(view: EngineView, of: Row) -> Described:
    """Return a binding of a vhost."""
    vhost, binding = of
    row, key = view.bindings.keyed(binding)
    return {
        "source": row.source,
        "vhost": vhost,
        "destination": row.destination,
        "destination_type": row.destination_type,
        "routing_key": row.routing_key,
        "arguments": table_to_json(row.arguments),
        "properties_key": key,
    }


def _destination_name(call: Call, kind: str) -> str:
    name = call.params["destination"]
    return name if kind == QUEUE else exchange_name(name)


_X: Final = "/api/exchanges/{vhost}/{exchange}"
_TO_QUEUE: Final = "/api/bindings/{vhost}/e/{exchange}/q/{destination}"
_TO_EXCHANGE: Final = "/api/bindings/{vhost}/e/{exchange}/e/{destination}"
_LIST_QUERY: Final = (*QUERY, *RANGE_QUERY)
_SEE: Final = Access.VHOST_VISIBLE
_USE: Final = Access.VHOST


class ExchangeHandlers(Handlers):
    """Handlers of exchanges and bindings."""

    def __init__(self, view: EngineView, statistics: Statistics) -> None:
        self._view = view
        self._statistics = statistics

    # --- exchanges ----------------------------------------------------------------------------------------------------

    def describe_exchange(self, of: Placed, ranges: Ranges) -> Described:
        """Return an exchange of a vhost as lists show it."""
        vhost, exchange = of
        row = self._view.exchanges.row(of)
        described: Described = {
            "name": text(row.name),
            "vhost": vhost,
            "type": row.type,
            "durable": row.durable,
            "auto_delete": row.auto_delete,
            "internal": row.internal,
            "arguments": table_to_json(row.arguments),
            "policy": row.policy,
            "user_who_performed_action": row.declared_by or _UNKNOWN_USER,
        }
        shown = self._statistics.of(exchange, EXCHANGE_STATS, row.counters)
        stats = shown.message_stats(EXCHANGE_STATS, ranges.messages)
        if stats:
            described["message_stats"] = stats
        if row.delayed is not None:
            described["messages_delayed"] = row.delayed
        return described

    async def list_exchanges(self, call: Call) -> Response:
        exchanges = self._view.exchanges
        found: list[Placed] = []
        for vhost in visible_vhost_names(call):
            found += exchanges.in_order(vhost)
        keys = dict(exchanges.KEYS)
        for field in EXCHANGE_STATS:
            keys[f"message_stats.{field}_details.rate"] = partial(self._rate, field)
        describe = partial(self.describe_exchange, ranges=Ranges.of(call.query, len(found)))
        return await answer_list(call, found, describe, keys, exchanges.is_gone)

    def _rate(self, field: str, of: Placed) -> float:
        return self._statistics.rate(of[1], EXCHANGE_STATS, field)

    async def show_exchange(self, call: Call) -> Described:
        vhost, exchange = call.params["vhost"], self._the_exchange(call)
        self._statistics.watch(exchange, EXCHANGE_STATS)
        described = self.describe_exchange((vhost, exchange), Ranges.of(call.query))
        described["incoming"] = []
        described["outgoing"] = []
        return described

    def _the_exchange(self, call: Call) -> ExchangeRef:
        exchange = self._view.exchanges.maybe(call.params["vhost"], exchange_name(call.params["exchange"]))
        if exchange is None:
            raise not_found()
        return exchange

    async def declare_exchange(self, call: Call) -> Response:
        body = await call.body(ExchangeBody)
        name = exchange_name(call.params["exchange"])
        new = self._view.exchanges.maybe(call.params["vhost"], name) is None
        declaration = ExchangeDeclaration(
            name,
            body.type,
            durable=body.durable,
            auto_delete=body.auto_delete,
            internal=body.internal,
            arguments=table_from_json(body.arguments),
        )
        with call.client() as client:
            await client.call(declaration)
        return created(new=new)

    async def delete_exchange(self, call: Call) -> None:
        name = self._view.exchanges.name(self._the_exchange(call))
        with call.client() as client:
            await client.call(m.ExchangeDelete(0, name, if_unused=call.flag("if-unused"), no_wait=False))

    # --- bindings -----------------------------------------------------------------------------------------------------

    async def _in_order(self, call: Call, bindings: list[BindingRef]) -> list[BindingRef]:
        if len(bindings) > MANY:
            await call.request.begin_work()
            call.request.hold(len(bindings) * RANK_BYTES)
        return await in_order(bindings, self._view.bindings.order_of)

    async def _answer_bindings(self, call: Call, found: list[Row] | BindingList) -> Response:
        describe, is_gone = partial(describe_binding, self._view), self._view.bindings.is_gone
        if isinstance(found, BindingList):
            page = plain_page(call)
            if page is not None:
                return await answer_page(call, page, found.count, found.part, describe, is_gone)
            found = await found.all()
        return await answer_list(call, found, describe, {}, is_gone)

    async def list_bindings(self, call: Call) -> Response:
        found = BindingList(call, self._view)
        for vhost in visible_vhost_names(call):
            await found.add_vhost(vhost)
        return await self._answer_bindings(call, found)

    async def list_from_exchange(self, call: Call) -> Response:
        vhost, exchange = call.params["vhost"], self._the_exchange(call)
        found = BindingList(call, self._view)
        if self._view.exchanges.name(exchange) == "":
            found.add_queues(vhost)
        found.add_exchange(vhost, exchange)
        return await self._answer_bindings(call, found)

    async def _bindings_to(self, call: Call, destination: DestinationRef) -> list[Row]:
        """Return the bindings that lead to a queue or exchange, in order."""
        vhost = call.params["vhost"]
        found: list[BindingRef] = []
        for source in self._view.bindings.sources_of(vhost, destination):
            found += await bindings_between(self._view, source, destination)
        return [(vhost, each) for each in await self._in_order(call, found)]

    async def list_to_exchange(self, call: Call) -> Response:
        return await self._answer_bindings(
            call, await self._bindings_to(call, DestinationRef(self._the_exchange(call)))
        )

    async def list_to_queue(self, call: Call) -> Response:
        queue = the_queue(call, self._view)
        found: list[Row] = [(call.params["vhost"], each) for each in self._view.bindings.implicit([queue])]
        found += await self._bindings_to(call, DestinationRef(queue))
        return await self._answer_bindings(call, found)

    def _ends(self, call: Call, kind: str) -> tuple[ExchangeRef, DestinationRef]:
        """Return both ends that the path names.

        Raises:
            HttpError: 404.
        """
        vhost, name = call.params["vhost"], call.params["destination"]
        source = self._view.exchanges.maybe(vhost, exchange_name(call.params["exchange"]))
        if source is None:
            raise not_found(f"no exchange '{call.params['exchange']}' in vhost '{vhost}'")
        destination = self._view.bindings.maybe_destination(vhost, kind, _destination_name(call, kind))
        if destination is None:
            raise not_found(f"no {kind} '{name}' in vhost '{vhost}'")
        return source, destination

    def _maybe_implicit(self, call: Call, source: ExchangeRef, kind: str) -> BindingRef | None:
        """Return the binding that the queue of the path has to the default exchange, if that is the source."""
        if kind != QUEUE or self._view.exchanges.name(source) != "":
            return None
        queue = self._view.queues.maybe(call.params["vhost"], call.params["destination"])
        return None if queue is None else self._view.bindings.implicit([queue])[0]

    async def _binding_with_key(self, call: Call, kind: str) -> BindingRef:
        source, destination = self._ends(call, kind)
        key = call.params["key"]
        for properties_key in dict.fromkeys((key, unquote(key))):  # some clients quote it twice
            found = await maybe_binding(self._view, source, destination, properties_key)
            if found is not None:
                return found
        raise not_found()

    async def _list_between(self, call: Call, kind: str) -> list[Described] | Rows:
        vhost = call.params["vhost"]
        try:
            source, destination = self._ends(call, kind)
        except HttpError:
            return []  # as RabbitMQ: nothing leads from or to what does not exist
        implicit = self._maybe_implicit(call, source, kind)
        if implicit is not None:
            return [describe_binding(self._view, (vhost, implicit))]
        bindings = await self._in_order(call, await bindings_between(self._view, source, destination))
        return Rows([(vhost, each) for each in bindings], partial(describe_binding, self._view))

    async def _bind(self, call: Call, kind: str) -> Response:
        wanted = await call.body(NewBinding)
        source, destination = self._ends(call, kind)
        arguments = table_from_json(wanted.arguments)
        to, of, key = _destination_name(call, kind), exchange_name(call.params["exchange"]), wanted.routing_key
        with call.client() as client:
            if kind == QUEUE:
                await client.call(m.QueueBind(0, to, of, key, no_wait=False, arguments=arguments))
            else:
                await client.call(m.ExchangeBind(0, to, of, key, no_wait=False, arguments=arguments))
        made = self._view.bindings.key_of_new(source, destination, key, arguments or EMPTY_TABLE)
        location = f"{quote(call.params['destination'], safe='')}/{quote(made, safe='')}"
        return Response(201, headers=(("Location", location),))

    async def _show_binding(self, call: Call, kind: str) -> Described:
        source, _ = self._ends(call, kind)
        implicit = self._maybe_implicit(call, source, kind)
        if implicit is None:
            return describe_binding(self._view, (call.params["vhost"], await self._binding_with_key(call, kind)))
        described = describe_binding(self._view, (call.params["vhost"], implicit))
        if call.params["key"] not in (described["destination"], described["properties_key"]):
            raise not_found()
        return described

    async def _unbind(self, call: Call, kind: str) -> None:
        row = self._view.bindings.row(await self._binding_with_key(call, kind))
        source, destination, key = row.source, row.destination, row.routing_key
        with call.client() as client:
            if kind == QUEUE:
                await client.call(m.QueueUnbind(0, destination, source, key, row.arguments))
            else:
                await client.call(m.ExchangeUnbind(0, destination, source, key, no_wait=False, arguments=row.arguments))

    async def list_to_queue_between(self, call: Call) -> list[Described] | Rows:
        return await self._list_between(call, QUEUE)

    async def list_to_exchange_between(self, call: Call) -> list[Described] | Rows:
        return await self._list_between(call, EXCHANGE)

    async def bind_queue(self, call: Call) -> Response:
        return await self._bind(call, QUEUE)

    async def bind_exchange(self, call: Call) -> Response:
        return await self._bind(call, EXCHANGE)

    async def show_queue_binding(self, call: Call) -> Described:
        return await self._show_binding(call, QUEUE)

    async def show_exchange_binding(self, call: Call) -> Described:
        return await self._show_binding(call, EXCHANGE)

    async def unbind_queue(self, call: Call) -> None:
        await self._unbind(call, QUEUE)

    async def unbind_exchange(self, call: Call) -> None:
        await self._unbind(call, EXCHANGE)

    ROUTES: ClassVar = (
        Route("GET", "/api/exchanges", Access.USER, list_exchanges, "Exchanges of all vhosts", query=_LIST_QUERY),
        Route("GET", "/api/exchanges/{vhost}", _SEE, list_exchanges, "Exchanges of a vhost", query=_LIST_QUERY),
        Route("GET", _X, _SEE, show_exchange, "An exchange", query=RANGE_QUERY),
        Route("PUT", _X, _USE, declare_exchange, "Declare an exchange", ExchangeBody),
        Route("DELETE", _X, _USE, delete_exchange, "Delete an exchange", query=("if-unused",)),
        Route("GET", f"{_X}/bindings/source", _SEE, list_from_exchange, "Bindings from an exchange", query=QUERY),
        Route("GET", f"{_X}/bindings/destination", _SEE, list_to_exchange, "Bindings to an exchange", query=QUERY),
        Route("GET", "/api/queues/{vhost}/{queue}/bindings", _SEE, list_to_queue, "Bindings to a queue", query=QUERY),
        Route("GET", "/api/bindings", Access.USER, list_bindings, "Bindings of all vhosts", query=QUERY),
        Route("GET", "/api/bindings/{vhost}", _SEE, list_bindings, "Bindings of a vhost", query=QUERY),
        Route("GET", _TO_QUEUE, _SEE, list_to_queue_between, "Bindings between an exchange and a queue"),
        Route("POST", _TO_QUEUE, _USE, bind_queue, "Bind a queue", NewBinding),
        Route("GET", f"{_TO_QUEUE}/{{key}}", _SEE, show_queue_binding, "A binding"),
        Route("DELETE", f"{_TO_QUEUE}/{{key}}", _USE, unbind_queue, "Unbind a queue"),
        Route("GET", _TO_EXCHANGE, _SEE, list_to_exchange_between, "Bindings between two exchanges"),
        Route("POST", _TO_EXCHANGE, _USE, bind_exchange, "Bind an exchange", NewBinding),
        Route("GET", f"{_TO_EXCHANGE}/{{key}}", _SEE, show_exchange_binding, "A binding"),
        Route("DELETE", f"{_TO_EXCHANGE}/{{key}}", _USE, unbind_exchange, "Unbind an exchange"),
    )
