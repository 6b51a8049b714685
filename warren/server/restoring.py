"""Restore the engine at a start: its objects from the catalogue, and their messages from what recovery found.

Messages of a queue or stream that the catalogue does not have stay in the store, and count as losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import trio

from warren.amqp.errors import AmqpError
from warren.channels.broker import Broker
from warren.server.logs import get_logger
from warren.server.losses import Losses
from warren.server.start_errors import StartError
from warren.vhosts.metadata import MetadataChange

RESTORED_AT_ONCE: Final = 500  # a few milliseconds; then other tasks have a turn

log = get_logger("server")


async def restore_metadata(broker: Broker, changes: Iterable[MetadataChange], ends_early: Callable[[], bool]) -> int:
    """Bring the engine to the state in the catalogue; return the number of restored objects.

    Raises:
        StartError: one cannot be restored.
    """
    count = 0
    for change in changes:
        try:
            broker.restore(change)
        except (AmqpError, ValueError, KeyError, TypeError, OverflowError) as error:
            what = f"{type(change).__name__} {getattr(change, 'name', '')}".rstrip()
            raise StartError(f"metadata store: {what} cannot be restored: {error}") from None
        count += 1
        if count % RESTORED_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
            if ends_early():
                break
    return count


async def restore_messages(broker: Broker, losses: Losses, *, clean: bool) -> None:
    """Give the queues what recovery found in the message store. `clean`: the last process had stopped in order."""
    indexes = broker.log.indexes
    orphans = {queue_id: index for queue_id, index in indexes.items() if not index.transient}
    for vhost in broker.vhosts.values():
        for count, queue in enumerate(vhost.queues.values(), 1):
            index = orphans.pop(queue.store_id, None)
            if index is not None:
                queue.restore(index, clean)
            if count % RESTORED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
    # The newest first: of two with one name, the declaration of the older one was lost in a crash.
    for queue_id, index in sorted(orphans.items(), reverse=True):
        if index.lane and broker.restore_lane(index, clean):
            del orphans[queue_id]
    for index in orphans.values():
        losses.tell(
            log,
            "error",
            "messages of a queue that is not in the metadata store are kept, but not served",
            vhost=index.vhost,
            queue=index.name,
            messages=int(index.live_count),
            advice="run `warren store export` on a copy of the data directory",
        )
    for stream_id, table in broker.log.sealed.recovered.items():
        losses.tell(
            log,
            "error",
            "messages of a stream that is not in the metadata store are kept, but not served",
            stream_id=stream_id,
            messages=int(table.count),
        )
    broker.log.sealed.recovered.clear()
