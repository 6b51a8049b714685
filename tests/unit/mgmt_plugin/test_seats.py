"""Who may do something long at the same time, and whose peer has left."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from warren.mgmt_plugin.http import seats as seats_module
from warren.mgmt_plugin.http.seats import LINE_PER_ACCOUNT, LINE_S, PER_ACCOUNT, TOTAL, Departures, Seats


def run(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=MockClock(autojump_threshold=0))


def test_an_account_has_so_many_seats_and_others_have_theirs() -> None:
    async def main() -> None:
        seats = Seats()
        for account in range(TOTAL // PER_ACCOUNT):
            for _ in range(PER_ACCOUNT):
                assert await seats.maybe_enter(f"user {account}")
        began_s = trio.current_time()
        assert not await seats.maybe_enter("user 0")
        assert not await seats.maybe_enter("somebody else")
        assert trio.current_time() - began_s == 2 * LINE_S
        seats.leave("user 0")
        assert await seats.maybe_enter("somebody else")

    run(main)


def test_a_seat_goes_to_the_first_in_line_whose_account_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats_module, "TOTAL", 3)
    monkeypatch.setattr(seats_module, "PER_ACCOUNT", 2)
    admitted: list[str] = []

    async def main() -> None:
        seats = Seats()

        async def enter(account: str, name: str) -> None:
            assert await seats.maybe_enter(account)
            admitted.append(name)

        async with trio.open_nursery() as nursery:
            for account, name in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("b", "b2"), ("b", "b3")):
                nursery.start_soon(enter, account, name)
                await wait_all_tasks_blocked()
            assert admitted == ["a1", "a2", "b1"]
            seats.leave("b")
            await wait_all_tasks_blocked()
            assert admitted[3:] == ["b2"]
            seats.leave("a")
            await wait_all_tasks_blocked()
            assert admitted[4:] == ["a3"]
            seats.leave("b")
        assert admitted[5:] == ["b3"]
        for account in ("a", "a", "b"):
            seats.leave(account)
        assert not seats._taken and not seats._line and seats._total == 0

    run(main)


def test_the_line_of_an_account_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        seats = Seats()
        for _ in range(PER_ACCOUNT):
            assert await seats.maybe_enter("a")
        async with trio.open_nursery() as nursery:
            for _ in range(LINE_PER_ACCOUNT):
                nursery.start_soon(seats.maybe_enter, "a")
            await wait_all_tasks_blocked()
            began_s = trio.current_time()
            assert not await seats.maybe_enter("a")
            assert trio.current_time() == began_s
            assert await seats.maybe_enter("b")

    run(main)


def test_whoever_goes_away_leaves_the_line_and_a_seat_that_it_was_just_given() -> None:
    async def main() -> None:
        seats = Seats()
        for _ in range(PER_ACCOUNT):
            assert await seats.maybe_enter("a")
        for given in (False, True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(seats.maybe_enter, "a")
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
                if given:
                    seats.leave("a")
            assert not seats._line
        assert seats._total == PER_ACCOUNT - 1
        assert await seats.maybe_enter("a")

    run(main)


def test_a_peer_that_leaves_is_found() -> None:
    async def main() -> None:
        departures = Departures()
        ends = [socket.socketpair() for _ in range(3)]
        scopes = [trio.CancelScope() for _ in ends]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(departures.run)
            for (ours, _), scope in zip(ends, scopes, strict=True):
                departures.watch(ours.fileno(), scope)
            departures.forget(ends[2][0].fileno())
            for _, theirs in ends[1:]:
                theirs.close()
            await trio.sleep(2 * seats_module.LOOK_S)
            assert [scope.cancel_called for scope in scopes] == [False, True, False]
            departures.forget(ends[1][0].fileno())
            ends[0][1].shutdown(socket.SHUT_WR)
            await trio.sleep(2 * seats_module.LOOK_S)
            assert scopes[0].cancel_called
            departures.forget(ends[0][0].fileno())
            await trio.sleep(2 * seats_module.LOOK_S)
            nursery.cancel_scope.cancel()
        for pair in ends:
            for end in pair:
                end.close()

    run(main)
