"""The errors between a broker and the readers of its queues; each kind is a class.

1. Every error is made of its text and describes the problem by itself: it may be pickled, and shown on another machine.
2. `Unreachable` may succeed when it is repeated; the client has already repeated the call before it raises this.
"""

from __future__ import annotations


class BridgeError(Exception):
    """Something that this package reports; see the classes below it."""


class DamagedChunk(BridgeError):
    """Bytes that should be a chunk of messages and are not, or differ from the bytes that were written."""


class DamagedProperties(DamagedChunk):
    """Properties of a message that are not as AMQP says."""


class DataLoss(BridgeError):
    """Messages that should be read are not there."""


class UsageError(BridgeError, ValueError):
    """A request that cannot be carried out; nothing was tried."""


class BrokerError(BridgeError):
    """An answer of the broker that is an error. `status`: of HTTP, 0 without; `error`: its own word."""

    def __init__(self, reason: str, status: int = 0, error: str = "") -> None:
        super().__init__(reason, status, error)
        self.reason = reason
        self.status = status
        self.error = error

    def __str__(self) -> str:
        return self.reason


class Unreachable(BrokerError):
    """No connection, no answer in time, or an answer that a broker does not give."""


class NotAllowed(BrokerError):
    """Wrong credentials, or the user may not do this."""


class NotFound(BrokerError):
    """The queue, vhost or session does not exist, or this broker does not have the call."""


class NoSnapshot(NotFound):
    """The snapshot has expired, was deleted, or the broker has been restarted."""


class NoDrain(NotFound):
    """The session of a drain was deleted, or never opened."""


class Gone(BrokerError, DataLoss):
    """The requested offsets were removed by retention."""


class AnotherQueue(BrokerError, DataLoss):
    """The queue was deleted and created again: it has other messages under the same offsets."""


class Diverged(BrokerError, DataLoss):
    """The broker has another history than the one that was read: it was restored from a backup, or is a copy."""


class Ahead(BrokerError, DataLoss):
    """The broker knows less of a session than its reader does: its data are older, restored from a backup perhaps."""


class Fenced(BrokerError):
    """Somebody else has opened the session since."""


class Refused(BrokerError):
    """The broker does not accept the request as it is."""


class CorruptBody(BridgeError):
    """The body of a message does not fit its schema; the text gives the reason."""
