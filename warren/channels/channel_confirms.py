"""The confirms of a channel, from confirm.select on: basic.ack and basic.nack.

    frame     01 | channel (2) | 00 00 00 0D | method (4) | delivery tag (8) | bits (1) | CE
    method    00 3C 00 50 basic.ack      00 3C 00 78 basic.nack
    bits      1 multiple, of a basic.ack for more than one; a basic.nack is for one publish

The delivery tag is the number of a publish. When they are written is decided in `channels.confirms`.
"""

from __future__ import annotations

from librt.strings import write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, u8

from warren.amqp.codec import wire_short
from warren.amqp.methods import ACK_BYTES, BASIC_ACK, BASIC_NACK, FRAME_END, FRAME_METHOD
from warren.amqp.outbox import Outbox
from warren.channels.confirms import Confirms, PendingConfirms


class ChannelConfirms(Confirms):
    """The confirms of channel `number`, written to `outbox`."""

    def __init__(self, pending: PendingConfirms, outbox: Outbox, number: i64, *, syncs: bool) -> None:
        super().__init__(pending, outbox, syncs=syncs)
        self._number: i64 = number

    def write_confirmed(self, up_to: i64, count: i64) -> None:
        self._write(BASIC_ACK, up_to, 1 if count > 1 else 0)

    def write_refused(self, number: i64) -> None:
        self._write(BASIC_NACK, number, 0)

    def _write(self, method_id: i64, number: i64, bits: i64) -> None:
        outbox = self._outbox
        outbox.touch()
        out = outbox.writer
        out.append(FRAME_METHOD)
        write_i16_be(out, wire_short(self._number))
        write_i32_be(out, ACK_BYTES)
        write_i32_be(out, i32(method_id))
        write_i64_be(out, number)
        out.append(u8(bits))
        out.append(FRAME_END)
