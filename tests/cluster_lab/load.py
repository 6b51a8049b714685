"""Clients of the lab, each in a thread: they publish, are told or not, and try the next node when nothing comes.

    classic, quorum, stream   AMQP 0-9-1 with confirms, a few messages at a time
    tx                        a message into each of three queues, and a commit
    both                      a message into two quorum queues, by one publish with confirms
    mover                     takes messages from a quorum queue, and moves each to another one in a transaction
    watcher                   consumes one of the two queues of both, one of those of tx, and the one moved to
    mqtt                      QoS 1 into a queue that is bound to amq.topic
    amqp10                    AMQP 1.0, each message settled before the next one
    reader                    reads the stream as it grows, and notes the offsets

1. A client waits for an answer for `PATIENCE_S`, and then connects to the next node of its list. It does not send
   again what was not confirmed: that may be there or not.
2. Names of messages are unique for a run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import paho.mqtt.client as paho
import pika
import pika.exceptions
import proton
from paho.mqtt.enums import CallbackAPIVersion
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from proton.utils import BlockingConnection as ProtonConnection

from warren.amqp import methods
from warren.amqp_client import frames
from warren.amqp_client.blocking import BlockingConnection, open_socket
from warren.amqp_client.client_errors import BrokerError
from warren.amqp_client.connection import Login

from .history import History, Rules
from .machines import AMQP, MQTT, USER

PATIENCE_S: Final = 2.5  # longer than the sync of a slow disk, or no confirm of one would be seen
CONNECT_S: Final = 1.0
PAUSE_S: Final = 0.02
AT_A_TIME: Final = 4
SILENCES: Final = 5  # that end a stream which nobody writes
SILENCE_S: Final = 5.0  # that ends a queue which should have more
CLASSIC, QUORUM, STREAM, MQTT_QUEUE, AMQP10 = "lab.classic", "lab.quorum", "lab.stream", "lab.mqtt", "lab.amqp10"
TRANSACTIONS: Final = ("lab.tx.a", "lab.tx.b")
BOTH: Final = "lab.both"  # an exchange
KEPT, WATCHED, TX_WATCHED, MOVED_FROM, MOVED = (
    "lab.kept",
    "lab.watched",
    "lab.tx.watched",
    "lab.moved.from",
    "lab.moved",
)
WATCHED_QUEUES: Final = (WATCHED, TX_WATCHED, MOVED)
QUORUM_QUEUES: Final = (QUORUM, KEPT, MOVED_FROM, *WATCHED_QUEUES)
QUEUES: Final = (CLASSIC, *QUORUM_QUEUES, *TRANSACTIONS, MQTT_QUEUE, AMQP10)
RULES: Final = Rules(
    TRANSACTIONS,
    twice=frozenset({MQTT_QUEUE, AMQP10}),
    witnesses={WATCHED: (KEPT,), TX_WATCHED: TRANSACTIONS},
    moves={MOVED: MOVED_FROM},
)
_FAILURES: Final = (
    BrokerError,
    OSError,
    ValueError,
    pika.exceptions.AMQPError,
    AMQPConnectorException,
    proton.ProtonException,
)


class Session(BlockingConnection):
    """A connection that never waits longer than `PATIENCE_S`."""

    def __init__(self, host: str) -> None:
        super().__init__(open_socket(host, AMQP, timeout_s=CONNECT_S), host, Login(USER, USER, frame_max_bytes=0))
        self.sock.settimeout(PATIENCE_S)
        try:
            self.enter()
        except BaseException:
            self.abort()
            raise

    def put(self, queue: str, name: str, exchange: str = "") -> None:
        """Publish a persistent message."""
        properties = frames.encode_properties(persistent=True)
        body = name.encode()
        self.send(frames.publish(1, exchange, queue, body, frame_max_bytes=self.frame_max_bytes, properties=properties))


def parameters(host: str) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(
        host,
        AMQP,
        credentials=pika.PlainCredentials(USER, USER),
        socket_timeout=PATIENCE_S,
        stack_timeout=2 * PATIENCE_S,
        heartbeat=4,
        blocked_connection_timeout=2 * PATIENCE_S,
    )


def set_up(host: str) -> None:
    """Declare all queues."""
    with pika.BlockingConnection(parameters(host)) as connection:
        channel = connection.channel()
        for queue in (CLASSIC, *TRANSACTIONS, MQTT_QUEUE, AMQP10):
            channel.queue_declare(queue, durable=True)
        for queue in QUORUM_QUEUES:
            # A client that is cut off must not use up the tries of its messages.
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": -1})
        channel.exchange_declare(BOTH, "fanout", durable=True)
        for queue in (KEPT, WATCHED):
            channel.queue_bind(queue, BOTH)
        channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind(MQTT_QUEUE, "amq.topic", "lab")


class Load:
    """All clients; `hosts` are those of the nodes."""

    def __init__(self, hosts: Sequence[str], history: History) -> None:
        self.told: list[str] = []  # why connections ended
        self._hosts = hosts
        self._history = history
        self._over = threading.Event()
        self._numbers = history.numbers
        works: list[tuple[str, Callable[[str, str], None]]] = [
            (CLASSIC, self._publish),
            (CLASSIC, self._publish),
            (QUORUM, self._publish),
            (STREAM, self._publish),
            ("tx", self._transact),
            (BOTH, self._publish),
            (MOVED_FROM, self._publish),
            ("mover", self._move),
            ("watcher", self._watch),
            ("mqtt", self._send_mqtt),
            ("amqp10", self._send_amqp10),
            ("reader", self._read),
        ]
        self._offset = 0
        self._threads = [
            threading.Thread(target=self._live, args=(work, kind, at), name=f"{kind} {at}", daemon=True)
            for at, (kind, work) in enumerate(works)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all clients, and wait for that."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} does not end"

    def _live(self, work: Callable[[str, str], None], kind: str, at: int) -> None:
        """Work with one node after the other."""
        while not self._over.is_set():
            host = self._hosts[at % len(self._hosts)]
            try:
                work(kind, host)
            except _FAILURES as error:
                self.told.append(f"{kind} at {host}: {error}")
            at += 1
            self._over.wait(0.05)

    def _names(self, kind: str, count: int) -> list[str]:
        return [f"{kind}-{next(self._numbers)}" for _ in range(count)]

    def _publish(self, target: str, host: str) -> None:
        """Publish to a queue, or to the exchange of two."""
        queues = (KEPT, WATCHED) if target == BOTH else (target,)
        exchange = target if target == BOTH else ""
        session = Session(host)
        try:
            session.call(methods.ConfirmSelect(no_wait=False), methods.ConfirmSelectOk)
            last_tag = 0
            while not self._over.wait(PAUSE_S):
                names = self._names(target, AT_A_TIME)
                for queue in queues:
                    self._history.sends(queue, names)
                waiting: dict[int, str] = {}
                for name in names:
                    last_tag += 1
                    waiting[last_tag] = name
                    session.put(target, name, exchange)
                while waiting:
                    tag, is_multiple = session.wait_for(methods.BasicAck)
                    tags = [each for each in waiting if each == tag or (is_multiple and each <= tag)]
                    confirmed = [waiting.pop(each) for each in tags]
                    for queue in queues:
                        self._history.confirmed(queue, confirmed)
        finally:
            session.abort()

    def _transact(self, kind: str, host: str) -> None:
        session = Session(host)
        try:
            session.call(methods.TxSelect(), methods.TxSelectOk)
            while not self._over.wait(PAUSE_S):
                names = self._names(kind, 2)
                for queue in (*TRANSACTIONS, TX_WATCHED):
                    self._history.sends(queue, names)
                    for name in names:
                        session.put(queue, name)
                session.call(methods.TxCommit(), methods.TxCommitOk)
                for queue in (*TRANSACTIONS, TX_WATCHED):
                    self._history.confirmed(queue, names)
        finally:
            session.abort()

    def _move(self, kind: str, host: str) -> None:
        with pika.BlockingConnection(parameters(host)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=AT_A_TIME)
            channel.tx_select()
            persistent = pika.BasicProperties(delivery_mode=2)
            for method, _, body in channel.consume(MOVED_FROM, inactivity_timeout=PATIENCE_S):
                if self._over.is_set():
                    return
                if method is None or body is None:
                    continue
                name = bytes(body).decode()
                self._history.sends(MOVED, [name])
                channel.basic_publish("", MOVED, body, persistent)
                channel.basic_ack(method.delivery_tag or 0)
                channel.tx_commit()
                self._history.confirmed(MOVED, [name])

    def _watch(self, kind: str, host: str) -> None:
        with pika.BlockingConnection(parameters(host)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=200)
            for queue in WATCHED_QUEUES:
                channel.basic_consume(queue, partial(self._saw, queue))
            while not self._over.is_set():
                connection.process_data_events(PATIENCE_S)

    def _saw(self, queue: str, channel: Any, method: Any, _: Any, body: bytes) -> None:
        self._history.saw(queue, body.decode())
        channel.basic_ack(method.delivery_tag)

    def _send_mqtt(self, kind: str, host: str) -> None:
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"lab-{next(self._numbers)}")
        client.username_pw_set(USER, USER)
        client.connect_timeout = CONNECT_S
        client.connect(host, MQTT, keepalive=4)
        client.loop_start()
        try:
            while not self._over.wait(2 * PAUSE_S):
                (name,) = self._names(kind, 1)
                self._history.sends(MQTT_QUEUE, [name])
                sent = client.publish("lab", name, qos=1)
                sent.wait_for_publish(PATIENCE_S)
                if not sent.is_published():
                    raise OSError("no PUBACK in time")
                self._history.confirmed(MQTT_QUEUE, [name])
        except RuntimeError as error:  # of paho, for a message that it has given up
            raise OSError(str(error)) from None
        finally:
            client.disconnect()
            client.loop_stop()

    def _send_amqp10(self, kind: str, host: str) -> None:
        connection = ProtonConnection(f"amqp://{USER}:{USER}@{host}:{AMQP}", timeout=PATIENCE_S)
        try:
            sender = connection.create_sender(f"/queues/{AMQP10}")
            while not self._over.wait(2 * PAUSE_S):
                (name,) = self._names(kind, 1)
                self._history.sends(AMQP10, [name])
                sender.send(proton.Message(body=name.encode(), durable=True, inferred=True), timeout=PATIENCE_S)
                self._history.confirmed(AMQP10, [name])
        finally:
            with suppress(proton.ProtonException, OSError):
                connection.close()

    def _read(self, kind: str, host: str) -> None:
        with pika.BlockingConnection(parameters(host)) as connection:
            for offset, name in entries(connection, self._offset, PATIENCE_S):
                if name is not None:
                    self._history.read(offset, name)
                    self._offset = offset + 1
                if self._over.is_set():
                    return


def entries(connection: pika.BlockingConnection, first: int, patience_s: float) -> Any:
    """Yield the messages of the stream from an offset on, and (-1, None) when none has come for a while."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=200)
    found = channel.consume(STREAM, arguments={"x-stream-offset": first}, inactivity_timeout=patience_s)
    for method, properties, body in found:
        if method is None or properties is None or body is None:
            yield -1, None
            continue
        channel.basic_ack(method.delivery_tag or 0)
        offset = int(str((properties.headers or {})["x-stream-offset"]))
        if offset >= first:
            yield offset, body.decode()


def whole_stream(host: str) -> dict[int, str]:
    """Return all that the stream has."""
    found: dict[int, str] = {}
    silences = 0
    with pika.BlockingConnection(parameters(host)) as connection:
        count = _waiting(connection.channel(), STREAM)
        for offset, name in entries(connection, 0, 0.5):
            if name is not None:
                found[offset] = name
                silences = 0
            else:
                silences += 1
            if len(found) >= count or silences > SILENCES:
                break
    return found


def drained(host: str) -> dict[str, list[str]]:
    """Take all out of all queues but the stream."""
    found: dict[str, list[str]] = {queue: [] for queue in QUEUES}
    with pika.BlockingConnection(parameters(host)) as connection:
        for _ in range(2):  # the second time for a message that was still on its way
            for queue, names in found.items():
                channel = connection.channel()
                while count := _waiting(channel, queue):
                    names += _taken(channel, queue, count)
                channel.close()
            time.sleep(0.3)  # and the acks are on disk
    return found


def _waiting(channel: BlockingChannel, queue: str) -> int:
    """Return how many messages are ready."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def _taken(channel: BlockingChannel, queue: str, count: int) -> list[str]:
    """Take that many messages; fewer when no more come."""
    names: list[str] = []
    tag = 0
    for method, _, body in channel.consume(queue, inactivity_timeout=SILENCE_S):
        if method is None or body is None:
            break
        names.append(bytes(body).decode())
        tag = method.delivery_tag or 0
        if len(names) == count:
            break
    if tag:
        channel.basic_ack(tag, multiple=True)
    channel.cancel()  # what was delivered beyond that goes back
    return names
