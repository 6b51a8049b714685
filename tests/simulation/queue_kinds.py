"""The queues of the simulation that do more than first in, first out: their arguments, and what these come to on paper.

A queue's name says its kind; names that are not listed are plain. Dead letters go through the default exchange to the
queue named here, or nowhere if it does not exist.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from warren.amqp.field_table import encode_table


class Kind(NamedTuple):
    """The behaviour of a queue. -1, 0 and "" mean: not set.

    `retry_ms`: how long every returned message is held. `levels`: of priority. `parks`: messages that have reached the
    limit.
    """

    ttl_ms: int = -1
    max_length: int = -1
    refuses: bool = False
    letters_to: str = ""
    at_least_once: bool = False
    levels: int = 1
    delivery_limit: int = -1
    parks: bool = False
    retry_ms: int = 0

    @property
    def counts(self) -> bool:
        """Tell whether returned messages carry how often that was."""
        return self.at_least_once or self.delivery_limit >= 0 or self.retry_ms > 0

    def arguments(self) -> bytes:
        """Return the encoded arguments of its declaration."""
        table: dict[str, object] = {}
        if self.ttl_ms >= 0:
            table["x-message-ttl"] = self.ttl_ms
        if self.max_length >= 0:
            table["x-max-length"] = self.max_length
        if self.refuses:
            table["x-overflow"] = "reject-publish"
        if self.letters_to:
            table["x-dead-letter-exchange"] = ""
            table["x-dead-letter-routing-key"] = self.letters_to
        if self.at_least_once:
            table["x-queue-type"] = "quorum"
            table["x-dead-letter-strategy"] = "at-least-once"
        if self.levels > 1:
            table["x-max-priority"] = self.levels - 1
        if self.delivery_limit >= 0:
            table["x-delivery-limit"] = self.delivery_limit
        if self.parks:
            table["x-delivery-limit-action"] = "park"
        if self.retry_ms:
            table["x-delayed-retry-type"] = "all"
            table["x-delayed-retry-min"] = self.retry_ms
        return encode_table(table)


PLAIN: Final = Kind()
KINDS: Final[dict[str, Kind]] = {
    "e": Kind(ttl_ms=5000, letters_to="l"),
    "m": Kind(max_length=3, letters_to="l"),
    "long": Kind(max_length=70, letters_to="nobody"),
    "p": Kind(levels=3, letters_to="l"),
    # Rejected messages go round: q, a while in w, q.
    "q": Kind(delivery_limit=1, letters_to="w"),
    "w": Kind(ttl_ms=2000, letters_to="q"),
    "r": Kind(delivery_limit=1, parks=True, retry_ms=1000, letters_to="l"),
    "u": Kind(at_least_once=True, refuses=True, delivery_limit=20, letters_to="f"),
    "f": Kind(max_length=1, refuses=True),
}


def kind_of(name: str) -> Kind:
    """Return what the queue called `name` does."""
    return KINDS.get(name, PLAIN)
