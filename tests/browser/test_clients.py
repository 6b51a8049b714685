"""Connections and channels under the names by which operators know them."""

from __future__ import annotations

import re

import pika
import pytest
from integration.management.client import Api, q
from playwright.sync_api import expect

from .conftest import Connect
from .ui import Ui


@pytest.mark.long
def test_clients_are_called_by_the_names_they_give(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    named = amqp(client_properties={"connection_name": "checkout", "product": "shop"})
    named.channel()
    amqp(client_properties={"product": "a worker of no name"})
    api.eventually(f"/vhosts/{q(vhost)}/channels", len)
    rows = api.get(f"/vhosts/{q(vhost)}/connections")
    address = next(each["name"] for each in rows if each["user_provided_name"])
    ui.visit("connections", vhost=vhost)
    ui.heading("Connections")
    expect(ui.main.locator("tbody th a")).to_have_text(["a worker of no name", "checkout"])
    expect(ui.row("checkout").locator("th")).to_contain_text(address)
    ui.row("checkout").get_by_role("link", name="checkout", exact=True).click()
    ui.heading("checkout")
    expect(ui.card("Connection")).to_contain_text(address)
    ui.visit("channels", vhost=vhost)
    ui.main.get_by_role("link", name="checkout (1)", exact=True).click()
    ui.heading("checkout (1)")
    ui.card("Channel").get_by_role("link", name="checkout", exact=True).click()
    ui.heading("checkout")


@pytest.mark.long
def test_a_shovel_of_this_broker_is_no_client_with_a_user(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = amqp(client_properties={"connection_name": "a client"}).channel()
    channel.queue_declare("from", durable=True)
    channel.queue_declare("to", durable=True)
    local = {"src-uri": f"amqp:///{q(vhost)}", "dest-uri": f"amqp:///{q(vhost)}"}
    ends = {"src-queue": "from", "dest-queue": "to"}
    api.put(f"/parameters/shovel/{q(vhost)}/mover", {"value": local | ends})
    api.eventually(f"/vhosts/{q(vhost)}/connections", lambda rows: len(rows) == 3)
    ui.visit("connections", vhost=vhost)
    rows = ui.row("Shovel mover")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("this broker")
    expect(rows.first).to_contain_text(re.compile(r"internal:\d+ -> broker"))
    expect(ui.main).not_to_contain_text("rmq-internal")
    rows.first.locator("th a").click()
    ui.heading("Shovel mover")
    expect(ui.card("Connection")).to_contain_text("Userthis broker")
    expect(ui.card("Connection")).to_contain_text("Opened bya shovel or federation link of this broker")
    ui.visit("connections", vhost=vhost)
    expect(ui.row("a client").get_by_role("link", name="guest")).to_be_visible()


@pytest.mark.long
def test_an_application_is_all_connections_of_one_name(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    for name in ("billing", "billing", "billing of another"):
        channel = amqp(client_properties={"connection_name": name}).channel()
        channel.queue_declare(name)
    channel.basic_consume("billing", lambda *_: None)
    api.eventually(f"/vhosts/{q(vhost)}/channels", lambda rows: len(rows) == 3)
    ui.visit("connections", vhost=vhost)
    ui.row("billing").first.get_by_role("link", name="billing", exact=True).click()
    ui.main.get_by_role("link", name="(all its connections)").click()
    ui.wait_for_place("applications", "billing")
    ui.heading("billing")
    together = ui.card("Together")
    expect(together).to_contain_text("Connections2")
    expect(together).to_contain_text("Channels2")
    expect(together).to_contain_text(f"Vhosts{vhost}")
    expect(ui.card("Connections").locator("tbody tr")).to_have_count(2)
    expect(ui.card("Channels").locator("tbody tr")).to_have_count(2)


def test_channels_are_found_by_the_name_of_their_client(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    for name in ("one", "two"):
        amqp(client_properties={"connection_name": name}).channel()
    api.eventually(f"/vhosts/{q(vhost)}/channels", lambda rows: len(rows) == 2)
    ui.visit("channels", vhost=vhost)
    expect(ui.main.locator("tbody th a")).to_have_text(["one (1)", "two (1)"])
    ui.page.get_by_label("Filter by name").fill("tw")
    expect(ui.main.locator("tbody th a")).to_have_text(["two (1)"])


def test_names_of_queues_break_after_a_separator_where_their_column_is_narrow(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    name = "payments.bank_transfers-received"
    channel = amqp(client_properties={"connection_name": "reconciliation of payments"}).channel()
    channel.queue_declare(name)
    channel.basic_consume(name, lambda *_: None, consumer_tag="ctag1.256168e08fae492bb20b3d03b2b5c835")
    api.eventually(f"/consumers/{q(vhost)}", len)
    ui.visit("consumers", vhost=vhost)
    link = ui.main.locator("tbody th a")
    expect(link).to_have_text(name)
    for width in (700, 1280):
        ui.page.set_viewport_size({"width": width, "height": 800})
        lines = link.evaluate(
            """(link) => {
                const lines = [];
                let top = null;
                for (const node of link.childNodes)
                    for (let at = 0; at < (node.data ?? '').length; at += 1) {
                        const range = document.createRange();
                        range.setStart(node, at);
                        range.setEnd(node, at + 1);
                        const y = range.getBoundingClientRect().top;
                        if (y !== top) lines.push('');
                        top = y;
                        lines[lines.length - 1] += node.data[at];
                    }
                return lines;
            }"""
        )
        assert "".join(lines) == name
        assert all(line[-1] in "._-" for line in lines[:-1]), lines


@pytest.mark.long
def test_selected_connections_are_closed_together_with_a_reason(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    clients = {
        name: amqp(client_properties={"connection_name": name}) for name in ("web-1", "web-2", "worker", "worker-2")
    }
    api.eventually(f"/vhosts/{q(vhost)}/connections", lambda rows: len(rows) == 4)
    ui.visit("connections", vhost=vhost)
    ui.page.get_by_label("Filter by name").fill("web")
    expect(ui.main.locator("tbody tr")).to_have_count(2)
    ui.page.get_by_label("Select all rows of this page").check()
    expect(ui.main.locator(".picked")).to_contain_text("2 selected")
    ui.press("Close…")
    expect(ui.dialog.locator("h2")).to_have_text("Close 2 connections?")
    ui.fill(ui.dialog, reason="maintenance")
    ui.press("Close connections", ui.dialog)
    for name in ("web-1", "web-2"):
        with pytest.raises(pika.exceptions.ConnectionClosed) as closed:
            clients[name].process_data_events(60)
        assert "maintenance" in closed.value.reply_text
    ui.noticed("Closed 2 of 2 connections.")
    ui.page.get_by_label("Filter by name").fill("")
    expect(ui.main.locator("tbody th a")).to_have_text(["worker", "worker-2"])
    expect(ui.main.locator(".picked")).to_have_count(0)


@pytest.mark.long
def test_a_consumer_is_cancelled_from_the_list_of_consumers(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    connection = amqp()
    channel = connection.channel()
    cancelled: list[str | None] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    for name in ("one", "two"):
        channel.queue_declare(name)
        channel.basic_consume(name, lambda *_: None, consumer_tag=f"of {name}")
    api.eventually(f"/consumers/{q(vhost)}", lambda rows: len(rows) == 2 and rows[0]["channel_stats"]["idle_ms"] > 0)
    ui.visit("consumers", vhost=vhost)
    expect(ui.main.locator("thead")).to_contain_text("Idle")
    ui.press("Cancel…", ui.row("one"))
    expect(ui.dialog.locator("h2")).to_have_text("Cancel consumer of one?")
    ui.press("Cancel consumer", ui.dialog)
    ui.noticed("Consumer of one is cancelled.")
    expect(ui.row("one")).to_have_count(0)
    expect(ui.row("two")).to_have_count(1)
    while not cancelled:
        connection.process_data_events(20)
    assert cancelled == ["of one"]
    assert ui.overflow() == 0


@pytest.mark.long
def test_the_connection_of_a_slow_consumer_is_closed_from_the_list_of_consumers(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    slow = amqp(client_properties={"connection_name": "slow one"})
    channel = slow.channel()
    channel.basic_qos(prefetch_count=1)
    for name in ("calm", "busy"):
        channel.queue_declare(name)
    amqp().channel().basic_consume("calm", lambda *_: None)
    channel.basic_consume("busy", lambda *_: None)
    channel.basic_publish("", "busy", b"x")
    api.eventually(f"/consumers/{q(vhost)}", lambda rows: any(each["messages_unacknowledged"] for each in rows))
    ui.visit("consumers", vhost=vhost)
    expect(ui.main.locator("tbody tr").first).to_contain_text("full")
    ui.press("Close…", ui.main.locator("tbody tr").first)
    expect(ui.dialog.locator("h2")).to_have_text("Close slow one?")
    ui.press("Close connection", ui.dialog)
    expect(ui.row("busy")).to_have_count(0)
    expect(ui.row("calm")).to_have_count(1)
    expect(ui.dialog).to_have_count(0)
    assert ui.overflow() == 0
