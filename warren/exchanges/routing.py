"""The walk from the exchange of a publish to the queues that get the message.

1. A queue is found at most once, and an exchange visited at most once, whatever the graph of bindings looks like.
2. The order of the result follows from the bindings alone: the same bindings, made in the same order, give
   the same order.
3. The work grows with the number of different keys times the exchanges on the way, and with the number of bindings that
   match, each counted once. `Content.steps_left` bounds it.
4. The alternate of an exchange is asked only if the exchange has no match at all, not even another exchange, and does
   not take the message itself (`Content.acts`).

Source: rabbitmq.com "exchange to exchange bindings", "alternate exchanges".
"""

from __future__ import annotations

from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.exchanges.content import STEPS_MAX, Content
from warren.exchanges.exchange import Exchange
from warren.queues.destination import Destination


def route(
    exchange: Exchange,
    keys: list[str],
    content: Content,
    exchanges: dict[str, Exchange],
    found: list[Destination],
) -> None:
    """Append each queue that gets the message to `found`, which is empty before.

    `keys` is the routing key and then those of the CC and BCC headers. `exchanges` are those of the vhost by name, for
    alternates; missing alternates are skipped. `found` is incomplete when `content` has no steps left.
    """
    if len(keys) > 1:
        keys = list(dict.fromkeys(keys))
    matched: list[Destination] = []
    exchange.match_keys(keys, content, matched)
    if len(matched) == 1 and matched[0].is_queue and not matched[0].deleted:
        found.append(matched[0])
        return
    seen: set[Destination] = {exchange}
    visits: list[Exchange] = []
    visited = 0
    current = exchange
    while True:
        nowhere = True
        for destination in matched:
            if destination.deleted:
                continue
            nowhere = False
            if destination in seen:
                continue
            seen.add(destination)
            if isinstance(destination, Exchange):
                visits.append(destination)
            else:
                found.append(destination)
        if nowhere and current.alternate and not content.is_taken_by(current):
            alternate = exchanges.get(current.alternate)
            if alternate is not None and alternate not in seen:
                seen.add(alternate)
                visits.append(alternate)
        content.steps_left -= len(keys)
        if visited == len(visits) or content.steps_left < 0:
            return
        current = visits[visited]
        visited += 1
        matched.clear()
        current.match_keys(keys, content, matched)


def too_many_steps(exchange: str, vhost: str) -> ChannelException:
    """Return the refusal of a message whose routing was not completed."""
    return ChannelException(
        PRECONDITION_FAILED,
        f"routing a message of exchange '{exchange}' in vhost '{vhost}' takes more than {STEPS_MAX} steps: "
        "its keys, words or headers meet too many bindings",
    )


def is_cacheable_route(exchange: Exchange, exchanges: dict[str, Exchange], content: Content) -> bool:
    """Return whether the routing key alone decides the route, while no binding, queue or exchange changes.

    Looks at every exchange that can be reached over bindings and alternates, not at single bindings; each look is a
    step of `content`.
    """
    seen: set[Exchange] = {exchange}
    pending: list[Exchange] = [exchange]
    while pending:
        current = pending.pop()
        if not current.cacheable:
            return False
        reachable = list(current.downstream)
        if current.alternate:
            alternate = exchanges.get(current.alternate)
            if alternate is not None:
                reachable.append(alternate)
        content.steps_left -= len(reachable)
        for other in reachable:
            if other not in seen:
                seen.add(other)
                pending.append(other)
    return True
