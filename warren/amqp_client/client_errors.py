"""Why a connection or a channel of a client ended.

The text of each error names the peer, is meant for a person, and must not contain credentials.
"""

from __future__ import annotations

from typing import Self

from warren.amqp_client.redaction import redact


class BrokerError(Exception):
    """The broker is absent, refuses, breaks the protocol, or closed what was in use."""

    def fresh(self) -> Self:
        """Return the same error without a traceback.

        A connection keeps why it has ended. The frames of a traceback refer to the connection: with them it would be in
        a cycle, and stay in memory.
        """
        made = type(self).__new__(type(self), *self.args)
        made.__dict__.update(self.__dict__)
        return made


class PeerClosed(BrokerError):
    """The broker sent connection.close or channel.close; `scope` says which."""

    def __init__(self, where: str, scope: str, reply_code: int, reply_text: str) -> None:
        super().__init__(f"{where} closed the {scope}: {reply_code} {redact(reply_text)}")
        self.scope = scope
        self.reply_code = reply_code
        self.reply_text = reply_text


class Violation(Exception):
    """The peer broke the protocol; the text continues a sentence that begins with its name."""
