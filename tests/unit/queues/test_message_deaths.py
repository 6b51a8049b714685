"""Messages whose dead letters wait: they are neither in the queue nor gone."""

from __future__ import annotations

from typing import Any

from durable_harness import DurableHarness
from engine_harness import Client, bodies, body_of

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.msgstore.log.message import Envelope, build_message
from warren.queues.dead_letter import REJECTED
from warren.queues.held_messages import DEAD_LETTERED
from warren.queues.lanes import PARKED
from warren.queues.queue import Queue

DEAD: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def declared(**arguments: object) -> tuple[DurableHarness, Client, Queue]:
    """Return a broker with hardly any memory, whose queue ``q`` has dead letters."""
    harness = DurableHarness(memory_bytes=1 << 12)
    client = harness.channel()
    client.declare("dead", durable=True)
    client.declare("q", durable=True, arguments=DEAD | arguments)
    return harness, client, harness.plain_queue("q")


def fill(client: Client, name: bytes, count: int, **properties: Any) -> list[bytes]:
    filled = [b"%s %d" % (name, number) for number in range(count)]
    for body in filled:
        client.publish("", "q", body, delivery_mode=2, **properties)
    return filled


def let_letters_wait(harness: DurableHarness, *, wait: bool) -> None:
    harness.broker.log.own.disk_is_short = wait
    harness.write()


def consumed(client: Client) -> list[bytes]:
    client.consume("q", "c", no_ack=True)
    return [body_of(each) for each in client.deliveries()]


def test_a_message_that_has_expired_on_disk_is_not_read_again_while_its_letter_waits() -> None:
    harness, client, queue = declared()
    young = fill(client, b"young", 100)
    old = fill(client, b"old", 100, expiration="1000")
    later = fill(client, b"later", 100)
    harness.write()
    assert queue.ready.paged_out_count() > 200
    let_letters_wait(harness, wait=True)
    harness.broker.log.now_ms += 2000
    harness.broker.keep_time(int(harness.broker.log.now_ms))
    harness.write()
    assert queue.ready_count == 200
    assert consumed(client) == young + later
    let_letters_wait(harness, wait=False)
    assert sorted(bodies(client, "dead")) == sorted(old)
    assert queue.ready_count == 0
    harness.check()


def test_a_message_that_dies_without_a_place_does_not_wait_in_the_queue() -> None:
    harness, client, queue = declared()
    before = fill(client, b"before", 100)
    harness.write()
    let_letters_wait(harness, wait=True)
    dying = build_message(Envelope("", "q"), b"\x10\x00\x02", b"dying", 4096, True)
    queue.need_keeper().deaths.add_placeless(dying, REJECTED)
    after = fill(client, b"after", 100)
    harness.write()
    assert queue.ready_count == 200
    assert consumed(client) == before + after
    let_letters_wait(harness, wait=False)
    assert bodies(client, "dead") == [b"dying"]
    harness.check()


def test_a_parked_message_is_not_lost_while_its_letter_waits() -> None:
    harness, client, queue = declared(**{"x-delivery-limit": 0, "x-delivery-limit-action": "park"})
    fill(client, b"m", 1)
    client.send(1, m.BasicGet(0, "q", False))
    (got,) = client.take()
    client.send(1, m.BasicReject(got.method.delivery_tag, True))
    harness.write()
    lane = queue.held(PARKED)
    assert lane is not None and lane.count == 1
    let_letters_wait(harness, wait=True)
    lane.take([0], DEAD_LETTERED)
    harness.write()
    assert lane.count == 0
    harness = harness.restart(clean=False)
    assert harness.waiting("q") + harness.waiting("dead") == [b"m 0"]
