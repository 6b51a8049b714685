"""Finds the exchanges, among many, in which something has happened since the last look (see ``queues.activity``)."""

from __future__ import annotations

from mypy_extensions import i64

from warren.exchanges.exchange import Exchange
from warren.queues.activity import MIX


def changed_exchanges(exchanges: list[Exchange]) -> list[Exchange]:
    """Return those in which a counter has changed since the last call, and new ones."""
    changed: list[Exchange] = []
    for exchange in exchanges:
        activity: i64 = exchange.published_in * MIX + exchange.spread
        if activity != exchange.seen_activity:
            exchange.seen_activity = activity
            changed.append(exchange)
    return changed
