"""The numbers that peers and administrators give: which values each kind accepts, and how a stored value counts.

    kind           taken                          counts as
    number         finite, at most 64 bits        itself
    whole number   64 bits                        the nearest of them
    seconds        a number                       0 to `SECONDS_MAX`
    milliseconds   a number                       0 to `TIME_MAX_MS`
    count          a number                       0, or what its owner says, to what its owner says

1. An accepted number converts to a float, to 64 bits and to a deadline without an error. To read a number that was
   checked before, by this version or an earlier one, use a conversion from here: these conversions do not raise.
2. A number that may be of any size is shown by `number_text`.
"""

from __future__ import annotations

from typing import Final

LONG_MAX: Final = (1 << 63) - 1
TIME_MAX_MS: Final = 315_360_000_000  # ten years, RabbitMQ's limit
SECONDS_MAX: Final = TIME_MAX_MS // 1000


def is_number(value: object) -> bool:
    """Tell whether a value is a number that all readers can compute with; true and false do not count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -LONG_MAX - 1 <= value <= LONG_MAX  # false for infinity and NaN


def is_long(value: object) -> bool:
    """Tell whether a value is a whole number of 64 bits; true and false do not count."""
    # In this order: compiled code keeps a value as an int once it was found to be one, and true would be 1.
    return is_number(value) and isinstance(value, int)


def long_of(value: int) -> int:
    """Return the whole number of 64 bits that is nearest to `value`."""
    return max(-LONG_MAX - 1, min(LONG_MAX, value))


def number_text(value: object) -> str:
    """Write a number that a peer or an administrator has chosen.

    Compiled, `str` of an ``int`` beyond 62 bits leaks memory, and so does an f-string (``CPyTagged_Str``, mypyc 2.4). A
    client could fill the memory with refused requests that contain such numbers. An ``object`` does not leak.
    """
    return str(value)


def seconds_of(value: object, default: float) -> float:
    """Return `value` in seconds, `default` when it is not a number."""
    return default if not _is_any(value) else float(_within(value, 0, SECONDS_MAX))


def milliseconds_of(value: object) -> int | None:
    """Return `value` in ms, None when it is not a number."""
    return None if not _is_any(value) else int(_within(value, 0, TIME_MAX_MS))


def count_of(value: object, default: int, *, low: int = 0, high: int) -> int:
    """Return `value` as a count from `low` to `high`; `default` when it is not a number."""
    return default if not _is_any(value) else int(_within(value, low, high))


def _is_any(value: object) -> bool:
    """Tell whether a value is a number of any size."""
    return not isinstance(value, bool) and isinstance(value, int | float) and value == value


def _within(value: object, low: int, high: int) -> int | float:
    assert isinstance(value, int | float)
    if value < low:
        return low
    return high if value > high else value
