"""The effective rules of a queue: the precedence of arguments, policy and operator policy, and its effects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import Table, encode_table
from warren.amqp.numbers import TIME_MAX_MS
from warren.queues.arguments import ARGUMENTS, FLAG, INTEGER, QueueArguments, backoff_delays
from warren.queues.effective_policy import EffectivePolicy, PolicySettings, policy_key_error
from warren.queues.rules import (
    DEDUP_KEYS,
    DROP_HEAD,
    LIMIT_DEAD_LETTERS,
    LIMIT_DROPS,
    LIMIT_PARKS,
    QUORUM_DELIVERY_LIMIT,
    REJECT_PUBLISH,
    REJECT_PUBLISH_DLX,
    RETRY_ALL,
    RETRY_DISABLED,
    RETRY_FAILED,
    RETRY_RETURNED,
    QueueRules,
    rules_of,
)

POLICY_KEYS = [row.key for row in ARGUMENTS if row.noun]
FIELDS = [
    name
    for name in dir(QueueRules())
    if not name.startswith("_") and name != "is_plain" and not callable(getattr(QueueRules(), name))
]


def arguments_of(values: Table, *, quorum: bool = False) -> QueueArguments:
    table: Table = {f"x-{key}": value for key, value in values.items()}
    if quorum:
        table["x-queue-type"] = "quorum"
    return QueueArguments(QueueDeclaration("q", durable=True, arguments=encode_table(table)), "/")


def rules(
    values: Table | None = None, policy: Table | None = None, operator: Table | None = None, *, quorum: bool = False
) -> QueueRules:
    return rules_of(arguments_of(values or {}, quorum=quorum), together(policy, operator))


def together(policy: Table | None, operator: Table | None) -> EffectivePolicy:
    return EffectivePolicy(
        None if policy is None else PolicySettings("p", policy),
        None if operator is None else PolicySettings("o", operator),
    )


def everything(of: QueueRules) -> dict[str, Any]:
    return {name: getattr(of, name) for name in FIELDS}


# --- what each key does -----------------------------------------------------------------------------------------------

SAME_FOR_BOTH: list[tuple[str, object, str, object]] = [
    ("message-ttl", 0, "message_ttl_ms", 0),
    ("expires", 5, "expires_ms", 5),
    ("max-length", 5, "max_length", 5),
    ("max-length-bytes", 5, "max_length_bytes", 5),
    ("overflow", "drop-head", "overflow", DROP_HEAD),
    ("overflow", "reject-publish", "overflow", REJECT_PUBLISH),
    ("overflow", "reject-publish-dlx", "overflow", REJECT_PUBLISH_DLX),
    ("dead-letter-exchange", "", "dead_letter_exchange", ""),
    ("dead-letter-exchange", "dlx", "dead_letter_exchange", "dlx"),
    ("delivery-limit", 0, "delivery_limit", 0),
    ("delivery-limit", 5, "delivery_limit", 5),
    ("delivery-limit", -5, "delivery_limit", -1),
    ("delivery-limit-action", "dead-letter", "limit_action", LIMIT_DEAD_LETTERS),
    ("delivery-limit-action", "drop", "limit_action", LIMIT_DROPS),
    ("delivery-limit-action", "park", "limit_action", LIMIT_PARKS),
    ("consumer-timeout", 0, "consumer_timeout_ms", 0),
    ("consumer-timeout", 2**62, "consumer_timeout_ms", TIME_MAX_MS),
    ("visibility-timeout", 5, "visibility_timeout_ms", 5),
    ("consumer-prefetch-max", 5, "prefetch_max", 5),
    ("max-unacked", 5, "max_unacked", 5),
    ("read-committed", True, "read_committed", 1),
    ("read-committed", False, "read_committed", 0),
]


@pytest.mark.parametrize(("key", "value", "field", "expected"), SAME_FOR_BOTH)
def test_arguments_and_policies_mean_the_same(key: str, value: object, field: str, expected: object) -> None:
    plain = everything(QueueRules())
    for made in (rules({key: value}), rules({}, {key: value}), rules({}, None, {key: value})):
        assert everything(made) == {**plain, field: expected}


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({"max-priority": 0}, {"max_priority": 0}),
        ({"max-priority": 255}, {"max_priority": 255}),
        ({"single-active-consumer": True}, {"single_active": True}),
        ({"message-deduplication": True}, {"dedup": True, "dedup_size": DEDUP_KEYS}),
        (
            {"message-deduplication": True, "deduplication-header": "id", "cache-size": 5, "cache-ttl": 6},
            {"dedup": True, "dedup_header": "id", "dedup_size": 5, "dedup_ttl_ms": 6},
        ),
        ({"key-shared": True}, {"key_shared": True}),
        ({"key-shared": True, "key-header": "customer"}, {"key_shared": True, "key_header": "customer"}),
        ({"storage": "memory", "max-length": 5}, {"memory_only": True, "max_length": 5}),
        ({"storage": "disk"}, {}),
        ({"message-deduplication": False, "deduplication-header": "id", "cache-size": 5, "cache-ttl": 6}, {}),
        ({"key-shared": False, "key-header": "customer"}, {}),
        ({"queue-mode": "lazy", "queue-version": 2, "queue-leader-locator": "balanced"}, {}),
    ],
)
def test_some_rules_come_from_arguments_only(values: Table, fields: dict[str, Any]) -> None:
    expected = {**everything(QueueRules()), **fields}
    assert everything(rules(values)) == expected
    policy = {key: value for key, value in values.items() if key not in POLICY_KEYS}
    assert everything(rules({}, policy, policy)) == everything(QueueRules())


def test_dead_letters_keep_their_routing_key_with_an_exchange_from_anywhere() -> None:
    made = rules({}, {"dead-letter-routing-key": "k"}, {"dead-letter-exchange": "dlx"})
    assert (made.dead_letter_exchange, made.dead_letter_routing_key) == ("dlx", "k")


def test_no_rules_are_a_plain_queue() -> None:
    for made in (rules(), rules({}, {}, {}), rules({"queue-mode": "lazy"}), rules({}, {"queue-mode": "lazy"})):
        assert made.is_plain
        assert everything(made) == everything(QueueRules())


@pytest.mark.parametrize(
    ("values", "is_plain"),
    [
        ({"single-active-consumer": True, "consumer-timeout": 5}, True),
        ({"overflow": "reject-publish", "cache-size": 5}, True),
        ({"queue-version": 2, "queue-leader-locator": "balanced"}, True),
        ({"delayed-retry-min": 5, "delayed-retry-max": 6, "delivery-limit-action": "drop"}, True),
        ({"delayed-retry-min": 5, "delayed-retry-type": "all"}, False),
        *[({key: value}, False) for key, value in {
            "message-ttl": 0, "expires": 5, "max-length": 5, "max-length-bytes": 5, "dead-letter-exchange": "",
            "max-priority": 0, "delivery-limit": 5, "visibility-timeout": 5, "max-unacked": 5,
            "message-deduplication": True, "key-shared": True, "consumer-prefetch-max": 5,
            "read-committed": True,
        }.items()],
    ],
)  # fmt: skip
def test_rules_that_act_on_messages_need_a_keeper(values: Table, is_plain: bool) -> None:
    assert rules(values).is_plain == is_plain
    assert rules({"queue-mode": "lazy", **values}).is_plain == is_plain
    assert rules(values, {"dead-letter-routing-key": "k"}).is_plain == is_plain


# --- quorum queues ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "policy", "quorum", "alone", "replicated"),
    [
        ({}, {}, False, False, False),
        ({}, {}, True, False, True),
        ({"read-committed": True}, {}, False, True, True),
        ({"read-committed": False}, {}, True, False, False),
        ({}, {"read-committed": False}, True, False, False),
        ({"read-committed": True}, {"read-committed": False}, True, True, True),
    ],
)
def test_a_quorum_queue_of_several_nodes_waits_for_commits_unless_told_otherwise(
    values: Table, policy: Table, quorum: bool, alone: bool, replicated: bool
) -> None:
    made = rules(values, policy, quorum=quorum)
    assert (made.waits_for_commit(False), made.waits_for_commit(True)) == (alone, replicated)
    assert made.is_plain == (not quorum and not alone)


@pytest.mark.parametrize(
    ("values", "policy", "limit"),
    [
        ({}, {}, QUORUM_DELIVERY_LIMIT),
        ({"delivery-limit": -1}, {}, -1),
        ({}, {"delivery-limit": -1}, -1),
        ({"delivery-limit": 50}, {}, 50),
        ({"delivery-limit": -1}, {"delivery-limit": 50}, 50),
        ({"delivery-limit": 50}, {"delivery-limit": 7}, 7),
    ],
)
def test_a_quorum_queue_limits_deliveries_unless_told_otherwise(values: Table, policy: Table, limit: int) -> None:
    made = rules(values, policy, quorum=True)
    assert (made.is_quorum, made.delivery_limit) == (True, limit)


def test_a_quorum_queue_drops_the_head_where_a_classic_one_would_dead_letter_a_publish() -> None:
    assert rules({"overflow": "reject-publish-dlx"}, quorum=True).overflow == DROP_HEAD
    assert rules({"overflow": "reject-publish"}, quorum=True).overflow == REJECT_PUBLISH


@pytest.mark.parametrize("missing", ["", "dead-letter-strategy", "overflow", "dead-letter-exchange", "quorum"])
def test_dead_lettering_at_least_once_needs_an_exchange_and_rejecting(missing: str) -> None:
    policy: Table = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "dead-letter-exchange": "x"}
    policy.pop(missing, None)
    assert rules({}, policy, quorum=missing != "quorum").dead_letters_at_least_once == (missing == "")
    assert not rules({}, {**policy, "overflow": "drop-head"}, quorum=True).dead_letters_at_least_once
    assert not rules({}, {**policy, "dead-letter-strategy": "at-most-once"}, quorum=True).dead_letters_at_least_once


# --- retries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "delays"),
    [
        ({}, RETRY_DISABLED, []),
        ({"delayed-retry-type": "all"}, RETRY_DISABLED, []),
        ({"delayed-retry-min": 5}, RETRY_DISABLED, []),
        ({"delayed-retry-type": "disabled", "delayed-retry-min": 5, "retry-backoff": [5]}, RETRY_DISABLED, []),
        ({"delayed-retry-type": "all", "delayed-retry-max": 5}, RETRY_DISABLED, []),
        ({"delayed-retry-type": "all", "delayed-retry-min": 5}, RETRY_ALL, [5, 5, 5, 5]),
        (
            {"delayed-retry-type": "failed", "delayed-retry-min": 5, "delayed-retry-max": 18},
            RETRY_FAILED,
            [5, 10, 15, 18],
        ),
        (
            {"delayed-retry-type": "returned", "delayed-retry-min": 5, "delayed-retry-max": 3},
            RETRY_RETURNED,
            [3, 3, 3, 3],
        ),
        ({"delayed-retry-type": "all", "delayed-retry-min": 0, "delayed-retry-max": 9}, RETRY_ALL, [0, 0, 0, 0]),
        ({"retry-backoff": ["1s", 2]}, RETRY_ALL, [1000, 2, 2, 2]),
        ({"retry-backoff": "exponential:1s:3s"}, RETRY_ALL, [1000, 2000, 3000, 3000]),
        (
            {"retry-backoff": [7], "delayed-retry-type": "failed", "delayed-retry-min": 5, "delayed-retry-max": 50},
            RETRY_FAILED,
            [7, 7, 7, 7],
        ),
    ],
)
def test_retries_are_delayed_by_type_and_number(values: Table, kind: int, delays: list[int]) -> None:
    for made in (rules(values), rules({}, values), rules({}, None, values)):
        assert made.retry_type == kind
        assert [made.retry_delay_ms(number) for number in range(1, len(delays) + 1)] == delays
        assert bool(made.retry_delays_ms) == (kind != RETRY_DISABLED)


def test_a_message_that_was_never_counted_waits_as_after_its_first_return() -> None:
    assert rules({"retry-backoff": [5, 6]}).retry_delay_ms(0) == 5


@given(st.integers(0, TIME_MAX_MS), st.integers(0, TIME_MAX_MS), st.integers(1, 2**63 - 1))
def test_linear_delays_are_the_smaller_of_product_and_maximum(min_ms: int, max_ms: int, returns: int) -> None:
    made = rules({"delayed-retry-type": "all", "delayed-retry-min": min_ms, "delayed-retry-max": max_ms})
    assert made.retry_delay_ms(returns) == min(min_ms * returns, max_ms)


@given(st.lists(st.integers(0, TIME_MAX_MS), min_size=1, max_size=5), st.integers(1, 2**63 - 1))
def test_listed_delays_repeat_their_last(delays: list[int], returns: int) -> None:
    made = rules({"retry-backoff": [*delays]})
    assert made.retry_delay_ms(returns) == delays[min(returns, len(delays)) - 1]


# --- merging ----------------------------------------------------------------------------------------------------------

CHOICES: dict[str, list[str]] = {row.key: list(row.choices) for row in ARGUMENTS if row.choices}
NUMBERS = {row.key: row for row in ARGUMENTS if row.kind == INTEGER}
FLAGS = {row.key for row in ARGUMENTS if row.kind == FLAG}


def possible(key: str) -> st.SearchStrategy[object]:
    if key in CHOICES:
        return st.sampled_from(CHOICES[key])
    if key == "delivery-limit":
        return st.integers(-3, 30)
    if key == "queue-version":
        return st.integers(1, 2)
    if key in NUMBERS:
        row = NUMBERS[key]
        return st.integers(row.low, row.low + 20) | st.integers(row.low, row.high)
    if key in FLAGS:
        return st.booleans()
    if key == "retry-backoff":
        return st.sampled_from([[5], ["5s", 7], "exponential:1s:9s"])
    return st.sampled_from(["", "a", "b"])


def definitions() -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({}, optional={key: possible(key) for key in POLICY_KEYS})


def merged(key: str, sources: list[dict[str, object]]) -> object:
    """Say what holds of the values that an argument, an operator policy and a policy give, in that order."""
    given_values: list[Any] = [source[key] for source in sources if key in source]
    if not given_values or key not in NUMBERS:
        return given_values[0] if given_values else None
    limits = [value for value in given_values if value >= 0]
    return min(limits) if limits else -1


@given(st.booleans(), definitions(), definitions(), definitions())
def test_numbers_take_the_smallest_and_all_else_the_closest(
    quorum: bool, own: dict[str, object], policy: dict[str, object], operator: dict[str, object]
) -> None:
    own = {key: value for key, value in own.items() if fits(key, quorum)}
    if "dead-letter-exchange" not in own:
        own.pop("dead-letter-routing-key", None)
    made = rules(own, policy, operator, quorum=quorum)
    sources = [own, operator, policy]

    def number(key: str) -> Any:
        value = merged(key, sources)
        return -1 if value is None else value

    assert made.message_ttl_ms == number("message-ttl")
    assert made.expires_ms == number("expires")
    assert made.max_length == number("max-length")
    assert made.max_length_bytes == number("max-length-bytes")
    assert made.consumer_timeout_ms == min(number("consumer-timeout"), TIME_MAX_MS)
    assert made.visibility_timeout_ms == number("visibility-timeout")
    assert made.prefetch_max == number("consumer-prefetch-max")
    assert made.max_unacked == number("max-unacked")
    waits = merged("read-committed", sources)
    assert made.read_committed == (-1 if waits is None else int(waits is True))
    limit = merged("delivery-limit", sources)
    assert made.delivery_limit == (limit if limit is not None else QUORUM_DELIVERY_LIMIT if quorum else -1)
    assert made.dead_letter_exchange == merged("dead-letter-exchange", sources)
    assert made.dead_letter_routing_key == merged("dead-letter-routing-key", sources)
    overflow = {"reject-publish": REJECT_PUBLISH, "reject-publish-dlx": DROP_HEAD if quorum else REJECT_PUBLISH_DLX}
    assert made.overflow == overflow.get(str(merged("overflow", sources)), DROP_HEAD)
    action = {"drop": LIMIT_DROPS, "park": LIMIT_PARKS}
    assert made.limit_action == action.get(str(merged("delivery-limit-action", sources)), LIMIT_DEAD_LETTERS)
    backoff = merged("retry-backoff", sources)
    least = number("delayed-retry-min")
    kind = merged("delayed-retry-type", sources) or ("all" if backoff else "disabled")
    if kind == "disabled" or (backoff is None and least < 0):
        assert (made.retry_type, made.retry_delays_ms) == (RETRY_DISABLED, [])
    else:
        assert made.retry_type == {"all": RETRY_ALL, "failed": RETRY_FAILED, "returned": RETRY_RETURNED}[str(kind)]
        most = number("delayed-retry-max") if number("delayed-retry-max") >= 0 else least
        delays = backoff_delays(backoff)
        for returns in (1, 2, 3, 1000):
            linear = min(least * returns, most)
            assert made.retry_delay_ms(returns) == (delays[min(returns, len(delays)) - 1] if delays else linear)


def fits(key: str, quorum: bool) -> bool:
    (row,) = (row for row in ARGUMENTS if row.key == key)
    return row.quorum if quorum else row.classic


@given(definitions(), definitions())
def test_merging_changes_nothing_it_is_given(policy: dict[str, object], operator: dict[str, object]) -> None:
    arguments = arguments_of({"max-length": 5, "overflow": "reject-publish"})
    before = (dict(arguments.values), dict(policy), dict(operator))
    first = everything(rules_of(arguments, together(policy, operator)))
    assert (arguments.values, policy, operator) == before
    assert everything(rules_of(arguments, together(policy, operator))) == first


# --- policies ---------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["lazy", "all"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*POLICY_KEYS, "max-priority", "storage", "unknown"]), JSON), st.booleans())
def test_what_a_policy_cannot_say_has_no_effect(policy: dict[str, object], is_operator: bool) -> None:
    sound = {key: value for key, value in policy.items() if not policy_key_error(key, value)}
    for quorum in (True, False):
        asked = rules({}, None, policy, quorum=quorum) if is_operator else rules({}, policy, quorum=quorum)
        assert everything(asked) == everything(rules({}, sound, quorum=quorum))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("message-ttl", -1, "-1 is not a valid message TTL"),
        ("message-ttl", "x", '<<"x">> is not a valid message TTL'),
        ("message-ttl", True, "true is not a valid message TTL"),
        ("message-ttl", 1.5, "1.5 is not a valid message TTL"),
        ("message-ttl", [1, "a"], '[1,<<"a">>] is not a valid message TTL'),
        ("message-ttl", None, "null is not a valid message TTL"),
        ("expires", 0, "0 is not a valid queue expiry"),
        ("max-length", -1, "-1 is not a valid maximum length"),
        ("max-length-bytes", -1, "-1 is not a valid maximum length in bytes"),
        ("max-in-memory-length", -1, "-1 is not a valid maximum memory in bytes"),
        ("max-in-memory-bytes", -1, "-1 is not a valid maximum memory in bytes"),
        ("overflow", "x", '<<"x">> is not a valid overflow value'),
        ("dead-letter-exchange", 1, "1 is not a valid dead letter exchange name"),
        ("dead-letter-routing-key", 1, "1 is not a valid dead letter routing key"),
        ("dead-letter-strategy", "x", '<<"x">> is not a valid dead letter strategy'),
        ("delivery-limit", "x", '<<"x">> is not a valid delivery limit'),
        ("queue-mode", 1, "1 is not a valid queue-mode value"),
        ("queue-version", 0, "0 is not a valid queue-version value"),
        ("max-age", "5x", '<<"5x">> is not a valid max age'),
        ("queue-leader-locator", "x", '<<"x">> is not a valid queue leader locator value'),
        ("unknown", 1, '[{<<"unknown">>,1}] are not recognised policy settings'),
        ("max-priority", 5, '[{<<"max-priority">>,5}] are not recognised policy settings'),
    ],
)
def test_texts_of_policies_are_those_of_rabbitmq_3_10_8(key: str, value: object, text: str) -> None:
    assert policy_key_error(key, value) == text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delivery-limit", -1),
        ("consumer-timeout", 0),
        ("delayed-retry-type", "failed"),
        ("delayed-retry-min", 0),
        ("retry-backoff", ["5s"]),
        ("delivery-limit-action", "park"),
        ("visibility-timeout", 1),
        ("consumer-prefetch-max", 1),
        ("max-unacked", 1),
    ],
)
def test_policies_have_the_keys_of_later_versions_and_our_own(key: str, value: object) -> None:
    assert policy_key_error(key, value) == ""
    assert policy_key_error(key, {}).startswith("[] is not a valid ")
    assert policy_key_error(key, 2**63).endswith(
        " is not a valid " + policy_key_error(key, {})[len("[] is not a valid ") :]
    )


@pytest.mark.parametrize(
    "key",
    [
        "max-priority",
        "queue-type",
        "single-active-consumer",
        "message-deduplication",
        "deduplication-header",
        "cache-size",
        "cache-ttl",
        "key-shared",
        "key-header",
        "storage",
        "stream-filter-size-bytes",
        "initial-cluster-size",
        "x-message-ttl",
        "",
    ],
)
def test_what_a_queue_is_cannot_be_changed_by_policy(key: str) -> None:
    for value in (True, 5, "memory", "classic"):
        assert policy_key_error(key, value).endswith(" are not recognised policy settings")
