"""The live messages of a stopped broker's queues, in their order. A queue with lanes has an order in each, 0 first.

What a broker would serve, no more: a message that lies in the store and has no intact record is a ``problem``, and the
next one follows. Whether a message was delivered before is not in the store: ``redelivered`` is null.
"""

from __future__ import annotations

from collections.abc import Iterator

from warren.msgstore.queue_index import QueueIndex
from warren.msgstore.records import NOTES_FROM
from warren.msgstore.tools.lines import Line, UnreadableStore, problem
from warren.msgstore.tools.message_json import message_fields
from warren.msgstore.tools.stored_state import LostPage, StoredState, name_fields


def matching_queues(state: StoredState, vhost: str | None, name: str | None) -> list[QueueIndex]:
    """Return the queues of that vhost and name, None meaning any, each with all its lanes of messages.

    Raises UnreadableStore: there is none.
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


def dump(state: StoredState, queues: list[QueueIndex], *, with_content_header: bool = False) -> Iterator[Line]:
    """Yield a line for each live message of `queues`."""
    for index in queues:
        where = name_fields(index)
        for entry in state.entries(index):
            if isinstance(entry, LostPage):
                first = entry.page_number * int(index.page_entries)
                yield problem(
                    "a page of the index is lost", **where, sequence_number=first, messages=entry.live, lsn=entry.lsn
                )
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
