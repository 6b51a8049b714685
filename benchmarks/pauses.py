"""`make bench-pauses`: how long single messages wait over an hour at a constant rate, and how much memory it takes.

A broker in Python has one interpreter and a garbage collector. Averages do not show what these do to a single message;
the longest waits of many short intervals do. All brokers run all the time, with the same standing load:

  waiting      messages of 100 B in durable queues that nobody reads
  idle         connections with a channel and consumers
  measured     in intervals of ten seconds, each broker in turn: persistent messages of 1 KiB through a durable queue,
               with confirms and acknowledgements, at the same constant rate

1. The load is an open loop: a message that is late does not delay the next one, and its latency counts from the moment
   at which the rate wanted it (no coordinated omission).
2. The brokers take turns, so that what else happens on the machine meets all of them alike.
3. An interval in which a message or a confirm was missing is a failure and ends the run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import disk, rabbitmq, results
from benchmarks.brokers import Broker, RabbitBroker, RunningBroker, WarrenBroker, started
from benchmarks.crowds import Connections, connections_that_fit
from benchmarks.load_tool import ROOT, perf, say, stop_when_told
from warren.perf.process_stats import sample

_WAITING: Final = 1_000_000
_WAITING_QUEUES: Final = 100
_IDLE: Final = 1_000
_INTERVAL_S: Final = 10.0
_PERCENTILES: Final = ("p50", "p99", "p99.9", "max")
_MEASURED: Final = ("confirm_latency_us", "delivery_latency_us")
_TITLES: Final = {"confirm_latency_us": "confirm", "delivery_latency_us": "delivery"}


@dataclass
class Series:
    """The intervals of one broker: when each began, in seconds, what the load tool said, and the memory after it."""

    product: str
    at_s: list[float] = field(default_factory=list)
    found: list[dict[str, Any]] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)

    def latencies_ms(self, kind: str, percentile: str) -> list[float]:
        """Return that percentile of each interval."""
        return [one[kind][percentile] / 1000 for one in self.found]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "product": self.product,
            "at_s": self.at_s,
            "memory_bytes": self.memory_bytes,
            "intervals": [{kind: one[kind] for kind in _MEASURED} for one in self.found],
        }


# --- measuring ----------------------------------------------------------------------------------------------------


def stand(target: Broker | RunningBroker, waiting: int, idle: int) -> Connections:
    """Give a broker its standing load; return the connections, which end with it."""
    if waiting:
        filling = ("fill", "--durable", "--persistent", "--confirms", "1000", "--size", "100", "--prefix", "waiting")
        perf(target, [*filling, "--queues", str(_WAITING_QUEUES), "--messages", str(waiting)])
    crowd = Connections()
    if idle:
        crowd.make(target, connections_that_fit(idle))
    return crowd


def measure(target: Broker | RunningBroker, rate: float) -> dict[str, Any]:
    """Measure one interval."""
    durable = ("flow", "--durable", "--persistent", "--size", "1024", "--confirms", "1000", "--prefix", "measured")
    acked = ("--ack", "--prefetch", "100", "--ack-batch", "1")
    return perf(target, [*durable, *acked, "--rate", f"{rate:g}", "--warmup", "1", "--duration", f"{_INTERVAL_S:g}"])


def take_turns(targets: dict[str, Broker | RunningBroker], rate: float, minutes: float) -> dict[str, Series]:
    """Measure all brokers in turn for so long."""
    series = {name: Series(getattr(target, "product", "") or name) for name, target in targets.items()}
    begin = time.monotonic()
    while time.monotonic() - begin < minutes * 60:
        for name, target in targets.items():
            one = series[name]
            one.at_s.append(time.monotonic() - begin)
            one.found.append(measure(target, rate))
            one.memory_bytes.append(sample(target.pid).rss_bytes)
            waits = one.found[-1]["confirm_latency_us"]
            told = "  ".join(f"{key} {waits[key] / 1000:9.2f} ms" for key in _PERCENTILES)
            say(f"{one.at_s[-1]:7.0f} s  {name:12} confirm {told}  {one.memory_bytes[-1] / 1e6:7.0f} MB")
    return series


# --- the page -----------------------------------------------------------------------------------------------------


def plot(series: dict[str, Series], target: Path) -> None:
    """Draw p50, p99, p99.9 and the longest wait of each interval, and the memory, against time, into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 8), layout="constrained")
    panels = list(axes.flat)
    for panel, percentile in zip(panels, _PERCENTILES, strict=False):
        for at, (name, one) in enumerate(series.items()):
            minutes = [at_s / 60 for at_s in one.at_s]
            panel.plot(minutes, one.latencies_ms("confirm_latency_us", percentile), ".-", color=f"C{at}", label=name)
        panel.set_yscale("log")
        title = "longest confirm" if percentile == "max" else f"confirm, {percentile}"
        panel.set_title(f"{title} of each interval, ms", fontsize=9)
        panel.set_xlabel("minutes", fontsize=8)
    for at, (name, one) in enumerate(series.items()):
        minutes = [at_s / 60 for at_s in one.at_s]
        panels[4].plot(minutes, [size / 1e6 for size in one.memory_bytes], ".-", color=f"C{at}", label=name)
    panels[4].set_title("resident memory, MB", fontsize=9)
    panels[4].set_xlabel("minutes", fontsize=8)
    panels[5].axis("off")
    panels[5].legend(*panels[0].get_legend_handles_labels(), loc="center", fontsize=9)
    figure.savefig(target, dpi=90)


def markdown(series: dict[str, Series], facts: list[str], picture: str) -> str:
    """Return the text of PAUSES.md."""
    page = results.Page()
    for kind in _MEASURED:
        page.text(f"## Wait for the {_TITLES[kind]}, ms")
        page.table(
            ["", "intervals", *(f"{each}, median" for each in _PERCENTILES), "p99.9, worst", "max, worst"],
            [
                [
                    name,
                    str(len(one.found)),
                    *(f"{results.median(one.latencies_ms(kind, each)):,.2f}" for each in _PERCENTILES),
                    f"{max(one.latencies_ms(kind, 'p99.9')):,.1f}",
                    f"{max(one.latencies_ms(kind, 'max')):,.1f}",
                ]
                for name, one in series.items()
            ],
        )
    page.text("## Resident memory, MB")
    page.table(
        ["", "first interval", "last interval", "most"],
        [
            [
                name,
                *(f"{size / 1e6:,.0f}" for size in (one.memory_bytes[0], one.memory_bytes[-1], max(one.memory_bytes))),
            ]
            for name, one in series.items()
        ],
    )
    top = [
        "# Pauses",
        "Written by `make bench-pauses`; do not edit.",
        *facts,
        f"![waits and memory over time]({picture})",
    ]
    return "\n\n".join([*top, *page.parts]) + "\n"


def _facts(series: dict[str, Series], rate: float, waiting: int, idle: int, file_system: str) -> list[str]:
    machine = results.Machine.look()
    versions = ", ".join(f"{name}: {one.product}" for name, one in series.items())
    return [
        f"Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}; "
        f"load {machine.load:.2f}.",
        f"Versions: {versions}. Warren at {results.revision()}, Python {machine.python}.",
        f"{rate:,.0f} persistent messages of 1 KiB a second through a durable queue, with confirms and one "
        f"acknowledgement for each, in intervals of {_INTERVAL_S:g} s, the brokers in turn. Beside it each broker "
        f"holds {waiting:,} messages of 100 B in {_WAITING_QUEUES} durable queues and {idle:,} connections with five "
        "consumers each. A latency counts from the moment at which the constant rate wanted the message. Warren "
        "confirms after `fdatasync`, RabbitMQ's classic queue after a write. All data directories are on "
        f"{file_system}.",
    ]


def pauses(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long all brokers together are measured")] = 60.0,
    rate: Annotated[float, typer.Option(min=1, help="Messages per second")] = 1000.0,
    waiting: Annotated[int, typer.Option(min=0, help="Messages that wait in each broker")] = _WAITING,
    idle: Annotated[int, typer.Option(min=0, help="Idle connections of each broker")] = _IDLE,
    also: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PID=URI", help="A broker that runs already; may be repeated")
    ] = None,
    warren_only: Annotated[bool, typer.Option("--warren-only", help="Leave RabbitMQ out")] = False,
    checkout: Annotated[Path, typer.Option(help="The checkout of Warren, built")] = ROOT,
    directory: Annotated[
        Path | None, typer.Option(help="Where the brokers keep their data meanwhile; default: the temporary directory")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where to write; the picture and the figures as JSON go beside it")] = (
        ROOT / "benchmarks" / "PAUSES.md"
    ),
) -> None:
    """Measure the waits of single messages over a long time."""
    program = None if warren_only else rabbitmq.maybe_install()
    with tempfile.TemporaryDirectory(prefix="warren-pauses-", dir=directory) as below, ExitStack() as running:
        targets: dict[str, Broker | RunningBroker] = {}
        own: list[Broker] = [WarrenBroker(results.WARREN, Path(below) / "warren", checkout, core=None)]
        if program is not None:
            own.append(RabbitBroker(results.RABBIT, Path(below) / "rabbit", program, core=None))
        for broker in own:
            targets[broker.name] = running.enter_context(started(broker))
        for each in map(RunningBroker.from_text, also or []):
            targets[each.name] = each
        for name, target in targets.items():
            say(f"{name}: {waiting:,} messages and {idle:,} connections")
            running.callback(stand(target, waiting, idle).leave)
        series = take_turns(targets, rate, minutes)
        file_system = disk.file_system(Path(below))
    picture = output.with_suffix(".png")
    plot(series, picture)
    output.with_suffix(".json").write_text(json.dumps({name: one.as_dict() for name, one in series.items()}))
    output.write_text(markdown(series, _facts(series, rate, waiting, idle, file_system), picture.name))
    say(f"written to {os.path.relpath(output)}")


if __name__ == "__main__":
    stop_when_told()
    typer.run(pauses)
