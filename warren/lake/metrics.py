"""Metrics of tables while they follow: counts and times of each, as a page for Prometheus.

1. Counts are of this process, since it began; earlier results are in the tables.
2. A thread of its own answers the page, on an address that is given. The page has no secrets, and needs no login.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Meter:
    """The numbers of one table. The thread that follows writes them, any thread may read them.

    `bytes`: of rows, as they are in memory; `problem`: why the last step has failed and will be repeated.
    """

    table: str
    source: str
    up: bool = False
    rows: int = 0
    bytes: int = 0
    refused: int = 0
    lost: int = 0
    commits: int = 0
    failures: int = 0
    files_rewritten: int = 0
    waiting: int = 0
    committed_at_s: float = 0.0
    caught_up_at_s: float = 0.0
    step_s: float = 0.0
    problem: str = ""


class _Family(NamedTuple):
    name: str
    attribute: str
    kind: str
    help: str


_FAMILIES: Final = (
    _Family("warren_lake_up", "up", "gauge", "Whether the table follows: 0 before it begins and after it has ended."),
    _Family("warren_lake_rows_total", "rows", "counter", "Rows that were committed to the table."),
    _Family(
        "warren_lake_row_bytes_total", "bytes", "counter", "Size of those rows in memory, before they are compressed."
    ),
    _Family(
        "warren_lake_refused_rows_total", "refused", "counter", "Rows that were committed to the table of refused."
    ),
    _Family("warren_lake_lost_messages_total", "lost", "counter", "Messages that were passed over (skip_lost)."),
    _Family("warren_lake_commits_total", "commits", "counter", "Commits with rows, or with a new place."),
    _Family("warren_lake_failures_total", "failures", "counter", "Steps that failed and were tried again."),
    _Family(
        "warren_lake_files_rewritten_total", "files_rewritten", "counter", "Small files that were made larger ones."
    ),
    _Family("warren_lake_waiting_messages", "waiting", "gauge", "Messages that are not in the table yet."),
    _Family("warren_lake_last_commit_timestamp_seconds", "committed_at_s", "gauge", "When the last commit was."),
    _Family(
        "warren_lake_caught_up_timestamp_seconds", "caught_up_at_s", "gauge", "When nothing was waiting the last time."
    ),
    _Family("warren_lake_last_step_seconds", "step_s", "gauge", "How long the last commit took, with reading."),
)


@dataclass
class Meters:
    """The meters of all tables."""

    all: list[Meter] = field(default_factory=list)

    def page(self) -> str:
        """Return the page."""
        lines = []
        for family in _FAMILIES:
            lines.append(f"# HELP {family.name} {family.help}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            for meter in self.all:
                value = getattr(meter, family.attribute)
                labels = f'table="{_escaped(meter.table)}",source="{_escaped(meter.source)}"'
                lines.append(f"{family.name}{{{labels}}} {float(value) if isinstance(value, float) else int(value)}")
        return "\n".join(lines) + "\n"


def serve(meters: Meters, host: str, port: int) -> ThreadingHTTPServer:
    """Answer GET /metrics on an address, in a thread; the caller shuts it down.

    Raises:
        OSError: the address cannot be used.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            page = meters.page().encode() if self.path.partition("?")[0] == "/metrics" else b""
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="warren-lake-metrics", daemon=True).start()
    return server


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
