"""SQL filters: a condition on messages, parsed when a receiver attaches, and evaluated for each message.

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

Sections are ``header`` or ``h``, which has only the priority, ``properties`` or ``p``, and ``application_properties``
or ``a``, which is the default. Reserved words are in upper case.

1. A message matches only if the condition is true; for other results see ``expressions``.
2. A condition has at most `LENGTH_MAX` characters, `TOKENS_MAX` words and signs, `PARTS_MAX` parts of patterns, and
   parentheses nested `DEPTH_MAX` deep. So its tree takes some 60 kB at most, and its cost for a message is limited.

Source: AMQP Filter Expressions 1.0, committee draft 01, section 6; the supported part: RabbitMQ, "Stream Filtering".
"""

from __future__ import annotations

import math
from typing import Final

from warren.amqp10.error_conditions import LinkError
from warren.amqp10.expressions import (
    INT_MAX,
    ApplicationProperty,
    Arithmetic,
    Comparison,
    Expression,
    In,
    IsNull,
    Junction,
    Like,
    Literal,
    Not,
    Now,
    Priority,
    Property,
    Sign,
)
from warren.amqp10.like_pattern import invalid_condition, pattern_of
from warren.amqp10.message_view import PROPERTY_NAMES, MessageView

LENGTH_MAX: Final = 4096
TOKENS_MAX: Final = 200
DEPTH_MAX: Final = 32
PARTS_MAX: Final = 200

# The kinds of a token. A word is reserved, or an identifier.
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


class Selector:
    """A condition. `uses_time`: its result may depend on the time."""

    def __init__(self, root: Expression, *, uses_time: bool) -> None:
        self._root = root
        self.uses_time = uses_time

    def matches(self, view: MessageView) -> bool:
        """Tell whether a message meets it."""
        return self._root.value(view) is True and not view.is_exhausted


def selector_of(text: str) -> Selector:
    """Return the condition in `text`.

    Raises:
        LinkError: it is not a valid condition, or too long.
    """
    if len(text) > LENGTH_MAX:
        raise invalid_condition(f"it has {len(text)} characters (maximum {LENGTH_MAX})")
    parser = _Parser(_tokens(text))
    root = parser.condition()
    parser.expect_end()
    return Selector(root, uses_time=parser.uses_time)


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
            raise invalid_condition(f"it has more than {TOKENS_MAX} words and signs")
        kind, end = _scan(text, pos)
        told = text[pos:end]
        if kind == _NAME and told in _RESERVED:
            kind = _WORD
        found.append(_Token(kind, told, pos))
        pos = end
    found.append(_Token(_END, "", pos))
    return found


def _scan(text: str, pos: int) -> tuple[str, int]:
    """Return the token that begins at `pos`, and its end."""
    first = text[pos]
    if first in ("'", '"'):
        end = text.find(first, pos + 1)
        while end >= 0 and text[end + 1 : end + 2] == first:
            end = text.find(first, end + 2)  # a doubled quote is one in the text
        if end < 0:
            raise invalid_condition(f"the quote at character {pos + 1} is not closed")
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
    raise invalid_condition(f"{first!r} at character {pos + 1} is not expected")


def _span(text: str, pos: int, allowed: frozenset[str]) -> int:
    while pos < len(text) and text[pos] in allowed:
        pos += 1
    return pos


def _name_end(text: str, pos: int) -> int:
    if text[pos] != "[":
        pos = _span(text, pos, _REST)
        if text[pos : pos + 1] != ".":
            return pos
        pos += 1  # the name so far was the section
        if text[pos : pos + 1] != "[":
            end = _span(text, pos, _REST)
            if end == pos or text[pos] in _DIGITS:
                raise invalid_condition(f"a name is expected after the dot at character {pos}")
            return end
    end = text.find("]", pos)
    if end < pos + 2:
        raise invalid_condition(f"the bracket at character {pos + 1} is not closed, or is empty")
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
        members = [self._sum()]
        while self._takes(_SIGN, ","):
            members.append(self._sum())
        self._expect(_SIGN, ")")
        return In(left, members)

    def _likeness(self, left: Expression) -> Expression:
        pattern = self._text("a pattern")
        escape = ""
        if self._takes(_WORD, "ESCAPE"):
            escape = self._text("an escape character")
            if len(escape) != 1:
                raise invalid_condition("an escape is one character")
        made = pattern_of(pattern, escape)
        self._parts += int(made.size)
        if self._parts > PARTS_MAX:
            raise invalid_condition(f"patterns have more than {PARTS_MAX} parts (separated by %) in total")
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
                raise invalid_condition(f"{token.shown()} has half a byte, or none")
            return Literal(bytes.fromhex(token.text[2:]))
        if kind == _SIGN and token.text == "(":
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise invalid_condition(f"parentheses are nested deeper than {DEPTH_MAX}")
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
        return invalid_condition(f"{wanted} is expected in place of {token.shown()}{hint}")


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote + quote, quote)


def _number(token: _Token) -> object:
    text = token.text
    if text.isdigit():
        whole = int(text) if len(text) < 40 else INT_MAX + 2
        # One more than the largest number is allowed: after a minus it is the smallest.
        if whole > INT_MAX + 1:
            raise invalid_condition(f"{token.shown()} does not fit into 64 bits")
        return whole
    approximate = float(text)
    if not math.isfinite(approximate):
        raise invalid_condition(f"{token.shown()} is too large")
    return approximate


def _negative(found: Expression) -> Expression:
    """Return the negative of `found`. An integer constant stays a constant, so that it can be compared with an id."""
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
        raise invalid_condition(f"the header has only the field priority, not {token.shown()}")
    if section in _PROPERTIES:
        at = _PROPERTY_PLACES.get(name, -1)
        if at < 0:
            raise invalid_condition(f"unknown field of properties: {token.shown()}")
        return Property(at)
    raise invalid_condition(
        f"sections are header, properties and application_properties, in place of {token.shown()};"
        " a name with a dot is written in brackets"
    )
