"""Enhanced authentication of MQTT 5: the exchange of client and broker until the client's identity is known.

    CONNECT, method and data      ->
                                  <-   AUTH 0x18, a challenge      as often as the method wants it
    AUTH 0x18, the answer         ->
                                  <-   CONNACK

    later, AUTH 0x19              ->                               to prove it again, without a new connection
                                  <-   AUTH 0x00

    method      data
    PLAIN       anything NUL user NUL password; the user may be VHOST:USER
    EXTERNAL    nothing: the user named by the certificate of the connection

Other methods are added to `METHODS`. A method yields a name and a password, which are verified like those of CONNECT,
or has verified the client itself.

Source: MQTT 5, section 4.12; RFC 4616 for PLAIN.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from warren.mqtt.packets import AUTH_DATA, AUTH_METHOD, Answer
from warren.mqtt.reason_codes import (
    BAD_LOGIN,
    BAD_METHOD,
    CONTINUE_LOGIN,
    LOGIN_AGAIN,
    PROTOCOL_ERROR,
    MqttError,
)

PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"


class ClaimedIdentity:
    """The identity that a client claims. `is_proven`: the method has verified it, without a password."""

    def __init__(self, user: str, password: bytes = b"", *, is_proven: bool = False) -> None:
        self.user = user
        self.password = password
        self.is_proven = is_proven


@mypyc_attr(allow_interpreted_subclasses=True)  # methods of others are not compiled
class LoginExchange:
    """One login by a method. `certificate_user`: the user named by the certificate of the connection, None without."""

    def __init__(self, certificate_user: str | None) -> None:
        self.certificate_user = certificate_user

    def step(self, data: bytes) -> ClaimedIdentity | bytes:
        """Take an answer of the client; return its identity, or a challenge.

        Raises:
            MqttError: the answer makes no sense.
        """
        raise MqttError(BAD_METHOD, "a method that takes no step")


class Plain(LoginExchange):
    """By user and password."""

    def step(self, data: bytes) -> ClaimedIdentity | bytes:
        parts = data.split(b"\0")
        if len(parts) != 3:
            raise MqttError(BAD_LOGIN, "PLAIN must be three texts separated by zero bytes")
        try:
            return ClaimedIdentity(parts[1].decode(), parts[2])
        except UnicodeDecodeError:
            raise MqttError(BAD_LOGIN, "the user of PLAIN is not UTF-8") from None


class External(LoginExchange):
    """By certificate."""

    def step(self, data: bytes) -> ClaimedIdentity | bytes:
        user = self.certificate_user
        if user is None:
            raise MqttError(BAD_LOGIN, "EXTERNAL needs a certificate that names a user")
        return ClaimedIdentity(user, is_proven=True)


METHODS: dict[str, type[LoginExchange]] = {PLAIN: Plain, EXTERNAL: External}


class EnhancedLogin:
    """The state of such a login. `is_again`: the client is logged in, and proves its identity again."""

    def __init__(self, method: str, certificate_user: str | None) -> None:
        self.method = method
        self.is_again: bool = False
        self.exchange: LoginExchange | None = METHODS[method](certificate_user)  # None when it is over

    def step(self, data: bytes) -> ClaimedIdentity | bytes:
        """Take data of the client; return its identity, which ends the exchange, or a challenge.

        Raises:
            MqttError: the data makes no sense.
        """
        exchange = self.exchange
        assert exchange is not None
        said = exchange.step(data)
        if not isinstance(said, bytes):
            self.exchange = None
        return said

    def take(self, answer: Answer, certificate_user: str | None, *, is_open: bool) -> ClaimedIdentity | bytes:
        """Take AUTH: an answer to a challenge or, of a client whose connection `is_open`, the beginning of a login.

        Raises:
            MqttError: it is neither, or of another method, or its data makes no sense.
        """
        if answer.properties.maybe_text(AUTH_METHOD) != self.method:
            raise MqttError(PROTOCOL_ERROR, "AUTH with a method other than that of CONNECT")
        if answer.reason == LOGIN_AGAIN and is_open and self.exchange is None:
            self.is_again = True
            self.exchange = METHODS[self.method](certificate_user)
        elif answer.reason != CONTINUE_LOGIN or self.exchange is None:
            raise MqttError(PROTOCOL_ERROR, f"AUTH with the reason {answer.reason:#04x} at this time")
        return self.step(answer.properties.maybe_binary(AUTH_DATA) or b"")
