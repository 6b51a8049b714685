"""Turns measurements into RESULTS.md: ratios, targets, pass or miss, and the command of each case.

1. A ratio is taken within one round, and the median over the rounds is shown: rounds differ more than brokers
   do when a machine is disturbed.
2. Where brokers ran in two placements, a figure is the better one of the two, for either broker.
3. A case that failed is a miss and is shown with its error. Nothing is left out.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import cases
from benchmarks.disk import DiskLimit
from benchmarks.relay import PIECE_BYTES, PassedOn

RESULTS: Final = "RESULTS.md"
# What `make bench-spark` writes; it is also the end of RESULTS.md, behind a line of its own.
SPARK: Final = "SPARK.md"
_BORDER: Final = f"\n<!-- What follows is {SPARK}, written by make bench-spark. -->\n\n"

WARREN: Final = "Warren"
BASELINE: Final = "Baseline"
RABBIT: Final = "RabbitMQ"


@dataclass
class Measured:
    """Everything one run of the bench found: loads by case, broker and round; the disk's limit, and what passing on
    takes, by case and round; standing figures by case and broker.
    """

    loads: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    disk: dict[str, list[DiskLimit]] = field(default_factory=dict)
    relayed: dict[str, list[PassedOn]] = field(default_factory=dict)
    standing: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    products: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    file_system: str = "unknown"


@dataclass(frozen=True)
class Machine:
    """Facts about the machine that matter for the figures."""

    processor: str
    cores: int
    memory_gib: int
    system: str
    python: str
    load: float

    @classmethod
    def look(cls) -> Machine:
        """Read /proc and the release files."""
        info = Path("/proc/cpuinfo").read_text()
        models = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        release = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
        return cls(
            processor=models[0] if models else platform.machine(),
            cores=cores(),
            memory_gib=round(pages / 2**30),
            system=f"{release}, Linux {platform.release().split('-')[0]}",
            python=platform.python_version(),
            load=os.getloadavg()[0],
        )


def write_page(directory: Path, name: str, text: str) -> None:
    """Write `text` as RESULTS or SPARK, the other one of which keeps what it has."""
    results = directory / RESULTS
    (directory / name).write_text(text)
    if (directory / SPARK).exists() and results.exists():
        own, _, _ = results.read_text().partition(_BORDER)
        results.write_text(own + _BORDER + (directory / SPARK).read_text())


def cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(statistics.median(values))


def rate(case: cases.Case, found: dict[str, Any]) -> float:
    """Return messages done, or round trips, per second."""
    return float(found["round_trips_per_s" if case.arguments[0] == "rpc" else f"{case.counted}_per_s"])


def cpu_us(case: cases.Case, found: dict[str, Any]) -> float:
    """Return broker CPU per message done, or per round trip."""
    if case.arguments[0] == "rpc":
        return float(found["broker_cpu_us_per_round_trip"])
    return float(found["broker_cpu_us_per_published" if case.counted == "confirmed" else "broker_cpu_us_per_received"])


def latency_us(case: cases.Case, percentile: str, found: dict[str, Any]) -> float:
    """Return a percentile of the latency that this case is about."""
    return float(found[case.latency][percentile])


def one_line(case: cases.Case, found: dict[str, Any]) -> str:
    """Return one measurement for the progress output."""
    tool = f"  tool {found['tool_cpu_share']:.0%}" if "tool_cpu_share" in found else ""
    return (
        f"{rate(case, found):>12,.0f}/s  {cpu_us(case, found):>9.3f} µs"
        f"  p50 {latency_us(case, 'p50', found):>12,.0f} µs"
        f"  p99 {latency_us(case, 'p99', found):>12,.0f} µs{tool}"
    )


Figure = Callable[[dict[str, Any]], float]
Best = Callable[[list[float]], float]


Rounds = list[dict[str, Any]]


class _Comparison:
    """One load: the rounds of Warren and of RabbitMQ, and of a baseline if there was one, in each placement."""

    def __init__(self, case: cases.Case, by_broker: dict[str, Rounds]) -> None:
        self.case = case
        self.warren = [rounds for name, rounds in by_broker.items() if name.startswith(WARREN)]
        self.rabbit = [rounds for name, rounds in by_broker.items() if name.startswith(RABBIT)]
        self.baseline = [rounds for name, rounds in by_broker.items() if name.startswith(BASELINE)]

    @staticmethod
    def of(side: list[Rounds], figure: Figure, best: Best) -> float:
        """Return the better placement's median over the rounds."""
        return best([median([figure(found) for found in rounds]) for rounds in side])

    def ratio(self, against: list[Rounds], figure: Figure, best: Best) -> float:
        """Return the median over the rounds of ours to theirs, of each the better placement (1, 2)."""
        ratios = []
        for turn in range(min(len(rounds) for rounds in [*self.warren, *against])):
            ours, theirs = (best([figure(rounds[turn]) for rounds in side]) for side in (self.warren, against))
            ratios.append(ours / max(theirs, 1e-9))
        return median(ratios)

    def ratio_to_disk(self, limits: list[DiskLimit]) -> float:
        """Return the median over the rounds of our throughput to what the disk alone did in that round."""
        ratios = []
        for turn, limit in enumerate(limits[: min(len(rounds) for rounds in self.warren)]):
            ours = max(rate(self.case, rounds[turn]) for rounds in self.warren)
            ratios.append(ours / limit.messages_per_s)
        return median(ratios)


class Page:
    """The text under construction, and the verdicts given in it."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.verdicts: list[bool] = []

    def verdict(self, *, reached: bool) -> str:
        self.verdicts.append(reached)
        return "pass" if reached else "**miss**"

    def text(self, *paragraphs: str) -> None:
        self.parts.extend(paragraphs)

    def table(self, header: list[str], rows: list[list[str]]) -> None:
        """Add a table; rows that are too short (a case that failed) are filled up."""
        lines = [header, ["---"] + ["--:"] * (len(header) - 1)]
        lines += [row + [""] * (len(header) - len(row)) for row in rows]
        self.parts.append("\n".join("| " + " | ".join(cells) + " |" for cells in lines))


def markdown(measured: Measured, machine: Machine, *, rounds: int, seconds: float) -> str:
    """Return the text of RESULTS.md."""
    found = [
        _Comparison(case, measured.loads.get(case.name, {}))
        for case in cases.LOADS
        if case.name in measured.loads or any(line.startswith(f"{case.name} ") for line in measured.failures)
    ]
    page = Page()
    flows = [one for one in found if one.case.kind is cases.Kind.FLOW]
    _flows(page, "Flows", [one for one in flows if not one.case.durable], measured)
    _flows(page, "Flows of persistent messages in durable queues", [one for one in flows if one.case.durable], measured)
    _durable(page, {one.case.name: one for one in flows if one.case.durable}, measured)
    _passing_on(page, {one.case.name: one for one in flows}, measured)
    _latencies(page, [one for one in found if one.case.kind is cases.Kind.LATENCY])
    _standing(page, measured)
    _against_baseline(page, [one for one in found if one.baseline and one.warren])
    _commands(page, found, seconds)
    if measured.failures:
        page.text("## What failed", "\n".join(f"- {failure}" for failure in measured.failures))
    summary = f"**{sum(page.verdicts)} of {len(page.verdicts)} targets met.**"
    if measured.failures:
        summary += f" {len(measured.failures)} measurements failed."
    top = ["# Benchmark results", "Written by `make bench`; do not edit.", summary]
    facts = _facts(measured, machine, rounds=rounds, seconds=seconds)
    return "\n\n".join([*top, facts, *page.parts]) + "\n"


def _facts(measured: Measured, machine: Machine, *, rounds: int, seconds: float) -> str:
    versions = ", ".join(f"{name}: {product}" for name, product in measured.products.items())
    lines = [
        f"Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}; "
        f"load before the start {machine.load:.2f}.",
        f"Versions: {versions}. Warren at {revision()}, Python {machine.python}.",
        f"Each load: {rounds} rounds, the brokers in turn within each round, 1 s warm-up, {seconds:g} s "
        "measured. Figures are medians, ratios are medians of the ratios within a round.",
        "Messages are transient and queues not durable, unless the load says persistent. Flat out, with at most "
        "100,000 messages (128 MiB) published and not yet received.",
        "CPU is user + system of the broker's process tree, per message received. Throughput is messages received. "
        "Without a consumer both are about messages confirmed.",
        f"All data directories are on {measured.file_system}.",
    ]
    if machine.cores > 1:
        lines.append(
            "Placement: every broker runs confined to one core with the load tool on the other, and again with "
            "neither confined. Figures and ratios take the better placement of each broker: mostly CPU from the "
            "first, RabbitMQ's throughput from the second. Brokers waiting for their turn are frozen."
        )
    if RABBIT in measured.products:
        lines += [
            "Disk, memory, start-up and declarations: neither broker is confined.",
            "RabbitMQ as Debian ships it: no plugins, no configuration file, the package's Erlang flags "
            "(with which idle schedulers do not spin).",
        ]
    else:
        lines.append("RabbitMQ was not measured: there are no ratios.")
    return "\n".join(f"- {line}" for line in lines)


def _flows(page: Page, title: str, found: list[_Comparison], measured: Measured) -> None:
    if not found:
        return
    rows = []
    for one in found:
        case = one.case
        if not one.warren:
            rows.append([case.title, "failed", "", "", "", page.verdict(reached=False)])
            continue
        cpu, speed = partial(cpu_us, case), partial(rate, case)
        theirs = ["-"] * 9
        if one.rabbit:
            cpu_ratio, speed_ratio = one.ratio(one.rabbit, cpu, min), one.ratio(one.rabbit, speed, max)
            target = case.cpu_at_most
            theirs = [
                f"{one.of(one.rabbit, cpu, min):.2f}",
                _fraction(cpu_ratio),
                "" if target is None else _fraction(target),
                "" if target is None else page.verdict(reached=cpu_ratio <= target),
                f"{one.of(one.rabbit, speed, max):,.0f}",
                f"{speed_ratio:.2f}",
                f"{case.speed_at_least:g}",
                page.verdict(reached=speed_ratio >= case.speed_at_least or _at_disk_limit(one, measured)),
                _milliseconds(case, one.rabbit),
            ]
        tool = max(found["tool_cpu_share"] for rounds in one.warren for found in rounds)
        rows.append(
            [
                *(case.title, f"{one.of(one.warren, cpu, min):.2f}", *theirs[:4]),
                *(f"{one.of(one.warren, speed, max):,.0f}", *theirs[4:8]),
                *(_milliseconds(case, one.warren), theirs[8], f"{tool:.0%}"),
            ]
        )
    header = [
        "Load",
        "CPU µs/message: Warren",
        "RabbitMQ",
        "ratio",
        "at most",
        "",
        "messages/s: Warren",
        "RabbitMQ",
    ]
    header += ["ratio", "at least", "", "p50 / p99 ms: Warren", "RabbitMQ", "tool's CPU"]
    page.text(f"## {title}")
    page.table(header, rows)
    page.text(
        "Latency in a flat-out flow is mostly the time spent in the backlog, which the load keeps full; with one "
        "confirmed publish in flight it is publish → confirm. The tool's CPU is of one core, in Warren's runs: near "
        "100 % it is the tool that limits the throughput."
    )


def _at_disk_limit(one: _Comparison, measured: Measured) -> bool:
    limits = measured.disk.get(one.case.name, [])
    return bool(limits) and one.ratio_to_disk(limits) >= 1


def _durable(page: Page, found: dict[str, _Comparison], measured: Measured) -> None:
    """Add what persistent flows are compared with besides RabbitMQ: the disk, and one queue."""
    rows = []
    for name, limits in measured.disk.items():
        one = found.get(name)
        if one is None or not one.warren:
            continue
        ours = one.of(one.warren, partial(rate, one.case), max)
        alone = median([limit.messages_per_s for limit in limits])
        rows.append([f"{one.case.title}, messages/s: of the disk's limit", f"{ours:,.0f}", f"{alone:,.0f}"])
        rows[-1] += [f"{one.ratio_to_disk(limits):.2f}", f"1, or {one.case.speed_at_least:g} to RabbitMQ", ""]
    many = found.get(cases.DURABLE_MANY)
    for name, what, at_least in (
        (cases.DURABLE_SHARED, "one queue's with as many connections", cases.MANY_QUEUES_AT_LEAST),
        (cases.DURABLE_ONE, "one queue's with one publisher and one consumer", None),
    ):
        one = found.get(name)
        if one is None or not one.warren or many is None or not many.warren:
            continue
        speed = partial(rate, one.case)
        ratio = many.ratio(one.warren, speed, max)
        cells = [f"100 durable queues with confirms, messages/s: of {what}"]
        cells += [f"{side.of(side.warren, speed, max):,.0f}" for side in (many, one)]
        cells += [f"{ratio:.2f}", "" if at_least is None else f"{at_least:g}"]
        rows.append([*cells, "" if at_least is None else page.verdict(reached=ratio >= at_least)])
    if rows:
        page.table(["Warren against", "Warren", "the other", "ratio", "at least", ""], rows)
    for name, limits in measured.disk.items():
        page.text(
            f"The disk's limit beside `{name}`: the same bytes by `pwrite` and `fdatasync`, "
            f"{limits[0].batch_messages:,} messages at a time, one thread, allocated files: "
            f"{median([limit.bytes_per_s for limit in limits]) / 1e6:,.0f} MB/s, "
            f"{median([limit.batch_ms for limit in limits]):.2f} ms each time."
        )


def _passing_on(page: Page, found: dict[str, _Comparison], measured: Measured) -> None:
    """Add how much of a message's CPU is for moving its bytes."""
    rows = []
    for name, relayed in measured.relayed.items():
        one = found.get(name)
        if one is None or not one.warren:
            continue
        alone = median([passed.cpu_us(one.case.relayed_bytes) for passed in relayed])
        sides = [side for side in (one.warren, one.rabbit) if side]
        ours = [one.of(side, partial(cpu_us, one.case), min) for side in sides]
        cells = [f"{spent:.1f} ({spent / alone:.1f})" for spent in ours]
        rows.append([one.case.title, f"{alone:.1f}", *cells])
    if not rows:
        return
    page.text("## Passing bytes on")
    page.table(["CPU µs/message (to that of passing on alone)", "passing on alone", WARREN, RABBIT], rows)
    page.text(
        f"Passing on alone: a process that receives so many bytes, {PIECE_BYTES >> 10} KiB at most each time, sends "
        "them, and does nothing else. Nearly all that it takes is the system's."
    )


def _milliseconds(case: cases.Case, side: list[Rounds]) -> str:
    """Write p50 and p99 of the placement with the higher throughput."""
    rounds = max(side, key=lambda rounds: median([rate(case, one) for one in rounds]))
    percentiles = (median([latency_us(case, percentile, one) for one in rounds]) for percentile in ("p50", "p99"))
    return " / ".join(f"{microseconds / 1000:,.1f}" for microseconds in percentiles)


def _latencies(page: Page, found: list[_Comparison]) -> None:
    if not found:
        return
    rows = []
    for one in found:
        if not one.warren:
            rows.append([one.case.title, "failed", "", "", page.verdict(reached=False)])
            continue
        cells = [one.case.title]
        for percentile in ("p50", "p99"):
            figure = partial(latency_us, one.case, percentile)
            cells.append(f"{one.of(one.warren, figure, min):,.0f}")
            if one.rabbit:
                ratio = one.ratio(one.rabbit, figure, min)
                theirs = f"{one.of(one.rabbit, figure, min):,.0f}"
                cells += [theirs, f"{ratio:.2f}", page.verdict(reached=ratio <= 1)]
            else:
                cells += ["-"] * 3
        cpu = partial(cpu_us, one.case)
        cells.append(f"{one.of(one.warren, cpu, min):.1f}")
        cells.append(f"{one.of(one.rabbit, cpu, min):.1f}" if one.rabbit else "-")
        rows.append(cells)
    header = ["Load", "p50 µs: Warren", "RabbitMQ", "ratio", "", "p99 µs: Warren", "RabbitMQ", "ratio", ""]
    page.text("## Latency")
    page.table([*header, "CPU µs: Warren", "RabbitMQ"], rows)
    page.text("The target is a ratio of at most 1 at both percentiles.")


class _StandingRow(NamedTuple):
    """A line of the table of standing figures; the target, or the range of it, is in the unit of the title."""

    case: str
    key: str
    title: str
    unit: float = 1
    at_most: float | None = None
    at_least: float | None = None


_STANDING_ROWS: Final = (
    *(
        _StandingRow(
            "durable-fanout",
            key,
            f"A persistent {cases.FANOUT_BODY_BYTES // 1024} KiB message in {cases.FANOUT_QUEUES} durable queues: "
            f"{what}, bodies",
            at_most=cases.BODIES_ON_DISK_AT_MOST,
            at_least=cases.BODIES_ON_DISK_AT_LEAST,
        )
        for key, what in (("bodies_written", "written to disk"), ("bodies_on_disk", "growth of the data directory"))
    ),
    _StandingRow("memory", "idle_bytes", "Memory, idle, MB", 1e6, cases.IDLE_BYTES_AT_MOST / 1e6),
    _StandingRow(
        "memory",
        "connection_bytes",
        f"Memory per idle connection with one channel ({cases.IDLE_CONNECTIONS:,} open), kB",
        1e3,
        cases.CONNECTION_BYTES_AT_MOST / 1e3,
    ),
    _StandingRow(
        "memory",
        "queue_bytes",
        f"Memory per empty queue ({cases.EMPTY_QUEUES:,} declared), kB",
        1e3,
        cases.QUEUE_BYTES_AT_MOST / 1e3,
    ),
    _StandingRow(
        "startup",
        "start_s",
        f"Start to first open channel with {cases.DURABLE_QUEUES_AT_START:,} durable queues, s",
        at_most=cases.START_S_AT_MOST,
    ),
    *(
        _StandingRow(case, key, title, unit, at_most)
        for case, how in (("declare-pipelined", "pipelined"), ("declare-one-by-one", "one by one"))
        for key, title, unit, at_most in (
            (
                "declare_s",
                f"{cases.DECLARED_QUEUES:,} durable queues declared {how}, s",
                1.0,
                cases.DECLARE_S_AT_MOST,
            ),
            (
                "meanwhile_max_ms",
                "  meanwhile a steady 1,000 messages/s: slowest, s",
                1e3,
                cases.LONGEST_WAIT_S_AT_MOST,
            ),
            ("meanwhile_p99_ms", "  p99, ms", 1.0, None),
            ("alone_p99_ms", "  p99 without declarations, ms", 1.0, None),
        )
    ),
)


def _standing(page: Page, measured: Measured) -> None:
    rows = []
    for row in _STANDING_ROWS:
        by_broker = measured.standing.get(row.case)
        if by_broker is None:
            continue
        ours = by_broker.get(WARREN, {}).get(row.key)
        theirs = next((found[row.key] for name, found in by_broker.items() if name.startswith(RABBIT)), None)
        cells = [row.title, "failed" if ours is None else f"{ours / row.unit:,.2f}", "", ""]
        if row.at_most is not None:
            least = "" if row.at_least is None else f"{row.at_least:g} to "
            reached = ours is not None and (row.at_least or 0) <= ours / row.unit <= row.at_most
            cells[2:] = [f"{least}{row.at_most:g}", page.verdict(reached=reached)]
        rows.append([*cells, "-" if theirs is None else f"{theirs / row.unit:,.2f}"])
    if rows:
        page.text("## Disk, memory, start-up, declarations")
        page.table(["", "Warren", "at most", "", "RabbitMQ"], rows)


def _against_baseline(page: Page, found: list[_Comparison]) -> None:
    rows = []
    for one in found:
        cpu, speed = partial(cpu_us, one.case), partial(rate, one.case)
        cells = [one.case.title]
        cells += [f"{one.of(side, cpu, min):,.3f}" for side in (one.warren, one.baseline)]
        cells.append(f"{one.ratio(one.baseline, cpu, min):.2f}")
        cells += [f"{one.of(side, speed, max):,.0f}" for side in (one.warren, one.baseline)]
        cells.append(f"{one.ratio(one.baseline, speed, max):.2f}")
        rows.append(cells)
    if rows:
        page.text("## Against the baseline checkout")
        header = ["Load", "CPU µs/message: now", "baseline", "ratio", "messages/s: now", "baseline", "ratio"]
        page.table(header, rows)


def _commands(page: Page, found: list[_Comparison], seconds: float) -> None:
    tail = f"--duration {seconds:g} --json --uri amqp://guest:guest@127.0.0.1:PORT/ --pid PID"
    rows = [[one.case.name, f"`warren perf {' '.join(one.case.arguments)} {tail}`"] for one in found]
    connections, queues = f"--count {cases.IDLE_CONNECTIONS}", f"--count {cases.EMPTY_QUEUES}"
    durable, declared = f"--count {cases.DURABLE_QUEUES_AT_START}", f"--count {cases.DECLARED_QUEUES}"
    beside = "beside `warren perf --rate 1000`"
    rows += [
        [
            "durable-fanout",
            f"`warren perf {' '.join(cases.FANOUT_LOAD)}`; `/proc/PID/io`; stopped, files measured",
        ],
        ["memory", f"`warren perf connections {connections}`; restarted, `warren perf declare {queues}`"],
        ["startup", f"`warren perf declare --durable --keep {durable}`; stopped, started, connected to"],
        ["declare-pipelined", f"`warren perf declare --durable --pipelined {declared}` {beside}"],
        ["declare-one-by-one", f"`warren perf declare --durable --one-by-one {declared}` {beside}"],
    ]
    page.text(
        "## Command lines",
        "The broker is `warren serve --data-dir FRESH --amqp 127.0.0.1:PORT --http 127.0.0.1:PORT`, or "
        "`rabbitmq-server` with a fresh data directory; `PID` is its process. Confinement is "
        "`taskset --cpu-list 0` before the broker and `taskset --cpu-list 1` before the load tool.",
    )
    page.table(["Case", "Load tool"], rows)


def _fraction(ratio: float) -> str:
    """Write a ratio below 0.9 as one over something."""
    return f"1/{1 / ratio:.1f}".removesuffix(".0") if 0 < ratio < 0.9 else f"{ratio:.2f}"


def revision() -> str:
    """Return the short commit of this checkout, or a text that says it is unknown."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"commit {done.stdout.strip()}" if done.returncode == 0 else "no commit"


def engine() -> str:
    """Return whether the installed engine is compiled."""
    interpreter = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"
    probe = "import warren.channels.fast_path as module; print(module.__file__)"
    done = subprocess.run([str(interpreter), "-c", probe], capture_output=True, text=True, cwd="/", check=False)
    return "compiled" if done.stdout.strip().endswith(".so") else "interpreted"
