"""Drains: opening and claiming for readers, which need no tag; and listing and changing drains for operators.

1. A user who may read a queue over AMQP may drain it, and read its claims. Permission to configure is not needed.
2. Releasing without an epoch, and discarding, is for operators: it takes the claims away from the open session.

Drains and their promises are described in ``server.draining.drains``.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from warren.amqp.codec import NAME_MAX_BYTES
from warren.engine_view.engine_view import EngineView
from warren.engine_view.permissions import READ
from warren.engine_view.refs import QueueRef
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import the_vhost, visible_vhost_names
from warren.mgmt_plugin.resources.ranges import check_path, described_lives, incarnation_of, life_of, split_id
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, not_authorised, not_found
from warren.server.draining.claim_verdicts import KINDS, REQUEUE
from warren.server.draining.drains import (
    Ahead,
    Before,
    Busy,
    Diverged,
    Drain,
    DrainError,
    Drains,
    Fenced,
    Listed,
    NoDeadLetters,
    NoDrain,
    NoQueue,
    NotClaimed,
    StillClaimed,
    TooMany,
)

OWNER_BYTES_MAX: Final = 1024
LEASE_MAX_S: Final = 30 * 24 * 3600
ROWS_MAX: Final = 1 << 40
BYTES_MAX: Final = 1 << 50
OFFSET_MAX: Final = (1 << 62) - 1
DELAY_MAX_MS: Final = 30 * 24 * 3600 * 1000
RETRY_AFTER_S: Final = 2
_REFUSALS: Final[dict[type[DrainError], tuple[int, str]]] = {
    Fenced: (409, "fenced"),
    Ahead: (409, "ahead"),
    Diverged: (409, "diverged"),
    StillClaimed: (409, "claimed"),
    NoDrain: (404, "no_drain"),
    NoQueue: (404, "no_queue"),
    NotClaimed: (409, "not_claimed"),
    NoDeadLetters: (409, "no_dead_letter_exchange"),
    TooMany: (400, "too_many"),
    Busy: (503, "busy"),
}


class Earlier(msgspec.Struct, forbid_unknown_fields=True):
    """The epoch of an earlier session, and the life of the broker that gave it."""

    epoch: int
    life: str


class Opening(msgspec.Struct, forbid_unknown_fields=True):
    """The owner of a session, in words for people, and the silence after which its claims go back; None: never.

    `before`: the last session with which the reader has drained the queue.
    """

    owner: str = ""
    lease_s: int | None = None
    before: Earlier | None = None


class Claiming(msgspec.Struct, forbid_unknown_fields=True):
    """The claims to acknowledge and to make: see `Drains.claim`. `life`: the life of the last claim below `after`."""

    epoch: int
    after: int
    max_rows: int
    max_bytes: int | None = None
    until: int | None = None
    life: str | None = None


class Epoch(msgspec.Struct, forbid_unknown_fields=True):
    """The epoch of a session."""

    epoch: int


class Settling(msgspec.Struct, forbid_unknown_fields=True):
    """How single claims are settled when they are acknowledged: ranges from one offset to another, and the way.

    `id`: of the claim queue, as for the data port. `delay_ms`: of requeue; None: the queue's own delay. `epoch` None:
    any.
    """

    id: str
    ranges: list[tuple[int, int]]
    how: str
    delay_ms: int | None = None
    epoch: int | None = None


class Failing(msgspec.Struct, forbid_unknown_fields=True):
    """The claims of a batch that its reader has failed with, and reads again."""

    epoch: int
    first: int
    end: int


class Releasing(msgspec.Struct, forbid_unknown_fields=True):
    """The epoch of a session; None: an operator releases the open session. `seen`: only if it has this epoch."""

    epoch: int | None = None
    seen: int | None = None


def _refused(error: DrainError) -> HttpError:
    status, word = _REFUSALS[type(error)]
    headers = (("Retry-After", str(RETRY_AFTER_S)),) if status == 503 else ()
    return HttpError(status, word, str(error), headers)


def _the_drain(call: Call) -> Drain:
    """Return the session of the path; the user may read its queue.

    Raises:
        HttpError: 400. ChannelException: 403.
    """
    queue, consumer = call.params["queue"], call.params["consumer"]
    if not consumer or not _fits(consumer, NAME_MAX_BYTES) or not consumer.isprintable():
        raise bad_request(f"the name of a consumer has 1 to {NAME_MAX_BYTES} bytes and no control characters")
    call.authorize(READ, "queue", queue)
    return Drain(the_vhost(call), queue, consumer)


def _fits(text: str, most_bytes: int) -> bool:
    try:
        return len(text.encode()) <= most_bytes
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold
        return False


def _check_operator(call: Call) -> None:
    if not call.operator.is_manager:
        raise not_authorised(Access.USER.value)


def describe(listed: Listed) -> Described:
    """Return a session as operators see it."""
    claims, note = listed.claims, listed.note
    return {
        "vhost": claims.vhost,
        "queue": claims.source,
        "name": claims.consumer,
        "claims": claims.name,
        "epoch": note.epoch,
        "owner": note.owner or None,
        "lease_s": note.lease_s,
        "claimed": claims.messages,
        "claimed_bytes": claims.bytes,
        "first": claims.first,
        "end": claims.end,
        "opened_at": note.opened_ms or None,
        "last_seen_at": listed.last_seen_ms,
        "queue_exists": claims.source_exists,
    }


_D: Final = "/api/warren/drains"
_S: Final = f"{_D}/{{vhost}}/{{queue}}/{{consumer}}"


class DrainHandlers(Handlers):
    """Handlers of drains."""

    def __init__(self, view: EngineView, drains: Drains) -> None:
        self._view = view
        self._drains = drains

    async def open_drain(self, call: Call) -> Described:
        order = await call.body(Opening)
        if not _fits(order.owner, OWNER_BYTES_MAX):
            raise bad_request(f"owner must be a string of at most {OWNER_BYTES_MAX} bytes")
        if order.lease_s is not None and not 1 <= order.lease_s <= LEASE_MAX_S:
            raise bad_request(f"lease_s must be a number from 1 to {LEASE_MAX_S}")
        earlier = order.before
        if earlier is not None and not 0 <= earlier.epoch <= OFFSET_MAX:
            raise bad_request("before: epoch must not be negative")
        before = None if earlier is None else Before(earlier.epoch, life_of(earlier.life))
        drain = _the_drain(call)
        queues = self._view.queues
        if queues.maybe(drain.vhost, drain.queue) is not None:
            if not self._view.claims.is_drainable(queues.shared(drain.vhost, drain.queue)):
                raise bad_request(
                    f"queue '{drain.queue}' cannot be drained: streams and claimed messages are read by offset"
                )
        elif queues.maybe(drain.vhost, drain.claims_name) is None:
            raise not_found(f"no queue '{drain.queue}' in vhost '{drain.vhost}'")
        try:
            opened = await self._drains.open(drain, order.owner, call.operator.name, order.lease_s, before)
        except DrainError as error:
            raise _refused(error) from None
        return {
            "epoch": opened.epoch,
            "queue": drain.claims_name,
            "id": incarnation_of(self._view, opened.claims),
            "first": opened.first,
            "end": opened.end,
            "acked": opened.acked,
            "life": opened.life_id.hex(),
            "lives": described_lives(self._view, opened.claims),
        }

    async def claim(self, call: Call) -> Described:
        order = await call.body(Claiming)
        drain = _the_drain(call)
        if not 0 <= order.after <= OFFSET_MAX:
            raise bad_request("after must be an offset")
        if not 1 <= order.max_rows <= ROWS_MAX:
            raise bad_request(f"max_rows must be a number from 1 to {ROWS_MAX}")
        if order.max_bytes is not None and not 1 <= order.max_bytes <= BYTES_MAX:
            raise bad_request(f"max_bytes must be a number from 1 to {BYTES_MAX}")
        if order.until is not None and order.until < 0:
            raise bad_request("until must be a mark")
        life_id = None if order.life is None else life_of(order.life)
        try:
            first, end = await self._drains.claim(
                drain, order.epoch, order.after, order.max_rows, order.max_bytes, order.until, life_id
            )
            life = self._view.offsets.life_at(self._drains.claims_of(drain), end)
        except DrainError as error:
            raise _refused(error) from None
        return {"first": first, "end": end, "life": life.hex()}

    async def mark(self, call: Call) -> Described:
        order = await call.body(Epoch)
        try:
            return {"mark": self._drains.mark(_the_drain(call), order.epoch)}
        except DrainError as error:
            raise _refused(error) from None

    async def settle(self, call: Call) -> Described:
        order = await call.body(Settling)
        drain = _the_drain(call)
        if order.how not in KINDS:
            raise bad_request(f"how must be one of {', '.join(KINDS)}")
        if order.delay_ms is not None and (order.how != REQUEUE or not 0 <= order.delay_ms <= DELAY_MAX_MS):
            raise bad_request(f"delay_ms is for requeue, a number from 0 to {DELAY_MAX_MS}")
        if not all(0 <= first < end <= OFFSET_MAX for first, end in order.ranges):
            raise bad_request("ranges must be pairs of offsets, the first smaller than the second")
        identifier, known = split_id(order.id)
        try:
            claims = self._drains.claims_of(drain)
            if identifier != incarnation_of(self._view, claims):
                raise HttpError(409, "another_queue", "the session was deleted and created again")
            check_path(self._view, claims, known, max((end for _, end in order.ranges), default=0))
            count = await self._drains.settle(drain, order.ranges, order.how, order.delay_ms, order.epoch)
            return {"settled": count}
        except DrainError as error:
            raise _refused(error) from None

    async def fail(self, call: Call) -> Described:
        order = await call.body(Failing)
        if not 0 <= order.first < order.end <= OFFSET_MAX:
            raise bad_request("first and end must be offsets, first the smaller one")
        try:
            failed = await self._drains.fail(_the_drain(call), order.epoch, order.first, order.end)
        except DrainError as error:
            raise _refused(error) from None
        return {"times": failed.times, "limit": failed.limit}

    async def release(self, call: Call) -> Described:
        order = await call.body(Releasing)
        drain = _the_drain(call)
        if order.epoch is None:
            _check_operator(call)
        try:
            return {"released": await self._drains.release(drain, order.epoch, order.seen)}
        except DrainError as error:
            raise _refused(error) from None

    async def list_drains(self, call: Call) -> Rows:
        view, drains = self._view, self._drains
        found: list[QueueRef] = []
        for vhost in visible_vhost_names(call):
            found += view.claims.in_order(vhost)
            await give_way()
        return Rows(found, lambda claims: describe(drains.listed(claims)), view.queues.is_gone)

    async def show_drain(self, call: Call) -> Described:
        try:
            return describe(await self._drains.look(_the_drain(call)))
        except DrainError as error:
            raise _refused(error) from None

    async def delete_drain(self, call: Call) -> None:
        drain = _the_drain(call)
        discards = call.flag("discard")
        if discards:
            _check_operator(call)
        try:
            epoch = integer(call.query["epoch"]) if "epoch" in call.query else None
        except ValueError:
            raise bad_request("epoch must be a number") from None
        try:
            await self._drains.delete(drain, call.operator.name, discard=discards, epoch=epoch)
        except DrainError as error:
            raise _refused(error) from None

    ROUTES: ClassVar = (
        Route("GET", _D, Access.USER, list_drains, "Drains in all vhosts"),
        Route("GET", f"{_D}/{{vhost}}", Access.VHOST_VISIBLE, list_drains, "Drains in a vhost"),
        Route("GET", _S, Access.CLIENT, show_drain, "A drain"),
        Route("POST", f"{_S}/open", Access.CLIENT, open_drain, "Open a drain, or take it over", Opening),
        Route("POST", f"{_S}/claim", Access.CLIENT, claim, "Acknowledge claims, and claim more", Claiming),
        Route(
            "POST",
            f"{_S}/settle",
            Access.CLIENT,
            settle,
            "Set the verdict on single claims for when they are acknowledged",
            Settling,
        ),
        Route("POST", f"{_S}/fail", Access.CLIENT, fail, "Count a failure with claims that are read again", Failing),
        Route("POST", f"{_S}/mark", Access.CLIENT, mark, "A mark of where the queue ends now", Epoch),
        Route("POST", f"{_S}/release", Access.CLIENT, release, "Release all claims", Releasing),
        Route("DELETE", _S, Access.CLIENT, delete_drain, "Forget a drain", query=("discard", "epoch")),
    )
