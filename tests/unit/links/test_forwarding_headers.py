"""The headers that links write; they leave other headers alone."""

from __future__ import annotations

import pytest

from warren.amqp.field_table import EMPTY_TABLE, decode_table, encode_table, with_length
from warren.links import forwarding
from warren.links.exchange_federation import bound_from, upstream_queue_name

# A byte, a short, an unsigned int and a key that occurs twice: decoding and encoding would change these.
ODD = with_length(b"\x01ab\x05" + b"\x01bs\x00\x06" + b"\x01ci\x00\x00\x00\x07" + b"\x01aB\x08")


def test_other_headers_keep_their_bytes() -> None:
    table = forwarding.prepended(ODD, "x-shovelled", forwarding.table_value({"k": "v"}))
    assert table[4:].startswith(ODD[4:])
    table = forwarding.with_value(table, "x-shovelled-timestamp", forwarding.long_value(9))
    assert table[4:].startswith(ODD[4:])
    assert decode_table(table)["x-shovelled-timestamp"] == 9


def test_the_newest_entry_comes_first_and_what_is_no_array_is_replaced() -> None:
    once = forwarding.prepended(EMPTY_TABLE, "h", forwarding.table_value({"n": 1}))
    twice = forwarding.prepended(once, "h", forwarding.table_value({"n": 2}))
    assert decode_table(twice) == {"h": [{"n": 2}, {"n": 1}]}
    odd = encode_table({"h": "text"})
    assert decode_table(forwarding.prepended(odd, "h", forwarding.table_value({"n": 1}))) == {"h": [{"n": 1}]}


def test_a_message_that_goes_in_a_circle_keeps_its_newest_entries() -> None:
    table = ODD
    for number in range(3 * forwarding.ENTRIES_MAX):
        table = forwarding.prepended(table, "h", forwarding.table_value({"n": number}), forwarding.ENTRIES_MAX)
    newest = 3 * forwarding.ENTRIES_MAX - 1
    expected = [{"n": number} for number in range(newest, newest - forwarding.ENTRIES_MAX, -1)]
    assert decode_table(table)["h"] == expected
    assert table[4:].startswith(ODD[4:])


@pytest.mark.parametrize(
    ("visited", "max_hops", "forwarded"),
    [
        (None, 1, True),
        ("text", 1, True),
        ([], 1, True),
        ([("other", "v")], 1, False),
        ([("other", "v")], 2, True),
        ([("us", "other")], 2, True),
        ([("other", "v"), ("us", "v")], 9, False),
    ],
)
def test_a_message_is_forwarded_while_hops_are_left_and_never_back(
    visited: list[tuple[str, str]] | str | None, max_hops: int, forwarded: bool
) -> None:
    headers = None
    if visited is not None:
        entries: object = visited
        if isinstance(visited, list):
            entries = [{"cluster-name": name, "vhost": vhost} for name, vhost in visited]
        headers = encode_table({"x-received-from": entries})
    assert forwarding.should_forward(headers, max_hops, "us", "v") is forwarded


def test_queue_federation_counts_visits_and_notes_the_first_hop_only() -> None:
    headers: bytes | None = encode_table({"CC": ["copy"], "own": 1})
    for redelivered in (False, True):
        headers = forwarding.received_from_queue(
            headers, uri="amqp://a", queue="q", redelivered=redelivered, exchange="x", routing_key="k"
        )
    assert headers is not None
    assert decode_table(headers) == {
        "own": 1,
        "x-original-exchange": "x",
        "x-original-routing-key": "k",
        "x-original-cc": ["copy"],
        "x-received-from": [{"uri": "amqp://a", "queue": "q", "redelivered": True, "visit-count": 2}],
    }
    headers = forwarding.received_from_queue(
        headers, uri="amqp://b", queue="q", redelivered=False, exchange="", routing_key="q"
    )
    table = decode_table(headers)
    assert table["x-original-exchange"] == "x"
    visited = table["x-received-from"]
    assert isinstance(visited, list)
    assert [(one["uri"], one["visit-count"]) for one in visited] == [("amqp://b", 1), ("amqp://a", 2)]


@pytest.mark.parametrize(
    ("said", "then"),
    [((1 << 63) - 1, (1 << 63) - 1), ((1 << 63) - 2, (1 << 63) - 1), (-(1 << 63), 1), (True, 2), ("many", 1)],
)
def test_a_message_may_come_with_any_count_of_visits(said: object, then: int) -> None:
    headers = encode_table({"x-received-from": [{"uri": "amqp://a", "queue": "q", "visit-count": said}]})
    headers = forwarding.received_from_queue(
        headers, uri="amqp://a", queue="q", redelivered=False, exchange="x", routing_key="k"
    )
    visited = decode_table(headers)["x-received-from"]
    assert isinstance(visited, list)
    assert visited[0]["visit-count"] == then


@pytest.mark.parametrize(
    ("exchange", "upstream_vhost", "vhost", "downstream", "name"),
    [
        ("x", "v", "v", "x", "federation: x -> us"),
        ("x", "v", "v", "y", "federation: x -> us:y"),
        ("x", "up", "v", "x", "federation: x -> us:v:x"),
    ],
)
def test_the_upstream_queue_has_the_name_that_rabbitmq_gives_it(
    exchange: str, upstream_vhost: str, vhost: str, downstream: str, name: str
) -> None:
    assert upstream_queue_name(exchange, upstream_vhost, "us", vhost, downstream) == name


def bound(arguments: bytes, max_hops: int) -> object:
    made = bound_from(
        arguments,
        cluster_name="us",
        vhost="v",
        exchange="v:x A",
        max_hops=max_hops,
        upstream_name="up",
        upstream_vhost="w",
    )
    return None if made is None else decode_table(made)["x-bound-from"]


def test_a_binding_says_where_it_comes_from_and_how_far_it_may_go() -> None:
    ours = {"cluster-name": "us", "vhost": "v", "exchange": "v:x A"}
    assert bound(EMPTY_TABLE, 2) == [{**ours, "hops": 2}]
    below = {"cluster-name": "down", "vhost": "v", "exchange": "v:x B", "hops": 3}
    arguments = encode_table({"x-bound-from": [below]})
    assert bound(arguments, 5) == [{**ours, "hops": 2}, below]
    assert bound(arguments, 1) == [{**ours, "hops": 1}, below]
    assert bound(encode_table({"x-bound-from": [{**below, "hops": 1}]}), 5) is None
    been_there = {"cluster-name": "up", "vhost": "w", "hops": 3}
    assert bound(encode_table({"x-bound-from": [below, been_there]}), 5) is None
