"""The codec of MQTT against a declaration of the same packets with construct."""

from __future__ import annotations

from typing import Any

import construct as c  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from property.wire import thorough
from warren.mqtt import packets as p
from warren.mqtt.reason_codes import MqttError

TEXT = c.PascalString(c.Int16ub, "utf8")
BINARY = c.Prefixed(c.Int16ub, c.GreedyBytes)
# Property by property, as the table of the standard has them (2.2.2.2).
KINDS: dict[int, Any] = {
    **dict.fromkeys((1, 23, 25, 36, 37, 40, 41, 42), c.Byte),
    **dict.fromkeys((19, 33, 34, 35), c.Int16ub),
    **dict.fromkeys((2, 17, 24, 39), c.Int32ub),
    **dict.fromkeys((3, 8, 18, 21, 26, 28, 31), TEXT),
    **dict.fromkeys((9, 22), BINARY),
    11: c.VarInt,
    38: c.Struct("name" / TEXT, "value" / TEXT),
}
PROPERTY = c.Struct("id" / c.VarInt, "value" / c.Switch(c.this.id, KINDS, c.Error))
PROPERTIES = c.Prefixed(c.VarInt, c.GreedyRange(PROPERTY))
FIXED = c.Struct("first" / c.Byte, "rest" / c.Prefixed(c.VarInt, c.GreedyBytes))
CONNECT = c.Struct(
    "name" / TEXT,
    "version" / c.Byte,
    "flags"
    / c.BitStruct(
        "user" / c.Flag,
        "password" / c.Flag,
        "retain" / c.Flag,
        "qos" / c.BitsInteger(2),
        "will" / c.Flag,
        "clean" / c.Flag,
        "reserved" / c.Const(0, c.BitsInteger(1)),
    ),
    "keep_alive" / c.Int16ub,
    "properties" / c.If(c.this.version == 5, PROPERTIES),
    "client_id" / TEXT,
    "will"
    / c.If(
        c.this.flags.will,
        c.Struct("properties" / c.If(c.this._.version == 5, PROPERTIES), "topic" / TEXT, "payload" / BINARY),
    ),
    "user" / c.If(c.this.flags.user, TEXT),
    "password" / c.If(c.this.flags.password, BINARY),
)
FILTER = c.Struct(
    "filter" / TEXT,
    "options"
    / c.BitStruct(
        "reserved" / c.Const(0, c.BitsInteger(2)),
        "handling" / c.BitsInteger(2),
        "as_published" / c.Flag,
        "no_local" / c.Flag,
        "qos" / c.BitsInteger(2),
    ),
)
SUBSCRIBE = c.Struct("packet_id" / c.Int16ub, "properties" / PROPERTIES, "filters" / c.GreedyRange(FILTER))

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
numbers = {c.Byte: st.integers(0, 1), c.Int16ub: st.integers(1, 65535), c.Int32ub: st.integers(1, 2**32 - 1)}


@st.composite
def property_lists(draw: st.DrawFn, packet: int) -> list[dict[str, Any]]:
    """Draw properties that may stand in `packet`, as construct takes them."""
    allowed = [each for each, (_, packets) in p.PROPERTIES.items() if packet in packets and each != p.USER]
    found: list[dict[str, Any]] = []
    for identifier in draw(st.lists(st.sampled_from(allowed), unique=True)) if allowed else []:
        kind = KINDS[identifier]
        if kind is TEXT:
            value: Any = draw(texts)
        elif kind is BINARY:
            value = draw(st.binary(max_size=20))
        elif kind is c.VarInt:
            value = draw(st.integers(1, p.REMAINING_MAX))
        else:
            value = draw(numbers[kind])
        found.append({"id": identifier, "value": value})
    users = draw(st.lists(st.tuples(texts, texts), max_size=3))
    return found + [{"id": p.USER, "value": {"name": name, "value": value}} for name, value in users]


def as_list(found: p.Properties) -> list[dict[str, Any]]:
    """Return properties as construct has them, in the order of `property_lists` but for identifiers."""
    listed: list[dict[str, Any]] = [{"id": each, "value": value} for each, value in found.values.items()]
    listed += [{"id": p.SUBSCRIPTION_ID, "value": each} for each in found.ids]
    return listed + [{"id": p.USER, "value": {"name": name, "value": value}} for name, value in found.users]


def without_order(properties: Any) -> list[str]:
    plain = []
    for each in properties:
        value = each["value"]
        plain.append(repr((each["id"], (value["name"], value["value"]) if each["id"] == p.USER else value)))
    return sorted(plain)


@pytest.mark.parametrize("kind", sorted({0, *range(1, 16)} - {p.PINGREQ, p.PINGRESP}))
@given(data=st.data())
@thorough(40)
def test_properties_are_those_of_the_declaration(kind: int, data: st.DataObject) -> None:
    drawn = data.draw(property_lists(kind))
    encoded = PROPERTIES.build(drawn)
    reader = p.Reader(encoded, 0, len(encoded))
    found = reader.properties(kind)
    reader.done()
    assert without_order(as_list(found)) == without_order(drawn)
    assert without_order(PROPERTIES.parse(found.encode())) == without_order(drawn)


@given(data=st.data(), version=st.sampled_from([3, 4, 5]))
@thorough(200)
def test_connect_is_that_of_the_declaration(data: st.DataObject, version: int) -> None:
    has_will, has_user = data.draw(st.booleans()), data.draw(st.booleans())
    has_password = data.draw(st.booleans()) and (has_user or version == 5)
    flags: dict[str, Any] = {
        "user": has_user,
        "password": has_password,
        "will": has_will,
        "clean": data.draw(st.booleans()),
    }
    flags |= {"qos": data.draw(st.integers(0, 2)) if has_will else 0, "retain": has_will and data.draw(st.booleans())}
    topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=20)
    drawn: dict[str, Any] = {
        "name": "MQIsdp" if version == 3 else "MQTT",
        "version": version,
        "flags": flags,
        "keep_alive": data.draw(st.integers(0, 65535)),
        "properties": data.draw(property_lists(p.CONNECT)) if version == 5 else None,
        "client_id": data.draw(texts),
        "will": None,
        "user": data.draw(texts) if has_user else None,
        "password": data.draw(st.binary(max_size=20)) if has_password else None,
    }
    if has_will:
        given_to_will = data.draw(property_lists(p.WILL)) if version == 5 else None
        drawn["will"] = {
            "properties": given_to_will,
            "topic": data.draw(topics),
            "payload": data.draw(st.binary(max_size=20)),
        }
    encoded = CONNECT.build(drawn)
    found = p.decode_connect(encoded, 0, len(encoded))
    assert (found.version, found.clean, found.keep_alive_s) == (version, flags["clean"], drawn["keep_alive"])
    assert (found.client_id, found.user, found.password) == (drawn["client_id"], drawn["user"], drawn["password"])
    assert without_order(as_list(found.properties)) == without_order(drawn["properties"] or [])
    assert (found.will is not None) == has_will
    if found.will is not None:
        will = drawn["will"]
        assert (found.will.topic, found.will.payload) == (will["topic"], will["payload"])
        assert (found.will.qos, found.will.retain) == (flags["qos"], flags["retain"])
        assert without_order(as_list(found.will.properties)) == without_order(will["properties"] or [])
    for end in range(len(encoded)):
        with pytest.raises(MqttError):
            p.decode_connect(encoded[:end], 0, end)


@given(data=st.data())
@thorough(100)
def test_subscribe_is_that_of_the_declaration(data: st.DataObject) -> None:
    options = st.fixed_dictionaries(
        {
            "handling": st.integers(0, 2),
            "as_published": st.booleans(),
            "no_local": st.booleans(),
            "qos": st.integers(0, 2),
        }
    )
    filters = st.fixed_dictionaries({"filter": texts, "options": options})
    drawn: dict[str, Any] = {
        "packet_id": data.draw(st.integers(1, 65535)),
        "properties": data.draw(property_lists(p.SUBSCRIBE)),
        "filters": data.draw(st.lists(filters, min_size=1, max_size=4)),
    }
    encoded = SUBSCRIBE.build(drawn)
    found = p.decode_subscribe(encoded, 0, len(encoded), 5)
    assert found.packet_id == drawn["packet_id"]
    assert without_order(as_list(found.properties)) == without_order(drawn["properties"])
    for each, wanted in zip(drawn["filters"], found.wanted, strict=True):
        assert each["filter"] == wanted.filter
        for name, value in each["options"].items():
            assert getattr(wanted, name) == value


@given(number=st.integers(0, p.REMAINING_MAX))
@thorough(100)
def test_a_number_is_that_of_the_declaration(number: int) -> None:
    encoded = p.varint(number)
    assert encoded == c.VarInt.build(number)
    assert p.Reader(encoded, 0, len(encoded)).varint() == number


@given(version=st.sampled_from([4, 5]), packet_id=st.integers(1, 65535), reason=st.sampled_from([0, 0x10, 0x97]))
@thorough(60)
def test_answers_come_back(version: int, packet_id: int, reason: int) -> None:
    for kind in (p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP):
        fixed = FIXED.parse(p.acknowledgement(kind, packet_id, version, reason))
        assert fixed.first == kind << 4 | (2 if kind == p.PUBREL else 0)
        found = p.decode_answer(kind, fixed.rest, 0, len(fixed.rest), version)
        assert (found.packet_id, found.reason) == (packet_id, reason if version == 5 else 0)
    left = FIXED.parse(p.disconnect(reason, "why"))
    found = p.decode_answer(p.DISCONNECT, left.rest, 0, len(left.rest), 5)
    assert (found.reason, found.properties.maybe_text(p.REASON_STRING)) == (reason, "why")
