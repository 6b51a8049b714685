"""Random commands on a direct session have the answers and the effects that they have for a client of 0-9-1."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import AmqpError, ConnectionException
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.amqp.properties import BasicProperties
from warren.channels.direct_session import DirectSession, Got, Publish, Published
from warren.vhosts.metadata import TopicPermissionPut, UserPut, VhostLimitsPut

BOB = "bob"
SEEDS = range(20)
COMMANDS = 60
QUEUES = [
    "a",
    "b",
    "full",
    "broken\nname",
    "amq.mine",
    "amq.rabbitmq.reply-to",
    "amq.rabbitmq.reply-to.x",
    "hidden",
    "c\0",
]
EXCHANGES = ["x", "t", "", "amq.topic", "amq.fanout", "amq.control", "hidden", "amq.new", "line\r", "super"]
KEYS = ["a", "b", "full", "secret.key", "", "x" * 255]
TABLES: list[dict[str, Any]] = [
    {},
    {},
    {"x-max-length": 1, "x-overflow": "reject-publish"},
    {"x-max-length": -1},
    {"x-queue-type": "stream"},
    {"x-queue-type": "odd"},
    {"x-dead-letter-exchange": "hidden"},
    {"x-expires": "soon"},
    {"alternate-exchange": "x"},
    {"alternate-exchange": 7},
    {"x-super-stream": 3},
]
PROPERTIES: list[dict[str, Any]] = [
    {},
    {"expiration": "soon"},
    {"user_id": "somebody"},
    {"reply_to": "amq.rabbitmq.reply-to"},
    {"headers": encode_table({"CC": ["b", "a"]})},
    {"headers": encode_table({"BCC": "b"})},
    {"headers": encode_table({"x-delay": "long"})},
]


class Sent(NamedTuple):
    """A message that is published."""

    exchange: str
    routing_key: str
    properties: dict[str, Any]
    body: bytes


def prepared() -> Harness:
    """Return a broker with a user who may not do everything, in a vhost that may not have many queues."""
    harness = Harness()
    for change in (
        UserPut(BOB, "", ""),
        TopicPermissionPut(BOB, "/", "amq.topic", "^(a|b)$", ".*"),
        VhostLimitsPut("/", '{"max-queues": 6}'),
    ):
        harness.broker.administer(change)
    harness.passwords[BOB] = harness.passwords["guest"]
    harness.permit(BOB, configure="^[^h]*$", write="^([^h]|amq)*$", read="^[^h]*$")
    client = harness.channel()
    for name in ("a", "b"):
        client.declare(name, durable=True)
        client.bind(name, "amq.topic", name)
    client.declare("full", arguments=TABLES[2])
    client.declare_exchange("x")
    client.hang_up()
    harness.take_changes()
    return harness


def chosen(dice: random.Random) -> Any:
    """Return a command, as a direct session takes it."""
    queue, exchange, other, key = (dice.choice(names) for names in (QUEUES, EXCHANGES, EXCHANGES, KEYS))
    table = encode_table(dice.choice(TABLES))
    flag, durable = dice.random() < 0.5, dice.random() < 0.7
    kind = dice.choice(["direct", "topic", "fanout", "x-super-stream", "odd", "x-delayed-message"])
    commands: list[Any] = [
        QueueDeclaration(queue, durable=durable, exclusive=dice.random() < 0.2, auto_delete=flag, arguments=table),
        QueueDeclaration(queue, durable=True, arguments=table),
        ExchangeDeclaration(exchange, kind, durable=durable, auto_delete=flag, internal=flag, arguments=table),
        m.QueueBind(0, queue, exchange, key, no_wait=False, arguments=EMPTY_TABLE),
        m.QueueUnbind(0, queue, exchange, key, EMPTY_TABLE),
        m.ExchangeBind(0, other, exchange, key, no_wait=False, arguments=EMPTY_TABLE),
        m.ExchangeUnbind(0, other, exchange, key, no_wait=False, arguments=EMPTY_TABLE),
        m.QueuePurge(0, queue, no_wait=False),
        m.QueueDelete(0, queue, if_unused=flag, if_empty=durable, no_wait=False),
        m.ExchangeDelete(0, exchange, if_unused=flag, no_wait=False),
        m.BasicGet(0, queue, no_ack=flag),
        Sent(exchange, key, dice.choice(PROPERTIES), dice.randbytes(dice.choice([0, 1, 5000]))),
        Sent("", dice.choice(["a", "b", "full"]), {"delivery_mode": 2} if flag else {}, b"body"),
    ]
    return dice.choice(commands)


class ByClient:
    """Commands by frames. `run` returns the answer in the form of a direct session; a refusal as code and text."""

    def __init__(self) -> None:
        self.harness = prepared()
        self._client = self._opened()

    def _opened(self) -> Client:
        client = self.harness.channel(BOB)
        client.call(1, m.ConfirmSelect(False))
        return client

    def run(self, command: Any) -> object:
        client = self._client
        match command:
            case ExchangeDeclaration() | QueueDeclaration():
                client.send(1, command.method())
            case Sent():
                exchange, key, properties, body = command
                client.feed(publish_frames(exchange, key, body, mandatory=True, properties=properties))
            case _:
                client.send(1, command)
        received = client.take()
        last = received[-1].method
        if isinstance(last, m.ChannelClose | m.ConnectionClose):
            is_hard = isinstance(last, m.ConnectionClose)
            client.hang_up()
            self._client = self._opened()
            return is_hard, last.reply_code, last.reply_text
        if isinstance(last, m.BasicAck | m.BasicNack):
            return Published(len(received) == 1, isinstance(last, m.BasicAck))
        if isinstance(last, m.BasicGetOk):
            assert received[-1].content is not None
            if not command.no_ack:
                client.send(1, m.BasicNack(last.delivery_tag, multiple=True, requeue=True))
            return last.redelivered, last.exchange, last.routing_key, last.message_count, received[-1].content.body
        return last


class ByValues:
    """The same on a direct session."""

    def __init__(self) -> None:
        self.harness = prepared()
        self._session = self._opened()

    def _opened(self) -> DirectSession:
        return self.harness.broker.open_direct(BOB, "/")

    def run(self, command: Any) -> object:
        session = self._session
        if isinstance(command, Sent):
            exchange, key, properties, body = command
            made = BasicProperties()
            for name, value in properties.items():
                setattr(made, name, value)
            session.command(Publish(exchange, key, made.encode(), body))
        else:
            session.command(command)
        self.harness.settle()
        while session.commands:
            session.resume()
            self.harness.settle()
        (answer,) = session.direct.answers
        session.direct.answers.clear()
        if isinstance(answer, AmqpError):
            session.peer.lost()
            self.harness.settle()
            self._session = self._opened()
            return isinstance(answer, ConnectionException), answer.reply_code, answer.reply_text
        if isinstance(answer, Got):
            if not command.no_ack:
                session.command(m.BasicNack(answer.delivery_tag, multiple=True, requeue=True))
                self.harness.settle()
            message = answer.message
            body = b"".join(message.body_parts(message.body_bytes))
            where = message.envelope
            return answer.redelivered, where.exchange, where.routing_key, answer.message_count, body
        return answer


def effects(harness: Harness) -> list[object]:
    """Return what has changed in the log of metadata since the last call, and what there is."""
    vhost = harness.vhost
    bindings = [
        (each.source.name, each.destination.name, each.routing_key, each.arguments)
        for exchange in vhost.exchanges.values()
        for each in exchange.bindings.values()
    ]
    return [
        harness.take_changes(),
        [(each.declaration, each.ready_count, each.unacked_count, each.published) for each in vhost.queues.values()],
        [(each.declaration, each.published_in) for each in vhost.exchanges.values()],
        bindings,
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_answered_as_frames_are(seed: int) -> None:
    dice = random.Random(seed)
    frames, values = ByClient(), ByValues()
    for at in range(COMMANDS):
        command = chosen(dice)
        expected = frames.run(command)
        assert values.run(command) == expected, f"seed {seed}, command {at}: {command}"
        assert effects(values.harness) == effects(frames.harness), f"seed {seed}, command {at}: {command}"
    values.harness.check()
