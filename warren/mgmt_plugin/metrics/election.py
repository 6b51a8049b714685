"""Metrics of the election, from ``/api/cluster/status``: the same on the leader and on followers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warren.mgmt_plugin.metrics.exposition import COUNTER, GAUGE, Metric


def election_metrics(status: dict[str, Any]) -> Iterator[tuple[Metric, float]]:
    """Yield them; nothing on a node that takes part in none."""
    election = status.get("election")
    if election is None:
        return
    etcd = election["etcd"]
    rows = status["members"]
    for name, kind, text, value in (
        ("cluster_leader", GAUGE, "1 on the node that leads and serves", int(election["leads"])),
        ("cluster_epoch", GAUGE, "The epoch on record: one more with every leader", election["epoch"]),
        ("cluster_takeovers_total", COUNTER, "New leaders that were recorded", election["takeovers"]),
        ("cluster_leaderless_seconds_total", COUNTER, "How long nobody led", election["leaderless_s"]),
        ("cluster_members", GAUGE, "Nodes that are to have everything", len(rows)),
        ("cluster_members_running", GAUGE, "Those that run", sum(bool(row["running"]) for row in rows)),
        (
            "cluster_late_renewals_total",
            COUNTER,
            "Renewals of its lease that failed",
            election["late_renewals"],
        ),
        ("etcd_requests_total", COUNTER, "Requests to etcd", etcd["requests"]),
        ("etcd_failures_total", COUNTER, "Requests without an answer, or answered with an error", etcd["failures"]),
        ("etcd_request_seconds_total", COUNTER, "How long all requests have taken", etcd["seconds"]),
    ):
        yield Metric(name, kind, text), float(value)
