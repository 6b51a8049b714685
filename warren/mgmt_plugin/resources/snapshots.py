"""Snapshots of queues: made for readers, which need no tag, read by them over the data port, listed for operators.

1. A user who may read a queue over AMQP may make a snapshot of it, and read and delete its snapshots.
2. A request for a snapshot is answered when the snapshot is complete, or after `wait_s` with its progress. It can be
   read in either case.

Snapshots and their content are described in ``server.copies.snapshots``.
"""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import quote

import msgspec
import trio

from warren.engine_view.engine_view import EngineView
from warren.engine_view.offsets import STREAM
from warren.engine_view.permissions import READ
from warren.mgmt_plugin.http.server import HttpError, Response
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import the_vhost, visible_vhost_names
from warren.mgmt_plugin.resources.ranges import incarnation_of, refused
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request
from warren.server.copies.snapshots import MAKING, Snapshot, SnapshotError, Snapshots

TTL_S: Final = 3600
TTL_MAX_S: Final = 7 * 24 * 3600
WAIT_S: Final = 40.0


class SnapshotOrder(msgspec.Struct, forbid_unknown_fields=True):
    """How long a snapshot is kept, and whether it contains messages that clients have not acknowledged.

    `wait_s`: how long the answer waits for it to be complete; 0: the client reads it while it is being made.
    """

    ttl_s: float = TTL_S
    unacked: bool = False
    wait_s: float = WAIT_S


def describe(snapshot: Snapshot) -> Described:
    """Return the description of a snapshot; `end` is None before it is complete, and never above `most`."""
    return {
        "snapshot": snapshot.id,
        "vhost": snapshot.vhost,
        "queue": snapshot.queue,
        "id": snapshot.queue_id,
        "state": snapshot.state,
        "reason": None if snapshot.error is None else str(snapshot.error),
        "first": 0,
        "end": snapshot.count if snapshot.ready else None,
        "most": snapshot.most,
        "count": snapshot.count,
        "bytes": snapshot.bytes,
        "user": snapshot.user,
        "made_at": snapshot.begun_ms,
        "expires_at": snapshot.expires_ms,
    }


def the_snapshot(call: Call, snapshots: Snapshots, identifier: str) -> Snapshot:
    """Return a snapshot of the queue of the path, which need not exist any longer; the user may read it.

    Raises:
        HttpError: 404. ChannelException: 403.
    """
    call.authorize(READ, "queue", call.params["queue"])
    found = snapshots.maybe_find(call.params["vhost"], call.params["queue"], identifier)
    if found is None:
        raise HttpError(
            404,
            "no_snapshot",
            "no such snapshot: it may have expired, or the broker was restarted",
        )
    return found


_P: Final = "/api/warren/snapshots"
_S: Final = f"{_P}/{{vhost}}/{{queue}}/{{snapshot}}"


class SnapshotHandlers(Handlers):
    """Handlers of snapshots. `nursery` has the tasks that make them."""

    def __init__(self, view: EngineView, snapshots: Snapshots, nursery: trio.Nursery) -> None:
        self._view = view
        self._snapshots = snapshots
        self._nursery = nursery

    async def make_snapshot(self, call: Call) -> Response:
        order = await call.body(SnapshotOrder)
        name = call.params["queue"]
        call.authorize(READ, "queue", name)
        queue = self._view.queues.shared(the_vhost(call), name)
        if self._view.offsets.kind(queue) == STREAM:
            raise bad_request(f"queue '{name}' is a stream: streams are read by offset")
        if not 0 < order.ttl_s <= TTL_MAX_S:
            raise bad_request(f"ttl_s must be a number up to {TTL_MAX_S}")
        if not 0 <= order.wait_s <= WAIT_S:
            raise bad_request(f"wait_s must be a number from 0 to {WAIT_S:g}")
        snapshots = self._snapshots
        try:
            snapshot = snapshots.begin(
                queue,
                incarnation_of(self._view, queue),
                call.operator.name,
                order.ttl_s,
                self._nursery,
                unacked=order.unacked,
            )
        except SnapshotError as error:
            raise refused(error) from None
        with trio.move_on_after(order.wait_s):
            await snapshot.over.wait()
        if snapshot.error is not None:
            await snapshots.delete(snapshot)
            raise refused(snapshot.error)
        place = "/".join(quote(part, safe="") for part in (snapshot.vhost, snapshot.queue, snapshot.id))
        status = 202 if snapshot.state == MAKING else 201
        headers = (("Location", f"/api/warren/snapshots/{place}"),)
        return Response(status, msgspec.json.encode(describe(snapshot)), headers=headers)

    async def list_snapshots(self, call: Call) -> list[Described]:
        return [describe(each) for each in self._snapshots.of(visible_vhost_names(call))]

    async def show_snapshot(self, call: Call) -> Described:
        return describe(the_snapshot(call, self._snapshots, call.params["snapshot"]))

    async def delete_snapshot(self, call: Call) -> None:
        await self._snapshots.delete(the_snapshot(call, self._snapshots, call.params["snapshot"]))

    ROUTES: ClassVar = (
        Route("GET", _P, Access.USER, list_snapshots, "Snapshots of queues in all vhosts"),
        Route("GET", f"{_P}/{{vhost}}", Access.VHOST_VISIBLE, list_snapshots, "Snapshots of queues in a vhost"),
        Route(
            "POST",
            f"{_P}/{{vhost}}/{{queue}}",
            Access.CLIENT,
            make_snapshot,
            "Copy the waiting messages of a queue for reading",
            SnapshotOrder,
        ),
        Route("GET", _S, Access.CLIENT, show_snapshot, "A snapshot"),
        Route("DELETE", _S, Access.CLIENT, delete_snapshot, "Delete a snapshot"),
    )
