"""The engine that makes and writes the rows of a plan: this process, or several others (``spark_engine.py``).

1. The result of a plan depends on the table before it and on the messages, not on the engine: any engine can continue
   with a table. Hence an engine that cuts a plan makes only such parts of it as depend on nothing else.
2. A body that finds no new column does not affect others: without it the rest has the same result. So bodies without
   new columns are made in any parts, and bodies with new columns are made at once, in one place (`Here`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from warren.lake.aside import Key, without
from warren.lake.decoder import Decoder
from warren.lake.marks import Marks, Place
from warren.lake.options import Limits
from warren.lake.source import Plan, Source
from warren.lake.table import Table

Append = Callable[[Marks], None]


@dataclass(frozen=True)
class Made:
    """The result of a plan, or of a part of it: `covered` of its offsets. `after`: the places of the table afterwards.

    `known`: how many messages the table of refused messages had already. `append` and `append_refused` commit, and may
    be called again after a `Conflict` if the table has not changed except for other programs' work on its files.
    """

    covered: int
    after: Mapping[str, Place]
    rows: int
    refused: int
    lost: int
    bytes: int
    append: Append
    append_refused: Append
    known: int = 0


class Engine(Protocol):
    """Makes rows of plans."""

    @property
    def limits(self) -> Limits:
        """How much it takes at once."""

    def maybe_make(self, plan: Plan, table: Table, refused: Table | None) -> Made | None:
        """Make rows of a plan for a table, and of the beginning of it at least.

        `refused`: the table of refused messages; None: no message is refused. None is returned if `Here` has to make
        it: columns are found where it begins.
        """


class Here:
    """This process: a plan is in memory, and made whole."""

    def __init__(self, source: Source, decoder: Decoder, limits: Limits) -> None:
        self._limits = limits
        self._source = source
        self._decoder = decoder

    @property
    def limits(self) -> Limits:
        return self._limits

    def maybe_make(self, plan: Plan, table: Table, refused: Table | None) -> Made | None:
        return self.make(plan, table, refused)

    def make(self, plan: Plan, table: Table, refused: Table | None, known: Collection[Key] = ()) -> Made:
        """Make rows of a plan. `known`: messages that the table of refused messages has already."""
        found = self._decoder.decode(table.columns(), self._source.read(plan, self._decoder.reading()))
        rows, aside = without(found.rows, known), without(found.refused, known)

        def append_refused(marks: Marks) -> None:
            assert refused is not None, "nothing is refused by a decoder that does not say so"
            refused.append(aside, marks)

        return Made(
            covered=plan.rows,
            after=plan.after,
            rows=rows.num_rows,
            refused=aside.num_rows,
            lost=self._source.lost,
            bytes=rows.nbytes,
            append=lambda marks: table.append(rows, marks, found.changes),
            append_refused=append_refused,
            known=found.rows.num_rows - rows.num_rows + found.refused.num_rows - aside.num_rows,
        )
