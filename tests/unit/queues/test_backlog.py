"""Messages that wait on disk, and leave while they are read."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.msgstore.log.message import Message
from warren.queues.fetch import Fetch

COUNT = 20


class Fetched(Fetch):
    """Keeps what came."""

    messages: list[Message | None]

    def fetched(self, messages: list[Message | None]) -> None:
        self.messages = messages
        self.fetch_rest()


@pytest.mark.parametrize("gone", [[3], [0, 1], [COUNT - 1], list(range(1, COUNT))], ids=str)
def test_what_leaves_while_it_is_read_is_not_handed_out(gone: list[int]) -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True)
    client.feed(b"".join(publish_frames("", "q", b"%d" % n, properties={"delivery_mode": 2}) for n in range(COUNT)))
    harness = harness.restart(clean=True)
    log = harness.broker.log
    client = harness.channel()
    ready = harness.queue("q").ready
    index = ready.index_of(0)
    assert index is not None and not ready.in_memory()
    fetch = Fetched(log, index, gone, 0)
    fetch.begin()
    harness.settle()

    client.connection.feed(method_frame(1, m.BasicGet(0, "q", True)))
    assert log.read_jobs, "nothing is being read"
    for number, message in zip(gone, fetch.messages, strict=True):
        assert message is not None and ready.take_out(number, message.body_bytes)
        ready.settle(message, number)
    harness.write()

    came = [body_of(each) for each in client.take()]
    while (got := client.get("q", no_ack=True)) is not None:
        came.append(body_of(got))
    assert came == [b"%d" % number for number in range(COUNT) if number not in gone]
    harness.check()


def test_a_place_that_is_passed_over_does_not_move_those_before_it() -> None:
    """A claim that dies gets a place for a moment, whatever waits in the queue (``Retries.dies``)."""
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True)
    bodies = [b"%d" % n for n in range(COUNT)]
    client.feed(b"".join(publish_frames("", "q", body, properties={"delivery_mode": 2}) for body in bodies))
    harness = harness.restart(clean=True)
    client = harness.channel()
    ready = harness.queue("q").ready
    backlog = ready.backlog(0)
    assert backlog.middle.count > 0, "nothing is on disk only"
    harness.hold_commits = True
    client.feed(publish_frames("", "q", b"tail", properties={"delivery_mode": 2}))
    place = int(backlog.next_number) - 1
    assert ready.maybe_waiting(place) is not None
    ready.pass_place(0)
    found = ready.maybe_waiting(place)
    assert found is not None and found.body() == b"tail"
    harness.hold_commits = False
    harness.settle()
    client.feed(publish_frames("", "q", b"last", properties={"delivery_mode": 2}))
    harness.write()

    harness = harness.restart(clean=False)
    client = harness.channel()
    came = []
    while (got := client.get("q")) is not None:
        came.append(body_of(got))
        client.send(1, m.BasicAck(got.method.delivery_tag, False))
    assert came == [*bodies, b"tail", b"last"]
    harness.check()
