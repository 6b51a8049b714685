"""`warren ctl` does the work of rabbitmqctl with a real broker over its API."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import wait_until

from warren.ctl.client import Client, Target

from .conftest import Ctl


@pytest.fixture
def user(ctl: Ctl) -> Iterator[str]:
    """A user of this test's own."""
    name = f"user of {ctl.vhost}"
    ctl.done("add_user", name, "first")
    yield name
    ctl("delete_user", name)


def test_the_broker_is_well_and_says_who_it_is(ctl: Ctl) -> None:
    for line in (
        ["ping"],
        ["await_startup"],
        ["check_running"],
        ["check_local_alarms"],
        ["check_alarms"],
        ["check_virtual_hosts"],
        ["check_port_connectivity"],
        ["check_protocol_listener", "amqp"],
        ["check_aliveness"],
        ["status"],
        ["overview"],
        ["list_nodes"],
        ["list_feature_flags"],
    ):
        assert ctl.done(*line), line
    assert json.loads(ctl.done("whoami", "--formatter", "json"))["name"] == "guest"
    assert "broker" in ctl.done("version")
    assert "amqp" in [row["protocol"] for row in ctl.rows("listeners")]


def test_a_check_that_fails_has_its_exit_code(ctl: Ctl) -> None:
    ended = ctl("check_port_listener", "1")
    assert ended.exit_code == 6 and ended.err.startswith("warren ctl: No active listener")


def test_users_come_change_and_go(ctl: Ctl, user: str) -> None:
    ctl.done("authenticate_user", user, stdin="first\n")
    assert ctl("authenticate_user", user, stdin="wrong\n").exit_code == 4
    ctl.done("set_user_tags", user, "management", "policymaker")
    ctl.done("authenticate_user", user, "first")
    ctl.done("change_password", user, stdin="second\n")
    assert ctl("authenticate_user", user, "first").exit_code == 4
    ctl.done("authenticate_user", user, "second")
    found = [row["tags"] for row in ctl.rows("list_users") if row["user"] == user]
    assert [sorted(tags) for tags in found] == [["management", "policymaker"]]
    ctl.done("clear_password", user)
    assert ctl("authenticate_user", user, "second").exit_code == 4
    assert ctl("add_user", user, "third").exit_code == 1
    ctl.done("delete_user", user)
    assert ctl("delete_user", user) == (5, "", f'warren ctl: not found: user "{user}"\n')


def test_permissions_are_set_listed_and_cleared(ctl: Ctl, user: str) -> None:
    ctl.done("set_permissions", user, "^c", "^w", "")
    expected = {"user": user, "configure": "^c", "write": "^w", "read": ""}
    assert expected in ctl.rows("list_permissions")
    assert ctl.rows("list_user_permissions", user) == [
        {"vhost": ctl.vhost, "configure": "^c", "write": "^w", "read": ""}
    ]
    ctl.done("set_topic_permissions", user, "amq.topic", "^a", "^b")
    topic = {"exchange": "amq.topic", "write": "^a", "read": "^b"}
    assert ctl.rows("list_topic_permissions") == [{"user": user, **topic}]
    assert ctl.rows("list_user_topic_permissions", user) == [{"vhost": ctl.vhost, **topic}]
    ctl.done("clear_topic_permissions", user)
    assert ctl.rows("list_topic_permissions") == []
    ctl.done("clear_permissions", user)
    assert ctl.rows("list_user_permissions", user) == []


def test_limits_are_set_listed_and_cleared(ctl: Ctl, user: str) -> None:
    ctl.done("set_vhost_limits", '{"max-queues": 1, "max-connections": 7}')
    assert ctl.rows("list_vhost_limits") == [{"vhost": ctl.vhost, "limits": {"max-queues": 1, "max-connections": 7}}]
    ctl.done("declare_queue", "one")
    assert ctl("declare_queue", "two").exit_code == 1
    ctl.done("clear_vhost_limits")
    ctl.done("declare_queue", "two")
    ctl.done("set_user_limits", user, '{"max-channels": 3}')
    assert {"user": user, "limits": {"max-channels": 3}} in ctl.rows("list_user_limits")
    ctl.done("clear_user_limits", user)
    assert user not in [row["user"] for row in ctl.rows("list_user_limits")]


def test_policies_are_set_listed_and_cleared(ctl: Ctl) -> None:
    ctl.done("set_policy", "p", "^q", '{"max-length": 5}', "--priority", "2", "--apply-to", "queues")
    policy = {"vhost": ctl.vhost, "name": "p", "pattern": "^q", "definition": {"max-length": 5}}
    assert ctl.rows("list_policies") == [policy | {"apply-to": "queues", "priority": 2}]
    ctl.done("set_operator_policy", "p", "^q", '{"max-length": 5}')
    assert ctl.rows("list_operator_policies") == [policy | {"apply-to": "queues", "priority": 0}]
    ended = ctl("set_policy", "bad", "^q", '{"no-such-key": 5}')
    assert ended == (1, "", 'warren ctl: policy "bad": no such key: no-such-key\n')
    ctl.done("clear_policy", "p")
    ctl.done("clear_operator_policy", "p")
    assert ctl.rows("list_policies") == ctl.rows("list_operator_policies") == []
    assert ctl("clear_policy", "p").exit_code == 5


def test_parameters_are_set_listed_and_cleared(ctl: Ctl) -> None:
    ctl.done("set_parameter", "vhost-limits", "limits", '{"max-queues": 5}')
    limits = {"component": "vhost-limits", "name": "limits", "value": {"max-queues": 5}}
    assert ctl.rows("list_parameters") == [limits]
    assert {"vhost": ctl.vhost, **limits} in ctl.rows("list_parameters", "-A")
    ctl.done("clear_parameter", "vhost-limits", "limits")
    assert ctl.rows("list_parameters") == []
    assert ctl("set_parameter", "no-such-component", "n", "{}").exit_code == 1
    ctl.done("set_global_parameter", ctl.vhost, '{"a": [1]}')
    assert {"name": ctl.vhost, "value": {"a": [1]}} in ctl.rows("list_global_parameters")
    ctl.done("clear_global_parameter", ctl.vhost)


def test_queues_exchanges_and_bindings_come_and_go(ctl: Ctl) -> None:
    ctl.done("declare_queue", "a/b", "-a", "x-max-length=7", "--transient")
    assert ctl.rows("list_queues", "name", "durable", "arguments") == [
        {"name": "a/b", "durable": False, "arguments": {"x-max-length": 7}}
    ]
    ended = ctl("declare_queue", "a/b", "--transient")
    assert ended.exit_code == 1 and "inequivalent arg 'x-max-length'" in ended.err
    ctl.done("declare_exchange", "x", "--type", "topic")
    assert {"name": "x", "type": "topic"} in ctl.rows("list_exchanges")
    ctl.done("bind", "x", "a/b", "-k", "a.#")
    ctl.done("bind", "x", "a/b", "-k", "a.#", "-a", "n=1")
    ctl.done("bind", "x", "amq.fanout", "--destination-type", "exchange")
    bound = [row for row in ctl.rows("list_bindings") if row["source_name"] == "x"]
    assert sorted((row["destination_name"], row["routing_key"], len(row["arguments"])) for row in bound) == [
        ("a/b", "a.#", 0),
        ("a/b", "a.#", 1),
        ("amq.fanout", "", 0),
    ]
    ctl.done("unbind", "x", "a/b", "-k", "a.#", "-a", "n=1")
    assert ctl("unbind", "x", "a/b", "-k", "a.#", "-a", "n=1").exit_code == 5
    ctl.done("unbind", "x", "amq.fanout", "--destination-type", "exchange")
    assert ctl("delete_exchange", "x", "--if-unused").exit_code == 1
    ctl.done("delete_exchange", "x")
    ctl.done("delete_queue", "a/b", "--if-empty", "--if-unused")
    assert ctl.rows("list_queues") == []
    assert ctl("delete_queue", "a/b").exit_code == 5


def test_messages_are_published_taken_and_purged(ctl: Ctl) -> None:
    ctl.done("declare_queue", "q")
    ctl.done("publish", "-k", "q", "-H", "n=3", "--property", "priority=4", "--persistent", "grüße")
    assert ctl("publish", "-k", "nowhere", "lost").exit_code == 1
    (message,) = ctl.rows("get", "q")
    assert (message["payload"], message["redelivered"], message["routing_key"]) == ("grüße", False, "q")
    assert message["properties"] == {"headers": {"n": 3}, "priority": 4, "delivery_mode": 2}
    assert ctl.done("get", "q", "--raw", "--ack-mode", "ack_requeue_false") == "grüße\n"
    assert ctl.done("-s", "get", "q") == ""
    ctl.done("publish", "-k", "q", "once more")
    ctl.done("purge_queue", "q")
    assert ctl.done("-s", "get", "q") == ""


def test_connections_are_listed_and_closed(ctl: Ctl) -> None:
    port = next(int(row["port"]) for row in ctl.rows("listeners") if row["protocol"] == "amqp")
    with amqp_connection(port, ctl.vhost) as peer:
        wait_until(lambda: mine(ctl) == ["guest"], "the connection to be listed")
        ctl.done("close_all_connections", "tidying up")
        peer.settimeout(20)
        assert b"tidying up" in peer.recv(4096)
    wait_until(lambda: mine(ctl) == [], "the connection to go")


def mine(ctl: Ctl) -> list[str]:
    """Return the users of the connections to the vhost."""
    return [row["user"] for row in ctl.rows("list_connections", "user", "state") if row["state"] == "running"]


def amqp_connection(port: int, vhost: str) -> socket.socket:
    """Open a connection by hand: nothing of it answers a close, as a client that hangs."""
    peer = socket.create_connection(("127.0.0.1", port), timeout=20)
    peer.sendall(b"AMQP\0\0\x09\x01")
    assert peer.recv(65536)[:1] == b"\x01"
    login = b"\0guest\0guest"
    start_ok = b"\0\x0a\0\x0b" + bytes(4) + b"\x05PLAIN" + struct.pack(">I", len(login)) + login + b"\x05en_US"
    tune_ok = b"\0\x0a\0\x1f" + struct.pack(">HIH", 10, 131072, 0)
    name = vhost.encode()
    open_ = b"\0\x0a\0\x28" + bytes([len(name)]) + name + b"\0\0"
    peer.sendall(frame(start_ok))
    assert peer.recv(65536)[7:11] == b"\0\x0a\0\x1e"
    peer.sendall(frame(tune_ok) + frame(open_))
    assert peer.recv(65536)[7:11] == b"\0\x0a\0\x29"
    return peer


def frame(method: bytes) -> bytes:
    return struct.pack(">BHI", 1, 0, len(method)) + method + b"\xce"


def test_definitions_go_from_one_vhost_to_another(ctl: Ctl, tmp_path: Path) -> None:
    ctl.done("declare_queue", "q", "-a", "x-max-length=7")
    ctl.done("declare_exchange", "x", "--type", "fanout")
    ctl.done("bind", "x", "q")
    ctl.done("set_policy", "p", "^q", '{"expires": 100000}')
    file = tmp_path / "definitions.json"
    ctl.done("export_definitions", str(file))
    for line in (["delete_queue", "q"], ["delete_exchange", "x"], ["clear_policy", "p"]):
        ctl.done(*line)
    ctl.done("import_definitions", str(file))
    assert ctl.rows("list_queues", "name", "arguments") == [{"name": "q", "arguments": {"x-max-length": 7}}]
    assert [row["name"] for row in ctl.rows("list_policies")] == ["p"]
    assert ("x", "q") in [(row["source_name"], row["destination_name"]) for row in ctl.rows("list_bindings")]
    whole = json.loads(ctl.done("export_definitions", "-p", ctl.vhost))
    assert [queue["name"] for queue in whole["queues"]] == ["q"]


def test_a_vhost_is_traced_while_it_is_wanted(ctl: Ctl) -> None:
    def traced() -> list[bool]:
        return [row["tracing"] for row in ctl.rows("list_vhosts", "name", "tracing") if row["name"] == ctl.vhost]

    ctl.done("trace_on")
    assert traced() == [True]
    ctl.done("trace_off")
    assert traced() == [False]


@pytest.mark.long
def test_many_queues_come_in_pages_in_the_order_asked_for(ctl: Ctl, broker_url: str) -> None:
    wanted = [f"q{number:04}" for number in range(1100)]
    with Client(Target(broker_url, "guest", "guest")) as client:
        for name in wanted:
            client.put("queues", ctl.vhost, name, body={"durable": False})
    assert [row["name"] for row in ctl.rows("list_queues", "name", "--sort", "name")] == wanted
    assert [row["name"] for row in ctl.rows("list_queues", "name", "--sort", "-name", "--limit", "3")] == wanted[:-4:-1]
    assert [row["name"] for row in ctl.rows("list_queues", "name", "--name", "^q000[1-3]$")] == wanted[1:4]


def test_wrong_credentials_and_nobody_there_have_their_exit_codes(ctl: Ctl) -> None:
    assert ctl("list_queues", "--password", "wrong").exit_code == 4
    assert ctl("list_queues", "-p", "no such vhost") == (5, "", 'warren ctl: not found: vhost "no such vhost"\n')
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert ctl("-u", f"http://127.0.0.1:{probe.getsockname()[1]}", "ping").exit_code == 3


def test_a_report_covers_the_vhost_and_no_password(ctl: Ctl) -> None:
    ctl.done("declare_queue", "reported")
    report = json.loads(ctl.done("report", "--formatter", "json"))
    assert (ctl.vhost, "reported") in [(row["vhost"], row["name"]) for row in report["list_queues"]]
    assert "password" not in json.dumps(report["list_users"])
