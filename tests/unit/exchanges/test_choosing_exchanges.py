"""Exchanges that choose one destination: x-consistent-hash, x-modulus-hash, x-random, x-local-random."""

from __future__ import annotations

from collections import Counter

import pytest

from warren.amqp.errors import ChannelException
from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp.properties import BasicProperties
from warren.exchanges.stable_hash import JUMP_BUCKETS_MAX, Xorshift, jump, stable_hash

from .topology import (
    bind,
    exchange,
    headers_content,
    matched,
    properties_content,
    queue,
    routed,
    table_bytes,
    unbind,
    unbind_all,
)

KEYS = [f"order-{number}" for number in range(20_000)]


# --- the hash -----------------------------------------------------------------------------------------------


def test_the_hash_of_a_text_is_the_same_for_ever() -> None:
    assert [int(stable_hash(text)) for text in (b"", b"abc", "grün".encode())] == [
        431477908,
        1720661212,
        588042051,
    ]
    assert [int(jump(stable_hash(str(number).encode()), 97)) for number in range(5)] == [22, 91, 64, 79, 78]


def test_a_chained_hash_depends_on_every_piece_and_their_order() -> None:
    chains = [[b"a", b"b"], [b"b", b"a"], [b"a"], [b"ab"], [b"a", b"c"]]
    results = []
    for pieces in chains:
        value = stable_hash(pieces[0])
        for piece in pieces[1:]:
            value = stable_hash(piece, value)
        results.append(int(value))
    assert len(set(results)) == len(chains)


def test_one_bucket_more_moves_only_what_goes_to_it() -> None:
    for buckets in (1, 2, 10, 1000):
        moved = 0
        for key in KEYS:
            value = stable_hash(key.encode())
            before, after = int(jump(value, buckets)), int(jump(value, buckets + 1))
            assert after in (before, buckets)
            moved += after != before
        assert moved == pytest.approx(len(KEYS) / (buckets + 1), rel=0.5, abs=20)


def test_jumps_stay_within_the_most_buckets() -> None:
    for key in KEYS[:1000]:
        assert 0 <= jump(stable_hash(key.encode()), JUMP_BUCKETS_MAX) < JUMP_BUCKETS_MAX


# --- x-consistent-hash --------------------------------------------------------------------------------------


def test_each_message_goes_to_one_destination_in_proportion_to_the_weights() -> None:
    source = exchange("x-consistent-hash")
    for name, weight in [("one", "1"), ("two", "2"), ("seven", "+7")]:
        bind(source, queue(name), weight)
    shares: Counter[str] = Counter()
    for key in KEYS:
        (name,) = matched(source, key)
        shares[name] += 1
    for name, share in [("one", 0.1), ("two", 0.2), ("seven", 0.7)]:
        assert shares[name] / len(KEYS) == pytest.approx(share, rel=0.05)


def test_equal_weights_share_evenly_among_a_hundred() -> None:
    source = exchange("x-consistent-hash")
    for number in range(100):
        bind(source, queue(str(number)), "10")
    shares = Counter(matched(source, key)[0] for key in KEYS)
    assert len(shares) == 100
    assert 140 < min(shares.values()) <= max(shares.values()) < 260


def test_the_same_key_goes_to_the_same_destination_in_every_process() -> None:
    source = exchange("x-consistent-hash")
    for name in "abcde":
        bind(source, queue(name), "3")
    assert "".join(matched(source, key)[0] for key in KEYS[:16]) == "caccecbaecbbcbec"


def test_a_new_destination_takes_from_all_and_nothing_moves_between_the_others() -> None:
    source = exchange("x-consistent-hash")
    for name in "abc":
        bind(source, queue(name), "10")
    before = {key: matched(source, key)[0] for key in KEYS}
    new = queue("new")
    bind(source, new, "10")
    after = {key: matched(source, key)[0] for key in KEYS}
    moved = [key for key in KEYS if after[key] != before[key]]
    assert {after[key] for key in moved} == {"new"}
    assert len(moved) / len(KEYS) == pytest.approx(0.25, rel=0.05)
    unbind(source, new, "10")
    assert {key: matched(source, key)[0] for key in KEYS} == before


def test_a_second_binding_to_a_destination_is_ignored_until_the_first_goes() -> None:
    source, twice = exchange("x-consistent-hash"), queue("twice")
    bind(source, twice, "1")
    bind(source, queue("other"), "1")
    before = [matched(source, key) for key in KEYS[:2000]]
    bind(source, twice, "9")
    assert [matched(source, key) for key in KEYS[:2000]] == before
    unbind(source, twice, "1")
    shares = Counter(matched(source, key)[0] for key in KEYS)
    assert shares["twice"] / len(KEYS) == pytest.approx(0.9, rel=0.05)


def test_without_bindings_nothing_matches() -> None:
    source, destination = exchange("x-consistent-hash"), queue("q")
    assert matched(source, "k") == []
    bind(source, destination, "5")
    assert matched(source, "k") == ["q"]
    unbind_all(source, destination)
    assert matched(source, "k") == []


def test_the_keys_of_cc_headers_have_no_say() -> None:
    source = exchange("x-consistent-hash")
    for name in "abcde":
        bind(source, queue(name), "1")
    for key in KEYS[:100]:
        assert routed(source, key, "cc", "bcc") == matched(source, key)


def test_hash_header_decides_instead_of_the_key() -> None:
    source = exchange("x-consistent-hash", hash_header="tenant")
    for name in "abcdefgh":
        bind(source, queue(name), "1")
    assert len({matched(source, key, headers_content({"tenant": "t1"}))[0] for key in KEYS[:50]}) == 1
    assert len({matched(source, "k", headers_content({"tenant": key}))[0] for key in KEYS[:200]}) == 8
    assert matched(source, "k", headers_content({"tenant": "5"})) == matched(
        source, "k", headers_content({"tenant": 5})
    )
    assert matched(source, "k", headers_content({"other": 1})) == matched(source, "l", headers_content(None))


@pytest.mark.parametrize("name", ["correlation_id", "message_id", "timestamp"])
def test_hash_property_decides_instead_of_the_key(name: str) -> None:
    source = exchange("x-consistent-hash", hash_property=name)
    for label in "abcdefgh":
        bind(source, queue(label), "1")
    chosen = set()
    for number in range(200):
        properties = BasicProperties()
        setattr(properties, name, number if name == "timestamp" else str(number))
        one = matched(source, "k", properties_content(properties))
        assert matched(source, "another key", properties_content(properties)) == one
        chosen.update(one)
    assert chosen == set("abcdefgh")
    assert matched(source, "k", headers_content(None)) == matched(source, "l", headers_content(None))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"hash_header": "a", "hash_property": "message_id"},
            "hash-header and hash-property are mutually exclusive",
        ),
        ({"hash_property": "app_id"}, "Unsupported property: app_id"),
        ({"hash_header": 5}, "invalid type 'signedint' for arg 'hash-header' in exchange 'x' in vhost '/'"),
        ({"hash_property": True}, "invalid type 'bool' for arg 'hash-property' in exchange 'x' in vhost '/'"),
    ],
)
def test_what_to_hash_has_to_be_clear(arguments: dict[str, str], text: str) -> None:
    with pytest.raises(ChannelException) as refusal:
        exchange("x-consistent-hash", **arguments)  # type: ignore[arg-type]
    assert (refusal.value.reply_code, refusal.value.explanation) == (406, text)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("0", "greater than 0"),
        ("-1", "greater than 0"),
        ("x", 'an integer: <<"x">>'),
        ("", "an integer: <<>>"),
        ("+", 'an integer: <<"+">>'),
        ("1.5", 'an integer: <<"1.5">>'),
        (" 5", 'an integer: <<" 5">>'),
        ("٣", 'an integer: <<"٣">>'),
        ("1_0", 'an integer: <<"1_0">>'),
        ("a\nb", 'an integer: <<"a\\nb">>'),
    ],
)
def test_another_weight_is_refused_in_the_words_of_rabbitmq(key: str, text: str) -> None:
    with pytest.raises(ChannelException) as refusal:
        exchange("x-consistent-hash").check_binding(key, EMPTY_TABLE)
    assert (refusal.value.reply_code, refusal.value.explanation) == (406, f"The binding key must be {text}")


def test_weights_are_limited_one_by_one_and_together() -> None:
    source = exchange("x-consistent-hash")
    with pytest.raises(ChannelException, match="must not exceed 1000000"):
        source.check_binding("1000001", EMPTY_TABLE)
    for number in range(2147):
        bind(source, queue(str(number)), "1000000")
    with pytest.raises(ChannelException, match="must not exceed 483647"):
        source.check_binding("483648", EMPTY_TABLE)
    bind(source, queue("last"), "483647")
    assert len({matched(source, key)[0] for key in KEYS}) > 2000
    unbind_all(source, queue("absent"))
    unbind_all(source)
    source.check_binding("1000000", EMPTY_TABLE)


# --- x-modulus-hash -----------------------------------------------------------------------------------------


def test_modulus_hash_chooses_by_key_whatever_the_order_of_binding() -> None:
    one, other = exchange("x-modulus-hash"), exchange("x-modulus-hash")
    for name in "abcde":
        bind(one, queue(name), "ignored")
    for name in "cabed":
        bind(other, queue(name))
    shares = Counter(matched(one, key)[0] for key in KEYS)
    assert len(shares) == 5
    assert max(shares.values()) < 1.1 * min(shares.values())
    assert all(matched(one, key) == matched(other, key) for key in KEYS[:500])
    assert one.cacheable


def test_modulus_hash_takes_all_routing_keys_together_for_one_choice() -> None:
    source = exchange("x-modulus-hash")
    for name in "abcdefgh":
        bind(source, queue(name))
    assert all(len(routed(source, key, "cc")) == 1 for key in KEYS[:50])
    assert {routed(source, "same", key)[0] for key in KEYS[:200]} == set("abcdefgh")


# --- x-random -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_name", ["x-random", "x-local-random"])
def test_random_gives_each_binding_its_share_and_each_message_one_queue(type_name: str) -> None:
    source = exchange(type_name, seed=7)
    for name in "abcd":
        bind(source, queue(name))
    shares = Counter(routed(source, "k", "cc")[0] for _ in KEYS)
    for name in "abcd":
        assert shares[name] / len(KEYS) == pytest.approx(0.25, rel=0.05)
    assert not source.cacheable


def test_random_counts_bindings_not_destinations() -> None:
    source, twice = exchange("x-random", seed=7), queue("twice")
    bind(source, twice, "1")
    bind(source, twice, "2")
    bind(source, queue("once"), "3")
    shares = Counter(matched(source)[0] for _ in KEYS)
    assert shares["twice"] / len(KEYS) == pytest.approx(2 / 3, rel=0.05)


def test_the_same_seed_makes_the_same_choices_and_another_seed_others() -> None:
    def choices(seed: int) -> list[str]:
        source = exchange("x-random", seed=seed)
        for name in "abcdefgh":
            bind(source, queue(name))
        return [matched(source)[0] for _ in range(50)]

    assert choices(5) == choices(5)
    assert choices(5) != choices(6)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**32, 2**70])
def test_any_seed_gives_a_generator_that_moves(seed: int) -> None:
    generator = Xorshift(seed)
    numbers = [int(generator.below(1000)) for _ in range(1000)]
    assert all(0 <= number < 1000 for number in numbers)
    assert len(set(numbers)) > 500


def test_local_random_wants_an_empty_key() -> None:
    with pytest.raises(ChannelException) as refusal:
        exchange("x-local-random").check_binding("k", table_bytes(None))
    assert (refusal.value.reply_code, refusal.value.explanation) == (
        406,
        "Non empty binding 'k' key not permitted",
    )
    exchange("x-random").check_binding("k", table_bytes(None))
