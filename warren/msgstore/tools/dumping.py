"""The live messages of a stopped broker's queues, in their order. A queue with lanes has an order in each, 0 first.
Of a stream first come the sealed messages, then those that only the log has.

These are exactly the messages that a broker would serve. A stored message without an intact record is a ``problem``,
and the next one follows. The store does not know if a message was delivered before: ``redelivered`` is null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.log.records import NOTES_FROM
from warren.msgstore.tools.lines import Line, UnreadableStore, problem
from warren.msgstore.tools.message_json import message_fields
from warren.msgstore.tools.sealed_streams import SealedStream
from warren.msgstore.tools.stored_state import LostPage, StoredState, name_fields, unsealed

MISSING: Final = "messages are missing: what was sealed is damaged, or not there"


def matching_queues(state: StoredState, vhost: str | None, name: str | None) -> list[QueueIndex]:
    """Return the queues of that vhost and name, None meaning any, each with all its lanes of messages.

    Raises UnreadableStore: no queue matches.
    """
    queues = [
        index
        for index in state.queues()
        if index.lane < NOTES_FROM and (vhost is None or index.vhost == vhost) and (name is None or index.name == name)
    ]
    if not queues and (vhost, name) != (None, None):
        asked = [f"queue {name!r}"] * (name is not None) + [f"vhost {vhost!r}"] * (vhost is not None)
        raise UnreadableStore(f"nothing is stored for {' in '.join(asked)}")
    return queues


def dump(
    state: StoredState,
    queues: list[QueueIndex],
    sealed: dict[int, SealedStream],
    *,
    with_content_header: bool = False,
) -> Iterator[Line]:
    """Yield a line for each live message of `queues`, of which `sealed` are streams."""
    for index in queues:
        where = name_fields(index)
        stream = None if index.lane else sealed.get(int(index.queue_id))
        sealed_end = 0
        if stream is not None:
            yield from dump_sealed(stream, where, with_content_header=with_content_header)
            sealed_end = stream.end
            first = unsealed(state, index, sealed_end).first
            if stream.chunks and first > sealed_end:
                yield problem(MISSING, **where, sequence_number=sealed_end, messages=first - sealed_end)
        for entry in state.entries(index):
            if isinstance(entry, LostPage):
                first = entry.page_number * int(index.page_entries)
                if first + int(index.page_entries) <= sealed_end:
                    continue
                yield problem(
                    "a page of the index is lost", **where, sequence_number=first, messages=entry.live, lsn=entry.lsn
                )
                continue
            if entry.number < sealed_end:
                continue
            where["sequence_number"] = entry.number
            record = state.message(index, entry)
            if isinstance(record, str):
                yield problem(record, **where, lsn=entry.lsn)
                continue
            message = state.log.reader.message(record, 0)
            fields = message_fields(message, with_content_header=with_content_header)
            yield {"type": "message", **where, "redelivered": None, **fields}
            del where["sequence_number"]


def dump_unknown(state: StoredState, sealed: dict[int, SealedStream]) -> Iterator[Line]:
    """Yield a line for each message of streams that the log does not know: their names are unknown here."""
    for stream_id, stream in sealed.items():
        if stream_id not in state.log.indexes:
            where: Line = {"vhost": None, "queue": None, "queue_id": stream_id}
            yield from dump_sealed(stream, where, with_content_header=True)


def dump_sealed(stream: SealedStream, where: Line, *, with_content_header: bool = False) -> Iterator[Line]:
    """Yield a line for each sealed message of a stream; `where` says whose they are."""
    expected = stream.first
    for chunk, rows in stream.rows():
        if chunk.first > expected:
            yield problem(MISSING, **where, sequence_number=expected, messages=chunk.first - expected)
        expected = chunk.end
        if isinstance(rows, str):
            place = {"sequence_number": chunk.first, "messages": chunk.count, "file": chunk.path}
            yield problem(rows, **where, **place, position=chunk.position)
            continue
        for at, offset in enumerate(rows.offsets):
            fields = message_fields(rows.message(at), with_content_header=with_content_header)
            yield {"type": "message", **where, "sequence_number": offset, "redelivered": None, **fields}
