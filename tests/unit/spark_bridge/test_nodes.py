"""Sealed messages read from several nodes: whichever fail, nothing is left out and nothing comes twice; nodes.py."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from warren.spark_bridge import nodes
from warren.spark_bridge.bridge_errors import AnotherQueue, Gone
from warren.spark_bridge.columns import Chunk
from warren.spark_bridge.control import BrokerClient

from .chunks import Sent, chunk_of
from .fake_broker import FakeBroker, Reply

ANOTHER = Reply({"error": "another_queue", "reason": "made again"}, 409)
UNAVAILABLE = Reply({"error": "unavailable", "reason": "nobody leads"}, 503)
GONE = Reply({"error": "gone", "reason": "the oldest offset is 40"}, 410)


@pytest.fixture(autouse=True)
def _rested() -> Iterator[None]:
    nodes._resting.clear()
    yield
    nodes._resting.clear()


@pytest.fixture
def brokers() -> Iterator[list[FakeBroker]]:
    """A leader, and two followers."""
    with FakeBroker() as leader, FakeBroker() as one, FakeBroker() as two:
        yield [leader, one, two]


def chunks(first: int, end: int) -> Reply:
    data = chunk_of([Sent(offset) for offset in range(first, end)])
    return Reply(data, headers=(("X-Warren-Next", str(end)),))


def client_of(broker: FakeBroker) -> BrokerClient:
    return BrokerClient(broker.url, "ann", "secret", backoff_s=0.0, retries=1)


def read(brokers: list[FakeBroker], end: int = 30) -> list[tuple[int, int]]:
    leader, *others = brokers
    found: list[Chunk] = list(nodes.read(client_of(leader), [other.url for other in others], "q", 0, end, "i1"))
    return [(chunk.first, chunk.end) for chunk in found]


def test_a_node_that_has_it_answers_all_of_it_and_nobody_else_is_asked(brokers: list[FakeBroker]) -> None:
    leader, one, two = brokers
    one.replies = [chunks(0, 10), chunks(10, 20), chunks(20, 30)]
    assert read(brokers) == [(0, 10), (10, 20), (20, 30)]
    assert (len(leader.asked), len(two.asked)) == (0, 0)
    assert one.asked[0].headers["Authorization"] == client_of(leader)._authorization


@pytest.mark.parametrize(
    "failure", [ANOTHER, UNAVAILABLE, GONE, Reply(silence=True), Reply(b"no chunk"), Reply({}, 404)]
)
def test_whatever_a_node_meets_the_next_one_goes_on_from_the_offset_that_is_due(
    brokers: list[FakeBroker], failure: Reply
) -> None:
    leader, one, two = brokers
    one.replies = [chunks(0, 10), failure]
    two.replies = [chunks(10, 20), failure]
    leader.replies = [chunks(20, 30)]
    assert read(brokers) == [(0, 10), (10, 20), (20, 30)]
    assert "from=10&" in two.asked[0].path and "from=20&" in leader.asked[0].path


def test_what_the_broker_itself_says_counts(brokers: list[FakeBroker]) -> None:
    leader, one, two = brokers
    one.replies = two.replies = [ANOTHER]
    leader.replies = [GONE]
    with pytest.raises(Gone):
        read(brokers)
    leader.replies = [ANOTHER]
    with pytest.raises(AnotherQueue):
        read(brokers)


def test_a_node_that_is_not_reached_is_left_alone_for_a_while(
    brokers: list[FakeBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, one, two = brokers
    one.replies = [UNAVAILABLE]
    two.replies = [chunks(0, 30)]
    assert read(brokers) == [(0, 30)]
    asked = len(one.asked)
    assert read(brokers) == [(0, 30)]
    assert len(one.asked) == asked
    now_s = time.monotonic() + nodes.REST_S
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    read(brokers)
    assert len(one.asked) > asked


def test_credentials_go_nowhere_less_safely_than_to_the_broker() -> None:
    safe = BrokerClient("https://broker:15671", "ann", "secret")
    assert safe.at("http://other:15672") is None
    other = safe.at("https://other:15671")
    assert other is not None and other.url == "https://other:15671"
    plain = BrokerClient("http://broker:15672", "ann", "secret")
    for url in (
        "https://other:15671",
        "http://other",
        "http://:1",
        "http://other:x",
        "ftp://other:1",
        "http://o:99999",
    ):
        assert plain.at(url) is None, url


def test_every_node_has_its_turn_and_so_has_the_broker() -> None:
    assert [nodes.in_turn(["a", "b"], turn) for turn in range(4)] == [(), ("a", "b"), ("b", "a"), ()]
    assert [nodes.in_turn([], turn) for turn in range(2)] == [(), ()]
