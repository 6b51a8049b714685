"""MQTT for the load tool: QoS 0, or QoS 1 with ``--confirms`` and with ``--ack``.

MQTT 3.1.1, and 5.0 where ``--prefetch`` says a Receive Maximum. Topics are ``PREFIX/NUMBER``. With ``--durable`` the
sessions of consumers outlast their connections, and are cleared at the end.

1. Packet ids of a publisher are the places of its messages in the batch, which is at least as long as the number of
   unconfirmed messages: so two messages that are under way never have the same id.
2. PUBACK comes in the order of PUBLISH (MQTT 4.6), which is checked; so counting is enough.
"""

from __future__ import annotations

from struct import pack, unpack_from
from typing import Final

from warren.perf.client import Address, BrokerError, PerfConnection
from warren.perf.flow import Batch, PerfPublisher
from warren.perf.meter import Histogram
from warren.perf.protocol_run import Dialect, FrameConsumer
from warren.perf.workload import Workload

_V3_1_1: Final = 4
_V5: Final = 5
_CONNACK: Final = 2
_PUBLISH: Final = 3
_PUBACK: Final = 4
_SUBACK: Final = 9
_DISCONNECT: Final = b"\xe0\0"
_PACKET_IDS: Final = 65535
_KEPT_S: Final = 3600


def packet(first: int, body: bytes) -> bytes:
    """Return a packet with its remaining length."""
    size, length = len(body), bytearray()
    while True:
        length.append(size & 127 | (128 if size > 127 else 0))
        size >>= 7
        if not size:
            return bytes([first]) + bytes(length) + body


def text(value: str) -> bytes:
    """Return a string with its length."""
    encoded = value.encode()
    return pack(">H", len(encoded)) + encoded


def maybe_size(data: bytes | bytearray, at: int, stop: int) -> tuple[int, int] | None:
    """Return the length of the fixed header and of the rest; None while that is still to come."""
    size = shift = 0
    for place in range(at + 1, min(at + 5, stop)):
        size |= (data[place] & 127) << shift
        shift += 7
        if data[place] < 128:
            return place + 1 - at, size
    if stop - at >= 5:
        raise BrokerError("the broker sent no MQTT: a length of more than four octets")
    return None


class MqttConnection(PerfConnection):
    """A connection that has logged in, blocking."""

    version = _V3_1_1

    def log_in_as(self, client_id: str, *, clean: bool, receive_max: int = 0) -> None:
        """Send CONNECT and await CONNACK."""
        self.version = _V5 if receive_max else _V3_1_1
        properties = b""
        if receive_max:
            given = b"\x21" + pack(">H", receive_max) + (b"" if clean else b"\x11" + pack(">I", _KEPT_S))
            properties = bytes([len(given)]) + given
        address = self.address
        user = address.user if address.vhost == "/" else f"{address.vhost}:{address.user}"
        head = text("MQTT") + bytes([self.version, 0xC2 if clean else 0xC0]) + b"\0\0" + properties
        self.send(packet(0x10, head + text(client_id) + text(user) + text(address.password)))
        answer = self.answer(_CONNACK)
        if answer[1]:
            raise BrokerError(f"{address} refused the login: code {answer[1]}")
        self.server_properties = {"product": "MQTT broker", "version": "5.0" if receive_max else "3.1.1"}

    def answer(self, kind: int) -> bytes:
        """Return the body of the next packet, which is of `kind`."""
        while True:
            sizes = maybe_size(self.leftover, 0, len(self.leftover))
            if sizes is not None and len(self.leftover) >= sum(sizes):
                found, body = self.leftover[0] >> 4, bytes(self.leftover[sizes[0] : sum(sizes)])
                if found != kind:
                    raise BrokerError(f"{self.address} sent a packet of type {found} where {kind} was due")
                del self.leftover[: sum(sizes)]
                return body
            self.receive_more()

    def close(self) -> None:
        """Say DISCONNECT, and wait until the broker has handled everything before it and closes. Never raises: the
        peer may be gone already.
        """
        try:
            self.sock.settimeout(5.0)
            self.send(_DISCONNECT)
            self.drain()
        except (BrokerError, OSError):
            pass  # the error cannot be reported to anyone
        finally:
            self.sock.close()


class MqttPublisher(PerfPublisher):
    """Counts PUBACK."""

    def read_confirms(self, now_ns: int) -> None:
        if not self.receive():
            return
        where = self.connection.address
        inbox, at, stop = self._inbox, 0, self._inbox_filled
        confirms = self.confirms
        while (sizes := maybe_size(inbox, at, stop)) is not None and at + sum(sizes) <= stop:
            if inbox[at] >> 4 != _PUBACK:
                raise BrokerError(f"{where} sent a publisher a packet of type {inbox[at] >> 4}")
            (packet_id,) = unpack_from(">H", inbox, at + 2)
            due = confirms.settled % self.batch.count + 1
            if packet_id != due:
                raise BrokerError(f"{where} answered packet {packet_id} where {due} was due")
            if sizes[1] > 2 and inbox[at + 4] >= 128:
                self.nacked += 1
            confirms.settle(confirms.settled + 1, multiple=False)
            at += sum(sizes)
        self.keep_from(at)
        self.note_latency(now_ns)


class MqttConsumer(FrameConsumer):
    """Counts PUBLISH, and answers those of QoS 1 with PUBACK."""

    def __init__(
        self, connection: MqttConnection, topic: str, *, body_bytes: int, stamped: bool, latency: Histogram
    ) -> None:
        super().__init__(connection, body_bytes=body_bytes, stamped=stamped, latency=latency)
        self._topic = text(topic)
        self._body_bytes = body_bytes
        self._version = connection.version

    def length_at(self, at: int) -> int:
        sizes = maybe_size(self.buffer, at, self.filled)
        return 0 if sizes is None else sum(sizes)

    def body_at(self, at: int, length: int) -> int:
        buffer = self.buffer
        if buffer[at] >> 4 != _PUBLISH:
            raise BrokerError(f"{self.connection.address} sent a consumer a packet of type {buffer[at] >> 4}")
        sizes = maybe_size(buffer, at, self.filled)
        assert sizes is not None
        topic_at = at + sizes[0]
        body_at = topic_at + len(self._topic) + (2 if buffer[at] & 6 else 0)
        if self._version == _V5:
            properties = maybe_size(buffer, body_at - 1, at + length)
            body_at += sum(properties) - 1 if properties is not None else 0
        if not buffer.startswith(self._topic, topic_at) or at + length - body_at != self._body_bytes:
            raise BrokerError(f"{self.connection.address} delivered something of another topic or size")
        return body_at

    def alike(self, at: int, length: int) -> int:
        buffer = self.buffer
        count = (self.filled - at) // length
        stop = at + count * length
        head = length - self._body_bytes
        fixed = head - 2 if buffer[at] & 6 else head  # a packet id differs
        if self._version == _V5:
            fixed = len(self._topic) + 2
        last = stop - length
        if buffer[at : at + fixed] != buffer[last : last + fixed]:
            return 1
        if buffer[at:stop:length] != buffer[at : at + 1] * count:
            return 1
        return count if buffer[at + 1 : stop : length] == buffer[at + 1 : at + 2] * count else 1

    def answers(self, at: int, length: int, count: int) -> bytes:
        buffer = self.buffer
        if not buffer[at] & 6:
            return b""
        sizes = maybe_size(buffer, at, self.filled)
        assert sizes is not None
        id_at, stop = at + sizes[0] + len(self._topic), at + count * length
        answers = bytearray(b"\x40\x02\0\0" * count)
        answers[2::4] = buffer[id_at:stop:length]
        answers[3::4] = buffer[id_at + 1 : stop : length]
        return bytes(answers)


class Mqtt(Dialect):
    """The dialect."""

    scheme = "mqtt"
    port = 1883

    def open(self, address: Address, name: str, *, clean: bool = True, receive_max: int = 0) -> MqttConnection:
        connection = MqttConnection(address, name=name)
        connection.log_in_as(name, clean=clean, receive_max=receive_max)
        return connection

    def consumer(self, address: Address, work: Workload, index: int, latency: Histogram) -> MqttConsumer:
        qos = 0 if work.auto_ack else 1
        connection = self.open(
            address, _consumer_id(work, index), clean=not work.durable, receive_max=work.prefetch if qos else 0
        )
        topic = _topic(work, index)
        options = b"\0" if connection.version == _V5 else b""
        connection.send(packet(0x82, b"\0\x01" + options + text(topic) + bytes([qos])))
        code = connection.answer(_SUBACK)[-1]
        if code != qos:
            raise BrokerError(f"{address} granted code {code} to a subscription of QoS {qos}")
        return MqttConsumer(connection, topic, body_bytes=work.size_bytes, stamped=work.stamped, latency=latency)

    def messages(self, work: Workload, index: int, body: bytes, count: int) -> list[bytes]:
        topic = text(_topic(work, index))
        if not work.confirms:
            return [packet(0x30, topic + body)] * count
        if work.confirms > _PACKET_IDS:
            raise ValueError(f"MQTT has {_PACKET_IDS} packet ids: --confirms {work.confirms} is more")
        return [packet(0x32, topic + pack(">H", number + 1) + body) for number in range(min(count, _PACKET_IDS))]

    def publisher(
        self, connection: PerfConnection, batch: Batch, work: Workload, index: int, latency: Histogram
    ) -> PerfPublisher:
        return MqttPublisher(connection, batch, window=work.confirms, confirm_latency=latency)

    def clean(self, address: Address, work: Workload) -> None:
        if work.durable:
            for index in range(work.consumers):
                self.open(address, _consumer_id(work, index)).close()


def _topic(work: Workload, index: int) -> str:
    return f"{work.prefix}/{index % work.queues}"


def _consumer_id(work: Workload, index: int) -> str:
    return f"{work.prefix}-consumer-{index}"
