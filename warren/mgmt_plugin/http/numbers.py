"""Integers that a peer writes as text, in paths, queries and forms.

1. An integer has ASCII digits only, with a minus sign or none, and fits into 64 bits: whatever is done with it can be
   done, and it can be shown.
"""

from __future__ import annotations

import re
from typing import Final

from warren.amqp.numbers import is_long

DIGITS_MAX: Final = 19
_INTEGER: Final = re.compile(rf"-?[0-9]{{1,{DIGITS_MAX}}}")


def integer(text: str) -> int:
    """Return the integer that a text stands for.

    Raises:
        ValueError: it is not an integer, or has more than 64 bits.
    """
    if _INTEGER.fullmatch(text) is None or not is_long(int(text)):
        raise ValueError("not an integer, or too large")
    return int(text)
