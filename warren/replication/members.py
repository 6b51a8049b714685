"""The nodes of a cluster as an operator sees them: a row for each, also for one that is gone.

    leading       the node itself, on a leader
    following     connected to its leader, with all of the log or nearly so
    catching up   connected, and not yet sent new messages as they are written
    waiting       of the node itself: it follows, and is not connected to a leader
    registered    its process has told etcd that it runs, and it is not connected to this leader
    gone          neither

1. The record names the members: the nodes that should have everything (`assigned`). Others have a row as long as they
   are connected or registered.
2. A leader knows its connections, a follower only the data in etcd: there `registered` counts as running, and with a
   place in the recorded set as `following`.
3. A node has one row, whatever directories it has had: that of the connection, else of the one that is in sync.

No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from warren.cluster.registry import Seen

LEADING = "leading"
FOLLOWING = "following"
CATCHING_UP = "catching up"
WAITING = "waiting"
REGISTERED = "registered"
GONE = "gone"

Row = dict[str, Any]


def of_leader(status: Row, assigned: Collection[str], seen: Mapping[str, Seen], now_s: float) -> list[Row]:
    """Return the rows from a leader's knowledge: the leader first, the others by name.

    `status` is what it answers as ``/api/cluster/status``, `now_s` the wall clock.
    """
    own = status["node"]
    followers = _by_name(status["followers"])
    rows = [_row(own, "leader", LEADING, seen, is_in_sync=True)]
    for name in sorted({*assigned, *followers, *_registered(seen)} - {own}):
        row = _row(name, "follower", REGISTERED, seen, is_in_sync=name in status["in_sync"])
        found = followers.get(name)
        if found is not None and found["connected"]:
            row["state"] = CATCHING_UP if found["catching_up"] else FOLLOWING
            row |= {"running": True, "lag_bytes": found["lag_bytes"], "lag_s": found["lag_s"]}
            row["trouble"] = found.get("trouble", "")
            row["address"] = row["address"] or found["address"]
        elif name not in _registered(seen):
            silent_s = None if found is None else found["silent_s"]
            row |= {"state": GONE, "gone_since_ms": _gone_since_ms(silent_s, seen.get(name), now_s)}
        rows.append(row)
    return rows


def of_follower(
    status: Row, in_sync: Collection[str], assigned: Collection[str], seen: Mapping[str, Seen], now_s: float
) -> list[Row]:
    """Return the rows from a follower's knowledge, the node itself first; see `of_leader`."""
    own, leader = status["node"], status["leader"]
    state = FOLLOWING if status["connected"] else WAITING
    row = _row(own, "follower", state, seen, is_in_sync=own in in_sync)
    row |= {"running": True, "lag_bytes": status["lag_bytes"]}
    rows = [row]
    for name in sorted({*assigned, *_registered(seen)} - {own}):
        row = _row(name, "follower", REGISTERED, seen, is_in_sync=name in in_sync)
        row["running"] = name in _registered(seen)
        if row["running"] and row["in_sync"]:
            row["state"] = FOLLOWING  # else it would leave the set
        silent_s = status["disconnected_s"] if name == leader else None
        if name == leader and status["connected"]:
            row |= {"role": "leader", "state": LEADING, "running": True}
        elif not row["running"]:
            row |= {"state": GONE, "gone_since_ms": _gone_since_ms(silent_s, seen.get(name), now_s)}
        rows.append(row)
    return rows


def _row(name: str, role: str, state: str, seen: Mapping[str, Seen], *, is_in_sync: bool) -> Row:
    known = seen.get(name)
    return {
        "node": name,
        "role": role,
        "state": state,
        "running": state == LEADING,
        "in_sync": is_in_sync,
        "address": None if known is None else known.entry.cluster,
        "version": None if known is None else known.entry.version,
        "lag_bytes": 0 if state == LEADING else None,
        "lag_s": 0.0 if state == LEADING else None,
        "gone_since_ms": None,
        "trouble": "",
    }


def _by_name(followers: Sequence[Row]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in sorted(followers, key=lambda row: (row["connected"], row["in_sync"])):
        found[row["node"]] = row
    return found


def _registered(seen: Mapping[str, Seen]) -> set[str]:
    return {name for name, known in seen.items() if known.is_registered}


def _gone_since_ms(silent_s: float | None, known: Seen | None, now_s: float) -> int | None:
    """Return since when, by this leader's link if there was one, else by the registration; None: before all of that."""
    if silent_s is not None:
        return int((now_s - silent_s) * 1000)
    return None if known is None else int(known.seen_s * 1000)
