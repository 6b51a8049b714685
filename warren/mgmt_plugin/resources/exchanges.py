"""Exchanges and bindings: listed, described, declared, bound, unbound, deleted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote

import msgspec

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.field_table import EMPTY_TABLE
from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
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
from warren.mgmt_plugin.metrics.statistics import EXCHANGE_STATS, RANGE_QUERY, Ranges, Statistics, exchange_row
from warren.mgmt_plugin.names import (
    exchange_name,
    the_exchange,
    the_queue,
    the_vhost,
    visible_vhosts,
)
from warren.mgmt_plugin.resources.binding_list import BindingList, Row, bindings_between, maybe_binding, order_of
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, created, not_found
from warren.mgmt_plugin.terms import exchange_to_json, table_from_json, table_to_json
from warren.queues.destination import Destination
from warren.queues.queue import Queue
from warren.vhosts.virtual_host import VirtualHost

QUEUE: Final = "queue"
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


def describe_binding(vhost: str, binding: Binding) -> Described:
    """Return a binding."""
    return {
        "source": binding.source.name,
        "vhost": vhost,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind,
        "routing_key": binding.routing_key,
        "arguments": table_to_json(binding.arguments),
        "properties_key": binding.properties_key,
    }


def describe_implicit(vhost: str, queue: str) -> Described:
    """Return the binding that every queue has to the default exchange."""
    return {
        "source": "",
        "vhost": vhost,
        "destination": queue,
        "destination_type": QUEUE,
        "routing_key": queue,
        "arguments": {},
        "properties_key": quote(queue, safe=""),
    }


async def bindings_to(vhost: VirtualHost, destination: Destination) -> list[Binding]:
    """Return the bindings that lead to a queue or exchange."""
    found: list[Binding] = []
    for source in vhost.incoming.sources_of(destination):
        found += await bindings_between(source, destination)
    return found


async def _in_order(call: Call, bindings: list[Binding]) -> list[Binding]:
    if len(bindings) > MANY:
        await call.request.begin_work()
        call.request.hold(len(bindings) * RANK_BYTES)
    return await in_order(bindings, order_of)


async def _answer_bindings(call: Call, found: Sequence[Row] | BindingList) -> Response:
    if isinstance(found, BindingList):
        page = plain_page(call)
        if page is not None:
            return await answer_page(call, page, found.count, found.part, _describe_row, _is_gone)
        found = await found.all()
    return await answer_list(call, found, _describe_row, {}, _is_gone)


def _describe_row(each: Row) -> Described:
    vhost, bound = each
    return describe_implicit(vhost, bound.name) if isinstance(bound, Queue) else describe_binding(vhost, bound)


def _is_gone(each: Row) -> bool:
    bound = each[1]
    return bound.deleted if isinstance(bound, Queue) else bound.destination.deleted or bound.source.deleted


def _ends(call: Call, kind: str) -> tuple[VirtualHost, Exchange, Destination]:
    """Return both ends that the path names.

    Raises:
        HttpError: 404.
    """
    vhost = the_vhost(call)
    source = vhost.exchanges.get(exchange_name(call.params["exchange"]))
    if source is None:
        raise not_found(f"no exchange '{call.params['exchange']}' in vhost '{vhost.name}'")
    name = call.params["destination"]
    destination: Queue | Exchange | None
    destination = vhost.queues.get(name) if kind == QUEUE else vhost.exchanges.get(exchange_name(name))
    if destination is None:
        raise not_found(f"no {kind} '{name}' in vhost '{vhost.name}'")
    return vhost, source, destination


async def _binding_with_key(call: Call, kind: str) -> tuple[VirtualHost, Binding]:
    vhost, source, destination = _ends(call, kind)
    key = call.params["key"]
    for properties_key in dict.fromkeys((key, unquote(key))):  # some clients quote it twice
        found = await maybe_binding(source, destination, properties_key)
        if found is not None:
            return vhost, found
    raise not_found()


_X: Final = "/api/exchanges/{vhost}/{exchange}"
_TO_QUEUE: Final = "/api/bindings/{vhost}/e/{exchange}/q/{destination}"
_TO_EXCHANGE: Final = "/api/bindings/{vhost}/e/{exchange}/e/{destination}"
_LIST_QUERY: Final = (*QUERY, *RANGE_QUERY)
_SEE: Final = Access.VHOST_VISIBLE
_USE: Final = Access.VHOST


class ExchangeHandlers(Handlers):
    """Handlers of exchanges and bindings."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    # --- exchanges ----------------------------------------------------------------------------------------------------

    def describe_exchange(self, call: Call, vhost: VirtualHost, exchange: Exchange, ranges: Ranges) -> Described:
        """Return an exchange as lists show it."""
        described: Described = {
            **exchange_to_json(vhost.name, exchange.declaration),
            "policy": exchange.policy,
            "user_who_performed_action": exchange.declared_by or _UNKNOWN_USER,
        }
        shown = self._statistics.of(exchange, EXCHANGE_STATS, exchange_row(exchange))
        stats = shown.message_stats(EXCHANGE_STATS, ranges.messages)
        if stats:
            described["message_stats"] = stats
        held = vhost.held.get(exchange.name)
        if held is not None:
            described["messages_delayed"] = int(held.count)
        return described

    async def list_exchanges(self, call: Call) -> Response:
        rate = self._statistics.rate
        found = [(vhost, vhost.exchanges[name]) for vhost in visible_vhosts(call) for name in sorted(vhost.exchanges)]
        ranges = Ranges.of(call.query, len(found))
        return await answer_list(
            call,
            found,
            lambda each: self.describe_exchange(call, *each, ranges),
            {
                "name": lambda each: each[1].name,
                "vhost": lambda each: each[0].name,
                "type": lambda each: each[1].type_name,
                "message_stats.publish_in_details.rate": lambda each: rate(each[1], "publish_in"),
                "message_stats.publish_out_details.rate": lambda each: rate(each[1], "publish_out"),
            },
            lambda each: each[1].deleted,
        )

    async def show_exchange(self, call: Call) -> Described:
        vhost, exchange = the_exchange(call)
        self._statistics.watch(exchange, EXCHANGE_STATS)
        described = self.describe_exchange(call, vhost, exchange, Ranges.of(call.query))
        described["incoming"] = []
        described["outgoing"] = []
        return described

    async def declare_exchange(self, call: Call) -> Response:
        body = await call.body(ExchangeBody)
        name = exchange_name(call.params["exchange"])
        new = name not in the_vhost(call).exchanges
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
        _, exchange = the_exchange(call)
        with call.client() as client:
            await client.call(m.ExchangeDelete(0, exchange.name, if_unused=call.flag("if-unused"), no_wait=False))

    # --- bindings -----------------------------------------------------------------------------------------------------

    async def list_bindings(self, call: Call) -> Response:
        found = BindingList(call)
        for vhost in list(visible_vhosts(call)):
            await found.add_vhost(vhost)
        return await _answer_bindings(call, found)

    async def list_from_exchange(self, call: Call) -> Response:
        vhost, exchange = the_exchange(call)
        found = BindingList(call)
        if exchange.name == "":
            found.add_queues(vhost)
        found.add_exchange(vhost, exchange)
        return await _answer_bindings(call, found)

    async def list_to_exchange(self, call: Call) -> Response:
        vhost, exchange = the_exchange(call)
        bindings = await _in_order(call, await bindings_to(vhost, exchange))
        return await _answer_bindings(call, [(vhost.name, each) for each in bindings])

    async def list_to_queue(self, call: Call) -> Response:
        queue = the_queue(call)
        vhost = the_vhost(call)
        found: list[Row] = [(vhost.name, queue)]
        found += [(vhost.name, each) for each in await _in_order(call, await bindings_to(vhost, queue))]
        return await _answer_bindings(call, found)

    async def _list_between(self, call: Call, kind: str) -> list[Described] | Rows:
        try:
            vhost, source, destination = _ends(call, kind)
        except HttpError:
            return []  # as RabbitMQ: nothing leads from or to what does not exist
        if source.name == "" and kind == QUEUE:
            return [describe_implicit(vhost.name, destination.name)]
        bindings = await _in_order(call, await bindings_between(source, destination))
        return Rows(bindings, partial(describe_binding, vhost.name))

    async def _bind(self, call: Call, kind: str) -> Response:
        wanted = await call.body(NewBinding)
        _, source, destination = _ends(call, kind)
        arguments = table_from_json(wanted.arguments)
        with call.client() as client:
            if kind == QUEUE:
                await client.call(
                    m.QueueBind(
                        0, destination.name, source.name, wanted.routing_key, no_wait=False, arguments=arguments
                    )
                )
            else:
                await client.call(
                    m.ExchangeBind(
                        0, destination.name, source.name, wanted.routing_key, no_wait=False, arguments=arguments
                    )
                )
        key = Binding(source, destination, wanted.routing_key, arguments or EMPTY_TABLE).properties_key
        return Response(
            201, headers=(("Location", f"{quote(call.params['destination'], safe='')}/{quote(key, safe='')}"),)
        )

    async def _show_binding(self, call: Call, kind: str) -> Described:
        vhost, source, destination = _ends(call, kind)
        if source.name == "" and kind == QUEUE:
            implicit = describe_implicit(vhost.name, destination.name)
            if call.params["key"] not in (destination.name, implicit["properties_key"]):
                raise not_found()
            return implicit
        return describe_binding(vhost.name, (await _binding_with_key(call, kind))[1])

    async def _unbind(self, call: Call, kind: str) -> None:
        _, binding = await _binding_with_key(call, kind)
        source, destination, key = binding.source.name, binding.destination.name, binding.routing_key
        with call.client() as client:
            if kind == QUEUE:
                await client.call(m.QueueUnbind(0, destination, source, key, binding.arguments))
            else:
                await client.call(
                    m.ExchangeUnbind(0, destination, source, key, no_wait=False, arguments=binding.arguments)
                )

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
