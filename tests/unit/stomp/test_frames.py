"""Heads of frames: their contents, in each version, against escapes that are written here once more."""

from __future__ import annotations

import gc
import sys
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.errors import ConnectionException
from warren.amqp.properties import BasicProperties
from warren.stomp.conversion import headers_of_message
from warren.stomp.frames import HEADERS_MAX, V1_0, V1_1, V1_2, content_length, encode, escaped, parse_head

TABLES = {
    V1_1: {"\\": "\\\\", "\n": "\\n", ":": "\\c"},
    V1_2: {"\\": "\\\\", "\n": "\\n", ":": "\\c", "\r": "\\r"},
}
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=20)
returns = st.text(st.sampled_from("ab\r\n:\\ä"), max_size=12)


def independently(text: str, version: int) -> str:
    return "".join(TABLES[version].get(character, character) for character in text)


@given(version=st.sampled_from((V1_1, V1_2)), headers=st.dictionaries(texts.filter(bool), texts, max_size=8))
def test_what_the_escapes_of_a_version_say_is_read(version: int, headers: dict[str, str]) -> None:
    lines = [f"{independently(name, version)}:{independently(value, version)}" for name, value in headers.items()]
    for end in ("\n", "\r\n"):
        found = parse_head(end.join(["SEND", *lines]).encode(), version)
        assert (found.command, found.headers) == ("SEND", headers)


@given(text=texts)
def test_what_is_written_is_what_the_escapes_say(text: str) -> None:
    assert escaped(text, V1_1) == independently(text, V1_1)
    assert escaped(text, V1_2) == independently(text, V1_2)


@given(text=returns)
def test_a_carriage_return_passes_in_1_2(text: str) -> None:
    assert escaped(text, V1_2) == independently(text, V1_2)
    found = parse_head(f"SEND\na:{independently(text, V1_2)}".encode(), V1_2)
    assert found.headers == {"a": text}


@given(text=returns, version=st.sampled_from((V1_0, V1_1, V1_2)))
def test_no_header_of_ours_breaks_out_of_its_line(text: str, version: int) -> None:
    written = encode("MESSAGE", [("n", text), ("m", "1")], b"", version)
    assert written.count(b"\n") == 4 and written.count(b"\0") == 1 and b"\r" not in written


def test_1_0_has_no_escapes() -> None:
    assert parse_head(b"SEND\ndestination:/queue/a\\nb:c", V1_0).headers == {"destination": "/queue/a\\nb:c"}


@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_connect_has_no_escapes(command: str) -> None:
    assert parse_head(f"{command}\npasscode:a\\nb\\x".encode(), V1_2).headers == {"passcode": "a\\nb\\x"}


def test_the_first_of_two_headers_counts() -> None:
    assert parse_head(b"SEND\na:1\na:2", V1_2).headers == {"a": "1"}


@pytest.mark.parametrize(
    ("head", "version"),
    [
        (b"send", V1_2),
        (b"", V1_2),
        (b"SEND\nno colon", V1_2),
        (b"SEND\n:no name", V1_2),
        (b"SEND\na:\\t", V1_2),
        (b"SEND\na:\\", V1_2),
        (b"SEND\na:\\r", V1_1),
        (b"SEND\na:\xff", V1_2),
        (b"SEND" + b"\na:b" * (HEADERS_MAX + 1), V1_2),
    ],
)
def test_what_is_no_head_is_refused(head: bytes, version: int) -> None:
    with pytest.raises(ConnectionException):
        parse_head(head, version)


@pytest.mark.parametrize("given_", ["-1", "1e3", "0x10", "", "1_000", "٣", "9" * 5000, "11"])
def test_a_content_length_is_a_number_up_to_the_limit(given_: str) -> None:
    with pytest.raises(ConnectionException):
        content_length(parse_head(f"SEND\ncontent-length:{given_}".encode(), V1_2), 10)


def test_a_timestamp_beyond_62_bits_is_let_go_of() -> None:
    """Compiled, `str` of such a number never is, see `amqp.numbers.number_text`."""
    properties = BasicProperties()
    properties.timestamp = (1 << 64) - 1
    payload = pack(">HHQ", 60, 0, 0) + properties.encode()

    def show(count: int) -> int:
        for _ in range(count):
            assert b"timestamp:18446744073709551615\n" in headers_of_message(payload, 0, len(payload), 2)
        gc.collect()
        return sys.getallocatedblocks()

    before = show(100)
    assert show(400) - before < 200
