"""A broker of a few lines for the load tool's tests: default and fanout exchange, confirms, deliveries, basic.get.

1. It answers on a free loopback port from threads, one for each connection, and ends when closed.
2. It can misbehave on request: refuse the login, close the channel on a method, lose or repeat a message.
3. A message stays in its queue until the queue has a consumer. After delivery it is gone, acknowledged or not.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from struct import pack, unpack_from
from typing import NamedTuple

from warren.perf import frames

_OK = {
    frames.CONNECTION_CLOSE: (frames.CONNECTION_CLOSE_OK, b""),
    frames.CHANNEL_OPEN: (frames.CHANNEL_OPEN_OK, bytes(4)),
    frames.EXCHANGE_DELETE: (frames.EXCHANGE_DELETE_OK, b""),
    frames.EXCHANGE_DECLARE: (frames.EXCHANGE_DECLARE_OK, b""),
    frames.BASIC_QOS: (frames.BASIC_QOS_OK, b""),
    frames.CONFIRM_SELECT: (frames.CONFIRM_SELECT_OK, b""),
}


class _Consumer(NamedTuple):
    session: _Session
    tag: str


class Message(NamedTuple):
    """One message in a queue: the content is its header frame and body frames."""

    exchange: str
    routing_key: str
    content: bytes


class _Session:
    """One connection."""

    def __init__(self, broker: SmallBroker, sock: socket.socket) -> None:
        self.broker = broker
        self.sock = sock
        self.inbox = bytearray()
        self.confirming = False
        self.published = 0
        self.delivered = 0

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.recv(8)
            product = frames.field_table({"product": "small", "version": "1", "capabilities": {"basic.nack": True}})
            start = b"\0\x09" + product + frames.long_string(b"PLAIN") + frames.long_string(b"en_US")
            self.sock.sendall(frames.method(0, frames.CONNECTION_START, start))
            while True:
                found, data = self.next_frame()
                name = frames.method_name(data, found)
                with self.broker.lock:
                    self.on_method(name, frames.arguments(data, found), found.channel)

    def next_frame(self) -> tuple[frames.Frame, bytes]:
        while (found := frames.maybe_frame(self.inbox, 0, len(self.inbox))) is None:
            data = self.sock.recv(65536)
            if not data:
                raise OSError("gone")
            self.inbox += data
        data = bytes(self.inbox[: found.end])
        del self.inbox[: found.end]
        return found, data

    def on_method(self, name: tuple[int, int], arguments: bytes, channel: int) -> None:
        broker = self.broker
        if name == broker.close_on:
            scope = frames.CHANNEL_CLOSE if channel else frames.CONNECTION_CLOSE
            text = pack(">H", broker.close_code) + frames.short_string(broker.close_text) + bytes(4)
            self.sock.sendall(frames.method(channel, scope, text))
        elif name == frames.CONNECTION_START_OK:
            self.sock.sendall(frames.method(0, frames.CONNECTION_TUNE, pack(">HIH", 2047, broker.frame_max_bytes, 60)))
        elif name == frames.CONNECTION_OPEN:
            self.sock.sendall(frames.method(0, frames.CONNECTION_OPEN_OK, b"\0"))
        elif name == frames.QUEUE_DECLARE:
            queue = _short_string(arguments, 2)
            broker.arguments[queue] = arguments[4 + len(queue.encode()) :]
            broker.queues.setdefault(queue, deque())
            self.sock.sendall(frames.method(channel, frames.QUEUE_DECLARE_OK, frames.short_string(queue) + bytes(8)))
        elif name == frames.QUEUE_DELETE:
            queue = _short_string(arguments, 2)
            broker.left[queue] = broker.queues.pop(queue, deque())
            broker.consumers.pop(queue, None)
            count = pack(">I", len(broker.left[queue]))
            self.sock.sendall(frames.method(channel, frames.QUEUE_DELETE_OK, count))
        elif name == frames.QUEUE_BIND:
            broker.bound.append(_short_string(arguments, 2))
            self.sock.sendall(frames.method(channel, frames.QUEUE_BIND_OK))
        elif name == frames.BASIC_CONSUME:
            queue = _short_string(arguments, 2)
            tag = _short_string(arguments, 3 + arguments[2])
            broker.consumers[queue] = _Consumer(self, tag)
            self.sock.sendall(frames.method(channel, frames.BASIC_CONSUME_OK, frames.short_string(tag)))
            waiting = broker.queues.get(queue, deque())
            # In one piece: a client that reads the last message but one has the last as well.
            burst = b"".join(self.delivery(tag, message) for message in waiting)
            waiting.clear()
            self.sock.sendall(burst)
        elif name == frames.BASIC_GET:
            self.on_get(broker.queues[_short_string(arguments, 2)])
        elif name == frames.BASIC_PUBLISH:
            self.on_publish(arguments)
        elif name == frames.BASIC_ACK:
            broker.acked.append(unpack_from(">QB", arguments))
        elif name in _OK:
            self.confirming = self.confirming or name == frames.CONFIRM_SELECT
            self.sock.sendall(frames.method(channel, *_OK[name]))

    def on_publish(self, arguments: bytes) -> None:
        exchange = _short_string(arguments, 2)
        routing_key = _short_string(arguments, 3 + arguments[2])
        found, content = self.next_frame()
        (missing,) = unpack_from(">Q", content, 11)
        while missing:
            found, body = self.next_frame()
            missing -= found.end - found.start - frames.FRAME_OVERHEAD_BYTES
            content += body
        self.published += 1
        self.broker.published.append(content)
        copies = 0 if self.published == self.broker.lose else 1
        message = Message(exchange, routing_key, content)
        for queue in self.broker.bound if exchange else [routing_key]:
            consumer = self.broker.consumers.get(queue)
            for _ in range(copies):
                if consumer is not None:
                    consumer.session.deliver(consumer.tag, message)
                elif queue in self.broker.queues:
                    self.broker.queues[queue].append(message)
        if self.confirming:
            self.sock.sendall(frames.ack(1, self.published, multiple=self.published % 3 == 0))

    def on_get(self, waiting: deque[Message]) -> None:
        if not waiting:
            self.sock.sendall(frames.method(1, frames.BASIC_GET_EMPTY, b"\0"))
            return
        message = waiting[0]  # it would return when the connection ends: here it never left
        arguments = pack(">QB", 1, 0) + frames.short_string(message.exchange) + frames.short_string(message.routing_key)
        self.sock.sendall(frames.method(1, frames.BASIC_GET_OK, arguments + bytes(4)) + message.content)

    def deliver(self, tag: str, message: Message) -> None:
        self.sock.sendall(self.delivery(tag, message))

    def delivery(self, tag: str, message: Message) -> bytes:
        self.delivered += 1
        number = self.delivered if self.delivered != self.broker.repeat_tag else self.delivered - 1
        arguments = frames.short_string(tag) + pack(">QB", number, 0)
        arguments += frames.short_string(message.exchange) + frames.short_string(message.routing_key)
        return frames.method(1, frames.BASIC_DELIVER, arguments) + message.content


class SmallBroker:
    """Listens until closed. ``lose`` and ``repeat_tag`` are message numbers, 0 for never."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.queues: dict[str, deque[Message]] = {}
        self.left: dict[str, deque[Message]] = {}  # in queues when they were deleted
        self.arguments: dict[str, bytes] = {}  # of declared queues, encoded
        self.published: list[bytes] = []  # header frames with what follows
        self.bound: list[str] = []
        self.consumers: dict[str, _Consumer] = {}
        self.acked: list[tuple[int, int]] = []
        self.frame_max_bytes = 131072
        self.close_on: tuple[int, int] | None = None
        self.close_code = 0
        self.close_text = ""
        self.lose = 0
        self.repeat_tag = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Close all sockets and wait for the threads."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.append(sock)
                self._threads.append(threading.Thread(target=_Session(self, sock).serve))
                self._threads[-1].start()


def _short_string(arguments: bytes, at: int) -> str:
    return arguments[at + 1 : at + 1 + arguments[at]].decode()
