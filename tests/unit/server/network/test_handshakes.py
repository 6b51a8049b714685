"""Which TLS handshake is continued next, and which have taken too long."""

from __future__ import annotations

from warren.server.network.handshakes import Handshakes


def taken(handshakes: Handshakes) -> list[int]:
    """Continue the handshakes that are due, and return their order."""
    found = []
    while handshakes.due_count:
        found.append(handshakes.take_next())
    return found


def test_many_from_one_address_delay_another_by_one_step_each() -> None:
    handshakes = Handshakes(5.0)
    for fd in range(1000):
        handshakes.begin(fd, "10.0.0.0/24", 0.0)
        handshakes.make_due(fd)
    for fd in (2000, 2001):
        handshakes.begin(fd, "10.0.1.0/24", 0.0)
        handshakes.make_due(fd)
    order = taken(handshakes)
    assert order[:5] == [0, 2000, 1, 2001, 2]
    assert order[4:] == list(range(2, 1000))


def test_one_is_due_once_however_often_that_is_said() -> None:
    handshakes = Handshakes(5.0)
    for fd in (1, 2):
        handshakes.begin(fd, "", 0.0)
        handshakes.make_due(fd)
        handshakes.make_due(fd)
    assert handshakes.due_count == 2
    assert taken(handshakes) == [1, 2]
    handshakes.make_due(1)
    assert taken(handshakes) == [1]


def test_what_has_ended_is_not_due_and_not_overdue() -> None:
    handshakes = Handshakes(5.0)
    for fd in (1, 2, 3):
        handshakes.begin(fd, str(fd % 2), 0.0)
        handshakes.make_due(fd)
    handshakes.end(2)
    handshakes.end(3)
    handshakes.end(3)
    assert handshakes.due_count == 1
    assert handshakes.overdue(10.0) == [1]
    assert taken(handshakes) == [1]
    # A descriptor of one that has ended is the next one's.
    handshakes.begin(3, "b", 6.0)
    assert handshakes.due_count == 0
    assert handshakes.overdue(10.0) == [1]


def test_time_is_up_for_each_by_itself() -> None:
    handshakes = Handshakes(5.0)
    handshakes.begin(1, "a", 0.0)
    handshakes.begin(2, "a", 1.0)
    assert handshakes.overdue(4.9) == []
    assert handshakes.overdue(5.0) == [1]
    assert handshakes.overdue(6.0) == [1, 2]
