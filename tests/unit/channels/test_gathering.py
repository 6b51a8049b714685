"""How long a batch takes more before it is committed: gathering.py (1) to (4), in the turns of a broker."""

from __future__ import annotations

import pytest
from engine_harness import Harness, publish_frames

from warren.amqp import methods as m
from warren.msgstore.log.gathering import BYTES_MAX, ROWS_MAX, ROWS_MIN

COMMIT_S = 0.004
MOST_S = 0.001


class Load:
    """A publisher of persistent messages with confirms, turn by turn, and a disk that is done when it is told to."""

    def __init__(self, most_s: float = MOST_S, *, confirms: bool = True) -> None:
        harness = Harness()
        self.client = harness.channel()
        self.client.declare("q", durable=True)
        if confirms:
            self.client.call(1, m.ConfirmSelect(False))
        self._harness = harness
        self.broker = harness.broker
        self.broker.gathering.most_s = most_s

    def turn(self, messages: int, *, after_s: float = 0.0001, body: bytes = b"x") -> bool:
        """Publish so many messages in a turn; tell whether a commit is under way at its end."""
        self.broker.now_s += after_s
        self.client.connection.feed(publish_frames("", "q", body, properties={"delivery_mode": 2}) * messages)
        self.broker.end_turn()
        return self.broker.log.in_flight is not None

    def commit(self, after_s: float = COMMIT_S) -> None:
        """The disk has carried out the commit."""
        self.broker.now_s += after_s
        assert self._harness.store.run()

    def confirmed(self) -> int:
        """Run the broker until it rests; return the number of the last publish that was confirmed."""
        self._harness.settle()
        return int(self.client.take()[-1].method.delivery_tag)


@pytest.fixture
def load() -> Load:
    """Return a publisher; a commit has just ended during which nothing came."""
    made = Load()
    assert made.turn(1)
    made.commit()
    return made


def test_a_few_messages_are_committed_in_their_turn(load: Load) -> None:
    assert load.turn(ROWS_MIN - 1)


def test_the_first_messages_are_committed_in_their_turn() -> None:
    assert Load().turn(2 * ROWS_MIN)


def test_a_batch_takes_more_until_a_turn_brings_nothing(load: Load) -> None:
    assert not load.turn(ROWS_MIN)
    assert load.broker.has_work(), "a turn without input closes it"
    assert not load.turn(1)
    assert load.turn(0)
    assert not load.broker.has_work()
    load.commit()
    assert load.confirmed() == 1 + ROWS_MIN + 1


def test_a_batch_that_gathered_during_a_commit_takes_more(load: Load) -> None:
    assert load.turn(1)
    assert load.turn(ROWS_MIN)
    load.commit()
    assert not load.turn(1)
    assert load.turn(0)


def test_a_batch_takes_more_for_a_time_only(load: Load) -> None:
    assert not load.turn(ROWS_MIN)
    assert not load.turn(1, after_s=MOST_S / 2)
    assert load.turn(1, after_s=MOST_S / 2)


def test_a_batch_does_not_wait_as_long_as_a_fast_commit_takes(load: Load) -> None:
    assert load.turn(1)
    load.commit(after_s=MOST_S / 2)
    assert not load.turn(ROWS_MIN)
    assert load.turn(1, after_s=MOST_S / 4)


def test_a_batch_of_many_messages_takes_no_more(load: Load) -> None:
    assert not load.turn(ROWS_MAX - 1)
    assert load.turn(1)


def test_a_batch_of_many_bytes_takes_no_more(load: Load) -> None:
    assert load.turn(ROWS_MIN, body=bytes(BYTES_MAX // ROWS_MIN))


def test_a_batch_that_the_shell_closes_meanwhile_keeps_no_turn_busy(load: Load) -> None:
    assert not load.turn(ROWS_MIN)
    load.broker.log.close_if_due(lingered=True)
    load.broker.end_turn()
    assert load.broker.log.in_flight is not None
    assert not load.broker.has_work()


def test_without_a_time_no_batch_takes_more() -> None:
    load = Load(most_s=0.0)
    assert load.turn(1)
    load.commit()
    assert load.turn(ROWS_MIN)


def test_a_batch_that_nothing_waits_for_keeps_no_turn_busy() -> None:
    load = Load(confirms=False)
    load.broker.log.force()
    assert load.turn(1)
    load.commit()
    assert not load.turn(ROWS_MIN)
    assert not load.broker.has_work()
