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

_LOSING: Final = frozenset({dict, list, float})


def fields_of(raw: bytes) -> dict[str, Any] | None:
    """Return the fields of a JSON object; None: it is JSON, but no object.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    found = msgspec.json.decode(raw)
    if not isinstance(found, dict):
        return None
    if _LOSING.isdisjoint(map(type, found.values())):
        return found
    losing = [name for name, value in found.items() if isinstance(value, dict | list) or _may_be_rounded(value)]
    if losing:
        texts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        for name in losing:
            found[name] = _kept(found[name], str(memoryview(texts[name]), "utf-8"))
    return found


def text_of(raw: bytes, field: str) -> str:
    """Return the text of the value that a field has in a body, which has it."""
    return str(memoryview(msgspec.json.decode(raw, type=dict[str, msgspec.Raw])[field]), "utf-8")


def _may_be_rounded(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _kept(value: Any, text: str) -> Any:
    if not isinstance(value, float):
        return JsonText(text)
    try:
        return value if Decimal(text) == value else Rounded(value)
    except ArithmeticError:  # an exponent that is beyond all bounds: nothing, but no zero
        return Rounded(value)
