"""Write log lines: one event with its fields per line, for a person (console) or a collector (JSON).

    log = get_logger("catalogue")
    log.info("metadata store available", batch=12)

1. One record is one line on stderr: line breaks and control characters are escaped, in values as well as in names from
   the network. Only a traceback for the console has more lines. Each of them is indented, so that text in an exception
   cannot look like a record.
2. Credentials are not written: a field whose name suggests one, and the password inside a URL, become ``***``.
3. A disabled level costs one comparison and does not format anything.
4. The last lines are kept in memory (`RECENT`), redacted like the others, for administrators. Their number and their
   size are bounded; long values are cut.
5. The broker never waits for stderr: a thread writes to it (``standard_streams.py``). While stderr accepts nothing,
   lines beyond `standard_streams.QUEUE_BYTES` are dropped. A line says how many as soon as it accepts data again.

Lines of libraries that use the standard `logging` take the same way. The per-message path never logs.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import deque
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Final, Literal, TextIO

from warren.server.standard_streams import ERRORS, StreamWriter

LogFormat = Literal["console", "json"]

# Of the lines that are kept: how many, their characters together, and those of a value.
RECENT_LINES: Final = 2000
RECENT_CHARACTERS: Final = 512 << 10
RECENT_VALUE_CHARACTERS: Final = 2000

LEVELS: Final = ("debug", "info", "warning", "error")
REDACTED: Final = "***"

_ROOT: Final = "warren"
_CREDENTIAL_NAME: Final = re.compile(r"passw|secret|token|credential|authorization|api_?key|private_key", re.I)
_URL_PASSWORD: Final = re.compile(r"(://[^\s/:@]*):[^\s/]*@")
_PLAIN: Final = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f-\x9f\u2028\u2029]+")
# Control characters, line and paragraph separators, halves of surrogate pairs, and format characters of Unicode:
# those turn a line around, or hide a part of it.
_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
    r"\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0001-\U000e007f]"
)


class Log:
    """Write events of one part of the broker. Obtain with `get_logger`."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: object) -> None:
        """Report details for a person who hunts a fault."""
        self._write(logging.DEBUG, event, fields, None)

    def info(self, event: str, /, **fields: object) -> None:
        """Report a change of state that an operator expects."""
        self._write(logging.INFO, event, fields, None)

    def warning(self, event: str, /, **fields: object) -> None:
        """Report something that an operator should look at."""
        self._write(logging.WARNING, event, fields, None)

    def error(self, event: str, /, *, exception: BaseException | None = None, **fields: object) -> None:
        """Report a promise that was broken; `exception` adds its traceback."""
        self._write(logging.ERROR, event, fields, exception)

    def _write(self, level: int, event: str, fields: dict[str, object], exception: BaseException | None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, exc_info=exception, extra={"fields": fields})


def get_logger(name: str) -> Log:
    """Return the log of the part `name`; usable before `configure`."""
    return Log(logging.getLogger(f"{_ROOT}.{name}"))


def configure(level: str, log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Send log lines from `level` (one of `LEVELS`) up to `stream` (stderr), instead of to the previous stream."""
    formatter = _JsonFormatter() if log_format == "json" else _ConsoleFormatter()
    handler: logging.Handler
    if stream is not None:
        handler = logging.StreamHandler(stream)
    else:
        handler = _WriterHandler(ERRORS)
        ERRORS.say_dropped = partial(_dropped_line, formatter)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for earlier in list(root.handlers):
        if isinstance(earlier.formatter, _LineFormatter):
            root.removeHandler(earlier)
    root.addHandler(handler)
    root.addHandler(RECENT)
    # Libraries write from warning on; their debug lines may contain statement parameters.
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level.upper())
    # A full disk or a closed pipe behind stderr must not print a traceback per line.
    logging.raiseExceptions = False


def level() -> str:
    """Return the lowest level that is written, one of `LEVELS` unless other code has set it."""
    return logging.getLevelName(logging.getLogger(_ROOT).getEffectiveLevel()).lower()


def set_level(wanted: str, by: str) -> None:
    """Write lines from `wanted` (one of `LEVELS`) up from now on; the log says so, and who requested it (`by`).

    The line is written at the more verbose of both levels, so that turning the log down is always visible.
    """
    before = level()
    if before == wanted:
        return
    ours = logging.getLogger(_ROOT)
    number = logging.getLevelNamesMapping()[wanted.upper()]
    if number < ours.getEffectiveLevel():
        ours.setLevel(number)
    get_logger("logs").warning("log level changed", level=wanted, was=before, by=by)
    ours.setLevel(number)


def redact_url(text: str) -> str:
    """Replace the password of every URL in `text`."""
    return _URL_PASSWORD.sub(r"\1:" + REDACTED + "@", text) if "://" in text else text


@lru_cache(256)
def _is_credential(name: str) -> bool:
    """Tell whether the name of a field suggests a credential; field names are ours, and few."""
    return _CREDENTIAL_NAME.search(name) is not None


class _WriterHandler(logging.Handler):
    def __init__(self, writer: StreamWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.put(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


def _dropped_line(formatter: logging.Formatter, lines: int) -> str:
    """Return the line that says how many were dropped."""
    text = "log lines were dropped: stderr was blocked"
    record = logging.LogRecord(f"{_ROOT}.logs", logging.WARNING, "", 0, text, None, None)
    record.fields = {"lines": lines}
    return formatter.format(record) + "\n"


class _LineFormatter(logging.Formatter):
    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        fields: dict[str, object] = {}
        given = getattr(record, "fields", None)
        if isinstance(given, dict):
            for name, value in given.items():
                fields[name] = REDACTED if _is_credential(name) else _presentable(value)
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = redact_url(self.formatException(record.exc_info))
        return fields


class _JsonFormatter(_LineFormatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record, "T") + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": redact_url(record.getMessage()),
        }
        for name, value in self._fields(record).items():
            line[f"{name}_" if name in line else name] = value
        return json.dumps(line).replace("\x7f", "\\u007f")


class RecentLines(logging.Handler):
    """The last lines, as objects of JSON. Each has a `number`, one more than the line before."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_JsonFormatter())
        self._lines: deque[dict[str, object]] = deque()
        self._sizes: deque[int] = deque()
        self._size = 0
        self.next_number = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = json.loads(self.format(record))
        except Exception:
            self.handleError(record)
            return
        kept: dict[str, object] = {}
        for name, value in line.items():
            if isinstance(value, str):
                if len(value) > RECENT_VALUE_CHARACTERS:
                    value = value[: RECENT_VALUE_CHARACTERS - 1] + "…"
                value = value.encode("utf-8", "replace").decode()  # halves of surrogate pairs are not text
            kept["number_" if name == "number" else name] = value
        size = sum(len(name) + len(str(value)) for name, value in kept.items())
        self._lines.append({**kept, "number": self.next_number})
        self._sizes.append(size)
        self._size += size
        self.next_number += 1
        while len(self._lines) > RECENT_LINES or self._size > RECENT_CHARACTERS:
            self._lines.popleft()
            self._size -= self._sizes.popleft()

    def lines(self) -> list[dict[str, object]]:
        """Return the lines that are kept, the oldest first; they must not be changed."""
        with self.lock or nullcontext():
            return list(self._lines)


class _ConsoleFormatter(_LineFormatter):
    def format(self, record: logging.LogRecord) -> str:
        event = _CONTROL.sub(_escape, redact_url(record.getMessage()))
        fields = self._fields(record)
        traceback = fields.pop("traceback", None)
        parts = [f"{_timestamp(record, ' ')} {record.levelname.lower():<7} {event}"]
        parts += [f"{name}={_console_value(value)}" for name, value in fields.items()]
        line = "  ".join(parts)
        if traceback is None:
            return line
        return "\n    ".join([line, *(_CONTROL.sub(_escape, each) for each in str(traceback).split("\n"))])


RECENT: Final = RecentLines()


def _presentable(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    return redact_url(str(value))


def _console_value(value: object) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text if text.isascii() else _CONTROL.sub(_escape, text)
    return _CONTROL.sub(_escape, json.dumps(text, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _timestamp(record: logging.LogRecord, separator: str) -> str:
    return f"{_second(int(record.created), separator)}.{int(record.msecs):03d}"


@lru_cache(4)
def _second(since_epoch: int, separator: str) -> str:
    return time.strftime(f"%Y-%m-%d{separator}%H:%M:%S", time.gmtime(since_epoch))
