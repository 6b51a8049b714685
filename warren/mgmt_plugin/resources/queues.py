"""Queues: listed, described, declared, deleted, purged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.properties import decode_properties
from warren.channels.broker import Broker
from warren.channels.peer import Peer
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.metrics.statistics import (
    LENGTHS,
    QUEUE_FIELDS,
    QUEUE_STATS,
    RANGE_QUERY,
    Ranges,
    Statistics,
    queue_row,
)
from warren.mgmt_plugin.names import connection_details, node_name, the_queue, visible_queues
from warren.mgmt_plugin.resources.consumers import ConsumerDescriber
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, created
from warren.mgmt_plugin.terms import queue_to_json, table_from_json
from warren.queues.arguments import CLASSIC
from warren.queues.delivery import Consumer
from warren.queues.lanes import DELAYED, PARKED, UNDELIVERED
from warren.queues.queue import Queue
from warren.streams.stream import Stream

# The memory of an empty queue, about.
QUEUE_BYTES: Final = 1500
# The second octet of the property flags of a content header, and the bit in it.
_FLAGS_LOW_AT: Final = 13
_HAS_TIMESTAMP: Final = 0x40


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


def queue_type(queue: Queue) -> str:
    """Return ``classic``, ``quorum`` or ``stream``."""
    return queue.rules.queue_type


def head_timestamp(queue: Queue) -> int | None:
    """Return the property timestamp of the message that is next, in s; None without, or when it is on disk only."""
    ready = queue.ready
    if queue.ready_count == 0:
        return None
    message = ready.maybe_head(-1)
    lane = 0
    while message is None and lane < ready.lane_count():
        backlog = ready.backlog(lane)
        # Asking the queue for its head would have it read from disk.
        if int(backlog.resident_count) > 0:
            message = backlog.head()
        elif not backlog.is_empty():
            return None
        lane += 1
    if message is None:
        return None
    payload = message.header_payload()
    if not payload[_FLAGS_LOW_AT] & _HAS_TIMESTAMP:
        return None
    return decode_properties(payload, 0, len(payload)).timestamp


def consumer_capacity(queue: Queue) -> float:
    """Return the share of consumers that could take a message now, which stands for a share of time."""
    if not queue.consumers:
        return 0.0
    return sum(consumer.is_ready() for consumer in queue.consumers) / len(queue.consumers)


def _active_consumer(queue: Queue) -> Consumer | None:
    if queue.single_active:
        return queue.active_consumer()
    return queue.exclusive_consumer


def is_gone(call: Call, queue: Queue) -> bool:
    """Tell whether a queue, or its vhost, has been deleted."""
    return queue.deleted or queue.vhost_name not in call.vhosts


_LIST_QUERY: Final = (*QUERY, *RANGE_QUERY, "disable_stats", "enable_queue_totals")


class QueueHandlers(Handlers):
    """Handlers of queues."""

    def __init__(self, broker: Broker, statistics: Statistics) -> None:
        self._broker = broker
        self._statistics = statistics
        self._node = node_name(broker)

    def describe_queue(self, call: Call, queue: Queue, ranges: Ranges) -> Described:
        """Return a queue as lists show it."""
        statistics = self._statistics
        policies = queue.policies
        shown = statistics.of(queue, QUEUE_FIELDS, queue_row(queue))
        ready_bytes = int(queue.ready_bytes)
        message_bytes = int(queue.message_bytes)
        paged_out, paged_out_bytes = queue.ready.paged_out_count(), queue.ready.paged_out_bytes()
        persistent, persistent_bytes = queue.persistent()
        consumer = _active_consumer(queue)
        described: Described = {
            **queue_to_json(queue.vhost_name, queue_type(queue), queue.declaration),
            "node": self._node,
            "state": "running",
            "paused": queue.paused,
            "policy": policies.policy_name(),
            "operator_policy": policies.operator_policy_name(),
            "effective_policy_definition": policies.definition(),
            "exclusive_consumer_tag": consumer.tag if consumer is not None and consumer.exclusive else None,
            "single_active_consumer_tag": consumer.tag if consumer is not None and queue.single_active else None,
            "consumers": len(queue.consumers),
            "consumer_capacity": consumer_capacity(queue),
            "consumer_utilisation": consumer_capacity(queue),
            "message_bytes": message_bytes,
            "message_bytes_ready": ready_bytes,
            "message_bytes_unacknowledged": int(queue.unacked_bytes),
            "message_bytes_ram": message_bytes - paged_out_bytes,
            "message_bytes_paged_out": paged_out_bytes,
            "message_bytes_persistent": persistent_bytes,
            "messages_persistent": persistent,
            "messages_paged_out": paged_out,
            "messages_ram": shown.row[0] - paged_out,
            "messages_ready_ram": shown.row[1] - paged_out,
            "messages_unacknowledged_ram": shown.row[2],
            # The cost of objects is counted with the bodies, but not for unacknowledged messages.
            "memory": queue.ready.memory_bytes() + QUEUE_BYTES,
            "head_message_timestamp": head_timestamp(queue),
            "idle_since": statistics.idle_since(queue),
            "storage_version": 1,
        }
        if queue.owner is not None and isinstance(queue.owner, Peer):
            described["owner_pid_details"] = connection_details(queue.owner)
        if queue.rules.queue_type != CLASSIC:
            node = self._node
            described |= {"leader": node, "members": [node], "online": [node]}
        if queue.rules.is_quorum:
            described["delivery_limit"] = int(queue.rules.delivery_limit)
        if isinstance(queue, Stream):
            described |= {
                "first_offset": queue.first_offset(),
                "next_offset": queue.next_offset(),
                "readers": len(queue.consumers),
            }
        shown.add(described, LENGTHS, ranges.lengths)
        for name, lane in (("messages_delayed", DELAYED), ("messages_parked", PARKED), ("messages_dlx", UNDELIVERED)):
            held = queue.held(lane)
            described[name] = 0 if held is None else int(held.count)
        stats = shown.message_stats(QUEUE_STATS, ranges.messages)
        if stats:
            described["message_stats"] = stats
        return described

    # --- handlers -----------------------------------------------------------------------------------------------------

    def _queue_keys(self, call: Call) -> dict[str, Callable[[Queue], object]]:
        rate = self._statistics.rate
        keys: dict[str, Callable[[Queue], object]] = {
            "name": lambda queue: queue.name,
            "vhost": lambda queue: queue.vhost_name,
            "type": queue_type,
            "durable": lambda queue: queue.durable,
            "state": lambda queue: "running",
            "consumers": lambda queue: len(queue.consumers),
            "messages": lambda queue: int(queue.message_count),
            "messages_ready": lambda queue: int(queue.ready_count),
            "messages_unacknowledged": lambda queue: int(queue.unacked_count),
            "message_bytes": lambda queue: int(queue.message_bytes),
            "message_bytes_ready": lambda queue: int(queue.ready_bytes),
            "message_bytes_unacknowledged": lambda queue: int(queue.unacked_bytes),
            "messages_persistent": lambda queue: queue.persistent()[0],
            "message_bytes_persistent": lambda queue: queue.persistent()[1],
        }
        for field in QUEUE_STATS:
            keys[f"message_stats.{field}_details.rate"] = lambda queue, field=field: rate(queue, field)  # type: ignore[misc]
        return keys

    def describe_without_stats(self, call: Call, queue: Queue) -> Described:
        """Return a queue as lists without statistics show it, at most with its length."""
        described: Described = {
            **queue_to_json(queue.vhost_name, queue_type(queue), queue.declaration),
            "node": self._node,
            "state": "running",
        }
        if call.flag("enable_queue_totals"):
            described |= zip(LENGTHS, queue_row(queue), strict=False)
        return described

    async def list_queues(self, call: Call) -> Response:
        queues = await visible_queues(call)
        ranges = Ranges.of(call.query, len(queues))
        describe = partial(self.describe_queue, call, ranges=ranges)
        if call.flag("disable_stats"):
            describe = partial(self.describe_without_stats, call)
        return await answer_list(call, queues, describe, self._queue_keys(call), partial(is_gone, call))

    async def show_queue(self, call: Call) -> Described:
        queue = the_queue(call)
        self._statistics.watch(queue, QUEUE_FIELDS)
        described = self.describe_queue(call, queue, Ranges.of(call.query))
        if call.query.get("consumer_details") != "false":
            describer = ConsumerDescriber(self._broker, self._statistics)
            described["consumer_details"] = describer.rows(queue.consumers)
        described["incoming"] = []
        described["deliveries"] = []
        return described

    async def declare_queue(self, call: Call) -> Response:
        body = await call.body(QueueBody)
        name = call.params["queue"]
        new = name not in call.vhosts[call.params["vhost"]].queues
        declaration = QueueDeclaration(
            name, durable=body.durable, auto_delete=body.auto_delete, arguments=table_from_json(body.arguments)
        )
        with call.client() as client:
            await client.call(declaration)
        return created(new=new)

    async def delete_queue(self, call: Call) -> None:
        queue = the_queue(call)
        with call.client() as client:
            await client.call(
                m.QueueDelete(
                    0, queue.name, if_unused=call.flag("if-unused"), if_empty=call.flag("if-empty"), no_wait=False
                )
            )

    async def purge_queue(self, call: Call) -> None:
        queue = the_queue(call)
        with call.client() as client:
            await client.call(m.QueuePurge(0, queue.name, no_wait=False))

    async def act_on_queue(self, call: Call) -> None:
        queue = the_queue(call)
        wanted = await call.body(Action)
        if wanted.action not in ("sync", "cancel_sync"):
            raise bad_request(f"unknown action '{wanted.action}'")
        assert queue is not None  # Warren has no mirrors: both actions are complete at once

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
