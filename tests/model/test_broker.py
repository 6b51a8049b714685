"""Random commands of several clients: the broker against `small_broker`, compared after each.

Two clients with three channels each (plain, confirming, transactional) share five queues. A command is four numbers;
they are read modulo what there is, so that any list of commands means something and a failing one can be cut down.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from engine_harness import Client, Harness, Received, basic_consume, body_of, publish_frames, queue_declare
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, Table

from .small_broker import Channel, Consumer, Queue, SmallBroker

CLIENTS = 2
PLAIN, CONFIRMING, TRANSACTIONAL = 1, 2, 3
QUEUES = ("plain", "other", "auto", "single", "private")
Command = tuple[str, int, int, int]


@dataclass
class Expected:
    """The expected effects of a command, besides deliveries."""

    replies: list[Any] = field(default_factory=list)  # on the channel of the command
    refusal: int = 0
    cancelled: list[Consumer] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    confirms: int = 0
    in_one_go: bool = False  # a commit or a burst: several changes, one of which may hand out before the next


class Comparison:
    """Both brokers, fed with the same commands."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.small = SmallBroker()
        self._burst: list[tuple[bytes, Expected]] | None = None
        self.clients: list[Client] = []
        self.channels: dict[tuple[int, int], Channel] = {}
        self.confirmed: dict[int, int] = {}
        self.bodies = 0  # bodies are numbers, never used twice
        self.origins: dict[int, tuple[str, str]] = {}  # exchange and routing key of each
        for number in range(CLIENTS):
            self.clients.append(self.harness.client())
            self._open_all(number)

    # --- channels and connections -------------------------------------------------------------------------------------

    def _open_all(self, client: int) -> None:
        for number in (PLAIN, CONFIRMING, TRANSACTIONAL):
            self._open(client, number)

    def _open(self, client: int, number: int) -> None:
        self.clients[client].send(number, m.ChannelOpen(""))
        self.clients[client].pick(m.ChannelOpenOk)
        if number == CONFIRMING:
            self.clients[client].send(number, m.ConfirmSelect(True))
            self.confirmed[client] = 0
        elif number == TRANSACTIONAL:
            self.clients[client].send(number, m.TxSelect())
            self.clients[client].pick(m.TxSelectOk)
        self.channels[client, number] = Channel(client, number == TRANSACTIONAL)

    def run(self, commands: list[Command]) -> None:
        for command in commands:
            name, a, b, c = command
            getattr(self, name)(a, b, c)
            self.harness.check()

    # --- one step -----------------------------------------------------------------------------------------------------

    def _step(self, client: int, number: int, data: bytes, expected: Expected) -> None:
        """Feed `data`, whose meaning the small broker knows already, and compare what everybody got."""
        if self._burst is not None:
            assert not expected.replies and not expected.refusal
            self._burst.append((data, expected))
            return
        confirmed = self.confirmed[client] + expected.confirms
        self.clients[client].feed(data)
        deliveries: list[tuple[Channel, Received]] = []
        replies: list[Any] = []
        cancelled: list[tuple[Channel, str]] = []
        returned: list[int] = []
        for other, peer in enumerate(self.clients):
            for each in peer.take():
                channel = self.channels[other, each.channel]
                if isinstance(each.method, m.BasicDeliver):
                    deliveries.append((channel, each))
                elif isinstance(each.method, m.BasicCancel):
                    cancelled.append((channel, each.method.consumer_tag))
                elif isinstance(each.method, m.BasicReturn):
                    returned.append(int(body_of(each)))
                elif isinstance(each.method, m.BasicAck):
                    assert (other, each.channel) == (client, CONFIRMING)
                    assert each.method.delivery_tag > self.confirmed[client]
                    self.confirmed[client] = each.method.delivery_tag
                else:
                    assert (other, each.channel) == (client, number), f"a reply for somebody else: {each}"
                    replies.append(each.method)
        if expected.refusal:
            close = replies.pop()
            assert isinstance(close, m.ChannelClose) and close.reply_code == expected.refusal, close
        assert replies == expected.replies
        assert sorted(cancelled, key=_tag_of) == sorted(
            ((each.channel, each.tag) for each in expected.cancelled), key=_tag_of
        )
        assert returned == expected.returned
        assert self.confirmed[client] == confirmed
        self._check_deliveries(deliveries, expected.in_one_go)
        if expected.refusal:
            self.clients[client].send(number, m.ChannelCloseOk())
            self._open(client, number)

    def _check_deliveries(self, deliveries: list[tuple[Channel, Received]], in_one_go: bool) -> None:
        by_queue: dict[Queue, list[tuple[Consumer, bool, int]]] = {}
        for channel, each in deliveries:
            consumer = channel.consumers[each.method.consumer_tag]
            queue = consumer.queue
            body = int(body_of(each))
            (entry,) = [entry for entry in queue.ready if entry.body == body]
            queue.ready.remove(entry)
            assert each.method.redelivered == entry.redelivered
            assert (each.method.exchange, each.method.routing_key) == self.origins[body]
            assert each.method.delivery_tag == channel.delivered(queue, entry, consumer, consumer.no_ack)
            by_queue.setdefault(queue, []).append((consumer, entry.redelivered, entry.place))
        for queue, given_out in by_queue.items():
            # Publishes may go out before messages that return later in the same go are there again.
            for again in (False, True) if in_one_go else (None,):
                places = [place for _, redelivered, place in given_out if again in (None, redelivered)]
                left = [entry.place for entry in queue.ready if again in (None, entry.redelivered)]
                assert not places or not left or max(places) < min(left), "a message was passed over"
                for consumer in {consumer for consumer, _, _ in given_out}:
                    seen = [p for one, r, p in given_out if one is consumer and again in (None, r)]
                    assert seen == sorted(seen), "messages out of order"
            for consumer in {consumer for consumer, _, _ in given_out}:
                assert not consumer.has_too_many(), "more than its prefetch"
            if not in_one_go:
                lowest = min(consumer.priority for consumer, _, _ in given_out)
                for consumer in queue.consumers:
                    assert consumer.priority <= lowest or not consumer.may_have_more(), "not its turn"
        for queue in self.small.queues.values():
            for consumer in queue.consumers:
                assert not (queue.ready and consumer.may_have_more()), "a message waits although it could go"

    def _pick(self, a: int) -> tuple[int, int, Channel]:
        client, number = a % CLIENTS, 1 + a // CLIENTS % 3
        return client, number, self.channels[client, number]

    def _on_channel(self, a: int, call: Any, expected: Expected) -> None:
        client, number, channel = self._pick(a)
        if expected.refusal:
            self.small.close(channel)
        self._step(client, number, method_frame(number, call), expected)

    def _name(self, client: int, b: int, c: int) -> str:
        """Choose a queue, mostly an existing one: refusals close channels, and end what was in progress."""
        name = QUEUES[b % len(QUEUES)]
        return QUEUES[b % 2] if c % 8 and isinstance(self._usable(client, name), int) else name

    def _usable(self, client: int, name: str) -> Queue | int:
        """Return the queue, or the code of the refusal."""
        queue = self.small.queues.get(name)
        if queue is None:
            return 404
        return 405 if queue.owner not in (None, client) else queue

    # --- commands: three numbers each ---------------------------------------------------------------------------------

    def declare(self, a: int, b: int, c: int) -> None:
        client, _, _ = self._pick(a)
        name = QUEUES[b % len(QUEUES)]
        queue = self._usable(client, name)
        if queue == 404:
            owner = client if name == "private" else None
            queue = self.small.queues[name] = Queue(name, name == "auto", name == "single", owner)
        arguments: Table | None = {"x-single-active-consumer": True} if name == "single" else None
        call = queue_declare(
            name, exclusive=name == "private", auto_delete=name == "auto", durable=name == "other", arguments=arguments
        )
        if isinstance(queue, int):
            self._on_channel(a, call, Expected(refusal=queue))
            return
        counts = m.QueueDeclareOk(name, len(queue.ready), len(queue.consumers))
        self._on_channel(a, call, Expected([counts]))

    def delete(self, a: int, b: int, c: int) -> None:
        client, _, _ = self._pick(a)
        name = QUEUES[b % len(QUEUES)]
        call = m.QueueDelete(0, name, c % 3 == 0, c % 5 == 0, False)
        queue = self._usable(client, name)
        if queue == 404:
            self._on_channel(a, call, Expected([m.QueueDeleteOk(0)]))
        elif isinstance(queue, int):
            self._on_channel(a, call, Expected(refusal=queue))
        elif (call.if_unused and queue.consumers) or (call.if_empty and queue.ready):
            self._on_channel(a, call, Expected(refusal=406))
        else:
            count = len(queue.ready)
            self._on_channel(a, call, Expected([m.QueueDeleteOk(count)], cancelled=self.small.delete(queue)))

    def purge(self, a: int, b: int, c: int) -> None:
        client, _, _ = self._pick(a)
        name = self._name(client, b, c)
        call = m.QueuePurge(0, name, False)
        queue = self._usable(client, name)
        if isinstance(queue, int):
            self._on_channel(a, call, Expected(refusal=queue))
            return
        count = len(queue.ready)
        queue.ready = []
        self._on_channel(a, call, Expected([m.QueuePurgeOk(count)]))

    def bind(self, a: int, b: int, c: int) -> None:
        client, _, _ = self._pick(a)
        name = self._name(client, b, c)
        queue = self._usable(client, name)
        if c % 3:
            call: Any = m.QueueBind(0, name, "amq.fanout", "", False, EMPTY_TABLE)
            if isinstance(queue, int):
                self._on_channel(a, call, Expected(refusal=queue))
                return
            self.small.bound.add(name)
            self._on_channel(a, call, Expected([m.QueueBindOk()]))
            return
        call = m.QueueUnbind(0, name, "amq.fanout", "", EMPTY_TABLE)
        if queue == 405:
            self._on_channel(a, call, Expected(refusal=405))
            return
        self.small.bound.discard(name)
        self._on_channel(a, call, Expected([m.QueueUnbindOk()]))

    def publish(self, a: int, b: int, c: int) -> None:
        client, number, channel = self._pick(a)
        to_all = b % 4 == 0
        name = QUEUES[b // 4 % len(QUEUES)]
        mandatory = c % 2 == 0
        names = sorted(self.small.bound) if to_all else [name]
        queues = [self.small.queues[each] for each in names if each in self.small.queues]
        expected = Expected()
        data = b""
        for _ in range(1 + c // 2 % 5):
            self.bodies += 1
            exchange, key = ("amq.fanout", "") if to_all else ("", name)
            self.origins[self.bodies] = (exchange, key)
            data += publish_frames(exchange, key, b"%d" % self.bodies, number, mandatory)
            expected.confirms += number == CONFIRMING
            if channel.transactional:
                channel.published.append((queues, self.bodies, mandatory))
            else:
                for queue in queues:
                    queue.append(self.bodies)
                if mandatory and not queues:
                    expected.returned.append(self.bodies)
        self._step(client, number, data, expected)

    def consume(self, a: int, b: int, c: int) -> None:
        client, _, channel = self._pick(a)
        name = self._name(client, b, c)
        queue = self._usable(client, name)
        priority = c // 12 % 3 - 1
        self.bodies += 1
        tag = f"t{self.bodies}"
        call = basic_consume(name, tag, c % 3 == 0, c // 3 % 4 == 0, {"x-priority": priority})
        if not isinstance(queue, int):
            taken = len(queue.consumers) > 0 and (call.exclusive or queue.consumers[0].exclusive)
            if taken or (call.exclusive and queue.single_active):
                queue = 403
        if isinstance(queue, int):
            self._on_channel(a, call, Expected(refusal=queue))
            return
        consumer = Consumer(channel, queue, tag, call.no_ack, call.exclusive, priority, channel.prefetch)
        queue.add(consumer)
        channel.consumers[tag] = consumer
        self._on_channel(a, call, Expected([m.BasicConsumeOk(tag)]))

    def cancel(self, a: int, b: int, c: int) -> None:
        _, _, channel = self._pick(a)
        tags = sorted(channel.consumers) or ["nobody"]
        tag = tags[b % len(tags)]
        if tag in channel.consumers:
            self.small.cancel(channel.consumers[tag])
        self._on_channel(a, m.BasicCancel(tag, False), Expected([m.BasicCancelOk(tag)]))

    def get(self, a: int, b: int, c: int) -> None:
        client, _, channel = self._pick(a)
        name = self._name(client, b, c)
        call = m.BasicGet(0, name, c % 2 == 0)
        queue = self._usable(client, name)
        if isinstance(queue, int):
            self._on_channel(a, call, Expected(refusal=queue))
        elif not queue.ready:
            self._on_channel(a, call, Expected([m.BasicGetEmpty("")]))
        else:
            entry = queue.ready.pop(0)
            tag = channel.delivered(queue, entry, None, call.no_ack)
            got = m.BasicGetOk(tag, entry.redelivered, *self.origins[entry.body], len(queue.ready))
            self._on_channel(a, call, Expected([got]))

    def _some_tag(self, channel: Channel, b: int) -> int | None:
        """Choose a tag, mostly an outstanding one; None: nothing is outstanding, and no refusal is wanted now."""
        tags = sorted(channel.unacked)
        if b % 32 == 0:
            return 0 if b % 64 else channel.tags + b % 3
        return tags[b % len(tags)] if tags else None

    def ack(self, a: int, b: int, c: int) -> None:
        _, _, channel = self._pick(a)
        tag = self._some_tag(channel, b)
        if tag is None:
            return
        call = m.BasicAck(tag, c % 3 == 0)
        taken = channel.take(call.delivery_tag, call.multiple)
        if taken is None:
            self._on_channel(a, call, Expected(refusal=406))
            return
        if channel.transactional:
            channel.acked |= taken
        self._on_channel(a, call, Expected())

    def nack(self, a: int, b: int, c: int) -> None:
        _, _, channel = self._pick(a)
        tag = self._some_tag(channel, b)
        if tag is None:
            return
        requeue = c // 3 % 4 > 0
        call: Any = m.BasicReject(tag, requeue) if c % 3 == 0 else m.BasicNack(tag, c % 3 == 1, requeue)
        taken = channel.take(tag, c % 3 == 1)
        if taken is None:
            self._on_channel(a, call, Expected(refusal=406))
            return
        if channel.transactional:
            channel.rejected |= {tag: (delivery, requeue) for tag, delivery in taken.items()}
        elif requeue:
            for delivery in taken.values():
                delivery.put_back()
        self._on_channel(a, call, Expected())

    def recover(self, a: int, b: int, c: int) -> None:
        _, _, channel = self._pick(a)
        for delivery in channel.unacked.values():
            delivery.put_back()
        channel.unacked = {}
        self._on_channel(a, m.BasicRecover(True), Expected([m.BasicRecoverOk()]))

    def qos(self, a: int, b: int, c: int) -> None:
        _, _, channel = self._pick(a)
        count = b % 4
        if c % 3 == 0:
            channel.shared_prefetch = count
        else:
            channel.prefetch = count
        self._on_channel(a, m.BasicQos(0, count, c % 3 == 0), Expected([m.BasicQosOk()]))

    def end_transaction(self, a: int, b: int, c: int) -> None:
        client = a % CLIENTS
        channel = self.channels[client, TRANSACTIONAL]
        place = client + CLIENTS * (TRANSACTIONAL - 1)
        if b % 4 == 0:
            channel.rollback()
            self._on_channel(place, m.TxRollback(), Expected([m.TxRollbackOk()]))
            return
        expected = Expected([m.TxCommitOk()], returned=channel.commit(), in_one_go=True)
        self._on_channel(place, m.TxCommit(), expected)

    def burst(self, a: int, b: int, c: int) -> None:
        """Publishes and answers of one client in one piece, between which no turn ends."""
        client = a % CLIENTS
        choices = random.Random(b * 60 + c)
        self._burst = []
        for _ in range(2 + c % 7):
            command = choices.choice([self.publish, self.publish, self.ack, self.nack])
            command(client + CLIENTS * choices.randrange(3), choices.randrange(1, 32), choices.randrange(60))
        parts, self._burst = self._burst, None
        everything = Expected(in_one_go=True)
        for _, expected in parts:
            everything.returned += expected.returned
            everything.confirms += expected.confirms
        self._step(client, PLAIN, b"".join(data for data, _ in parts), everything)

    def close_channel(self, a: int, b: int, c: int) -> None:
        client, number, channel = self._pick(a)
        self.small.close(channel)
        self._on_channel(a, m.ChannelClose(200, "", 0, 0), Expected([m.ChannelCloseOk()]))
        self._open(client, number)

    def close_connection(self, a: int, b: int, c: int) -> None:
        client = a % CLIENTS
        for (owner, _), channel in self.channels.items():
            if owner == client:
                self.small.close(channel)
        for queue in list(self.small.queues.values()):
            if queue.owner == client:
                assert self.small.delete(queue) == []
        if b % 2:
            self.clients[client].send(0, m.ConnectionClose(200, "", 0, 0))
            self.clients[client].expect(m.ConnectionCloseOk)
        else:
            self.clients[client].hang_up()
        self.clients[client] = self.harness.client()
        self._open_all(client)
        self._step(client, PLAIN, b"", Expected())

    def check_conservation(self) -> None:
        """Every message is in a queue, at a client, or a command removed it; both brokers agree on which."""
        vhost = self.harness.vhost
        assert set(vhost.queues) == set(self.small.queues)
        for name, queue in self.small.queues.items():
            real = vhost.queues[name]
            assert [int(message.body()) for message in real.ready.in_memory()] == [entry.body for entry in queue.ready]
            held = [each for channel in self.channels.values() for each in channel.held() if each.queue is queue]
            assert real.unacked_count == len(held)


def _tag_of(pair: tuple[Channel, str]) -> str:
    return pair[1]


WEIGHTS: dict[str, int] = {
    "declare": 4,
    "delete": 1,
    "purge": 1,
    "bind": 2,
    "publish": 16,
    "consume": 8,
    "cancel": 2,
    "get": 4,
    "ack": 10,
    "nack": 6,
    "recover": 1,
    "qos": 3,
    "burst": 6,
    "end_transaction": 4,
    "close_channel": 1,
    "close_connection": 1,
}
COMMANDS = st.tuples(
    st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)]),
    st.integers(0, 5),
    st.integers(0, 319),
    st.integers(0, 59),
)
BEGINNING: list[Command] = [("declare", 0, number, 0) for number in range(len(QUEUES))]


def _run(commands: list[Command]) -> None:
    comparison = Comparison()
    comparison.run(BEGINNING)
    comparison.run(commands)
    comparison.check_conservation()


@settings(max_examples=examples(150), deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(st.lists(COMMANDS, min_size=30, max_size=90))
def test_any_few_commands_do_what_a_small_broker_does(commands: list[Command]) -> None:
    _run(commands)


@pytest.mark.parametrize("length", [10000])
def test_many_commands_do_what_a_small_broker_does(length: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    choices = random.Random(seed)
    commands: list[Command] = [
        (name, choices.randrange(6), choices.randrange(320), choices.randrange(60))
        for name in choices.choices(list(WEIGHTS), list(WEIGHTS.values()), k=length)
    ]
    _run(commands)
