"""Super streams over HTTP: made and deleted in one step, described, and carried by definitions."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Place, q
from .conftest import Connect

ALL = "/stream/super-streams"
TYPE = "x-super-stream"


def path(place: Place, name: str = "s") -> str:
    return f"{ALL}/{place.v}/{q(name)}"


def names(place: Place, kind: str = "queues") -> list[str]:
    """Return the queues or exchanges of the vhost, those that every vhost has left out."""
    found = [each["name"] for each in place.api.get(f"/{kind}/{place.v}")]
    return [name for name in found if name and not name.startswith("amq.")]


def test_partitions_are_made_described_and_deleted(place: Place) -> None:
    assert place.api.get(f"{ALL}/{place.v}") == []
    assert place.api.put(path(place), {"partitions": 3, "arguments": {"max-age": "7D"}}) == 201
    partition = {"state": "running", "messages": 0, "first_offset": 0, "next_offset": 0}
    described = {
        "name": "s",
        "vhost": place.vhost,
        "type": TYPE,
        "arguments": {"x-queue-type": "stream", "x-max-age": "7D"},
        "partition_count": 3,
        "partitions": [{"name": f"s-{at}", "routing_key": str(at), "order": at, **partition} for at in range(3)],
    }
    assert place.api.get(path(place)) == described
    assert place.api.get(f"{ALL}/{place.v}") == [described]
    assert described in place.api.get(ALL)
    exchange = place.api.get(f"/exchanges/{place.v}/s")
    assert (exchange["type"], exchange["durable"], exchange["arguments"]) == (TYPE, True, {TYPE: True})
    bindings = place.api.get(f"/exchanges/{place.v}/s/bindings/source")
    assert [(each["destination"], each["routing_key"], each["arguments"]) for each in bindings] == [
        (f"s-{at}", str(at), {"x-stream-partition-order": at}) for at in range(3)
    ]
    assert place.api.delete(path(place)) == 204
    assert names(place) == names(place, "exchanges") == place.api.get(f"{ALL}/{place.v}") == []
    for method in ("GET", "DELETE"):
        assert place.api.ask(method, path(place)).status == 404


def test_the_same_again_is_accepted_and_something_else_refused(place: Place) -> None:
    for _ in range(2):
        place.api.put(path(place), {"partitions": "2", "arguments": {"x-max-length-bytes": "1000"}})
    assert place.api.put(path(place), {"partitions": 2, "arguments": {"max-length-bytes": 1000}}) == 204
    status, _, reason = place.api.ask("PUT", path(place), {"partitions": 3}).refusal
    assert (
        status == 400 and "inequivalent arg 'x-super-stream'" in reason and "received '3' but current is '2'" in reason
    )
    status, _, reason = place.api.ask("PUT", path(place), {"partitions": 2}).refusal
    assert status == 400 and "inequivalent arg 'x-max-length-bytes'" in reason
    assert names(place) == ["s-0", "s-1"]


def test_binding_keys_make_a_direct_exchange_and_so_does_its_type(place: Place, amqp: Connect) -> None:
    place.api.put(path(place), {"binding-keys": " emea, apac ,,7"})
    found = place.api.get(path(place))
    assert found["type"] == "direct"
    assert [(each["name"], each["routing_key"]) for each in found["partitions"]] == [
        ("s-emea", "emea"),
        ("s-apac", "apac"),
        ("s-7", "7"),
    ]
    place.api.put(path(place, "d"), {"partitions": 2, "type": "direct"})
    assert place.api.get(path(place, "d"))["type"] == "direct"
    channel: Any = amqp().channel()
    channel.confirm_delivery()
    channel.basic_publish("s", "apac", b"m")
    channel.basic_publish("d", "1", b"m")
    counts = {
        each["name"]: each["messages"] for name in ("s", "d") for each in place.api.get(path(place, name))["partitions"]
    }
    assert counts == {"s-emea": 0, "s-apac": 1, "s-7": 0, "d-0": 0, "d-1": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Must specify partitions or binding keys"),
        ({"partitions": 2, "binding-keys": "a,b"}, "Specify partitions or binding keys, not both"),
        ({"partitions": 0}, "The partition number must be greater than 0"),
        ({"partitions": "-1"}, "The partition number must be greater than 0"),
        ({"partitions": "many"}, "The partitions must be a number"),
        ({"partitions": []}, "The partitions must be a number"),
        ({"partitions": 1001}, "The partition number must not exceed 1000"),
        ({"binding-keys": " , "}, "The number of binding keys must be greater than 0"),
        ({"binding-keys": "a,b,a"}, "Duplicate binding keys found"),
        ({"binding-keys": ",".join(map(str, range(1001)))}, "The number of binding keys must not exceed 1000"),
        ({"partitions": 1, "type": "fanout"}, "The type must be x-super-stream or direct"),
    ],
)
def test_impossible_wishes(place: Place, body: dict[str, object], reason: str) -> None:
    assert place.api.ask("PUT", path(place), body).refusal == (400, "bad_request", reason)
    assert names(place) == names(place, "exchanges") == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"binding-keys": "a", "type": TYPE}, "invalid arg 'x-super-stream' for exchange 's'"),
        ({"partitions": 1, "arguments": {"max-age": "7x"}}, "invalid arg 'x-max-age' for queue 's-0'"),
        ({"partitions": 1, "arguments": []}, "Expected `object`"),
    ],
)
def test_what_the_broker_refuses(place: Place, body: dict[str, object], said: str) -> None:
    status, _, reason = place.api.ask("PUT", path(place), body).refusal
    assert status == 400 and said in reason
    assert names(place) == names(place, "exchanges") == []


def test_it_is_refused_whole_when_one_part_is_not_permitted(place: Place) -> None:
    limited = place.user(f"limited {place.vhost}", "management", {"configure": "^s(-0)?$", "write": ".*", "read": ".*"})
    status, _, reason = limited.ask("PUT", path(place), {"partitions": 2}).refusal
    assert status == 401 and "configure access to queue 's-1'" in str(reason)
    assert names(place) == names(place, "exchanges") == []
    place.api.put(path(place), {"partitions": 2})
    assert limited.ask("DELETE", path(place)).status == 401
    assert names(place) == ["s-0", "s-1"] and names(place, "exchanges") == ["s"]
    assert [each["name"] for each in limited.get(f"{ALL}/{place.v}")] == ["s"]
    stranger = place.user(f"stranger {place.vhost}", "management", None)
    for method in ("GET", "PUT", "DELETE"):
        assert stranger.ask(method, path(place), {} if method == "PUT" else None).status == 401
    assert stranger.get(ALL) == []


def test_only_super_streams_are_shown_and_deleted_here(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.exchange_declare("plain", "direct", durable=True)
    assert place.api.ask("GET", path(place, "plain")).status == 404
    assert place.api.ask("DELETE", path(place, "plain")).status == 404
    channel.exchange_declare("mine", TYPE, durable=True, arguments={TYPE: True})
    channel.queue_declare("classic", durable=True)
    channel.queue_bind("classic", "mine", "0")
    assert place.api.get(path(place, "mine")) == {
        "name": "mine",
        "vhost": place.vhost,
        "type": TYPE,
        "arguments": {},
        "partition_count": 0,
        "partitions": [],
    }
    channel.queue_declare("some", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind("some", "mine", "0")
    (found,) = place.api.get(path(place, "mine"))["partitions"]
    assert (found["name"], found["order"]) == ("some", "not_found")
    place.api.delete(path(place, "mine"))
    assert names(place) == ["classic"]


def test_definitions_carry_super_streams(place: Place) -> None:
    place.api.put(path(place), {"partitions": 3, "arguments": {"max-age": "7D"}})
    place.api.put(path(place, "keys"), {"binding-keys": "b,a"})
    wanted = place.api.get(f"{ALL}/{place.v}")
    file = place.api.get(f"/definitions/{place.v}")
    for name in ("s", "keys"):
        place.api.delete(path(place, name))
    place.api.post(f"/definitions/{place.v}", file)
    assert place.api.get(f"{ALL}/{place.v}") == wanted
    place.api.put(path(place), {"partitions": 3, "arguments": {"max-age": "7D"}})


def test_groups_of_partitions_are_listed_with_who_is_served(place: Place, amqp: Connect) -> None:
    place.api.put(path(place), {"partitions": 3})
    for tag in ("a", "b"):
        channel: Any = amqp().channel()
        channel.basic_qos(prefetch_count=10)
        for at in range(3):
            arguments = {"x-group": "g", "x-stream-offset": "first"}
            channel.basic_consume(f"s-{at}", lambda *_: None, consumer_tag=f"{tag}{at}", arguments=arguments)
    listed = place.api.get(f"/warren/stream-groups/{place.v}")
    assert {each["queue"]: (each["consumers"], each["active_consumer_tag"]) for each in listed} == {
        "s-0": (2, "a0"),
        "s-1": (2, "b1"),
        "s-2": (2, "a2"),
    }
    consumers = {each["consumer_tag"]: each["activity_status"] for each in place.api.get(f"/consumers/{place.v}")}
    assert consumers == {"a0": "up", "a1": "waiting", "a2": "up", "b0": "waiting", "b1": "up", "b2": "waiting"}
