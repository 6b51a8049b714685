"""A STOMP client's view of a correct broker: whole frames of the four commands that servers send, in order.

1. CONNECTED is first and comes once, unless ERROR is the only frame; nothing follows ERROR.
2. A head has lines with names, with no escape but those of the version; a body is as long as content-length says, and
   ends with a NUL. A heart-beat comes if it was asked for.
3. MESSAGE has the headers that it must have; its number is one more than that of the one before.
4. An error has a reply code of 0-9-1, and not 541, which would be our fault.
"""

from __future__ import annotations

import re
from typing import Final

from warren.amqp.errors import REPLY_NAMES

COMMANDS: Final = ("CONNECTED", "MESSAGE", "RECEIPT", "ERROR")
VERSIONS: Final = ("1.0", "1.1", "1.2")
# The characters allowed after a backslash.
_ESCAPES: Final = {"1.1": "nc\\", "1.2": "nc\\r"}
_NAMES: Final = ("Bad CONNECT", *(name.lower() for code, name in REPLY_NAMES.items() if code != 541))


class StompTranscript:
    """Reads what one client receives and raises AssertionError at the first thing that no broker may send."""

    def __init__(self) -> None:
        self.version = ""  # that both have agreed on
        self.session = ""
        self.beats = False  # the broker has promised to send heart-beats
        self.error: str | None = None
        self.next_number = 1
        self.unanswered: list[tuple[str, str]] = []  # subscription and id of what waits for an answer
        self.seen: dict[str, int] = {}

    def read(self, data: bytes) -> None:
        """Check `data`, which ends where a frame ends."""
        pos = 0
        while pos < len(data):
            if data[pos] == 10:
                assert self.beats and self.error is None, "a heart-beat that nobody has asked for"
                self._saw("heart-beat")
                pos += 1
                continue
            assert self.error is None, f"something behind ERROR: {data[pos : pos + 100]!r}"
            end = data.find(b"\n\n", pos)
            assert end >= 0, f"a head without an end: {data[pos : pos + 200]!r}"
            command, headers = self._head(data[pos:end])
            pos = self._body(command, headers, data, end + 2)
            self._saw(command)
            self._read(command, headers)

    def _saw(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def _head(self, head: bytes) -> tuple[str, dict[str, str]]:
        command, *lines = head.decode().split("\n")
        assert command in COMMANDS, f"a broker does not send {command!r}"
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            assert name and colon, f"no header: {line!r}"
            assert "\0" not in line, f"a NUL in a head: {line!r}"
            if command != "CONNECTED" and self.version in _ESCAPES:
                assert ":" not in value and "\r" not in line, f"an octet that has to be escaped: {line!r}"
                for escape in re.findall(r"\\(.?)", line):
                    assert escape and escape in _ESCAPES[self.version], f"an escape of another version: {line!r}"
            headers.setdefault(name, value)
        return command, headers

    def _body(self, command: str, headers: dict[str, str], data: bytes, start: int) -> int:
        """Check where a body ends; return what follows it."""
        if "content-length" in headers:
            end = start + int(headers["content-length"])
        else:
            assert command in ("CONNECTED", "RECEIPT"), f"{command} without content-length"
            end = start
        assert data[end : end + 1] == b"\0", f"a body of another length: {headers} {data[start : start + 100]!r}"
        return end + 1

    def _read(self, command: str, headers: dict[str, str]) -> None:
        if command == "ERROR":
            self.error = headers["message"]
            assert self.error in _NAMES, headers
            return
        assert (command == "CONNECTED") == (self.version == ""), f"{command} at this time"
        if command == "CONNECTED":
            assert headers["version"] in VERSIONS, headers
            assert headers["server"].startswith("Warren/"), headers
            self.version = headers["version"]
            self.session = headers["session"]
            sends, wants = headers["heart-beat"].split(",")
            assert sends.isdigit() and wants.isdigit(), headers
            self.beats = sends != "0"
        elif command == "RECEIPT":
            assert set(headers) == {"receipt-id"}, headers
        else:
            assert headers["message-id"] == f"{self.session}@@{self.next_number}", (headers, self.next_number)
            self.next_number += 1
            assert headers["redelivered"] in ("true", "false"), headers
            assert headers["destination"].startswith("/"), headers
            if "ack" in headers:
                assert headers["ack"] == headers["message-id"]
                self.unanswered.append((headers["subscription"], headers["ack"]))
            else:
                assert "subscription" in headers, headers
