"""Counters and gauges over time: their values at each tick, so that rates and charts have a past.

    level     step      reaches back      kept of
    0         5 s       12 min            everything
    1         1 min     90 min            totals (the broker, its vhosts, the node), queues, exchanges, connections
    2         10 min    10 h              totals and queues
    3         30 min    30 h              totals and queues

1. All series are sampled at the same ticks, `STEP_S` apart; a row of a series is one number per field.
2. A series of a queue that does not change costs nothing at a tick: the rows in between are filled in when it changes
   again.
3. A rate is the difference over the last tick; an average the difference over the range asked for.
4. A requested range is returned whole, as a grid of ticks. Before the first row of an object its first row is used; an
   object without rows is shown as it is now. Rows that a full ring has dropped are not returned.

Source of the shapes: RabbitMQ, management HTTP API, "sampling" (``rate``, ``samples``, ``avg``, ``avg_rate``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

STEP_S: Final = 5
ROWS: Final = 144
# Ticks per row, and rows, of the coarser levels.
COARSE: Final = ((12, 90), (120, 60), (360, 60))
# How many of the coarser levels a series has: a little more than an hour, or a day.
AN_HOUR: Final = 1
A_DAY: Final = len(COARSE)
SAMPLES_MAX: Final = 1000


class Clock:
    """The ticks: number `tick` was taken at `time_ms` of the wall clock."""

    def __init__(self) -> None:
        self.tick = 0
        self.time_ms = 0

    def time_of(self, tick: int) -> int:
        """Return when an earlier tick was."""
        return self.time_ms - (self.tick - tick) * STEP_S * 1000


class _Ring:
    """The last rows of one level; row number n is that of tick ``n * ticks_per_row``."""

    def __init__(self, fields: int, ticks_per_row: int, rows: int) -> None:
        self.ticks_per_row = ticks_per_row
        self._fields = fields
        self._rows = rows
        self._values = array("d")  # grows with the first rows
        self.first = -1  # the oldest row ever set
        self.last = -1

    def put(self, number: int, row: Sequence[float]) -> None:
        """Set a row; those left out since the last one were like the last one."""
        if self.last < 0:
            self.first = number
        else:
            before = self.row(self.last)
            for skipped in range(max(self.last + 1, number - self._rows), number):
                self._set(skipped, before)
        self._set(number, row)
        self.last = number

    def fill(self, number: int, row: Sequence[float]) -> None:
        """Set the rows that are missing up to `number`; not before the first one."""
        if self.last < 0:
            return
        for missing in range(max(self.last + 1, number - self._rows + 1), number + 1):
            self._set(missing, row)
        self.last = max(self.last, number)

    def _set(self, number: int, row: Sequence[float]) -> None:
        at = (number - self.first) % self._rows * self._fields
        missing = at - len(self._values)
        if missing > 0:
            self._values.frombytes(bytes(8 * missing))
        self._values[at : at + self._fields] = array("d", row)

    def row(self, number: int) -> Sequence[float]:
        """Return a row that is still kept."""
        at = (number - self.first) % self._rows * self._fields
        return self._values[at : at + self._fields]

    def memory_bytes(self) -> int:
        """Return the memory of its rows."""
        return 8 * len(self._values)

    def oldest(self) -> int:
        """Return the number of the oldest row kept."""
        return max(self.first, self.last - self._rows + 1)


class Series:
    """The past of one object; `coarse`: how many of the coarser levels are kept of it."""

    __slots__ = ("_latest", "_latest_tick", "_previous", "_rings", "fields")

    def __init__(self, fields: tuple[str, ...], *, coarse: int = 0) -> None:
        self.fields = fields
        self._rings = [_Ring(len(fields), 1, ROWS)]
        self._rings += [_Ring(len(fields), ticks, rows) for ticks, rows in COARSE[:coarse]]
        self._latest: Sequence[float] = ()
        self._previous: Sequence[float] = ()
        self._latest_tick = -1

    def take(self, tick: int, row: Sequence[float]) -> None:
        """Note the row of a tick."""
        row = tuple(row)
        if row == self._latest:
            for ring in self._rings[1:]:
                if tick % ring.ticks_per_row == 0:
                    ring.put(tick // ring.ticks_per_row, row)
            return
        for ring in self._rings[1:]:
            ring.fill((tick - 1) // ring.ticks_per_row, self._latest)
        self._previous = self._latest
        self._latest = row
        self._latest_tick = tick
        for ring in self._rings:
            if tick % ring.ticks_per_row == 0 or ring.last < 0:
                ring.put(tick // ring.ticks_per_row, row)

    def memory_bytes(self) -> int:
        """Return the memory of its rows."""
        return sum(ring.memory_bytes() for ring in self._rings)

    def is_empty(self) -> bool:
        """Tell whether no row was ever taken."""
        return self._latest_tick < 0

    def before(self, tick: int) -> Sequence[float]:
        """Return the row of an earlier tick, as exact as the finest level that still has it, or the oldest row."""
        for ring in self._rings:
            number = tick // ring.ticks_per_row
            if ring.last >= 0 and (number >= ring.oldest() or ring is self._rings[-1]):
                return self._latest if number > ring.last else ring.row(max(number, ring.oldest()))
        return self._latest

    def tick_above(self, field: str, value: float) -> tuple[int, bool]:
        """Return the tick by which the counter `field` had passed `value`, and whether it had not before.

        If it had already passed it at the oldest row, that is the tick. Not without rows. The latest row has passed it,
        or it is about to.
        """
        at = self.fields.index(field)
        if self._latest[at] <= value:
            return self._latest_tick + 1, True
        found = self._latest_tick
        for ring in self._rings:
            low, high = ring.oldest(), ring.last + 1
            if ring.row(low)[at] > value:
                # The first row of a coarse level is of a tick inside it.
                inside = ring.ticks_per_row - 1 if low == ring.first else 0
                found = min(found, low * ring.ticks_per_row + inside)
                continue
            while high - low > 1:
                middle = (low + high) // 2
                if ring.row(middle)[at] > value:
                    high = middle
                else:
                    low = middle
            return (min(found, high * ring.ticks_per_row), True)
        return found, False

    def rate(self, clock: Clock, field: str) -> float:
        """Return the change of `field` per second over the last tick."""
        if self._latest_tick != clock.tick or not self._previous:
            return 0.0
        at = self.fields.index(field)
        return (self._latest[at] - self._previous[at]) / STEP_S

    def details(self, clock: Clock, field: str, now: float, age_s: int, incr_s: int) -> dict[str, object]:
        """Return what RabbitMQ calls the details of a field: its rate, and with an age its samples, newest first.

        `now` is the value at this moment.
        """
        details: dict[str, object] = {"rate": self.rate(clock, field)}
        if age_s <= 0 or incr_s <= 0:
            return details
        at = self.fields.index(field)
        ring = self._ring_for(clock, age_s)
        ticks = max(1, round(incr_s / STEP_S / ring.ticks_per_row)) * ring.ticks_per_row
        count = min(age_s // incr_s + 1, SAMPLES_MAX)
        samples: list[dict[str, object]] = []
        for back in range(count):
            tick = clock.tick - back * ticks
            number = tick // ring.ticks_per_row
            value = float(now)
            if ring.last >= 0:
                if number < ring.oldest() != ring.first:
                    break
                row = self._latest if number > ring.last else ring.row(max(number, ring.first))
                value = float(row[at])
            samples.append({"sample": _number(value), "timestamp": clock.time_of(number * ring.ticks_per_row)})
        details["samples"] = samples
        if len(samples) > 1:
            first, last = samples[-1], samples[0]
            span_s = (_int(last["timestamp"]) - _int(first["timestamp"])) / 1000
            values = [_float(sample["sample"]) for sample in samples]
            details["avg_rate"] = (values[0] - values[-1]) / span_s if span_s else 0.0
            details["avg"] = sum(values) / len(values)
        else:
            details["avg_rate"] = 0.0
            details["avg"] = now
        return details

    def _ring_for(self, clock: Clock, age_s: int) -> _Ring:
        """Return the finest ring that reaches back so far, or the coarsest."""
        for ring in self._rings:
            reach_s = ring.ticks_per_row * STEP_S * (ROWS if ring is self._rings[0] else 60)
            if reach_s >= age_s:
                return ring
        return self._rings[-1]


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _float(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
