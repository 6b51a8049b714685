"""Federated exchanges: Warren below RabbitMQ, below another Warren, and RabbitMQ below Warren."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from link_host import FakeHost, LinksThread

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.links.host import LocalBinding, LocalExchange, Policy

from .brokers import BrokerProcess, RabbitProcess, WarrenProcess, connect, drain, length, uri, wait_for
from .conftest import Federation, Names


@pytest.fixture(params=["rabbitmq", "other_warren"])
def upstream(request: pytest.FixtureRequest) -> BrokerProcess:
    broker: BrokerProcess = request.getfixturevalue(request.param)
    return broker


@pytest.fixture
def links(warren: WarrenProcess) -> Iterator[LinksThread]:
    with LinksThread(FakeHost(warren.amqp_port)) as thread:
        yield thread


def make_exchange(broker: BrokerProcess, exchange: str, queue: str = "", *keys: str) -> None:
    """Declare a durable topic exchange, and a queue bound to it."""
    connection = connect(broker)
    channel = connection.channel()
    channel.exchange_declare(exchange, "topic", durable=True)
    if queue:
        channel.queue_declare(queue, durable=True)
    for key in keys:
        channel.queue_bind(queue, exchange, key)
    connection.close()


def publish(broker: BrokerProcess, exchange: str, key: str, body: bytes, **properties: Any) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties))
    connection.close()


def federated(exchange: str, **policy: str) -> LocalExchange:
    chosen = Policy(**policy) if policy else Policy(upstream_set="all")
    return LocalExchange("/", ExchangeDeclaration(exchange, "topic", durable=True), chosen)


def is_running(links: LinksThread, exchange: str) -> bool:
    return links.federation_link(exchange).get("status") == "running"


def arrives(broker: BrokerProcess, queue: str) -> tuple[Any, Any, bytes]:
    """Wait for one message and take it."""
    wait_for(lambda: length(broker, queue) == 1, "the message to arrive")
    return drain(broker, queue)[0]


def setter(links: LinksThread, broker: BrokerProcess) -> Callable[..., None]:
    def set_upstream(**settings: Any) -> None:
        value = {key.replace("_", "-"): entry for key, entry in settings.items()}
        value = {"uri": uri(broker), "reconnect-delay": 0.2, **value}
        links.do(links.host.set_parameter, "federation-upstream", "up", value)

    return set_upstream


def test_what_is_bound_here_comes_from_the_upstream_and_says_where_it_was(
    links: LinksThread, warren: WarrenProcess, upstream: BrokerProcess, name: Names
) -> None:
    exchange, queue = name("exchange"), name("queue")
    make_exchange(warren, exchange, queue, "a.#")
    links.do(links.host.bind, exchange, LocalBinding("a.#", EMPTY_TABLE))
    setter(links, upstream)(message_ttl=60000, expires=3600000)
    links.do(links.host.federate, federated(exchange))
    wait_for(lambda: is_running(links, exchange), "the link to run")
    publish(upstream, exchange, "b", b"not wanted")
    publish(upstream, exchange, "a.b", b"wanted", headers={"own": 1}, user_id="guest", type="t")
    method, properties, body = arrives(warren, queue)
    assert (method.exchange, method.routing_key, body) == (exchange, "a.b", b"wanted")
    assert (properties.type, properties.user_id, properties.headers["own"]) == ("t", None, 1)
    (entry,) = properties.headers["x-received-from"]
    assert entry.pop("cluster-name")
    assert entry == {
        "uri": f"amqp://127.0.0.1:{upstream.amqp_port}/%2f",
        "exchange": exchange,
        "redelivered": False,
        "vhost": "/",
    }
    status = links.federation_link(exchange)
    assert {"node", "id", "timestamp", "local_connection"} <= status.keys()
    assert (status["type"], status["upstream"], status["upstream_exchange"], status["vhost"]) == (
        "exchange",
        "up",
        exchange,
        "/",
    )
    assert status["uri"] == f"amqp://127.0.0.1:{upstream.amqp_port}/%2f"


def test_a_message_that_could_not_say_where_it_was_is_left_out(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    exchange, queue = name("exchange"), name("queue")
    make_exchange(warren, exchange, queue, "#")
    links.do(links.host.bind, exchange, LocalBinding("#", EMPTY_TABLE))
    setter(links, other_warren)()
    links.do(links.host.federate, federated(exchange))
    wait_for(lambda: is_running(links, exchange), "the link to run")
    for _ in range(2):
        publish(other_warren, exchange, "k", b"full", headers={"own": "x" * 131_000})
    publish(other_warren, exchange, "k", b"next")
    assert arrives(warren, queue)[2] == b"next"
    assert [event for _, event, _ in links.host.logged].count("message_left_out") == 1


def test_bindings_are_followed_while_the_link_runs(
    links: LinksThread, warren: WarrenProcess, upstream: BrokerProcess, name: Names
) -> None:
    exchange, queue = name("exchange"), name("queue")
    make_exchange(warren, exchange, queue, "#")
    setter(links, upstream)()
    links.do(links.host.federate, federated(exchange))
    wait_for(lambda: is_running(links, exchange), "the link to run")

    def is_bound(key: str) -> bool:
        publish(upstream, exchange, key, b"probe")
        publish(upstream, exchange, "always", b"end")
        bodies: list[bytes] = []

        def has_ended() -> bool:
            bodies.extend(body for _, _, body in drain(warren, queue))
            return b"end" in bodies

        wait_for(has_ended, "the message that is always bound")
        return b"probe" in bodies

    always = LocalBinding("always", EMPTY_TABLE)
    with_arguments = LocalBinding("a", encode_table({"x": 1}))
    links.do(links.host.bind, exchange, always)
    wait_until_bound(upstream, exchange, warren, queue, "always")
    assert not is_bound("a")
    links.do(links.host.bind, exchange, always, LocalBinding("a", EMPTY_TABLE), with_arguments)
    wait_for(lambda: is_bound("a"), "the new binding upstream")
    links.do(links.host.bind, exchange, always, with_arguments)
    assert is_bound("a"), "one of the two bindings with that key is left"
    links.do(links.host.bind, exchange, always)
    wait_for(lambda: not is_bound("a"), "the binding to go upstream")


def wait_until_bound(upstream: BrokerProcess, exchange: str, here: BrokerProcess, queue: str, key: str) -> None:
    def comes() -> bool:
        publish(upstream, exchange, key, b"is it there")
        return length(here, queue) > 0

    wait_for(comes, f"a binding with key {key} upstream")
    # All copies of the probe that are still on their way.
    publish(upstream, exchange, key, b"last")
    wait_for(lambda: b"last" in [body for _, _, body in drain(here, queue)], "the last probe")


@pytest.mark.long
@pytest.mark.parametrize("killed", ["upstream", "downstream"])
def test_messages_wait_upstream_while_the_link_is_down_and_none_is_lost_by_a_kill(
    warren: WarrenProcess, upstream: BrokerProcess, name: Names, killed: str
) -> None:
    exchange, queue = name("exchange"), name("queue")
    make_exchange(warren, exchange, queue, "#")
    with Federation(warren, upstream, exchange, "exchanges") as link:
        wait_for(link.is_running, "the link to run")
        for number in range(20):
            publish(upstream, exchange, "k", b"%d" % number, delivery_mode=2)
        if killed == "upstream":
            upstream.kill()
            wait_for(lambda: link.status()["status"] == "error", "the link to notice")
            upstream.start()
        else:
            warren.kill()
            for number in range(20, 40):
                publish(upstream, exchange, "k", b"%d" % number, delivery_mode=2)
            warren.start()
        wait_for(link.is_running, "the link to run again")
        for number in range(40, 60):
            publish(upstream, exchange, "k", b"%d" % number, delivery_mode=2)
        wanted = {b"%d" % number for number in range(60) if killed == "downstream" or not 20 <= number < 40}
        received: set[bytes] = set()

        def all_received() -> bool:
            received.update(body for _, _, body in drain(warren, queue))
            return received >= wanted

        wait_for(all_received, "all messages")
        assert received == wanted


def test_what_the_link_made_upstream_goes_with_the_policy(
    links: LinksThread, warren: WarrenProcess, upstream: BrokerProcess, name: Names
) -> None:
    exchange = name("exchange")
    make_exchange(warren, exchange)
    setter(links, upstream)()
    links.do(links.host.federate, federated(exchange))
    wait_for(lambda: is_running(links, exchange), "the link to run")
    made = f"federation: {exchange} -> here"
    assert length(upstream, made) == 0
    links.do(links.host.federate)
    wait_for(lambda: length(upstream, made) == -1, "the upstream queue to be deleted")
    wait_for(lambda: not links.federation_link(exchange), "the link to be gone")


@pytest.mark.parametrize("left", ["A", "B", "AB", "none of ours"])
@pytest.mark.parametrize("nowait", [False, True])
def test_whatever_an_earlier_attempt_left_upstream_messages_come_once(
    links: LinksThread, warren: WarrenProcess, upstream: BrokerProcess, name: Names, left: str, nowait: bool
) -> None:
    exchange, queue = name("exchange"), name("queue")
    make_exchange(warren, exchange, queue, "#")
    make_exchange(upstream, exchange)
    internal = f"federation: {exchange} -> here"
    connection = connect(upstream)
    for suffix in "AB":
        if suffix in left:
            channel = connection.channel()
            channel.exchange_declare(f"{internal} {suffix}", "fanout", durable=True, auto_delete=True, internal=True)
            channel.exchange_bind(f"{internal} {suffix}", exchange, "stale")
    connection.close()
    links.do(links.host.bind, exchange, LocalBinding("a", EMPTY_TABLE), LocalBinding("b", EMPTY_TABLE))
    setter(links, upstream)(bind_nowait=nowait)
    links.do(links.host.federate, federated(exchange))
    wait_for(lambda: is_running(links, exchange), "the link to run")
    for key in ("stale", "a", "b", "a"):
        publish(upstream, exchange, key, key.encode())
    wait_for(lambda: length(warren, queue) >= 3, "the messages that are bound")
    assert [body for _, _, body in drain(warren, queue)] == [b"a", b"b", b"a"]


def test_a_stop_of_the_broker_leaves_the_upstream_queue(
    warren: WarrenProcess, upstream: BrokerProcess, name: Names
) -> None:
    exchange = name("exchange")
    make_exchange(warren, exchange)
    with LinksThread(FakeHost(warren.amqp_port)) as links:
        setter(links, upstream)()
        links.do(links.host.federate, federated(exchange))
        wait_for(lambda: is_running(links, exchange), "the link to run")
    assert length(upstream, f"federation: {exchange} -> here") == 0


def test_two_brokers_that_are_each_others_upstream_get_every_message_once(
    warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    exchange, queue = name("exchange"), name("queue")
    with (
        LinksThread(FakeHost(warren.amqp_port, "here")) as here,
        LinksThread(FakeHost(other_warren.amqp_port, "there")) as there,
    ):
        for links, broker, upstream in ((here, warren, other_warren), (there, other_warren, warren)):
            make_exchange(broker, exchange, queue, "#")
            links.do(links.host.bind, exchange, LocalBinding("#", EMPTY_TABLE))
            setter(links, upstream)(max_hops=3)
            links.do(links.host.federate, federated(exchange))
        for links in (here, there):
            wait_for(lambda links=links: is_running(links, exchange), "the links to run")
        for number in range(5):
            publish(warren, exchange, "k", b"from here %d" % number)
            publish(other_warren, exchange, "k", b"from there %d" % number)
        for broker in (warren, other_warren):
            wait_for(lambda broker=broker: length(broker, queue) >= 10, "all messages on both")
        # Whatever ran in circles would come before these.
        publish(warren, exchange, "k", b"end")
        received = collect_until_end(other_warren, queue)
        assert sorted(received) == sorted({*received}), "each once"
        assert len(received) == 11


def collect_until_end(broker: BrokerProcess, queue: str) -> list[bytes]:
    received: list[bytes] = []

    def has_ended() -> bool:
        received.extend(body for _, _, body in drain(broker, queue))
        return b"end" in received

    wait_for(has_ended, "the last message")
    return received


def test_rabbitmq_below_warren_gets_what_is_bound_there(
    warren: WarrenProcess, rabbitmq: RabbitProcess, name: Names
) -> None:
    exchange, queue = name("exchange"), name("queue")
    make_exchange(warren, exchange)
    make_exchange(rabbitmq, exchange, queue, "a.#")
    rabbitmq.api("PUT", "parameters/federation-upstream/%2f/warren", {"value": {"uri": uri(warren)}})
    policy = {"pattern": f"^{exchange}$", "definition": {"federation-upstream": "warren"}, "apply-to": "exchanges"}
    rabbitmq.api("PUT", "policies/%2f/below", policy)
    try:
        wait_until_bound(warren, exchange, rabbitmq, queue, "a.b")
        publish(warren, exchange, "a.c", b"from Warren")
        method, properties, body = arrives(rabbitmq, queue)
        assert (method.routing_key, body) == ("a.c", b"from Warren")
        assert properties.headers["x-received-from"][0]["exchange"] == exchange
    finally:
        rabbitmq.api("DELETE", "policies/%2f/below")
        rabbitmq.api("DELETE", "parameters/federation-upstream/%2f/warren")
