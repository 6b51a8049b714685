"""`make bench-shapes`: ordinary shapes of use beside RabbitMQ and whatever else runs already, written to SHAPES.md.

1. All brokers run all the time, and one load is under way at a time. In every round each load meets each broker, in
   another order each time; shown is the median of the rounds.
2. Each broker may use all cores, and shares them with the load tool. CPU is that of all processes of the broker.
3. A shape that fails is shown with its error.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import callers, rabbitmq, results
from benchmarks.brokers import Broker, RabbitBroker, RunningBroker, WarrenBroker, started
from benchmarks.load_tool import ROOT, Target, ToolError, perf, say, stop_when_told
from warren.perf.client import BrokerError

# Below this share of the CPU of the fastest peer a shape is as cheap as Warren means to be.
CPU_AT_MOST: Final = 1 / 3
_ACK: Final = ("--ack", "--prefetch", "1000", "--ack-batch", "100")
_PERSISTENT: Final = ("--persistent", "--durable")
_PAIRS: Final = ("--queues", "100", "--publishers", "100", "--consumers", "100")
_TELEMETRY: Final = ("--queues", "500", "--publishers", "500", "--consumers", "500", "--rate", "5000")


class Found(NamedTuple):
    """Messages, or answers, in a second; CPU of the broker for each in µs; p50 and p99 in ms, or nan."""

    per_s: float
    cpu_us: float
    p50_ms: float = float("nan")
    p99_ms: float = float("nan")


Measure = Callable[[Target, float], Found]


def _flow(*arguments: str) -> Measure:
    def measure(broker: Target, seconds: float) -> Found:
        found = perf(broker, ["flow", *arguments, "--duration", f"{seconds:g}"])
        waits = found["delivery_latency_us"]
        return Found(
            found["received_per_s"], found["broker_cpu_us_per_received"], waits["p50"] / 1000, waits["p99"] / 1000
        )

    return measure


def _answers(clients: Callable[[Target, float], callers.Answered]) -> Measure:
    def measure(broker: Target, seconds: float) -> Found:
        return Found(*clients(broker, seconds))

    return measure


class Shape(NamedTuple):
    """A way to use a broker."""

    name: str
    title: str
    measure: Measure


SHAPES: Final = (
    Shape("queue", "one queue, 16 B, acks", _flow(*_ACK)),
    Shape(
        "queues",
        "100 queues, 2 publishers, 100 consumers, 16 B, acks",
        _flow("--queues", "100", "--publishers", "2", "--consumers", "100", *_ACK),
    ),
    Shape("pairs", "100 queues, a publisher and a consumer each, 16 B, acks", _flow(*_PAIRS, *_ACK)),
    Shape(
        "queue-steady",
        "one queue, 1,000 messages/s",
        _flow(*_ACK[:-2], "--rate", "1000"),
    ),
    Shape(
        "queues-steady",
        "100 queues, a publisher and a consumer each, 1,000 messages/s",
        _flow(*_PAIRS, *_ACK[:-2], "--rate", "1000"),
    ),
    Shape(
        "durable",
        "one durable queue, 1 KiB, confirms (2,000 in flight), acks",
        _flow("--size", "1024", "--confirms", "2000", *_ACK, *_PERSISTENT),
    ),
    Shape(
        "durable-pairs",
        "100 durable queues, a publisher (20 confirms in flight) and a consumer each, 1 KiB, acks",
        _flow(*_PAIRS, "--size", "1024", "--confirms", "20", *_ACK, *_PERSISTENT),
    ),
    Shape(
        "durable-unconfirmed",
        "one durable queue, 1 KiB, no confirms, acks",
        _flow("--size", "1024", *_ACK, *_PERSISTENT),
    ),
    Shape(
        "telemetry",
        "1,000 connections: 500 queues, a publisher and a consumer each, 10 messages/s each",
        _flow(*_TELEMETRY, "--ack", "--prefetch", "100"),
    ),
    Shape("rpc", f"direct reply-to, {callers.CALLERS} callers with one request each, per call", _answers(callers.call)),
    Shape(
        "topic",
        "topic exchange, 1,000 bindings of mixed patterns on 50 queues, 16 B, per delivery",
        _flow("--exchange", "topic", "--bindings", "1000", "--queues", "50", "--consumers", "50"),
    ),
    Shape(
        "fanout",
        "fanout exchange, 50 queues, 16 B, per delivery",
        _flow("--exchange", "fanout", "--queues", "50", "--consumers", "50"),
    ),
    Shape("prefetch-1", "one queue, prefetch 1, an ack for each", _flow("--ack", "--prefetch", "1")),
    Shape("get", "publish and basic.get, one after the other, per message", _answers(callers.get)),
)
NAMES: Final = tuple(shape.name for shape in SHAPES)


@dataclass
class Measured:
    """What each shape showed, by broker, round by round; None: it failed."""

    found: dict[str, dict[str, list[Found | None]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def run(targets: dict[str, Target], wanted: list[Shape], rounds: int, seconds: float) -> Measured:
    """Measure the shapes of all brokers in turn."""
    measured = Measured()
    for turn in range(rounds):
        for shape in wanted:
            names = list(targets)
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                one: Found | None = None
                try:
                    one = shape.measure(targets[name], seconds)
                except (ToolError, BrokerError, OSError) as error:
                    measured.failures.append(f"{shape.name} against {name}: {error}")
                measured.found.setdefault(shape.name, {}).setdefault(name, []).append(one)
                told = "FAILED" if one is None else f"{one.per_s:12,.0f}/s {one.cpu_us:9.3f} µs {one.p99_ms:9.2f} ms"
                say(f"round {turn + 1}  {shape.name:20} {name:12} {told}")
    return measured


# --- the page ---------------------------------------------------------------------------------------------------------


def in_that_of(ratio: float) -> str:
    """Return a ratio as readers want it: 1/3.4, or 1.2 where the other one is cheaper."""
    return f"1/{1 / ratio:,.1f}" if ratio < 1 else f"{ratio:,.1f}"


def middle(rounds: list[Found | None]) -> Found | None:
    """Return the median of each figure; None when a round failed."""
    whole = [one for one in rounds if one is not None]
    if len(whole) < len(rounds) or not whole:
        return None
    return Found(*(results.median(column) for column in zip(*whole, strict=True)))


def markdown(measured: Measured, wanted: list[Shape], names: list[str], facts: list[str]) -> str:
    """Return the text of SHAPES.md."""
    page = results.Page()
    own, *peers = names
    headings = ["", *(f"{name}, µs" for name in names), "of the cheapest peer", *(f"{name}, /s" for name in names)]
    rows, above = [], []
    for shape in wanted:
        by_broker = {name: middle(measured.found[shape.name][name]) for name in names}
        costs = [one.cpu_us for name in peers if (one := by_broker[name]) is not None]
        mine = by_broker[own]
        ratio = mine.cpu_us / min(costs) if mine is not None and costs else None
        if ratio is not None and ratio > CPU_AT_MOST:
            above.append(f"{shape.title} ({in_that_of(ratio)})")
        rows.append(
            [
                shape.title,
                *("failed" if one is None else f"{one.cpu_us:,.2f}" for one in by_broker.values()),
                "" if ratio is None else in_that_of(ratio),
                *("failed" if one is None else f"{one.per_s:,.0f}" for one in by_broker.values()),
            ]
        )
    page.text("## CPU of the broker for each message, and messages in a second")
    page.table(headings, rows)
    page.text(f"Above a third of the cheapest peer: {'; '.join(above) or 'none'}.")
    page.text("## From the publish to the delivery, ms: p50 / p99")
    steady = [shape for shape in wanted if shape.name.endswith("steady") or shape.name == "telemetry"]
    waits = [
        [
            shape.title,
            *(
                "failed" if one is None else f"{one.p50_ms:,.2f} / {one.p99_ms:,.2f}"
                for one in (middle(measured.found[shape.name][name]) for name in names)
            ),
        ]
        for shape in steady
    ]
    page.table(["", *names], waits)
    for failure in measured.failures:
        page.text(f"Failed: {failure}")
    return (
        "\n\n".join(["# Ordinary shapes", "Written by `make bench-shapes`; do not edit.", *facts, *page.parts]) + "\n"
    )


def shapes(
    rounds: Annotated[int, typer.Option(min=1, help="How often each shape meets each broker")] = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long each load is measured")] = 4.0,
    only: Annotated[list[str] | None, typer.Option(help=f"A shape; may be repeated: {', '.join(NAMES)}")] = None,
    also: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PID=URI", help="A broker that runs already; may be repeated")
    ] = None,
    warren_only: Annotated[bool, typer.Option("--warren-only", help="Leave Debian's RabbitMQ out")] = False,
    checkout: Annotated[Path, typer.Option(help="The checkout of Warren, built")] = ROOT,
    directory: Annotated[
        Path | None, typer.Option(help="Where the brokers keep their data meanwhile; default: the temporary directory")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where to write")] = ROOT / "benchmarks" / "SHAPES.md",
) -> None:
    """Measure ordinary shapes of use."""
    unknown = set(only or []) - set(NAMES)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: not one of {', '.join(NAMES)}")
    wanted = [shape for shape in SHAPES if not only or shape.name in only]
    program = None if warren_only else rabbitmq.maybe_install()
    with tempfile.TemporaryDirectory(prefix="warren-shapes-", dir=directory) as below, ExitStack() as running:
        own: list[Broker] = [WarrenBroker(results.WARREN, Path(below) / "warren", checkout, core=None)]
        if program is not None:
            own.append(RabbitBroker(results.RABBIT, Path(below) / "rabbit", program, core=None))
        targets: dict[str, Target] = {each.name: running.enter_context(started(each)) for each in own}
        targets |= {each.name: each for each in map(RunningBroker.from_text, also or [])}
        measured = run(targets, wanted, rounds, seconds)
        products = ", ".join(f"{name}: {getattr(target, 'product', name)}" for name, target in targets.items())
    machine = results.Machine.look()
    facts = [
        f"Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}; "
        f"load {machine.load:.2f}.",
        f"Versions: {products}. Warren at {results.revision()}, Python {machine.python}.",
        f"The median of {rounds} rounds of {seconds:g} s. Each broker may use all cores, and shares them with the load "
        "tool. Warren confirms persistent messages after `fdatasync`.",
    ]
    output.write_text(markdown(measured, wanted, list(targets), facts))
    say(f"written to {os.path.relpath(output)}")


if __name__ == "__main__":
    stop_when_told()
    typer.run(shapes)
