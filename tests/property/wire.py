"""Shared parts of the codec properties: strategies for all wire data, and the comparison of two decoders.

A *tagged field* is the grammar's own view, ``{"tag": ..., "value": ...}``; it reaches encodings that no
Python value chooses (narrow integers, duplicate keys, binary32).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from example_counts import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from warren.amqp.errors import ConnectionException
from warren.amqp.field_table import Timestamp
from warren.amqp.methods import METHODS, MethodSpec
from warren.amqp.specification import FIELD_PAYLOADS, SpecificationError, TaggedTable


def thorough(wanted: int) -> settings:
    """Settings of a property: `wanted` examples, no limit of time, a failure prints how to replay it."""
    return settings(
        max_examples=examples(wanted),
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )


# --- primitives ---------------------------------------------------------------------------------------------

octets = st.integers(0, 0xFF)
shorts = st.integers(0, 0xFFFF)
longs = st.integers(0, 0xFFFFFFFF)
longlongs = st.integers(0, 0xFFFFFFFFFFFFFFFF)
shortstrs = st.text(max_size=12) | st.builds(
    lambda fill, size: fill * (size // len(fill.encode())),
    st.characters(codec="utf-8"),
    st.integers(200, 255),
)
blobs = st.binary(max_size=40)
# A text of the publisher's: any bytes at all, as surrogateescape shows them.
lenient_shortstrs = st.one_of(shortstrs, st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape")))


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


# --- tagged fields ------------------------------------------------------------------------------------------

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "t": st.booleans(),
    "b": signed(8),
    "B": octets,
    "s": signed(16),
    "u": shorts,
    "I": signed(32),
    "i": longs,
    "l": signed(64),
    "L": signed(64),
    "f": st.floats(width=32),
    "d": st.floats(),
    "D": st.fixed_dictionaries({"scale": octets, "unscaled": signed(32)}),
    "T": longlongs,
    "S": st.one_of(blobs, st.text(max_size=20).map(str.encode)),
    "x": blobs,
    "V": st.none(),
}
assert set(SCALARS) | {"A", "F"} == set(FIELD_PAYLOADS), "a field type without a strategy"
UNKNOWN_TAGS = [code for code in range(256) if chr(code) not in FIELD_PAYLOADS]

keys = st.one_of(st.sampled_from(["", "k", "x-match"]), shortstrs)


def _tagged(tag: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values.map(lambda value: {"tag": tag, "value": value})


def _pairs_of(fields: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    pairs = st.tuples(keys, fields).map(lambda pair: {"key": pair[0], "field": pair[1]})
    return st.lists(pairs, max_size=4)


scalar_fields = st.one_of([_tagged(tag, values) for tag, values in SCALARS.items()])
tagged_fields = st.recursive(
    scalar_fields,
    lambda fields: _tagged("A", st.lists(fields, max_size=4)) | _tagged("F", _pairs_of(fields)),
    max_leaves=6,
)
tagged_tables = _pairs_of(tagged_fields)
encoded_tables: st.SearchStrategy[bytes] = tagged_tables.map(TaggedTable.build)

# --- Python values ------------------------------------------------------------------------------------------

decimals = st.builds(lambda scale, unscaled: Decimal(unscaled).scaleb(-scale), octets, signed(32))
scalar_values = st.one_of(
    st.none(),
    st.booleans(),
    signed(64),
    signed(33),
    st.floats(),
    st.text(max_size=20),
    blobs,
    decimals,
    longlongs.map(Timestamp),
)
plain_values = st.recursive(
    scalar_values,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(keys, values, max_size=4),
    max_leaves=6,
)
plain_tables = st.dictionaries(keys, plain_values, max_size=4)

# --- methods and properties ---------------------------------------------------------------------------------

DOMAINS: dict[str, st.SearchStrategy[Any]] = {
    "octet": octets,
    "short": shorts,
    "long": longs,
    "longlong": longlongs,
    "bit": st.booleans(),
    "shortstr": shortstrs,
    "longstr": blobs,
    "table": plain_tables,
    "rawtable": encoded_tables,
}
PROPERTIES: dict[str, st.SearchStrategy[Any]] = {
    "content_type": lenient_shortstrs,
    "content_encoding": lenient_shortstrs,
    "headers": encoded_tables,
    "delivery_mode": octets | st.just(2),
    "priority": octets,
    "correlation_id": lenient_shortstrs,
    "reply_to": lenient_shortstrs,
    "expiration": lenient_shortstrs,
    "message_id": lenient_shortstrs,
    "timestamp": longlongs,
    "type": lenient_shortstrs,
    "user_id": lenient_shortstrs,
    "app_id": lenient_shortstrs,
    "cluster_id": lenient_shortstrs,
}
property_sets = st.fixed_dictionaries({}, optional=PROPERTIES)


def methods_of(spec: MethodSpec) -> st.SearchStrategy[Any]:
    """Draw a method of `spec` with random arguments."""
    return st.builds(spec.type, *(DOMAINS[domain] for _, domain in spec.fields))


any_method = st.sampled_from(list(METHODS.values())).flatmap(methods_of)

# --- comparing two decoders ---------------------------------------------------------------------------------

REFUSED = "refused"


def exact(value: object) -> object:
    """Return `value` in a form whose equality tells types, signed zeros and NaN apart."""
    if isinstance(value, dict):
        return "dict", [(key, exact(item)) for key, item in value.items()]
    if isinstance(value, list):
        return "list", [exact(item) for item in value]
    if isinstance(value, tuple):
        return type(value), [exact(item) for item in value]
    if isinstance(value, Decimal):
        return "Decimal", value.as_tuple()
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else value.hex()
    return type(value), value


def fast_outcome(decode: Callable[[], object]) -> object:
    """Return what the fast `decode` gives, or REFUSED for its one permitted exception."""
    try:
        return exact(decode())
    except ConnectionException:
        return REFUSED


def reference_outcome(parse: Callable[[], object]) -> object:
    """Return what the grammar's `parse` gives, or REFUSED."""
    try:
        return exact(parse())
    except SpecificationError:
        return REFUSED


@st.composite
def damaged(draw: st.DrawFn, payloads: st.SearchStrategy[bytes]) -> bytes:
    """Draw one of `payloads` and cut it short, or replace, remove, insert or double some of its bytes."""
    data = draw(payloads)
    place = draw(st.integers(0, len(data)))
    other = draw(st.integers(place, min(len(data), place + 4)))
    match draw(st.sampled_from(["cut", "replace", "remove", "insert", "double"])):
        case "cut":
            return data[:place]
        case "replace":
            return data[:place] + draw(st.binary(min_size=other - place, max_size=other - place)) + data[other:]
        case "remove":
            return data[:place] + data[other:]
        case "insert":
            return data[:place] + draw(st.binary(max_size=4)) + data[place:]
    return data[:other] + data[place:]


def every_small_damage(data: bytes) -> Iterator[bytes]:
    """Yield every truncation of `data`, and it with each byte changed: bit flips, neighbours, extremes."""
    for length in range(len(data)):
        yield data[:length]
    for position, byte in enumerate(data):
        changed = {byte ^ 1 << bit for bit in range(8)} | {byte + 1 & 0xFF, byte - 1 & 0xFF, 0, 0xFF}
        for replacement in sorted(changed - {byte}):
            yield data[:position] + bytes([replacement]) + data[position + 1 :]
