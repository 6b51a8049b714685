"""The bytes of messages and acks, and frames found in a buffer. amqp_client/frames.py."""

from __future__ import annotations

from struct import unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp import methods
from warren.amqp.codec import decode_method
from warren.amqp_client import frames


def test_an_ack_has_21_bytes() -> None:
    assert len(frames.ack(1, 2**63, multiple=True)) == frames.ACK_BYTES


def test_a_name_above_255_bytes_is_refused() -> None:
    data = frames.publish_method(1, "x", "ü" * 127, mandatory=True)
    assert decode_method(data, 7, len(data) - 1) == methods.BasicPublish(
        0, "x", "ü" * 127, mandatory=True, immediate=False
    )
    with pytest.raises(ValueError, match="256 bytes"):
        frames.publish_method(1, "x", "ü" * 128)


@given(size=st.integers(0, 20_000), frame_max=st.sampled_from([0, 4096, 8192, 131072]))
def test_a_published_message_is_whole_frames_with_its_body_split_at_frame_max(size: int, frame_max: int) -> None:
    body = bytes(index & 255 for index in range(size))
    message = frames.publish(1, "x", "key", body, frame_max_bytes=frame_max)
    found = list(frames.frames(message, 0, len(message)))
    assert found[-1].end == len(message)
    assert [one.kind for one in found[:2]] == [methods.FRAME_METHOD, methods.FRAME_HEADER]
    assert unpack_from(">Q", message, found[1].start + 11)[0] == size
    assert b"".join(message[one.start + 7 : one.end - 1] for one in found[2:]) == body
    assert all(one.end - one.start <= (frame_max or len(message)) for one in found)


def test_properties_come_in_the_order_of_their_flags() -> None:
    encoded = frames.encode_properties(headers={"a": True}, persistent=True, correlation_id="c", reply_to="r")
    assert encoded == b"\x36\x00" + b"\0\0\0\x04\x01at\x01" + b"\x02" + b"\x01c" + b"\x01r"


def test_priority_and_expiration_stand_where_their_flags_say() -> None:
    encoded = frames.encode_properties(persistent=True, priority=0, reply_to="r", expiration="60000")
    assert encoded == b"\x1b\x00" + b"\x02" + b"\x00" + b"\x01r" + b"\x0560000"


def test_frames_stop_at_the_incomplete_one() -> None:
    data = frames.ack(1, 1, multiple=False) * 3
    assert [one.end for one in frames.frames(data, 0, len(data) - 1)] == [21, 42]


def test_a_wrong_end_octet_is_an_error() -> None:
    data = bytearray(frames.ack(1, 1, multiple=False))
    data[-1] = 0
    with pytest.raises(frames.FrameFormatError, match="0xCE"):
        frames.maybe_frame(data, 0, len(data))
