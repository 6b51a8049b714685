"""The ways a peer can break a rule, with the reply code that answers each.

Raise anywhere in the engine; ``channels.connection`` is the one place that turns an `AmqpError` into a
``channel.close`` or ``connection.close``. The class decides the scope:

* `ChannelException` (soft): the channel is closed, the connection stays open.
* `ConnectionException` (hard): the connection is closed.

Source: AMQP 0-9-1 section 1.2 "reply codes"; texts as RabbitMQ sends them.
"""

from __future__ import annotations

from typing import Final

REPLY_SUCCESS: Final = 200
NO_ROUTE: Final = 312
CONNECTION_FORCED: Final = 320
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

REPLY_NAMES: Final[dict[int, str]] = {
    REPLY_SUCCESS: "REPLY_SUCCESS",
    NO_ROUTE: "NO_ROUTE",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

REPLY_TEXT_MAX_BYTES: Final = 255


def reply_text(reply_code: int, explanation: str) -> str:
    """Return ``NAME - explanation``, cut to what a short string holds without splitting a character.

    Bytes that a peer sent where UTF-8 was due (kept by ``surrogateescape``) become ``?``: clients decode this text.
    """
    encoded = f"{REPLY_NAMES[reply_code]} - {explanation}".encode("utf-8", "replace")
    if len(encoded) > REPLY_TEXT_MAX_BYTES:
        return encoded[: REPLY_TEXT_MAX_BYTES - 3].decode("utf-8", "ignore") + "..."
    return encoded.decode()


class AmqpError(Exception):
    """A peer broke a rule. Carries the reply code and the explanation without the code's name."""

    def __init__(self, reply_code: int, explanation: str) -> None:
        super().__init__(reply_code, explanation)
        self.reply_code = reply_code
        self.explanation = explanation

    @property
    def reply_text(self) -> str:
        """The text for the close method, at most 255 bytes of UTF-8."""
        return reply_text(self.reply_code, self.explanation)


class ChannelException(AmqpError):
    """Soft: close this channel, keep the connection."""


class ConnectionException(AmqpError):
    """Hard: close the connection."""
