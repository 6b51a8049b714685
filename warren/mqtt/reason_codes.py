"""Reason codes of MQTT 5 for errors, and their counterparts in the older versions.

A peer's error of any layer is an `AmqpError`. `reason_of` is the one table from its reply codes to ours; an error with
a reason of its own is an `MqttError`.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.errors import (
    ACCESS_REFUSED,
    CONNECTION_FORCED,
    FRAME_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    SYNTAX_ERROR,
    AmqpError,
    ConnectionException,
)
from warren.channels.login import ConnectionLimitReached

SUCCESS: Final = 0x00
NO_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION: Final = 0x11
CONTINUE_LOGIN: Final = 0x18  # of AUTH, like the next one
LOGIN_AGAIN: Final = 0x19
UNSPECIFIED: Final = 0x80
MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION: Final = 0x83
BAD_VERSION: Final = 0x84
BAD_CLIENT_ID: Final = 0x85
BAD_LOGIN: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_DOWN: Final = 0x8B
BAD_METHOD: Final = 0x8C
KEEP_ALIVE: Final = 0x8D
TAKEN_OVER: Final = 0x8E
BAD_FILTER: Final = 0x8F
BAD_TOPIC: Final = 0x90
UNKNOWN_PACKET_ID: Final = 0x92
RECEIVE_MAXIMUM: Final = 0x93
BAD_ALIAS: Final = 0x94
TOO_LARGE: Final = 0x95
QUOTA: Final = 0x97
ADMINISTRATIVE: Final = 0x98
FAILURE: Final = 0x80  # in SUBACK of 3.1.1

_REASONS: Final[dict[int, int]] = {
    ACCESS_REFUSED: NOT_AUTHORIZED,
    NOT_ALLOWED: NOT_AUTHORIZED,
    FRAME_ERROR: MALFORMED,
    SYNTAX_ERROR: PROTOCOL_ERROR,
    PRECONDITION_FAILED: QUOTA,
    RESOURCE_ERROR: QUOTA,
    CONNECTION_FORCED: ADMINISTRATIVE,
    INTERNAL_ERROR: UNSPECIFIED,
}
# For CONNACK in 3.1 and 3.1.1; 5, not authorized, is for all others.
_OLD: Final[dict[int, int]] = {BAD_VERSION: 1, BAD_CLIENT_ID: 2, SERVER_DOWN: 3, QUOTA: 3, BAD_LOGIN: 4}


class MqttError(ConnectionException):
    """A peer broke a rule, or asked for something impossible; `reason` is its code."""

    def __init__(self, reason: int, explanation: str) -> None:
        super().__init__(_REPLIES.get(reason, SYNTAX_ERROR), explanation)
        self.reason = reason


_REPLIES: Final[dict[int, int]] = {
    MALFORMED: FRAME_ERROR,
    TOO_LARGE: FRAME_ERROR,
    BAD_LOGIN: ACCESS_REFUSED,
    NOT_AUTHORIZED: ACCESS_REFUSED,
    QUOTA: RESOURCE_ERROR,
    TAKEN_OVER: CONNECTION_FORCED,
}


def reason_of(error: AmqpError) -> int:
    """Return the reason code for an error."""
    if isinstance(error, MqttError):
        return error.reason
    if isinstance(error, ConnectionLimitReached):
        return QUOTA
    return _REASONS.get(error.reply_code, UNSPECIFIED)


def return_code(reason: int) -> int:
    """Return the code of CONNACK in 3.1 and 3.1.1 for a reason."""
    return _OLD.get(reason, 5)
