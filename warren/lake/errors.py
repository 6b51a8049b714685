"""What can go wrong between a source and its table, beside what can go wrong with a broker."""

from __future__ import annotations

from warren.spark_bridge.errors import BridgeError


class Conflict(BridgeError):
    """The table is not as it was loaded any more: somebody else has committed, and nothing of this was."""


class Overtaken(BridgeError):
    """Another process follows the same source into the same table since; this one has to end."""


class NotOurs(BridgeError):
    """The table is there, and it is not one that follows this source."""


class EngineGone(BridgeError):
    """Whoever makes the rows for this process is not there any more, and does not come back by itself."""
