"""The messages that wait in a queue, without touching it: those in memory, and those that are on disk only.

On the loop, and for queues of a size that tests have.
"""

from __future__ import annotations

from collections.abc import Iterator

from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.segment_names import segment_path
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import LENGTH_SHIFT, LSN_MASK
from warren.msgstore.log.records import page_entries
from warren.queues.backlog import Backlog
from warren.queues.base_queue import BaseQueue
from warren.queues.lanes import LANE_SHIFT
from warren.queues.ready_messages import PLACE_MAX
from warren.testing.messages import QueuedMessage, properties_of


def waiting_messages(queue: BaseQueue, files: FileSystem) -> list[QueuedMessage]:
    """Return them in the order in which they will be delivered."""
    ready = queue.ready
    found = [(place, message, True) for place, message in ready.returned.between(0, PLACE_MAX, int(ready.count))]
    for lane in range(ready.lane_count):
        backlog = ready.backlog(lane)
        for number, message in [*backlog.residents(), *_on_disk(backlog, files)]:
            found.append((lane << LANE_SHIFT | number, message, number < backlog.delivered_before))
    found.sort(key=lambda entry: entry[0])
    return [_seen(queue, message, redelivered) for _, message, redelivered in found]


def _on_disk(backlog: Backlog, files: FileSystem) -> Iterator[tuple[int, Message]]:
    index = backlog.index
    if index is None or backlog.middle.count == 0:
        return
    log = backlog.log
    size = int(index.page_entries)
    for page_number in range(int(index.first_page), int(index.next_number) // size + 1):
        page = index.page(page_number)
        if page is None:
            continue
        entries = list(page.entries if page.resident else page_entries(_read(backlog, files, page.lsn, page.length), 0))
        for offset in range(0, len(entries), 2):
            number = page_number * size + offset // 2
            if entries[offset] == 0 or not backlog.middle.may_have(number):
                continue
            lsn, length = entries[offset] & LSN_MASK, entries[offset + 1] >> LENGTH_SHIFT
            message = log.maybe_message(index, number, _read(backlog, files, lsn, length), 0, length, False)
            if message is not None:
                yield number, message


def _read(backlog: Backlog, files: FileSystem, lsn: int, length: int) -> bytes:
    segment = backlog.log.segments.find(lsn)
    handle = files.open(segment_path(int(segment.number)), writable=False)
    try:
        return read_exactly(files, handle, int(length), int(lsn - segment.base_lsn))
    finally:
        files.close(handle)


def _seen(queue: BaseQueue, message: Message, redelivered: bool) -> QueuedMessage:
    return QueuedMessage(
        vhost=queue.vhost_name,
        exchange=message.envelope.exchange,
        routing_key=message.envelope.routing_key,
        properties=properties_of(message),
        body=message.body(),
        queue=queue.name,
        redelivered=redelivered,
    )
