"""Unreadable or damaged parts of the message store: listed, and given up by an administrator.

The field `what` of a row is its kind: a ``read that fails`` (its ``file``, the ``reason``, the number of failures),
damaged ``messages`` or a damaged ``index page`` or ``chunk`` of a queue (from number ``first`` up to ``end``), or
``frames`` of a file of the log in which scrubbing has found damage. ``since`` is in ms since 1970. Rows without vhost
and queue belong to the broker itself: records of the metadata, for instance, which are given up with an empty vhost and
queue.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from warren.engine_view.damage import Damage
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route
from warren.msgstore.files.segment_names import segment_path
from warren.server.message_store import MessageStoreService

ROWS_MAX: Final = 1000


class GivenUp(msgspec.Struct, forbid_unknown_fields=True):
    """The queue whose damaged data are given up; `unreadable`: those too that the disk does not give now."""

    vhost: str
    queue: str
    unreadable: bool = False


class DamageHandlers(Handlers):
    """Handlers for unreadable or damaged data."""

    def __init__(self, damage: Damage, messages: MessageStoreService) -> None:
        self._damage = damage
        self._messages = messages

    async def list_damage(self, call: Call) -> list[Described]:
        rows: list[Described] = self._messages.unread()[:ROWS_MAX]
        for number, since_ms in sorted(self._messages.damage.segments.items()):
            path = segment_path(number)
            rows.append({"what": "frames", "vhost": None, "queue": None, "file": path, "since": since_ms})
        for count, place in enumerate(self._damage.places(ROWS_MAX)):
            rows.append(
                {
                    "what": place.what,
                    "vhost": place.vhost or None,
                    "queue": place.queue or None,
                    "lane": place.lane,
                    "first": place.first,
                    "end": place.end,
                    "messages": place.messages,
                    "since": place.since_ms or None,
                }
            )
            if count % 100 == 0:
                await give_way()
        return rows[:ROWS_MAX]

    async def give_up(self, call: Call) -> Described:
        asked = await call.body(GivenUp)
        reads = self._messages.give_up_reads(asked.vhost, asked.queue) if asked.unreadable else 0
        return {"messages": self._damage.give_up(asked.vhost, asked.queue), "reads": reads}

    ROUTES: ClassVar = (
        Route(
            "GET", "/api/warren/damage", Access.MONITORING, list_damage, "Data that is unreadable, or damaged on disk"
        ),
        Route("POST", "/api/warren/damage/give-up", Access.ADMINISTRATOR, give_up, "Give up damaged data of a queue"),
    )
