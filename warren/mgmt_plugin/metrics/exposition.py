"""The text formats of Prometheus: metrics as lines, and the choice of the format for a client.

    # HELP name what it means          counters are called ``..._total``; in OpenMetrics their HELP and TYPE lines
    # TYPE name gauge                  are without that, and ``# EOF`` ends the page
    name{label="value"} 3

1. All samples of a name stand together, after one HELP and one TYPE line.
2. A value of a label may be any text: backslashes, quotes and newlines are escaped, and bytes that are not UTF-8 (kept
   by ``surrogateescape``) are shown as ``\\udcXX``, so that names which differ only there stay two.
3. A page is made while it is sent: memory holds its labels and values, and each piece has at most `LINES` of them.

Source: Prometheus, "Exposition formats"; OpenMetrics 1.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

GAUGE: Final = "gauge"
COUNTER: Final = "counter"
UNTYPED: Final = "untyped"
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

LINES: Final = 32

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class Metric:
    """The meaning of a name. `name` is without the prefix of the page; a counter's ends with ``_total``."""

    name: str
    kind: str
    help: str


def escape(value: str) -> str:
    """Return a value as it may stand between quotes."""
    if not value.isascii():
        value = value.encode("utf-8", "backslashreplace").decode()
    if "\\" in value or '"' in value or "\n" in value:
        value = value.translate(_ESCAPES)
    return value


def labels(*pairs: tuple[str, str]) -> str:
    """Return labels as they follow a name; ``""`` for none."""
    if not pairs:
        return ""
    return "{" + ",".join([f'{name}="{escape(value)}"' for name, value in pairs]) + "}"


def wants_open_metrics(accept: str) -> bool:
    """Tell whether an Accept header prefers OpenMetrics to the older text format."""
    open_metrics = text = 0.0
    for entry in accept.split(","):
        kind, *parameters = [part.strip() for part in entry.split(";")]
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if kind == "application/openmetrics-text":
            open_metrics = max(open_metrics, quality)
        elif kind == "text/plain":
            text = max(text, quality)
    return open_metrics > 0 and open_metrics >= text


class Page:
    """A page of metrics that is being put together, and then taken."""

    def __init__(self, *, open_metrics: bool = False) -> None:
        self._parts: deque[Iterable[bytes]] = deque()
        self._open_metrics = open_metrics

    def _add(self, text: str) -> None:
        self._parts.append((text.encode(),))

    @property
    def content_type(self) -> str:
        """The media type of the format."""
        return OPEN_METRICS if self._open_metrics else TEXT

    def head(self, name: str, kind: str, text: str) -> None:
        """Begin the samples of `name`."""
        if self._open_metrics:
            if kind == COUNTER:
                name = name.removesuffix("_total")
            elif kind == UNTYPED:
                kind = "unknown"
        self._add(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")

    def samples(self, prefix: str, metric: Metric, rows: Iterable[tuple[str, float]]) -> None:
        """Write a metric with its samples: labels as `labels` returns them, and a value."""
        name = prefix + metric.name
        self.head(name, metric.kind, metric.help)
        self._add("".join([f"{name}{of} {value}\n" for of, value in rows]))

    def column(self, name: str, metric: Metric, of: Sequence[str], values: Sequence[float | None]) -> None:
        """Write `metric` under `name` with many samples, which must not change: labels, values; None: no sample."""
        self.head(name, metric.kind, metric.help)
        self._parts.append(_lines(name, of, values))

    def single(self, prefix: str, metric: Metric, value: float) -> None:
        """Write a metric that has one sample, without labels."""
        self.samples(prefix, metric, (("", value),))

    def histogram(
        self,
        prefix: str,
        metric: Metric,
        bounds: Sequence[float],
        buckets: Sequence[int],
        total: float,
        *pairs: tuple[str, str],
    ) -> None:
        """Write a histogram: `buckets` are the counts up to each of `bounds`, then the count of all."""
        name = prefix + metric.name
        of = labels(*pairs)
        before = of[1:-1] + "," if of else ""
        self.head(name, "histogram", metric.help)
        lines = []
        for bound, count in zip(bounds, buckets, strict=False):
            lines.append(f'{name}_bucket{{{before}le="{self._bound(bound)}"}} {count}\n')
        lines.append(f'{name}_bucket{{{before}le="+Inf"}} {buckets[-1]}\n')
        lines.append(f"{name}_sum{of} {total}\n{name}_count{of} {buckets[-1]}\n")
        self._add("".join(lines))

    def _bound(self, bound: float) -> float:
        return float(bound) if self._open_metrics else bound

    def pieces(self) -> Iterator[bytes]:
        """Yield the page; yielded pieces are forgotten."""
        if self._open_metrics:
            self._add("# EOF\n")
        parts = self._parts
        while parts:
            yield from parts.popleft()


def _lines(name: str, of: Sequence[str], values: Sequence[float | None]) -> Iterator[bytes]:
    for start in range(0, len(values), LINES):
        some = zip(of[start : start + LINES], values[start : start + LINES], strict=True)
        yield "".join([f"{name}{each} {value}\n" for each, value in some if value is not None]).encode()
