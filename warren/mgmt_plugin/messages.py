"""Publishing and getting messages over HTTP, for trying things out."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from warren.amqp import methods as m
from warren.amqp.errors import AmqpError
from warren.mgmt_plugin.listing import Breather, Described
from warren.mgmt_plugin.names import exchange_name, the_queue, the_vhost
from warren.mgmt_plugin.routes import Access, Call, Route, bad_request, not_found
from warren.mgmt_plugin.terms import properties_from_json, properties_to_json
from warren.server.direct_client import DirectClient, Received

ACK_MODES: Final = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
GOT_BYTES_MAX: Final = 64 << 20
_MESSAGE_BYTES: Final = 1024  # what a message takes besides its body, roughly
ALIVENESS_QUEUE: Final = "aliveness-test"
ALIVENESS_BODY: Final = b"test_message"


class Publish(msgspec.Struct):
    """A message to be published."""

    properties: Any
    routing_key: str
    payload: str
    payload_encoding: str


class Get(msgspec.Struct):
    """How many messages to get, and what to do with them then."""

    count: int
    ackmode: str | None = None
    encoding: str = "auto"
    truncate: int | None = None
    requeue: bool | None = None  # what RabbitMQ had before there were ack modes


def decode_payload(payload: str, encoding: str) -> bytes:
    """Return the bytes of a body.

    Raises:
        HttpError: 400.
    """
    if encoding == "string":
        return payload.encode("utf-8", "surrogatepass")
    if encoding == "base64":
        try:
            return base64.b64decode(payload, validate=True)
        except (binascii.Error, ValueError):
            raise bad_request(["not_base64", payload[:100]]) from None
    raise bad_request(["unsupported_encoding", encoding])


def encode_payload(body: bytes, encoding: str = "auto") -> tuple[str, str]:
    """Return a body as text, and the name of its encoding: a string where it is UTF-8, if `encoding` is ``auto``."""
    if encoding == "auto":
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode(), "base64"


async def publish(call: Call) -> Described:
    wanted = await call.body(Publish)
    body = decode_payload(wanted.payload, wanted.payload_encoding)
    properties = properties_from_json(wanted.properties)
    if len(wanted.routing_key.encode("utf-8", "replace")) > 255:
        raise bad_request("the routing key is longer than 255 bytes")
    limit = call.management.settings.limits.max_message_bytes
    if len(body) > limit:
        raise bad_request(f"payload size {len(body)} is larger than the maximum of {limit}")
    with call.client() as client:
        try:
            done = await client.publish(exchange_name(call.params["exchange"]), wanted.routing_key, properties, body)
        except AmqpError as error:
            raise bad_request(f"{error.reply_code} {error.reply_text}") from None
    if not done.accepted:
        raise bad_request("rejected Unable to publish message. Check queue limits.")
    return {"routed": done.routed}


async def get_messages(call: Call) -> list[Described]:
    wanted = await call.body(Get)
    mode = wanted.ackmode
    if mode is None and wanted.requeue is not None:
        mode = "ack_requeue_true" if wanted.requeue else "ack_requeue_false"
    if mode is None:
        raise bad_request("[{key_missing,ackmode}]")
    if mode not in ACK_MODES:
        raise bad_request(f"ackmode '{mode}' is none of {', '.join(ACK_MODES)}")
    if wanted.encoding not in ("auto", "base64"):
        raise bad_request(["unsupported_encoding", wanted.encoding])
    if wanted.count < 1:
        raise bad_request("count must be at least 1")
    vhost = the_vhost(call)
    if call.params["queue"] not in vhost.queues:
        raise not_found(f"NOT_FOUND - no queue '{call.params['queue']}' in vhost '{vhost.name}'")
    queue = the_queue(call)
    with call.client() as client:
        received = await _get(client, queue.name, wanted.count, no_ack=mode == "ack_requeue_false")
        if received and mode != "ack_requeue_false":
            last = received[-1].method.delivery_tag
            requeue = mode.endswith("true")
            # What goes back counts as failed when it was rejected, and only then.
            client.send(m.BasicNack(last, True, requeue))
    shown: list[Described] = []
    breather = Breather()
    for each in received:
        shown.append(_describe(each, wanted))
        await breather.breathe()
    return shown


async def _get(client: DirectClient, queue: str, count: int, *, no_ack: bool) -> list[Received]:
    received: list[Received] = []
    size = 0
    breather = Breather()
    while len(received) < count and size < GOT_BYTES_MAX:
        await breather.breathe()
        reply = await client.call(m.BasicGet(0, queue, no_ack))
        if not isinstance(reply, Received):
            break
        received.append(reply)
        size += len(reply.body) + _MESSAGE_BYTES
    return received


def _describe(received: Received, wanted: Get) -> Described:
    body = received.body if wanted.truncate is None else received.body[: max(0, wanted.truncate)]
    payload, encoding = encode_payload(body, wanted.encoding)
    method = received.method
    return {
        "payload_bytes": len(received.body),
        "redelivered": method.redelivered,
        "exchange": method.exchange,
        "routing_key": method.routing_key,
        "message_count": method.message_count,
        "properties": properties_to_json(received.properties) or [],
        "payload": payload,
        "payload_encoding": encoding,
    }


async def check_aliveness(call: Call) -> Described:
    with call.client() as client:
        await client.call(m.QueueDeclare(0, ALIVENESS_QUEUE, False, False, False, False, False, b"\x00\x00\x00\x00"))
        await client.publish("", ALIVENESS_QUEUE, properties_from_json({}), ALIVENESS_BODY)
        reply = await client.call(m.BasicGet(0, ALIVENESS_QUEUE, True))
    if not isinstance(reply, Received):
        raise bad_request("the message did not come back")
    return {"status": "ok"}


ROUTES: Final = (
    Route("POST", "/api/exchanges/{vhost}/{exchange}/publish", Access.VHOST, publish, "Publish a message", Publish),
    Route("POST", "/api/queues/{vhost}/{queue}/get", Access.VHOST, get_messages, "Get messages", Get),
    Route(
        "GET", "/api/aliveness-test/{vhost}", Access.VHOST, check_aliveness, "Declare a queue, publish, get: it works"
    ),
)
