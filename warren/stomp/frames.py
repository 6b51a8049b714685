"""Frames of STOMP 1.0, 1.1 and 1.2: a head of bytes to values, and values to a head.

    frame     COMMAND EOL (name ":" value EOL)* EOL body 00
    EOL       0A, or 0D 0A; any number of them between frames, as heart-beats
    body      as many octets as content-length says, or up to the first 00
    escapes   1.0: none    1.1: \\\\ \\n \\c (a colon)    1.2: those and \\r    none in CONNECT and CONNECTED

1. Where a frame has a name twice, the first one counts.
2. An excessive length or number is refused before the frame is parsed; the reader decides the limit for a head.
3. An escape that the version does not have is an error, as is text that is not UTF-8.

Source: stomp.github.io, specifications 1.0, 1.1 and 1.2.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.errors import FRAME_ERROR, SYNTAX_ERROR, ConnectionException
from warren.amqp.numbers import number_text

V1_0: Final = 10
V1_1: Final = 11
V1_2: Final = 12
VERSION_NAMES: Final = {V1_0: "1.0", V1_1: "1.1", V1_2: "1.2"}

HEADERS_MAX: Final = 128
COMMANDS: Final = frozenset(
    ["CONNECT", "STOMP", "SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "ABORT", "DISCONNECT"]
)
_UNESCAPED: Final = {"n": "\n", "c": ":", "\\": "\\", "r": "\r"}
_DIGITS_MAX: Final = 10  # of content-length


class StompFrame:
    """A command with its headers."""

    def __init__(self, command: str, headers: dict[str, str]) -> None:
        self.command = command
        self.headers = headers

    def get(self, name: str) -> str | None:
        """Return the value of a header, None without."""
        return self.headers.get(name)

    def need(self, name: str) -> str:
        """Return the value of a required header.

        Raises:
            ConnectionException: 502, it is not.
        """
        value = self.headers.get(name)
        if value is None:
            raise ConnectionException(SYNTAX_ERROR, f"{self.command} needs the header '{name}'")
        return value

    def is_true(self, name: str, default: bool = False) -> bool:
        """Tell whether a header is ``true``.

        Raises:
            ConnectionException: 502, it is neither that nor ``false``.
        """
        value = self.headers.get(name)
        if value is None:
            return default
        if value not in ("true", "false"):
            raise ConnectionException(SYNTAX_ERROR, f"the header '{name}' is neither true nor false")
        return value == "true"

    def number(self, name: str, most: int) -> int | None:
        """Return a header that is a whole number up to `most`; None without.

        Raises:
            ConnectionException: 502, it is something else.
        """
        value = self.headers.get(name)
        if value is None:
            return None
        found = maybe_number(value, most)
        if found is None:
            raise ConnectionException(SYNTAX_ERROR, f"the header '{name}' is not a whole number up to {most}")
        return found


def maybe_number(text: str, most: int) -> int | None:
    """Return the number that `text` is, if that is at most `most`."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)):
        return None
    value = int(text)
    return value if value <= most else None


def parse_head(head: bytes, version: int) -> StompFrame:
    """Take a head apart, which ends before the empty line.

    Raises:
        ConnectionException: 501, it is not a head of `version`.
    """
    if head.count(b"\n") > HEADERS_MAX:
        raise ConnectionException(FRAME_ERROR, f"more than {HEADERS_MAX} headers")
    try:
        text = head.decode()
    except UnicodeDecodeError:
        raise ConnectionException(FRAME_ERROR, "a head that is not UTF-8") from None
    lines = text.split("\n")
    command = lines[0].removesuffix("\r")
    if command not in COMMANDS:
        raise ConnectionException(FRAME_ERROR, f"unknown command {command[:32]!a}")
    escaped = version != V1_0 and command not in ("CONNECT", "STOMP")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        # A carriage return at the end of a line is a part of it in 1.0 and 1.1, but no client there means it.
        name, colon, value = line.removesuffix("\r").partition(":")
        if not colon or not name:
            raise ConnectionException(FRAME_ERROR, f"a header without a name or a colon: {line[:32]!a}")
        if escaped and "\\" in line:
            name, value = _unescaped(name, version), _unescaped(value, version)
        if name not in headers:
            headers[name] = value
    return StompFrame(command, headers)


def content_length(frame: StompFrame, most: int) -> int:
    """Return the content-length in the head, -1 when it is missing.

    Raises:
        ConnectionException: 501, it is not a number, or larger than `most`.
    """
    given = frame.headers.get("content-length")
    if given is None:
        return -1
    given = given.strip()
    size = maybe_number(given, 10**_DIGITS_MAX - 1)
    if size is None:
        raise ConnectionException(FRAME_ERROR, "content-length is not a number")
    if size > most:
        said = number_text(size)
        raise ConnectionException(FRAME_ERROR, f"a body of {said} bytes (maximum {most})")
    return size


def _unescaped(text: str, version: int) -> str:
    parts: list[str] = []
    pos = 0
    while True:
        at = text.find("\\", pos)
        if at < 0:
            parts.append(text[pos:])
            return "".join(parts)
        parts.append(text[pos:at])
        kind = text[at + 1 : at + 2]
        if kind not in _UNESCAPED or (kind == "r" and version != V1_2):
            raise ConnectionException(
                FRAME_ERROR, f"the escape \\{kind} does not exist in STOMP {VERSION_NAMES[version]}"
            )
        parts.append(_UNESCAPED[kind])
        pos = at + 2


def escaped(text: str, version: int) -> str:
    """Return `text` as it stands in a header; characters that `version` cannot escape become a space."""
    if version == V1_0:
        return text.replace("\n", " ").replace("\r", " ").replace("\0", " ")
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace(":", "\\c").replace("\0", " ")
    return text.replace("\r", "\\r" if version == V1_2 else " ")


def header_line(name: str, value: str, version: int) -> bytes:
    """Return a header as it is sent. A name in 1.0 cannot hold a colon."""
    if version == V1_0:
        name = name.replace(":", " ")
    return f"{escaped(name, version)}:{escaped(value, version)}\n".encode("utf-8", "replace")


def encode(command: str, headers: list[tuple[str, str]], body: bytes, version: int) -> bytes:
    """Return a frame of ours."""
    head = b"".join([header_line(name, value, version) for name, value in headers])
    return command.encode() + b"\n" + head + b"\n" + body + b"\0"
