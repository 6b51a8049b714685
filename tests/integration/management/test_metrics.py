"""Metrics of a running broker: names that dashboards need, counters that move, and access."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from broker_process import WarrenProcess, wait_until
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from integration.peers import connect

DOCS = Path(__file__).parents[3] / "docs"
GUEST = ("guest", "guest")

# The metrics that dashboard 10991, "RabbitMQ-Overview", asks for.
OVERVIEW = """
    rabbitmq_identity_info rabbitmq_build_info rabbitmq_erlang_uptime_seconds rabbitmq_connections
    rabbitmq_connections_opened_total rabbitmq_connections_closed_total rabbitmq_channels rabbitmq_channels_opened_total
    rabbitmq_channels_closed_total rabbitmq_queues rabbitmq_queues_declared_total rabbitmq_queues_created_total
    rabbitmq_queues_deleted_total rabbitmq_queue_messages_ready rabbitmq_queue_messages_unacked
    rabbitmq_resident_memory_limit_bytes rabbitmq_process_resident_memory_bytes rabbitmq_disk_space_available_bytes
    rabbitmq_disk_space_available_limit_bytes rabbitmq_process_max_fds rabbitmq_process_open_fds
    rabbitmq_process_max_tcp_sockets rabbitmq_process_open_tcp_sockets
    rabbitmq_global_publishers rabbitmq_global_consumers rabbitmq_global_messages_received_total
    rabbitmq_global_messages_received_confirm_total rabbitmq_global_messages_routed_total
    rabbitmq_global_messages_unroutable_dropped_total rabbitmq_global_messages_unroutable_returned_total
    rabbitmq_global_messages_confirmed_total rabbitmq_global_messages_delivered_total
    rabbitmq_global_messages_delivered_consume_auto_ack_total
    rabbitmq_global_messages_delivered_consume_manual_ack_total
    rabbitmq_global_messages_delivered_get_auto_ack_total rabbitmq_global_messages_delivered_get_manual_ack_total
    rabbitmq_global_messages_get_empty_total rabbitmq_global_messages_redelivered_total
    rabbitmq_global_messages_acknowledged_total rabbitmq_message_size_bytes_bucket rabbitmq_message_size_bytes_sum
    rabbitmq_message_size_bytes_count
"""
# Its revisions for RabbitMQ up to 3.8.
OLDER_OVERVIEW = """
    rabbitmq_channel_messages_published_total rabbitmq_channel_messages_confirmed_total
    rabbitmq_channel_messages_unroutable_dropped_total rabbitmq_channel_messages_unroutable_returned_total
    rabbitmq_channel_messages_unconfirmed rabbitmq_channel_messages_delivered_total
    rabbitmq_channel_messages_delivered_ack_total rabbitmq_channel_messages_redelivered_total
    rabbitmq_channel_messages_acked_total rabbitmq_channel_get_total rabbitmq_channel_get_ack_total
    rabbitmq_channel_get_empty_total rabbitmq_queue_messages_published_total rabbitmq_channel_consumers
"""
ALERTED_ON = """
    rabbitmq_alarms_memory_used_watermark rabbitmq_alarms_free_disk_space_watermark
    rabbitmq_alarms_file_descriptor_limit rabbitmq_unreachable_cluster_peers_count rabbitmq_consumers
    rabbitmq_queue_messages rabbitmq_queue_consumers rabbitmq_queue_messages_bytes rabbitmq_queue_process_memory_bytes
    rabbitmq_global_messages_dead_lettered_expired_total rabbitmq_global_messages_dead_lettered_maxlen_total
    rabbitmq_global_messages_dead_lettered_rejected_total rabbitmq_global_messages_dead_lettered_delivery_limit_total
    rabbitmq_global_messages_dead_lettered_confirmed_total rabbitmq_auth_attempts_total
    rabbitmq_auth_attempts_failed_total rabbitmq_auth_attempts_succeeded_total
    rabbitmq_connection_incoming_bytes_total rabbitmq_connection_outgoing_bytes_total
"""


class Answer(NamedTuple):
    status: int
    content_type: str
    text: str


class Scraper:
    """Asks one broker for its metrics."""

    def __init__(self, process: WarrenProcess) -> None:
        place = re.search(r"\bprometheus://(\S+):(\d+)", process.out())
        assert place is not None, process.out()
        self.open_port = int(place[2])
        self.management_port = process.http_port

    def get(self, port: int, path: str, user: tuple[str, str] | None = None, accept: str = "*/*") -> Answer:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
        if user is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(":".join(user).encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, answer.headers["Content-Type"], answer.read().decode())
        except urllib.error.HTTPError as refusal:
            return Answer(refusal.code, refusal.headers["Content-Type"], refusal.read().decode())

    def samples(self, path: str = "/metrics") -> list[Any]:
        answer = self.get(self.open_port, path)
        assert answer.status == 200
        return [sample for family in cast(Any, parse_text)(answer.text) for sample in family.samples]

    def sum_of(self, name: str, path: str = "/metrics", **wanted: str) -> float:
        """Return the sum of the samples with that name and, among others, those labels."""
        found = [
            each.value for each in self.samples(path) if each.name == name and wanted.items() <= each.labels.items()
        ]
        assert found, f"no {name} with {wanted}"
        return float(sum(found))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("metrics"), {"prometheus": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture(scope="module")
def scraper(process: WarrenProcess) -> Scraper:
    return Scraper(process)


def families(scraper: Scraper) -> set[str]:
    """Return the names of all metrics, of those without samples as well."""
    found = cast(Any, parse_text)(scraper.get(scraper.open_port, "/metrics").text)
    return {family.name + "_total" if family.type == "counter" else family.name for family in found}


def names_in(text: str) -> set[str]:
    """Return the names of metrics in some expressions of PromQL."""
    return set(re.findall(r"\b(?:rabbitmq|warren|process)_[a-z0-9_]+", text))


@pytest.mark.parametrize("wanted", [OVERVIEW, OLDER_OVERVIEW, ALERTED_ON], ids=["10991", "older", "alerts"])
def test_everything_that_dashboards_and_alerts_for_rabbitmq_need_is_there(scraper: Scraper, wanted: str) -> None:
    assert set(wanted.split()) - {sample.name for sample in scraper.samples()} == set()


def test_everything_in_our_own_dashboard_and_alerts_is_there(scraper: Scraper) -> None:
    there = {sample.name for sample in scraper.samples()}
    # What only nodes of a cluster have is documented there, and is there: `unit/mgmt_plugin/test_prometheus.py`.
    there |= set(re.findall(r"`(warren_[a-z_]+[a-z])`", (DOCS / "clustering.md").read_text()))
    # Metrics of tables have no samples without a table.
    there |= {name for name in families(scraper) if name.startswith("warren_lake_")}
    dashboard = json.loads((DOCS / "grafana/warren-overview.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 20
    assert any(variable["type"] == "datasource" for variable in dashboard["templating"]["list"])
    assert names_in("\n".join(expressions)) - there == set()
    rules = (DOCS / "grafana/warren-alerts.yml").read_text()
    assert rules.count("- alert:") == rules.count("expr:") > 10
    assert names_in(rules) - there == set()


def test_the_documentation_names_every_metric_of_warren_and_no_other(scraper: Scraper) -> None:
    kinds = {name for name in families(scraper) if name.startswith("warren_")}
    documented = set(re.findall(r"`(warren_[a-z_]+[a-z])`", (DOCS / "monitoring.md").read_text()))
    assert documented == kinds


def test_the_overview_can_join_everything_with_who_it_is_about(scraper: Scraper) -> None:
    (identity,) = [sample for sample in scraper.samples() if sample.name == "rabbitmq_identity_info"]
    assert set(identity.labels) == {
        "rabbitmq_node",
        "rabbitmq_cluster",
        "rabbitmq_cluster_permanent_id",
        "rabbitmq_endpoint",
    }
    assert identity.labels["rabbitmq_endpoint"] == "aggregated"
    assert all(identity.labels.values())
    (per_object,) = [each for each in scraper.samples("/metrics/per-object") if each.name == "rabbitmq_identity_info"]
    assert per_object.labels["rabbitmq_endpoint"] == "per-object"


def get(channel: BlockingChannel) -> int:
    """Get a message and return its delivery tag."""
    method, _, _ = channel.basic_get("flow")
    assert method is not None and method.delivery_tag is not None
    return method.delivery_tag


@pytest.mark.long
def test_counters_move_as_messages_flow(process: WarrenProcess, scraper: Scraper) -> None:
    def value(name: str, **wanted: str) -> float:
        return scraper.sum_of(f"rabbitmq_global_messages_{name}_total", **wanted)

    counters = ("received", "received_confirm", "routed", "confirmed", "unroutable_dropped", "redelivered")
    before = {name: value(name) for name in (*counters, "acknowledged", "delivered", "get_empty")}
    commits = scraper.sum_of("warren_store_commit_seconds_count")
    with connect(process) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("flow", durable=True)
        for _ in range(5):
            channel.basic_publish("", "flow", b"x" * 200, BasicProperties(delivery_mode=2))
        channel.basic_publish("", "nowhere", b"")
        channel.basic_reject(get(channel), requeue=True)
        for _ in range(3):
            channel.basic_ack(get(channel))
        channel.basic_get("flow", auto_ack=True)
        wait_until(lambda: value("acknowledged") == before["acknowledged"] + 3, "acks to be counted")
        assert scraper.sum_of("rabbitmq_queue_messages_ready") == 1
        assert scraper.sum_of("rabbitmq_connections") == 1
        assert scraper.sum_of("rabbitmq_channels") == 1
        assert scraper.sum_of("rabbitmq_global_publishers") == 1
        depth = "/metrics/detailed?family=queue_coarse_metrics&queue=^flow$"
        assert scraper.sum_of("rabbitmq_detailed_queue_messages", depth, vhost="/", queue="flow") == 1
        channel.queue_delete("flow")
    wait_until(lambda: scraper.sum_of("rabbitmq_connections") == 0, "the connection to be gone")
    wait_until(lambda: scraper.sum_of("rabbitmq_queues") == 0, "the queue to be gone")
    moved = {name: value(name) - number for name, number in before.items()}
    assert moved == {
        "received": 6,
        "received_confirm": 6,
        "routed": 5,
        "confirmed": 6,
        "unroutable_dropped": 1,
        "redelivered": 1,
        "acknowledged": 3,
        "delivered": 5,
        "get_empty": 0,
    }
    assert scraper.sum_of("warren_store_commit_seconds_count") > commits
    assert scraper.sum_of("rabbitmq_message_size_bytes_bucket", le="100") >= 1


@pytest.mark.parametrize(
    "path", ["/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_metrics", "/metrics/memory-breakdown"]
)
def test_every_page_needs_a_login_on_the_management_port_only(scraper: Scraper, path: str) -> None:
    assert scraper.get(scraper.open_port, path).status == 200
    assert scraper.get(scraper.management_port, path).status == 401
    assert scraper.get(scraper.management_port, path, GUEST).status == 200


def test_on_the_management_port_a_user_needs_the_tag_monitoring(scraper: Scraper) -> None:
    for name, tags, status in (("manager", "management", 401), ("monitor", "monitoring", 200)):
        body = json.dumps({"password": "secret", "tags": tags}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{scraper.management_port}/api/users/{name}", data=body, method="PUT"
        )
        request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        urllib.request.urlopen(request, timeout=60).close()
        assert scraper.get(scraper.management_port, "/metrics", (name, "secret")).status == status


def test_the_port_without_a_login_has_nothing_of_the_api(scraper: Scraper) -> None:
    assert scraper.get(scraper.open_port, "/health").status == 200
    for path in ("/", "/api/overview", "/api/queues", "/index.html"):
        assert scraper.get(scraper.open_port, path, GUEST).status == 404


def test_prometheus_gets_open_metrics_when_it_asks_for_them(scraper: Scraper) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    answer = scraper.get(scraper.open_port, "/metrics/per-object", accept=accept)
    assert answer.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert len(list(cast(Any, parse_open_metrics)(answer.text))) > 100


def test_the_port_is_listed_among_those_that_are_open(scraper: Scraper) -> None:
    overview = json.loads(scraper.get(scraper.management_port, "/api/overview", GUEST).text)
    assert ("http/prometheus", scraper.open_port) in [
        (each["protocol"], each["port"]) for each in overview["listeners"]
    ]
