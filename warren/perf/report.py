"""The output for a person at the terminal: a live line, a table, or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from warren.perf.meter import Totals

_LATENCY_KEYS = ("p50", "p95", "p99", "p99.9", "max")


class Reportable(Protocol):
    """A result of any mode."""

    def as_dict(self) -> dict[str, object]:
        """Return everything as plain values."""


class LiveLine:
    """One line on standard error that is rewritten every second; silent when that is not a terminal."""

    def __init__(self, live: Live | None) -> None:
        self._live = live

    def show(self, before: Totals, now: Totals) -> None:
        """Show the rates between two totals."""
        if self._live is None:
            return
        step = now.since(before)
        seconds = step.at_ns / 1e9
        rates = f"published {step.published / seconds:>12,.0f}/s   received {step.received / seconds:>12,.0f}/s"
        if now.confirmed:
            rates += f"   confirmed {step.confirmed / seconds:>12,.0f}/s"
        self._live.update(Text(rates))


@contextmanager
def live_line(*, wanted: bool) -> Iterator[LiveLine]:
    """Show a live line while the block runs, if wanted and standard error is a terminal."""
    if not (wanted and sys.stderr.isatty()):
        yield LiveLine(None)
        return
    with Live(Text("connecting"), console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        line = LiveLine(live)
        yield line


def print_result(result: Reportable, *, as_json: bool) -> None:
    """Print a result on standard output."""
    values = result.as_dict()
    if as_json:
        print(json.dumps(values))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in values.items():
        label = name.replace("_", " ")
        if name == "workload":
            continue
        if isinstance(value, Mapping):
            if value.get("samples"):
                table.add_row(label, "  ".join(f"{key} {_number(value[key])}" for key in _LATENCY_KEYS))
        else:
            table.add_row(label, _number(value))
    Console(soft_wrap=True).print(table)


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
