"""A valid client, as frames: the handshake and scenes that together use every method a client may send.

A scene is a list of frames on one channel that a correct broker accepts on a fresh channel. Played in the
order of `SCENES` they are one whole valid session; the fuzzer plays them in any order and breaks them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from peer_frames import PASSWORD, USER, content_header

from warren.amqp import codec
from warren.amqp import methods as m
from warren.amqp.codec import encode_method
from warren.amqp.field_table import EMPTY_TABLE, Table, Timestamp, encode_table

FRAME_MAX_BYTES = 4096
LARGE_BODY = bytes(range(256)) * 40  # three body frames


class WireFrame(NamedTuple):
    """One frame before it is bytes."""

    type: int
    channel: int
    payload: bytes

    def encode(self) -> bytes:
        return codec.frame(*self)


def method(channel: int, call: Any) -> WireFrame:
    return WireFrame(m.FRAME_METHOD, channel, encode_method(call))


def publish(
    channel: int, exchange: str, key: str, properties: dict[str, Any], body: bytes, mandatory: bool = False
) -> list[WireFrame]:
    room = FRAME_MAX_BYTES - m.FRAME_OVERHEAD_BYTES
    return [
        method(channel, m.BasicPublish(0, exchange, key, mandatory, False)),
        WireFrame(m.FRAME_HEADER, channel, content_header(properties, len(body))),
        *(WireFrame(m.FRAME_BODY, channel, body[at : at + room]) for at in range(0, len(body), room)),
    ]


HEADERS: Table = {
    "text": "caf\u00e9",
    "count": 3,
    "big": 1 << 40,
    "ratio": 0.25,
    "flag": True,
    "when": Timestamp(1700000000),
    "raw": b"\x00\xff",
    "list": [1, "two", None, [3.0]],
    "table": {"inner": {"deep": []}},
    "nothing": None,
}
ALL_PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": encode_table(HEADERS),
    "delivery_mode": 2,
    "priority": 5,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": 1700000000,
    "type": "greeting",
    "user_id": USER,
    "app_id": "fuzz",
    "cluster_id": "",
}


def handshake(frame_max_bytes: int = FRAME_MAX_BYTES, mechanism: str = "PLAIN") -> list[WireFrame]:
    """Everything a client sends between the protocol header and its first channel."""
    response = b"\x00" + USER.encode() + b"\x00" + PASSWORD.encode()
    if mechanism == "AMQPLAIN":
        response = encode_table({"LOGIN": USER, "PASSWORD": PASSWORD})[4:]
    capabilities = dict.fromkeys(["consumer_cancel_notify", "authentication_failure_close", "connection.blocked"], True)
    properties: Table = {"product": "fuzz", "connection_name": "a client", "capabilities": capabilities}
    return [
        method(0, m.ConnectionStartOk(properties, mechanism, response, "en_US")),
        method(0, m.ConnectionTuneOk(2047, frame_max_bytes, 60)),
        method(0, m.ConnectionOpen("/", "", False)),
    ]


def goodbye() -> list[WireFrame]:
    return [method(0, m.ConnectionClose(200, "bye", 0, 0))]


# --- scenes -------------------------------------------------------------------------------------------------


def _exchanges(channel: int) -> list[WireFrame]:
    calls: list[Any] = []
    for kind in ("direct", "fanout", "topic", "headers"):
        calls.append(m.ExchangeDeclare(0, f"e.{kind}", kind, False, True, False, False, False, EMPTY_TABLE))
    typed_arguments: dict[str, Table] = {
        "x-consistent-hash": {"hash-header": "text"},
        "x-random": {},
        "x-modulus-hash": {},
        "x-recent-history": {"x-recent-history-length": 3},
    }
    for kind, arguments in typed_arguments.items():
        calls.append(
            m.ExchangeDeclare(0, f"e.{kind}", kind, False, False, False, False, False, encode_table(arguments))
        )
    alternate = encode_table({"alternate-exchange": "e.fanout"})
    partitions = encode_table({"x-super-stream": 2, "x-max-age": "1D"})
    calls += [
        m.ExchangeDeclare(0, "e.super", "x-super-stream", False, True, False, False, False, partitions),
        m.ExchangeDeclare(0, "e.passed-on", "direct", False, False, True, False, True, alternate),
        m.ExchangeDeclare(0, "e.internal", "topic", False, False, False, True, False, EMPTY_TABLE),
        m.ExchangeDeclare(0, "amq.direct", "direct", True, False, False, False, False, EMPTY_TABLE),
        m.ExchangeBind(0, "e.fanout", "e.topic", "a.#", False, EMPTY_TABLE),
        m.ExchangeBind(0, "e.internal", "e.fanout", "", False, EMPTY_TABLE),
        m.ExchangeBind(0, "e.topic", "e.internal", "*.b", True, encode_table({"x": 1})),
        m.ExchangeUnbind(0, "e.topic", "e.internal", "*.b", False, encode_table({"x": 1})),
        m.ExchangeDelete(0, "e.x-random", if_unused=True, no_wait=False),
        m.ExchangeDelete(0, "e.missing", if_unused=False, no_wait=True),
    ]
    return [method(channel, call) for call in calls]


QUEUE_ARGUMENTS: Table = {
    "x-message-ttl": 60000,
    "x-expires": 600000,
    "x-max-length": 1000,
    "x-max-length-bytes": 1 << 20,
    "x-overflow": "drop-head",
    "x-dead-letter-exchange": "e.fanout",
    "x-dead-letter-routing-key": "dead",
    "x-max-priority": 5,
    "x-queue-mode": "lazy",
    "x-queue-version": 2,
    "x-queue-type": "classic",
    "x-unknown": [1, {"deep": None}],
}


def _queues(channel: int) -> list[WireFrame]:
    single = encode_table({"x-single-active-consumer": True})
    match = encode_table({"x-match": "any-with-x", "text": "caf\u00e9", "count": 3, "x-void": None})
    return [
        method(channel, call)
        for call in (
            m.QueueDeclare(0, "q.plain", False, True, False, False, False, EMPTY_TABLE),
            m.QueueDeclare(0, "q.full", False, True, False, False, False, encode_table(QUEUE_ARGUMENTS)),
            m.QueueDeclare(0, "q.single", False, False, False, False, False, single),
            m.QueueDeclare(0, "q.auto", False, False, False, True, True, EMPTY_TABLE),
            m.QueueDeclare(0, "q.plain", True, False, False, False, False, EMPTY_TABLE),
            m.QueueBind(0, "q.plain", "e.direct", "k", False, EMPTY_TABLE),
            m.QueueBind(0, "q.plain", "e.topic", "a.*.#", False, EMPTY_TABLE),
            m.QueueBind(0, "q.full", "e.fanout", "", True, EMPTY_TABLE),
            m.QueueBind(0, "q.full", "e.headers", "", False, match),
            m.QueueBind(0, "q.full", "e.x-consistent-hash", "3", False, EMPTY_TABLE),
            m.QueueBind(0, "q.single", "e.x-modulus-hash", "", False, EMPTY_TABLE),
            m.QueueBind(0, "q.single", "e.x-recent-history", "k", False, EMPTY_TABLE),
            m.QueueDeclare(0, "", False, False, True, True, False, EMPTY_TABLE),
            m.QueueBind(0, "", "amq.direct", "", False, EMPTY_TABLE),
            m.QueueUnbind(0, "", "amq.direct", "", EMPTY_TABLE),
            m.QueuePurge(0, "q.plain", False),
            m.QueueDelete(0, "", if_unused=True, if_empty=True, no_wait=False),
            m.QueueDelete(0, "q.missing", if_unused=False, if_empty=False, no_wait=True),
        )
    ]


def _publishes(channel: int) -> list[WireFrame]:
    carbon = {"headers": encode_table({"CC": ["q.full"], "BCC": ["q.single", "k"]})}
    frames: list[WireFrame] = []
    for exchange, key, properties, body in (
        ("", "q.plain", {}, b"hello"),
        ("", "q.plain", ALL_PROPERTIES, b"hello"),
        ("", "q.full", {"delivery_mode": 1}, b""),
        ("", "q.full", {"priority": 255}, LARGE_BODY),
        ("e.topic", "a.b.c", {"headers": EMPTY_TABLE}, b"x" * 100),
        ("e.direct", "k", carbon, b"copies"),
        ("e.headers", "", {"headers": encode_table(HEADERS)}, b"matched"),
        ("e.fanout", "", {"expiration": "0"}, b"gone"),
        ("e.x-consistent-hash", "any", {"headers": encode_table(HEADERS)}, b"hashed"),
        ("e.x-modulus-hash", "any", {}, b"hashed"),
        ("e.x-recent-history", "k", {"message_id": "m"}, b"remembered"),
        ("e.super", "any", {}, b"kept"),
        ("e.passed-on", "k", {}, b"alternate"),
    ):
        frames += publish(channel, exchange, key, properties, body)
    return frames + publish(channel, "", "nowhere", {}, b"returned", mandatory=True)


def _gets(channel: int) -> list[WireFrame]:
    return [
        *publish(channel, "", "q.plain", {}, b"one"),
        *publish(channel, "", "q.plain", {}, LARGE_BODY),
        *publish(channel, "", "q.plain", {}, b"three"),
        method(channel, m.BasicGet(0, "q.plain", False)),
        method(channel, m.BasicGet(0, "q.plain", False)),
        method(channel, m.BasicGet(0, "q.plain", True)),
        method(channel, m.BasicNack(2, multiple=True, requeue=True)),
        method(channel, m.BasicGet(0, "q.plain", False)),
        method(channel, m.BasicReject(4, True)),
        method(channel, m.BasicRecover(True)),
        method(channel, m.BasicGet(0, "q.plain", False)),
        method(channel, m.BasicAck(5, True)),
        method(channel, m.BasicRecoverAsync(True)),
    ]


def _consumes(channel: int) -> list[WireFrame]:
    urgent = encode_table({"x-priority": 10})
    return [
        method(channel, m.QueueDeclare(0, "q.plain", False, True, False, False, False, EMPTY_TABLE)),
        method(channel, m.QueuePurge(0, "q.plain", False)),
        method(channel, m.BasicQos(0, 2, False)),
        method(channel, m.BasicConsume(0, "q.plain", "c.slow", False, False, False, False, EMPTY_TABLE)),
        method(channel, m.BasicConsume(0, "", "c.urgent", False, False, False, False, urgent)),
        *publish(channel, "", "q.plain", ALL_PROPERTIES, b"one"),
        *publish(channel, "", "q.plain", {}, b"two"),
        *publish(channel, "", "q.plain", {}, b"three"),
        *publish(channel, "", "q.plain", {}, LARGE_BODY),
        method(channel, m.BasicQos(0, 10, True)),
        method(channel, m.BasicAck(1, False)),
        method(channel, m.BasicReject(2, True)),
        method(channel, m.BasicNack(0, multiple=True, requeue=True)),
        method(channel, m.BasicAck(0, True)),
        method(channel, m.BasicCancel("c.urgent", False)),
        method(channel, m.BasicCancel("c.slow", True)),
        method(channel, m.BasicConsume(0, "q.single", "c.single", False, True, False, True, EMPTY_TABLE)),
        method(channel, m.BasicCancel("c.single", False)),
        method(channel, m.BasicCancelOk("c.gone")),
        method(channel, m.BasicConsume(0, "q.auto", "c.auto", False, True, True, False, EMPTY_TABLE)),
        method(channel, m.BasicCancel("c.auto", False)),
    ]


def _confirms(channel: int) -> list[WireFrame]:
    return [
        method(channel, m.ConfirmSelect(False)),
        *publish(channel, "", "q.full", {"delivery_mode": 2}, b"one"),
        *publish(channel, "", "nowhere", {}, b"two", mandatory=True),
        *publish(channel, "", "q.full", ALL_PROPERTIES, LARGE_BODY),
        method(channel, m.ConfirmSelect(True)),
    ]


def _transactions(channel: int) -> list[WireFrame]:
    return [
        method(channel, m.TxSelect()),
        *publish(channel, "", "q.plain", ALL_PROPERTIES, b"one"),
        *publish(channel, "e.fanout", "", {}, LARGE_BODY),
        *publish(channel, "", "nowhere", {}, b"returned at commit", mandatory=True),
        method(channel, m.TxCommit()),
        method(channel, m.BasicGet(0, "q.plain", False)),
        method(channel, m.BasicAck(0, True)),
        method(channel, m.TxRollback()),
        method(channel, m.BasicNack(0, multiple=True, requeue=True)),
        method(channel, m.TxCommit()),
        method(channel, m.TxRollback()),
    ]


def _replies(channel: int) -> list[WireFrame]:
    address = "amq.rabbitmq.reply-to"
    return [
        method(channel, m.BasicConsume(0, address, "c.reply", False, True, False, False, EMPTY_TABLE)),
        *publish(channel, "", "q.full", {"reply_to": address, "correlation_id": "1"}, b"question"),
        method(channel, m.QueueDeclare(0, address, True, False, False, False, False, EMPTY_TABLE)),
        *publish(channel, "", address + ".nobody", {}, b"lost answer"),
        method(channel, m.BasicCancel("c.reply", False)),
    ]


def _small_talk(channel: int) -> list[WireFrame]:
    return [
        method(channel, m.ChannelFlow(True)),
        method(channel, m.AccessRequest("/", False, True, True, True, True)),
        WireFrame(m.FRAME_HEARTBEAT, 0, b""),
        method(0, m.ConnectionUpdateSecret(b"secret", "renewed")),
    ]


def _deletes(channel: int) -> list[WireFrame]:
    queues = [
        method(channel, m.QueueDelete(0, f"q.{name}", if_unused=False, if_empty=False, no_wait=False))
        for name in ("single", "full")
    ]
    return [*queues, method(channel, m.ExchangeDelete(0, "e.headers", if_unused=False, no_wait=False))]


SCENES: dict[str, Callable[[int], list[WireFrame]]] = {
    "exchanges": _exchanges,
    "queues": _queues,
    "publishes": _publishes,
    "gets": _gets,
    "consumes": _consumes,
    "confirms": _confirms,
    "transactions": _transactions,
    "replies": _replies,
    "small talk": _small_talk,
    "deletes": _deletes,
}


def opened(channel: int) -> list[WireFrame]:
    return [method(channel, m.ChannelOpen(""))]


def closed(channel: int) -> list[WireFrame]:
    return [method(channel, m.ChannelClose(200, "done", 0, 0))]


def with_larger_frames(frames: list[WireFrame]) -> list[WireFrame]:
    """Join the body frames of each content, as a client with a larger frame_max sends them."""
    joined: list[WireFrame] = []
    for frame in frames:
        last = joined[-1] if joined else None
        if last is not None and (last.type, last.channel) == (m.FRAME_BODY, frame.channel) == frame[:2]:
            joined[-1] = last._replace(payload=last.payload + frame.payload)
        else:
            joined.append(frame)
    return joined


def whole_session(frame_max_bytes: int = FRAME_MAX_BYTES) -> list[WireFrame]:
    """One valid session: every scene on a channel of its own, each closed before the next is opened."""
    frames = handshake(frame_max_bytes)
    for number, scene in enumerate(SCENES.values(), start=1):
        frames += opened(number) + scene(number) + closed(number)
    return frames + goodbye()
