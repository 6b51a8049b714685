"""The plan of an import of definitions, and its results. Numbers are those of `server/definitions/plan.py`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from following_sql import take_durable_changes
from memory_store import MemoryStore

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE, decode_table
from warren.channels.broker import Broker, Limits
from warren.server.definitions.apply import apply_plan
from warren.server.definitions.plan import ImportPlan, make_plan
from warren.server.definitions.schema import DefinitionsRefused
from warren.server.logins.passwords import PasswordHash, hash_password, hash_password_for_rabbitmq, verify_password
from warren.vhosts.metadata import (
    BindingPut,
    ExchangePut,
    GlobalParameterPut,
    PermissionPut,
    PolicyPut,
    QueuePut,
    UserLimitsPut,
    UserPut,
    VhostLimitsPut,
    VhostPut,
)

from .planning import (
    ADMIN,
    HASH,
    OTHER_HASH,
    SHA256,
    Document,
    apply,
    binding,
    broker_with,
    exchange,
    journalled,
    plan,
    problems,
    queue,
    read,
    shown,
)

EVERYTHING: Document = {
    "bindings": [binding("x", "q", "key"), binding("x", "y", destination_type="exchange"), binding("amq.topic", "q")],
    "queues": [queue("q", arguments={"x-max-length": 5})],
    "exchanges": [exchange("x"), exchange("y", "fanout")],
    "policies": [{"vhost": "v", "name": "p", "pattern": "^q", "definition": {"expires": 60000}, "apply-to": "queues"}],
    "parameters": [
        {"vhost": "v", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 1}},
        {
            "vhost": "v",
            "component": "operator_policy",
            "name": "o",
            "value": {"pattern": "", "definition": {"max-length": 1}},
        },
    ],
    "global_parameters": [{"name": "cluster_name", "value": "burrow"}],
    "topic_permissions": [{"user": "u", "vhost": "v", "exchange": "amq.topic", "write": "a", "read": "b"}],
    "permissions": [{"user": "u", "vhost": "v", "configure": "c", "write": "w", "read": "r"}],
    "vhosts": [{"name": "v", "description": "d", "tags": ["t"]}],
    "users": [{"name": "u", "password_hash": HASH, "tags": "monitoring", "limits": {"max-channels": 3}}],
}


def actions(planned: ImportPlan, kind: str | None = None) -> list[str]:
    return [change.action for change in planned.changes if kind in (None, change.kind)]


def of_vhost(broker: Broker, document: Document, **options: Any) -> ImportPlan:
    return plan(broker, document, "/", **options)


# --- what is planned, and done ----------------------------------------------------------------------------------------


def test_everything_is_created_in_an_order_in_which_it_can_be() -> None:
    broker = broker_with()
    document = {**EVERYTHING}
    for section in ("queues", "exchanges", "bindings"):
        document[section] = [{**item, "vhost": "v"} for item in EVERYTHING[section]]
    planned = apply(broker, plan(broker, document))
    assert shown(planned) == [
        ("create", "user", "u"),
        ("create", "user_limits", "u"),
        ("create", "vhost", "v"),
        ("create", "permission", "u"),
        ("create", "permission", ADMIN),
        ("create", "topic_permission", "u, amq.topic"),
        ("create", "global_parameter", "cluster_name"),
        ("create", "vhost_limits", "v"),
        ("create", "operator_policy", "o"),
        ("create", "policy", "p"),
        ("create", "exchange", "x"),
        ("create", "exchange", "y"),
        ("create", "queue", "q"),
        ("create", "binding", "x -> q (key)"),
        ("create", "binding", "x -> y"),
        ("create", "binding", "amq.topic -> q"),
    ]
    assert broker.access.users["u"] == UserPut("u", HASH, SHA256, ("monitoring",))
    assert broker.access.usage("u").limits == {"max-channels": 3}
    vhost = broker.vhosts["v"]
    assert vhost.record == VhostPut("v", "d", ("t",))
    assert vhost.limits == {"max-queues": 1}
    assert broker.cluster_name() == "burrow"
    assert vhost.queues["q"].rules.expires_ms == 60000
    assert vhost.queues["q"].rules.max_length == 1
    assert decode_table(vhost.queues["q"].arguments) == {"x-max-length": 5}
    assert vhost.exchanges["y"].type_name == "fanout"
    assert sorted((each.source.name, each.destination.name, each.routing_key) for each in vhost.bindings()) == [
        ("amq.topic", "q", ""),
        ("x", "q", "key"),
        ("x", "y", ""),
    ]
    again = plan(broker, document)
    assert set(actions(again)) == {"same"}
    assert len(again.changes) == len(planned.changes) - 1  # the permission of the vhost's creator is not in the file
    assert apply(broker, again).conflicts() == []


def test_importing_adds_and_deletes_nothing() -> None:
    broker = broker_with()
    apply(broker, of_vhost(broker, {"queues": [queue("old")], "exchanges": [exchange("x")]}))
    apply(broker, of_vhost(broker, {"queues": [queue("new")]}))
    assert set(broker.vhosts["/"].queues) == {"old", "new"}
    assert "x" in broker.vhosts["/"].exchanges


def test_what_differs_under_the_same_name_is_replaced_and_the_difference_named() -> None:
    broker = broker_with()
    broker.administer(UserPut("u", HASH, SHA256, ("management",)))
    broker.administer(UserLimitsPut("u", '{"max-channels":1}'))
    broker.administer(PermissionPut("u", "/", "a", "b", "c"))
    broker.administer(PolicyPut("/", "p", "x", "all", 0, '{"max-length":1}'))
    broker.administer(VhostLimitsPut("/", '{"max-queues":1}'))
    broker.administer(GlobalParameterPut("g", "[1]"))
    planned = plan(
        broker,
        {
            "users": [{"name": "u", "password_hash": OTHER_HASH, "tags": [], "limits": {"max-channels": 2}}],
            "vhosts": [{"name": "/", "description": "new", "limits": {"max-queues": 2}}],
            "permissions": [{"user": "u", "vhost": "/", "configure": "a", "write": "B", "read": "c"}],
            "policies": [
                {"vhost": "/", "name": "p", "pattern": "y", "definition": {"max-length": 2}, "apply-to": "all"}
            ],
            "global_parameters": [{"name": "g", "value": [2]}],
        },
    )
    assert [(change.action, change.kind, change.detail) for change in planned.changes] == [
        ("update", "user", "password, tags"),
        ("update", "user_limits", "value"),
        ("update", "vhost", "description"),
        ("update", "vhost_limits", "value"),
        ("update", "permission", "write"),
        ("update", "global_parameter", "value"),
        ("update", "policy", "pattern, definition"),
    ]
    apply(broker, planned)
    assert broker.access.users["u"].password_hash == OTHER_HASH
    assert broker.access.usage("u").limits == {"max-channels": 2}
    assert broker.vhosts["/"].limits == {"max-queues": 2}
    assert broker.vhosts["/"].record.description == "new"
    assert broker.vhosts["/"].policies.policies["p"].definition == {"max-length": 2}


def test_what_a_file_does_not_say_of_a_vhost_stays() -> None:
    broker = broker_with()
    record = VhostPut("/", "kept", ("t",), "quorum", True)
    broker.administer(record)
    assert actions(plan(broker, {"vhosts": [{"name": "/"}]})) == ["same"]
    apply(broker, plan(broker, {"vhosts": [{"name": "/", "metadata": {"protected_from_deletion": False}}]}))
    assert broker.vhosts["/"].record == VhostPut("/", "kept", ("t",), "quorum", False)


def test_of_two_items_for_the_same_thing_the_later_counts() -> None:
    broker = broker_with()
    users = [{"name": "u", "tags": "a"}, {"name": "u", "tags": "b"}, {"name": "u", "tags": "b"}]
    planned = apply(broker, plan(broker, {"users": users}))
    assert actions(planned) == ["create", "update", "same"]
    assert broker.access.users["u"].tags == ("b",)


def test_a_queue_declared_in_two_ways_is_a_mistake() -> None:
    broker = broker_with()
    assert actions(of_vhost(broker, {"queues": [queue("q"), queue("q")]})) == ["create"]
    (problem,) = problems(broker, {"queues": [queue("q"), queue("q", durable=False)]})
    assert problem == "queues[1] 'q': the file declares the queue twice, with different properties"
    (problem,) = problems(broker, {"exchanges": [exchange("x"), exchange("x", "topic")]})
    assert "exchange twice" in problem


def test_names_of_the_broker_are_skipped_with_what_is_bound_to_them() -> None:
    planned = plan(
        broker_with(),
        {
            "exchanges": [exchange(""), exchange("amq.rabbitmq.log", "topic", internal=True)],
            "queues": [queue("amq.gen-1"), queue("mine", exclusive=True)],
            "bindings": [binding("amq.topic", "amq.gen-1"), binding("", "q", "q"), binding("amq.topic", "mine")],
            "global_parameters": [{"name": "internal_cluster_id", "value": "x"}],
        },
    )
    assert actions(planned) == ["skip"] * 8


# --- users ------------------------------------------------------------------------------------------------------------


def test_a_password_in_plain_text_is_hashed_and_one_that_fits_already_stays() -> None:
    broker = broker_with()
    document = {"users": [{"name": "u", "password": "secret", "tags": []}]}
    planned = apply(broker, plan(broker, document))
    record = broker.access.users["u"]
    assert verify_password(b"secret", PasswordHash(record.password_hash, record.hashing_algorithm))
    assert "secret" not in repr(planned)
    assert actions(plan(broker, document)) == ["same"]


@pytest.mark.parametrize(
    ("version", "algorithm"), [("3.5.7", "md5"), ("3.6.1", "sha256"), ("4.2.0", "sha256"), ("", "sha256")]
)
def test_hashes_of_old_files_are_md5(version: str, algorithm: str) -> None:
    broker = broker_with()
    apply(broker, plan(broker, {"rabbit_version": version, "users": [{"name": "u", "password_hash": HASH}]}))
    assert broker.access.users["u"].hashing_algorithm == f"rabbit_password_hashing_{algorithm}"


def test_another_hash_of_the_password_that_the_importer_logged_in_with_is_not_a_conflict() -> None:
    broker = broker_with()
    other_hash = hash_password_for_rabbitmq(b"secret", SHA256).text
    document = {"users": [{"name": ADMIN, "password_hash": other_hash, "tags": "administrator"}]}
    assert actions(plan(broker, document, password=b"secret")) == ["same"]
    assert actions(plan(broker, document, password=b"another")) == ["conflict"]
    assert actions(plan(broker, document)) == ["conflict"], "the password is not known"


@pytest.mark.parametrize(
    "item",
    [
        {"name": ADMIN, "password_hash": OTHER_HASH, "tags": "administrator"},
        {"name": ADMIN, "password_hash": HASH, "tags": "management"},
        {"name": ADMIN, "tags": ["administrator"]},
    ],
)
def test_who_imports_keeps_access_unless_that_was_asked_for(item: Document) -> None:
    broker = broker_with()
    document = {"users": [item, {"name": "other", "tags": []}]}
    planned = apply(broker, plan(broker, document))
    assert actions(planned) == ["conflict", "create"]
    assert planned.conflicts()[0].detail.startswith("the user who imports would lose access: ")
    assert broker.access.users[ADMIN] == UserPut(ADMIN, HASH, SHA256, ("administrator",))
    assert actions(plan(broker, document, by="other")) == ["update", "same"]
    apply(broker, plan(broker, document, overwrite_own=True))
    assert broker.access.users[ADMIN].tags == (("management",) if item["tags"] == "management" else ("administrator",))


def test_who_imports_may_get_more_tags() -> None:
    broker = broker_with()
    apply(broker, plan(broker, {"users": [{"name": ADMIN, "password_hash": HASH, "tags": "administrator,more"}]}))
    assert broker.access.users[ADMIN].tags == ("administrator", "more")


def test_permissions_of_who_imports_stay_unless_that_was_asked_for() -> None:
    broker = broker_with()
    document = {"permissions": [{"user": ADMIN, "vhost": "/", "configure": "", "write": "", "read": ""}]}
    assert actions(plan(broker, document)) == ["conflict"]
    assert actions(plan(broker, document, overwrite_own=True)) == ["update"]
    assert actions(plan(broker, document, by="")) == ["update"]


def own_permission(vhost: str = "/", **patterns: str) -> Document:
    return {"user": ADMIN, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"} | patterns


def test_who_imports_is_granted_what_a_file_adds_to_their_permissions() -> None:
    broker = broker_with()
    broker.administer(PermissionPut(ADMIN, "/", "^mine", "^$", ".*"))
    document = {
        "vhosts": [{"name": "new"}],
        "permissions": [own_permission(configure="^mine"), own_permission("new", write="^x")],
        "topic_permissions": [{"user": ADMIN, "vhost": "new", "exchange": "e", "write": "^a", "read": "^b"}],
    }
    planned = apply(broker, plan(broker, document))
    assert actions(planned) == ["create", "update", "create", "create"]
    assert broker.access.permissions[ADMIN, "/"] == PermissionPut(ADMIN, "/", "^mine", ".*", ".*")
    assert broker.access.permissions[ADMIN, "new"] == PermissionPut(ADMIN, "new", ".*", "^x", ".*")


def test_who_makes_a_vhost_by_an_import_may_enter_it() -> None:
    broker = broker_with()
    document = {"vhosts": [{"name": "new"}, {"name": "/"}]}
    planned = apply(broker, plan(broker, document))
    assert shown(planned) == [("create", "vhost", "new"), ("same", "vhost", "/"), ("create", "permission", ADMIN)]
    assert broker.access.permissions[ADMIN, "new"] == PermissionPut(ADMIN, "new", ".*", ".*", ".*")
    assert actions(plan(broker, {"vhosts": [{"name": "more"}]}, by="")) == ["create"]
    assert actions(plan(broker, document)) == ["same", "same"]


def test_a_parameter_may_use_a_vhost_of_the_same_file() -> None:
    broker = broker_with()
    asked: list[str] = []

    def connects(vhost: str, name: str, value: Any, by: str) -> list[str]:
        asked.append(by)
        return [] if by == "" or broker.access.maybe_principal(by, value) is not None else ["no permission"]

    broker.parameters.validators["link"] = connects
    broker.restore(UserPut("guest", HASH, SHA256, ("management",)))
    document = {
        "vhosts": [{"name": "new"}],
        "permissions": [own_permission("new", read="^x")],
        "parameters": [{"vhost": "new", "component": "link", "name": "l", "value": "new"}],
    }
    planned = apply(broker, plan(broker, document))
    assert actions(planned) == ["create"] * 3 and set(asked) == {""}
    assert broker.parameters.maybe_parameter("new", "link", "l") is not None
    # For others their own permissions are asked for.
    parameter = document["parameters"][0] | {"name": "m"}
    with pytest.raises(DefinitionsRefused):
        plan(broker, {"parameters": [parameter]}, by="guest")


@pytest.mark.parametrize("pattern", ["^mine", "^$", "", "x|.*"])
def test_a_pattern_that_may_be_narrower_takes_permissions_away(pattern: str) -> None:
    broker = broker_with()
    broker.administer(PermissionPut(ADMIN, "/", ".*", ".*", ".*"))
    planned = plan(broker, {"permissions": [own_permission(read=pattern)]})
    assert [change.detail for change in planned.conflicts()] == ["the user who imports would lose permissions: read"]


def test_a_first_topic_permission_takes_away_all_other_topics() -> None:
    broker = broker_with()
    broker.administer(PermissionPut(ADMIN, "/", ".*", ".*", ".*"))
    topics = {"user": ADMIN, "vhost": "/", "exchange": "e", "write": ".*", "read": ".*"}
    assert actions(plan(broker, {"topic_permissions": [topics]})) == ["create"]
    document = {"topic_permissions": [topics | {"write": "^a"}]}
    planned = plan(broker, document)
    assert [change.detail for change in planned.conflicts()] == ["the user who imports would lose permissions: write"]
    assert actions(plan(broker, document, overwrite_own=True)) == ["create"]
    assert actions(plan(broker, document, by="somebody")) == ["create"]


def test_a_protected_user_stays_unless_that_was_asked_for() -> None:
    broker = broker_with()
    broker.administer(UserPut("safe", HASH, SHA256, ("protected",)))
    document = {"users": [{"name": "safe", "password_hash": OTHER_HASH, "tags": ["protected"]}]}
    planned = plan(broker, document)
    assert [change.detail for change in planned.conflicts()] == ["the user is protected: password"]
    assert actions(plan(broker, document, overwrite_own=True)) == ["update"]


# --- conflicts --------------------------------------------------------------------------------------------------------


def test_what_exists_with_other_properties_stays_and_is_told_and_the_rest_is_imported() -> None:
    broker = broker_with()
    document = {
        "exchanges": [exchange("x", "fanout")],
        "queues": [queue("q", arguments={"x-max-length": 1}), queue("t")],
    }
    apply(broker, of_vhost(broker, document))
    planned = apply(
        broker,
        of_vhost(
            broker,
            {
                "exchanges": [exchange("x", "topic")],
                "queues": [queue("q", arguments={"x-max-length": 2}), queue("t", durable=False), queue("new")],
                "bindings": [binding("x", "new", "key"), binding("x", "new", "#.#.#.#")],
            },
        ),
    )
    assert [(change.action, change.kind, change.detail.partition(" for ")[0]) for change in planned.changes] == [
        ("conflict", "exchange", "inequivalent arg 'type'"),
        ("conflict", "queue", "inequivalent arg 'x-max-length'"),
        ("conflict", "queue", "inequivalent arg 'durable'"),
        ("create", "queue", ""),
        ("create", "binding", ""),
        ("create", "binding", ""),
    ]
    assert broker.vhosts["/"].exchanges["x"].type_name == "fanout"
    assert decode_table(broker.vhosts["/"].queues["q"].arguments) == {"x-max-length": 1}
    assert len(broker.vhosts["/"].exchanges["x"].bindings) == 2


def test_a_binding_that_the_other_exchange_refuses_is_a_conflict() -> None:
    broker = broker_with()
    apply(broker, of_vhost(broker, {"exchanges": [exchange("x", "topic")], "queues": [queue("q")]}))
    document = {"exchanges": [exchange("x")], "bindings": [binding("x", "q", "#.#.#")]}
    assert actions(of_vhost(broker, document)) == ["conflict", "conflict"]
    (problem,) = problems(broker, {"bindings": document["bindings"]})
    assert "bindings[0] 'x -> q'" in problem


def test_a_binding_whose_end_is_missing_is_a_conflict() -> None:
    document = {"queues": [queue("q")], "bindings": [binding("nowhere", "q"), binding("amq.topic", "nothing")]}
    planned = of_vhost(broker_with(), document)
    assert [change.detail for change in planned.conflicts()] == [
        "no exchange 'nowhere' in vhost '/'",
        "no queue 'nothing' in vhost '/'",
    ]


def test_a_queue_of_a_connection_is_a_conflict() -> None:
    broker = broker_with()
    broker.vhosts["/"].declare_queue(QueueDeclaration("q", durable=False, exclusive=True), connection=object())
    planned = of_vhost(broker, {"queues": [queue("q")], "bindings": [binding("amq.fanout", "q")]})
    assert actions(planned) == ["conflict", "conflict"]


@pytest.mark.parametrize("tag", [b"I\x00\x00\x00\x05", b"b\x05", b"l" + bytes(7) + b"\x05"])
def test_a_binding_is_the_same_whatever_the_width_of_its_integers(tag: bytes) -> None:
    broker = broker_with()
    vhost = broker.vhosts["/"]
    vhost.declare_queue(QueueDeclaration("q", durable=True))
    body = b"\x01n" + tag
    vhost.bind(vhost.exchanges["amq.headers"], vhost.queues["q"], "k", len(body).to_bytes(4, "big") + body)
    same = binding("amq.headers", "q", "k", arguments={"n": 5})
    assert actions(of_vhost(broker, {"bindings": [same]})) == ["same"]
    assert actions(of_vhost(broker, {"bindings": [{**same, "arguments": {"n": 6}}]})) == ["create"]


# --- types and limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "item", "arguments"),
    [
        ("", {}, {}),
        ("", {"type": "classic"}, {}),
        ("", {"type": "quorum"}, {"x-queue-type": "quorum"}),
        ("quorum", {}, {"x-queue-type": "quorum"}),
        ("quorum", {"type": "classic"}, {"x-queue-type": "classic"}),
        ("quorum", {"durable": False}, {}),
        ("classic", {"type": "quorum"}, {"x-queue-type": "quorum"}),
        ("classic", {"type": "quorum", "arguments": {"x-queue-type": "quorum"}}, {"x-queue-type": "quorum"}),
        ("stream", {}, {"x-queue-type": "stream"}),
        ("classic", {"type": "stream"}, {"x-queue-type": "stream"}),
        ("undefined", {}, {}),
    ],
)
def test_a_queue_gets_the_type_that_it_names_or_that_of_its_vhost(
    default: str, item: Document, arguments: Document
) -> None:
    broker = broker_with()
    document = {
        "vhosts": [{"name": "v", "metadata": {"default_queue_type": default}}],
        "queues": [queue("q", "v", **item)],
    }
    apply(broker, plan(broker, document))
    assert decode_table(broker.vhosts["v"].queues["q"].arguments) == arguments
    assert actions(plan(broker, document), "queue") == ["same"]


def test_a_limit_that_holds_binds_the_queues_of_a_file_and_one_in_the_file_does_not() -> None:
    broker = broker_with()
    broker.administer(VhostLimitsPut("/", '{"max-queues":2}'))
    two = {"queues": [queue("a"), queue("b")]}
    three = {"queues": [*two["queues"], queue("c")]}
    assert problems(broker, three) == ["queues[2] 'c': queue limit in vhost '/' (2) is reached"]
    apply(broker, plan(broker, two))
    assert problems(broker, three) == ["queues[2] 'c': queue limit in vhost '/' (2) is reached"]
    limits = [{"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 1}}]
    assert actions(plan(broker, {**three, "parameters": limits}), "queue") == ["same", "same", "create"]


def test_the_limits_of_the_broker_bind_a_file() -> None:
    limits = Limits()
    limits.queues_per_vhost_max = 1
    limits.exchanges_per_vhost_max = len(broker_with().vhosts["/"].exchanges) + 1
    limits.bindings_per_exchange_max = 1
    found = problems(
        broker_with(limits),
        {
            "queues": [queue("a"), queue("b")],
            "exchanges": [exchange("x"), exchange("y")],
            "bindings": [binding("x", "a", "1"), binding("x", "a", "2")],
        },
    )
    assert [problem.partition(":")[0] for problem in found] == [
        "exchanges[1] 'y'",
        "queues[1] 'b'",
        "bindings[1] 'x -> a'",
    ]


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "item", "problem"),
    [
        ("users", {"name": ""}, "a name is empty"),
        ("users", {"name": "u" * 256}, "longer than 255 bytes"),
        ("users", {"name": "u", "password_hash": HASH, "hashing_algorithm": "rot13"}, "rot13"),
        ("users", {"name": "u", "password_hash": "%%"}, "not base64"),
        ("users", {"name": "u", "password_hash": HASH, "password": "p"}, "both password and password_hash"),
        ("users", {"name": "u", "limits": {"max-wishes": 3}}, "max-wishes"),
        ("vhosts", {"name": "v", "default_queue_type": "streams"}, "is not classic, quorum or stream"),
        ("vhosts", {"name": "v", "metadata": {"tags": 1}}, "metadata: "),
        ("vhosts", {"name": "v", "limits": {"max-queues": "many"}}, "should be a number"),
        ("vhosts", {"name": "v\u0000"}, "NUL"),
        ("permissions", {"user": "nobody", "vhost": "/", "configure": "", "write": "", "read": ""}, "'nobody'"),
        ("permissions", {"user": ADMIN, "vhost": "none", "configure": "", "write": "", "read": ""}, "'none'"),
        ("permissions", {"user": ADMIN, "vhost": "/", "configure": "(", "write": "", "read": ""}, "missing )"),
        ("topic_permissions", {"user": ADMIN, "vhost": "/", "exchange": "x", "write": "(", "read": ""}, "missing )"),
        ("parameters", {"vhost": "/", "component": "nothing", "name": "n", "value": 1}, "component nothing not found"),
        ("parameters", {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"x": 1}}, "Unrecogn"),
        ("parameters", {"vhost": "/", "component": "operator_policy", "name": "n", "value": {}}, "pattern"),
        ("parameters", {"vhost": "/", "component": "policy", "name": "n", "value": {}}, "not be set"),
        ("global_parameters", {"name": "cluster_name", "value": 5}, "should be text"),
        ("policies", {"vhost": "/", "name": "p", "pattern": "(", "definition": {"max-length": 1}}, "missing )"),
        ("policies", {"vhost": "/", "name": "p", "pattern": "", "definition": {"foo": 1}}, "not recognised"),
        ("policies", {"vhost": "/", "name": "p", "pattern": "", "definition": [1]}, "must be an object"),
        ("policies", {"vhost": "none", "name": "p", "pattern": "", "definition": {"max-length": 1}}, "'none'"),
        ("queues", queue("q", arguments={"x-max-length": "long"}), "x-max-length"),
        ("queues", queue("q", type="quorum", durable=False), "durable"),
        ("queues", queue("q", type="stream", durable=False), "durable"),
        ("queues", queue("q", type="classic", arguments={"x-queue-type": "quorum"}), "contradicts"),
        ("queues", queue("q", arguments={"n": 1 << 64}), "64 bits"),
        ("queues", queue("q", "none"), "vhost 'none' does not exist"),
        ("queues", queue(""), "a name is empty"),
        ("queues", queue("line\nbreak"), "line break"),
        ("queues", queue("q" * 256), "longer than 255 bytes"),
        ("exchanges", exchange("x", "x-of-a-plugin"), "unknown exchange type 'x-of-a-plugin'"),
        ("exchanges", exchange("x", arguments={"alternate-exchange": 5}), "alternate-exchange"),
        ("exchanges", exchange("x\x00"), "NUL"),
        ("bindings", binding("amq.topic", "there", "#.#.#"), "#"),
        ("bindings", binding("amq.topic", "there", "k" * 256), "longer than 255 bytes"),
        ("bindings", binding("amq.control", "there"), "not permitted"),
        ("bindings", binding("amq.topic", "there", destination_type="topic"), "neither queue nor exchange"),
        ("bindings", binding("amq.topic", "there", arguments=[1]), "must be an object"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(section: str, item: Document, problem: str) -> None:
    broker = broker_with()
    document: Document = {"queues": [queue("there")]}
    document[section] = [*document.get(section, []), item]
    found = problems(broker, document)
    assert found[0].startswith(f"{section}[{len(document[section]) - 1}] ")
    assert problem in "\n".join(found)
    assert broker.vhosts["/"].queues == {}


def test_nesting_without_end_is_refused() -> None:
    deep = b'{"x":' * 900 + b"1" + b"}" * 900
    for section, fields in (
        (b"queues", b'"name":"q","vhost":"/","arguments":'),
        (b"policies", b'"name":"q","vhost":"/","pattern":"","definition":'),
        (b"global_parameters", b'"name":"q","value":'),
        (b"vhosts", b'"name":"q","limits":'),
    ):
        assert problems(broker_with(), b'{"%s":[{%s%s}]}' % (section, fields, deep))


def test_planning_gives_way_between_items_and_while_it_looks_at_what_is_bound() -> None:
    broker = broker_with()
    vhost = broker.vhosts["/"]
    vhost.declare_queue(QueueDeclaration("q", durable=True))
    for number in range(1000):
        vhost.bind(vhost.exchanges["amq.topic"], vhost.queues["q"], str(number), EMPTY_TABLE)
    definitions = read({"queues": [queue("q")], "bindings": [binding("amq.topic", "q", "5")]})
    pauses: list[int] = []

    async def run() -> ImportPlan:
        async def pause() -> None:
            pauses.append(1)

        return await make_plan(broker, definitions, pause)

    assert actions(trio.run(run)) == ["same", "same"]
    assert len(pauses) > 2 + 10


# --- carrying it out --------------------------------------------------------------------------------------------------


def test_everything_that_a_start_imports_is_one_batch_for_the_disk() -> None:
    broker = broker_with()
    journal = broker.journal
    disk = MemoryStore(broker)
    seen: list[int] = []

    def settle() -> None:
        broker.end_turn()
        disk.run()

    async def pause() -> None:
        settle()
        seen.append(len(broker.vhosts["/"].queues))

    planned = of_vhost(broker, {"queues": [queue(str(number)) for number in range(20)]})
    ticket = trio.run(partial(apply_plan, broker, planned, pause, settle, whole=True))
    assert seen == list(range(1, 21))
    assert journal.last_ticket == journal.committed_ticket == ticket
    assert disk.commits == 1
    assert len(take_durable_changes(broker, disk)) == 20


def test_others_declare_durably_while_an_import_is_under_way() -> None:
    broker = broker_with()
    disk = MemoryStore(broker)

    def settle() -> None:
        broker.end_turn()
        disk.run()

    async def pause() -> None:
        number = len(broker.vhosts["/"].queues)
        ticket = broker.vhosts["/"].declare_queue(QueueDeclaration(f"of others {number}", durable=True))
        settle()
        assert broker.journal.committed_ticket >= ticket, "it waits for the import"

    planned = of_vhost(broker, {"queues": [queue(str(number)) for number in range(20)]})
    ticket = trio.run(apply_plan, broker, planned, pause, settle)
    assert broker.journal.committed_ticket == ticket
    assert len(take_durable_changes(broker, disk)) == 40


def test_what_changes_between_plan_and_import_is_a_conflict_and_the_rest_is_imported() -> None:
    broker = broker_with()
    planned = plan(
        broker,
        {
            "vhosts": [{"name": "v"}],
            "queues": [queue("q"), queue("r"), queue("s", "v")],
            "bindings": [binding("amq.fanout", "q"), binding("amq.fanout", "r")],
        },
    )
    broker.vhosts["/"].declare_queue(QueueDeclaration("q", durable=False, exclusive=True), connection=object())

    async def delete_the_vhost() -> None:
        broker.vhosts.pop("v", None)

    trio.run(apply_plan, broker, planned, delete_the_vhost, lambda: None)
    assert [(change.action, change.name) for change in planned.changes] == [
        ("create", "v"),
        ("conflict", ADMIN),
        ("conflict", "q"),
        ("create", "r"),
        ("conflict", "s"),
        ("conflict", "amq.fanout -> q"),
        ("create", "amq.fanout -> r"),
    ]


def test_an_import_that_began_is_finished_when_nobody_waits_for_it() -> None:
    broker = broker_with()
    planned = of_vhost(broker, {"queues": [queue(str(number)) for number in range(5)]})

    async def run() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await apply_plan(broker, planned, trio.lowlevel.checkpoint, lambda: None)

    trio.run(run)
    assert len(broker.vhosts["/"].queues) == 5
    assert len(journalled(broker)) == 5


def test_what_is_imported_is_journalled_as_if_it_had_been_declared() -> None:
    broker = broker_with()
    document = {
        "queues": [queue("q"), queue("gone", durable=False)],
        "exchanges": [exchange("x", "topic")],
        "bindings": [binding("x", "q", "k"), binding("x", "gone")],
    }
    apply(broker, of_vhost(broker, document))
    assert journalled(broker) == [
        ExchangePut("/", "x", "topic", auto_delete=False, internal=False, arguments=EMPTY_TABLE, declared_by="root"),
        QueuePut("/", "q", False, EMPTY_TABLE, 2),  # 1 is the lane of the metadata
        BindingPut("/", "x", "q", "queue", "k", EMPTY_TABLE),
    ]


def test_a_hash_of_our_own_travels_between_brokers() -> None:
    hashed = hash_password(b"secret")
    broker = broker_with()
    apply(broker, plan(broker, {"users": [{"name": "u", "password_hash": hashed.text, "hashing_algorithm": "scrypt"}]}))
    assert broker.access.users["u"] == UserPut("u", hashed.text, "scrypt")
