"""What operators can do beyond RabbitMQ's API: pauses, what is held, deduplication, routes, topology, search, store."""

from __future__ import annotations

import os
from random import Random, SystemRandom
from typing import Any, Final

import pika
import pytest

from .client import AT_LEAST_ONCE, Api, Place, q
from .conftest import Connect

SEED: Final = int(os.environ.get("WARREN_TEST_ROUTE_SEED", "0"))
TOPOLOGIES: Final = 4
QUESTIONS: Final = 40
WORDS: Final = ("a", "b", "c")


def queue_path(place: Place, queue: str, more: str = "") -> str:
    return f"/warren/queues/{place.v}/{q(queue)}{more}"


def bodies_in(place: Place, queue: str, state: str = "ready") -> list[str]:
    page = place.api.get(queue_path(place, queue, f"/messages?count=500&state={state}"))
    return [item["payload"] for item in page["items"]]


def drained(channel: Any, queue: str) -> list[bytes]:
    found: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append(body)


# --- pausing ----------------------------------------------------------------------------------------------------------


def test_a_paused_queue_takes_messages_and_hands_out_none_until_it_is_resumed(place: Place, amqp: Connect) -> None:
    connection = amqp()
    channel = connection.channel()
    channel.queue_declare("q")
    got: list[bytes] = []
    channel.basic_consume("q", lambda _channel, _method, _properties, body: got.append(body), auto_ack=True)
    assert place.api.put(queue_path(place, "q", "/pause")) == 204
    assert place.api.put(queue_path(place, "q", "/pause")) == 204
    assert place.api.get(f"/queues/{place.v}/q")["paused"] is True
    publisher = amqp().channel()
    publisher.confirm_delivery()
    for number in range(5):
        publisher.basic_publish("", "q", b"%d" % number)
    assert publisher.basic_get("q")[0] is None
    assert bodies_in(place, "q") == ["0", "1", "2", "3", "4"]
    connection.process_data_events(0)
    assert got == []
    topology = place.api.get(f"/warren/topology/{place.v}")
    assert [each["state"] for each in topology["queues"]] == ["paused"]
    assert place.api.delete(queue_path(place, "q", "/pause")) == 204
    while len(got) < 5:
        connection.process_data_events(1)
    assert got == [b"0", b"1", b"2", b"3", b"4"]
    assert place.api.get(f"/queues/{place.v}/q")["paused"] is False


def test_pausing_needs_the_permission_to_configure(place: Place, amqp: Connect) -> None:
    amqp().channel().queue_declare("q")
    user = place.user("o-user", "management", {"configure": "", "write": ".*", "read": ".*"})
    assert user.ask("PUT", queue_path(place, "q", "/pause"), {}).status in (401, 403)
    assert place.api.get(f"/queues/{place.v}/q")["paused"] is False
    assert place.api.ask("PUT", queue_path(place, "none", "/pause"), {}).status == 404
    user.close()


# --- what is held -----------------------------------------------------------------------------------------------------


def delayed(channel: Any, queue: str, count: int) -> None:
    """Publish messages that are due in an hour, the later the larger their number."""
    channel.confirm_delivery()
    for number in range(count):
        headers = {"x-delay": 3_600_000 + number * 1000}
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(headers=headers, delivery_mode=2))


def test_held_messages_are_released_the_earliest_first(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q", durable=True)
    assert place.api.post(queue_path(place, "q", "/held/delayed/release"), {"count": 3}).json == {"released": 0}
    delayed(channel, "q", 10)
    assert place.api.get(queue_path(place, "q", "/held"))["delayed"]["messages"] == 10
    path = queue_path(place, "q", "/held/delayed/release")
    assert place.api.post(path, {"count": 0}).json == {"released": 0}
    assert place.api.post(path, {"count": 3}).json == {"released": 3}
    assert bodies_in(place, "q") == ["0", "1", "2"]
    assert bodies_in(place, "q", "delayed") == [str(number) for number in range(3, 10)]
    assert place.api.post(path, {"count": 100}).json == {"released": 7}
    assert drained(channel, "q") == [b"%d" % number for number in range(10)]
    delayed(channel, "q", 4)
    assert place.api.post(path, {}).json == {"released": 4}
    assert len(bodies_in(place, "q")) == 4
    assert place.api.get(queue_path(place, "q", "/held"))["delayed"] == {
        "messages": 0,
        "bytes": 0,
        "next_due_ms": None,
    }


def test_held_messages_are_purged_and_the_ready_ones_stay(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q", durable=True)
    delayed(channel, "q", 5)
    channel.basic_publish("", "q", b"ready")
    assert place.api.delete(queue_path(place, "q", "/held/delayed")) == 204
    assert place.api.delete(queue_path(place, "q", "/held/parked")) == 204
    assert bodies_in(place, "q", "delayed") == [] and drained(channel, "q") == [b"ready"]


def test_parked_messages_are_released_to_be_tried_again(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    arguments = {"x-delivery-limit": 0, "x-delivery-limit-action": "park"}
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in range(3):
        channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))

    def reject(count: int) -> None:
        for _ in range(count):
            method, _, _ = channel.basic_get("q")
            channel.basic_reject(method.delivery_tag, requeue=True)
        path = queue_path(place, "q", "/held")
        place.api.eventually(path, lambda found: found["parked"]["messages"] == 3)

    reject(3)
    assert bodies_in(place, "q") == [] and bodies_in(place, "q", "parked") == ["0", "1", "2"]
    assert place.api.post(queue_path(place, "q", "/held/parked/release"), {"count": 2}).json == {"released": 2}
    assert bodies_in(place, "q") == ["0", "1"] and bodies_in(place, "q", "parked") == ["2"]
    reject(2)
    assert place.api.post(queue_path(place, "q", "/held/parked/release"), {}).json == {"released": 3}
    assert sorted(drained(channel, "q")) == [b"0", b"1", b"2"]


def test_undelivered_dead_letters_are_purged_or_sent_once_more(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    arguments = AT_LEAST_ONCE | {"x-dead-letter-routing-key": "morgue"}
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.confirm_delivery()

    def die(body: bytes) -> None:
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
        method, _, _ = channel.basic_get("q")
        channel.basic_reject(method.delivery_tag, requeue=False)
        path = queue_path(place, "q", "/held")
        place.api.eventually(path, lambda found: found["undelivered"]["messages"] == 1)

    die(b"dropped")
    assert place.api.delete(queue_path(place, "q", "/held/undelivered")) == 204
    assert bodies_in(place, "q", "undelivered") == []
    die(b"sent")
    channel.queue_declare("morgue", durable=True)
    assert place.api.post(queue_path(place, "q", "/held/undelivered/release"), {}).json == {"released": 1}
    place.api.eventually(queue_path(place, "morgue", "/messages"), lambda found: found["total"] == 1)
    assert bodies_in(place, "morgue") == ["sent"] and bodies_in(place, "q", "undelivered") == []
    assert bodies_in(place, "q") == []


@pytest.mark.parametrize(
    ("method", "more", "body", "status"),
    [
        ("DELETE", "/held/ready", None, 404),
        ("DELETE", "/held/unacked", None, 404),
        ("DELETE", "/held/nonsense", None, 404),
        ("POST", "/held/nonsense/release", {}, 404),
        ("POST", "/held/delayed/release", {"count": -1}, 400),
        ("POST", "/held/delayed/release", {"count": "many"}, 400),
        ("POST", "/held/delayed/release", [], 400),
    ],
)
def test_what_cannot_be_released_is_refused(
    place: Place, amqp: Connect, method: str, more: str, body: object, status: int
) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q", durable=True)
    delayed(channel, "q", 1)
    assert place.api.ask(method, queue_path(place, "q", more), body).status == status
    assert bodies_in(place, "q", "delayed") == ["0"]


# --- deduplication ----------------------------------------------------------------------------------------------------


def test_forgotten_keys_may_be_published_again(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("plain")
    assert place.api.get(queue_path(place, "plain", "/deduplication"))["enabled"] is False
    assert place.api.delete(queue_path(place, "plain", "/deduplication")) == 204
    channel.queue_declare("q", arguments={"x-message-deduplication": True})
    channel.confirm_delivery()

    def publish(key: str) -> None:
        channel.basic_publish("", "q", key.encode(), pika.BasicProperties(headers={"x-deduplication-header": key}))

    for key in ("one", "two", "one"):
        publish(key)
    shown = place.api.get(queue_path(place, "q", "/deduplication"))
    assert shown["enabled"] and shown["keys"] == 2 and shown["header"] == "x-deduplication-header"
    assert bodies_in(place, "q") == ["one", "two"]
    assert place.api.delete(queue_path(place, "q", "/deduplication")) == 204
    assert place.api.get(queue_path(place, "q", "/deduplication"))["keys"] == 0
    publish("one")
    publish("one")
    assert bodies_in(place, "q") == ["one", "two", "one"]


# --- routes -----------------------------------------------------------------------------------------------------------


class Topology:
    """Random exchanges, bound to each other and to queues, some with an alternate exchange."""

    def __init__(self, dice: Random, channel: Any) -> None:
        self._dice = dice
        types = [dice.choice(("direct", "fanout", "topic", "headers")) for _ in range(6)]
        self.exchanges = [f"e{number}.{kind}" for number, kind in enumerate(types)]
        self.queues = [f"q{number}" for number in range(5)]
        for queue in self.queues:
            channel.queue_declare(queue)
        for name, kind in zip(self.exchanges, types, strict=True):
            arguments = {"alternate-exchange": dice.choice(self.exchanges)} if dice.random() < 0.4 else {}
            channel.exchange_declare(name, kind, arguments=arguments)
        for _ in range(14):
            source = dice.choice(self.exchanges)
            if dice.random() < 0.6:
                channel.queue_bind(dice.choice(self.queues), source, self.binding_key(), self.arguments())
            else:
                channel.exchange_bind(dice.choice(self.exchanges), source, self.binding_key(), self.arguments())

    def binding_key(self) -> str:
        return ".".join(self._dice.choice((*WORDS, "*", "#")) for _ in range(self._dice.randint(0, 2)))

    def routing_key(self) -> str:
        if self._dice.random() < 0.1:
            return self._dice.choice(self.queues)
        return ".".join(self._dice.choice(WORDS) for _ in range(self._dice.randint(0, 2)))

    def arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {word: self._dice.randint(1, 2) for word in WORDS if self._dice.random() < 0.4}
        if self._dice.random() < 0.7:
            found["x-match"] = self._dice.choice(("any", "all"))
        return found

    def headers(self) -> dict[str, Any]:
        return {word: self._dice.randint(1, 2) for word in WORDS if self._dice.random() < 0.6}


def test_a_route_is_where_messages_really_go(place: Place, amqp: Connect) -> None:
    seed = SEED or SystemRandom().getrandbits(32)
    print(f"WARREN_TEST_ROUTE_SEED={seed}")
    routed = unroutable = 0
    for number in range(TOPOLOGIES):
        dice = Random(seed + number)
        channel = amqp().channel()
        topology = Topology(dice, channel)
        channel.confirm_delivery()
        for _ in range(QUESTIONS):
            exchange = dice.choice([*topology.exchanges, ""])
            key, headers = topology.routing_key(), topology.headers()
            question = {"exchange": exchange or "amq.default", "routing_key": key, "headers": headers}
            answer = place.api.post(f"/warren/route/{place.v}", question).json
            channel.basic_publish(exchange, key, b"-", pika.BasicProperties(headers=headers))
            took = sorted(queue for queue in topology.queues if drained(channel, queue))
            assert sorted(answer["queues"]) == took, question
            assert answer["unroutable"] == (not took)
            check_path(exchange, answer)
            routed += bool(took)
            unroutable += not took
        for name in topology.exchanges:
            channel.exchange_delete(name)
    assert routed and unroutable


def check_path(exchange: str, answer: Any) -> None:
    """The steps begin at the exchange, hang together, and end in just the queues of the answer."""
    path = answer["path"]
    reached = {exchange}
    for step in path:
        assert step["exchange"] in reached
        if step["destination_type"] == "exchange":
            reached.add(step["destination"])
    ends = {step["destination"] for step in path if step["destination_type"] == "queue"}
    assert ends == set(answer["queues"])
    assert len({tuple(step.values()) for step in path}) == len(path)


def test_a_route_names_the_bindings_that_matched(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q")
    channel.exchange_declare("t", "topic")
    channel.exchange_declare("alt", "fanout")
    channel.exchange_declare("d", "direct", arguments={"alternate-exchange": "alt"})
    for key in ("a.*", "#.b", "c"):
        channel.queue_bind("q", "t", key)
    channel.queue_bind("q", "alt")
    answer = place.api.post(f"/warren/route/{place.v}", {"exchange": "t", "routing_key": "a.b"}).json
    assert sorted(step["routing_key"] for step in answer["path"]) == ["#.b", "a.*"]
    answer = place.api.post(f"/warren/route/{place.v}", {"exchange": "d", "routing_key": "x"}).json
    assert [(step["exchange"], step["destination"]) for step in answer["path"]] == [("d", "alt"), ("alt", "q")]


@pytest.mark.parametrize(
    ("question", "status"),
    [({}, 400), ({"exchange": "none"}, 404), ({"exchange": 5}, 400), ({"exchange": "", "headers": [1]}, 400)],
)
def test_questions_that_make_no_sense_are_refused(place: Place, question: Any, status: int) -> None:
    assert place.api.ask("POST", f"/warren/route/{place.v}", question).status == status


# --- topology and search ----------------------------------------------------------------------------------------------


def test_the_topology_has_every_exchange_queue_and_binding(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q", durable=True, arguments={"x-dead-letter-exchange": "dlx"})
    channel.exchange_declare("e", "topic", durable=True)
    channel.exchange_declare("inner", "fanout", internal=True)
    channel.exchange_bind("inner", "e", "k", {"n": 1})
    channel.queue_bind("q", "inner")
    channel.confirm_delivery()
    channel.basic_publish("e", "k", b"-")
    found = place.api.get(f"/warren/topology/{place.v}")
    exchanges = {each["name"]: each for each in found["exchanges"]}
    assert {"", "amq.direct", "amq.topic", "e", "inner"} <= set(exchanges)
    assert (exchanges["e"]["type"], exchanges["e"]["durable"], exchanges["inner"]["internal"]) == ("topic", True, True)
    (queue,) = found["queues"]
    assert (queue["name"], queue["messages"], queue["consumers"], queue["state"]) == ("q", 1, 0, "running")
    assert queue["dead_letter_exchange"] == "dlx"
    assert {
        "source": "e",
        "destination": "inner",
        "destination_type": "exchange",
        "routing_key": "k",
        "arguments": {"n": 1},
    } in found["bindings"]
    assert len(found["bindings"]) == 2
    for name in ("publish_in_rate", "publish_out_rate"):
        assert exchanges["e"][name] >= 0
    assert queue["publish_rate"] >= 0 and queue["deliver_rate"] >= 0


def test_search_finds_what_the_user_may_see(place: Place, amqp: Connect) -> None:
    connection = amqp()
    channel = connection.channel()
    channel.queue_declare("Needle.queue")
    channel.exchange_declare("needle.exchange")
    channel.basic_consume("Needle.queue", lambda *_: None, consumer_tag="needle-consumer")
    place.api.put(f"/policies/{place.v}/needle-policy", {"pattern": "x", "definition": {"max-length": 5}})
    own = place.user("needle-user", "management")
    stranger = place.user("stranger-2", "management", None)
    monitor = place.user("monitor-2", "monitoring", None)

    def kinds(api: Api, limit: int = 50) -> set[tuple[str, str]]:
        found = api.get(f"/warren/search?q=NEEDLE&limit={limit}")
        return {(item["kind"], item["name"]) for item in found["items"] if item["vhost"] in (place.vhost, None)}

    things = {("queue", "Needle.queue"), ("exchange", "needle.exchange"), ("policy", "needle-policy")}
    consumer = {("consumer", "needle-consumer")}
    assert kinds(place.api) == things | consumer | {("user", "needle-user")}
    assert kinds(own) == things
    assert kinds(stranger) == set()
    assert kinds(monitor) == things | consumer
    found = place.api.get("/warren/search?q=needle&limit=2")
    assert len(found["items"]) == 2 and found["more"]
    assert place.api.get("/warren/search?q=") == {"items": [], "more": False}
    assert place.api.get("/warren/search") == {"items": [], "more": False}
    assert place.api.ask("GET", "/warren/search?q=a&limit=x").status == 400
    for user in (own, stranger, monitor):
        user.close()


def test_search_begins_with_the_nearest_names(place: Place, amqp: Connect) -> None:
    channel = amqp().channel()
    for name in ("a.nearby", "nearby.1", "NEARBY"):
        channel.queue_declare(name)
    for limit in (1, 2, 50):
        found = place.api.get(f"/warren/search?q=nearby&limit={limit}")
        assert [each["name"] for each in found["items"]] == ["NEARBY", "nearby.1", "a.nearby"][:limit]
        assert found["more"] is (limit < 3)


# --- store and reactor ------------------------------------------------------------------------------------------------


def test_the_view_of_the_store_adds_up_and_follows_what_is_written(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    before = place.api.get("/warren/store")
    for _ in range(20):
        channel.basic_publish("", "q", b"x" * 10_000, pika.BasicProperties(delivery_mode=2))
    after = place.api.get("/warren/store")
    assert after["segment_count"] == len(after["segments"]) >= 1
    assert after["bytes"] == sum(each["bytes"] for each in after["segments"])
    assert after["live_bytes"] == sum(each["live_bytes"] for each in after["segments"]) <= after["bytes"]
    assert after["live_bytes"] >= 200_000  # remains of earlier tests may go meanwhile
    assert after["written_lsn"] - before["written_lsn"] >= 200_000
    assert after["durable_lsn"] <= after["written_lsn"]
    assert after["batches"] > before["batches"] and after["synced_bytes"] > before["synced_bytes"]
    times = after["commit_ms"]
    assert times["count"] > 0 and 0 <= times["p50"] <= times["p99"] <= times["max"]
    assert {each["state"] for each in after["segments"]} <= {"open", "sealed", "compacting"}
    assert after["trouble"] in ("", None)
    channel.queue_delete("q")
    place.api.eventually("/warren/store", lambda found: found["live_bytes"] < after["live_bytes"] - 150_000)


def test_the_view_of_the_reactor_counts_turns_and_connections(place: Place, amqp: Connect) -> None:
    before = place.api.get("/warren/reactor")
    connections = [amqp() for _ in range(3)]
    # Those of the tests before may just be going.
    after = place.api.eventually("/warren/reactor", lambda found: found["connections"] == len(connections))
    assert after["turns"] > before["turns"] and after["crashes"] == 0
    times = after["turn_ms"]
    assert 0 <= times["p50"] <= times["p99"] <= times["max"] and times["count"] == after["turns"]


def test_store_and_reactor_are_for_monitors(place: Place) -> None:
    plain = place.user("plain-2", "management")
    monitor = place.user("monitor-3", "monitoring", None)
    for path in ("/warren/store", "/warren/reactor"):
        assert plain.ask("GET", path).status == 401
        assert monitor.get(path)
    plain.close()
    monitor.close()


# --- what needs attention ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_queues_that_grow_or_have_no_consumer_are_told_the_worst_first(place: Place, amqp: Connect) -> None:
    channel = amqp().channel()
    for name in ("calm", "small", "large", "read"):
        channel.queue_declare(name)
    path = f"/warren/attention/{place.v}"
    assert place.api.get(path)["queues"] == 4
    place.api.eventually(f"/queues/{place.v}", lambda rows: all(each.get("idle_since") for each in rows))
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("read", lambda *arguments: None)
    for name, count in (("small", 3), ("large", 150), ("read", 120)):
        for _ in range(count):
            channel.basic_publish("", name, b"x")
    found = place.api.eventually(path, lambda it: it["growing"]["count"] == 2)
    assert [each["name"] for each in found["growing"]["items"]] == ["large", "read"]
    assert found["growing"]["items"][0]["grown"] == 150
    assert [each["why"] for each in found["growing"]["items"]] == ["no_consumer", "consumers_full"]
    unattended = found["without_consumer"]
    assert [(each["name"], each["messages"]) for each in unattended["items"]] == [("large", 150), ("small", 3)]
    assert unattended["count"] == 2
    assert found["old"] == {"count": 0, "items": []}
    channel.basic_qos(prefetch_count=200)
    channel.basic_consume("large", lambda *arguments: None)
    found = place.api.eventually(path, lambda it: it["growing"]["items"][0]["consumers"] == 1)
    assert found["growing"]["items"][0]["why"] == "too_few_consumers"
    place.api.put(f"/warren/queues/{place.v}/large/pause")
    assert place.api.get(path)["growing"]["items"][0]["why"] == "paused"
    everywhere = place.api.get("/warren/attention")
    assert place.vhost in {each["vhost"] for each in everywhere["without_consumer"]["items"]}
    other = place.user("other", "management")
    assert other.get(path)["queues"] == 4
    place.api.delete(f"/permissions/{place.v}/other")
    assert other.ask("GET", path).status == 401
    assert other.get("/warren/attention")["queues"] == 0
