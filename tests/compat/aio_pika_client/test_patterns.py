"""aio-pika's patterns: RPC and Master over the broker, and direct reply-to by hand."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest
from aio_pika import Message
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.patterns import RPC, Master, RejectMessage

from ..broker import Broker
from ..conftest import Names
from .session import channel_of, plain, run, until

REPLY_TO = "amq.rabbitmq.reply-to"


def test_remote_procedure_calls_return_values_and_exceptions(broker: Broker, names: Names) -> None:
    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async def fail(*, reason: str) -> None:
        raise ValueError(reason)

    async def conversation() -> None:
        async with plain(broker) as connection:
            server = await RPC.create(await connection.channel())
            client = await RPC.create(await connection.channel())
            method, failing = names.queue("multiply"), names.queue("fail")
            await server.register(method, multiply, auto_delete=True)
            await server.register(failing, fail, auto_delete=True)
            results = await asyncio.gather(
                *(client.call(method, kwargs={"x": number, "y": number}) for number in range(50))
            )
            assert results == [number * number for number in range(50)]
            with pytest.raises(ValueError, match="a remote reason"):
                await client.call(failing, kwargs={"reason": "a remote reason"})
            await client.close()
            await server.close()

    run(conversation())


def test_calling_nobody_is_told_at_once(broker: Broker, names: Names) -> None:
    async def conversation() -> None:
        async with plain(broker) as connection:
            client = await RPC.create(await connection.channel())
            with pytest.raises(aio_pika.exceptions.MessageProcessError):
                await client.call(names.unused(), kwargs={})
            await client.close()

    run(conversation())


def test_a_master_feeds_workers_and_rejected_work_is_dropped(broker: Broker, names: Names) -> None:
    done: list[int] = []
    dropped: list[int] = []

    async def work(*, number: int) -> None:
        if number % 5 == 0:
            dropped.append(number)
            raise RejectMessage(requeue=False)
        done.append(number)

    async def conversation() -> None:
        async with plain(broker) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=4)
            master = Master(channel)
            task = names.queue("work")
            worker = await master.create_worker(task, work, auto_delete=True)
            for number in range(30):
                await master.create_task(task, kwargs={"number": number})
            await until(lambda: len(done) + len(dropped) == 30)
            await worker.close()

    run(conversation())
    assert sorted(done) == [number for number in range(30) if number % 5]
    assert sorted(dropped) == [number for number in range(30) if number % 5 == 0]


def test_direct_reply_to(broker: Broker, names: Names) -> None:
    async def conversation() -> list[bytes]:
        answers: list[bytes] = []

        async def on_answer(message: AbstractIncomingMessage) -> None:
            answers.append(message.body)

        async with channel_of(broker) as channel:
            requests = await channel.declare_queue(names.queue())

            async def answer(message: AbstractIncomingMessage) -> None:
                assert message.reply_to is not None
                await channel.default_exchange.publish(Message(message.body.upper()), message.reply_to, mandatory=False)
                await message.ack()

            await requests.consume(answer)
            reply_queue = await channel.get_queue(REPLY_TO, ensure=False)
            await reply_queue.consume(on_answer, no_ack=True)
            for body in (b"one", b"two"):
                await channel.default_exchange.publish(Message(body, reply_to=REPLY_TO), requests.name)
            await until(lambda: len(answers) == 2)
        return answers

    assert run(conversation()) == [b"ONE", b"TWO"]
