"""Runtime parameters and the name of the cluster. Texts are those of RabbitMQ 3.10.8 for the same requests."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Harness

from warren.vhosts.metadata import (
    GlobalParameterDelete,
    GlobalParameterPut,
    MetadataChange,
    ParameterDelete,
    ParameterPut,
    PolicyPut,
    VhostDelete,
    VhostLimitsPut,
    VhostPut,
)
from warren.vhosts.parameters import NESTED_MAX, ParameterBook, ParameterChange

from .rules import rule

PUT = ParameterPut("/", "shovel", "s", '{"src-queue":"a"}')


@pytest.fixture
def book(harness: Harness) -> ParameterBook:
    """The parameters of a broker with the components shovel, whose values are objects, and free."""

    def only_objects(vhost: str, name: str, value: object, by: str) -> list[str]:
        return [] if isinstance(value, dict) else [f"{name} in {vhost} is no object", "nor anything else"]

    book = harness.broker.parameters
    book.validators["shovel"] = only_objects
    book.validators["free"] = lambda vhost, name, value, by: []
    return book


@pytest.fixture
def heard(book: ParameterBook) -> list[ParameterChange]:
    """Return the changes that a listener has heard."""
    changes: list[ParameterChange] = []
    book.listeners.append(changes.append)
    return changes


def values(book: ParameterBook, vhost: str | None = None, component: str | None = None) -> list[tuple[Any, ...]]:
    return [(each.vhost, each.component, each.name, each.value) for each in book.parameters(vhost, component)]


# --- parameters of a vhost --------------------------------------------------------------------------------------------


@rule("rabbitmq.parameter", "A parameter is set, replaced and cleared by vhost, component and name.")
def test_parameters_come_and_go(harness: Harness, book: ParameterBook) -> None:
    administer = harness.broker.administer
    administer(VhostPut("v"))
    for change in (
        ParameterPut("v", "shovel", "s", "{}"),
        ParameterPut("/", "shovel", "t", "{}"),
        ParameterPut("/", "free", "s", "[null,1.5]"),
        ParameterPut("/", "shovel", "s", '{"a":1}'),
        ParameterPut("/", "shovel", "s", '{"a":2}'),
        ParameterDelete("/", "shovel", "t"),
        ParameterDelete("v", "shovel", "t"),
        ParameterDelete("v", "nosuch", "t"),
    ):
        administer(change)
    shovels = [("/", "shovel", "s", {"a": 2}), ("v", "shovel", "s", {})]
    free = ("/", "free", "s", [None, 1.5])
    assert values(book) == [free, *shovels]
    assert values(book, "/") == [free, shovels[0]]
    assert values(book, component="shovel") == shovels
    assert values(book, "v", "shovel") == [shovels[1]]
    assert values(book, "v", "free") == []
    assert book.maybe_parameter("/", "shovel", "s") is not None
    assert book.maybe_parameter("v", "free", "s") is None


@rule("rabbitmq.parameter", "What is not valid is refused with its reasons and changes nothing.")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (ParameterPut("/", "nosuch", "s", "{}"), "component nosuch not found"),
        (ParameterPut("nix", "shovel", "s", "{}"), "vhost 'nix' does not exist"),
        (ParameterDelete("nix", "shovel", "s"), "vhost 'nix' does not exist"),
        (ParameterPut("/", "shovel", "s", "5"), "s in / is no object\nnor anything else"),
        (ParameterPut("/", "policy", "s", "{}"), "policies may not be set using this method"),
        (ParameterPut("/", "free", "s\x00", "{}"), "name contains a NUL character"),
        (ParameterPut("/", "c" * 256, "s", "{}"), "component is longer than 255 bytes"),
        (ParameterPut("/", "free", "s", '"\\ud800"'), "a definition holds text that is not valid Unicode"),
        (ParameterPut("/", "free", "s", '[{"\\udfff":1}]'), "a definition holds text that is not valid Unicode"),
        (ParameterPut("/", "free", "s", "[" * 34 + "]" * 34), "a definition is nested too deeply"),
        (GlobalParameterPut("g", "[" * 100_000), "a definition is nested too deeply"),
        (GlobalParameterPut("g", "NaN"), "NaN is not JSON"),
    ],
)
def test_invalid_parameters_are_refused(
    harness: Harness, book: ParameterBook, heard: list[ParameterChange], change: MetadataChange, reason: str
) -> None:
    harness.broker.administer(PUT)
    heard.clear()
    tickets = harness.broker.journal.last_ticket
    with pytest.raises(ValueError, match=r"\w") as refused:
        harness.broker.administer(change)
    assert str(refused.value) == reason
    assert harness.broker.journal.last_ticket == tickets
    assert values(book) == [("/", "shovel", "s", {"src-queue": "a"})]
    assert (book.global_parameters(), heard) == ([], [])


@rule("rabbitmq.parameter", "A value may have many levels.")
def test_values_may_be_nested(harness: Harness, book: ParameterBook) -> None:
    harness.broker.administer(ParameterPut("/", "free", "s", "[" * NESTED_MAX + "1" + "]" * NESTED_MAX))
    assert len(book.parameters()) == 1


@rule("rabbitmq.parameter", "Parameters are stored like everything durable: whoever sets one gets a ticket.")
@pytest.mark.usefixtures("book")
@pytest.mark.parametrize(
    "change", [PUT, ParameterDelete("/", "free", "s"), GlobalParameterPut("g", "1"), GlobalParameterDelete("g")]
)
def test_parameters_are_journalled(harness: Harness, change: MetadataChange) -> None:
    harness.hold_commits = True
    ticket = harness.broker.administer(change)
    harness.settle()
    assert harness.broker.journal.committed_ticket < ticket
    harness.hold_commits = False
    harness.settle()
    assert (harness.take_changes(), harness.broker.journal.committed_ticket) == ([change], ticket)


@rule("rabbitmq.parameter", "After a start they are there, whoever they were for, and nobody is told.")
def test_parameters_are_restored_unasked(harness: Harness, book: ParameterBook, heard: list[ParameterChange]) -> None:
    harness.broker.restore(GlobalParameterPut("g", "1"))
    harness.broker.restore(ParameterPut("/", "nosuch", "s", "1"))
    harness.broker.restore(ParameterPut("/", "shovel", "s", "1"))
    assert values(book) == [("/", "nosuch", "s", 1), ("/", "shovel", "s", 1)]
    assert [(each.name, each.value) for each in book.global_parameters()] == [("g", 1)]
    assert heard == []


@rule("rabbitmq.parameter", "Listeners are told what has changed: not what was set to what it is.")
def test_listeners_are_told(harness: Harness, book: ParameterBook, heard: list[ParameterChange]) -> None:
    in_book: list[int] = []
    book.listeners.append(lambda change: in_book.append(len(book.parameters())))
    told: list[ParameterChange] = [
        PUT,
        ParameterPut("/", "free", "s", '{"a":1,"b":1}'),
        ParameterPut("/", "free", "s", '{"a":1,"b":true}'),
        GlobalParameterPut("g", "1"),
        GlobalParameterPut("g", "1.0"),
        ParameterDelete("/", "free", "s"),
        GlobalParameterDelete("g"),
    ]
    untold: list[ParameterChange] = [
        PUT,
        ParameterPut("/", "free", "s", '{"b":1, "a":1}'),
        ParameterPut("/", "free", "s", '{"b":true,"a":1}'),
        GlobalParameterPut("g", " 1"),
        GlobalParameterPut("g", "1.00"),
        ParameterDelete("/", "free", "s"),
        GlobalParameterDelete("g"),
    ]
    for change, same in zip(told, untold, strict=True):
        harness.broker.administer(change)
        harness.broker.administer(same)
    assert heard == told
    assert in_book == [1, 2, 2, 2, 2, 1, 1]


@rule("rabbitmq.parameter", "They go with their vhost, and listeners are told one by one.")
def test_parameters_go_with_their_vhost(harness: Harness, book: ParameterBook, heard: list[ParameterChange]) -> None:
    harness.broker.administer(VhostPut("v"))
    for name in ("t", "s"):
        harness.broker.administer(ParameterPut("v", "shovel", name, "{}"))
    harness.broker.administer(PUT)
    heard.clear()
    harness.broker.administer(VhostDelete("v"))
    assert heard == [ParameterDelete("v", "shovel", "s"), ParameterDelete("v", "shovel", "t")]
    harness.broker.administer(VhostPut("v"))
    assert values(book) == [("/", "shovel", "s", {"src-queue": "a"})]


# --- what is something else -------------------------------------------------------------------------------------------


@rule("rabbitmq.parameter.own", "Limits of a vhost can be set and cleared as a parameter.")
def test_limits_are_parameters(harness: Harness, book: ParameterBook, heard: list[ParameterChange]) -> None:
    harness.broker.administer(ParameterPut("/", "vhost-limits", "limits", '{"max-queues":3}'))
    assert harness.vhost.limits == {"max-queues": 3}
    harness.settle()
    assert harness.take_changes() == [VhostLimitsPut("/", '{"max-queues":3}')]
    for change in (
        ParameterPut("/", "vhost-limits", "limits", '{"max-things":3}'),
        ParameterPut("/", "vhost-limits", "other", '{"max-queues":4}'),
    ):
        with pytest.raises(ValueError, match="limits"):
            harness.broker.administer(change)
    assert harness.vhost.limits == {"max-queues": 3}
    harness.broker.administer(ParameterDelete("/", "vhost-limits", "limits"))
    assert harness.vhost.limits == {}
    assert (book.parameters(), heard) == ([], [])


@rule("rabbitmq.parameter.own", "So can operator policies.")
def test_operator_policies_are_parameters(harness: Harness) -> None:
    value = '{"pattern":"^a","definition":{"max-length":5},"apply-to":"queues","priority":3}'
    harness.broker.administer(ParameterPut("/", "operator_policy", "o", value))
    policy = harness.vhost.policies.operator_policies["o"].put
    assert policy == PolicyPut("/", "o", "^a", "queues", 3, '{"max-length": 5}', operator=True)
    harness.broker.administer(ParameterDelete("/", "operator_policy", "o"))
    assert harness.vhost.policies.operator_policies == {}


@rule("rabbitmq.parameter.own", "One that is no policy is refused.")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{}", "pattern should be text, actually was null\ndefinition should be an object, actually was null"),
        ('{"pattern":"","definition":[]}', "definition should be an object, actually was []"),
        ('{"pattern":"","definition":{"expires":1},"x":1}', 'Unrecognised terms [{<<"x">>,1}] in o'),
        ('{"pattern":"","definition":{"expires":1},"priority":true}', "priority should be a number, actually was true"),
        ('{"pattern":"","definition":{"expires":1},"apply-to":1}', "apply-to should be text, actually was 1"),
        ('{"pattern":"\\u0000","definition":{"expires":1}}', "pattern contains a NUL character"),
        ('{"pattern":"","definition":{"dead-letter-exchange":"x"}}', "not recognised policy settings"),
        ("[]", "a definition must be a JSON object"),
    ],
)
def test_bad_operator_policies_are_refused(harness: Harness, value: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as refused:
        harness.broker.administer(ParameterPut("/", "operator_policy", "o", value))
    assert reason in str(refused.value)
    assert harness.vhost.policies.operator_policies == {}


# --- global parameters ------------------------------------------------------------------------------------------------


@rule("rabbitmq.parameter.global", "A global parameter is of no vhost and no component, and may be any JSON.")
def test_global_parameters_come_and_go(harness: Harness, book: ParameterBook) -> None:
    for change in (
        GlobalParameterPut("b", "null"),
        GlobalParameterPut("a", '{"x":[]}'),
        GlobalParameterPut("c", "1"),
        GlobalParameterDelete("c"),
        GlobalParameterDelete("d"),
        GlobalParameterPut("a", '"t"'),
    ):
        harness.broker.administer(change)
    assert [(each.name, each.value) for each in book.global_parameters()] == [("a", "t"), ("b", None)]
    found = book.maybe_global("b")
    assert found is not None
    assert (found.vhost, found.component, found.value) == ("", "", None)
    assert book.maybe_global("c") is None
    assert book.parameters() == []


def told_name(harness: Harness) -> object:
    return harness.raw_client().start().server_properties["cluster_name"]


@rule("rabbitmq.parameter.cluster-name", "connection.start tells the name of the cluster, an administrator's or ours.")
def test_the_cluster_has_a_name(harness: Harness) -> None:
    assert told_name(harness) == "rabbit@localhost"
    harness.broker.node = "rabbit@h"
    assert told_name(harness) == "rabbit@h"
    harness.broker.cluster = "rabbit@warren"
    assert told_name(harness) == "rabbit@warren", "of several nodes that lead in turn"
    harness.broker.cluster = ""
    harness.broker.administer(GlobalParameterPut("cluster_name", '"the caf\\u00e9"'))
    assert told_name(harness) == harness.broker.cluster_name() == "the caf\u00e9"
    harness.broker.administer(GlobalParameterDelete("cluster_name"))
    assert told_name(harness) == "rabbit@h"


@rule("rabbitmq.parameter.cluster-name", "A name is a text of 1 to 255 bytes.")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("5", "cluster_name should be text, actually was 5"),
        ("null", "cluster_name should be text, actually was null"),
        ('""', "cluster_name should have 1 to 255 bytes"),
        (f'"{"x" * 254}\\u00e9"', "cluster_name should have 1 to 255 bytes"),
    ],
)
def test_bad_cluster_names_are_refused(harness: Harness, value: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        harness.broker.administer(GlobalParameterPut("cluster_name", value))
    assert told_name(harness) == "rabbit@localhost"
