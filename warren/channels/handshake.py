"""What is said before a connection is open: who we claim to be, how credentials are read, which numbers are agreed on.

Nothing here has state; ``channels.connection`` says when each is due.
"""

from __future__ import annotations

from typing import Final

from warren import __version__
from warren.amqp import methods as m
from warren.amqp.errors import NOT_ALLOWED, SYNTAX_ERROR, ConnectionException
from warren.amqp.field_table import Table, decode_table, with_length

# Kombu, and so Celery, reads basic.qos after RabbitMQ's rules only from a product of this name; and what we promise is
# RabbitMQ's behaviour at this version. The server's own name and version stand in `platform` and `warren_version`.
COMPATIBLE_PRODUCT: Final = "RabbitMQ"
COMPATIBLE_VERSION: Final = "3.13.7"
CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
    "amq.control",
)


def start_method(external: bool, cluster_name: str) -> m.ConnectionStart:
    """Return connection.start; `external`: the peer has shown a certificate that names a user there is."""
    capabilities: Table = {}
    for capability in CAPABILITIES:
        capabilities[capability] = True
    properties: Table = {
        "capabilities": capabilities,
        "cluster_name": cluster_name,
        "copyright": "The Warren contributors",
        "information": "An AMQP 0-9-1 broker that behaves as RabbitMQ does",
        "platform": f"Warren {__version__}",
        "product": COMPATIBLE_PRODUCT,
        "version": COMPATIBLE_VERSION,
        "warren_version": __version__,
    }
    mechanisms = b"EXTERNAL PLAIN AMQPLAIN" if external else b"PLAIN AMQPLAIN"
    return m.ConnectionStart(0, 9, properties, mechanisms, b"en_US")


def what_came_instead(data: bytes) -> str:
    """Name, for the log, what a peer sent instead of a protocol header that we speak."""
    if data[:4] in (b"GET ", b"POST", b"HEAD", b"PUT "):
        return "an HTTP request on the AMQP port"
    if data[:1] == b"\x16":
        return "a TLS handshake on the AMQP port without TLS"
    return "bad protocol header"


def read_credentials(mechanism: str, response: bytes) -> tuple[str, bytes]:
    """Return user and password of a SASL response.

    Raises:
        ConnectionException: 502, the mechanism is unknown or the response malformed. The peer is not told.
    """
    if mechanism == "PLAIN":
        parts = response.split(b"\x00")
        if len(parts) != 3:
            raise ConnectionException(SYNTAX_ERROR, "a malformed PLAIN response")
        try:
            return parts[1].decode(), parts[2]
        except UnicodeDecodeError:
            raise ConnectionException(SYNTAX_ERROR, "a malformed PLAIN response") from None
    if mechanism == "AMQPLAIN":
        table = decode_table(with_length(response))
        user = table.get("LOGIN")
        password = table.get("PASSWORD")
        if isinstance(password, str):
            password = password.encode()
        if isinstance(user, str) and isinstance(password, bytes):
            return user, password
        raise ConnectionException(SYNTAX_ERROR, "AMQPLAIN auth info is missing LOGIN or PASSWORD")
    raise ConnectionException(SYNTAX_ERROR, f"unknown authentication mechanism '{mechanism}'")


def check_tuned(what: str, value: int, lowest: int, highest: int) -> None:
    """Check a number of tune-ok against what we offered: RabbitMQ validates, it does not take the smaller of both.

    Raises:
        ConnectionException: 530.
    """
    if value == 0:
        text = f"negotiated {what} = 0 (no limit) is higher than the maximum allowed value ({highest})"
        raise ConnectionException(NOT_ALLOWED, text)
    if value < lowest:
        text = f"negotiated {what} = {value} is lower than the minimum allowed value ({lowest})"
        raise ConnectionException(NOT_ALLOWED, text)
    if value > highest:
        text = f"negotiated {what} = {value} is higher than the maximum allowed value ({highest})"
        raise ConnectionException(NOT_ALLOWED, text)
