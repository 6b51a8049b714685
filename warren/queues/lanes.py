"""The lanes of a queue: parts of its messages with a sequence and an index of their own.

    0          the backlog; in a priority queue the messages of the highest level
    1 .. 255   the lower levels of a priority queue, one after the other
    256 ..     held messages

A message is identified by its place, ``lane << LANE_SHIFT | sequence number``: among ready messages the smallest place
leaves next. For a plain queue that is the sequence number itself.
"""

from __future__ import annotations

from typing import Final

LANE_SHIFT: Final = 48
NUMBER_MASK: Final = (1 << LANE_SHIFT) - 1

HELD_FROM: Final = 256
DELAYED: Final = 256
PARKED: Final = 257
UNDELIVERED: Final = 258  # dead letters that no target has taken yet
EXCHANGE: Final = 259  # held by an exchange of that name
# From here on the lanes have notes of the broker, not messages (`NOTES_FROM`).
SEEN_KEYS: Final = 260  # of a queue that drops duplicates
EXCHANGE_SEEN_KEYS: Final = 261
PRODUCERS: Final = 262  # whose numbers such a queue remembers
EXCHANGE_PRODUCERS: Final = 263
STREAM_GROUPS: Final = 264  # how far the consumer groups of a stream have come
VHOST_RECORDS: Final = 265  # of a vhost, not of a queue (`vhosts.records`)
METADATA: Final = 266  # of the broker: changes of the metadata that SQL may not have yet (`vhosts.metadata_lane`)
