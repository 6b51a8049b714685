"""The page of a soak: its verdict, what was counted, trends and plots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from .growth import FIGURES, MIB, samples_of, trends
from .run import Result

_PANELS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("resident memory, MiB", ("rss_bytes",), MIB),
    ("descriptors and threads", ("descriptors", "threads"), 1),
    ("disk with empty queues, MiB", ("disk_bytes",), MIB),
    ("confirm, ms", ("confirm_p50_ms", "confirm_p99_ms", "confirm_max_ms"), 1),
    ("login, ms", ("login_p50_ms", "login_p99_ms", "login_max_ms"), 1),
    ("messages in a period", ("sent", "delivered"), 1),
)


def write(result: Result, directory: Path) -> None:
    """Write SOAK.md and, where matplotlib is installed, SOAK.png."""
    picture = directory / "SOAK.png"
    has_picture = plot(result.periods, picture)
    (directory / "SOAK.md").write_text(page(result, picture.name if has_picture else ""))


def page(result: Result, picture: str) -> str:
    """Return the page as Markdown."""
    parts = ["# A soak", "Written by `make soak`; do not edit."]
    verdict = "Every promise held." if not result.violations else f"{result.violation_count} violations."
    last_s = result.periods[-1]["at_s"] if result.periods else 0
    parts.append(f"**{verdict}** Seed {result.seed}, {last_s / 3600:.2f} h, {len(result.periods)} periods.")
    parts += [f"- **{violation.rule}**: {violation.text}" for violation in result.violations[:20]]
    if picture:
        parts.append(f"![Figures of each period]({picture})")
    parts.append("## What happened")
    parts.append(_table(["", "count"], [[what, f"{count:,}"] for what, count in sorted(result.counts.items())]))
    parts.append("## Trends")
    parts.append(
        "Of each life of the process that was long enough, without its first third: the rise is the median slope "
        "between any two periods, times their time."
    )
    rows = [
        [
            figure.title,
            str(trend.life),
            str(trend.samples),
            f"{trend.median:,.0f}",
            f"{trend.rise:+,.0f}",
            f"{trend.allowed:,.0f}",
            f"{trend.rising_share:.0%}",
            "**grows**" if trend.is_growing() else "flat",
        ]
        for figure in FIGURES
        for trend in trends(samples_of(result.periods, figure), figure)
    ]
    head = ["", "life", "periods", "median", "rise", "allowed", "pairs that rise", ""]
    parts.append(_table(head, rows) if rows else "No life was long enough.")
    parts.append("## What an innocent client waited for, ms")
    keys = [f"{what}_{part}_ms" for what in ("confirm", "login") for part in ("p50", "p99", "max")]
    waits = [[key.removesuffix("_ms"), *_spread([each[key] for each in result.periods if key in each])] for key in keys]
    parts.append(_table(["of each period", "least", "median", "most"], waits))
    return "\n\n".join(parts) + "\n"


def _spread(values: Sequence[float]) -> list[str]:
    if not values:
        return ["-"] * 3
    ordered = sorted(values)
    return [f"{value:,.1f}" for value in (ordered[0], ordered[len(ordered) // 2], ordered[-1])]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot(periods: list[dict[str, Any]], target: Path) -> bool:
    """Draw the figures over time into a PNG; return whether that could be done."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 7), layout="constrained")
    for panel, (title, keys, unit) in zip(axes.flat, _PANELS, strict=True):
        for key in keys:
            points = [(each["at_s"] / 60, each[key] / unit) for each in periods if key in each]
            if points:
                panel.plot(*zip(*points, strict=True), ".-", label=key)
        for before, after in pairwise(periods):
            if after["life"] != before["life"]:
                panel.axvline(after["at_s"] / 60, color="grey", linestyle=":")
        if title.endswith("ms"):
            panel.set_yscale("log")
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("minutes; dotted: started again", fontsize=8)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=7)
    figure.savefig(target, dpi=80)
    pyplot.close(figure)
    return True
