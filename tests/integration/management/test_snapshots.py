"""Snapshots over HTTP: what is in them, that they change nothing, how long they live, who may do what."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from column_rows import Row

from .client import Api, Place, connect, q
from .conftest import Connect
from .test_drains import fill, read


def make(place: Place, queue: str, api: Api | None = None, **order: Any) -> Any:
    """Make a snapshot and return what is said of it."""
    answer = (api or place.api).ask("POST", f"/warren/snapshots/{place.v}/{q(queue)}", order)
    assert answer.status == 201, answer
    made = answer.json
    assert answer.headers["location"] == f"/api{path_of(place, made)}"
    return made


def path_of(place: Place, made: Any) -> str:
    return f"/warren/snapshots/{place.v}/{q(made['queue'])}/{made['snapshot']}"


def rows_in(place: Place, made: Any, first: int = 0, end: int | None = None) -> list[Row]:
    stop = made["end"] if end is None else end
    return read(place.api, place.v, made["queue"], made["id"], first, stop, made["snapshot"])


def state_of(place: Place, queue: str) -> Any:
    """Return what a look at a queue must not change."""
    found = place.api.get(f"/queues/{place.v}/{q(queue)}")
    counts = ("messages", "messages_ready", "messages_unacknowledged", "message_bytes", "consumers")
    items = place.api.get(f"/warren/queues/{place.v}/{q(queue)}/messages?count=500")["items"]
    return [found[each] for each in counts], found.get("message_stats"), items


def test_a_snapshot_has_what_waits_in_its_order_and_changes_nothing(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q", 400)
    for _ in range(3):
        method, _, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag, multiple=True, requeue=True)
    place.api.eventually(f"/queues/{place.v}/q", lambda found: found["messages_ready"] == 400)
    before = state_of(place, "q")
    made = make(place, "q")
    assert (made["state"], made["first"], made["end"], made["count"]) == ("ready", 0, 400, 400)
    assert made["bytes"] == sum(map(len, bodies))
    assert made["id"] == place.api.get(f"/warren/data/{place.v}/q")["id"]
    for _ in range(2):
        rows = rows_in(place, made)
        assert [row.body for row in rows] == bodies
        assert [row.redelivered for row in rows] == [number < 3 for number in range(400)]
    assert {(row.exchange, row.routing_key) for row in rows} == {("", "q")}
    assert len({row.time_ms for row in rows}) == 1 and rows[0].time_ms == made["made_at"]
    assert [row.body for row in rows_in(place, made, 17, 23)] == bodies[17:23]
    after = state_of(place, "q")
    assert after[0] == before[0] and after[2] == before[2]
    plan = place.api.post(
        f"/warren/data/{place.v}/q/plan", {"from": 0, "to": 400, "id": made["id"], "snapshot": made["snapshot"]}
    ).json
    assert plan["bounds"] == [0, 400] and plan["end"] == 400


def test_it_is_read_when_the_queue_has_changed_or_is_gone(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q", 50)
    made = make(place, "q")
    channel.queue_purge("q")
    fill(channel, "q", 10)
    assert [row.body for row in rows_in(place, made)] == bodies
    channel.queue_delete("q")
    assert [row.body for row in rows_in(place, made)] == bodies
    assert place.api.get(path_of(place, made))["end"] == 50


def test_priorities_come_highest_first_and_large_messages_whole(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q", durable=True, arguments={"x-max-priority": 5})
    channel.confirm_delivery()
    large = b"x" * 9_000_000
    for number in range(12):
        body = large if number == 5 else b"%d" % number
        channel.basic_publish("", "q", body, pika.BasicProperties(priority=number % 6, delivery_mode=2))
    made = make(place, "q")
    expected = [b"5", b"11", b"4", b"10", b"3", b"9", b"2", b"8", b"1", b"7", b"0", b"6"]
    expected[0] = large
    assert [row.body for row in rows_in(place, made)] == expected


def test_what_clients_have_is_in_it_when_that_is_asked_for(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q", 10)
    for _ in range(4):
        method, _, _ = channel.basic_get("q")
    assert [row.body for row in rows_in(place, make(place, "q"))] == bodies[4:]
    made = make(place, "q", unacked=True)
    rows = rows_in(place, made)
    assert [row.body for row in rows] == bodies
    assert [row.redelivered for row in rows] == [number < 4 for number in range(10)]
    channel.basic_ack(method.delivery_tag)


@pytest.mark.long
def test_it_is_read_while_it_is_made_and_a_range_may_end_where_it_could(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q", 3000)
    for _ in range(4):
        method, _, _ = channel.basic_get("q")
    answer = place.api.ask("POST", f"/warren/snapshots/{place.v}/q", {"wait_s": 0})
    begun = answer.json
    assert answer.status in (201, 202) and begun["most"] == 3000
    assert answer.status == 201 or (begun["state"], begun["end"]) == ("making", None)
    plan = place.api.post(
        f"/warren/data/{place.v}/q/plan", {"from": 0, "to": 3000, "id": begun["id"], "snapshot": begun["snapshot"]}
    ).json
    assert plan["bounds"][0] == 0 and plan["bounds"][-1] == 3000
    # The first request waits for rows that are not written.
    rows = read(place.api, place.v, "q", begun["id"], 0, 3000, begun["snapshot"], missing=4)
    assert [row.body for row in rows] == bodies[4:]
    assert read(place.api, place.v, "q", begun["id"], 2996, 3000, begun["snapshot"], missing=4) == []
    place.api.eventually(path_of(place, begun), lambda found: found["state"] == "ready" and found["end"] == 2996)
    path = f"/warren/data/{place.v}/q/chunks?from=0&to=3001&snapshot={begun['snapshot']}"
    assert place.api.ask("GET", path).status == 400
    channel.basic_ack(method.delivery_tag, multiple=True)


def test_an_empty_queue_has_an_empty_snapshot(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q")
    made = make(place, "q", unacked=True)
    assert (made["state"], made["end"], made["count"], made["bytes"]) == ("ready", 0, 0, 0)
    assert rows_in(place, made) == []


def test_a_snapshot_ends_with_its_time_or_when_it_is_deleted(
    place: Place, amqp: Connect, broker: WarrenProcess
) -> None:
    channel: Any = amqp().channel()
    fill(channel, "q", 5)
    kept, brief = make(place, "q"), make(place, "q", ttl_s=0.2)
    directory = broker.data_directory / "snapshots"
    file = directory / brief["snapshot"]
    wait_until(lambda: not file.exists(), "the snapshot to be removed")
    assert place.api.ask("GET", path_of(place, brief)).refusal[:2] == (404, "no_snapshot")
    path = f"/warren/data/{place.v}/q/chunks?from=0&to=5&snapshot="
    assert place.api.ask("GET", path + brief["snapshot"]).refusal[:2] == (404, "no_snapshot")
    assert [each["snapshot"] for each in place.api.get(f"/warren/snapshots/{place.v}")] == [kept["snapshot"]]
    assert kept["snapshot"] in [each["snapshot"] for each in place.api.get("/warren/snapshots")]
    assert (directory / kept["snapshot"]).stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    assert place.api.delete(path_of(place, kept)) == 204
    assert not (directory / kept["snapshot"]).exists()
    assert place.api.ask("DELETE", path_of(place, kept)).status == 404
    # The snapshot does not exist under the name of another queue.
    channel.queue_declare("other")
    again = make(place, "q")
    assert place.api.ask("GET", f"/warren/snapshots/{place.v}/other/{again['snapshot']}").status == 404


def test_a_user_who_may_read_the_queue_and_has_no_tag_may_make_one(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    fill(channel, "orders", 5)
    reader = place.user("reader of snapshots", "", {"configure": "^$", "write": "^$", "read": "^orders$"})
    made = make(place, "orders", reader)
    assert made["user"] == "reader of snapshots"
    path = f"/warren/data/{place.v}/orders/chunks?from=0&to=5&id={made['id']}&snapshot={made['snapshot']}"
    assert reader.ask("GET", path).status == 200
    assert reader.ask("GET", f"/warren/snapshots/{place.v}").status == 401
    other = place.user("other of snapshots", "management", {"configure": ".*", "write": ".*", "read": "^else$"})
    assert other.ask("POST", f"/warren/snapshots/{place.v}/orders", {}).status == 401
    for method in ("GET", "DELETE"):
        assert other.ask(method, path_of(place, made)).status == 401
    assert other.ask("GET", path).status == 401
    assert other.ask("GET", f"/warren/snapshots/{place.v}").status == 200, "what there is, operators see"
    assert reader.ask("DELETE", path_of(place, made)).status == 204


@pytest.mark.parametrize(
    ("queue", "order", "status"),
    [
        ("s", {}, 400),
        ("own", {}, 400),
        ("none", {}, 404),
        ("q", {"ttl_s": 0}, 400),
        ("q", {"ttl_s": -1}, 400),
        ("q", {"ttl_s": 1e12}, 400),
        ("q", {"ttl_s": "soon"}, 400),
        ("q", {"unacked": "perhaps"}, 400),
        ("q", {"wait_s": -1}, 400),
        ("q", {"wait_s": 3600}, 400),
    ],
)
def test_what_makes_no_sense_is_refused(
    place: Place, amqp: Connect, queue: str, order: dict[str, Any], status: int
) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare("own", exclusive=True)
    channel.queue_declare("q")
    assert place.api.ask("POST", f"/warren/snapshots/{place.v}/{queue}", order).status == status


def test_claims_can_be_copied_like_any_queue(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q", 20)
    path = f"/warren/drains/{place.v}/q/c"
    opened = place.api.post(f"{path}/open", {}).json
    place.api.post(f"{path}/claim", {"epoch": opened["epoch"], "after": 0, "max_rows": 15})
    assert [row.body for row in rows_in(place, make(place, opened["queue"]))] == bodies[:15]


def test_snapshots_go_with_the_process_that_made_them(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "snapshots"
    with WarrenProcess(tmp_path) as process:
        channel: Any = connect(process.amqp_port, "/").channel()
        fill(channel, "q", 5)
        made = make(Place(Api(process.http_port), "/"), "q")
        process.kill()
        assert (directory / made["snapshot"]).exists()
        process.start()
        wait_until(lambda: list(directory.iterdir()) == [], "what the killed process left to be removed")
        api = Api(process.http_port)
        assert api.ask("GET", f"/warren/snapshots/%2F/q/{made['snapshot']}").refusal[:2] == (404, "no_snapshot")
        assert make(Place(api, "/"), "q")["end"] == 5
        assert len(list(directory.iterdir())) == 1
        process.stop()
        assert list(directory.iterdir()) == []


LARGEST_MINIMUM = 1 << 40


def test_no_snapshot_is_made_where_the_disk_is_short(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free >= LARGEST_MINIMUM:
        pytest.skip("there is more space than a broker can be told to leave free")
    with WarrenProcess(tmp_path, settings={"store.disk_free_min_bytes": LARGEST_MINIMUM}) as process:
        api = Api(process.http_port)
        api.put("/queues/%2F/q", {"durable": True})
        api.eventually("/nodes", lambda found: found[0]["disk_free_alarm"])
        assert api.ask("POST", "/warren/snapshots/%2F/q", {}).refusal[:2] == (507, "disk_low")
        assert api.get("/warren/snapshots") == []
