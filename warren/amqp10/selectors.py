"""SQL filters: a condition on a message, parsed when a receiver attaches, and decided for each message.

    condition    conjunction { OR conjunction }
    conjunction  negation { AND negation }
    negation     { NOT } comparison
    comparison   sum [ ( = | <> | != | < | > | <= | >= ) sum
                     | IS [ NOT ] NULL
                     | [ NOT ] IN ( sum { , sum } )
                     | [ NOT ] LIKE text [ ESCAPE text ] ]
    sum          product { ( + | - ) product }
    product      signed { ( * | / | % ) signed }
    signed       [ + | - ] primary
    primary      ( condition ) | number | text | binary | TRUE | FALSE | UTC() | identifier
    identifier   [ section . ] name, where a name is a word or [anything in brackets]

Sections are ``header`` or ``h``, of which there is the priority, ``properties`` or ``p``, and
``application_properties`` or ``a``, which is meant where there is none. Reserved words are in upper case.

1. A value is a number, a text, a binary, a boolean or unknown, which is None: what a message does not have, and what
   cannot be computed. Nothing that a message has makes an error. Only a condition that is true is met.
2. What is unknown stays so in comparisons and arithmetic; AND, OR and NOT have three values. Values of different kinds
   differ, and none is before the other; texts and binaries are of one kind, as they are encoded.
3. A condition has at most `LENGTH_MAX` characters, `TOKENS_MAX` words and signs, `PARTS_MAX` parts of patterns, and
   parentheses nested `DEPTH_MAX` deep: its tree takes some 60 kB at most, and what it costs for a message has a limit.
4. LIKE looks at each character of a text once, for one part of its pattern, and never goes back; what it looks at is
   counted (``MessageView.steps``).
5. A whole number that leaves 64 bits goes on as an approximate one, and what is not finite is unknown.

Source: AMQP Filter Expressions 1.0, committee draft 01, section 6; what of it there is: RabbitMQ, "Stream Filtering".
"""

from __future__ import annotations

import math
from typing import Final

from mypy_extensions import i64

from warren.amqp10.errors import INVALID_FIELD, LinkError
from warren.amqp10.message_view import CORRELATION_ID, MESSAGE_ID, PROPERTY_NAMES, MessageView

LENGTH_MAX: Final = 4096
TOKENS_MAX: Final = 200
DEPTH_MAX: Final = 32
# Between two % a pattern with _ has so many characters: as many as a word has bits to follow it with.
PART_MAX: Final = 60
PARTS_MAX: Final = 200
# `str.find` compares a text of up to so many characters anew at each place, so many of them in the time of one step.
FIND_MAX: Final = 128
FIND_STEP: Final = 64

_INT_MAX: Final = (1 << 63) - 1
_INT_MIN: Final = -(1 << 63)

# What a token is. A word is reserved, or an identifier.
_NUMBER: Final = "number"
_TEXT: Final = "text"
_BINARY: Final = "binary"
_NAME: Final = "name"
_WORD: Final = "word"
_SIGN: Final = "sign"
_END: Final = "end"
_RESERVED: Final = frozenset(("AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ESCAPE", "TRUE", "FALSE", "UTC"))
_SPACE: Final = frozenset(" \t\f\n\r")
_DIGITS: Final = frozenset("0123456789")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_FIRST: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_$")
_REST: Final = _FIRST | _DIGITS
_SIGNS: Final = frozenset("=<>+-*/%(),")
_LONG_SIGNS: Final = frozenset(("<>", "!=", "<=", ">="))
_HEADER: Final = frozenset(("header", "h"))
_PROPERTIES: Final = frozenset(("properties", "p"))
_APPLICATION: Final = frozenset(("", "application_properties", "a"))
_PROPERTY_PLACES: Final[dict[str, int]] = {name.replace("-", "_"): at for at, name in enumerate(PROPERTY_NAMES)}
_COMPARISONS: Final = frozenset(("=", "<>", "!=", "<", ">", "<=", ">="))


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
    """Return -1, 0 or 1 as `left` is before, at or behind `right`; 2: they have no order."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(left, bool) or isinstance(right, bool):
            return 2
        if left < right:
            return -1
        if left > right:
            return 1
        return 0 if left == right else 2  # one of them is no number
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
    return value if _INT_MIN <= value <= _INT_MAX else float(value)


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
    rest = abs(left) % abs(right)  # of the sign of what is divided
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
        """Return what it comes to for a message."""
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
    """What the publisher has called `name`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def value(self, view: MessageView) -> object:
        return view.application_property(self._name)


class Now(Expression):
    """The time, in ms since the epoch."""

    def value(self, view: MessageView) -> object:
        return int(view.now_ms)


class Junction(Expression):
    """Conditions joined by AND, or by OR: the first that `decides` is what it comes to."""

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
    """Two numbers made one."""

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
    """A number, or the negative one."""

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


# --- LIKE ---------------------------------------------------------------------------------------------------------


class Part:
    """What a pattern has between two ``%``: `text`, in which a character is any where `free` has a 1."""

    def __init__(self, text: str, free: str) -> None:
        self.size: i64 = len(text)
        self.has_any: bool = "1" in free
        self._text = text
        self._free = free if self.has_any else ""

    def is_at(self, text: str, at: int) -> bool:
        """Tell whether it is at a place of `text` that has room for it."""
        if not self.has_any:
            return text.startswith(self._text, at)
        for place, character in enumerate(self._text):
            if self._free[place] == "0" and text[at + place] != character:
                return False
        return True

    def find(self, text: str, start: int, end: int) -> int:
        """Return the first place between `start` and `end` that it is at, -1: there is none."""
        if end - start < self.size:
            return -1
        if not self.has_any:
            return text.find(self._text, start, end)
        # A bit for each place in it: those at which any character is good, and those at which one is.
        free = int(self._free[::-1], 2)
        good: dict[str, int] = {}
        for place, character in enumerate(self._text):
            good[character] = good.get(character, free) | 1 << place
        # The bits of the places that the text read so far may end at: one look at each character.
        places: i64 = 0
        last: i64 = i64(1) << (self.size - 1)
        for at in range(start, end):
            here: i64 = good.get(text[at], free)
            places = (places << 1 | 1) & here
            if places & last:
                return at - int(self.size) + 1
        return -1


class Pattern:
    """A pattern of LIKE, taken apart at each ``%``."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self.size: i64 = len(parts)
        self._own: i64 = 1
        self._weight: i64 = 0
        longest: i64 = 0
        for at, part in enumerate(parts):
            if part.has_any:
                self._own += part.size
            if 0 < at < len(parts) - 1:
                longest = max(longest, part.size)
                self._weight = 1 + min(longest, FIND_MAX) // FIND_STEP

    def steps(self, size: i64) -> i64:
        """Return what a text of `size` characters costs at most.

        Parts are looked for one behind the other: each character of the text is looked at for one of them.
        """
        return self._own + size * self._weight

    def matches(self, text: str) -> bool:
        """Tell whether `text` is like it."""
        parts = self._parts
        size = len(text)
        first = parts[0]
        if len(parts) == 1:
            return size == first.size and first.is_at(text, 0)
        last = parts[-1]
        begin = int(first.size)
        end = size - int(last.size)
        if begin > end or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        # The earliest place for each part leaves most room for those behind it: nothing has to be tried again.
        for part in parts[1:-1]:
            at = part.find(text, begin, end)
            if at < 0:
                return False
            begin = at + int(part.size)
        return True


def pattern_of(text: str, escape: str) -> Pattern:
    """Return a pattern. `escape`: what makes the character behind it one like any other, empty: nothing.

    Raises:
        LinkError: nothing is behind an escape, or a part of it is too long.
    """
    made: list[Part] = []
    part: list[str] = []
    free: list[str] = []
    is_escaped = False
    for character in text:
        if character == "%" and not is_escaped:
            if part or not made:
                made.append(Part("".join(part), "".join(free)))
                part = []
                free = []
            continue
        if character == escape and not is_escaped:
            is_escaped = True
            continue
        part.append(character)
        free.append("1" if character == "_" and not is_escaped else "0")
        is_escaped = False
    if is_escaped:
        raise _refused("nothing is behind the escape character at the end of a pattern")
    made.append(Part("".join(part), "".join(free)))
    if any(each.has_any and each.size > PART_MAX for each in made[1:-1]):
        raise _refused(f"a pattern with _ has more than {PART_MAX} characters between two %")
    return Pattern(made)


# --- parsing ------------------------------------------------------------------------------------------------------


class Selector:
    """A condition. `uses_time`: it may hold at one time, and not at another."""

    def __init__(self, root: Expression, *, uses_time: bool) -> None:
        self._root = root
        self.uses_time = uses_time

    def matches(self, view: MessageView) -> bool:
        """Tell whether a message meets it."""
        return self._root.value(view) is True and not view.is_exhausted


def selector_of(text: str) -> Selector:
    """Return the condition that `text` says.

    Raises:
        LinkError: it says none, or a too long one.
    """
    if len(text) > LENGTH_MAX:
        raise _refused(f"it has {len(text)} characters, and {LENGTH_MAX} are allowed")
    parser = _Parser(_tokens(text))
    root = parser.condition()
    parser.expect_end()
    return Selector(root, uses_time=parser.uses_time)


def _refused(why: str) -> LinkError:
    return LinkError(INVALID_FIELD, f"the SQL filter is invalid: {why}")


class _Token:
    def __init__(self, kind: str, text: str, at: int) -> None:
        self.kind = kind
        self.text = text
        self.at = at

    def shown(self) -> str:
        if self.kind == _END:
            return "the end"
        text = self.text if len(self.text) <= 40 else self.text[:40] + "…"
        return f"{text} at character {self.at + 1}"


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    pos = 0
    while pos < len(text):
        if text[pos] in _SPACE:
            pos += 1
            continue
        if len(found) == TOKENS_MAX:
            raise _refused(f"it has more than the {TOKENS_MAX} words and signs that are allowed")
        kind, end = _scan(text, pos)
        told = text[pos:end]
        if kind == _NAME and told in _RESERVED:
            kind = _WORD
        found.append(_Token(kind, told, pos))
        pos = end
    found.append(_Token(_END, "", pos))
    return found


def _scan(text: str, pos: int) -> tuple[str, int]:
    """Return what begins at `pos`, and where it ends."""
    first = text[pos]
    if first in ("'", '"'):
        end = text.find(first, pos + 1)
        while end >= 0 and text[end + 1 : end + 2] == first:
            end = text.find(first, end + 2)  # twice: one in the text
        if end < 0:
            raise _refused(f"the quote at character {pos + 1} is not closed")
        return _TEXT, end + 1
    if first in _FIRST or first == "[":
        return _NAME, _name_end(text, pos)
    if text[pos : pos + 2] in ("0x", "0X"):
        return _BINARY, _span(text, pos + 2, _HEX)
    if first in _DIGITS or (first == "." and text[pos + 1 : pos + 2] in _DIGITS):
        return _NUMBER, _number_end(text, pos)
    if text[pos : pos + 2] in _LONG_SIGNS:
        return _SIGN, pos + 2
    if first in _SIGNS:
        return _SIGN, pos + 1
    raise _refused(f"{first!r} at character {pos + 1} is not expected there")


def _span(text: str, pos: int, allowed: frozenset[str]) -> int:
    while pos < len(text) and text[pos] in allowed:
        pos += 1
    return pos


def _name_end(text: str, pos: int) -> int:
    if text[pos] != "[":
        pos = _span(text, pos, _REST)
        if text[pos : pos + 1] != ".":
            return pos
        pos += 1  # that was the section
        if text[pos : pos + 1] != "[":
            end = _span(text, pos, _REST)
            if end == pos or text[pos] in _DIGITS:
                raise _refused(f"a name is expected behind the dot at character {pos}")
            return end
    end = text.find("]", pos)
    if end < pos + 2:
        raise _refused(f"the bracket at character {pos + 1} is not closed, or there is nothing in it")
    return end + 1


def _number_end(text: str, pos: int) -> int:
    pos = _span(text, pos, _DIGITS)
    if text[pos : pos + 1] == ".":
        pos = _span(text, pos + 1, _DIGITS)
    if text[pos : pos + 1] in ("e", "E"):
        digits = pos + 2 if text[pos + 1 : pos + 2] in ("+", "-") else pos + 1
        end = _span(text, digits, _DIGITS)
        if end > digits:
            return end
    return pos


class _Parser:
    """Makes a tree of tokens, of which the last is the end."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.uses_time: bool = False
        self._tokens = tokens
        self._next: int = 0
        self._depth: int = 0
        self._parts: int = 0

    def expect_end(self) -> None:
        token = self._token()
        if token.kind != _END:
            raise self._unexpected("an operator or the end")

    def condition(self) -> Expression:
        parts = [self._conjunction()]
        while self._takes(_WORD, "OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Junction(parts, decides=True)

    def _conjunction(self) -> Expression:
        parts = [self._negation()]
        while self._takes(_WORD, "AND"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else Junction(parts, decides=False)

    def _negation(self) -> Expression:
        count = 0
        while self._takes(_WORD, "NOT"):
            count += 1
        found = self._comparison()
        while count > 0:
            found = Not(found)
            count -= 1
        return found

    def _comparison(self) -> Expression:
        left = self._sum()
        token = self._token()
        if token.kind == _SIGN and token.text in _COMPARISONS:
            self._next += 1
            sign = "<>" if token.text == "!=" else token.text
            right = self._sum()
            if sign in ("=", "<>"):
                return Comparison(sign, _as_identifier(left, right), _as_identifier(right, left))
            return Comparison(sign, left, right)
        if self._takes(_WORD, "IS"):
            is_not = self._takes(_WORD, "NOT")
            self._expect(_WORD, "NULL")
            return Not(IsNull(left)) if is_not else IsNull(left)
        is_not = self._takes(_WORD, "NOT")
        found: Expression
        if self._takes(_WORD, "IN"):
            found = self._membership(left)
        elif self._takes(_WORD, "LIKE"):
            found = self._likeness(left)
        elif is_not:
            raise self._unexpected("IN or LIKE")
        else:
            return left
        return Not(found) if is_not else found

    def _membership(self, left: Expression) -> Expression:
        self._expect(_SIGN, "(")
        members = [_as_identifier(self._sum(), left)]
        while self._takes(_SIGN, ","):
            members.append(_as_identifier(self._sum(), left))
        self._expect(_SIGN, ")")
        return In(left, members)

    def _likeness(self, left: Expression) -> Expression:
        pattern = self._text("a pattern")
        escape = ""
        if self._takes(_WORD, "ESCAPE"):
            escape = self._text("an escape character")
            if len(escape) != 1:
                raise _refused("an escape is one character")
        made = pattern_of(pattern, escape)
        self._parts += int(made.size)
        if self._parts > PARTS_MAX:
            raise _refused(f"patterns have more than {PARTS_MAX} parts, which % makes, in all")
        return Like(left, made)

    def _text(self, wanted: str) -> str:
        token = self._token()
        if token.kind != _TEXT:
            raise self._unexpected(f"{wanted} in quotes")
        self._next += 1
        return _unquoted(token.text)

    def _sum(self) -> Expression:
        found = self._product()
        while True:
            token = self._token()
            if token.kind != _SIGN or token.text not in ("+", "-"):
                return found
            self._next += 1
            found = Arithmetic(token.text, found, self._product())

    def _product(self) -> Expression:
        found = self._signed()
        while True:
            token = self._token()
            if token.kind != _SIGN or token.text not in ("*", "/", "%"):
                return found
            self._next += 1
            found = Arithmetic(token.text, found, self._signed())

    def _signed(self) -> Expression:
        if self._takes(_SIGN, "-"):
            return _negative(self._primary())
        if self._takes(_SIGN, "+"):
            return Sign(self._primary(), is_minus=False)
        return self._primary()

    def _primary(self) -> Expression:
        token = self._token()
        self._next += 1
        kind = token.kind
        if kind == _NAME:
            return _identifier(token)
        if kind == _TEXT:
            return Literal(_unquoted(token.text))
        if kind == _NUMBER:
            return Literal(_number(token))
        if kind == _BINARY:
            if len(token.text) % 2 or len(token.text) == 2:
                raise _refused(f"{token.shown()} has half a byte, or none")
            return Literal(bytes.fromhex(token.text[2:]))
        if kind == _SIGN and token.text == "(":
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise _refused(f"parentheses are nested deeper than {DEPTH_MAX}")
            found = self.condition()
            self._expect(_SIGN, ")")
            self._depth -= 1
            return found
        if kind == _WORD and token.text in ("TRUE", "FALSE"):
            return Literal(token.text == "TRUE")
        if kind == _WORD and token.text == "UTC":
            self._expect(_SIGN, "(")
            self._expect(_SIGN, ")")
            self.uses_time = True
            return Now()
        self._next -= 1
        raise self._unexpected("a value")

    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _takes(self, kind: str, text: str) -> bool:
        token = self._tokens[self._next]
        if token.kind != kind or token.text != text:
            return False
        self._next += 1
        return True

    def _expect(self, kind: str, text: str) -> None:
        if not self._takes(kind, text):
            raise self._unexpected(text)

    def _unexpected(self, wanted: str) -> LinkError:
        token = self._token()
        hint = " (reserved words are in upper case)" if token.text.upper() in _RESERVED and token.kind == _NAME else ""
        return _refused(f"{wanted} is expected in place of {token.shown()}{hint}")


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote + quote, quote)


def _number(token: _Token) -> object:
    text = token.text
    if text.isdigit():
        whole = int(text) if len(text) < 40 else _INT_MAX + 2
        # One more than the largest: behind a minus it is the smallest.
        if whole > _INT_MAX + 1:
            raise _refused(f"{token.shown()} has no room in 64 bits")
        return whole
    approximate = float(text)
    if not math.isfinite(approximate):
        raise _refused(f"{token.shown()} is too large")
    return approximate


def _negative(found: Expression) -> Expression:
    """Return the negative of `found`: of a number at once, so that it can be compared with an id."""
    if isinstance(found, Literal):
        constant = found.constant
        if isinstance(constant, int) and not isinstance(constant, bool):
            return Literal(-int(constant))
    return Sign(found, is_minus=True)


def _identifier(token: _Token) -> Expression:
    section, dot, name = token.text.partition(".")
    if token.text.startswith("[") or not dot:
        section, name = "", token.text
    if name.startswith("["):
        name = name[1:-1]
    if section in _APPLICATION:
        return ApplicationProperty(name)
    if section in _HEADER:
        if name == "priority":
            return Priority()
        raise _refused(f"of the header there is only the priority, in place of {token.shown()}")
    if section in _PROPERTIES:
        at = _PROPERTY_PLACES.get(name, -1)
        if at < 0:
            raise _refused(f"properties have no such field: {token.shown()}")
        return Property(at)
    raise _refused(
        f"sections are header, properties and application_properties, in place of {token.shown()};"
        " a name with a dot is written in brackets"
    )


def _as_identifier(found: Expression, other: Expression) -> Expression:
    """Return a whole number as the text that a message id or correlation id is kept as, if `other` is one of them."""
    if isinstance(other, Property) and other.at in (MESSAGE_ID, CORRELATION_ID) and isinstance(found, Literal):
        constant = found.constant
        if isinstance(constant, int) and not isinstance(constant, bool):
            return Literal(str(int(constant)))
    return found
