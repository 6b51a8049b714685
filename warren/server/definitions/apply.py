"""Carry out a plan: make its changes one after the other, with pauses.

1. Each change is stored as if a client had made it, so nobody else waits. After a crash the disk has the first changes
   of the plan, and importing it again does the rest. A start holds the journal meanwhile (`whole`), since nobody is
   there: then the disk has either all of the plan or nothing of it, but for a binding whose queue gets remembered
   messages first. That may wait for memory or the disk.
2. In memory the changes are made one after the other, with pauses, so clients may see a part of them for a moment. If
   something has changed since the planning, for instance because a client declared a queue in a pause, the step becomes
   a conflict; the rest is imported. After a fault of ours in the middle, the earlier steps stay.
3. Applying is not cancelled: the import finishes even when the client disconnects. Only the wait for such bindings is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

import trio

from warren.amqp.errors import AmqpError
from warren.channels.broker import Broker
from warren.exchanges.exchange import BindJob
from warren.queues.destination import Destination
from warren.server.definitions.plan import CONFLICT, Bind, DeclareExchange, DeclareQueue, ImportPlan, Step, make_plan
from warren.server.definitions.schema import Definitions, Pause
from warren.vhosts.topology_watcher import INTERNAL_USER

_SETTLE_EVERY: Final = 64
_BIND_POLL_S: Final = 0.01


class Importer:
    """Plans imports into one broker, and carries them out. `settle` lets the engine finish its turn."""

    def __init__(self, broker: Broker, settle: Callable[[], None]) -> None:
        self._broker = broker
        self._settle = settle

    async def plan(
        self, definitions: Definitions, pause: Pause, *, by: str, password: bytes, overwrite_own: bool
    ) -> ImportPlan:
        """Plan an import; see `make_plan`.

        Raises:
            DefinitionsRefused: something in it is not valid.
        """
        return await make_plan(self._broker, definitions, pause, by=by, password=password, overwrite_own=overwrite_own)

    async def apply(self, plan: ImportPlan, pause: Pause, by: str) -> int:
        """Do what `plan` says, as the user `by`; return the ticket to wait for."""
        return await apply_plan(self._broker, plan, pause, self._settle, by)


async def apply_plan(
    broker: Broker, plan: ImportPlan, pause: Pause, settle: Callable[[], None], by: str = "", *, whole: bool = False
) -> int:
    """Do what `plan` says, as the user `by` (``""``: the broker itself); return the ticket to wait for.

    `whole`: all of it is in one frame of the log, for which changes of others wait. `settle` lets the engine finish its
    turn. A step that has become impossible is a conflict in `plan` afterwards.
    """
    journal = broker.journal
    if whole:
        journal.hold()
    binds: list[BindJob] = []
    try:
        with trio.CancelScope(shield=True):
            for number, change in enumerate(plan.changes):
                if change.step is None:
                    continue
                try:
                    bind = _carry_out(broker, change.step, by or INTERNAL_USER)
                    if bind is not None and not bind.is_done:
                        binds.append(bind)
                except (AmqpError, ValueError) as error:
                    change.action = CONFLICT
                    change.detail = error.explanation if isinstance(error, AmqpError) else str(error)
                if number % _SETTLE_EVERY == 0:
                    settle()
                await pause()
    finally:
        if whole:
            journal.release()
        settle()
    for bind in binds:
        while not bind.is_done:
            await trio.sleep(_BIND_POLL_S)
    return journal.last_ticket


def _carry_out(broker: Broker, step: Step, by: str) -> BindJob | None:
    """Make one change, or begin the bind that is returned.

    Raises:
        AmqpError, ValueError: the change has become impossible.
    """
    if isinstance(step, DeclareExchange | DeclareQueue | Bind):
        vhost = broker.vhosts.get(step.vhost)
        if vhost is None:
            raise ValueError(f"vhost '{step.vhost}' does not exist")
        match step:
            case DeclareExchange():
                vhost.declare_exchange(step.declaration, by)
            case DeclareQueue():
                vhost.declare_queue(step.declaration, by=by)
            case Bind():
                destination: Destination = (
                    vhost.queue(step.destination, None)
                    if step.destination_type == "queue"
                    else vhost.exchange(step.destination)
                )
                source = vhost.exchange(step.source)
                bind = vhost.maybe_bind_job(source, destination, step.routing_key, step.arguments, by, _ignored)
                if bind is not None:
                    vhost.work.begin(bind)
                    return bind
                vhost.bind(source, destination, step.routing_key, step.arguments, by)
            case _:
                assert_never(step)
    else:
        broker.administer(step, by, planned=True)
    return None


def _ignored(ticket: int) -> None:
    """Ignore the ticket, which the journal has: `apply_plan` waits for the last ticket of all."""
