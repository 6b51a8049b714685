"""The combined effect of a policy, an operator policy and the arguments: one answer for all callers."""

from __future__ import annotations

import pytest

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.exchanges.exchange import ALTERNATE_EXCHANGE, Exchange
from warren.exchanges.registry import create_exchange
from warren.queues.effective_policy import NO_POLICY, EffectivePolicy, PolicySettings
from warren.vhosts.metadata import PolicyPut
from warren.vhosts.policies import PolicyBook, alternate_of


def together(policy: Table | None, operator: Table | None) -> EffectivePolicy:
    return EffectivePolicy(
        None if policy is None else PolicySettings("mine", policy),
        None if operator is None else PolicySettings("operators", operator),
    )


@pytest.mark.parametrize(
    ("key", "mine", "operators", "holds"),
    [
        ("max-length", 5, 9, 5),
        ("max-length", 9, 5, 5),
        ("delivery-limit", -1, 5, 5),
        ("delivery-limit", 5, -1, 5),
        ("delivery-limit", -2, -1, -1),
        ("delivery-limit", 0, 5, 0),
        ("delivery-limit", 5, 0, 0),
        ("target-group-size", 5, 3, 3),  # the queue has no argument for it
        ("overflow", "drop-head", "reject-publish", "reject-publish"),
        ("queue-version", True, False, False),
        ("max-length", 5, None, 5),
        ("max-length", None, 5, 5),
        ("federation-upstream", "here", None, "here"),
    ],
)
def test_what_both_policies_come_to(key: str, mine: object, operators: object, holds: object) -> None:
    both = together(None if mine is None else {key: mine}, None if operators is None else {key: operators})
    assert both.definition() == {key: holds}
    assert both.maybe_text(key) == (holds if isinstance(holds, str) else None)


def test_the_keys_of_the_policy_come_first() -> None:
    both = together({"overflow": "drop-head", "expires": 7}, {"max-length": 5, "expires": 3})
    assert list(both.definition().items()) == [("overflow", "drop-head"), ("expires", 3), ("max-length", 5)]


def test_an_argument_loses_against_a_smaller_number_only() -> None:
    both = together({"max-length": 5, "overflow": "drop-head", "expires": 4}, {"max-length": 7, "message-ttl": 1})
    assert both.under_arguments({"max-length": 6, "overflow": "reject-publish", "message-ttl": 0}) == {
        "max-length": 5,
        "overflow": "reject-publish",
        "message-ttl": 0,
        "expires": 4,
    }


def test_what_is_no_setting_of_queues_never_becomes_an_argument() -> None:
    both = together({ALTERNATE_EXCHANGE: "x", "max-priority": 5, "expires": "soon"}, None)
    assert both.under_arguments({}) == {}
    assert both.maybe_text(ALTERNATE_EXCHANGE) == "x"


def test_without_policies_there_is_nothing() -> None:
    arguments: Table = {"max-length": 5}
    assert NO_POLICY.under_arguments(arguments) is arguments
    assert (NO_POLICY.definition(), NO_POLICY.policy_name(), NO_POLICY.operator_policy_name()) == ({}, None, None)


def exchange(name: str, table: Table | None = None) -> Exchange:
    arguments = encode_table(table) if table else EMPTY_TABLE
    return create_exchange(ExchangeDeclaration(name, "direct", durable=True, arguments=arguments), seed=0)


def alternate(book: PolicyBook, of: Exchange) -> str:
    return alternate_of(of, book.of_exchange(of.name))


def test_an_alternate_is_that_of_the_argument_or_of_the_policy() -> None:
    book = PolicyBook()
    assert alternate(book, exchange("e")) == ""
    assert not book.has_setting((ALTERNATE_EXCHANGE,))
    book.put(PolicyPut("/", "p", "", "all", 0, '{"alternate-exchange":"other"}'))
    assert book.has_setting((ALTERNATE_EXCHANGE,))
    assert alternate(book, exchange("e")) == "other"
    assert alternate(book, exchange("e", {ALTERNATE_EXCHANGE: "own"})) == "own"
    assert [alternate(book, exchange(name)) for name in ("", "amq.rabbitmq.trace", "amq.direct")] == ["", "", "other"]


def test_a_queue_follows_both_policies_and_an_exchange_one() -> None:
    book = PolicyBook()
    assert book.of_queue("q") is NO_POLICY
    book.put(PolicyPut("/", "p", "", "all", 0, '{"max-length":5}'))
    book.put(PolicyPut("/", "o", "", "queues", 0, '{"max-length":3}', operator=True))
    of_queue, of_exchange = book.of_queue("q"), book.of_exchange("e")
    assert (of_queue.policy_name(), of_queue.operator_policy_name()) == ("p", "o")
    assert (of_exchange.policy_name(), of_exchange.operator_policy_name()) == ("p", None)
    assert of_queue.definition() == {"max-length": 3}
