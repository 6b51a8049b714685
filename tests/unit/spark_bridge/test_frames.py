"""Messages to frames, against the broker's own decoder: frames.py (1) and (2), write_columns.py (1)."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from engine_harness import Harness, split_frames

from warren.amqp import methods as m
from warren.amqp.codec import decode_method
from warren.amqp.properties import BasicProperties, decode_properties
from warren.amqp.publishes import PublishScan, scan_publishes
from warren.spark_bridge import frames
from warren.spark_bridge.frames import FRAME_BYTES_MAX, bounds_of, content_of, encode_publishes, sliced
from warren.spark_bridge.options import OptionError
from warren.spark_bridge.properties import encode_properties
from warren.spark_bridge.schema import TYPED_VALUE
from warren.spark_bridge.write_columns import Field, row_encoder
from warren.spark_bridge.writer_options import write_options

ROOM = FRAME_BYTES_MAX - 8


def decoded(data: bytes) -> list[tuple[m.BasicPublish, BasicProperties, bytes]]:
    """Take encoded publishes apart."""
    found = []
    left = split_frames(data)
    while left:
        (kind, channel, method), (header_kind, header_channel, header) = left[:2]
        assert (kind, channel, header_kind, header_channel) == (1, 1, 2, 1)
        left = left[2:]
        missing = int.from_bytes(header[4:12], "big")
        body = b""
        while len(body) < missing:
            kind, channel, piece = left.pop(0)
            assert (kind, channel) == (3, 1)
            assert 0 < len(piece) <= ROOM
            body += piece
        publish = decode_method(method, 0, len(method))
        assert isinstance(publish, m.BasicPublish)
        found.append((publish, decode_properties(header, 0, len(header)), body))
    return found


def no_properties(count: int) -> pa.Array:
    return encode_properties({}, count)


def whole(messages: pa.Array) -> bytes:
    """Return all frames, once as the elements and once as the buffer says."""
    assert b"".join(messages.to_pylist()) == bytes(content_of(messages))
    sizes = [len(each) for each in messages.to_pylist()]
    assert list(bounds_of(messages)) == [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    return bytes(content_of(messages))


@pytest.mark.parametrize(
    "sizes", [[0], [1], [0, 0], [5, 0, 7], [ROOM], [ROOM + 1], [0, 3 * ROOM, 1, 2 * ROOM + 5, ROOM]]
)
def test_bodies_of_any_size_come_out_as_they_went_in(sizes: list[int]) -> None:
    bodies = [random.randbytes(size) for size in sizes]
    data = whole(encode_publishes("", "q", no_properties(len(sizes)), pa.array(bodies, pa.binary())))
    assert [body for _, _, body in decoded(data)] == bodies
    scan = PublishScan(1 << 24)
    assert scan_publishes(scan, data, 1 << 40, 1 << 40) == len(sizes)


def test_random_messages_are_what_the_broker_decodes() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    for _ in range(30):
        count = chooser.randrange(1, 40)
        exchanges = [chooser.choice(["", "e", "é" * 100, None, "x" * 255]) for _ in range(count)]
        keys = [chooser.choice(["", "k", "a.b.c", None, "y" * 255]) for _ in range(count)]
        bodies = [chooser.randbytes(chooser.choice([0, 1, 50, 5000])) for _ in range(count)]
        types = [chooser.choice([None, "t", "long" * 60]) for _ in range(count)]
        properties = encode_properties({"type": pa.array(types, pa.string())}, count)
        messages = encode_publishes(
            pa.array(exchanges, pa.string()), pa.array(keys, pa.string()), properties, pa.array(bodies, pa.binary())
        )
        found = decoded(whole(messages))
        assert [publish.exchange for publish, _, _ in found] == [each or "" for each in exchanges]
        assert [publish.routing_key for publish, _, _ in found] == [each or "" for each in keys]
        assert [given.type for _, given, _ in found] == types
        assert [body for _, _, body in found] == bodies
        assert not any(publish.mandatory or publish.immediate for publish, _, _ in found)


def test_frames_can_be_smaller_and_messages_mandatory() -> None:
    messages = encode_publishes(
        "e", "k", no_properties(1), pa.array([b"x" * 10_000]), mandatory=True, frame_bytes_max=4096
    )
    data = whole(messages)
    assert max(8 + len(payload) for _, _, payload in split_frames(data)) == 4096
    ((publish, _, body),) = decoded(data)
    assert publish == m.BasicPublish(0, "e", "k", mandatory=True, immediate=False)
    assert len(body) == 10_000


def test_a_slice_of_a_column_is_encoded_like_the_whole_of_it() -> None:
    bodies = pa.array([b"a", b"bb", b"ccc", b"dddd"]).slice(1, 2)
    keys = pa.array(["1", "2", "3", "4"]).slice(1, 2)
    found = decoded(whole(encode_publishes("", keys, no_properties(2), bodies)))
    assert [(publish.routing_key, body) for publish, _, body in found] == [("2", b"bb"), ("3", b"ccc")]


def test_texts_are_bodies_too() -> None:
    ((_, _, body),) = decoded(whole(encode_publishes("", "q", no_properties(1), pa.array(["é"]))))
    assert body == "é".encode()


def test_no_rows_are_no_messages() -> None:
    assert len(encode_publishes("", "q", no_properties(0), pa.array([], pa.binary()))) == 0


@pytest.mark.parametrize("column", ["exchange", "routing_key"])
def test_a_name_that_is_too_long_is_named_with_its_row(column: str) -> None:
    long = pa.array(["ok", "é" * 128, "ok"])
    names: dict[str, Any] = {"exchange": "", "routing_key": "q", column: long}
    with pytest.raises(ValueError, match=f"{column} of row 1 is longer than 255 bytes"):
        encode_publishes(names["exchange"], names["routing_key"], no_properties(3), pa.array([b"x"] * 3))


def test_a_body_that_is_null_is_named_with_its_row() -> None:
    with pytest.raises(ValueError, match="body of row 2 is null"):
        encode_publishes("", "q", no_properties(3), pa.array([b"", b"x", None]))


def test_a_large_batch_is_cut_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "SLICE_BYTES", 100)
    bodies = pa.array([bytes(size) for size in [0, 60, 40, 1, 500, 99, 1, 0, 1]])
    batch = pa.RecordBatch.from_arrays([bodies], ["body"])
    parts = list(sliced(batch, bodies))
    assert [[len(body) for body in part.column("body").to_pylist()] for part in parts] == [
        [0, 60, 40],
        [1],
        [500],
        [99, 1, 0],
        [1],
    ]
    assert list(sliced(batch.slice(0, 0), bodies.slice(0, 0))) == []


def test_the_broker_takes_what_is_encoded() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    bodies = [bytes(size) for size in [0, 1, 5, ROOM, ROOM + 1, 3 * ROOM]]
    columns = {"type": pa.array(["t", None] * 3), "headers": pa.array(['{"a": [1, "x"]}'] * 6)}
    client.feed(whole(encode_publishes("", "q", encode_properties(columns, 6), pa.array(bodies))))
    for body in bodies:
        found = client.get("q", no_ack=True)
        assert found is not None and found.content is not None
        assert found.content.body == body


# --- columns ----------------------------------------------------------------------------------------------------------

BODY = Field("body", pa.binary())


def encoder_of(*fields: Field, **options: str) -> Any:
    return row_encoder(fields, write_options({"queue": "q"} | options, {}))


def test_an_option_wins_over_a_column() -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["v"], "key": [b"k"], "topic": ["t"]})
    fields = [Field(each.name, each.type) for each in batch.schema]
    for options, expected in [
        ({}, ("t", "k")),
        ({"exchange": "e"}, ("e", "k")),
        ({"exchange": "", "routingKey": "r"}, ("", "r")),
        ({"queue": "orders"}, ("", "orders")),
    ]:
        (messages,) = row_encoder(fields, write_options(options, {})).encode(batch)
        ((publish, _, body),) = decoded(whole(messages))
        assert ((publish.exchange, publish.routing_key), body) == (expected, b"v")


def test_messages_are_persistent_unless_a_column_or_an_option_says_otherwise() -> None:
    plain = pa.RecordBatch.from_pydict({"body": [b"x"]})
    with_modes = pa.RecordBatch.from_pydict({"body": [b"x", b"y"], "delivery_mode": pa.array([1, None], pa.int8())})
    for batch, options, expected in [
        (plain, {}, [2]),
        (plain, {"persistent": "false"}, [None]),
        (with_modes, {}, [1, 2]),
        (with_modes, {"persistent": "false"}, [1, None]),
    ]:
        encoder = encoder_of(*[Field(each.name, each.type) for each in batch.schema], **options)
        (messages,) = encoder.encode(batch)
        assert [given.delivery_mode for _, given, _ in decoded(whole(messages))] == expected


def test_messages_are_numbered_through_all_batches_of_a_task() -> None:
    encoder = encoder_of(BODY, messageId="auto")
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y"]})
    found = [
        given.message_id
        for first in (0, 2)
        for messages in encoder.encode(batch, prefix="query/7/0/", first_row=first)
        for _, given, _ in decoded(whole(messages))
    ]
    assert found == [f"query/7/0/{row}" for row in range(4)]


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_time_that_microseconds_do_not_have_is_refused(unit: str) -> None:
    factor = {"s": 1, "ms": 1000}[unit]
    for seconds, fits in ((9_223_372_036_854, True), (9_223_372_036_855, False), (18_446_744_073_710, False)):
        times = pa.array([seconds * factor], pa.timestamp(unit))
        batch = pa.RecordBatch.from_arrays([pa.array([b"x"]), times], ["body", "message_timestamp"])
        encoder = encoder_of(*[Field(each.name, each.type) for each in batch.schema])
        if fits:
            (messages,) = encoder.encode(batch)
            assert [given.timestamp for _, given, _ in decoded(whole(messages))] == [seconds]
        else:
            with pytest.raises(ValueError, match="beyond the year 294246"):
                list(encoder.encode(batch))


def test_only_messages_without_an_id_are_numbered() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y"], "message_id": pa.array(["own", None], pa.large_string())})
    encoder = encoder_of(*[Field(each.name, each.type) for each in batch.schema], messageId="auto")
    (messages,) = encoder.encode(batch, prefix="query/7/0/", first_row=4)
    assert [given.message_id for _, given, _ in decoded(whole(messages))] == ["own", "query/7/0/5"]


def test_what_a_reader_adds_to_a_message_is_left_out() -> None:
    kinds = {"queue": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "redelivered": pa.bool_()}
    encoder = encoder_of(BODY, *[Field(name, kind) for name, kind in kinds.items()])
    assert encoder.properties == ()


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ([Field("key", pa.string())], {}, "no column body"),
        ([BODY, Field("value", pa.binary())], {}, "body and value: only one"),
        ([BODY, Field("colour", pa.string())], {}, "'colour' is no part of a message"),
        ([Field("body", pa.int64())], {}, "must be binary or string"),
        ([BODY, Field("priority", pa.string())], {}, "'priority' is string: it must be an integer"),
        ([BODY, Field("type", pa.int32())], {}, "'type' is int32: it must be a string"),
        ([BODY, Field("headers", pa.map_(pa.string(), pa.int32()))], {}, "'headers' is map"),
        ([BODY, Field("message_timestamp", pa.int64())], {}, "it must be a timestamp"),
    ],
)
def test_columns_that_make_no_message_are_refused(fields: list[Field], options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        encoder_of(*fields, **options)


def test_unknown_columns_can_be_left_out_and_headers_are_in_any_format() -> None:
    typed = pa.map_(pa.string(), TYPED_VALUE)
    for kind in (pa.map_(pa.string(), pa.string()), typed, pa.string()):
        encoder_of(BODY, Field("colour", pa.int8()), Field("headers", kind), ignoreUnknownColumns="true")


def test_somebody_has_to_say_where_messages_go() -> None:
    with pytest.raises(OptionError, match="nothing says where messages go"):
        row_encoder([BODY], write_options({}, {}))
    with pytest.raises(OptionError, match="nothing says where messages go"):
        row_encoder([BODY], write_options({"exchange": ""}, {}))
    row_encoder([BODY], write_options({"exchange": "fanout"}, {}))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"exchnge": "e"}, "did you mean exchange"),
        ({"subscribe": "q"}, "unknown option subscribe"),
        ({"queue": "q", "exchange": "e"}, "option queue"),
        ({"queue": ""}, "no queue is named"),
        ({"exchange": "x" * 256}, "longer than 255"),
        ({"delivery": "maybe"}, "staged, confirms"),
        ({"delivery": "confirms", "partBytes": "1m"}, "option partBytes"),
        ({"maxInFlight": "10"}, "option maxInFlight"),
        ({"partBytes": "1g"}, "16m at most"),
        ({"path": "x"}, "option path"),
        ({"messageId": "yes"}, "none, auto"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        write_options(options, {})


def test_the_uri_says_where_to_publish() -> None:
    made = write_options({"uri": "amqps://u:p@host/v", "delivery": "confirms"}, {})
    assert (made.amqp_host, made.amqp_port, made.amqp_tls) == ("host", 5671, True)
    assert write_options({}, {"AMQP_URI": "amqp://other:123"}).amqp_port == 123
    assert "secret" not in repr(write_options({"password": "secret"}, {}))
