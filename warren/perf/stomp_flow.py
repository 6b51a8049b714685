"""STOMP 1.2 for the load tool: SEND to topics, with receipts where ``--confirms`` asks for them.

Destinations are ``/topic/PREFIX.NUMBER``. ``--ack`` subscribes in the mode client, and acknowledges cumulatively after
``--ack-batch`` messages. With ``--durable`` subscriptions are durable, and are ended at the end.

Receipts are the places of messages in the batch; RECEIPT comes in their order, so counting is enough.
"""

from __future__ import annotations

from typing import Final

from warren.perf.client import Address, BrokerError, PerfConnection
from warren.perf.flow import Batch, PerfPublisher
from warren.perf.meter import Histogram
from warren.perf.protocol_run import Dialect, FrameConsumer
from warren.perf.workload import Workload

_HEAD_BYTES_MAX: Final = 65536


def frame(command: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """Return a frame; the headers need no escapes."""
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


def _error(address: Address, data: bytes | bytearray) -> BrokerError:
    """Return the text of an ERROR, or that something else came."""
    head, _, rest = bytes(data).lstrip(b"\r\n").partition(b"\n\n")
    said = next((line[8:] for line in head.split(b"\n") if line.startswith(b"message:")), head[:80])
    detail = rest.partition(b"\0")[0].decode(errors="replace").strip()
    return BrokerError(f"{address} answered: {said.decode(errors='replace')}{f': {detail}' if detail else ''}")


class StompConnection(PerfConnection):
    """A connection that has logged in, blocking."""

    def log_in_as(self, name: str) -> None:
        """Send CONNECT and await CONNECTED."""
        address = self.address
        login = {"accept-version": "1.2", "host": address.vhost, "login": address.user, "passcode": address.password}
        self.send(frame("CONNECT", login | {"client-id": name, "heart-beat": "0,0"}))
        head = self.answer(b"CONNECTED")
        server = next((line[7:] for line in head.split(b"\n") if line.startswith(b"server:")), b"?")
        product, _, version = server.decode(errors="replace").partition("/")
        self.server_properties = {"product": product, "version": version}

    def answer(self, command: bytes) -> bytes:
        """Return the head of the next frame, which has that command and no body."""
        while b"\0" not in self.leftover:
            self.receive_more()
        data, _, rest = bytes(self.leftover).lstrip(b"\r\n").partition(b"\0")
        if not data.startswith(command + b"\n"):
            raise _error(self.address, data)
        self.leftover[:] = rest
        return data

    def close(self) -> None:
        """Say DISCONNECT, and wait until the broker has handled everything before it and closes. Never raises: the
        peer may be gone already.
        """
        try:
            self.sock.settimeout(5.0)
            self.send(frame("DISCONNECT", {"receipt": "done"}))
            self.drain()
        except (BrokerError, OSError):
            pass  # the error cannot be reported to anyone
        finally:
            self.sock.close()


class StompPublisher(PerfPublisher):
    """Counts RECEIPT."""

    def read_confirms(self, now_ns: int) -> None:
        if not self.receive():
            return
        where = self.connection.address
        inbox, stop = self._inbox, self._inbox_filled
        end = inbox.rfind(b"\0", 0, stop) + 1
        frames = bytes(inbox[:end]).split(b"\0")[:-1]
        confirms = self.confirms
        for each in frames:
            due = b"RECEIPT\nreceipt-id:%06d\n" % (confirms.settled % self.batch.count)
            if not each.lstrip(b"\r\n").startswith(due):
                raise _error(where, each)
            confirms.settle(confirms.settled + 1, multiple=False)
        self.keep_from(end)
        self.note_latency(now_ns)


class StompConsumer(FrameConsumer):
    """Counts MESSAGE. `ack_batch`: after so many one ACK for all; 0: none."""

    def __init__(
        self, connection: PerfConnection, *, ack_batch: int, body_bytes: int, stamped: bool, latency: Histogram
    ) -> None:
        super().__init__(connection, body_bytes=body_bytes, stamped=stamped, latency=latency)
        self._body_bytes = body_bytes
        self._ack_batch = ack_batch
        self._answered = 0
        self._last_ack = b""

    def length_at(self, at: int) -> int:
        # Line ends between two frames belong to the second one.
        buffer = self.buffer
        start = at
        while start < self.filled and buffer[start] in (10, 13):
            start += 1
        head_end = buffer.find(b"\n\n", start, self.filled)
        if head_end < 0:
            if self.filled - start > _HEAD_BYTES_MAX:
                raise BrokerError(f"{self.connection.address} sent no STOMP")
            return 0
        if buffer[start : start + 8] != b"MESSAGE\n":
            raise _error(self.connection.address, buffer[start : self.filled])
        return head_end + 2 + self._body_bytes + 1 - at

    def body_at(self, at: int, length: int) -> int:
        if self.buffer[at + length - 1]:
            raise BrokerError(f"{self.connection.address} delivered a message of another size")
        return at + length - 1 - self._body_bytes

    def alike(self, at: int, length: int) -> int:
        # Numbers in the heads become longer now and then: what follows has this length until it does not end here.
        buffer = self.buffer
        head_bytes = length - 1 - self._body_bytes
        count = (self.filled - at) // length
        while count > 1:
            stop = at + count * length
            last = stop - length
            if (
                not any(buffer[at + length - 1 : stop : length])
                and buffer[at:stop:length] == buffer[at : at + 1] * count
                and buffer[last : last + 9] == buffer[at : at + 9]
                and buffer.find(b"\n\n", last + 2, stop) == last + head_bytes - 2
            ):
                return count
            count //= 2
        return 1

    def answers(self, at: int, length: int, count: int) -> bytes:
        batch = self._ack_batch
        if not batch:
            return b""
        answers: list[bytes] = []
        first = self.received - count
        due = self._answered + batch
        while due <= self.received:
            answers.append(self._ack(at + (due - first - 1) * length, length))
            self._answered = due
            due += batch
        self._last_ack = self._ack(at + (count - 1) * length, length)
        return b"".join(answers)

    def _ack(self, at: int, length: int) -> bytes:
        start = self.buffer.find(b"\nack:", at, at + length) + 5
        return b"ACK\nid:" + bytes(self.buffer[start : self.buffer.index(b"\n", start)]) + b"\n\n\0"

    def last_answer(self) -> bytes:
        return self._last_ack if self._ack_batch and self.received > self._answered else b""


class Stomp(Dialect):
    """The dialect."""

    scheme = "stomp"
    port = 61613

    def open(self, address: Address, name: str) -> StompConnection:
        connection = StompConnection(address, name=name)
        connection.log_in_as(name)
        return connection

    def consumer(self, address: Address, work: Workload, index: int, latency: Histogram) -> StompConsumer:
        connection = self.open(address, f"{work.prefix}-consumer-{index}")
        headers = _subscription(work, index) | {"ack": "auto" if work.auto_ack else "client", "receipt": "subscribed"}
        if work.prefetch and not work.auto_ack:
            headers["prefetch-count"] = str(work.prefetch)
        connection.send(frame("SUBSCRIBE", headers))
        connection.answer(b"RECEIPT")
        return StompConsumer(
            connection,
            ack_batch=0 if work.auto_ack else work.ack_batch,
            body_bytes=work.size_bytes,
            stamped=work.stamped,
            latency=latency,
        )

    def messages(self, work: Workload, index: int, body: bytes, count: int) -> list[bytes]:
        headers = {"destination": _destination(work, index), "content-length": str(len(body))}
        if work.persistent:
            headers["persistent"] = "true"
        if not work.confirms:
            return [frame("SEND", headers, body)] * count
        return [frame("SEND", headers | {"receipt": f"{number:06}"}, body) for number in range(min(count, 1_000_000))]

    def publisher(
        self, connection: PerfConnection, batch: Batch, work: Workload, index: int, latency: Histogram
    ) -> PerfPublisher:
        return StompPublisher(connection, batch, window=work.confirms, confirm_latency=latency)

    def clean(self, address: Address, work: Workload) -> None:
        if not work.durable:
            return
        with self.open(address, f"{work.prefix}-cleaner") as connection:
            for index in range(work.consumers):
                # Subscribe again first: unsubscribing then deletes the queue of the durable subscription.
                connection.send(frame("SUBSCRIBE", _subscription(work, index) | {"receipt": "there"}))
                connection.answer(b"RECEIPT")
                connection.send(frame("UNSUBSCRIBE", _subscription(work, index) | {"receipt": "gone"}))
                _skip_messages(connection)


def _skip_messages(connection: StompConnection) -> None:
    """Read on until the receipt that a subscription is gone."""
    while b"RECEIPT\nreceipt-id:gone\n" not in connection.leftover:
        del connection.leftover[: max(0, len(connection.leftover) - 64)]
        connection.receive_more()
    connection.leftover.clear()


def _destination(work: Workload, index: int) -> str:
    return f"/topic/{work.prefix}.{index % work.queues}"


def _subscription(work: Workload, index: int) -> dict[str, str]:
    found = {"destination": _destination(work, index), "id": f"{work.prefix}-{index}"}
    return found | {"durable": "true", "auto-delete": "false"} if work.durable else found
