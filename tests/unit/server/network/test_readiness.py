"""Every selector tells the same, and can be waited for; a wakeup is heard once, from any thread."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from threading import Thread

import pytest
import trio
import trio.testing
from kqueue_on_epoll import KQUEUE_ON_EPOLL, choose

from warren.server.network import readiness
from warren.server.network.readiness import (
    ENDED,
    EPOLL,
    POLL,
    READ,
    READABLE,
    VARIABLE,
    WRITE,
    EventFd,
    Pipe,
    Selector,
    Wakeup,
    kinds,
    open_selector,
    open_wakeup,
    ring,
)
from warren.server.start_errors import StartError


@pytest.fixture(params=[*kinds(), KQUEUE_ON_EPOLL])
def selector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selector]:
    choose(request.param, monkeypatch)
    opened = open_selector()
    yield opened
    opened.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def test_what_is_asked_for_is_told_as_long_as_it_is_so(selector: Selector, pair: Pair) -> None:
    ours, theirs = pair
    fd = ours.fileno()
    selector.register(fd, READ)
    assert selector.poll(0) == []
    theirs.send(b"word")
    assert selector.poll(0) == selector.poll(0) == [(fd, READABLE)]
    selector.modify(fd, READ | WRITE)
    assert selector.poll(0) == [(fd, READABLE | WRITE)]
    ours.recv(10)
    assert selector.poll(0) == [(fd, WRITE)]
    selector.modify(fd, READ)
    assert selector.poll(0) == []
    selector.unregister(fd)


def test_who_reads_is_told_of_the_end(selector: Selector, pair: Pair) -> None:
    ours, theirs = pair
    selector.register(ours.fileno(), READ)
    theirs.shutdown(socket.SHUT_WR)
    ((fd, mask),) = selector.poll(0)
    assert fd == ours.fileno()
    assert mask & READ


def test_who_asks_for_the_end_alone_is_told_of_nothing_else(selector: Selector, pair: Pair) -> None:
    ours, theirs = pair
    selector.register(ours.fileno(), ENDED)
    theirs.send(b"word")
    assert selector.poll(0) == []
    theirs.shutdown(socket.SHUT_WR)
    ((fd, mask),) = selector.poll(0)
    assert fd == ours.fileno()
    assert mask & ENDED


def test_an_end_that_is_there_already_is_told_too(selector: Selector, pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    selector.register(ours.fileno(), ENDED)
    assert [fd for fd, _ in selector.poll(0)] == [ours.fileno()]


def test_who_asks_for_nothing_is_told_of_no_data(selector: Selector, pair: Pair) -> None:
    ours, theirs = pair
    selector.register(ours.fileno(), READ)
    selector.modify(ours.fileno(), 0)
    theirs.send(b"word")
    assert selector.poll(0) == []
    selector.modify(ours.fileno(), READ)
    assert selector.poll(0) == [(ours.fileno(), READABLE)]


def test_one_who_reads_can_come_to_ask_for_the_end_alone_and_back(selector: Selector, pair: Pair) -> None:
    ours, theirs = pair
    fd = ours.fileno()
    selector.register(fd, READ)
    selector.modify(fd, ENDED)
    theirs.send(b"word")
    assert selector.poll(0) == []
    selector.modify(fd, READ)
    assert selector.poll(0) == [(fd, READABLE)]


def test_a_descriptor_is_registered_once_and_changed_while_it_is(selector: Selector, pair: Pair) -> None:
    fd = pair[0].fileno()
    with pytest.raises(FileNotFoundError):
        selector.modify(fd, READ)
    with pytest.raises(FileNotFoundError):
        selector.unregister(fd)
    selector.register(fd, READ)
    with pytest.raises(FileExistsError):
        selector.register(fd, READ)
    selector.unregister(fd)
    selector.register(fd, WRITE)
    assert selector.poll(0) == [(fd, WRITE)]


def test_an_answer_has_no_more_than_was_asked_for(selector: Selector) -> None:
    pairs = [socket.socketpair() for _ in range(5)]
    for ours, _ in pairs:
        selector.register(ours.fileno(), WRITE)
    assert len(selector.poll(0, 3)) == 3
    assert len(selector.poll(0)) == 5
    for ours, theirs in pairs:
        selector.unregister(ours.fileno())
        ours.close()
        theirs.close()


def test_a_task_can_wait_for_all_of_them_again_and_again(selector: Selector, pair: Pair) -> None:
    ours, theirs = pair
    heard: list[bytes] = []

    async def serve() -> None:
        while len(heard) < 20:
            if not selector.poll(0):
                await trio.lowlevel.wait_readable(selector.fileno())
                continue
            heard.append(ours.recv(100))
            theirs.send(b"more") if len(heard) % 2 else None

    async def main() -> None:
        selector.register(ours.fileno(), READ)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            while len(heard) < 20:
                await trio.testing.wait_all_tasks_blocked()
                theirs.send(b"word")
                await trio.lowlevel.wait_writable(theirs)

    trio.run(main)
    assert b"word" in b"".join(heard)


def test_what_is_registered_while_a_task_waits_ends_the_wait_too(selector: Selector, pair: Pair) -> None:
    ours, theirs = pair
    theirs.send(b"word")

    async def wait() -> None:
        while not selector.poll(0):
            await trio.lowlevel.wait_readable(selector.fileno())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            selector.register(ours.fileno(), 0)
            await trio.testing.wait_all_tasks_blocked()
            selector.modify(ours.fileno(), READ)

    trio.run(main)


def test_a_wait_that_was_given_up_does_no_harm(selector: Selector, pair: Pair) -> None:
    ours, theirs = pair

    async def main() -> None:
        selector.register(ours.fileno(), READ)
        with trio.move_on_after(0):
            await trio.lowlevel.wait_readable(selector.fileno())
        selector.unregister(ours.fileno())
        ours.close()
        theirs.close()
        other, its = socket.socketpair()  # with the number of the one that was closed
        with other, its:
            selector.register(other.fileno(), READ)
            its.send(b"word")
            while not selector.poll(0):
                await trio.lowlevel.wait_readable(selector.fileno())
            selector.unregister(other.fileno())

    trio.run(main)


def test_a_selector_that_is_closed_leaves_neither_thread_nor_descriptor(
    monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    for kind in [*kinds(), KQUEUE_ON_EPOLL]:
        with monkeypatch.context() as patched:
            choose(kind, patched)
            before = os.listdir("/dev/fd")
            opened = open_selector()
            opened.register(pair[0].fileno(), READ)
            opened.fileno()
            opened.close()
            assert os.listdir("/dev/fd") == before, kind


# --- which one ------------------------------------------------------------------------------------------------------


def test_what_the_system_has_is_taken_unless_another_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert readiness.chosen_kind() == kinds()[0]
    monkeypatch.setenv(VARIABLE, POLL)
    assert readiness.chosen_kind() == POLL
    assert isinstance(open_wakeup(), Pipe)


def test_on_linux_nothing_stands_between_the_reactor_and_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, EPOLL)
    assert type(open_selector()) is select.epoll
    assert isinstance(open_wakeup(), EventFd)


def test_a_selector_that_is_not_there_is_refused_naming_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "poll ")
    with pytest.raises(StartError, match=r"WARREN_SELECTOR=poll : this system has epoll, poll"):
        open_selector()


# --- wakeups --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [EventFd, Pipe])
def test_who_is_woken_often_hears_it_once(make: type[EventFd] | type[Pipe]) -> None:
    wakeup: Wakeup = make()

    def ring_often() -> None:
        for _ in range(100):
            ring(wakeup)

    ringing = [Thread(target=ring_often) for _ in range(3)]
    for thread in ringing:
        thread.start()
    for thread in ringing:
        thread.join()
    assert select.select([wakeup.fd], [], [], 0)[0]
    wakeup.heard()
    assert not select.select([wakeup.fd], [], [], 0)[0]
    wakeup.close()


def test_a_pipe_that_is_full_is_rung_without_waiting() -> None:
    wakeup = Pipe()
    for _ in range(100_000):
        ring(wakeup)
    assert select.select([wakeup.fd], [], [], 0)[0]
    wakeup.close()
