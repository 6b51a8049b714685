"""The sources of a read: from the names that a user gives to single streams and queues, with their descriptions.

1. A super stream is its partitions, in the broker's order; each of them is a stream with offsets of its own.
2. Nothing here is remembered: a repeated call finds queues that are new, and those that were created again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from warren.spark_bridge.bridge_errors import DataLoss, NotFound
from warren.spark_bridge.control import BrokerClient, Description
from warren.spark_bridge.options import LOG, OptionError, Place, ReadOptions

STREAM = "stream"
SUPER_STREAM = "super-stream"


@dataclass(frozen=True)
class Part:
    """One stream or queue: `name` is its own name, `queue` and `partition` are the columns of its rows."""

    name: str
    queue: str
    partition: int
    found: Description

    @property
    def is_stream(self) -> bool:
        return self.found.type == STREAM

    @property
    def is_partition(self) -> bool:
        """Tell whether it is a part of a super stream."""
        return self.queue != self.name


@dataclass(frozen=True)
class Missing:
    """A name that does not exist in the broker."""

    queue: str
    reason: str


def is_asked_for(options: ReadOptions, queue: str) -> bool:
    """Tell whether the options ask for a queue of this name; a pattern has to match all of it."""
    if options.pattern is None:
        return queue in options.queues
    return re.fullmatch(options.pattern, queue) is not None


def another_queue(names: Sequence[str]) -> str:
    """Return the text about a checkpoint of none of the queues that are asked for."""
    return f"the checkpoint is of {', '.join(map(repr, names))}: give this query a checkpointLocation of its own"


def look(client: BrokerClient, options: ReadOptions) -> list[Part | Missing]:
    """Return the current parts that the options ask for.

    Raises:
        OptionError: an unknown partition, or a stream that is named twice.
    """
    described: dict[str, Description] = {}
    queues: Sequence[str] = options.queues
    if options.pattern is not None:
        described = {each.name: each for each in client.descriptions()}
        asked = [name for name in sorted(described) if is_asked_for(options, name)]
        # A super stream brings its partitions, whose names may match as well.
        inside = {name for queue in asked for name in described[queue].partitions or ()}
        queues = [name for name in asked if name not in inside]
    found: list[Part | Missing] = []
    for queue in queues:
        found += _parts(client, options, queue, described)
    seen: dict[str, str] = {}
    for part in found:
        if isinstance(part, Part):
            if part.name in seen:
                raise OptionError(f"stream {part.name!r} is asked for as {seen[part.name]!r} and as {part.queue!r}")
            seen[part.name] = part.queue
    return found


def _parts(
    client: BrokerClient, options: ReadOptions, queue: str, described: Mapping[str, Description]
) -> Iterator[Part | Missing]:
    try:
        description = described.get(queue) or client.describe(queue)
    except NotFound as error:
        yield Missing(queue, str(error))
        return
    numbers = None if options.assigned is None else options.assigned[queue]
    if description.partitions is None:
        if numbers not in (None, (0,)):
            raise OptionError(f"option assign: queue {queue!r} has no partitions but 0")
        yield Part(queue, queue, 0, description)
        return
    if options.mode not in (None, LOG):
        raise OptionError(f"option mode: {queue!r} is a super stream, which mode {options.mode} cannot read")
    for number in range(len(description.partitions)) if numbers is None else numbers:
        if number >= len(description.partitions):
            raise OptionError(f"option assign: super stream {queue!r} has {len(description.partitions)} partitions")
        name = description.partitions[number]
        try:
            yield Part(name, queue, number, described.get(name) or client.describe(name))
        except NotFound as error:
            yield Missing(name, str(error))


def offset_of(client: BrokerClient, part: Part, place: Place, options: ReadOptions, option: str) -> int:
    """Return the offset in a stream that `place` stands for, between its first one and its end.

    Raises:
        DataLoss: an offset that retention has removed, unless the options allow the loss.
        OptionError: an offset that is not there yet, or a time after the last message, unless that means the end.
    """
    first, end = part.found.first, part.found.end
    if place.offset is not None:
        if place.offset < first and options.fail_on_data_loss:
            raise DataLoss(
                f"option {option}: {part.name!r} begins at offset {first}, offset {place.offset} is gone. "
                "Begin later, or set failOnDataLoss to false"
            )
        if place.offset > end:
            raise OptionError(f"option {option}: {part.name!r} ends at offset {end}, before {place.offset}")
        return max(place.offset, first)
    if place.time_ms is not None:
        offset = client.resolve(part.name, time_ms=place.time_ms)
        if offset >= end and option.startswith("starting") and options.is_late_start_an_error:
            raise OptionError(
                f"option {option}: {part.name!r} has no message from that time on. "
                "Set startingOffsetsByTimestampStrategy to latest to begin at its end"
            )
        return min(max(offset, first), end)
    if place.word == "first":
        return first
    if place.word == "next":
        return end
    return min(max(client.resolve(part.name, place.word), first), end)
