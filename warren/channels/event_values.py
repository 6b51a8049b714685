"""The values in the headers of an event: Erlang terms as texts, and every integer a long.

value      tag               value      tag
bool       t                 str        S
int        l, S beyond it    list       A
float      d                 dict       F
None       V
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_f64_be, write_i64_be
from mypy_extensions import i64, u8

from warren.amqp.field_table import EMPTY_TABLE, TYPE_NAMES, Table, TableWalker, with_length
from warren.amqp.term_text import term_text
from warren.channels.own_messages import cut_short
from warren.vhosts.definitions import erlang_term

TERMS_MAX_BYTES: Final = 32768  # of the arguments shown in one event
SMALL_MAX_CHARACTERS: Final = 1024  # of a text, if an event has to be made smaller

# --- terms ------------------------------------------------------------------------------------------------------------


def argument_terms(arguments: bytes) -> list[object]:
    """Return the text of each entry of an encoded table, as many as `TERMS_MAX_BYTES` hold."""
    terms: list[object] = []
    if arguments == EMPTY_TABLE:
        return terms
    walker = TableWalker(arguments, 4, len(arguments))
    size = 0
    while walker.pos < walker.end:
        key = walker.key()
        type_name = TYPE_NAMES[chr(arguments[walker.pos])]
        text = f"{{{term_text(key)},{type_name},{term_text(walker.value(1))}}}"
        size += len(text.encode())
        if size > TERMS_MAX_BYTES:
            break
        terms.append(text)
    return terms


def property_terms(properties: Table) -> list[object]:
    """Return the text of each of the decoded client-properties, of which the handshake has taken 8 KiB at most."""
    return [term_text({name: value})[1:-1] for name, value in properties.items()]


def parameter_value(value: object) -> object:
    """Return a value read from JSON as it is told: an object within another value is the text of its term."""
    if isinstance(value, dict):
        return {key: _inner(each) for key, each in value.items()} if value else []
    return _inner(value)


def _inner(value: object) -> object:
    if isinstance(value, list):
        return [_inner(each) for each in value]
    return erlang_term(value) if isinstance(value, dict) or value is None else value


def atom_text(name: str) -> str:
    """Return the atom that is called `name` as Erlang writes it: ``tag``, ``'my-tag'``."""
    if name[:1].islower() and name.isascii() and name.replace("_", "").replace("@", "").isalnum():
        return name
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def port_of(endpoint: str) -> int:
    """Return the port of ``host:port``, 0 when the port is missing."""
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isdigit() else 0


def address_term(endpoint: str) -> str:
    """Return the address of ``host:port`` as Erlang writes it: ``{127,0,0,1}``, or eight numbers."""
    host = endpoint.rpartition(":")[0].strip("[]").partition("%")[0]
    if ":" in host:
        return "{" + ",".join([str(group) for group in _groups(host)]) + "}"
    if host.replace(".", "").isdigit():
        return "{" + host.replace(".", ",") + "}"
    return host or "unknown"


def _groups(host: str) -> list[int]:
    """Return the eight numbers of an IPv6 address."""
    head, _, tail = host.partition("::")
    before = _numbers(head)
    behind = _numbers(tail)
    return before + [0] * (8 - len(before) - len(behind)) + behind


def _numbers(text: str) -> list[int]:
    groups: list[int] = []
    for group in text.split(":") if text else []:
        if "." in group:  # the last four bytes, written as an IPv4 address
            parts = [int(part) for part in group.split(".")]
            groups += [parts[0] << 8 | parts[1], parts[2] << 8 | parts[3]]
        else:
            groups.append(int(group, 16))
    return groups


# --- encoding ---------------------------------------------------------------------------------------------------------


def without_large(headers: Table) -> Table:
    """Return those of `headers` that are short texts, numbers and flags."""
    return {name: value for name, value in headers.items() if _is_small(value)}


def _is_small(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= SMALL_MAX_CHARACTERS
    return isinstance(value, int | float)


def event_table(headers: Table, now_ms: int) -> bytes:
    """Encode `headers` and the time, with the length prefix. Keys are cut after 255 bytes."""
    out = BytesWriter()
    _write_entries(out, headers)
    _write_entries(out, {"timestamp_in_ms": now_ms})
    return with_length(out.getvalue())


def _write_entries(out: BytesWriter, table: Table) -> None:
    for key, value in table.items():
        raw = cut_short(key).encode("utf-8", "surrogateescape")
        out.append(u8(len(raw)))
        out.write(raw)
        _write_value(out, value)


def _write_value(out: BytesWriter, value: object) -> None:
    """Write a value with its tag. Unlike `encode_table` it makes every integer a long."""
    if isinstance(value, bool):
        out.append(116)
        out.append(1 if value else 0)
    elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        out.append(108)
        write_i64_be(out, i64(value))
    elif isinstance(value, float):
        out.append(100)
        write_f64_be(out, value)
    elif isinstance(value, dict):
        entries = BytesWriter()
        _write_entries(entries, value)
        out.append(70)
        out.write(with_length(entries.getvalue()))
    elif isinstance(value, list):
        items = BytesWriter()
        for item in value:
            _write_value(items, item)
        out.append(65)
        out.write(with_length(items.getvalue()))
    elif value is None:
        out.append(86)
    else:
        out.append(83)
        out.write(with_length(str(value).encode("utf-8", "surrogatepass")))


def protocol_term(protocol: str) -> str:
    """Return the name of a protocol as the text of RabbitMQ's term for it."""
    name, space, version = protocol.rpartition(" ")
    if not space:
        name, version = protocol, ""
    if name == "AMQP":
        return "{" + version.replace("-", ",") + "}"
    return f'{{{atom_text(name)},"{version}"}}'
