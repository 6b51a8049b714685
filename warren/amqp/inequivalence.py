"""The refusal of a redeclaration that does not agree with what exists, or of a queue of another connection.

1. Integers are equal by value across their widths, and so are float, double and decimal; every other pair of
   types is equal only when type and value are.
2. Two values print bare; a value against an absent argument prints with its type, the absent one as ``none``.

Source: the ``inequivalent arg`` texts of RabbitMQ 3.10.8; clients and people search for them.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.errors import PRECONDITION_FAILED, RESOURCE_LOCKED, ChannelException
from warren.amqp.field_table import TYPE_NAMES, decode_table, find_tag
from warren.amqp.term_text import bare_text

_INTEGER_TAGS: Final = "bBsuIilL"
_FRACTION_TAGS: Final = "fdD"


def locked(name: str, vhost: str) -> ChannelException:
    """Return the refusal of a queue that belongs to another connection."""
    return ChannelException(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of "
        "the original declaration.",
    )


def check_text(kind: str, name: str, vhost: str, arg: str, received: str, current: str) -> None:
    """Refuse when `received` differs from `current`; `kind` is ``exchange`` or ``queue``.

    Raises:
        ChannelException: 406.
    """
    if received != current:
        raise _inequivalent(kind, name, vhost, arg, f"'{received}'", f"'{current}'")


def check_flag(kind: str, name: str, vhost: str, arg: str, received: bool, current: bool) -> None:
    """Refuse when `received` differs from `current`; `kind` is ``exchange`` or ``queue``.

    Raises:
        ChannelException: 406.
    """
    check_text(kind, name, vhost, arg, bare_text(received), bare_text(current))


def check_argument(kind: str, name: str, vhost: str, key: str, received: bytes, current: bytes) -> None:
    """Refuse when the argument `key` differs between two encoded tables, or only one has it.

    Raises:
        ChannelException: 406.
    """
    received_tag = find_tag(received, key)
    current_tag = find_tag(current, key)
    if not received_tag and not current_tag:
        return
    received_value = decode_table(received).get(key)
    current_value = decode_table(current).get(key)
    if not received_tag or not current_tag:
        raise _inequivalent(
            kind, name, vhost, key, _typed(received_tag, received_value), _typed(current_tag, current_value)
        )
    if _type_class(received_tag) != _type_class(current_tag) or received_value != current_value:
        raise _inequivalent(kind, name, vhost, key, _quoted(received_value), _quoted(current_value))


def _inequivalent(kind: str, name: str, vhost: str, arg: str, received: str, current: str) -> ChannelException:
    return ChannelException(
        PRECONDITION_FAILED,
        f"inequivalent arg '{arg}' for {kind} '{name}' in vhost '{vhost}': "
        f"received {received} but current is {current}",
    )


def _type_class(tag: str) -> str:
    if tag in _INTEGER_TAGS:
        return "integer"
    if tag in _FRACTION_TAGS:
        return "fraction"
    return tag


def _typed(tag: str, value: object) -> str:
    return f"the value '{bare_text(value)}' of type '{TYPE_NAMES[tag]}'" if tag else "none"


def _quoted(value: object) -> str:
    return "none" if value is None else f"'{bare_text(value)}'"
