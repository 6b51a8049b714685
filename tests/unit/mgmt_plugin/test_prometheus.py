"""Pages of metrics: their format, what counts, what single objects show, and what can be chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from engine_harness import Client, Harness, content_frames
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table
from warren.engine_view import totals as metric_totals
from warren.engine_view.engine_view import EngineView
from warren.engine_view.queues import queue_deliveries
from warren.engine_view.totals import Totals
from warren.mgmt_plugin.http import server as http_module
from warren.mgmt_plugin.http.server import HttpError, Load, Request, Response
from warren.mgmt_plugin.metrics import exposition, prometheus
from warren.mgmt_plugin.metrics.exposition import COUNTER, GAUGE, Page, escape, labels, wants_open_metrics
from warren.mgmt_plugin.metrics.exposition import Metric as Described
from warren.mgmt_plugin.metrics.lake import lake_metrics
from warren.mgmt_plugin.metrics.prometheus import Metrics, MetricsPort
from warren.mgmt_plugin.resources.linked import NoLinks
from warren.queues.base_queue import BaseQueue
from warren.queues.long_work import TURN_STEPS
from warren.server.histogram import Histogram
from warren.server.management import Health
from warren.server.message_store import StoreCounts
from warren.server.supervision import Supervision
from warren.vhosts.metadata import PermissionPut, VhostDelete, VhostPut

HOSTILE = 'quote " backslash \\ newline \n both \\n " end ü \u2028 \t\x01\x1b[2J\x7f\x9b'
NAME = HOSTILE.replace("\n", "")  # AMQP drops them
EMPTY = b"\x00\x00\x00\x00"
Sample = tuple[str, tuple[tuple[str, str], ...]]


class Node:
    """An engine with pages about it."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.load = Load()
        self.health = Health(True)
        self.now_ms = 1000
        counts = StoreCounts()
        counts.batches, counts.syncs, counts.reads, counts.checkpoints = 7, 3, 2, 1
        counts.written_bytes, counts.synced_bytes = 100, 60
        messages = SimpleNamespace(
            counts=counts,
            upkeep=SimpleNamespace(compacted_segments=lambda: 0, moved_bytes=lambda: 0),
            trouble=lambda: "",
            failed_reads=lambda: 3,
            unread=list,
        )
        reactor = SimpleNamespace(turn_times=Histogram(), crashes=0, connection_count=lambda: 1)
        settings = SimpleNamespace(
            data_dir=Path("/"),
            limits=SimpleNamespace(connections_max=10),
            store=SimpleNamespace(disk_free_min_bytes=50),
        )
        self.management = SimpleNamespace(
            view=EngineView(self.harness.broker, lambda: None),
            messages=messages,
            reactor=reactor,
            settings=settings,
            started_ms=0,
            clock_ms=lambda: self.now_ms,
            memory_limit_bytes=1000,
            health=lambda: self.health,
            tasks=Supervision(),
            cluster=None,
            span_export=None,
            held_links=SimpleNamespace(reason=""),
            catalogue=SimpleNamespace(waiting=lambda: 12, behind_s=lambda: 3.5),
        )
        doorkeeper = SimpleNamespace(succeeded=4, failed=5)
        self.metrics = Metrics(cast(Any, self.management), cast(Any, doorkeeper), self.load.traffic)
        self.port = MetricsPort(self.metrics, cast(Any, self.management))

    def request(
        self, target: str, method: str = "GET", accept: str = "", hold: Callable[[int], None] = lambda size: None
    ) -> Response:
        """Ask the port without a login."""

        async def no_body(limit_bytes: int, look: Callable[[bytes], None] | None = None) -> bytes:
            raise AssertionError("nobody reads a body")

        path, _, query = target.partition("?")
        request = Request(method, path, query, {"accept": accept} if accept else {}, "127.0.0.1", False, no_body)
        request.hold = hold
        return trio.run(self.port.respond, request)

    def text(self, target: str, accept: str = "") -> str:
        answer = self.request(target, accept=accept)
        assert answer.status == 200
        return body_of(answer).decode()

    def samples(self, target: str) -> dict[Sample, float]:
        """Return the values of a page by name and labels."""
        return read_text(self.text(target))

    def declare(self, client: Client, name: str, **arguments: object) -> None:
        client.call(1, m.QueueDeclare(0, name, False, False, False, False, False, encode_table(arguments)))

    def publish(self, client: Client, routing_key: str, body: bytes, **properties: Any) -> None:
        publish = method_frame(1, m.BasicPublish(0, "", routing_key, False, False))
        client.feed(publish + content_frames(1, body, properties))


def whole(page: Page) -> str:
    return b"".join(page.pieces()).decode()


def body_of(answer: Response) -> bytes:
    assert answer.pieces is not None
    return answer.body + b"".join(answer.pieces)


def read(families: Any) -> dict[Sample, float]:
    found: dict[Sample, float] = {}
    for family in families:
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def read_text(text: str) -> dict[Sample, float]:
    return read(cast(Any, parse_text)(text))


def names(samples: dict[Sample, float]) -> set[str]:
    return {name for name, _ in samples}


def of(samples: dict[Sample, float], wanted: str, **wanted_labels: str) -> float:
    """Return the one sample with that name and, among others, those labels."""
    found = [value for (name, has), value in samples.items() if name == wanted and wanted_labels.items() <= set(has)]
    assert len(found) == 1, (wanted, wanted_labels, found)
    return found[0]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(prometheus, "TOTALS_S", 0.0)
    return Node()


# --- format -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", [parse_text, parse_open_metrics])
def test_any_text_survives_as_the_value_of_a_label(parse: Callable[[str], list[Metric]]) -> None:
    page = Page(open_metrics=parse is parse_open_metrics)
    page.samples("", Described("x", GAUGE, "X"), [(labels(("a", HOSTILE), ("b", "")), 1)])
    (family,) = parse(whole(page))
    assert family.samples[0].labels == {"a": HOSTILE, "b": ""}


def test_uptime_goes_by_the_clock_that_nobody_can_set() -> None:
    node = Node()
    node.now_ms = 7_500
    assert node.samples("/metrics")["rabbitmq_erlang_uptime_seconds", ()] == 7.5


def test_names_that_differ_in_bytes_that_are_not_utf_8_stay_two() -> None:
    one, other = (escape(raw.decode("utf-8", "surrogateescape")) for raw in (b"a\xff", b"a\xfe"))
    assert (one, other) == ("a\\\\udcff", "a\\\\udcfe")


def test_a_counter_is_declared_without_its_ending_in_open_metrics_only() -> None:
    text, open_metrics = Page(), Page(open_metrics=True)
    for page in (text, open_metrics):
        page.single("p_", Described("x_total", COUNTER, "X"), 3)
    assert whole(text) == "# HELP p_x_total X\n# TYPE p_x_total counter\np_x_total 3\n"
    assert whole(open_metrics) == "# HELP p_x X\n# TYPE p_x counter\np_x_total 3\n# EOF\n"


@pytest.mark.parametrize(
    ("accept", "open_metrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", True),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
    ],
)
def test_the_format_is_the_one_that_is_preferred(accept: str, open_metrics: bool) -> None:
    assert wants_open_metrics(accept) is open_metrics


@pytest.mark.parametrize("target", ["/metrics", "/metrics/per-object", "/metrics/memory-breakdown"])
def test_every_page_is_valid_in_both_formats_and_says_the_same(node: Node, target: str) -> None:
    client = node.harness.channel()
    node.declare(client, NAME)
    node.declare(client, "plain")
    node.publish(client, "plain", b"x", timestamp=1000)
    text = node.samples(target)
    page = node.request(target, accept="application/openmetrics-text")
    assert page.content_type.startswith("application/openmetrics-text; version=1.0.0")
    other = read(cast(Any, parse_open_metrics)(body_of(page).decode()))
    assert names(text) == names(other)


def test_a_histogram_ends_with_all_there_were() -> None:
    page = Page()
    page.histogram("", Described("h", "histogram", "H"), (0.1, 1.0), [1, 1, 4], 7.5, ("a", "b"))
    samples = read_text(whole(page))
    assert {has[-1]: value for (name, has), value in samples.items() if name == "h_bucket"} == {
        ("le", "0.1"): 1,
        ("le", "1.0"): 1,
        ("le", "+Inf"): 4,
    }
    assert of(samples, "h_count", a="b") == 4
    assert of(samples, "h_sum", a="b") == 7.5


# --- sums -------------------------------------------------------------------------------------------------------------


def test_what_happens_to_messages_is_counted_by_the_type_of_the_queue(node: Node) -> None:
    client = node.harness.channel()
    node.declare(client, "classic")
    client.call(
        1, m.QueueDeclare(0, "quorum", False, True, False, False, False, encode_table({"x-queue-type": "quorum"}))
    )
    for queue in ("classic", "quorum", "quorum", "nowhere"):
        node.publish(client, queue, b"12345")
    client.send(1, m.BasicGet(0, "quorum", True))
    client.send(1, m.BasicGet(0, "classic", False))
    samples = node.samples("/metrics")
    assert of(samples, "rabbitmq_global_messages_received_total") == 4
    assert of(samples, "rabbitmq_global_messages_routed_total") == 3
    assert of(samples, "rabbitmq_global_messages_unroutable_dropped_total") == 1
    delivered = "rabbitmq_global_messages_delivered_get_{}_ack_total"
    assert of(samples, delivered.format("auto"), queue_type="rabbit_quorum_queue") == 1
    assert of(samples, delivered.format("auto"), queue_type="rabbit_classic_queue") == 0
    assert of(samples, delivered.format("manual"), queue_type="rabbit_classic_queue") == 1
    assert of(samples, "rabbitmq_queue_messages_ready") == 1
    assert of(samples, "rabbitmq_queue_messages_unacked") == 1
    assert of(samples, "rabbitmq_queue_messages_bytes") == 10
    assert of(samples, "rabbitmq_queue_messages_ready_bytes") == 5
    assert of(samples, "rabbitmq_queue_messages_unacked_bytes") == 5
    assert of(samples, "rabbitmq_queue_messages_ram_bytes") == 10
    assert of(samples, "rabbitmq_queue_messages_paged_out_bytes") == 0
    assert of(samples, "rabbitmq_global_publishers") == 1
    assert of(samples, "rabbitmq_message_size_bytes_bucket", le="100") == 4
    assert of(samples, "rabbitmq_message_size_bytes_sum") == 20


def test_deliveries_are_told_apart_by_how_they_came_and_publishes_by_what_became_of_them(node: Node) -> None:
    client = node.harness.channel()
    client.open(2)  # and nothing is published on it
    node.declare(client, "q")
    client.call(1, m.ConfirmSelect(False))
    for _ in range(20):
        node.publish(client, "q", b"")
    for mandatory, times in ((True, 2), (False, 3)):
        for _ in range(times):
            publish = method_frame(1, m.BasicPublish(0, "", "nowhere", mandatory, False))
            client.feed(publish + content_frames(1, b""))
    client.send(1, m.BasicGet(0, "q", False))
    client.send(1, m.BasicReject(1, True))
    for no_ack, times in ((False, 1), (True, 3)):
        for _ in range(times):
            client.send(1, m.BasicGet(0, "q", no_ack))
    client.send(1, m.BasicQos(0, 4, False))
    client.send(1, m.BasicConsume(0, "q", "manual", False, False, False, False, EMPTY))
    client.send(1, m.BasicAck(6, False))
    client.send(1, m.BasicAck(7, False))
    client.send(1, m.BasicCancel("manual", False))
    client.send(1, m.BasicConsume(0, "q", "auto", False, True, False, False, EMPTY))
    for _ in range(2):
        client.send(1, m.BasicGet(0, "q", False))
    sums, single = node.samples("/metrics"), node.samples("/metrics/per-object")
    wanted = {
        "get_ack": ("get_manual_ack", 2),
        "get": ("get_auto_ack", 3),
        "messages_delivered_ack": ("consume_manual_ack", 6),
        "messages_delivered": ("consume_auto_ack", 10),
    }
    for name, (kind, count) in wanted.items():
        assert of(sums, f"rabbitmq_channel_{name}_total") == count, name
        assert of(single, f"rabbitmq_queue_{name}_total", queue="q") == count, name
        (first, _) = sorted(value for (each, _), value in single.items() if each == f"rabbitmq_channel_{name}_total")[
            ::-1
        ]
        assert first == count, name
        of_kind = f"rabbitmq_global_messages_delivered_{kind}_total"
        assert of(sums, of_kind, queue_type="rabbit_classic_queue") == count, name
    for name, of_all, count in (
        ("messages_redelivered", "messages_redelivered", 1),
        ("messages_acked", "messages_acknowledged", 2),
        ("get_empty", "messages_get_empty", 2),
    ):
        assert of(sums, f"rabbitmq_channel_{name}_total") == count, name
        assert of(single, f"rabbitmq_queue_{name}_total", queue="q") == count, name
        assert of(sums, f"rabbitmq_global_{of_all}_total", queue_type="rabbit_classic_queue") == count, name
        assert sum(value for (each, _), value in single.items() if each == f"rabbitmq_channel_{name}_total") == count
    for name, of_all, count in (
        ("published", "received", 25),
        ("confirmed", "confirmed", 25),
        ("unroutable_returned", "unroutable_returned", 2),
        ("unroutable_dropped", "unroutable_dropped", 3),
    ):
        assert of(sums, f"rabbitmq_channel_messages_{name}_total") == count, name
        assert of(sums, f"rabbitmq_global_messages_{of_all}_total") == count, name
        each_channel = [
            value for (each, _), value in single.items() if each == f"rabbitmq_channel_messages_{name}_total"
        ]
        assert sorted(each_channel) == [0, count], name
    assert of(sums, "rabbitmq_global_publishers") == 1


def test_the_queues_of_a_deleted_vhost_are_counted_in_the_turns_in_which_they_are_closed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = node.harness
    harness.broker.administer(VhostPut("other"))
    harness.permit("guest", vhost="other")
    client = harness.client(vhost="other")
    client.open(1)
    many = 2000
    for number in range(many):
        node.declare(client, f"q{number}")
    client.hang_up()
    harness.settle()
    counted = 0

    def count(queue: BaseQueue) -> tuple[int, ...]:
        nonlocal counted
        counted += 1
        return queue_deliveries(queue)

    monkeypatch.setattr(metric_totals, "queue_deliveries", count)
    harness.broker.administer(VhostDelete("other"))
    assert counted <= TURN_STEPS // 8
    harness.settle()
    assert counted == many


def test_counters_keep_what_was_counted_by_queues_vhosts_channels_and_connections_that_are_gone(node: Node) -> None:
    harness = node.harness
    harness.broker.administer(VhostPut("other"))
    harness.permit("guest", vhost="other")
    for vhost in ("/", "other"):
        client = harness.client(vhost=vhost)
        client.open(1)
        node.declare(client, "q")
        node.publish(client, "q", b"1")
        client.send(1, m.BasicGet(0, "q", True))
        client.take()
        if vhost == "/":
            before = node.samples("/metrics")
            client.call(1, m.QueueDelete(0, "q", False, False, False))
            client.hang_up()
            harness.settle()
        else:
            harness.broker.administer(VhostDelete("other"))
            harness.settle()
            client.hang_up()
    after = node.samples("/metrics")
    assert of(after, "rabbitmq_queues") == 0
    assert of(after, "rabbitmq_global_messages_delivered_total", queue_type="rabbit_classic_queue") == 2
    assert of(after, "rabbitmq_channel_messages_published_total") == 2
    back = [key for key, value in before.items() if key[0].endswith("_total") and after[key] < value]
    assert not back
    received = "rabbitmq_connection_incoming_bytes_total"
    assert of(after, received) > of(before, received) > 0


def test_the_walk_over_all_objects_is_not_repeated_within_a_second(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "TOTALS_S", 1000.0)
    walks = 0
    view = node.management.view
    walk = view.walk

    def counted() -> Iterator[Totals | None]:
        nonlocal walks
        walks += 1
        return cast("Iterator[Totals | None]", walk())

    monkeypatch.setattr(view, "walk", counted)
    node.text("/metrics")
    node.text("/metrics")
    assert walks == 1


def test_long_work_gives_way_to_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.mgmt_plugin.http.scheduler.SLICE_S", 0.0)
    client = node.harness.channel()
    for number in range(10 * metric_totals.CHUNK):
        node.declare(client, f"q{number}")
    for target, least in (
        ("/metrics", 10),
        ("/metrics/per-object", 20),
        ("/metrics/detailed?family=queue_coarse_metrics&queue=q", 20),
    ):
        pauses = 0

        async def no_body(limit_bytes: int, look: Callable[[bytes], None] | None = None) -> bytes:
            return b""

        path, _, query = target.partition("?")
        request = Request("GET", path, query, {}, "127.0.0.1", False, no_body)

        async def scenario(request: Request = request) -> int:
            steps = 0

            async def other() -> None:
                nonlocal steps
                while True:
                    steps += 1
                    await trio.lowlevel.checkpoint()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(other)
                await node.port.respond(request)
                nursery.cancel_scope.cancel()
            return steps

        pauses = trio.run(scenario)
        assert pauses >= least, target


# --- single objects ---------------------------------------------------------------------------------------------------


def test_per_object_pages_show_every_queue_channel_and_connection(node: Node) -> None:
    client = node.harness.channel()
    node.declare(client, NAME)
    node.publish(client, NAME, b"123", timestamp=4711)
    samples = node.samples("/metrics/per-object")
    queue = {"vhost": "/", "queue": NAME}
    assert of(samples, "rabbitmq_queue_messages_ready", **queue) == 1
    assert of(samples, "rabbitmq_queue_head_message_timestamp", **queue) == 4711
    [waiting] = node.harness.queue(NAME).ready.in_memory()
    assert of(samples, "rabbitmq_queue_process_memory_bytes", **queue) == int(waiting.memory_bytes)
    assert of(samples, "rabbitmq_queue_messages_published_total", queue_vhost="/", queue=NAME) == 1
    name = client.connection.origin.ends()
    assert of(samples, "rabbitmq_channel_messages_published_total", channel=f"{name} (1)", vhost="/") == 1
    assert of(samples, "rabbitmq_connection_channels", connection=name) == 1
    assert of(samples, "rabbitmq_exchange_messages_published_total", vhost="/", exchange="") == 1
    assert of(samples, "rabbitmq_global_messages_received_total") == 1


def test_a_queue_whose_first_message_has_no_timestamp_shows_none(node: Node) -> None:
    client = node.harness.channel()
    node.declare(client, "q")
    node.publish(client, "q", b"1", priority=1)
    assert "rabbitmq_queue_head_message_timestamp" not in names(node.samples("/metrics/per-object"))


def test_a_page_that_would_be_too_long_is_refused_and_a_choice_is_not(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = node.harness.channel()
    for name in ("one", "two"):
        node.declare(client, name)
    monkeypatch.setattr(prometheus, "PAGE_BYTES_MAX", 250)
    with pytest.raises(HttpError) as refusal:
        node.request("/metrics/detailed?family=queue_coarse_metrics")
    assert refusal.value.status == 503
    assert queues_of(node, "queue=one") == {("/", "one")}


def test_the_text_of_a_long_page_is_made_while_it_is_taken(node: Node) -> None:
    client = node.harness.channel()
    for number in range(5 * exposition.LINES):
        node.declare(client, f"q{number}")
    held: list[int] = []
    answer = node.request("/metrics/detailed?family=queue_metrics", hold=held.append)
    assert answer.pieces is not None and not answer.body and not answer.blocks
    pieces = list(answer.pieces)
    assert max(piece.count(b"\n") for piece in pieces) <= exposition.LINES
    size = sum(map(len, pieces))
    assert len(pieces) > 5 * 10
    assert 0 < sum(held) < size // 2, "less than half of it is there before"


def test_what_a_page_says_is_of_one_moment(node: Node) -> None:
    client = node.harness.channel()
    for name in ("a", "b"):
        node.declare(client, name)
    answer = node.request("/metrics/detailed?family=queue_coarse_metrics")
    for name in ("a", "b"):
        node.publish(client, name, b"later")
    values = read_text(body_of(answer).decode())
    assert of(values, "rabbitmq_detailed_queue_messages_ready", vhost="/", queue="b") == 0


# --- chosen families --------------------------------------------------------------------------------------------------


def test_what_is_tried_for_a_queue_at_a_time_is_bounded(node: Node) -> None:
    """However many patterns there are, and however large."""
    small = "&".join(["queue=^q(.?){9}"] * 20)
    node.samples(f"/metrics/detailed?family=queue_coarse_metrics&{small}")
    with pytest.raises(HttpError) as refusal:
        node.samples(f"/metrics/detailed?family=queue_coarse_metrics&queue=a(.?){{250}}&{small}&queue=b(.?){{250}}")
    assert (refusal.value.status, refusal.value.reason) == (
        400,
        "the patterns for the names of queues are too large together",
    )


def test_a_detailed_page_has_the_families_that_are_asked_for_and_no_others(node: Node) -> None:
    client = node.harness.channel()
    node.declare(client, "q")
    found = names(node.samples("/metrics/detailed?family=queue_coarse_metrics&family=alarms"))
    assert found == {
        "rabbitmq_build_info",
        "rabbitmq_identity_info",
        "rabbitmq_detailed_alarms_file_descriptor_limit",
        "rabbitmq_detailed_alarms_free_disk_space_watermark",
        "rabbitmq_detailed_alarms_memory_used_watermark",
        "rabbitmq_detailed_queue_messages",
        "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked",
    }


def test_a_page_of_no_family_or_of_one_that_is_not_known_has_only_who_it_is_about(node: Node) -> None:
    for target in ("/metrics/detailed", "/metrics/detailed?family=nope", "/metrics/detailed?family=ra_metrics"):
        assert names(node.samples(target)) == {"rabbitmq_build_info", "rabbitmq_identity_info"}


def test_consumers_are_not_written_twice_when_both_families_have_them(node: Node) -> None:
    client = node.harness.channel()
    node.declare(client, "q")
    samples = node.samples("/metrics/detailed?family=queue_metrics&family=queue_consumer_count")
    assert of(samples, "rabbitmq_detailed_queue_consumers", queue="q") == 0


def test_what_belongs_to_a_whole_cluster_has_another_prefix(node: Node) -> None:
    samples = node.samples("/metrics/detailed?family=exchange_bindings&family=exchange_names&family=vhost_status")
    assert of(samples, "rabbitmq_cluster_exchange_bindings", vhost="/", exchange="amq.direct", type="direct") == 0
    assert of(samples, "rabbitmq_cluster_exchange_name", vhost="/", exchange="amq.direct", type="direct") == 1
    assert of(samples, "rabbitmq_cluster_vhost_status", vhost="/") == 1


def queues_of(node: Node, query: str) -> set[tuple[str, str]]:
    samples = node.samples(f"/metrics/detailed?family=queue_coarse_metrics&{query}")
    found = [dict(has) for name, has in samples if name == "rabbitmq_detailed_queue_messages"]
    return {(has["vhost"], has["queue"]) for has in found}


def test_vhosts_and_queues_can_be_chosen_several_at_a_time(node: Node) -> None:
    harness = node.harness
    for vhost in ("/", "b", "c"):
        if vhost != "/":
            harness.broker.administer(VhostPut(vhost))
            harness.broker.administer(PermissionPut("guest", vhost, ".*", ".*", ".*"))
        client = harness.client(vhost=vhost)
        client.open(1)
        for name in ("red-1", "red-2", "blue"):
            node.declare(client, name)
    assert queues_of(node, "vhost=%2F&vhost=c&queue=blue") == {("/", "blue"), ("c", "blue")}
    assert queues_of(node, "vhost=b&queue=2$&queue=^bl") == {("b", "red-2"), ("b", "blue")}
    assert queues_of(node, "vhost=nowhere") == set()
    assert len(queues_of(node, "queue=")) == 9


def test_a_pattern_that_is_none_is_refused(node: Node) -> None:
    with pytest.raises(HttpError) as refusal:
        node.request("/metrics/detailed?family=queue_coarse_metrics&queue=(")
    assert refusal.value.status == 400


def test_every_family_of_rabbitmq_may_be_asked_for_with_every_other(node: Node) -> None:
    families = [
        "connection_churn_metrics",
        "node_coarse_metrics",
        "node_metrics",
        "node_persister_metrics",
        "auth_attempt_metrics",
        "queue_coarse_metrics",
        "queue_consumer_count",
        "queue_metrics",
        "queue_delivery_metrics",
        "exchange_metrics",
        "queue_exchange_metrics",
        "exchange_bindings",
        "exchange_names",
        "channel_metrics",
        "channel_exchange_metrics",
        "channel_queue_metrics",
        "channel_queue_exchange_metrics",
        "connection_coarse_metrics",
        "connection_metrics",
        "vhost_status",
        "alarms",
        "ra_metrics",
        "stream_consumer_metrics",
    ]
    client = node.harness.channel()
    node.declare(client, "q")
    filled = [name for name in families if len(names(node.samples(f"/metrics/detailed?family={name}"))) > 2]
    assert set(families) - set(filled) == {"ra_metrics", "stream_consumer_metrics"}
    node.samples("/metrics/detailed?" + "&".join(f"family={name}" for name in families))


# --- the port ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [("GET", "/", 404), ("GET", "/api/overview", 404), ("GET", "/metrics/nope", 404), ("POST", "/metrics", 405)],
)
def test_the_port_without_a_login_knows_metrics_and_health_only(
    node: Node, method: str, target: str, status: int
) -> None:
    with pytest.raises(HttpError) as refusal:
        node.request(target, method)
    assert refusal.value.status == status


def test_health_on_that_port_is_the_brokers(node: Node) -> None:
    assert node.request("/health").status == 200
    node.health = Health(False, "the disk is full")
    answer = node.request("/health")
    assert (answer.status, b"the disk is full" in answer.body) == (503, True)


@pytest.mark.parametrize("budget_bytes", [1 << 20, 1000])
def test_a_page_of_single_objects_is_sent_whole_or_refused_when_too_much_is_being_sent(
    node: Node, monkeypatch: pytest.MonkeyPatch, budget_bytes: int
) -> None:
    monkeypatch.setattr(http_module, "BODIES_BYTES_MAX", budget_bytes)
    client = node.harness.channel()
    for number in range(2 * metric_totals.CHUNK):
        node.declare(client, f"q{number}")
    target = "/metrics/detailed?family=queue_coarse_metrics"
    got = b""

    async def ask() -> None:
        nonlocal got
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(
                http_module.serve_http, "prometheus", "127.0.0.1", 0, node.port.respond, None, node.load
            )
            stream = await trio.open_tcp_stream(host, port)
            for method in ("HEAD", "GET"):
                close = "Connection: close\r\n" if method == "GET" else ""
                await stream.send_all(f"{method} {target} HTTP/1.1\r\nHost: x\r\n{close}\r\n".encode())
            async for data in stream:
                got += data
            nursery.cancel_scope.cancel()

    trio.run(ask)
    of_head, head, body = got.split(b"\r\n\r\n")
    for answer in (of_head, head):
        assert b"HTTP/1.1 200" in answer if budget_bytes > 1000 else b"HTTP/1.1 503" in answer
        assert f"content-length: {len(body)}\r\n".encode() in answer.lower() + b"\r\n"
    if budget_bytes > 1000:
        assert body.decode() == node.text(target)
        assert node.load.traffic.sent_bytes == len(body)
    assert sum(node.load.traffic.requests.values()) == 2
    assert node.load.traffic.connections == 0


def test_older_kernels_are_asked_for_each_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = trio.run(prometheus.open_descriptors)
    monkeypatch.setattr("os.stat", lambda path: SimpleNamespace(st_size=0))
    assert abs(trio.run(prometheus.open_descriptors) - exact) <= 1


def test_a_leader_shows_its_followers_and_each_of_these_metrics_is_documented(node: Node) -> None:
    assert not any(name.startswith("warren_replication") for name in names(node.samples("/metrics")))
    gone = {"node": "rabbit@gone", "connected": False, "in_sync": False, "lag_bytes": None, "lag_s": 7.5}
    there = {"node": "rabbit@two", "connected": True, "in_sync": True, "lag_bytes": 56, "lag_s": 0.0}
    status = {"epoch": 3, "committed_lsn": 4096, "in_sync": ["rabbit@one", "rabbit@two"], "min_in_sync": 2}
    etcd = {"requests": 7, "failures": 2, "seconds": 0.25}
    election = {"leads": True, "epoch": 3, "takeovers": 2, "leaderless_s": 1.5, "late_renewals": 1, "etcd": etcd}
    status |= {"members": [{"running": True}, {"running": False}], "election": election}
    status |= {"quarantine_files": 2, "quarantine_bytes": 4711, "short": False, "mended": 3}
    node.management.cluster = lambda: status | {"trouble": "its disk is slow", "followers": [gone, there]}
    samples = node.samples("/metrics")
    assert samples["warren_replication_in_sync", ()] == 2
    assert samples["warren_replication_follower_lag_bytes", (("follower", "rabbit@two"),)] == 56
    assert ("warren_replication_follower_lag_bytes", (("follower", "rabbit@gone"),)) not in samples
    assert samples["warren_replication_follower_lag_seconds", (("follower", "rabbit@gone"),)] == 7.5
    documented = (Path(__file__).parents[3] / "docs/clustering.md").read_text()
    assert samples["warren_cluster_takeovers_total", ()] == 2
    found = {
        name for name in names(samples) if name.startswith(("warren_replication", "warren_cluster", "warren_etcd"))
    }
    assert samples["warren_replication_mended", ()] == 3
    assert samples["warren_replication_quarantine_bytes", ()] == 4711
    assert samples["warren_replication_short", ()] == 0
    assert len(found) == 22
    assert [name for name in found if f"`{name}`" not in documented] == []


def test_spans_are_counted_where_somebody_wants_them_and_each_of_these_metrics_is_documented(node: Node) -> None:
    assert not any(name.startswith("warren_tracing") for name in names(node.samples("/metrics")))
    node.management.span_export = SimpleNamespace(exported=7, failed=2, dropped=3, waiting=5)
    samples = node.samples("/metrics")
    assert samples["warren_tracing_spans_exported_total", ()] == 7
    assert samples["warren_tracing_spans_lost_total", (("reason", "failed"),)] == 2
    assert samples["warren_tracing_spans_lost_total", (("reason", "full"),)] == 3
    assert samples["warren_tracing_spans_waiting", ()] == 5
    found = {name for name in names(samples) if name.startswith("warren_tracing")}
    assert len(found) == 3
    documented = (Path(__file__).parents[3] / "docs/tracing.md").read_text()
    assert [name for name in found if f"`{name}`" not in documented] == []


class Tables(NoLinks):
    """Two tables, one of which has not begun."""

    def tables(self, vhost: str | None = None) -> list[dict[str, Any]]:
        counts = dict.fromkeys(("bytes", "refused", "lost", "commits", "failures", "files_rewritten"), 1)
        new = {"vhost": "/", "name": NAME, "state": "terminated", "rows": 0, "waiting": 0, "step_s": 0.0}
        new |= {"lag_s": None, "committed_at": None}
        follows = {"name": "t", "table": "shop.orders", "state": "running", "rows": 5, "waiting": 7, "lag_s": 2.5}
        return [{**new, **counts}, {**new, **counts, **follows, "committed_at": 1500}]

    def table_process(self) -> tuple[int, int]:
        return 3, 1 << 20


def test_tables_of_the_broker_are_told_one_by_one_and_their_process_apart() -> None:
    page = Page()
    prometheus._write(page, "warren_", lake_metrics(Tables()))
    text = b"".join(page.pieces()).decode()
    samples = {
        (sample.name, sample.labels.get("name", "")): sample for each in parse_text(text) for sample in each.samples
    }
    assert samples["warren_lake_rows_total", "t"].value == 5
    assert samples["warren_lake_rows_total", "t"].labels == {"vhost": "/", "name": "t", "table": "shop.orders"}
    assert samples["warren_lake_lag_seconds", "t"].value == 2.5
    assert ("warren_lake_lag_seconds", NAME) not in samples, "it is not known yet"
    assert samples["warren_lake_last_commit_timestamp_seconds", "t"].value == 1.5
    assert samples["warren_lake_state", NAME].labels["state"] == "terminated"
    assert samples["warren_lake_processes_total", ""].value == 3
    assert samples["warren_lake_process_memory_bytes", ""].value == 1 << 20
