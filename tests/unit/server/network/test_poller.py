"""A poller reports each event once, and reports nothing of a descriptor that is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from warren.server.network.poller import GO_ON, Poller
from warren.server.network.readiness import READ, READABLE, WRITE

woken: list[int] = []


@pytest.fixture
def poller() -> Iterator[Poller]:
    woken.clear()
    made = Poller(lambda: woken.append(1))
    yield made
    made.close()


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield made
    os.close(made)


def test_sockets_that_the_last_turn_left_come_first_and_once(poller: Poller) -> None:
    poller.ready = {7: READ}
    poller.requeue(8)
    assert poller.take([(9, READ), (8, WRITE)]) == [(7, READ), (8, GO_ON | WRITE), (9, READ)]
    assert poller.ready == {}


def test_sockets_that_a_turn_leaves_come_before_those_that_became_ready_during_it(poller: Poller) -> None:
    poller.requeue(8)
    poller.requeue(9)
    poller.leave([(7, READ), (9, WRITE)])
    assert poller.take([]) == [(7, READ), (9, WRITE | GO_ON), (8, GO_ON)]


def test_a_socket_that_is_no_longer_watched_is_not_ready(poller: Poller, fd: int) -> None:
    poller.selector.register(fd, READ)
    poller.requeue(fd)
    poller.forget(fd)
    assert poller.ready == {}
    assert poller.selector.poll(0) == []


def test_wake_ups_are_handled_once_however_many_there_were(poller: Poller) -> None:
    poller.wake()
    poller.wake()
    ((fd, mask),) = poller.selector.poll(0)
    poller.ready = {fd: mask}
    assert poller.take([(fd, mask)]) == [], "a wake-up is not a socket"
    assert woken == [1]
    assert poller.selector.poll(0) == []


def test_descriptors_of_others_are_told_to_them_alone(poller: Poller, fd: int) -> None:
    told: list[int] = []
    poller.watch(fd, lambda: told.append(fd))
    assert [(ready, mask & READABLE) for ready, mask in poller.selector.poll(0)] == [(fd, READABLE)]
    assert poller.happened(fd)
    assert told == [fd]
    poller.unwatch(fd)
    assert not poller.happened(fd)


def test_a_descriptor_may_be_let_go_after_the_end(fd: int) -> None:
    poller = Poller(lambda: None)
    poller.watch(fd, lambda: None)
    poller.close()
    poller.unwatch(fd)
    assert not poller.happened(fd)
