"""Limits of a vhost and of a user, set by an administrator.

    of a vhost   max-connections, max-queues
    of a user    max-connections, max-channels

1. 0 allows nothing. A negative number, or a missing limit, allows any number.
2. A limit applies from the next connection, channel or queue on; existing ones stay.
3. A limit has 64 bits. A larger one that an earlier version has stored counts as the nearest of 64 bits.

Source: RabbitMQ, "Virtual host limits" and "Per-user resource limits".
"""

from __future__ import annotations

from typing import Final

from warren.amqp.numbers import is_long, long_of
from warren.vhosts.definitions import erlang_pairs, erlang_term, is_integer, parse_definition

MAX_CONNECTIONS: Final = "max-connections"
MAX_QUEUES: Final = "max-queues"
MAX_CHANNELS: Final = "max-channels"
VHOST_LIMITS: Final = (MAX_CONNECTIONS, MAX_QUEUES)
USER_LIMITS: Final = (MAX_CONNECTIONS, MAX_CHANNELS)


def is_reached(limits: dict[str, int], key: str, count: int) -> bool:
    """Tell whether one more is refused when there are `count` of them."""
    limit = limits.get(key, -1)
    return 0 <= limit <= count


def parse_limits(definition: str, keys: tuple[str, ...], what: str, *, stored: bool = False) -> dict[str, int]:
    """Return the limits in `definition`, a JSON object with some of `keys`. `what` names it in texts.

    `stored`: it comes from the catalogue, see (3).

    Raises:
        ValueError: not an object, an unknown key, or a value that is not a whole number of 64 bits.
    """
    parsed = parse_definition(definition)
    unknown = {key: parsed[key] for key in parsed if key not in keys}
    errors: list[str] = []
    if unknown:
        errors.append(f"Unrecognised terms {erlang_pairs(unknown)} in {what}")
    limits: dict[str, int] = {}
    for key in keys:
        if key not in parsed:
            continue
        value = parsed[key]
        if is_long(value) or (stored and is_integer(value)):
            assert isinstance(value, int)
            limits[key] = long_of(value)
        else:
            errors.append(f"{key} should be a number, actually was {erlang_term(value)}")
    if errors:
        raise ValueError("\n".join(errors))
    return limits
