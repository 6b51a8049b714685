"""What objects have: the fields of RabbitMQ 3.10.8, written down from its answers, and of which types they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from .client import Place, q
from .conftest import Connect

FIELDS = {
    "overview": """
        churn_rates churn_rates.channel_closed churn_rates.channel_created churn_rates.connection_closed
        churn_rates.connection_created churn_rates.queue_created churn_rates.queue_declared
        churn_rates.queue_deleted cluster_name contexts disable_stats enable_queue_totals erlang_full_version
        erlang_version exchange_types listeners management_version message_stats message_stats.ack
        message_stats.confirm message_stats.deliver message_stats.deliver_get message_stats.deliver_no_ack
        message_stats.disk_reads message_stats.disk_writes message_stats.drop_unroutable message_stats.get
        message_stats.get_empty message_stats.get_no_ack message_stats.publish message_stats.redeliver
        message_stats.return_unroutable node object_totals object_totals.channels object_totals.connections
        object_totals.consumers object_totals.exchanges object_totals.queues product_name product_version
        queue_totals queue_totals.messages queue_totals.messages_ready queue_totals.messages_unacknowledged
        rabbitmq_version rates_mode release_series_support_status sample_retention_policies
        statistics_db_event_queue
    """,
    "node": """
        applications auth_mechanisms channel_closed channel_created cluster_links config_files connection_closed
        connection_created context_switches contexts db_dir disk_free disk_free_alarm disk_free_limit
        enabled_plugins exchange_types fd_total fd_used gc_bytes_reclaimed gc_num io_read_avg_time io_read_bytes
        io_read_count io_reopen_count io_seek_avg_time io_seek_count io_sync_avg_time io_sync_count
        io_write_avg_time io_write_bytes io_write_count log_files mem_alarm mem_calculation_strategy mem_limit
        mem_used metrics_gc_queue_length mnesia_disk_tx_count mnesia_ram_tx_count msg_store_read_count
        msg_store_write_count name net_ticktime os_pid partitions proc_total proc_used processors queue_created
        queue_declared queue_deleted queue_index_read_count queue_index_write_count ra_open_file_metrics
        rates_mode run_queue running sockets_total sockets_used type uptime
    """,
    "connection": """
        auth_mechanism channel_max channels client_properties connected_at frame_max garbage_collection host
        name node peer_cert_issuer peer_cert_subject peer_cert_validity peer_host peer_port port protocol
        recv_cnt recv_oct reductions send_cnt send_oct send_pend ssl ssl_cipher ssl_hash ssl_key_exchange
        ssl_protocol state timeout type user user_provided_name user_who_performed_action vhost
    """,
    "channel": """
        acks_uncommitted confirm consumer_count garbage_collection global_prefetch_count message_stats
        message_stats.ack message_stats.confirm message_stats.deliver message_stats.deliver_get
        message_stats.deliver_no_ack message_stats.drop_unroutable message_stats.get message_stats.get_empty
        message_stats.get_no_ack message_stats.publish message_stats.redeliver message_stats.return_unroutable
        messages_unacknowledged messages_uncommitted messages_unconfirmed name node number pending_raft_commands
        prefetch_count reductions state transactional user user_who_performed_action vhost
    """,
    "queue": """
        arguments auto_delete backing_queue_status consumer_capacity consumer_utilisation consumers durable
        effective_policy_definition exclusive exclusive_consumer_tag garbage_collection head_message_timestamp
        idle_since memory message_bytes message_bytes_paged_out message_bytes_persistent message_bytes_ram
        message_bytes_ready message_bytes_unacknowledged message_stats message_stats.ack message_stats.deliver
        message_stats.deliver_get message_stats.deliver_no_ack message_stats.get message_stats.get_empty
        message_stats.get_no_ack message_stats.publish message_stats.redeliver messages messages_paged_out
        messages_persistent messages_ram messages_ready messages_ready_ram messages_unacknowledged
        messages_unacknowledged_ram name node operator_policy policy recoverable_slaves reductions
        single_active_consumer_tag state type vhost
    """,
    "queue in full": "consumer_details deliveries incoming",
    "exchange": """
        arguments auto_delete durable internal message_stats message_stats.publish_in message_stats.publish_out
        name policy type user_who_performed_action vhost
    """,
    "binding": "arguments destination destination_type properties_key routing_key source vhost",
    "consumer": """
        ack_required active activity_status arguments consumer_tag exclusive prefetch_count queue queue.name
        queue.vhost
    """,
    "vhost": """
        cluster_state default_queue_type description message_stats message_stats.ack message_stats.confirm
        message_stats.deliver message_stats.deliver_get message_stats.deliver_no_ack
        message_stats.drop_unroutable message_stats.get message_stats.get_empty message_stats.get_no_ack
        message_stats.publish message_stats.redeliver message_stats.return_unroutable messages messages_ready
        messages_unacknowledged metadata metadata.description metadata.tags name recv_oct send_oct tags tracing
    """,
    "user": "hashing_algorithm limits name password_hash tags",
    "permission": "configure read user vhost write",
    "policy": "apply-to definition name pattern priority vhost",
    "whoami": "name tags",
    "page": "filtered_count item_count items page page_count page_size total_count",
}
# Missing fields, with reasons.
OF_ERLANG = "there is no Erlang machine to tell it of"
OF_ITS_STORE = "the store has neither a journal nor seeks to count, messages are not paged one by one"
OF_MIRRORS = "there are no mirrored queues"
LACKING = {
    **dict.fromkeys(["garbage_collection", "reductions", "context_switches", "gc_num"], OF_ERLANG),
    **dict.fromkeys(
        ["gc_bytes_reclaimed", "mnesia_disk_tx_count", "mnesia_ram_tx_count", "ra_open_file_metrics"], OF_ERLANG
    ),
    **dict.fromkeys(["backing_queue_status"], OF_ITS_STORE),
    **dict.fromkeys(["io_read_avg_time", "io_read_bytes", "io_read_count", "io_reopen_count"], OF_ITS_STORE),
    **dict.fromkeys(["io_seek_avg_time", "io_seek_count", "io_sync_avg_time", "io_write_avg_time"], OF_ITS_STORE),
    **dict.fromkeys(["io_write_count", "queue_index_read_count"], OF_ITS_STORE),
    **dict.fromkeys(["disk_reads", "disk_writes"], OF_ITS_STORE),
    "recoverable_slaves": OF_MIRRORS,
}
# Not numbers; None is as good as any of them where RabbitMQ has null.
TEXT = """
    name node vhost type state policy operator_policy exclusive_consumer_tag single_active_consumer_tag protocol host
    peer_host user user_provided_name user_who_performed_action auth_mechanism ssl_cipher ssl_hash ssl_key_exchange
    ssl_protocol peer_cert_issuer peer_cert_subject peer_cert_validity cluster_name erlang_full_version erlang_version
    management_version product_name product_version rabbitmq_version rates_mode release_series_support_status db_dir
    os_pid mem_calculation_strategy source destination destination_type properties_key routing_key consumer_tag
    activity_status default_queue_type description hashing_algorithm password_hash configure read write pattern
    apply-to idle_since
"""
FLAG = """
    auto_delete durable exclusive internal ssl confirm transactional disable_stats enable_queue_totals disk_free_alarm
    mem_alarm running ack_required active tracing
"""
LIST = """
    contexts exchange_types listeners applications auth_mechanisms cluster_links config_files enabled_plugins log_files
    partitions tags items consumer_details deliveries incoming
"""
OBJECT = """
    arguments churn_rates message_stats object_totals queue_totals sample_retention_policies client_properties
    effective_policy_definition metrics_gc_queue_length queue metadata cluster_state limits definition
"""
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(TEXT.split(), (str,)),
    **dict.fromkeys(FLAG.split(), (bool,)),
    **dict.fromkeys(LIST.split(), (list,)),
    **dict.fromkeys(OBJECT.split(), (dict,)),
}
PATHS = {
    "overview": "/overview",
    "node": "/nodes",
    "connection": "/vhosts/{}/connections",
    "channel": "/vhosts/{}/channels",
    "queue": "/queues/{}",
    "queue in full": "/queues/{}/q",
    "exchange": "/exchanges/{}",
    "binding": "/bindings/{}",
    "consumer": "/consumers/{}",
    "vhost": "/vhosts/{}",
    "user": "/users/guest",
    "permission": "/permissions",
    "policy": "/policies/{}",
    "whoami": "/whoami",
    "page": "/queues?page=1&page_size=1&columns=name,messages",
}


def flat(value: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, each in value.items():
        yield before + key, each
        if isinstance(each, dict):
            yield from flat(each, f"{before}{key}.")


@pytest.fixture
def busy(place: Place, amqp: Connect) -> Place:
    """A vhost in which everything has happened."""
    api, v = place.api, place.v
    channel = amqp(client_properties={"connection_name": "mine"}).channel()
    channel.confirm_delivery()
    channel.exchange_declare("x", "topic", durable=True)
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 100})
    channel.queue_bind("q", "x", "a.*", arguments={"k": 1})
    api.put(f"/policies/{v}/p", {"pattern": "^q", "definition": {"message-ttl": 100000}, "apply-to": "queues"})
    for _ in range(3):
        channel.basic_publish("x", "a.b", b"hello")
    channel.basic_get("q")
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("q", lambda *arguments: None)
    api.eventually(f"/queues/{v}/q", lambda queue: queue["messages_unacknowledged"] == 2)
    return place


def test_objects_have_the_fields_of_rabbitmq(busy: Place) -> None:
    wrong: list[str] = []
    for kind, path in PATHS.items():
        found = busy.api.get(path.format(busy.v))
        rows = found if isinstance(found, list) else [found]
        there = {field: value for row in rows for field, value in flat(row)}
        assert rows, kind
        for field in FIELDS[kind].split():
            name = field.rpartition(".")[2]
            if name in LACKING:
                continue
            if field not in there:
                wrong.append(f"{kind} has no {field}")
                continue
            value = there[field]
            expected = KINDS.get(name, (int, float))
            if field == "connection_details" or value is None or field == "message_stats.confirm":
                continue
            if not isinstance(value, expected) or (bool not in expected and isinstance(value, bool)):
                wrong.append(f"{kind}.{field} is {value!r}")
    assert not wrong, "\n".join(wrong)


def test_what_is_said_to_be_lacking_is(busy: Place) -> None:
    there: set[str] = set()
    for path in PATHS.values():
        found = busy.api.get(path.format(busy.v))
        for row in found if isinstance(found, list) else [found]:
            there |= {field.rpartition(".")[2] for field, _ in flat(row)}
    assert sorted(there & set(LACKING)) == []
    assert set(LACKING) <= {field.rpartition(".")[2] for text in FIELDS.values() for field in text.split()}


def test_every_counter_has_its_rate_and_samples_when_asked_for(busy: Place) -> None:
    ranges = "&".join(f"{of}_age=60&{of}_incr=5" for of in ("lengths", "msg_rates", "data_rates", "node_stats"))
    for path in (f"/queues/{busy.v}/q", "/overview", f"/vhosts/{busy.v}", f"/exchanges/{busy.v}/x"):
        found = busy.api.eventually(f"{path}?{ranges}", lambda row: "message_stats" in row)
        details = [(field, value) for field, value in flat(found) if field.endswith("_details") and "rate" in value]
        assert details, path
        for field, value in details:
            assert isinstance(value["rate"], float | int), field
            if "samples" in value:
                assert set(value) == {"rate", "samples", "avg", "avg_rate"}, field
                assert all(set(sample) == {"sample", "timestamp"} for sample in value["samples"])
            counter = field.removesuffix("_details")
            assert counter in dict(flat(found)), field


def test_lists_are_paged_sorted_and_cut(place: Place) -> None:
    api, v = place.api, place.v
    for name in ("b", "c", "a"):
        api.put(f"/queues/{v}/{name}")
    assert api.get(f"/queues/{v}?sort=name&columns=name") == [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    page = api.get(f"/queues/{v}?page=2&page_size=1&sort=name&sort_reverse=true&columns=name,vhost")
    assert page["items"] == [{"name": "b", "vhost": place.vhost}] and page["page_count"] == 3
    found = api.get(f"/queues/{v}?page=1&name=^[aB]$&use_regex=true&sort=name")["items"]
    assert [row["name"] for row in found] == ["a", "b"]
    assert api.ask("GET", f"/queues/{v}?page=9").refusal[:2] == (400, "page_out_of_range")
    for kind in ("exchanges", "bindings", "queues", "consumers"):
        assert "items" in api.get(f"/{kind}/{v}?page=1")


def test_health_checks_pass_and_fail(place: Place) -> None:
    api = place.api
    for check in (
        *("alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical", "is-in-service"),
        *("certificate-expiration/1/months", f"port-listener/{api.port}", "protocol-listener/amqp"),
        *("protocol-listener/amqp091,http", "ready-to-serve-clients", "below-node-connection-limit"),
    ):
        assert api.get(f"/health/checks/{check}")["status"] == "ok", check
    for check, status in (
        ("port-listener/1", 503),
        ("protocol-listener/mqtt", 503),
        ("port-listener/x", 400),
        ("certificate-expiration/1/moons", 400),
        ("certificate-expiration/x/days", 400),
        ("nosuch", 404),
    ):
        answer = api.ask("GET", f"/health/checks/{check}")
        assert answer.status == status, check
        if status == 503:
            assert answer.json["status"] == "failed" and answer.json["reason"]
    assert api.get(f"/aliveness-test/{place.v}") == {"status": "ok"}
    assert api.as_user(None).ask("GET", "//health").json["status"] == "ok"


def test_methods_that_are_not_there_are_told_which_are(place: Place) -> None:
    answer = place.api.ask("POST", "/overview", {})
    assert answer.status == 405 and answer.headers["allow"] == "GET, HEAD, OPTIONS"
    options = place.api.as_user(None).ask("OPTIONS", "/overview")
    assert options.status == 200 and options.headers["allow"] == "GET, HEAD, OPTIONS"
    assert "access-control-allow-origin" not in options.headers
    head = place.api.ask("HEAD", "/whoami")
    assert head.status == 200 and head.body == b"" and int(head.headers["content-length"]) > 0
    assert place.api.ask("GET", "/nosuch").status == 404


def test_a_node_tells_what_takes_its_memory(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.confirm_delivery()
    for name, kind in (("c", "classic"), ("k", "quorum"), ("s", "stream")):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
        channel.basic_publish("", name, b"x" * 100_000)
    (node,) = place.api.get("/nodes?memory=true")
    assert "memory" not in place.api.get("/nodes")[0]
    path = f"/nodes/{q(node['name'])}"
    alone = place.api.get(f"{path}/memory")["memory"]
    assert place.api.get(f"{path}?memory=true")["memory"].keys() == node["memory"].keys() == alone.keys()
    parts = {name: value for name, value in alone.items() if name not in ("strategy", "total")}
    assert {"binary", "code", "atom", "metrics", "mgmt_db", "msg_index", "plugins", "other_proc"} <= parts.keys()
    for part in ("queue_procs", "quorum_queue_procs", "stream_queue_procs"):
        assert parts[part] >= 100_000
    assert sum(parts.values()) == alone["total"]["rss"] > 0
    relative = place.api.get(f"{path}/memory/relative")["memory"]
    assert relative.keys() == parts.keys() | {"total"}
    assert node["proc_used"] > 0


def test_the_node_is_called_as_one_of_rabbitmq(place: Place) -> None:
    name = place.api.get("/nodes")[0]["name"]
    assert name.startswith("rabbit@")
    assert place.api.get("/overview")["node"] == name and place.api.get(f"/nodes/{q(name)}")["running"] is True
    assert f'rabbitmq_node="{name}"'.encode() in place.api.ask("GET", "//metrics").body


def test_the_cluster_has_an_id_that_stays(place: Place) -> None:
    shown = place.api.get("/global-parameters/internal_cluster_id")
    assert shown["value"].startswith("rabbitmq-cluster-id-") and len(shown["value"]) == 42
    assert shown in place.api.get("/global-parameters")
    assert shown["value"].encode() in place.api.ask("GET", "//metrics").body
    assert place.api.ask("PUT", "/global-parameters/internal_cluster_id", {"value": "x"}).status == 400
    assert place.api.ask("DELETE", "/global-parameters/internal_cluster_id").status == 404


def test_topic_permissions_that_are_not_there_are_not_found(place: Place) -> None:
    path = f"/topic-permissions/{place.v}/guest"
    assert place.api.ask("GET", path).status == 404
    place.api.put(path, {"exchange": "e", "write": "w", "read": "r"})
    shown = [{"user": "guest", "vhost": place.vhost, "exchange": "e", "write": "w", "read": "r"}]
    assert place.api.get(path) == place.api.get(f"{path}/e") == shown
    assert place.api.ask("GET", f"{path}/other").status == 404
    assert place.api.get("/users/guest/topic-permissions") == shown


def test_lists_and_idle_objects_have_a_whole_grid_of_samples(place: Place) -> None:
    for number in range(3):
        place.api.put(f"/queues/{place.v}/idle{number}")
    ranges = "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5"
    for queue in (*place.api.get(f"/queues/{place.v}?{ranges}"), place.api.get(f"/queues/{place.v}/idle0?{ranges}")):
        samples = queue["messages_details"]["samples"]
        assert [sample["sample"] for sample in samples] == [0] * 13
        times = [sample["timestamp"] for sample in samples]
        assert times == [times[0] - 5000 * back for back in range(13)]
    assert "samples" not in place.api.get(f"/queues/{place.v}/idle0")["messages_details"]


def test_a_queue_tells_the_bytes_of_its_messages(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    kept, passing = pika.DeliveryMode.Persistent, pika.DeliveryMode.Transient
    for mode, size in ((kept, 100), (passing, 20), (kept, 3)):
        channel.basic_publish("", "q", b"x" * size, pika.BasicProperties(delivery_mode=mode))
    assert channel.basic_get("q")[2] == b"x" * 100
    shown = place.api.get(f"/queues/{place.v}/q")
    assert {field: shown[field] for field in shown if field.startswith(("message_bytes", "messages_persistent"))} == {
        "message_bytes": 123,
        "message_bytes_ready": 23,
        "message_bytes_unacknowledged": 100,
        "message_bytes_ram": 123,
        "message_bytes_paged_out": 0,
        "message_bytes_persistent": 103,
        "messages_persistent": 2,
    }
    page = place.api.ask("GET", "//metrics/detailed?family=queue_metrics&vhost=" + place.v).body.decode()
    labels = f'{{vhost="{place.vhost}",queue="q"}}'
    for name, value in (("unacked_bytes", 100), ("persistent", 2), ("persistent_bytes", 103), ("bytes", 123)):
        assert f"rabbitmq_detailed_queue_messages_{name}{labels} {value}\n" in page
