"""The valid contents of a file of definitions, and the errors for others."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from warren.server.definitions.schema import (
    ITEM_BYTES_MAX,
    ITEM_VALUES_MAX,
    PROBLEMS_SHOWN,
    DefinitionsRefused,
    ItemTooLarge,
    hash_from_file,
    hash_to_file,
    metadata_of,
    tags_of,
)
from warren.server.logins.passwords import SCRYPT, PasswordHash

from .planning import HASH, SHA256, Document, binding, queue, read


def refusal(document: Document | bytes, vhost: str | None = None) -> list[str]:
    with pytest.raises(DefinitionsRefused) as refused:
        read(document, vhost)
    return refused.value.problems


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"text"', b"\xff", b"[" * 100_000])
def test_what_is_not_a_json_object_is_refused(data: bytes) -> None:
    (problem,) = refusal(data)
    assert problem.startswith("not a JSON object")


def test_every_problem_of_every_item_is_named() -> None:
    assert refusal(
        {
            "queues": [queue("good"), {"vhost": "/", "durable": "perhaps", "arguments": "none"}, 5],
            "users": {"name": "not in an array"},
            "bindings": [binding("x", "q"), {"source": 1, "vhost": "/"}],
        }
    ) == [
        "users: must be an array",
        "queues[1]: name is missing",
        "queues[1]: durable: Expected `bool`, got `str`",
        "queues[1]: arguments: Expected `object | array | null`, got `str`",
        "queues[2]: must be an object",
        "bindings[1]: source: Expected `str`, got `int`",
        "bindings[1]: destination is missing",
    ]


def test_a_long_list_of_problems_is_cut_and_says_so() -> None:
    refused = DefinitionsRefused([str(number) for number in range(PROBLEMS_SHOWN + 5)])
    assert refused.shown()[-2:] == [str(PROBLEMS_SHOWN - 1), "and 5 more"]
    assert refused.shown(2) == ["0", "1", f"and {PROBLEMS_SHOWN + 3} more"]
    assert DefinitionsRefused(["one"]).shown() == ["one"]


def test_an_item_without_vhost_is_refused_in_a_file_of_everything() -> None:
    item = queue("q")
    del item["vhost"]
    assert refusal({"queues": [item]}) == ["queues[0]: vhost is missing"]


def test_in_a_file_of_a_vhost_everything_belongs_to_that_and_the_rest_is_left_out() -> None:
    document = {
        "queues": [queue("q", "elsewhere")],
        "vhosts": [{"name": "elsewhere"}],
        "users": "wrong",
        "permissions": 1,
        "global_parameters": None,
    }
    definitions = read(document, "here")
    assert [item.vhost for _, item in definitions.queues] == ["here"]
    assert definitions.vhosts == []


def test_unknown_keys_mean_nothing() -> None:
    definitions = read({"later": 1, "queues": [queue("q", policy=None, node="rabbit@one")]})
    assert [item.name for _, item in definitions.queues] == ["q"]


def test_numbers_and_flags_may_be_texts() -> None:
    policy = {"vhost": "/", "name": "p", "pattern": "", "definition": {"max-length": 1}, "priority": "7"}
    definitions = read({"queues": [queue("q", durable="false")], "policies": [policy]})
    assert definitions.queues[0][1].durable is False
    assert definitions.policies[0][1].priority == 7
    assert definitions.policies[0][1].apply_to == "all"


@pytest.mark.parametrize("given", ["a, b,", ["a", " b"], "a,b"])
def test_tags_are_a_list_or_a_text_with_commas(given: list[str] | str) -> None:
    assert tags_of(given) == ("a", "b")


def test_metadata_of_a_vhost_are_flat_or_nested() -> None:
    document = {"vhosts": [{"name": "v", "metadata": {"description": "d", "tags": "a,b", "more": 1}}, {"name": "w"}]}
    nested, none = (metadata_of(item) for _, item in read(document).vhosts)
    assert (nested.description, nested.tags) == ("d", "a,b")
    assert (none.description, none.tags) == (None, None)
    wrong = read({"vhosts": [{"name": "v", "metadata": {"description": 1}}]}).vhosts[0][1]
    with pytest.raises(ValueError, match="metadata: Expected `str"):
        metadata_of(wrong)


@pytest.mark.parametrize(
    ("header", "version"),
    [
        ({"rabbit_version": "3.5.7"}, (3, 5)),
        ({"rabbitmq_version": "4.1.0", "rabbit_version": "4.1.0"}, (4, 1)),
        ({"rabbitmq_version": "3.13.0-rc.1+build"}, (3, 13)),
        ({"rabbit_version": 3}, (0, 0)),
        ({}, (0, 0)),
    ],
)
def test_headers_of_all_versions_are_understood(header: Document, version: tuple[int, int]) -> None:
    assert read(header).rabbit_version == version


def test_a_hash_of_scrypt_is_base64_in_a_file_and_taken_as_it_is_too() -> None:
    own = PasswordHash(f"$scrypt$ln=14,r=8,p=1${'A' * 22}${'B' * 43}", SCRYPT)
    text = hash_to_file(own)
    assert "$" not in text
    assert hash_from_file(text, SCRYPT) == own
    assert hash_from_file(own.text, SCRYPT) == own
    assert hash_to_file(PasswordHash(HASH, SHA256)) == HASH
    assert hash_from_file(HASH, SHA256) == PasswordHash(HASH, SHA256)


@pytest.mark.parametrize(("text", "algorithm"), [("%", SHA256), ("%", SCRYPT), (HASH, "rot13")])
def test_a_hash_that_cannot_be_one_is_refused(text: str, algorithm: str) -> None:
    with pytest.raises(ValueError, match=r"is not base64|is not one of"):
        hash_from_file(text, algorithm)


def test_a_large_file_is_decoded_an_item_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of millions of keys took 3 s, in which nobody was served."""
    decode = msgspec.json.decode
    sizes: list[int] = []

    def counted(data: bytes, **options: Any) -> Any:
        sizes.append(len(data))
        return decode(data, **options)

    monkeypatch.setattr(msgspec.json, "decode", counted)
    document = {"queues": [queue(f"q{at:06}") for at in range(5000)]} | {f"more {at}": {"x": 1} for at in range(5000)}
    assert len(read(document).queues) == 5000
    assert max(sizes) <= len(json.dumps(queue("q000000"))) + 1


@pytest.mark.parametrize("value", [{"a": "x" * ITEM_BYTES_MAX}, [0] * (ITEM_VALUES_MAX + 1)])
def test_an_item_has_a_maximum_size(value: Any) -> None:
    with pytest.raises(ItemTooLarge) as refused:
        read({"later": [1, value], "queues": "wrong"})
    assert refused.value.problems == ["later[1]: more than 5242880 bytes or 100000 values, the maximum of an item"]


@pytest.mark.parametrize("last", [[], [queue("b")]])
def test_of_a_section_that_occurs_twice_the_last_one_counts(last: list[Document]) -> None:
    """As of every key: RabbitMQ's decoder makes a map of the object."""
    first = json.dumps([queue("a"), {"name": 5}, queue("c")])
    data = f'{{"queues": {first}, "queues": "wrong", "queues": {json.dumps(last)}}}'
    assert [item.name for _, item in read(data.encode()).queues] == [each["name"] for each in last]
    assert refusal(f'{{"queues": {json.dumps(last)}, "queues": {{}}}}'.encode()) == ["queues: must be an array"]
