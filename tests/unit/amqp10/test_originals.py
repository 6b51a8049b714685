"""AMQP 1.0 clients receive messages as they were sent: the same values and types, and with a footer the same bytes.

That does not hold for a message that was changed on its way.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from amqp10_harness import Amqp10Client, amqp10_client, message, section, sections
from engine_harness import Harness

from warren.amqp.field_table import Table, decode_table, encode_table
from warren.amqp.properties import BasicProperties
from warren.amqp10.originals import LAYOUT_MAX_BYTES, SECTIONS_MAX_BYTES, Shown, StoredLayout
from warren.amqp10.performatives import TRANSFER, frame
from warren.amqp10.values import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)

from .test_publishing import error_of

SECTIONS = "x-amqp10-sections"
BODY = "x-amqp10-body"
FOOTER = "x-amqp10-footer"
ODD = {
    "byte": Byte(-1),
    "short": Short(-300),
    "int": Int(5),
    "long": 5,
    "ubyte": UByte(5),
    "ushort": UShort(500),
    "uint": UInt(0),
    "ulong": ULong(2**64 - 1),
    "float": Float(0.5),
    "double": 0.25,
    "char": Char("\u00fc"),
    "when": Timestamp(1_700_000_000_123),
    "id": Uuid(bytes(range(16))),
    "symbol": Symbol("s"),
    "decimal": Decimal(b"\x22\x50\x00\x01"),
    "x-own": "no annotation",
    "none": None,
}


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    harness.channel().declare("q")
    return harness


class Pair:
    """A client of 1.0 that sends to a queue and receives from it."""

    def __init__(self, harness: Harness) -> None:
        self.client: Amqp10Client = amqp10_client(harness, max_frame=1 << 20)
        self.client.sender(1, "/queues/q")
        self.client.receiver(0, "/queues/q", mode=1)
        self._count = 0

    def passed_on(self, payload: bytes) -> bytes:
        """Send a message; return what comes."""
        self.client.transfer(1, payload)
        return self.received()

    def received(self) -> bytes:
        found = self.client.credit(0, 1, count=self._count)
        self._count += 1
        return b"".join(each.payload for each in found if each.name == "transfer")


@pytest.fixture
def pair(harness: Harness) -> Pair:
    return Pair(harness)


def behind_annotations(payload: bytes) -> bytes:
    """Return the bare message and the footer: the sections after header and annotations."""
    while payload[:3] in (b"\x00\x53\x70", b"\x00\x53\x72"):
        wide = payload[3] & 0x10
        payload = payload[8 + int.from_bytes(payload[4:8], "big") :] if wide else payload[5 + payload[4] :]
    return payload


def headers_of(harness: Harness) -> Table:
    """Return the headers of the next message of the queue, for a client of 0-9-1."""
    found = taken(harness).headers
    return {} if found is None else decode_table(found)


def taken(harness: Harness) -> BasicProperties:
    """Take the next message of the queue by 0-9-1; return its properties."""
    got = harness.channel().get("q", no_ack=True)
    assert got is not None and got.content is not None
    return got.content.properties


# --- as it was --------------------------------------------------------------------------------------------------


def test_usual_messages_carry_nothing_besides(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(1, "/queues/q")
    before = section(0x73, ["id", None, "/queues/q", "subject"]) + section(
        0x74, {"text": "t", "number": 5, "raw": b"r"}
    )
    client.transfer(1, message(b"body", before=section(0x72, {Symbol("x-own"): "a"}) + before))
    assert not [name for name in headers_of(harness) if name in (SECTIONS, BODY, FOOTER)]


@pytest.mark.parametrize("name", ODD)
def test_application_properties_keep_their_types(pair: Pair, name: str) -> None:
    bare = section(0x74, {name: ODD[name], "n": 1}) + section(0x75, b"body")
    found = pair.passed_on(section(0x70, [True]) + bare)
    assert behind_annotations(found) == bare
    assert set(sections(found)[0x72]) == {"x-exchange", "x-routing-key"}


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_application_properties_with_names_by_which_0_9_1_routes_are_not_routed_by(
    harness: Harness, pair: Pair, name: str
) -> None:
    harness.channel().declare("other")
    bare = section(0x74, {name: "w1", "k": "v"}) + section(0x75, b"body")
    assert behind_annotations(pair.passed_on(bare)) == bare
    copied = section(0x72, {Symbol("x-cc"): ["other"]}) + bare
    found = pair.passed_on(copied)
    assert behind_annotations(found) == bare
    assert sections(found)[0x72]["x-cc"] == ["other"]
    assert harness.queue("other").ready_count == 1


@pytest.mark.parametrize("identifier", [ULong(7), Uuid(bytes(16)), b"\xff", "text", "x" * 300])
def test_message_ids_keep_their_types(pair: Pair, identifier: object) -> None:
    bare = section(0x73, [identifier, None, None, None, None, identifier]) + section(0x75, b"body")
    assert behind_annotations(pair.passed_on(bare)) == bare


def test_annotations_keep_their_types_and_those_of_the_broker_are_its_own(pair: Pair) -> None:
    sent = {
        Symbol("x-opt-jms-msg-type"): Byte(5),
        Symbol("x-opt-jms-dest"): Byte(0),
        Symbol("other"): Symbol("s"),
        Symbol("x-list"): Array(0x71, [Int(1)]),
        Symbol("x-basic-type"): "kind",
        Symbol("x-exchange"): "forged",
        ULong(3): "reserved",
    }
    found = pair.passed_on(section(0x72, sent) + section(0x75, b"body"))
    expected = sent | {Symbol("x-exchange"): "", Symbol("x-routing-key"): "q"}
    annotations = sections(found)[0x72]
    assert annotations == expected
    assert {name: type(value) for name, value in annotations.items()} == {
        name: type(value) for name, value in expected.items()
    }


def test_other_encodings_of_the_same_values_are_kept_with_a_footer(harness: Harness, pair: Pair) -> None:
    # A descriptor of eight bytes; sizes and counts of four.
    wide = b"\x00\x80" + bytes(7) + b"\x73\xd0" + (8).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\xa1\x02id"
    bare = wide + b"\x00\x53\x75\xb0\x00\x00\x00\x04body"
    footer = section(0x78, {Symbol("x-sign"): b"\x01\x02"})
    assert behind_annotations(pair.passed_on(bare + footer)) == bare + footer
    assert behind_annotations(pair.passed_on(bare)) == section(0x73, ["id"]) + section(0x75, b"body")
    pair.client.transfer(1, bare)
    assert headers_of(harness) == {}


BODIES: list[bytes] = [
    b"",
    section(0x75, b""),
    section(0x75, bytes(255)),
    section(0x75, bytes(256)),
    section(0x75, bytes(100_000)),
    section(0x75, b"a") + section(0x75, b"") + section(0x75, bytes(300)),
    b"\x00\xa3\x10amqp:data:binary\xa0\x01x" + section(0x75, b"y"),
    section(0x77, "text"),
    section(0x76, [1]) + section(0x76, [Symbol("s")]),
]


@pytest.mark.parametrize("footer", [b"", section(0x78, {Symbol("x-sign"): b"\x01\x02"})])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{len(body)}")
def test_bodies_keep_their_sections_and_footer(pair: Pair, body: bytes, footer: bytes) -> None:
    for _ in range(2):  # the second one finds its properties known
        assert behind_annotations(pair.passed_on(section(0x70, [True]) + body + footer)) == body + footer


def test_the_same_properties_with_other_layouts_are_told_apart(pair: Pair) -> None:
    for _ in range(2):
        for body in BODIES[5:]:
            bare = section(0x73, ["id"]) + body
            assert behind_annotations(pair.passed_on(bare)) == bare


def test_random_messages_come_back_as_they_were(pair: Pair) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    values: list[Any] = [*ODD.values(), "", "\u00fc" * 200, bytes(400), True, False, -(2**63), float("nan")]
    for _ in range(300):
        application = {
            f"{chance.choice('abx')}-{number}": chance.choice(values) for number in range(chance.randrange(5))
        }
        fields = [chance.choice([None, ULong(1), "id", b"id"]), None, None, chance.choice([None, "s"])]
        fields += [chance.choice([None, "/queues/a", "a", "/other"]), None, chance.choice([None, Symbol("t"), "t"])]
        while fields and fields[-1] is None:
            fields.pop()
        annotations = {Symbol(f"x-{number}"): chance.choice(values) for number in range(chance.randrange(3))}
        bare = (section(0x73, fields) if fields else b"") + (section(0x74, application) if application else b"")
        bare += chance.choice(BODIES)
        head = section(0x72, annotations) if annotations else b""
        found = pair.passed_on(head + bare)
        assert behind_annotations(found) == bare
        shown = sections(found)[0x72]
        assert section(0, [shown.get(name) for name in annotations]) == section(0, list(annotations.values()))


# --- on its way -----------------------------------------------------------------------------------------------------


def sent_with_everything(harness: Harness) -> tuple[Table, BasicProperties]:
    """Send a message by 1.0, take it by 0-9-1; return its headers and properties."""
    client = amqp10_client(harness)
    client.sender(1, "/queues/q")
    before = section(0x72, {Symbol("x-opt-type"): Byte(5)}) + section(0x73, [ULong(7)]) + section(0x74, ODD)
    client.transfer(1, message(b"body", before=before))
    found = taken(harness)
    assert found.headers is not None
    return decode_table(found.headers), found


Change = Callable[[Table, dict[str, Any]], None]


def _set(name: str, value: object) -> Change:
    def change(headers: Table, properties: dict[str, Any]) -> None:
        headers[name] = value

    return change


def _property(name: str, value: object) -> Change:
    def change(headers: Table, properties: dict[str, Any]) -> None:
        properties[name] = value

    return change


def _without(name: str) -> Change:
    def change(headers: Table, properties: dict[str, Any]) -> None:
        del headers[name]

    return change


def resent(harness: Harness, change: Change | None) -> dict[int, Any]:
    """Make a program of 0-9-1 pass a message on, changed; return what a client of 1.0 gets."""
    headers, found = sent_with_everything(harness)
    properties: dict[str, Any] = {"message_id": found.message_id}
    if change is not None:
        change(headers, properties)
    harness.channel().publish("", "q", b"body", headers=encode_table(headers), **properties)
    return sections(Pair(harness).received())


def test_what_a_program_of_0_9_1_sends_on_unchanged_is_as_it_was(harness: Harness) -> None:
    found = resent(harness, None)
    assert found[0x74] == ODD and type(found[0x74]["int"]) is Int
    assert type(found[0x73][0]) is ULong
    assert type(found[0x72]["x-opt-type"]) is Byte


@pytest.mark.parametrize(
    ("change", "application"),
    [
        (_set("int", 6), {"int": 6}),
        (_set("added", "new"), {"added": "new"}),
        (_without("int"), {"int": None}),
        (_property("message_id", "8"), {"int": 5}),
        (_property("correlation_id", "c"), {"int": 5}),
        (_property("content_type", "t"), {"int": 5}),
        (_property("app_id", "a"), {"int": 5}),
        (_set(SECTIONS, b"\xff\xff"), {"int": 5}),
        (_set(SECTIONS, "text"), {"int": 5}),
        (_set(SECTIONS, section(0x70, [True])), {"int": 5}),
        (_set(SECTIONS, section(0x74, {"int": ULong(5)})), {"int": 5}),
    ],
)
def test_what_a_program_of_0_9_1_has_changed_counts(
    harness: Harness, change: Change, application: dict[str, object]
) -> None:
    found = resent(harness, change)
    for name, value in application.items():
        assert found[0x74].get(name) == value and type(found[0x74].get(name)) is type(value)
    assert "x-own" not in found[0x74]  # as it is without the original: an annotation


def test_an_annotation_that_has_changed_is_the_new_one_beside_the_others(harness: Harness) -> None:
    found = resent(harness, _set("x-opt-type", 6))
    assert found[0x72]["x-opt-type"] == 6 and type(found[0x72]["x-opt-type"]) is int
    assert type(found[0x74]["int"]) is Int
    found = resent(harness, _without("x-opt-type"))
    assert "x-opt-type" not in found[0x72]
    found = resent(harness, _set("x-added", "a"))
    assert found[0x72]["x-added"] == "a" and found[0x72]["x-opt-type"] == 5


def test_a_dead_letter_is_what_it_was_and_says_why(harness: Harness) -> None:
    harness.channel().declare(
        "short", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-message-ttl": 0}
    )
    client = amqp10_client(harness)
    client.sender(1, "/queues/short")
    bare = section(0x74, ODD) + section(0x75, b"body") + section(0x78, {Symbol("f"): 1})
    client.transfer(1, section(0x72, {Symbol("x-opt-type"): Byte(5)}) + bare)
    harness.pass_time(1)
    found = Pair(harness).received()
    assert behind_annotations(found) == bare
    annotations = sections(found)[0x72]
    assert type(annotations["x-opt-type"]) is Byte and isinstance(annotations["x-opt-deaths"], Array)


# --- limits ---------------------------------------------------------------------------------------------------------


def test_what_is_too_large_is_kept_as_values(harness: Harness, pair: Pair) -> None:
    large = {"n": Int(1), "text": "x" * SECTIONS_MAX_BYTES}
    found = sections(pair.passed_on(section(0x74, large) + section(0x75, b"body")))[0x74]
    assert found == large and type(found["n"]) is int
    many = section(0x75, b"a") * (LAYOUT_MAX_BYTES // 8)
    found = sections(pair.passed_on(many))[0x75]
    assert found == b"a" * (LAYOUT_MAX_BYTES // 8)
    footer = section(0x78, {Symbol("f"): bytes(LAYOUT_MAX_BYTES)})
    assert behind_annotations(pair.passed_on(section(0x75, b"body") + footer)) == section(0x75, b"body")


@pytest.mark.parametrize(
    "heads",
    [
        "text",
        [b"\x00\x53\x75\xa0", 2],
        [b"\x00\x53\x75\xa0", -1, b"\x00\x53\x75\xa0"],
        [b"\x00\x53\x75\xa0", 5, b"\x00\x53\x75\xa0"],
        [b"\x00\x53\x75\xa0", True, b"\x00\x53\x75\xa0"],
        [b"\x00\x53\x75\xa0", b"", b"\x00\x53\x75\xa0"],
        [b"\x00\x53\x77\xa0"],
        [b"\x00\x53\x75\xa1"],
        [b"\x00\x53\x75\xa0\xa0"],
        [b"\x75\xa0"],
        [b""],
        [5],
        [],
        [b"\x00\x53\x75\xb0", 1] * LAYOUT_MAX_BYTES + [b"\x00\x53\x75\xb0"],
    ],
)
def test_layouts_that_are_none_are_passed_over(heads: Any) -> None:
    usual = section(0x75, b"body")
    footer = section(0x78, {})
    stored = StoredLayout(BasicProperties(), {BODY: heads, FOOTER: footer})
    assert stored.sections(b"body") == usual + footer
    assert StoredLayout(BasicProperties(), {BODY: [b"\x00\x53\x75\xa0"]}).sections(bytes(256)) == section(
        0x75, bytes(256)
    )


@pytest.mark.parametrize("footer", ["text", b"", b"\xff", section(0x75, b"x"), section(0x78, {})[:-1]])
def test_footers_that_are_none_are_passed_over(footer: Any) -> None:
    assert StoredLayout(BasicProperties(), {FOOTER: footer}).is_usual


def test_arbitrary_headers_make_no_error() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    valid = section(0x72, {Symbol("x-a"): 1}) + section(0x73, ["id", None, "to"]) + section(0x74, {"n": Int(1)})
    for _ in range(3000):
        raw = bytearray(valid)
        for _ in range(chance.randrange(1, 4)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        headers: Table = {SECTIONS: bytes(raw), FOOTER: bytes(raw), BODY: [bytes(raw[:4])], "n": 1}
        found = BasicProperties()
        found.message_id = "id"
        found.headers = encode_table(headers)
        made = Shown(found).sections("", "q")
        sections(made)
        stored = StoredLayout(found, headers)
        assert b"body" in stored.sections(b"body")


def test_a_described_value_is_kept_too(pair: Pair) -> None:
    sent = {Symbol("x-thing"): Described(Symbol("a:b"), [1])}
    found = sections(pair.passed_on(section(0x72, sent) + section(0x75, b"")))[0x72]
    assert found["x-thing"] == sent[Symbol("x-thing")]


def test_numbers_beyond_62_bits_are_let_go_of(harness: Harness) -> None:
    """Compiled, `str` of such a number never is, see `amqp.numbers.number_text`."""
    client = amqp10_client(harness)
    client.sender(1, "/queues/q")
    reader = harness.channel()
    huge = ULong(2**64 - 1)

    def send(count: int) -> int:
        for number in range(count):  # each with properties that are not known yet
            before = section(0x73, [huge, None, None, f"{number}"]) + section(0x74, {"huge": huge})
            client.transfer(1, message(b"", before=before))
            reader.get("q", no_ack=True)
        gc.collect()
        return sys.getallocatedblocks()

    before = send(200)
    assert send(400) - before < 200


LONG = "x" * 300
LONG_PROPERTIES = [
    [None, None, None, None, LONG],
    [None] * 6 + [Symbol(LONG)],
    [None] * 7 + [Symbol(LONG)],
    [None] * 10 + [LONG],
    [None] * 8 + [Timestamp(-5), Timestamp(-1_000_001)],
]


@pytest.mark.parametrize("fields", LONG_PROPERTIES)
def test_what_0_9_1_has_no_room_for_comes_back_to_clients_of_1_0(pair: Pair, fields: list[object]) -> None:
    sent = section(0x73, fields) + section(0x74, {"when": Timestamp(-1)}) + section(0x75, b"body")
    assert behind_annotations(pair.passed_on(sent)) == sent


def test_what_is_too_long_in_sections_that_are_not_kept_is_refused(harness: Harness) -> None:
    client = amqp10_client(harness, max_frame=1 << 20)
    client.sender(0, "/queues/q")
    large = section(0x74, {f"k{number}": "v" * 1000 for number in range(20)})
    (detach,) = client.transfer(0, section(0x73, [None, None, None, None, LONG]) + large + section(0x75, b"body"))
    assert detach.name == "detach"


def test_another_message_format_is_refused(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(0, "/queues/q")
    fields = [UInt(0), UInt(0), b"t", UInt(0x80013700), False, False]
    head = frame(0, TRANSFER, fields)
    payload = message(b"x")
    (detach,) = client.feed((len(head) + len(payload)).to_bytes(4, "big") + head[4:] + payload)
    assert detach.name == "detach" and error_of(detach) == "amqp:not-implemented"
    assert harness.queue("q").ready_count == 0
