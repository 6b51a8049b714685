"""Queues, exchanges, bindings, messages, vhosts, users, policies, limits: status codes, refusals, what is told."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import pika
import pika.exceptions
import pytest

from .client import EVERYTHING, Api, Place, q
from .conftest import Connect

NOT_FOUND = (404, "Object Not Found", "Not Found")


def message(payload: str = "m", **more: Any) -> dict[str, Any]:
    return {"properties": {}, "routing_key": "q", "payload": payload, "payload_encoding": "string"} | more


def has_messages(count: int, queue: dict[str, Any]) -> bool:
    return bool(queue["messages"] == count)


def get(api: Api, v: str, **more: Any) -> list[dict[str, Any]]:
    wanted = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"} | more
    found: list[dict[str, Any]] = api.post(f"/queues/{v}/q/get", wanted).json
    return found


# --- queues and exchanges ---------------------------------------------------------------------------------------------


def test_a_queue_is_created_found_again_purged_and_deleted(place: Place) -> None:
    api, path = place.api, f"/queues/{place.v}/a%2Fb%20%C3%A9"
    assert api.put(path, {"durable": True, "arguments": {"x-max-length": 5}}) == 201
    assert api.put(path, {"arguments": {"x-max-length": 5}}) == 204
    status, error, reason = api.ask("PUT", path, {"arguments": {"x-max-length": 6}}).refusal
    assert (status, error) == (400, "bad_request") and "inequivalent arg 'x-max-length'" in reason
    queue = api.get(path)
    assert (queue["name"], queue["vhost"], queue["arguments"]) == ("a/b \u00e9", place.vhost, {"x-max-length": 5})
    assert api.delete(f"{path}/contents") == 204
    assert api.delete(path) == 204
    for method, of in (("GET", path), ("DELETE", path), ("DELETE", f"{path}/contents")):
        assert api.ask(method, of).refusal == NOT_FOUND


@pytest.mark.parametrize("name", ["a\tb", "\x1b[2J", "\x7f", "\x9b31m", "\x01 x", "\u2028"])
def test_names_with_control_characters_are_names(place: Place, amqp: Connect, name: str) -> None:
    api, v = place.api, place.v
    channel: Any = amqp(client_properties={"connection_name": name}).channel()
    for kind in ("queues", "exchanges"):
        path = f"/{kind}/{v}/{q(name)}"
        assert api.put(path, {} if kind == "queues" else {"type": "fanout"}) == 201
        assert api.get(path)["name"] == name
        assert name in [row["name"] for row in api.get(f"/{kind}/{v}")]
    bound = api.post(f"/bindings/{v}/e/{q(name)}/q/{q(name)}", {"routing_key": f"{name}\r\nX-Forged: 1"})
    assert "x-forged" not in bound.headers and bound.headers["location"].isprintable()
    assert api.delete(f"/bindings/{v}/e/{q(name)}/q/" + bound.headers["location"]) == 204
    channel.basic_consume(name, lambda *arguments: None, consumer_tag=name)
    assert api.get(f"/queues/{v}/{q(name)}")["consumer_details"][0]["consumer_tag"] == name
    page = api.ask("GET", f"//metrics/detailed?family=queue_coarse_metrics&vhost={v}").body.decode()
    (line,) = [line for line in page.split("\n") if line.startswith("rabbitmq_detailed_queue_messages{")]
    assert line == f'rabbitmq_detailed_queue_messages{{vhost="{place.vhost}",queue="{name}"}} 0'
    assert api.put(f"/vhosts/{q(name)}") == 201 and api.put(f"/users/{q(name)}", {"password": "p", "tags": ""}) == 201
    exported = api.ask("GET", f"/definitions/{q(name)}?download={q(name)}%0D%0AX-Forged:%201")
    assert "x-forged" not in exported.headers and exported.headers["content-disposition"].isprintable()
    assert api.delete(f"/vhosts/{q(name)}") == 204 and api.delete(f"/users/{q(name)}") == 204
    for kind in ("queues", "exchanges"):
        assert api.delete(f"/{kind}/{v}/{q(name)}") == 204


def test_names_with_nul_are_refused_and_line_breaks_removed(place: Place) -> None:
    assert place.api.ask("PUT", f"/queues/{place.v}/a%00b", {}).status == 400
    assert place.api.put(f"/queues/{place.v}/a%0D%0Ab") == 201
    assert [row["name"] for row in place.api.get(f"/queues/{place.v}")] == ["ab"]


def test_queues_are_deleted_only_if_unused_or_empty_when_asked_to(place: Place, amqp: Connect) -> None:
    api, path = place.api, f"/queues/{place.v}/q"
    api.put(path)
    api.post(f"/exchanges/{place.v}/amq.default/publish", message())
    assert api.ask("DELETE", f"{path}?if-empty=true").status == 400
    api.delete(f"{path}/contents")
    channel: Any = amqp().channel()
    channel.basic_consume("q", lambda *arguments: None)
    assert api.ask("DELETE", f"{path}?if-unused=true").status == 400
    assert api.delete(f"{path}?if-empty=true&if-unused=false") == 204


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not_json"),
        ({"durable": "perhaps"}, "durable"),
        ({"arguments": 1}, "arguments must be an object"),
        ({"arguments": {"x-message-ttl": "a"}}, "x-message-ttl"),
        ({"arguments": {"x-message-ttl": -1}}, "x-message-ttl"),
        ({"arguments": {"a": 1 << 70}}, "64 bits"),
        ([], "object"),
    ],
)
def test_what_cannot_be_declared_is_refused_with_its_reason(place: Place, body: object, reason: str) -> None:
    status, error, given = place.api.ask("PUT", f"/queues/{place.v}/q", body).refusal
    assert (status, error) == (400, "bad_request") and reason in str(given)


def test_names_may_have_255_bytes_and_no_reserved_beginning(place: Place) -> None:
    api, v = place.api, place.v
    assert api.put(f"/queues/{v}/{'x' * 255}") == 201
    for kind in ("queues", "exchanges"):
        for name in ("x" * 256, "\u00e9" * 128, "amq.mine"):
            assert 400 <= api.ask("PUT", f"/{kind}/{v}/{q(name)}", {}).status < 500, (kind, name)
    assert api.ask("DELETE", f"/exchanges/{v}/amq.direct").status == 401
    assert api.ask("DELETE", f"/exchanges/{v}/amq.default").status in (400, 401)


def test_an_exchange_is_created_found_again_and_deleted(place: Place) -> None:
    api, path = place.api, f"/exchanges/{place.v}/x"
    assert api.put(path, {"type": "topic"}) == 201
    assert api.put(path, {"type": "topic"}) == 204
    assert "inequivalent arg 'type'" in api.ask("PUT", path, {"type": "fanout"}).refusal[2]
    assert api.ask("PUT", f"/exchanges/{place.v}/y", {"type": "nosuch"}).status == 400
    api.put(f"/queues/{place.v}/q")
    api.post(f"/bindings/{place.v}/e/x/q/q", {"routing_key": "k"})
    assert api.ask("DELETE", f"{path}?if-unused=true").status == 400
    assert api.delete(path) == 204
    assert api.ask("GET", path).refusal == NOT_FOUND
    assert api.get(f"/exchanges/{place.v}/amq.default")["name"] == ""


# --- bindings ---------------------------------------------------------------------------------------------------------


def test_bindings_are_made_found_by_their_place_and_undone(place: Place) -> None:
    api, v = place.api, place.v
    api.put(f"/queues/{v}/q")
    between = f"/bindings/{v}/e/amq.topic/q/q"
    for body in ({"routing_key": "a/b #~%"}, {}, {"routing_key": "k", "arguments": {"x": [1, "y"]}}):
        made = api.post(between, body)
        assert made.status == 201
        _, _, key = made.headers["location"].rpartition("/")
        (found,) = [row for row in api.get(between) if row["routing_key"] == body.get("routing_key", "")]
        assert found["arguments"] == body.get("arguments", {})
        assert q(found["properties_key"]) == key
        assert api.get(f"{between}/{key}") == found
        assert api.post(between, body).status == 201  # once more is the same one
        assert len(api.get(between)) == 1
        assert api.delete(f"{between}/{key}") == 204
        assert api.ask("GET", f"{between}/{key}").refusal == NOT_FOUND
        assert api.ask("DELETE", f"{between}/{key}").refusal == NOT_FOUND
    assert api.ask("POST", f"/bindings/{v}/e/amq.topic/q/nosuch", {}).status == 404
    assert api.ask("POST", f"/bindings/{v}/e/nosuch/q/q", {}).status == 404
    for path in ("e/nosuch/q/q", "e/x/q/nosuch", "e/nosuch/e/nosuch"):
        assert api.get(f"/bindings/{v}/{path}") == []


def test_every_list_of_bindings_agrees(place: Place) -> None:
    api, v = place.api, place.v
    api.put(f"/queues/{v}/q")
    api.put(f"/exchanges/{v}/x", {"type": "fanout"})
    api.post(f"/bindings/{v}/e/amq.topic/q/q", {"routing_key": "k"})
    api.post(f"/bindings/{v}/e/amq.topic/e/x", {"routing_key": "k"})
    whole = api.get(f"/bindings/{v}")
    assert len(whole) == 3
    assert [row for row in api.get("/bindings") if row["vhost"] == place.vhost] == whole
    of_queue = api.get(f"/queues/{v}/q/bindings")
    assert [row["source"] for row in of_queue] == ["", "amq.topic"]
    assert len(api.get(f"/exchanges/{v}/amq.topic/bindings/source")) == 2
    assert api.get(f"/exchanges/{v}/x/bindings/destination") == api.get(f"/bindings/{v}/e/amq.topic/e/x")
    assert api.get(f"/exchanges/{v}/amq.default/bindings/source") == of_queue[:1]
    assert api.get(f"/bindings/{v}/e/amq.default/q/q") == of_queue[:1]


def test_pages_of_bindings_are_the_list_in_parts(place: Place) -> None:
    api, v = place.api, place.v
    for name in ("b", "a", "c"):
        api.put(f"/queues/{v}/{name}")
        api.put(f"/exchanges/{v}/{name}", {"type": "topic"})
    for source in ("c", "a"):
        for kind, destination in (("q", "b"), ("e", "b"), ("q", "a"), ("q", "c")):
            for key in ("z", "y.x", ""):
                api.post(f"/bindings/{v}/e/{source}/{kind}/{destination}", {"routing_key": key})
    whole = api.get(f"/bindings/{v}")
    assert len(whole) == 3 + 2 * 4 * 3
    for path, rows in ((f"/bindings/{v}", whole), (f"/exchanges/{v}/c/bindings/source", whole[15:])):
        for size in (1, 4, 7, 100):
            found: list[object] = []
            for number in range(-(-len(rows) // size)):
                page = api.get(f"{path}?page={number + 1}&page_size={size}")
                assert (page["total_count"], page["filtered_count"]) == (len(rows), len(rows))
                assert page["item_count"] == len(page["items"]) and page["page_count"] == -(-len(rows) // size)
                found += page["items"]
            assert found == rows
        assert api.ask("GET", f"{path}?page=1000").status == 400


# --- messages ---------------------------------------------------------------------------------------------------------


def test_messages_are_published_and_got_with_all_they_carry(place: Place, amqp: Connect) -> None:
    api, v = place.api, place.v
    api.put(f"/queues/{v}/q")
    publish = f"/exchanges/{v}/amq.default/publish"
    properties = {
        "content_type": "text/plain",
        "priority": 3,
        "headers": {"a": {"b": [1, None, "x"]}},
        "delivery_mode": 2,
    }
    assert api.post(publish, message("h\u00e9", properties=properties)).json == {"routed": True}
    raw = base64.b64encode(b"\xff\x00").decode()
    assert api.post(publish, message(raw, payload_encoding="base64")).json == {"routed": True}
    assert api.post(publish, message(routing_key="nowhere")).json == {"routed": False}
    channel: Any = amqp().channel()
    method, received, body = channel.basic_get("q")
    assert (body, received.headers, received.priority) == ("h\u00e9".encode(), {"a": {"b": [1, None, "x"]}}, 3)
    channel.basic_nack(method.delivery_tag)
    channel.queue_declare("q", passive=True)  # answered when the message is back
    first, second = get(api, v)
    assert first["properties"] == properties
    assert (first["payload"], first["payload_encoding"], first["payload_bytes"]) == ("h\u00e9", "string", 3)
    assert (first["exchange"], first["routing_key"], first["message_count"]) == ("", "q", 1)
    assert (second["payload"], second["payload_encoding"], second["properties"]) == (raw, "base64", [])
    cut, _ = get(api, v, truncate=1, encoding="base64")
    assert (cut["payload"], cut["payload_bytes"]) == (base64.b64encode(b"h").decode(), 3)


def test_a_queue_tells_the_time_that_its_next_message_carries(place: Place) -> None:
    api, path = place.api, f"/queues/{place.v}/q"
    api.put(path)
    assert api.get(path)["head_message_timestamp"] is None
    for properties in ({"timestamp": 1700000000}, {}):
        api.post(f"/exchanges/{place.v}/amq.default/publish", message(properties=properties))
    assert api.get(path)["head_message_timestamp"] == 1700000000
    get(api, place.v, count=1, ackmode="ack_requeue_false")
    assert api.get(path)["head_message_timestamp"] is None


def test_ack_modes_do_as_they_say(place: Place) -> None:
    api, v = place.api, place.v
    api.put(f"/queues/{v}/q", {"arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}})
    api.put(f"/queues/{v}/dead")
    for payload in ("1", "2", "3"):
        api.post(f"/exchanges/{v}/amq.default/publish", message(payload))
    assert [each["payload"] for each in get(api, v, ackmode="ack_requeue_true", count=2)] == ["1", "2"]
    assert [(each["payload"], each["redelivered"]) for each in get(api, v, ackmode="reject_requeue_true")] == [
        ("1", True),
        ("2", True),
        ("3", False),
    ]
    assert [each["payload"] for each in get(api, v, ackmode="reject_requeue_false", count=1)] == ["1"]
    assert api.eventually(f"/queues/{v}/dead", lambda queue: queue["messages"] == 1)
    assert [each["payload"] for each in get(api, v, ackmode="ack_requeue_false")] == ["2", "3"]
    assert get(api, v) == []
    assert api.get(f"/queues/{v}/dead")["messages"] == 1


def test_thousands_are_got_at_once_while_others_are_served(place: Place, amqp: Connect) -> None:
    api, v = place.api, place.v
    api.put(f"/queues/{v}/q", {"durable": False})
    channel: Any = amqp().channel()
    for number in range(3000):
        channel.basic_publish("", "q", str(number).encode())
    api.eventually(f"/queues/{v}/q", lambda queue: queue["messages"] == 3000)
    assert [each["payload"] for each in get(api, v, count=1 << 40)] == [str(number) for number in range(3000)]
    assert api.get(f"/queues/{v}/q")["messages_ready"] == 3000


@pytest.mark.parametrize(
    "body",
    [
        {"count": 1},
        {"count": 1, "ackmode": "nosuch", "encoding": "auto"},
        {"count": -1, "ackmode": "ack_requeue_true", "encoding": "auto"},
        {"count": "9" * 4999, "ackmode": "ack_requeue_true", "encoding": "auto"},
        {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": -1},
        {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": "x"},
        {"count": 1, "ackmode": ["ack_requeue_true"], "encoding": "auto"},
        [],
        b"count=1",
        {"count": "many", "ackmode": "ack_requeue_true", "encoding": "auto"},
        {"count": 1, "ackmode": "ack_requeue_true", "encoding": "hex"},
    ],
)
def test_what_cannot_be_got_is_refused(place: Place, body: object) -> None:
    place.api.put(f"/queues/{place.v}/q")
    assert place.api.ask("POST", f"/queues/{place.v}/q/get", body).refusal[:2] == (400, "bad_request")


def test_what_is_missing_in_a_request_for_messages_is_named_as_rabbitmq_does(place: Place) -> None:
    place.api.put(f"/queues/{place.v}/q")
    whole = {"ackmode": "ack_requeue_true", "count": 1, "encoding": "auto"}
    for missing in (["ackmode"], ["count"], ["encoding"], ["count", "encoding"], ["ackmode", "count", "encoding"]):
        body = {name: value for name, value in whole.items() if name not in missing}
        reason = "[" + ",".join(f"{{key_missing,{name}}}" for name in missing) + "]"
        refusal = place.api.ask("POST", f"/queues/{place.v}/q/get", body).refusal
        assert refusal == (400, "bad_request", reason)
    assert place.api.ask("POST", f"/queues/{place.v}/nosuch/get", {}).refusal[0] == 404
    assert place.api.ask("POST", f"/queues/{place.v}/q/get", whole | {"count": 0}).json == []


def test_a_feature_flag_is_enabled_and_an_unknown_one_unsupported(api: Api) -> None:
    flags = [flag["name"] for flag in api.get("/feature-flags")]
    assert [api.put(f"/feature-flags/{name}/enable") for name in flags] == [204] * len(flags)
    assert api.ask("PUT", "/feature-flags/nosuch/enable", {}).refusal == (400, "bad_request", "unsupported")


ABSURD = ("9" * 4999, "9" * 400, "9" * 19, "-" + "9" * 4999, "1_000", "%D9%A3", "0x10", "1e9", "", "%205")


def test_absurd_numbers_in_a_path_are_bad_requests(place: Place) -> None:
    for number in ABSURD:
        for method, path in (
            ("PUT", f"/warren/stages/{place.v}/stage/{number}"),
            ("GET", f"/health/checks/port-listener/{number}"),
            ("GET", f"/health/checks/certificate-expiration/{number}/days"),
        ):
            assert place.api.ask(method, path).status in (400, 404, 405), (method, path)


def test_absurd_numbers_in_a_query_are_bad_requests_or_not_heeded(place: Place) -> None:
    place.api.put(f"/queues/{place.v}/s", {"arguments": {"x-queue-type": "stream"}})
    for number in ABSURD:
        for path, status in (
            (f"/queues?page={number}", 400),
            (f"/queues?page=1&page_size={number}", 400 if number else 200),
            (f"/warren/search?q=x&limit={number}", 400),
            (f"/warren/queues/{place.v}/s/messages?offset={number}", 400),
            (f"/warren/data/{place.v}/s/chunks?from={number}&to=1", 400),
            (f"/overview?lengths_age={number}&lengths_incr={number}", 200),
        ):
            answer = place.api.ask("GET", path)
            assert answer.status == status, (path, answer)


@pytest.mark.parametrize(
    "change",
    [
        {"properties": None},
        {"properties": {"priority": "high"}},
        {"payload_encoding": "hex"},
        {"payload": "!", "payload_encoding": "base64"},
        {"payload": 1},
        {"routing_key": "x" * 256},
        {"properties": {"user_id": "bob"}},
        {"properties": {"expiration": "soon"}},
    ],
)
def test_what_cannot_be_published_is_refused(place: Place, change: dict[str, Any]) -> None:
    answer = place.api.ask("POST", f"/exchanges/{place.v}/amq.default/publish", message() | change)
    assert answer.refusal[:2] == (400, "bad_request")
    for field in message():
        less = {key: value for key, value in message().items() if key != field}
        answer = place.api.ask("POST", f"/exchanges/{place.v}/amq.default/publish", less)
        assert answer.status == 400 and field in str(answer.json["reason"])


def test_a_queue_that_is_full_rejects(place: Place) -> None:
    api, v = place.api, place.v
    api.put(f"/queues/{v}/q", {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}})
    path = f"/exchanges/{v}/amq.default/publish"
    assert api.post(path, message()).json == {"routed": True}
    assert api.ask("POST", path, message()).refusal == (
        400,
        "bad_request",
        "rejected Unable to publish message. Check queue limits.",
    )
    assert api.ask("POST", f"/exchanges/{v}/nosuch/publish", message()).refusal[2] == (
        f"404 NOT_FOUND - no exchange 'nosuch' in vhost '{place.vhost}'"
    )


# --- vhosts, users, policies, limits ----------------------------------------------------------------------------------


def test_vhosts_are_made_changed_protected_and_deleted(api: Api) -> None:
    path = "/vhosts/made"
    assert api.put(path, {"description": "d", "tags": "a,b"}) == 201
    assert api.put(path, {"tracing": True}) == 204
    vhost = api.get(path)
    assert (vhost["description"], vhost["tags"], vhost["tracing"]) == ("d", ["a", "b"], True)
    assert api.get("/vhosts/made/permissions")[0]["user"] == "guest"  # its creator may use it
    api.post(f"{path}/deletion/protection")
    assert 400 <= api.ask("DELETE", path).status < 500
    api.delete(f"{path}/deletion/protection")
    assert api.delete(path) == 204
    for method in ("GET", "DELETE"):
        assert api.ask(method, path).refusal == NOT_FOUND


def test_tracing_is_switched_on_and_off(place: Place, amqp: Connect) -> None:
    api, v = place.api, place.v
    channel: Any = amqp().channel()
    channel.queue_declare("firehose")
    channel.queue_bind("firehose", "amq.rabbitmq.trace", "publish.#")
    for tracing, traced in ((True, 1), (False, 1)):
        api.put(f"/vhosts/{v}", {"tracing": tracing})
        api.post(f"/exchanges/{v}/amq.fanout/publish", message())
        api.eventually(f"/queues/{v}/firehose", partial(has_messages, traced))
    _, properties, body = channel.basic_get("firehose")
    assert (body, properties.headers["user"], properties.headers["exchange_name"]) == (b"m", "guest", "amq.fanout")


def test_users_are_made_changed_and_deleted(api: Api, place: Place) -> None:
    path = "/users/carol"
    for body, reason in (
        ({}, "tags_not_present"),
        ({"password": "a", "password_hash": "b", "tags": ""}, "both_password_and_password_hash_are_provided"),
        ({"password_hash": "!!", "tags": ""}, ["not_base64", "!!"]),
        (
            {
                "password_hash": "$scrypt$ln=17,r=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAA",
                "hashing_algorithm": "scrypt",
                "tags": "",
            },
            "password_hash: length of the key must be from 16 to 64",
        ),
    ):
        assert api.ask("PUT", path, body).refusal == (400, "bad_request", reason)
    assert api.put(path, {"password": "x", "tags": "monitoring, policymaker"}) == 201
    carol = api.as_user("carol")
    assert carol.get("/whoami")["tags"] == ["monitoring", "policymaker"]
    assert "carol" in [user["name"] for user in api.get("/users/without-permissions")]
    assert api.put(f"/permissions/{place.v}/carol", EVERYTHING) == 201
    assert api.put(f"/permissions/{place.v}/carol", EVERYTHING) == 204
    assert api.get("/users/carol/permissions") == carol.get("/users/carol/permissions")
    assert carol.ask("GET", "/users/guest/permissions").status == 401
    assert api.put(path, {"password": "y", "tags": ["management"]}) == 204
    assert carol.ask("GET", "/whoami").status == 401
    assert api.as_user("carol", "y").get("/whoami")["tags"] == ["management"]
    hashed = api.get(path)
    api.put("/users/dave", {key: hashed[key] for key in ("password_hash", "hashing_algorithm", "tags")})
    assert api.as_user("dave", "y").get("/whoami")["name"] == "dave"
    api.post("/users/bulk-delete", {"users": ["carol", "dave", "nosuch"]})
    for name in ("carol", "dave"):
        assert api.ask("GET", f"/users/{name}").refusal == NOT_FOUND
    assert api.ask("PUT", f"/permissions/{place.v}/carol", EVERYTHING).refusal[0] == 400


def test_a_user_with_neither_password_nor_hash_cannot_log_in(api: Api) -> None:
    api.put("/users/nopass", {"tags": "administrator"})
    for password in ("", "x"):
        assert api.as_user("nopass", password).ask("GET", "/whoami").status == 401
    api.delete("/users/nopass")


def test_permissions_must_be_patterns_and_all_three(place: Place) -> None:
    path = f"/permissions/{place.v}/guest"
    for body in ({"configure": "", "write": ""}, EVERYTHING | {"read": "("}, EVERYTHING | {"read": 1}):
        assert place.api.ask("PUT", path, body).refusal[:2] == (400, "bad_request")
    assert place.api.get(path) == {"user": "guest", "vhost": place.vhost} | EVERYTHING


def test_policies_are_set_hold_and_go(place: Place, amqp: Connect) -> None:
    api, v = place.api, place.v
    path = f"/policies/{v}/p"
    for body, reason in (
        ({"definition": {"max-length": 1}}, "pattern"),
        ({"pattern": "(", "definition": {"max-length": 1}}, "pattern"),
        ({"pattern": "x", "definition": {"nosuch": 1}}, "nosuch"),
        ({"pattern": "x", "definition": {"message-ttl": "q"}}, "is not a valid message TTL"),
        ({"pattern": "x", "definition": {}}, "no policy provided"),
        ({"pattern": "x", "definition": {"max-length": 1}, "apply-to": "all of them"}, "unrecognised"),
        ({"pattern": "x", "definition": {"max-length": 1}, "priority": 1.5}, "priority"),
    ):
        refusal = api.ask("PUT", path, body).refusal
        assert refusal[:2] == (400, "bad_request") and reason in refusal[2], body
    policy = {"pattern": "^q", "definition": {"max-length": 2}, "priority": 3, "apply-to": "queues"}
    assert api.put(path, policy) == 201
    assert api.put(path, policy) == 204
    assert api.get(path) == {"vhost": place.vhost, "name": "p"} | policy
    api.put(f"/operator-policies/{v}/o", {"pattern": "", "definition": {"max-length": 1}, "apply-to": "queues"})
    api.put(f"/queues/{v}/q")
    queue = api.get(f"/queues/{v}/q")
    assert (queue["policy"], queue["operator_policy"]) == ("p", "o")
    assert queue["effective_policy_definition"] == {"max-length": 1}
    for _ in range(3):
        api.post(f"/exchanges/{v}/amq.default/publish", message())
    assert api.get(f"/queues/{v}/q")["messages"] == 1
    assert api.delete(path) == api.delete(f"/operator-policies/{v}/o") == 204
    assert api.get(f"/queues/{v}/q")["policy"] is None
    assert api.ask("DELETE", path).refusal == NOT_FOUND


def test_limits_of_vhosts_hold_at_once(place: Place, amqp: Connect) -> None:
    api, v = place.api, place.v
    path = f"/vhost-limits/{v}"
    for name, value in (("nosuch", 1), ("max-queues", "x"), ("max-queues", 1.5)):
        assert api.ask("PUT", f"{path}/{name}", {"value": value}).refusal[:2] == (400, "bad_request")
    api.put(f"{path}/max-queues", {"value": 1})
    api.put(f"{path}/max-connections", {"value": 1})
    assert api.get(path) == [{"vhost": place.vhost, "value": {"max-queues": 1, "max-connections": 1}}]
    api.put(f"/queues/{v}/first")
    assert 400 <= api.ask("PUT", f"/queues/{v}/second", {}).status < 500
    amqp()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        amqp()
    assert api.get(f"/queues/{v}/first")  # HTTP counts towards no limit of connections
    api.delete(f"{path}/max-connections")
    amqp()
    assert api.ask("DELETE", f"{path}/max-connections").refusal == NOT_FOUND


def test_limits_of_users_hold_at_once(place: Place, amqp: Connect) -> None:
    api = place.api
    place.user("limited", "management")
    api.put("/user-limits/limited/max-channels", {"value": 1})
    assert api.get("/user-limits/limited") == [{"user": "limited", "value": {"max-channels": 1}}]
    connection = amqp("limited", "x")
    connection.channel()
    with pytest.raises(pika.exceptions.AMQPError):
        connection.channel()
    assert api.delete("/user-limits/limited/max-channels") == 204
    amqp("limited", "x").channel()
    assert api.get("/user-limits/limited") == []


def test_parameters_come_and_go(api: Api, place: Place) -> None:
    assert api.put("/global-parameters/color", {"value": {"any": ["json"]}}) == 201
    assert api.get("/global-parameters/color") == {"name": "color", "value": {"any": ["json"]}}
    assert api.delete("/global-parameters/color") == 204
    assert api.ask("GET", "/global-parameters/color").refusal == NOT_FOUND
    assert api.ask("PUT", f"/parameters/nosuch/{place.v}/x", {"value": 1}).status == 400
    assert api.ask("GET", f"/parameters/shovel/{place.v}/x").refusal == NOT_FOUND
    before = api.get("/cluster-name")
    api.put("/cluster-name", {"name": "test"})
    assert api.get("/cluster-name") == {"name": "test"} == {"name": api.get("/overview")["cluster_name"]}
    api.put("/cluster-name", before)


def test_what_waits_in_a_delayed_message_exchange_is_counted(place: Place, amqp: Connect) -> None:
    before = place.api.get("/overview")["messages_delayed"]
    channel: Any = amqp().channel()
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("later", "k", b"x", pika.BasicProperties(headers={"x-delay": 3_600_000}))
    assert place.api.get(f"/exchanges/{place.v}/later")["messages_delayed"] == 3
    assert place.api.get("/overview")["messages_delayed"] == before + 3
    shown = {each["name"]: each.get("messages_delayed") for each in place.api.get(f"/exchanges/{place.v}")}
    assert (shown["later"], shown["amq.direct"]) == (3, None)
