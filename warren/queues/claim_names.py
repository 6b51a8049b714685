"""The names of claim queues, which hold the claims of a drain: ``amq.drain/<queue>/<consumer>``.

Clients cannot declare queues of such names, and policies do not apply to them. Slashes within the names are ``%2F``, so
that two drains never share a queue; a name that would be too long ends in a digest.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from warren.amqp.codec import NAME_MAX_BYTES

CLAIMS_PREFIX: Final = "amq.drain/"
_DIGEST_DIGITS: Final = 32


def claims_name(queue: str, consumer: str) -> str:
    """Return the name of the queue with the claims of `consumer` on `queue`."""
    name = CLAIMS_PREFIX + _quoted(queue) + "/" + _quoted(consumer)
    raw = name.encode()
    if len(raw) <= NAME_MAX_BYTES:
        return name
    digest = sha256(raw).hexdigest()[:_DIGEST_DIGITS]
    return raw[: NAME_MAX_BYTES - _DIGEST_DIGITS - 1].decode("utf-8", "ignore") + "~" + digest


def is_claims_name(name: str) -> bool:
    """Tell whether this is the name of a claim queue."""
    return name.startswith(CLAIMS_PREFIX)


def _quoted(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F").replace("~", "%7E")
