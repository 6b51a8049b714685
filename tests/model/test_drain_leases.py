"""Leases of drains: when claims go back, and what is a sign of the reader."""

from __future__ import annotations

from math import inf
from typing import Final, cast

import pytest
import trio
from engine_harness import body_of
from trio.testing import MockClock

from warren.amqp import methods as m
from warren.engine_view.refs import QueueRef
from warren.queues.claims import PIECE_MESSAGES
from warren.server.draining.drains import Drain, Drains, Fenced, Opened, StillClaimed
from warren.server.management import Management

from .drain_places import Place


def leased(lease_s: int | None = 60) -> tuple[Place, int]:
    """Return a place where somebody has claimed the first 3 of 5 messages, and his epoch."""
    place = Place()
    place.publish(5)
    epoch = place.open(lease_s=lease_s).epoch
    assert place.claim(epoch, 0, 3) == (0, 3)
    return place, epoch


FIRST_THREE: Final = [b"0", b"1", b"2"]


def test_claims_go_back_when_nobody_came_for_as_long_as_the_lease_and_not_a_moment_before() -> None:
    place, epoch = leased()
    assert place.pass_time(59.999) == pytest.approx(place.clock_s + 0.001)
    assert place.claimed() == FIRST_THREE
    place.pass_time(0.001)
    assert place.claimed() == []
    with pytest.raises(Fenced):
        place.claim(epoch, 3, 1)
    found = place.drains.listed(place.drains.claims_of(place.drain()))
    assert found.note.epoch > epoch and found.note.lease_s == 60
    place.client.send(1, m.BasicGet(0, "q", True))
    (ahead,) = place.client.take()
    assert isinstance(ahead.method, m.BasicGetOk) and not ahead.method.redelivered and body_of(ahead) == b"3"
    place.client.send(1, m.BasicGet(0, "q", True))
    place.client.take()
    place.client.send(1, m.BasicGet(0, "q", True))
    (back,) = place.client.take()
    assert isinstance(back.method, m.BasicGetOk) and back.method.redelivered and body_of(back) == b"0"
    again = place.open()
    assert place.claim(again.epoch, 0, 5) == (3, 5), "their numbers are not given again"


def test_claims_without_a_lease_are_kept_for_ever() -> None:
    place, epoch = leased(None)
    assert place.pass_time(1e9) == inf
    assert place.claim(epoch, 0, 1) == (0, 3)


@pytest.mark.parametrize("sign", ["claim", "mark", "read", "open"])
def test_every_call_of_the_session_begins_its_lease_anew(sign: str) -> None:
    place, epoch = leased()
    for _ in range(3):
        place.pass_time(59)
        match sign:
            case "claim":
                place.claim(epoch, 0, 1)
            case "mark":
                place.drains.mark(place.drain(), epoch)
            case "read":
                with place.drains.reading(QueueRef(place.claims())):
                    pass
            case "open":
                epoch = place.open(lease_s=60).epoch
    place.pass_time(59.9)
    assert place.claimed() == FIRST_THREE
    place.pass_time(0.1)
    assert place.claimed() == []


def test_what_others_do_with_the_session_is_no_sign_of_its_reader() -> None:
    place, epoch = leased()
    stale, epoch = epoch, place.open(lease_s=60).epoch
    place.pass_time(59)
    seen_ms = place.drains.listed(place.drains.claims_of(place.drain())).last_seen_ms
    with pytest.raises(Fenced):
        place.claim(stale, 0, 1)
    with pytest.raises(Fenced):
        place.drains.mark(place.drain(), stale)
    with pytest.raises(Fenced):
        place.call(lambda: place.drains.settle(place.drain(), [(0, 1)], "ack", None, stale))
    with pytest.raises(StillClaimed):
        place.delete()
    assert place.drains.listed(place.drains.claims_of(place.drain())).last_seen_ms == seen_ms
    place.pass_time(1)
    assert place.claimed() == []


def test_a_call_that_is_under_way_is_no_silence() -> None:
    place, epoch = leased()
    drain = place.drain()
    answers: list[tuple[int, int]] = []

    async def hold(*, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with place.drains._turn(drain, None, by_reader=False):
                task_status.started(scope)
                await trio.sleep_forever()

    async def claim() -> None:
        answers.append(await place.drains.claim(drain, epoch, 0, 1, None, None))

    async def wait_for_a_turn() -> None:
        async with trio.open_nursery() as nursery:
            held: trio.CancelScope = await nursery.start(hold)
            nursery.start_soon(claim)
            await trio.testing.wait_all_tasks_blocked()
            place.clock_s += 1000
            assert await place.drains.end_leases() == place.clock_s + 60
            held.cancel()

    trio.run(wait_for_a_turn)
    assert answers == [(0, 3)]
    place.pass_time(59)
    with place.drains.reading(QueueRef(place.claims())):
        place.pass_time(1000)
        place.pass_time(1000)
    place.pass_time(59)
    assert place.claimed() == FIRST_THREE
    place.pass_time(1)
    assert place.claimed() == []


def test_a_lease_begins_anew_when_the_broker_does() -> None:
    place, epoch = leased()
    place.pass_time(59)
    place.start_again()
    assert place.lease_s() == 60
    place.pass_time(59)
    assert place.claimed() == FIRST_THREE
    place.pass_time(1)
    assert place.claimed() == []
    place.start_again()
    with pytest.raises(Fenced):
        place.claim(epoch, 0, 1)
    assert sorted(place.got()) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("lease_s", [None, 30, 600])
def test_who_takes_a_session_over_brings_a_lease_of_his_own(lease_s: int | None) -> None:
    place, _ = leased()
    place.pass_time(59)
    opened = place.open(lease_s=lease_s)
    assert (opened.first, opened.end, place.lease_s()) == (0, 3, lease_s)
    place.pass_time(29 if lease_s == 30 else 599)
    assert place.claimed() == FIRST_THREE
    place.pass_time(1)
    assert place.claimed() == ([] if lease_s else FIRST_THREE)


def test_a_lease_does_not_end_while_somebody_opens_the_session() -> None:
    place, _ = leased()
    place.pass_time(59)

    async def commit(ticket: int) -> None:
        place.clock_s += 1000
        await place.drains.end_leases()

    place.desk.commit = commit  # type: ignore[method-assign]
    opened = place.open(lease_s=60)
    assert (opened.first, opened.end) == (0, 3) and place.claim(opened.epoch, 0, 1) == (0, 3)


def test_a_session_that_has_claimed_nothing_keeps_its_epoch_however_long_it_is_silent() -> None:
    place = Place()
    epoch = place.open(lease_s=60).epoch
    place.pass_time(1000)
    place.publish(3)
    assert place.claim(epoch, 0, 3) == (0, 3)


def test_claims_of_a_queue_that_is_gone_stay_until_there_is_one_to_take_them() -> None:
    place, epoch = leased()
    place.client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    place.pass_time(60)
    assert place.claimed() == FIRST_THREE
    assert place.claim(epoch, 1, 3) == (1, 3), "nobody is shut out for nothing"
    place.pass_time(60)
    place.client.declare("q", durable=True)
    place.pass_time(60)
    assert place.got() == [b"1", b"2"]
    with pytest.raises(Fenced):
        place.claim(epoch, 1, 3)


def test_who_opens_the_session_while_its_lease_ends_has_what_has_not_gone_back() -> None:
    place = Place()
    bodies = place.publish(3 * PIECE_MESSAGES)
    epoch = place.open(lease_s=60).epoch
    assert place.claim(epoch, 0, len(bodies)) == (0, len(bodies))
    opened: list[Opened] = []

    async def both() -> None:
        async def take_over() -> None:
            opened.append(await place.drains.open(place.drain(), "", "guest", 60))

        async with trio.open_nursery() as nursery:

            def between() -> None:
                if place.claims().first_offset():
                    place.desk.between = lambda: None
                    nursery.start_soon(take_over)

            place.desk.between = between
            await place.drains.end_leases()

    place.clock_s += 60
    trio.run(both)
    first, end = opened[0].first, opened[0].end
    assert 0 < first < end == len(bodies)
    assert place.rows(first, end) == bodies[first:] and place.got() == bodies[:first]
    assert place.claim(opened[0].epoch, first, 1) == (first, end)


def test_leases_end_by_themselves_and_begin_anew_with_the_broker_and_when_it_could_hear_nobody() -> None:
    place = Place()
    place.publish(5)
    drain = place.drain()
    clock = MockClock(autojump_threshold=0)

    async def claimed(count: int, seconds: float) -> None:
        """Expect `count` claims before and after `seconds` seconds."""
        await trio.sleep(seconds)
        await trio.testing.wait_all_tasks_blocked()
        assert place.claims().ready_count == count

    async def live() -> None:
        drains = Drains(cast(Management, place.desk))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drains.run)
            await trio.testing.wait_all_tasks_blocked()
            long = await drains.open(Drain(place.broker.vhost.name, "q", "long"), "", "guest", 1000)
            await drains.claim(Drain(place.broker.vhost.name, "q", "long"), long.epoch, 0, 1, None, None)
            await trio.sleep(100)
            opened = await drains.open(drain, "", "guest", 60)
            await drains.claim(drain, opened.epoch, 0, 3, None, None)
            await claimed(3, 30)
            clock.jump(100)  # and nothing ran meanwhile
            await claimed(3, 59.9)
            await claimed(0, 0.2)
            opened = await drains.open(drain, "", "guest", 60)
            await drains.claim(drain, opened.epoch, opened.first, 2, None, None)
            await trio.sleep(59)
            nursery.cancel_scope.cancel()
        started = Drains(cast(Management, place.desk))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(started.run)
            await claimed(2, 59.9)
            assert place.claims("long").ready_count == 1
            await claimed(0, 0.2)
            await trio.sleep(1000)
            assert place.claims("long").ready_count == 0
            nursery.cancel_scope.cancel()

    trio.run(live, clock=clock)
    assert sorted(place.got()) == [b"%d" % number for number in range(5)]


def test_leases_that_end_while_another_one_goes_back_end_then() -> None:
    place = Place()
    place.publish(5)
    clock = MockClock(autojump_threshold=0)

    async def live() -> None:
        drains = Drains(cast(Management, place.desk))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drains.run)
            for name, lease_s in (("b", 65), ("c", 61), ("a", 60)):
                drain = place.drain(name)
                opened = await drains.open(drain, "", "guest", lease_s)
                await drains.claim(drain, opened.epoch, 0, 1, None, None)

            def between() -> None:
                place.desk.between = lambda: None
                clock.jump(10)

            place.desk.between = between
            await trio.sleep(60.1)
            await trio.testing.wait_all_tasks_blocked()
            assert [place.claims(name).ready_count for name in "abc"] == [0, 0, 0]
            nursery.cancel_scope.cancel()

    trio.run(live, clock=clock)
