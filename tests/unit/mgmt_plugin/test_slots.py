"""Which clients are closed when there are too many connections, and which never are."""

from __future__ import annotations

import pytest

from warren.mgmt_plugin.http import slots as slots_module
from warren.mgmt_plugin.http.slots import Slot, SlotPool, Slots, Standing


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "TOTAL", 6)
    monkeypatch.setattr(slots_module, "PER_ADDRESS", 4)
    monkeypatch.setattr(slots_module, "RESERVED", 2)


class Port:
    """The slots of a port."""

    def __init__(self, pool: SlotPool | None = None) -> None:
        self.slots = Slots(pool)
        self._closed: list[str] = []
        self._names: dict[Slot, str] = {}

    def enter(self, address: str, standing: Standing = Standing.IDLE) -> Slot:
        name = f"{address} {len(self._names)}"
        slot = self.slots.maybe_enter(address, lambda: self._closed.append(name))
        assert slot is not None
        self._names[slot] = name
        self.slots.stand(slot, standing)
        return slot

    def closed(self, *given: Slot) -> list[bool]:
        return [self._names[slot] in self._closed for slot in given]


def test_the_longest_idle_connection_of_who_has_most_of_them_makes_room() -> None:
    port = Port()
    other = port.enter("b")
    many = [port.enter("a") for _ in range(4)]
    port.slots.stand(many[0], Standing.ASKED)
    port.slots.stand(many[0], Standing.IDLE)  # has just been answered
    port.enter("b")
    assert not port.enter("c").reserved
    assert port.closed(other, *many) == [False, False, True, False, False]


def test_an_address_that_has_its_share_takes_from_its_own() -> None:
    port = Port()
    other = port.enter("b")
    first = port.enter("a")
    more = [port.enter("a", Standing.KNOWN) for _ in range(3)]
    assert not port.enter("a", Standing.KNOWN).reserved
    assert port.enter("a").reserved
    assert port.closed(other, first, *more) == [False, True, False, False, False]


def test_who_has_asked_without_a_login_makes_room_when_nobody_is_idle_and_who_has_logged_in_never() -> None:
    port = Port()
    asked = [port.enter("a", Standing.ASKED) for _ in range(2)]
    known = [port.enter(address, Standing.KNOWN) for address in ("a", "b", "b", "c")]
    for standing in (Standing.KNOWN, Standing.KNOWN):
        assert not port.enter("d", standing).reserved
    assert port.closed(*asked) == [True, True]
    assert port.enter("e").reserved
    assert port.closed(*known) == [False] * 4


def test_reserved_places_make_room_as_well_and_become_others_when_they_can() -> None:
    port = Port()
    known = [port.enter(address, Standing.KNOWN) for address in "abcdef"]
    first, second, third = (port.enter("x") for _ in range(3))
    assert [slot.reserved for slot in (first, second, third)] == [True] * 3
    assert port.closed(first, second, third) == [True, False, False]
    assert not port.slots.may_ask(third)
    port.slots.leave(known[0])
    for slot in (second, third):
        port.slots.stand(slot, Standing.KNOWN)
    assert port.slots.may_ask(third) and not port.slots.may_ask(second)
    for slot in (first, second, third, *known):
        port.slots.leave(slot)
        port.slots.leave(slot)
        port.slots.stand(slot, Standing.IDLE)
    assert port.slots._count == 0 and not port.slots._shares and not port.slots._reserved


def test_there_is_no_place_when_all_reserved_ones_are_at_work() -> None:
    port = Port()
    for address in "abcdef":
        port.enter(address, Standing.KNOWN)
    for _ in range(2):
        port.enter("x", Standing.ASKED)
    assert port.slots.maybe_enter("y", lambda: None) is None


def test_of_all_ports_the_one_with_most_idle_connections_makes_room() -> None:
    """(3) Of eight, two are for the extra slots."""
    pool = SlotPool(8)
    first, second, third = Port(pool), Port(pool), Port(pool)
    small = second.enter("b")
    large = [first.enter(address) for address in ("a", "a", "b", "c")]
    known = third.enter("a", Standing.KNOWN)
    assert not third.enter("d", Standing.KNOWN).reserved
    assert first.closed(*large) == [True, False, False, False] and second.closed(small) == [False]
    for _ in range(3):
        assert not third.enter("d", Standing.KNOWN).reserved
    assert first.closed(*large).count(False) + second.closed(small).count(False) == 1
    assert third.closed(known) == [False]


def test_all_ports_together_never_have_more_and_health_is_answered_at_each() -> None:
    """(3)"""
    pool = SlotPool(8)
    first, second = Port(pool), Port(pool)
    known = [first.enter(address, Standing.KNOWN) for address in "aabbcc"]
    at_first = [first.enter("x") for _ in range(5)]
    at_second = second.enter("y")
    assert all(slot.reserved for slot in (*at_first, at_second))
    assert first.closed(*at_first).count(False) + 1 == 2
    assert not second.slots.may_ask(at_second)
    first.slots.leave(known[0])
    assert second.slots.may_ask(at_second)
    for port, slots in ((first, [*known, *at_first]), (second, [at_second])):
        for slot in slots:
            port.slots.leave(slot)
    assert (pool._count, pool._reserved_count, pool._ports) == (0, 0, {})
    assert first.slots.counts == second.slots.counts == [0, 0, 0]
