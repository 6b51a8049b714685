"""The argument bytes of basic.publish are decoded as every method is, whatever a client sends."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Harness

from warren.amqp import methods as m
from warren.amqp.codec import decode_method, encode_method
from warren.amqp.errors import ConnectionException
from warren.amqp.field_table import encode_table
from warren.amqp.methods import BASIC_PUBLISH
from warren.channels.consuming import REPLY_TO_NAME, REPLY_TO_PREFIX
from warren.channels.publisher import decoded_arguments

WHOLE = encode_method(m.BasicPublish(7, "some.exchange", "a.key.é", True, True))[4:]
ALL = [WHOLE[:end] for end in range(len(WHOLE) + 1)] + [
    WHOLE + b"\x00",
    b"\x00\x00\x00\x00\x00",
    b"\x00\x00\x00\xff",
    b"\x00\x00\x01\xff\x00\x00",
    b"\x00\x00\x00\x01\xfe\x03",
    b"\x00\x00\x03abc\x00\xff",
]


def outcome(decode: object, *given: object) -> object:
    try:
        found = decode(*given)  # type: ignore[operator]
    except ConnectionException as error:
        return error.reply_code
    return found[1:]  # the ticket has no meaning


@pytest.mark.parametrize("arguments", ALL, ids=range(len(ALL)))
def test_arguments_mean_what_they_mean_in_any_method(arguments: bytes) -> None:
    payload = BASIC_PUBLISH.to_bytes(4, "big") + arguments
    assert outcome(decoded_arguments, arguments) == outcome(decode_method, payload, 0, len(payload))


PROPERTIES = [
    {},
    {"correlation_id": "7", "priority": 3, "content_type": "text/plain", "expiration": "60000", "app_id": "é"},
    {"headers": encode_table({"BCC": ["second"], "x": 1}), "timestamp": 9},
]


@pytest.mark.parametrize("others", PROPERTIES, ids=("none", "many", "bcc"))
def test_a_direct_reply_to_is_replaced_and_all_else_is_as_it_was(others: dict[str, Any]) -> None:
    harness = Harness()
    caller, service = harness.channel(), harness.channel()
    service.declare("service")
    service.declare("second")
    caller.consume(REPLY_TO_NAME, "t", no_ack=True)
    for name in (REPLY_TO_NAME, f"{REPLY_TO_NAME}2", "my.replies", ""):
        caller.publish("", "service", b"body", **others, reply_to=name)
        got = service.get("service")
        assert got is not None and got.content is not None
        assert got.content.body == b"body"
        found = got.content.properties
        address, found.reply_to = found.reply_to, None
        assert address is not None
        if name == REPLY_TO_NAME:
            assert address.startswith(REPLY_TO_PREFIX)
            service.publish("", address, b"answer")
            (answer,) = caller.deliveries()
            assert answer.content is not None and answer.content.body == b"answer"
        else:
            assert address == name
        caller.publish("", "service", b"body", **others)
        without = service.get("service")
        assert without is not None and without.content is not None
        assert without.content.properties.encode() == found.encode()
