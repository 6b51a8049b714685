"""MQTT and STOMP clients over the API: what they have subscribed to, sessions of those away, and what is retained."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from broker_process import WarrenProcess
from mqtt_harness import publish_packet
from mqtt_socket import MqttSocket, connect, subscribe
from stomp_harness import frame

from warren.mqtt.packets import packet

from .client import Api, Place, q


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    flags = {"mqtt": "127.0.0.1:0", "stomp": "127.0.0.1:0"}
    with WarrenProcess(tmp_path_factory.mktemp("broker"), flags=flags) as process:
        yield process


@pytest.fixture
def clients(broker: WarrenProcess, place: Place) -> Iterator[list[MqttSocket]]:
    """Three: `lasting` with two subscriptions, `gone` that has left them behind, and `passing`, which keeps nothing."""
    made: list[MqttSocket] = []
    for client_id, clean in (("lasting", False), ("gone", False), ("passing", True)):
        client = MqttSocket(socket.create_connection(("127.0.0.1", broker.mqtt_port)))
        assert client.call(connect(client_id, clean=clean, user=f"{place.vhost}:guest")).kind == 2
        made.append(client)
    for client in made[:2]:
        assert client.call(subscribe("sensors/+/t")).kind == 9
        assert client.call(subscribe("alarms", 0)).kind == 9
    made[1].send(packet(14, 0, b""))
    with pytest.raises(EOFError):
        made[1].take()
    yield made
    for client in made:
        client.close()


def test_sessions_are_listed_with_those_of_clients_that_are_away(
    api: Api, place: Place, clients: list[MqttSocket]
) -> None:
    assert clients[2].call(publish_packet("sensors/a/t", b"21", 1)).kind == 4
    rows = api.eventually(
        f"/warren/mqtt-sessions/{place.v}?sort=client_id",
        lambda rows: len(rows) == 3 and not rows[0]["connected"],
    )
    found = [(row["client_id"], row["connected"], row["user"], row["expiry_s"], row["messages"]) for row in rows]
    assert found == [
        ("gone", False, None, 86400, 1),
        ("lasting", True, "guest", 86400, 1),
        ("passing", True, "guest", 0, 0),
    ]
    assert rows[0]["queues"] == ["mqtt-subscription-goneqos0", "mqtt-subscription-goneqos1"]
    assert rows[1]["protocol"] == "MQTT 3-1-1"
    assert rows[1]["connection_details"]["peer_host"] == "127.0.0.1"
    page = api.get("/warren/mqtt-sessions?page=1&page_size=2&name=on")
    assert [row["client_id"] for row in page["items"]] == ["gone"]
    one = api.get(f"/warren/mqtt-sessions/{place.v}/gone")
    assert [(each["filter"], each["qos"]) for each in one["subscriptions"]] == [("alarms", 0), ("sensors/+/t", 1)]
    assert api.ask("GET", f"/warren/mqtt-sessions/{place.v}/nobody").status == 404


def test_a_session_is_ended_whether_its_client_is_there_or_not(
    api: Api, place: Place, clients: list[MqttSocket]
) -> None:
    assert api.delete(f"/warren/mqtt-sessions/{place.v}/gone") == 204
    assert api.delete(f"/warren/mqtt-sessions/{place.v}/lasting") == 204
    assert api.delete(f"/warren/mqtt-sessions/{place.v}/passing") == 204
    for client in (clients[0], clients[2]):
        with pytest.raises(EOFError):
            client.take()
    api.eventually(f"/warren/mqtt-sessions/{place.v}", lambda rows: not rows)
    assert api.get(f"/queues/{place.v}") == []
    assert api.ask("DELETE", f"/warren/mqtt-sessions/{place.v}/gone").status == 404


def test_who_may_not_delete_the_queues_of_a_session_may_not_end_it(
    api: Api, place: Place, clients: list[MqttSocket]
) -> None:
    reader = place.user("reader", "management", {"configure": "^own$", "write": ".*", "read": ".*"})
    assert reader.ask("DELETE", f"/warren/mqtt-sessions/{place.v}/gone").status == 401
    owner = place.user("owner", "management")
    assert owner.ask("DELETE", f"/warren/mqtt-sessions/{place.v}/lasting").status == 401, "it is somebody else's"
    assert owner.ask("DELETE", f"/warren/mqtt-sessions/{place.v}/gone").status == 204
    for user in (reader, owner):
        user.close()


def test_what_is_retained_is_browsed_and_cleared(api: Api, place: Place, clients: list[MqttSocket]) -> None:
    client = clients[2]
    for topic, body in (("a/b", b"text"), ("a/c", b"\xff"), ("other", b"x" * 100_000)):
        assert client.call(publish_packet(topic, body, 1, retain=True)).kind == 4
    base = f"/warren/retained/{place.v}"
    rows = api.get(f"{base}?sort=topic")
    assert [(row["topic"], row["payload_bytes"], row["qos"]) for row in rows] == [
        ("a/b", 4, 1),
        ("a/c", 1, 1),
        ("other", 100_000, 1),
    ]
    assert [row["topic"] for row in api.get(f"{base}?filter=a/%23&page=1&name=b")["items"]] == ["a/b"]
    one = api.get(f"{base}/{q('a/b')}")
    assert (one["payload"], one["payload_encoding"], one["expires_at"]) == ("text", "string", None)
    assert api.get(f"{base}/{q('a/c')}")["payload_encoding"] == "base64"
    assert api.delete(f"{base}/{q('a/b')}") == 204
    assert api.ask("GET", f"{base}/{q('a/b')}").status == 404
    for bad in ("", "?filter=a/%23/b", "?filter=a%23", "?filter="):
        assert api.ask("DELETE", base + bad).status == 400
    assert api.ask("DELETE", f"{base}?filter=%23").json == {"cleared": 2, "refused": 0}
    assert api.get(base) == []


def test_topic_permissions_hold_for_what_is_retained(api: Api, place: Place, clients: list[MqttSocket]) -> None:
    for topic in ("mine/a", "theirs/a"):
        assert clients[2].call(publish_packet(topic, b"x", 1, retain=True)).kind == 4
    some = place.user("some", "management")
    rights = {"exchange": "amq.topic", "write": r"^mine\.", "read": r"^mine\."}
    api.put(f"/topic-permissions/{place.v}/{q('some')}", rights)
    base = f"/warren/retained/{place.v}"
    assert [row["topic"] for row in some.get(base)] == ["mine/a"]
    assert some.ask("GET", f"{base}/{q('theirs/a')}").status == 401
    assert some.ask("DELETE", f"{base}/{q('theirs/a')}").status == 401
    assert some.ask("DELETE", f"{base}?filter=%23").json == {"cleared": 1, "refused": 1}
    some.close()
    none = place.user("none", "management", {"configure": "", "write": "", "read": ""})
    assert none.ask("GET", base).status == 401
    none.close()


def test_a_subscriber_without_a_queue_is_shown_as_what_it_is(api: Api, place: Place, clients: list[MqttSocket]) -> None:
    assert clients[2].call(subscribe("loud/#", 0)).kind == 9
    name = "mqtt-subscription-passingqos0"
    assert name not in [row["name"] for row in api.get(f"/queues/{place.v}")]
    rows = api.get(f"/exchanges/{place.v}/amq.topic/bindings/source")
    (binding,) = [row for row in rows if row["destination"] == name]
    assert (binding["destination_type"], binding["routing_key"]) == ("subscriber", "loud.#")
    session = api.get(f"/warren/mqtt-sessions/{place.v}/passing")
    assert (session["queues"], [each["filter"] for each in session["subscriptions"]]) == ([], ["loud/#"])
    question = {"exchange": "amq.topic", "routing_key": "loud.x", "headers": {}}
    answer = place.api.post(f"/warren/route/{place.v}", question).json
    assert (answer["queues"], answer["subscribers"], answer["unroutable"]) == ([], [name], False)
    assert answer["path"][0]["destination_type"] == "subscriber"
    assert name not in [row["destination"] for row in api.get(f"/definitions/{place.v}")["bindings"]]


def test_a_connection_says_what_its_client_does(
    api: Api, broker: WarrenProcess, place: Place, clients: list[MqttSocket]
) -> None:
    rows = {row["client_properties"]["client_id"]: row for row in api.get(f"/vhosts/{place.v}/connections")}
    assert rows["lasting"]["mqtt"] == {
        "client_id": "lasting",
        "version": "3.1.1",
        "keep_alive_s": 0,
        "session_expiry_s": 86400,
        "receive_maximum": 100,
        "maximum_packet_bytes": None,
        "will": None,
        "subscriptions": 2,
        "dropped_qos_0": 0,
    }
    name = q(rows["lasting"]["name"])
    assert api.get(f"/connections/{name}/subscriptions") == [
        {"filter": "sensors/+/t", "qos": 1, "no_local": False, "retain_as_published": False, "identifier": None},
        {"filter": "alarms", "qos": 0, "no_local": False, "retain_as_published": False, "identifier": None},
    ]
    with socket.create_connection(("127.0.0.1", broker.stomp_port)) as stomp:
        login = {"accept-version": "1.2", "host": place.vhost, "login": "guest", "passcode": "guest"}
        stomp.sendall(frame("CONNECT", login))
        stomp.sendall(frame("SUBSCRIBE", {"id": "7", "destination": "/queue/orders", "ack": "client"}))
        rows = api.eventually(
            f"/vhosts/{place.v}/connections",
            lambda rows: any(each.get("stomp", {}).get("subscriptions") for each in rows),
        )
        (row,) = (each for each in rows if "stomp" in each)
        assert row["stomp"]["version"] == "1.2"
        assert api.get(f"/connections/{q(row['name'])}/subscriptions") == [
            {"id": "7", "destination": "/queue/orders", "queue": "orders", "ack": "client"}
        ]
