"""The exchange that a federated broker declares at its upstream."""

from __future__ import annotations

import pytest

from .topology import bind, exchange, headers_content, matched, queue

HERE = {"cluster-name": "down", "vhost": "v"}
ELSEWHERE = {"cluster-name": "down", "vhost": "other"}


@pytest.mark.parametrize(
    ("max_hops", "visited", "passes"),
    [
        (1, None, True),
        (1, [], True),
        (1, [ELSEWHERE], False),
        (2, [ELSEWHERE], True),
        (2, [ELSEWHERE, ELSEWHERE], False),
        (5, [ELSEWHERE, HERE], False),
        (5, ["no table", {"cluster-name": "down"}], True),
        (1, "no array", True),
        (0, [], False),
    ],
)
def test_a_message_passes_while_hops_are_left_and_it_has_not_been_downstream(
    max_hops: int, visited: object, passes: bool
) -> None:
    source = exchange("x-federation-upstream", x_max_hops=max_hops, x_downstream_name="down", x_downstream_vhost="v")
    bind(source, queue("q"), "any key")
    content = headers_content(None if visited is None else {"x-received-from": visited})
    assert matched(source, "another key", content) == (["q"] if passes else [])


def test_without_arguments_it_allows_one_hop() -> None:
    source = exchange("x-federation-upstream")
    bind(source, queue("q"))
    assert matched(source, "k", headers_content({"x-received-from": []})) == ["q"]
    assert matched(source, "k", headers_content({"x-received-from": [{}]})) == []
