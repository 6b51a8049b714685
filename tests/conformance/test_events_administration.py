"""The event exchange's events of administration and alarms, as RabbitMQ 3.10.8 sends them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from engine_harness import USER, Harness

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import encode_table
from warren.vhosts.metadata import (
    GlobalParameterDelete,
    GlobalParameterPut,
    MetadataChange,
    ParameterDelete,
    ParameterPut,
    PermissionDelete,
    PermissionPut,
    PolicyDelete,
    PolicyPut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
    VhostDelete,
    VhostLimitsDelete,
    VhostLimitsPut,
    VhostPut,
)

from .event_listener import INTERNAL, Event, Listener, by, pid
from .rules import rule
from .typed_table import Typed, text, texts

ADMIN = "admin"
USER_U = UserPut("u", "hash", "rabbit_password_hashing_sha256", ("old",))
POLICY = PolicyPut("v", "p", "^a", "queues", 3, '{"max-length":5,"overflow":"drop-head"}')
SET_POLICY: dict[str, Typed] = {
    "apply-to": text("queues"),
    "priority": ("l", 3),
    "definition": ("F", {"max-length": ("l", 5), "overflow": text("drop-head")}),
    "pattern": text("^a"),
}
OPERATOR_POLICY = PolicyPut("v", "o", "^a", "queues", 3, '{"max-length":5}', True)
SET_OPERATOR_POLICY: dict[str, Typed] = {**SET_POLICY, "definition": ("F", {"max-length": ("l", 5)})}
U = {"name": text("u")}
U_IN_V = {"vhost": text("v"), "user": text("u")}
U_IN_TOPIC = {**U_IN_V, "exchange": text("amq.topic")}
LIMITS: dict[str, Typed] = {"max-connections": ("l", 5), "max-queues": ("l", 3)}


SHOVEL = '{"src-uri":"amqp://","reconnect-delay":5,"dest-uri":["amqp://"],"dest-publish-properties":{"b":[{}],"a":2}}'


def parameter(component: str, name: str, value: dict[str, Typed] | None = None) -> dict[str, Typed]:
    shown: dict[str, Typed] = {"name": text(name), "component": text(component), "vhost": text("v")}
    return shown if value is None else {**shown, "value": ("F", value)}


CHANGES: list[tuple[str, MetadataChange, list[Event]]] = [
    (
        "add a user",
        UserPut("n", "hash", "scrypt", ("a", "b")),
        [("user.created", {"name": text("n")}), ("user.tags.set", {"name": text("n"), "tags": texts("a", "b")})],
    ),
    ("add a user without tags", UserPut("n", "hash", "scrypt"), [("user.created", {"name": text("n")})]),
    ("set tags", dataclasses.replace(USER_U, tags=("x",)), [("user.tags.set", {**U, "tags": texts("x")})]),
    ("clear tags", dataclasses.replace(USER_U, tags=()), [("user.tags.set", {**U, "tags": texts()})]),
    ("set the same", USER_U, []),
    ("change a password", dataclasses.replace(USER_U, password_hash="other"), [("user.password.changed", U)]),
    ("clear a password", dataclasses.replace(USER_U, password_hash=""), [("user.password.cleared", U)]),
    ("delete a user", UserDelete("u"), [("user.deleted", U)]),
    (
        "permit",
        PermissionPut("u", "v", "a.*", "b.*", "c.*"),
        [("permission.created", {**U_IN_V, "configure": text("a.*"), "write": text("b.*"), "read": text("c.*")})],
    ),
    ("forbid", PermissionDelete("u", "v"), [("permission.deleted", U_IN_V)]),
    (
        "permit topics",
        TopicPermissionPut("u", "v", "amq.topic", "w", "r"),
        [
            (
                "topic.permission.created",
                {**U_IN_V, "exchange": text("amq.topic"), "write": text("w"), "read": text("r")},
            )
        ],
    ),
    ("forbid topics", TopicPermissionDelete("u", "v", ""), [("topic.permission.deleted", U_IN_V)]),
    (
        "limit a vhost",
        VhostLimitsPut("v", '{"max-connections":5,"max-queues":3}'),
        [
            (
                "parameter.set",
                parameter("vhost-limits", "limits", LIMITS),
            ),
            (
                "vhost.limits.set",
                {"name": text("limits"), **LIMITS},
            ),
        ],
    ),
    ("limit a vhost as it is", VhostLimitsPut("v", '{"max-queues":10}'), []),
    (
        "unlimit a vhost",
        VhostLimitsDelete("v"),
        [
            ("parameter.cleared", parameter("vhost-limits", "limits")),
            ("vhost.limits.cleared", {"name": text("limits")}),
        ],
    ),
    (
        "limit a user",
        UserLimitsPut("u", '{"max-connections":5}'),
        [("user.limits.set", {"name": text("limits"), "username": text("u"), "max-connections": ("l", 5)})],
    ),
    ("limit a user as it is", UserLimitsPut("u", '{"max-channels":10}'), []),
    (
        "unlimit a user",
        UserLimitsDelete("u"),
        [("user.limits.cleared", {"name": text("limits"), "username": text("u")})],
    ),
    ("set a policy", POLICY, [("policy.set", {**SET_POLICY, "vhost": text("v"), "name": text("p")})]),
    (
        "set an operator policy",
        OPERATOR_POLICY,
        [
            ("parameter.set", parameter("operator_policy", "o", SET_OPERATOR_POLICY)),
            ("policy.set", {**SET_OPERATOR_POLICY, "vhost": text("v"), "name": text("o")}),
        ],
    ),
    (
        "set a parameter",
        ParameterPut("v", "shovel", "s", SHOVEL),
        [
            (
                "parameter.set",
                parameter(
                    "shovel",
                    "s",
                    {
                        "src-uri": text("amqp://"),
                        "reconnect-delay": ("l", 5),
                        "dest-uri": texts("amqp://"),
                        "dest-publish-properties": text('#{<<"a">> => 2,<<"b">> => [#{}]}'),
                    },
                ),
            )
        ],
    ),
    ("set a parameter to what it is", ParameterPut("v", "shovel", "old", ' {"a" : 1, "b":[1]}'), []),
    (
        "clear a parameter",
        ParameterDelete("v", "shovel", "old"),
        [("parameter.cleared", parameter("shovel", "old"))],
    ),
    ("clear no parameter", ParameterDelete("v", "shovel", "s"), []),
    (
        "set a global parameter",
        GlobalParameterPut("g", '[{"b":null,"a":"\\u00e9"},1,"t",[2,[]],false]'),
        [
            (
                "parameter.set",
                {
                    "name": text("g"),
                    "component": text("global"),
                    "value": (
                        "A",
                        [
                            text('#{<<"a">> => <<"\u00e9">>,<<"b">> => null}'),
                            ("l", 1),
                            text("t"),
                            ("A", [("l", 2), ("A", [])]),
                            ("t", False),
                        ],
                    ),
                },
            )
        ],
    ),
    (
        "set a global parameter to nothing",
        GlobalParameterPut("old", "null"),
        [("parameter.set", {"name": text("old"), "component": text("global"), "value": text("null")})],
    ),
    (
        "set a global parameter to an empty object",
        GlobalParameterPut("old", "{}"),
        [("parameter.set", {"name": text("old"), "component": text("global"), "value": texts()})],
    ),
    ("set a global parameter to what it is", GlobalParameterPut("old", "1"), []),
    ("clear no global parameter", GlobalParameterDelete("g"), []),
    ("clear no policy", PolicyDelete("v", "p"), []),
    ("clear no operator policy", PolicyDelete("v", "o", True), []),
]


@pytest.fixture
def peopled(harness: Harness, listener: Listener) -> Listener:
    """A listener on a broker with vhost v and user u, both limited, a component and two parameters."""
    harness.broker.parameters.validators["shovel"] = lambda vhost, name, value, by: (
        [] if name != "bad" else ["bad name"]
    )
    for change in (
        VhostPut("v"),
        USER_U,
        VhostLimitsPut("v", '{"max-queues":10}'),
        UserLimitsPut("u", '{"max-channels":10}'),
        ParameterPut("v", "shovel", "old", '{"b":[1],"a":1}'),
        GlobalParameterPut("old", "1"),
    ):
        harness.broker.administer(change)
    listener.take()
    return listener


@rule("rabbitmq.event.administration", "Administrative changes are told, with who made them.")
@pytest.mark.parametrize(("change", "events"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_administrative_changes_are_told(peopled: Listener, change: MetadataChange, events: list[Event]) -> None:
    peopled.harness.broker.administer(change, ADMIN)
    assert peopled.take() == [(key, {**by(ADMIN), **headers}) for key, headers in events]


@rule(
    "rabbitmq.event.administration",
    "That a user lost the permission for the topics of one exchange is told as that.",
    deviation="RabbitMQ 3.10 says permission.deleted, which means all permissions in the vhost.",
)
def test_a_lost_topic_permission_is_told_as_such(peopled: Listener) -> None:
    peopled.harness.broker.administer(TopicPermissionDelete("u", "v", "amq.topic"), ADMIN)
    headers = peopled.one("topic.permission.deleted")
    assert headers == {**by(ADMIN), **U_IN_TOPIC}


@rule(
    "rabbitmq.event.parameter",
    "That a global parameter was cleared is told as that.",
    deviation="RabbitMQ says parameter.set, without a value.",
)
def test_a_cleared_global_parameter_is_told_as_such(peopled: Listener) -> None:
    peopled.harness.broker.administer(GlobalParameterDelete("old"), ADMIN)
    headers = peopled.one("parameter.cleared")
    assert headers == {**by(ADMIN), "name": text("old"), "component": text("global")}


@rule("rabbitmq.event.parameter", "Limits and operator policies that are set as parameters are told as what they are.")
def test_parameters_that_are_something_else_are_told_once(peopled: Listener) -> None:
    value = '{"pattern":"^a","apply-to":"queues","priority":3,"definition":{"max-length":5}}'
    for change in (
        ParameterPut("v", "vhost-limits", "limits", '{"max-queues":3}'),
        ParameterPut("v", "operator_policy", "o", value),
    ):
        peopled.harness.broker.administer(change, ADMIN)
    assert peopled.take() == [
        ("parameter.set", {**by(ADMIN), **parameter("vhost-limits", "limits", {"max-queues": ("l", 3)})}),
        ("vhost.limits.set", {**by(ADMIN), "name": text("limits"), "max-queues": ("l", 3)}),
        ("parameter.set", {**by(ADMIN), **parameter("operator_policy", "o", SET_OPERATOR_POLICY)}),
        ("policy.set", {**by(ADMIN), **SET_OPERATOR_POLICY, "vhost": text("v"), "name": text("o")}),
    ]


@rule("rabbitmq.event.administration", "What is refused is not told.")
@pytest.mark.parametrize(
    "change",
    [
        PolicyPut("v", "p", "^a", "queues", 0, "not json"),
        PolicyPut("v", "p", "^a", "queues", 0, '{"max-length":-5}'),
        PolicyPut("v", "p", "(", "queues", 0, '{"max-length":5}'),
        PolicyPut("nix", "p", "^a", "queues", 0, '{"max-length":5}'),
        VhostLimitsPut("v", '{"max-queues":"x"}'),
        VhostLimitsPut("v", "[]"),
        VhostLimitsPut("nix", "{}"),
        UserLimitsPut("nobody", "{}"),
        UserLimitsPut("u", "x"),
        PermissionPut("u", "nix", "", "", ""),
        PermissionPut("u", "v", "(", "", ""),
        ParameterPut("nix", "shovel", "s", "{}"),
        ParameterPut("v", "nosuch", "s", "{}"),
        ParameterPut("v", "shovel", "bad", "{}"),
        ParameterPut("v", "shovel", "s", "{"),
        ParameterPut("v", "policy", "p", "{}"),
        GlobalParameterPut("g", "x"),
        GlobalParameterPut("cluster_name", "5"),
    ],
)
def test_refused_changes_are_not_told(peopled: Listener, change: MetadataChange) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        peopled.harness.broker.administer(change, ADMIN)
    assert peopled.take() == []


@rule("rabbitmq.event.administration", "That a login has replaced the hash of a password by a better one is not told.")
def test_upgraded_hashes_are_not_told(peopled: Listener) -> None:
    upgraded = dataclasses.replace(USER_U, password_hash="better", hashing_algorithm="scrypt")
    peopled.harness.broker.administer(upgraded)
    assert peopled.take() == []
    peopled.harness.broker.administer(dataclasses.replace(upgraded, password_hash="other"), ADMIN)
    assert peopled.keys() == ["user.password.changed"]


@rule("rabbitmq.event.vhost", "A new vhost is told, after its exchanges.")
def test_new_vhosts_are_told(listener: Listener, harness: Harness) -> None:
    for _ in range(2):
        harness.broker.administer(VhostPut("v", "d", ("a-b", "b"), "quorum"), ADMIN)
    events = listener.take()
    created = [headers["name"][1] for key, headers in events if key == "exchange.created"]
    assert set(created) == set(harness.broker.vhosts["v"].exchanges)
    assert len(events) == len(created) + 1
    for key, headers in events[:-1]:
        exchange = harness.broker.vhosts["v"].exchanges[headers["name"][1]]
        assert key == "exchange.created"
        assert headers == {
            **by(ADMIN),
            "policy": text(""),
            "arguments": texts(),
            "internal": ("t", exchange.internal),
            "auto_delete": ("t", False),
            "durable": ("t", True),
            "type": text(exchange.type_name),
            "name": text(exchange.name),
            "vhost": text("v"),
        }
    assert events[-1] == (
        "vhost.created",
        {
            **by(ADMIN),
            "tags": texts("a-b", "b"),
            "description": text("d"),
            "cluster_state": ("F", {"rabbit@localhost": text("running")}),
            "tracing": ("t", False),
            "metadata": text('#{default_queue_type => <<"quorum">>,description => <<"d">>,tags => [\'a-b\',b]}'),
            "default_queue_type": text("quorum"),
            "name": text("v"),
        },
    )


@rule("rabbitmq.event.vhost", "A vhost that gets another description, tags or default is told.")
def test_updated_vhosts_are_told(peopled: Listener) -> None:
    peopled.harness.broker.trace("v", True)
    for _ in range(2):
        peopled.harness.broker.administer(VhostPut("v", tags=("it's",), protected_from_deletion=True), ADMIN)
    assert peopled.one("vhost.updated") == {
        **by(ADMIN),
        "tags": texts("it's"),
        "description": text(""),
        "cluster_state": ("F", {"rabbit@localhost": text("running")}),
        "tracing": ("t", True),
        "metadata": text("#{description => <<>>,protected_from_deletion => true,tags => ['it\\'s']}"),
        "default_queue_type": text("undefined"),
        "name": text("v"),
    }


@rule("rabbitmq.event.vhost", "What an administrator has set in a vhost is told to go with it, permissions first.")
def test_what_goes_with_a_vhost_is_told(peopled: Listener) -> None:
    broker = peopled.harness.broker
    for change in (
        PermissionPut("u", "v", "", "", ""),
        TopicPermissionPut("u", "v", "amq.topic", "", ""),
        TopicPermissionPut("u", "v", "other", "", ""),
        POLICY,
        OPERATOR_POLICY,
    ):
        broker.administer(change)
    exchanges = len(broker.vhosts["v"].exchanges)
    peopled.take()
    broker.administer(VhostDelete("v"), ADMIN)
    events = peopled.take()
    assert [key for key, _ in events[2:-7]] == ["exchange.deleted"] * exchanges
    in_v = {"vhost": text("v")}
    assert events[:2] + events[-7:] == [
        (key, {**by(ADMIN), **headers})
        for key, headers in (
            ("permission.deleted", U_IN_V),
            ("topic.permission.deleted", U_IN_V),
            ("vhost.deleted", {"name": text("v")}),
            ("parameter.cleared", parameter("shovel", "old")),
            ("parameter.cleared", parameter("vhost-limits", "limits")),
            ("vhost.limits.cleared", {"name": text("limits")}),
            ("parameter.cleared", parameter("operator_policy", "o")),
            ("operator.policy.cleared", {**in_v, "name": text("o")}),
            ("policy.cleared", {**in_v, "name": text("p")}),
        )
    ]


@rule("rabbitmq.event.vhost", "A vhost that is deleted is told, after everything in it, once each.")
def test_deleted_vhosts_are_told(listener: Listener, harness: Harness) -> None:
    harness.broker.administer(VhostPut("v"))
    harness.permit(USER, vhost="v")
    client = harness.client(vhost="v")
    client.open(1)
    client.declare("own", exclusive=True)
    client.declare("q", durable=True)
    exchanges = list(harness.broker.vhosts["v"].exchanges)
    listener.take()
    harness.broker.administer(VhostDelete("v"), ADMIN)
    harness.broker.administer(VhostDelete("v"), ADMIN)
    assert listener.named() == [
        ("channel.closed", pid(client.connection, 1)[1], USER),
        ("queue.deleted", "own", INTERNAL),
        ("queue.deleted", "q", ADMIN),
        *(("exchange.deleted", name, ADMIN) for name in exchanges),
        ("vhost.deleted", "v", ADMIN),
    ]


@rule("rabbitmq.event.policy", "Each queue that comes under another policy, or under none, is told.")
def test_queues_under_policies_are_told(peopled: Listener, harness: Harness) -> None:
    vhost = harness.broker.vhosts["v"]
    quorum = encode_table({"x-queue-type": "quorum"})
    vhost.declare_queue(QueueDeclaration("a1", durable=True))
    vhost.declare_queue(QueueDeclaration("a2", durable=True, arguments=quorum))
    vhost.declare_queue(QueueDeclaration("b", durable=True))
    peopled.take()
    queues = {"a1": "rabbit_classic_queue", "a2": "rabbit_quorum_queue"}

    def told(key: str, headers: dict[str, Typed]) -> list[Event]:
        who = {**by(ADMIN), "vhost": text("v")}
        return [(key, {**headers, **who, "type": text(kind), "name": text(name)}) for name, kind in queues.items()]

    policy = dataclasses.replace(POLICY, definition='{"max-length":5}')
    for _ in range(2):
        harness.broker.administer(policy, ADMIN)
    events = peopled.take()
    shown = SET_OPERATOR_POLICY
    assert events[:-1] == told("queue.policy.updated", shown)
    assert events[-1] == ("policy.set", {**shown, **by(ADMIN), "vhost": text("v"), "name": text("p")})

    harness.broker.administer(OPERATOR_POLICY, ADMIN)
    events = peopled.take()
    assert events[0][0] == "parameter.set"
    assert events[1:-1] == told("queue.policy.updated", shown)
    assert events[-1][0] == "policy.set"

    harness.broker.administer(PolicyDelete("v", "o", True), ADMIN)
    assert peopled.take() == [
        ("parameter.cleared", {**by(ADMIN), **parameter("operator_policy", "o")}),
        *told("queue.policy.cleared", {}),
        ("operator.policy.cleared", {**by(ADMIN), "vhost": text("v"), "name": text("o")}),
    ]
    harness.broker.administer(PolicyDelete("v", "p"), ADMIN)
    assert peopled.take() == [
        *told("queue.policy.cleared", {}),
        ("policy.cleared", {**by(ADMIN), "vhost": text("v"), "name": text("p")}),
    ]


@rule("rabbitmq.event.alarm", "An alarm that begins or ends is told.")
@pytest.mark.parametrize("resource", ["memory", "disk"])
def test_alarms_are_told(listener: Listener, harness: Harness, resource: str) -> None:
    for short, key in ((True, "alarm.set"), (False, "alarm.cleared")):
        for _ in range(2):
            harness.broker.set_alarm(resource, short)
        assert listener.one(key) == {"node": text("rabbit@localhost"), "source": text(resource)}


@rule("rabbitmq.event.administration", "Other parts of the broker tell what is theirs in the same way.")
def test_anything_can_be_told(listener: Listener, harness: Harness) -> None:
    headers: dict[str, Any] = {"s": "t", "n": 1, "f": 0.5, "l": [1, True, None], "o": {"k": {}}, "huge": 1 << 63}
    harness.broker.emit("shovel.worker.status", {**headers, "f": True})
    assert listener.one("shovel.worker.status") == {
        "s": text("t"),
        "n": ("l", 1),
        "f": ("t", True),
        "l": ("A", [("l", 1), ("t", True), ("V", None)]),
        "o": ("F", {"k": ("F", {})}),
        "huge": text(str(1 << 63)),
    }


@rule("abuse.event.arguments", "An event that is too large or too deep goes without what makes it so.")
@pytest.mark.parametrize("value", ["x" * 70000, [[]] * 5000, {"k": "x" * 70000}])
def test_impossible_events_are_made_smaller(listener: Listener, harness: Harness, value: object) -> None:
    harness.broker.emit("parameter.set", {"name": "p", "value": value})
    assert listener.one("parameter.set") == {"name": text("p")}
