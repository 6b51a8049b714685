"""Conditions on rows, as they follow ``--where``: a small part of SQL, asked of whole batches.

    condition = and-condition (OR and-condition)*          and-condition = negation (AND negation)*
    negation  = NOT negation | ( condition ) | test
    test      = column [= | == | <> | != | < | <= | > | >=] value
              | column [NOT] LIKE 'pattern'                % any text, _ any character, \\ takes the meaning away
              | column [NOT] IN (value, ...)
              | column IS [NOT] NULL
              | column                                     one that is true or false
    value     = 'text' ('' for an apostrophe) | number | TRUE | FALSE

1. Nulls are SQL's: a comparison with one is neither true nor false, and a row stays only when the condition is true.
2. A text that is compared with a time is a time in ISO 8601, UTC when it names no zone. Headers cannot be tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.schema import arrow_type, column

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?)|(?P<word>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,))"
)
_COMPARISONS: Final = {
    "=": "equal",
    "==": "equal",
    "<>": "not_equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_KEYWORDS: Final = frozenset(("and", "or", "not", "like", "in", "is", "null", "true", "false"))
_NESTING_MAX: Final = 50

Test = Callable[[pa.RecordBatch], pa.Array]


class Condition(NamedTuple):
    """A condition that was read: which columns it asks, and the test itself."""

    columns: frozenset[str]
    test: Test

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `batch` for which it is true; `batch` has all of `columns`."""
        return batch.filter(self.test(batch))


def parse(text: str) -> Condition:
    """Read a condition.

    Raises:
        UsageError: it cannot be read; the reason says where.
    """
    return _Parser(text).whole()


class _Token(NamedTuple):
    kind: str  # text, number, word, sign or end
    value: str
    at: int


class _Parser:
    """One condition being read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._tokenized())
        self._next = 0
        self._columns: set[str] = set()
        self._depth = 0

    def _tokenized(self) -> Sequence[_Token]:
        tokens = []
        at = 0
        end = len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None:
                raise self._unreadable(at + len(self._text[at:]) - len(self._text[at:].lstrip()))
            kind = found.lastgroup
            assert kind is not None
            tokens.append(_Token(kind, found[kind], found.start(kind)))
            at = found.end()
        return [*tokens, _Token("end", "", end)]

    def _unreadable(self, at: int) -> UsageError:
        rest = self._text[at:].strip()
        return UsageError(f"condition: not understood: {rest[:40]!r}" if rest else "condition: it ends too early")

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _maybe(self, *values: str) -> str | None:
        """Step over one of these words or signs; None: something else comes."""
        token = self._peek()
        value = token.value.lower()
        if token.kind in ("word", "sign") and value in values:
            self._next += 1
            return value
        return None

    def _need(self, value: str) -> None:
        if self._maybe(value) is None:
            raise self._unreadable(self._peek().at)

    def whole(self) -> Condition:
        test = self._or()
        if self._peek().kind != "end":
            raise self._unreadable(self._peek().at)
        return Condition(frozenset(self._columns), test)

    def _or(self) -> Test:
        tests = [self._and()]
        while self._maybe("or"):
            tests.append(self._and())
        return _joined("or_kleene", tests)

    def _and(self) -> Test:
        tests = [self._negation()]
        while self._maybe("and"):
            tests.append(self._negation())
        return _joined("and_kleene", tests)

    def _negation(self) -> Test:
        self._depth += 1
        if self._depth > _NESTING_MAX:
            raise UsageError(f"condition: nested deeper than {_NESTING_MAX}")
        if self._maybe("not"):
            test = _not(self._negation())
        elif self._maybe("("):
            test = self._or()
            self._need(")")
        else:
            test = self._test()
        self._depth -= 1
        return test

    def _test(self) -> Test:
        token = self._peek()
        if token.kind != "word" or token.value.lower() in _KEYWORDS:
            raise self._unreadable(token.at)
        self._next += 1
        name = token.value.lower()
        try:
            kind = arrow_type(column(name).name)
        except ValueError as error:
            raise UsageError(f"condition: {error}") from None
        if pa.types.is_map(kind):
            raise UsageError("condition: headers cannot be compared: use --engine spark and --sql")
        self._columns.add(name)
        sign = self._maybe(*_COMPARISONS)
        if sign is not None:
            return _called(_COMPARISONS[sign], name, self._value(name, kind))
        if self._maybe("is"):
            is_not = self._maybe("not") is not None
            self._need("null")
            return _called("is_valid" if is_not else "is_null", name)
        is_not = self._maybe("not") is not None
        test: Test | None = None
        if self._maybe("like"):
            pattern = self._peek()
            if pattern.kind != "text" or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
                raise self._unreadable(pattern.at)
            self._next += 1
            test = _like(name, _text(pattern))
        elif self._maybe("in"):
            self._need("(")
            values = [self._value(name, kind)]
            while self._maybe(","):
                values.append(self._value(name, kind))
            self._need(")")
            test = _is_in(name, pa.array([value.as_py() for value in values], values[0].type))
        elif not is_not and pa.types.is_boolean(kind):
            test = _called("equal", name, pa.scalar(True))
        if test is None:
            raise self._unreadable(self._peek().at)
        return _not(test) if is_not else test

    def _value(self, name: str, kind: pa.DataType) -> pa.Scalar:
        """Step over a value and return it in the form that it is compared in."""
        token = self._peek()
        self._next += 1
        value: Any = None
        try:
            if token.kind == "text":
                value = _text(token)
                if pa.types.is_timestamp(kind):
                    value = datetime.fromisoformat(value)
                    value = value.replace(tzinfo=UTC) if value.tzinfo is None else value
                elif pa.types.is_binary(kind):
                    value = value.encode()
                elif not pa.types.is_string(kind):
                    raise ValueError
            elif token.kind == "number" and pa.types.is_integer(kind):
                value = int(token.value)
                kind = pa.int64()
            elif token.kind == "word" and token.value.lower() in ("true", "false") and pa.types.is_boolean(kind):
                value = token.value.lower() == "true"
            else:
                raise ValueError
            return pa.scalar(value, kind)
        except (ValueError, OverflowError, pa.ArrowException):
            if token.kind == "end":
                raise self._unreadable(token.at) from None
            raise UsageError(f"condition: {name} cannot be compared with {token.value}") from None


def _text(token: _Token) -> str:
    return token.value[1:-1].replace("''", "'")


def _joined(function: str, tests: Sequence[Test]) -> Test:
    """Return one test for all of them, however many; not one within the other, which Python would not go down to."""
    if len(tests) == 1:
        return tests[0]

    def test(batch: pa.RecordBatch) -> pa.Array:
        found = tests[0](batch)
        for each in tests[1:]:
            found = pc.call_function(function, [found, each(batch)])
        return found

    return test


def _not(test: Test) -> Test:
    return lambda batch: pc.invert(test(batch))


def _called(function: str, name: str, *values: pa.Scalar) -> Test:
    return lambda batch: pc.call_function(function, [batch.column(name), *values])


def _like(name: str, pattern: str) -> Test:
    return lambda batch: pc.match_like(batch.column(name), pattern)


def _is_in(name: str, values: pa.Array) -> Test:
    def test(batch: pa.RecordBatch) -> pa.Array:
        asked = batch.column(name)
        found = pc.is_in(asked.cast(values.type), values)
        return pc.if_else(asked.is_valid(), found, pa.scalar(None, pa.bool_()))

    return test
