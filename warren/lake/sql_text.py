"""The calls of `stream` and `lake` in a query, found without understanding the rest of it.

    query    = anything else | call
    call     = (STREAM | LAKE) ( [ argument (, argument)* ] )
    argument = literal | NAME (=> | :=) literal
    literal  = 'text' ('' for an apostrophe) | whole number | TRUE | FALSE

1. Words in texts, quoted names and comments are not calls, and neither are words after a dot.
2. A call is replaced by a quoted name that stands for its rows. Equal calls have the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from warren.spark_bridge.bridge_errors import UsageError

Value = str | int | bool

# Parts of SQL as DuckDB reads them; nested comments are cut at their first end, where nothing sensible follows.
_SKIPPED: Final = (
    r"""(?<!\w)E'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/"""
    r"""|(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?P=tag)|\.\s*[A-Za-z_]\w*"""
)
_CALL: Final = r"(?<![\w.])(?P<function>stream|lake)\s*\("
_NEXT: Final = re.compile(rf"(?P<skipped>{_SKIPPED})|(?P<call>{_CALL})", re.IGNORECASE | re.DOTALL)
_SPACE: Final = re.compile(r"(?:\s|--[^\n]*(?:\n|$))*")
_NAME: Final = re.compile(r"([A-Za-z_]\w*)\s*(?:=>|:=)")
_LITERAL: Final = re.compile(
    r"(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+)(?![\w.])|(?P<word>true|false)\b", re.IGNORECASE
)


class Call(NamedTuple):
    """The name of a call, and its arguments; those without a name have the names 0, 1, ..."""

    function: str
    arguments: tuple[tuple[str, Value], ...]

    def __str__(self) -> str:
        """Return it as it could stand in a query: plans and warnings use it as the name of its rows."""
        shown = [_sql(value) if name.isdigit() else f"{name} => {_sql(value)}" for name, value in self.arguments]
        return f"{self.function}({', '.join(shown)})"


def _sql(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


def replaced(query: str, name_of: Callable[[Call], str]) -> str:
    """Return `query` with the name that `name_of` gives to each call in the place of the call.

    Raises:
        UsageError: the arguments of a call are not literals.
    """
    made = []
    at = 0
    while (found := _NEXT.search(query, at)) is not None:
        made.append(query[at : found.start()])
        if found["call"] is None:
            made.append(found["skipped"])
            at = found.end()
            continue
        call, at = _call(query, found["function"].lower(), found.end())
        made.append('"' + name_of(call).replace('"', '""') + '"')
    return "".join([*made, query[at:]])


def _call(query: str, function: str, at: int) -> tuple[Call, int]:
    """Return the call whose arguments begin at `at`, and where it ends."""
    arguments: dict[str, Value] = {}
    at = _behind_space(query, at)
    while query[at : at + 1] != ")":
        if arguments:
            if query[at : at + 1] != ",":
                raise _unreadable(query, function, at)
            at = _behind_space(query, at + 1)
        named = _NAME.match(query, at)
        name = str(len(arguments)) if named is None else named[1].lower()
        at = at if named is None else _behind_space(query, named.end())
        literal = _LITERAL.match(query, at)
        if literal is None or name in arguments:
            raise _unreadable(query, function, at)
        arguments[name] = _value(literal)
        at = _behind_space(query, literal.end())
    return Call(function, tuple(arguments.items())), at + 1


def _value(literal: re.Match[str]) -> Value:
    if literal["text"] is not None:
        return literal["text"][1:-1].replace("''", "'")
    return literal["word"].lower() == "true" if literal["number"] is None else int(literal["number"])


def _behind_space(query: str, at: int) -> int:
    found = _SPACE.match(query, at)
    return at if found is None else found.end()


def _unreadable(query: str, function: str, at: int) -> UsageError:
    return UsageError(
        f"the arguments of {function}() are texts, whole numbers, true and false, as in "
        f"{function}('orders'); this is not: {query[at : at + 20] or 'the end'}"
    )
