"""A client of AMQP 1.0 without loop and socket, on the `Engine`: performatives in and out, taken apart by hand.

The broker's own codec, which has tests against other codecs, encodes everything between client and broker.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from engine import Client, Engine
from peer_frames import PASSWORD, USER

from warren.amqp10.peer import Amqp10Peer
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
from warren.channels.connection import Connection
from warren.channels.origin import Origin

__all__ = ["ATTACH", "BEGIN", "CLOSE", "DETACH", "DISPOSITION", "END", "FLOW", "OPEN", "TRANSFER"]

NAMES = {
    OPEN: "open",
    BEGIN: "begin",
    ATTACH: "attach",
    FLOW: "flow",
    TRANSFER: "transfer",
    DISPOSITION: "disposition",
    DETACH: "detach",
    END: "end",
    CLOSE: "close",
    SASL_OUTCOME: "sasl-outcome",
    0x40: "sasl-mechanisms",
}


class Frame(NamedTuple):
    """A performative of the broker. `fields`: those that are there."""

    name: str
    channel: int
    fields: list[Any]
    payload: bytes

    def field(self, at: int) -> Any:
        return self.fields[at] if at < len(self.fields) else None


def split_frames(data: bytes) -> list[Frame]:
    """Take whole frames apart; protocol headers and empty frames are left out."""
    found: list[Frame] = []
    at = 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            at += 8
            continue
        end = at + int.from_bytes(data[at : at + 4], "big")
        assert at < end <= len(data), f"half a frame: {data[at:]!r}"
        if end - at > 8:
            reader = Reader(data, at + 4 * data[at + 4], end)
            value = reader.value()
            assert isinstance(value, Described)
            payload = data[reader.pos : end]
            channel = int.from_bytes(data[at + 6 : at + 8], "big")
            found.append(Frame(NAMES[cast(int, value.descriptor)], channel, cast("list[Any]", value.value), payload))
        at = end
    return found


def section(code: int, value: object) -> bytes:
    return encode(Described(ULong(code), value))


def message(body: bytes = b"", *, durable: bool = False, before: bytes = b"") -> bytes:
    """Return the sections of a message with one data section; `before` stands between its header and that."""
    return section(0x70, [durable]) + before + section(0x75, body)


def sections(payload: bytes) -> dict[int, Any]:
    """Take a message apart: its sections by their numbers."""
    found: dict[int, Any] = {}
    reader = Reader(payload, 0, len(payload))
    while reader.pos < len(payload):
        value = reader.value()
        assert isinstance(value, Described)
        found[cast(int, value.descriptor)] = value.value
    return found


class Amqp10Client:
    """One client. Each action lets the broker come to rest, and returns its answers."""

    def __init__(self, harness: Engine, *, certificate_user: str | None = None) -> None:
        self.harness = harness
        origin = Origin("127.0.0.1:50001", "127.0.0.1:5672", "127.0.0.1", certificate_user)
        joined = harness.broker.join(Amqp10Peer, origin)
        assert isinstance(joined, Amqp10Peer)
        self.peer = joined
        self.client = Client(cast(Connection, joined))
        harness.clients[joined.key] = self.client
        self.next_id = 0

    @property
    def ended(self) -> bool:
        return self.client.ended

    def stall(self, *, stalled: bool) -> None:
        """Read nothing, or read again."""
        if stalled:
            self.client.stalled = True
        else:
            self.harness.wake(self.client)

    def hang_up(self) -> None:
        self.harness.hang_up(self.client)

    def raw(self, data: bytes, *, settle: bool = True) -> bytes:
        self.peer.feed(data)
        if settle:
            self.harness.settle()
        return self.client.take()

    def feed(self, data: bytes, *, settle: bool = True) -> list[Frame]:
        return split_frames(self.raw(data, settle=settle))

    def take(self) -> list[Frame]:
        """Return what has come since."""
        return split_frames(self.client.take())

    def send(self, code: int, fields: list[Any], channel: int = 0, *, settle: bool = True) -> list[Frame]:
        return self.feed(frame(channel, code, fields), settle=settle)

    # --- a session with everything --------------------------------------------------------------------------------

    def login(self, user: str = USER, password: str = PASSWORD) -> Frame:
        """Log in; return the outcome."""
        self.feed(SASL_HEADER)
        response = f"\0{user}\0{password}".encode()
        (outcome,) = self.feed(frame(0, SASL_INIT, [Symbol("PLAIN"), response], frame_type=FRAME_SASL))
        assert outcome.name == "sasl-outcome"
        return outcome

    def open(self, vhost: str = "/", **given: Any) -> list[Frame]:
        """Open the connection."""
        self.login()
        assert self.raw(AMQP_HEADER) == AMQP_HEADER
        fields = ["client", f"vhost:{vhost}", UInt(given.pop("max_frame", 131072)), None, given.pop("idle", None)]
        assert not given
        return self.send(OPEN, fields)

    def begin(self, channel: int = 0, window: int = 2048) -> Frame:
        (begun,) = self.send(BEGIN, [None, UInt(self.next_id), UInt(window), UInt(window)], channel)
        return begun

    def sender(self, handle: int, address: str | None, *, channel: int = 0, **given: Any) -> list[Frame]:
        """Attach a link to send on."""
        mode = UByte(given.pop("mode", 2))
        target = described(TARGET, [address]) if given.pop("has_target", True) else None
        fields = [given.pop("name", f"sender-{handle}"), UInt(handle), False, mode, UByte(0), described(SOURCE, [])]
        fields += [target, None, None, UInt(0), None, None, None, given.pop("properties", None)]
        assert not given
        return self.send(ATTACH, fields, channel)

    def receiver(self, handle: int, address: str | None, *, channel: int = 0, **given: Any) -> list[Frame]:
        """Attach a link to receive on."""
        mode = UByte(given.pop("mode", 0))
        source: list[Any] = [
            address,
            None,
            None,
            None,
            given.pop("dynamic", None),
            None,
            None,
            given.pop("filter", None),
        ]
        fields = [
            given.pop("name", f"receiver-{handle}"),
            UInt(handle),
            True,
            mode,
            UByte(0),
            described(SOURCE, source),
        ]
        most = given.pop("message_max", None)
        fields += [described(TARGET, []), None, None, None, most, None, None, given.pop("properties", None)]
        assert not given
        return self.send(ATTACH, fields, channel)

    def transfer_frame(
        self, handle: int, payload: bytes, *, settled: bool = False, more: bool = False, channel: int = 0, **given: Any
    ) -> bytes:
        delivery_id = given.pop("delivery_id", self.next_id)
        assert not given
        tag = delivery_id.to_bytes(4, "big")
        fields = [UInt(handle), UInt(delivery_id), tag, UInt(0), settled, more]
        head = frame(channel, TRANSFER, fields)
        self.next_id += 1
        return (len(head) + len(payload)).to_bytes(4, "big") + head[4:] + payload

    def transfer(self, handle: int, payload: bytes, *, settle: bool = True, **given: Any) -> list[Frame]:
        """Send one delivery; flows that answer it are left out."""
        found = self.feed(self.transfer_frame(handle, payload, **given), settle=settle)
        return [each for each in found if each.name != "flow"]

    def credit(
        self, handle: int, credit: int, *, count: int = 0, window: int = 2048, channel: int = 0, **given: Any
    ) -> list[Frame]:
        """Give a receiving link credit; return what comes."""
        seen = given.pop("seen", 0)
        fields: list[Any] = [UInt(seen), UInt(window), UInt(self.next_id), UInt(2048), UInt(handle)]
        fields += [UInt(count), UInt(credit)]
        fields += [None, given.pop("drain", None), given.pop("echo", None)]
        assert not given
        return self.send(FLOW, fields, channel)

    def settle(
        self,
        first: int,
        last: int,
        state: Any,
        *,
        settled: bool = True,
        channel: int = 0,
        fields: list[Any] | None = None,
    ) -> list[Frame]:
        """Say what became of deliveries."""
        given = None if state is None else described(state, fields or [])
        return self.send(DISPOSITION, [True, UInt(first), UInt(last), settled, given], channel)


def amqp10_client(harness: Engine, **given: Any) -> Amqp10Client:
    """Return a client that has opened a connection and begun a session."""
    client = Amqp10Client(harness)
    (opened,) = client.open(**given)
    assert opened.name == "open", opened
    assert client.begin().name == "begin"
    return client
