"""Connections and channels as the API shows and closes them, changes under open connections, sessions of browsers."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pika
import pika.exceptions
import pytest
from broker_process import WarrenProcess, wait_until

from .client import Api, Place, q
from .conftest import Connect


def only(api: Api, place: Place, path: str = "/connections") -> dict[str, Any]:
    """Return the one row of a listing that is of this vhost, as soon as it is there."""
    rows = api.eventually(path, lambda rows: [row for row in rows if row["vhost"] == place.vhost])
    (row,) = [row for row in rows if row["vhost"] == place.vhost]
    found: dict[str, Any] = row
    return found


@pytest.mark.parametrize(
    ("given", "told"), [(None, "Closed via management plugin"), ("maintenance at 5", "maintenance at 5")]
)
def test_a_connection_is_closed_with_the_reason_given(
    place: Place, amqp: Connect, given: str | None, told: str
) -> None:
    connection = amqp(client_properties={"connection_name": "mine"})
    row = only(place.api, place)
    assert row["user_provided_name"] == "mine" and row["client_properties"]["connection_name"] == "mine"
    path = f"/connections/{q(row['name'])}"
    assert place.api.get(path)["name"] == row["name"]
    answer = place.api.ask("DELETE", path, None, {} if given is None else {"X-Reason": given})
    assert answer.status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.process_data_events(20)
    assert (caught.value.reply_code, caught.value.reply_text) == (320, f"CONNECTION_FORCED - {told}")
    place.api.eventually("/connections", lambda rows: all(row["vhost"] != place.vhost for row in rows))
    assert place.api.ask("DELETE", path).status == 404


@pytest.mark.parametrize("reason", ["x" * 300, "\u00e9" * 200, "\u00e9" * 10, " "])
def test_a_reason_that_does_not_fit_is_cut(place: Place, amqp: Connect, reason: str) -> None:
    connection = amqp()
    path = f"/connections/{q(only(place.api, place)['name'])}"
    header = reason.encode().decode("latin-1")
    assert place.api.ask("DELETE", path, None, {"X-Reason": header}).status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.process_data_events(20)
    assert caught.value.reply_code == 320
    assert len(caught.value.reply_text.encode("utf-8", "surrogateescape")) <= 255


def test_who_may_see_and_close_whose_connections(place: Place, amqp: Connect) -> None:
    owner = place.user("owner", "management")
    other = place.user("other", "management,policymaker")
    monitor = place.user("monitor", "monitoring")
    connection = amqp("owner", "x")
    connection.channel()
    name = q(only(place.api, place)["name"])
    for api, sees, closes in ((other, False, False), (monitor, True, False), (owner, True, True)):
        assert [row["user"] for row in api.get("/connections") if row["vhost"] == place.vhost] == ["owner"] * sees
        assert len([row for row in api.get("/channels") if row["vhost"] == place.vhost]) == sees
        for path in (f"/connections/{name}", f"/connections/{name}/channels", f"/channels/{name}%20(1)"):
            assert (api.ask("GET", path).status == 200) is sees, (path, sees)
        if not closes:
            assert api.ask("DELETE", f"/connections/{name}").status == 401
            assert api.ask("DELETE", "/connections/username/owner").status == 401
    assert owner.delete("/connections/username/owner") == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.process_data_events(20)


def test_a_channel_shows_what_is_on_it(place: Place, amqp: Connect) -> None:
    channel = amqp().channel(7)
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=3)
    channel.queue_declare("q")
    tag = channel.basic_consume("q", lambda *arguments: None)
    channel.basic_publish("", "q", b"x")
    row = place.api.eventually(
        f"/vhosts/{place.v}/channels", lambda rows: rows and rows[0]["messages_unacknowledged"] == 1
    )[0]
    assert (row["number"], row["confirm"], row["prefetch_count"], row["consumer_count"]) == (7, True, 3, 1)
    assert row["message_stats"]["publish"] == row["message_stats"]["confirm"] == 1
    shown = place.api.get(f"/channels/{q(row['name'])}")
    assert [consumer["consumer_tag"] for consumer in shown["consumer_details"]] == [tag]
    (consumer,) = consumers = place.api.get(f"/consumers/{place.v}")
    assert consumer["channel_details"]["number"] == 7
    assert consumer["messages_unacknowledged"] == 1
    assert consumer["channel_stats"].keys() == {"consumers", "deliver_rate", "ack_rate", "idle_ms"}
    in_full = place.api.get(f"/queues/{place.v}/q")["consumer_details"]
    for each in (*consumers, *in_full):
        assert each.pop("oldest_unacknowledged_ms") >= 0
    assert in_full == consumers
    assert "consumer_details" not in place.api.get(f"/queues/{place.v}/q?consumer_details=false")


def test_consumers_are_listed_of_a_queue_by_what_they_owe(place: Place, amqp: Connect) -> None:
    channel = amqp(client_properties={"connection_name": "worker"}).channel()
    channel.basic_qos(prefetch_count=3)
    for name, count in (("a", 1), ("b", 2), ("c", 0)):
        channel.queue_declare(name)
        for _ in range(count):
            channel.basic_publish("", name, b"x")
        channel.basic_consume(name, lambda *arguments: None, consumer_tag=f"of {name}")
    by_unacked = f"/consumers/{place.v}?sort=messages_unacknowledged&sort_reverse=true"
    rows = place.api.eventually(
        by_unacked, lambda rows: [each["messages_unacknowledged"] for each in rows] == [2, 1, 0]
    )
    assert [each["consumer_tag"] for each in rows] == ["of b", "of a", "of c"]
    assert "oldest_unacknowledged_ms" not in rows[2]
    assert all(each["channel_stats"]["consumers"] == 3 for each in rows)
    of_a = place.api.get(f"/consumers/{place.v}?queue=a")
    assert [each["consumer_tag"] for each in of_a] == ["of a"]
    found = place.api.get(f"/consumers/{place.v}?page=1&name=worker&sort=oldest_unacknowledged_ms&sort_reverse=true")
    assert found["filtered_count"] == 3
    assert found["items"][2]["consumer_tag"] == "of c"
    assert place.api.ask("GET", f"/consumers/{place.v}?queue=nosuch").status == 404


@pytest.mark.long
def test_a_consumer_whose_channel_rests_becomes_idle(place: Place, amqp: Connect) -> None:
    resting, busy = amqp().channel(), amqp().channel()
    for name, channel in (("calm", resting), ("busy", busy)):
        channel.queue_declare(name)
        channel.basic_consume(name, lambda *arguments: None)
    by_idle = f"/consumers/{place.v}?sort=channel_stats.idle_ms&sort_reverse=true"

    def is_told(rows: list[dict[str, Any]]) -> bool:
        busy.basic_publish("", "busy", b"x")
        return len(rows) == 2 and rows[0]["channel_stats"]["idle_ms"] > 0 and rows[1]["channel_stats"]["idle_ms"] == 0

    rows = place.api.eventually(by_idle, is_told)
    assert [each["queue"]["name"] for each in rows] == ["calm", "busy"]


def consumer_path(api: Api, place: Place, tag: str) -> str:
    """Return the path of a consumer, as soon as it is listed."""
    rows = api.eventually(f"/consumers/{place.v}", lambda rows: [row for row in rows if row["consumer_tag"] == tag])
    (channel,) = [row["channel_details"] for row in rows if row["consumer_tag"] == tag]
    return f"/consumers/{place.v}/{q(channel['connection_name'])}/{channel['number']}/{q(tag)}"


def test_one_consumer_is_cancelled_and_its_client_is_told(broker: WarrenProcess, place: Place, amqp: Connect) -> None:
    connection = amqp()
    channel = connection.channel(3)
    channel.queue_declare("q")
    cancelled: list[str | None] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    got: list[tuple[str | None, bytes]] = []
    for tag in ("hangs/%", "goes on"):
        channel.basic_consume(
            "q", lambda _, method, __, body: got.append((method.consumer_tag, body)), consumer_tag=tag
        )
    path = consumer_path(place.api, place, "hangs/%")
    assert place.api.ask("DELETE", path, None, {"X-Reason": "it hangs"}).status == 204
    assert [row["consumer_tag"] for row in place.api.get(f"/consumers/{place.v}")] == ["goes on"]
    while not cancelled:
        connection.process_data_events(20)
    assert cancelled == ["hangs/%"]
    for body in (b"1", b"2"):
        channel.basic_publish("", "q", body)
    while len(got) < 2:
        connection.process_data_events(20)
    assert got == [("goes on", b"1"), ("goes on", b"2")]
    assert place.api.ask("DELETE", path).status == 404
    wait_until(lambda: path.removeprefix("/consumers/") in broker.log(), "a line of audit")
    (line,) = [line for line in broker.log().splitlines() if "consumer.cancelled" in line and place.vhost in line]
    assert "it hangs" in line and "hangs/%" in line


def test_a_consumer_is_cancelled_whatever_its_tag_is(place: Place, amqp: Connect) -> None:
    connection = amqp()
    channel = connection.channel()
    channel.queue_declare("q")
    cancelled: list[str | None] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tags = [
        "a b",
        " a",
        "/",
        "..",
        "%2F",
        "q?x=1&y#z",
        "+",
        "-p",
        "new\nline",
        "\u00fc \u2713",
        "x" * 255,
        "\u00e9" * 127,
    ]
    for tag in tags:
        channel.basic_consume("q", lambda *arguments: None, consumer_tag=tag)
    before = consumer_path(place.api, place, "a b").rpartition("/")[0]
    for tag in tags:
        assert place.api.ask("DELETE", f"{before}/{q(tag)}").status == 204, tag
    while len(cancelled) < len(tags):
        connection.process_data_events(20)
    assert cancelled == tags
    assert place.api.get(f"/consumers/{place.v}") == []


def test_a_consumer_is_sought_where_the_path_says(place: Place, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("q")
    channel.basic_consume("q", lambda *arguments: None, consumer_tag="c")
    path = consumer_path(place.api, place, "c")
    before, number, tag = path.rsplit("/", 2)
    connection = before.rpartition("/")[2]
    for wrong, status in (
        (f"{before}/{number}/other", 404),
        (f"{before}/2/{tag}", 404),
        (f"{before}/-1/{tag}", 404),
        (f"{before}/one/{tag}", 400),
        (f"/consumers/{place.v}/nosuch/{number}/{tag}", 404),
        (f"/consumers/nosuch/{connection}/{number}/{tag}", 404),
        (f"/consumers/%2F/{connection}/{number}/{tag}", 404),
    ):
        assert place.api.ask("DELETE", wrong).status == status, wrong
    assert len(place.api.get(f"/consumers/{place.v}")) == 1


def test_who_may_close_a_connection_may_cancel_its_consumers(
    broker: WarrenProcess, place: Place, amqp: Connect
) -> None:
    owner = place.user("owner", "management")
    channel = amqp("owner", "x").channel()
    channel.queue_declare("q")
    for tag in ("first", "second"):
        channel.basic_consume("q", lambda *arguments: None, consumer_tag=tag)
    first, second = consumer_path(owner, place, "first"), consumer_path(owner, place, "second")
    for other in (
        place.user("policymaker", "policymaker"),
        place.user("monitor", "monitoring"),
        place.user("untagged", ""),
        place.user("stranger", "management", None),
    ):
        assert other.ask("DELETE", first).status == 401
    assert owner.delete(first) == 204
    assert place.user("chief", "administrator", None).delete(second) == 204
    assert place.api.get(f"/consumers/{place.v}") == []
    wait_until(lambda: second.removeprefix("/consumers/") in broker.log(), "a line of audit")
    lines = [line for line in broker.log().splitlines() if "consumer.cancelled" in line and place.vhost in line]
    assert len(lines) == 2 and all("Cancelled via management plugin" in line for line in lines)


# --- live changes -----------------------------------------------------------------------------------------------------


def test_a_permission_that_is_taken_away_holds_for_open_channels(place: Place, amqp: Connect) -> None:
    place.user("worker", "")
    connection = amqp("worker", "x")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x")
    place.api.put(f"/permissions/{place.v}/worker", {"configure": "", "write": "", "read": ".*"})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
        channel.basic_publish("", "q", b"x")
    assert connection.channel().basic_get("q")[2] == b"x"


def test_a_user_who_is_deleted_is_closed(place: Place, amqp: Connect) -> None:
    place.user("worker", "")
    connection = amqp("worker", "x")
    place.api.delete("/users/worker")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
        connection.process_data_events(20)


def test_a_vhost_that_is_deleted_is_closed(api: Api, amqp: Connect) -> None:
    api.put("/vhosts/short")
    connection = amqp(vhost="short")
    api.delete("/vhosts/short")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
        connection.process_data_events(20)


# --- sessions ---------------------------------------------------------------------------------------------------------


def log_in(api: Api, user: str, password: str, **headers: str) -> Any:
    return api.as_user(None).ask("POST", "/warren/session", {"username": user, "password": password}, headers or None)


def test_a_browser_logs_in_acts_and_logs_out(api: Api, place: Place) -> None:
    answer = log_in(api, "guest", "guest")
    assert answer.status == 200 and set(answer.json) == {"name", "tags", "csrf_token", "expires_in_s"}
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert b"guest" not in name.encode() and answer.json["csrf_token"] not in name
    browser = api.as_user(None)
    browser.headers["Cookie"] = name
    assert browser.get("/whoami")["name"] == "guest"
    assert browser.get("/warren/session")["csrf_token"] == answer.json["csrf_token"]
    assert browser.ask("PUT", f"/queues/{place.v}/q", {}).status == 403
    browser.headers["X-CSRF-Token"] = answer.json["csrf_token"]
    assert browser.put(f"/queues/{place.v}/q") == 201
    assert browser.ask("GET", "/whoami", None, {"Origin": "http://evil.example"}).status == 403
    assert browser.ask("PUT", f"/queues/{place.v}/r", {}, {"Sec-Fetch-Site": "cross-site"}).status == 403
    end = browser.ask("DELETE", "/warren/session")
    assert end.status == 204 and "Max-Age=0" in end.headers["set-cookie"]
    for path in ("/whoami", "/warren/session"):
        answer = browser.ask("GET", path)
        assert answer.status == 401 and "www-authenticate" not in answer.headers


def test_logins_that_are_wrong_or_from_elsewhere_are_refused(api: Api, place: Place) -> None:
    wrong = log_in(api, "guest", "wrong")
    assert wrong.status == 401 and "www-authenticate" not in wrong.headers and "set-cookie" not in wrong.headers
    assert log_in(api, "guest", "guest", Origin="http://evil.example").status == 403
    assert log_in(api, "guest", "guest", Host="evil.example").status == 403
    place.user("untagged", "")
    assert log_in(api, "untagged", "x").status == 401
    for body in (b"", b"{", b"[]", {"username": "guest"}, b"x" * 20_000):
        assert 400 <= api.as_user(None).ask("POST", "/warren/session", body).status < 500


def test_a_session_begun_while_a_hash_is_upgraded_goes_on(api: Api, broker: WarrenProcess) -> None:
    """RabbitMQ's hashes are replaced at the first login; the password does not change."""
    salted = base64.b64encode(bytes.fromhex("00000000") + _sha256(bytes(4) + b"x")).decode()
    api.put("/users/upgraded", {"password_hash": salted, "tags": "management"})
    answer = log_in(api, "upgraded", "x")
    assert answer.status == 200
    browser = api.as_user(None)
    browser.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]
    api.eventually("/users/upgraded", lambda user: user["password_hash"] != salted)
    assert browser.get("/whoami")["name"] == "upgraded"
    api.put("/users/upgraded", {"password": "y", "tags": "management"})
    assert browser.ask("GET", "/whoami").status == 401
    api.delete("/users/upgraded")


def test_a_user_who_may_not_log_in_any_more_is_shown_no_session(api: Api) -> None:
    """The page asks for it, to know whether there is anything to be shown."""
    api.put("/users/dismissed", {"password": "x", "tags": "administrator"})
    browser = api.as_user(None)
    browser.headers["Cookie"] = log_in(api, "dismissed", "x").headers["set-cookie"].partition(";")[0]
    assert browser.get("/warren/session")["tags"] == ["administrator"]
    hashed = api.get("/users/dismissed")["password_hash"]
    api.put("/users/dismissed", {"password_hash": hashed, "hashing_algorithm": "scrypt", "tags": "management"})
    assert browser.get("/warren/session")["tags"] == ["management"]
    api.put("/users/dismissed", {"password_hash": hashed, "hashing_algorithm": "scrypt", "tags": ""})
    assert browser.ask("GET", "/warren/session").status == 401
    api.delete("/users/dismissed")


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def test_no_password_comes_into_the_log(api: Api, broker: WarrenProcess) -> None:
    api.put("/users/secretive", {"password": "p4ssw0rd-of-a-test", "tags": "management"})
    log_in(api, "secretive", "p4ssw0rd-of-a-test")
    api.as_user("secretive", "wr0ng-of-a-test").ask("GET", "/whoami")
    api.as_user("secretive", "p4ssw0rd-of-a-test").get("/whoami")
    api.delete("/users/secretive")
    assert "of-a-test" not in broker.log() + broker.out()


def test_a_path_that_is_not_there_is_a_page_for_browsers_and_json_for_programs(place: Place) -> None:
    for path in ("//queus", "/queus", "//a/b"):
        assert place.api.ask("GET", path).refusal[:2] == (404, "Object Not Found")
        page = place.api.ask("GET", path, headers={"Accept": "text/html,*/*;q=0.8"})
        assert (page.status, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert b"There is no such page" in page.body
