"""The source of a table: a stream, the partitions of a super stream, or the messages drained from a queue.

1. A plan contains the offsets to read; reading it again gives the same rows or fails. Of a drain these are offsets of
   claims, which stay until they are settled.
2. `settle` gets the offsets that are safe in the table. A drain acknowledges them. For streams the broker is told the
   position of the table, if that is wanted; a failure of that is ignored.
3. These are a `DataLoss`: messages that retention has removed, a stream that was created again, a broker with another
   history than the table (``spark_bridge.lives``), a partition that was deleted or taken out before it was read, and
   messages that cannot be read. With `skip_lost` they are skipped, and counted where their number is known. After
   another history the table continues where the histories have diverged, if that is known.
   Messages that would be rows twice are a `DataLoss` as well: those of a queue whose session is not the table's (it was
   deleted, or a backup lacks it), and claims that were released although the table has them.
4. Streams that a super stream gets later begin at their first offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from warren.lake.marks import NO_PLACES, Place, Places, fingerprint
from warren.lake.options import Limits
from warren.lake.ranges import SKIP, Range, parts_of, rows_of
from warren.spark_bridge.bridge_errors import BridgeError, DataLoss, Fenced, Gone, NotFound, UsageError
from warren.spark_bridge.control import BrokerClient, Claim, Description, DrainSession
from warren.spark_bridge.limits import shares, within_bytes
from warren.spark_bridge.lives import Divergence, Lives, Remembered, id_at
from warren.spark_bridge.nodes import nodes_of
from warren.spark_bridge.start_offsets import offset_at
from warren.spark_bridge.worker_output import say

TWICE: Final = "Messages that the table has may come again, as further rows. With skip_lost they do"


class Plan(NamedTuple):
    """The ranges to read next, and the places of the table afterwards. `waiting`: left after it; `lost`: skipped.

    `turned`: where streams begin that another history, or another stream, has in the place of the table's.
    """

    ranges: tuple[Range, ...]
    after: Mapping[str, Place]
    waiting: int
    lost: int = 0
    turned: Mapping[str, Place] = {}

    @property
    def rows(self) -> int:
        return sum(each.end - each.first for each in self.ranges)


class Source(Protocol):
    """Where the rows of one table come from."""

    name: str
    lost: int  # messages that were skipped while reading

    def names(self) -> list[str]:
        """Return the names of the parts that have a place in the table."""

    def begin(self, places: Places) -> dict[str, Place]:
        """Take over, and return the beginning of each part without a place in the table."""

    def plan(self, places: Places, limits: Limits, begun: Places = NO_PLACES) -> Plan:
        """Return what to read after `places`: as much as `limits` allow.

        `begun`: where a step was to end that was killed; places that `places` are beyond do not matter.
        """

    def read(self, plan: Plan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a plan."""

    def settle(self, places: Places) -> None:
        """Note which rows are safe."""

    def stop_here(self) -> None:
        """End the plans from now on where the source ends now."""

    def waiting(self, places: Places) -> int:
        """Return the number of messages after `places`."""


def place_at(part: Description, offset: int) -> Place:
    """Return the place of a stream that was read up to `offset`."""
    life = 0 if part.lives is None else fingerprint(part.lives.at(offset))
    return Place(fingerprint(part.id), offset, life)


def maybe_divergence(remembered: Remembered, name: str, lives: Lives | None, place: Place) -> Divergence | None:
    """Return where the history of a stream, or of claims, has left a table's; None: it has not, or it is unknown."""
    known = None if lives is None else lives.by(lambda life: str(fingerprint(life)))
    return remembered.maybe_divergence(name, known, str(place.life) if place.life else None, place.next)


class _Ranges:
    """The common part: plans are read by their ranges."""

    def __init__(self, client: BrokerClient, name: str, *, skip_lost: bool) -> None:
        self.name = name
        self.lost = 0
        self._remembered = Remembered("the table", say)
        self._client = client
        self._skip_lost = skip_lost

    def _loss(self, what: str, otherwise: str = SKIP) -> None:
        if not self._skip_lost:
            raise DataLoss(f"{what}. {otherwise}")

    def read(self, plan: Plan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        self.lost = 0
        for each in plan.ranges:
            for rows, lost in rows_of(self._client, each, schema, skip_lost=self._skip_lost):
                self.lost += lost
                yield from rows


class StreamSource(_Ranges):
    """A stream or a super stream. `start`: where it begins in a new table; `group`: under which the broker shows it."""

    def __init__(
        self,
        client: BrokerClient,
        name: str,
        *,
        start: str = "first",
        group: str | None = None,
        skip_lost: bool = False,
    ) -> None:
        super().__init__(client, name, skip_lost=skip_lost)
        self._start = start
        self._group = group
        self._turn = 0
        self._stop: dict[str, int] | None = None
        self._told: dict[str, int] = {}
        self._known: dict[str, None] = {}  # names of streams, also of those that no longer exist

    def _parts(self) -> dict[str, tuple[int, Description]]:
        """Return the streams by their names, with their numbers."""
        return parts_of(self._client, self.name, "to empty it into the table, drain it")

    def names(self) -> list[str]:
        self._known |= dict.fromkeys(self._parts())
        return list(self._known)

    def begin(self, places: Places) -> dict[str, Place]:
        return {
            name: place_at(part, self._place(part)) for name, (_, part) in self._parts().items() if name not in places
        }

    def _place(self, part: Description) -> int:
        offset = offset_at(self._client, part, self._start)
        if not part.first <= offset <= part.end:
            raise UsageError(f"offset {self._start} of {part.name!r} is not there: it has those from {part.first} on")
        return offset

    def plan(self, places: Places, limits: Limits, begun: Places = NO_PLACES) -> Plan:
        try:
            return self._plan(places, limits, begun)
        except Gone:
            if not self._skip_lost:
                raise
        return self._plan(places, limits, begun)  # retention was faster than the question

    def _plan(self, places: Places, limits: Limits, begun: Places) -> Plan:
        parts = self._parts()
        places = {**{name: place for name, place in begun.items() if name not in parts}, **places}
        starts: dict[str, Place] = {}
        ends: dict[str, int] = {}
        turned: dict[str, Place] = {}
        lost = 0
        for name in places.keys() - parts.keys():
            self._look_for(name, places[name])
        for name, (_, part) in parts.items():
            if self._stop is not None and name not in self._stop:
                continue
            place = places.get(name) or place_at(part, part.first)
            start = self._checked(part, place)
            later = begun.get(name, start)
            if later.id == start.id and later.next > start.next:
                self._checked(part, later)
            if start.id == place.id and start.next >= place.next:
                lost += start.next - place.next
            else:
                turned[name] = start
            starts[name] = start
            ends[name] = part.end if self._stop is None else min(part.end, self._stop[name])
        given = {name: max(0, ends[name] - start.next) for name, start in starts.items()}
        given = self._given(parts, starts, given, limits)
        self._turn += 1
        after = dict(starts)
        ranges = []
        for name in starts:  # in the same order each time: the kinds of columns depend on it
            if rows := given.get(name, 0):
                number, part = parts[name]
                end = starts[name].next + rows
                first = starts[name].next
                others = nodes_of(part, first, number)
                ranges.append(Range(self.name, number, name, part.id_at(end), first, end, nodes=others))
                after[name] = place_at(part, end)
        left = sum(max(0, ends[name] - place.next) for name, place in after.items())
        return Plan(tuple(ranges), {**places, **after}, left, lost, turned)

    def _given(
        self, parts: Mapping[str, tuple[int, Description]], starts: Places, waiting: Mapping[str, int], limits: Limits
    ) -> dict[str, int]:
        """Return how many rows of each stream are read."""

        def fits(name: str, rows: int, size: int) -> tuple[int, int]:
            first = starts[name].next
            found = self._client.plan(name, first, first + rows, parts[name][1].id, max_bytes=size)
            return found.bounds[-1] - first, sum(found.bytes)

        given = shares(waiting, limits.rows, self._turn)
        return within_bytes({name: rows for name, rows in given.items() if rows}, limits.bytes, fits, self._turn)

    def _look_for(self, name: str, place: Place) -> None:
        """Make sure that a partition was read whole that its super stream no longer has."""
        try:
            there = self._client.describe(name)
        except NotFound:
            self._loss(
                f"stream {name!r}, a partition of {self.name!r}, was deleted; it had been read up to {place.next}"
            )
            return
        if there.end > place.next or fingerprint(there.id) != place.id:
            self._loss(
                f"stream {name!r} is no partition of {self.name!r} any more; it had been read up to {place.next}"
            )

    def _checked(self, part: Description, place: Place) -> Place:
        """Return where to continue in a stream."""
        if place.id != fingerprint(part.id):
            self._loss(f"stream {part.name!r} was deleted and created again; it had been read up to {place.next}")
            return place_at(part, part.first)
        divergence = maybe_divergence(self._remembered, part.name, part.lives, place)
        if divergence is not None:
            self._loss(divergence.text)
            return place_at(part, max(part.first, divergence.offset or 0))
        if place.next < part.first:
            self._loss(f"the offsets from {place.next} to {part.first} of {part.name!r} are gone, by its retention")
            return place_at(part, part.first)
        if place.next > part.end:
            self._loss(f"stream {part.name!r} ends at {part.end}, and had been read up to {place.next}")
            return place_at(part, part.end)
        return place

    def settle(self, places: Places) -> None:
        if self._group is None:
            return
        for name, place in places.items():
            if self._told.get(name) != place.next:
                try:
                    self._client.store_offset(name, self._group, place.next)
                except BridgeError:
                    return
                self._told[name] = place.next

    def stop_here(self) -> None:
        self._stop = {name: part.end for name, (_, part) in self._parts().items()}

    def waiting(self, places: Places) -> int:
        return sum(
            max(0, part.end - places[name].next) if name in places else part.end - part.first
            for name, (_, part) in self._parts().items()
        )


class DrainSource(_Ranges):
    """The messages drained from a queue by the session `session`. Of each claim one plan is made."""

    def __init__(self, client: BrokerClient, name: str, session: str, owner: str, *, skip_lost: bool = False) -> None:
        super().__init__(client, name, skip_lost=skip_lost)
        self._session_name = session
        self._owner = owner
        self._session: DrainSession | None = None
        self._claim: Claim | None = None  # the last one of this session
        # The lives of the places that a plan may begin at. The session has those of when it was opened, and of them
        # nothing is known about claims that were made since.
        self._lives: dict[int, str] = {}
        self._stop: int | None = None

    def names(self) -> list[str]:
        return [self.name]

    def begin(self, places: Places) -> dict[str, Place]:
        session = self._session = self._client.open_drain(self.name, self._session_name, self._owner)
        place = places.get(self.name)
        if place is None and session.first == session.end and session.coming_again(0, session.end):
            # Claims of an earlier reader were released: a new session cannot take them for the table's.
            self._client.delete_drain(self.name, self._session_name, session.epoch)
            session = self._session = self._client.open_drain(self.name, self._session_name, self._owner)
        begun = self._place_at(session.first)
        if place is None:
            return {self.name: begun}
        if place.id != fingerprint(session.id):
            self._loss(
                f"the session {self._session_name!r} of {self.name!r}, read up to {place.next}, is another one now: it "
                "was deleted, or the broker was restored from a backup that lacks it",
                TWICE,
            )
            return {self.name: begun}
        divergence = maybe_divergence(self._remembered, self.name, session.lives, place)
        if divergence is not None:
            self._loss(divergence.text, TWICE)
            return {self.name: begun}
        if place.next < session.first:
            self._loss(
                f"the claims from {place.next} to {session.first} of {self.name!r} are gone: released, and then they "
                "come again, or acknowledged for a newer state of this table"
            )
        elif count := session.coming_again(0, place.next):
            self._loss(f"{count} claims below {session.first} of {self.name!r} were released, and are rows", TWICE)
        return {}

    def plan(self, places: Places, limits: Limits, begun: Places = NO_PLACES) -> Plan:
        """Acknowledge the claims below `places`, claim the next messages, and return the plan for them."""
        session = self._opened()
        place = places[self.name]
        life = self._maybe_life(place.next)
        claim = self._client.claim(
            self.name,
            self._session_name,
            session.epoch,
            place.next,
            limits.rows,
            max_bytes=limits.bytes,
            until=self._stop,
            life=life,
        )
        self._claim = claim
        found = {place.next: life, claim.end: claim.life}
        self._lives = {offset: known for offset, known in found.items() if known is not None}
        first, end = max(place.next, claim.first), claim.end
        if end <= first:
            return Plan((), {self.name: place if first <= place.next else self._place_at(first)}, 0)
        id = id_at(session.id, self._maybe_life(end))
        ranges = (Range(self.name, 0, session.queue, id, first, end, in_files=False),)
        return Plan(ranges, {self.name: self._place_at(end)}, limits.rows if end - first >= limits.rows else 0)

    def _maybe_life(self, offset: int) -> str | None:
        """Return the life of the broker that has claimed the last offset below `offset`; None: it is not known."""
        claim, session = self._claim, self._opened()
        if offset in self._lives:
            return self._lives[offset]
        if claim is not None and claim.first < offset <= claim.end:
            return claim.life  # the claims of one call are of one life
        return None if session.lives is None or offset > session.end else session.lives.at(offset)

    def _place_at(self, offset: int) -> Place:
        life = self._maybe_life(offset)
        return Place(fingerprint(self._opened().id), offset, 0 if life is None else fingerprint(life))

    def settle(self, places: Places) -> None:
        """Do nothing: the next plan acknowledges the rows."""

    def stop_here(self) -> None:
        self._stop = self._client.mark(self.name, self._session_name, self._opened().epoch)

    def waiting(self, places: Places) -> int:
        """Return the number of messages in the queue; and show that this session is alive."""
        self._client.mark(self.name, self._session_name, self._opened().epoch)
        return self._client.describe(self.name).messages

    def _opened(self) -> DrainSession:
        if self._session is None:
            raise Fenced(f"the drain of {self.name!r} is not open")
        return self._session
