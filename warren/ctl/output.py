"""What reaches standard output: rows and records in the format that was asked for.

1. ``table`` is for eyes on a terminal and tab-separated lines otherwise, as scripts around rabbitmqctl expect;
   rich is imported only to draw on a terminal, or for ``pretty_table``.
2. Text formats never pass on control characters of names and payloads: a tab or an escape sequence is shown as such.
   Only CSV, which has quotes for them, keeps tabs and newlines. Format characters of Unicode are like them: those turn
   a line around, or hide a part of it.
3. JSON keeps the values as the API gave them, one row a line; all control characters are escaped, and what the
   encoding of the stream may not have.
4. Standard output says what a command did, unless ``--quiet`` or a machine-readable format is on.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, islice, zip_longest
from typing import Any, Final, TextIO
from unicodedata import category

# Beyond so many rows columns are aligned without rich, which takes a millisecond for each few.
_MANY_ROWS: Final = 1000
_NO_WIDTH: Final = 1_000_000
_UNSAFE: Final = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))  # kinds of characters
# What may be one of them.
_IN_TEXT: Final = re.compile(r"[^ -~]")
_IN_CSV: Final = re.compile(r"[^\t\n -~]")
_IN_JSON: Final = re.compile(r"[^\x00-~]")


class Format(StrEnum):
    """The formats of ``--formatter``."""

    TABLE = "table"
    PRETTY_TABLE = "pretty_table"
    JSON = "json"
    CSV = "csv"
    TSV = "tsv"


class Output:
    """Writes answers to `stream` in one format."""

    def __init__(
        self,
        form: Format = Format.TABLE,
        *,
        quiet: bool = False,
        headers: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._ascii = (self._stream.encoding or "utf-8").lower().replace("_", "-") not in ("utf-8", "utf8")
        self._asked = form
        self.form = Format.TSV if form is Format.TABLE and not self._terminal else form
        self.is_json = form is Format.JSON
        self.talks = not quiet and form in (Format.TABLE, Format.PRETTY_TABLE)
        self._headers = headers

    def say(self, text: str) -> None:
        """Report what was done."""
        if self.talks:
            self._write(shown(text) + "\n")

    def heading(self, text: str) -> None:
        """Print a line above what follows, for people and for those who read text."""
        self._write(f"\n{shown(text)}\n")

    def result(self, text: str) -> None:
        """Print the answer itself, also when quiet; in JSON a string."""
        self._write((self._json(text) if self.is_json else shown(text)) + "\n")

    def document(self, value: object) -> None:
        """Print a JSON document."""
        self._write(self._json(value, indent=2) + "\n")

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print rows of as many values as there are `columns`.

        Nothing is printed before the first row is there: fetching it may fail.
        """
        rows = _begun(rows)
        if self.form is Format.JSON:
            self._json_rows(columns, rows)
        elif self.form is Format.CSV:
            writer = csv.writer(self._stream, lineterminator="\n")
            if self._headers:
                writer.writerow(columns)
            writer.writerows([_IN_CSV.sub(_escaped, cell(value)) for value in row] for row in rows)
        elif self.form is Format.TSV:
            if self._headers:
                self._write("\t".join(columns) + "\n")
            for row in rows:
                self._write("\t".join(shown(cell(value)) for value in row) + "\n")
        else:
            self._draw(columns, list(rows))

    def record(self, title: str, values: Mapping[str, object]) -> None:
        """Print one thing as lines of name and value below a `title`, which is left out where machines read."""
        if self.form is Format.JSON:
            self.document(values)
            return
        lines = [[name, cell(value)] for name, value in values.items()]
        if self._asked in (Format.CSV, Format.TSV):
            Output(self._asked, headers=False, stream=self._stream).rows(("", ""), lines)
            return
        if title:
            self._write(f"{shown(title)}\n")
        width = max((len(name) for name, _ in lines), default=0)
        for name, value in lines:
            self._write(f"{'  ' if title else ''}{shown(name):<{width}}  {shown(value)}\n")

    def flush(self) -> None:
        """Send the buffered text, so that a line on standard error comes after it."""
        self._stream.flush()

    def _json_rows(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        before = "["
        for row in rows:
            self._write(before + "\n" + self._json(dict(zip(columns, row, strict=True))))
            before = ","
        self._write("[]\n" if before == "[" else "\n]\n")

    def _draw(self, columns: Sequence[str], values: list[Sequence[object]]) -> None:
        pretty = self.form is Format.PRETTY_TABLE
        rows = [[shown(cell(value)) for value in row] for row in values]
        if not pretty and len(rows) > _MANY_ROWS:
            for line in _aligned([list(columns), *rows] if self._headers else rows):
                self._write(line + "\n")
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=box.ROUNDED if pretty else None,
            show_header=self._headers,
            header_style="bold",
            pad_edge=pretty,
        )
        for name, column in zip_longest(columns, zip(*values, strict=True)):
            numbers = column is not None and all(type(value) in (int, float) for value in column)
            table.add_column(name, overflow="fold", justify="right" if numbers else "left")
        for row in rows:
            table.add_row(*(Text(value, overflow="fold") for value in row))
        console = Console(file=self._stream, highlight=False)
        if not self._terminal:
            # A pipe has no width: lines are as long as they must be.
            console.width = _NO_WIDTH
            console.width = max(80, console.measure(table).maximum)
        console.print(table)

    def _json(self, value: object, indent: int | None = None) -> str:
        return json_text(value, indent, ascii_only=self._ascii)

    def _write(self, text: str) -> None:
        self._stream.write(text)


def cell(value: object) -> str:
    """Return a value as text: nothing for None, lists of words as rabbitmqctl shows tags, the rest as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return f"[{', '.join(value)}]"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shown(text: str) -> str:
    r"""Return text with its control and format characters made visible, a newline as ``\n``."""
    return text if text.isprintable() else _IN_TEXT.sub(_escaped, text)


def json_text(value: object, indent: int | None = None, *, ascii_only: bool = False) -> str:
    """Return JSON that a terminal does not obey: `json` escapes controls below U+007F only."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    return text if text.isascii() and "\x7f" not in text else _IN_JSON.sub(_escaped_in_json, text)


def value_at(item: Any, path: str) -> object:
    """Return what a dotted path leads to inside nested objects; None when the way ends."""
    for key in path.split("."):
        if not isinstance(item, Mapping):
            return None
        item = item.get(key)
    found: object = item
    return found


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode() if category(found[0]) in _UNSAFE else found[0]


def _escaped_in_json(found: re.Match[str]) -> str:
    if category(found[0]) not in _UNSAFE:
        return found[0]
    return "\\u007f" if found[0] == "\x7f" else json.dumps(found[0])[1:-1]


def _begun(rows: Iterable[Sequence[object]]) -> Iterator[Sequence[object]]:
    """Return the same rows, the first of them already fetched."""
    rest = iter(rows)
    return chain(list(islice(rest, 1)), rest)


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
