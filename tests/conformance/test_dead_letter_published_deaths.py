"""An x-death that a client publishes: how it comes back, and what counts on it."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table

from .dead_letters import dead_letters_to, headers_of, history
from .rules import rule


@rule("warren.dead-letter.cycle", "Deaths that a client publishes count on and cut no circle.")
def test_published_deaths_cut_no_circle(client: Client, harness: Harness) -> None:
    client.declare("q", arguments=dead_letters_to("", "wait", message_ttl=1000))
    client.declare("wait", arguments=dead_letters_to("", "nobody"))
    client.publish("", "q")
    for turn in range(1, 4):
        harness.pass_time(1)
        got = client.get("wait", no_ack=True)
        assert history(got) == [("q", "expired", turn)]
        assert got is not None and got.content is not None
        client.publish("", "q", headers=got.content.properties.headers)


PASSED_ON: Table = {"x-death": [{"queue": "q", "reason": "expired", "count": 3}], "mine": 1}


@rule("rabbitmq.dead-letter.as-published", "Until a message dies here its x-death comes back as a client published it.")
@pytest.mark.parametrize(
    "arguments",
    [{}, {"x-max-priority": 5}, {"x-queue-type": "quorum"}, {"x-delivery-limit": 3, "x-delayed-retry-type": "all"}],
)
def test_published_deaths_come_back_as_published(arguments: Table) -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=dead_letters_to("", "wait") | arguments)
    client.declare("wait", durable=True, arguments=dead_letters_to("", "q", message_ttl=1000))
    headers = encode_table(PASSED_ON)
    client.publish("", "q", b"x", headers=headers, delivery_mode=2)
    harness.write()
    harness = harness.restart(clean=True)
    client = harness.channel()
    got = client.get("q")
    assert got is not None and got.content is not None and got.content.properties.headers == headers
    client.send(1, m.BasicReject(got.method.delivery_tag, True))
    got = client.get("q")
    assert headers_of(got)["x-death"] == PASSED_ON["x-death"]
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    assert history(client.get("wait")) == [("q", "rejected", 1), ("q", "expired", 3)]


@rule("rabbitmq.dead-letter.as-published", "They cut no circle after a restart either.")
def test_published_deaths_cut_no_circle_after_a_restart() -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=dead_letters_to("", "wait", message_ttl=1000))
    client.declare("wait", durable=True, arguments=dead_letters_to("", "q", message_ttl=1000))
    sent: Table = {"x-death": [{"queue": "wait", "reason": "expired", "count": 1}]}
    client.publish("", "q", b"x", headers=encode_table(sent), delivery_mode=2)
    harness.write()
    harness = harness.restart(clean=False)
    client = harness.channel()
    harness.pass_time(1)
    assert history(client.get("wait")) == [("q", "expired", 1), ("wait", "expired", 1)], "not dropped as its circle"


@rule("rabbitmq.dead-letter.as-published", "So they do from a delayed exchange, a transaction, a history and a replay.")
@pytest.mark.parametrize("way", ["delay", "transaction", "history", "CC", "BCC"])
def test_published_deaths_come_back_as_published_by_every_way(client: Client, harness: Harness, way: str) -> None:
    client.call(1, m.ExchangeDeclare(0, "e", "x-recent-history", False, False, False, False, False, EMPTY_TABLE))
    client.declare("q")
    others: dict[str, Table] = {"delay": {"x-delay": 1000}, "CC": {"CC": ["q"]}, "BCC": {"BCC": ["q"]}}
    headers = PASSED_ON | others.get(way, {})
    if way == "transaction":
        client.call(1, m.TxSelect())
    client.publish("e" if way == "history" else "", "other" if "CC" in way else "q", headers=encode_table(headers))
    if way == "transaction":
        client.call(1, m.TxCommit())
    if way == "history":
        client.bind("q", "e", "q")
    harness.pass_time(1)
    assert headers_of(client.get("q"))["x-death"] == PASSED_ON["x-death"]


Q = {"queue": "q", "reason": "rejected"}
R = {"queue": "r", "reason": "expired"}
# x-death as a client publishes it, and after the next rejection in q: without times, exchanges and keys.
PUBLISHED_DEATHS: dict[str, tuple[object, list[object]]] = {
    "nothing": ([], [Q | {"count": 1}]),
    "a dead letter": ([Q | {"count": 7}, R | {"count": 2}], [Q | {"count": 8}, R | {"count": 2}]),
    "of an old broker, one each time": ([Q, R, Q, R, Q], [Q | {"count": 4}, R | {"count": 2}]),
    "of an old broker, with others": ([R, Q], [Q | {"count": 2}, R]),
    "of an old broker, alone": ([Q], [Q | {"count": 1}]),
    "repeated": ([R | {"count": 9}, R | {"count": 2}, R], [Q | {"count": 1}, R | {"count": 9}]),
    "bytes for texts": ([{"queue": b"q", "reason": b"rejected", "count": 3}], [{"count": 4}]),
    "a text for a count": ([Q | {"count": "7"}], [Q | {"count": 1}]),
    "a negative count": ([Q | {"count": -7}], [Q | {"count": 1}]),
    "the largest count": ([Q | {"count": (1 << 63) - 1}], [Q | {"count": (1 << 63) - 1}]),
    "a count that is a table": ([Q | {"count": {"n": 1}}, R | {"count": [1]}], [Q | {"count": 1}, R | {"count": [1]}]),
    "a text for a time": ([Q | {"count": 1, "time": "noon"}], [Q | {"count": 2, "time": "noon"}]),
    "another reason": ([{"queue": "q", "reason": "boredom", "count": 3}], [Q | {"count": 1}, {"reason": "boredom"}]),
    "no tables": ([5, None, "q", [Q]], [Q | {"count": 1}, 5, None, "q", [Q]]),
    "no names": ([{}, {"queue": 5}, {"count": 3}], [Q | {"count": 1}, {}, {"queue": 5}, {"count": 3}]),
    "a text": ("[{queue: q}]", [Q | {"count": 1}]),
    "a table": (Q | {"count": 7}, [Q | {"count": 1}]),
}


@rule("rabbitmq.dead-letter.published", "An x-death that a client publishes is counted on, whatever is in it.")
@pytest.mark.parametrize("name", PUBLISHED_DEATHS)
def test_published_deaths(client: Client, name: str) -> None:
    published, expected = PUBLISHED_DEATHS[name]
    client.declare("q", arguments=dead_letters_to("", "dead"))
    client.declare("dead")
    client.publish("", "q", headers=encode_table({"x-death": published, "mine": 1}))
    got = client.get("q")
    assert got is not None and headers_of(got)["mine"] == 1
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    headers = headers_of(client.get("dead"))
    deaths = headers["x-death"]
    assert isinstance(deaths, list) and len(deaths) == len(expected)
    for death, wanted in zip(deaths, expected, strict=True):
        if isinstance(wanted, dict):
            assert isinstance(death, dict) and wanted.items() <= death.items()
        else:
            assert death == wanted
    assert headers["mine"] == 1 and headers["x-last-death-queue"] == "q"


@rule("rabbitmq.dead-letter.published", "Going round with it, a message does not grow.")
@pytest.mark.parametrize("name", PUBLISHED_DEATHS)
def test_published_deaths_do_not_grow(client: Client, name: str) -> None:
    client.declare("q", arguments=dead_letters_to("", "dead"))
    client.declare("dead")
    headers = encode_table({"x-death": PUBLISHED_DEATHS[name][0]})
    sizes: list[int] = []
    for _ in range(5):
        client.publish("", "q", headers=headers)
        got = client.get("q")
        assert got is not None
        client.send(1, m.BasicReject(got.method.delivery_tag, False))
        dead = client.get("dead")
        assert dead is not None and dead.content is not None and dead.content.properties.headers is not None
        headers = dead.content.properties.headers
        sizes.append(len(headers))
    assert sizes[1:] == sizes[1:2] * 4
