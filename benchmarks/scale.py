"""`make bench-scale`: what it costs when there is very much of one kind, and whether the rest notices.

For each kind (`crowds`) and each size a fresh broker; RabbitMQ beside it as far as it goes in reasonable time:

  make             the crowd is made; resident memory above the level before, by its number
  change           1,000 times one more of the kind, made and taken away: the 99th percentile
  page             50 times the first page of its list in the management API: the 99th percentile
  idle             CPU while nothing is asked
  flow             CPU per message on one queue, 16 B, to that in another broker in which nothing else is:
                   the median of pairs of runs
  start            stopped in order; from exec to the first open channel

and for one queue with a backlog of 1 GiB, of bodies of 1 KiB to 16 MiB: how fast it fills and drains, and its memory.

All but the first are measured when the tables of the metadata have what was made.

1. A figure that could not be had is a miss.
2. Nothing but the crowd has used the memory of the broker in which it is measured.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import disk, rabbitmq, results
from benchmarks.brokers import Broker, RabbitBroker, WarrenBroker, started
from benchmarks.crowds import CROWDS, Connections, Crowd, connections_that_fit, wait_until_applied, waits_of_pages
from benchmarks.load_tool import ROOT, ToolError, perf, say, stop_when_told
from warren.perf.client import BrokerError, PerfConnection
from warren.perf.footprint import settled_sample
from warren.perf.process_stats import sample

_CHANGES: Final = 1000
_PAGES: Final = 50
_FLOW: Final = ("flow", "--size", "16", "--ack", "--prefetch", "1000", "--ack-batch", "100", "--prefix", "measured")
_START_MOST_S: Final = 5.0
_PAGE_MOST_MS: Final = 200.0
_FLOW_MOST: Final = 1.1
# A change among the most of a kind may take so many times what it takes among the fewest.
_CHANGE_MOST: Final = 2.0
_BACKLOG_BYTES: Final = 1 << 30
_BODIES_BYTES: Final = (1 << 10, 1 << 14, 1 << 18, 1 << 21, 1 << 24)
_MOST_S: Final = 1200.0


class _Figure(NamedTuple):
    """A column of the tables, and a plot."""

    key: str
    title: str
    unit: str


_FIGURES: Final = (
    _Figure("made_per_s", "made", "per second"),
    _Figure("bytes_each", "memory of each", "bytes"),
    _Figure("change_ms", "one more and away, p99", "ms"),
    _Figure("page_ms", "page of the API, p99", "ms"),
    _Figure("flow", "CPU per message elsewhere", "ratio"),
    _Figure("idle_percent", "CPU idle", "% of a core"),
    _Figure("start_s", "start", "s"),
)


@dataclass
class Measured:
    """One size of one crowd in one broker."""

    broker: str
    size: int
    figures: dict[str, float] = field(default_factory=dict)
    failure: str = ""


class _Effort(NamedTuple):
    """How often and how long is measured."""

    rounds: int = 7
    seconds: float = 1.0
    # What a broker does once a minute, and a collection that comes every so many, belong to what it takes idle.
    idle_seconds: float = 60.0


def measure(crowd: Crowd, broker: Broker, empty: Broker, size: int, effort: _Effort) -> dict[str, float]:
    """Return the figures of `size` in a broker just started, and `empty` beside it is started when it is needed.

    Raises BrokerError, OSError, ToolError.
    """
    before = settled_sample(broker.pid)
    begin = time.monotonic()
    crowd.make(broker, size)
    found = {"made_per_s": size / (time.monotonic() - begin)}
    if isinstance(broker, WarrenBroker):
        wait_until_applied(broker)
    try:
        found["bytes_each"] = (settled_sample(broker.pid).rss_bytes - before.rss_bytes) / size
        with PerfConnection.open(broker.address) as connection:
            found["change_ms"] = _p99_ms(_waits(lambda number: crowd.change(connection, number), _CHANGES))
        if isinstance(broker, WarrenBroker):
            found["page_ms"] = _p99_ms(waits_of_pages(broker, crowd.page, _PAGES))
        first = settled_sample(broker.pid)
        time.sleep(effort.idle_seconds)
        found["idle_percent"] = (sample(broker.pid).cpu_us - first.cpu_us) / effort.idle_seconds / 1e4
        with started(empty):
            found["flow"] = _flow_to_that_of(empty, broker, effort)
    finally:
        crowd.leave()
    if crowd.stays:
        broker.stop()
        found["start_s"] = broker.start()
    return found


def _waits(act: Callable[[int], None], times: int) -> Iterable[float]:
    for number in range(times):
        begin = time.monotonic()
        act(number)
        yield time.monotonic() - begin


def _p99_ms(waits_s: Iterable[float]) -> float:
    return statistics.quantiles(waits_s, n=100, method="inclusive")[98] * 1000


def _flow_to_that_of(empty: Broker, broker: Broker, effort: _Effort) -> float:
    """Return CPU per message of a flow on one queue to that in `empty`: the median of so many pairs, one after another.

    Which of the two is first changes with each pair: what the machine does besides grows and falls.
    """
    arguments = [*_FLOW, "--duration", f"{effort.seconds:g}", "--warmup", "0.5"]
    ratios: list[float] = []
    for number in range(effort.rounds):
        taken_us: dict[Broker, float] = {}
        for one in (broker, empty) if number % 2 == 0 else (empty, broker):
            taken_us[one] = float(perf(one, arguments)["broker_cpu_us_per_received"])
        ratios.append(taken_us[broker] / taken_us[empty])
    return statistics.median(ratios)


def measure_bodies(broker: Broker, size_bytes: int, total_bytes: int) -> dict[str, float]:
    """Return the figures of a backlog of bodies of `size_bytes`. Raises BrokerError, ToolError."""
    idle = settled_sample(broker.pid).rss_bytes
    count = max(4, total_bytes // size_bytes)
    window = max(2, min(2000, (64 << 20) // size_bytes))
    arguments = ["--messages", str(count), "--size", str(size_bytes), "--confirms", str(window)]
    arguments += ["--prefetch", str(window), "--ack-batch", str(max(1, window // 10)), "--persistent", "--durable"]
    filled = perf(broker, ["fill", *arguments], most_s=_MOST_S)
    drained = perf(broker, ["drain", *arguments], most_s=_MOST_S)
    return {
        "fill_mb_per_s": filled["messages_per_s"] * size_bytes / 1e6,
        "drain_mb_per_s": drained["messages_per_s"] * size_bytes / 1e6,
        "memory_most_mb": (max(filled["broker_rss_most_bytes"], drained["broker_rss_most_bytes"]) - idle) / 1e6,
    }


# --- what is written ----------------------------------------------------------------------------------------------


def _crowd_table(page: results.Page, crowd: type[Crowd], rows: list[Measured]) -> None:
    page.text(f"## {crowd.title.capitalize()}")
    header = ["", *(f"{figure.title}, {figure.unit}" for figure in _FIGURES)]
    cells = [
        [f"{row.broker}, {row.size:,}", *(_cell(row.figures.get(figure.key)) for figure in _FIGURES)] for row in rows
    ]
    page.table(header, cells)
    for row in rows:
        if row.failure:
            page.text(f"{row.broker}, {row.size:,}: failed: {row.failure}.")
    ours = [row for row in rows if row.broker == results.WARREN]
    verdicts = [
        [title, most, page.verdict(reached=figure is not None and figure <= bound), _cell(figure)]
        for title, most, bound, figure in _targets(crowd, ours)
    ]
    page.table(["Warren, at the largest", "at most", "", "measured"], verdicts)


def _targets(crowd: type[Crowd], ours: list[Measured]) -> list[tuple[str, str, float, float | None]]:
    """Return title, bound in words, bound and figure of each target."""
    largest, smallest = ours[-1].figures, ours[0].figures
    found: list[tuple[str, str, float, float | None]] = []
    if crowd.most_bytes_each is not None:
        most = crowd.most_bytes_each
        found.append(("memory of each, bytes", f"{most:,.0f}", most, largest.get("bytes_each")))
    change = None
    if "change_ms" in largest and "change_ms" in smallest:
        change = largest["change_ms"] / smallest["change_ms"]
    found.append(("one more and away, p99, to that among the fewest", f"{_CHANGE_MOST:g}", _CHANGE_MOST, change))
    found.append(("page of the API, p99, ms", f"{_PAGE_MOST_MS:g}", _PAGE_MOST_MS, largest.get("page_ms")))
    found.append(("CPU per message elsewhere, ratio", f"{_FLOW_MOST:g}", _FLOW_MOST, largest.get("flow")))
    idle = crowd.most_idle_percent
    row = ours[-1 if crowd.idle_size is None else crowd.sizes.index(crowd.idle_size)]
    title = "CPU idle, % of a core" + ("" if row is ours[-1] else f", with {row.size:,}")
    found.append((title, f"{idle:g}", idle, row.figures.get("idle_percent")))
    if crowd.stays:
        found.append(("start, s", f"{_START_MOST_S:g}", _START_MOST_S, largest.get("start_s")))
    return found


def _cell(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:,.2f}"


def _bodies_table(page: results.Page, rows: list[Measured]) -> None:
    page.text("## A backlog of 1 GiB, by the size of its bodies")
    keys = ("fill_mb_per_s", "drain_mb_per_s", "memory_most_mb")
    page.table(
        ["", "filled, MB/s", "drained, MB/s", "memory above idle, most, MB"],
        [[f"{row.broker}, {row.size:,} B", *(_cell(row.figures.get(key)) for key in keys)] for row in rows],
    )
    for row in rows:
        if row.failure:
            page.text(f"{row.broker}, {row.size:,} B: failed: {row.failure}.")


def plot(crowds: dict[str, list[Measured]], target: Path) -> None:
    """Draw each figure against the size, a line for each kind and broker, into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 4, figsize=(15, 7), layout="constrained")
    panels = list(axes.flat)
    handles: dict[str, Any] = {}
    for panel, column in zip(panels, _FIGURES, strict=False):
        for at, (kind, rows) in enumerate(crowds.items()):
            for broker, style in ((results.WARREN, "o-"), (results.RABBIT, "x:")):
                points = [
                    (row.size, row.figures[column.key])
                    for row in rows
                    if row.broker == broker and row.figures.get(column.key, 0) > 0
                ]
                if points:
                    label = f"{kind}, {broker}"
                    (handles[label],) = panel.plot(*zip(*points, strict=True), style, color=f"C{at}", label=label)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(f"{column.title}, {column.unit}", fontsize=9)
    panels[-1].axis("off")
    panels[-1].legend(handles.values(), handles.keys(), loc="center", fontsize=8)
    figure.savefig(target, dpi=90)


# --- the run ------------------------------------------------------------------------------------------------------


def _attempt(row: Measured, title: str, broker: Broker, run: Callable[[], dict[str, float]]) -> None:
    """Fill the figures of `row`, or say why they are missing."""
    try:
        with started(broker):
            try:
                row.figures = run()
            except (ToolError, BrokerError, OSError) as error:
                row.failure = str(broker.maybe_death() or error)
    except (BrokerError, OSError) as error:
        row.failure = str(error)
    told = "  ".join(f"{key} {_cell(value)}" for key, value in row.figures.items())
    say(f"{title:36} {row.broker:9} {row.size:>10,}  {told or 'FAILED: ' + row.failure}")


def scale(
    only: Annotated[list[str] | None, typer.Option(help=f"Only these, of: {', '.join(CROWDS)}, bodies")] = None,
    share: Annotated[float, typer.Option(min=0.0001, max=1.0, help="This part of each size")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each flow is measured")] = 7,
    seconds: Annotated[float, typer.Option(min=0.2, help="Seconds measured of each flow")] = 1.0,
    idle_seconds: Annotated[float, typer.Option(min=1, help="Seconds measured of each idle broker")] = 60.0,
    warren_only: Annotated[bool, typer.Option("--warren-only", help="Leave RabbitMQ out")] = False,
    checkout: Annotated[Path, typer.Option(help="The checkout of Warren, built")] = ROOT,
    directory: Annotated[
        Path | None, typer.Option(help="Where the brokers keep their data meanwhile; default: the temporary directory")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; default benchmarks/SCALE.md, with other options nowhere")
    ] = None,
) -> None:
    """Measure Warren with very many queues, bindings, connections, streams and vhosts, and with large bodies."""
    names = (*CROWDS, "bodies")
    unknown = [name for name in only or [] if name not in names]
    if unknown:
        raise typer.BadParameter(f"nothing is called {', '.join(unknown)}", param_hint="--only")
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    program = None if warren_only else rabbitmq.maybe_install()
    machine = results.Machine.look()
    effort = _Effort(rounds, seconds, idle_seconds)
    crowds: dict[str, list[Measured]] = {}
    bodies: list[Measured] = []
    products: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="warren-scale-", dir=directory) as below:
        file_system = disk.file_system(Path(below))

        def pairs(size: int, rabbit_sizes: tuple[int, ...]) -> Iterator[tuple[Broker, Broker]]:
            """Yield the broker that is measured and one that stays empty, of each product."""
            fresh = Path(tempfile.mkdtemp(dir=below))
            warrens = [
                WarrenBroker(results.WARREN, fresh / name, checkout, core=None) for name in ("warren", "warren2")
            ]
            yield warrens[0], warrens[1]
            if program is not None and size in rabbit_sizes:
                rabbits = [
                    RabbitBroker(results.RABBIT, fresh / name, program, core=None) for name in ("rabbit", "rabbit2")
                ]
                yield rabbits[0], rabbits[1]
            shutil.rmtree(fresh)

        for kind, crowd in CROWDS.items():
            if only and kind not in only:
                continue
            rows = crowds[kind] = []
            for size in crowd.sizes:
                for broker, empty in pairs(size, crowd.rabbit_sizes):
                    count = max(10, round(size * share))
                    if crowd is Connections:
                        count = connections_that_fit(count)
                    row = Measured(broker.name, count)
                    rows.append(row)
                    _attempt(row, crowd.title, broker, partial(measure, crowd(), broker, empty, count, effort))
                    products[broker.name] = broker.product
            rows.sort(key=lambda row: (row.broker != results.WARREN, row.size))
        if not only or "bodies" in only:
            for size in _BODIES_BYTES:
                for broker, _ in pairs(size, _BODIES_BYTES):
                    row = Measured(broker.name, size)
                    bodies.append(row)
                    total = round(_BACKLOG_BYTES * share)
                    _attempt(row, "bodies", broker, partial(measure_bodies, broker, size, total))
                    products[broker.name] = broker.product
            bodies.sort(key=lambda row: (row.broker != results.WARREN, row.size))
    usual = not only and share == 1.0 and effort == _Effort() and not warren_only and checkout == ROOT
    target = output or (ROOT / "benchmarks" / "SCALE.md" if usual else None)
    picture = target.with_suffix(".png") if target is not None else None
    if picture is not None:
        plot(crowds, picture)
    text = _markdown(crowds, bodies, machine, products, file_system, picture, effort)
    if target is None:
        print(text)
    else:
        target.write_text(text)
        say(f"written to {os.path.relpath(target)}")
    if any(row.failure for rows in (*crowds.values(), bodies) for row in rows):
        raise typer.Exit(1)


def _markdown(
    crowds: dict[str, list[Measured]],
    bodies: list[Measured],
    machine: results.Machine,
    products: dict[str, str],
    file_system: str,
    picture: Path | None,
    effort: _Effort,
) -> str:
    page = results.Page()
    for kind, rows in crowds.items():
        _crowd_table(page, CROWDS[kind], rows)
    if bodies:
        _bodies_table(page, bodies)
    top = [
        "# Very many of one kind",
        "Written by `make bench-scale`; do not edit.",
        f"**{sum(page.verdicts)} of {len(page.verdicts)} targets met.**",
        f"- Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}; "
        f"load before the start {machine.load:.2f}.\n"
        f"- {', '.join(products.values())}. Warren at {results.revision()}, Python "
        f"{machine.python}; data directories on {file_system}; brokers are not confined to a core.\n"
        f'- A fresh broker for each size. "Elsewhere" is a flow of 16 B messages with acknowledgements on one queue '
        f"that is not among those counted: its CPU per message to that in a broker beside it in which nothing else "
        f"is, the median of {effort.rounds} pairs of runs. CPU idle is that of {effort.idle_seconds:g} seconds.\n"
        f"- RabbitMQ has no plugins: its pages are not measured, nor streams and vhosts.",
    ]
    if picture is not None:
        top.append(f"![Cost against size]({picture.name})")
    return "\n\n".join([*top, *page.parts]) + "\n"


if __name__ == "__main__":
    stop_when_told()
    typer.run(scale)
