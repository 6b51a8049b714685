"""The parts of a condition, which form a tree that ``selectors`` makes, and their values for a message.

1. A value is a number, a text, a binary, a boolean or unknown (None). It is unknown if the message does not have the
   property, or if it cannot be computed. A message never causes an error.
2. An unknown value makes comparisons and arithmetic unknown. AND, OR and NOT use three-valued logic. Values of
   different kinds are not equal and have no order. Texts and binaries are one kind: they are compared by their bytes.
3. An integer beyond 64 bits becomes a floating-point number, and a result that is not finite is unknown.
4. Values that a condition looks at are counted (``MessageView.steps``).
"""

from __future__ import annotations

import math
from typing import Final

from warren.amqp10.like_pattern import Pattern
from warren.amqp10.message_view import MessageView

INT_MAX: Final = (1 << 63) - 1
INT_MIN: Final = -(1 << 63)


# --- values -------------------------------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_bytes(value: object) -> bytes | None:
    """Return a text as it is encoded, and a binary as it is; None: it is neither."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return None


def same(left: object, right: object) -> bool:
    """Tell whether two values, neither of them unknown, are of one kind and equal."""
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if _is_number(left) and _is_number(right):
        return left == right
    mine = _as_bytes(left)
    return mine is not None and mine == _as_bytes(right)


def _order(left: object, right: object) -> int:
    """Return -1, 0 or 1 as `left` is before, at or after `right`; 2: they have no order."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(left, bool) or isinstance(right, bool):
            return 2
        if left < right:
            return -1
        if left > right:
            return 1
        return 0 if left == right else 2  # one of them is NaN
    if isinstance(left, str) and isinstance(right, str):
        if left < right:
            return -1
        return 1 if left > right else 0
    mine = _as_bytes(left)
    other = _as_bytes(right)
    if mine is None or other is None:
        return 2
    if mine < other:
        return -1
    return 1 if mine > other else 0


def _finite(value: float) -> object:
    return value if math.isfinite(value) else None


def _whole(value: int) -> object:
    return value if INT_MIN <= value <= INT_MAX else float(value)


def _computed_whole(sign: str, left: int, right: int) -> object:
    """Compute with whole numbers. Both have 64 bits at most, so the result has 128, and a `float` room for it."""
    if sign == "+":
        return _whole(left + right)
    if sign == "-":
        return _whole(left - right)
    if sign == "*":
        return _whole(left * right)
    if right == 0:
        return None
    if sign == "/":
        return left / right
    rest = abs(left) % abs(right)  # has the sign of the dividend
    return -rest if left < 0 else rest


def _computed(sign: str, left: float, right: float) -> object:
    if sign == "+":
        return _finite(left + right)
    if sign == "-":
        return _finite(left - right)
    if sign == "*":
        return _finite(left * right)
    if sign == "/" and right != 0:
        return _finite(left / right)
    return None  # a remainder is of whole numbers


# --- the tree -----------------------------------------------------------------------------------------------------


class Expression:
    """A part of a condition."""

    def value(self, view: MessageView) -> object:
        """Return its value for a message."""
        raise AssertionError("overridden")


class Literal(Expression):
    """A value that is the same for all messages."""

    def __init__(self, constant: object) -> None:
        self.constant = constant

    def value(self, view: MessageView) -> object:
        return self.constant


class Priority(Expression):
    """The field of the header."""

    def value(self, view: MessageView) -> object:
        return view.priority()


class Property(Expression):
    """A field of the properties: which of `PROPERTY_NAMES`."""

    def __init__(self, at: int) -> None:
        self.at = at

    def value(self, view: MessageView) -> object:
        return view.property(self.at)


class ApplicationProperty(Expression):
    """The property that the publisher has called `name`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def value(self, view: MessageView) -> object:
        return view.application_property(self._name)


class Now(Expression):
    """The time, in ms since the epoch."""

    def value(self, view: MessageView) -> object:
        return int(view.now_ms)


class Junction(Expression):
    """Conditions joined by AND or OR. The first one whose value is `decides` determines the result."""

    def __init__(self, parts: list[Expression], *, decides: bool) -> None:
        self._parts = parts
        self._decides = decides

    def value(self, view: MessageView) -> object:
        is_unknown = False
        for part in self._parts:
            view.steps += 1
            found = part.value(view)
            if not isinstance(found, bool):
                is_unknown = True
            elif found == self._decides:
                return found
        return None if is_unknown else not self._decides


class Not(Expression):
    """The opposite."""

    def __init__(self, part: Expression) -> None:
        self._part = part

    def value(self, view: MessageView) -> object:
        found = self._part.value(view)
        return not found if isinstance(found, bool) else None


class Comparison(Expression):
    """A comparison of two values."""

    def __init__(self, sign: str, left: Expression, right: Expression) -> None:
        self._sign = sign
        self._left = left
        self._right = right

    def value(self, view: MessageView) -> object:
        view.steps += 1
        left = self._left.value(view)
        right = self._right.value(view)
        if left is None or right is None:
            return None
        sign = self._sign
        if sign == "=":
            return same(left, right)
        if sign == "<>":
            return not same(left, right)
        order = _order(left, right)
        if order == 2:
            return False
        if sign == "<":
            return order < 0
        if sign == ">":
            return order > 0
        return order <= 0 if sign == "<=" else order >= 0


class Arithmetic(Expression):
    """A computation with two numbers."""

    def __init__(self, sign: str, left: Expression, right: Expression) -> None:
        self._sign = sign
        self._left = left
        self._right = right

    def value(self, view: MessageView) -> object:
        view.steps += 1
        left = self._left.value(view)
        right = self._right.value(view)
        if isinstance(left, bool) or isinstance(right, bool):
            return None
        if isinstance(left, int) and isinstance(right, int):
            return _computed_whole(self._sign, left, right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return _computed(self._sign, float(left), float(right))
        return None


class Sign(Expression):
    """A number with a sign: the number itself, or its negative."""

    def __init__(self, part: Expression, *, is_minus: bool) -> None:
        self._part = part
        self._is_minus = is_minus

    def value(self, view: MessageView) -> object:
        found = self._part.value(view)
        if isinstance(found, bool):
            return None
        if isinstance(found, int):
            return _whole(-int(found)) if self._is_minus else found
        if isinstance(found, float):
            return -found if self._is_minus else found
        return None


class In(Expression):
    """Whether a value is one of several."""

    def __init__(self, part: Expression, members: list[Expression]) -> None:
        self._part = part
        self._members = members

    def value(self, view: MessageView) -> object:
        found = self._part.value(view)
        if found is None:
            return None
        for member in self._members:
            view.steps += 1
            value = member.value(view)
            if value is not None and same(found, value):
                return True
        return False


class IsNull(Expression):
    """Whether a value is unknown."""

    def __init__(self, part: Expression) -> None:
        self._part = part

    def value(self, view: MessageView) -> object:
        return self._part.value(view) is None


class Like(Expression):
    """Whether a text is like a pattern."""

    def __init__(self, part: Expression, pattern: Pattern) -> None:
        self._part = part
        self._pattern = pattern

    def value(self, view: MessageView) -> object:
        found = self._part.value(view)
        if isinstance(found, bytes):
            try:
                found = found.decode()
            except UnicodeDecodeError:
                return None
        if not isinstance(found, str):
            return None
        if not view.spend(self._pattern.steps(len(found))):
            return None
        return self._pattern.matches(found)
