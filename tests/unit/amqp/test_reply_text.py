"""The text of a close: the name of the code, the explanation, and never more than a short string holds."""

from __future__ import annotations

import pytest

from warren.amqp.codec import decode_method, encode_method
from warren.amqp.errors import (
    REPLY_NAMES,
    REPLY_TEXT_MAX_BYTES,
    ChannelException,
    ConnectionException,
    reply_text,
)
from warren.amqp.methods import ChannelClose

PREFIX = len("NOT_FOUND - ")


def test_the_text_is_the_name_of_the_code_and_the_explanation() -> None:
    assert reply_text(404, "no queue 'q' in vhost '/'") == "NOT_FOUND - no queue 'q' in vhost '/'"


def test_a_text_of_exactly_255_bytes_is_kept_whole() -> None:
    explanation = "x" * (REPLY_TEXT_MAX_BYTES - PREFIX)
    assert reply_text(404, explanation) == "NOT_FOUND - " + explanation
    assert reply_text(404, explanation + "y") == "NOT_FOUND - " + explanation[:-3] + "..."


@pytest.mark.parametrize("character", ["\u00e9", "\u20ac", "\U0001f407"])
@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_split_by_the_cut(character: str, shift: int) -> None:
    text = reply_text(404, "x" * shift + character * 255)
    size = len(text.encode())
    assert REPLY_TEXT_MAX_BYTES - len(character.encode()) < size <= REPLY_TEXT_MAX_BYTES
    assert text.endswith("...")
    assert text[:-3] == "NOT_FOUND - " + "x" * shift + character * (
        (size - 3 - PREFIX - shift) // len(character.encode())
    )


def test_bytes_that_are_not_utf_8_are_replaced_because_clients_decode_the_text() -> None:
    foreign = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert reply_text(406, foreign) == "PRECONDITION_FAILED - caf?"
    assert reply_text(406, foreign * 100).encode() == (b"PRECONDITION_FAILED - " + b"caf?" * 100)[:252] + b"..."


@pytest.mark.parametrize("reply_code", REPLY_NAMES)
def test_every_code_makes_a_close_that_survives_the_wire(reply_code: int) -> None:
    close = ChannelClose(reply_code, reply_text(reply_code, "\u00e9" * 200), 60, 40)
    payload = encode_method(close)
    assert decode_method(payload, 0, len(payload)) == close


@pytest.mark.parametrize("kind", [ChannelException, ConnectionException])
def test_an_exception_carries_code_explanation_and_text(
    kind: type[ChannelException | ConnectionException],
) -> None:
    raised = kind(503, "unimplemented method")
    assert (raised.reply_code, raised.explanation) == (503, "unimplemented method")
    assert raised.reply_text == "COMMAND_INVALID - unimplemented method"
