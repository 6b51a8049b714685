"""Properties and headers as columns, and back: compared with the broker's own decoder."""

from __future__ import annotations

import base64
import json
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from property.wire import encoded_tables, property_sets, thorough

from warren.amqp.errors import ConnectionException
from warren.amqp.field_table import TableWalker, Timestamp, decode_table, encode_table, with_length
from warren.amqp.properties import BasicProperties
from warren.amqp.properties import decode_properties as broker_decodes
from warren.spark_bridge import header_columns
from warren.spark_bridge.bridge_errors import DamagedProperties
from warren.spark_bridge.properties import decode_properties, encode_properties
from warren.spark_bridge.schema import HEADERS_FORMATS, PROPERTY_COLUMNS, arrow_type

HEADER = bytes(12)  # class, weight and body size, in front of the flags
SECONDS_MAX = ((1 << 63) - 1) // 1_000_000


def decoded(
    blobs: list[bytes], names: tuple[str, ...] = PROPERTY_COLUMNS, headers_format: str = "typed"
) -> dict[str, pa.Array]:
    """Decode properties that stand somewhere in a larger buffer; the nth message has the offset 1000 + n."""
    data = np.frombuffer(b"##" + b"".join(blobs) + b"##", np.uint8)
    ends = 2 + np.cumsum([0, *map(len, blobs)]).astype(np.int32)
    made = decode_properties(ends, data, names, headers_format, lambda row: 1000 + row)
    for name, values in made.items():
        values.validate(full=True)
        assert values.type == arrow_type(name, headers_format)
        assert len(values) == len(blobs)
    assert set(made) == set(names)
    return made


def properties_of(values: dict[str, Any]) -> bytes:
    made = BasicProperties()
    for name, value in values.items():
        setattr(made, name, value)
    return made.encode()


def with_headers(table: bytes) -> bytes:
    return b"\x20\x00" + table


def python_text(raw: str | None) -> str | None:
    return None if raw is None else raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def bytes_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return base64.b64encode(raw).decode()


def as_json(value: Any) -> Any:
    """Return what JSON should have of a decoded value."""
    if isinstance(value, bytes):
        return bytes_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return value


def parsed(text: str) -> Any:
    """Parse JSON with every number as a Decimal."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def numbers_as_decimals(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {key: numbers_as_decimals(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers_as_decimals(item) for item in value]
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def map_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | bytes):
        return value if isinstance(value, str) else bytes_text(value)
    if isinstance(value, float):
        made = as_json(value)
        return made if isinstance(made, str) else repr(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(int(value))


def check_headers(table: bytes, found: Any, headers_format: str) -> None:
    """Compare headers with what the broker's decoder makes of the same table."""
    values = decode_table(table)
    if headers_format == "json":
        assert parsed(found) == numbers_as_decimals(as_json(values))
        assert list(json.loads(found)) == list(values)
        return
    assert [key for key, _ in found] == list(values)
    for key, item in found:
        value = values[key]
        if headers_format == "map":
            if isinstance(value, dict | list):
                assert parsed(item) == numbers_as_decimals(as_json(value))
            else:
                assert item == map_text(value)
        elif isinstance(value, dict | list):
            assert item["t"] == ("F" if isinstance(value, dict) else "A")
            assert parsed(item["json"]) == numbers_as_decimals(as_json(value))
        elif isinstance(value, bool):
            assert (item["t"], bool(item["i"])) == ("t", value)
        elif isinstance(value, Timestamp):
            assert (item["t"], item["i"] % (1 << 64)) == ("T", int(value))
        elif isinstance(value, int):
            assert item["i"] == value
        elif isinstance(value, float):
            assert struct.pack(">d", item["d"]) == struct.pack(">d", value) or value != value
        elif isinstance(value, Decimal):
            assert item["s"] == format(value, "f")
        elif isinstance(value, str):
            assert item["s"] == value or bytes(item["b"]) == value.encode()
        elif isinstance(value, bytes):
            assert item["b"] == value
        else:
            assert item == {"t": "V", "s": None, "i": None, "d": None, "b": None, "json": None}


def check_row(values: dict[str, Any], row: dict[str, Any], headers_format: str) -> None:
    for name in PROPERTY_COLUMNS:
        found = row[name]
        if name == "headers":
            if "headers" not in values:
                assert found is None
            else:
                check_headers(values["headers"], found, headers_format)
        elif name == "message_timestamp":
            seconds = values.get("timestamp")
            assert found == (None if seconds is None or seconds > SECONDS_MAX else seconds * 1_000_000)
        elif name in ("delivery_mode", "priority"):
            assert found == values.get(name)
        else:
            assert found == python_text(values.get(name))


def python_rows(made: dict[str, pa.Array]) -> list[dict[str, Any]]:
    """Return rows; times as microseconds, since Python cannot show all of them."""
    lists = {
        name: (values.view(pa.int64()) if pa.types.is_timestamp(values.type) else values).to_pylist()
        for name, values in made.items()
    }
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


@pytest.fixture(params=[1, 1 << 30], ids=["together", "one by one"])
def together_min(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Headers decoded in groups however few they are, or never."""
    least: int = request.param
    monkeypatch.setattr(header_columns, "TOGETHER_MIN", least)
    return least


several = st.lists(property_sets, min_size=1, max_size=12)


@pytest.mark.parametrize("headers_format", HEADERS_FORMATS)
@pytest.mark.usefixtures("together_min")
def test_every_property_is_what_the_broker_decodes(headers_format: str) -> None:
    @given(several)
    @thorough(40)
    def holds(sets: list[dict[str, Any]]) -> None:
        made = decoded([properties_of(values) for values in sets], headers_format=headers_format)
        for values, row in zip(sets, python_rows(made), strict=True):
            check_row(values, row, headers_format)

    holds()


@pytest.mark.usefixtures("together_min")
@pytest.mark.parametrize("headers_format", HEADERS_FORMATS)
def test_messages_of_the_same_shape_are_what_the_broker_decodes(headers_format: str) -> None:
    """The same keys and types with other values, as a publisher sends them, and some strangers between."""

    @given(st.lists(property_sets, min_size=1, max_size=3), st.data())
    @thorough(30)
    def holds(shapes: list[dict[str, Any]], data: st.DataObject) -> None:
        order = data.draw(st.lists(st.sampled_from(shapes), min_size=2, max_size=20))
        sets = [{**values, "message_id": str(number)} for number, values in enumerate(order)]
        made = decoded([properties_of(values) for values in sets], headers_format=headers_format)
        for values, row in zip(sets, python_rows(made), strict=True):
            check_row(values, row, headers_format)

    holds()


@given(property_sets, st.integers(2, 100))
@settings(deadline=None, max_examples=examples(50))
def test_messages_that_are_all_equal_are_decoded_as_one_is(values: dict[str, Any], count: int) -> None:
    blob = properties_of(values)
    for headers_format in HEADERS_FORMATS:
        one = decoded([blob], headers_format=headers_format)
        many = decoded([blob] * count, headers_format=headers_format)
        for name, column in many.items():
            # As Arrow has them: there are timestamps that Python has not.
            assert column.equals(pa.concat_arrays([one[name]] * count)) or _has_nan(column)


def _has_nan(column: pa.Array) -> bool:
    return not pa.types.is_timestamp(column.type) and "nan" in str(column.to_pylist())


def test_a_realistic_chunk_is_decoded_together() -> None:
    sets = [
        {
            "content_type": "application/json",
            "delivery_mode": 2,
            "message_id": f"{number:032x}",
            "timestamp": 1_700_000_000 + number,
            "app_id": "billing",
            "headers": encode_table(
                {"trace": f"{number:x}", "n": number, "rate": number / 8, "ok": number % 2 == 0, "none": None}
                | ({"x-death": [{"count": number, "reason": "expired"}]} if number % 10 == 0 else {})
            ),
        }
        for number in range(1000)
    ]
    for headers_format in HEADERS_FORMATS:
        made = decoded([properties_of(values) for values in sets], headers_format=headers_format)
        for values, row in zip(sets, python_rows(made), strict=True):
            check_row(values, row, headers_format)


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    blob = properties_of({"content_type": "a", "app_id": "b", "headers": encode_table({"k": 1})})
    assert python_rows(decoded([blob, blob[:-1] + b"c"], ("app_id",))) == [{"app_id": "b"}, {"app_id": "c"}]


# --- malformed ---------------------------------------------------------------------------------------------------


def broker_accepts(blob: bytes) -> bool:
    payload = HEADER + blob
    try:
        headers = broker_decodes(payload, 0, len(payload)).headers
        if headers is not None:
            TableWalker(headers, 0, len(headers)).table(1)
    except ConnectionException:
        return False
    return True


@pytest.mark.usefixtures("together_min")
@pytest.mark.parametrize("headers_format", HEADERS_FORMATS)
def test_bytes_are_refused_if_and_only_if_the_broker_refuses_them(headers_format: str) -> None:
    @given(property_sets, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3), st.data())
    @thorough(80)
    def holds(values: dict[str, Any], changes: list[tuple[int, int]], data: st.DataObject) -> None:
        good = properties_of(values)
        bad = bytearray(good)
        for at, octet in changes:
            bad[at % len(bad)] = octet
        if data.draw(st.booleans()):
            bad = bad[: data.draw(st.integers(0, len(bad)))]
        blobs = [good] * 3 + [bytes(bad)] + [good] * 2
        if broker_accepts(bytes(bad)):
            decoded(blobs, headers_format=headers_format)
        else:
            with pytest.raises(DamagedProperties, match="offset 1003"):
                decoded(blobs, headers_format=headers_format)

    holds()


@pytest.mark.usefixtures("together_min")
def test_no_octet_of_a_table_can_be_another_unnoticed() -> None:
    """Every octet of headers with all types in turn, and what the broker says of it."""
    payloads = {
        tag: b"\1" * size for tag, size in zip("tbBsuIilLTfd", (1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 4, 8), strict=True)
    }
    payloads |= {"D": b"\2\0\0\0\5", "V": b"", "S": with_length(b"ab"), "x": with_length(b"\xff")}
    payloads |= {"A": with_length(b"t\1"), "F": encode_table({"k": "v"})}
    table = with_length(b"".join(b"\1" + tag.encode() * 2 + payload for tag, payload in payloads.items()))
    good = with_headers(table)
    assert broker_accepts(good)
    for at in range(2, len(good)):
        for octet in (0, 1, 2, good[at] ^ 1, good[at] + 1 & 255, 83, 255):
            bad = good[:at] + bytes([octet]) + good[at + 1 :]
            blobs = [good, good, bad, good]
            if broker_accepts(bad):
                made = decoded(blobs, ("headers",))["headers"]
                check_headers(bad[2:], made.to_pylist()[2], "typed")
            else:
                with pytest.raises(DamagedProperties, match="offset 1002"):
                    decoded(blobs, ("headers",))


@pytest.mark.parametrize("headers_format", HEADERS_FORMATS)
@given(st.lists(encoded_tables, min_size=1, max_size=3), st.data())
@settings(deadline=None, max_examples=examples(60))
def test_together_and_one_by_one_are_the_same(headers_format: str, tables: list[bytes], data: st.DataObject) -> None:
    order = data.draw(st.lists(st.sampled_from(tables), min_size=2, max_size=20))
    # The same keys and types, with octets of the values changed where that leaves a table.
    blobs = [with_headers(table) for table in order]
    for number, blob in enumerate(blobs):
        at = data.draw(st.integers(2, len(blob) - 1))
        changed = blob[:at] + bytes([data.draw(st.integers(0, 255))]) + blob[at + 1 :]
        blobs[number] = changed if broker_accepts(changed) else blob
    found = []
    for least in (1, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(header_columns, "TOGETHER_MIN", least)
            found.append(repr(decoded(blobs, ("headers",), headers_format)["headers"].to_pylist()))
    assert found[0] == found[1]


@pytest.mark.usefixtures("together_min")
def test_only_what_is_not_a_number_keeps_its_octets() -> None:
    numbers = [0.5, math.nan, -math.inf, 1e300]
    made = decoded([with_headers(encode_table({"n": number})) for number in numbers], ("headers",))["headers"]
    assert [dict(row)["n"]["b"] for row in made.to_pylist()] == [None, struct.pack(">d", math.nan), None, None]


@pytest.mark.usefixtures("together_min")
@pytest.mark.parametrize("depth", [14, 15, 16, 17])
@pytest.mark.parametrize("wraps", [dict, list])
def test_nesting_is_as_deep_as_the_broker_allows(depth: int, wraps: type) -> None:
    value: Any = None
    for _ in range(depth):
        value = {"k": value} if wraps is dict else [value]
    table = encode_table({"k": value})
    blob = with_headers(table)
    for headers_format in HEADERS_FORMATS:
        if broker_accepts(blob):
            made = decoded([blob, blob], ("headers",), headers_format)
            check_headers(table, made["headers"].to_pylist()[1], headers_format)
        else:
            with pytest.raises(DamagedProperties, match="nested deeper"):
                decoded([blob, blob], ("headers",), headers_format)


@pytest.mark.usefixtures("together_min")
@pytest.mark.parametrize("entries", [4096, 4097])
@pytest.mark.parametrize("form", ["flat", "nested", "both"])
def test_entries_are_as_many_as_the_broker_allows(entries: int, form: str) -> None:
    table: dict[str, object]
    if form == "flat":
        table = {f"{number}": None for number in range(entries)}
    elif form == "nested":
        table = {"k": {f"{number}": None for number in range(entries - 1)}}
    else:
        table = {"a": [None] * (entries // 2), "b": [None] * (entries - 2 - entries // 2)}
    blob = with_headers(encode_table(table))
    assert broker_accepts(blob) == (entries == 4096)
    for headers_format in HEADERS_FORMATS:
        if entries == 4096:
            decoded([blob, blob], ("headers",), headers_format)
        else:
            with pytest.raises(DamagedProperties, match="4096 entries"):
                decoded([blob, blob], ("headers",), headers_format)


# --- back --------------------------------------------------------------------------------------------------------


def without_repeated_keys(table: bytes) -> bytes:
    """Return a table as it is but for keys that come again, of which the last value counts."""
    walker = TableWalker(table, 4, len(table))
    kept: dict[bytes, bytes] = {}
    while walker.pos < walker.end:
        start = walker.pos
        walker.skip_key()
        key_end = walker.pos
        walker.skip_value(1)
        kept[table[start:key_end]] = table[key_end : walker.pos]
    return with_length(b"".join(key + value for key, value in kept.items()))


@given(several)
@thorough(120)
def test_typed_properties_become_the_same_bytes_again(sets: list[dict[str, Any]]) -> None:
    wanted = []
    for values in sets:
        made: dict[str, Any] = {
            name: value
            if name in ("delivery_mode", "priority", "timestamp")
            else without_repeated_keys(value)
            if name == "headers"
            else python_text(value)
            for name, value in values.items()
        }
        if made.get("timestamp", 0) > SECONDS_MAX:
            del made["timestamp"]
        if any(isinstance(value, str) and len(value.encode()) > 255 for value in made.values()):
            return  # text that is not UTF-8 has grown
        wanted.append(properties_of(made))
    columns = decoded([properties_of(values) for values in sets])
    encoded = encode_properties(columns, len(sets))
    encoded.validate(full=True)
    assert encoded.to_pylist() == wanted


def test_every_kind_of_not_a_number_stays_itself() -> None:
    tables = [
        with_length(b"\1kf" + bytes.fromhex("7fa00001") + b"\1dd" + bytes.fromhex("fff4000000000001")),
        with_length(b"\1kf" + bytes.fromhex("ffc00000") + b"\1dd" + bytes.fromhex("3fe0000000000000")),
    ]
    blobs = [with_headers(table) for table in tables]
    assert encode_properties(decoded(blobs, ("headers",)), 2).to_pylist() == blobs


@given(st.lists(encoded_tables, min_size=1, max_size=8), st.data())
@thorough(30)
def test_a_slice_of_a_column_is_encoded_as_the_whole_is(tables: list[bytes], data: st.DataObject) -> None:
    blobs = [with_headers(table) for table in tables]
    headers = decoded(blobs, ("headers",))["headers"]
    whole = encode_properties({"headers": headers}, len(blobs)).to_pylist()
    first = data.draw(st.integers(0, len(blobs)))
    end = data.draw(st.integers(first, len(blobs)))
    cut = headers.slice(first, end - first)
    assert encode_properties({"headers": cut}, len(cut)).to_pylist() == whole[first:end]


def test_nothing_at_all_is_encoded_as_no_properties() -> None:
    assert encode_properties({}, 2).to_pylist() == [b"\0\0", b"\0\0"]
    assert encode_properties({"app_id": pa.nulls(1, pa.string())}, 1).to_pylist() == [b"\0\0"]
    assert encode_properties({"app_id": pa.array([], pa.string())}, 0).to_pylist() == []
    assert encode_properties({"headers": pa.array([[], None], arrow_type("headers", "map"))}, 2).to_pylist() == [
        b"\x20\x00\0\0\0\0",
        b"\0\0",
    ]


def test_a_map_of_texts_becomes_longstrs_and_voids() -> None:
    headers = pa.array([[("a", "x"), ("b", None)], None, []], arrow_type("headers", "map"))
    made = encode_properties({"headers": headers}, 3).to_pylist()
    assert made == [with_headers(encode_table({"a": "x", "b": None})), b"\0\0", with_headers(encode_table({}))]


def test_json_becomes_what_a_client_would_send() -> None:
    value = {"t": True, "i": 1, "l": 1 << 40, "d": 0.5, "s": "é", "v": None, "a": [1, ["x"]], "f": {"k": {"z": -1}}}
    headers = pa.array([json.dumps(value), "{}"], pa.string())
    made = encode_properties({"headers": headers}, 2).to_pylist()
    assert made == [with_headers(encode_table(value)), with_headers(encode_table({}))]


def test_typed_headers_may_be_written_without_tags_and_without_bytes() -> None:
    headers = pa.array(
        [
            [
                ("s", {"s": "text"}),
                ("i", {"i": 5}),
                ("d", {"d": 0.25}),
                ("b", {"b": b"\xff"}),
                ("f", {"json": '{"k": 1}'}),
                ("a", {"json": " [1]"}),
                ("v", {}),
                ("D", {"t": "D", "s": "-3.14"}),
                ("F", {"t": "F", "json": "{}"}),
            ]
        ],
        arrow_type("headers", "typed"),
    )
    (made,) = encode_properties({"headers": headers}, 1).to_pylist()
    assert decode_table(made[2:]) == {
        "s": "text",
        "i": 5,
        "d": 0.25,
        "b": b"\xff",
        "f": {"k": 1},
        "a": [1],
        "v": None,
        "D": Decimal("-3.14"),
        "F": {},
    }


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("app_id", ["a", "x" * 256], "app_id of row 1 is longer than 255 bytes"),
        ("priority", [None, 256], "priority of row 1 is 256"),
        ("delivery_mode", [-1], "delivery_mode of row 0 is -1"),
        ("headers", [[], [("k" * 256, {"i": 1})]], "row 1: a key is longer"),
        (
            "headers",
            [[], [("a", {"i": 1}), ("k", {"t": "I", "i": 1 << 31})]],
            "row 1: 'k': type 'I' cannot be 2147483648",
        ),
        ("headers", [[("k", {"t": "I"})]], "row 0: 'k': type 'I' has no value"),
        ("headers", [[("k", {"t": "S"})]], "row 0: 'k': type 'S' has no value"),
        ("headers", [[("k", {"t": "?"})]], "row 0: 'k': unknown type '\\?'"),
        ("headers", [[("k", {"t": "", "i": 1})]], "row 0: 'k': unknown type ''"),
        ("headers", [[("k", {"t": "D", "s": "pi"})]], "row 0: 'k': no decimal"),
        ("headers", [[("k", {"t": "D", "s": "99999999999"})]], "row 0: 'k': no decimal"),
        ("headers", [[("k", {"t": "f", "d": 1e300})]], "row 0: 'k': type 'f' cannot be 1e\\+300"),
        ("headers", [[("k", {"t": "f", "b": b"12345"})]], "row 0: 'k': type 'f' has 4 bytes"),
        ("headers", [[("k", {"t": "A", "json": "{}"})]], "row 0: 'k': JSON of another kind"),
        ("headers", [[("k", {"t": "F", "json": '{"n": 99999999999999999999}'})]], "row 0: 'k': .* 64 bits"),
    ],
)
def test_what_amqp_cannot_have_is_refused_with_its_row(column: str, values: list[Any], reason: str) -> None:
    array = pa.array(values, arrow_type(column, "typed"))
    with pytest.raises(ValueError, match=reason):
        encode_properties({column: array}, len(array))


def test_a_column_that_is_no_property_is_refused() -> None:
    with pytest.raises(ValueError, match="'body' is no property"):
        encode_properties({"body": pa.array([b""])}, 1)
    with pytest.raises(ValueError, match=r"'app_i'.*'app_id'"):
        encode_properties({"app_i": pa.array([""])}, 1)
    with pytest.raises(ValueError, match="headers are no JSON"):
        encode_properties({"headers": pa.array(["{"])}, 1)
