"""Sessions of drains one by one: epochs, claims, marks, releases, and the limit of sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import pytest
import trio
from durable_harness import DurableHarness
from engine_harness import publish_frames
from trio.testing import MockClock, wait_all_tasks_blocked

from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import QueueRef
from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.resources.ranges import ClaimRanges, Wanted
from warren.msgstore.files.store import wall_time_ms
from warren.queues.claim_names import claims_name
from warren.queues.claims import PIECE_MESSAGES
from warren.server.draining import claim_verdicts
from warren.server.draining import drains as drains_module
from warren.server.draining.claim_verdicts import ACK, REQUEUE, Verdict, decoded
from warren.server.draining.drains import (
    Ahead,
    Before,
    Busy,
    Diverged,
    Drain,
    Drains,
    Fenced,
    NoDrain,
    NoQueue,
    Opened,
    StillClaimed,
    TooMany,
)
from warren.server.management import Management
from warren.server.shares import Quota
from warren.vhosts.metadata import PermissionPut, UserPut, VhostDelete, VhostPut

from .drain_places import Desk, Place
from .restarting_broker import RestartingBroker
from .test_claims import rest


def test_a_claim_is_adopted_and_nothing_more_is_claimed_until_it_is_acknowledged() -> None:
    place = Place()
    bodies = place.publish(100)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 30) == (0, 30)
    assert place.claim(epoch, 0, 5) == (0, 30)
    assert place.claim(epoch, 10, 5) == (10, 30)
    assert place.rows(10, 30) == bodies[10:30]
    assert place.claim(epoch, 30, 25) == (30, 55)
    assert place.got() == bodies[55:]
    assert place.claim(epoch, 55, 25) == (55, 55)


def test_an_older_epoch_is_refused_everywhere() -> None:
    place = Place()
    place.publish(10)
    first = place.open()
    second = place.open()
    assert second.epoch > first.epoch and (second.first, second.end) == (0, 0)
    with pytest.raises(Fenced):
        place.claim(first.epoch, 0, 10)
    with pytest.raises(Fenced):
        place.drains.mark(place.drain(), first.epoch)
    with pytest.raises(Fenced):
        place.release(first.epoch)
    with pytest.raises(Fenced):
        place.delete(epoch=first.epoch)
    assert place.claim(second.epoch, 0, 10) == (0, 10)
    with pytest.raises(Fenced):
        place.claim(second.epoch + 1, 0, 10)
    with pytest.raises(Fenced):
        place.call(lambda: place.drains.settle(place.drain(), [(0, 1)], REQUEUE, None, first.epoch))
    assert place.call(lambda: place.drains.settle(place.drain(), [(0, 1)], REQUEUE, None, second.epoch)) == 1
    assert place.claim(second.epoch, 10, 10, until=0) == (10, 10)
    place.delete(epoch=second.epoch)


def test_an_epoch_is_never_given_again_not_even_to_another_session_of_the_name() -> None:
    place = Place()
    seen = [place.open().epoch, place.open("other").epoch]
    place.delete()
    seen.append(place.open().epoch)
    rest(place.broker)
    place.start_again()
    seen += [place.open().epoch, place.open("third").epoch]
    assert seen == sorted(set(seen))


def test_a_new_session_is_refused_to_a_reader_whose_earlier_one_is_of_another_history() -> None:
    place = Place()

    def opened(consumer: str, before: Before | None = None) -> Before:
        found = place.call(lambda: place.drains.open(place.drain(consumer), "", "guest", None, before))
        return Before(found.epoch, found.life_id)

    first = opened("c")
    place.delete()
    place.start_again()
    second = opened("c", first)
    place.delete()
    for before in (first, second):
        opened("c", before)
        place.delete()
    last = opened("other")
    ended = Before(second.epoch, first.life_id)  # a copy of the broker has given it in the life before
    unknown = Before(first.epoch, bytes(15) + b"1")
    for before in (ended, unknown, Before(last.epoch + 10, last.life_id)):
        with pytest.raises(Diverged, match="restored from a backup"):
            opened("c", before)
        with pytest.raises(NoDrain):
            place.call(lambda: place.drains.look(place.drain("c")))
        opened("other", before)  # a session that is there is compared by its claims


def test_opening_ends_a_claim_that_is_under_way() -> None:
    place = Place()
    bodies = place.publish(3 * PIECE_MESSAGES)
    first = place.open()
    opened: list[Opened] = []

    async def both() -> None:
        async def second() -> None:
            opened.append(await place.drains.open(place.drain(), "", "guest"))

        async with trio.open_nursery() as nursery:

            def between() -> None:
                place.desk.between = lambda: None
                nursery.start_soon(second)

            place.desk.between = between
            with pytest.raises(Fenced):
                await place.drains.claim(place.drain(), first.epoch, 0, 1_000_000, None, None)

    trio.run(both)
    claimed = opened[0].end
    assert 0 < claimed < len(bodies)
    assert place.rows(0, claimed) == bodies[:claimed] and place.got() == bodies[claimed:]


def test_a_reader_that_knows_more_than_the_broker_is_told() -> None:
    place = Place()
    place.publish(10)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 5) == (0, 5)
    with pytest.raises(Ahead):
        place.claim(epoch, 6, 5)
    assert place.rows(0, 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_claims_until_a_mark_take_nothing_that_came_later() -> None:
    place = Place()
    bodies = place.publish(20)
    epoch = place.open().epoch
    mark = place.drains.mark(place.drain(), epoch)
    place.publish(20)
    assert place.claim(epoch, 0, 15, until=mark) == (0, 15)
    assert place.claim(epoch, 15, 15, until=mark) == (15, 20)
    assert place.claim(epoch, 20, 15, until=mark) == (20, 20)
    assert place.claim(epoch, 20, 15) == (20, 35)
    assert place.rows(20, 35)[0] == b"20" and bodies[-1] == b"19"


def test_a_mark_of_a_queue_that_was_deleted_and_made_anew_claims_nothing() -> None:
    place = Place()
    place.publish(20)
    epoch = place.open().epoch
    mark = place.drains.mark(place.drain(), epoch)
    place.client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert place.drains.mark(place.drain(), epoch) == 0
    assert place.claim(epoch, 0, 15, until=mark) == (0, 0), "the queue is gone"
    place.client.declare("q", durable=True)
    place.publish(5)
    assert place.claim(epoch, 0, 15, until=mark) == (0, 0)
    assert place.claim(epoch, 0, 15, until=0) == (0, 0)
    assert place.claim(epoch, 0, 15) == (0, 5)


@pytest.mark.parametrize(("max_bytes", "expected"), [(1, 1), (100, 1), (101, 1), (299, 2), (300, 3), (10_000, 10)])
def test_a_claim_has_no_more_bytes_than_asked_for_but_one_message(max_bytes: int, expected: int) -> None:
    place = Place()
    place.client.feed(b"".join(publish_frames("", "q", b"x" * 100, properties={"delivery_mode": 2}) for _ in range(10)))
    rest(place.broker)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 1000, max_bytes=max_bytes) == (0, expected)


def test_what_has_expired_is_not_claimed_and_what_is_claimed_does_not_expire() -> None:
    place = Place()
    place.publish(5, expiration="1000")
    place.publish(5, expiration="60000")
    place.publish(5)
    place.broker.broker.log.now_ms += 1500  # and nobody has looked yet
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 1000) == (0, 10)
    rest(place.broker)
    place.start_again()
    place.broker.pass_time(3600)
    assert place.rows(0, 10) == [b"%d" % number for number in range(5, 15)]
    assert place.got() == []


def test_what_is_released_comes_back_behind_the_others_and_lives_anew() -> None:
    place = Place()
    bodies = place.publish(5, expiration="60000")
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 3) == (0, 3)
    place.broker.pass_time(59)
    assert place.release(epoch) == 3
    place.broker.pass_time(59)
    assert place.got() == bodies[:3]
    assert place.claim(epoch, 0, 3) == (3, 3), "their numbers are not given again"
    place.publish(1)
    assert place.claim(epoch, 0, 3) == (3, 4)


def test_an_operator_who_releases_fences_whoever_has_the_session() -> None:
    place = Place()
    bodies = place.publish(5)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 3) == (0, 3)
    assert place.release(None) == 3
    with pytest.raises(Fenced):
        place.claim(epoch, 0, 3)
    assert place.got() == bodies[3:] + bodies[:3]


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": 3, "x-overflow": "reject-publish"},
        {"x-message-deduplication": True, "x-deduplication-header": "id"},
        {"x-max-priority": 3},
        {"x-queue-type": "quorum", "x-delivery-limit": 1},
        {"x-key-shared": True},
    ],
)
def test_no_rule_of_a_queue_keeps_out_what_is_released(arguments: dict[str, Any]) -> None:
    place = Place(**arguments)
    bodies: list[bytes] = []
    for number in range(3):
        bodies += place.publish(1, headers=encode_table({"id": number}))
    epoch = place.open().epoch
    for _ in range(3):
        first, end = place.claim(epoch, 0, 10)
        assert place.rows(first, end) == bodies
        waiting = place.publish(3)
        assert place.release(epoch) == 3
        assert place.claim(epoch, 0, 3) == (end, end + 3)
        assert place.rows(end, end + 3) == waiting
        assert place.claim(epoch, end + 3, 3) == (end + 3, end + 6)
        assert place.rows(end + 3, end + 6) == bodies
        assert place.release(epoch) == 3
    assert place.got() == bodies


def test_claims_outlive_their_queue_and_are_released_to_the_next_of_the_name() -> None:
    place = Place()
    bodies = place.publish(10)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 5) == (0, 5)
    place.client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    rest(place.broker)
    place.start_again()
    opened = place.open()
    assert (opened.first, opened.end) == (0, 5) and place.rows(0, 5) == bodies[:5]
    assert place.claim(opened.epoch, 2, 5) == (2, 5)
    with pytest.raises(NoQueue):
        place.release(opened.epoch)
    place.client.declare("q", durable=True)
    assert place.release(opened.epoch) == 3
    assert place.got() == bodies[2:5]


def test_a_batch_that_failed_is_acknowledged_without_its_queue_but_for_what_was_tried_too_often() -> None:
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    arguments: dict[str, Any] = {"x-max-priority": 1, "x-delivery-limit": 1} | dead_letters
    place = Place(**arguments)
    place.client.declare("dead", durable=True)
    tried = place.publish(1)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 1) == (0, 1)
    place.call(lambda: place.drains.settle(place.drain(), [(0, 1)], REQUEUE, None))
    assert place.claim(epoch, 1, 1, until=0) == (1, 1)
    bodies = place.publish(3, priority=1) + tried + place.publish(2)
    assert place.claim(epoch, 1, 6) == (1, 7) and place.claimed() == bodies
    assert place.fail(epoch, 1, 7).times == 1
    place.client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert place.claim(epoch, 3, 6) == (3, 7)
    for _ in range(2):
        with pytest.raises(NoQueue):
            place.claim(epoch, 7, 6)
        assert place.claimed() == bodies[3:]
    rest(place.broker)
    place.start_again()
    epoch = place.open().epoch
    with pytest.raises(NoQueue):
        place.claim(epoch, 7, 6)
    place.client.declare("q", durable=True, arguments=arguments)
    assert place.claim(epoch, 7, 6) == (7, 7)
    assert place.claimed() == [] and place.got() == [] and place.got("dead") == tried


@pytest.mark.parametrize("ends", [(3, 6), (6, 3)])
def test_a_failed_batch_is_the_range_that_the_reader_named_last(ends: tuple[int, int]) -> None:
    """The reader leaves out messages of that range, and the broker gives up the same ones."""
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    arguments: dict[str, Any] = {"x-delivery-limit": 0} | dead_letters
    place = Place(**arguments)
    place.client.declare("dead", durable=True)
    bodies = place.publish(6)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 6) == (0, 6)
    assert [place.fail(epoch, 0, end).times for end in ends] == [1, 1]
    assert place.claim(epoch, 6, 6, until=0) == (6, 6)
    assert place.got("dead") == bodies[: ends[-1]]


def test_a_batch_that_failed_and_went_back_keeps_nobody_from_going_on_without_the_queue() -> None:
    arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": 1}
    place = Place(**arguments)
    place.publish(3)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 3) == (0, 3)
    assert place.fail(epoch, 0, 3).limit == 1
    assert place.release(epoch) == 3
    assert place.claim(epoch, 0, 3) == (3, 6)
    place.client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert place.claim(epoch, 6, 3) == (6, 6)


def test_a_drain_with_claims_is_deleted_only_when_they_are_to_be_thrown_away() -> None:
    place = Place()
    place.publish(10)
    epoch = place.open().epoch
    place.claim(epoch, 0, 5)
    with pytest.raises(StillClaimed):
        place.delete()
    place.delete(discard=True)
    assert claims_name("q", "c") not in place.broker.vhost.queues
    with pytest.raises(NoDrain):
        place.claim(epoch, 5, 5)
    with pytest.raises(NoDrain):
        place.delete()
    assert len(place.got()) == 5


@pytest.mark.parametrize("name", ["settle", "delete"])
def test_a_call_that_waits_for_its_turn_is_not_for_a_session_that_was_opened_meanwhile(name: str) -> None:
    place = Place()
    epoch, drain = place.open().epoch, place.drain()
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "settle": lambda: place.drains.settle(drain, [(0, 1)], REQUEUE, None),
        "delete": lambda: place.drains.delete(drain, "guest", discard=True),
    }

    def opened_again() -> None:
        if claims_name("q", "c") not in place.broker.vhost.queues:
            place.desk.view.claims.declare(drain.vhost, "q", "c", "guest")

    async def waits() -> None:
        with pytest.raises(NoDrain, match="was deleted"):
            await calls[name]()

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery, place.drains._turn(drain, epoch):
            nursery.start_soon(partial(place.drains.delete, drain, "guest", discard=False, epoch=epoch))
            await wait_all_tasks_blocked()
            nursery.start_soon(waits)
            await wait_all_tasks_blocked()
            place.desk.between = opened_again

    trio.run(all_of_them)
    assert claims_name("q", "c") in place.broker.vhost.queues


def test_calls_of_one_session_wait_for_each_other_but_not_for_ever() -> None:
    place = Place()
    place.publish(10)
    epoch = place.open().epoch

    drain = place.drain()

    async def hold(task_status: trio.TaskStatus[None]) -> None:
        async with place.drains._turn(drain, epoch):
            task_status.started()
            await trio.sleep_forever()

    async def claims() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(hold)
            with pytest.raises(Busy):
                await place.drains.claim(drain, epoch, 0, 10, None, None)
            nursery.cancel_scope.cancel()
        assert await place.drains.claim(drain, epoch, 0, 10, None, None) == (0, 10)

    trio.run(claims, clock=MockClock(autojump_threshold=0))


def test_a_paused_queue_gives_nothing_to_a_drain_either() -> None:
    place = Place()
    place.publish(10)
    epoch = place.open().epoch
    place.broker.queue("q").pause(paused=True)
    assert place.claim(epoch, 0, 5) == (0, 0)
    place.broker.queue("q").pause(paused=False)
    assert place.claim(epoch, 0, 5) == (0, 5)


def test_a_queue_has_so_many_drains_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    monkeypatch.setattr(drains_module, "DRAINS_QUOTA", Quota(2, 2))
    for name in ("one", "two"):
        place.open(name)
    with pytest.raises(TooMany):
        place.open("three")
    place.open("one")
    place.delete("one")
    place.open("three")
    place.start_again()
    with pytest.raises(TooMany):
        place.open("four")
    place.open("two")


def test_a_user_has_a_share_of_the_drains_of_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    place.broker.broker.access.apply(UserPut("root", "", "", ("administrator",)))
    monkeypatch.setattr(drains_module, "DRAINS_QUOTA", Quota(3, 2))

    def open_by(user: str, name: str) -> Opened:
        return place.call(lambda: place.drains.open(place.drain(name), "", user))

    open_by("greedy", "one")
    open_by("greedy", "two")
    with pytest.raises(TooMany, match="user 'greedy' has 2 drains"):
        open_by("greedy", "three")
    open_by("other", "three")
    with pytest.raises(TooMany, match="there are 3 drains"):
        open_by("third", "four")
    open_by("root", "four")


def test_a_broker_that_stops_claims_no_more_and_what_is_claimed_is_there_when_it_starts() -> None:
    place = Place()
    bodies = place.publish(3 * PIECE_MESSAGES)
    epoch = place.open().epoch

    def stop() -> None:
        place.desk.stopping = True

    place.desk.between = stop
    with pytest.raises(Busy):
        place.claim(epoch, 0, 1_000_000)
    rest(place.broker)
    place.start_again()
    first, end = place.claim(epoch, 0, 1)
    assert (first, end) == (0, PIECE_MESSAGES) and place.rows(0, end) == bodies[:PIECE_MESSAGES]


def test_a_new_session_counts_as_a_queue_of_the_vhost() -> None:
    place = Place()
    place.open()
    place.broker.vhost.limits = {"max-queues": 2}
    with pytest.raises(TooMany):
        place.open("another")
    assert place.open().epoch


def claim_meanwhile(place: Place, epoch: int, after: int, at: int, other: Callable[[], Awaitable[object]]) -> bool:
    """Make a reader claim, and begin `other` in its turn `at`. Return False when the claim was over before that."""
    turns = 0

    async def both() -> None:
        async with trio.open_nursery() as nursery:

            def between() -> None:
                nonlocal turns
                turns += 1
                if turns == at:
                    nursery.start_soon(other)

            place.desk.between = between
            with suppress(Fenced):
                await place.drains.claim(place.drain(), epoch, after, 1, None, None)
            place.desk.between = lambda: None

    trio.run(both)
    return turns >= at


@pytest.mark.parametrize("releases", [False, True])
@pytest.mark.parametrize("at", range(1, 30))
def test_who_takes_a_session_over_has_it_whatever_the_earlier_reader_acknowledges(at: int, releases: bool) -> None:
    place = Place(**{"x-delivery-limit": 5})
    place.publish(8)
    earlier = place.open().epoch
    assert place.claim(earlier, 0, 4) == (0, 4)
    place.fail(earlier, 0, 2)

    async def take_over() -> None:
        if releases:
            await place.drains.release(place.drain(), None)
        else:
            await place.drains.open(place.drain(), "later", "guest", 60)

    is_taken_over = claim_meanwhile(place, earlier, 3, at, take_over)
    found = place.drains.listed(place.drains.claims_of(place.drain())).note
    assert (found.epoch > earlier) == is_taken_over
    assert at > 5 or is_taken_over, "this many turns, at least"


@pytest.mark.parametrize("at", range(1, 30))
def test_acknowledged_claims_do_not_go_back_when_an_operator_interrupts_the_reader(at: int) -> None:
    place = Place()
    bodies = place.publish(8)
    epoch = place.open().epoch
    assert place.claim(epoch, 0, 6) == (0, 6)
    place.call(lambda: place.drains.settle(place.drain(), [(1, 2), (3, 4)], "requeue", None))
    claim_meanwhile(place, epoch, 5, at, lambda: place.drains.release(place.drain(), None))
    place.release(None)
    acked = place.drains.listed(place.drains.claims_of(place.drain())).note.acked
    assert sorted(place.got()) == ([bodies[1], bodies[3], *bodies[5:]] if acked else bodies)
    assert acked == 5 or at < 3


def test_a_session_begins_from_scratch_when_its_claims_were_deleted_as_a_queue() -> None:
    place = Place(**{"x-delivery-limit": 1})
    bodies = place.publish(6)
    for _ in range(2):
        epoch = place.open().epoch
        place.claim(epoch, 0, 3)
        place.fail(epoch, 0, 3)
    assert place.claim(epoch, 1, 3) == (1, 3)
    place.release(epoch)
    place.client.call(1, m.QueueDelete(0, place.drain().claims_name, if_unused=False, if_empty=False, no_wait=False))
    assert not [name for name, _ in place.broker.vhost.records.values("") if place.drain().claims_name in name]
    opened = place.open()
    assert opened.epoch > epoch and (opened.first, opened.end, opened.acked) == (0, 0, 0)
    assert place.claim(opened.epoch, 0, 5) == (0, 5)
    assert sorted(place.rows(0, 5)) == bodies[1:], "none of them has failed in this session"
    place.call(lambda: place.drains.settle(place.drain(), [(3, 5)], "requeue", None))
    assert place.claim(opened.epoch, 3, 1) == (3, 5)
    assert place.release(opened.epoch) == 2
    assert len(place.got()) == 2


def test_a_reader_of_a_vhost_that_was_declared_again_is_shut_out() -> None:
    harness = DurableHarness()
    drains = Drains(cast(Management, Desk(cast(RestartingBroker, harness))))
    drain = Drain("/", "q", "c")

    def opened() -> int:
        return trio.run(drains.open, drain, "", "guest").epoch

    harness.channel().declare("q", durable=True)
    epoch = opened()
    while wall_time_ms() <= epoch:
        pass
    harness.broker.administer(VhostDelete("/"), "")
    harness.settle()
    harness.broker.administer(VhostPut("/"), "")
    harness.broker.administer(PermissionPut("guest", "/", ".*", ".*", ".*"), "")
    harness.channel().declare("q", durable=True)
    assert opened() > epoch
    with pytest.raises(Fenced):
        trio.run(drains.claim, drain, epoch, 0, 1, None, None)


def test_a_reader_of_an_earlier_vhost_is_shut_out_even_after_the_clock_went_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = DurableHarness()
    drains = Drains(cast(Management, Desk(cast(RestartingBroker, harness))))
    drain = Drain("/", "q", "c")
    epochs = []
    for begin_ms in (1_800_000_000_000, 1_799_999_999_000):
        monkeypatch.setattr(drains_module, "wall_time_ms", lambda now_ms=begin_ms: now_ms)
        harness.broker.administer(VhostDelete("/"), "")
        harness.settle()
        harness.broker.administer(VhostPut("/"), "")
        harness.broker.administer(PermissionPut("guest", "/", ".*", ".*", ".*"), "")
        harness.channel().declare("q", durable=True)
        epochs.append([trio.run(drains.open, drain, "", "guest").epoch for _ in range(3)])
    earlier, later = epochs
    assert not set(earlier) & set(later)
    for epoch in (*earlier, *later[:-1]):
        with pytest.raises(Fenced):
            trio.run(drains.claim, drain, epoch, 0, 1, None, None)
    assert trio.run(drains.claim, drain, later[-1], 0, 1, None, None) == (0, 0)


def test_epochs_that_an_earlier_version_began_continue() -> None:
    """They began at 1."""
    place = Place()
    place.publish(2)
    place.broker.vhost.records.store("drain epoch", b"6")
    first, second = place.open().epoch, place.open().epoch
    assert (first, second) == (7, 8)
    with pytest.raises(Fenced):
        place.claim(first, 0, 1)
    assert place.claim(second, 0, 1) == (0, 1)


def test_nothing_is_remembered_of_a_reader_whose_session_ends_during_its_call() -> None:
    place = Place()
    epoch = place.open().epoch
    claims = QueueRef(place.claims())
    with place.drains.reading(claims):
        place.delete()
    assert not place.drains._present
    place.open("other")
    place.client.call(
        1, m.QueueDelete(0, place.drain("other").claims_name, if_unused=False, if_empty=False, no_wait=False)
    )
    place.pass_time(0)
    assert not place.drains._present
    with pytest.raises(NoDrain):
        place.claim(epoch, 0, 1)


def test_claims_whose_vhost_ends_between_two_reads_of_an_answer_are_not_found() -> None:
    harness = DurableHarness()
    view = EngineView(harness.broker, harness.settle)
    drains = Drains(cast(Management, Desk(cast(RestartingBroker, harness))))
    harness.channel().declare("q", durable=True)
    claims = trio.run(drains.open, Drain("/", "q", "c"), "", "guest").claims
    ranges = ClaimRanges(view, drains, claims)
    harness.broker.administer(VhostDelete("/"), "")
    with pytest.raises(HttpError, match="404"):
        trio.run(ranges.read, 0, 1, Wanted(True, True))


def test_claims_that_are_settled_one_by_one_are_not_read_again_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    bodies = place.publish(10)
    epoch = place.open().epoch
    place.claim(epoch, 0, 10)
    read: list[bytes] = []

    def reading(stored: bytes) -> list[Verdict]:
        read.append(stored)
        return decoded(stored)

    def settle(first: int, end: int, kind: str) -> int:
        return place.call(lambda: place.drains.settle(place.drain(), [(first, end)], kind, None))

    monkeypatch.setattr(claim_verdicts, "decoded", reading)
    assert settle(0, 10, REQUEUE) == 10
    assert [settle(offset, offset + 1, ACK) for offset in (1, 5, 3)] == [9, 8, 7]
    assert read == []
    place.start_again()
    assert settle(7, 8, ACK) == 6
    assert len(read) == 1
    assert place.claim(place.open().epoch, 10, 1) == (10, 11)
    assert sorted(place.rows(10, 11) + place.got()) == [
        body for at, body in enumerate(bodies) if at not in (1, 3, 5, 7)
    ]


def test_claims_that_are_settled_one_by_one_are_written_one_by_one() -> None:
    """However many others are settled: the bytes of twice as many settles are about twice as many."""

    def written(count: int) -> int:
        place = Place()
        place.publish(2 * count)
        epoch = place.open().epoch
        assert place.claim(epoch, 0, 2 * count) == (0, 2 * count)
        log = place.broker.broker.log
        before = int(log.next_lsn)

        async def settle() -> None:
            for offset in range(0, 2 * count, 2):
                await place.drains.settle(place.drain(), [(offset, offset + 1)], REQUEUE, None)

        place.call(settle)
        return int(log.next_lsn) - before

    assert written(600) < 2.5 * written(300)


def test_an_operator_releases_only_the_session_that_was_seen() -> None:
    place = Place()
    place.publish(3)
    seen = place.open().epoch
    assert place.claim(seen, 0, 3) == (0, 3)
    epoch = place.open().epoch
    with pytest.raises(Fenced):
        place.call(lambda: place.drains.release(place.drain(), None, seen))
    assert place.claim(epoch, 0, 3) == (0, 3), "its reader is not shut out"
    assert place.call(lambda: place.drains.release(place.drain(), None, epoch)) == 3
    with pytest.raises(Fenced):
        place.claim(epoch, 0, 3)
