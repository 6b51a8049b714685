"""The parameter of a shovel: the sentences of RabbitMQ 3.10.8, in its order."""

from __future__ import annotations

from typing import Any

import pytest

from warren.amqp_client.client_errors import BrokerError
from warren.links.shovel import parse, validate

VALID = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://h", "dest-queue": "b"}
DELETE_AFTER = 'a number greater than or equal to 0, "never" or "queue-length"'


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dest-queue-args": {"x-max-length": 5}, "src-queue-args": [], "src-consumer-args": {"x-priority": 5}},
        {"delete-after": 5, "prefetch-count": 4, "add-forward-headers": True, "add-timestamp-header": True},
        {"src-delete-after": "queue-length", "ack-mode": "no-ack"},
        {"src-protocol": "amqp091", "dest-protocol": "local", "src-predeclared": True, "dest-predeclared": False},
        {"publish-properties": {"type": "x", "delivery_mode": 2}, "reconnect-delay": 2.5, "src-prefetch-count": 2.5},
        {"src-uri": ["amqp://u:p@h", "amqps://k"]},
    ],
)
def test_what_rabbitmq_takes_is_valid(changes: dict[str, Any]) -> None:
    assert validate("t", VALID | changes) == []
    parse("t", VALID | changes)


def test_uris_are_bounded_in_number_and_length_for_they_are_looked_at_in_one_go() -> None:
    assert validate("t", VALID | {"src-uri": ["amqp://h"] * 100}) == []
    assert validate("t", VALID | {"src-uri": ["amqp://h"] * 101}) == ["src-uri has more than 100 URIs"]
    long = "amqp://h/?x=" + "v" * 8180
    assert validate("t", VALID | {"src-uri": [long] * 7}) == []
    assert validate("t", VALID | {"src-uri": [long] * 9}) == ["src-uri has more than 65536 characters"]
    token = "t" * ((16 << 10) - len("amqp://u:@h"))
    assert validate("t", VALID | {"src-uri": f"amqp://u:{token}@h"}) == []
    (problem,) = validate("t", VALID | {"src-uri": f"amqp://u:{token}t@h"})
    assert problem == '"amqp://h" not a valid URI: {it has more than 16384 characters,"amqp://h"}'


def test_what_is_missing_is_named() -> None:
    nothing = [
        "Must specify 'src-exchange' or 'src-queue'",
        'Key "dest-uri" not found in t',
        'Key "src-uri" not found in t',
    ]
    assert validate("t", {}) == nothing
    assert validate("t", []) == nothing
    assert validate("t", 3) == ["t not a list 3"]
    assert validate("t", {"src-uri": "amqp://", "src-exchange": "x", "dest-uri": "amqp://"}) == []


def test_everything_wrong_at_once_comes_in_the_order_of_rabbitmq() -> None:
    value = {
        "src-uri": "amqp://",
        "dest-uri": "amqp://",
        "src-queue": 1,
        "src-exchange": 2,
        "src-exchange-key": 3,
        "prefetch-count": "4",
        "src-prefetch-count": "5",
        "delete-after": "6",
        "src-delete-after": "7",
        "dest-queue": 8,
        "dest-exchange": 9,
        "dest-exchange-key": 10,
        "add-forward-headers": 11,
        "add-timestamp-header": 12,
        "dest-add-forward-headers": 13,
        "dest-add-timestamp-header": 14,
        "publish-properties": 15,
        "dest-publish-properties": 16,
        "ack-mode": 17,
        "reconnect-delay": "18",
        "zz": 19,
        "aa": 20,
    }
    assert validate("t", value) == [
        "Cannot specify 'src-exchange' and 'src-queue'",
        "Cannot specify 'dest-exchange' and 'dest-queue'",
        'Unrecognised terms [{<<"aa">>,20},{<<"zz">>,19}] in t',
        "dest-publish-properties not a list 16",
        "publish-properties not a list 15",
        "dest-add-timestamp-header should be boolean, actually was 14",
        "dest-add-forward-headers should be boolean, actually was 13",
        "add-timestamp-header should be boolean, actually was 12",
        "add-forward-headers should be boolean, actually was 11",
        "dest-queue should be binary, actually was 8",
        "dest-exchange-key should be binary, actually was 10",
        "dest-exchange should be binary, actually was 9",
        f'src-delete-after should be {DELETE_AFTER}, actually was <<"7">>',
        f'delete-after should be {DELETE_AFTER}, actually was <<"6">>',
        'src-prefetch-count should be a number, actually was <<"5">>',
        'prefetch-count should be a number, actually was <<"4">>',
        "src-queue should be binary, actually was 1",
        "src-exchange-key should be binary, actually was 3",
        "src-exchange should be binary, actually was 2",
        "ack-mode should be binary, actually was 17",
        'reconnect-delay should be a number, actually was <<"18">>',
    ]


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        (
            {"ack-mode": "zzz"},
            ['ack-mode should be one of [<<"no-ack">>,<<"on-publish">>,<<"on-confirm">>], actually was <<"zzz">>'],
        ),
        ({"src-delete-after": -2}, [f"src-delete-after should be {DELETE_AFTER}, actually was -2"]),
        ({"src-delete-after": 2.5}, [f"src-delete-after should be {DELETE_AFTER}, actually was 2.5"]),
        ({"src-delete-after": True}, [f"src-delete-after should be {DELETE_AFTER}, actually was true"]),
        (
            {"src-delete-after": 5, "ack-mode": "no-ack"},
            ["Cannot specify 'no-ack' and numerical 'delete-after'"],
        ),
        ({"src-queue-args": [1]}, ["Unrecognised terms [1] in src-queue-args"]),
        ({"src-queue-args": 4}, ["src-queue-args not a list 4"]),
        (
            {"dest-queue-args": {"n": 1 << 70}},
            ["dest-queue-args holds a number or key that does not fit into a field table"],
        ),
        ({"src-uri": 5}, ["src-uri should be list, actually was 5"]),
        ({"src-uri": ["amqp://", 5]}, ["src-uri should be list, actually was 5"]),
        (
            {"src-uri": "http://x"},
            ['"http://x" not a valid URI: {{unexpected_uri_scheme,"http"},"http://x"}'],
        ),
        ({"src-uri": "x"}, ['"x" not a valid URI: {{unable_to_parse_uri,no_scheme},"x"}']),
        (
            {"dest-publish-properties": {"delivery_mode": "x", "foo": 1}},
            [
                'Unrecognised terms [{<<"foo">>,1}] in dest-publish-properties',
                'delivery_mode should be a number, actually was <<"x">>',
            ],
        ),
        (
            {"dest-publish-properties": {"headers": {"a": 1}}},
            ['Unrecognised terms [{<<"headers">>,#{<<"a">> => 1}}] in dest-publish-properties'],
        ),
        (
            {"dest-publish-properties": {"priority": 256}},
            ["priority should be a number from 0 to 255, actually was 256"],
        ),
        ({"dest-publish-properties": {"type": "é" * 128}}, ["type is longer than 255 bytes"]),
        ({"ümlaut": None}, ['Unrecognised terms [{<<"ümlaut"/utf8>>,null}] in t']),
    ],
)
def test_each_mistake_has_its_sentence(changes: dict[str, Any], sentences: list[str]) -> None:
    assert validate("t", VALID | changes) == sentences
    with pytest.raises(BrokerError):
        parse("t", VALID | changes)


@pytest.mark.parametrize("name", ["src-exchange-key", "dest-queue", "src-queue"])
def test_names_have_room_on_the_wire(name: str) -> None:
    assert validate("t", VALID | {name: "n" * 255}) == []
    assert validate("t", VALID | {name: "n" * 256}) == [f"{name} is longer than 255 bytes"]


def test_no_sentence_repeats_a_password() -> None:
    value = VALID | {"src-uri": "amqp://u:s3cret@h/a/b", "dest-uri": ["amqp://u:s3cret@h?heartbeat=x"]}
    sentences = validate("t", value)
    assert len(sentences) == 2
    assert "s3cret" not in repr(sentences)


@pytest.mark.parametrize(
    "value",
    [
        VALID | {"scr-uri": "amqp://u:s3cret@h/v"},
        VALID | {"src-uri": {"uri": "amqp://u:s3cret@h/v"}},
        VALID | {"prefetch-count": "amqp://u:s3cret@h/v"},
        "amqp://u:s3cret@h/v",
    ],
)
def test_no_sentence_repeats_a_password_that_is_in_the_wrong_place(value: object) -> None:
    (problem,) = validate("t", value)
    assert "s3cret" not in problem
    assert '<<"amqp://h/v">>' in problem


def test_who_sets_a_shovel_needs_the_vhost_of_a_uri_without_host() -> None:
    value = VALID | {"src-uri": ["amqp:///mine", "amqp:///theirs"], "dest-uri": "amqp://h/theirs"}
    assert validate("t", value, user="guest", may_connect=lambda vhost: vhost == "mine") == [
        'user "guest" may not connect to vhost "theirs"'
    ]
    assert validate("t", VALID, user="guest", may_connect=lambda vhost: vhost == "/") == []


def test_a_definition_has_the_defaults_of_rabbitmq() -> None:
    definition = parse("t", VALID)
    assert (definition.ack_mode, definition.prefetch_count, definition.reconnect_delay_s) == ("on-confirm", 1000, 5.0)
    assert (definition.delete_after, definition.src_uris[0].vhost) == ("never", "/")


def test_the_newer_name_of_a_setting_wins() -> None:
    definition = parse("t", VALID | {"prefetch-count": 1, "src-prefetch-count": 2, "delete-after": 3})
    assert (definition.prefetch_count, definition.delete_after) == (2, 3)


def test_numbers_out_of_the_range_of_the_protocol_are_brought_into_it() -> None:
    assert parse("t", VALID | {"src-prefetch-count": 1 << 20}).prefetch_count == 0xFFFF
    assert parse("t", VALID | {"src-prefetch-count": -3}).prefetch_count == 0
    assert parse("t", VALID | {"reconnect-delay": -1}).reconnect_delay_s == 0.0
