"""The errors between a source and its table, in addition to those of a broker."""

from __future__ import annotations

from warren.spark_bridge.bridge_errors import BridgeError


class Conflict(BridgeError):
    """The table has changed since it was loaded: another writer has committed. Nothing of this commit was written."""


class Overtaken(BridgeError):
    """Another process follows the same source into the same table since; this one has to end."""


class NotOurs(BridgeError):
    """The table is there, and it is not one that follows this source."""


class EngineGone(BridgeError):
    """The engine that makes the rows for this process has ended, and does not restart by itself."""
