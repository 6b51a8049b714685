"""Single cases of queues that do more than first in, first out: when the disk answers is the test's to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from simulation.crashes import Judge
from simulation.machine import Machine
from simulation.paper_queues import Messages
from simulation.sequences import SHAPE, SHORT_SHAPE, Sequence
from warren.queues.lanes import DELAYED

BODY_BYTES: Final = 9000  # of which a queue loads four when memory is short


def long_queue(name: str, expiration_ms: int = -1) -> Sequence:
    """Return a broker right after a start, with nine messages in a queue, and memory short.

    `expiration_ms`: of all but the four that are loaded first.
    """
    sequence = Sequence(Judge(Messages(), SHORT_SHAPE))
    machine = sequence.machine
    machine.declare(name)
    machine.declare("l")
    for n in range(9):
        machine.publish([name], BODY_BYTES, expiration_ms=-1 if n < 4 else expiration_ms)
    machine.confirm()
    assert machine.rest()
    sequence.kill_and_start()
    assert machine.rest()
    return sequence


def read_all(machine: Machine) -> None:
    while machine.read():
        machine.finish()


def test_what_is_behind_expired_messages_goes_out_although_these_were_being_loaded() -> None:
    sequence = long_queue("e", 1000)
    machine = sequence.machine
    machine.pass_time(1500)
    machine.keep_time()  # reads what has expired
    machine.consume("e", 0)
    machine.turn()  # takes the first four, and so has the rest loaded
    machine.publish(["e"], 10)
    read_all(machine)
    machine.turn()
    machine.check()
    assert not machine.paper.queues["e"].ready
    assert len(machine.paper.queues["l"].ready) == 5


def test_an_urgent_message_does_not_wait_until_others_have_been_read() -> None:
    sequence = long_queue("p")
    machine = sequence.machine
    machine.consume("p", 0)
    machine.turn()
    assert machine.reader and not machine.paper.queues["p"].unacked
    machine.publish(["p"], 10, priority=2)
    machine.turn()
    machine.check()
    assert len(machine.paper.queues["p"].unacked) == 1


@pytest.mark.parametrize("publish", [Sequence.held, Sequence.priorities], ids=["held", "priorities"])
def test_lanes_of_a_queue_whose_declaration_was_lost_are_not_the_next_ones(publish: Callable[[Sequence], None]) -> None:
    sequence = Sequence(Judge(Messages(), SHAPE))
    machine = sequence.machine
    machine.catalogue_is_slow = True
    publish(sequence)
    sequence.kill_and_start()
    orphans = set(machine.paper.orphans)
    assert orphans, "nothing of the first queue is left"
    machine.catalogue_is_slow = False
    publish(sequence)
    sequence.kill_and_start()
    assert set(machine.paper.orphans) == orphans
    machine.pass_time(10_000)
    assert machine.rest_in_time()
    machine.check()
    sequence.get_from_all()


def test_held_messages_that_are_due_come_although_memory_is_short_and_more_are_held_meanwhile() -> None:
    sequence = Sequence(Judge(Messages(), SHORT_SHAPE))
    machine = sequence.machine
    machine.declare("r")
    for _ in range(8):  # two pages of the index
        machine.hold("r", 1000)
    assert machine.rest()
    sequence.kill_and_start()
    for _ in range(3):  # the pages are written, and given up
        machine.hold("r", 5000)
        assert machine.rest()
    machine.pass_time(1000)
    machine.keep_time()
    machine.turn()
    assert machine.read() and machine.finish()  # the pages are here
    machine.hold("r", 5000)
    machine.turn(lingered=True)
    machine.commit()
    machine.turn()
    read_all(machine)
    machine.check()
    assert len(machine.paper.queues["r"].ready) == 8


def test_what_was_held_over_a_crash_says_that_it_may_have_been_delivered_also_when_it_comes_from_disk() -> None:
    sequence = Sequence(Judge(Messages(), SHORT_SHAPE))
    machine = sequence.machine
    machine.declare("r")
    for _ in range(5):
        machine.hold("r", 1000, confirm=True)
    assert machine.rest()
    sequence.kill_and_start()
    assert len(machine.paper.queues["r"].held[DELAYED]) == 5
    machine.pass_time(1000)
    assert machine.rest_in_time()
    # They may have been released before the crash. That is stored, and so survives a clean stop.
    sequence.stop_and_start()
    while machine.paper.queues["r"].ready:
        assert all(entry.delivered for entry in machine.paper.queues["r"].ready)
        if not machine.get("r"):
            assert machine.rest()
    assert len(machine.paper.queues["r"].unacked) == 5
