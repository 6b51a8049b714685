"""Transfers over HTTP: progress, stopping and forgetting, who may begin one, what clients find afterwards."""

from __future__ import annotations

from typing import Any

import pika
import pytest

from .client import Api, Place, q
from .conftest import Connect

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def begin(place: Place, queue: str, api: Api | None = None, **order: Any) -> Any:
    """Begin a transfer and return what is known of it at once."""
    answer = (api or place.api).post(f"/warren/queues/{place.v}/{q(queue)}/transfers", order)
    assert answer.status == 201
    begun = answer.json
    assert answer.headers["location"] == f"/api/warren/transfers/{place.v}/{begun['id']}"
    return begun


def ended(place: Place, begun: Any) -> Any:
    """Return a transfer when it has ended."""
    path = f"/warren/transfers/{place.v}/{begun['id']}"
    return place.api.eventually(path, lambda found: found["state"] != "running")


def refused(api: Api, place: Place, queue: str, **order: Any) -> tuple[int, str, Any]:
    return api.ask("POST", f"/warren/queues/{place.v}/{q(queue)}/transfers", order).refusal


def fill(channel: Any, queue: str, count: int) -> list[bytes]:
    """Publish messages and wait until the queue has them."""
    bodies = [b"%d" % number for number in range(count)]
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for body in bodies[:-1]:
        channel.basic_publish("", queue, body, PERSISTENT)
    channel.basic_publish("", queue, bodies[-1], PERSISTENT)
    return bodies


def drained(channel: Any, queue: str) -> list[bytes]:
    found: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        assert not method.redelivered
        found.append(body)


def test_messages_move_and_a_consumer_finds_them_new_and_in_order(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "from", 350)
    channel.queue_declare("to")
    begun = begin(place, "from", mode="move", state="ready", destination={"queue": "to"}, count=None)
    assert begun["total"] == 350 and begun["user"] == "guest" and begun["mode"] == "move"
    done = ended(place, begun)
    assert done["state"] == "done" and done["error"] is None
    assert (done["scanned"], done["transferred"], done["unroutable"]) == (350, 350, 0)
    assert done["started_at"] <= done["ended_at"]
    assert done["destination"] == {"queue": "to"} and done["queue"] == "from" and done["vhost"] == place.vhost
    assert drained(channel, "to") == bodies and drained(channel, "from") == []


def places(place: Place, queue: str, state: str, *positions: int) -> dict[str, Any]:
    """Return how some messages of the queue are named in an order."""
    page = place.api.get(f"/warren/queues/{place.v}/{queue}/messages?state={state}&count=500")
    found = page["items"]
    named = [{key: found[at][key] for key in ("lane", "sequence_number") if key in found[at]} for at in positions]
    return {"messages": named, "queue_id": page["queue_id"]}


def test_only_the_named_messages_move_wherever_in_the_queue_they_are(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("from", durable=True, arguments={"x-max-priority": 2})
    channel.queue_declare("to")
    channel.confirm_delivery()
    for number in range(20):
        properties = pika.BasicProperties(delivery_mode=2, priority=number % 2)
        channel.basic_publish("", "from", b"%d" % number, properties)
    # Delivered and returned: the first of each priority.
    taken = [channel.basic_get("from")[0].delivery_tag for _ in range(11)]
    for tag in taken:
        channel.basic_nack(tag)
    place.api.eventually(f"/queues/{place.v}/from", lambda it: it["messages_ready"] == 20)
    # Priority 1 first: 1, 3 … 19, then 0, 2 … 18.
    named = places(place, "from", "ready", 0, 9, 10, 19)
    twice = {**named, "messages": [*named["messages"], named["messages"][0]]}
    begun = begin(place, "from", destination={"queue": "to"}, **twice)
    assert begun["total"] == 4
    done = ended(place, begun)
    assert (done["state"], done["scanned"], done["transferred"]) == ("done", 4, 4)
    assert sorted(drained(channel, "to"), key=int) == [b"0", b"1", b"18", b"19"]
    assert place.api.get(f"/queues/{place.v}/from")["messages"] == 16
    again = ended(place, begin(place, "from", destination={"queue": "to"}, **named))
    assert (again["state"], again["scanned"], again["transferred"]) == ("done", 0, 0), "they have left"


def test_named_parked_messages_move_and_places_that_cannot_be_are_refused(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    arguments = {"x-delivery-limit": 0, "x-delivery-limit-action": "park"}
    channel.queue_declare("from", durable=True, arguments=arguments)
    channel.queue_declare("to")
    for number in range(5):
        channel.basic_publish("", "from", b"%d" % number, PERSISTENT)
    for _ in range(5):
        channel.basic_reject(channel.basic_get("from")[0].delivery_tag)
    place.api.eventually(f"/queues/{place.v}/from", lambda it: it["messages_parked"] == 5)
    named = places(place, "from", "parked", 1, 3)
    stale = {"sequence_number": 10**9}
    order = {**named, "messages": [*named["messages"], stale]}
    done = ended(place, begin(place, "from", state="parked", destination={"queue": "to"}, **order))
    assert (done["state"], done["transferred"], done["total"]) == ("done", 2, 3)
    assert drained(channel, "to") == [b"1", b"3"]
    assert place.api.get(f"/queues/{place.v}/from")["messages_parked"] == 3
    wrongs: list[Any] = [[], [stale] * 501, [{"sequence_number": -1}], [{"sequence_number": 0, "lane": 1}], [{}]]
    for wrong in wrongs:
        order = {"messages": wrong, "queue_id": named["queue_id"]}
        status, _, _ = refused(place.api, place, "from", destination={"queue": "to"}, **order)
        assert status == 400, wrong


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("destination", [{"queue": "to"}, {"origin": True}])
def test_messages_of_a_queue_that_was_declared_again_are_not_taken_for_those_that_were_seen(
    place: Place, amqp: Connect, durable: bool, destination: Any
) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("to")
    for body in (b"seen", b"another"):
        channel.queue_delete("from")
        channel.queue_declare("from", durable=durable)
        channel.basic_publish("", "from", body)
        place.api.eventually(f"/queues/{place.v}/from", lambda it: it["messages"] == 1)
        if body == b"seen":
            named = places(place, "from", "ready", 0)
    for order in (named, {"queue_id": named["queue_id"]}):
        answer = refused(place.api, place, "from", destination=destination, **order)
        assert answer[:2] == (409, "another_queue")
    status, _, reason = refused(place.api, place, "from", destination=destination, messages=named["messages"])
    assert status == 400 and "queue_id" in str(reason)
    assert drained(channel, "from") == [b"another"]


def test_copies_by_filter_and_count_go_to_an_exchange(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "from", 60)
    channel.queue_declare("to")
    channel.exchange_declare("e", "topic")
    channel.queue_bind("to", "e", "new.*")
    destination = {"exchange": "e", "routing_key": "new.key"}
    begun = begin(place, "from", mode="copy", destination=destination, filter={"body": "5"}, count=4)
    done = ended(place, begun)
    assert (done["transferred"], done["state"]) == (4, "done")
    method, properties, _ = channel.basic_get("to")
    assert (method.exchange, method.routing_key, properties.delivery_mode) == ("e", "new.key", 2)
    channel.basic_nack(method.delivery_tag)
    path = f"/warren/queues/{place.v}/to/messages"
    # Wait until there are 4 in all: they are counted after the look, and the nack may be read in between.
    items = place.api.eventually(path, lambda found: found["count"] == 4)["items"]
    assert [item["payload"] for item in items] == ["5", "15", "25", "35"]
    assert drained(channel, "from") == bodies


def test_dead_letters_go_back_to_where_they_died(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("morgue")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "morgue"}
    for name in ("one", "two"):
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.basic_publish("", name, name.encode(), PERSISTENT)
    for name in ("one", "two"):
        method = None
        while method is None:
            method, _, _ = channel.basic_get(name)
        channel.basic_reject(method.delivery_tag, requeue=False)
    place.api.eventually(f"/warren/queues/{place.v}/morgue/messages", lambda found: found["total"] == 2)
    done = ended(place, begin(place, "morgue", mode="move", destination={"origin": True}))
    assert (done["transferred"], done["unroutable"]) == (2, 0)
    assert [drained(channel, name) for name in ("one", "two", "morgue")] == [[b"one"], [b"two"], []]


@pytest.mark.long
def test_a_running_transfer_is_stopped_and_an_ended_one_forgotten(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    count = 2_000
    bodies = [b"%d" % number for number in range(count)]
    channel.queue_declare("from", durable=True)
    for body in bodies:
        channel.basic_publish("", "from", body, PERSISTENT)
    channel.confirm_delivery()
    channel.queue_declare("to", durable=True)
    place.api.eventually(f"/warren/queues/{place.v}/from/messages?count=1", lambda found: found["total"] == count)
    begun = begin(place, "from", mode="move", destination={"queue": "to"}, rate=10)  # 200 s in all
    path = f"/warren/transfers/{place.v}/{begun['id']}"
    assert path.rpartition("/")[2] in [each["id"] for each in place.api.get("/warren/transfers")]
    assert place.api.delete(path) == 204
    done = ended(place, begun)
    assert done["state"] == "stopped"
    moved = done["transferred"]
    assert 0 <= moved < count
    assert drained(channel, "to") + drained(channel, "from") == bodies
    assert [each["id"] for each in place.api.get(f"/warren/transfers/{place.v}")] == [begun["id"]]
    assert place.api.delete(path) == 204
    assert place.api.ask("GET", path).status == 404 and place.api.ask("DELETE", path).status == 404
    assert place.api.get(f"/warren/transfers/{place.v}") == []


def test_a_full_destination_fails_the_transfer_with_a_reason(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "from", 50)
    channel.queue_declare("full", arguments={"x-max-length": 7, "x-overflow": "reject-publish"})
    done = ended(place, begin(place, "from", mode="move", destination={"queue": "full"}))
    assert (done["state"], done["transferred"]) == ("failed", 7)
    assert "refuses" in done["error"]
    assert drained(channel, "full") == bodies[:7] and drained(channel, "from") == bodies[7:]


def test_what_is_out_for_acknowledgement_is_not_moved(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    fill(channel, "from", 3)
    channel.queue_declare("to")
    method, _, body = channel.basic_get("from")
    assert body == b"0"
    done = ended(place, begin(place, "from", mode="move", destination={"queue": "to"}))
    assert done["transferred"] == 2
    channel.basic_nack(method.delivery_tag, requeue=True)
    assert channel.basic_get("from", auto_ack=True)[2] == b"0"
    assert drained(channel, "to") == [b"1", b"2"]


@pytest.mark.parametrize("mode", ["move", "copy"])
def test_parked_messages_are_transferred_and_those_that_are_not_wanted_stay(
    place: Place, amqp: Connect, mode: str
) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("from", durable=True, arguments={"x-delivery-limit": 0, "x-delivery-limit-action": "park"})
    channel.queue_declare("to", durable=True)
    for number in range(250):
        channel.basic_publish("", "from", b"%d" % number, PERSISTENT)
    for _ in range(250):
        method = None
        while method is None:
            method, _, _ = channel.basic_get("from")
        channel.basic_reject(method.delivery_tag, requeue=True)
    held = f"/warren/queues/{place.v}/from/held"
    place.api.eventually(held, lambda found: found["parked"]["messages"] == 250)
    passes = {"body": "7"}
    wanted = [b"%d" % number for number in range(250) if b"7" in b"%d" % number]
    done = ended(place, begin(place, "from", mode=mode, state="parked", destination={"queue": "to"}, filter=passes))
    assert (done["state"], done["scanned"], done["transferred"]) == ("done", 250, len(wanted))
    assert sorted(drained(channel, "to")) == sorted(wanted)
    left = 250 - len(wanted) if mode == "move" else 250
    assert place.api.get(held)["parked"]["messages"] == left


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ({}, 400),
        ({"destination": {}}, 400),
        ({"destination": {"queue": "none"}}, 404),
        ({"destination": {"exchange": "none"}}, 404),
        ({"destination": {"exchange": "internal"}}, 400),
        ({"destination": {"queue": "from"}}, 400),
        ({"destination": {"queue": "to"}, "mode": "swap"}, 400),
        ({"destination": {"queue": "to"}, "state": "delayed"}, 400),
        ({"destination": {"queue": "to"}, "rate": 0}, 400),
        ({"destination": {"queue": "to"}, "count": 0}, 400),
        ({"destination": {"queue": "to"}, "count": -5}, 400),
        ({"destination": {"queue": "to"}, "filter": {"body": 5}}, 400),
        ({"destination": {"exchange": "", "routing_key": 7}}, 400),
        ({"destination": {"exchange": "", "routing_key": "k" * 256}}, 400),
        ({"destination": {"origin": False}}, 400),
        ({"destination": {"queue": "q" * 256}}, 400),
        ({"destination": {"queue": "to"}, "filter": {"routing_key": "k" * 256}}, 400),
        ({"destination": {"queue": "to"}, "filter": {"header": "h" * 1025}}, 400),
        ({"destination": {"queue": "to"}, "filter": {"body": "b" * 4097}}, 400),
        ({"destination": {"queue": "to"}, "count": 10**30}, 400),
        ({"destination": {"queue": "to"}, "rate": 10**9}, 400),
        ({"destination": {"queue": "to"}, "of a newer client": 1}, 400),
        ({"destination": {"queue": "to", "of a newer client": 1}}, 400),
        ({"destination": {"queue": "to"}, "filter": {"of a newer client": 1}}, 400),
    ],
)
def test_orders_that_make_no_sense_are_refused_and_nothing_moves(
    place: Place, amqp: Connect, order: dict[str, Any], status: int
) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("to")
    channel.exchange_declare("internal", internal=True)
    bodies = fill(channel, "from", 3)
    assert refused(place.api, place, "from", **order)[0] == status
    assert place.api.get(f"/warren/transfers/{place.v}") == []
    assert drained(channel, "from") == bodies


def test_only_who_may_read_here_and_write_there_may_begin_one(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "from", 3)
    channel.queue_declare("to")
    channel.exchange_declare("e")
    writer = place.user("t-writer", "management", {"configure": "", "write": ".*", "read": "^to$"})
    reader = place.user("t-reader", "management", {"configure": "", "write": "^e$", "read": ".*"})
    stranger = place.user("t-stranger", "management", None)
    to = {"queue": "to"}
    assert refused(writer, place, "from", mode="copy", destination=to)[0] in (401, 403)
    assert refused(reader, place, "from", mode="copy", destination=to)[0] in (401, 403)
    assert refused(reader, place, "from", mode="copy", destination={"origin": True})[0] in (401, 403)
    assert refused(stranger, place, "from", mode="copy", destination=to)[0] == 401
    begun = begin(place, "from", reader, mode="copy", destination={"exchange": "e", "routing_key": "k"})
    assert ended(place, begun)["unroutable"] == 3 and begun["user"] == "t-reader"
    path = f"/warren/transfers/{place.v}/{begun['id']}"
    assert writer.ask("DELETE", path).status in (401, 403)
    assert stranger.ask("GET", path).status == 401
    assert stranger.get("/warren/transfers") == []
    assert reader.delete(path) == 204
    assert drained(channel, "from") == bodies
    for user in (writer, reader, stranger):
        user.close()


@pytest.mark.parametrize("field", ["body", "header", "routing_key"])
def test_half_a_surrogate_pair_is_refused_as_a_filter(place: Place, amqp: Connect, field: str) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "from", 2)
    channel.queue_declare("to")
    order = b'{"destination": {"queue": "to"}, "filter": {"%s": "\\ud800"}}' % field.encode()
    answer = place.api.ask("POST", f"/warren/queues/{place.v}/from/transfers", order)
    assert answer.status in (201, 400)
    if answer.status == 201:
        assert ended(place, answer.json)["transferred"] == 0
    assert drained(channel, "from") == bodies


def test_a_user_has_a_share_of_the_transfers_that_run(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    fill(channel, "from", 300)
    channel.queue_declare("to")
    user = place.user("t-many", "management")
    order: dict[str, Any] = {"mode": "copy", "destination": {"queue": "to"}, "rate": 1}
    begun = [begin(place, "from", user, **order) for _ in range(8)]
    assert refused(user, place, "from", **order)[:2] == (429, "too_many")
    begun.append(begin(place, "from", **order))
    place.api.delete("/users/t-many")
    for each in begun[:-1]:
        done = ended(place, each)
        assert (done["state"], done["error"]) == ("failed", "user 't-many' was deleted")
    place.api.delete(f"/warren/transfers/{place.v}/{begun[-1]['id']}")
    assert ended(place, begun[-1])["state"] == "stopped"
    user.close()


def test_a_topic_permission_is_asked_before_a_transfer_begins(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    fill(channel, "from", 3)
    channel.exchange_declare("t", "topic")
    user = place.user("t-topics", "management")
    place.api.put(f"/topic-permissions/{place.v}/t-topics", {"exchange": "t", "write": "^mine$", "read": ""})
    to = {"exchange": "t", "routing_key": "theirs"}
    assert refused(user, place, "from", mode="copy", destination=to)[0] == 401
    assert (
        ended(place, begin(place, "from", user, mode="copy", destination=to | {"routing_key": "mine"}))["error"] is None
    )
    user.close()
