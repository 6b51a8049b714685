"""Permits for requests that run long: their limit, and permits whose peer has left."""

from __future__ import annotations

import select
import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from warren.mgmt_plugin.http import permits as permits_module
from warren.mgmt_plugin.http.permits import LINE_PER_ACCOUNT, LINE_S, PER_ACCOUNT, TOTAL, Departures, Permits


def run(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=MockClock(autojump_threshold=0))


def test_an_account_has_so_many_permits_and_others_have_theirs() -> None:
    async def main() -> None:
        permits = Permits()
        for account in range(TOTAL // PER_ACCOUNT):
            for _ in range(PER_ACCOUNT):
                assert await permits.maybe_acquire(f"user {account}")
        began_s = trio.current_time()
        assert not await permits.maybe_acquire("user 0")
        assert not await permits.maybe_acquire("somebody else")
        assert trio.current_time() - began_s == 2 * LINE_S
        permits.release("user 0")
        assert await permits.maybe_acquire("somebody else")

    run(main)


def test_a_permit_goes_to_the_first_in_line_whose_account_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits_module, "TOTAL", 3)
    monkeypatch.setattr(permits_module, "PER_ACCOUNT", 2)
    admitted: list[str] = []

    async def main() -> None:
        permits = Permits()

        async def enter(account: str, name: str) -> None:
            assert await permits.maybe_acquire(account)
            admitted.append(name)

        async with trio.open_nursery() as nursery:
            for account, name in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("b", "b2"), ("b", "b3")):
                nursery.start_soon(enter, account, name)
                await wait_all_tasks_blocked()
            assert admitted == ["a1", "a2", "b1"]
            permits.release("b")
            await wait_all_tasks_blocked()
            assert admitted[3:] == ["b2"]
            permits.release("a")
            await wait_all_tasks_blocked()
            assert admitted[4:] == ["a3"]
            permits.release("b")
        assert admitted[5:] == ["b3"]
        for account in ("a", "a", "b"):
            permits.release(account)
        assert not permits._taken and not permits._line and permits._total == 0

    run(main)


def test_the_line_of_an_account_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        permits = Permits()
        for _ in range(PER_ACCOUNT):
            assert await permits.maybe_acquire("a")
        async with trio.open_nursery() as nursery:
            for _ in range(LINE_PER_ACCOUNT):
                nursery.start_soon(permits.maybe_acquire, "a")
            await wait_all_tasks_blocked()
            began_s = trio.current_time()
            assert not await permits.maybe_acquire("a")
            assert trio.current_time() == began_s
            assert await permits.maybe_acquire("b")

    run(main)


def test_whoever_goes_away_leaves_the_line_and_a_permit_that_it_was_just_given() -> None:
    async def main() -> None:
        permits = Permits()
        for _ in range(PER_ACCOUNT):
            assert await permits.maybe_acquire("a")
        for given in (False, True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(permits.maybe_acquire, "a")
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
                if given:
                    permits.release("a")
            assert not permits._line
        assert permits._total == PER_ACCOUNT - 1
        assert await permits.maybe_acquire("a")

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
            await trio.sleep(2 * permits_module.LOOK_S)
            assert [scope.cancel_called for scope in scopes] == [False, True, False]
            departures.forget(ends[1][0].fileno())
            ends[0][1].shutdown(socket.SHUT_WR)
            await trio.sleep(2 * permits_module.LOOK_S)
            assert scopes[0].cancel_called
            departures.forget(ends[0][0].fileno())
            await trio.sleep(2 * permits_module.LOOK_S)
            nursery.cancel_scope.cancel()
        for pair in ends:
            for end in pair:
                end.close()

    run(main)


def test_a_peer_that_is_lost_is_found_where_only_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "POLLRDHUP")

    async def main() -> None:
        departures = Departures()
        ours, theirs = socket.socketpair()
        with ours:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(departures.run)
                scope = trio.CancelScope()
                departures.watch(ours.fileno(), scope)
                theirs.close()
                await trio.sleep(2 * permits_module.LOOK_S)
                assert scope.cancel_called
                departures.forget(ours.fileno())
                nursery.cancel_scope.cancel()

    run(main)
