"""The page of `weather_lake.py`: plots of a table as SVG, and one file of HTML that has them all.

1. A page asks nothing of anybody: no script, no font and no style from elsewhere.
2. It shows what it is given, and reads no table itself. What stands in it is escaped.
3. Colours are variables, light or dark as the reader's system says. `standalone` makes of a plot a file with its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from html import escape
from itertools import pairwise
from typing import Final

WIDTH: Final = 760
LEFT: Final = 68  # of the panels: room for the numbers of an axis and what they are
RIGHT: Final = 16
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
COLOURS: Final = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1f2328; --faint: #59636e; --line: #d8dee4;
  --s0: #0969da; --s1: #bc4c00; --s2: #1a7f37; --alarm: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ground: #0d1117; --ink: #e6edf3; --faint: #9198a1; --line: #30363d;
  --s0: #58a6ff; --s1: #f0883e; --s2: #3fb950; --alarm: #ff7b72; } }
"""
OF_PLOTS: Final = """
svg text { font: 12px system-ui, sans-serif; fill: var(--faint); }
svg .title { fill: var(--ink); font-weight: 600; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .ground { fill: var(--ground); }
svg .alarm { fill: var(--alarm); stroke: var(--ground); }
svg .limit { stroke: var(--alarm); stroke-dasharray: 5 4; }
svg .limit-text { fill: var(--alarm); }
svg .s0 { fill: var(--s0); } svg .s1 { fill: var(--s1); } svg .s2 { fill: var(--s2); }
svg .band { fill-opacity: .6; }
svg .dots { fill: none; stroke-linecap: round; stroke-width: 3.6; } svg .high { stroke-width: 7; }
svg .d0 { stroke: var(--s0); } svg .d1 { stroke: var(--s1); } svg .d2 { stroke: var(--s2); }
svg .step { fill: none; stroke: var(--s0); stroke-width: 2; }
"""
OF_PAGE: Final = """
body { margin: 0 auto; max-width: 800px; padding: 1.5rem 1rem 3rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; } .faint { color: var(--faint); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
dl div { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .75rem; }
dt { color: var(--faint); font-size: .85rem; } dd { margin: 0; font-size: 1.15rem; font-weight: 600; }
figure { margin: 0; overflow-x: auto; } svg { display: block; width: 100%; min-width: 36rem; height: auto; }
td { white-space: nowrap; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .5rem; text-align: left; }
th { color: var(--faint); font-weight: 400; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
th.number { text-align: right; }
"""
ALERTS_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class StationDay:
    """What a station has measured in a day: °C, m/s, mm."""

    station: str
    day: date
    coldest: float | None
    warmest: float | None
    gust: float | None
    rain: float


@dataclass(frozen=True, slots=True)
class Alert:
    """A day at a station that deserves an alert: when it began, and what was measured then."""

    kind: str
    station: str
    day: date
    first: datetime
    value: float

    @property
    def key(self) -> str:
        return f"{self.kind} {self.station} {self.day}"


@dataclass(frozen=True, slots=True)
class Summary:
    """What a page shows. `growth`: how many rows each snapshot of the table has, the oldest first."""

    made: datetime
    rows: int
    latest: datetime | None
    days: Sequence[StationDay]
    alerts: Sequence[Alert]
    growth: Sequence[int]


class Panel:
    """An area with two axes; `x` and `y` say where a value is."""

    def __init__(self, top: float, height: float, across: tuple[float, float], up: tuple[float, float]) -> None:
        self.top, self.height = top, height
        self._across, self._up = across, up

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def x(self, value: float) -> float:
        low, high = self._across
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self._up
        return self.bottom - (value - low) / (high - low) * self.height

    def levels(self, values: Sequence[float], unit: str) -> str:
        """Draw a line for each of these values, its number and, above the first panel's axis, the unit."""
        marks = [
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{self.y(value):.1f}" y2="{self.y(value):.1f}"/>'
            f'<text x="{LEFT - 8}" y="{self.y(value) + 4:.1f}" text-anchor="end">{value:,g}</text>'
            for value in values
        ]
        middle = self.top + self.height / 2
        turned = f'<text transform="translate(14 {middle:.1f}) rotate(-90)" text-anchor="middle">{escape(unit)}</text>'
        return "".join(marks) + turned

    def below(self, marks: Sequence[tuple[float, str]], name: str = "") -> str:
        """Write what stands at places of the horizontal axis, and what it is."""
        texts = [
            f'<text x="{self.x(at):.1f}" y="{self.bottom + 18:.1f}" text-anchor="middle">{escape(text)}</text>'
            for at, text in marks
        ]
        if name:
            middle = (LEFT + WIDTH - RIGHT) / 2
            texts.append(f'<text x="{middle}" y="{self.bottom + 36:.1f}" text-anchor="middle">{escape(name)}</text>')
        return "".join(texts)

    def title(self, text: str) -> str:
        return f'<text class="title" x="{LEFT}" y="{self.top - 8:.1f}">{escape(text)}</text>'


def _plot(name: str, height: float, *parts: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(name)}">' + "".join(parts) + "</svg>"
    )


def standalone(plot: str) -> str:
    """Return a plot as a file: with its colours, and a ground of its own."""
    head, rest = plot.split(">", 1)
    ground = '<rect class="ground" width="100%" height="100%"/>'
    return f"{head}><style>{COLOURS}{OF_PLOTS}</style>{ground}{rest}\n"


def ticks(highest: float, at_least: float = 0.0) -> list[float]:
    """Return round values from 0 to the first that is not below `highest`, five steps at most."""
    highest = max(highest, at_least)
    step = 1.0
    for factor in (2, 2.5, 2) * 9:
        if step * 5 >= highest:
            break
        step *= factor
    count = max(1, -int(-highest // step))
    return [step * number for number in range(count + 1)]


def _year(days: Sequence[StationDay]) -> tuple[int, tuple[float, float], list[tuple[float, str]]]:
    """Return the year, the days that it goes from and to, and where its months stand."""
    year = min(day.day for day in days).year
    starts = [date(year, month, 1).toordinal() for month in range(1, 13)] + [date(year + 1, 1, 1).toordinal()]
    middles = [((low + high) / 2, name) for (low, high), name in zip(pairwise(starts), MONTHS, strict=True)]
    return year, (starts[0], starts[-1]), middles


def _months(panel: Panel, year: int) -> str:
    """Draw where months begin."""
    starts = [panel.x(date(year, month, 1).toordinal()) for month in range(2, 13)]
    return "".join(
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{panel.top:.1f}" y2="{panel.bottom:.1f}"/>' for x in starts
    )


def temperatures(summary: Summary, stations: Mapping[str, str]) -> str:
    """Draw the coldest and warmest of each day, a panel for each station, and days of heat."""
    days = summary.days
    if not days:
        return ""
    year, span, months = _year(days)
    parts = []
    for number, (station, name) in enumerate(stations.items()):
        panel = Panel(28 + 150 * number, 112, span, (-15, 42))
        parts += [_months(panel, year), panel.levels((-10, 0, 10, 20, 30, 40), "°C"), panel.title(name)]
        bars = "".join(
            # A day of one temperature is seen as well.
            f"M{panel.x(day.day.toordinal()):.1f} {panel.y(day.warmest) - 0.5:.1f}h{panel.x(span[0] + 1) - LEFT:.2f}"
            f"v{panel.y(day.coldest) - panel.y(day.warmest) + 1:.1f}h{LEFT - panel.x(span[0] + 1):.2f}z"
            for day in days
            if day.station == station and day.coldest is not None and day.warmest is not None
        )
        parts.append(f'<path class="s{number} band" d="{bars}"/>')
        parts += _dots(panel, (alert for alert in summary.alerts if (alert.kind, alert.station) == ("heat", station)))
    height = panel.bottom + 30
    return _plot(f"Temperatures of {year}, coldest to warmest of each day", height, *parts, panel.below(months))


def _dots(panel: Panel, alerts: Iterable[Alert]) -> list[str]:
    return [
        f'<circle class="alarm" r="4" cx="{panel.x(alert.day.toordinal() + 0.5):.1f}" cy="{panel.y(alert.value):.1f}">'
        f"<title>{escape(alert.key)}: {alert.value:g}</title></circle>"
        for alert in alerts
    ]


def gusts(summary: Summary, stations: Mapping[str, str], limit: float) -> str:
    """Draw the strongest gust of each day, by station, and from where on it is a storm."""
    days = summary.days
    blowing = [(day.gust, day) for day in days if day.gust is not None]
    if not blowing:
        return ""
    year, span, months = _year(days)
    levels = ticks(max(gust for gust, _ in blowing), limit + 2)
    panel = Panel(40, 170, span, (0, levels[-1]))
    parts = [_months(panel, year), panel.levels(levels, "m/s"), _legend(stations)]
    y = panel.y(limit)
    parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    parts.append(f'<text class="limit-text" x="{WIDTH - RIGHT}" y="{y - 5:.1f}" text-anchor="end">storm</text>')
    for number, station in enumerate(stations):
        for kind, is_high in (("", False), (" high", True)):
            # Lines without a length: round ends make them dots.
            dots = "".join(
                f"M{panel.x(day.day.toordinal() + 0.5):.1f} {panel.y(gust):.1f}h0"
                for gust, day in blowing
                if day.station == station and (gust >= limit) is is_high
            )
            parts.append(f'<path class="dots d{number}{kind}" d="{dots}"/>')
    return _plot(f"Strongest gusts of {year}, by day", panel.bottom + 30, *parts, panel.below(months))


def rain(summary: Summary, stations: Mapping[str, str]) -> str:
    """Draw how much it has rained in each month, by station."""
    days = summary.days
    if not days:
        return ""
    year, _, _ = _year(days)
    sums = {(station, month): 0.0 for station in stations for month in range(12)}
    for day in days:
        sums[day.station, day.day.month - 1] += day.rain
    levels = ticks(max(sums.values()), 10)
    panel = Panel(40, 170, (0, 12), (0, levels[-1]))
    parts = [panel.levels(levels, "mm"), _legend(stations)]
    width = (panel.x(1) - panel.x(0)) * 0.8 / len(stations)
    for (station, month), fallen in sums.items():
        number = list(stations).index(station)
        x, y = panel.x(month + 0.1) + width * number, panel.y(fallen)
        parts.append(
            f'<rect class="s{number}" x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{panel.bottom - y:.1f}"/>'
        )
    marks = [(month + 0.5, name) for month, name in enumerate(MONTHS)]
    return _plot(f"Rain of {year}, by month", panel.bottom + 30, *parts, panel.below(marks))


def growth(summary: Summary) -> str:
    """Draw how many rows the table had in each snapshot, the oldest first."""
    rows = summary.growth
    if not rows:
        return ""
    levels = ticks(max(rows), 4)
    panel = Panel(20, 150, (0, len(rows)), (0, levels[-1]))
    points = [f"{panel.x(0):.1f},{panel.y(0):.1f}"]
    for number, (before, now) in enumerate(pairwise((0, *rows)), 1):
        points += [f"{panel.x(number):.1f},{panel.y(before):.1f}", f"{panel.x(number):.1f},{panel.y(now):.1f}"]
    every = max(1, int(ticks(len(rows))[1]))
    marks = [(float(number), f"{number:,}") for number in range(0, len(rows) + 1, every)]
    line = f'<polyline class="step" points="{" ".join(points)}"/>'
    axes = panel.levels(levels, "rows") + panel.below(marks, "snapshot")
    return _plot("Rows of the table in each snapshot", panel.bottom + 46, axes, line)


def _legend(stations: Mapping[str, str]) -> str:
    parts, x = [], float(LEFT)
    for number, name in enumerate(stations.values()):
        parts.append(f'<circle class="s{number}" r="5" cx="{x + 5:.0f}" cy="16"/>')
        parts.append(f'<text x="{x + 15:.0f}" y="20">{escape(name)}</text>')
        x += 40 + 7 * len(name)
    return "".join(parts)


def page(summary: Summary, plots: Mapping[str, str], units: Mapping[str, str], reload_s: int | None) -> str:
    """Return the page: numbers, plots under their headings, the latest alerts.

    `units`: of the value of each kind of alert; `reload_s`: how often a browser is to ask for it again.
    """
    again = f'<meta http-equiv="refresh" content="{reload_s}">' if reload_s else ""
    latest = f"{summary.latest:%d %b %Y, %H:%M}" if summary.latest else "none"
    figures = {
        "Rows": f"{summary.rows:,}",
        "Snapshots": f"{len(summary.growth):,}",
        "Alerts": f"{len(summary.alerts):,}",
        "Latest record": latest,
    }
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in figures.items())
    drawn = "".join(f"<h2>{escape(heading)}</h2><figure>{plot}</figure>" for heading, plot in plots.items() if plot)
    rows = "".join(
        f"<tr><td>{escape(alert.kind)}</td><td>{escape(alert.station)}</td><td>{alert.first:%d %b %Y, %H:%M}</td>"
        f'<td class="number">{alert.value:g} {escape(units[alert.kind])}</td></tr>'
        for alert in reversed(summary.alerts[-ALERTS_SHOWN:])
    )
    heads = '<tr><th>Kind</th><th>Station</th><th>Since (UTC)</th><th class="number">Measured then</th></tr>'
    newest = f"<h2>The latest alerts</h2><table>{heads}{rows}</table>" if rows else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Weather, {summary.rows:,} rows</title><style>{COLOURS}{OF_PLOTS}{OF_PAGE}</style></head><body>"
        "<h1>Weather around New York</h1>"
        f'<p class="faint">From {summary.rows:,} rows of an Iceberg table that follows a stream. '
        f"Made {summary.made:%d %B %Y, %H:%M:%S} UTC.</p><dl>{shown}</dl>{drawn}{newest}</body></html>\n"
    )
