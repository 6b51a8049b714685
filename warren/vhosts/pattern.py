"""Patterns of permissions and policies: RE2, searched for in names.

1. The time of a search is linear in the length of the name and in the `size` of the pattern, and the size is bounded. A
   search in the longest name takes about a millisecond. RE2 keeps at most `MEMORY_BYTES` in memory for each direction
   of a pattern. The caller pays the `steps` of a search.
2. ``""`` matches nothing, as in RabbitMQ's permissions.
3. ``^(?!A)B`` is the usual way to exclude names (``^(?!amq\\.).*``), but RE2 does not support it. It means: B matches
   from the start of the name, and A does not. Here two searches do this. Any other look-around is refused.
4. Patterns that an earlier version stored are kept, larger ones too.
"""

from __future__ import annotations

from typing import Any, Final

from mypy_extensions import i64

PATTERN_MAX_BYTES: Final = 1024
MEMORY_BYTES: Final = 64 << 10  # of an RE2, of which two thirds are for its program: 2,730 instructions
STORED_MEMORY_BYTES: Final = 8 << 20
SEARCH_STEPS: Final = 2
# An instruction takes up to 8 ns for each character of a name that differs from those that RE2 has seen before.
SIZE_PER_STEP_SHIFT: Final = 7
NOTHING: Final = ("", "^$")  # patterns of permissions that grant nothing: names of exchanges and queues are not empty


class Pattern:
    """A compiled pattern. ``size``: of its programs, in instructions. `stored`: an earlier version accepted it.

    `ignores_case`: a letter matches both cases.

    Raises:
        ValueError: not a regular expression of RE2, longer than `PATTERN_MAX_BYTES`, or too large when compiled.
    """

    def __init__(self, text: str, *, stored: bool = False, ignores_case: bool = False) -> None:
        if len(text.encode()) > PATTERN_MAX_BYTES and not stored:
            raise ValueError(f"pattern longer than {PATTERN_MAX_BYTES} bytes")
        self.text = text
        self._ignores_case = ignores_case
        self.size: i64 = 0
        self._compiled: Any = None
        self._excluded: list[Any] = []
        if text in NOTHING or text == ".*":
            return
        wanted = text
        while wanted.startswith("^(?!"):
            end = _end_of_group(wanted, 1)
            if end < 0 or wanted[end : end + 1] in ("*", "+", "?", "{") or _has_alternatives(wanted, end):
                break
            self._excluded.append(self._part(f"^(?:{wanted[4 : end - 1]})", stored))
            wanted = "^" + wanted[end:]
        self._compiled = self._part(wanted, stored)

    def _part(self, wanted: str, stored: bool) -> Any:
        part = _compile(wanted, self.text, STORED_MEMORY_BYTES if stored else MEMORY_BYTES, self._ignores_case)
        self.size += i64(part.programsize)
        return part

    def steps(self, name: str) -> i64:
        """Return how much work a search in `name` is, in steps of about a microsecond."""
        if self._compiled is None:
            return 0
        return SEARCH_STEPS * (1 + len(self._excluded)) + (self.size * len(name) >> SIZE_PER_STEP_SHIFT)

    def matches(self, name: str) -> bool:
        """Tell whether the pattern is found in `name`."""
        for excluded in self._excluded:
            if excluded.search(name) is not None:
                return False
        if self._compiled is not None:
            return self._compiled.search(name) is not None
        return self.text == ".*" or (self.text == "^$" and name == "")


def _compile(text: str, shown: str, memory_bytes: int, ignores_case: bool) -> Any:
    # Imported only when a pattern needs it: it takes 3 MB, and patterns for "everything" and "nothing" work without it.
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # otherwise RE2 searches each match a second time for its groups, ten times as slowly
    options.max_mem = memory_bytes
    options.case_sensitive = not ignores_case
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        because = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"pattern '{shown}': {because}") from None


def _end_of_group(text: str, start: int) -> int:
    """Return the place after the group that opens at `start`, or -1 when it does not end."""
    depth = 0
    at = start
    while at < len(text):
        character = text[at]
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                return at + 1
        at = _next_place(text, at)
    return -1


def _has_alternatives(text: str, start: int) -> bool:
    """Tell whether there is a ``|`` outside of groups from `start` on: only its first alternative would be excluded."""
    depth = 0
    at = start
    while at < len(text):
        character = text[at]
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "|" and depth == 0:
            return True
        at = _next_place(text, at)
    return False


def _next_place(text: str, at: int) -> int:
    """Return the place after the character, quoted text or character class at `at`."""
    if text[at] == "\\":
        if text[at : at + 2] == "\\Q":
            end = text.find("\\E", at)
            return len(text) if end < 0 else end + 2
        return at + 2
    if text[at] != "[":
        return at + 1
    at += 1
    if text[at : at + 1] == "^":
        at += 1
    if text[at : at + 1] == "]":
        at += 1  # a ] as the first character of a class does not end it
    while at < len(text) and text[at] != "]":
        if text[at] == "\\":
            at += 1
        elif text[at : at + 2] == "[:" and text.find(":]", at) > 0:
            at = text.find(":]", at) + 1
        at += 1
    return at + 1
