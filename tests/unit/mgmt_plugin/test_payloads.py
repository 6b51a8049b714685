"""Bodies of messages as they come in JSON."""

from __future__ import annotations

import base64
import json
import random

import pytest
import trio

from warren.mgmt_plugin.http.json_pieces import LongText, json_pieces
from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.resources import messages
from warren.mgmt_plugin.resources.messages import decode_payload, encode_payload


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 100, 1000])
def test_a_large_body_is_the_same_in_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_DECODED_AT_ONCE", 8)
    body = random.Random(size).randbytes(size)
    assert trio.run(decode_payload, base64.b64encode(body).decode(), "base64") == body


@pytest.mark.parametrize(
    "text", ["A", "AAA", "AA=A", "AA==AAAA", "AAAAAAA=AAAA", "A===", "====", "AAA*", "\u00e9\u00e9\u00e9\u00e9"]
)
def test_what_is_not_base64_as_a_whole_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_DECODED_AT_ONCE", 4)
    with pytest.raises(HttpError, match="not_base64"):
        trio.run(decode_payload, text, "base64")


def test_text_is_taken_as_it_is() -> None:
    assert trio.run(decode_payload, "caf\u00e9", "string") == "caf\u00e9".encode()


def encoded(parts: list[bytes], wanted: str = "auto", *, whole: bool = True) -> tuple[str, str]:
    async def main() -> tuple[str | LongText, str]:
        return await encode_payload(parts, wanted, whole=whole)

    text, encoding = trio.run(main)
    return json.loads(b"".join(json_pieces(text))), encoding


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100, 5000, 100_000])
@pytest.mark.parametrize("part", [1, 7, 4096, 1 << 20])
def test_a_body_that_comes_in_parts_is_shown_as_one(size: int, part: int) -> None:
    binary = random.Random(size).randbytes(size) + b"\xff"
    text = ('caf\u00e9 \U0001f430 " \\ \n' * size)[: size + 1]
    for body, shown in (
        (binary, (base64.b64encode(binary).decode(), "base64")),
        (text.encode(), (text, "string")),
    ):
        parts = [body[at : at + part] for at in range(0, len(body), part)]
        assert encoded(parts) == shown
        assert encoded(parts, "base64") == (base64.b64encode(body).decode(), "base64")


def test_a_character_that_is_cut_in_two_is_none_unless_more_is_there() -> None:
    cut = "caf\u00e9".encode()[:-1]
    assert encoded([cut]) == (base64.b64encode(cut).decode(), "base64")
    assert encoded([cut], whole=False) == ("caf", "string")
    assert encoded([b"\xff", b"a"], whole=False)[1] == "base64"


def test_a_large_body_becomes_text_piece_by_piece() -> None:
    turns = 0

    async def main() -> None:
        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            text, _ = await encode_payload([b"x" * (64 << 20)])
            nursery.cancel_scope.cancel()
        assert isinstance(text, LongText)
        assert max(map(len, json_pieces({"payload": text}))) <= 1 << 16

    trio.run(main)
    assert turns > 1
