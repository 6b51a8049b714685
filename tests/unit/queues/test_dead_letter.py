"""Dead-lettered messages field by field as RabbitMQ 4 makes them, and single header changes: dead_letter (1) to (4)."""

from __future__ import annotations

from typing import Any

import pytest

from warren.amqp.field_table import ENTRIES_MAX, Table, Timestamp, decode_table, encode_table, find_tag, with_length
from warren.amqp.outbox import CHUNK_MIN_BYTES
from warren.amqp.properties import BasicProperties, decode_properties, scan_properties
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.dead_letter import (
    COUNT_MAX,
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    REJECTED,
    DeadLetter,
    dead_letter,
    is_cycle,
    mark_republished,
    sent_again,
    with_header,
    with_headers,
    with_properties,
    without_header,
)

NOW_S = 1_790_000_000


def message(headers: Table | bytes | None = None, body: bytes = b"body", **properties: Any) -> Message:
    """Return a message published to ``x`` with the key ``k``."""
    encoded = BasicProperties()
    encoded.headers = encode_table(headers) if isinstance(headers, dict) else headers
    for name, value in properties.items():
        setattr(encoded, name, value)
    return build_message(Envelope("x", "k"), encoded.encode(), body, 131072, properties.get("delivery_mode") == 2)


def die(
    of: Message, queue: str = "q", reason: str = REJECTED, key: str | None = None, time_s: int = NOW_S
) -> DeadLetter:
    """Dead-letter to ``dlx``."""
    return dead_letter(of, queue, reason, time_s, "dlx", key)


def properties_of(of: Message) -> BasicProperties:
    payload = of.header_payload()
    return decode_properties(payload, 0, len(payload))


def encoded_headers(of: Message) -> bytes:
    encoded = properties_of(of).headers
    assert encoded is not None
    return encoded


def headers_of(of: Message) -> Table:
    return decode_table(encoded_headers(of))


def deaths_of(of: Message) -> list[Any]:
    deaths = headers_of(of)["x-death"]
    assert isinstance(deaths, list)
    return deaths


def pairs_of(of: Message) -> list[tuple[str, str, int]]:
    return [(death["queue"], death["reason"], death["count"]) for death in deaths_of(of)]


def of_history(*deaths: Table, **headers: object) -> Message:
    """Return a message whose publisher sent this x-death."""
    return message({"x-death": list(deaths), **headers})


def test_the_first_death_writes_all_headers() -> None:
    letter = die(message(), "q", EXPIRED)
    assert headers_of(letter.message) == {
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "x",
        "x-last-death-reason": "expired",
        "x-last-death-queue": "q",
        "x-last-death-exchange": "x",
        "x-death": [
            {
                "count": 1,
                "reason": "expired",
                "queue": "q",
                "time": Timestamp(NOW_S),
                "exchange": "x",
                "routing-keys": ["k"],
            }
        ],
    }


def test_a_death_has_the_types_and_the_order_of_rabbitmq() -> None:
    headers = encoded_headers(die(message(expiration="60000"), "q", MAXLEN).message)
    expected = (
        b"\x13original-expirationS\x00\x00\x00\x0560000"
        b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01"
        b"\x06reasonS\x00\x00\x00\x06maxlen"
        b"\x05queueS\x00\x00\x00\x01q"
        b"\x04timeT" + NOW_S.to_bytes(8, "big") + b"\x08exchangeS\x00\x00\x00\x01x"
        b"\x0crouting-keysA\x00\x00\x00\x06S\x00\x00\x00\x01k"
    )
    assert headers.endswith(b"\x07x-deathA" + with_length(b"F" + with_length(expected)))
    assert [find_tag(headers, f"x-{which}-death-queue") for which in ("first", "last")] == ["S", "S"]


@pytest.mark.parametrize("reason", [REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT])
def test_the_reason_is_the_word_that_rabbitmq_uses(reason: str) -> None:
    assert reason in ("rejected", "expired", "maxlen", "delivery_limit")
    assert pairs_of(die(message(), "q", reason).message) == [("q", reason, 1)]


def test_a_letter_is_published_to_the_exchange_with_its_own_key() -> None:
    letter = die(message())
    assert (letter.message.envelope.exchange, letter.message.envelope.routing_key) == ("dlx", "k")
    assert letter.keys == ["k"]


def test_carbon_copies_go_along_when_there_is_no_dead_letter_key() -> None:
    letter = die(message({"CC": ["c1", "c2"], "a": 1}))
    assert letter.keys == ["k", "c1", "c2"]
    assert headers_of(letter.message)["CC"] == ["c1", "c2"]
    assert deaths_of(letter.message)[0]["routing-keys"] == ["k", "c1", "c2"]


@pytest.mark.parametrize("key", ["dk", ""])
def test_a_dead_letter_key_replaces_all_keys_and_the_header_cc(key: str) -> None:
    letter = die(message({"CC": ["c1", "c2"], "a": 1}), key=key)
    assert letter.keys == [key]
    assert letter.message.envelope.routing_key == key
    assert "CC" not in headers_of(letter.message)
    assert headers_of(letter.message)["a"] == 1
    assert deaths_of(letter.message)[0]["routing-keys"] == ["k", "c1", "c2"]
    again = die(letter.message, "q2")
    assert again.keys == [key]
    assert deaths_of(again.message)[0]["routing-keys"] == [key]


def test_what_is_no_text_in_cc_is_no_routing_key() -> None:
    letter = die(message({"CC": ["c1", 5, b"c2", None, ["c3"], "c4"]}))
    assert letter.keys == ["k", "c1", "c4"]
    assert deaths_of(letter.message)[0]["routing-keys"] == ["k", "c1", "c4"]
    assert die(message({"CC": "c1"})).keys == ["k"]


@pytest.mark.parametrize("reason", [REJECTED, EXPIRED])
def test_the_expiration_goes_and_is_kept_in_the_history(reason: str) -> None:
    before = message({"a": 1}, expiration="0060", message_id="m", priority=3)
    before.expiration_ms = 60
    letter = die(before, "q", reason)
    after = properties_of(letter.message)
    assert (after.expiration, after.message_id, after.priority) == (None, "m", 3)
    assert letter.message.expiration_ms == -1
    assert deaths_of(letter.message)[0]["original-expiration"] == "0060"
    assert "original-expiration" not in deaths_of(die(letter.message, "q2").message)[0]
    assert deaths_of(die(letter.message, "q2").message)[1]["original-expiration"] == "0060"


def test_what_the_queue_knew_of_a_message_does_not_go_along() -> None:
    before = message()
    before.time_ms, before.due_ms, before.attempts, before.row = 5, 6, 7, 8
    after = die(before).message
    assert (after.time_ms, after.due_ms, after.attempts, after.row) == (0, 0, 0, -1)


def test_another_death_of_a_kind_counts_and_keeps_the_rest_of_the_first() -> None:
    first = die(message({"CC": ["c"]}, expiration="9"), "q", REJECTED, "q").message
    other = die(first, "delay", EXPIRED, "q", NOW_S + 5).message
    again = die(other, "q", REJECTED, "q", NOW_S + 9).message
    assert pairs_of(other) == [("delay", "expired", 1), ("q", "rejected", 1)]
    assert pairs_of(again) == [("q", "rejected", 2), ("delay", "expired", 1)]
    before, after = deaths_of(first)[0], deaths_of(again)[0]
    assert list(after) == list(before)
    assert after == before | {"count": 2}
    assert (after["time"], after["exchange"], after["routing-keys"]) == (NOW_S, "x", ["k", "c"])
    assert deaths_of(again)[1] == deaths_of(other)[0]


def test_the_same_queue_with_another_reason_is_another_entry() -> None:
    first = die(message(), "q", REJECTED).message
    assert pairs_of(die(first, "q", MAXLEN).message) == [("q", "maxlen", 1), ("q", "rejected", 1)]


def test_the_first_death_is_written_once_and_the_last_each_time() -> None:
    first = die(message(), "q", REJECTED).message
    headers = headers_of(die(first, "r", EXPIRED).message)
    assert [headers[f"x-first-death-{name}"] for name in ("reason", "queue", "exchange")] == ["rejected", "q", "x"]
    assert [headers[f"x-last-death-{name}"] for name in ("reason", "queue", "exchange")] == ["expired", "r", "dlx"]
    assert encoded_headers(die(first, "r", EXPIRED).message).count(b"-death-") == 6


def test_first_deaths_of_a_publisher_without_a_history_are_replaced() -> None:
    headers = headers_of(die(message({"x-first-death-queue": "mine", "x-last-death-queue": 5})).message)
    assert (headers["x-first-death-queue"], headers["x-last-death-queue"]) == ("q", "q")


# --- histories of clients -------------------------------------------------------------------------------------------


def test_a_published_history_is_continued() -> None:
    # pika writes a small number as a signed 32-bit integer.
    letter = die(
        of_history({"queue": "q", "reason": "rejected", "count": 7, "extra": b"1"}, **{"x-first-death-queue": "z"})
    )
    assert deaths_of(letter.message) == [{"queue": "q", "reason": "rejected", "count": 8, "extra": b"1"}]
    assert headers_of(letter.message)["x-first-death-queue"] == "z"


@pytest.mark.parametrize(
    "tag", ["b 07", "B 07", "s 0007", "u 0007", "I 00000007", "i 00000007", f"l {7:016x}", f"L {7:016x}"]
)
def test_a_count_of_any_integer_type_is_continued_as_a_long(tag: str) -> None:
    field = tag[0].encode() + bytes.fromhex(tag[2:])
    death = b"\x05queueS\x00\x00\x00\x01q\x05count" + field + b"\x06reasonS\x00\x00\x00\x08rejected"
    sent = with_length(b"\x07x-deathA" + with_length(b"F" + with_length(death)))
    headers = encoded_headers(die(message(sent)).message)
    counted = death.replace(b"\x05count" + field, b"\x05countl" + bytes(7) + b"\x08")
    assert headers.endswith(b"F" + with_length(counted))


@pytest.mark.parametrize("count", ["7", None, -3, True, 1.5, Timestamp(7), [7], {}])
def test_a_count_that_makes_no_sense_begins_anew(count: object) -> None:
    assert deaths_of(die(of_history({"queue": "q", "count": count, "reason": "rejected"})).message) == [
        {"queue": "q", "count": 1, "reason": "rejected"}
    ]


def test_a_missing_count_begins_anew() -> None:
    assert deaths_of(die(of_history({"queue": "q", "reason": "rejected"})).message) == [
        {"count": 1, "queue": "q", "reason": "rejected"}
    ]


@pytest.mark.parametrize("count", [COUNT_MAX - 1, COUNT_MAX])
def test_a_count_stops_at_the_largest_long(count: int) -> None:
    assert pairs_of(die(of_history({"queue": "q", "reason": "rejected", "count": count})).message) == [
        ("q", "rejected", COUNT_MAX)
    ]


@pytest.mark.parametrize("sent", ["[{...}]", 5, None, {"queue": "q", "reason": "rejected", "count": 3}])
def test_a_history_that_is_no_array_is_replaced(sent: object) -> None:
    letter = die(message({"x-death": sent, "x-first-death-queue": "z", "a": 1}))
    assert pairs_of(letter.message) == [("q", "rejected", 1)]
    # Turning the history into text left this header as it was.
    assert headers_of(letter.message)["x-first-death-queue"] == "z"
    assert headers_of(letter.message)["a"] == 1


def test_what_is_no_death_stays_in_the_array() -> None:
    odd: list[object] = [5, "text", {}, {"queue": "q"}, {"queue": 5, "reason": "rejected"}, {"reason": "rejected"}]
    assert deaths_of(die(message({"x-death": odd})).message)[1:] == odd


def test_of_two_entries_for_one_kind_of_death_the_newer_counts_on() -> None:
    deaths: list[Table] = [{"queue": "q", "reason": "rejected", "count": count} for count in (5, 9)]
    other: Table = {"queue": "r", "reason": "rejected", "count": 1}
    assert pairs_of(die(of_history(other, deaths[0], other, deaths[1])).message) == [
        ("q", "rejected", 6),
        ("r", "rejected", 1),
    ]


# --- cycles ---------------------------------------------------------------------------------------------------------


def test_a_queue_a_message_died_in_without_a_rejection_since_is_a_cycle() -> None:
    first = die(message(), "a", EXPIRED)
    assert is_cycle(first, "a") and not is_cycle(first, "b")
    second = die(first.message, "b", MAXLEN)
    assert is_cycle(second, "a") and is_cycle(second, "b") and not is_cycle(second, "c")


def test_a_rejection_is_never_a_cycle() -> None:
    letter = die(die(message(), "a", EXPIRED).message, "b", REJECTED)
    assert not is_cycle(letter, "a") and not is_cycle(letter, "b")


def test_a_rejection_in_between_lets_a_message_go_round() -> None:
    worker = die(message(), "work", REJECTED)
    delay = die(worker.message, "delay", EXPIRED)
    assert not is_cycle(delay, "work")
    assert is_cycle(delay, "delay")
    twice = die(die(delay.message, "work", REJECTED).message, "delay", EXPIRED)
    assert not is_cycle(twice, "work")


def test_a_rejection_older_than_the_other_death_of_the_queue_does_not() -> None:
    letter = die(die(die(message(), "a", REJECTED).message, "a", EXPIRED).message, "b", EXPIRED)
    assert is_cycle(letter, "a")


def test_a_replayed_message_is_not_dropped_for_what_happened_before() -> None:
    parked = die(message(), "work", DELIVERY_LIMIT).message
    replayed = mark_republished(parked)
    assert is_cycle(die(parked, "delay", EXPIRED), "work")
    letter = die(replayed, "delay", EXPIRED)
    assert not is_cycle(letter, "work")
    again = die(letter.message, "work", DELIVERY_LIMIT)
    assert pairs_of(again.message) == [("work", "delivery_limit", 2), ("delay", "expired", 1)]
    assert is_cycle(again, "delay") and is_cycle(again, "work")


def test_a_mark_is_set_once_and_goes_with_the_next_death_of_its_kind() -> None:
    parked = die(die(message(), "a", EXPIRED).message, "b", EXPIRED).message
    marked = mark_republished(parked)
    assert [death.pop("republished") for death in deaths_of(marked)] == [True, True]
    assert mark_republished(marked) is marked
    letter = die(marked, "a", EXPIRED)
    assert [death.get("republished") for death in deaths_of(letter.message)] == [None, True]
    assert deaths_of(letter.message)[0] == deaths_of(parked)[1] | {"count": 2}


@pytest.mark.parametrize("place", range(4))
def test_a_mark_is_found_wherever_a_client_puts_it(place: int) -> None:
    fields: list[tuple[str, object]] = [("queue", "q"), ("count", 1), ("reason", "expired")]
    fields.insert(place, ("republished", True))
    sent = of_history(dict(fields))
    assert not is_cycle(die(sent, "r", EXPIRED), "q")
    fields.remove(("republished", True))
    after = deaths_of(die(sent, "q", EXPIRED).message)[0]
    assert list(after.items()) == list((dict(fields) | {"count": 2}).items())


@pytest.mark.parametrize("headers", [None, {"a": 1}, {"x-death": "text"}, {"x-death": []}, {"x-death": [1]}])
def test_nothing_is_marked_where_there_is_no_history(headers: Table | None) -> None:
    sent = message(headers)
    assert mark_republished(sent) is sent


# --- limits ---------------------------------------------------------------------------------------------------------


def assert_readable(of: Message) -> None:
    payload = of.header_payload()
    scan_properties(payload, 0, len(payload))


@pytest.mark.parametrize("entries", [ENTRIES_MAX - back for back in range(40)])
def test_a_publisher_with_many_headers_cannot_make_a_cycle_invisible(entries: int) -> None:
    letter = die(message({f"h{number}": number for number in range(entries)}), "a", EXPIRED)
    assert_readable(letter.message)
    letter = die(letter.message, "b", EXPIRED)
    assert_readable(letter.message)
    assert is_cycle(letter, "a")


def test_headers_that_leave_room_for_a_death_stay() -> None:
    sent: Table = {f"h{number}": number for number in range(ENTRIES_MAX - 16)}
    headers = headers_of(die(message(sent)).message)
    assert sent.items() <= headers.items()
    assert len(headers) == len(sent) + 7


@pytest.mark.parametrize("name", ["h", "x-first-death-queue"])
def test_headers_that_leave_no_room_go_before_the_history(name: str) -> None:
    death: Table = {"queue": "r", "reason": "expired", "count": 5}
    letter = die(of_history(death, **{name: [0] * (ENTRIES_MAX - 15)}), "q", EXPIRED)
    assert pairs_of(letter.message) == [("q", "expired", 1), ("r", "expired", 5)]
    assert len(headers_of(letter.message)) == 4


@pytest.mark.parametrize("back", range(6, 40))
@pytest.mark.parametrize("queue", ["q", "r"])
def test_a_history_that_leaves_no_room_is_forgotten(queue: str, back: int) -> None:
    death: Table = {"queue": "q", "reason": "rejected", "count": 5, "much": [0] * (ENTRIES_MAX - back)}
    letter = die(message({"x-death": [death]}, expiration="9"), queue)
    assert_readable(letter.message)
    count = 6 if queue == "q" else 1
    assert pairs_of(letter.message)[0] == (queue, "rejected", count)
    if back < 20:
        assert pairs_of(letter.message) == [(queue, "rejected", count)]
        assert "much" not in deaths_of(letter.message)[0]


def test_first_deaths_without_end_are_forgotten() -> None:
    first = encode_table({"x-first-death-queue": "z"})[4:]
    letter = die(message(with_length(encode_table({"x-death": []})[4:] + first * (ENTRIES_MAX - 1))))
    assert_readable(letter.message)
    assert len(encoded_headers(letter.message)) < 500


@pytest.mark.parametrize("routing_key", [None, "r"])
@pytest.mark.parametrize("entries", [ENTRIES_MAX // 2 - 20 + more for more in range(40)])
def test_carbon_copies_are_recorded_as_long_as_there_is_room(entries: int, routing_key: str | None) -> None:
    copies = [f"c{number}" for number in range(entries)]
    letter = die(message({"CC": copies, "kept": 1}), key=routing_key)
    assert_readable(letter.message)
    headers = headers_of(letter.message)
    assert headers["kept"] == 1
    if routing_key is None:
        assert letter.keys == ["k", *copies]
        assert headers["CC"] == copies, "it is sent again with these keys"
        assert sent_again(letter.message).keys == letter.keys
    has_room = routing_key is not None or 2 * entries <= ENTRIES_MAX - 18
    assert deaths_of(letter.message)[0]["routing-keys"] == (["k", *copies] if has_room else ["k"])


def test_carbon_copies_stay_longer_than_other_headers() -> None:
    copies = [f"c{number}" for number in range(4000)]
    letter = die(message({f"h{number}": number for number in range(90)} | {"CC": copies}))
    assert_readable(letter.message)
    assert headers_of(letter.message)["CC"] == copies
    assert len(headers_of(letter.message)) == 8
    again = die(letter.message, "other")
    assert headers_of(again.message)["CC"] == copies
    assert [pair[0] for pair in pairs_of(again.message)] == ["other", "q"]


def test_carbon_copies_that_leave_no_room_are_used_and_not_recorded() -> None:
    copies = [f"c{number}" for number in range(ENTRIES_MAX - 1)]
    letter = die(message({"CC": copies}))
    assert_readable(letter.message)
    assert letter.keys == ["k", *copies]
    assert deaths_of(letter.message)[0]["routing-keys"] == ["k"]


def test_a_publisher_with_many_headers_cannot_keep_a_header_from_being_written() -> None:
    full = message({f"h{number}": number for number in range(ENTRIES_MAX)})
    changed = with_header(full, "h7", "seven")
    assert len(headers_of(changed)) == ENTRIES_MAX
    assert headers_of(changed)["h7"] == "seven"
    assert headers_of(with_headers(full, {"new": 1, "h7": "seven"})) == {"new": 1, "h7": "seven"}


def test_a_history_in_a_full_table_is_not_marked() -> None:
    full = of_history({"queue": "q", "reason": "expired", "many": [0] * (ENTRIES_MAX - 5)})
    assert mark_republished(full) is full
    fits = of_history({"queue": "q", "reason": "expired", "many": [0] * (ENTRIES_MAX - 6)})
    assert_readable(mark_republished(fits))
    assert mark_republished(fits) is not fits


# --- single headers -------------------------------------------------------------------------------------------------


def test_a_header_is_added_or_replaced() -> None:
    sent = message({"a": 1, "b": "x"})
    assert headers_of(with_header(sent, "x-delivery-count", 3)) == {"a": 1, "b": "x", "x-delivery-count": 3}
    assert headers_of(with_header(sent, "a", "one")) == {"a": "one", "b": "x"}
    assert headers_of(with_header(message(), "a", 1)) == {"a": 1}
    assert headers_of(sent) == {"a": 1, "b": "x"}
    twice = message(with_length(encode_table({"a": 1})[4:] * 2 + encode_table({"b": 2})[4:]))
    assert encoded_headers(with_header(twice, "a", b"1")) == encode_table({"b": 2, "a": b"1"})


@pytest.mark.parametrize(
    ("value", "tag"),
    [
        (1, "l"),
        (-(2**63), "l"),
        (2**63 - 1, "l"),
        (True, "t"),
        ("v", "S"),
        (b"v", "x"),
        (1.5, "d"),
        (Timestamp(9), "T"),
    ],
)
def test_values_have_the_types_that_rabbitmq_gives_them(value: object, tag: str) -> None:
    headers = encoded_headers(with_headers(message(), {"n": value}))
    assert find_tag(headers, "n") == tag
    assert decode_table(headers) == {"n": value}


@pytest.mark.parametrize(("name", "value"), [("n", 2**63), ("n", -(2**63) - 1), ("n" * 256, 1), ("n" * 256, "v")])
def test_what_no_header_can_hold_is_refused(name: str, value: int | str) -> None:
    with pytest.raises(ValueError, match=r"255|64"):
        with_header(message(), name, value)


def test_several_headers_are_set_at_once() -> None:
    after = with_headers(message({"a": 1, "b": 2}), {"c": "x", "a": 5})
    assert headers_of(after) == {"b": 2, "c": "x", "a": 5}
    sent = message()
    assert with_headers(sent, {}) is sent


def test_a_header_is_removed() -> None:
    assert headers_of(without_header(message({"BCC": ["b"], "a": 1}), "BCC")) == {"a": 1}
    assert encoded_headers(without_header(message({"BCC": ["b"]}), "BCC")) == encode_table({})
    for sent in (message(), message({"a": 1})):
        assert without_header(sent, "BCC") is sent


def test_all_properties_are_replaced() -> None:
    sent = message({"a": 1}, b"text", reply_to="r", delivery_mode=2)
    properties = properties_of(sent)
    properties.reply_to = "other"
    after = with_properties(sent, properties.encode())
    assert (properties_of(after).reply_to, headers_of(after), after.body()) == ("other", {"a": 1}, b"text")
    assert properties_of(sent).reply_to == "r"


def test_a_changed_message_is_still_the_one_of_its_queue() -> None:
    sent = message(delivery_mode=2)
    sent.time_ms, sent.due_ms, sent.attempts, sent.expiration_ms, sent.row = 5, 6, 7, 8, 9
    after = with_header(sent, "n", 1)
    assert (after.time_ms, after.due_ms, after.attempts, after.expiration_ms) == (5, 6, 7, 8)
    assert after.row == -1
    assert after.persistent and after.envelope is sent.envelope


# --- bodies ---------------------------------------------------------------------------------------------------------


def test_the_pieces_of_a_body_are_shared() -> None:
    sent = message({"a": 1}, bytes(100_000))
    content = sent.content
    header_bytes = 8 + len(sent.header_payload())
    sent.content, sent.pieces = b"", [content[:header_bytes], content[header_bytes:50_000], content[50_000:]]
    for after in (die(sent).message, with_header(sent, "n", 1), without_header(sent, "a")):
        assert sent.pieces is not None and after.pieces is not None
        assert [piece is old for piece, old in zip(after.pieces[1:], sent.pieces[1:], strict=True)] == [True, True]
        assert after.content == b""
        assert after.body() == bytes(100_000)


@pytest.mark.parametrize("body_bytes", [0, 1, CHUNK_MIN_BYTES - 9, CHUNK_MIN_BYTES - 8])
def test_a_large_body_in_one_piece_becomes_a_piece_of_its_own(body_bytes: int) -> None:
    after = die(message(body=bytes(body_bytes))).message
    assert (after.pieces is None) == (body_bytes + 8 < CHUNK_MIN_BYTES)
    assert after.body() == bytes(body_bytes)


def test_the_largest_frame_is_known_when_the_header_grows_and_when_it_shrinks() -> None:
    sent = message({"big": "x" * 500, "CC": ["c" * 300]}, bytes(600))
    assert sent.frame_max_bytes == 8 + len(sent.header_payload())
    letter = die(sent, key="k").message
    assert letter.frame_max_bytes == 8 + len(letter.header_payload())
    small = without_header(sent, "big")
    assert small.frame_max_bytes == 608
    smaller = without_header(message({"big": "x" * 5000, "small": "x" * 700}, bytes(600)), "big")
    assert smaller.frame_max_bytes == 8 + len(smaller.header_payload()) > 608
