"""Checks, and the commands that look at the broker as a whole."""

from __future__ import annotations

import json
import socket

import pytest
from msgspec.structs import fields

from warren import __version__
from warren.ctl import checks
from warren.ctl.listing_table import LISTINGS
from warren.engine_view.engine_view import SegmentRow

from .conftest import Ctl
from .fake_api import FakeApi

OVERVIEW = {
    "product_name": "RabbitMQ",
    "product_version": "3.10.8",
    "cluster_name": "c",
    "node": "n@h",
    "object_totals": {"connections": 1, "channels": 2, "consumers": 3, "exchanges": 4, "queues": 5},
    "queue_totals": {"messages": 9, "messages_ready": 6, "messages_unacknowledged": 3},
    "message_stats": {"publish_details": {"rate": 7.5}},
    "listeners": [{"node": "n@h", "protocol": "amqp", "ip_address": "::", "port": 5672}],
}
NODE = {
    "name": "n@h",
    "running": True,
    "os_pid": "1",
    "uptime": 93_784_000,
    "mem_used": 5 << 20,
    "mem_limit": 1 << 30,
    "mem_alarm": True,
    "disk_free": 2 << 40,
    "disk_free_limit": 1000,
    "fd_used": 3,
    "fd_total": 4,
}


@pytest.fixture
def broker(api: FakeApi) -> FakeApi:
    api.answer("GET", "overview", OVERVIEW)
    api.answer("GET", "nodes/n%40h", NODE)
    return api


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (["check_alarms"], "alarms"),
        (["check_local_alarms"], "local-alarms"),
        (["check_virtual_hosts"], "virtual-hosts"),
        (["is_in_service"], "is-in-service"),
        (["check_ready_to_serve_clients"], "ready-to-serve-clients"),
        (["check_below_node_connection_limit"], "below-node-connection-limit"),
        (["check_if_node_is_quorum_critical"], "node-is-quorum-critical"),
        (["check_quorum_leaders"], "quorum-queues-without-elected-leaders/all-vhosts"),
        (["check_port_listener", "5672"], "port-listener/5672"),
        (["check_protocol_listener", "amqp"], "protocol-listener/amqp"),
        (["check_certificate_expiration", "--within", "2", "--unit", "days"], "certificate-expiration/2/days"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_check_ends_with_0_6_or_5(api: FakeApi, ctl: Ctl, line: list[str], path: str) -> None:
    assert ctl(*line) == (5, "", "warren ctl: this broker has no such check\n")
    api.answer("GET", f"health/checks/{path}", {"status": "ok"})
    assert ctl(*line) == (0, "ok\n", "")
    del api.answers["GET", f"health/checks/{path}"]
    api.answer("GET", f"health/checks/{path}", {"status": "failed", "reason": "ill"}, 503)
    assert ctl(*line) == (6, "", "warren ctl: ill\n")


def test_a_node_that_is_down_fails_the_check(broker: FakeApi, ctl: Ctl) -> None:
    assert ctl("check_running") == (0, "Node n@h is running\n", "")
    del broker.answers["GET", "nodes/n%40h"]
    broker.answer("GET", "nodes/n%40h", NODE | {"running": False})
    assert ctl("check_running") == (6, "", "warren ctl: node n@h is not running\n")


def test_ports_are_tried_from_here(api: FakeApi, ctl: Ctl) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        listener = {"protocol": "http", "ip_address": "0.0.0.0", "port": api.port}
        api.answer("GET", "overview", OVERVIEW | {"listeners": [listener]})
        api.answer("GET", "overview", OVERVIEW | {"listeners": [listener, listener | {"port": port}]})
        assert ctl("check_port_connectivity") == (0, "Connected to 1 listeners\n", "")
        refused = f"warren ctl: http 127.0.0.1:{port}: Connection refused\n"
        assert ctl("check_port_connectivity") == (6, "", refused)


def test_aliveness_is_that_of_the_vhost(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "aliveness-test/v", {"status": "ok"})
    assert ctl("-p", "v", "check_aliveness").exit_code == 0


def test_ping_says_where_and_how_fast(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "whoami", {"name": "guest"})
    ended = ctl("ping")
    assert ended.exit_code == 0 and ended.out.startswith(f"{api.url} answered in ")


def test_startup_is_awaited_but_not_with_wrong_credentials(
    api: FakeApi, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_POLL_S", 0.0)
    api.answer("GET", "whoami", None, silence=True)
    api.answer("GET", "whoami", {"reason": "starting"}, 503)
    api.answer("GET", "whoami", {})
    assert ctl("await_startup") == (0, f"{api.url} is up\n", "")
    api.answers.clear()
    api.answer("GET", "whoami", {"reason": "Login failed"}, 401)
    assert ctl("await_startup").exit_code == 4
    api.answers.clear()
    api.answer("GET", "whoami", None, silence=True)
    assert ctl("await_startup", "--within", "0").exit_code == 3


@pytest.mark.parametrize(
    ("reason", "exit_code"), [("Login failed", 4), ("Not management user", 0), ("not_management_user", 4)]
)
def test_credentials_that_are_right_but_for_the_api_are_right(
    api: FakeApi, ctl: Ctl, reason: str, exit_code: int
) -> None:
    api.answer("GET", "whoami", {"error": "not_authorised", "reason": reason}, 401)
    ended = ctl("authenticate_user", "bob", "pw")
    assert ended.exit_code == exit_code
    assert ended.err == (f'warren ctl: user "bob": refused: {reason}\n' if exit_code else "")
    assert api.asked[0].headers["Authorization"] == "Basic Ym9iOnB3"


def test_status_is_sections_of_lines(broker: FakeApi, ctl: Ctl) -> None:
    lines = [line.split() for line in ctl("status").out.splitlines()]
    assert ["Broker"] in lines and ["Resources"] in lines and ["Totals"] in lines and ["Listeners"] in lines
    assert ["uptime", "1", "d", "02:03:04"] in lines
    assert ["alarms", "memory"] in lines
    assert ["memory", "5.0", "MiB", "(of", "1.0", "GiB)"] in lines
    assert ["disk", "free", "2.0", "TiB", "(at", "least", "1000", "B)"] in lines
    assert ["sockets"] in lines  # the node did not say
    assert ["amqp", "5672", "::"] in lines
    assert json.loads(ctl("status", "--formatter", "json").out) == {"overview": OVERVIEW, "node": NODE}


def test_overview_has_totals_and_rates(broker: FakeApi, ctl: Ctl) -> None:
    lines = [line.split() for line in ctl("overview").out.splitlines()]
    assert ["messages", "ready", "6"] in lines
    assert ["publish", "7.5"] in lines and ["ack", "0"] in lines
    assert json.loads(ctl("overview", "--formatter", "json").out) == OVERVIEW


def test_the_status_of_a_cluster_is_that_of_each_node(broker: FakeApi, ctl: Ctl) -> None:
    other = {"name": "m@h", "running": False, "type": "ram", "partitions": ["n@h"], "disk_free_alarm": True}
    broker.answer("GET", "nodes", [NODE | {"type": "disc"}, other])
    lines = [line.split() for line in ctl("cluster_status").out.splitlines()]
    assert ["name", "c"] in lines and ["n@h", "running"] in lines and ["m@h", "stopped"] in lines
    assert ["alarms", "memory", "on", "n@h,", "disk", "on", "m@h"] in lines
    assert ["n@h", "amqp", "5672", "::"] in lines
    assert json.loads(ctl("cluster-status", "--formatter", "json").out) == {
        "cluster_name": "c",
        "nodes": ["n@h", "m@h"],
        "running_nodes": ["n@h"],
        "disk_nodes": ["n@h"],
        "ram_nodes": ["m@h"],
        "alarms": [{"node": "n@h", "resource": "memory"}, {"node": "m@h", "resource": "disk"}],
        "partitions": {"m@h": ["n@h"]},
        "listeners": OVERVIEW["listeners"],
    }


def test_a_cluster_that_is_well_says_none(broker: FakeApi, ctl: Ctl) -> None:
    broker.answer("GET", "nodes", [NODE | {"mem_alarm": False}])
    lines = [line.split() for line in ctl("cluster_status").out.splitlines()]
    assert ["alarms", "none"] in lines and ["network", "partitions", "none"] in lines


MEMORY = {
    "queue_procs": 3 << 20,
    "other_system": 9 << 20,
    "mnesia": 0,
    "strategy": "rss",
    "total": {"rss": 12 << 20, "allocated": 1, "erlang": 1},
}


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ((), "other_system\t9.0 MiB\t75\nqueue_procs\t3.0 MiB\t25\n"),
        (("--unit", "bytes"), "other_system\t9437184\t75\nqueue_procs\t3145728\t25\n"),
        (("--unit", "mb"), "other_system\t9.44\t75\nqueue_procs\t3.15\t25\n"),
        (("--unit", "MiB"), "other_system\t9\t75\nqueue_procs\t3\t25\n"),
    ],
    ids=str,
)
def test_what_takes_memory_is_listed_the_largest_first(
    broker: FakeApi, ctl: Ctl, options: tuple[str, ...], rows: str
) -> None:
    broker.answer("GET", "nodes/n%40h/memory", {"memory": MEMORY})
    assert ctl("-s", "memory_breakdown", *options) == (0, rows, "")


def test_in_json_memory_is_in_bytes(broker: FakeApi, ctl: Ctl) -> None:
    broker.answer("GET", "nodes/n%40h/memory", {"memory": MEMORY})
    found = json.loads(ctl("memory_breakdown", "--formatter", "json").out)
    assert found[0] == {"part": "other_system", "memory": 9 << 20, "percent": 75.0}


def test_a_node_that_does_not_say_what_takes_memory_is_a_failure(broker: FakeApi, ctl: Ctl) -> None:
    broker.answer("GET", "nodes/n%40h/memory", {"memory": "not_available"})
    assert ctl("memory_breakdown") == (1, "", "warren ctl: node n@h does not report its memory use\n")
    assert ctl("memory_breakdown", "--unit", "stones").exit_code == 2


def test_no_part_at_all_is_an_empty_list(broker: FakeApi, ctl: Ctl) -> None:
    broker.answer("GET", "nodes/n%40h/memory", {"memory": {"mnesia": 0, "total": {}}})
    assert ctl("-s", "memory_breakdown") == (0, "", "")


def test_version_is_of_both_sides(broker: FakeApi, ctl: Ctl) -> None:
    assert ctl("version", "--formatter", "tsv").out == f"warren ctl\t{__version__}\nbroker\tRabbitMQ 3.10.8\n"


def test_listeners_are_rows(broker: FakeApi, ctl: Ctl) -> None:
    assert ctl("-s", "listeners").out == "n@h\tamqp\t::\t5672\n"


def test_whoami_and_environment_are_shown_whole(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "whoami", {"name": "guest", "tags": ["administrator"]})
    api.answer("GET", "config/effective", {"limits.channel_max": {"value": "2047", "origin": "default"}})
    assert ctl("whoami").out == "name  guest\ntags  [administrator]\n"
    assert ctl("-s", "environment").out == "limits.channel_max\t2047\tdefault\n"
    assert "limits.channel_max" in json.loads(ctl("environment", "--formatter", "json").out)


def test_search_shows_what_and_where(api: FakeApi, ctl: Ctl) -> None:
    item = {"kind": "queue", "vhost": "/", "name": "orders", "detail": "classic"}
    api.answer("GET", "warren/search", {"items": [item], "more": True})
    ended = ctl("--no-table-headers", "search", "ord er", "--limit", "1")
    assert ended.out == "queue\t/\torders\tclassic\nThere are more: --limit\n"
    assert api.asked[0].path == "/api/warren/search?q=ord+er&limit=1"


def test_a_route_ends_in_queues_or_with_a_failure(api: FakeApi, ctl: Ctl) -> None:
    step = {"exchange": "x", "destination": "q", "destination_type": "queue", "routing_key": "a.#"}
    api.answer("POST", "warren/route/%2F", {"queues": ["q"], "unroutable": False, "path": [step]})
    assert ctl("-s", "route", "x", "a.b", "-H", "n=1").out == "q\n"
    assert api.changes()[0][2] == {"exchange": "x", "routing_key": "a.b", "headers": {"n": 1}}
    assert ctl("-s", "route", "x", "a.b", "--path").out == "x\tq\tqueue\ta.#\n"
    api.answers.clear()
    api.answer("POST", "warren/route/%2F", {"queues": [], "unroutable": True, "path": []})
    assert ctl("route", "x").exit_code == 1


def test_the_store_and_the_reactor_are_flat_lines(api: FakeApi, ctl: Ctl) -> None:
    segment = {"number": 1, "bytes": 2, "live_bytes": 3, "live_records": 4, "state": "open"}
    assert segment.keys() <= {field.name for field in fields(SegmentRow)}
    api.answer("GET", "warren/store", {"segments": [segment], "bytes": 2, "commit_ms": {"p50": 0.5, "p99": 2}})
    api.answer("GET", "warren/reactor", {"turns": 5, "turn_ms": {"p50": 1}})
    lines = ctl("store").out.splitlines()
    assert [line.split() for line in lines[1:]] == [["bytes", "2"], ["commit_ms.p50", "0.5"], ["commit_ms.p99", "2"]]
    assert ctl("-s", "store", "--segments").out == "1\t2\t3\t4\topen\n"
    assert json.loads(ctl("store", "--formatter", "json").out)["segments"] == [segment]
    assert ctl("reactor").out.split() == ["Reactor", "turns", "5", "turn_ms.p50", "1"]
    assert json.loads(ctl("reactor", "--formatter", "json").out)["turns"] == 5


def test_a_report_goes_on_without_what_is_not_there_and_holds_no_hash(broker: FakeApi, ctl: Ctl) -> None:
    user = {"name": "bob", "tags": [], "password_hash": "c2VjcmV0"}
    broker.answer("GET", "users", [user])
    broker.answer("GET", "queues", {"error": "not_authorised", "reason": "no"}, 401)
    text = ctl("report")
    assert text.exit_code == 0 and "c2VjcmV0" not in text.out
    assert "\nlist_users\nuser\ttags\nbob\t[]\n" in text.out
    assert "\nlist_queues\n(refused: no)\n" in text.out
    whole = json.loads(ctl("report", "--formatter", "json").out)
    assert whole["list_users"] == [{"user": "bob", "tags": []}]
    assert whole["list_queues"] is None and whole["list_shovels"] is None
    named = {listing.command for listing in LISTINGS if not listing.argument}
    assert set(whole) == {"overview", "node", *named}


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_report_holds_no_password_of_a_uri(broker: FakeApi, ctl: Ctl, form: str) -> None:
    """It is for others to read."""
    uris = ["amqp://bob:s3cr%2Ft@there:5672/%2F", "amqps://there?certfile=a&password=s3cret&heartbeat=5"]
    value = {"src-uri": uris[0], "dest-uri": uris, "src-queue": "orders:new@here"}
    broker.answer("GET", "parameters", [{"component": "shovel", "name": "mover", "vhost": "/", "value": value}])
    broker.answer("GET", "global-parameters", [{"name": "there", "value": uris[0]}])
    text = ctl("report", "--formatter", form).out
    assert "s3cr" not in text
    assert "amqp://bob:" in text and "@there:5672/%2F" in text
    assert "certfile=a&password=" in text and "heartbeat=5" in text
    assert "orders:new@here" in text


def test_a_report_of_a_broker_that_fails_fails(broker: FakeApi, ctl: Ctl) -> None:
    broker.answer("GET", "users", {"reason": "oh"}, 500)
    assert ctl("report").exit_code == 1
