"""Data directories with a message store in them, written by the reference grammar and by nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warren.amqp import specification
from warren.msgstore.log.checksum import CRC32C, checksum
from warren.msgstore.tools import format as grammar

STORE_ID: Final = bytes(range(16))
TIME_MS: Final = 1_700_000_000_000
Record = dict[str, Any]


def content(body: bytes, properties: Mapping[str, Any] | None = None, channel: int = 1, frame_max: int = 4096) -> bytes:
    """Return an AMQP header frame and as many body frames as `body` takes."""
    header = {"class_id": 60, "weight": 0, "body_size": len(body), "properties": properties or {}}
    room = frame_max - 8
    frames = [{"type": 2, "channel": channel, "payload": header}]
    frames += [
        {"type": 3, "channel": channel, "payload": body[start : start + room]} for start in range(0, len(body), room)
    ]
    return b"".join(specification.Frame.build(frame) for frame in frames)


def message(
    *places: tuple[int, int],
    body: bytes = b"",
    exchange: str = "",
    routing_key: str = "q",
    properties: Mapping[str, Any] | None = None,
    flags: int = 0,
    channel: int = 1,
    frame_max: int = 4096,
    time_ms: int | None = None,
) -> Record:
    """Return a MESSAGE record; `places` are (queue id, sequence number). With a time it is TIMED."""
    return {
        "kind": grammar.MESSAGE,
        "flags": flags if time_ms is None else flags | grammar.TIMED,
        "body": {
            "frame_max_bytes": frame_max,
            "channel": channel,
            "places": [{"queue_id": queue, "sequence_number": number} for queue, number in places],
            "exchange": exchange,
            "routing_key": routing_key,
            "content": content(body, properties, channel, frame_max),
            "time_ms": time_ms,
        },
    }


def ack(queue_id: int, *ranges: tuple[int, int]) -> Record:
    """Return an ACK record; `ranges` are (first, count)."""
    pairs = [{"first": first, "count": count} for first, count in ranges]
    return {"kind": grammar.ACK, "body": {"queue_id": queue_id, "ranges": pairs}}


def queue(queue_id: int, name: str, vhost: str = "/", *, lane: int = 0, transient: bool = False) -> Record:
    """Return a QUEUE record."""
    return {
        "kind": grammar.QUEUE,
        "flags": grammar.DROPPABLE if transient else 0,
        "body": {
            "lane": lane,
            "queue_id": queue_id,
            "vhost": vhost,
            "name": name,
            "queue_flags": grammar.TRANSIENT_QUEUE if transient else 0,
        },
    }


def queue_deleted(queue_id: int) -> Record:
    """Return a QUEUE_DELETED record."""
    return {"kind": grammar.QUEUE_DELETED, "body": {"queue_id": queue_id}}


def page(queue_id: int, page_number: int, entries: Sequence[tuple[int, int, int, int]], flags: int = 0) -> Record:
    """Return a PAGE record; `entries` are (lsn, flags, record bytes, body bytes)."""
    return {
        "kind": grammar.PAGE,
        "flags": flags,
        "body": {
            "queue_id": queue_id,
            "page_number": page_number,
            "entries": [
                {"location": {"lsn": lsn, "flags": bits}, "record_bytes": record_bytes, "body_bytes": body_bytes}
                for lsn, bits, record_bytes, body_bytes in entries
            ],
        },
    }


def epoch(number: int, time_ms: int = TIME_MS) -> Record:
    """Return an EPOCH record."""
    return {"kind": grammar.EPOCH, "body": {"epoch": number, "time_ms": time_ms}}


def life(number: int, life_id: bytes) -> Record:
    """Return a LIFE record."""
    return {"kind": grammar.LIFE, "flags": grammar.IGNORABLE, "body": {"epoch": number, "life_id": life_id}}


def checkpoint_segment(
    number: int, base_lsn: int, capacity: int, end_lsn: int, live_refs: int, live_bytes: int
) -> Record:
    """Return what a checkpoint says of a segment."""
    return {
        "segment": number,
        "base_lsn": base_lsn,
        "capacity": capacity,
        "end_lsn": end_lsn,
        "live_refs": live_refs,
        "live_bytes": live_bytes,
    }


def checkpoint_page(
    number: int,
    entries: Sequence[tuple[int, int, int]],
    *,
    lsn: int = 0,
    length: int = 0,
    live_count: int | None = None,
    body_bytes: int | None = None,
    expiring: Sequence[int] = (),
) -> Record:
    """Return what a checkpoint says of a page; `entries` are (lsn, record bytes, body bytes), lsn 0: not live.

    Those at the places `expiring` have a time to live of their own.
    """
    live = [size for place, _, size in entries if place]
    return {
        "page_number": number,
        "lsn": lsn,
        "length": length,
        "live_count": len(live) if live_count is None else live_count,
        "body_bytes": sum(live) if body_bytes is None else body_bytes,
        "entries": [
            {
                "location": {"lsn": place, "flags": grammar.EXPIRING if at in expiring else 0},
                "record_bytes": record_bytes,
                "body_bytes": size,
            }
            for at, (place, record_bytes, size) in enumerate(entries)
        ],
    }


def checkpoint_queue(
    queue_id: int,
    name: str,
    vhost: str = "/",
    *,
    next_number: int,
    pages: Sequence[Record] = (),
    delivered_below: int = 0,
    damaged_count: int = 0,
    lane: int = 0,
    has_expiring: bool = False,
) -> Record:
    """Return what a checkpoint says of a queue."""
    return {
        "lane": lane,
        "index_flags": grammar.HAS_EXPIRING if has_expiring else 0,
        "queue_id": queue_id,
        "next_number": next_number,
        "delivered_below": delivered_below,
        "damaged_count": damaged_count,
        "vhost": vhost,
        "name": name,
        "pages": list(pages),
    }


class StoreDirectory:
    """A data directory in the making: segments and frames come one after the other, as a broker writes them."""

    def __init__(self, path: Path, *, algorithm: int = CRC32C, capacity: int = 1 << 16) -> None:
        self.path = path
        self.log = path / "messages" / "log"
        self.log.mkdir(parents=True)
        self.epoch = 1
        self.segment = 0
        self.end_lsn = 0
        self._algorithm = algorithm
        self._capacity = capacity
        self._base_lsn = -capacity
        self._previous_crc = 0
        self._bases: dict[int, int] = {}
        self.begin_segment()

    def begin_segment(self, *, store_id: bytes = STORE_ID) -> None:
        """Go on in a new file."""
        self.segment += 1
        self._base_lsn += self._capacity
        self.end_lsn = self._base_lsn + grammar.SEGMENT_HEADER_BYTES
        header = {
            "algorithm": self._algorithm,
            "store_id": store_id,
            "segment": self.segment,
            "base_lsn": self._base_lsn,
            "capacity": self._capacity,
            "epoch": self.epoch,
        }
        self._store_tag = store_id[: grammar.STORE_TAG_BYTES]
        self._bases[self.segment] = self._base_lsn
        self.file().write_bytes(grammar.SegmentHeader.build(header))

    def restart(self, crc: int) -> None:
        """Go on as the next process does when the last frame that counts has this crc."""
        self._previous_crc = crc
        self.epoch += 1
        self.begin_segment()

    @property
    def previous_crc(self) -> int:
        """The crc of the last frame."""
        return self._previous_crc

    def frame(
        self,
        *records: Record,
        durable_lsn: int | None = None,
        store_tag: bytes | None = None,
        is_continued: bool = False,
    ) -> int:
        """Append a frame; return its LSN. All before it was synced and it is this store's, unless said otherwise."""
        lsn = self.end_lsn
        frame = {
            "lsn": lsn,
            "durable_lsn": lsn if durable_lsn is None else durable_lsn,
            "time_ms": TIME_MS + lsn,
            "epoch": self.epoch,
            "previous_crc": self._previous_crc,
            "store_tag": self._store_tag if store_tag is None else store_tag,
            "records": list(records),
            "is_continued": is_continued,
        }
        data = grammar.Frame.build(frame, algorithm=self._algorithm)
        with self.file().open("ab") as file:
            file.write(data)
        self.end_lsn += len(data)
        self._previous_crc = int.from_bytes(data[52:56], "big")
        return lsn

    def checkpoint(self, *queues: Record, live_refs: Mapping[int, int], **fields: Any) -> None:
        """Write a checkpoint that reaches up to here; `live_refs` by segment number."""
        ends = {number: base + self.file(number).stat().st_size for number, base in self._bases.items()}
        value = {
            "algorithm": self._algorithm,
            "store_id": STORE_ID,
            "lsn": self.end_lsn,
            "previous_crc": self._previous_crc,
            "epoch": self.epoch,
            "next_queue_id": max((queue["queue_id"] for queue in queues), default=0) + 1,
            "next_segment": self.segment + 1,
            "next_base_lsn": self._base_lsn + self._capacity,
            "page_entries": 256,
            "segments": [
                checkpoint_segment(number, base, self._capacity, ends[number], live_refs.get(number, 0), 0)
                for number, base in self._bases.items()
            ],
            "queues": list(queues),
            "doomed": [],
        }
        path = self.path / "messages" / "checkpoint"
        path.write_bytes(grammar.Checkpoint.build({**value, **fields}))

    def checkpoint_of_version(self, major: int, minor: int) -> bytes:
        """Change the version of the checkpoint; return it."""
        path = self.path / "messages" / "checkpoint"
        data = path.read_bytes()
        data = data[:8] + major.to_bytes(2, "big") + minor.to_bytes(2, "big") + data[12:-4]
        data += checksum(self._algorithm, data).to_bytes(4, "big")
        path.write_bytes(data)
        return data

    def preallocate(self) -> None:
        """Give the newest segment the zeros that a running broker's has."""
        with self.file().open("r+b") as file:
            file.truncate(self._capacity)

    def file(self, segment: int | None = None) -> Path:
        """Return the path of a segment file, by default the newest."""
        return self.log / f"{segment or self.segment:010d}"

    def offset(self, lsn: int) -> int:
        """Return where the byte at `lsn` is in its file."""
        return lsn % self._capacity

    def flip(self, lsn: int) -> None:
        """Flip a bit of the byte at `lsn`."""
        file = self.file(lsn // self._capacity + 1)
        data = bytearray(file.read_bytes())
        data[self.offset(lsn)] ^= 0x10
        file.write_bytes(data)

    def snapshot(self) -> dict[str, bytes]:
        """Return every file below the data directory."""
        return {
            path.relative_to(self.path).as_posix(): path.read_bytes()
            for path in sorted(self.path.rglob("*"))
            if path.is_file()
        }
