"""Rows out of messages. decoder (1) to (4)."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from unit.spark_bridge.chunks import Sent, chunk_of
from warren.lake import decoder, kinds
from warren.lake.body_schema import BodySchema, schema_of
from warren.lake.decoder import Decoded, FieldDecoder, MessageDecoder, column_of
from warren.lake.table import Change
from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.columns import Context, read_chunks, to_record_batches


def messages(schema: pa.Schema, *bodies: bytes) -> list[pa.RecordBatch]:
    (chunk,) = read_chunks(chunk_of([Sent(number, body) for number, body in enumerate(bodies)]))
    return list(to_record_batches(chunk, schema, Context("q")))


def decode(made: FieldDecoder, columns: pa.Schema, *bodies: bytes) -> Decoded:
    found = made.decode(columns, messages(made.reading(), *bodies))
    # Each message is one row, somewhere.
    offsets = found.rows.column("offset").to_pylist() + found.refused.column("offset").to_pylist()
    assert sorted(offsets) == list(range(len(bodies)))
    return found


def of(found: Decoded, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in found.rows.to_pylist()]


def test_messages_are_rows_as_they_are() -> None:
    made = MessageDecoder()
    found = made.decode(made.first_columns(), messages(made.reading(), b"a", b"\xff"))
    assert of(found, "queue", "partition", "offset", "body") == [("q", 0, 0, b"a"), ("q", 0, 1, b"\xff")]
    assert (found.refused.num_rows, found.changes) == (0, ())
    assert pa.int16() not in [field.type for field in made.first_columns()]


@pytest.mark.parametrize("made", [MessageDecoder(), FieldDecoder()])
def test_a_column_that_another_program_has_taken_out_ends_it(made: MessageDecoder | FieldDecoder) -> None:
    columns = made.first_columns()
    left = columns.remove(columns.get_field_index("routing_key"))
    with pytest.raises(UsageError, match="no column 'routing_key'"):
        made.decode(left, messages(made.reading(), b"{}"))


def test_fields_become_columns_with_what_they_have() -> None:
    made = FieldDecoder()
    found = decode(made, made.first_columns(), b'{"n": 1, "ok": true}', b'{"n": 2.5, "o": {"a": [1]}, "z": null}')
    assert found.changes == (
        Change("n", kinds.DOUBLE, True),
        Change("ok", kinds.BOOLEAN, True),
        Change("o", kinds.STRING, True),
    )
    assert of(found, "n", "ok", "o") == [(1.0, True, None), (2.5, None, '{"a": [1]}')]
    assert "body" not in found.rows.column_names


def test_columns_that_there_are_stay_what_they_are() -> None:
    made = FieldDecoder()
    columns = made.first_columns().append(pa.field("n", pa.int64()))
    found = decode(made, columns, b'{"n": 1}', b'{"n": 1.5}', b'{"n": "x", "new": 1}', b'{"n": 2.0, "more": "a"}')
    assert of(found, "n", "more") == [(1, None), (2, "a")]
    assert found.changes == (Change("more", kinds.STRING, True),)
    assert found.refused.column("reason").to_pylist() == [
        "n: a number where a long is expected",
        "n: a text where a long is expected",
    ]
    assert found.refused.column("body").to_pylist() == [b'{"n": 1.5}', b'{"n": "x", "new": 1}']


def test_objects_and_arrays_are_the_text_that_the_body_has() -> None:
    made = FieldDecoder(schema=BodySchema({"o": kinds.STRING, "at": kinds.TIMESTAMP}))
    values = ['{"a":1, "a":2}', "[ 0.123456789012345678901234567890 ]", "[1,{}]"]
    bodies = [b'{"o": %b , "x": 1.0}' % value.encode() for value in values]
    found = decode(made, made.first_columns(), *bodies, b'{"o": "a"}', b'{"at": {}}', b'{"at": []}')
    assert of(found, "o") == [(value,) for value in [*values, "a"]]
    assert found.refused.column("reason").to_pylist() == [
        "at: an object where a timestamp is expected",
        "at: an array where a timestamp is expected",
    ]


@pytest.mark.parametrize("value", ["12345678901234567.00", "0.99999999999999999999", "1e-400", "-0.0000001e-999"])
def test_a_number_that_was_rounded_is_no_integer(value: str) -> None:
    made = FieldDecoder(schema=BodySchema({"n": kinds.LONG}))
    found = decode(made, made.first_columns(), b'{"n": %b}' % value.encode(), b'{"n": 3.0}', b'{"n": 1e18}')
    assert of(found, "n") == [(3,), (10**18,)]
    assert found.refused.column("reason").to_pylist() == ["n: a non-integer number with too many digits"]
    doubles = FieldDecoder()
    rows = decode(doubles, doubles.first_columns(), b'{"n": %b}' % value.encode())
    assert of(rows, "n") == ([(float(value),)] if float(value) else []), "a number that is not 0 is not 0 as a double"


def test_a_number_that_a_column_of_floats_does_not_have_is_refused() -> None:
    made = FieldDecoder(schema=BodySchema({"n": kinds.FLOAT}))
    found = decode(made, made.first_columns(), b'{"n": 1e300}', b'{"n": 0.5}', b'{"n": 16777217}')
    assert of(found, "n") == [(0.5,)]
    assert found.refused.column("reason").to_pylist() == [
        "n: a number that is too large for a float",
        "n: an integer that a float cannot represent exactly",
    ]


def test_an_integer_that_a_column_of_doubles_does_not_have_is_refused() -> None:
    made = FieldDecoder()
    found = decode(made, made.first_columns(), b'{"n": 9007199254740993}', b'{"n": 0.5}', b'{"n": 7}')
    assert of(found, "n") == [(0.5,), (7.0,)]
    assert found.refused.column("reason").to_pylist() == ["n: an integer that a double cannot represent exactly"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b'{"a": NaN}', "no JSON"),
        (b'{"a": 1e999}', "no JSON"),
        (b'{"a": "\\ud800"}', "no JSON"),
        (b"[1]", "no JSON object"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a": 123456789012345678901234567890}', "more than 64 bits"),
        (b'{"A": 1, "a": 2}', "two fields for the column"),
        (b'{"body_type": 1, "type": 2}', "two fields for the column 'body_type'"),
        (b'{"%s": 1}' % (b"x" * 300), "is not a valid column name"),
        (b"{%s}" % b",".join(b'"k%d": 1' % number for number in range(600)), "more columns than the table may have"),
    ],
)
def test_what_is_no_row_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    made = FieldDecoder()
    found = decode(made, made.first_columns(), b'{"good": 1}', body)
    assert of(found, "good") == [(1,)]
    assert [change.column for change in found.changes] == ["good"]
    (said,) = found.refused.column("reason").to_pylist()
    assert reason in said and len(said) <= decoder.REASON_MAX
    assert found.refused.column("body").to_pylist() == [body]


def test_the_columns_of_a_table_are_bounded_however_many_names_come() -> None:
    made = FieldDecoder(columns_max=30)
    room = 30 - len(made.first_columns())
    found = decode(made, made.first_columns(), *(b'{"k%d": 1}' % number for number in range(50)))
    assert len(found.changes) == room
    assert found.refused.num_rows == 50 - room


def test_a_field_that_is_called_as_a_column_of_messages_has_another_name() -> None:
    assert [column_of(name) for name in ("type", "Offset", "publish_date", "a-b", "1st", "", "größe")] == [
        *("body_type", "body_Offset", "body_publish_date", "a_b", "_1st", "_", "größe")
    ]
    made = FieldDecoder()
    found = decode(made, made.first_columns(), b'{"type": "paid", "offset": 77}')
    assert of(found, "offset", "type", "body_type", "body_offset") == [(0, None, "paid", 77)]


def test_letters_in_either_case_are_one_column() -> None:
    made = FieldDecoder()
    found = decode(made, made.first_columns(), b'{"Name": "a"}', b'{"name": "b"}')
    assert of(found, "Name") == [("a",), ("b",)]
    columns = made.first_columns().append(pa.field("NAME", pa.string()))
    assert of(decode(made, columns, b'{"name": "b"}'), "NAME") == [("b",)]


def test_a_schema_makes_the_columns_before_there_are_rows() -> None:
    body = schema_of({"properties": {"n": {"type": "integer", "format": "int32"}, "at": {"type": "string"}}})
    made = FieldDecoder(None, body)
    assert made.first_columns().field("n").type == pa.int32()
    assert made.pending(made.first_columns(), can_widen=False) == ()
    assert made.pending(FieldDecoder().first_columns(), can_widen=False) == (
        Change("n", kinds.INT, True),
        Change("at", kinds.STRING, True),
    )


def test_a_schema_widens_what_can_be_widened_and_nothing_else() -> None:
    narrow = FieldDecoder(None, BodySchema({"n": kinds.INT})).first_columns()
    wide = FieldDecoder(None, BodySchema({"n": kinds.LONG}))
    assert wide.pending(narrow, can_widen=True) == (Change("n", kinds.LONG, False),)
    with pytest.raises(UsageError, match="cannot be widened from int to long"):
        wide.pending(narrow, can_widen=False)
    with pytest.raises(UsageError, match="is long, and cannot be int"):
        FieldDecoder(None, BodySchema({"n": kinds.INT})).pending(wide.first_columns(), can_widen=True)


def test_a_closed_schema_refuses_other_fields_and_an_open_one_takes_them() -> None:
    bodies = (b'{"n": 1, "m": 2}', b'{"n": 1, "m": null}', b'{"m": 2}', b'{"n": null}')
    closed = FieldDecoder(None, BodySchema({"n": kinds.LONG}, frozenset({"n"}), is_open=False))
    found = decode(closed, closed.first_columns(), *bodies)
    assert of(found, "offset", "n") == [(3, None)]
    assert found.refused.column("reason").to_pylist() == [
        *("'m' is not in the schema", "'m' is not in the schema", "without 'n'")
    ]
    opened = FieldDecoder(None, BodySchema({"n": kinds.LONG}, frozenset({"n"})))
    assert of(decode(opened, opened.first_columns(), *bodies), "offset", "n", "m") == [
        *((0, 1, 2), (1, 1, None), (3, None, None))
    ]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["offset", "nothing"], "no column 'nothing'"),
        (["queue", "partition", "timestamp"], "offset must be among them"),
        (["queue", "partition", "offset", "offset", "timestamp"], "each of them once"),
    ],
)
def test_columns_that_cannot_be_are_refused(names: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        MessageDecoder(names)


def test_a_table_that_was_made_with_other_columns_is_refused() -> None:
    few = MessageDecoder(["queue", "partition", "offset", "timestamp"])
    with pytest.raises(UsageError, match="no column 'exchange'"):
        MessageDecoder().pending(few.first_columns(), can_widen=True)


@pytest.mark.parametrize("seed", range(20))
def test_where_messages_are_cut_into_batches_does_not_matter(seed: int) -> None:
    """decoder (1), (3)"""
    chance = random.Random(seed)
    values = [1, 2.5, 1 << 53, (1 << 53) + 1, -(1 << 60), True, "text", None, [1], {"a": 1}]
    bodies = []
    for _ in range(60):
        fields = {f"f{chance.randrange(6)}": chance.choice(values) for _ in range(chance.randrange(4))}
        bodies.append(msgspec.json.encode(fields) if chance.random() < 0.9 else b"no JSON")
    made = FieldDecoder(columns_max=len(FieldDecoder().first_columns()) + 4)
    table = pa.Table.from_batches(messages(made.reading(), *bodies))
    cuts = sorted(chance.sample(range(61), 5))
    parts = [table.slice(first, end - first) for first, end in zip([0, *cuts], [*cuts, 60], strict=True)]
    columns = made.first_columns()
    whole = made.decode(columns, table.combine_chunks().to_batches())
    cut = made.decode(columns, [batch for part in parts for batch in part.combine_chunks().to_batches()])
    assert whole.changes == cut.changes
    assert whole.rows.sort_by("offset").equals(cut.rows.sort_by("offset"))
    assert whole.refused.sort_by("offset").equals(cut.refused.sort_by("offset"))
    assert whole.rows.num_rows + whole.refused.num_rows == 60


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"n": 1, "n": 2}', "the name 'n' twice"),
        (b'{"n" : 1, "n":2}', "the name 'n' twice"),
        (b'{"o": {"x": 1}, "o": "12:30"}', "the name 'o' twice"),
        (b'{"a": 1e-400}', "too small for a double"),
        (b'{"a": 1e400}', "no JSON"),
        (b"", "no JSON"),
        (b'{"a": 5} rest', "no JSON"),
        (b'{"a": NaN}', "no JSON"),
    ],
)
def test_what_a_parser_would_change_is_refused(body: bytes, reason: str) -> None:
    made = FieldDecoder()
    found = decode(made, made.first_columns(), body)
    assert found.rows.num_rows == 0
    assert reason in found.refused.column("reason").to_pylist()[0]


def test_a_name_twice_inside_of_an_object_is_kept_and_zero_is_zero() -> None:
    made = FieldDecoder()
    found = decode(made, made.first_columns(), b'{"o": {"x" : 1, "x":2}, "z": 0.0e5}')
    assert of(found, "o", "z") == [('{"x" : 1, "x":2}', 0.0)]
