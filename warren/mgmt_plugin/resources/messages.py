"""Publishing and getting messages over HTTP, for trying things out."""

from __future__ import annotations

import base64
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import AmqpError
from warren.amqp.properties import decode_properties
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import QueueRef
from warren.mgmt_plugin.http.json_bodies import ORDINARY, BodyLimits
from warren.mgmt_plugin.http.json_pieces import LongText
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import BODY_BYTES_MAX, HttpError
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import exchange_name, the_vhost
from warren.mgmt_plugin.routes import (
    Access,
    Call,
    Handlers,
    Route,
    bad_request,
    convert,
    decode_json,
    not_found,
    too_large,
)
from warren.mgmt_plugin.terms import properties_from_json, properties_to_json
from warren.server.direct_clients import DirectClient, Got
from warren.server.json_parts import Part, decode_long, parts_of

ACK_MODES: Final = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
PUBLISH: Final = BodyLimits(BODY_BYTES_MAX, ORDINARY.values)
GOT_BYTES_MAX: Final = 64 << 20
_MESSAGE_BYTES: Final = 1024  # memory of a message in addition to its body, roughly
_ENCODED_AT_ONCE: Final = 32 << 10
ALIVENESS_QUEUE: Final = "aliveness-test"
ALIVENESS_BODY: Final = b"test_message"


class Publish(msgspec.Struct):
    """A message to be published."""

    properties: Any
    routing_key: str
    payload: str
    payload_encoding: str


class Get(msgspec.Struct):
    """How many messages to get, and how to settle them; the first three fields are required."""

    ackmode: str | None = None
    count: int | None = None
    encoding: str | None = None
    truncate: int | None = None
    requeue: bool | None = None  # RabbitMQ's field from before ack modes


async def decode_payload(texts: Iterable[str], encoding: str) -> list[bytes]:
    """Return the parts of a body, decoded from those of its text; give way between them.

    Raises:
        HttpError: 400.
    """
    if encoding not in ("string", "base64"):
        raise bad_request(["unsupported_encoding", encoding])
    parts: list[bytes] = []
    beginning = rest = ""
    is_padded = False  # nothing may follow
    for text in texts:
        if encoding == "string":
            parts.append(text.encode("utf-8", "surrogatepass"))
        else:
            beginning = beginning or text[:100]
            rest += text
            groups = rest[: len(rest) // 4 * 4]
            rest = rest[len(groups) :]
            bare = groups.rstrip("=")
            try:
                if is_padded or "=" in bare:
                    raise ValueError
                parts.append(base64.b64decode(groups, validate=True))
            except ValueError:
                raise bad_request(["not_base64", beginning]) from None
            is_padded = len(bare) < len(groups)
        await give_way()
    if rest:
        raise bad_request(["not_base64", beginning])
    return parts


async def _read_publish(call: Call) -> tuple[Publish, list[bytes]]:
    """Return a publish and the parts of its body. The payload of a large one is decoded in pieces.

    Raises:
        HttpError: 400, 413.
    """
    data = await call.measured()
    if len(data) <= ORDINARY.size:
        wanted = convert(decode_json(data), Publish)
        return wanted, await decode_payload([wanted.payload], wanted.payload_encoding)
    start = end = 0
    try:
        for part in parts_of(data):
            if part is not None and part.key == "payload" and part.number < 0:
                start, end = _between_quotes(data, part)
            await give_way()
        if len(data) - (end - start) > ORDINARY.size:
            raise too_large(f"a publish may have at most {ORDINARY.size} bytes besides its payload")
        wanted = convert(decode_json(data[:start] + data[end:]), Publish)
        return wanted, await decode_payload(decode_long(data, start, end), wanted.payload_encoding)
    except (ValueError, msgspec.MsgspecError):
        raise bad_request("not_json") from None


def _between_quotes(data: bytes, part: Part) -> tuple[int, int]:
    start = data.find(b'"', part.start, part.end)
    end = data.rfind(b'"', part.start, part.end)
    if not start < end or data[part.start : start].strip() or data[end + 1 : part.end].strip():
        raise bad_request("payload must be a text")
    return start + 1, end


async def encode_payload(
    parts: Sequence[bytes | memoryview], wanted: str = "auto", *, whole: bool = True
) -> tuple[str | LongText, str]:
    """Return a body as text, and the name of its encoding: a string where it is UTF-8, if ``auto`` is `wanted`.

    A large one is looked through in pieces, and becomes text when it is sent. Of one that is not `whole` the last
    character may be cut in two, and is left out then.
    """
    text, encoding = LongText(partial(_in_base64, parts)), "base64"
    if wanted == "auto" and await _is_text(parts, whole=whole):
        text, encoding = LongText(partial(_decoded, parts, whole=whole)), "string"
    return (text if sum(map(len, parts)) > _ENCODED_AT_ONCE else str(text)), encoding


async def _is_text(parts: Sequence[bytes | memoryview], *, whole: bool) -> bool:
    try:
        for _ in _decoded(parts, whole=whole):
            await give_way()
    except UnicodeDecodeError:
        return False
    return True


def _decoded(parts: Sequence[bytes | memoryview], *, whole: bool) -> Iterator[str]:
    """Yield a body as text. Raises UnicodeDecodeError: it is not text."""
    decoder = getincrementaldecoder("utf-8")()
    for part in _pieces(parts):
        yield decoder.decode(part)
    yield decoder.decode(b"", whole)


def _in_base64(parts: Sequence[bytes | memoryview]) -> Iterator[str]:
    """Yield a body in base64, of which three bytes at a time become four characters."""
    rest = b""
    for part in _pieces(parts):
        some = rest + part
        even = len(some) - len(some) % 3
        yield base64.b64encode(some[:even]).decode()
        rest = some[even:]
    yield base64.b64encode(rest).decode()


def _pieces(parts: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    for part in parts:
        for at in range(0, len(part), _ENCODED_AT_ONCE):
            yield bytes(part[at : at + _ENCODED_AT_ONCE])


def _asked_for(wanted: Get) -> tuple[str, int, str]:
    """Return the ack mode, the count and the encoding of a request.

    Raises:
        HttpError: 400, with RabbitMQ's reasons for missing fields and for the encoding.
    """
    mode = wanted.ackmode
    if mode is None and wanted.requeue is not None:
        mode = "ack_requeue_true" if wanted.requeue else "ack_requeue_false"
    given = {"ackmode": mode, "count": wanted.count, "encoding": wanted.encoding}
    missing = ",".join(f"{{key_missing,{name}}}" for name, value in given.items() if value is None)
    if mode is None or wanted.count is None or wanted.encoding is None:
        raise bad_request(f"[{missing}]")
    if mode not in ACK_MODES:
        raise bad_request(f"ackmode '{mode}' is not one of {', '.join(ACK_MODES)}")
    if wanted.encoding not in ("auto", "base64"):
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    if wanted.count < 0 or (wanted.truncate is not None and wanted.truncate < 0):
        raise bad_request("count and truncate must not be negative")
    return mode, wanted.count, wanted.encoding


async def _get(call: Call, view: EngineView, client: DirectClient, queue: QueueRef, count: int) -> list[Got]:
    """Get messages, as far as the budget of bodies has room for as many bytes as they have on average.

    The answer has all messages that were taken from the queue, whatever their size: they may no longer exist elsewhere.

    Raises:
        HttpError: 503, there is no room for the first one.
    """
    received: list[Got] = []
    size = 0
    while len(received) < count and size < GOT_BYTES_MAX:
        await give_way()
        ready, ready_bytes = view.queues.ready(queue)
        expected = _MESSAGE_BYTES + ready_bytes // max(1, ready)
        try:
            call.request.hold(min(expected, GOT_BYTES_MAX))  # the largest message would never fit with others
        except HttpError:
            if received:
                break
            raise
        got = await client.get(call.params["queue"], no_ack=False)
        if got is None:
            break
        received.append(got)
        size += int(got.message.body_bytes) + _MESSAGE_BYTES
    return received


async def _describe(got: Got, wanted_encoding: str, truncate: int | None) -> Described:
    message = got.message
    size = int(message.body_bytes)
    # Not joined: joining many MiB would hold up all other tasks.
    parts = message.body_parts(size if truncate is None else min(size, truncate))
    payload, encoding = await encode_payload(parts, wanted_encoding)
    header = message.header_payload()
    return {
        "payload_bytes": size,
        "redelivered": got.redelivered,
        "exchange": message.envelope.exchange,
        "routing_key": message.envelope.routing_key,
        "message_count": got.message_count,
        "properties": properties_to_json(decode_properties(header, 0, len(header))) or [],
        "payload": payload,
        "payload_encoding": encoding,
    }


def _settling(mode: str, last: int) -> m.BasicAck | m.BasicNack:
    """Return the command that settles the deliveries up to `last`."""
    if mode == "ack_requeue_false":
        return m.BasicAck(last, multiple=True)
    # A requeued message counts as a failed delivery when it was rejected, and only then.
    return m.BasicNack(last, multiple=True, requeue=mode.endswith("true"))


class MessageHandlers(Handlers):
    """Handlers of publishing and getting."""

    def __init__(self, view: EngineView, max_message_bytes: int) -> None:
        self._view = view
        self._max_message_bytes = max_message_bytes

    async def publish(self, call: Call) -> Described:
        wanted, body = await _read_publish(call)
        properties = properties_from_json(wanted.properties)
        if len(wanted.routing_key.encode("utf-8", "replace")) > 255:
            raise bad_request("the routing key is longer than 255 bytes")
        limit = self._max_message_bytes
        size = sum(map(len, body))
        if size > limit:
            raise bad_request(f"payload size {size} is larger than the maximum of {limit}")
        with call.client() as client:
            try:
                done = await client.publish(
                    exchange_name(call.params["exchange"]), wanted.routing_key, properties, *body
                )
            except AmqpError as error:
                raise bad_request(f"{error.reply_code} {error.reply_text}") from None
        if not done.accepted:
            raise bad_request("rejected Unable to publish message. Check queue limits.")
        return {"routed": done.routed}

    async def get_messages(self, call: Call) -> list[Described]:
        vhost = the_vhost(call)
        queue = self._view.queues.maybe(vhost, call.params["queue"])
        if queue is None:
            raise not_found(f"NOT_FOUND - no queue '{call.params['queue']}' in vhost '{vhost}'")
        wanted = await call.body(Get)
        mode, count, encoding = _asked_for(wanted)
        shown: list[Described] = []
        with call.client() as client:
            received = await _get(call, self._view, client, queue, count)
            for each in received:
                shown.append(await _describe(each, encoding, wanted.truncate))
                await give_way()
            if received:
                # Not earlier: if a read from disk fails or takes too long, all of them return to the queue.
                client.send(_settling(mode, received[-1].delivery_tag))
        return shown

    async def check_aliveness(self, call: Call) -> Described:
        with call.client() as client:
            await client.call(QueueDeclaration(ALIVENESS_QUEUE, durable=False))
            await client.publish("", ALIVENESS_QUEUE, properties_from_json({}), ALIVENESS_BODY)
            got = await client.get(ALIVENESS_QUEUE, no_ack=True)
        if got is None:
            raise bad_request("the message did not come back")
        return {"status": "ok"}

    ROUTES: ClassVar = (
        Route(
            "POST",
            "/api/exchanges/{vhost}/{exchange}/publish",
            Access.VHOST,
            publish,
            "Publish a message",
            Publish,
            limits=PUBLISH,
            is_audited=False,
        ),
        Route(
            "POST",
            "/api/queues/{vhost}/{queue}/get",
            Access.VHOST,
            get_messages,
            "Get messages",
            Get,
            is_audited=False,
        ),
        Route(
            "GET",
            "/api/aliveness-test/{vhost}",
            Access.VHOST,
            check_aliveness,
            "Declare a queue, publish, get: it works",
            acts=True,
        ),
    )
