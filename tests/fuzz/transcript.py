"""What a client may see of a correct broker: every byte parses, every frame fits into what came before it.

The rules, each broken by some way of failing silently:

1. Every frame is valid for the grammar, and its method is one that servers send.
2. Content is a header and bodies that add up to its size, in frames of the negotiated size, nothing between.
3. Delivery tags of a channel count from 1; confirmed tags ascend.
4. After channel.close a channel says nothing until it is opened again; after connection.close or close-ok
   the connection says nothing but close-ok.
5. Closes carry codes of their scope and a text that begins with the name of the code; 541 would be our fault.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from warren.amqp import methods as m
from warren.amqp.errors import REPLY_NAMES
from warren.amqp.methods import METHOD_IDS, METHODS, PROTOCOL_HEADER
from warren.amqp.specification import ContentHeader, MethodPayload, RawFrame, parse_frames

SOFT_CODES = {403, 404, 405, 406}
HARD_CODES = {320, 403, 501, 502, 503, 504, 505, 530, 540}
SERVER_ONLY = {
    "connection.start",
    "connection.tune",
    "connection.blocked",
    "connection.unblocked",
    "basic.return",
    "basic.deliver",
    "basic.get-ok",
    "basic.get-empty",
    "basic.ack",
    "basic.cancel",
    "connection.close",
    "channel.close",
}
CLIENT_ONLY_REPLIES = {"connection.start-ok", "connection.tune-ok", "connection.secure-ok"}
FROM_SERVER = SERVER_ONLY | {
    spec.name for spec in METHODS.values() if spec.name.endswith("-ok") and spec.name not in CLIENT_ONLY_REPLIES
}


@lru_cache(maxsize=4096)
def _method(payload: bytes) -> Any:
    return MethodPayload.parse(payload)


@lru_cache(maxsize=4096)
def _body_bytes(payload: bytes) -> int:
    header = ContentHeader.parse(payload)
    assert header.class_id == 60
    size: int = header.body_size
    return size


def forget_parsed() -> None:
    """Empty the caches, before memory is measured."""
    _method.cache_clear()
    _body_bytes.cache_clear()


class ServerChannel:
    """One channel as its client sees it."""

    def __init__(self) -> None:
        self.next_delivery_tag = 1
        self.confirmed = 0
        self.unacked: list[int] = []  # may contain tags of no-ack deliveries: a client is allowed to be wrong


class Transcript:
    """Reads what one client receives and raises AssertionError at the first thing that no broker may send."""

    def __init__(self, frame_max_bytes: int) -> None:
        self.frame_max_bytes = frame_max_bytes
        self.channels: dict[int, ServerChannel] = {}
        self.closed_channels: set[int] = set()  # by the server; a close-ok is due
        self.close_seen: Any = None
        self.silent = False  # nothing may follow
        self.methods: list[tuple[int, Any]] = []
        self.keep_methods = False
        self._content_channel = 0
        self._missing_bytes = 0
        self._expects = m.FRAME_METHOD

    def read(self, data: bytes) -> None:
        """Check `data`, which ends where a frame ends."""
        if data == PROTOCOL_HEADER:
            self.silent = True
            return
        for frame in parse_frames(data, RawFrame):
            assert not self.silent, f"a frame behind the end: {frame}"
            if self._expects != m.FRAME_METHOD:
                self._read_content(frame)
            elif frame.type == m.FRAME_HEARTBEAT:
                assert (frame.channel, frame.payload) == (0, b"")
            else:
                assert frame.type == m.FRAME_METHOD, f"expected a method: {frame}"
                self._read_method(frame.channel, _method(frame.payload))

    def _read_content(self, frame: Any) -> None:
        assert (frame.type, frame.channel) == (self._expects, self._content_channel), f"content torn apart: {frame}"
        if frame.type == m.FRAME_HEADER:
            self._missing_bytes = _body_bytes(frame.payload)
        else:
            assert 0 < len(frame.payload) <= self._missing_bytes
            assert len(frame.payload) + m.FRAME_OVERHEAD_BYTES <= self.frame_max_bytes
            self._missing_bytes -= len(frame.payload)
        self._expects = m.FRAME_BODY if self._missing_bytes else m.FRAME_METHOD

    def _read_method(self, number: int, method: Any) -> None:
        spec = METHODS[METHOD_IDS[type(method)]]
        assert spec.name in FROM_SERVER, f"a server does not send {spec.name}"
        assert (number == 0) == (spec.class_id == 10), f"{spec.name} on channel {number}"
        if self.keep_methods:
            self.methods.append((number, method))
        if self.close_seen is not None:
            assert isinstance(method, m.ConnectionCloseOk), f"{spec.name} behind connection.close"
            self.silent = True
        elif isinstance(method, m.ConnectionClose):
            _check_close(method, HARD_CODES)
            self.close_seen = method
        elif isinstance(method, m.ConnectionCloseOk):
            self.silent = True
        elif number:
            self._read_channel_method(number, method)

    def _read_channel_method(self, number: int, method: Any) -> None:
        if isinstance(method, m.ChannelOpenOk):
            assert number not in self.channels, f"channel {number} opened twice"
            self.channels[number] = ServerChannel()
            self.closed_channels.discard(number)
            return
        if isinstance(method, m.ChannelCloseOk):
            self.channels.pop(number, None)
            return
        assert number in self.channels, f"{method} on channel {number}, which is not open"
        channel = self.channels[number]
        if isinstance(method, m.ChannelClose):
            _check_close(method, SOFT_CODES)
            del self.channels[number]
            self.closed_channels.add(number)
        elif isinstance(method, m.BasicDeliver | m.BasicGetOk):
            assert method.delivery_tag == channel.next_delivery_tag
            channel.next_delivery_tag += 1
            channel.unacked.append(method.delivery_tag)
            self._expect_content(number)
        elif isinstance(method, m.BasicReturn):
            self._expect_content(number)
        elif isinstance(method, m.BasicAck):
            assert method.delivery_tag > channel.confirmed
            channel.confirmed = method.delivery_tag

    def _expect_content(self, number: int) -> None:
        self._expects = m.FRAME_HEADER
        self._content_channel = number

    def check_at_rest(self) -> None:
        """Check that no content was left half sent."""
        assert self._expects == m.FRAME_METHOD, "a content was begun and not finished"


def _check_close(method: m.ConnectionClose | m.ChannelClose, codes: set[int]) -> None:
    assert method.reply_code in codes, f"not a code for this scope: {method}"
    assert method.reply_text.startswith(REPLY_NAMES[method.reply_code] + " - "), method
