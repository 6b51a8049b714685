"""What clients may hold unanswered while memory is short. In parentheses: ``owed_memory.py``."""

from __future__ import annotations

import random

import pytest
from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.queues.owed_memory import ALWAYS, DELIVERY_BYTES, GRANT

BODY = bytes(100)


def filled(count: int, alarm_bytes: int, **limits: float) -> Harness:
    harness = Harness(**limits)
    harness.broker.shared.owed.alarm_bytes = alarm_bytes
    client = harness.channel()
    client.declare("q")
    client.feed(publish_frames("", "q", BODY) * count)
    return harness


def message_bytes(harness: Harness) -> int:
    """Return the memory of a delivery of one of the messages, which are equal."""
    queue = harness.queue("q")
    return int(queue.ready.backlog(0).memory_bytes()) // int(queue.ready_count) + DELIVERY_BYTES


def owed(client: Client) -> int:
    return int(client.connection.channels[1].ledger.unacked_count)


def taken(client: Client) -> list[int]:
    return [each.method.delivery_tag for each in client.take() if isinstance(each.method, m.BasicDeliver)]


def test_consumers_that_do_not_answer_get_a_bounded_number() -> None:
    """3.7 million unacked messages over 11 channels took 1.1 GB while memory was short. (1, 2)"""
    harness = filled(1500, 150_000)
    room = 150_000 // message_bytes(harness)
    clients = [harness.channel() for _ in range(11)]
    harness.broker.set_alarm("memory", True)
    for client in clients:
        client.consume("q")
    harness.check()
    each = [owed(client) for client in clients]
    assert sum(each) <= room + len(clients) * (ALWAYS + GRANT)
    assert min(each) >= ALWAYS
    assert room // 2 - GRANT <= each[0] <= room // 2 + ALWAYS + GRANT, "as much as is left for others"
    harness.broker.set_alarm("memory", False)
    harness.settle()
    harness.check()
    assert harness.queue("q").ready_count == 0, "the alarm is over"


def test_a_consumer_that_answers_drains_the_queue_however_little_room_there_is() -> None:
    """(1, 3)"""
    harness = filled(500, 0)
    hog, client = harness.channel(), harness.channel()
    harness.broker.set_alarm("memory", True)
    hog.consume("q")
    client.consume("q")
    assert (owed(hog), owed(client)) == (ALWAYS, ALWAYS)
    answered = 0
    while tags := taken(client):
        client.send(1, m.BasicAck(tags[-1], True))
        answered += len(tags)
        harness.check()
    assert answered == 500 - ALWAYS


def test_what_was_out_when_memory_became_short_may_be_out_again() -> None:
    """(1)"""
    harness = filled(500, 0)
    client = harness.channel()
    client.send(1, m.BasicQos(0, 100, False))
    client.consume("q")
    harness.broker.set_alarm("memory", True)
    answered = 0
    while tags := taken(client):
        assert owed(client) == min(100, 500 - answered)
        client.send(1, m.BasicAck(tags[-1], True))
        answered += len(tags)
    assert answered == 500


def test_the_room_of_a_channel_that_ends_is_for_those_that_wait() -> None:
    """(3)"""
    harness = filled(1500, 150_000)
    hog, client = harness.channel(), harness.channel()
    harness.broker.set_alarm("memory", True)
    hog.consume("q")
    client.consume("q")
    harness.check()
    before = owed(client)
    assert before < owed(hog)
    hog.send(1, m.ChannelClose(200, "", 0, 0))
    harness.check()
    assert owed(client) > before
    later = harness.channel()
    later.consume("q")
    assert owed(later) > ALWAYS
    client.hang_up()
    later.hang_up()
    harness.broker.set_alarm("memory", False)
    assert harness.queue("q").ready_count == 1500


def test_a_client_that_answers_whole_batches_only_gets_them_in_the_end() -> None:
    """It would wait for ever otherwise, and the alarm for its answers. (3)"""
    harness = filled(1000, 0)
    harness.broker.shared.owed.tick_bytes = 20 * message_bytes(harness)
    client = harness.channel()
    harness.broker.set_alarm("memory", True)
    client.send(1, m.BasicQos(0, 500, False))
    client.consume("q")
    harness.check()
    assert owed(client) == ALWAYS
    for _ in range(2):
        before = owed(client)
        while owed(client) < 500:
            harness.pass_time(0.5)
            harness.check()
            assert before < owed(client) <= before + 20 + GRANT, "a bounded number for each tick"
            before = owed(client)
        client.send(1, m.BasicAck(0, True))
    harness.check()
    assert harness.queue("q").message_count == 0


def test_ticks_serve_the_waiting_channels_in_turn() -> None:
    """(3)"""
    harness = filled(1500, 0)
    harness.broker.shared.owed.tick_bytes = 1
    clients = [harness.channel() for _ in range(5)]
    harness.broker.set_alarm("memory", True)
    for client in clients:
        client.consume("q")
    for _ in range(10):
        harness.pass_time(0.5)
    harness.check()
    assert [owed(client) for client in clients] == [ALWAYS + 2 * GRANT] * 5


def test_connections_that_come_and_go_in_an_alarm_leave_nothing() -> None:
    harness = filled(300, 150_000)
    harness.broker.set_alarm("memory", True)
    for _ in range(3):
        client = harness.channel()
        client.consume("q")
        assert owed(client) > ALWAYS
        client.hang_up()
        harness.check()
    assert not harness.broker.shared.owed._used


def test_a_limit_of_a_channel_also_holds_while_memory_is_short() -> None:
    harness = filled(100, 1 << 30, unacked_per_channel_max=20)
    client = harness.channel()
    harness.broker.set_alarm("memory", True)
    client.consume("q")
    assert owed(client) == 20


def test_acknowledgements_that_wait_for_their_commit_are_owed() -> None:
    """A client that acknowledges in a transaction and never commits would take everything."""
    harness = filled(100, 0, unacked_per_channel_max=20)
    client = harness.channel()
    client.call(1, m.TxSelect())
    client.consume("q")
    for _ in range(3):
        for tag in taken(client):
            client.send(1, m.BasicAck(tag, False))
        harness.check()
    assert harness.queue("q").ready_count == 80
    client.send(1, m.TxCommit())
    assert len(taken(client)) == 20


def test_messages_that_are_got_are_owed_as_well() -> None:
    harness = filled(100, 0, unacked_per_channel_max=20)
    client = harness.channel()
    for count in (20, 4):
        for _ in range(count):
            assert client.get("q") is not None
        if count == 20:
            client.send(1, m.BasicAck(4, True))
    assert client.get("q", no_ack=True) is not None
    client.declare("empty")
    assert client.get("empty") is None
    refusal = client.refused(1, m.BasicGet(0, "q", False))
    text = "20 messages of the channel wait for their acknowledgement (maximum 20 at present)"
    assert (refusal.code, refusal.text) == (406, f"PRECONDITION_FAILED - {text}")
    harness.broker.set_alarm("memory", True)
    for _ in range(ALWAYS):
        assert client.get("q") is not None
    assert client.refused(1, m.BasicGet(0, "q", False)).code == 406


def test_alarms_come_and_go_and_nobody_waits_in_vain() -> None:
    """A model of it: each channel owes no more than it did, its part, and what it has answered since."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(6):
        room = chance.choice([0, 20_000, 150_000])
        harness = filled(600, room)
        most = room // message_bytes(harness)
        clients: list[Client] = []
        out: dict[Client, list[int]] = {}
        bounds: dict[Client, int] = {}
        is_short = False
        for _ in range(60):
            for client in clients:
                out[client] += taken(client)
                if is_short:
                    assert owed(client) <= bounds[client] + most + GRANT
            if is_short:
                assert sum(map(owed, clients)) <= sum(bounds.values()) + most + GRANT * len(clients)
                if harness.queue("q").ready_count:
                    assert all(owed(client) >= min(ALWAYS, 20) for client in clients)
            harness.check()
            match chance.randrange(5):
                case 0 if len(clients) < 6:
                    clients.append(client := harness.channel())
                    out[client], bounds[client] = [], ALWAYS
                    client.send(1, m.BasicQos(0, chance.choice([0, 20, 200]), False))
                    client.consume("q")
                case 1:
                    is_short = not is_short
                    if is_short:
                        bounds = {client: max(ALWAYS, owed(client)) for client in clients}
                    harness.broker.set_alarm("memory", is_short)
                    harness.settle()
                case 2 if clients:
                    client = clients.pop(chance.randrange(len(clients)))
                    client.hang_up()
                    del out[client], bounds[client]
                case _ if clients:
                    client = chance.choice(clients)
                    tags = sorted(chance.sample(out[client], chance.randint(0, len(out[client]))))
                    out[client] = [tag for tag in out[client] if tag not in tags]
                    for tag in tags:
                        client.send(1, chance.choice([m.BasicAck(tag, False), m.BasicNack(tag, False, True)]))
        while is_short and clients and harness.queue("q").message_count:
            for client in clients:
                for tag in out[client] + taken(client):
                    client.send(1, m.BasicAck(tag, False))
                out[client] = []


@pytest.mark.parametrize("ends", [False, True])
def test_a_consumer_waits_on_although_another_one_has_used_up_the_room(ends: bool) -> None:
    """Its channel waits again for a tick, or the end of the alarm, although nobody asks for it then. (3)"""
    harness = filled(100, 0)
    client = harness.channel()
    client.declare("few")
    client.feed(publish_frames("", "few", BODY) * (GRANT // 2))
    harness.broker.set_alarm("memory", True)
    client.consume("q")
    client.consume("few")
    assert owed(client) == ALWAYS
    harness.pass_time(0.5)  # not `check`, which would ask for room
    assert (owed(client), harness.queue("few").ready_count) == (ALWAYS + GRANT, 0)
    if ends:
        harness.broker.set_alarm("memory", False)
        harness.settle()
    else:
        harness.pass_time(0.5)
    harness.check()
    assert owed(client) >= ALWAYS + 2 * GRANT


def test_a_larger_prefetch_of_a_channel_holds_at_once_after_an_alarm() -> None:
    harness = filled(300, 0)
    client = harness.channel()
    client.send(1, m.BasicQos(0, 50, True))
    client.consume("q")
    client.consume("q", "other")
    assert owed(client) == 50
    harness.broker.set_alarm("memory", True)
    harness.broker.set_alarm("memory", False)
    client.send(1, m.BasicQos(0, 100, True))
    assert owed(client) == 100


def test_a_consumer_that_waits_for_messages_is_ready_after_an_alarm() -> None:
    """Its channel is asked only when there is a message: `is_ready` is what the API shows."""
    harness = filled(50, 0)
    client = harness.channel()
    client.consume("q")
    harness.broker.set_alarm("memory", True)
    (consumer,) = harness.queue("q").consumers
    assert not consumer.is_ready()
    harness.broker.set_alarm("memory", False)
    assert consumer.is_ready()
