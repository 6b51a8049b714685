"""Where a message would go, asked without publishing it: see ``engine_view.routing``.

The work gives way every millisecond. An answer has at most `SHOWN_MAX` queues and as many steps.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import asdict

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.errors import ChannelException
from warren.amqp.properties import BasicProperties
from warren.engine_view.engine_view import EngineView
from warren.engine_view.routing import SHOWN_MAX
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import exchange_name, the_vhost
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, not_found
from warren.mgmt_plugin.terms import table_from_json

HEADERS_BYTES_MAX: Final = 64 << 10


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """A message that might be published."""

    exchange: str
    routing_key: str = ""
    headers: Any = None


class AskedRouteHandlers(Handlers):
    """The handler of the question where a message would go."""

    def __init__(self, view: EngineView) -> None:
        self._view = view

    async def ask_route(self, call: Call) -> Described:
        question = await call.body(Question)
        vhost = the_vhost(call)
        start = self._view.exchanges.maybe(vhost, exchange_name(question.exchange))
        if start is None:
            raise not_found(f"no exchange '{question.exchange}' in vhost '{vhost}'")
        if len(question.routing_key.encode("utf-8", "replace")) > NAME_MAX_BYTES:
            raise bad_request(f"the routing key is longer than {NAME_MAX_BYTES} bytes")
        properties = BasicProperties()
        if question.headers:
            properties.headers = table_from_json(question.headers, "headers")
            if len(properties.headers) > HEADERS_BYTES_MAX:
                raise bad_request(f"headers have more than {HEADERS_BYTES_MAX} bytes")
        header = b"\x00\x3c\x00\x00" + bytes(8) + properties.encode()
        try:
            queues, subscribers = self._view.routing.receivers(vhost, start, question.routing_key, header)
        except ChannelException as error:
            raise bad_request(error.explanation) from None
        way = self._view.routing.way(vhost, question.routing_key, header)
        for _ in way.follow(start):
            await give_way()
        return {
            "queues": queues[:SHOWN_MAX],
            "queue_count": len(queues),
            "subscribers": subscribers[:SHOWN_MAX],
            "subscriber_count": len(subscribers),
            "unroutable": not (queues or subscribers),
            "path": [asdict(step) for step in way.steps],
            "path_count": way.count,
            "complete": way.complete,
        }

    ROUTES: ClassVar = (
        Route(
            "POST",
            "/api/warren/route/{vhost}",
            Access.VHOST_VISIBLE,
            ask_route,
            "Queues that a message would reach",
            Question,
            is_audited=False,
        ),
    )
