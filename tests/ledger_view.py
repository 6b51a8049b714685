"""The contents of a `DeliveryLedger`, for tests: a broker never asks for all of it."""

from __future__ import annotations

from warren.queues.delivery import DeliveryLedger


def outstanding_tags(ledger: DeliveryLedger) -> list[int]:
    """Return the tags that wait for an answer, ascending."""
    return [*sorted(ledger._stragglers), *(int(entry.tag) for entry in ledger._entries if entry is not None)]
