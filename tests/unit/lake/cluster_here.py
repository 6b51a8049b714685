"""A cluster without one: tasks run here, one after the other, on copies of what they are sent."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

from warren.lake.spark_engine import PieceMade, Work


class ClusterHere:
    """`order`: in which tasks are run, and how often; the last report of a piece counts. `ran`: pieces of each job.

    A broker in memory cannot be copied, and a table in memory is its writer: everything else goes through pickle.
    """

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self.ran: list[int] = []
        self.backwards = False
        self.tries = 1

    def run(self, work: Work) -> list[PieceMade]:
        self.ran.append(len(work.pieces))
        sent = replace(work, decoder=pickle.loads(pickle.dumps(work.decoder)), columns=_copy(work.columns))
        numbers: Sequence[int] = range(len(work.pieces))
        made: dict[int, PieceMade] = {}
        for number in reversed(numbers) if self.backwards else numbers:
            for _ in range(self.tries):
                made[number] = sent(number)
        return [made[number] for number in numbers]


def _copy(value: object) -> object:
    return pickle.loads(pickle.dumps(value))
