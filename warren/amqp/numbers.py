"""The numbers that peers and administrators give, by kind: what is taken, and what one that is stored counts as.

    kind           taken                          counts as
    number         finite, at most 64 bits        itself
    whole number   64 bits                        the nearest of them
    seconds        a number                       0 to `SECONDS_MAX`
    milliseconds   a number                       0 to `TIME_MAX_MS`
    count          a number                       0, or what its owner says, to what its owner says

1. What is taken converts to a float, to 64 bits and to a deadline without an error. Whoever reads a number that was
   checked before, by this version or an earlier one, uses a conversion from here: none of them raises.
2. A number that may be of any size is shown by `number_text`.
"""

from __future__ import annotations

from typing import Final

LONG_MAX: Final = (1 << 63) - 1
TIME_MAX_MS: Final = 315_360_000_000  # ten years, RabbitMQ's limit
SECONDS_MAX: Final = TIME_MAX_MS // 1000


def is_number(value: object) -> bool:
    """Tell whether a value is a number that everybody can reckon with; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -LONG_MAX - 1 <= value <= LONG_MAX  # never of infinity, nor of what is no number


def is_long(value: object) -> bool:
    """Tell whether a value is a whole number of 64 bits; true and false are none."""
    # In this order: compiled, what has been found to be an int is one from then on, and true would be 1.
    return is_number(value) and isinstance(value, int)


def long_of(value: int) -> int:
    """Return the whole number of 64 bits that is nearest to `value`."""
    return max(-LONG_MAX - 1, min(LONG_MAX, value))


def number_text(value: object) -> str:
    """Write a number that a peer or an administrator has chosen.

    Compiled, `str` of an ``int`` beyond 62 bits, and an f-string with one, never let go of it (``CPyTagged_Str``,
    mypyc 2.4): whoever is refused for such numbers would fill the memory. Of an ``object`` they do.
    """
    return str(value)


def seconds_of(value: object, default: float) -> float:
    """Return how many seconds `value` says, `default` when it is no number."""
    return default if not _is_any(value) else float(_within(value, 0, SECONDS_MAX))


def milliseconds_of(value: object) -> int | None:
    """Return how many ms `value` says, None when it is no number."""
    return None if not _is_any(value) else int(_within(value, 0, TIME_MAX_MS))


def count_of(value: object, default: int, *, low: int = 0, high: int) -> int:
    """Return what `value` counts, `low` to `high`; `default` when it is no number."""
    return default if not _is_any(value) else int(_within(value, low, high))


def _is_any(value: object) -> bool:
    """Tell whether a value is a number of any size."""
    return not isinstance(value, bool) and isinstance(value, int | float) and value == value


def _within(value: object, low: int, high: int) -> int | float:
    assert isinstance(value, int | float)
    if value < low:
        return low
    return high if value > high else value
