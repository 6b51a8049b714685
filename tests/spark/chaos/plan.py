"""The plan of kills, made from a seed: two hands kill at once.

1. One hand kills drivers, their workers and the broker, in lives of a driver: each ends with the driver, alone or
   together with the broker. So one start of a JVM serves for several kills. The other hand kills `warren lake`, its
   catalogues and its store.
2. Every kind of victim of a hand has its turn before any kind has its second: enough kills reach all kinds.
3. A moment is a step of some work, not a time. The number of steps until the kill is chosen, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple


class Kill(NamedTuple):
    """`where`: the flow or table whose `moment` it is, `steps` of its batches or commits from now."""

    victim: str
    where: str
    moment: str
    steps: int


class Life(NamedTuple):
    """A driver's; the last kill ends it."""

    kind: str
    kills: tuple[Kill, ...]


class Plan(NamedTuple):
    """The actions of each hand."""

    lives: tuple[Life, ...]
    lake: tuple[Kill, ...]


# Lives in turn, and the number of kills of each: a query with AvailableNow restarts for each step, which takes long.
LOCAL_LIFE, ON_CLUSTER, AVAILABLE_NOW = "local", "on a cluster", "AvailableNow"
KINDS: Final = ((LOCAL_LIFE, 16), (ON_CLUSTER, 13), (AVAILABLE_NOW, 5))

# The steps of a Spark query in a batch, by its target.
PLANNED, UNNAMED, WRITTEN, COMMITTED = "planned", "a file that no commit names", "written", "committed"
CLAIMED, STAGED = "rows claimed", "staged"
SPARK: Final = {
    "parquet": (PLANNED, UNNAMED, WRITTEN, COMMITTED),
    "delta": (PLANNED, UNNAMED, COMMITTED),
    "left": (PLANNED, UNNAMED, WRITTEN, COMMITTED, CLAIMED),
    "right": (PLANNED, UNNAMED, WRITTEN, COMMITTED, CLAIMED),
    "leased": (PLANNED, UNNAMED, COMMITTED, CLAIMED),
    "written": (PLANNED, STAGED, COMMITTED),
}
_IN_TASKS: Final = {
    "parquet": (PLANNED, UNNAMED),
    "delta": (PLANNED,),
    "left": (PLANNED, UNNAMED),
    "right": (PLANNED, UNNAMED),
    "leased": (PLANNED,),
    "written": (PLANNED, STAGED),
}
# The steps of `warren lake`: a commit is there, or a request on its way that is or is not carried out.
REQUESTED, DONE = "a request that is not carried out", "a request whose answer is lost"
TABLES: Final = {
    "rest-iceberg": (COMMITTED, REQUESTED, DONE),
    "s3-delta": (COMMITTED, REQUESTED, DONE),
    "sql-iceberg": (COMMITTED, UNNAMED),
    "file-delta": (COMMITTED, UNNAMED),
}

DRIVER, DRIVER_AND_BROKER = "driver", "driver and broker"
WORKER, PLANNER, EXECUTOR, BROKER = "Python worker", "planner", "executor", "broker"
LAKE, POSTGRES, REST, STORE = "warren lake", "catalogue (PostgreSQL)", "catalogue (REST)", "object store (S3)"
ENDS: Final = (DRIVER, DRIVER, DRIVER_AND_BROKER)
LOCAL: Final = (WORKER, BROKER, WORKER, BROKER, PLANNER)
CLUSTER: Final = (EXECUTOR, BROKER, WORKER, EXECUTOR)
OF_LAKE: Final = (LAKE, POSTGRES, LAKE, STORE, REST)
VICTIMS: Final = (DRIVER, DRIVER_AND_BROKER, EXECUTOR, WORKER, PLANNER, BROKER, LAKE, POSTGRES, REST, STORE)


def plan(seed: int, kills: int) -> Plan:
    """Return `kills` kills in all, half of them of each hand."""
    chance = random.Random(seed)
    of_lake = kills // 2
    left = kills - of_lake
    ends, local, cluster = _in_turn(ENDS, chance), _in_turn(LOCAL, chance), _in_turn(CLUSTER, chance)
    lives: list[Life] = []
    while left:
        kind, most = KINDS[len(lives) % len(KINDS)]
        size = min(left, most)
        victims = [next(cluster if kind == ON_CLUSTER else local) for _ in range(size - 1)]
        steps = 1 if kind == AVAILABLE_NOW else 3
        made = [_kill(victim, chance, steps) for victim in [*victims, next(ends)]]
        lives.append(Life(kind, tuple(made)))
        left -= size
    turns = _in_turn(OF_LAKE, chance)
    return Plan(tuple(lives), tuple(_kill(next(turns), chance, 3) for _ in range(of_lake)))


def _kill(victim: str, chance: random.Random, steps_max: int) -> Kill:
    steps = chance.randint(1, steps_max)
    if victim == POSTGRES:
        return Kill(victim, "sql-iceberg", chance.choice(TABLES["sql-iceberg"]), steps)
    if victim in (REST, STORE):
        where = "rest-iceberg" if victim == REST else chance.choice(["rest-iceberg", "s3-delta"])
        return Kill(victim, where, chance.choice([REQUESTED, DONE]), steps)
    if victim == LAKE:
        where = chance.choice(list(TABLES))
        return Kill(victim, where, chance.choice(TABLES[where]), steps)
    if victim in (WORKER, EXECUTOR):  # while there are tasks
        where = chance.choice(list(_IN_TASKS))
        return Kill(victim, where, chance.choice(_IN_TASKS[where]), steps)
    if victim == PLANNER:
        where = chance.choice(["left", "right", "leased"])
        return Kill(victim, where, chance.choice([CLAIMED, PLANNED, COMMITTED]), steps)
    if victim == BROKER and chance.random() < 0.3:
        where = chance.choice(["sql-iceberg", "file-delta"])
        return Kill(victim, where, chance.choice(TABLES[where]), steps)
    where = chance.choice(list(SPARK))
    return Kill(victim, where, chance.choice(SPARK[where]), steps)


def _in_turn(kinds: tuple[str, ...], chance: random.Random) -> Iterator[str]:
    """Yield all kinds, in random order, again and again."""
    while True:
        yield from chance.sample(kinds, len(kinds))
