"""The commands that change something, one row each: request, answer, output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from .conftest import Ctl
from .fake_api import FakeApi


class Case(NamedTuple):
    """A command line, what the API holds, and the change that must go out; `said` is standard output."""

    line: Sequence[str]
    change: tuple[str, str, Any]
    said: str
    holds: tuple[tuple[str, object], ...] = ()
    answer: object = None
    stdin: str = ""


USER = {"name": "bob", "tags": ["monitoring"], "password_hash": "aGFzaA==", "hashing_algorithm": "h"}
BINDING = {"routing_key": "k", "arguments": {"n": 1}, "properties_key": "k~x"}

CASES = (
    Case(
        ["add_user", "bob", "secret", "--tag", "a", "--tag", "b"],
        ("PUT", "users/bob", {"password": "secret", "tags": "a,b"}),
        'Added user "bob"; give it permissions with set_permissions',
    ),
    Case(
        ["add_user", "bob"],
        ("PUT", "users/bob", {"password": "from stdin", "tags": ""}),
        'Added user "bob"; give it permissions with set_permissions',
        stdin="from stdin\n",
    ),
    Case(
        ["cluster", "promote", "--accept-loss"],
        ("POST", "cluster/promote", {"accept_loss": True}),
        "Promoted: this node is the leader from now on\nThe link was lost 3 s ago.",
        (("cluster/status", {"role": "follower", "node": "rabbit@two"}),),
        answer={"lsn": 64, "note": "The link was lost 3 s ago."},
    ),
    Case(["delete_user", "bob"], ("DELETE", "users/bob", None), 'Deleted user "bob"'),
    Case(
        ["change_password", "bob"],
        ("PUT", "users/bob", {"password": "new", "tags": "monitoring"}),
        'Changed the password of user "bob"',
        (("users/bob", USER),),
        stdin="new\r\n",
    ),
    Case(
        ["clear_password", "bob"],
        ("PUT", "users/bob", {"password_hash": "", "tags": "monitoring"}),
        'Cleared the password of user "bob"',
        (("users/bob", USER | {"tags": "monitoring"}),),
    ),
    Case(
        ["set_user_tags", "bob", "a", "b"],
        ("PUT", "users/bob", {"password_hash": "aGFzaA==", "hashing_algorithm": "h", "tags": "a,b"}),
        'Tags of user "bob": [a, b]',
        (("users/bob", USER),),
    ),
    Case(
        ["add_vhost", "v/w", "--description", "d"],
        ("PUT", "vhosts/v%2Fw", {"description": "d"}),
        'Added vhost "v/w"',
    ),
    Case(["delete_vhost", "v"], ("DELETE", "vhosts/v", None), 'Deleted vhost "v"'),
    Case(["trace_on"], ("PUT", "vhosts/%2F", {"tracing": True}), 'Tracing of vhost "/" is on', (("vhosts/%2F", {}),)),
    Case(
        ["trace_off", "v"], ("PUT", "vhosts/v", {"tracing": False}), 'Tracing of vhost "v" is off', (("vhosts/v", {}),)
    ),
    Case(
        ["set_vhost_limits", "-p", "v", '{"max-queues": 5}'],
        ("PUT", "vhost-limits/v/max-queues", {"value": 5}),
        'Limits of vhost "v" are set: max-queues',
    ),
    Case(
        ["clear_vhost_limits", "-p", "v"],
        ("DELETE", "vhost-limits/v/max-queues", None),
        'Limits of vhost "v" are cleared',
        (("vhost-limits/v", [{"vhost": "v", "value": {"max-queues": 5}}]),),
    ),
    Case(
        ["set_user_limits", "bob", '{"max-channels": 5}'],
        ("PUT", "user-limits/bob/max-channels", {"value": 5}),
        'Limits of user "bob" are set: max-channels',
    ),
    Case(
        ["clear_user_limits", "bob", "max-channels"],
        ("DELETE", "user-limits/bob/max-channels", None),
        'Limits of user "bob" are cleared',
        (("user-limits/bob", [{"user": "bob", "value": {"max-channels": 5, "max-connections": 1}}]),),
    ),
    Case(
        ["set_permissions", "-p", "v", "bob", "^c", ".*", ""],
        ("PUT", "permissions/v/bob", {"configure": "^c", "write": ".*", "read": ""}),
        'Permissions of user "bob" in vhost "v" are set',
    ),
    Case(
        ["clear_permissions", "bob"],
        ("DELETE", "permissions/%2F/bob", None),
        'Permissions of user "bob" in vhost "/" are cleared',
    ),
    Case(
        ["set_topic_permissions", "bob", "amq.topic", "^w", "^r"],
        ("PUT", "topic-permissions/%2F/bob", {"exchange": "amq.topic", "write": "^w", "read": "^r"}),
        'Topic permissions of user "bob" for exchange "amq.topic" are set',
    ),
    Case(
        ["clear_topic_permissions", "bob"],
        ("DELETE", "topic-permissions/%2F/bob", None),
        'Topic permissions of user "bob" are cleared',
    ),
    Case(
        ["clear_topic_permissions", "bob", "amq.topic"],
        ("DELETE", "topic-permissions/%2F/bob/amq.topic", None),
        'Topic permissions of user "bob" are cleared',
    ),
    Case(
        ["set_policy", "p", "^q", '{"max-length": 1}', "--priority", "3", "--apply-to", "queues"],
        (
            "PUT",
            "policies/%2F/p",
            {"pattern": "^q", "definition": {"max-length": 1}, "priority": 3, "apply-to": "queues"},
        ),
        'Policy "p" in vhost "/" is set',
    ),
    Case(
        ["set_log_level", "debug"],
        ("PUT", "warren/log-level", {"level": "debug"}),
        "Log level is debug",
    ),
    Case(["clear_policy", "p"], ("DELETE", "policies/%2F/p", None), 'Policy "p" in vhost "/" is cleared'),
    Case(
        ["set_operator_policy", "p", "^q", "{}"],
        ("PUT", "operator-policies/%2F/p", {"pattern": "^q", "definition": {}, "priority": 0, "apply-to": "queues"}),
        'Policy "p" in vhost "/" is set',
    ),
    Case(
        ["clear_operator_policy", "p"],
        ("DELETE", "operator-policies/%2F/p", None),
        'Policy "p" in vhost "/" is cleared',
    ),
    Case(
        ["set_parameter", "shovel", "s", '{"a": 1}'],
        ("PUT", "parameters/shovel/%2F/s", {"vhost": "/", "component": "shovel", "name": "s", "value": {"a": 1}}),
        'Parameter "s" of component "shovel" in vhost "/" is set',
    ),
    Case(
        ["clear_parameter", "shovel", "s"],
        ("DELETE", "parameters/shovel/%2F/s", None),
        'Parameter "s" of component "shovel" in vhost "/" is cleared',
    ),
    Case(
        ["set_global_parameter", "g", '"x"'],
        ("PUT", "global-parameters/g", {"name": "g", "value": "x"}),
        'Global parameter "g" is set',
    ),
    Case(
        ["clear_global_parameter", "g"],
        ("DELETE", "global-parameters/g", None),
        'Global parameter "g" is cleared',
    ),
    Case(
        ["declare_queue", "q", "--transient", "--type", "classic", "-a", "x-a=1", "--arguments", '{"x-b": [1]}'],
        (
            "PUT",
            "queues/%2F/q",
            {"durable": False, "auto_delete": False, "arguments": {"x-a": 1, "x-b": [1], "x-queue-type": "classic"}},
        ),
        'Declared queue "q" in vhost "/"',
    ),
    Case(
        ["delete_queue", "q", "--if-empty", "--if-unused"],
        ("DELETE", "queues/%2F/q?if-empty=true&if-unused=true", None),
        'Deleted queue "q" in vhost "/"',
    ),
    Case(["purge_queue", "q"], ("DELETE", "queues/%2F/q/contents", None), 'Purged queue "q" in vhost "/"'),
    Case(["pause_queue", "q"], ("PUT", "warren/queues/%2F/q/pause", {}), 'Paused queue "q" in vhost "/"'),
    Case(["resume_queue", "q"], ("DELETE", "warren/queues/%2F/q/pause", None), 'Resumed queue "q" in vhost "/"'),
    Case(
        ["declare_queue", "s", "--type", "stream", "-a", "x-max-age=7D"],
        (
            "PUT",
            "queues/%2F/s",
            {
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-queue-type": "stream", "x-max-age": "7D"},
            },
        ),
        'Declared queue "s" in vhost "/"',
    ),
    *(
        Case(
            ["reset_stream_group", "s", "g/1", position],
            ("PUT", "warren/streams/%2F/s/groups/g%2F1", body),
            'Reset group "g/1" of stream "s" in vhost "/"',
        )
        for position, body in (
            ("17", {"offset": 17}),
            ("first", {"offset": "first"}),
            ("12h", {"offset": "12h"}),
            ("2026-11-22T08:00:00.5+00:00", {"time_ms": 1795334400500}),
        )
    ),
    Case(
        ["end_mqtt_session", "a/b"],
        ("DELETE", "warren/mqtt-sessions/%2F/a%2Fb", None),
        'Ended the MQTT session of "a/b" in vhost "/"',
    ),
    Case(
        ["delete_stream_group", "s", "g"],
        ("DELETE", "warren/streams/%2F/s/groups/g", None),
        'Deleted group "g" of stream "s" in vhost "/"',
    ),
    Case(
        ["delete_drain", "q", "a/b"],
        ("DELETE", "warren/drains/%2F/q/a%2Fb", None),
        'Deleted drain "a/b" of queue "q" in vhost "/"',
    ),
    Case(
        ["delete_drain", "q", "c", "--discard"],
        ("DELETE", "warren/drains/%2F/q/c?discard=true", None),
        'Deleted drain "c" of queue "q" in vhost "/"',
    ),
    Case(
        ["declare_exchange", "x", "--type", "topic", "--internal", "--auto-delete"],
        (
            "PUT",
            "exchanges/%2F/x",
            {"type": "topic", "durable": True, "auto_delete": True, "internal": True, "arguments": {}},
        ),
        'Declared exchange "x" in vhost "/"',
    ),
    Case(
        ["delete_exchange", "x", "--if-unused"],
        ("DELETE", "exchanges/%2F/x?if-unused=true", None),
        'Deleted exchange "x" in vhost "/"',
    ),
    Case(
        ["bind", "x", "y", "-k", "k", "--destination-type", "exchange", "-a", "n=1"],
        ("POST", "bindings/%2F/e/x/e/y", {"routing_key": "k", "arguments": {"n": 1}}),
        'Bound exchange "y" to exchange "x" with key "k"',
    ),
    Case(
        ["unbind", "x", "q", "-k", "k", "-a", "n=1"],
        ("DELETE", "bindings/%2F/e/x/q/q/k~x", None),
        'Removed the binding of queue "q" to exchange "x"',
        (("bindings/%2F/e/x/q/q", [BINDING | {"arguments": {}}, BINDING]),),
    ),
    Case(
        ["publish", "hi", "-x", "x", "-k", "k", "-H", "n=1", "--property", "priority=3", "--transient"],
        (
            "POST",
            "exchanges/%2F/x/publish",
            {
                "properties": {"priority": 3, "delivery_mode": 1, "headers": {"n": 1}},
                "routing_key": "k",
                "payload": "hi",
                "payload_encoding": "string",
            },
        ),
        "Published 2 bytes",
        answer={"routed": True},
    ),
    Case(
        ["publish", "-k", "q"],
        (
            "POST",
            "exchanges/%2F/amq.default/publish",
            {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "piped", "payload_encoding": "string"},
        ),
        "Published 5 bytes",
        answer={"routed": True},
        stdin="piped",
    ),
    Case(
        ["cancel_consumer", "-p", "v", "1.2.3.4:5 -> 6:7", "1", "c/1"],
        ("DELETE", "consumers/v/1.2.3.4%3A5%20-%3E%206%3A7/1/c%2F1", None),
        'Cancelled consumer "c/1"',
    ),
    Case(
        ["close_connection", "1.2.3.4:5 -> 6:7", "go\naway"],
        ("DELETE", "connections/1.2.3.4%3A5%20-%3E%206%3A7", None),
        'Closed connection "1.2.3.4:5 -> 6:7"',
    ),
    Case(
        ["close_all_connections", "-p", "v"],
        ("DELETE", "connections/b", None),
        "Closed 1 connection",
        (("connections", [{"name": "a", "vhost": "/"}, {"name": "b", "vhost": "v"}]),),
    ),
    Case(
        ["close_all_connections", "--global", "--limit", "1"],
        ("DELETE", "connections/a", None),
        "Closed 1 connection",
        (("connections", [{"name": "a", "vhost": "/"}, {"name": "b", "vhost": "v"}]),),
    ),
    Case(
        ["close_all_user_connections", "bob"],
        ("DELETE", "connections/b", None),
        "Closed 1 connection",
        (("connections", [{"name": "a", "user": "al"}, {"name": "b", "user": "bob"}]),),
    ),
    Case(
        ["import_definitions"],
        ("POST", "definitions", {"users": []}),
        "Imported definitions from standard input",
        stdin='{"users": []}',
    ),
    Case(
        ["-p", "v", "import_definitions", "-"],
        ("POST", "definitions/v", {}),
        "Imported definitions from standard input",
        stdin="{}",
    ),
    Case(["delete_shovel", "s"], ("DELETE", "parameters/shovel/%2F/s", None), 'Deleted shovel "s" in vhost "/"'),
    Case(
        ["delete_lake_table", "t"],
        ("DELETE", "parameters/lake/%2F/t", None),
        'The table "t" in vhost "/" stopped following',
    ),
    Case(
        ["restart_lake_table", "t"],
        ("DELETE", "lake/vhost/%2F/t/restart", None),
        'Restarted the table "t" in vhost "/"',
    ),
    Case(["restart_shovel", "s"], ("DELETE", "shovels/vhost/%2F/s/restart", None), 'Restarted shovel "s" in vhost "/"'),
    Case(["release_links"], ("POST", "warren/links/release", {}), "Links were not held"),
    Case(
        ["restart_federation_link", "1a"],
        ("DELETE", "federation-links/vhost/%2F/1a/n%40h/restart", None),
        "Restarted federation link 1a",
        (("federation-links/%2F", [{"id": "0"}, {"id": "1a", "node": "n@h"}]),),
    ),
    Case(["set_cluster_name", "c"], ("PUT", "cluster-name", {"name": "c"}), 'The cluster is called "c"'),
)


def prepare(api: FakeApi, case: Case) -> None:
    method, path, _ = case.change
    api.answer(method, path.partition("?")[0], case.answer, 200 if case.answer is not None else 204)
    for held_path, value in case.holds:
        api.answer("GET", held_path, value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.line)[:60])
def test_a_change_goes_out_as_the_api_wants_it(api: FakeApi, ctl: Ctl, case: Case) -> None:
    prepare(api, case)
    ended = ctl(*case.line, stdin=case.stdin)
    assert ended == (0, case.said + "\n", "")
    method, path, body = case.change
    assert api.changes() == [(method, "/api/" + path, body)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.line)[:60])
@pytest.mark.parametrize("flags", [["-q"], ["--formatter", "json"]], ids=" ".join)
def test_quiet_changes_say_nothing(api: FakeApi, ctl: Ctl, case: Case, flags: list[str]) -> None:
    prepare(api, case)
    assert ctl(*flags, *case.line, stdin=case.stdin) == (0, "", "")
    assert len(api.changes()) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.line)[:60])
def test_a_refused_change_is_one_line_with_the_reason(api: FakeApi, ctl: Ctl, case: Case) -> None:
    prepare(api, case)
    method, path, _ = case.change
    del api.answers[method, path.partition("?")[0]]
    api.answer(method, path.partition("?")[0], {"error": "bad_request", "reason": "not\ntoday"}, 400)
    assert ctl(*case.line, stdin=case.stdin) == (1, "", "warren ctl: not today\n")


def test_the_reason_of_a_close_is_a_header(api: FakeApi, ctl: Ctl) -> None:
    api.answer("DELETE", "connections/c", None, 204)
    assert ctl("close_connection", "c", "go\r\nX-Evil: 1").exit_code == 0
    assert api.asked[0].headers["X-Reason"] == "go X-Evil: 1"
    assert "X-Evil" not in api.asked[0].headers


def test_a_consumer_that_is_cancelled_is_not_called_closed(api: FakeApi, ctl: Ctl) -> None:
    api.answer("DELETE", "consumers/%2F/c/1/t", None, 204)
    for reason in ((), ("it hangs",)):
        assert ctl("cancel_consumer", "c", "1", "t", *reason).exit_code == 0
    assert [each.headers["X-Reason"] for each in api.asked] == ["Cancelled by warren ctl", "it hangs"]


def test_a_user_who_exists_is_not_overwritten(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "users/bob", USER)
    assert ctl("add_user", "bob", "x") == (1, "", 'warren ctl: user "bob" already exists\n')
    assert api.changes() == []


def test_tracing_does_not_create_a_vhost(api: FakeApi, ctl: Ctl) -> None:
    assert ctl("trace_on", "v") == (5, "", 'warren ctl: not found: vhost "v"\n')
    assert api.changes() == []


def test_a_limit_that_is_not_set_cannot_be_cleared(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "user-limits/bob", [])
    assert ctl("clear_user_limits", "bob", "max-channels").exit_code == 1
    assert ctl("clear_user_limits", "bob").exit_code == 0
    assert api.changes() == []


def test_a_binding_with_other_arguments_is_another_binding(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "bindings/%2F/e/x/q/q", [BINDING])
    assert ctl("unbind", "x", "q", "-k", "k").exit_code == 5
    assert api.changes() == []


def test_connections_that_go_by_themselves_are_not_counted(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "connections", [{"name": "a", "vhost": "/"}, {"name": "b", "vhost": "/"}])
    api.answer("DELETE", "connections/b", None, 204)
    assert ctl("close_all_connections") == (0, "Closed 1 connection\n", "")


@pytest.mark.parametrize(
    "line",
    [
        ["set_policy", "p", "^q", "{"],
        ["set_policy", "p", "^q", "[1]"],
        ["add_user", "", "secret"],
        ["change_password", "", "secret"],
        ["set_user_tags", ""],
        ["close_connection", ""],
        ["cancel_consumer", "c", "x", "t"],
        ["bind", "", "q"],
        ["clear_parameter", "shovel", ""],
        ["set_parameter", "c", "n", "x"],
        ["set_vhost_limits", '{"max-queues": true}'],
        ["set_vhost_limits", '{"max-queues": "5"}'],
        ["declare_queue", "q", "-a", "x"],
        ["declare_queue", "q", "-a", "=1"],
        ["declare_queue", "q", "-a", "x=9223372036854775808"],
        ["declare_queue", "q", "--arguments", "1"],
        ["reset_stream_group", "s", "g"],
        ["reset_stream_group", "s", "g", "2026-13-01"],
        ["stream_offset", "s", "08-00"],
        ["release_drain", "q"],
        ["bind", "x", "q", "--destination-type", "topic"],
        ["publish", "hi", "--file", "x"],
        ["publish", "--file", "/nonexistent/x"],
        ["publish", "hi", "--property", "priority=high"],
        ["publish", "hi", "--property", "priority"],
        ["import_definitions", "/nonexistent/x"],
        ["import_definitions", "-"],
        ["move", "q"],
        ["move", "q", "--to-queue", "a", "--to-exchange", "b"],
        ["copy", "q", "--to-queue", "a", "--with-key", "b"],
        ["get", "q", "--ack-mode", "eat"],
        ["get", "q", "--count", "0"],
        ["add_user", "bob"],
        ["delete_queue"],
        ["delete_queue", "a", "b"],
        ["no_such_command"],
        ["list_queues", "--no-such-option"],
        ["--formatter", "xml", "list_queues"],
        ["-u", "nowhere", "list_queues"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_changes_nothing(api: FakeApi, ctl: Ctl, line: list[str]) -> None:
    ended = ctl(*line)
    assert ended.exit_code == 2
    assert ended.out == ""
    assert ended.err.startswith("warren ctl: ") and ended.err.count("\n") == 1
    assert api.changes() == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-5", -5),
        ("1.5", 1.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"7"', "7"),
        ("lazy", "lazy"),
        ("10s", "10s"),
        ("-", "-"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_values_of_arguments_are_json_where_they_look_like_it(api: FakeApi, ctl: Ctl, text: str, value: object) -> None:
    api.answer("PUT", "queues/%2F/q", None, 204)
    ctl("declare_queue", "q", "-a", f"x={text}")
    assert api.changes()[0][2]["arguments"] == {"x": value}
    assert json.dumps(api.changes()[0][2]["arguments"]["x"]) == json.dumps(value)


def refuse_policy(api: FakeApi, ctl: Ctl, reason: str) -> str:
    api.answers.clear()
    api.answer("PUT", "policies/%2F/p", {"error": "bad_request", "reason": reason}, 400)
    ended = ctl("set_policy", "p", "^q", "{}")
    assert (ended.exit_code, ended.out) == (1, "")
    return ended.err


NOT_KEYS = "are not recognised policy settings"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (f'[{{<<"max-lenght">>,1}}] {NOT_KEYS}; did you mean x?', "no such key: max-lenght; did you mean x?"),
        (f'[{{<<"a">>,[1,#{{<<"x">> => null}}]}},{{<<"b">>,<<"t">>}}] {NOT_KEYS}', "no such key: a, b"),
        ('<<"x">> is not a valid message TTL\nunrecognised', '"x" is not a valid message TTL unrecognised'),
    ],
)
def test_a_refused_policy_is_told_in_plain_words(api: FakeApi, ctl: Ctl, reason: str, said: str) -> None:
    assert refuse_policy(api, ctl, f"Validation failed\n\n{reason}\n") == f'warren ctl: policy "p": {said}\n'
    assert refuse_policy(api, ctl, "no") == "warren ctl: no\n"


@pytest.mark.parametrize("level", ["loud", "", "critical", "debug\n"])
def test_a_level_that_there_is_not_is_wrong_usage(api: FakeApi, ctl: Ctl, level: str) -> None:
    ended = ctl("set_log_level", level)
    assert ended.exit_code == 2 and api.asked == []


def test_a_broker_without_a_level_to_set_says_so(api: FakeApi, ctl: Ctl) -> None:
    said = "warren ctl: not found, or not a Warren broker: warren/log-level\n"
    assert ctl("set_log_level", "debug") == (5, "", said)
