"""Staged messages: parts that writers store, commits that publish them exactly once, and how operators see both.

1. It needs no tag: a user who may publish over AMQP may do so here, with the same permissions, when a part is stored
   and again when it is published.
2. A part has at most 32 MiB, the most that a request may have; it is in memory while it is checked and written.

Stages, and the promises of a commit, are described in ``server.staging.stages``.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

import msgspec

from warren.engine_view.permissions import WRITE
from warren.mgmt_plugin.http.json_bodies import ORDINARY, BodyLimits
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.server import BODY_BYTES_MAX, HttpError, Response
from warren.mgmt_plugin.listing import Described, in_order
from warren.mgmt_plugin.names import the_vhost, visible_vhost_names
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, not_found
from warren.server.staging.commit_notes import Note
from warren.server.staging.stage_files import DamagedPart
from warren.server.staging.staged_batch import (
    Conflict,
    MissingBatches,
    NoRoom,
    NoStage,
    NotOwner,
    Order,
    OtherBatch,
    QueueFull,
    StageError,
)
from warren.server.staging.staged_space import STAGES_QUOTA
from warren.server.staging.stages import Stage, Stages

PART_MAX: Final = 9_999_999_999
QUERY_BYTES_MAX: Final = 255
BATCH_MAX: Final = (1 << 63) - 1
KEPT_MAX_S: Final = 100 * 365 * 24 * 3600

# A batch may consist of all stages that a user may have.
COMMIT: Final = BodyLimits(4 << 20, STAGES_QUOTA.of_user + ORDINARY.values)

_STAGE: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_RESERVED: Final = frozenset({"commit", "commits", "replace"})
_REFUSALS: Final[dict[type[Exception], tuple[int, str]]] = {
    NoStage: (404, "no_stage"),
    NotOwner: (403, "access_refused"),
    Conflict: (409, "conflict"),
    MissingBatches: (409, "missing_batches"),
    OtherBatch: (409, "other_batch"),
    QueueFull: (409, "queue_full"),
    NoRoom: (503, "no_room"),
    DamagedPart: (500, "damaged_stage"),
}


class CommitOrder(msgspec.Struct, forbid_unknown_fields=True):
    """A batch of a query, and the stages that it consists of. `kept_s`: how long the commit is remembered, at least.

    `supersedes`: when it is published, stages whose names begin with this are no longer needed. `compare`: whether it
    is refused if a batch of its number was published with more messages, or fewer. `follows`: whether it is refused if
    no earlier batch of the query is known.
    """

    query: str
    batch: int
    stages: list[str]
    mandatory: bool = True
    kept_s: int | None = None
    supersedes: str | None = None
    compare: bool = False
    follows: bool = False


class ReplaceOrder(CommitOrder, kw_only=True):
    """A batch that replaces the waiting messages of the queue `purge`. A broker without this route does nothing."""

    purge: str


def _refused(error: Exception) -> HttpError:
    status, word = _REFUSALS[type(error)]
    return HttpError(status, word, str(error))


def _stage_name(call: Call) -> str:
    name = call.params["stage"]
    if _STAGE.fullmatch(name) is None or name in _RESERVED:
        reserved = ", ".join(sorted(_RESERVED))
        raise bad_request(f"the name of a stage has 1 to 100 letters, digits, - and _; reserved are {reserved}")
    return name


def _part(call: Call) -> int:
    try:
        part = integer(call.params["part"])
    except ValueError:
        part = -1
    if not 0 <= part <= PART_MAX:
        raise bad_request(f"a part is a number from 0 to {PART_MAX}")
    return part


def _describe(stage: Stage, now_ms: int) -> Described:
    return {
        "vhost": stage.vhost,
        "name": stage.name,
        "user": stage.user,
        "parts": len(stage.parts),
        "messages": stage.messages,
        "bytes": stage.size,
        "changed_at": stage.changed_ms,
        "age_s": max(0, now_ms - stage.changed_ms) // 1000,
        "needed_by": stage.needed_by,
    }


def _describe_commit(noted: tuple[str, Note]) -> Described:
    query, note = noted
    return {
        "query": query,
        "batch": note.batch,
        "user": note.user,
        "done": note.done,
        "messages": note.messages,
        "unroutable": note.unroutable,
        "at": note.at_ms,
        "until": note.until_ms,
    }


_S: Final = "/api/warren/stages"
_V: Final = f"{_S}/{{vhost}}"


class StageHandlers(Handlers):
    """Handlers of staged messages."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    async def put_part(self, call: Call) -> Response:
        name, part = _stage_name(call), _part(call)
        content = await call.request.read_body(BODY_BYTES_MAX)
        try:
            messages = await self._stages.put(
                call.params["vhost"],
                name,
                part,
                call.operator.name,
                content,
                lambda exchange: call.authorize(WRITE, "exchange", exchange),
            )
        except StageError as error:
            raise _refused(error) from None
        return Response(201, msgspec.json.encode({"messages": messages, "bytes": len(content)}))

    async def remove_stage(self, call: Call) -> None:
        user = None if call.operator.is_administrator else call.operator.name
        try:
            await self._stages.remove(call.params["vhost"], _stage_name(call), user)
        except StageError as error:
            raise _refused(error) from None

    async def commit(self, call: Call) -> Described:
        return await self._commit(call, await call.body(CommitOrder), None)

    async def replace(self, call: Call) -> Described:
        order = await call.body(ReplaceOrder)
        return await self._commit(call, order, order.purge)

    async def _commit(self, call: Call, order: CommitOrder, purged: str | None) -> Described:
        if not 0 < len(order.query.encode("utf-8", "replace")) <= QUERY_BYTES_MAX:
            raise bad_request(f"query must have 1 to {QUERY_BYTES_MAX} bytes")
        if not 0 <= order.batch <= BATCH_MAX:
            raise bad_request("batch must not be negative")
        if order.kept_s is not None and not 0 <= order.kept_s <= KEPT_MAX_S:
            raise bad_request(f"kept_s must be a number from 0 to {KEPT_MAX_S}")
        if order.supersedes is not None and _STAGE.fullmatch(order.supersedes) is None:
            raise bad_request("supersedes must be the beginning of a name of a stage")
        kept_ms = None if order.kept_s is None else order.kept_s * 1000
        wanted = Order(
            order.query,
            order.batch,
            order.stages,
            order.mandatory,
            kept_ms,
            order.compare,
            follows=order.follows,
            purged=purged,
        )
        try:
            outcome = await self._stages.commit(
                the_vhost(call), call.operator.name, wanted, supersedes=order.supersedes
            )
        except (StageError, DamagedPart) as error:
            raise _refused(error) from None
        if outcome.duplicate:
            return {"committed": False, "duplicate": True}
        return {"committed": outcome.committed, "messages": outcome.messages, "unroutable": outcome.unroutable}

    async def list_stages(self, call: Call) -> Rows:
        names = set(visible_vhost_names(call))
        user = None if call.operator.is_monitor else call.operator.name
        now_ms = self._stages.now_ms()
        return Rows(await self._stages.listed(names, user), lambda stage: _describe(stage, now_ms))

    async def list_commits(self, call: Call) -> Rows:
        notes = await self._stages.notes(the_vhost(call))
        return Rows(await in_order(list(notes.items()), lambda noted: noted[0]), _describe_commit)

    async def forget_commits(self, call: Call) -> None:
        try:
            if not await self._stages.forget(the_vhost(call), call.params["query"]):
                raise not_found()
        except StageError as error:
            raise _refused(error) from None

    ROUTES: ClassVar = (
        Route("GET", _S, Access.USER, list_stages, "Staged messages that are not committed, in all vhosts"),
        Route("GET", _V, Access.VHOST_VISIBLE, list_stages, "Staged messages of a vhost"),
        Route(
            "PUT",
            f"{_V}/{{stage}}/{{part}}",
            Access.CLIENT,
            put_part,
            "Store encoded publishes as a part of a stage; parts count from 0",
        ),
        Route("DELETE", f"{_V}/{{stage}}", Access.CLIENT, remove_stage, "Remove a stage that is not committed"),
        Route(
            "POST",
            f"{_V}/commit",
            Access.CLIENT,
            commit,
            "Publish the stages of a batch, once",
            CommitOrder,
            limits=COMMIT,
        ),
        Route(
            "POST",
            f"{_V}/replace",
            Access.CLIENT,
            replace,
            "Publish the stages of a batch in place of the messages of a queue, once",
            ReplaceOrder,
            limits=COMMIT,
        ),
        Route("GET", f"{_V}/commits", Access.VHOST, list_commits, "The last batch of each query"),
        Route(
            "DELETE", f"{_V}/commits/{{query}}", Access.POLICYMAKER, forget_commits, "Forget a query, finished or not"
        ),
    )
