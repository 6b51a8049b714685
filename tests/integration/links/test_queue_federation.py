"""Federated queues: messages go where somebody waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from link_host import FakeHost, LinksThread
from pika.exceptions import AMQPError

from warren.amqp.declarations import QueueDeclaration
from warren.links.host import LocalQueue, Policy

from .brokers import BrokerProcess, RabbitProcess, WarrenProcess, connect, drain, fill, length, uri, wait_for
from .conftest import Federation, Names


@pytest.fixture(params=["rabbitmq", "other_warren"])
def upstream(request: pytest.FixtureRequest) -> BrokerProcess:
    broker: BrokerProcess = request.getfixturevalue(request.param)
    return broker


@pytest.fixture
def links(warren: WarrenProcess) -> Iterator[LinksThread]:
    with LinksThread(FakeHost(warren.amqp_port)) as thread:
        yield thread


def declare(broker: BrokerProcess, queue: str) -> None:
    connection = connect(broker)
    connection.channel().queue_declare(queue, durable=True)
    connection.close()


def federate(links: LinksThread, upstream: BrokerProcess, local_queue: str, **settings: Any) -> None:
    value = {"uri": uri(upstream), "reconnect-delay": 0.2, **{k.replace("_", "-"): v for k, v in settings.items()}}
    links.do(links.host.set_parameter, "federation-upstream", "up", value)
    links.do(links.host.federate, LocalQueue("/", QueueDeclaration(local_queue, durable=True), Policy(upstream="up")))
    wait_for(lambda: links.federation_link(local_queue).get("status") == "running", "the link to run")


def test_a_message_without_room_for_more_headers_comes_without_those_of_the_link(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    queue = name("queue")
    declare(warren, queue)
    fill(other_warren, queue, [b"full"], headers={"own": "x" * 131_000, "CC": ["copy"]})
    fill(other_warren, queue, [b"next"])
    federate(links, other_warren, queue)
    links.do(links.host.want, queue, True)
    wait_for(lambda: length(warren, queue) == 2, "both messages")
    full, after = drain(warren, queue)
    assert (full[2], [*full[1].headers]) == (b"full", ["own"])
    assert (after[2], "x-received-from" in after[1].headers) == (b"next", True)


def test_messages_come_only_while_somebody_here_waits_for_them(
    links: LinksThread, warren: WarrenProcess, upstream: BrokerProcess, name: Names
) -> None:
    queue = name("queue")
    declare(warren, queue)
    fill(upstream, queue, [b"1"], headers={"CC": ["copy"], "own": 5}, user_id="guest")
    federate(links, upstream, queue)
    assert length(warren, queue) == 0 and length(upstream, queue) == 1
    links.do(links.host.want, queue, True)
    wait_for(lambda: length(warren, queue) == 1, "the message")
    assert length(upstream, queue) == 0
    links.do(links.host.want, queue, False)
    ((method, properties, body),) = drain(warren, queue)
    assert (method.exchange, method.routing_key, body, properties.user_id) == ("", queue, b"1", None)
    assert properties.headers == {
        "own": 5,
        "x-original-exchange": "",
        "x-original-routing-key": queue,
        "x-original-cc": ["copy"],
        "x-received-from": [
            {
                "uri": f"amqp://127.0.0.1:{upstream.amqp_port}/%2f",
                "queue": queue,
                "redelivered": False,
                "visit-count": 1,
            }
        ],
    }
    wait_for(lambda: consumers(upstream, queue) == 0, "the link to stop consuming")
    fill(upstream, queue, [b"2"])
    links.do(links.host.want, queue, True)
    wait_for(lambda: length(warren, queue) == 1, "the second message")
    status = links.federation_link(queue)
    assert (status["type"], status["upstream_queue"], status["consumer_tag"]) == ("queue", queue, "federation-link-up")


def consumers(broker: BrokerProcess, queue: str) -> int:
    connection = connect(broker)
    count: int = connection.channel().queue_declare(queue, passive=True).method.consumer_count
    connection.close()
    return count


def test_a_consumer_at_the_upstream_comes_first(
    links: LinksThread, warren: WarrenProcess, upstream: BrokerProcess, name: Names
) -> None:
    queue = name("queue")
    declare(warren, queue)
    federate(links, upstream, queue)
    links.do(links.host.want, queue, True)
    wait_for(lambda: consumers(upstream, queue) == 1, "the link to consume")
    connection = connect(upstream)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=3)
    taken: list[bytes] = []
    channel.basic_consume(queue, lambda _c, _m, _p, body: taken.append(body))
    fill(upstream, queue, [b"1", b"2", b"3", b"4"])
    wait_for(lambda: length(warren, queue) == 1, "what the consumer had no room for")
    while len(taken) < 3:
        connection.process_data_events(1)
    assert {*taken} | {body for _, _, body in drain(warren, queue)} == {b"1", b"2", b"3", b"4"}
    connection.close()


@pytest.mark.long
@pytest.mark.parametrize("killed", ["upstream", "downstream"])
def test_nothing_is_lost_when_a_side_is_killed_in_the_middle(
    warren: WarrenProcess, upstream: BrokerProcess, name: Names, killed: str
) -> None:
    queue = name("queue")
    declare(warren, queue)
    sent = {b"%d" % number for number in range(1000)}
    fill(upstream, queue, sorted(sent))
    with Federation(warren, upstream, queue, "queues", prefetch_count=2) as link:
        wait_for(link.is_running, "the link to run")
        received: set[bytes] = set()
        was_killed = False
        while received != sent:
            try:
                connection = connect(warren)
                channel = connection.channel()
                channel.basic_qos(prefetch_count=10)
                for method, _, body in channel.consume(queue, inactivity_timeout=10):
                    if method is None or body is None:
                        break
                    received.add(body)
                    channel.basic_ack(method.delivery_tag or 0)
                    if len(received) > 100 and not was_killed:
                        assert length(upstream, queue) > 0, "the kill comes too late to test anything"
                        was_killed = True
                        broker: BrokerProcess = upstream if killed == "upstream" else warren
                        broker.kill()
                        broker.start()
                    if received == sent:
                        break
                connection.close()
            except (AMQPError, OSError):
                continue  # the broker of the consumer was the one
        wait_for(lambda: length(upstream, queue) == 0, "an empty upstream")


def test_an_upstream_queue_of_another_name_is_used_as_it_is(
    links: LinksThread, warren: WarrenProcess, upstream: BrokerProcess, name: Names
) -> None:
    queue, other = name("queue"), name("other")
    declare(warren, queue)
    connection = connect(upstream)
    connection.channel().queue_declare(other, durable=True, arguments={"x-max-length": 5})
    connection.close()
    federate(links, upstream, queue, queue=other)
    links.do(links.host.want, queue, True)
    connection = connect(upstream)
    connection.channel().basic_publish("", other, b"x")
    connection.close()
    wait_for(lambda: length(warren, queue) == 1, "the message")


def test_rabbitmq_below_warren_takes_what_its_consumers_want(
    warren: WarrenProcess, rabbitmq: RabbitProcess, name: Names
) -> None:
    queue = name("queue")
    fill(warren, queue, [b"1", b"2"])
    declare(rabbitmq, queue)
    rabbitmq.api("PUT", "parameters/federation-upstream/%2f/warren", {"value": {"uri": uri(warren)}})
    policy = {"pattern": f"^{queue}$", "definition": {"federation-upstream": "warren"}, "apply-to": "queues"}
    rabbitmq.api("PUT", "policies/%2f/below", policy)
    try:
        connection = connect(rabbitmq)
        taken: list[bytes] = []
        connection.channel().basic_consume(queue, lambda _c, _m, _p, body: taken.append(body), auto_ack=True)

        def both() -> bool:
            connection.process_data_events(0.1)
            return len(taken) == 2

        wait_for(both, "both messages from Warren")
        assert taken == [b"1", b"2"]
        connection.close()
    finally:
        rabbitmq.api("DELETE", "policies/%2f/below")
        rabbitmq.api("DELETE", "parameters/federation-upstream/%2f/warren")
