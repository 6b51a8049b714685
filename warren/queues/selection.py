"""The messages that a consumer wants, out of a stream or a queue, in the terms of its protocol."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.message import Message

# Looking at this much costs as much as delivering a message: steps, and bytes of properties.
COST_UNIT: Final = 64


@mypyc_attr(allow_interpreted_subclasses=True)  # for tests
class Selection:
    """A condition. `cost`: how many messages could have been delivered in the time of the latest decision."""

    def __init__(self) -> None:
        self.cost: i64 = 0

    def passes(self, message: Message, now_ms: i64) -> bool:
        """Tell whether `message` is wanted at the time `now_ms`."""
        raise AssertionError("overridden")
