"""Fields of bodies in JSON, in which nothing is lost that a decoder would lose without a word.

1. Objects and arrays are their text as the body has it (`kinds.JsonText`): with keys that are there twice, and with
   all digits of their numbers.
2. A number with a point or an exponent that as a double is an integer, and another number, is a `kinds.Rounded`.
3. Only bodies that have objects, arrays or such doubles are gone through twice.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec

from warren.lake.kinds import JsonText, Rounded

_RAW: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CONTAINERS: Final = frozenset({dict, list})
_LOSING: Final = _CONTAINERS | {float}


def fields_of(raw: bytes) -> dict[str, Any] | None:
    """Return the fields of a JSON object; None: it is JSON, but not an object.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    found = msgspec.json.decode(raw)
    if not isinstance(found, dict):
        return None
    if _LOSING.isdisjoint(map(type, found.values())):
        return found
    losing = None
    for name, value in found.items():
        kind = type(value)
        if value.is_integer() if kind is float else kind in _CONTAINERS:
            if losing is None:
                losing = []
            losing.append(name)
    if losing is not None:
        texts = _RAW.decode(raw)
        for name in losing:
            found[name] = _kept(found[name], bytes(texts[name]).decode())
    return found


def text_of(raw: bytes, field: str) -> str:
    """Return the text of the value that a field has in a body, which has it."""
    return bytes(_RAW.decode(raw)[field]).decode()


def _kept(value: Any, text: str) -> Any:
    if not isinstance(value, float):
        return JsonText(text)
    try:
        return value if Decimal(text) == value else Rounded(value)
    except ArithmeticError:  # an exponent beyond all bounds: the float is 0, the number is not
        return Rounded(value)
