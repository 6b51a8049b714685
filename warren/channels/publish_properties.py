"""The requests to the broker in the properties of a publish: some are refused, some change the message or its route.

    expiration   ms in digits, at most 10 years; anything else is refused
    user_id      the name of the user, or any name for an impersonator; another one is refused
    CC, BCC      headers, arrays of further routing keys; consumers do not see those of BCC

Source: RabbitMQ, "Extensions", "Validated User-ID", "Sender-selected Distribution", "Time-to-Live".
"""

from __future__ import annotations

from typing import Final

from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TYPE_NAMES, decode_table, find_tag
from warren.amqp.numbers import number_text
from warren.amqp.properties import BasicProperties
from warren.channels.access import IMPERSONATOR, Principal

EXPIRATION_MAX_MS: Final = 315360000000


def check_properties(properties: BasicProperties, principal: Principal) -> None:
    """Make sure that `principal` may publish a message with these properties.

    Raises:
        ChannelException: 406.
    """
    expiration = properties.expiration
    if expiration is not None:
        reason = _expiration_error(expiration)
        if reason:
            raise ChannelException(PRECONDITION_FAILED, f"invalid expiration '{expiration}': {reason}")
    user_id = properties.user_id
    if user_id is not None and user_id != principal.user.name and IMPERSONATOR not in principal.user.tags:
        raise ChannelException(
            PRECONDITION_FAILED,
            f"user_id property set to '{user_id}' but authenticated user was '{principal.user.name}'",
        )


def _expiration_error(text: str) -> str:
    """Return why `text` is not an expiration in ms, or ``""``."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    count = 0
    while count < len(digits) and "0" <= digits[count] <= "9":
        count += 1
    if count == 0:
        return "no_integer"
    if count < len(digits):
        return f'{{leftover_string,"{digits[count:]}"}}'
    value = int(text)
    if value < 0:
        return f"{{value_negative,{number_text(value)}}}"
    if value > EXPIRATION_MAX_MS:
        return f"{{value_too_large,{number_text(value)}}}"
    return ""


def carbon_copies(headers: bytes) -> tuple[list[str], list[str]]:
    """Return the routing keys of CC and of BCC in an encoded headers table.

    Raises:
        ChannelException: 406, one of them is not an array.
    """
    table = decode_table(headers)
    return _keys_of(table, "CC", headers), _keys_of(table, "BCC", headers)


def _keys_of(table: dict[str, object], name: str, headers: bytes) -> list[str]:
    if name not in table:
        return []
    value = table[name]
    if not isinstance(value, list):
        tag = TYPE_NAMES[find_tag(headers, name)]
        raise ChannelException(PRECONDITION_FAILED, f'invalid message: {{unacceptable_type_in_header,"{name}",{tag}}}')
    return [key for key in value if isinstance(key, str)]
