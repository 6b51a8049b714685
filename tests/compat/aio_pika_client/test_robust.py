"""aio-pika's robust connections: everything declared comes back after the broker or the network hung up."""

from __future__ import annotations

import aio_pika
import aiormq.exceptions
import pytest
from aio_pika import ExchangeType, Message
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustConnection

from ..broker import Broker
from ..conftest import Names
from .session import Relay, run, until


async def robust(url: str) -> AbstractRobustConnection:
    """Connect robustly, trying again quickly."""
    return await aio_pika.connect_robust(url, reconnect_interval=0.05)


async def provoke_close(connection: AbstractRobustConnection) -> None:
    """Make the broker close the connection: it does not implement channel.flow(active=false)."""
    channel = await connection.channel()
    with pytest.raises((aiormq.exceptions.AMQPError, aio_pika.exceptions.AMQPError)):
        await channel.flow(active=False)


async def reconnected(connection: AbstractRobustConnection, count: list[int], wanted: int) -> None:
    """Wait for the `wanted`-th reconnection."""
    await until(lambda: len(count) >= wanted)
    await connection.ready()


def test_a_consumer_goes_on_after_the_broker_closed_the_connection(broker: Broker, names: Names) -> None:
    async def conversation() -> list[bytes]:
        bodies: list[bytes] = []
        reconnections: list[int] = []

        async def on_message(message: AbstractIncomingMessage) -> None:
            async with message.process():
                bodies.append(message.body)

        async with await robust(broker.url) as connection:
            connection.reconnect_callbacks.add(lambda *_: reconnections.append(1))
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=5)
            exchange = await channel.declare_exchange(names.exchange(), ExchangeType.TOPIC)
            queue = await channel.declare_queue(names.queue())
            await queue.bind(exchange, "a.*")
            await queue.consume(on_message)
            for round_number in range(3):
                await exchange.publish(Message(b"%d" % round_number), "a.b")
                await until(lambda: len(bodies) == round_number + 1)  # noqa: B023
                await provoke_close(connection)
                await reconnected(connection, reconnections, round_number + 1)
                await channel.ready()
            await exchange.publish(Message(b"done"), "a.b")
            await until(lambda: bodies[-1] == b"done")
        return bodies

    assert run(conversation()) == [b"0", b"1", b"2", b"done"]


def test_exclusive_and_auto_delete_things_are_declared_anew(broker: Broker, names: Names) -> None:
    async def conversation() -> list[bytes]:
        bodies: list[bytes] = []
        reconnections: list[int] = []

        async def on_message(message: AbstractIncomingMessage) -> None:
            bodies.append(message.body)

        async with Relay(broker) as relay, await robust(relay.url) as connection:
            connection.reconnect_callbacks.add(lambda *_: reconnections.append(1))
            channel = await connection.channel()
            exchange = await channel.declare_exchange(names.exchange(), ExchangeType.FANOUT, auto_delete=True)
            queue = await channel.declare_queue(names.queue(), exclusive=True)
            await queue.bind(exchange)
            await queue.consume(on_message, no_ack=True)
            await exchange.publish(Message(b"before"), "")
            await until(lambda: bodies == [b"before"])
            relay.cut()
            await reconnected(connection, reconnections, 1)
            await channel.ready()
            await exchange.publish(Message(b"after"), "")
            await until(lambda: bodies == [b"before", b"after"])
            assert relay.accepted >= 2
        return bodies

    assert run(conversation()) == [b"before", b"after"]


def test_unacknowledged_messages_are_redelivered_after_the_network_broke(broker: Broker, names: Names) -> None:
    async def conversation() -> list[tuple[bytes, bool | None]]:
        seen: list[tuple[bytes, bool | None]] = []

        async def on_message(message: AbstractIncomingMessage) -> None:
            seen.append((message.body, message.redelivered))
            if message.redelivered:
                await message.ack()

        async with Relay(broker) as relay, await robust(relay.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(names.queue())
            await queue.consume(on_message)
            for number in range(3):
                await channel.default_exchange.publish(Message(b"%d" % number), queue.name)
            await until(lambda: len(seen) == 3)
            relay.cut()
            await until(lambda: len(seen) >= 6)
        return seen

    assert run(conversation()) == [
        (b"0", False),
        (b"1", False),
        (b"2", False),
        (b"0", True),
        (b"1", True),
        (b"2", True),
    ]


def test_a_channel_closed_by_the_broker_is_opened_again(broker: Broker, names: Names) -> None:
    async def conversation() -> bytes:
        async with await robust(broker.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(names.queue())
            with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
                await channel.declare_queue(names.unused(), passive=True)
            await channel.reopen()
            await channel.default_exchange.publish(Message(b"works again"), queue.name)
            return (await queue.get(no_ack=True)).body

    assert run(conversation()) == b"works again"


def test_publishing_goes_on_after_several_cuts(broker: Broker, names: Names) -> None:
    async def conversation() -> int:
        async with Relay(broker) as relay, await robust(relay.url) as connection:
            reconnections: list[int] = []
            connection.reconnect_callbacks.add(lambda *_: reconnections.append(1))
            channel = await connection.channel()
            queue = await channel.declare_queue(names.queue(), durable=True)
            for round_number in range(3):
                await channel.default_exchange.publish(Message(b"%d" % round_number), queue.name)
                relay.cut()
                await reconnected(connection, reconnections, round_number + 1)
                await channel.ready()
            return int((await queue.purge()).message_count or 0)

    assert run(conversation()) == 3
