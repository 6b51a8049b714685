"""Connections that say nothing. Numbers in parentheses: the header of ``warren/mgmt_plugin/http/newcomers.py``."""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from warren.mgmt_plugin.http import slots as slots_module
from warren.mgmt_plugin.http.newcomers import ACCEPTS_PER_ROUND, BEGUN_PER_ROUND, Newcomer, Newcomers
from warren.mgmt_plugin.http.slots import Slots, Standing
from warren.server.network.readiness import Selector

FAR_BELOW = 1 << 30


class Rounds(trio.abc.Instrument):
    """Counts the passes of trio's loop, and what happened in the largest of them."""

    def __init__(self, happened: Callable[[], int]) -> None:
        self.passes = 0
        self.most = 0
        self._happened = happened
        self._before = 0

    def before_io_wait(self, timeout: float) -> None:
        self.passes += 1
        self.most = max(self.most, self._happened() - self._before)
        self._before = self._happened()


class Port:
    """A listening socket with newcomers, and what they did."""

    def __init__(self, *, patience_s: float = math.inf, descriptors_below: int = FAR_BELOW) -> None:
        self.slots = Slots()
        self.open = 0
        self.let_in = 0
        self.begun: list[Newcomer] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.listener.setblocking(False)
        self.newcomers = Newcomers(self.slots, patience_s, descriptors_below, self._opened, self.begun.append)
        self.clients: list[socket.socket] = []

    def _opened(self, more: int) -> None:
        self.open += more
        self.let_in += max(more, 0)

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.listener.getsockname())
        self.clients.append(client)
        return client

    @contextmanager
    def ends(self) -> Iterator[None]:
        with closing(self.listener), self.newcomers:
            yield
        for each in [*self.clients, *(newcomer.sock for newcomer in self.begun)]:
            each.close()


def run(port: Port, test: Callable[[Port], Awaitable[None]]) -> None:
    async def main() -> None:
        with port.ends(), trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.newcomers.accept, port.listener)
                nursery.start_soon(port.newcomers.run)
                await test(port)
                nursery.cancel_scope.cancel()
        assert port.open == len(port.begun)

    trio.run(main)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()


def test_many_are_let_in_together_and_others_have_their_turn_between() -> None:
    """(3)"""

    async def test(port: Port) -> None:
        count = 300
        for _ in range(count):
            port.connect()
        rounds = Rounds(lambda: port.let_in)
        trio.lowlevel.add_instrument(rounds)
        await until(lambda: port.let_in == count)
        assert rounds.passes < count / 10
        assert rounds.most == ACCEPTS_PER_ROUND
        assert len(port.newcomers) == count
        assert not port.begun

    run(Port(), test)


def test_who_says_something_is_handed_on_with_its_place_and_what_it_said() -> None:
    """(2), (3)"""

    async def test(port: Port) -> None:
        silent = port.connect()
        for _ in range(3 * BEGUN_PER_ROUND):
            port.connect().sendall(b"GET")
        await until(lambda: port.let_in == len(port.clients))
        rounds = Rounds(lambda: len(port.begun))
        trio.lowlevel.add_instrument(rounds)
        await until(lambda: len(port.begun) == 3 * BEGUN_PER_ROUND)
        assert rounds.most <= BEGUN_PER_ROUND
        assert len(port.newcomers) == 1
        for newcomer in port.begun:
            assert newcomer.peer == "127.0.0.1"
            assert newcomer.slot.standing is Standing.IDLE
            assert newcomer.sock.recv(100) == b"GET"
        silent.sendall(b"x")
        await until(lambda: len(port.newcomers) == 0)

    run(Port(), test)


def test_who_hangs_up_is_closed_without_a_word() -> None:
    """(2)"""

    async def test(port: Port) -> None:
        port.connect()
        await until(lambda: port.open == 1)
        port.clients[0].close()
        await until(lambda: port.open == 0)
        assert not port.begun

    run(Port(), test)


def test_who_says_nothing_for_long_is_closed_and_the_others_are_not() -> None:
    """(2)"""
    port = Port(patience_s=60)
    clock = trio.testing.MockClock()

    async def main() -> None:
        with port.ends():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.newcomers.accept, port.listener)
                nursery.start_soon(port.newcomers.run)
                first = port.connect()
                await until(lambda: port.open == 1)
                clock.jump(40)
                port.connect()
                await until(lambda: port.open == 2)
                clock.jump(30)
                await until(lambda: port.open == 1)
                assert first.recv(1) == b""
                clock.jump(30)
                await until(lambda: port.open == 0)
                assert port.clients[1].recv(1) == b""
                nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def test_a_place_that_another_one_gets_is_closed_whether_it_waits_or_is_handed_on_just_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(1)"""
    monkeypatch.setattr(slots_module, "PER_ADDRESS", 2)

    async def test(port: Port) -> None:
        for _ in range(3):
            port.connect()
        await until(lambda: port.let_in == 3)
        assert port.clients[0].recv(1) == b""
        port.clients[1].sendall(b"x")
        await until(lambda: len(port.begun) == 1)
        port.connect()
        await until(lambda: port.let_in == 4)
        (begun,) = port.begun
        assert begun.sock.fileno() < 0
        assert len(port.newcomers) == 2

    run(Port(), test)


def test_a_descriptor_that_is_kept_for_others_is_closed_at_once() -> None:
    async def test(port: Port) -> None:
        client = port.connect()
        client.setblocking(False)
        await trio.lowlevel.wait_readable(client)
        assert client.recv(1) == b""
        assert port.let_in == 0

    run(Port(descriptors_below=0), test)


class Unwilling:
    """A selector that fails once to watch a descriptor."""

    def __init__(self, selector: Selector, error: Exception) -> None:
        self._selector = selector
        self._errors = [error]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)

    def register(self, fd: int, events: int) -> None:
        if self._errors:
            raise self._errors.pop()
        self._selector.register(fd, events)


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device")])
def test_one_that_cannot_be_watched_leaves_nothing(error: Exception) -> None:
    """Otherwise its deadline, or the next one that gets its slot, would fail."""
    port = Port(patience_s=0)
    newcomers: Any = port.newcomers
    newcomers._selector = Unwilling(newcomers._selector, error)

    async def main() -> None:
        with port.ends(), trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.newcomers.run)
                port.connect()
                with pytest.raises(type(error)):
                    await port.newcomers.accept(port.listener)
                assert (len(port.newcomers), port.open) == (0, 0) and port.slots.is_empty()
                nursery.start_soon(port.newcomers.accept, port.listener)
                port.connect()
                await until(lambda: port.let_in == 1)
                nursery.cancel_scope.cancel()

    trio.run(main)
