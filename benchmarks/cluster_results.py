"""Turns what `make bench-cluster` has measured into CLUSTER.md: ratios, targets, pass or miss.

1. A ratio is taken within one round, and the median over the rounds is shown.
2. A figure that was asked for and could not be had is a miss.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks import results

CLUSTER: Final = "three nodes"
QUORUM: Final = "quorum queues"
SINGLE: Final = "one node"
FLOW: Final = "flow"
ONE: Final = "one"
CONNECTIONS: Final = "connections"
STOPPED_S: Final = 5.0  # a follower


@dataclass(frozen=True)
class Settings:
    """How one run measures."""

    only: Sequence[str]
    rounds: int
    seconds: float
    kills: int
    etcd_s: float
    replica_mib: int


@dataclass(frozen=True)
class Aim:
    """What a figure is to reach: at least, or at most."""

    title: str
    bound: float
    is_least: bool
    unit: str = ""

    def is_reached(self, value: float) -> bool:
        """Tell whether a figure is good enough."""
        return value >= self.bound if self.is_least else value <= self.bound

    def words(self) -> str:
        """Return the bound in words."""
        return f"{'at least' if self.is_least else 'at most'} {self.bound:g}{self.unit}"


@dataclass(frozen=True)
class Load:
    """One run of the load tool against one of the three; CPU is per message."""

    per_s: float
    leader_us: float
    all_us: float
    p50_ms: float
    p99_ms: float


@dataclass
class Measured:
    """Everything one run found: loads by name and kind, a list over rounds; seconds of faults; bytes of memory."""

    loads: dict[str, dict[str, list[Load]]] = field(default_factory=dict)
    gaps_s: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    memory: dict[str, list[float]] = field(default_factory=dict)
    replica: dict[str, float] = field(default_factory=dict)
    products: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


_RATES: Final = {
    FLOW: (Aim("to quorum queues", 10, True), Aim("to one node", 0.4, True)),
    ONE: (Aim("to quorum queues", 1.3, True), None),
    CONNECTIONS: (Aim("to quorum queues", 3, True), None),
}
_TITLES: Final = {
    FLOW: "1 KiB, 2,000 confirms in flight, consumed with acks",
    ONE: "one confirm at a time",
    CONNECTIONS: "500 connections, one confirm in flight each",
}
_LEADER_CPU: Final = Aim("leader to one node", 1.3, False)
_ALL_CPU: Final = Aim("all nodes to quorum queues", 0.1, False)
_KILL_P50: Final = Aim("kill -9 of the leader to the next confirm, median", 1.2, False, " s")
_KILL_WORST: Final = Aim("the worst", 3.0, False, " s")
_TRANSFER: Final = Aim("the leader hands over: longest gap", 1.0, False, " s")
_STOP: Final = Aim("a follower is stopped: longest gap", 1.3, False, " s")
_ETCD: Final = Aim("etcd is away: longest gap", 0.05, False, " s")
_REPLICA_RATE: Final = Aim("MB/s of a new replica", 300, True)
_REPLICA_KEPT: Final = Aim("of their rate publishers keep meanwhile", 0.8, True)


def markdown(found: Measured, settings: Settings, machine: results.Machine, file_system: str) -> str:
    """Return the text of CLUSTER.md."""
    page = results.Page()
    _loads(page, found)
    _faults(page, found, settings)
    if found.memory:
        page.text("## Memory of an idle node")
        rows = [[name, f"{statistics.median(sizes) / 1e6:,.0f}"] for name, sizes in found.memory.items()]
        page.table(["", "MB"], rows)
    if found.failures:
        page.text("## What failed", "\n".join(f"- {failure}" for failure in found.failures))
    busy = "" if machine.load <= 0.5 else ": others were at work, so ratios and CPU per message say more than rates"
    facts = [
        f"Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}; load before "
        f"the start {machine.load:.2f}{busy}.",
        f"{', '.join(f'{name}: {product}' for name, product in found.products.items())}. Warren at "
        f"{results.revision()}, Python {machine.python}; data on {file_system}.",
        f"All nodes, etcd and the load tool share this machine and its disk. {settings.rounds} rounds, in which each "
        f"is started on fresh data; {settings.seconds:g} s of each load. Figures are medians over rounds, ratios "
        "medians of the ratios within a round.",
        "Warren: three nodes that elect by three members of etcd, confirms after `fdatasync` on all in sync. Quorum "
        "queues: three nodes as Debian ships them, confirms after a majority has written. Clients are at the leader.",
    ]
    top = [
        "# Three nodes",
        "Written by `make bench-cluster`; do not edit.",
        f"**{sum(page.verdicts)} of {len(page.verdicts)} targets met.**",
        "\n".join(f"- {fact}" for fact in facts),
    ]
    return "\n\n".join([*top, *page.parts]) + "\n"


def _loads(page: results.Page, found: Measured) -> None:
    if not found.loads:
        return
    rows, cpu_rows, targets = [], [], []
    for name, by_kind in found.loads.items():
        figures = {kind: _medians(loads) for kind, loads in by_kind.items()}
        rows.append([_TITLES[name], *(_rate(figures.get(kind)) for kind in (CLUSTER, QUORUM, SINGLE))])
        cpu_rows.append([_TITLES[name], *_cpu(figures)])
        for other, aim in zip((QUORUM, SINGLE), _RATES[name], strict=True):
            if aim is not None:
                targets.append(_target(page, f"{_TITLES[name]}: rate", aim, _ratio(by_kind, other, "per_s")))
        if name == FLOW:
            leader = _ratio(by_kind, SINGLE, "leader_us")
            everybody = _ratio(by_kind, QUORUM, "all_us")
            targets.append(_target(page, "the same: CPU per message", _LEADER_CPU, leader))
            targets.append(_target(page, "the same: CPU per message", _ALL_CPU, everybody))
    page.text("## Loads")
    page.table(["messages/s (p50 / p99 ms)", CLUSTER, QUORUM, SINGLE], rows)
    heads = [f"{CLUSTER}: leader", "all nodes", f"{QUORUM}: leader", "all nodes", SINGLE]
    page.table(["CPU µs per message", *heads], cpu_rows)
    page.table(["", "", "target", "measured", ""], targets)


def _faults(page: results.Page, found: Measured, settings: Settings) -> None:
    gaps = found.gaps_s
    if not gaps and not found.replica:
        return
    page.text("## Faults")
    page.table(
        ["longest gap between confirms, s", "times", "median", "worst"],
        [
            [f"{name}, {kind}", str(len(seconds)), f"{statistics.median(seconds):.3f}", f"{max(seconds):.3f}"]
            for name, by_kind in gaps.items()
            for kind, seconds in by_kind.items()
        ],
    )
    targets = []
    for name, aim, figure in (
        ("kill", _KILL_P50, statistics.median),
        ("kill", _KILL_WORST, max),
        ("transfer", _TRANSFER, max),
        ("stop", _STOP, max),
        ("etcd", _ETCD, max),
    ):
        if name in settings.only:
            seconds = gaps.get(name, {}).get(CLUSTER)
            targets.append(_target(page, name, aim, figure(seconds) if seconds else None))
    if "replica" in settings.only:
        for key, aim in (("mb_per_s", _REPLICA_RATE), ("kept", _REPLICA_KEPT)):
            targets.append(_target(page, "replica", aim, found.replica.get(key)))
    page.table(["", "", "target", "measured", ""], targets)
    page.text(
        "One publisher has one message confirmed at a time, and connects to the next node when its connection ends. "
        f"etcd is away for {settings.etcd_s:g} s, which are compared with as long a time before; a follower is stopped "
        f"for {STOPPED_S:g} s."
    )
    if found.replica:
        page.text(f"The replica got {found.replica['mib']:,.0f} MiB in {found.replica['seconds']:.1f} s.")


def _target(page: results.Page, what: str, aim: Aim, value: float | None) -> list[str]:
    reached = value is not None and aim.is_reached(value)
    measured = "-" if value is None else f"{value:,.3g}{aim.unit}"
    return [what, aim.title, aim.words(), measured, page.verdict(reached=reached)]


def _medians(loads: Sequence[Load]) -> dict[str, float]:
    names = ("per_s", "leader_us", "all_us", "p50_ms", "p99_ms")
    return {name: statistics.median(getattr(load, name) for load in loads) for name in names}


def _ratio(by_kind: dict[str, list[Load]], other: str, name: str) -> float | None:
    """Return the median over rounds of the cluster's figure to another's."""
    pairs = zip(by_kind.get(CLUSTER, []), by_kind.get(other, []), strict=False)
    ratios = [getattr(ours, name) / max(getattr(theirs, name), 1e-9) for ours, theirs in pairs]
    return statistics.median(ratios) if ratios else None


def _rate(figures: dict[str, float] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['per_s']:,.0f} ({figures['p50_ms']:,.1f} / {figures['p99_ms']:,.1f})"


def _cpu(figures: dict[str, dict[str, float]]) -> list[str]:
    both = [(kind, name) for kind in (CLUSTER, QUORUM) for name in ("leader_us", "all_us")]
    cells = [*both, (SINGLE, "leader_us")]
    return [f"{figures[kind][name]:,.1f}" if kind in figures else "-" for kind, name in cells]
