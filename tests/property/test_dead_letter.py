"""Any header, body and history: unnamed fields survive byte for byte, counts and cycles are those of a list."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.field_table import Table, decode_table, with_length
from warren.amqp.properties import BasicProperties, decode_properties, scan_properties
from warren.amqp.specification import TaggedTable
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.dead_letter import (
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    REJECTED,
    dead_letter,
    is_cycle,
    mark_republished,
    with_header,
    with_headers,
    with_properties,
    without_header,
)

from .wire import PROPERTIES, keys, scalar_fields, shortstrs, signed, tagged_fields, tagged_tables, thorough

OURS = {"x-death"} | {
    f"x-{which}-death-{what}" for which in ("first", "last") for what in ("reason", "queue", "exchange")
}
QUEUES = ("a", "b", "c")
REASONS = (REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT)

# --- messages -------------------------------------------------------------------------------------------------------

names = st.one_of(keys, st.sampled_from(["CC", "BCC", "x-deaths", "x-delivery-count", *sorted(OURS)]))
# Deaths as clients may publish them: any field missing, twice, or of any type.
odd_deaths = st.lists(
    st.tuples(
        st.sampled_from(["queue", "reason", "count", "republished", "time"]),
        st.one_of(
            st.sampled_from([*QUEUES, *REASONS]).map(lambda text: {"tag": "S", "value": text.encode()}),
            scalar_fields,
            tagged_fields,
        ),
    ).map(lambda pair: {"key": pair[0], "field": pair[1]}),
    max_size=6,
).map(lambda pairs: {"tag": "F", "value": pairs})
odd_histories = st.lists(odd_deaths | tagged_fields, max_size=4).map(lambda items: {"tag": "A", "value": items})
fields = st.one_of(tagged_fields, odd_histories)
pairs = st.tuples(names, fields).map(lambda pair: {"key": pair[0], "field": pair[1]})
tables = st.lists(pairs | tagged_tables.filter(bool).map(lambda table: table[0]), max_size=6)
other_properties = {name: values for name, values in PROPERTIES.items() if name != "headers"}


@st.composite
def messages(draw: st.DrawFn) -> tuple[Message, list[tuple[str, bytes]]]:
    """Draw a message, in one piece or in several, and its headers: names with the bytes of the entries."""
    properties = BasicProperties()
    for name, value in draw(st.fixed_dictionaries({}, optional=other_properties)).items():
        setattr(properties, name, value)
    table = draw(st.none() | tables)
    entries: list[tuple[str, bytes]] = []
    if table is not None:
        entries = [(pair["key"], TaggedTable.build([pair])[4:]) for pair in table]
        properties.headers = with_length(b"".join(raw for _, raw in entries))
    body = draw(st.binary(max_size=60) | st.integers(0, 40_000).map(bytes))
    frame_max = draw(st.sampled_from([0, 20, 100, 131072]))
    envelope = Envelope(draw(st.sampled_from(["", "x"])), draw(shortstrs))
    made = build_message(envelope, properties.encode(), body, frame_max, properties.delivery_mode == 2)
    if draw(st.booleans()):
        made.pieces = [made.content[: 8 + len(made.header_payload())]]
        rest = made.content[len(made.pieces[0]) :]
        for cut in sorted(draw(st.lists(st.integers(0, len(rest)), max_size=3)), reverse=True):
            made.pieces.insert(1, rest[cut:])
            rest = rest[:cut]
        made.pieces.insert(1, rest)
        made.content = b""
    return made, entries


def frames_of(message: Message) -> list[bytes]:
    data = message.content if message.pieces is None else b"".join(message.pieces)
    frames = []
    while data:
        size = 8 + int.from_bytes(data[3:7], "big")
        assert data[size - 1] == 0xCE
        frames.append(data[:size])
        data = data[size:]
    return frames


def properties_of(message: Message) -> dict[str, Any]:
    payload = frames_of(message)[0][7:-1]
    scan_properties(payload, 0, len(payload))
    return vars_of(decode_properties(payload, 0, len(payload)))


def vars_of(properties: BasicProperties) -> dict[str, Any]:
    return {name: getattr(properties, name) for name in PROPERTIES}


def table_of(message: Message) -> Table:
    encoded = properties_of(message)["headers"]
    return {} if encoded is None else decode_table(encoded)


def kept_bytes(entries: list[tuple[str, bytes]], gone: set[str]) -> bytes:
    return b"".join(raw for name, raw in entries if name not in gone)


def assert_same_but_for_the_header(after: Message, before: Message) -> None:
    assert frames_of(after)[1:] == frames_of(before)[1:]
    assert frames_of(after)[0][:3] == frames_of(before)[0][:3]
    assert frames_of(after)[0][7:19] == frames_of(before)[0][7:19]
    assert (after.channel, after.body_bytes, after.persistent) == (before.channel, before.body_bytes, before.persistent)
    assert after.frame_max_bytes == max(map(len, frames_of(after)))


# --- untouched bytes ------------------------------------------------------------------------------------------------


@thorough(300)
@given(messages(), st.sampled_from(QUEUES), st.sampled_from(REASONS), st.none() | shortstrs)
def test_a_death_leaves_everything_else_as_it_was(
    drawn: tuple[Message, list[tuple[str, bytes]]], queue: str, reason: str, key: str | None
) -> None:
    before, entries = drawn
    frames, properties = frames_of(before), properties_of(before)
    letter = dead_letter(before, queue, reason, 5, "dlx", key)
    after = letter.message
    assert_same_but_for_the_header(after, before)
    assert frames_of(before) == frames and before.pieces != [], "the message itself was changed"

    gone = OURS if key is None else OURS | {"CC"}
    headers = properties_of(after)["headers"]
    written = with_length(headers[4 + len(kept_bytes(entries, gone)) :])
    assert headers[4:].startswith(kept_bytes(entries, gone))
    assert set(decode_table(written)) <= OURS
    assert properties_of(after) == properties | {"headers": headers, "expiration": None}

    table = decode_table(written)
    deaths: Any = table["x-death"]
    assert (deaths[0]["queue"], deaths[0]["reason"]) == (queue, reason)
    assert isinstance(deaths[0]["count"], int)
    assert table["x-last-death-queue"] == queue and table["x-last-death-exchange"] == before.envelope.exchange
    assert after.envelope.exchange == "dlx"
    assert after.envelope.routing_key == letter.keys[0] == (before.envelope.routing_key if key is None else key)


@thorough(200)
@given(messages(), names, names, signed(64), st.text(max_size=20))
def test_a_header_that_is_set_leaves_everything_else_as_it_was(
    drawn: tuple[Message, list[tuple[str, bytes]]], name: str, other: str, number: int, text: str
) -> None:
    before, entries = drawn
    properties = properties_of(before)
    for after, values in (
        (with_header(before, name, number), {name: number}),
        (with_headers(before, {name: number, other: text}), {name: number, other: text}),
    ):
        assert_same_but_for_the_header(after, before)
        headers = properties_of(after)["headers"]
        kept = kept_bytes(entries, set(values))
        assert headers[4:].startswith(kept)
        assert decode_table(with_length(headers[4 + len(kept) :])) == values
        assert properties_of(after) == properties | {"headers": headers}


@thorough(200)
@given(messages(), names)
def test_what_is_removed_is_all_that_goes(drawn: tuple[Message, list[tuple[str, bytes]]], name: str) -> None:
    before, entries = drawn
    properties = properties_of(before)
    after = without_header(before, name)
    assert_same_but_for_the_header(after, before)
    expected = properties["headers"] and with_length(kept_bytes(entries, {name}))
    assert properties_of(after) == properties | {"headers": expected}


@thorough(100)
@given(messages(), messages())
def test_properties_are_replaced_as_a_whole(drawn: tuple[Message, Any], others: tuple[Message, Any]) -> None:
    properties = frames_of(others[0])[0][19:-1]
    after = with_properties(drawn[0], properties)
    assert_same_but_for_the_header(after, drawn[0])
    assert frames_of(after)[0][19:-1] == properties


@thorough(200)
@given(messages())
def test_marking_adds_to_deaths_and_nothing_else(drawn: tuple[Message, list[tuple[str, bytes]]]) -> None:
    before, entries = drawn
    after = mark_republished(before)
    assert mark_republished(after) is after
    if after is before:
        return
    assert_same_but_for_the_header(after, before)
    headers = properties_of(after)["headers"]
    kept = kept_bytes(entries, {"x-death"})
    assert headers[4:].startswith(kept)
    sent = [raw for name, raw in entries if name == "x-death"][-1]
    expected = TaggedTable.parse(with_length(sent))
    for item in expected[0]["field"]["value"]:
        if item["tag"] == "F" and not any(pair["key"] == "republished" for pair in item["value"]):
            item["value"].append({"key": "republished", "field": {"tag": "t", "value": True}})
    assert headers[4 + len(kept) :] == TaggedTable.build(expected)[4:]


# --- histories against a list ---------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(QUEUES),
        st.sampled_from(REASONS),
        st.sampled_from([None, "", "a", "k"]),
        st.booleans(),  # a client publishes it again before
    ),
    min_size=1,
    max_size=12,
)


def runs_in_a_circle(history: list[tuple[str, str]], target: str) -> bool:
    """The rule as it is written down: deaths newest first, from the latest down to the target's own."""
    for place, (queue, _) in enumerate(history):
        if queue == target:
            return all(reason != "rejected" for _, reason in history[: place + 1])
    return False


@thorough(300)
@given(steps, st.lists(st.sampled_from(["c1", "c2"]), max_size=2), st.none() | st.integers(0, 99999))
def test_histories_and_cycles_are_those_of_a_list(
    drawn: list[tuple[str, str, str | None, bool]], copies: list[str], expiration: int | None
) -> None:
    properties = BasicProperties()
    properties.expiration = None if expiration is None else str(expiration)
    message = build_message(Envelope("x", "k"), properties.encode(), b"body", 0, True)
    if copies:
        properties.headers = TaggedTable.build(
            [{"key": "CC", "field": {"tag": "A", "value": [{"tag": "S", "value": text.encode()} for text in copies]}}]
        )
        message = with_properties(message, properties.encode())
    deaths: list[dict[str, Any]] = []
    history: list[tuple[str, str]] = []  # since a client published it
    first: tuple[str, str, str] | None = None
    exchange, routing_keys = "x", ["k", *copies]
    for time_s, (queue, reason, key, again) in enumerate(drawn):
        if again:
            message.republished = True
            history = []
            deaths = [death | {"republished": True} for death in deaths]
        letter = dead_letter(message, queue, reason, time_s, "dlx", key)

        known = [death for death in deaths if (death["queue"], death["reason"]) == (queue, reason)]
        death = {
            "count": 1,
            "reason": reason,
            "queue": queue,
            "time": time_s,
            "exchange": exchange,
            "routing-keys": routing_keys,
        }
        if time_s == 0 and expiration is not None:
            death["original-expiration"] = str(expiration)
        if known:
            deaths.remove(known[0])
            death = known[0] | {"count": known[0]["count"] + 1}
            death.pop("republished", None)
        deaths.insert(0, death)
        history = [(queue, reason), *(each for each in history if each != (queue, reason))]
        first = first or (reason, queue, exchange)

        table = table_of(letter.message)
        assert table["x-death"] == deaths
        what = ("reason", "queue", "exchange")
        assert tuple(table[f"x-first-death-{name}"] for name in what) == first
        assert tuple(table[f"x-last-death-{name}"] for name in what) == (reason, queue, exchange)
        for target in (*QUEUES, "d"):
            expected = reason != "rejected" and runs_in_a_circle(history, target)
            assert is_cycle(letter, target) == expected, (target, history)
        exchange = "dlx"
        routing_keys = routing_keys if key is None else [key]
        assert letter.keys == routing_keys
        message = letter.message
