"""The fast method codec against the grammar, over every method with random arguments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp import codec
from warren.amqp.errors import ConnectionException
from warren.amqp.field_table import encode_table
from warren.amqp.methods import METHODS, MethodSpec, QueueDeclare
from warren.amqp.specification import Frame, MethodPayload, RawFrame

from .wire import (
    REFUSED,
    any_method,
    damaged,
    every_small_damage,
    exact,
    fast_outcome,
    methods_of,
    octets,
    reference_outcome,
    shorts,
    thorough,
)


def decode(payload: bytes) -> Any:
    return codec.decode_method(payload, 0, len(payload))


def assert_same_verdict(payload: bytes) -> None:
    fast = fast_outcome(lambda: decode(payload))
    assert fast == reference_outcome(lambda: MethodPayload.parse(payload)), payload.hex()


@pytest.mark.parametrize("spec", METHODS.values(), ids=lambda spec: spec.name)
def test_both_codecs_write_the_same_bytes_and_read_the_same_method(spec: MethodSpec) -> None:
    @thorough(25)
    @given(methods_of(spec))
    def check(method: Any) -> None:
        payload = codec.encode_method(method)
        assert payload == MethodPayload.build(method)
        assert exact(decode(payload)) == exact(MethodPayload.parse(payload)) == exact(method)

    check()


@pytest.mark.parametrize("spec", METHODS.values(), ids=lambda spec: spec.name)
def test_damaged_arguments_are_the_same_method_to_both_or_refused_by_both(spec: MethodSpec) -> None:
    @thorough(25)
    @given(damaged(methods_of(spec).map(codec.encode_method)))
    def check(payload: bytes) -> None:
        assert_same_verdict(payload)

    check()


def test_every_truncation_and_single_byte_change_of_a_queue_declare_is_judged_alike() -> None:
    arguments = encode_table({"x-max-length": 10, "x-dead-letter-exchange": "dlx"})
    for variant in every_small_damage(
        codec.encode_method(QueueDeclare(0, "caf\u00e9", False, True, False, True, False, arguments))
    ):
        assert_same_verdict(variant)


@thorough(150)
@given(any_method, st.binary(min_size=1, max_size=3))
def test_bytes_behind_the_last_argument_are_refused(method: Any, rest: bytes) -> None:
    payload = codec.encode_method(method) + rest
    assert fast_outcome(lambda: decode(payload)) == REFUSED
    assert_same_verdict(payload)


@thorough(100)
@given(any_method, st.binary(max_size=8), st.binary(max_size=8))
def test_a_method_is_read_in_place_whatever_stands_around_it(method: Any, before: bytes, after: bytes) -> None:
    payload = codec.encode_method(method)
    found = codec.decode_method(before + payload + after, len(before), len(before) + len(payload))
    assert exact(found) == exact(method)


@thorough(100)
@given(any_method, st.binary(max_size=8), st.data())
def test_what_stands_behind_the_end_never_fills_missing_arguments(
    method: Any, after: bytes, data: st.DataObject
) -> None:
    payload = codec.encode_method(method)
    end = data.draw(st.integers(0, len(payload)))
    in_place = fast_outcome(lambda: codec.decode_method(payload + after, 0, end))
    assert in_place == fast_outcome(lambda: decode(payload[:end]))


@thorough(150)
@given(shorts, shorts, st.binary(max_size=12))
def test_an_unknown_method_id_is_refused_with_503(class_id: int, method_id: int, arguments: bytes) -> None:
    payload = class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big") + arguments
    assert_same_verdict(payload)
    if class_id << 16 | method_id not in METHODS:
        with pytest.raises(ConnectionException) as refusal:
            decode(payload)
        assert refusal.value.reply_code == 503


@thorough(100)
@given(any_method, shorts)
def test_a_method_frame_is_the_frame_of_the_grammar(method: Any, channel: int) -> None:
    assert codec.method_frame(channel, method) == Frame.build({"type": 1, "channel": channel, "payload": method})


@thorough(100)
@given(octets, shorts, st.binary(max_size=64))
def test_a_frame_is_the_frame_of_the_grammar(frame_type: int, channel: int, payload: bytes) -> None:
    expected = RawFrame.build({"type": frame_type, "channel": channel, "payload": payload})
    assert codec.frame(frame_type, channel, payload) == expected
