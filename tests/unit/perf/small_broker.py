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
from struct import unpack_from
from typing import Any, NamedTuple

from warren.amqp import methods
from warren.amqp.codec import decode_method, method_frame
from warren.amqp_client import frames

_START = methods.ConnectionStart(0, 9, {"product": "small", "version": "1"}, b"PLAIN", b"en_US")
_OK: dict[type[Any], Any] = {
    methods.ConnectionOpen: methods.ConnectionOpenOk(""),
    methods.ConnectionClose: methods.ConnectionCloseOk(),
    methods.ChannelOpen: methods.ChannelOpenOk(b""),
    methods.ExchangeDelete: methods.ExchangeDeleteOk(),
    methods.ExchangeDeclare: methods.ExchangeDeclareOk(),
    methods.QueueBind: methods.QueueBindOk(),
    methods.BasicQos: methods.BasicQosOk(),
    methods.ConfirmSelect: methods.ConfirmSelectOk(),
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
            self.send(0, _START)
            while True:
                found, data = self.next_frame()
                if found.kind != methods.FRAME_METHOD:
                    continue  # the content of a publish to a channel that is closed
                with self.broker.lock:
                    self.on_method(decode_method(data, 7, len(data) - 1), found.channel)

    def send(self, channel: int, method: Any, content: bytes = b"") -> None:
        self.sock.sendall(method_frame(channel, method) + content)

    def next_frame(self) -> tuple[frames.Frame, bytes]:
        while (found := frames.maybe_frame(self.inbox, 0, len(self.inbox))) is None:
            data = self.sock.recv(65536)
            if not data:
                raise OSError("gone")
            self.inbox += data
        data = bytes(self.inbox[: found.end])
        del self.inbox[: found.end]
        return found, data

    def on_method(self, method: Any, channel: int) -> None:
        broker = self.broker
        if type(method) is broker.close_on:
            close = methods.ChannelClose if channel else methods.ConnectionClose
            self.send(channel, close(broker.close_code, broker.close_text, 0, 0))
        elif isinstance(method, methods.ConnectionStartOk):
            self.send(0, methods.ConnectionTune(2047, broker.frame_max_bytes, 60))
        elif isinstance(method, methods.QueueDeclare):
            broker.arguments[method.queue] = method.arguments
            broker.queues.setdefault(method.queue, deque())
            self.send(channel, methods.QueueDeclareOk(method.queue, 0, 0))
        elif isinstance(method, methods.QueueDelete):
            broker.left[method.queue] = broker.queues.pop(method.queue, deque())
            broker.consumers.pop(method.queue, None)
            self.send(channel, methods.QueueDeleteOk(len(broker.left[method.queue])))
        elif isinstance(method, methods.BasicConsume):
            broker.consumers[method.queue] = _Consumer(self, method.consumer_tag)
            self.send(channel, methods.BasicConsumeOk(method.consumer_tag))
            waiting = broker.queues.get(method.queue, deque())
            # In one piece: a client that reads the last message but one has the last as well.
            burst = b"".join(self.delivery(method.consumer_tag, message) for message in waiting)
            waiting.clear()
            self.sock.sendall(burst)
        elif isinstance(method, methods.BasicGet):
            self.on_get(broker.queues[method.queue])
        elif isinstance(method, methods.BasicPublish):
            self.on_publish(method)
        elif isinstance(method, methods.BasicAck):
            broker.acked.append((method.delivery_tag, int(method.multiple)))
        elif type(method) in _OK:
            if isinstance(method, methods.QueueBind):
                broker.bound.append(method.queue)
            self.confirming = self.confirming or isinstance(method, methods.ConfirmSelect)
            self.send(channel, _OK[type(method)])

    def on_publish(self, publish: methods.BasicPublish) -> None:
        found, content = self.next_frame()
        (missing,) = unpack_from(">Q", content, 11)
        while missing:
            found, body = self.next_frame()
            missing -= found.end - found.start - methods.FRAME_OVERHEAD_BYTES
            content += body
        self.published += 1
        self.broker.published.append(content)
        copies = 0 if self.published == self.broker.lose else 1
        message = Message(publish.exchange, publish.routing_key, content)
        for queue in self.broker.bound if publish.exchange else [publish.routing_key]:
            consumer = self.broker.consumers.get(queue)
            for _ in range(copies):
                if consumer is not None:
                    consumer.session.sock.sendall(consumer.session.delivery(consumer.tag, message))
                elif queue in self.broker.queues:
                    self.broker.queues[queue].append(message)
        if self.confirming:
            self.sock.sendall(frames.ack(1, self.published, multiple=self.published % 3 == 0))

    def on_get(self, waiting: deque[Message]) -> None:
        if not waiting:
            self.send(1, methods.BasicGetEmpty(""))
            return
        exchange, routing_key, content = waiting[0]  # it would return when the connection ends: here it never left
        self.send(1, methods.BasicGetOk(1, False, exchange, routing_key, 0), content)

    def delivery(self, tag: str, message: Message) -> bytes:
        self.delivered += 1
        number = self.delivered if self.delivered != self.broker.repeat_tag else self.delivered - 1
        deliver = methods.BasicDeliver(tag, number, False, message.exchange, message.routing_key)
        return method_frame(1, deliver) + message.content


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
        self.close_on: type[Any] | None = None
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
