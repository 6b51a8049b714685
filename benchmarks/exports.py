"""An export of a long stream: its rate, what it costs the broker, and what a publisher notices.

  fill       messages of 100 B with confirms into a stream
  alone      `warren export` of all columns into Parquet: rate, CPU and memory of the broker
  beside     the same again, with a publisher to a durable queue that goes flat out; and that publisher without it,
             before and after

1. Memory is resident memory of the broker: the most that was seen during the export, above what it was before.
2. Publisher, broker and export are three busy processes: on two cores the publisher also loses what it no longer has of
   the processor. So the export is niced, as one would do it there.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from shutil import rmtree
from typing import Final, NamedTuple

from benchmarks.brokers import Broker, WarrenBroker
from benchmarks.load_tool import ROOT, perf, say
from warren.perf.process_stats import sample

BODY_BYTES: Final = 100
_PREFIX: Final = "export"
_CONFIRMED: Final = ("flow", "--durable", "--persistent", "--confirms", "1000", "--size", str(BODY_BYTES))
_FILL_S: Final = 3600.0
_PUBLISH_S: Final = 6.0
_LOOK_S: Final = 0.05


class Exported(NamedTuple):
    """What was found. Rates are in messages a second."""

    rows: int
    rows_per_s: float
    broker_ns: float  # CPU per row
    memory_bytes: int
    publish_alone_per_s: float
    publish_beside_per_s: float


def measure(broker: WarrenBroker, url: str, directory: Path, rows: int) -> Exported:
    """Fill a stream, and export it. Raises ToolError; RuntimeError: an export failed, or has not written all rows."""
    say(f"publishing {rows:,} messages for the export")
    argument = ("--queue-argument", "x-queue-type=stream")
    perf(
        broker,
        [*_CONFIRMED, *argument, "--consumers", "0", "--messages", str(rows), "--keep", "--prefix", _PREFIX],
        most_s=_FILL_S,
    )
    before = sample(broker.pid)
    most = before.rss_bytes
    begin = time.monotonic()
    with _Export(url, directory) as export:
        while export.is_running():
            most = max(most, sample(broker.pid).rss_bytes)
            time.sleep(_LOOK_S)
        export.check(rows)
    seconds = time.monotonic() - begin
    broker_ns = 1000 * (sample(broker.pid).cpu_us - before.cpu_us) / rows
    say(f"export alone            {rows / seconds:>12,.0f} rows/s  {(most - before.rss_bytes) / 1e6:.1f} MB")
    alone = [_publish(broker)]
    with _Export(url, directory) as export:
        time.sleep(1)
        beside = _publish(broker)
        if not export.is_running():
            raise RuntimeError("the export was over before the publisher: take more rows")
        while export.is_running():
            time.sleep(_LOOK_S)
        export.check(rows)
    alone.append(_publish(broker))
    publish_alone = sum(alone) / len(alone)
    say(f"publisher               {publish_alone:>12,.0f}/s alone, {beside:,.0f}/s beside the export")
    return Exported(rows, rows / seconds, broker_ns, most - before.rss_bytes, publish_alone, beside)


def _publish(broker: Broker) -> float:
    shown = perf(broker, [*_CONFIRMED, "--consumers", "0", "--duration", f"{_PUBLISH_S:g}"])
    return float(shown["published_per_s"])


class _Export:
    """`warren export` as a process of its own."""

    def __init__(self, url: str, directory: Path) -> None:
        self._target = directory / "exported"
        self._command = [
            *("nice", str(ROOT / ".venv" / "bin" / "warren"), "export", f"{_PREFIX}-0", "--url", url),
            *("--to", str(self._target), "--json"),
        ]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Export:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=self._target.parent
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        rmtree(self._target, ignore_errors=True)

    def is_running(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    def check(self, rows: int) -> None:
        """Look whether it has written all rows."""
        assert self._process is not None
        status = self._process.wait()
        if status != 0:
            raise RuntimeError(f"the export ended with status {status}")
        written = json.loads((self._target / "_manifest" / "export.json").read_text())["rows"]
        if written != rows:
            raise RuntimeError(f"the export has written {written:,} of {rows:,} rows")
