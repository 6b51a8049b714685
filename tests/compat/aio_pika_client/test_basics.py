"""aio-pika over ordinary connections: exchanges, queues, iterators, prefetch, confirms, transactions, errors."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import aio_pika
import aiormq.exceptions
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractIncomingMessage

from ..broker import Broker
from ..conftest import Names
from .session import channel_of, plain, run, until


def test_connect_and_close(broker: Broker) -> None:
    async def conversation() -> None:
        async with plain(broker) as connection:
            assert not connection.is_closed
        assert connection.is_closed

    run(conversation())


def test_a_wrong_password_is_an_authentication_error(broker: Broker) -> None:
    async def conversation() -> None:
        with pytest.raises(aiormq.exceptions.ProbableAuthenticationError):
            await aio_pika.connect(host=broker.host, port=broker.port, login=broker.username, password="wrong")

    run(conversation())


def test_a_missing_vhost_is_refused(broker: Broker) -> None:
    async def conversation() -> None:
        options: dict[str, Any] = {"login": broker.username, "password": broker.password, "virtualhost": "nowhere"}
        # aiormq wraps the close it did not expect at this point and keeps no text
        with pytest.raises(aiormq.exceptions.InvalidFrameError, match=r"Connection\.Close"):
            await aio_pika.connect(host=broker.host, port=broker.port, **options)

    run(conversation())


def test_a_message_keeps_all_its_properties(broker: Broker, names: Names) -> None:
    sent = Message(
        b"body",
        headers={"text": "✓", "number": 7, "list": [1, "two"], "table": {"a": None}, "flag": True},
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=DeliveryMode.PERSISTENT,
        priority=3,
        correlation_id="correlation",
        reply_to="reply",
        expiration=60,
        message_id="message",
        timestamp=datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC),
        type="type",
        user_id=broker.username,
        app_id="app",
    )

    async def conversation() -> AbstractIncomingMessage:
        async with channel_of(broker) as channel:
            queue = await channel.declare_queue(names.queue())
            await channel.default_exchange.publish(sent, queue.name)
            return await queue.get(no_ack=True)

    got = run(conversation())
    assert got.body == b"body"
    assert got.info()["routing_key"] == got.routing_key
    for name in (
        "headers",
        "content_type",
        "content_encoding",
        "delivery_mode",
        "priority",
        "correlation_id",
        "reply_to",
        "expiration",
        "message_id",
        "timestamp",
        "type",
        "user_id",
        "app_id",
    ):
        assert getattr(got, name) == getattr(sent, name), name


@pytest.mark.parametrize("kind", [ExchangeType.DIRECT, ExchangeType.TOPIC, ExchangeType.FANOUT, ExchangeType.HEADERS])
def test_every_exchange_type_routes(broker: Broker, names: Names, kind: ExchangeType) -> None:
    async def conversation() -> bytes:
        async with channel_of(broker) as channel:
            exchange = await channel.declare_exchange(names.exchange(), kind)
            queue = await channel.declare_queue(names.queue())
            await queue.bind(exchange, "a.b", arguments={"x-match": "all", "h": 1} if kind == "headers" else None)
            await exchange.publish(Message(b"routed", headers={"h": 1}), "a.b")
            return (await queue.get(no_ack=True)).body

    assert run(conversation()) == b"routed"


def test_exchange_to_exchange_bindings_and_unbind(broker: Broker, names: Names) -> None:
    async def conversation() -> list[bytes]:
        async with channel_of(broker) as channel:
            source = await channel.declare_exchange(names.exchange("source"), ExchangeType.FANOUT)
            destination = await channel.declare_exchange(names.exchange("destination"), ExchangeType.FANOUT)
            queue = await channel.declare_queue(names.queue())
            await queue.bind(destination)
            await destination.bind(source)
            await source.publish(Message(b"bound"), "")
            await destination.unbind(source)
            await source.publish(Message(b"unbound"), "", mandatory=False)
            bodies = [(await queue.get(no_ack=True)).body]
            assert await queue.get(no_ack=True, fail=False) is None
            return bodies

    assert run(conversation()) == [b"bound"]


def test_a_queue_is_an_asynchronous_iterator(broker: Broker, names: Names) -> None:
    async def conversation() -> list[bytes]:
        bodies = []
        async with channel_of(broker) as channel:
            await channel.set_qos(prefetch_count=10)
            queue = await channel.declare_queue(names.queue(), auto_delete=True)
            for number in range(100):
                await channel.default_exchange.publish(Message(b"%d" % number), queue.name)
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        bodies.append(message.body)
                    if len(bodies) == 100:
                        break
        return bodies

    assert run(conversation()) == [b"%d" % number for number in range(100)]


def test_leaving_the_iterator_returns_what_was_prefetched(broker: Broker, names: Names) -> None:
    async def conversation() -> list[bytes]:
        async with channel_of(broker) as channel:
            await channel.set_qos(prefetch_count=5)
            queue = await channel.declare_queue(names.queue())
            for number in range(8):
                await channel.default_exchange.publish(Message(b"%d" % number), queue.name)
            async with queue.iterator() as messages:
                async for message in messages:
                    await message.ack()
                    break
            return [(await queue.get(no_ack=True)).body for _ in range(7)]

    assert run(conversation()) == [b"%d" % number for number in range(1, 8)]


def test_prefetch_holds_messages_back(broker: Broker, names: Names) -> None:
    async def conversation() -> None:
        held: list[AbstractIncomingMessage] = []

        async def keep(message: AbstractIncomingMessage) -> None:
            held.append(message)

        async with channel_of(broker) as channel:
            await channel.set_qos(prefetch_count=3)
            queue = await channel.declare_queue(names.queue())
            for number in range(10):
                await channel.default_exchange.publish(Message(b"%d" % number), queue.name)
            await queue.consume(keep)
            await until(lambda: len(held) == 3)
            for _ in range(2):
                assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count == 7
            assert len(held) == 3
            await held[1].ack(multiple=True)
            await until(lambda: len(held) == 5)
            assert [message.body for message in held] == [b"%d" % number for number in range(5)]

    run(conversation())


def test_two_consumers_share_the_work(broker: Broker, names: Names) -> None:
    async def conversation() -> tuple[int, int]:
        counts = [0, 0]

        def worker(number: int) -> Any:
            async def work(message: AbstractIncomingMessage) -> None:
                async with message.process():
                    counts[number] += 1

            return work

        async with plain(broker) as connection:
            channels = [await connection.channel() for _ in range(2)]
            name = names.queue()
            for number, channel in enumerate(channels):
                await channel.set_qos(prefetch_count=1)
                queue = await channel.declare_queue(name)
                await queue.consume(worker(number))
            for _ in range(50):
                await channels[0].default_exchange.publish(Message(b"x"), name)
            await until(lambda: sum(counts) == 50)
        return counts[0], counts[1]

    assert all(run(conversation()))


def test_process_acknowledges_rejects_and_requeues(broker: Broker, names: Names) -> None:
    async def conversation() -> list[tuple[bytes, bool | None]]:
        seen: list[tuple[bytes, bool | None]] = []
        async with channel_of(broker) as channel:
            queue = await channel.declare_queue(names.queue())
            for body in (b"good", b"bad", b"again"):
                await channel.default_exchange.publish(Message(body), queue.name)
            while (message := await queue.get(fail=False)) is not None:
                seen.append((message.body, message.redelivered))
                again = message.body == b"again" and not message.redelivered
                try:
                    async with message.process(requeue=again):
                        if message.body != b"good":
                            raise ValueError(message.body)
                except ValueError:
                    continue
        return seen

    assert run(conversation()) == [(b"good", False), (b"bad", False), (b"again", False), (b"again", True)]


def test_publishes_are_confirmed_concurrently(broker: Broker, names: Names) -> None:
    async def conversation() -> int:
        async with channel_of(broker) as channel:
            queue = await channel.declare_queue(names.queue(), durable=True)
            message = Message(b"x", delivery_mode=DeliveryMode.PERSISTENT)
            confirms = await asyncio.gather(
                *(channel.default_exchange.publish(message, queue.name) for _ in range(500))
            )
            assert all(isinstance(confirm, aiormq.spec.Basic.Ack) for confirm in confirms)
            return int((await queue.purge()).message_count or 0)

    assert run(conversation()) == 500


def test_an_unroutable_message_raises_or_is_returned(broker: Broker, names: Names) -> None:
    async def conversation() -> None:
        async with plain(broker) as connection:
            strict = await connection.channel(on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await strict.default_exchange.publish(Message(b"lost"), names.unused(), mandatory=True)
            lenient = await connection.channel()
            confirmation = await lenient.default_exchange.publish(Message(b"lost"), names.unused(), mandatory=True)
            assert isinstance(confirmation, aiormq.abc.DeliveredMessage)
            assert isinstance(confirmation.delivery, aiormq.spec.Basic.Return)
            assert confirmation.delivery.reply_code == 312

    run(conversation())


def test_transactions_commit_and_roll_back(broker: Broker, names: Names) -> None:
    async def conversation() -> list[bytes]:
        async with channel_of(broker, publisher_confirms=False) as channel:
            queue = await channel.declare_queue(names.queue())
            async with channel.transaction():
                await channel.default_exchange.publish(Message(b"committed"), queue.name)

            async def transaction_that_fails() -> None:
                async with channel.transaction():
                    await channel.default_exchange.publish(Message(b"rolled back"), queue.name)
                    raise KeyError("on purpose")

            with pytest.raises(KeyError, match="on purpose"):
                await transaction_that_fails()
            transaction = channel.transaction()
            await transaction.select()
            await channel.default_exchange.publish(Message(b"committed by hand"), queue.name)
            await transaction.commit()
            bodies = []
            while (message := await queue.get(fail=False, no_ack=True)) is not None:
                bodies.append(message.body)
            return bodies

    assert run(conversation()) == [b"committed", b"committed by hand"]


def test_large_messages_arrive_whole(broker: Broker, names: Names) -> None:
    body = bytes(range(256)) * 8192

    async def conversation() -> bytes:
        async with channel_of(broker) as channel:
            queue = await channel.declare_queue(names.queue())
            await channel.default_exchange.publish(Message(body), queue.name)
            return (await queue.get(no_ack=True)).body

    assert run(conversation()) == body


def test_channel_errors_keep_their_kind_and_text(broker: Broker, names: Names) -> None:
    missing, taken = names.unused(), names.queue()

    async def conversation() -> None:
        async with plain(broker) as connection:
            channel = await connection.channel()
            with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity, match="no queue"):
                await channel.declare_queue(missing, passive=True)
            channel = await connection.channel()
            await channel.declare_queue(taken)
            with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="inequivalent arg 'durable'"):
                await channel.declare_queue(taken, durable=True)
            channel = await connection.channel()
            with pytest.raises(aiormq.exceptions.ChannelAccessRefused, match="reserved prefix"):
                await channel.declare_exchange("amq.mine")
            stranger = await aio_pika.connect(broker.url)
            async with stranger:
                owner = await stranger.channel()
                exclusive = await owner.declare_queue(names.queue(), exclusive=True)
                channel = await connection.channel()
                with pytest.raises(aiormq.exceptions.ChannelLockedResource):
                    await channel.declare_queue(exclusive.name, exclusive=True)

    run(conversation())


def test_update_secret_and_flow(broker: Broker) -> None:
    async def conversation() -> None:
        async with plain(broker) as connection:
            await connection.update_secret(broker.password, reason="renewed")
            channel = await connection.channel()
            assert (await channel.flow(active=True)).active

    run(conversation())


def test_many_channels_and_tasks_share_a_connection(broker: Broker, names: Names) -> None:
    async def conversation() -> list[bytes]:
        async with plain(broker) as connection:

            async def one(number: int) -> bytes:
                async with connection.channel() as channel:
                    queue = await channel.declare_queue("", exclusive=True)
                    await channel.default_exchange.publish(Message(b"%d" % number), queue.name)
                    return (await queue.get(no_ack=True)).body

            return list(await asyncio.gather(*(one(number) for number in range(40))))

    assert run(conversation()) == [b"%d" % number for number in range(40)]
