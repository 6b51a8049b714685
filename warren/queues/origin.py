"""Where a message comes from: this decides how the queue counts it, and what may keep it out."""

from __future__ import annotations

from typing import Final

CHANNEL: Final = 0  # published on a channel: counted as published, or as refused
BROKER: Final = 1  # released or remembered by an exchange, copied for an operator, an event: not from a channel
LETTER: Final = 2  # a dead letter: it may have been seen before
RELEASED: Final = 3  # held in this queue until now: it was accepted and counted when it came
PROMISED: Final = 4  # published on a channel with room reserved for its commit: counted as that, and accepted
