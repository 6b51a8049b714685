"""Streams: their consumer groups, and where in time their offsets are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from warren.channels.broker import Broker
from warren.engine_view.refs import GroupRef, QueueRef
from warren.streams.consumer import AT_FIRST as AT_FIRST
from warren.streams.consumer import AT_LAST as AT_LAST
from warren.streams.consumer import AT_NEXT as AT_NEXT
from warren.streams.consumer import AT_OFFSET as AT_OFFSET
from warren.streams.consumer import OFFSET_MAX as OFFSET_MAX
from warren.streams.consumer import Start as Start
from warren.streams.consumer import at_time as at_time
from warren.streams.groups import Group
from warren.streams.offset_search import find
from warren.streams.stream import Stream
from warren.vhosts.virtual_host import VirtualHost

PlacedGroup = tuple[QueueRef, GroupRef]  # with its stream


class GroupRow(msgspec.Struct, frozen=True):
    """A consumer group; the fields have the names of the API."""

    vhost: str
    queue: str
    name: str
    committed_offset: int | None
    lag: int | None
    committed_at: int | None
    consumers: int
    active_consumer_tag: str | None


class Streams:
    """The streams of one engine. `settle` ends the turn of a command."""

    def __init__(self, broker: Broker, settle: Callable[[], None]) -> None:
        self._log = broker.log
        self._vhosts: Mapping[str, VirtualHost] = broker.vhosts
        self._settle = settle

    def now_ms(self) -> int:
        """Return the time of the current turn, in ms since the epoch."""
        return int(self._log.now_ms)

    def in_vhost(self, vhost: str) -> list[QueueRef]:
        """Return the streams of a vhost by name. Looks at every queue."""
        found = self._vhosts.get(vhost)
        streams = [] if found is None else [queue for queue in found.queues.values() if isinstance(queue, Stream)]
        return cast("list[QueueRef]", sorted(streams, key=lambda stream: stream.name))

    def find(self, stream: QueueRef, start: Start, told: Callable[[int], None]) -> None:
        """Report the offset that `start` means now; never if the stream is deleted."""
        find(_stream(stream), start, told)
        self._settle()

    # --- groups -----------------------------------------------------------------------------------------------------

    def groups(self, stream: QueueRef) -> list[GroupRef]:
        """Return the consumer groups of a stream."""
        return cast("list[GroupRef]", _stream(stream).consumer_groups())

    def maybe_group(self, stream: QueueRef, name: str) -> GroupRef | None:
        """Return the group with this name."""
        for group in _stream(stream).consumer_groups():
            if group.name == name:
                return GroupRef(group)
        return None

    def is_group_gone(self, of: PlacedGroup) -> bool:
        """Tell whether the stream of a group has been deleted."""
        assert isinstance(of[0], Stream)
        return of[0].deleted

    def group(self, of: PlacedGroup) -> GroupRow:
        """Return a group of a stream."""
        ref, group = of
        assert isinstance(ref, Stream) and isinstance(group, Group)
        serving = ref.need_groups()
        active = serving.active_of(group)
        committed = int(group.committed)
        lag = max(0, ref.next_offset() - max(committed, ref.first_offset()))
        return GroupRow(
            ref.vhost_name,
            ref.name,
            group.name,
            committed if committed >= 0 else None,
            lag if committed >= 0 else None,
            int(group.committed_ms) or None,
            len(serving.consumers_of(group)),
            None if active is None else active.tag,
        )

    def reset(self, stream: QueueRef, name: str, offset: int) -> None:
        """Set the offset at which a group continues; the group need not exist."""
        _stream(stream).need_groups().reset(name, offset)
        self._settle()

    def maybe_forget(self, stream: QueueRef, group: GroupRef) -> bool:
        """Forget a group; False: it has consumers, and stays."""
        assert isinstance(group, Group)
        serving = _stream(stream).need_groups()
        if serving.consumers_of(group):
            return False
        serving.forget(group)
        self._settle()
        return True


def _stream(ref: QueueRef) -> Stream:
    assert isinstance(ref, Stream)
    return ref
