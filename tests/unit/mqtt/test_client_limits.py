"""What a client takes: the limits that CONNECT states, and what becomes of words and answers by them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mqtt_harness import properties

from warren.mqtt import client_limits
from warren.mqtt.client_limits import (
    DEFAULTS,
    KNOWN_MAX,
    OLD,
    REASON_BYTES,
    REASON_CHARACTERS,
    ClientLimits,
    limits_of,
)
from warren.mqtt.packets import PACKET_MAX, RECEIVE_MAX, REQUEST_PROBLEM, V3_1, V3_1_1, V5, Connect
from warren.mqtt.reason_codes import TOO_LARGE, MqttError


def stated(version: int, values: dict[int, int]) -> ClientLimits:
    connect = Connect(version)
    connect.properties = properties(values)
    return limits_of(connect)


@pytest.mark.parametrize("version", [V3_1, V3_1_1])
def test_clients_before_5_0_share_their_limits(version: int) -> None:
    limits = stated(version, {})
    assert limits is OLD
    assert (limits.receive_max, limits.packet_max_bytes, limits.takes_problems) == (100, 0, False)


@pytest.mark.parametrize("values", [{}, {REQUEST_PROBLEM: 1}, {RECEIVE_MAX: 65535}])
def test_clients_that_state_no_limits_share_theirs(values: dict[int, int]) -> None:
    limits = stated(V5, values)
    assert limits is DEFAULTS
    assert (limits.receive_max, limits.packet_max_bytes, limits.takes_problems) == (65535, 0, True)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({RECEIVE_MAX: 1}, (1, 0, True)),
        ({PACKET_MAX: REASON_BYTES}, (65535, REASON_BYTES, False)),
        ({PACKET_MAX: REASON_BYTES + 1}, (65535, REASON_BYTES + 1, True)),
        ({REQUEST_PROBLEM: 0}, (65535, 0, False)),
    ],
)
def test_limits_are_those_that_a_client_states(values: dict[int, int], expected: tuple[int, int, bool]) -> None:
    limits = stated(V5, values)
    assert (limits.receive_max, limits.packet_max_bytes, limits.takes_problems) == expected
    assert (DEFAULTS.receive_max, DEFAULTS.packet_max_bytes, DEFAULTS.takes_problems) == (65535, 0, True)


@pytest.fixture
def none_known() -> Iterator[None]:
    """Forget the limits of clients of other tests meanwhile."""
    known = client_limits._known
    kept = known.copy()
    known.clear()
    yield
    known.clear()
    known.update(kept)


@pytest.mark.usefixtures("none_known")
def test_clients_that_state_the_same_share_their_limits_as_long_as_there_are_few_different_ones() -> None:
    assert stated(V5, {PACKET_MAX: 1234}) is stated(V5, {PACKET_MAX: 1234})
    for number in range(2 * KNOWN_MAX):
        assert stated(V5, {PACKET_MAX: 10_000 + number}).packet_max_bytes == 10_000 + number
    assert len(client_limits._known) == KNOWN_MAX
    assert stated(V5, {PACKET_MAX: 1234}) is stated(V5, {PACKET_MAX: 1234})


def test_an_answer_may_be_as_large_as_the_client_takes() -> None:
    limits = ClientLimits(1, 10)
    limits.check(bytes(10))
    assert limits.takes(bytes(10)) and not limits.takes(bytes(11))
    with pytest.raises(MqttError) as caught:
        limits.check(bytes(11))
    assert caught.value.reason == TOO_LARGE
    OLD.check(bytes(1 << 20))


def test_words_are_cut_or_left_out() -> None:
    text = "\u20ac" * (2 * REASON_CHARACTERS)
    assert DEFAULTS.words(text) == text[:REASON_CHARACTERS]
    assert len(DEFAULTS.words(text).encode()) < REASON_BYTES
    assert ClientLimits(1, REASON_BYTES).words(text) == ""
    assert ClientLimits(1, REASON_BYTES + 1).words(text) == text[:REASON_CHARACTERS]
