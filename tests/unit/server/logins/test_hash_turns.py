"""The order in which waiting passwords are hashed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from warren.server.logins.hash_turns import HashTurns, Share


class Queue:
    """Waiting logins, each under a name; a turn ends when the test says so."""

    def __init__(self, nursery: trio.Nursery, most: int = 1, suspects: tuple[str, ...] = ()) -> None:
        self.suspects = set(suspects)
        self.turns = HashTurns(most, lambda share: share[0] in self.suspects)
        self.served: list[str] = []
        self.served_as_suspects: list[str] = []
        self.at_work: dict[str, trio.Event] = {}
        self._nursery = nursery

    async def ask(self, *who: str) -> list[trio.CancelScope]:
        """Make each of `who` (share, name) wait for a turn, one after the other."""
        scopes = []
        for each in who:
            scope = trio.CancelScope()
            scopes.append(scope)
            self._nursery.start_soon(self._work, each, scope)
            await trio.testing.wait_all_tasks_blocked()
        return scopes

    async def _work(self, who: str, scope: trio.CancelScope) -> None:
        share: Share = (who[0], "")
        with scope:
            async with self.turns.turn(share, who[1:]) as is_suspect:
                self.served.append(who)
                self.served_as_suspects += [who] * is_suspect
                self.at_work[who] = trio.Event()
                await self.at_work[who].wait()

    async def end(self) -> None:
        """End the turn that began first."""
        who = next(iter(self.at_work))
        self.at_work.pop(who).set()
        await trio.testing.wait_all_tasks_blocked()

    async def end_all(self) -> None:
        while self.at_work:
            await self.end()

    def assert_nothing_is_left(self, most: int) -> None:
        assert not self.turns._others and not self.turns._suspects
        assert self.turns._left == most and not self.turns._suspect_at_work


def run(test: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await test(nursery)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_shares_are_served_in_turn_and_names_in_a_share_too() -> None:
    async def test(nursery: trio.Nursery) -> None:
        queue = Queue(nursery)
        await queue.ask("a1", "a1", "a1", "a2", "a3", "b1", "b1", "c1")
        await queue.end_all()
        assert queue.served == ["a1", "a1", "b1", "c1", "a2", "b1", "a3", "a1"]
        queue.assert_nothing_is_left(1)

    run(test)


def test_suspects_never_take_all_places() -> None:
    async def test(nursery: trio.Nursery) -> None:
        queue = Queue(nursery, most=2, suspects=("s", "t"))
        await queue.ask("s1", "s2", "t1", "s3")
        assert queue.served == ["s1"]
        await queue.ask("a1")
        assert queue.served == ["s1", "a1"]
        await queue.end_all()
        assert sorted(queue.served) == ["a1", "s1", "s2", "s3", "t1"]
        assert sorted(queue.served_as_suspects) == ["s1", "s2", "s3", "t1"]
        queue.assert_nothing_is_left(2)

    run(test)


def test_suspects_are_served_however_many_others_there_are() -> None:
    async def test(nursery: trio.Nursery) -> None:
        queue = Queue(nursery, suspects=("s", "t"))
        await queue.ask("a0", "s1", "t1", *(f"{share}1" for share in "abcdefghijk"))
        await queue.end_all()
        gaps = [queue.served.index("s1"), queue.served.index("t1") - queue.served.index("s1")]
        assert max(gaps) <= 4, queue.served

    run(test)


def test_what_a_share_is_is_asked_when_its_turn_comes() -> None:
    async def test(nursery: trio.Nursery) -> None:
        queue = Queue(nursery, most=2)
        await queue.ask("a1", "b1", "s1", "s2")
        queue.suspects.add("s")
        await queue.end()
        await queue.end()
        assert queue.served == ["a1", "b1", "s1"]
        queue.suspects.clear()
        await queue.ask("c1")
        await queue.end_all()
        assert sorted(queue.served) == ["a1", "b1", "c1", "s1", "s2"]
        queue.assert_nothing_is_left(2)

    run(test)


@pytest.mark.parametrize("suspects", [(), ("a",)])
def test_who_gives_up_takes_no_turn_and_leaves_nothing(suspects: tuple[str, ...]) -> None:
    async def test(nursery: trio.Nursery) -> None:
        queue = Queue(nursery, suspects=suspects)
        working, *waiting = await queue.ask("a1", "a1", "a2", "b1")
        for scope in waiting:
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        working.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert queue.served == ["a1"]
        queue.assert_nothing_is_left(1)

    run(test)
