"""Routes that are looked up by their routing key alone."""

from __future__ import annotations

from engine_harness import Harness, exchange_declare

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE

DEPTH = 8
EXCHANGES = 60


def test_a_route_that_takes_too_many_steps_is_refused_with_a_single_key() -> None:
    """One exchange takes long, and each of them passes the message on to the next."""
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    calls: list[object] = [exchange_declare(f"x{number}", "topic") for number in range(EXCHANGES)]
    for number in range(EXCHANGES - 1):
        calls.append(m.ExchangeBind(0, f"x{number + 1}", f"x{number}", "#", False, EMPTY_TABLE))
    for number in range(EXCHANGES):
        for shape in range(1 << DEPTH):
            words = ["a" if shape >> bit & 1 else "*" for bit in range(DEPTH)]
            calls.append(m.QueueBind(0, "q", f"x{number}", ".".join(["#", *words, "#"]), False, EMPTY_TABLE))
    client.send(1, *calls)
    client.take()
    key = "a." * 120
    client.publish(f"x{EXCHANGES - 1}", key)
    assert harness.queue("q").ready_count == 1
    client.publish("x0", key)
    assert client.refusal()[:2] == ("channel", 406)
    assert harness.queue("q").ready_count == 1
