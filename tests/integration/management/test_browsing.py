"""Looking into the queues of a running broker over HTTP: every state, filters, places, bodies, and nothing changed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pyarrow as pa
import pytest
from broker_process import WarrenProcess

from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.frames import encode_publishes
from warren.spark_bridge.properties import encode_properties

from .client import AT_LEAST_ONCE, Api, Place, q
from .conftest import Connect

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def messages(place: Place, queue: str, **query: object) -> Any:
    asked = "&".join(f"{name}={q(str(value))}" for name, value in query.items())
    return place.api.get(f"/warren/queues/{place.v}/{q(queue)}/messages?{asked}")


def first_match(place: Place, queue: str, **query: object) -> Any:
    """Return the first message that passes a filter, however many requests that takes."""
    scan_from = 0
    while True:
        page = messages(place, queue, count=1, scan_from=scan_from, **query)
        if page["items"]:
            return page["items"][0]
        assert page["more"] and page["scan_to"] > scan_from
        scan_from = page["scan_to"]


def refusal(api: Api, place: Place, queue: str, query: str = "") -> tuple[int, str, Any]:
    return api.ask("GET", f"/warren/queues/{place.v}/{q(queue)}/messages?{query}").refusal


def payloads(page: Any) -> list[str]:
    return [item["payload"] for item in page["items"]]


def publish(channel: Any, queue: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        channel.basic_publish("", queue, str(number).encode(), PERSISTENT)


def wait_for(place: Place, queue: str, ready: int, unacked: int = 0) -> None:
    def is_there(found: Any) -> bool:
        return bool(found.get("messages_ready") == ready and found.get("messages_unacknowledged") == unacked)

    place.api.eventually(f"/queues/{place.v}/{q(queue)}", is_there)


def wait_for_messages(place: Place, queue: str, count: int, state: str = "ready") -> Any:
    path = f"/warren/queues/{place.v}/{q(queue)}/messages?count=500&state={state}"
    return place.api.eventually(path, lambda found: len(found["items"]) == count)


def test_what_is_ready_is_shown_with_all_that_is_known_of_it(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("a/b c", durable=True)
    properties = pika.BasicProperties(
        content_type="text/plain",
        delivery_mode=2,
        priority=4,
        message_id="id",
        headers={"name": "value", "list": [1, True], "n": 7},
    )
    channel.exchange_declare("e", "topic")
    channel.queue_bind("a/b c", "e", "#")
    channel.basic_publish("e", "some.key", "grün".encode(), properties)
    channel.basic_publish("", "a/b c", b"second")
    page = wait_for_messages(place, "a/b c", 2)
    assert {name: page[name] for name in ("state", "offset", "count", "total", "more")} == {
        "state": "ready",
        "offset": 0,
        "count": 2,
        "total": 2,
        "more": False,
    }
    first, second = page["items"]
    for item in page["items"]:
        item.pop("arrived_by_ms", None)  # there once a tick of the statistics has come
    assert first == {
        "position": 0,
        "sequence_number": 0,
        "lane": 0,
        "redelivered": False,
        "exchange": "e",
        "routing_key": "some.key",
        "properties": {
            "content_type": "text/plain",
            "message_id": "id",
            "delivery_mode": 2,
            "priority": 4,
            "headers": {"name": "value", "list": [1, True], "n": 7},
        },
        "persistent": True,
        "payload": "grün",
        "payload_encoding": "string",
        "payload_bytes": 5,
        "truncated": False,
    }
    assert (second["position"], second["persistent"], second["properties"]) == (1, False, {})


def test_pages_follow_each_other_and_behind_the_end_there_is_nothing(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q", durable=True)
    publish(channel, "q", 120)
    wait_for_messages(place, "q", 120)
    found: list[str] = []
    while True:
        page = messages(place, "q", offset=len(found), count=50)
        assert [item["position"] for item in page["items"]] == list(range(len(found), len(found) + page["count"]))
        found += payloads(page)
        if not page["more"]:
            break
    assert found == [str(number) for number in range(120)]
    for offset in (120, 121, 10**15, 1 << 62):
        page = messages(place, "q", offset=offset)
        assert (page["items"], page["more"], page["total"], page["offset"]) == ([], False, 120, offset)
    assert messages(place, "q", offset=119)["more"] is False
    assert messages(place, "q", offset=118, count=1)["more"] is True


@pytest.mark.parametrize(
    "query",
    [
        "state=gone",
        "offset=-1",
        "offset=x",
        "count=0",
        "count=501",
        "truncate=-1",
        "truncate=99999999",
        "offset=" + "9" * 30,
        "offset=1.5",
    ],
)
def test_what_makes_no_sense_is_refused(place: Place, amqp: Connect, query: str) -> None:
    amqp().channel().queue_declare("q")
    status, error, reason = refusal(place.api, place, "q", query)
    assert (status, error) == (400, "bad_request")
    assert query.partition("=")[0] in reason


def test_only_what_passes_all_filters_is_shown_and_counted(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q")
    channel.exchange_declare("e", "fanout")
    channel.queue_bind("q", "e")
    for number in range(60):
        headers: dict[str, Any] = {"n": number % 3, "even": number % 2 == 0}
        if number % 4 == 0:
            headers["name"] = "a=b"
        properties = pika.BasicProperties(headers=headers)
        channel.basic_publish("e", f"key.{number % 5}", b"body %d" % number, properties)
    channel.basic_publish("e", "bare", b"no headers")
    wait_for_messages(place, "q", 61)

    def shown(**query: object) -> list[str]:
        return payloads(messages(place, "q", count=500, **query))

    assert shown(routing_key="y.3") == [f"body {n}" for n in range(60) if n % 5 == 3]
    assert shown(header="n=1") == [f"body {n}" for n in range(60) if n % 3 == 1]
    assert shown(header="n") == [f"body {n}" for n in range(60)]
    assert shown(header="even=true") == [f"body {n}" for n in range(0, 60, 2)]
    assert shown(header="name=a=b") == [f"body {n}" for n in range(0, 60, 4)]
    assert shown(header="none") == [] and shown(header="n=") == []
    assert shown(body="y 5") == ["body 5", *(f"body {n}" for n in range(50, 60))]
    assert shown(body="headers") == ["no headers"]
    assert shown(routing_key="key.0", header="n=0", body="3") == ["body 30"]
    page = messages(place, "q", header="n=2", offset=5, count=3)
    assert payloads(page) == ["body 17", "body 20", "body 23"] and page["more"]
    assert [item["position"] for item in page["items"]] == [5, 6, 7]
    page = messages(place, "q", header="n=2", offset=18, count=10)
    assert payloads(page) == ["body 56", "body 59"] and not page["more"] and page["scanned"] == 61
    found: list[str] = []
    scan_from = 0
    while True:
        page = messages(place, "q", header="n=2", scan_from=scan_from, count=3)
        found += payloads(page)
        if not page["more"]:
            break
        scan_from = page["scan_to"]
    assert found == [f"body {n}" for n in range(60) if n % 3 == 2] and page["scan_to"] == 61
    for query in ("scan_from=1", "scan_from=1&state=delayed&header=n"):
        assert refusal(place.api, place, "q", query)[0] == 400


def test_bodies_are_cut_and_encoded(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q")
    bodies = [
        b"",
        b"\x00\xff\xfe",
        "äöü".encode(),
        b"a" * 5000,
        bytes(range(256)) * 4,
        "\N{GRINNING FACE}".encode() * 3,
    ]
    for body in bodies:
        channel.basic_publish("", "q", body)
    wait_for_messages(place, "q", len(bodies))
    for truncate in (0, 1, 2, 3, 4, 5, 4096, 16 << 20):
        items = messages(place, "q", truncate=truncate)["items"]
        for body, item in zip(bodies, items, strict=True):
            assert item["payload_bytes"] == len(body)
            assert item["truncated"] == (len(body) > truncate)
            if item["payload_encoding"] == "string":
                part = item["payload"].encode()
                assert body.startswith(part) and len(body[:truncate]) - len(part) < 4
            else:
                assert base64.b64decode(item["payload"]) == body[:truncate]
        assert [items[n]["payload_encoding"] for n in (0, 2, 3, 5)] == ["string"] * 4
        if truncate > 1:
            assert items[1]["payload_encoding"] == "base64"
    assert len(messages(place, "q")["items"][3]["payload"]) == 4096


def test_headers_of_every_type_are_shown_and_can_be_filtered(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q")
    headers: dict[str, Any] = {
        "bytes": b"\xff\x00",
        "decimal": Decimal("1.5"),
        "at": datetime(2020, 1, 2, tzinfo=UTC),
        "nested": {"list": [{"a": None}, -1, True]},
        "large": 1 << 40,
        "none": None,
    }
    channel.basic_publish("", "q", b"odd", pika.BasicProperties(headers=headers))
    channel.basic_publish("", "q", b"bare")
    wait_for_messages(place, "q", 2)
    shown = messages(place, "q")["items"][0]["properties"]["headers"]
    assert shown["nested"] == {"list": [{"a": None}, -1, True]} and shown["large"] == 1 << 40
    for name in headers:
        assert payloads(messages(place, "q", header=name)) == ["odd"]
        assert payloads(messages(place, "q", header=f"{name}=nothing like it")) == []
    assert payloads(messages(place, "q", header=f"large={1 << 40}")) == ["odd"]


@pytest.mark.parametrize("text", ["%ED%A0%80", "%FF", "%00", "%F0%9F%98%80", "%3D", "%3D%3D"])
def test_odd_texts_to_look_for_are_found_nowhere_or_refused(place: Place, amqp: Connect, text: str) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"body", pika.BasicProperties(headers={"k": "v"}))
    wait_for_messages(place, "q", 1)
    for name in ("body", "header", "routing_key", "state", "count"):
        answer = place.api.ask("GET", f"/warren/queues/{place.v}/q/messages?{name}={text}")
        assert answer.status == 400 or (answer.status == 200 and answer.json["items"] == []), (name, answer)


def test_unacked_messages_name_who_has_them(place: Place, amqp: Connect) -> None:
    connection = amqp()
    channel = connection.channel()
    channel.queue_declare("q")
    channel.basic_qos(prefetch_count=2)
    publish(channel, "q", 4)
    wait_for_messages(place, "q", 4)
    got = amqp().channel().basic_get("q")
    channel.basic_consume("q", lambda *_: None, consumer_tag="eater")
    page = wait_for_messages(place, "q", 3, "unacked")
    assert got[0] is not None
    by_body = {item["payload"]: item for item in page["items"]}
    assert set(by_body) == {"0", "1", "2"} and page["total"] == 3
    assert by_body["0"]["consumer_tag"] is None and by_body["1"]["consumer_tag"] == "eater"
    assert [by_body[body]["delivery_tag"] for body in "012"] == [1, 1, 2]
    names = {each["name"] for each in place.api.get("/connections")}
    for item in page["items"]:
        assert item["connection"] in names and item["channel"] == item["connection"] + " (1)"
        assert item["user"] == "guest"
        assert 0 <= item["delivered_ms_ago"] < 60_000
    assert by_body["0"]["connection"] != by_body["1"]["connection"]
    page = messages(place, "q", state="unacked", offset=1, count=1)
    assert len(page["items"]) == 1 and page["more"] and page["items"][0]["position"] == 1
    assert payloads(messages(place, "q", state="unacked", body="2")) == ["2"]


def test_what_is_delayed_parked_or_undelivered_is_shown_apart(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    arguments = {"x-delivery-limit": 1, "x-delivery-limit-action": "park"}
    channel.queue_declare("q", durable=True, arguments=arguments)
    for number, delay in enumerate((3_000_000, 1_000_000, 2_000_000)):
        properties = pika.BasicProperties(headers={"x-delay": delay}, delivery_mode=2)
        channel.basic_publish("", "q", b"later %d" % number, properties)
    page = wait_for_messages(place, "q", 3, "delayed")
    assert payloads(page) == ["later 1", "later 2", "later 0"]
    due = [item["due_at_ms"] for item in page["items"]]
    assert due == sorted(due) and due[2] - due[0] == pytest.approx(2_000_000, abs=60_000)
    assert payloads(messages(place, "q", state="delayed", offset=1, count=1)) == ["later 2"]
    assert payloads(messages(place, "q", state="delayed", body="0")) == ["later 0"]
    for offset in (3, 20_000, 1 << 62):
        page = messages(place, "q", state="delayed", offset=offset)
        assert (page["items"], page["more"], page["total"]) == ([], False, 3)
    assert messages(place, "q")["items"] == [] and messages(place, "q", state="parked")["items"] == []
    channel.basic_publish("", "q", b"poison", PERSISTENT)
    for _ in range(2):
        method = None
        while method is None:
            method, _, _ = channel.basic_get("q")
        channel.basic_reject(method.delivery_tag, requeue=True)
    page = wait_for_messages(place, "q", 1, "parked")
    assert payloads(page) == ["poison"] and "due_at_ms" not in page["items"][0] and page["total"] == 1
    held = place.api.get(f"/warren/queues/{place.v}/q/held")
    assert held["delayed"] == {"messages": 3, "bytes": 21, "next_due_ms": due[0]}
    assert held["parked"] == {"messages": 1, "bytes": 6, "next_due_ms": None}


def test_dead_letters_that_no_target_takes_are_shown_as_undelivered(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    arguments = AT_LEAST_ONCE | {"x-dead-letter-routing-key": "nobody"}
    channel.queue_declare("q", durable=True, arguments=arguments)
    publish(channel, "q", 1)
    method = None
    while method is None:
        method, _, _ = channel.basic_get("q")
    channel.basic_reject(method.delivery_tag, requeue=False)
    page = wait_for_messages(place, "q", 1, "undelivered")
    assert payloads(page) == ["0"]
    assert page["items"][0]["properties"]["headers"]["x-death"][0]["queue"] == "q"


def test_a_consumer_sees_nothing_of_it(place: Place, amqp: Connect) -> None:
    connection = amqp()
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    publish(channel, "q", 300)
    wait_for_messages(place, "q", 300)
    before = place.api.get(f"/queues/{place.v}/q?columns=messages,messages_ready,messages_unacknowledged,message_stats")
    for offset in range(0, 300, 60):
        assert payloads(messages(place, "q", offset=offset, count=60, body="")) == [
            str(number) for number in range(offset, offset + 60)
        ]
    after = place.api.get(f"/queues/{place.v}/q?columns=messages,messages_ready,messages_unacknowledged,message_stats")
    for stats in (before.get("message_stats", {}), after.get("message_stats", {})):
        assert not {
            name
            for name in stats
            if name.startswith(("get", "deliver", "redeliver", "ack"))
            and stats[name]
            and not isinstance(stats[name], dict)
        }
    assert before["messages"] == after["messages"] == 300
    for number in range(300):
        method, _, body = channel.basic_get("q", auto_ack=True)
        assert method is not None
        assert (body, method.redelivered, method.message_count) == (str(number).encode(), False, 299 - number)


def test_who_may_not_read_a_queue_may_not_look_into_it(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("mine.q")
    channel.queue_declare("other")
    reader = place.user("reader", "management", {"configure": "", "write": ".*", "read": "^mine"})
    stranger = place.user("stranger", "monitoring", None)
    plain = place.user("plain", "", {"configure": ".*", "write": ".*", "read": ".*"})
    assert reader.get(f"/warren/queues/{place.v}/mine.q/messages")["items"] == []
    for state in ("ready", "unacked", "delayed"):
        status, _, reason = refusal(reader, place, "other", f"state={state}")
        assert status in (401, 403) and "other" in str(reason) and "reader" in str(reason)
    assert refusal(stranger, place, "mine.q")[0] == 401
    assert refusal(plain, place, "mine.q")[0] == 401
    assert refusal(place.api, place, "none")[0] == 404
    for user in (reader, stranger, plain):
        user.close()


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """A broker whose messages are on disk as soon as there are some."""
    settings = {"store.memory_bytes": 4 << 20}
    with WarrenProcess(tmp_path_factory.mktemp("tight"), settings=settings) as process:
        yield process


@pytest.mark.long
def test_a_long_queue_on_disk_is_paged_through(tight: WarrenProcess) -> None:
    count = 100_000
    api = Api(tight.http_port)
    place = Place(api, "/")
    api.put("/queues/%2F/long", {"durable": True})
    bodies = [*(b"%d" % number for number in range(count)), b"last"]
    with BrokerClient(f"http://127.0.0.1:{tight.http_port}") as client:
        properties = encode_properties({"delivery_mode": pa.array([2] * len(bodies), pa.int32())}, len(bodies))
        client.put_stage("s", 0, b"".join(encode_publishes("", "long", properties, pa.array(bodies)).to_pylist()))
        client.commit_stages("fill", 0, ["s"])
    store = api.eventually("/warren/store", lambda found: found["paged_messages"] > count // 2)
    for offset in (0, 1, 49_999, 77_777, 99_990):
        page = messages(place, "long", offset=offset, count=500)
        assert page["total"] == count + 1
        expected = [str(number) for number in range(offset, min(offset + 500, count))]
        if len(expected) < 500:
            expected.append("last")
        assert payloads(page) == expected
    assert first_match(place, "long", body="last")["sequence_number"] == count
    after = api.get("/warren/store")
    assert after["resident_bytes"] <= max(store["resident_bytes"], 8 << 20)
    api.close()


def test_a_large_body_is_shown_got_and_looked_through_whole(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("large", durable=True)
    bodies = [("café " * 500_000 + "needle").encode(), bytes(range(255, -1, -1)) * 12_000]
    for body in bodies:
        channel.basic_publish("", "large", body)
    wait_for(place, "large", 2)
    shown = messages(place, "large", truncate=4_000_000)["items"]
    assert [item["payload_bytes"] for item in shown] == list(map(len, bodies))
    assert shown[0]["payload"].encode() == bodies[0] and base64.b64decode(shown[1]["payload"]) == bodies[1]
    cut = messages(place, "large", truncate=4)["items"]
    assert [item["payload"] for item in cut] == ["caf", base64.b64encode(bodies[1][:4]).decode()]
    found = messages(place, "large", body="café needle")
    assert len(found["items"]) == 1 and found["scanned"] == 2
    wanted = {"ackmode": "ack_requeue_true", "count": 2, "encoding": "auto"}
    got = place.api.post(f"/queues/{place.v}/large/get", wanted).json
    assert got[0]["payload"].encode() == bodies[0] and base64.b64decode(got[1]["payload"]) == bodies[1]
    assert [each["payload_encoding"] for each in got] == ["string", "base64"]
    got = place.api.post(f"/queues/{place.v}/large/get", wanted | {"truncate": 9}).json
    assert got[0]["payload"] == "café caf"
