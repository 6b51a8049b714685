"""Shovels between brokers that run, die and come back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from link_host import LOOPBACK_SETTINGS, FakeHost, LinksThread

from integration.management.api import Api
from warren.links.address_guard import AddressGuard
from warren.links.amqp_client import ClientSettings
from warren.links.shovel import Shovel

from .brokers import (
    BrokerProcess,
    RabbitProcess,
    WarrenProcess,
    bodies,
    connect,
    drain,
    fill,
    length,
    uri,
    wait_for,
)
from .conftest import Names

MESSAGES = 3000


@pytest.fixture
def links(warren: WarrenProcess) -> Iterator[LinksThread]:
    with LinksThread(FakeHost(warren.amqp_port)) as thread:
        yield thread


def start(links: LinksThread, name: str, **definition: Any) -> None:
    value = {key.replace("_", "-"): entry for key, entry in definition.items()}
    links.do(links.host.set_parameter, "shovel", name, {"src-uri": "amqp://", "reconnect-delay": 0.2, **value})


def is_deleted(links: LinksThread, name: str) -> bool:
    return ("shovel", "/", name) not in links.host.definitions


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_move_from_queue_to_queue_in_order_in_every_ack_mode(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names, ack_mode: str
) -> None:
    sent = [b"%d" % number for number in range(200)]
    fill(warren, name("from"), sent, message_id="m", headers={"n": 1})
    start(links, "s", src_queue=name("from"), dest_uri=uri(other_warren), dest_queue=name("to"), ack_mode=ack_mode)
    wait_for(lambda: length(other_warren, name("to")) == len(sent), "all messages at the destination")
    taken = drain(other_warren, name("to"))
    assert [body for _, _, body in taken] == sent
    assert {(message.message_id, message.delivery_mode, message.headers["n"]) for _, message, _ in taken} == {
        ("m", 2, 1)
    }
    wait_for(lambda: length(warren, name("from")) == 0, "an empty source")
    wait_for(lambda: links.shovel("s")["pending"] == 0, "the last confirm")
    status = links.shovel("s")
    assert status["state"] == "running" and status["forwarded"] == len(sent)
    links.do(links.host.clear_parameter, "shovel", "s")
    wait_for(lambda: not links.shovel("s"), "the shovel to be gone")
    assert length(warren, name("from")) == 0, "nothing came back: all was acked"


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 3_000_000])
def test_bodies_of_any_size_arrive_as_they_were(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names, size: int
) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    fill(warren, name("from"), [body])
    start(links, "s", src_queue=name("from"), dest_uri=uri(other_warren), dest_queue=name("to"))
    wait_for(lambda: length(other_warren, name("to")) == 1, "the message")
    assert bodies(other_warren, name("to")) == [body]


@pytest.mark.parametrize(
    ("destination", "expected"),
    [
        ({"dest_exchange": "amq.topic", "dest_exchange_key": "fixed"}, ("amq.topic", "fixed")),
        ({"dest_exchange": "amq.topic"}, ("amq.topic", "own.key")),
        ({}, ("amq.direct", "own.key")),
    ],
)
def test_an_exchange_a_key_or_those_of_the_message_itself_are_the_destination(
    links: LinksThread,
    warren: WarrenProcess,
    other_warren: WarrenProcess,
    name: Names,
    destination: dict[str, str],
    expected: tuple[str, str],
) -> None:
    there = connect(other_warren)
    there.channel().queue_declare(name("to"), durable=True)
    there.channel().queue_bind(name("to"), *expected)
    there.close()
    start(links, "s", src_exchange="amq.direct", src_exchange_key="own.key", dest_uri=uri(other_warren), **destination)
    wait_for(lambda: links.shovel("s").get("state") == "running", "the shovel to run")
    here = connect(warren)
    here.channel().basic_publish("amq.direct", "own.key", b"hello")
    here.close()
    wait_for(lambda: length(other_warren, name("to")) == 1, "the message")
    ((method, _, body),) = drain(other_warren, name("to"))
    assert ((method.exchange, method.routing_key), body) == (expected, b"hello")


@pytest.mark.parametrize(("after", "moved"), [("queue-length", 30), (20, 20), (0, 0)])
@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish"])
def test_a_shovel_moves_exactly_what_delete_after_says_and_deletes_its_parameter(
    links: LinksThread,
    warren: WarrenProcess,
    other_warren: WarrenProcess,
    name: Names,
    after: object,
    moved: int,
    ack_mode: str,
) -> None:
    fill(warren, name("from"), [b"x"] * 30)
    start(
        links,
        "s",
        src_queue=name("from"),
        dest_uri=uri(other_warren),
        dest_queue=name("to"),
        src_delete_after=after,
        src_prefetch_count=7,
        ack_mode=ack_mode,
    )
    wait_for(lambda: is_deleted(links, "s"), "the parameter to be deleted")
    assert length(other_warren, name("to")) == moved
    wait_for(lambda: length(warren, name("from")) == 30 - moved, "the rest in the source")
    wait_for(lambda: not links.shovel("s"), "the shovel to be gone")


def test_a_limit_of_more_than_there_is_is_met_by_what_comes_later(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    fill(warren, name("from"), [b"x"] * 5)
    start(
        links,
        "s",
        src_queue=name("from"),
        dest_uri=uri(other_warren),
        dest_queue=name("to"),
        src_delete_after=8,
    )
    wait_for(lambda: length(other_warren, name("to")) == 5, "what there was")
    wait_for(lambda: links.shovel("s").get("remaining") == 3, "three to go")
    fill(warren, name("from"), [b"y"] * 5)
    wait_for(lambda: is_deleted(links, "s"), "the end")
    assert length(other_warren, name("to")) == 8
    wait_for(lambda: length(warren, name("from")) == 2, "the rest in the source")


def test_headers_say_on_request_how_a_message_came_and_properties_are_set(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    fill(warren, name("from"), [b"x"], headers={"kept": 7}, type="a", app_id="same")
    before = int(time.time())
    start(
        links,
        "s",
        src_queue=name("from"),
        dest_uri=uri(other_warren),
        dest_queue=name("to"),
        dest_add_forward_headers=True,
        dest_add_timestamp_header=True,
        dest_publish_properties={"type": "b", "delivery_mode": 1},
    )
    wait_for(lambda: length(other_warren, name("to")) == 1, "the message")
    ((_, properties, _),) = drain(other_warren, name("to"))
    assert (properties.type, properties.delivery_mode, properties.app_id) == ("b", 1, "same")
    assert properties.headers["kept"] == 7
    assert before <= properties.headers["x-shovelled-timestamp"] <= time.time()
    assert properties.headers["x-shovelled"] == [
        {
            "shovelled-by": "here",
            "shovel-type": "dynamic",
            "shovel-name": "s",
            "shovel-vhost": "/",
            "src-uri": "amqp://",
            "dest-uri": f"amqp://127.0.0.1:{other_warren.amqp_port}/%2f",
            "src-queue": name("from"),
            "dest-queue": name("to"),
        }
    ]


def test_a_message_without_room_for_more_headers_is_moved_without_them(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    fill(warren, name("from"), [b"full"], headers={f"{number:04}": 1 for number in range(4090)}, type="a")
    fill(warren, name("from"), [b"next"])
    start(
        links,
        "s",
        src_queue=name("from"),
        dest_uri=uri(other_warren),
        dest_queue=name("to"),
        dest_add_forward_headers=True,
        dest_add_timestamp_header=True,
        dest_publish_properties={"type": "b"},
    )
    wait_for(lambda: length(other_warren, name("to")) == 2, "both messages")
    full, after = drain(other_warren, name("to"))
    assert (full[2], full[1].type, len(full[1].headers)) == (b"full", "b", 4090)
    assert (after[2], after[1].type, len(after[1].headers)) == (b"next", "b", 2)


def test_uris_are_tried_in_turn(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    fill(warren, name("from"), [b"x"])
    destinations = ["amqp://guest:guest@127.0.0.1:1", "amqp://guest:wrong@127.0.0.1:1", uri(other_warren)]
    start(links, "s", src_queue=name("from"), dest_uri=destinations, dest_queue=name("to"))
    wait_for(lambda: length(other_warren, name("to")) == 1, "the message")
    assert links.shovel("s")["dest_uri"] == f"amqp://127.0.0.1:{other_warren.amqp_port}/%2f"


def test_a_refused_login_is_the_reason_in_the_status_and_no_password_is_anywhere(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    destination = f"amqp://guest:s3cret@127.0.0.1:{other_warren.amqp_port}"
    start(links, "s", src_queue=name("from"), dest_uri=destination, dest_queue=name("to"), reconnect_delay=0)
    wait_for(lambda: links.shovel("s").get("state") == "terminated", "the shovel to give up")
    status = links.shovel("s")
    assert "403 ACCESS_REFUSED - Login was refused" in str(status["reason"])
    assert "s3cret" not in repr(status) + repr(links.host.logged) + repr(links.supervisor.shovels())
    assert links.do(links.supervisor.restart_shovel, "/", "s")
    assert not links.do(links.supervisor.restart_shovel, "/", "no such")


def test_without_leave_of_the_operator_no_link_goes_to_loopback(warren: WarrenProcess, name: Names) -> None:
    with LinksThread(FakeHost(warren.amqp_port), ClientSettings(AddressGuard())) as links:
        start(links, "s", src_queue=name("from"), dest_uri=uri(warren), dest_queue=name("to"))
        wait_for(lambda: "may not connect" in str(links.shovel("s").get("reason")), "the refusal")
        # A URI without a host means this broker itself, which is not a remote address.
        start(links, "t", src_queue=name("from"), dest_uri="amqp://", dest_queue=name("to"))
        wait_for(lambda: links.shovel("t").get("state") == "running", "the local shovel to run")


def test_a_message_larger_than_links_take_stays_where_it_is(
    warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    settings = ClientSettings(LOOPBACK_SETTINGS.guard, max_message_bytes=1000)
    fill(warren, name("from"), [b"x" * 1001])
    with LinksThread(FakeHost(warren.amqp_port), settings) as links:
        start(links, "s", src_queue=name("from"), dest_uri=uri(other_warren), dest_queue=name("to"))
        wait_for(lambda: "message of 1001 bytes" in str(links.shovel("s").get("reason")), "the reason")
    wait_for(lambda: length(warren, name("from")) == 1, "the message back in its queue")
    assert length(other_warren, name("to")) == 0


def test_a_destination_queue_that_is_deleted_under_way_costs_no_message(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    start(links, "s", src_queue=name("from"), dest_uri=uri(other_warren), dest_queue=name("to"))
    wait_for(lambda: links.shovel("s").get("state") == "running", "the shovel to run")
    there = connect(other_warren)
    there.channel().queue_delete(name("to"))
    there.close()
    fill(warren, name("from"), [b"%d" % number for number in range(50)])
    wait_for(lambda: length(other_warren, name("to")) == 50, "all messages in the queue made anew")
    assert {*bodies(other_warren, name("to"))} == {b"%d" % number for number in range(50)}


def test_what_a_full_destination_refuses_stays_in_the_source_until_there_is_room(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    there = connect(other_warren)
    limits = {"x-max-length": 10, "x-overflow": "reject-publish"}
    there.channel().queue_declare(name("to"), durable=True, arguments=limits)
    there.close()
    sent = [b"%d" % number for number in range(25)]
    fill(warren, name("from"), sent)
    start(links, "s", src_queue=name("from"), dest_uri=uri(other_warren), dest_queue=name("to"))
    received: list[bytes] = []

    def all_received() -> bool:
        received.extend(bodies(other_warren, name("to")))
        return len(received) >= len(sent)

    wait_for(all_received, "all messages, ten at a time")
    assert sorted(received) == sorted(sent), "each once"


def broker_named(request: pytest.FixtureRequest, kind: str) -> BrokerProcess:
    broker: BrokerProcess = request.getfixturevalue(kind)
    return broker


@pytest.mark.long
@pytest.mark.parametrize("killed", ["source", "destination"])
@pytest.mark.parametrize(
    ("source", "destination"), [("rabbitmq", "warren"), ("warren", "rabbitmq"), ("warren", "other_warren")]
)
def test_nothing_is_lost_when_a_side_is_killed_in_the_middle(
    request: pytest.FixtureRequest, warren: WarrenProcess, name: Names, source: str, destination: str, killed: str
) -> None:
    brokers = {"source": broker_named(request, source), "destination": broker_named(request, destination)}
    sent = [b"%d" % number for number in range(MESSAGES)]
    fill_fast(brokers["source"], name("from"), sent)
    api = Api(warren)  # its shovel, which may be killed with it
    path = f"/parameters/shovel/%2F/{name('s')}"
    uris = {side: "amqp://" if broker is warren else uri(broker) for side, broker in brokers.items()}
    value = {"src-uri": uris["source"], "src-queue": name("from"), "src-prefetch-count": 10, "reconnect-delay": 0.2}
    api.put(path, {"value": value | {"dest-uri": uris["destination"], "dest-queue": name("to")}})

    def status() -> dict[str, Any]:
        return next((row for row in api.get("/shovels") if row["name"] == name("s")), {})

    wait_for(lambda: status().get("forwarded", 0) > MESSAGES // 100, "some to be moved")
    brokers[killed].kill()
    if killed == "source":
        assert length(brokers["destination"], name("to")) < MESSAGES, "the kill came too late to test anything"
    else:
        assert length(brokers["source"], name("from")) > 0, "the kill came too late to test anything"
    brokers[killed].start()
    wait_for(lambda: length(brokers["source"], name("from")) == 0, "an empty source")
    wait_for(lambda: status().get("pending") == 0, "no confirm outstanding")
    assert api.ask("DELETE", path).status == 204
    wait_for(lambda: not status(), "the shovel to be gone")
    assert length(brokers["source"], name("from")) == 0, "all was acked"
    received = bodies(brokers["destination"], name("to"))
    assert {*sent} - {*received} == set()


def fill_fast(broker: BrokerProcess, queue: str, sent: list[bytes]) -> None:
    """Publish persistent messages and wait until all are in the queue; with confirms at the end only."""
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    for body in sent[:-1]:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    channel.confirm_delivery()
    channel.basic_publish("", queue, sent[-1], pika.BasicProperties(delivery_mode=2))
    connection.close()


def test_a_rabbitmq_shovel_takes_from_warren_and_brings_to_it(
    warren: WarrenProcess, rabbitmq: RabbitProcess, name: Names
) -> None:
    sent = [b"%d" % number for number in range(100)]
    fill(warren, name("from"), sent)
    for label, source, destination, queues in (
        ("there", uri(warren), "amqp://", ("from", "between")),
        ("back", "amqp://", uri(warren), ("between", "to")),
    ):
        value = {
            "src-uri": source,
            "src-queue": name(queues[0]),
            "dest-uri": destination,
            "dest-queue": name(queues[1]),
        }
        rabbitmq.api("PUT", f"parameters/shovel/%2f/{name(label)}", {"value": value})
    wait_for(lambda: length(warren, name("to")) == len(sent), "all messages back at Warren")
    assert bodies(warren, name("to")) == sent
    for label in ("there", "back"):
        rabbitmq.api("DELETE", f"parameters/shovel/%2f/{name(label)}")


def test_a_full_destination_costs_a_message_none_of_its_tries(
    links: LinksThread, warren: WarrenProcess, other_warren: WarrenProcess, name: Names
) -> None:
    limited = {"x-queue-type": "quorum", "x-delivery-limit": 1}
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    for broker, queue, arguments, body in (
        (warren, name("from"), limited, b"1"),
        (other_warren, name("to"), full, b"before"),
    ):
        with connect(broker) as connection:
            channel = connection.channel()
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.confirm_delivery()
            channel.basic_publish("", queue, body)
    start(links, "s", src_queue=name("from"), dest_uri=uri(other_warren), dest_queue=name("to"))

    def refused() -> int:
        entry = links.do(links.supervisor._entries.get, ("shovel", "/", "s"))
        transfer = entry.link._transfer if entry is not None and isinstance(entry.link, Shovel) else None
        return 0 if transfer is None else transfer.refused

    wait_for(lambda: refused() >= 3, "refusals")
    assert bodies(other_warren, name("to")) == [b"before"]
    wait_for(lambda: length(other_warren, name("to")) == 1, "the message, which the source still had")
    assert bodies(other_warren, name("to")) == [b"1"]
