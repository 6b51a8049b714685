"""How the values of events are written, where that is not to be seen from a client on this machine."""

from __future__ import annotations

import pytest

from warren.amqp.field_table import decode_table, encode_table
from warren.channels.event_values import address_term, argument_terms, event_table, port_of, without_large
from warren.channels.own_messages import HEADERS_MAX_BYTES, cut_short, fits


@pytest.mark.parametrize(
    ("endpoint", "term", "port"),
    [
        ("127.0.0.1:5672", "{127,0,0,1}", 5672),
        ("[::1]:5672", "{0,0,0,0,0,0,0,1}", 5672),
        ("[::]:1", "{0,0,0,0,0,0,0,0}", 1),
        ("[2001:db8::ff:0:1]:40000", "{8193,3512,0,0,0,255,0,1}", 40000),
        ("[1:2:3:4:5:6:7:8]:2", "{1,2,3,4,5,6,7,8}", 2),
        ("[fe80::1%eth0]:2", "{65152,0,0,0,0,0,0,1}", 2),
        ("[::ffff:10.0.0.1]:2", "{0,0,0,0,0,65535,2560,1}", 2),
        ("?", "unknown", 0),
    ],
)
def test_addresses_are_tuples_of_numbers(endpoint: str, term: str, port: int) -> None:
    assert address_term(endpoint) == term
    assert port_of(endpoint) == port


def test_an_empty_table_has_no_terms() -> None:
    assert argument_terms(encode_table({})) == []


def test_bytes_that_are_no_text_do_not_hurt() -> None:
    (term,) = argument_terms(encode_table({"k": b"\xff\x00"}))
    assert isinstance(term, str)
    assert term.startswith('{<<"k">>,binary,<<')


def test_keys_are_cut_and_lone_surrogates_pass() -> None:
    table = event_table({"é" * 200: 1, "s": "\ud800"}, 7)
    assert list(decode_table(table)) == ["é" * 127, "s", "timestamp_in_ms"]


def test_only_short_scalars_are_small() -> None:
    headers: dict[str, object] = {"s": "x" * 1024, "n": 1, "f": 0.5, "b": True, "l": [], "o": {}, "long": "x" * 1025}
    assert list(without_large(headers)) == ["s", "n", "f", "b"]


@pytest.mark.parametrize("text", ["", "a" * 255, "é" * 127 + "a"])
def test_what_fits_is_not_cut(text: str) -> None:
    assert cut_short(text) == text


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("a" * 256, "a" * 255),
        ("é" * 128, "é" * 127),
        ("a" + "é" * 128, "a" + "é" * 127),
        ("a" * 252 + "😀", "a" * 252),
        ("a" * 254 + "é", "a" * 254),
    ],
)
def test_texts_are_cut_between_characters(text: str, cut: str) -> None:
    assert cut_short(text) == cut
    assert len(cut.encode()) <= 255


def test_a_table_fits_that_is_small_flat_and_well_formed() -> None:
    largest = encode_table({"k": "x" * (HEADERS_MAX_BYTES - 4 - 2 - 5)})
    assert len(largest) == HEADERS_MAX_BYTES
    assert fits(largest)
    assert not fits(encode_table({"k": "x" * (HEADERS_MAX_BYTES - 4 - 2 - 4)}))
    deep: dict[str, object] = {}
    for _ in range(15):
        deep = {"t": deep}
    assert fits(encode_table(deep))
    assert not fits(encode_table({"t": deep}))
    assert not fits(b"\x00\x00\x00\x03\x02\xff\xffV")
