"""The grammar of the message store and the writer that the broker uses both make the golden bytes."""

from __future__ import annotations

from typing import Any

import pytest
from librt.vecs import append, vec
from mypy_extensions import i64

from warren.msgstore.log import checkpoint, queue_index
from warren.msgstore.log import records as writing
from warren.msgstore.log.checkpoint import CheckpointReader, seal, snapshot
from warren.msgstore.log.checksum import CRC32, CRC32C, checksum_function
from warren.msgstore.log.epoch_table import NO_LIFE
from warren.msgstore.log.message import Envelope, Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.records import MessageReader, RecordWriter, frame_header, segment_header
from warren.msgstore.tools import format as grammar
from warren.msgstore.tools.format import Checkpoint, Frame, Record, parse_segment

from .store_files import CHECKPOINT_WITH_LIVES, DIRECTORY, FRAME, RECORDS, SEGMENT_HEADER, cases, golden

LIVES = CHECKPOINT_WITH_LIVES["epochs"]
EXPIRATIONS = {"message_expires": 60000, "message_droppable_expires": 0}
ALGORITHMS = pytest.mark.parametrize(("algorithm", "suffix"), [(CRC32C, "crc32c"), (CRC32, "crc32")])


@pytest.mark.parametrize(("name", "built"), cases(), ids=[name for name, _ in cases()])
def test_the_grammar_builds_the_golden_bytes(name: str, built: bytes) -> None:
    assert built == golden(name)


def test_every_golden_file_is_known() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == {f"{name}.hex" for name, _ in cases()}


@ALGORITHMS
def test_the_grammar_reads_the_golden_bytes(algorithm: int, suffix: str) -> None:
    header, frames = parse_segment(golden(f"segment.{suffix}"))
    assert header.store_id == SEGMENT_HEADER["store_id"]
    assert [Frame.build(frame, algorithm=algorithm) for frame in frames] == [golden(f"frame.{suffix}")]
    for name in ("checkpoint", "checkpoint_epochs", "checkpoint_lives"):
        whole = golden(f"{name}.{suffix}")
        assert Checkpoint.build(Checkpoint.parse(whole)) == whole
    for name in RECORDS:
        data = golden(f"{name}.crc32c")
        assert Record.build(Record.parse(data, algorithm=CRC32C), algorithm=CRC32C) == data


@pytest.mark.parametrize("name", ["MESSAGE", "ACK", "QUEUE", "QUEUE_DELETED", "PAGE", "EPOCH", "LIFE"])
def test_the_writer_and_the_grammar_number_kinds_and_flags_alike(name: str) -> None:
    assert getattr(writing, name) == getattr(grammar, name)
    for flag, flag_name in grammar.FLAG_NAMES.items():
        assert getattr(writing, flag_name) == flag
    assert (grammar.EXPIRING, grammar.HAS_EXPIRING) == (queue_index.EXPIRING, checkpoint.HAS_EXPIRING)


@pytest.mark.parametrize("name", RECORDS)
def test_the_fast_writer_writes_the_golden_bytes(name: str) -> None:
    data = golden(f"{name}.crc32c")
    writer = RecordWriter(checksum_function(CRC32C))
    write(writer, RECORDS[name])
    assert b"".join(writer.take_chunks()) == data + bytes(-len(data) % 8)
    assert (writer.payload_bytes, writer.record_count) == (len(data) + -len(data) % 8, 1)


@pytest.mark.parametrize("name", [name for name in RECORDS if name.startswith("message")])
def test_the_fast_writer_writes_the_golden_bytes_of_a_message_in_pieces(name: str) -> None:
    record, content = RECORDS[name], RECORDS[name]["body"]["content"]
    writer = RecordWriter(checksum_function(CRC32C))
    write(writer, record, [content[:20], content[20:100], content[100:]])
    write(writer, record)
    data = golden(f"{name}.crc32c")
    assert b"".join(writer.take_chunks()) == 2 * (data + bytes(-len(data) % 8))


@ALGORITHMS
def test_the_fast_writer_writes_golden_segment_headers_and_frames(algorithm: int, suffix: str) -> None:
    crc = checksum_function(algorithm)
    header = {**SEGMENT_HEADER, "algorithm": algorithm}
    number = header.pop("segment")
    assert segment_header(crc, number=number, **header) == golden(f"segment_header.{suffix}")
    writer = RecordWriter(crc)
    for record in FRAME["records"]:
        write(writer, record)
    record_count = int(writer.record_count)
    chunks = writer.take_chunks()
    fields = {name: value for name, value in FRAME.items() if name != "records"}
    head = frame_header(crc, chunks, sum(map(len, chunks)), record_count=record_count, **fields)
    assert head + b"".join(chunks) == golden(f"frame.{suffix}")


@pytest.mark.parametrize("name", [name for name in RECORDS if name.startswith("message")])
def test_a_copy_of_a_golden_message_for_fewer_places_is_what_the_grammar_builds(name: str) -> None:
    record = RECORDS[name]
    place = record["body"]["places"][-1]
    writer = RecordWriter(checksum_function(CRC32C))
    ids, numbers = vectors([place])
    flags = record["flags"] | grammar.MOVED
    length = writer.copy(golden(f"{name}.crc32c"), flags, ids, numbers)
    expected = {**record, "flags": flags, "body": {**record["body"], "places": [place]}}
    assert b"".join(writer.take_chunks())[:length] == Record.build(expected, algorithm=CRC32C)


@pytest.mark.parametrize("name", [name for name in RECORDS if name.startswith("message")])
def test_the_fast_reader_reads_golden_messages(name: str) -> None:
    record = RECORDS[name]
    body = record["body"]
    data = golden(f"{name}.crc32c")
    message = MessageReader().message(data, 0)
    assert (message.envelope.exchange, message.envelope.routing_key) == (body["exchange"], body["routing_key"])
    assert message.joined() == body["content"]
    assert (message.channel, message.frame_max_bytes) == (body["channel"], body["frame_max_bytes"])
    assert message.body_bytes == len(message.body()) == writing.body_bytes_of(data, 0)
    assert message.time_ms == writing.time_of(data, 0) == (body["time_ms"] or 0)
    assert message.expiration_ms == EXPIRATIONS.get(name, -1)
    assert (message.expiration_ms >= 0) == bool(record["flags"] & grammar.EXPIRES)
    assert message.persistent == (not record["flags"] & grammar.DROPPABLE)
    assert (message.attempts > 0) == bool(record["flags"] & grammar.DELIVERED)
    assert message.republished == bool(record["flags"] & grammar.REPUBLISHED)


@ALGORITHMS
def test_reading_a_golden_checkpoint_and_writing_it_again_gives_its_bytes(algorithm: int, suffix: str) -> None:
    data = golden(f"checkpoint_lives.{suffix}")
    log, last_crc = log_of(data, algorithm)
    assert log.epochs.entries == [(2, 0xEF00_0040), (3, 0x1_0000_0040)]
    assert [log.epochs.life_id(epoch) for epoch in (2, 3)] == [each["life_id"] for each in LIVES]
    assert seal(snapshot(log), log.checksum, last_crc) == data


@ALGORITHMS
def test_a_golden_checkpoint_without_epochs_says_the_same_but_for_them(algorithm: int, suffix: str) -> None:
    log, last_crc = log_of(golden(f"checkpoint.{suffix}"), algorithm)
    assert log.epochs.entries == []
    for each in LIVES:
        log.epochs.begin(each["epoch"], each["first_lsn"])
        log.epochs.name(each["epoch"], each["life_id"])
    assert seal(snapshot(log), log.checksum, last_crc) == golden(f"checkpoint_lives.{suffix}")


@ALGORITHMS
def test_a_golden_checkpoint_without_ids_of_lives_says_the_same_but_for_them(algorithm: int, suffix: str) -> None:
    log, last_crc = log_of(golden(f"checkpoint_epochs.{suffix}"), algorithm)
    assert log.epochs.entries == [(2, 0xEF00_0040), (3, 0x1_0000_0040)]
    assert [log.epochs.life_id(epoch) for epoch in (2, 3)] == [NO_LIFE, NO_LIFE]
    for each in LIVES:
        log.epochs.name(each["epoch"], each["life_id"])
    assert seal(snapshot(log), log.checksum, last_crc) == golden(f"checkpoint_lives.{suffix}")


@ALGORITHMS
def test_without_the_ids_of_lives_a_golden_checkpoint_is_the_one_of_before(algorithm: int, suffix: str) -> None:
    data = golden(f"checkpoint_lives.{suffix}")
    assert checkpoint.without_lives(data, checksum_function(algorithm)) == golden(f"checkpoint_epochs.{suffix}")


def log_of(data: bytes, algorithm: int) -> tuple[MessageLog, int]:
    """Return the log that a checkpoint gives, and the crc of the last frame before it."""
    crc = checksum_function(algorithm)
    reader = CheckpointReader(data)
    assert reader.is_intact(crc)
    log = MessageLog(crc, 1 << 20)
    reader.fill(log)
    log.checkpoints.clean = reader.clean
    return log, reader.last_crc


def vectors(places: list[dict[str, int]]) -> tuple[vec[i64], vec[i64]]:
    """Return queue ids and sequence numbers as the writer takes them."""
    ids, numbers = vec[i64](), vec[i64]()
    for place in places:
        ids = append(ids, place["queue_id"])
        numbers = append(numbers, place["sequence_number"])
    return ids, numbers


def write(writer: RecordWriter, record: dict[str, Any], pieces: list[bytes] | None = None) -> None:
    """Write with the fast writer what the grammar calls `record`; the content of a message may be in `pieces`."""
    body, flags = record["body"], record.get("flags", 0)
    match record["kind"]:
        case grammar.EPOCH:
            writer.epoch(body["epoch"], body["time_ms"])
        case grammar.LIFE:
            writer.life(body["epoch"], body["life_id"])
        case grammar.QUEUE:
            vhost, name = body["vhost"].encode(), body["name"].encode()
            writer.queue(body["queue_id"], vhost, name, body["lane"], bool(body["queue_flags"]))
        case grammar.QUEUE_DELETED:
            writer.queue_deleted(body["queue_id"])
        case grammar.ACK:
            writer.acks(body["queue_id"], [(item["first"], item["count"]) for item in body["ranges"]])
        case grammar.PAGE:
            entries = vec[i64]()
            for entry in body["entries"]:
                entries = append(entries, entry["location"]["lsn"] | entry["location"]["flags"])
                entries = append(entries, entry["record_bytes"] << 32 | entry["body_bytes"])
            writer.page(body["queue_id"], body["page_number"], entries, bool(flags))
        case _:
            envelope = Envelope(body["exchange"], body["routing_key"])
            content = body["content"]
            message = Message(envelope, content, body["channel"], 0, body["frame_max_bytes"], True)
            message.time_ms = body["time_ms"] or 0
            message.expiration_ms = 0 if flags & grammar.EXPIRES else -1
            message.attempts = 3 if flags & grammar.DELIVERED else 0
            message.republished = bool(flags & grammar.REPUBLISHED)
            given = flags & ~(grammar.TIMED | grammar.EXPIRES | grammar.DELIVERED | grammar.REPUBLISHED)
            if pieces is not None:
                message.content, message.pieces = b"", pieces
            writer.message(message, given, *vectors(body["places"]))
