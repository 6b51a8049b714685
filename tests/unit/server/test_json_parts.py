"""JSON that is taken apart before it is decoded. In parentheses: ``json_parts.py``."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from warren.server import json_parts
from warren.server.json_parts import NotAnObject, decode_long, parts_of


def parts(data: bytes) -> list[tuple[str, int, bytes]]:
    return [(part.key, part.number, data[part.start : part.end]) for part in parts_of(data) if part is not None]


def random_value(source: random.Random, depth: int) -> Any:
    kind = source.randrange(7 if depth else 4)
    if kind < 4:
        return [1, None, "a,{}[]:", '"\\é\U0001f600\n'][kind]
    values = [random_value(source, depth - 1) for _ in range(source.randrange(4))]
    return values if kind == 4 else {source.choice('ab"\\{') * at: value for at, value in enumerate(values)}


def test_the_parts_are_those_of_the_decoded_object_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(11)
    for _ in range(500):
        value = {str(at): random_value(source, 3) for at in range(source.randrange(4))}
        data = json.dumps(value, ensure_ascii=source.random() < 0.5, indent=source.choice([None, 1])).encode()
        monkeypatch.setattr(json_parts, "PIECE_BYTES", source.choice([1, 2, 3, 7, 4096]))
        found: list[tuple[str, int, Any]] = [(key, at, json.loads(part)) for key, at, part in parts(data)]
        wanted = []
        for key, member in value.items():
            wanted += (
                [(key, at, item) for at, item in enumerate(member)]
                if type(member) is list and member
                else [(key, -1, member)]
            )
        assert found == wanted


def test_a_part_says_how_many_values_it_has_at_most() -> None:
    (one, many) = [part for part in parts_of(b'{"a": 1, "b": [{"c": [1, 2, {}]}]}') if part is not None]
    assert (one.values, many.values) == (1, 6)


NO_OBJECTS = (
    "",
    "{",
    "[]",
    "null",
    '"x"',
    "{}x",
    '{"a":1}}',
    '{"a":[1}',
    '{"a":{1]',
    '{"a"}',
    '{"a":1,}',
    "{,}",
    "{} {}",
)
BROKEN = ('{"a":[1]2}', '{"a":[1,2', '{"a":1,"b"}', "{1:2}", '{"a" "b":2}', '{"a":[1]:2}', '{"a":1:2}', '{"a":["x]}')
TOO_LONG = (f'{{"{"a" * 5000}":1}}', f"{{{' ' * 5000}}}", "{}" + " " * 5000)


@pytest.mark.parametrize("data", [*NO_OBJECTS, *BROKEN, *TOO_LONG])
def test_what_is_not_an_object_is_refused(data: str) -> None:
    with pytest.raises(NotAnObject):
        parts(data.encode())


@pytest.mark.parametrize("data", ['{"a":}', '{"a":[1,]}', '{"a":[,1]}', '{"a":5[1]}', '{"a":[1}]}', '{"a":[1 2]}'])
def test_the_rest_is_found_when_a_part_is_decoded(data: str) -> None:
    def decode_all() -> list[Any]:
        return [msgspec.json.decode(part) for _, _, part in parts(data.encode())]

    with pytest.raises((NotAnObject, msgspec.DecodeError)):
        decode_all()


def test_a_long_text_is_decoded_in_pieces_that_cut_no_character(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'é\U0001f600"\\\n' * 9 + "x\\\\ud83d" * 5 + "a" * 70 + "\U0001f600" * 20
    for size in range(12, 30):
        monkeypatch.setattr(json_parts, "TEXT_BYTES", size)
        for is_ascii in (True, False):
            data = json.dumps(text, ensure_ascii=is_ascii).encode()
            pieces = list(decode_long(data, 1, len(data) - 1))
            assert "".join(pieces) == text
            assert max(map(len, pieces)) <= size
    for bad in (b"\\ud83d", b"\\udc00x", b"\\", b"a\nb", b"\xff", b'a"b', b"\\u12"):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            list(decode_long(bad, 0, len(bad)))
