"""How long things may take in a cluster, and the relations between these times that promises depend on.

A leader serves for `limit_s` after it *sent* a beacon that was answered; a replica that has answered it neither stands
nor begins an epoch for `grace_s` after it *received* the beacon. So the limit must end before the grace time by any two
clocks whose rates differ by `CLOCK_RATE_ERROR` at most. All times are in seconds of a node's own clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

NEVER: Final = math.inf
# The rates of two clocks may differ by this: far more than those of any working clocks.
CLOCK_RATE_ERROR: Final = 0.1


@dataclass(frozen=True, slots=True)
class Timers:
    """How long things may take. The grace time ends after the limit, whichever of the two clocks is faster."""

    beacon_s: float = 0.25
    suspect_s: float = 1.0  # a replica that is silent, or makes no progress, for this long should leave the set
    limit_s: float = 1.6
    grace_s: float = 2.2
    refused_s: float = 0.3  # from the loss of the link until a leader that refuses connections counts as gone
    stagger_s: float = 0.2  # between one candidate and the next
    yield_s: float = 5.0  # to a candidate with a longer log, which may have been started later
    ask_s: float = 0.5  # a node asks the others so long before its time to stand
    ask_again_s: float = 0.5
    renew_s: float = 10.0  # between two records of the floor: etcd keeps each of them until it is compacted
    slow_s: float = 0.4  # a round trip that takes longer: commits do not wait for it, if enough others are quicker
    disk_s: float = 2.0
    retry_s: float = 0.25  # after a failed request to etcd
    hand_over_s: float = 3.0  # from when everything is written until another replica has to lead
    command_s: float = 5.0  # how long etcd has to accept an administrator's command
    tenure_s: float = 10.0  # how long a leader leads before it may give way
    long_tenure_s: float = 30.0  # the same, after another node has handed over to it; not if its disk has no space
    give_way_retry_s: float = 5.0

    def __post_init__(self) -> None:
        if not self.beacon_s < self.suspect_s < self.limit_s:
            raise ValueError("a replica has to be suspected after some beacons and before the limit of its leader")
        if self.limit_s * (1 + CLOCK_RATE_ERROR) >= self.grace_s * (1 - CLOCK_RATE_ERROR):
            raise ValueError("the grace time has to be longer than the limit of a leader, by any two clocks")
