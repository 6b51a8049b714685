"""Metrics of the tables that the broker keeps, from the data of ``/api/lake``.

Their names are those on the page of ``warren lake``, which has each metric per table as well; labels name the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from warren.mgmt_plugin.metrics.exposition import COUNTER, GAUGE, Metric, labels
from warren.mgmt_plugin.resources.linked import Links

_OF_A_TABLE: Final = (
    ("rows_total", COUNTER, "Rows that were committed to the table", "rows"),
    ("row_bytes_total", COUNTER, "Size of those rows in memory, before they are compressed", "bytes"),
    ("refused_rows_total", COUNTER, "Rows that were committed to the table of refused", "refused"),
    ("lost_messages_total", COUNTER, "Messages that were passed over (skip_lost)", "lost"),
    ("commits_total", COUNTER, "Commits with rows, or with a new place", "commits"),
    ("failures_total", COUNTER, "Steps that failed and were tried again", "failures"),
    ("files_rewritten_total", COUNTER, "Small files that were made larger ones", "files_rewritten"),
    ("waiting_messages", GAUGE, "Messages that are not in the table yet", "waiting"),
    ("lag_seconds", GAUGE, "How long something has not been in the table", "lag_s"),
    ("last_step_seconds", GAUGE, "How long the last commit took, with reading", "step_s"),
)


def lake_metrics(links: Links) -> Iterator[tuple[Metric, list[tuple[str, float]]]]:
    """Yield them: counted since the broker began."""
    tables = [(_which(row), row) for row in links.tables()]
    for name, kind, text, key in _OF_A_TABLE:
        yield Metric(f"lake_{name}", kind, text), [(of, row[key]) for of, row in tables if row[key] is not None]
    committed = [(of, row["committed_at"] / 1000) for of, row in tables if row["committed_at"]]
    yield Metric("lake_last_commit_timestamp_seconds", GAUGE, "When the last commit was"), committed
    states = [(f'{of[:-1]},state="{row["state"]}"}}', 1.0) for of, row in tables]
    yield Metric("lake_state", GAUGE, "1, with the state of the table as a label"), states
    started, memory = links.table_process()
    yield Metric("lake_processes_total", COUNTER, "Processes of tables that were started"), [("", started)]
    yield Metric("lake_process_memory_bytes", GAUGE, "Memory of the one that runs"), [("", memory)]


def _which(row: dict[str, Any]) -> str:
    """Return the labels of a table, made once for all of its metrics."""
    return labels(("vhost", row["vhost"]), ("name", row["name"]), ("table", row.get("table", "")))
