"""Running one asyncio conversation per test, and waiting in it on conditions."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel

from ..broker import DEADLINE_S, POLL_S, Broker

T = TypeVar("T")


def run(conversation: Coroutine[Any, Any, T]) -> T:
    """Run a conversation to its end, which must come before the deadline."""
    return asyncio.run(asyncio.wait_for(conversation, DEADLINE_S))


async def until(condition: Callable[[], bool]) -> None:
    """Run the loop until `condition` holds; the conversation's deadline ends a hopeless wait."""
    while not condition():
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def plain(broker: Broker) -> AsyncIterator[aio_pika.abc.AbstractConnection]:
    """Open an ordinary connection and close it."""
    connection = await aio_pika.connect(broker.url)
    async with connection:
        yield connection


@asynccontextmanager
async def channel_of(broker: Broker, **options: Any) -> AsyncIterator[AbstractChannel]:
    """Open a connection with one channel (publisher confirms unless told otherwise)."""
    async with plain(broker) as connection:
        yield await connection.channel(**options)


class Relay:
    """A TCP relay in front of the broker whose connections the test can cut."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.accepted = 0

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    @property
    def url(self) -> str:
        """The broker's URL by way of this relay."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return dataclasses.replace(self._broker, host="127.0.0.1", port=port).url

    def cut(self) -> None:
        """Break every connection now, without a word of AMQP."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        far_reader, far_writer = await asyncio.open_connection(self._broker.host, self._broker.port)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._pipe(reader, far_writer), self._pipe(far_reader, writer))

    @staticmethod
    async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while octets := await reader.read(65536):
                writer.write(octets)
                await writer.drain()
            writer.close()
        except (ConnectionError, RuntimeError):
            return  # cut
