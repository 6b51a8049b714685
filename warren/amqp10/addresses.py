"""Addresses in the form of RabbitMQ 4 (its "v2"): targets and sources of messages.

    /queues/Q              target: the default exchange with the routing key Q; source: the queue
    /exchanges/X/KEY       target
    /exchanges/X           target, with an empty routing key
    /management            both ends of a link pair (``amqp10.management``)
    none                   target: each message has its own address in `to`, in one of the first three forms

Names are percent-encoded UTF-8.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp10.error_conditions import INVALID_FIELD, LinkError

MANAGEMENT: Final = "/management"
_QUEUES: Final = "/queues/"
_EXCHANGES: Final = "/exchanges/"
# RFC 3986, "unreserved".
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_HEX: Final = frozenset("0123456789abcdefABCDEF")


def quoted(name: str) -> str:
    """Return a name as it stands in an address."""
    return "".join(
        [chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode("utf-8", "surrogateescape")]
    )


def unquoted(segment: str) -> str:
    """Return the name that `segment` stands for.

    Raises:
        LinkError: it is not a valid segment.
    """
    if "%" in segment:
        parts = segment.split("%")
        raw = parts[0].encode()
        for part in parts[1:]:
            if len(part) < 2 or part[0] not in _HEX or part[1] not in _HEX:
                raise _invalid(segment, "a % without two hexadecimal digits")
            raw += bytes([int(part[:2], 16)]) + part[2:].encode()
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            raise _invalid(segment, "a name that is not UTF-8") from None
    else:
        name = segment
    if len(name.encode()) > NAME_MAX_BYTES:
        raise _invalid(segment, f"a name longer than {NAME_MAX_BYTES} bytes")
    return name


def target_of(address: str) -> tuple[str, str]:
    """Return the exchange and the routing key for messages to `address`.

    Raises:
        LinkError: the address is not a valid target.
    """
    if address.startswith(_QUEUES):
        return "", _one_name(address, address[len(_QUEUES) :])
    if address.startswith(_EXCHANGES):
        exchange, slash, key = address[len(_EXCHANGES) :].partition("/")
        if "/" in key:
            raise _invalid(address, "more than an exchange and a routing key: encode / as %2F")
        name = unquoted(exchange)
        if name == "":
            raise _invalid(address, "an exchange without a name: the default exchange is reached by /queues/")
        return name, unquoted(key) if slash else ""
    raise _invalid(address, "neither /queues/QUEUE nor /exchanges/EXCHANGE/KEY")


def source_of(address: str) -> str:
    """Return the queue for messages from `address`.

    Raises:
        LinkError: the address is not a valid source.
    """
    if address.startswith(_QUEUES):
        return _one_name(address, address[len(_QUEUES) :])
    raise _invalid(address, "a source is /queues/QUEUE")


def queue_address(queue: str) -> str:
    """Return the address of a queue."""
    return _QUEUES + quoted(queue)


def maybe_queue_of(address: str) -> str | None:
    """Return the queue that `address` names, None: it does not name a queue."""
    if not address.startswith(_QUEUES):
        return None
    try:
        return source_of(address)
    except LinkError:
        return None


def _one_name(address: str, segment: str) -> str:
    if "/" in segment:
        raise _invalid(address, "more than the name of a queue: encode / as %2F")
    name = unquoted(segment)
    if name == "":
        raise _invalid(address, "a queue without a name")
    return name


def _invalid(address: str, why: str) -> LinkError:
    return LinkError(INVALID_FIELD, f"invalid address {address[:128]!a}: {why}")
