"""Error conditions: the errors of AMQP 1.0, and what each of them ends.

A peer's error of any layer is an `AmqpError`. `condition_of` is the one table from its reply codes to conditions. An
error that has a condition already is one of these:

* `LinkError`: the link is detached, the session stays.
* `SessionError`: the session is ended, the connection stays.
* `Amqp10Error`: the connection is closed.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.errors import (
    ACCESS_REFUSED,
    CONNECTION_FORCED,
    FRAME_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    RESOURCE_LOCKED,
    SYNTAX_ERROR,
    AmqpError,
    ChannelException,
    ConnectionException,
)

DECODE_ERROR: Final = "amqp:decode-error"
INVALID_FIELD: Final = "amqp:invalid-field"
ILLEGAL_STATE: Final = "amqp:illegal-state"
UNIMPLEMENTED: Final = "amqp:not-implemented"
FORBIDDEN: Final = "amqp:not-allowed"
MISSING: Final = "amqp:not-found"
LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
DELETED: Final = "amqp:resource-deleted"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
WINDOW_VIOLATION: Final = "amqp:session:window-violation"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
DETACH_FORCED: Final = "amqp:link:detach-forced"
TRANSFER_LIMIT: Final = "amqp:link:transfer-limit-exceeded"
MESSAGE_SIZE: Final = "amqp:link:message-size-exceeded"

_CONDITIONS: Final[dict[int, str]] = {
    ACCESS_REFUSED: "amqp:unauthorized-access",
    NOT_FOUND: MISSING,
    RESOURCE_LOCKED: "amqp:resource-locked",
    PRECONDITION_FAILED: "amqp:precondition-failed",
    FRAME_ERROR: FRAMING_ERROR,
    SYNTAX_ERROR: DECODE_ERROR,
    RESOURCE_ERROR: LIMIT_EXCEEDED,
    NOT_ALLOWED: FORBIDDEN,
    NOT_IMPLEMENTED: UNIMPLEMENTED,
    CONNECTION_FORCED: "amqp:connection:forced",
    INTERNAL_ERROR: "amqp:internal-error",
}
_REPLY_CODES: Final[dict[str, int]] = {
    **{condition: code for code, condition in _CONDITIONS.items()},
    TRANSFER_LIMIT: RESOURCE_ERROR,
    MESSAGE_SIZE: RESOURCE_ERROR,
    WINDOW_VIOLATION: RESOURCE_ERROR,
    DETACH_FORCED: CONNECTION_FORCED,
}


class Amqp10Error(ConnectionException):
    """The connection is closed with `condition`."""

    def __init__(self, condition: str, explanation: str) -> None:
        super().__init__(_REPLY_CODES.get(condition, SYNTAX_ERROR), explanation)
        self.condition = condition


class SessionError(ChannelException):
    """The session is ended with `condition`."""

    def __init__(self, condition: str, explanation: str) -> None:
        super().__init__(_REPLY_CODES.get(condition, SYNTAX_ERROR), explanation)
        self.condition = condition


class LinkError(ChannelException):
    """The link is detached with `condition`."""

    def __init__(self, condition: str, explanation: str) -> None:
        super().__init__(_REPLY_CODES.get(condition, SYNTAX_ERROR), explanation)
        self.condition = condition


def condition_of(error: AmqpError) -> str:
    """Return the condition for an error."""
    if isinstance(error, Amqp10Error | SessionError | LinkError):
        return error.condition
    return _CONDITIONS.get(error.reply_code, "amqp:internal-error")
