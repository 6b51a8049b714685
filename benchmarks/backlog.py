"""`make bench-backlog`: a long backlog of persistent messages: what it costs, and how it survives.

Warren alone, one queue and then many, each with a fresh broker:

  fill             numbered messages with confirms: memory meanwhile, and whether it becomes slower
  kill -9          at once after the last confirm; then the time from exec until basic.get returned the first message
  stop             in order; then the same time again
  drain            everything received in order, nothing missing, nothing twice, after both restarts
  through          as many messages as a tenth of that without a backlog: what the drain is compared with

1. A step that fails ends its spread; every target that then has no figure is a miss.
2. Memory is resident memory of the process tree above that of the idle broker before the fill.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import disk, results
from benchmarks.brokers import Broker, WarrenBroker, started
from benchmarks.load_tool import ROOT, ToolError, perf, say, stop_when_told
from warren.perf.backlog import Backlog
from warren.perf.client import BrokerError, PerfConnection
from warren.perf.footprint import settled_sample

_MESSAGES: Final = 10_000_000
_BODY_BYTES: Final = 100
_QUEUES: Final = (1, 1000)
_CONFIRMS: Final = 5000
_UNACKED: Final = 100_000  # of all queues together
_TOOL_S: Final = 7200.0
_THROUGH_SHARE: Final = 10


class _Target(NamedTuple):
    """A line of the result. The figure must be at least ``least`` and at most ``most``, None for no target."""

    key: str
    title: str
    least: float | None = None
    most: float | None = None

    def bound(self) -> str:
        """Return the target in words, empty for none."""
        if self.least is not None:
            return f"at least {self.least:g}"
        return "" if self.most is None else f"at most {self.most:g}"

    def is_reached(self, figure: float | None) -> bool:
        """Whether there is a figure and it is good enough."""
        if figure is None:
            return False
        return (self.least is None or figure >= self.least) and (self.most is None or figure <= self.most)


_TARGETS: Final = (
    _Target("memory_most_mb", "memory above idle while filling, at most seen, MB", most=250),
    _Target("memory_filled_mb", "memory above idle when filled, MB"),
    _Target("fill_per_s", "published and confirmed, messages/s"),
    _Target("fill_last_to_first", "publish rate of the last tenth to that of the first", least=0.9),
    _Target("disk_bytes_each", "data on disk per message when filled, bytes"),
    _Target("serving_after_kill_s", "kill -9, then exec to the first message got, s", most=10),
    _Target("serving_after_stop_s", "clean stop, then exec to the first message got, s", most=3),
    _Target("drain_per_s", "drained in order, messages/s"),
    _Target("through_per_s", "the same messages without a backlog, messages/s"),
    _Target("drain_to_through", "drain to no backlog", least=0.5),
    _Target("drain_memory_most_mb", "memory above idle while draining, at most seen, MB"),
)


@dataclass
class _Spread:
    """One number of queues, and what was found with it."""

    backlog: Backlog
    figures: dict[str, float] = field(default_factory=dict)
    failure: str = ""

    @property
    def title(self) -> str:
        queues = self.backlog.queues
        return f"{self.backlog.messages:,} of {self.backlog.size_bytes} B in " + (
            "one queue" if queues == 1 else f"{queues:,} queues"
        )

    def note(self, **figures: float) -> None:
        """Keep figures and print them."""
        self.figures.update(figures)
        say(f"{self.title:36} " + "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()))


def _measure(spread: _Spread, broker: Broker, *, restarts: bool) -> None:
    """Run all steps of one spread against a broker just started. Raises ToolError, BrokerError, OSError."""
    idle = settled_sample(broker.pid).rss_bytes
    before = disk.data_bytes(broker.directory)
    filled = perf(broker, ["fill", *_arguments(spread.backlog)], most_s=_TOOL_S)
    tenths = filled["tenths_per_s"]
    spread.note(
        memory_most_mb=(filled["broker_rss_most_bytes"] - idle) / 1e6,
        memory_filled_mb=(filled["broker_rss_bytes"] - idle) / 1e6,
        fill_per_s=filled["messages_per_s"],
        fill_last_to_first=tenths[-1] / tenths[0],
        disk_bytes_each=(disk.data_bytes(broker.directory) - before) / spread.backlog.messages,
    )
    if restarts:
        spread.note(serving_after_kill_s=_serving_again(spread.backlog, broker, broker.kill))
        spread.note(serving_after_stop_s=_serving_again(spread.backlog, broker, broker.stop))
    drained = perf(broker, ["drain", *_arguments(spread.backlog)], most_s=_TOOL_S)
    spread.note(
        drain_per_s=drained["messages_per_s"],
        drain_memory_most_mb=(drained["broker_rss_most_bytes"] - idle) / 1e6,
    )
    fewer = max(spread.backlog.queues, spread.backlog.messages // _THROUGH_SHARE)
    through = perf(broker, ["through", *_arguments(spread.backlog), "--messages", str(fewer)], most_s=_TOOL_S)
    spread.note(
        through_per_s=through["messages_per_s"],
        drain_to_through=drained["messages_per_s"] / through["messages_per_s"],
    )


def _arguments(backlog: Backlog) -> list[str]:
    return [
        *("--messages", str(backlog.messages), "--queues", str(backlog.queues), "--size", str(backlog.size_bytes)),
        *("--confirms", str(backlog.confirms), "--prefetch", str(backlog.prefetch)),
        *("--ack-batch", str(backlog.ack_batch), "--persistent", "--durable", "--prefix", backlog.prefix),
    ]


def _serving_again(backlog: Backlog, broker: Broker, end: Callable[[], None]) -> float:
    """End the broker, start it again, and return the seconds until the oldest message was got from the first queue.

    Raises BrokerError when no message comes, or another one.
    """
    end()
    begin = time.monotonic()
    broker.start()
    with PerfConnection.open(broker.address) as connection:
        body = connection.maybe_get(backlog.queue_name(0))
        seconds = time.monotonic() - begin
    if body is None:
        raise BrokerError("the queue is empty after the restart")
    if body[:8] != bytes(8):
        raise BrokerError(f"the first message after the restart is numbered {body[:8].hex()}: not the oldest")
    return seconds


def _markdown(spreads: list[_Spread], machine: results.Machine, product: str, file_system: str) -> str:
    page = results.Page()
    for spread in spreads:
        rows = []
        for target in _TARGETS:
            figure = spread.figures.get(target.key)
            verdict = page.verdict(reached=target.is_reached(figure)) if target.bound() else ""
            rows.append([target.title, "-" if figure is None else f"{figure:,.2f}", target.bound(), verdict])
        page.text(f"## {spread.title}")
        page.table(["", "Warren", "target", ""], rows)
        if spread.failure:
            page.text(f"Failed: {spread.failure}.")
    arguments = " ".join(_arguments(spreads[0].backlog))
    top = [
        "# A long backlog",
        "Written by `make bench-backlog`; do not edit.",
        f"**{sum(page.verdicts)} of {len(page.verdicts)} targets met.**",
        f"- Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}; "
        f"load before the start {machine.load:.2f}.\n"
        f"- {product} at {results.revision()}, Python {machine.python}; data directories on "
        f"{file_system}; not confined to a core.\n"
        f"- Load tool: `warren perf fill {arguments}`, then `drain`, then `through` with a tenth of the messages.",
    ]
    return "\n\n".join([*top, *page.parts]) + "\n"


def backlog(
    count: Annotated[int, typer.Option(min=10_000, help="Messages")] = _MESSAGES,
    queues: Annotated[list[int] | None, typer.Option(min=1, help="Queues; may be given more than once")] = None,
    restarts: Annotated[bool, typer.Option("--restarts/--no-restarts", help="Kill and stop it between")] = True,
    checkout: Annotated[Path, typer.Option(help="The checkout of Warren, built")] = ROOT,
    directory: Annotated[
        Path | None, typer.Option(help="Where the broker keeps its data meanwhile; default: the temporary directory")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; default benchmarks/BACKLOG.md, with other options nowhere")
    ] = None,
) -> None:
    """Measure memory, rates and restarts of Warren with a long backlog."""
    machine = results.Machine.look()
    wanted = queues or list(_QUEUES)
    spreads = [
        _Spread(
            Backlog(
                messages=count,
                queues=number,
                size_bytes=_BODY_BYTES,
                confirms=_CONFIRMS,
                prefetch=max(100, min(1000, _UNACKED // number)),
                ack_batch=max(10, min(100, _UNACKED // number // 10)),
                prefix="backlog",
            )
        )
        for number in wanted
    ]
    product = ""
    with tempfile.TemporaryDirectory(prefix="warren-backlog-", dir=directory) as below:
        file_system = disk.file_system(Path(below))
        for spread in spreads:
            broker = WarrenBroker(results.WARREN, Path(below) / str(spread.backlog.queues), checkout, core=None)
            with started(broker):
                product = broker.product
                try:
                    _measure(spread, broker, restarts=restarts)
                except (ToolError, BrokerError, OSError) as error:
                    spread.failure = str(broker.maybe_death() or error)
                    say(f"{spread.title:36} FAILED: {spread.failure}")
    text = _markdown(spreads, machine, product, file_system)
    usual = count == _MESSAGES and not queues and restarts and checkout == ROOT
    target = output or (ROOT / "benchmarks" / "BACKLOG.md" if usual else None)
    if target is None:
        print(text)
    else:
        target.write_text(text)
        say(f"written to {os.path.relpath(target)}")
    if any(spread.failure for spread in spreads):
        raise typer.Exit(1)


if __name__ == "__main__":
    stop_when_told()
    typer.run(backlog)
