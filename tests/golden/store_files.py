"""The golden files of the message store: what each of them stands for, and how they are written.

``store-1.0/NAME.hex`` holds the bytes of one thing in format 1.0, 16 a line. A released format is there for ever:
files are added when the format grows, and never changed.

    python -m golden.store_files    (in tests/) writes the files that are missing
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from store_directory import (
    ack,
    checkpoint_page,
    checkpoint_queue,
    checkpoint_segment,
    epoch,
    life,
    message,
    page,
    queue,
    queue_deleted,
)

from warren.msgstore.log.checksum import CRC32, CRC32C
from warren.msgstore.tools.format import (
    CLEAN,
    DELIVERED,
    DROPPABLE,
    EXPIRES,
    EXPIRING,
    MINOR_WITHOUT_EPOCHS,
    MINOR_WITHOUT_LIVES,
    MOVED,
    REPUBLISHED,
    STORE_TAG_BYTES,
    Checkpoint,
    Frame,
    Record,
    SegmentHeader,
    build_segment,
)

DIRECTORY: Final = Path(__file__).parent / "store-1.0"

SEGMENT_HEADER: Final[dict[str, Any]] = {
    "algorithm": CRC32C,
    "store_id": bytes.fromhex("0123456789abcdeffedcba9876543210"),
    "segment": 12,
    "base_lsn": 0x1_0000_0000,
    "capacity": 0x400_0000,
    "epoch": 3,
}
RECORDS: Final[dict[str, dict[str, Any]]] = {
    "epoch": epoch(3, 1_700_000_000_123),
    "life": life(3, bytes.fromhex("00112233445566778899aabbccddeeff")),
    "queue": queue(17, "orders", "/"),
    "queue_transient": queue(18, "größe", "/tests", transient=True),
    "queue_lane": queue(20, "orders", "/", lane=0xFFFE),
    "message": message(
        (17, 0),
        body=b'{"n": 1}',
        exchange="amq.topic",
        routing_key="orders.new",
        properties={"content_type": "application/json", "delivery_mode": 2},
        channel=3,
        frame_max=131072,
    ),
    "message_fan_out": message((17, 1), (18, 0), (19, 0xFFFFFFFFFF), body=bytes(range(200)), frame_max=100),
    "message_empty": message((17, 2)),
    "message_moved": message((17, 3), body=b"kept", flags=MOVED),
    "message_droppable": message((18, 1), body=b"paged out", flags=DROPPABLE),
    # Large enough to be written from where it is.
    "message_large": message((17, 4), body=b"warren 16 bytes " * 520, frame_max=5000),
    "message_timed": message((17, 5), (20, 0), body=b"held", time_ms=1_700_000_000_789),
    "message_expires": message(
        (17, 6), body=b"short-lived", properties={"expiration": "60000"}, flags=EXPIRES | MOVED, time_ms=2**40
    ),
    "message_delivered": message((17, 8), body=b"once more", flags=DELIVERED, time_ms=1_700_000_000_789),
    "message_republished": message((17, 9), body=b"passed on", properties={"delivery_mode": 2}, flags=REPUBLISHED),
    "message_large_timed": message((17, 7), body=b"a multiple of 8 " * 520, frame_max=5000, time_ms=1),
    "message_droppable_expires": message(
        (18, 2), properties={"priority": 9, "expiration": "0"}, flags=DROPPABLE | EXPIRES, time_ms=1_700_000_000_789
    ),
    "ack": ack(17, (0, 2), (5, 1), (1000, 1_000_000)),
    "queue_deleted": queue_deleted(18),
    "page": page(17, 2, [(0x1_0000_0800, 0, 96, 8), (0, 0, 0, 0), (0x1_0000_0860, DROPPABLE, 70, 0xFFFFFFFF)]),
    "page_transient": page(18, 0, [(0x1_0000_1000, DROPPABLE, 80, 9)], DROPPABLE),
    "page_expiring": page(17, 3, [(0x1_0000_0900, EXPIRING, 90, 8), (0x1_0000_0980, EXPIRING | DROPPABLE, 80, 0)]),
}
FRAME: Final[dict[str, Any]] = {
    "lsn": 0x1_0000_0040,
    "durable_lsn": 0xFFFF_FFF8,
    "time_ms": 1_700_000_000_456,
    "epoch": 3,
    "previous_crc": 0xDEADBEEF,
    "store_tag": SEGMENT_HEADER["store_id"][:STORE_TAG_BYTES],
    "records": [RECORDS[name] for name in ("epoch", "queue", "message", "message_fan_out", "ack")],
}
CHECKPOINT: Final[dict[str, Any]] = {
    "minor": MINOR_WITHOUT_EPOCHS,
    "algorithm": CRC32C,
    "checkpoint_flags": CLEAN,
    "store_id": SEGMENT_HEADER["store_id"],
    "lsn": 0x1_0010_0000,
    "previous_crc": 0xDEADBEEF,
    "epoch": 3,
    "next_queue_id": 21,
    "next_segment": 13,
    "next_base_lsn": 0x1_0400_0000,
    "page_entries": 4,
    "segments": [
        checkpoint_segment(9, 0xF000_0000, 0x100_0000, 0xF0FF_FFF8, 3, 400),
        checkpoint_segment(12, 0x1_0000_0000, 0x400_0000, 0x1_0010_0000, 2, 192),
    ],
    "queues": [
        checkpoint_queue(
            17,
            "orders",
            "/",
            next_number=23,
            delivered_below=9,
            damaged_count=1,
            pages=[
                checkpoint_page(2, [(0x1_0000_0800, 96, 8), (0, 0, 0)], lsn=0xF000_0100, length=96),
                checkpoint_page(3, [], lsn=0xF000_0200, length=96, live_count=4, body_bytes=1000),
                checkpoint_page(5, [(0xF000_0300, 100, 10), (0, 0, 0), (0x1_0000_0860, 70, 0xFFFFFFFF)]),
            ],
        ),
        checkpoint_queue(19, "größe", "/tests", next_number=0),
        checkpoint_queue(
            20,
            "orders",
            "/",
            next_number=2,
            lane=0xFFFE,
            has_expiring=True,
            pages=[checkpoint_page(0, [(0x1_0000_0900, 90, 8), (0x1_0000_0980, 80, 0)], expiring=[1])],
        ),
    ],
    "doomed": [{"lsn": 0xF000_0080, "length": 48}],
}
CHECKPOINT_WITH_EPOCHS: Final[dict[str, Any]] = {
    **CHECKPOINT,
    "minor": MINOR_WITHOUT_LIVES,
    "epochs": [{"epoch": 2, "first_lsn": 0xEF00_0040}, {"epoch": 3, "first_lsn": 0x1_0000_0040}],
}
CHECKPOINT_WITH_LIVES: Final[dict[str, Any]] = {
    **CHECKPOINT,
    "minor": 3,
    "epochs": [
        {"epoch": 2, "first_lsn": 0xEF00_0040, "life_id": bytes(16)},
        {"epoch": 3, "first_lsn": 0x1_0000_0040, "life_id": RECORDS["life"]["body"]["life_id"]},
    ],
}


def cases() -> list[tuple[str, bytes]]:
    """Return the name of each golden file with what the grammar builds for it."""
    built = []
    for algorithm, suffix in ((CRC32C, "crc32c"), (CRC32, "crc32")):
        header = {**SEGMENT_HEADER, "algorithm": algorithm}
        built.append((f"checkpoint.{suffix}", Checkpoint.build({**CHECKPOINT, "algorithm": algorithm})))
        with_epochs = {**CHECKPOINT_WITH_EPOCHS, "algorithm": algorithm}
        built.append((f"checkpoint_epochs.{suffix}", Checkpoint.build(with_epochs)))
        with_lives = {**CHECKPOINT_WITH_LIVES, "algorithm": algorithm}
        built.append((f"checkpoint_lives.{suffix}", Checkpoint.build(with_lives)))
        built.append((f"segment_header.{suffix}", SegmentHeader.build(header)))
        built.append((f"frame.{suffix}", Frame.build(FRAME, algorithm=algorithm)))
        built.append((f"segment.{suffix}", build_segment(header, [FRAME])))
    for name, record in RECORDS.items():
        built.append((f"{name}.crc32c", Record.build(record, algorithm=CRC32C)))
    return built


def golden(name: str) -> bytes:
    """Return the bytes of a golden file."""
    return bytes.fromhex((DIRECTORY / f"{name}.hex").read_text())


def write_missing() -> None:
    """Write the golden files that do not exist."""
    DIRECTORY.mkdir(exist_ok=True)
    for name, data in cases():
        path = DIRECTORY / f"{name}.hex"
        if not path.exists():
            lines = [data[start : start + 16].hex(" ", 4) for start in range(0, len(data), 16)]
            path.write_text("\n".join(lines) + "\n")
            print(path.name, len(data))


if __name__ == "__main__":
    write_missing()
