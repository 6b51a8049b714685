"""Clients that come over WebSockets: MQTT.js, stompjs and CloudAMQP's client on Node, and paho-mqtt."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest
from broker_process import WarrenProcess
from integration.management.client import Api
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from ..broker import DEADLINE_S
from .conftest import RunNode


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    flags = dict.fromkeys(("mqtt_ws", "stomp_ws", "amqp_ws"), "127.0.0.1:0")
    with WarrenProcess(tmp_path_factory.mktemp("warren"), flags) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left(process: WarrenProcess) -> Iterator[None]:
    yield
    api = Api(process.http_port)
    api.eventually("/connections", lambda rows: rows == [])
    assert api.get("/queues") == []
    api.close()


@pytest.mark.long
def test_mqtt_js_publishes_and_subscribes(process: WarrenProcess, run_node: RunNode) -> None:
    told = run_node(["web_sockets/mqtt.js"], {"BROKER_URL": f"ws://127.0.0.1:{process.mqtt_ws_port}/ws"})
    for version in (4, 5):
        assert told[f"v{version}"] == {
            "granted": 1,
            "first": [[f"told/{version}/first", 5, "hello"], [f"told/{version}/large", 300_000, "xxxxx"]],
            "count": 103,
            "last": [f"told/{version}/last", 4, "done"],
        }
    assert told["refused"] == "Connection refused: Bad username or password"


def test_stompjs_sends_and_subscribes_in_text_and_in_binary(process: WarrenProcess, run_node: RunNode) -> None:
    told = run_node(["web_sockets/stomp.js"], {"BROKER_URL": f"ws://127.0.0.1:{process.stomp_ws_port}/ws"})
    for kind in ("text", "binary"):
        assert told[kind] == {
            "version": "1.2",
            "subprotocol": "v12.stomp",
            "received": [[7, "héllo"], [300_000, "xxxxx"], [4, "done"]],
        }
    assert "Access refused for user" in told["refused"]


def test_amqp_client_js_publishes_and_consumes(process: WarrenProcess, run_node: RunNode) -> None:
    told = run_node(["web_sockets/amqp.js"], {"BROKER_URL": f"ws://127.0.0.1:{process.amqp_ws_port}/ws"})
    assert told == {"first": [5, 300_000], "count": 102}


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
def test_paho_publishes_and_subscribes(process: WarrenProcess, version: MQTTProtocolVersion) -> None:
    received: queue.Queue[tuple[str, bytes]] = queue.Queue()
    subscribed: queue.Queue[None] = queue.Queue()

    def on_connect(client: Client, *_: object) -> None:
        client.subscribe("told/#", qos=1)

    def on_message(_client: Client, _data: object, message: MQTTMessage) -> None:
        received.put((message.topic, bytes(message.payload)))

    client = Client(CallbackAPIVersion.VERSION2, client_id="paho", protocol=version, transport="websockets")
    client.ws_set_options(path="/ws")
    client.username_pw_set("guest", "guest")
    client.on_connect = on_connect
    client.on_subscribe = lambda *_: subscribed.put(None)
    client.on_message = on_message
    client.connect("127.0.0.1", process.mqtt_ws_port)
    client.loop_start()
    try:
        subscribed.get(timeout=DEADLINE_S)
        for body in (b"hello", b"x" * 300_000):
            client.publish("told/here", body, qos=1).wait_for_publish(DEADLINE_S)
            assert received.get(timeout=DEADLINE_S) == ("told/here", body)
    finally:
        client.disconnect()
        client.loop_stop()
