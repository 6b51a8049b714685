"""Break frames of STOMP: their commands, headers, bodies, ends, and their bytes.

Deterministic: everything is drawn from the `random.Random` that is handed in.
"""

from __future__ import annotations

import random
from typing import Final

from .stomp_scenes import DESTINATIONS, PROPERTIES, WRONG_DESTINATIONS, Headers, StompFrame

_NAMES: Final = (
    "destination",
    "id",
    "ack",
    "receipt",
    "transaction",
    "message-id",
    "subscription",
    "content-length",
    "requeue",
    "durable",
    "exclusive",
    "auto-delete",
    "persistent",
    "prefetch-count",
    "x-queue-name",
    "x-queue-type",
    "x-max-length",
    "x-message-ttl",
    "x-expires",
    "x-max-priority",
    "x-priority",
    "x-stream-offset",
    "x-stream-filter",
    "x-dead-letter-exchange",
    "x-single-active-consumer",
    "x-overflow",
    "x-delay",
    "x-deliver-at",
    "reply-to",
    "expiration",
    "priority",
    "timestamp",
    "user-id",
    "CC",
    "BCC",
    "login",
    "passcode",
    "host",
    "accept-version",
    "heart-beat",
    "x-death",
    "",
    "x" * 256,
    "\u00e9" * 130,
    "a\rb",
)
_VALUES: Final = (
    "",
    "true",
    "false",
    "TRUE",
    "0",
    "1",
    "-1",
    "65535",
    "65536",
    "99999999999999999999",
    "9223372036854775807",
    "9223372036854775808",
    "\u0663",
    "1e3",
    "auto",
    "client",
    "client-individual",
    "first",
    "stream",
    "quorum",
    "reject-publish",
    "1.0",
    "1.1,1.2",
    "0,0",
    "1000,1000",
    "1,99999999999",
    "x" * 256,
    "x" * 3000,
    "\U0001f407" * 80,
    "\\",
    "a\\b",
    "a:b:c",
    "line\r\nbreak",
    "\udcff",
    "\x01",
    "/temp-queue/",
    "/temp-queue/a/b",
    "/temp-queue/%00",
    "@@1",
    "session-x@@1",
    "tx0",
    *DESTINATIONS,
    *WRONG_DESTINATIONS,
)
_COMMANDS: Final = (
    *("CONNECT", "STOMP", "SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "ABORT", "DISCONNECT"),
    *("MESSAGE", "RECEIPT", "send", "SEND ", " SEND", "GET / HTTP/1.1", "X" * 300, "\u00e9"),
)


class StompMutator:
    """Breaks frames."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices

    def mutated(self, frame: StompFrame, version: str) -> bytes:
        """Return something instead of `frame`."""
        choices = self.choices
        match choices.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                return frame._replace(headers=self._headers(frame.headers)).encode(version)
            case 5:
                return frame._replace(command=choices.choice(_COMMANDS)).encode(version)
            case 6:
                return self._body(frame).encode(version)
            case 7:
                return self._ended(frame).encode(version)
            case 8:
                return frame.encode(version) * choices.choice([2, 2, 2, 20])
            case 9:
                return frame.encode(choices.choice(["1.0", "1.1", "1.2"]))
            case _:
                return self._garbled(frame.encode(version))

    def _headers(self, given: Headers) -> Headers:
        choices = self.choices
        headers = given[:]
        at = choices.randrange(len(headers)) if headers else 0
        match choices.randrange(8):
            case 0 | 1 | 2 if headers:
                headers[at] = (headers[at][0], choices.choice(_VALUES))
            case 3 if headers:
                del headers[at]
            case 4 if headers:  # the first one counts
                headers.insert(0, (headers[at][0], choices.choice(_VALUES)))
            case 5 if headers:
                headers[at] = (choices.choice(_NAMES), headers[at][1])
            case 6:
                count = choices.choice([1, 10, 126, 130])
                headers += [(f"{choices.choice(_NAMES)}{number}", choices.choice(_VALUES)) for number in range(count)]
            case _:
                headers += [(choices.choice(_NAMES), choices.choice(_VALUES)), choices.choice(PROPERTIES)]
        return headers

    def _body(self, frame: StompFrame) -> StompFrame:
        """Return it with a body that does not fit to what its head says."""
        choices = self.choices
        body = choices.choice([b"", b"x", b"\0", b"a\0b", b"x" * 20_000, choices.randbytes(30)])
        headers = [each for each in frame.headers if each[0] != "content-length"]
        if choices.random() < 0.7:
            said = [len(body) + 1, len(body) - 1, 0, -1, 10**10, 10**9, 1 << 20, (1 << 20) + 1]
            text = choices.choice([*map(str, said), "", " 3 ", "0x3", "+3"])
            headers.append(("content-length", text))
        return frame._replace(headers=headers, body=body)

    def _ended(self, frame: StompFrame) -> StompFrame:
        choices = self.choices
        match choices.randrange(4):
            case 0:
                return frame._replace(eol="\r\n")
            case 1:
                return frame._replace(eol=choices.choice(["\r", "\n\n", "\r\n\r\n", "", "\0"]))
            case 2:
                return frame._replace(end=choices.choice([b"", b"\n", b"\0\0", b"\0\n\r\n\n", b"\0\r", b"\0 "]))
            case _:
                return frame._replace(body=frame.body + b"tail")

    def _garbled(self, data: bytes) -> bytes:
        choices = self.choices
        made = bytearray(data)
        for _ in range(choices.choice([1, 1, 2, 5])):
            at = choices.randrange(len(made) + 1)
            match choices.randrange(6):
                case 0 if at < len(made):
                    made[at] ^= 1 << choices.randrange(8)
                case 1 if at < len(made):
                    made[at] = choices.choice(b"\0\n\r:\\ \xff")
                case 2:
                    del made[at:]
                case 3:
                    made[at:at] = choices.randbytes(choices.randrange(1, 9))
                case 4:
                    del made[at : at + choices.randrange(1, 9)]
                case _:
                    made[at:at] = choices.choice([b"\n\n", b"\0", b"\\x", b":", b"\r\n", b"\nid:7\n"])
        return bytes(made)
