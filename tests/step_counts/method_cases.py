"""All cases: a method, or another input of the engine, and n of what it multiplies. See `cases.case`."""

from __future__ import annotations

from step_counts.cases import (  # noqa: F401 - each adds its own to `CASES`
    administration,
    amqp10,
    answers,
    consumers,
    ends,
    left_behind,
    mqtt,
    passing_time,
    publishing,
    segments,
    small_methods,
    stomp,
    topology,
    transactions,
)
from step_counts.cases.case import CASES

__all__ = ["CASES"]
