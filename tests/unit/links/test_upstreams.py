"""Upstreams, their sets, and what a policy makes of them."""

from __future__ import annotations

import pytest

from warren.links.host import Parameter, Policy
from warren.links.upstreams import UpstreamBook, validate_upstream, validate_upstream_set


def test_an_upstream_with_everything_wrong_gets_the_sentences_of_rabbitmq() -> None:
    value = {
        "uri": "amqp://",
        "foo": 1,
        "prefetch-count": "x",
        "reconnect-delay": "x",
        "ack-mode": "x",
        "trust-user-id": 1,
        "exchange": 1,
        "queue": 2,
        "max-hops": "z",
        "expires": "x",
        "message-ttl": "l",
        "consumer-tag": 4,
        "resource-cleanup-mode": "x",
        "channel-use-mode": "z",
        "bind-nowait": 3,
        "ha-policy": 3,
    }
    problems = validate_upstream("t", value)
    assert [problem.partition(" should")[0] for problem in problems] == [
        'Unrecognised terms [{<<"foo">>,1}] in t',
        "channel-use-mode",
        "bind-nowait",
        "ha-policy",
        "resource-cleanup-mode",
        "ack-mode",
        "trust-user-id",
        "message-ttl",
        "expires",
        "max-hops",
        "reconnect-delay",
        "prefetch-count",
        "consumer-tag",
        "queue",
        "exchange",
    ]
    assert validate_upstream("t", {}) == ['Key "uri" not found in t']


@pytest.mark.parametrize("name", ["exchange", "queue", "consumer-tag"])
def test_names_upstream_have_room_on_the_wire(name: str) -> None:
    assert validate_upstream("t", {"uri": "amqp://h", name: "n" * 255}) == []
    assert validate_upstream("t", {"uri": "amqp://h", name: "n" * 256}) == [f"{name} is longer than 255 bytes"]


def test_a_set_is_a_list_of_members_that_name_an_upstream() -> None:
    assert validate_upstream_set("t", [{"upstream": "nope"}]) == []
    assert validate_upstream_set("t", []) == []
    assert validate_upstream_set("t", {}) == []
    assert validate_upstream_set("t", [{"upstream": "nope"}] * 2000) == []
    assert validate_upstream_set("t", [{"upstream": "nope"}] * 2001) == ["t has 2001 upstreams (maximum 2000)"]
    assert validate_upstream_set("t", "all") == ['t should be list, actually was <<"all">>']
    assert validate_upstream_set("t", [{}]) == ['Key "upstream" not found in t']
    assert validate_upstream_set("t", [1]) == ["t not a list 1"]
    assert validate_upstream_set("t", [{"upstream": "t", "max-hops": "x", "uri": "amqp://"}]) == [
        'Unrecognised terms [{<<"uri">>,<<"amqp://">>}] in t',
        'max-hops should be a number, actually was <<"x">>',
    ]


def book() -> UpstreamBook:
    return UpstreamBook(
        [
            Parameter("federation-upstream", "v", "east", {"uri": "amqp://east", "prefetch-count": 7}),
            Parameter("federation-upstream", "v", "west", {"uri": ["amqp://west/w", "amqp://west2"]}),
            Parameter("federation-upstream", "other", "south", {"uri": "amqp://south"}),
            Parameter("federation-upstream", "v", "broken", {"uri": 5}),
            Parameter("federation-upstream", "v", "endless", {"uri": "amqp://h", "max-hops": float("inf")}),
            Parameter(
                "federation-upstream-set",
                "v",
                "chosen",
                [{"upstream": "east", "exchange": "x", "max-hops": 3}, {"upstream": "missing"}],
            ),
        ]
    )


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (Policy(upstream_set="all"), ["east", "west"]),
        (Policy(upstream="west"), ["west"]),
        (Policy(upstream="missing"), []),
        (Policy(upstream_set="chosen"), ["east"]),
        (Policy(upstream_set="missing"), []),
        (Policy(upstream_pattern="st$"), ["east", "west"]),
        (Policy(upstream_pattern="^e"), ["east"]),
        (Policy(upstream_pattern="("), []),
        (Policy(), []),
    ],
)
def test_a_policy_chooses_among_the_upstreams_of_its_vhost(policy: Policy, names: list[str]) -> None:
    assert [upstream.name for upstream in book().resolve("v", policy)] == names


def test_a_member_of_a_set_overrides_its_upstream() -> None:
    (upstream,) = book().resolve("v", Policy(upstream_set="chosen"))
    assert (upstream.exchange, upstream.max_hops, upstream.prefetch_count) == ("x", 3, 7)
    (plain,) = book().resolve("v", Policy(upstream="east"))
    assert (plain.exchange, plain.max_hops, plain.consumer_tag) == (None, 1, "federation-link-east")


def test_a_uri_without_vhost_means_the_one_of_the_same_name() -> None:
    (upstream,) = book().resolve("v", Policy(upstream="west"))
    assert [uri.vhost for uri in upstream.uris] == ["w", "v"]
