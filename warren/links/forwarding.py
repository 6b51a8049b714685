"""The headers that links write into the messages they carry.

Works on encoded tables: every other header keeps its bytes, with integer widths and duplicate keys.

    x-shovelled           array of tables, newest first; x-shovelled-timestamp: seconds. Only the `ENTRIES_MAX` newest
                          are kept: otherwise a message that goes in a circle would grow without end
    x-received-from       array of tables, newest first: the upstreams a message came through
    x-original-*          queue federation: exchange, routing key and CC of the first hop
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warren.amqp.field_table import (
    EMPTY_TABLE,
    FLAT_TABLE_BYTES,
    Table,
    TableWalker,
    decode_table,
    encode_table,
    is_valid_table,
    with_length,
    without_key,
)
from warren.amqp.properties import BasicProperties, decode_properties

RECEIVED_FROM: Final = "x-received-from"
SHOVELLED: Final = "x-shovelled"
SHOVELLED_TIMESTAMP: Final = "x-shovelled-timestamp"
ENTRIES_MAX: Final = 100
LONG_MAX: Final = (1 << 63) - 1
_HEADER_PREFIX: Final = bytes(12)


def decode(properties: bytes) -> BasicProperties:
    """Decode flag word and property list."""
    payload = _HEADER_PREFIX + properties
    return decode_properties(payload, 0, len(payload))


def long_value(number: int) -> bytes:
    """Encode a tagged 64 bit integer."""
    return b"l" + number.to_bytes(8, "big", signed=True)


def text_value(text: str) -> bytes:
    """Encode a tagged long string."""
    return b"S" + with_length(text.encode("utf-8", "surrogateescape"))


def table_value(table: Table) -> bytes:
    """Encode a tagged table."""
    return b"F" + encode_table(table)


def pairs(table: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield key and tagged value of each entry of a valid encoded table."""
    walker = TableWalker(table, 4, len(table))
    while walker.pos < walker.end:
        key = walker.key()
        start = walker.pos
        walker.skip_value(1)
        yield key, table[start : walker.pos]


def maybe_value(table: bytes, key: str) -> bytes | None:
    """Return the tagged value of the last entry with that key."""
    found = None
    for name, value in pairs(table):
        if name == key:
            found = value
    return found


def with_value(table: bytes, key: str, value: bytes) -> bytes:
    """Return the table with one entry of that key, at its end."""
    raw = key.encode()
    return with_length(without_key(table, raw)[4:] + bytes([len(raw)]) + raw + value)


def prepended(table: bytes, key: str, entry: bytes, most: int | None = None) -> bytes:
    """Return the table with the tagged `entry` put in front of the array under `key`; replace a value of another type.

    `most`: keep only so many entries, the newest; None: keep all.
    """
    former = maybe_value(table, key)
    rest = b""
    if former is not None and former[:1] == b"A":
        walker = TableWalker(former, 5, len(former))
        kept = 1
        while walker.pos < walker.end and (most is None or kept < most):
            walker.skip_value(1)
            kept += 1
        rest = former[5 : walker.pos]
    return with_value(table, key, b"A" + with_length(entry + rest))


def array_entries(table: bytes, key: str) -> list[Table] | None:
    """Return the tables in the array under `key`; None when the value is not an array."""
    value = maybe_value(table, key)
    if value is None or value[:1] != b"A":
        return None
    entry = decode_table(with_length(b"\x01x" + value))["x"]
    assert isinstance(entry, list)
    return [one for one in entry if isinstance(one, dict)]


def is_sendable(table: bytes) -> bool:
    """Tell whether a table, after the link has added to it, still has no more entries than are allowed."""
    return len(table) <= FLAT_TABLE_BYTES or is_valid_table(table)


def should_forward(headers: bytes | None, max_hops: int, cluster_name: str, vhost: str) -> bool:
    """Tell whether a message may take one more hop: fewer than `max_hops` so far, and none of them from here."""
    if headers is None or RECEIVED_FROM.encode() not in headers:
        return True
    visited = array_entries(headers, RECEIVED_FROM)
    if visited is None:
        return True
    if len(visited) >= max_hops:
        return False
    return not any(one.get("cluster-name") == cluster_name and one.get("vhost") == vhost for one in visited)


def received_from_exchange(
    headers: bytes | None, *, uri: str, exchange: str, redelivered: bool, cluster_name: str, vhost: str
) -> bytes:
    """Return headers that name the upstream exchange in front of the others."""
    entry: Table = {
        "uri": uri,
        "exchange": exchange,
        "redelivered": redelivered,
        "cluster-name": cluster_name,
        "vhost": vhost,
    }
    return prepended(headers or EMPTY_TABLE, RECEIVED_FROM, table_value(entry))


def without_copies(headers: bytes) -> bytes:
    """Return headers without CC: the upstream has routed by it, and it must not route again here."""
    return without_key(headers, b"CC")


def received_from_queue(
    headers: bytes | None, *, uri: str, queue: str, redelivered: bool, exchange: str, routing_key: str
) -> bytes:
    """Return headers that name the upstream queue in front of the others, with the count of visits to it.

    On the first hop the original exchange and routing key are noted. CC is renamed, see `without_copies`.
    """
    table = headers or EMPTY_TABLE
    visited = array_entries(table, RECEIVED_FROM)
    count = 0
    if visited is None:
        table = with_value(table, "x-original-exchange", text_value(exchange))
        table = with_value(table, "x-original-routing-key", text_value(routing_key))
    else:
        kept = []
        for one in visited:
            if one.get("uri") == uri and one.get("queue") == queue:
                number = one.get("visit-count", 0)
                count = max(count, number if isinstance(number, int) else 0)
            else:
                kept.append(one)
        if count:
            table = with_value(table, RECEIVED_FROM, b"A" + with_length(b"".join(map(table_value, kept))))
    copies = maybe_value(table, "CC")
    if copies is not None:
        table = with_value(without_copies(table), "x-original-cc", copies)
    entry = encode_table({"uri": uri, "queue": queue, "redelivered": redelivered})
    visits = long_value(min(count + 1, LONG_MAX))  # a publisher may have set any count
    return prepended(table, RECEIVED_FROM, b"F" + with_value(entry, "visit-count", visits))
