"""Which messages a consumer wants, of all that a stream or a queue has, as its protocol knows it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.message import Message

# So much of what is looked at costs as much as handing out a message: steps, and bytes of properties.
COST_UNIT: Final = 64


@mypyc_attr(allow_interpreted_subclasses=True)  # for tests
class Selection:
    """A condition. `cost`: how many messages could have been handed out in the time that the latest decision took."""

    def __init__(self) -> None:
        self.cost: i64 = 0

    def passes(self, message: Message, now_ms: i64) -> bool:
        """Tell whether `message` is wanted at the time `now_ms`."""
        raise AssertionError("overridden")
