"""AMQP 1.0 for the load tool: queues, declared by the node ``/management``, as AMQP 0-9-1 has them.

Publisher ``i`` and consumer ``i`` use queue ``i % queues``, so the consumers of a queue share its messages. With
``--confirms`` deliveries are unsettled and the answers of the broker are counted, without it settled; with ``--ack``
consumers answer them, ``--ack-batch`` at a time. ``--prefetch`` is the credit of a consumer.

    transfer    size:u32 02 00 channel:u16  00 53 14 list, then sections of which the body is the last

1. Delivery ids go up by one with each transfer of a session; so the ids in a batch are rewritten before it is sent
   again, and a consumer finds them by counting from its first.
2. A message takes one frame: the frames of the broker have to be large enough for it, and ours take any.
3. A publisher never sends more than the credit of the link and the window of the session allow.
"""

from __future__ import annotations

from struct import pack_into, unpack_from
from typing import Any, Final
from urllib.parse import quote

from warren.amqp10.performatives import (
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    FRAME_SASL,
    OPEN,
    SASL_HEADER,
    SASL_INIT,
    SASL_OUTCOME,
    SOURCE,
    TARGET,
    TRANSFER,
    described,
    frame,
)
from warren.amqp10.values import Described, Reader, Symbol, UByte, UInt, ULong, encode
from warren.perf.client import Address, BrokerError, PerfConnection
from warren.perf.flow import Batch, PerfPublisher, running_octets
from warren.perf.meter import Histogram
from warren.perf.protocol_run import Dialect, FrameConsumer
from warren.perf.workload import Workload

_HEADER: Final = 0x70
_PROPERTIES: Final = 0x73
_DATA: Final = 0x75
_VALUE: Final = 0x77
_ACCEPTED: Final = Described(ULong(0x24), [])
_ANY_SIZE: Final = 0xFFFFFFFF
_WINDOW: Final = 1 << 30  # transfers that we take, and say that we may send
_CREDIT: Final = 20_000  # of a consumer without --prefetch
_SETTLED: Final = 1
_UNSETTLED: Final = 0
# In place of the id of a delivery, and of its tag, until it is known.
_ID: Final = 0x7A7B7C7D
_ERRORS: Final = (DETACH, END, CLOSE)


def performative(data: bytes | bytearray, at: int, length: int) -> tuple[int, list[Any]]:
    """Return the code and the fields of the frame at ``at``, -1: it has nothing in it."""
    if length == 8:
        return -1, []
    reader = Reader(bytes(data[at : at + length]), 4 * data[at + 4], length)
    value = reader.value()
    assert isinstance(value, Described) and isinstance(value.descriptor, int)
    fields: Any = value.value
    return int(value.descriptor), list(fields)


def payload_of(data: bytes) -> list[Described]:
    """Return the bytes after the performative of a frame."""
    reader = Reader(data, 4 * data[4], len(data))
    reader.value()
    found = []
    while reader.pos < len(data):
        value = reader.value()
        assert isinstance(value, Described)
        found.append(value)
    return found


def _failure(address: Address, fields: list[Any]) -> BrokerError:
    """Return why the broker has ended a link, a session or the connection."""
    for value in fields:
        if isinstance(value, Described) and isinstance(value.value, list):
            return BrokerError(f"{address} answered: {': '.join(str(part) for part in value.value if part)}")
    return BrokerError(f"{address} ended the connection without a reason")


class Amqp10Connection(PerfConnection):
    """A connection that has opened and begun a session, blocking.

    `frame_bytes`: the largest frame of the broker; `first_transfer`: the number of the first one that it sends.
    """

    frame_bytes = 512
    first_transfer = 0

    def log_in_as(self, name: str) -> None:
        """Log in, open and begin."""
        address = self.address
        response = f"\0{address.user}\0{address.password}".encode()
        self.send(SASL_HEADER + frame(0, SASL_INIT, [Symbol("PLAIN"), response], frame_type=FRAME_SASL))
        if self.answer(SASL_OUTCOME)[0]:
            raise BrokerError(f"{address} refused the login")
        opening = frame(0, OPEN, [name, f"vhost:{address.vhost}", UInt(_ANY_SIZE)])
        self.send(AMQP_HEADER + opening + frame(0, BEGIN, [None, UInt(0), UInt(_WINDOW), UInt(_WINDOW)]))
        opened = [*self.answer(OPEN), *[None] * 10]
        self.frame_bytes = int(opened[2] or _ANY_SIZE)
        told = opened[9] or {}
        self.server_properties = {str(key): str(value) for key, value in told.items()}
        self.first_transfer = int(self.answer(BEGIN)[1])

    def attach(
        self, handle: int, *, is_receiver: bool, address: str, mode: int, name: str = "", properties: object = None
    ) -> int:
        """Attach a link, and wait until the broker has done so, too; return the broker's first delivery count."""
        ends = [described(SOURCE, [address]), described(TARGET, [address])]
        fields = [name or f"link-{handle}", UInt(handle), is_receiver, UByte(mode), UByte(0), *ends]
        self.send(frame(0, ATTACH, [*fields, None, None, UInt(0), None, None, None, properties]))
        answer = [*self.answer(ATTACH), *[None] * 10]
        if answer[5 if is_receiver else 6] is None:
            self.answer(DETACH)  # which says why, and is an error here
        return int(answer[9] or 0)

    def flow(self, *, handle: int, transfers: int, count: int, credit: int) -> bytes:
        """Return a flow that gives credit, after so many transfers, when deliveries are counted so far."""
        window = [UInt((self.first_transfer + transfers) & _ANY_SIZE), UInt(_WINDOW), UInt(0), UInt(_WINDOW)]
        return frame(0, FLOW, [*window, UInt(handle), UInt(count & _ANY_SIZE), UInt(credit)])

    def answer(self, code: int) -> list[Any]:
        """Return the fields of the next performative with this code; flows and those of SASL before it are left out."""
        found = self.answer_frame(code)
        return performative(found, 0, len(found))[1]

    def answer_frame(self, code: int) -> bytes:
        """Return the next frame with this code."""
        while True:
            while len(self.leftover) < 8:
                self.receive_more()
            if self.leftover.startswith(b"AMQP"):
                del self.leftover[:8]
                continue
            size = int.from_bytes(self.leftover[:4], "big")
            if not 8 <= size <= 1 << 20:
                raise BrokerError(f"{self.address} sent no AMQP 1.0")
            while len(self.leftover) < size:
                self.receive_more()
            found = bytes(self.leftover[:size])
            del self.leftover[:size]
            came, fields = performative(found, 0, size)
            if came in _ERRORS:
                raise _failure(self.address, fields)
            if came == code:
                return found

    def close(self) -> None:
        """Say close, and wait until the broker has handled everything before it and closes. Never raises: the peer may
        be gone already.
        """
        try:
            self.sock.settimeout(5.0)
            self.send(frame(0, CLOSE, []))
            self.drain()
        except (BrokerError, OSError):
            pass  # the error cannot be reported to anyone
        finally:
            self.sock.close()


class Topology:
    """Requests to the node ``/management``, one after the other."""

    def __init__(self, connection: Amqp10Connection) -> None:
        self._connection = connection
        self._sent = 0
        count = 0
        for handle, is_receiver in ((0, False), (1, True)):
            count = connection.attach(
                handle,
                is_receiver=is_receiver,
                address="/management",
                mode=_SETTLED,
                name="management",
                properties={Symbol("paired"): True},
            )
        connection.send(connection.flow(handle=1, transfers=0, count=count, credit=1_000_000))

    def request(self, method: str, path: str, body: dict[str, Any] | None) -> int:
        """Make a request; return the status."""
        properties = described(_PROPERTIES, [str(self._sent), None, path, method, "$me"])
        sections = encode(properties) + encode(Described(ULong(_VALUE), body))
        self._connection.send(_transfer(0, self._sent, sections, settled=True))
        self._sent += 1
        found = payload_of(self._connection.answer_frame(TRANSFER))
        for each in found:
            if each.descriptor == _PROPERTIES and isinstance(each.value, list):
                return int(str(each.value[3]))
        raise BrokerError(f"{self._connection.address} gave an answer without a status")


def _transfer(handle: int, number: int, sections: bytes, *, settled: bool) -> bytes:
    head = frame(0, TRANSFER, [UInt(handle), UInt(number), number.to_bytes(4, "big"), UInt(0), settled])
    return (len(head) + len(sections)).to_bytes(4, "big") + head[4:] + sections


class TransferBatch(Batch):
    """Transfers whose delivery ids and tags continue those of the ones before."""

    def __init__(self, batch: Batch) -> None:
        length = batch.message_bytes
        super().__init__([bytes(batch.data[at : at + length]) for at in range(0, len(batch.data), length)], stamp_at=-1)
        self.stamp_at = batch.stamp_at
        pattern = _ID.to_bytes(4, "big")
        id_at = self.data.index(pattern)
        self._columns = (id_at, self.data.index(pattern, id_at + 4))

    def mark(self, first: int, stop: int, *, now_ns: int, published: int) -> None:
        super().mark(first, stop, now_ns=now_ns, published=published)
        if first >= stop:
            return
        for start in self._columns:
            at = first * self.message_bytes + start
            if stop - first == 1:
                pack_into(">I", self.data, at, published & _ANY_SIZE)
                continue
            end = stop * self.message_bytes
            for column in range(4):
                octets = running_octets(published & _ANY_SIZE, stop - first, 1 << 8 * (3 - column))
                self.data[at + column : end : self.message_bytes] = octets


class Amqp10Publisher(PerfPublisher):
    """Counts dispositions, and keeps to the limits of link and session."""

    def __init__(self, connection: PerfConnection, batch: Batch, *, window: int, confirm_latency: Histogram) -> None:
        super().__init__(connection, TransferBatch(batch), window=window, confirm_latency=confirm_latency)
        self._end = 0  # how many may be sent in total
        self._read_frames(0)

    def allowance(self) -> int:
        return min(super().allowance(), self._end - self._started)

    def read_confirms(self, now_ns: int) -> None:
        if self.receive():
            self._read_frames(now_ns)

    def _read_frames(self, now_ns: int) -> None:
        inbox, at = self._inbox, 0
        while self._inbox_filled - at >= 8:
            length = int.from_bytes(inbox[at : at + 4], "big")
            if length > len(inbox):
                raise BrokerError(f"{self.connection.address} sent a publisher a frame of {length} bytes")
            if at + length > self._inbox_filled:
                break
            code, fields = performative(inbox, at, length)
            self._take(code, [*fields, *[None] * 8])
            at += length
        self.keep_from(at)
        self.note_latency(now_ns)

    def _take(self, code: int, fields: list[Any]) -> None:
        if code in _ERRORS:
            raise _failure(self.connection.address, fields)
        if code == FLOW and fields[4] is not None:
            self._end = min(int(fields[0] or 0) + int(fields[1]), int(fields[5] or 0) + int(fields[6]))
        elif code == DISPOSITION:
            first = int(fields[1])
            last = first if fields[2] is None else int(fields[2])
            count = ((last - first) & _ANY_SIZE) + 1
            state = fields[4]
            if not (isinstance(state, Described) and state.descriptor == _ACCEPTED.descriptor):
                self.nacked += count
            # Ids are the low 32 bits of numbers below `_started`.
            number = self._started - 1 - ((self._started - 1 - first) & _ANY_SIZE)
            confirms = self.confirms
            if confirms.is_in_order and number == confirms.settled:
                confirms.settle(number + count, multiple=True)
                return
            for each in range(number, number + count):
                confirms.settle(each + 1, multiple=False)


class Amqp10Consumer(FrameConsumer):
    """Counts transfers, and gives credit again. `ack_batch`: after so many one disposition for all; 0: none."""

    def __init__(
        self,
        connection: Amqp10Connection,
        *,
        ack_batch: int,
        credit: int,
        counted_from: int,
        body_bytes: int,
        stamped: bool,
        latency: Histogram,
    ) -> None:
        super().__init__(connection, body_bytes=body_bytes, stamped=stamped, latency=latency)
        size = bytes([0xA0, body_bytes]) if body_bytes < 256 else b"\xb0" + body_bytes.to_bytes(4, "big")
        self._data_head = b"\x00\x53\x75" + size
        self._body_bytes = body_bytes
        self._ack_batch = ack_batch
        self._opened = connection
        self._credit = credit
        self._counted_from = counted_from
        self._granted_at = 0  # how many had come when it was given last
        self._answered = 0
        self._first = -1  # the id of the first delivery

    def length_at(self, at: int) -> int:
        if self.filled - at < 8:
            return 0
        (length,) = unpack_from(">I", self.buffer, at)
        if length < 8 or length > len(self.buffer):
            raise BrokerError(f"{self.connection.address} sent no AMQP 1.0, or a frame of {length} bytes")
        return int(length)

    def body_at(self, at: int, length: int) -> int:
        buffer = self.buffer
        if length < 11 or buffer[at + 8 : at + 11] != b"\x00\x53\x14":
            code, fields = performative(buffer, at, length)
            if code in _ERRORS:
                raise _failure(self.connection.address, fields)
            return -1
        if self._first < 0:
            self._first = int(performative(buffer, at, length)[1][1])
        body_at = at + length - self._body_bytes
        if not buffer.startswith(self._data_head, body_at - len(self._data_head)):
            raise BrokerError(f"{self.connection.address} delivered a message of another size")
        return body_at

    def alike(self, at: int, length: int) -> int:
        buffer = self.buffer
        count = (self.filled - at) // length
        head = at + length - self._body_bytes - len(self._data_head)
        while count > 1:
            stop = at + count * length
            last = stop - length
            if all(
                buffer[at + column : stop : length] == buffer[at + column : at + column + 1] * count
                for column in (0, 1, 2, 3, 9, 10)
            ) and buffer.startswith(self._data_head, head + last - at):
                return count
            count //= 2
        return 1

    def answers(self, at: int, length: int, count: int) -> bytes:
        said = b""
        batch = self._ack_batch
        if batch and self.received - self._answered >= batch:
            said += self._accept(self.received - (self.received - self._answered) % batch)
        if 2 * (self.received - self._granted_at) >= self._credit:
            self._granted_at = self.received
            count = self._counted_from + self.received
            said += self._opened.flow(handle=0, transfers=self.received, count=count, credit=self._credit)
        return said

    def _accept(self, received: int) -> bytes:
        first, last = self._first + self._answered, self._first + received - 1
        self._answered = received
        return frame(0, DISPOSITION, [True, UInt(first & _ANY_SIZE), UInt(last & _ANY_SIZE), True, _ACCEPTED])

    def last_answer(self) -> bytes:
        return self._accept(self.received) if self._ack_batch and self.received > self._answered else b""


class Amqp10(Dialect):
    """The dialect."""

    scheme = "amqp"
    port = 5672

    def open(self, address: Address, name: str) -> Amqp10Connection:
        connection = Amqp10Connection(address, name=name)
        connection.log_in_as(name)
        return connection

    def copies(self, work: Workload, index: int) -> int:
        return int(any(each % work.queues == index % work.queues for each in range(work.consumers)))

    def prepare(self, address: Address, work: Workload) -> None:
        self.clean(address, work)
        with self.open(address, f"{work.prefix}-declarer") as connection:
            topology = Topology(connection)
            for index in range(work.queues):
                status = topology.request("PUT", _queue(work, index), {"durable": work.durable})
                if status >= 300:
                    raise BrokerError(f"{address} answered with status {status} to a queue that was to be declared")

    def consumer(self, address: Address, work: Workload, index: int, latency: Histogram) -> Amqp10Consumer:
        connection = self.open(address, f"{work.prefix}-consumer-{index}")
        mode = _SETTLED if work.auto_ack else _UNSETTLED
        counted_from = connection.attach(0, is_receiver=True, address=_queue(work, index), mode=mode)
        credit = work.prefetch if work.prefetch and not work.auto_ack else _CREDIT
        connection.send(connection.flow(handle=0, transfers=0, count=counted_from, credit=credit))
        return Amqp10Consumer(
            connection,
            ack_batch=0 if work.auto_ack else work.ack_batch,
            credit=credit,
            counted_from=counted_from,
            body_bytes=work.size_bytes,
            stamped=work.stamped,
            latency=latency,
        )

    def messages(self, work: Workload, index: int, body: bytes, count: int) -> list[bytes]:
        sections = encode(Described(ULong(_HEADER), [work.persistent])) + encode(Described(ULong(_DATA), body))
        return [_transfer(0, _ID, sections, settled=not work.confirms)] * count

    def publisher(
        self, connection: PerfConnection, batch: Batch, work: Workload, index: int, latency: Histogram
    ) -> Amqp10Publisher:
        assert isinstance(connection, Amqp10Connection)
        if batch.message_bytes > connection.frame_bytes:
            size = connection.frame_bytes
            raise BrokerError(f"{connection.address} takes frames of {size} bytes, and a message has to fit into one")
        mode = _UNSETTLED if work.confirms else _SETTLED
        connection.attach(0, is_receiver=False, address=_queue(work, index), mode=mode)
        while b"\x00\x53\x13" not in connection.leftover:  # the first credit
            connection.receive_more()
        return Amqp10Publisher(connection, batch, window=work.confirms, confirm_latency=latency)

    def clean(self, address: Address, work: Workload) -> None:
        with self.open(address, f"{work.prefix}-cleaner") as connection:
            topology = Topology(connection)
            for index in range(work.queues):
                topology.request("DELETE", _queue(work, index), None)


def _queue(work: Workload, index: int) -> str:
    """Return the address of the queue of publisher or consumer ``index``."""
    return f"/queues/{quote(work.queue_name(index % work.queues), safe='')}"
