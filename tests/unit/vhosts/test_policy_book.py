"""Which policy applies to what, and which ones are refused with which text."""

from __future__ import annotations

import json

import pytest

from warren.queues.claim_names import claims_name
from warren.vhosts.metadata import PolicyPut
from warren.vhosts.policies import PRIORITY_MAX, SIZE_MAX, PolicyBook


def policy(
    name: str = "p",
    pattern: str = "",
    apply_to: str = "all",
    priority: int = 0,
    *,
    operator: bool = False,
    **definition: object,
) -> PolicyPut:
    """Make a policy; underscores in the keys of `definition` stand for hyphens."""
    settings = {key.replace("_", "-"): value for key, value in definition.items()} or {"expires": 1}
    return PolicyPut("/", name, pattern, apply_to, priority, json.dumps(settings), operator)


def applying(book: PolicyBook, name: str = "q") -> list[str]:
    """Return the kinds and types of entities called `name` that have a policy."""
    found = [kind for kind in ("classic", "quorum", "stream") if book.maybe_policy("queue", name, kind) is not None]
    return found + (["exchange"] if book.maybe_policy("exchange", name) is not None else [])


def book_of(*puts: PolicyPut) -> PolicyBook:
    book = PolicyBook()
    for put in puts:
        book.put(put)
    return book


@pytest.mark.parametrize(
    ("apply_to", "expected"),
    [
        ("all", ["classic", "quorum", "stream", "exchange"]),
        ("queues", ["classic", "quorum", "stream"]),
        ("classic_queues", ["classic"]),
        ("quorum_queues", ["quorum"]),
        ("streams", ["stream"]),
        ("exchanges", ["exchange"]),
    ],
)
def test_a_policy_applies_to_what_it_is_for(apply_to: str, expected: list[str]) -> None:
    assert applying(book_of(policy(apply_to=apply_to, alternate_exchange="a"))) == expected


def test_no_policy_is_for_the_claims_of_a_drain_but_for_an_exchange_that_is_called_so() -> None:
    name = claims_name("q", "c")
    book = book_of(policy(pattern="", alternate_exchange="a", max_length=1), policy(pattern="", operator=True))
    assert applying(book, "q") != [] and book.maybe_operator_policy("q") is not None
    assert applying(book, name) == ["exchange"]
    assert book.maybe_operator_policy(name) is None


def test_an_empty_pattern_is_found_in_every_name_and_any_pattern_anywhere_in_it() -> None:
    assert applying(book_of(policy(pattern="")), "q") != []
    assert applying(book_of(policy(pattern="b")), "abc") != []
    assert applying(book_of(policy(pattern="^b")), "abc") == []
    assert applying(book_of(policy(pattern=r"^(?!amq\.)")), "amq.gen-1") == []


# RabbitMQ 3.10.8's report for a policy of each key, and further keys of later versions and of Warren.
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("message-ttl", 1, ["classic", "quorum"]),
        ("expires", 1, ["classic", "quorum"]),
        ("max-length", 1, ["classic", "quorum"]),
        ("max-length-bytes", 1, ["classic", "quorum", "stream"]),
        ("overflow", "drop-head", ["classic", "quorum"]),
        ("dead-letter-exchange", "x", ["classic", "quorum"]),
        ("dead-letter-routing-key", "k", ["classic", "quorum"]),
        ("dead-letter-strategy", "at-least-once", ["quorum"]),
        ("queue-mode", "lazy", ["classic"]),
        ("queue-version", 2, ["classic", "quorum", "stream"]),
        ("queue-master-locator", "min-masters", ["classic"]),
        ("ha-mode", "all", ["classic"]),
        ("max-age", "1h", ["stream"]),
        ("stream-max-segment-size-bytes", 1, ["stream"]),
        ("cleanup", "compact", ["stream"]),
        ("initial-cluster-size", 1, ["stream"]),
        ("max-in-memory-length", 1, ["classic", "quorum"]),
        ("alternate-exchange", "x", ["classic", "quorum", "stream"]),
        ("target-group-size", 1, ["quorum"]),
        ("queue-leader-locator", "balanced", ["classic", "quorum", "stream"]),
        ("delivery-limit", 1, ["classic", "quorum"]),
        ("consumer-timeout", 1, ["classic", "quorum"]),
    ],
)
def test_a_policy_passes_over_queue_types_that_lack_one_of_its_keys(
    key: str, value: object, expected: list[str]
) -> None:
    put = PolicyPut("/", "p", "", "all", 0, json.dumps({key: value}))
    assert applying(book_of(put)) == [*expected, "exchange"]


def test_a_policy_that_is_passed_over_leaves_room_for_the_next() -> None:
    book = book_of(policy("high", priority=1, expires=1, dead_letter_strategy="at-most-once"), policy("low"))
    names = {}
    for queue_type in ("classic", "quorum", "stream"):
        found = book.maybe_policy("queue", "q", queue_type)
        names[queue_type] = found.name if found is not None else ""
    assert names == {"classic": "low", "quorum": "high", "stream": ""}


def test_the_highest_priority_wins_and_of_equals_the_first_by_name() -> None:
    book = book_of(
        policy("z", priority=5), policy("b", priority=PRIORITY_MAX), policy("c", priority=PRIORITY_MAX), policy("a")
    )
    winners = []
    while book.policies:
        found = book.maybe_policy("queue", "q")
        assert found is not None
        winners.append(found.name)
        book.delete(found.name, operator=False)
    assert winners == ["b", "c", "z", "a"]
    assert book.maybe_policy("queue", "q") is None


def test_a_second_put_replaces_the_first() -> None:
    book = book_of(policy(pattern="^a", expires=1), policy(pattern="^b", expires=2))
    assert applying(book, "a") == []
    found = book.maybe_policy("queue", "b")
    assert found is not None
    assert found.definition == {"expires": 2}


def test_operator_policies_are_apart_and_for_queues_only() -> None:
    book = book_of(policy("p", operator=True), policy("e", apply_to="exchanges", priority=9, operator=True))
    assert applying(book) == []
    found = book.maybe_operator_policy("q")
    assert found is not None
    assert found.name == "p"
    book.delete("p", operator=False)
    assert book.maybe_operator_policy("q") is not None
    book.delete("p", operator=True)
    assert book.maybe_operator_policy("q") is None


def refusal(put: PolicyPut) -> str:
    book = book_of(policy("before"))
    with pytest.raises(ValueError, match=r".") as caught:
        book.put(put)
    assert list(book.policies) == ["before"]
    assert not book.operator_policies
    return str(caught.value)


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ("{}", "no policy provided"),
        ('{"message-ttl":"a"}', '<<"a">> is not a valid message TTL'),
        ('{"message-ttl":1.5}', "1.5 is not a valid message TTL"),
        ('{"message-ttl":null}', "null is not a valid message TTL"),
        ('{"message-ttl":true}', "true is not a valid message TTL"),
        ('{"expires":0,"message-ttl":-5}', "0 is not a valid queue expiry"),
        ('{"message-ttl":-5,"expires":0}', "0 is not a valid queue expiry"),
        ('{"nope":1,"message-ttl":-5}', "-5 is not a valid message TTL"),
        ('{"max-length":-1}', "-1 is not a valid maximum length"),
        ('{"max-length-bytes":-1}', "-1 is not a valid maximum length in bytes"),
        ('{"overflow":"x"}', '<<"x">> is not a valid overflow value'),
        ('{"dead-letter-exchange":1}', "1 is not a valid dead letter exchange name"),
        ('{"dead-letter-routing-key":1}', "1 is not a valid dead letter routing key"),
        ('{"dead-letter-strategy":"x"}', '<<"x">> is not a valid dead letter strategy'),
        ('{"alternate-exchange":1}', "1 is not a valid alternate exchange name"),
        ('{"queue-mode":"x"}', '<<"x">> is not a valid queue-mode value'),
        ('{"queue-version":3}', "3 is not a valid queue-version value"),
        ('{"delivery-limit":"x"}', '<<"x">> is not a valid delivery limit'),
        ('{"federation-upstream":5}', "5 is not a valid federation upstream name"),
        ('{"federation-upstream-set":5}', "5 is not a valid federation upstream set name"),
        ('{"federation-upstream-pattern":5}', "5 is not a valid federation upstream pattern name"),
        (
            '{"federation-upstream-set":"all","federation-upstream":"x"}',
            "cannot specify federation-upstream, federation-upstream-set or federation-upstream-pattern together",
        ),
        (
            '{"federation-upstream-pattern":"("}',
            "could not compile pattern ( to a regular expression. Error: pattern '(': missing ): (",
        ),
        ('{"max-priority":5}', '[{<<"max-priority">>,5}] are not recognised policy settings'),
        ('{"nope":[1,{"a":null}]}', '[{<<"nope">>,[1,#{<<"a">> => null}]}] are not recognised policy settings'),
        ('{"b":1,"a":"x"}', '[{<<"a">>,<<"x">>},{<<"b">>,1}] are not recognised policy settings'),
        ("[]", "a definition must be a JSON object"),
        ("5", "a definition must be a JSON object"),
        ('{"expires":NaN}', "NaN is not JSON"),
        ("[" * 100_000, "a definition is nested too deeply"),
    ],
)
def test_a_bad_definition_is_refused_in_rabbitmqs_words(definition: str, text: str) -> None:
    assert refusal(PolicyPut("/", "p", "", "all", 0, definition)) == text


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("max-lenght", "max-length"),
        ("max_length", "max-length"),
        ("x-max-length", "max-length"),
        ("Message-TTL", "message-ttl"),
        ("dead-letter-exchnage", "dead-letter-exchange"),
        ("ha-mod", "ha-mode"),
    ],
)
def test_a_misspelt_key_is_told_with_the_nearest(key: str, near: str) -> None:
    text = refusal(PolicyPut("/", "p", "", "all", 0, json.dumps({"expires": 1, key: 1})))
    said = f'[{{<<"{key}">>,1}}] are not recognised policy settings; did you mean {near} instead of {key}?'
    assert text == said


def test_the_nearest_key_of_an_operator_policy_is_one_that_it_may_have() -> None:
    text = refusal(PolicyPut("/", "p", "", "all", 0, '{"max-lenghts":1,"ha-mod":1}', operator=True))
    assert text.endswith("; did you mean max-length instead of max-lenghts?")
    assert "did you mean" not in refusal(PolicyPut("/", "p", "", "all", 0, '{"ha-mod":1}', operator=True))


def test_of_very_many_unknown_keys_only_the_first_are_compared() -> None:
    """Comparing takes as long as both are, squared."""
    few = {"a": 1, "max-lenght": 1}
    many = {f"b{at:04}": 1 for at in range(1000)} | few
    assert refusal(PolicyPut("/", "p", "", "all", 0, json.dumps(few))).endswith("instead of max-lenght?")
    assert "did you mean" not in refusal(PolicyPut("/", "p", "", "all", 0, json.dumps(many)))
    assert "did you mean" not in refusal(PolicyPut("/", "p", "", "all", 0, json.dumps({"max-length" * 100_000: 1})))


@pytest.mark.parametrize("definition", ["", "{", '{"expires":1}}', "{'expires':1}"])
def test_what_is_no_json_is_refused(definition: str) -> None:
    assert refusal(PolicyPut("/", "p", "", "all", 0, definition))


def test_all_that_is_wrong_is_told_at_once() -> None:
    lines = refusal(PolicyPut("/", "p", "(", "zz", 1 << 63, '{"message-ttl":"x"}')).splitlines()
    assert lines[:2] == [
        '<<"x">> is not a valid message TTL',
        "apply-to 'zz' unrecognised; should be one of: 'exchanges', 'queues', 'classic_queues', 'quorum_queues', "
        "'streams', or 'all'",
    ]
    assert lines[2].startswith("pattern should be regular expression but is invalid: pattern '(': missing )")
    assert lines[3:] == ["priority should be a number, actually was 9223372036854775808"]


@pytest.mark.parametrize(
    "definition",
    [
        {"expires": 1, "message-ttl": 0, "max-length": 0, "max-length-bytes": 0, "delivery-limit": 0},
        {"overflow": "reject-publish", "queue-version": 2, "target-group-size": 3, "max-in-memory-bytes": 1},
        {"consumer-prefetch-max": 10, "max-unacked": 100},
    ],
)
def test_operator_policies_take_what_limits(definition: dict[str, object]) -> None:
    book = book_of(PolicyPut("/", "p", "", "all", 0, json.dumps(definition), operator=True))
    assert book.operator_policies["p"].definition == definition


@pytest.mark.parametrize("key", ["dead-letter-exchange", "alternate-exchange", "queue-mode", "nope"])
def test_operator_policies_take_nothing_else(key: str) -> None:
    text = refusal(PolicyPut("/", "p", "", "all", 0, json.dumps({"expires": 1, key: "x"}), operator=True))
    assert text == f'[{{<<"{key}">>,<<"x">>}}] are not recognised policy settings'


LARGE = "a(.?){150}z"


def filled() -> PolicyBook:
    """Return a book with as many large patterns as there may be."""
    book = PolicyBook()
    for at in range(SIZE_MAX):
        try:
            book.put(policy(f"p{at}", LARGE, operator=at % 2 == 1))
        except ValueError:
            return book
    raise AssertionError("no bound")


def test_the_patterns_of_a_vhost_are_bounded_together() -> None:
    book = filled()
    count = len(book.policies) + len(book.operator_policies)
    assert count == SIZE_MAX // book.policies["p0"].size > 2
    with pytest.raises(ValueError, match=r"^the patterns of all policies in vhost '/' would have a size of \d+ when"):
        book.put(policy("more", LARGE))
    assert "more" not in book.policies


def test_who_has_no_room_for_another_pattern_can_replace_and_delete() -> None:
    book = filled()
    assert book.put(policy("p0", LARGE, expires=7))
    assert book.put(policy("p0", "a(.?){149}z"))
    assert book.delete("p1", operator=True)
    assert book.put(policy("more", LARGE))
    with pytest.raises(ValueError, match="when compiled"):
        book.put(policy("p0", "a(.?){290}z"))


def test_policies_that_are_stored_are_kept_however_many() -> None:
    book = filled()
    assert book.put(policy("stored", LARGE), stored=True)
    assert book.put(policy("larger", "a(.?){500}(.?){500}z"), stored=True)
    assert book.size > SIZE_MAX
    assert book.put(policy("larger", "a"))


def test_finding_a_policy_is_counted_by_what_was_tried() -> None:
    book = book_of(policy("a", "^nosuch", priority=1), policy("b", LARGE, "exchanges"), policy("c", "", priority=-1))

    def searched(name: str) -> int:
        before = book.searched
        book.of_queue(name)
        return int(book.searched - before)

    assert searched("nosuch") == 1 + book.policies["a"].pattern.steps("nosuch")
    assert searched("q" * 200) == 3 + book.policies["a"].pattern.steps("q" * 200)
    before = book.searched
    book.of_exchange("q" * 200)
    assert book.searched - before > 500
