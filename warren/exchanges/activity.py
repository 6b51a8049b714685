"""Finds the exchanges, among many, whose counters have changed since the last look (see ``queues.activity``)."""

from __future__ import annotations

from mypy_extensions import i64

from warren.exchanges.exchange import Exchange
from warren.queues.activity import MIX


def changed_exchanges(exchanges: list[Exchange]) -> list[Exchange]:
    """Return the exchanges that are new, or have a counter that has changed since the last call."""
    changed: list[Exchange] = []
    for exchange in exchanges:
        activity: i64 = exchange.published_in * MIX + exchange.spread
        if activity != exchange.seen_activity:
            exchange.seen_activity = activity
            changed.append(exchange)
    return changed
