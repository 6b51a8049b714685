"""Showing the content of a store: its segments, frames and records, one of them in full, its sealed files, its queues.

It reads everything once for counts and names. It shows the damage it meets, and judges nothing (``verify`` does).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from warren.msgstore.files.sealed_files import STREAMS
from warren.msgstore.log.checksum import CRC32C
from warren.msgstore.log.records import MessageReader
from warren.msgstore.tools.format import FLAG_NAMES, KIND_NAMES, MESSAGE, QUEUE, QUEUE_DELETED, TRANSIENT_QUEUE, Record
from warren.msgstore.tools.lines import Line, UnreadableStore, crc_text, note, time_text
from warren.msgstore.tools.log_files import Gap, IntactFrame, RecordAt, SegmentFile, StoreFiles
from warren.msgstore.tools.message_json import base64_text, message_fields
from warren.msgstore.tools.sealed_check import stream_fields
from warren.msgstore.tools.sealed_streams import FileFacts, SealedNames, SealedStream, read_file, read_streams
from warren.msgstore.tools.stored_state import (
    LogReader,
    StoredState,
    name_fields,
    read_checkpoint,
    recovered,
    unsealed,
)


def inspect(files: StoreFiles, *, with_records: bool = False) -> Iterator[Line]:
    """Yield a line for each record if asked for, segment, the checkpoint, sealed file and queue, and for the store."""
    queues: dict[int, Line] = {}
    store: Line = {"type": "store", "store_id": None, "epoch": None, "segments": len(files.segments)}
    for number in files.segments:
        with files.segment(number) as file:
            if file.header is not None:
                store["store_id"] = file.header.store_id.hex()
                store["epoch"] = file.header.epoch
            yield from _segment(file, queues, with_frames=False, with_records=with_records)
    facts, fault = read_checkpoint(files)
    if facts is not None:
        yield {
            "type": "checkpoint",
            "bytes": facts.file_bytes,
            "store_id": facts.store_id.hex(),
            "lsn": facts.lsn,
            "epoch": facts.epoch,
            "clean": facts.is_clean,
            "queues": facts.queues,
            "segments": [{"segment": number, "live_refs": refs} for number, refs in facts.live_refs.items()],
            "epochs": [
                {"epoch": epoch, "first_lsn": first_lsn, "life_id": life_id.hex()}
                for epoch, first_lsn, life_id in facts.epochs
            ],
        }
    elif fault is not None:
        yield {"type": "checkpoint", "fault": fault}
    store_id = bytes.fromhex(str(store["store_id"] or ""))
    yield from _queues(files, queues, store_id if facts is None else facts.store_id)
    yield {**store, "quarantine": files.quarantined()}


def inspect_segment(files: StoreFiles, number: int, *, with_records: bool = False) -> Iterator[Line]:
    """Yield a line for each frame of one segment, for each record if asked for, and for the segment."""
    with files.segment(number) as file:
        yield from _segment(file, {}, with_frames=True, with_records=with_records)


def inspect_lsn(files: StoreFiles, lsn: int) -> Iterator[Line]:
    """Yield the frame that holds `lsn`, and the record in it that does, in full; nothing when no frame does."""
    for number in files.segments:
        with files.segment(number) as file:
            header = file.header
            if header is None or not header.base_lsn <= lsn < header.base_lsn + header.capacity:
                continue
            for found in file.frames():
                if not found.lsn <= lsn < found.end_lsn:
                    continue
                if isinstance(found, Gap):
                    yield _gap_line(found)
                    return
                yield frame_line(found)
                for record in file.records(found.payload):
                    start = found.payload_lsn + record.offset
                    if start <= lsn < start + record.length:
                        yield full_record_line(file, found, record)


def _segment(file: SegmentFile, queues: dict[int, Line], *, with_frames: bool, with_records: bool) -> Iterator[Line]:
    if file.header is None:
        yield {"type": "segment", "segment": file.number, "file_bytes": file.size, "fault": file.fault}
        return
    kinds: Counter[str] = Counter()
    frames: list[IntactFrame] = []  # the first and the last
    frame_count = payload_bytes = 0
    gaps: list[Line] = []
    for found in file.frames():
        if isinstance(found, Gap):
            gaps.append(_gap_line(found))
            if with_frames:
                yield gaps[-1]
            continue
        frames[1:] = [found]
        frame_count += 1
        payload_bytes += len(found.payload)
        if with_frames:
            yield frame_line(found)
        for record in file.records(found.payload):
            kinds[KIND_NAMES.get(record.kind, str(record.kind))] += 1
            note_queue(queues, file, found, record)
            if with_records:
                yield record_line(found, record)
    yield {
        **segment_line(file),
        "frames": frame_count,
        "records": kinds.total(),
        "kinds": dict(kinds),
        "payload_bytes": payload_bytes,
        "end_lsn": frames[-1].end_lsn if frames else None,
        "first_time": time_text(frames[0].time_ms) if frames else None,
        "last_time": time_text(frames[-1].time_ms) if frames else None,
        "gaps": gaps,
    }


def _queues(files: StoreFiles, named: dict[int, Line], store_id: bytes) -> Iterator[Line]:
    """Yield the sealed files and the queues of the log, with the live content of those that a broker would find."""
    streams = read_streams(files.fs, store_id, in_full=True)
    with LogReader(files) as reader:
        state: StoredState | None = None
        try:
            state = recovered(files, reader)
        except UnreadableStore as error:
            yield note(f"the live messages cannot be determined: {error}")
        indexes = {} if state is None else {int(index.queue_id): index for index in state.queues()}
        for queue_id, stream in streams.items():
            for file in stream.files:
                yield _sealed_file(file, stream_fields(queue_id, indexes.get(queue_id)))
        for name, queue_id, first in SealedNames(files.fs).unusable:
            file = read_file(files.fs, f"{STREAMS}/{name}", queue_id, first, store_id, in_full=True)
            file.fault = file.fault or "was set aside"
            yield _sealed_file(file, stream_fields(queue_id, indexes.get(queue_id)))
        for queue_id in sorted({*named, *indexes, *streams}):
            index = indexes.get(queue_id)
            maybe_stream = streams.get(queue_id)
            sealed = {} if maybe_stream is None else {"sealed": _sealed(maybe_stream)}
            if index is None or state is None:
                yield {**named.get(queue_id, {"type": "queue", "queue_id": queue_id}), **sealed}
                continue
            messages, body_bytes = int(index.live_count), int(index.live_body_bytes)
            if maybe_stream is not None:
                tail = unsealed(state, index, maybe_stream.end)
                messages, body_bytes = maybe_stream.count + tail.count, maybe_stream.body_bytes + tail.body_bytes
            yield {
                "type": "queue",
                "queue_id": queue_id,
                **name_fields(index),
                "transient": False,
                "deleted": False,
                "messages": messages,
                "body_bytes": body_bytes,
                "next_sequence_number": int(index.next_number),
                "damaged": int(index.damaged_count),
                **sealed,
            }


def _sealed(stream: SealedStream) -> Line:
    """Return the facts about the sealed part of a stream."""
    return {
        "segments": len(stream.files),
        "chunks": len(stream.chunks),
        "messages": stream.count,
        "first_sequence_number": stream.first,
        "next_sequence_number": stream.end,
        "stored_bytes": sum(file.size for file in stream.files),
        "damaged": sum(len(file.damages) + bool(file.fault) for file in stream.files),
    }


def _sealed_file(file: FileFacts, whose: Line) -> Line:
    """Return the content of a sealed file."""
    chunks = file.chunks
    line: Line = {"type": "sealed", "file": file.path, **whose, "file_bytes": file.size}
    if file.fault:
        line["fault"] = file.fault
    if file.is_left_over:
        line["left_over"] = True
    gaps = [
        {"type": "gap", "position": damage.position, "end_position": damage.end, "what": damage.reason}
        for damage in file.damages
    ]
    return {
        **line,
        "chunks": len(chunks),
        "compacted": sum(chunk.is_compacted for chunk in chunks),
        "messages": sum(chunk.count for chunk in chunks),
        "body_bytes": sum(chunk.body_bytes for chunk in chunks),
        "first_sequence_number": file.first,
        "next_sequence_number": chunks[-1].end if chunks else None,
        "first_time": time_text(min(chunk.min_time_us for chunk in chunks) // 1000) if chunks else None,
        "last_time": time_text(max(chunk.max_time_us for chunk in chunks) // 1000) if chunks else None,
        "gaps": gaps,
    }


def segment_line(file: SegmentFile) -> Line:
    """Return the fields of the header of a segment."""
    header = file.header
    return {
        "type": "segment",
        "segment": file.number,
        "file_bytes": file.size,
        "format": f"{header.major}.{header.minor}",
        "checksum": "crc32c" if header.algorithm == CRC32C else "crc32",
        "store_id": header.store_id.hex(),
        "base_lsn": header.base_lsn,
        "capacity": header.capacity,
        "epoch": header.epoch,
    }


def frame_line(frame: IntactFrame) -> Line:
    """Return the fields of the head of a frame."""
    return {
        "type": "frame",
        "segment": frame.segment,
        "lsn": frame.lsn,
        "end_lsn": frame.end_lsn,
        "payload_bytes": len(frame.payload),
        "records": frame.record_count,
        **({"continued": True} if frame.is_continued else {}),
        "durable_lsn": frame.durable_lsn,
        "time": time_text(frame.time_ms),
        "epoch": frame.epoch,
        "previous_crc": crc_text(frame.previous_crc),
        "crc": crc_text(frame.crc),
    }


def record_line(frame: IntactFrame, record: RecordAt) -> Line:
    """Return the fields of the head of a record."""
    line: Line = {
        "type": "record",
        "segment": frame.segment,
        "lsn": frame.payload_lsn + record.offset,
        "length": record.length,
        "kind": KIND_NAMES.get(record.kind, record.kind),
        "flags": [name for flag, name in FLAG_NAMES.items() if record.flags & flag],
        "count": record.count,
    }
    return line if record.fault is None else {**line, "fault": record.fault}


def full_record_line(file: SegmentFile, frame: IntactFrame, record: RecordAt) -> Line:
    """Return everything that a record holds."""
    line = record_line(frame, record)
    data = frame.payload[record.offset : record.offset + record.length]
    if record.fault is not None:
        return {**line, "base64": base64_text(data)}
    parsed = Record.parse(data, algorithm=file.header.algorithm)
    line["crc"] = crc_text(parsed.crc)
    if record.kind == MESSAGE:
        body = parsed.body
        return {
            **line,
            "places": [_plain(place) for place in body.places],
            "channel": body.channel,
            "frame_max_bytes": body.frame_max_bytes,
            "content_bytes": body.content_bytes,
            **message_fields(MessageReader().message(data, 0), with_content_header=True),
        }
    if isinstance(parsed.body, bytes):
        return {**line, "base64": base64_text(parsed.body)}
    return {**line, **{name: _plain(value) for name, value in parsed.body.items() if name not in _UNSHOWN}}


def note_queue(queues: dict[int, Line], file: SegmentFile, frame: IntactFrame, record: RecordAt) -> None:
    """Keep the fields of a QUEUE or QUEUE_DELETED record in `queues`, by queue id."""
    if record.fault is not None or record.kind not in (QUEUE, QUEUE_DELETED):
        return
    data = frame.payload[record.offset : record.offset + record.length]
    body = Record.parse(data, algorithm=file.header.algorithm).body
    if record.kind == QUEUE:
        queues[body.queue_id] = {
            "type": "queue",
            "queue_id": body.queue_id,
            "vhost": body.vhost,
            "queue": body.name,
            **({"lane": body.lane} if body.lane else {}),
            "transient": bool(body.queue_flags & TRANSIENT_QUEUE),
            "deleted": False,
        }
    elif body.queue_id in queues:
        queues[body.queue_id]["deleted"] = True


_UNSHOWN = frozenset({"zero", "_io"})


def _plain(value: Any) -> object:
    """Return parsed values as values of JSON."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if name not in _UNSHOWN}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _gap_line(gap: Gap) -> Line:
    line: Line = {
        "type": "gap",
        "segment": gap.segment,
        "lsn": gap.lsn,
        "end_lsn": gap.end_lsn,
        "what": gap.reason,
    }
    if gap.foreign_lsn is not None:
        line["foreign_lsn"] = gap.foreign_lsn
    return line
