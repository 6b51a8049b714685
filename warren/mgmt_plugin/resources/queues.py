"""Queues: listed, described, declared, deleted, purged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import asdict

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.engine_view.counters import LENGTHS, QUEUE_FIELDS, QUEUE_STATS
from warren.engine_view.engine_view import EngineView
from warren.engine_view.queues import QueueDeclared
from warren.engine_view.refs import QueueRef
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.metrics.statistics import RANGE_QUERY, Ranges, Statistics
from warren.mgmt_plugin.names import the_queue, visible_queues
from warren.mgmt_plugin.resources.consumers import ConsumerDescriber
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, created
from warren.mgmt_plugin.terms import table_from_json, table_to_json, text


class QueueBody(msgspec.Struct):
    """A queue to be declared."""

    durable: bool = True
    auto_delete: bool = False
    arguments: Any = None
    node: str = ""


class Action(msgspec.Struct):
    """The action to take on a queue."""

    action: str


# --- description ------------------------------------------------------------------------------------------------------


def describe_declared(row: QueueDeclared) -> Described:
    """Return all fields of a row of a queue, with its arguments as JSON."""
    described: Described = asdict(row)
    described["name"] = text(row.name)
    described["arguments"] = table_to_json(row.arguments)
    return described


_LIST_QUERY: Final = (*QUERY, *RANGE_QUERY, "disable_stats", "enable_queue_totals")


class QueueHandlers(Handlers):
    """Handlers of queues."""

    def __init__(self, view: EngineView, statistics: Statistics) -> None:
        self._view = view
        self._statistics = statistics

    def describe_queue(self, queue: QueueRef, ranges: Ranges) -> Described:
        """Return a queue as lists show it."""
        row = self._view.queues.row(queue)
        described = describe_declared(row)
        del described["counters"], described["owner"], described["is_replicated"], described["offsets"]
        described["idle_since"] = self._statistics.idle_since(queue)
        described["storage_version"] = 1
        if row.owner is not None:
            described["owner_pid_details"] = asdict(row.owner)
        if row.is_replicated:
            described |= {"leader": row.node, "members": [row.node], "online": [row.node]}
        if row.delivery_limit is None:
            del described["delivery_limit"]
        if row.offsets is not None:
            described["first_offset"], described["next_offset"] = row.offsets
            described["readers"] = row.consumers
        shown = self._statistics.of(queue, QUEUE_FIELDS, row.counters)
        shown.add(described, LENGTHS, ranges.lengths)
        stats = shown.message_stats(QUEUE_STATS, ranges.messages)
        if stats:
            described["message_stats"] = stats
        return described

    # --- handlers -----------------------------------------------------------------------------------------------------

    def _queue_keys(self) -> dict[str, Callable[[QueueRef], object]]:
        keys = dict(self._view.queues.KEYS)
        for field in QUEUE_STATS:
            rate = partial(self._statistics.rate, fields=QUEUE_FIELDS, field=field)
            keys[f"message_stats.{field}_details.rate"] = rate
        return keys

    def describe_without_stats(self, queue: QueueRef, *, totals: bool) -> Described:
        """Return a queue as lists without statistics show it, with its length if `totals`."""
        described = describe_declared(self._view.queues.declared(queue))
        described["node"] = self._view.node_name()
        described["state"] = "running"
        if totals:
            described |= zip(LENGTHS, self._view.queues.counters([queue])[0], strict=False)
        return described

    async def list_queues(self, call: Call) -> Response:
        queues = await visible_queues(call, self._view)
        describe: Callable[[QueueRef], Described]
        describe = partial(self.describe_queue, ranges=Ranges.of(call.query, len(queues)))
        if call.flag("disable_stats"):
            describe = partial(self.describe_without_stats, totals=call.flag("enable_queue_totals"))
        return await answer_list(call, queues, describe, self._queue_keys(), self._view.queues.is_gone)

    async def show_queue(self, call: Call) -> Described:
        queue = the_queue(call, self._view)
        self._statistics.watch(queue, QUEUE_FIELDS)
        described = self.describe_queue(queue, Ranges.of(call.query))
        if call.query.get("consumer_details") != "false":
            describer = ConsumerDescriber(self._view, self._statistics)
            described["consumer_details"] = describer.rows(self._view.queues.consumers(queue))
        described["incoming"] = []
        described["deliveries"] = []
        return described

    async def declare_queue(self, call: Call) -> Response:
        body = await call.body(QueueBody)
        name = call.params["queue"]
        new = self._view.queues.maybe(call.params["vhost"], name) is None
        declaration = QueueDeclaration(
            name, durable=body.durable, auto_delete=body.auto_delete, arguments=table_from_json(body.arguments)
        )
        with call.client() as client:
            await client.call(declaration)
        return created(new=new)

    async def delete_queue(self, call: Call) -> None:
        the_queue(call, self._view)
        with call.client() as client:
            await client.call(
                m.QueueDelete(
                    0,
                    call.params["queue"],
                    if_unused=call.flag("if-unused"),
                    if_empty=call.flag("if-empty"),
                    no_wait=False,
                )
            )

    async def purge_queue(self, call: Call) -> None:
        the_queue(call, self._view)
        with call.client() as client:
            await client.call(m.QueuePurge(0, call.params["queue"], no_wait=False))

    async def act_on_queue(self, call: Call) -> None:
        the_queue(call, self._view)
        wanted = await call.body(Action)
        if wanted.action not in ("sync", "cancel_sync"):
            raise bad_request(f"unknown action '{wanted.action}'")
        # Warren has no mirrors: both actions are complete at once.

    ROUTES: ClassVar = (
        Route("GET", "/api/queues", Access.USER, list_queues, "Queues of all vhosts", query=_LIST_QUERY),
        Route("GET", "/api/queues/detailed", Access.USER, list_queues, "The same", query=_LIST_QUERY),
        Route("GET", "/api/queues/{vhost}", Access.VHOST_VISIBLE, list_queues, "Queues of a vhost", query=_LIST_QUERY),
        Route(
            "GET",
            "/api/queues/{vhost}/{queue}",
            Access.VHOST_VISIBLE,
            show_queue,
            "A queue",
            query=(*RANGE_QUERY, "consumer_details"),
        ),
        Route("PUT", "/api/queues/{vhost}/{queue}", Access.VHOST, declare_queue, "Declare a queue", QueueBody),
        Route(
            "DELETE",
            "/api/queues/{vhost}/{queue}",
            Access.VHOST,
            delete_queue,
            "Delete a queue",
            query=("if-empty", "if-unused"),
        ),
        Route("DELETE", "/api/queues/{vhost}/{queue}/contents", Access.VHOST, purge_queue, "Purge a queue"),
        Route("POST", "/api/queues/{vhost}/{queue}/actions", Access.VHOST, act_on_queue, "Synchronise mirrors", Action),
    )
