"""Bodies of messages as they come in JSON."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
import trio

from warren.mgmt_plugin.http.json_pieces import LongText, json_pieces
from warren.mgmt_plugin.http.server import HttpError, Request
from warren.mgmt_plugin.resources import messages
from warren.mgmt_plugin.resources.messages import decode_payload, encode_payload
from warren.mgmt_plugin.routes import Call
from warren.server.json_parts import TEXT_BYTES


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 100, 1000])
def test_a_large_body_is_the_same_in_pieces(size: int) -> None:
    body = random.Random(size).randbytes(size)
    text = base64.b64encode(body).decode()
    for part in (1, 3, 8, 1 << 10):
        texts = [text[at : at + part] for at in range(0, len(text), part)]
        assert b"".join(trio.run(decode_payload, texts, "base64")) == body


@pytest.mark.parametrize(
    "text", ["A", "AAA", "AA=A", "AA==AAAA", "AAAAAAA=AAAA", "A===", "====", "AAA*", "\u00e9\u00e9\u00e9\u00e9"]
)
def test_what_is_not_base64_as_a_whole_is_refused(text: str) -> None:
    for texts in ([text], [text[:4], text[4:]], list(text)):
        with pytest.raises(HttpError, match="not_base64"):
            trio.run(decode_payload, texts, "base64")


def test_text_is_taken_as_it_is() -> None:
    assert trio.run(decode_payload, ["caf\u00e9"], "string") == ["caf\u00e9".encode()]


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


def published(body: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, int]:
    """Return the body of the message that JSON asks to be published, and the most that was in one piece."""
    decode = msgspec.json.decode
    sizes: list[int] = []

    def counted(data: bytes, **options: Any) -> Any:
        sizes.append(len(data))
        return decode(data, **options)

    async def read_body(limit_bytes: int, look: Callable[[bytes], None] | None = None) -> bytes:
        return body

    request = Request("POST", "/", "", {}, "127.0.0.1", False, read_body)
    call = Call(request, {}, *(cast(Any, None),) * 3, limits=messages.PUBLISH)
    with monkeypatch.context() as patch:
        patch.setattr(msgspec.json, "decode", counted)
        wanted, found = trio.run(messages._read_publish, call)
    assert (wanted.routing_key, wanted.properties) == ("k", json.loads(body)["properties"])
    return b"".join(found), max(*sizes, *map(len, found))


@pytest.mark.parametrize("payload", ["\n" * (1 << 20), "\u00e9\U0001f600" * (1 << 18), "a" * (3 << 20)])
def test_a_large_payload_is_decoded_in_pieces(payload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of 30 MB whose characters are all escaped took 240 ms, in which nobody was served."""
    wanted = {"properties": {"headers": {"payload": 1}}, "routing_key": "k", "payload": payload}
    body = json.dumps(wanted | {"payload_encoding": "string"}).encode()
    found, most = published(body, monkeypatch)
    assert found == payload.encode()
    assert most <= TEXT_BYTES + 2


def test_so_is_a_large_payload_in_base64(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"properties": {"headers": {"payload": 1}}, "routing_key": "k", "payload_encoding": "base64"}
    body = json.dumps(wanted | {"payload": "AAAA" * (1 << 19)}).encode()
    found, most = published(body, monkeypatch)
    assert found == bytes(3 << 19)
    assert most <= TEXT_BYTES + 2


def test_a_large_publish_without_properties_has_an_empty_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers with messages say so, too, and so do clients in PHP."""
    wanted = {"properties": [], "routing_key": "k", "payload": "a" * (2 << 20), "payload_encoding": "string"}
    assert published(json.dumps(wanted).encode(), monkeypatch)[0] == b"a" * (2 << 20)


def test_a_large_publish_has_a_limit_for_the_rest_and_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = b'"properties": {"headers": {"payload": 1}}, "routing_key": "k", "payload_encoding": "string"'
    large = b"x" * (2 << 20)
    for members, status in (
        (rest + b', "payload": "a", "more": "' + large + b'"', 413),
        (rest + b', "payload": 1, "more": [' + b" " * (2 << 20) + b"]", 400),
        (rest + b', "payload": "' + large + b'\\ud800"', 400),
        (rest + b', "payload": "' + large + b'" "a"', 400),
        (rest + b', "payload_encoding": ["string"], "payload": "' + large + b'"', 400),
        (rest + b', "payload": "' + large, 400),
    ):
        with pytest.raises(HttpError) as caught:
            published(b"{" + members + b"}", monkeypatch)
        assert caught.value.status == status, caught.value.reason
