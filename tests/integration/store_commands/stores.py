"""Stores that the commands are tried on, and the words that the tests of all of them share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import typer.testing
from store_directory import (
    STORE_ID,
    TIME_MS,
    StoreDirectory,
    ack,
    checkpoint_page,
    checkpoint_queue,
    content,
    epoch,
    message,
    page,
    queue,
)

from warren.amqp.field_table import Timestamp, encode_table
from warren.msgstore.files.file_system import OsFileSystem
from warren.msgstore.files.quarantine import QUARANTINE
from warren.msgstore.files.sealed_files import STREAMS, SealedFiles, sealed_path
from warren.msgstore.log.checksum import CRC32C
from warren.msgstore.log.columns import Columns, ColumnsWriter
from warren.msgstore.log.jobs import SealJob
from warren.msgstore.log.message import Envelope, build_message
from warren.msgstore.tools.format import (
    FRAME_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    Record,
    SegmentHeader,
)
from warren.server.store_commands import store_app

Lines = list[dict[str, Any]]
HEADERS = encode_table(
    {
        "n": -1,
        "t": Timestamp(5),
        "b": b"\x01",
        "d": Decimal("1.5"),
        "f": float("nan"),
        "l": ["x", {"y": True}, None],
    }
)


def run(*arguments: object) -> tuple[int, Lines]:
    """Run `warren store` in this process; return its exit code and the lines on standard output."""
    done = typer.testing.CliRunner().invoke(store_app, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


def of_type(lines: Lines, kind: str) -> Lines:
    return [line for line in lines if line["type"] == kind]


def problems(lines: Lines) -> list[str]:
    return [line["what"] for line in of_type(lines, "problem")]


def small_store(path: Path, **options: Any) -> StoreDirectory:
    """Two queues, three segments, one restart; the frames with messages are followed by others."""
    store = StoreDirectory(path, **options)
    store.frame(epoch(1), queue(1, "orders"), queue(2, "käse", "/tests"))
    store.frame(message((1, 0), (2, 0), body=b"both"), message((1, 1), body=b"one"))
    store.frame(message((1, 2), body=b"two" * 1000, properties={"delivery_mode": 2}), ack(1, (0, 1)))
    store.begin_segment()
    store.frame(message((2, 1), body=bytes(range(256)), exchange="amq.topic", routing_key="a.b"))
    store.frame(message((1, 3), body=b"three"), ack(2, (0, 1)))
    store.epoch = 2
    store.begin_segment()
    store.frame(epoch(2))
    store.frame(message((1, 4), body=b"four"))
    return store


def with_forged_frame(store: StoreDirectory, tag: bytes = b"guessing") -> tuple[int, int]:
    """Append a frame whose message holds one of another store; return the LSN of both."""
    other = StoreDirectory(store.path.parent / "other")
    other.end_lsn = store.end_lsn + 256
    other.frame(message((1, 66), body=b"forged"), store_tag=tag)
    forged = other.file().read_bytes()[SEGMENT_HEADER_BYTES:]
    start = FRAME_HEAD_BYTES + 24 + 16 + len("q") + len(message((1, 0), body=b"")["body"]["content"]) + 7
    lsn = store.frame(message((1, 9), body=bytes(256 - start) + forged + bytes(100)))
    assert store.file().read_bytes()[store.offset(lsn) + 256 :].startswith(forged)
    return lsn, lsn + 256


def rewrite_header(store: StoreDirectory, segment: int, **fields: Any) -> None:
    data = store.file(segment).read_bytes()
    header = SegmentHeader.parse(data)
    header.update(fields)
    store.file(segment).write_bytes(SegmentHeader.build(header) + data[SEGMENT_HEADER_BYTES:])


def bodies(lines: Lines) -> list[object]:
    return [line.get("body") for line in of_type(lines, "message")]


def dumped(path: Path, queue: str, vhost: str = "/") -> list[object]:
    code, lines = run("dump-queue", path, "--queue", queue, "--vhost", vhost)
    assert (code, problems(lines)) == (0, [])
    return bodies(lines)


def checkpointed_store(path: Path) -> StoreDirectory:
    """A queue with a page in the log, one in the checkpoint, and a message and an ack after it."""
    store = StoreDirectory(path)
    first = store.frame(epoch(1), queue(1, "orders"), message((1, 0), body=b"first"), message((1, 1), body=b"gone"))
    first += FRAME_HEAD_BYTES + 24 + 40
    sizes = [len(Record.build(message((1, 0), body=body), algorithm=CRC32C)) for body in (b"first", b"second")]
    store.begin_segment()
    entries = [(first, 0, sizes[0], 5), (0, 0, 0, 0)]
    page_lsn = store.frame(page(1, 0, entries)) + FRAME_HEAD_BYTES
    second = store.frame(message((1, 256), body=b"second")) + FRAME_HEAD_BYTES
    pages = [
        checkpoint_page(0, [], lsn=page_lsn, length=64, live_count=1, body_bytes=5),
        checkpoint_page(1, [(second, sizes[1], 6)]),
    ]
    store.checkpoint(
        checkpoint_queue(1, "orders", next_number=257, pages=pages, delivered_below=256), live_refs={1: 1, 2: 2}
    )
    store.frame(message((1, 257), body=b"third"), message((1, 258), body=b"gone too"))
    store.begin_segment()
    store.frame(ack(1, (258, 1)), message((1, 259), body=b"fourth"))
    return store


def repaired(store: StoreDirectory) -> Lines:
    """Repair dry and then for real; return what was said. Nothing may be gone afterwards, and all be well."""
    before = store.snapshot()
    code, planned = run("repair", store.path)
    assert code == 1
    assert store.snapshot() == before
    store.path.chmod(0o700)
    code, lines = run("repair", store.path, "--apply")
    assert code == 0
    assert [{**line, "applied": True} for line in planned if "applied" in line] == [
        line for line in lines if "applied" in line
    ]
    after = store.snapshot()
    assert set(before.values()) <= set(after.values()) | {b""}
    assert "nothing to repair" in [line.get("what") for line in run("repair", store.path)[1]]
    assert run("verify", store.path)[0] == 0
    return lines


def actions(lines: Lines) -> list[str]:
    return [line["what"] for line in of_type(lines, "action")]


class StreamStore:
    """Queue ``orders``, and a stream ``events``: four chunks of five messages in two files, and a tail in the log.

    The log has not forgotten the last three of what is sealed.
    """

    def __init__(self, path: Path) -> None:
        self.log = StoreDirectory(path)
        self.path = path
        self.fs = OsFileSystem(str(path / "messages"))
        self.fs.mkdir(STREAMS)
        self.fs.mkdir(QUARANTINE)
        self._sealed = SealedFiles(self.fs, lambda handle, _: self.fs.sync(handle), self.fs.sync_directory)
        self._sealed.store_id = STORE_ID
        self.places: list[int] = []  # where the chunks begin in their files
        self.log.frame(epoch(1), queue(1, "orders"), queue(2, "events"))
        self.log.frame(message((1, 0), body=b"order"))
        for offset in range(23):
            self.log.frame(message((2, offset), body=body_at(offset), properties=KEPT, time_ms=TIME_MS + offset))
        self.log.frame(ack(2, (0, 17)))
        for segment, position, first in ((0, 0, 0), (0, 1, 5), (10, 0, 10), (10, 1, 15)):
            self.seal(range(first, first + 5), segment, position and self.size(segment))
        self.log.frame(message((2, 23), body=body_at(23), properties=KEPT))

    def seal(
        self, offsets: Iterable[int], segment: int, position: int, *, end: int | None = None, compacted: bool = False
    ) -> int:
        """Seal a chunk; return where it begins."""
        job = SealJob(2, segment, position, chunk_of(list(offsets), end, compacted=compacted))
        self._sealed.seal(job)
        self._sealed.take_handles()
        self.places.append(job.placed_at)
        return job.placed_at

    def file(self, segment: int) -> Path:
        return self.path / "messages" / sealed_path(2, segment)

    def size(self, segment: int) -> int:
        return self.file(segment).stat().st_size

    def flip(self, segment: int, position: int) -> None:
        """Flip a bit of a sealed file."""
        data = bytearray(self.file(segment).read_bytes())
        data[position] ^= 0x10
        self.file(segment).write_bytes(data)

    def snapshot(self) -> dict[str, bytes]:
        return self.log.snapshot()


KEPT = {"content_type": "text/plain", "delivery_mode": 2, "headers": HEADERS}


def body_at(offset: int) -> bytes:
    return b"event %d" % offset


def chunk_of(offsets: list[int], end: int | None = None, *, compacted: bool = False) -> Columns:
    """Return a chunk of events that stands for the offsets up to `end`, or to the last of them."""
    writer = ColumnsWriter(compacted=compacted)
    payload = content(b"", KEPT)[7:-1]
    for offset in offsets:
        made = build_message(Envelope("", "q"), payload[12:], body_at(offset), 4096, True)
        made.time_ms = TIME_MS + offset
        writer.add(offset, made, False)
    return writer.finish(offsets[0], offsets[-1] + 1 if end is None else end)
