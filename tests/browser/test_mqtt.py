"""MQTT: sessions looked at and ended, retained messages looked at and cleared, and what a connection subscribes to."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from broker_process import WarrenProcess
from integration.management.client import Api, q
from mqtt_harness import publish_packet
from mqtt_socket import MqttSocket, connect, subscribe
from playwright.sync_api import expect
from stomp_harness import frame
from web_socket_peer import WebSocketOn

from .ui import Ui


@pytest.fixture
def client(broker: WarrenProcess, vhost: str) -> Iterator[MqttSocket]:
    """A client with two subscriptions and two retained messages."""
    sock = socket.create_connection(("127.0.0.1", broker.mqtt_ws_port))
    made = MqttSocket(WebSocketOn(sock, "mqtt"))
    made.call(connect("thermometer", clean=False, user=f"{vhost}:guest"))
    made.call(subscribe("set/+"))
    made.call(subscribe("alarms/#", 0))
    made.call(publish_packet("at/home", b'{"celsius": 21}', 1, retain=True))
    made.call(publish_packet("at/work", b"\xff\x00", 1, retain=True))
    yield made
    made.close()


def test_a_session_is_looked_at_and_ended(ui: Ui, api: Api, vhost: str, client: MqttSocket) -> None:
    ui.visit("mqtt-sessions", vhost=vhost)
    ui.heading("MQTT sessions")
    row = ui.row("thermometer")
    expect(row).to_contain_text("connected")
    expect(row).to_contain_text("Web MQTT 3-1-1")
    row.get_by_role("link", name="thermometer").click()
    ui.heading("thermometer")
    expect(ui.row("set/+")).to_contain_text("1")
    expect(ui.row("alarms/#")).to_contain_text("0")
    ui.press("End…")
    ui.confirm("End session")
    ui.noticed("The session of thermometer is over.")
    ui.heading("MQTT sessions")
    expect(ui.main).to_contain_text("There is no MQTT session.")
    assert api.get(f"/queues/{q(vhost)}") == []
    with pytest.raises(EOFError):
        client.take()


@pytest.mark.long
def test_retained_messages_are_looked_at_and_cleared(ui: Ui, api: Api, vhost: str, client: MqttSocket) -> None:
    ui.visit("retained", vhost=vhost)
    ui.heading(f"Retained messages in {vhost}")
    ui.row("at/home").get_by_role("button", name="at/home", exact=True).click()
    expect(ui.dialog).to_contain_text('"celsius": 21')
    ui.press("Close", ui.dialog)
    ui.row("at/home").get_by_role("button", name="Clear…").click()
    ui.confirm("Clear")
    ui.noticed("Nothing is retained for at/home.")
    assert [row["topic"] for row in api.get(f"/warren/retained/{q(vhost)}")] == ["at/work"]
    ui.visit("retained", vhost="")
    ui.heading("Retained messages")
    expect(ui.row("at/work")).to_contain_text(vhost)
    ui.press("Clear by filter…")
    ui.dialog.locator("select[name=vhost]").select_option(vhost)
    ui.fill(ui.dialog, filter="at/#/x")
    ui.dialog.get_by_role("button", name="Clear", exact=True).click()
    expect(ui.dialog).to_contain_text("filter must be a topic filter")
    ui.fill(ui.dialog, filter="at/#")
    ui.confirm("Clear")
    ui.noticed("1 cleared.")
    expect(ui.row("at/work")).to_have_count(0)
    assert api.get(f"/warren/retained/{q(vhost)}") == []


@pytest.mark.long
def test_a_connection_shows_what_its_client_has_subscribed_to(
    ui: Ui, api: Api, broker: WarrenProcess, vhost: str, client: MqttSocket
) -> None:
    (row,) = api.get(f"/vhosts/{q(vhost)}/connections")
    ui.visit("connections", row["name"])
    expect(ui.row("set/+")).to_contain_text("1")
    expect(ui.main).to_contain_text("thermometer")
    with socket.create_connection(("127.0.0.1", broker.stomp_port)) as stomp:
        login = {"accept-version": "1.2", "host": vhost, "login": "guest", "passcode": "guest"}
        stomp.sendall(frame("CONNECT", login) + frame("SUBSCRIBE", {"id": "7", "destination": "/queue/orders"}))
        rows = api.eventually(
            f"/vhosts/{q(vhost)}/connections",
            lambda rows: any(each.get("stomp", {}).get("subscriptions") for each in rows),
        )
        (name,) = (each["name"] for each in rows if "stomp" in each)
        ui.visit("connections", name)
        expect(ui.row("/queue/orders")).to_contain_text("auto")
