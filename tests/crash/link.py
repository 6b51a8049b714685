"""One AMQP connection that never blocks, driven by a loop together with many others.

1. Handlers run in the order of the bytes: `on_method` for every method but the closes, `on_delivery` for a content.
2. A connection ends by end of file, by reset, or by connection.close, which is answered; afterwards `ended` is true and
   nothing is sent. The owner judges by `close_code` which side ended it and whether that is right.
3. `receive_all` reads what the kernel still holds after the peer was killed.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from warren.amqp import methods
from warren.amqp.codec import decode_method, frame, method_frame
from warren.amqp.errors import REPLY_SUCCESS
from warren.amqp_client import frames
from warren.perf.client import CHANNEL, Address, PerfConnection

DEADLINE_S = 60.0
# Content may need a poll or two.
_POLL_MS = 5
_RECEIVE_BYTES = 1 << 18
_UNSENT_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Delivery:
    """One basic.deliver with its content."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    header: bytes
    body: bytes


class Link:
    """A connection with channel 1 open. Subclasses say what they do with what comes, and what they do next."""

    def __init__(self, address: Address, name: str) -> None:
        connection = PerfConnection.open(address, name=name)
        self.name = name
        self.ended = False
        self.close_code = 0
        self.close_text = ""
        self.socket = connection.sock
        self.socket.setblocking(False)
        self._frame_max_bytes = connection.frame_max_bytes
        self._received = connection.leftover
        self._unsent = bytearray()
        self._method: methods.BasicDeliver | None = None
        self._header = b""
        self._body: list[bytes] = []
        self._missing_bytes = -1

    # --- for subclasses ---------------------------------------------------------------------------------------------

    def on_method(self, method: Any) -> None:
        """Take a method that carries no content."""
        raise AssertionError(f"{self.name} did not ask for {method}")

    def on_delivery(self, delivery: Delivery) -> None:
        """Take a message."""
        raise AssertionError(f"{self.name} did not ask for {delivery}")

    def step(self) -> bool:
        """Do the next thing; return whether there was one."""
        return False

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(self, octets: bytes) -> None:
        """Send, or keep what the kernel does not take."""
        if not self.ended:
            self._unsent += octets
            self.flush()

    def send_method(self, method: Any) -> None:
        self.send(method_frame(CHANNEL, method))

    def publish_octets(self, exchange: str, routing_key: str, header: bytes, body: bytes) -> bytes:
        """Return a whole publish."""
        parts = [frames.publish_method(CHANNEL, exchange, routing_key), frame(methods.FRAME_HEADER, CHANNEL, header)]
        piece = self._frame_max_bytes - methods.FRAME_OVERHEAD_BYTES
        parts += [frames.body_frame(CHANNEL, body[at : at + piece]) for at in range(0, len(body), piece)]
        return b"".join(parts)

    def flush(self) -> None:
        """Hand the kernel what it takes."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent[:_RECEIVE_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            # The reason is read from the other direction; unsent bytes are lost.
            self._unsent.clear()

    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def is_clogged(self) -> bool:
        """Tell whether the broker takes so little that nothing should be added."""
        return len(self._unsent) > _UNSENT_BYTES_MAX

    # --- receiving --------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Read once and handle what is complete."""
        try:
            octets = self.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            octets = b""
        if not octets:
            self._end()
            return
        self._received += octets
        at = 0
        while not self.ended:
            found = frames.maybe_frame(self._received, at, len(self._received))
            if found is None:
                break
            at = found.end
            self._take(found)
        del self._received[:at]

    def receive_all(self) -> None:
        """Read to the end of a connection whose other side is dead or about to end it."""
        self.socket.settimeout(DEADLINE_S)
        while not self.ended:
            self.receive()

    def hang_up(self) -> None:
        """Close the connection and wait until the broker has released everything that belonged to it."""
        self.send(method_frame(0, methods.ConnectionClose(REPLY_SUCCESS, "bye", 0, 0)))
        self.receive_all()
        assert self.close_code == 0, f"{self.name}: {self.close_code} {self.close_text}"

    def _end(self) -> None:
        self.ended = True
        self._unsent.clear()
        self.socket.close()

    def _take(self, found: frames.Frame) -> None:
        payload = bytes(self._received[found.start + 7 : found.end - 1])
        if found.kind == methods.FRAME_METHOD:
            method = decode_method(payload, 0, len(payload))
            if isinstance(method, methods.BasicDeliver):
                self._method = method
            elif isinstance(method, methods.ConnectionClose | methods.ChannelClose):
                self._closed(method)
            elif isinstance(method, methods.ConnectionCloseOk):
                self._end()
            else:
                self.on_method(method)
            return
        if found.kind == methods.FRAME_HEADER:
            self._header = payload
            self._body = []
            self._missing_bytes = int.from_bytes(payload[4:12], "big")
        elif found.kind == methods.FRAME_BODY:
            self._body.append(payload)
            self._missing_bytes -= len(payload)
        if self._missing_bytes == 0:
            self._missing_bytes = -1
            assert self._method is not None
            self.on_delivery(Delivery(*self._method, self._header, b"".join(self._body)))

    def _closed(self, close: methods.ConnectionClose | methods.ChannelClose) -> None:
        self.close_code, self.close_text = close.reply_code, close.reply_text
        if isinstance(close, methods.ConnectionClose):
            # A broker that closes reads on until the answer; one that is killed meanwhile never will.
            self.socket.settimeout(DEADLINE_S)
            self.send(method_frame(0, methods.ConnectionCloseOk()))
        self._end()


def nack(delivery_tag: int, *, requeue: bool) -> methods.BasicNack:
    """Return a basic.nack for one delivery."""
    return methods.BasicNack(delivery_tag, multiple=False, requeue=requeue)


def turn(links: Sequence[Link], timeout_ms: int) -> None:
    """Send and receive whatever is ready on all links, waiting at most `timeout_ms`."""
    poll = select.poll()
    by_descriptor = {link.socket.fileno(): link for link in links if not link.ended}
    for descriptor, link in by_descriptor.items():
        poll.register(descriptor, select.POLLIN | (select.POLLOUT if link.has_unsent() else 0))
    for descriptor, events in poll.poll(timeout_ms):
        link = by_descriptor[descriptor]
        if events & select.POLLOUT:
            link.flush()
        if events & ~select.POLLOUT:
            link.receive()


def turn_until(links: Sequence[Link], condition: Callable[[], bool], what: str) -> None:
    """Serve `links` until `condition` holds; fail naming `what` when that takes too long."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        ended = [f"{link.name}: {link.close_code} {link.close_text}" for link in links if link.ended]
        assert not ended, f"waiting for {what}, these ended: {ended}"
        assert time.monotonic() < give_up_at, f"waited {DEADLINE_S:.0f} s in vain for {what}"
        turn(links, _POLL_MS)
