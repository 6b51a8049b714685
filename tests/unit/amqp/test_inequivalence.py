"""The texts of refused redeclarations: inequivalence (1), (2). Unmarked ones were seen on RabbitMQ 3.10.8."""

from __future__ import annotations

from decimal import Decimal

import pytest

from warren.amqp.errors import ChannelException
from warren.amqp.field_table import EMPTY_TABLE, Timestamp, encode_table, with_length
from warren.amqp.inequivalence import check_argument, check_flag, check_text


def entry(value: bytes) -> bytes:
    """Encode a table with the one argument ``a``."""
    return with_length(b"\x01a" + value)


TEN = [b"b\x0a", b"B\x0a", b"s\x00\x0a", b"u\x00\x0a", b"I\x00\x00\x00\x0a", b"i\x00\x00\x00\x0a"]
TEN += [b"l" + bytes(7) + b"\x0a", b"L" + bytes(7) + b"\x0a"]


@pytest.mark.parametrize("received", TEN)
@pytest.mark.parametrize("current", TEN)
def test_integers_are_equal_across_their_widths(received: bytes, current: bytes) -> None:
    check_argument("queue", "q", "/", "a", entry(received), entry(current))


@pytest.mark.parametrize("value", ["text", b"\xff", True, 1.5, None, Timestamp(5), [1, "a"], {"k": {}}, 2**40])
def test_equal_arguments_pass(value: object) -> None:
    check_argument("queue", "q", "/", "a", encode_table({"a": value}), encode_table({"b": 1, "a": value}))
    check_argument("queue", "q", "/", "absent", encode_table({"a": value}), EMPTY_TABLE)


@pytest.mark.parametrize(
    ("received", "current", "text"),
    [
        ({"a": 20}, {"a": 10}, "received '20' but current is '10'"),
        ({"a": 2**40}, {"a": 10}, "received '1099511627776' but current is '10'"),
        ({}, {"a": 10}, "received none but current is the value '10' of type 'signedint'"),
        ({"a": 10}, {}, "received the value '10' of type 'signedint' but current is none"),
        ({"a": 2**40}, {}, "received the value '1099511627776' of type 'long' but current is none"),
        ({"a": False}, {"a": True}, "received 'false' but current is 'true'"),
        ({}, {"a": True}, "received none but current is the value 'true' of type 'bool'"),
        ({"a": "b"}, {"a": "a"}, "received 'b' but current is 'a'"),
        ({"a": None}, {"a": "a"}, "received none but current is 'a'"),
        ({"a": Timestamp(1577836800)}, {"a": "a"}, "received '1577836800' but current is 'a'"),
        (
            {"a": {"k": "v", "n": 5}},
            {"a": "a"},
            """received '[{<<"k">>,longstr,<<"v">>},{<<"n">>,signedint,5}]' but current is 'a'""",
        ),
        (
            {"a": ["k", 5, None]},
            {"a": "a"},
            """received '[{longstr,<<"k">>},{signedint,5},{void,undefined}]' but current is 'a'""",
        ),
        # Not seen: values that clients could not be made to send.
        ({"a": 1}, {"a": True}, "received '1' but current is 'true'"),
        ({"a": 1.0}, {"a": 1}, "received '1.0' but current is '1'"),
        ({"a": Decimal("1.5")}, {"a": 1}, "received '{1,15}' but current is '1'"),
        ({"a": [b"x", 2**40, 0.5, {}]}, {"a": 1}, None),
    ],
)
def test_different_arguments_are_refused_in_the_words_of_rabbitmq(
    received: dict[str, object], current: dict[str, object], text: str | None
) -> None:
    with pytest.raises(ChannelException) as refusal:
        check_argument("queue", "q", "/", "a", encode_table(received), encode_table(current))
    if text is None:
        text = "received '[{binary,<<\"x\">>},{long,1099511627776},{double,0.5},{table,[]}]' but current is '1'"
    assert (refusal.value.reply_code, refusal.value.explanation) == (
        406,
        f"inequivalent arg 'a' for queue 'q' in vhost '/': {text}",
    )


def test_flags_and_texts_print_bare() -> None:
    check_flag("queue", "q", "/", "durable", True, True)
    check_text("exchange", "x", "/", "type", "direct", "direct")
    with pytest.raises(ChannelException) as flag:
        check_flag("queue", "q", "v", "durable", True, False)
    assert flag.value.explanation == (
        "inequivalent arg 'durable' for queue 'q' in vhost 'v': received 'true' but current is 'false'"
    )
    with pytest.raises(ChannelException) as text:
        check_text("exchange", "x", "/", "type", "topic", "direct")
    assert text.value.explanation == (
        "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'topic' but current is 'direct'"
    )
