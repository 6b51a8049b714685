"""Stages over HTTP: what is stored, what a commit publishes and says, who may, what is refused. stages (1) to (6)."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from broker_process import WarrenProcess

from integration.staging import FRAME_BYTES_MAX, Stager, frame, new_stage, publish, to_queue

from .client import Api, Place

Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def stager(api: Api, place: Place) -> Stager:
    return Stager(api, place.vhost)


@pytest.fixture
def channel(amqp: Connect) -> pika.adapters.blocking_connection.BlockingChannel:
    return amqp().channel()


Channel = pika.adapters.blocking_connection.BlockingChannel


def durable(channel: Channel, name: str, **arguments: object) -> str:
    channel.queue_declare(name, durable=True, arguments=arguments or None)
    return name


def take_all(channel: Channel, queue: str) -> list[bytes]:
    """Take everything out of a queue."""
    bodies: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None or body is None:
            return bodies
        bodies.append(body)


def test_what_is_staged_is_in_no_queue_before_it_is_committed_and_then_in_its_order(
    stager: Stager, channel: Channel
) -> None:
    queue = durable(channel, "orders")
    first = stager.stage(to_queue(queue, [b"1", b"2"]), to_queue(queue, [b"3"]))
    second = stager.stage(to_queue(queue, [b"4"]))
    assert take_all(channel, queue) == []
    answer = stager.commit("q", 0, first, second)
    assert (answer.status, answer.json) == (200, {"committed": True, "messages": 4, "unroutable": 0})
    assert take_all(channel, queue) == [b"1", b"2", b"3", b"4"]
    assert stager.names() == []


def test_a_batch_that_was_committed_is_a_duplicate_and_its_stages_are_dropped(stager: Stager, channel: Channel) -> None:
    queue = durable(channel, "orders")
    assert stager.commit("q", 7, stager.stage(to_queue(queue, [b"7"]))).json["committed"]
    for batch in (7, 6, 0):
        again = stager.stage(to_queue(queue, [b"again"]))
        assert stager.commit("q", batch, again).json == {"committed": False, "duplicate": True}
        assert stager.names() == []
    assert stager.commit("q", 8, stager.stage(to_queue(queue, [b"8"]))).json["committed"]
    assert stager.commit("another", 7, stager.stage(to_queue(queue, [b"of another"]))).json["committed"]
    assert take_all(channel, queue) == [b"7", b"8", b"of another"]


def test_a_lost_answer_can_be_asked_for_again_although_the_stages_are_gone(stager: Stager, channel: Channel) -> None:
    stage = stager.stage(to_queue(durable(channel, "orders"), [b"x"]))
    assert stager.commit("q", 0, stage).json["committed"]
    assert stager.commit("q", 0, stage).json == {"committed": False, "duplicate": True}


def test_an_empty_batch_is_committed_once_too(stager: Stager) -> None:
    assert stager.commit("q", 0).json == {"committed": True, "messages": 0, "unroutable": 0}
    assert stager.commit("q", 0).json["duplicate"]
    assert stager.commit("q", 1, stager.stage(b"")).json == {"committed": True, "messages": 0, "unroutable": 0}


def test_properties_and_large_and_empty_bodies_come_out_as_they_went_in(stager: Stager, channel: Channel) -> None:
    queue = durable(channel, "orders")
    properties = pika.BasicProperties(
        content_type="text/plain",
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        message_id="m",
        timestamp=1234,
        type="t",
        user_id="guest",
        app_id="a",
        cluster_id="k",
        headers={"n": 1, "s": "text", "list": [1, "two"]},
    )
    bodies = [b"", b"x" * (FRAME_BYTES_MAX - 8), b"y" * (FRAME_BYTES_MAX - 7), b"z" * (3 << 20)]
    content = b"".join(publish("", queue, body, properties) for body in bodies)
    assert stager.commit("q", 0, stager.stage(content)).json["messages"] == len(bodies)
    for expected in bodies:
        _, found, body = channel.basic_get(queue, auto_ack=True)
        assert body == expected
        assert found is not None
        assert vars(found) == vars(properties)


def test_a_part_that_is_put_again_is_replaced(stager: Stager, channel: Channel) -> None:
    queue = durable(channel, "orders")
    name = stager.stage(to_queue(queue, [b"old", b"older"]))
    assert stager.put(name, 0, to_queue(queue, [b"new"])).json == {
        "messages": 1,
        "bytes": len(to_queue(queue, [b"new"])),
    }
    (listed,) = stager.api.get("/warren/stages")
    assert (listed["messages"], listed["parts"], listed["user"]) == (1, 1, "guest")
    stager.commit("q", 0, name)
    assert take_all(channel, queue) == [b"new"]


def test_a_removed_stage_is_gone(stager: Stager, channel: Channel) -> None:
    queue = durable(channel, "orders")
    name = stager.stage(to_queue(queue, [b"x"]))
    assert stager.remove(name).status == 204
    assert stager.remove(name).refusal[:2] == (404, "no_stage")
    assert stager.commit("q", 0, name).refusal[:2] == (404, "no_stage")
    assert stager.names() == []
    assert take_all(channel, queue) == []


GOOD = publish("", "q", b"body")
MALFORMED = {
    "cut in the method": GOOD[:10],
    "cut in the header": GOOD[:30],
    "cut in the body": GOOD[:-1],
    "a body is missing": GOOD[: -(8 + len(b"body"))],
    "no end octet": GOOD[:-1] + b"\x00",
    "channel 2": publish("", "q", b"body", channel=2),
    "a heartbeat": GOOD + frame(8, 0, b""),
    "another method": frame(1, 1, b"\x00\x3c\x00\x0a\x00\x00\x00\x00\x00"),
    "mandatory": GOOD.replace(b"\x01q\x00\xce", b"\x01q\x01\xce"),
    "a name beyond its frame": GOOD.replace(b"\x00\x01q\x00\xce", b"\x00\x09q\x00\xce"),
    "a name that is not UTF-8": publish("", "q", b"body").replace(b"\x01q\x00\xce", b"\x01\xff\x00\xce"),
    "another class": GOOD.replace(b"\x00\x3c\x00\x00\x00\x00", b"\x00\x3d\x00\x00\x00\x00"),
    "a body that is too long": GOOD[:-5] + b"more!",
    "an empty body frame": publish("", "q", b"") + frame(3, 1, b""),
    "properties that do not add up": publish("", "q", b"body", pika.BasicProperties(type="t")).replace(
        b"\x01t\xce", b"\x02t\xce"
    ),
    "a body larger than the limit": frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x01q\x00")
    + frame(2, 1, b"\x00\x3c\x00\x00" + (1 << 40).to_bytes(8, "big") + b"\x00\x00"),
    "text": b"hello",
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_part_is_refused_as_a_whole(stager: Stager, what: str) -> None:
    name = new_stage()
    for content in (MALFORMED[what], GOOD * 3 + MALFORMED[what]):
        assert stager.put(name, 0, content).refusal[:2] == (400, "bad_request")
    assert stager.names() == []


@pytest.mark.parametrize("name", ["a.b", "commit", "x" * 101, "%2e%2e", "a%2fb", "%00"])
def test_a_stage_is_not_called_anything(stager: Stager, name: str) -> None:
    assert stager.put(name, 0, GOOD).refusal[:2] == (400, "bad_request")


@pytest.mark.parametrize("part", ["-1", "x", "1.5", "99999999999", "%C2%B2"])
def test_a_part_is_a_number(stager: Stager, part: str) -> None:
    assert stager.put(new_stage(), part, GOOD).refusal[:2] == (400, "bad_request")


def test_a_part_has_at_most_32_mib(stager: Stager) -> None:
    assert stager.put(new_stage(), 0, b"x" * ((32 << 20) + 1)).status == 413


@pytest.mark.parametrize(
    "order",
    [
        {"query": "", "batch": 0, "stages": []},
        {"query": "q" * 256, "batch": 0, "stages": []},
        {"query": "q", "batch": -1, "stages": []},
        {"query": "q", "batch": 1 << 63, "stages": []},
        {"query": "q", "stages": []},
        {"query": "q", "batch": 0, "stages": "s"},
        {"query": "q", "batch": 0, "stages": [], "kept_s": -1},
    ],
)
def test_a_commit_that_makes_no_sense_is_refused(stager: Stager, place: Place, order: object) -> None:
    answer = stager.api.ask("POST", f"/warren/stages/{place.v}/commit", order)
    assert answer.refusal[:2] == (400, "bad_request")


def test_nothing_of_a_batch_is_published_when_nobody_would_get_one_of_its_messages(
    stager: Stager, channel: Channel
) -> None:
    queue = durable(channel, "orders")
    stage = stager.stage(to_queue(queue, [b"1"]) + to_queue("nobody", [b"2"]), to_queue(queue, [b"3"]))
    assert stager.commit("q", 0, stage).json == {"committed": False, "messages": 0, "unroutable": 1}
    assert take_all(channel, queue) == []
    durable(channel, "nobody")
    assert stager.commit("q", 0, stage).json["committed"]
    assert take_all(channel, queue) == [b"1", b"3"]
    assert take_all(channel, "nobody") == [b"2"]


def test_what_nobody_gets_is_counted_when_a_batch_is_not_mandatory(stager: Stager, channel: Channel) -> None:
    queue = durable(channel, "orders")
    stage = stager.stage(to_queue("nobody", [b"1", b"2"]) + to_queue(queue, [b"3"]))
    answer = stager.commit("q", 0, stage, mandatory=False)
    assert answer.json == {"committed": True, "messages": 1, "unroutable": 2}
    assert take_all(channel, queue) == [b"3"]


def test_a_full_queue_refuses_the_whole_batch_until_it_has_room(stager: Stager, channel: Channel) -> None:
    queue = durable(channel, "orders", **{"x-max-length": 3, "x-overflow": "reject-publish"})
    durable(channel, "other")
    stage = stager.stage(to_queue("other", [b"0"]) + to_queue(queue, [b"1", b"2"]))
    assert stager.commit("q", 0, stage).json["committed"]
    again = stager.stage(to_queue("other", [b"3"]) + to_queue(queue, [b"4", b"5"]))
    assert stager.commit("q", 1, again).refusal[:2] == (409, "queue_full")
    assert take_all(channel, "other") == [b"0"]
    assert take_all(channel, queue) == [b"1", b"2"]
    assert stager.commit("q", 1, again).json["committed"]
    assert take_all(channel, queue) == [b"4", b"5"]


def test_a_message_goes_to_every_queue_that_is_bound(stager: Stager, channel: Channel) -> None:
    channel.exchange_declare("topics", "topic", durable=True)
    for name, key in (("a", "x.*"), ("b", "#"), ("c", "y.*")):
        channel.queue_bind(durable(channel, name), "topics", key)
    channel.queue_declare("transient")
    channel.queue_bind("transient", "topics", "x.#")
    content = publish("topics", "x.1", b"1") + publish("topics", "x.2", b"2", pika.BasicProperties())
    assert stager.commit("q", 0, stager.stage(content)).json["messages"] == 2
    assert [take_all(channel, name) for name in ("a", "b", "c", "transient")] == [[b"1", b"2"]] * 2 + [[], [b"1", b"2"]]


def test_a_stream_takes_a_batch(stager: Stager, channel: Channel) -> None:
    queue = durable(channel, "log", **{"x-queue-type": "stream"})
    assert stager.commit("q", 0, stager.stage(to_queue(queue, [b"%d" % n for n in range(100)]))).json["messages"] == 100
    assert stager.api.get(f"/warren/data/{stager.v}/log")["end"] == 100


def test_a_batch_of_several_pieces_is_published_in_order_and_remembered(stager: Stager, channel: Channel) -> None:
    queue = durable(channel, "orders")
    parts = [to_queue(queue, [b"%d.%d" % (part, number) for number in range(12_000)]) for part in range(3)]
    stages = [stager.stage(part) for part in parts]
    assert stager.commit("q", 0, *stages).json["messages"] == 36_000
    assert stager.commits()["q"]["messages"] == 36_000
    channel.queue_declare(queue, passive=True)
    assert channel.queue_declare(queue, passive=True).method.message_count == 36_000
    deliveries = channel.consume(queue, auto_ack=True)
    for part in range(3):
        for number in range(12_000):
            _, _, body = next(deliveries)
            assert body == b"%d.%d" % (part, number)


@pytest.mark.parametrize("fault", ["unroutable", "full", "forbidden"])
def test_nothing_of_a_batch_of_several_pieces_is_published_when_the_last_one_cannot_be(
    stager: Stager, channel: Channel, fault: str
) -> None:
    queue = durable(channel, "orders")
    full = durable(channel, "full", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    bad = {
        "unroutable": to_queue("nobody", [b"x"]),
        "full": to_queue(full, [b"x", b"y"]),
        "forbidden": publish("", queue, b"x", pika.BasicProperties(user_id="somebody")),
    }[fault]
    stage = stager.stage(*[to_queue(queue, [b"x"] * 12_000) for _ in range(3)], bad)
    answer = stager.commit("q", 0, stage)
    if fault == "unroutable":
        assert answer.json == {"committed": False, "messages": 0, "unroutable": 1}
    else:
        assert answer.refusal[:2] == {"full": (409, "queue_full"), "forbidden": (400, "bad_request")}[fault]
    assert take_all(channel, queue) == []
    assert stager.commits() == {}
    assert stager.remove(stage).status == 204


# --- who may ----------------------------------------------------------------------------------------------------------


def test_it_needs_no_tag_but_the_permission_to_write(place: Place, channel: Channel) -> None:
    durable(channel, "orders")
    writer = Stager(place.user("writer", "", {"configure": "", "write": "amq.default", "read": ""}), place.vhost)
    assert writer.commit("q", 0, writer.stage(to_queue("orders", [b"x"]))).json["committed"]
    reader = Stager(place.user("reader", "", {"configure": "", "write": "^$", "read": ".*"}), place.vhost)
    assert reader.put(new_stage(), 0, to_queue("orders", [b"x"])).refusal[:2] == (401, "not_authorised")
    stranger = Stager(place.user("stranger", "", None), place.vhost)
    assert stranger.put(new_stage(), 0, to_queue("orders", [b"x"])).refusal[:2] == (401, "not_authorised")
    assert stranger.commit("q", 1).refusal[:2] == (401, "not_authorised")
    assert take_all(channel, "orders") == [b"x"]


def test_a_permission_that_was_taken_back_counts_at_the_commit(place: Place, channel: Channel) -> None:
    durable(channel, "orders")
    writer = Stager(place.user("writer", "", {"configure": "", "write": ".*", "read": ""}), place.vhost)
    stage = writer.stage(to_queue("orders", [b"x"]))
    place.api.put(f"/permissions/{place.v}/writer", {"configure": "", "write": "^$", "read": ""})
    assert writer.commit("q", 0, stage).refusal[:2] == (401, "not_authorised")
    assert take_all(channel, "orders") == []
    place.api.put(f"/permissions/{place.v}/writer", {"configure": "", "write": ".*", "read": ""})
    assert writer.commit("q", 0, stage).json["committed"]


def test_topic_permissions_and_the_user_id_are_checked_as_over_amqp(place: Place, channel: Channel) -> None:
    channel.exchange_declare("topics", "topic", durable=True)
    channel.queue_bind(durable(channel, "orders"), "topics", "#")
    writer = Stager(place.user("writer", ""), place.vhost)
    place.api.put(f"/topic-permissions/{place.v}/writer", {"exchange": "topics", "write": "^mine", "read": ".*"})
    assert writer.commit("q", 0, writer.stage(publish("topics", "mine.1", b"x"))).json["committed"]
    assert writer.commit("q", 1, writer.stage(publish("topics", "yours", b"x"))).refusal[:2] == (401, "not_authorised")
    forged = publish("topics", "mine.1", b"x", pika.BasicProperties(user_id="guest"))
    status, error, reason = writer.commit("q", 1, writer.stage(forged)).refusal
    assert (status, error) == (400, "bad_request")
    assert "user_id" in reason
    assert take_all(channel, "orders") == [b"x"]


def test_the_stages_of_one_user_are_not_those_of_another(place: Place, stager: Stager, channel: Channel) -> None:
    durable(channel, "orders")
    one = Stager(place.user("one", "management"), place.vhost)
    other = Stager(place.user("other", "management"), place.vhost)
    stage = one.stage(to_queue("orders", [b"x"]))
    assert other.put(stage, 1, GOOD).refusal[:2] == (409, "conflict")
    assert other.commit("q", 0, stage).refusal[:2] == (404, "no_stage")
    assert other.remove(stage).refusal[:2] == (404, "no_stage")
    assert other.names() == []
    assert one.names() == stager.names() == [stage]
    assert other.commit("q", 1).json["committed"]
    assert other.commit("q", 0, stage).json["duplicate"]
    assert one.names() == [stage]
    assert stager.remove(stage).status == 204  # an administrator


def test_an_unknown_exchange_is_refused_when_the_batch_is_committed(stager: Stager) -> None:
    stage = stager.stage(publish("not there", "k", b"x"))
    assert stager.commit("q", 0, stage).refusal[:2] == (404, "not_found")


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_operators_see_the_last_batch_of_each_query_and_may_forget_it(
    place: Place, stager: Stager, channel: Channel
) -> None:
    queue = durable(channel, "orders")
    stager.commit("a/b", 3, stager.stage(to_queue(queue, [b"x"])))
    stager.commit("c", 0, kept_s=60)
    found = stager.commits()
    assert {query: (row["batch"], row["done"], row["user"]) for query, row in found.items()} == {
        "a/b": (3, True, "guest"),
        "c": (0, True, "guest"),
    }
    assert found["a/b"]["until"] is None
    assert isinstance(found["c"]["until"], int)
    plain = Stager(place.user("plain", "management"), place.vhost)
    assert plain.forget("a/b").refusal[:2] == (401, "not_authorised")
    assert stager.forget("a/b").status == 204
    assert stager.forget("a/b").status == 404
    assert stager.commit("a/b", 3, stager.stage(to_queue(queue, [b"y"]))).json["committed"]
    assert take_all(channel, queue) == [b"x", b"y"]


def test_commits_are_remembered_by_vhost_and_go_with_it(api: Api, place: Place, stager: Stager) -> None:
    api.put("/vhosts/another")
    another = Stager(api, "another")
    assert stager.commit("q", 5).json["committed"]
    assert another.commit("q", 5).json["committed"]
    another.stage(GOOD)
    api.delete("/vhosts/another")
    assert another.commit("q", 5).status == 404
    api.put("/vhosts/another")
    assert another.commit("q", 5).json["committed"]
    assert stager.commit("q", 5).json["duplicate"]
    api.delete("/vhosts/another")


def test_a_restart_keeps_stages_and_what_was_committed(tmp_path_factory: pytest.TempPathFactory) -> None:
    with WarrenProcess(tmp_path_factory.mktemp("broker")) as process:
        for end in (process.stop, process.kill):
            api = Api(process.http_port)
            stager = Stager(api, "/")
            api.put("/queues/%2F/orders", {"durable": True})
            batch = 1 + max((int(str(row["batch"])) for row in stager.commits().values()), default=-1)
            assert stager.commit("q", batch, stager.stage(to_queue("orders", [b"%d" % batch]))).json["committed"]
            stage = stager.stage(to_queue("orders", [b"%d" % (batch + 1)]))
            api.close()
            end()
            process.start()
            again = Stager(Api(process.http_port), "/")
            assert again.names() == [stage]
            assert again.commit("q", batch, stage).json["duplicate"]
            assert again.names() == []
            again.api.close()
        api = Api(process.http_port)
        assert api.eventually("/queues/%2F/orders", lambda row: row.get("messages") == 2)
        api.close()
