"""Methods as bytes worked out by hand from the specification: neither codec is asked what is right."""

from __future__ import annotations

from typing import Any

import pytest
from librt.strings import BytesWriter, write_i16_be

from warren.amqp import methods as m
from warren.amqp.codec import decode_method, encode_method, frame, method_frame, wire_short
from warren.amqp.errors import ConnectionException
from warren.amqp.methods import (
    HEARTBEAT_FRAME,
    METHODS,
    PROTOCOL_HEADER,
    AccessRequest,
    BasicAck,
    BasicDeliver,
    BasicPublish,
    ChannelOpen,
    ConnectionClose,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionUpdateSecret,
    ExchangeUnbindOk,
    QueueDeclare,
    QueueDeclareOk,
    TxSelect,
)
from warren.amqp.specification import MethodPayload, ProtocolHeader, parse_frames

EXAMPLES: list[tuple[Any, str]] = [
    (TxSelect(), "005a 000a"),
    (ExchangeUnbindOk(), "0028 0033"),
    (ChannelOpen(""), "0014 000a 00"),
    (ConnectionTune(2047, 131072, 60), "000a 001e 07ff 00020000 003c"),
    (ConnectionTune(65535, 0xFFFFFFFF, 0), "000a 001e ffff ffffffff 0000"),
    (BasicAck(1, False), "003c 0050 0000000000000001 00"),
    (BasicAck(0xFEDCBA9876543210, True), "003c 0050 fedcba9876543210 01"),
    # ticket, "x", "a.b", bits: mandatory lowest, immediate next
    (BasicPublish(0, "x", "a.b", True, False), "003c 0028 0000 0178 03612e62 01"),
    (BasicPublish(0, "x", "a.b", False, True), "003c 0028 0000 0178 03612e62 02"),
    # the bit octet stands where the bits stand: here between tag and exchange
    (BasicDeliver("c", 7, True, "", "k"), "003c 003c 0163 0000000000000007 01 00 016b"),
    # five bits in one octet: exclusive 1, passive 2, active 4, write 8, read 16
    (AccessRequest("/", True, False, True, False, True), "001e 000a 012f 15"),
    # durable 2, exclusive 4, no_wait 16; arguments: {"x-expires": I 60000}
    (
        QueueDeclare(0, "q", False, True, True, False, True, bytes.fromhex("0000000f09782d65787069726573490000ea60")),
        "0032 000a 0000 0171 16 0000000f 09782d65787069726573 49 0000ea60",
    ),
    (QueueDeclareOk("caf\u00e9", 1, 0), "0032 000b 05636166c3a9 00000001 00000000"),
    (ConnectionClose(320, "bye", 0, 0), "000a 0032 0140 03627965 0000 0000"),
    (
        ConnectionStart(0, 9, {"product": "W"}, b"PLAIN", b"en_US"),
        "000a 000a 00 09 0000000e 0770726f64756374 53 00000001 57 00000005 504c41494e 00000005 656e5f5553",
    ),
    (
        ConnectionStartOk({}, "PLAIN", b"\0u\0p", "en_US"),
        "000a 000b 00000000 05504c41494e 00000004 00750070 05656e5f5553",
    ),
    (ConnectionUpdateSecret(b"s", ""), "000a 0046 00000001 73 00"),
]


@pytest.mark.parametrize(("method", "expected"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_a_method_has_exactly_these_bytes(method: Any, expected: str) -> None:
    payload = bytes.fromhex(expected)
    assert encode_method(method) == payload
    assert decode_method(payload, 0, len(payload)) == method
    assert MethodPayload.build(method) == payload
    assert MethodPayload.parse(payload) == method


def test_a_method_frame_is_type_channel_size_payload_end() -> None:
    assert method_frame(0x0102, TxSelect()) == bytes.fromhex("01 0102 00000004 005a000a ce")


@pytest.mark.parametrize("number", [0, 1, 0x7FFF, 0x8000, 0xFFFF])
def test_an_unsigned_short_is_written_as_its_sixteen_bits(number: int) -> None:
    out = BytesWriter()
    write_i16_be(out, wire_short(number))
    assert out.getvalue() == number.to_bytes(2, "big")


def test_a_body_frame_of_no_bytes_is_eight_bytes() -> None:
    assert frame(3, 1, b"") == bytes.fromhex("03 0001 00000000 ce")


def test_the_heartbeat_frame_parses_as_type_8_on_channel_0_with_nothing_in_it() -> None:
    (parsed,) = parse_frames(HEARTBEAT_FRAME)
    assert (parsed.type, parsed.channel, parsed.payload) == (8, 0, None)


def test_the_protocol_header_names_revision_0_9_1() -> None:
    header = ProtocolHeader.parse(PROTOCOL_HEADER)
    assert (header.protocol_id, header.major, header.minor, header.revision) == (0, 0, 9, 1)


def test_method_ids_are_unique_and_their_count_is_that_of_0_9_1_with_rabbitmqs_additions() -> None:
    by_class: dict[int, int] = {}
    for spec in METHODS.values():
        by_class[spec.class_id] = by_class.get(spec.class_id, 0) + 1
    assert by_class == {10: 14, 20: 6, 30: 2, 40: 8, 50: 10, 60: 18, 85: 2, 90: 6}
    assert len({spec.name for spec in METHODS.values()}) == len(METHODS)


@pytest.mark.parametrize(
    ("packed", "name"),
    [
        (m.CONNECTION_TUNE_OK, "connection.tune-ok"),
        (m.CONNECTION_OPEN, "connection.open"),
        (m.CONNECTION_CLOSE, "connection.close"),
        (m.CONNECTION_CLOSE_OK, "connection.close-ok"),
        (m.CHANNEL_CLOSE, "channel.close"),
        (m.CHANNEL_CLOSE_OK, "channel.close-ok"),
        (m.BASIC_PUBLISH, "basic.publish"),
        (m.BASIC_DELIVER, "basic.deliver"),
        (m.BASIC_GET_OK, "basic.get-ok"),
        (m.BASIC_ACK, "basic.ack"),
        (m.BASIC_NACK, "basic.nack"),
        (m.TX_COMMIT, "tx.commit"),
    ],
)
def test_an_id_written_without_the_codec_is_that_of_its_method(packed: int, name: str) -> None:
    assert METHODS[packed].name == name


def test_an_ack_and_a_nack_have_payloads_of_13_bytes_and_a_frame_without_payload_has_the_overhead() -> None:
    assert (
        len(encode_method(m.BasicAck(1, False)))
        == len(encode_method(m.BasicNack(1, multiple=False, requeue=False)))
        == m.ACK_BYTES
    )
    assert len(frame(m.FRAME_BODY, 1, b"")) == m.FRAME_HEAD_BYTES + 1 == m.FRAME_OVERHEAD_BYTES


def test_unused_high_bits_of_a_bit_octet_are_ignored() -> None:
    payload = bytes.fromhex("003c 0050 0000000000000001 fe")
    assert decode_method(payload, 0, len(payload)) == BasicAck(1, False)


@pytest.mark.parametrize(
    ("payload", "reply_code", "text"),
    [
        ("", 502, "shorter than a method id"),
        ("005a00", 502, "shorter than a method id"),
        ("005a 0063", 503, "unimplemented method"),
        ("ffff ffff", 503, "unimplemented method"),
        ("005a 000a 00", 502, "arguments of tx.select do not fill their frame"),
        ("003c 0050 0000000000000001", 502, "arguments of basic.ack"),
        ("003c 0050 00000000000001", 502, "arguments of basic.ack"),
        ("0014 000a", 502, "a short string exceeds its frame"),
        ("0014 000a 02 61", 502, "a short string exceeds its frame"),
        ("0014 000a 01 ff", 501, "Malformed UTF-8 in shortstr"),
        ("000a 0014 7fffffff 61", 502, "arguments of connection.secure"),
        ("000a 0014 ffffffff", 502, "arguments of connection.secure"),
        ("0028 0014 0000 0178", 502, "arguments of exchange.delete"),
        # a table longer than the frame, and one with a byte too many inside
        ("0032 000a 0000 0171 00 00000001", 502, "arguments of queue.declare"),
        ("0032 000a 0000 0171 00 00000001 00", 502, "malformed field table"),
        ("0032 000a 0000 0171 00 00000003 01ff56", 501, "Malformed UTF-8 in shortstr"),
    ],
)
def test_a_malformed_method_is_refused_with(payload: str, reply_code: int, text: str) -> None:
    data = bytes.fromhex(payload)
    with pytest.raises(ConnectionException) as refusal:
        decode_method(data, 0, len(data))
    assert refusal.value.reply_code == reply_code
    assert text in refusal.value.explanation


@pytest.mark.parametrize(
    "method",
    [
        ConnectionTune(65536, 0, 0),
        ConnectionTune(-1, 0, 0),
        QueueDeclareOk("q", 1 << 32, 0),
        QueueDeclareOk("q", -1, 0),
        BasicAck(1 << 64, False),
        BasicAck(-1, False),
        ConnectionStart(256, 0, {}, b"", b""),
    ],
)
def test_a_number_that_does_not_fit_is_refused_and_not_cut_off(method: Any) -> None:
    with pytest.raises(OverflowError):
        encode_method(method)
