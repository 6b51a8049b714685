"""Carries out a plan: the changes in memory piece by piece, their commit in one go.

1. While a plan is applied the journal is held: after a crash, before or in the middle of the commit, all of what was
   planned is on disk or none of it.
2. In memory the changes are made one after the other, with pauses, so clients may see a part of them for a moment.
   What has changed since it was planned, a queue that somebody declares in a pause for instance, becomes a conflict;
   the rest is imported. A fault of ours in the middle leaves, and commits, what was done before it.
3. Applying is not cancelled: who asked may go away, the import is finished.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

import trio

from warren.amqp.errors import AmqpError
from warren.channels.broker import Broker
from warren.exchanges.destination import Destination
from warren.server.definitions.plan import CONFLICT, Bind, DeclareExchange, DeclareQueue, Plan, Step
from warren.server.definitions.schema import Pause
from warren.vhosts.history import HistoryBind, maybe_history_bind
from warren.vhosts.topology_watcher import INTERNAL_USER

_SETTLE_EVERY: Final = 64


async def apply_plan(broker: Broker, plan: Plan, pause: Pause, settle: Callable[[], None], by: str = "") -> int:
    """Do what `plan` says, as the user `by` (``""``: the broker itself); return the ticket to wait for.

    What could not be done any more is a conflict in `plan` then. `settle` lets the engine finish its turn.
    """
    journal = broker.journal
    journal.hold()
    try:
        with trio.CancelScope(shield=True):
            for number, change in enumerate(plan.changes):
                if change.step is None:
                    continue
                try:
                    bind = _carry_out(broker, change.step, by or INTERNAL_USER)
                    while bind is not None and not bind.is_done:
                        settle()
                        await pause()
                except (AmqpError, ValueError) as error:
                    change.action = CONFLICT
                    change.detail = error.explanation if isinstance(error, AmqpError) else str(error)
                if number % _SETTLE_EVERY == 0:
                    settle()
                await pause()
    finally:
        journal.release()
        settle()
    return journal.last_ticket


def _carry_out(broker: Broker, step: Step, by: str) -> HistoryBind | None:
    """Make one change, or begin the bind that is returned.

    Raises:
        AmqpError, ValueError: it cannot be made any more.
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
                bind = maybe_history_bind(vhost, source, destination, step.routing_key, step.arguments, by, _ignored)
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
    """The journal has it: whoever carries the plan out waits for the last ticket of all."""
