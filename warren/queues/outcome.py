"""The outcomes of a publish for one queue. If several queues get a message, the greatest outcome counts."""

from __future__ import annotations

from typing import Final

ACCEPTED: Final = 0
REPEATED: Final = 1  # dropped: it was accepted before
REFUSED: Final = 2  # the queue is full, or refuses publishes: the publisher gets a basic.nack
