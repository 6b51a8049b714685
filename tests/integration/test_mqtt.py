"""MQTT on the real process: on bare sockets, TLS and WebSockets, listed and closed, with AMQP beside it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pika
import pytest
from broker_process import WarrenProcess
from mqtt_harness import message, publish_packet
from mqtt_socket import MqttSocket, connect, subscribe
from web_socket_peer import WebSocketOn

from .certificates import Authority
from .management.client import Api


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "Warren test authority")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[WarrenProcess]:
    server = authority.issue("/CN=server", "DNS:localhost")
    directory: Path = tmp_path_factory.mktemp("broker")
    flags = dict.fromkeys(("mqtt", "mqtts", "mqtt_ws", "mqtt_wss"), "127.0.0.1:0")
    tls: dict[str, object] = {"tls.certificate": server.certificate, "tls.private_key": server.key}
    with WarrenProcess(directory, flags=flags, settings=tls) as process:
        yield process


@pytest.fixture(params=["", "s", "_ws", "_wss"], ids=["plain", "TLS", "WebSocket", "WebSocket-TLS"])
def client(broker: WarrenProcess, authority: Authority, request: pytest.FixtureRequest) -> Iterator[MqttSocket]:
    way = request.param
    is_tls = way in ("s", "_wss")
    sock = socket.create_connection(("127.0.0.1", getattr(broker, f"mqtt{way}_port")))
    if is_tls:
        context = ssl.create_default_context(cafile=authority.certificate)
        sock = context.wrap_socket(sock, server_hostname="localhost")
    made = MqttSocket(WebSocketOn(sock, "mqtt") if "ws" in way else sock)
    assert made.call(connect("client")).body == b"\0\0"
    yield made
    made.close()


def test_messages_pass_between_mqtt_and_amqp(broker: WarrenProcess, client: MqttSocket) -> None:
    assert client.call(subscribe("passing/#")).kind == 9
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as amqp:
        channel = amqp.channel()
        channel.basic_publish("amq.topic", "passing.on", b"x" * 500_000)
        found = message(client.take(), 4)
        assert (found.topic, found.body) == ("passing/on", b"x" * 500_000)
        channel.queue_declare("taken")
        channel.queue_bind("taken", "amq.topic", "other.*")
        assert client.call(publish_packet("other/way", b"y" * 500_000, 1)).kind == 4
        method, given, body = channel.basic_get("taken", auto_ack=True)
        assert method is not None and given is not None
        assert (method.routing_key, given.delivery_mode, body) == ("other.way", 2, b"y" * 500_000)


def test_a_connection_is_listed_with_its_protocol_and_closed(broker: WarrenProcess, client: MqttSocket) -> None:
    api = Api(broker.http_port)
    (row,) = api.eventually("/connections", lambda rows: rows if len(rows) == 1 else None)  # others are going
    assert row["protocol"] in ("MQTT 3-1-1", "Web MQTT 3-1-1")
    assert (row["user"], row["channels"]) == ("guest", 1)
    assert row["client_properties"]["client_id"] == "client"
    assert {"amqp", "mqtt", "mqtt/ssl", "http/web-mqtt", "https/web-mqtt"} <= {
        each["protocol"] for each in api.get("/overview")["listeners"]
    }
    closed = api.ask("DELETE", f"/connections/{quote(row['name'], safe='')}", headers={"X-Reason": "enough"})
    assert closed.status == 204
    api.close()
    with pytest.raises(EOFError):
        client.take()


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, flags={"mqtt": "127.0.0.1:0"}) as process:
        reader = MqttSocket(socket.create_connection(("127.0.0.1", process.mqtt_port)))
        reader.call(connect("r", clean=False))
        reader.call(subscribe("kept"))
        reader.close()
        writer = MqttSocket(socket.create_connection(("127.0.0.1", process.mqtt_port)))
        writer.call(connect("w"))
        for number in range(1, 21):
            writer.send(publish_packet("kept", b"%d" % number, 1, number))
        assert [writer.take().body for _ in range(20)] == [number.to_bytes(2, "big") for number in range(1, 21)]
        process.kill()
        writer.close()
        process.start()
        reader = MqttSocket(socket.create_connection(("127.0.0.1", process.mqtt_port)))
        assert reader.call(connect("r", clean=False)).body == b"\x01\0"
        assert [message(reader.take(), 4).body for _ in range(20)] == [b"%d" % number for number in range(1, 21)]
        reader.close()
