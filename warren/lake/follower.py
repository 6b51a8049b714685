"""One table that follows its source: the commits of a step, and their writer.

    a step                                          killed after it
    1. plan the messages after the table's marks,   nothing has happened
       and have rows made of them (``engine.py``)
    2. commit refused messages, with the marks of   the next steps read these messages again, up to those marks at
       the end of the plan, if there are any        least, and look up which of them 2 has
    3. commit rows, new columns and these marks     the table is further
    4. tell the source                              it is told by the next step

1. The whole state is in the two tables. After any error a step begins with that state, as after a crash; nothing is
   carried over.
2. A message is in exactly one of them, once. While the table of refused messages has marks that are ahead of those of
   the table, and where a stream begins that another history or another stream has in the place of the table's, a step
   looks up which messages are there (``aside.py``): its own decisions may be others than those before the kill.
3. A follower that starts commits the next epoch into both tables, the table first. After that its predecessor can no
   longer commit to either of them, since they have changed since it loaded them; it looks, finds a larger epoch, and
   ends.
4. After a commit of another program (a compaction, say) a step only looks again. Its result is committed after that
   commit if place and columns are the same; else the step begins again. Rows that such a commit has put in twice are
   taken out first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from warren.lake.aside import Key, keys_within
from warren.lake.decoder import Decoder, refused_schema
from warren.lake.doubled import look, take_out
from warren.lake.engine import Engine, Here, Made
from warren.lake.kinds import ARROW
from warren.lake.marks import EPOCH, SOURCE, Places, fingerprint, furthest, is_ahead, keys_of, marks_of, places_of
from warren.lake.options import Limits
from warren.lake.source import Plan, Source
from warren.lake.table import Kept, Table, changed
from warren.lake.table_errors import Conflict, NotOurs, Overtaken
from warren.spark_bridge.bridge_errors import BridgeError

TRIES: Final = 20
_CONFLICT_PAUSE_S: Final = 0.05


# Opens the table of the rows with its first columns, and the one of refused messages; makes them if necessary.
OpenTables = Callable[[pa.Schema, pa.Schema | None], tuple[Table, Table | None]]


class Step(NamedTuple):
    """The result of a step. `waiting`: messages that it has left; `moved`: whether it had anything to do.

    `bytes`: of the rows in memory. `mended`: rows that were in the tables twice, and are so no longer.
    """

    rows: int = 0
    refused: int = 0
    lost: int = 0
    waiting: int = 0
    moved: bool = False
    bytes: int = 0
    mended: int = 0


class _Kept(NamedTuple):
    """The result of a plan, and the state of the tables that it was made for. `is_aside`: 2 was done."""

    places: Places
    columns: pa.Schema
    plan: Plan
    made: Made
    is_aside: bool = False


@dataclass
class _Opened:
    """The tables while they are ours: our epoch in each of them."""

    table: Table
    refused: Table | None
    epochs: dict[str, int]


class Follower:
    """Makes a table follow a source. `identity`: of the source, as a text that no other one has.

    `limits`: for a step in this process; `engine`: makes the rows, if not this process.
    """

    def __init__(
        self,
        source: Source,
        decoder: Decoder,
        open_tables: OpenTables,
        identity: str,
        *,
        limits: Limits | None = None,
        engine: Engine | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._decoder = decoder
        self._open_tables = open_tables
        self._identity = fingerprint(identity)
        self._here = Here(source, decoder, limits or Limits())
        self._engine = engine or self._here
        self._sleep = sleep
        self._opened: _Opened | None = None
        self._kept: _Kept | None = None  # since a commit was a conflict
        self._is_fresh = False  # whether the tables are known to be as they were seen last
        self._mended = 0  # rows since the last step

    # --- taking over -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the tables over from their previous owner.

        Raises:
            NotOurs: the table follows something else, or was made by another program.
        """
        refused = refused_schema() if self._decoder.refuses else None
        table, aside = self._open_tables(self._decoder.first_columns(), refused)
        opened = _Opened(table, aside, {})
        self._take_over(opened, table)
        if aside is not None:
            self._take_over(opened, aside)
        self._opened = opened
        self._is_fresh = False
        self._look()

    def _take_over(self, opened: _Opened, table: Table) -> None:
        """Commit the next epoch; the first one says where the source begins."""
        is_main = table is opened.table
        for attempt in range(TRIES):
            table.load(keys_of(self._source.names()))
            marks = table.marks()
            if marks and marks.get(SOURCE) != self._identity:
                raise NotOurs(f"table {table.name} follows another source: use another table")
            places = places_of(marks)
            begun = self._source.begin(places) if is_main else {}
            columns = table.columns()
            changes = self._decoder.pending(columns, can_widen=table.can_widen) if is_main else ()
            epoch = marks.get(EPOCH, 0) + 1
            ours = {**marks, EPOCH: epoch, SOURCE: self._identity, **marks_of(begun)}
            try:
                table.append(changed(columns, changes, ARROW).empty_table(), ours, changes)
            except Conflict:
                self._sleep(_CONFLICT_PAUSE_S * (attempt + 1))
                continue
            opened.epochs[table.name] = epoch
            return
        raise Conflict(f"table {table.name}: others commit to it all the time")

    def _look(self) -> tuple[Places, Places]:
        """Return the places of the table, and those of the table of refused messages.

        Raises:
            Overtaken: another follower has taken over the tables.
        """
        opened = self._there()
        marks: dict[str, Mapping[str, int]] = {}
        for table in (opened.table, opened.refused):
            if table is None:
                continue
            if not self._is_fresh:
                table.load(keys_of(self._source.names()))
            marks[table.name] = table.marks()
            if marks[table.name].get(EPOCH) != opened.epochs[table.name]:
                raise Overtaken(f"another process follows {self._source.name!r} into {table.name} by now")
        self._is_fresh = True
        for table in (opened.table, opened.refused):
            if table is not None and (suspects := table.suspects()):
                self._is_fresh = False
                self._mended += take_out(table, look(table, suspects))
                self._is_fresh = True
        aside = {} if opened.refused is None else places_of(marks[opened.refused.name])
        return places_of(marks[opened.table.name]), aside

    def _there(self) -> _Opened:
        assert self._opened is not None, "open() comes first"
        return self._opened

    # --- steps -----------------------------------------------------------------------------------------------------

    def step(self) -> Step:
        """Commit the next messages, and return the result.

        Raises:
            Overtaken: another follower has taken over the tables. DataLoss: a message that should be read is gone.
        """
        for attempt in range(TRIES):
            try:
                step = self._step()
                mended, self._mended = self._mended, 0
                return step._replace(mended=mended)
            except Conflict as error:
                self._is_fresh = False
                conflict = error
            except BaseException:
                self._is_fresh = False
                self._kept = None
                raise
            self._sleep(_CONFLICT_PAUSE_S * (attempt + 1))
        self._kept = None
        raise conflict

    def _step(self) -> Step:
        opened = self._there()
        places, aside = self._look()
        self._source.settle(places)
        kept = self._maybe_kept(places)
        plan, made = (kept.plan, kept.made) if kept is not None else self._made(places, aside)
        if made is None:
            self._is_fresh = False  # without a commit only a look at the table shows whether another one took over
            return Step(waiting=plan.waiting)
        refused = made.refused + made.known
        missing = made.covered - made.lost - made.rows - refused
        if missing < 0:
            raise BridgeError(f"{-missing} more rows than messages: this is a bug in Warren")
        self._kept = kept = kept or _Kept(places, opened.table.columns(), plan, made)
        if made.refused and not kept.is_aside:
            assert opened.refused is not None, "nothing is refused by a decoder that does not say so"
            made.append_refused(self._marks(opened.refused, furthest(aside, made.after)))
            self._kept = kept._replace(is_aside=True)
        made.append(self._marks(opened.table, made.after))
        self._kept = None
        self._source.settle(made.after)
        left = plan.waiting + plan.rows - made.covered
        return Step(made.rows, refused, plan.lost + made.lost, left, True, made.bytes)

    def _maybe_kept(self, places: Places) -> _Kept | None:
        """Return the result from before a conflict, if a new one would be the same."""
        kept, self._kept = self._kept, None
        if kept is None or kept.places != places or kept.columns != self._there().table.columns():
            return None
        return kept

    def _made(self, places: Places, aside: Places) -> tuple[Plan, Made | None]:
        """Return the next plan, and its result; None: there is nothing to do."""
        opened = self._there()
        plan = self._source.plan(places, self._engine.limits, aside)
        if not plan.ranges and plan.after == places:
            return plan, None
        known: frozenset[Key] = frozenset()
        if opened.refused is not None and (plan.turned or is_ahead(aside, places)):
            known = keys_within(opened.refused, plan.ranges)
        made = None if known else self._engine.maybe_make(plan, opened.table, opened.refused)
        if made is None:
            plan = self._source.plan(places, self._here.limits, aside)
            made = self._here.make(plan, opened.table, opened.refused, known)
        return plan, made

    def _marks(self, table: Table, after: Places) -> dict[str, int]:
        return {EPOCH: self._there().epochs[table.name], SOURCE: self._identity, **marks_of(after)}

    # --- the rest --------------------------------------------------------------------------------------------------

    @property
    def rows_max(self) -> int:
        """How many messages a step takes at most."""
        return self._engine.limits.rows

    def stop_here(self) -> None:
        """End the steps from now on where the source ends now."""
        self._source.stop_here()

    def waiting(self) -> int:
        """Return the number of messages that are not in the table."""
        places, _ = self._look()
        return self._source.waiting(places)

    def maintain(self, now_s: float) -> Kept:
        """Look after the files of both tables."""
        opened = self._there()
        self._look()
        total = Kept()
        for table in (opened.table, opened.refused):
            if table is None:
                continue
            self._is_fresh = False
            try:
                done = table.maintain(now_s)
            except Conflict:
                self._look()  # commits in between may have put rows in twice
                raise
            total = Kept(*(one + other for one, other in zip(total, done, strict=True)))
        return total
