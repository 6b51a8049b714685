"""What `ReadyMessages` expects of messages that came back, and of those that a key-shared queue has in their stead."""

from __future__ import annotations

from random import Random

import pytest
from engine_harness import Harness

from warren.msgstore.log.message import Message
from warren.queues.key_sharing import KeyShared
from warren.queues.returned_messages import ReturnedMessages
from warren.queues.shared_keys import SharedKeys

PLACES = 40


class Place:
    """Returned messages, and a dict that says what is there."""

    def __init__(self, *, key_shared: bool) -> None:
        self.harness = Harness()
        client = self.harness.channel()
        client.declare("q", arguments={"x-key-shared": True})
        client.publish("", "q", b"body")
        queue = self.harness.plain_queue("q")
        message = queue.ready.take_next()
        assert message is not None
        self.message = message
        self.log = self.harness.broker.log
        self.there: dict[int, Message] = {}
        self.returned = ReturnedMessages()
        if key_shared:
            dispatch = queue.need_keeper().dispatch
            assert isinstance(dispatch, KeyShared)
            self.returned = dispatch.keys

    def put(self, place: int) -> None:
        """Return a message that was delivered."""
        returned = self.returned
        if isinstance(returned, SharedKeys):
            returned.bind(returned.maybe_key("q"), "q", place, self)
        self.there[place] = self.message.copy()
        returned.put(self.there[place], place)

    def take(self, place: int) -> None:
        assert self.returned.maybe_take(place) is self.there.pop(place, None)

    def check(self) -> None:
        returned = self.returned
        returned.check_invariants()
        assert returned.count() == len(self.there)
        assert returned.body_bytes == sum(message.body_bytes for message in self.there.values())
        assert sorted(returned.places()) == sorted(self.there)
        for place in range(PLACES):
            assert returned.maybe_at(place) is self.there.get(place)
        if self.there:
            first = min(self.there)
            assert returned.first_place() == first
            assert returned.first() is self.there[first]
            assert returned.may_have_been_delivered(first)

    def between(self, first: int, last: int, most: int) -> None:
        expected = [(place, self.there[place]) for place in sorted(self.there) if first <= place <= last][:most]
        assert self.returned.between(first, last, most) == expected


@pytest.fixture(params=[False, True], ids=["returned", "set aside"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(key_shared=request.param)


@pytest.mark.parametrize("seed", range(8))
def test_any_message_can_be_found_and_taken_and_the_first_is_known(place: Place, seed: int) -> None:
    dice = Random(seed)
    for _ in range(120):
        at = dice.randrange(PLACES)
        if at not in place.there and dice.random() < 0.6:
            place.put(at)
        elif dice.random() < 0.5 and place.there:
            place.take(min(place.there))
        else:
            place.take(at)
        if dice.random() < 0.2:
            place.between(dice.randrange(PLACES), dice.randrange(PLACES), dice.randrange(1, 10))
        if dice.random() < 0.5:
            place.check()
    for at in list(place.there):
        place.take(at)
    place.check()


def test_all_are_settled_once_and_let_go(place: Place) -> None:
    for at in (5, 3, 9, 4):
        place.put(at)
    place.take(3)
    settled: list[int] = []
    before = place.log.resident_bytes
    place.returned.settle_all(place.log.reclamation, lambda message, at: settled.append(at))
    place.returned.let_go(place.log.reclamation)
    place.there.clear()
    assert sorted(settled) == [4, 5, 9]
    place.check()
    place.harness.settle()
    assert place.log.resident_bytes == (0 if isinstance(place.returned, SharedKeys) else before)
    place.put(7)
    place.check()


def test_a_message_that_was_read_is_taken_only_where_messages_come_that_were_not_away(place: Place) -> None:
    place.put(5)
    assert place.returned.take_read(5) == isinstance(place.returned, SharedKeys)
    assert not place.returned.take_read(6)


def test_what_was_set_aside_undelivered_is_not_flagged() -> None:
    place = Place(key_shared=True)
    keys = place.returned
    assert isinstance(keys, SharedKeys)
    keys.bind(None, "q", 0, place)
    key = keys.maybe_key("q")
    assert key is not None and keys.maybe_key("other") is None
    for at, redelivered in ((1, False), (2, True)):
        keys.set_aside(key, at, place.message.copy(), redelivered)
        assert keys.may_have_been_delivered(at) == redelivered
    for at, redelivered in ((2, True), (1, False)):
        assert keys.maybe_take(at) is not None and keys.took_redelivered == redelivered
    keys.answered(0, place.message)
    place.check()
    assert keys.maybe_key("q") is None, "a free key costs memory"
