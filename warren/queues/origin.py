"""Where a message that comes to a queue is from: how it is counted there, and what may keep it out."""

from __future__ import annotations

from typing import Final

CHANNEL: Final = 0  # published on a channel: counted as published, or as refused
BROKER: Final = 1  # released or remembered by an exchange, copied for an operator, an event: no channel published it
LETTER: Final = 2  # a dead letter: it may be one that was seen before
RELEASED: Final = 3  # held in this queue until now: it was let in, and counted, when it came
PROMISED: Final = 4  # published on a channel whose commit was promised room: counted as that, and let in
