"""The engine without loop and socket: a broker of given limits, and clients that are frames in and frames out.

1. Nothing is random and no clock runs: entropy counts, time is moved by hand, turns are run until the broker rests.
2. A `Client` sees only what a peer would see; tests that look into the broker do so explicitly.
3. Frames are built by ``warren.amqp.codec`` and split by hand, contents put together strictly: a header, then bodies
   that add up to its size, on one channel, with nothing between.

How turns are driven is ``engine``; this adds users, vhosts, limits, and words to write tests with.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from engine import Engine
from peer_frames import PASSWORD, USER, content_header

from warren.amqp import methods as m
from warren.amqp.codec import decode_method, frame, method_frame
from warren.amqp.errors import FRAME_ERROR
from warren.amqp.field_table import Table, encode_table
from warren.amqp.methods import METHODS, PROTOCOL_HEADER
from warren.amqp.properties import BasicProperties, decode_properties
from warren.channels.broker import Limits, Notice
from warren.channels.connection import LINGER_S
from warren.queues.base_queue import BaseQueue
from warren.queues.queue import Queue
from warren.queues.unacked import deliveries_of
from warren.vhosts.metadata import PermissionPut, UserPut

__all__ = ["PASSWORD", "USER", "Client", "Content", "Harness", "Received", "Refusal", "content_frames"]

M = TypeVar("M")
CAPABILITIES = ("consumer_cancel_notify", "authentication_failure_close", "connection.blocked")


class Content(NamedTuple):
    """A message as a client sees it."""

    properties: BasicProperties
    body: bytes
    frame_bytes: tuple[int, ...]  # sizes of the whole body frames


class Received(NamedTuple):
    """A method with its channel and, when it carries one, its content."""

    channel: int
    method: Any
    content: Content | None


class Refusal(NamedTuple):
    """The contents of a channel.close or connection.close; ``scope`` is ``"channel"`` or ``"connection"``."""

    scope: str
    code: int
    text: str
    method: type[Any] | tuple[int, int] | None  # the failing method, its ids if it is unknown; None: 0 and 0


def content_frames(
    channel: int, body: bytes, properties: dict[str, Any] | None = None, frame_max_bytes: int = 131072
) -> bytes:
    """Encode a content header and the body frames after it."""
    room = frame_max_bytes - m.FRAME_OVERHEAD_BYTES
    frames = [frame(m.FRAME_HEADER, channel, content_header(properties or {}, len(body)))]
    frames += [frame(m.FRAME_BODY, channel, body[at : at + room]) for at in range(0, len(body), room)]
    return b"".join(frames)


def split_frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """Cut whole frames into type, channel and payload."""
    frames = []
    at = 0
    while at < len(data):
        payload_at = at + 7
        end = payload_at + int.from_bytes(data[at + 3 : payload_at], "big")
        assert end < len(data), f"half a frame: {data[at:]!r}"
        assert data[end] == m.FRAME_END
        frames.append((data[at], int.from_bytes(data[at + 1 : at + 3], "big"), data[payload_at:end]))
        at = end + 1
    return frames


class Harness(Engine):
    """A broker with vhost ``/`` and user ``guest``, with all permissions; more of both by `add_user`, `administer`.

    ``hold_commits``: the disk takes its time, until it is False again and `settle` is called.
    """

    def __init__(self, **limits: float) -> None:
        super().__init__()
        defaults = Limits()
        # Those of production, but for what a test says: the fuzzer's own are small.
        for name in [name for name in dir(defaults) if not name.startswith("_")]:
            setattr(self.broker.limits, name, limits.pop(name, getattr(defaults, name)))
        assert not limits, f"no such limits: {limits}"
        self.broker.shared.message_max_bytes = self.broker.limits.message_max_bytes
        self.broker.shared.inbound.max_bytes = self.broker.limits.inbound_max_bytes
        self.broker.shared.inbound.timeout_s = self.broker.limits.content_timeout_s
        self.hold_commits = False
        self.notices: list[Notice] = []
        self.passwords = {USER: PASSWORD.encode()}

    def _turn(self, commit: bool) -> bool:
        self.notices += self.broker.notices
        return super()._turn(commit and not self.hold_commits)

    def _answer_logins(self) -> bool:
        requests = self.broker.logins[:]
        self.broker.logins.clear()
        for request in requests:
            if request.certificate or self.passwords.get(request.user) == request.password:
                request.accept(request.user)
            else:
                request.refuse()
        return bool(requests)

    def add_user(
        self, name: str, configure: str = ".*", write: str = ".*", read: str = ".*", *, tags: tuple[str, ...] = ()
    ) -> None:
        """Create a user with a permission in ``/``; the password is the name."""
        self.broker.administer(UserPut(name, "", "", tags))
        self.permit(name, configure, write, read)
        self.passwords[name] = name.encode()

    def permit(self, name: str, configure: str = ".*", write: str = ".*", read: str = ".*", vhost: str = "/") -> None:
        """Set the permission of `name` in `vhost`, live."""
        self.broker.administer(PermissionPut(name, vhost, configure, write, read))
        self.settle()

    def client(self, user: str = USER, vhost: str = "/", **options: Any) -> Client:
        """Return a client that is connected and open."""
        client = Client(self, **options)
        client.handshake(user, vhost)
        return client

    def raw_client(self, **options: Any) -> Client:
        """Return a client that has connected and sent nothing."""
        return Client(self, **options)

    def pass_time(self, seconds: float) -> None:
        """Advance the time, in one go."""
        self.advance(seconds)
        self.settle()

    def channel(self, user: str = USER) -> Client:
        """Return a new client with channel 1 open."""
        client = self.client(user)
        client.open(1)
        return client

    def queue(self, name: str) -> BaseQueue:
        """Return a queue of any kind, to look at."""
        return self.vhost.queues[name]

    def plain_queue(self, name: str) -> Queue:
        """Return a queue, neither a stream nor a claim queue, to look at."""
        found = self.queue(name)
        assert isinstance(found, Queue)
        return found

    def events(self) -> list[str]:
        """Return the names of the notices so far."""
        return [notice.event for notice in self.notices]

    def check(self) -> None:
        """Check what must hold between commands."""
        for vhost in self.broker.vhosts.values():
            for queue in vhost.queues.values():
                queue.check_invariants()
                self._check_unacked_bytes(queue)

    def _check_unacked_bytes(self, queue: BaseQueue) -> None:
        """Compare what the queue counts with what channels owe it, when no transaction has some of that."""
        owed = [
            int(delivery.message.body_bytes)
            for peer in self.broker.connections.values()
            for channel in peer.channels.values()
            for delivery in deliveries_of(queue, channel.ledger.unanswered())
        ]
        assert len(owed) <= queue.unacked_count
        if len(owed) == queue.unacked_count:
            assert queue.unacked_bytes == sum(owed)
        else:
            assert queue.unacked_bytes >= sum(owed)


class Client:
    """One connection. Received frames wait in order until `take`, or a method that expects one, takes them."""

    def __init__(
        self,
        harness: Harness,
        *,
        capabilities: tuple[str, ...] = CAPABILITIES,
        frame_max_bytes: int = 131072,
        channel_max: int = 2047,
        heartbeat_s: int = 0,
        certificate_user: str | None = None,
    ) -> None:
        self.harness = harness
        self.capabilities = capabilities
        self.frame_max_bytes = frame_max_bytes
        self.channel_max = channel_max
        self.heartbeat_s = heartbeat_s
        self.peer = harness.connect()
        self.connection = self.peer.connection
        self.connection.origin.certificate_user = certificate_user

    # --- bytes ----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Send bytes as they are, and let the broker come to rest."""
        self.connection.feed(data)
        self.harness.settle()

    def take_bytes(self) -> bytes:
        """Return the bytes that came and were not taken yet."""
        return self.peer.take()

    @property
    def ended(self) -> bool:
        """Whether the broker closed the socket."""
        return self.peer.ended

    def hang_up(self) -> None:
        """Cut the socket without a word."""
        self.harness.hang_up(self.peer)

    # --- the handshake --------------------------------------------------------------------------------------------

    def start(self) -> m.ConnectionStart:
        """Send the protocol header; return connection.start."""
        self.feed(PROTOCOL_HEADER)
        return self.expect(m.ConnectionStart)

    def start_ok(self, user: str = USER, password: bytes | None = None) -> None:
        """Answer connection.start over PLAIN."""
        if password is None:
            password = self.harness.passwords.get(user, b"")
        self.send(0, m.ConnectionStartOk(self.properties(), "PLAIN", b"\0" + user.encode() + b"\0" + password, "en_US"))

    def properties(self) -> Table:
        """Return what this client says about itself."""
        return {"product": "a test", "capabilities": dict.fromkeys(self.capabilities, True)}

    def handshake(self, user: str = USER, vhost: str = "/") -> None:
        """Go from the protocol header to the open connection."""
        self.start()
        self.start_ok(user)
        self.expect(m.ConnectionTune)
        self.send(0, m.ConnectionTuneOk(self.channel_max, self.frame_max_bytes, self.heartbeat_s))
        self.send(0, m.ConnectionOpen(vhost, "", False))
        self.expect(m.ConnectionOpenOk)

    def open(self, number: int) -> None:
        """Open a channel."""
        assert self.call(number, m.ChannelOpen("")) == m.ChannelOpenOk(b"")

    # --- methods --------------------------------------------------------------------------------------------------

    def send(self, number: int, *calls: Any) -> None:
        """Send methods in one piece."""
        self.feed(b"".join(method_frame(number, call) for call in calls))

    def take(self) -> list[Received]:
        """Return what came and was not taken yet, contents put together, heartbeats left out."""
        received: list[Received] = []
        frames = split_frames(self.take_bytes())
        at = 0
        while at < len(frames):
            kind, number, payload = frames[at]
            at += 1
            if kind == m.FRAME_HEARTBEAT:
                assert (number, payload) == (0, b"")
                continue
            assert kind == m.FRAME_METHOD, f"a frame of type {kind} without a method"
            method = decode_method(payload, 0, len(payload))
            content = None
            if isinstance(method, m.BasicDeliver | m.BasicGetOk | m.BasicReturn):
                kind, content_number, payload = frames[at]
                assert (kind, content_number) == (m.FRAME_HEADER, number)
                at += 1
                assert payload[:4] == b"\0\x3c\0\0", "class 60, and a weight of 0"
                properties = decode_properties(payload, 0, len(payload))
                missing = int.from_bytes(payload[4:12], "big")
                bodies: list[bytes] = []
                while missing:
                    kind, content_number, body = frames[at]
                    assert (kind, content_number) == (m.FRAME_BODY, number)
                    assert 0 < len(body) <= missing
                    missing -= len(body)
                    bodies.append(body)
                    at += 1
                content = Content(properties, b"".join(bodies), tuple(8 + len(body) for body in bodies))
            received.append(Received(number, method, content))
        return received

    def expect(self, kind: type[M], number: int | None = None) -> M:
        """Return the only thing that came, which is a `kind`."""
        received = self.take()
        assert len(received) == 1, f"expected a {kind.__name__}, got {received}"
        assert isinstance(received[0].method, kind), f"expected a {kind.__name__}, got {received}"
        assert number is None or received[0].channel == number
        return received[0].method

    def pick(self, kind: type[M]) -> M:
        """Return the first `kind` that came; everything else, deliveries for instance, stays to be taken."""
        data = self.take_bytes()
        at = 0
        for frame_type, _, payload in split_frames(data):
            end = at + 8 + len(payload)
            if frame_type == m.FRAME_METHOD:
                method = decode_method(payload, 0, len(payload))
                if isinstance(method, kind):
                    self.peer.received += data[:at] + data[end:]
                    return method
            at = end
        raise AssertionError(f"no {kind.__name__} came")

    def nothing(self) -> None:
        """Expect that nothing came and the connection is as it was."""
        assert self.take() == []
        assert not self.ended

    def call(self, number: int, call: Any) -> Any:
        """Send a method and return its one answer."""
        self.send(number, call)
        received = self.take()
        assert len(received) == 1, f"{call} was answered by {received}"
        assert received[0].channel == number
        return received[0].method

    def refusal(self) -> Refusal:
        """Return the close that is the last thing that came, and answer it."""
        received = self.take()
        assert received, "nothing came"
        close = received[-1].method
        failing = _method_type(close.class_id, close.method_id)
        if isinstance(close, m.ConnectionClose):
            self.send(0, m.ConnectionCloseOk())
            if close.reply_code == FRAME_ERROR:
                self.harness.pass_time(LINGER_S)  # where frames are broken no close-ok can be recognised
            assert self.ended
            assert self.take_bytes() == b""
            return Refusal("connection", close.reply_code, close.reply_text, failing)
        assert isinstance(close, m.ChannelClose), f"expected a close, got {received}"
        self.send(received[-1].channel, m.ChannelCloseOk())
        self.nothing()
        return Refusal("channel", close.reply_code, close.reply_text, failing)

    def refused(self, number: int, call: Any) -> Refusal:
        """Send a method, expect a close, answer it and return it; after a channel's close the channel is reopened."""
        self.send(number, call)
        refusal = self.refusal()
        if refusal.scope == "channel":
            self.open(number)
        return refusal

    # --- words for what tests do often ------------------------------------------------------------------------------

    def declare(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Table | None = None,
        number: int = 1,
    ) -> m.QueueDeclareOk:
        """Declare a queue."""
        declared = self.call(number, queue_declare(name, passive, durable, exclusive, auto_delete, arguments))
        assert isinstance(declared, m.QueueDeclareOk), declared
        return declared

    def declare_exchange(
        self, name: str, kind: str = "direct", *, internal: bool = False, arguments: Table | None = None
    ) -> None:
        """Declare an exchange."""
        declared = self.call(1, exchange_declare(name, kind, internal=internal, arguments=arguments))
        assert declared == m.ExchangeDeclareOk()

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Table | None = None) -> None:
        """Bind a queue."""
        bound = self.call(1, m.QueueBind(0, queue, exchange, key, False, encode_table(arguments or {})))
        assert bound == m.QueueBindOk()

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes = b"",
        *,
        number: int = 1,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        """Publish a message in one piece."""
        self.feed(publish_frames(exchange, key, body, number, mandatory, immediate, properties))

    def consume(
        self,
        queue: str,
        tag: str = "",
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Table | None = None,
        number: int = 1,
    ) -> str:
        """Consume and return the consumer tag; deliveries stay to be taken."""
        self.send(number, basic_consume(queue, tag, no_ack, exclusive, arguments))
        return self.pick(m.BasicConsumeOk).consumer_tag

    def get(self, queue: str, *, no_ack: bool = False, number: int = 1) -> Received | None:
        """Get a message, or None when the queue is empty."""
        self.send(number, m.BasicGet(0, queue, no_ack))
        (answer,) = self.take()
        if isinstance(answer.method, m.BasicGetEmpty):
            return None
        assert isinstance(answer.method, m.BasicGetOk), answer
        return answer

    def deliveries(self) -> list[Received]:
        """Return what came, which is deliveries only."""
        received = self.take()
        assert all(isinstance(each.method, m.BasicDeliver) for each in received), received
        return received

    def bodies(self) -> list[bytes]:
        """Return the bodies of what came, which is deliveries only."""
        return [body_of(each) for each in self.deliveries()]


def body_of(received: Received) -> bytes:
    """Return the body of something with a content."""
    assert received.content is not None
    return received.content.body


def bodies(client: Client, name: str = "q") -> list[bytes]:
    """Take everything out of a queue, and return the bodies."""
    found = []
    while (got := client.get(name, no_ack=True)) is not None:
        found.append(body_of(got))
    return found


def _method_type(class_id: int, method_id: int) -> type[Any] | tuple[int, int] | None:
    spec = METHODS.get(class_id << 16 | method_id)
    if spec is not None:
        return spec.type
    return (class_id, method_id) if class_id or method_id else None


def queue_declare(
    name: str,
    passive: bool = False,
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    arguments: Table | None = None,
) -> m.QueueDeclare:
    """Make a queue.declare."""
    return m.QueueDeclare(0, name, passive, durable, exclusive, auto_delete, False, encode_table(arguments or {}))


def exchange_declare(
    name: str,
    kind: str = "direct",
    *,
    passive: bool = False,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: Table | None = None,
) -> m.ExchangeDeclare:
    """Make an exchange.declare."""
    encoded = encode_table(arguments or {})
    return m.ExchangeDeclare(0, name, kind, passive, durable, auto_delete, internal, False, encoded)


def basic_consume(
    queue: str, tag: str = "", no_ack: bool = False, exclusive: bool = False, arguments: Table | None = None
) -> m.BasicConsume:
    """Make a basic.consume."""
    return m.BasicConsume(0, queue, tag, False, no_ack, exclusive, False, encode_table(arguments or {}))


def publish_frames(
    exchange: str,
    key: str,
    body: bytes = b"",
    number: int = 1,
    mandatory: bool = False,
    immediate: bool = False,
    properties: dict[str, Any] | None = None,
) -> bytes:
    """Encode a whole publish."""
    publish = m.BasicPublish(0, exchange, key, mandatory, immediate)
    return method_frame(number, publish) + content_frames(number, body, properties)
