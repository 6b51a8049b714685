"""A queue is bound after the remembered messages of an exchange: the view of its consumers during any other work."""

from __future__ import annotations

import json

import pytest
import trio
from engine_harness import Client, Harness, basic_consume, exchange_declare, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, encode_table
from warren.exchanges.history_bind import MESSAGE_STEPS
from warren.exchanges.recent_history_exchange import RecentHistoryExchange
from warren.queues.long_work import BYTES_PER_STEP
from warren.server.definitions.apply import apply_plan
from warren.server.definitions.plan import make_plan
from warren.server.definitions.schema import read_definitions

EMPTY = encode_table({})
# More than a turn brings.
MANY = 6000
BIND = method_frame(1, m.QueueBind(0, "q", "h", "", False, EMPTY))


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def publish(client: Client, first: int, end: int) -> None:
    """Publish without the turns that follow."""
    client.connection.feed(b"".join(publish_frames("h", "", body) for body in numbers(first, end)))


@pytest.fixture
def publisher(harness: Harness) -> Client:
    client = harness.channel()
    arguments: Table = {"x-recent-history-length": MANY}
    client.send(1, exchange_declare("h", "x-recent-history", auto_delete=True, arguments=arguments))
    publish(client, 0, MANY)
    harness.settle()
    client.take_bytes()
    return client


@pytest.fixture
def consumer(harness: Harness) -> Client:
    client = harness.channel()
    client.declare("q")
    return client


def history(harness: Harness) -> RecentHistoryExchange:
    exchange = harness.vhost.exchanges["h"]
    assert isinstance(exchange, RecentHistoryExchange)
    return exchange


def begin(harness: Harness, *clients: Client) -> None:
    """Make the clients bind, and check that this takes more than a turn."""
    for client in clients:
        client.connection.feed(BIND)
    assert 0 < harness.queue("q").ready_count < MANY
    assert list(harness.vhost.bindings()) == []


def received(harness: Harness) -> list[bytes]:
    client = harness.channel()
    client.consume("q", no_ack=True)
    harness.settle()
    return client.bodies()


def test_what_is_published_meanwhile_comes_behind(harness: Harness, publisher: Client, consumer: Client) -> None:
    begin(harness, consumer)
    publish(publisher, MANY, MANY + 100)
    assert not consumer.connection.outbox.waiting_bytes(), "the queue is said to be bound"
    harness.settle()
    consumer.expect(m.QueueBindOk)
    publisher.feed(publish_frames("h", "", b"last"))
    assert received(harness) == [*numbers(0, MANY + 100), b"last"]


def test_what_is_forgotten_meanwhile_comes_all_the_same(harness: Harness, publisher: Client, consumer: Client) -> None:
    begin(harness, consumer)
    publish(publisher, MANY, 3 * MANY)
    assert history(harness).history() == [*history(harness).history()][-MANY:]
    harness.settle()
    assert received(harness) == numbers(0, 3 * MANY)


def test_a_publisher_does_not_outrun_it(harness: Harness, publisher: Client, consumer: Client) -> None:
    begin(harness, consumer)
    end = MANY
    for _ in range(20):
        if list(harness.vhost.bindings()):
            break
        publish(publisher, end, end + 3000)  # more than a turn has steps for
        end += 3000
        harness.broker.end_turn()
    assert list(harness.vhost.bindings()), "the queue is never bound"
    assert received(harness) == numbers(0, end)


def test_a_publisher_pays_for_each_bind_that_waits(harness: Harness, publisher: Client, consumer: Client) -> None:
    def units() -> int:
        publish(publisher, 0, 1)
        return int(harness.broker.shared.feed_units - publisher.connection.units_left)

    alone = units()
    begin(harness, consumer)
    assert units() == alone + 1
    harness.settle()
    assert history(harness).pending == {}


def test_one_bind_brings_what_two_have_asked_for(harness: Harness, publisher: Client, consumer: Client) -> None:
    other = harness.channel()
    begin(harness, consumer, other)
    while not consumer.connection.outbox.waiting_bytes():
        assert not other.connection.outbox.waiting_bytes()
        harness.broker.end_turn()
    harness.settle()
    consumer.expect(m.QueueBindOk)
    other.expect(m.QueueBindOk)
    assert len(list(harness.vhost.bindings())) == 1
    assert received(harness) == numbers(0, MANY)


def test_the_bind_goes_with_the_exchange(harness: Harness, publisher: Client, consumer: Client) -> None:
    begin(harness, consumer)
    publisher.connection.feed(method_frame(1, m.ExchangeDelete(0, "h", if_unused=False, no_wait=False)))
    harness.settle()
    publisher.expect(m.ExchangeDeleteOk)
    consumer.expect(m.QueueBindOk)
    assert list(harness.vhost.bindings()) == []
    bodies = received(harness)
    assert bodies == numbers(0, len(bodies))
    assert 0 < len(bodies) < MANY


def test_the_bind_goes_with_the_queue(harness: Harness, publisher: Client, consumer: Client) -> None:
    begin(harness, consumer)
    publisher.connection.feed(method_frame(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False)))
    publisher.connection.feed(method_frame(1, m.QueueDeclare(0, "q", False, False, False, False, False, EMPTY)))
    harness.settle()
    consumer.expect(m.QueueBindOk)
    assert harness.queue("q").ready_count == 0
    assert list(harness.vhost.bindings()) == []
    assert "h" not in harness.vhost.exchanges, "an auto-delete exchange stays without a binding"


def test_an_unbind_finds_no_binding_yet(harness: Harness, publisher: Client, consumer: Client) -> None:
    begin(harness, consumer)
    publisher.connection.feed(method_frame(1, m.QueueUnbind(0, "q", "h", "", EMPTY)))
    assert publisher.connection.outbox.waiting_bytes()
    harness.settle()
    publisher.expect(m.QueueUnbindOk)
    consumer.expect(m.QueueBindOk)
    assert len(list(harness.vhost.bindings())) == 1


def test_the_exchange_is_in_use_meanwhile(harness: Harness, publisher: Client, consumer: Client) -> None:
    publisher.declare("p")
    harness.vhost.bind(harness.vhost.exchanges["h"], harness.queue("p"), "", EMPTY)
    consumer.connection.feed(BIND)
    publisher.connection.feed(method_frame(1, m.QueueUnbind(0, "p", "h", "", EMPTY)))
    assert "h" in harness.vhost.exchanges, "its last binding has gone, but another one comes"
    publisher.connection.feed(method_frame(1, m.ExchangeDelete(0, "h", if_unused=True, no_wait=False)))
    harness.settle()
    unbound, refused = publisher.take()
    assert isinstance(unbound.method, m.QueueUnbindOk)
    assert isinstance(refused.method, m.ChannelClose)
    assert refused.method.reply_code == 406
    consumer.expect(m.QueueBindOk)
    assert received(harness) == numbers(0, MANY)


def test_a_bind_that_was_asked_for_is_done_without_the_client(
    harness: Harness, publisher: Client, consumer: Client
) -> None:
    begin(harness, consumer)
    consumer.hang_up()
    harness.settle()
    assert len(list(harness.vhost.bindings())) == 1
    assert received(harness) == numbers(0, MANY)


def test_consumers_see_the_order_of_the_exchange(harness: Harness, publisher: Client, consumer: Client) -> None:
    consumer.connection.feed(method_frame(1, basic_consume("q", "c", no_ack=True)) + BIND)
    publish(publisher, MANY, MANY + 100)
    harness.settle()
    consumer.pick(m.BasicConsumeOk)
    consumer.pick(m.QueueBindOk)
    assert consumer.bodies() == numbers(0, MANY + 100)


def test_large_messages_count_as_many_steps(harness: Harness) -> None:
    client = harness.channel()
    client.send(1, exchange_declare("h", "x-recent-history"))
    client.take_bytes()
    client.feed(publish_frames("h", "", bytes(10 * BYTES_PER_STEP)) * 20)
    client.declare("q")
    harness.broker.work.turn_steps = 100
    harness.broker.end_turn()
    client.connection.feed(BIND)
    assert harness.queue("q").ready_count == 100 // (10 + MESSAGE_STEPS) + 1
    harness.settle()
    assert harness.queue("q").ready_count == 20


def test_what_a_deleted_exchange_remembers_goes_in_several_turns(harness: Harness, publisher: Client) -> None:
    exchange = history(harness)
    harness.broker.work.turn_steps = 100
    harness.broker.end_turn()
    publisher.connection.feed(method_frame(1, m.ExchangeDelete(0, "h", if_unused=False, no_wait=False)))
    assert 0 < exchange.count < MANY
    harness.settle()
    assert exchange.count == 0
    publisher.expect(m.ExchangeDeleteOk)


def test_the_exchanges_of_a_vhost_share_what_they_may_remember(harness: Harness, publisher: Client) -> None:
    held = harness.vhost.remembered_bytes.total
    assert held > 0
    publisher.send(1, exchange_declare("other", "x-recent-history", auto_delete=False))
    publisher.feed(publish_frames("other", "", b"one"))
    assert harness.vhost.remembered_bytes.total > held
    publisher.send(1, m.ExchangeDelete(0, "other", if_unused=False, no_wait=False))
    harness.settle()
    assert harness.vhost.remembered_bytes.total == held


def test_a_queue_whose_letters_are_remembered_has_all_of_it_some_time(harness: Harness, publisher: Client) -> None:
    """It drops its message for the next one. The dead letter enters the history after that, and is not delivered to
    it."""
    client = harness.channel()
    client.declare("small", arguments={"x-max-length": 1, "x-dead-letter-exchange": "h"})
    client.send(1, m.QueueBind(0, "small", "h", "", False, EMPTY))
    harness.settle()
    client.expect(m.QueueBindOk)
    assert harness.queue("small").ready_count == 1
    publisher.feed(publish_frames("h", "", b"last"))
    client.consume("small", no_ack=True)
    assert client.bodies() == [b"last"]


def test_a_letter_of_another_queue_is_brought(harness: Harness, publisher: Client, consumer: Client) -> None:
    client = harness.channel()
    client.declare("small", arguments={"x-max-length": 0, "x-dead-letter-exchange": "h"})
    client.publish("", "small", b"letter")
    harness.settle()
    consumer.send(1, m.QueueBind(0, "q", "h", "", False, EMPTY))
    harness.settle()
    consumer.expect(m.QueueBindOk)
    assert received(harness)[-1] == b"letter"


# --- while memory or the disk is short --------------------------------------------------------------------------------


def test_a_queue_is_bound_at_once_when_there_is_nothing_to_bring(harness: Harness, consumer: Client) -> None:
    consumer.declare_exchange("empty", "x-recent-history")
    harness.broker.set_alarm("disk", True)
    consumer.bind("q", "empty")
    assert len(list(harness.vhost.bindings())) == 1


@pytest.mark.parametrize("resource", ["memory", "disk"])
def test_acks_and_other_channels_do_not_wait_for_a_bind_in_an_alarm(
    harness: Harness, publisher: Client, consumer: Client, resource: str
) -> None:
    consumer.declare("jobs")
    publisher.feed(b"".join(publish_frames("", "jobs", body) for body in numbers(0, 3)))
    consumer.open(2)
    for number in (1, 2):
        consumer.send(number, m.BasicQos(0, 1, False))
        consumer.pick(m.BasicQosOk)
    consumer.consume("jobs", "one")
    consumer.deliveries()
    harness.broker.set_alarm(resource, True)
    consumer.send(1, m.QueueBind(0, "q", "h", "", False, EMPTY), m.BasicAck(1, False))
    assert consumer.bodies() == [b"1"], "the ack waits for the bind"
    consumer.send(1, m.BasicNack(2, False, False))
    assert consumer.bodies() == [b"2"]
    consumer.send(2, m.QueueDeclare(0, "q", True, False, False, False, False, EMPTY))
    assert consumer.expect(m.QueueDeclareOk).message_count == 0
    consumer.send(1, m.QueueUnbind(0, "q", "h", "", EMPTY))
    consumer.nothing()
    consumer.send(2, m.QueueDeclare(0, "q", True, False, False, False, False, EMPTY))
    consumer.nothing()
    harness.broker.set_alarm(resource, False)
    harness.settle()
    answers = [type(each.method) for each in consumer.take()]
    assert answers == [m.QueueBindOk, m.QueueUnbindOk, m.QueueDeclareOk]
    assert received(harness) == numbers(0, MANY)
    assert consumer.connection.paused == 0


def test_a_client_that_leaves_in_an_alarm_gives_its_messages_back_at_once(
    harness: Harness, publisher: Client, consumer: Client
) -> None:
    publisher.declare("jobs")
    publisher.publish("", "jobs", b"1")
    consumer.consume("jobs")
    harness.broker.set_alarm("disk", True)
    consumer.send(1, m.QueueBind(0, "q", "h", "", False, EMPTY))
    consumer.connection.lost()
    harness.settle()
    assert harness.queue("jobs").ready_count == 1
    harness.broker.set_alarm("disk", False)
    harness.settle()
    assert history(harness).pending == {}
    assert len(list(harness.vhost.bindings())) == 1


def test_an_import_whose_bind_waits_for_the_disk_keeps_nobody_else_waiting(
    harness: Harness, publisher: Client, consumer: Client
) -> None:
    broker = harness.broker
    broker.set_alarm("disk", True)
    bound = {"source": "h", "destination": "q"}
    data = json.dumps({"queues": [{"name": "made"}], "bindings": [bound]}).encode()

    async def pause() -> None:
        await trio.sleep(0.001)

    async def main() -> None:
        plan = await make_plan(broker, await read_definitions(data, "/", pause), pause)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(apply_plan, broker, plan, pause, harness.settle)
            with trio.fail_after(10):
                while "made" not in harness.vhost.queues:
                    await pause()
                for _ in range(5):
                    await pause()
            try:
                consumer.declare("durable", durable=True)
                assert list(harness.vhost.bindings()) == []
            finally:
                broker.set_alarm("disk", False)
                harness.settle()
            assert len(list(harness.vhost.bindings())) == 1
        assert plan.conflicts() == []

    trio.run(main)
    assert received(harness) == numbers(0, MANY)
