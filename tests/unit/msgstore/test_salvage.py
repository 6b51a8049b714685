"""What is taken from a damaged frame, and what is not: (recovery.py, replay.trusted_end)."""

from __future__ import annotations

from librt.vecs import append, vec
from mypy_extensions import i64

from warren.msgstore.checksum import CRC32C, checksum_function
from warren.msgstore.message import Envelope, build_message
from warren.msgstore.records import RecordWriter
from warren.msgstore.replay import trusted_end

CHECKSUM = checksum_function(CRC32C)


def one(number: int) -> vec[i64]:
    return append(vec[i64](), number)


def message(body: bytes) -> bytes:
    writer = RecordWriter(CHECKSUM)
    writer.message(build_message(Envelope("", "q"), b"\0\0", body, 131072, True), 0, one(1), one(1))
    return b"".join(writer.take_chunks())


def deleted(queue_id: int) -> bytes:
    writer = RecordWriter(CHECKSUM)
    writer.queue_deleted(queue_id)
    return b"".join(writer.take_chunks())


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_a_record_with_a_damaged_body_is_stepped_over() -> None:
    first = message(b"x" * 100)
    payload = flip(first, 90) + deleted(7)
    assert trusted_end(CHECKSUM, payload, 0, len(payload)) == len(payload)


def test_a_damaged_length_leads_nowhere() -> None:
    """A publisher could have put a record into the body that it leads to."""
    planted = deleted(7)
    head = len(message(b""))
    for padding in range(8):
        first = message(b"\0" * padding + planted * 4)
        for length in range(32, len(first), 8):
            damaged = first[:4] + length.to_bytes(4, "big") + first[8:]
            assert trusted_end(CHECKSUM, damaged, 0, len(damaged)) == 0, (head, padding, length)


def test_nothing_is_believed_behind_the_end_of_the_payload() -> None:
    payload = deleted(7)
    assert trusted_end(CHECKSUM, payload + message(b"x"), 0, len(payload)) == len(payload)
    assert trusted_end(CHECKSUM, payload, 0, len(payload) - 8) == 0
