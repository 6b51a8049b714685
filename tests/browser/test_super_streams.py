"""Super streams: added, looked at with their partitions and groups, and deleted whole."""

from __future__ import annotations

from typing import Any

import pytest
from integration.management.client import Api, q
from playwright.sync_api import expect

from .conftest import Connect
from .ui import Ui


@pytest.mark.long
def test_a_super_stream_is_added_and_listed(ui: Ui, api: Api, vhost: str) -> None:
    ui.visit("super-streams", vhost=vhost)
    ui.heading("Super streams")
    expect(ui.main).to_contain_text("There is no super stream.")
    ui.press("Add super stream")
    ui.fill(ui.dialog, name="orders", partitions="4")
    ui.press("Show known keys", ui.dialog)
    ui.dialog.locator(".hints").get_by_role("button", name="x-max-age", exact=True).click()
    ui.argument(1, "x-max-age", "string", "7D", ui.dialog)
    ui.confirm("Add super stream")
    ui.noticed("Super stream orders is there.")
    expect(ui.row("orders")).to_contain_text("x-super-stream")
    found = api.get(f"/stream/super-streams/{q(vhost)}/orders")
    assert (found["partition_count"], found["arguments"]["x-max-age"]) == (4, "7D")
    ui.press("Add super stream")
    ui.fill(ui.dialog, name="keys")
    ui.dialog.get_by_label("Partition of a message", exact=True).select_option("keys")
    ui.dialog.get_by_label("Binding keys", exact=True).fill("emea, apac")
    ui.confirm("Add super stream")
    expect(ui.row("keys")).to_contain_text("direct")
    names = [each["name"] for each in api.get(f"/stream/super-streams/{q(vhost)}/keys")["partitions"]]
    assert names == ["keys-emea", "keys-apac"]


@pytest.mark.long
def test_its_exchange_shows_partitions_and_groups_and_deletes_all_of_it(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    api.put(f"/stream/super-streams/{q(vhost)}/orders", {"partitions": 2})
    connection = amqp()
    for number in (1, 2):
        channel: Any = connection.channel(number)
        channel.basic_qos(prefetch_count=10)
        for at in range(2):
            arguments = {"x-group": "billing", "x-stream-offset": "first"}
            channel.basic_consume(f"orders-{at}", lambda *_: None, consumer_tag=f"{number}.{at}", arguments=arguments)
    channel.confirm_delivery()
    channel.basic_publish("", "orders-1", b"m")
    ui.visit("super-streams", vhost=vhost)
    ui.row("orders").get_by_role("link", name="orders").click()
    ui.heading("orders")
    ui.tab("Partitions")
    card = ui.card("Partitions")
    expect(card.get_by_role("row", name="orders-1")).to_contain_text("1")
    groups = ui.card("Consumer groups")
    expect(groups.get_by_role("row", name="orders-0")).to_contain_text("1.0")
    expect(groups.get_by_role("row", name="orders-1")).to_contain_text("2.1")
    connection.close()
    ui.press("Delete with partitions…")
    ui.confirm("Delete super stream")
    ui.noticed("Super stream orders is deleted.")
    ui.heading("Super streams")
    assert [each for each in api.get(f"/queues/{q(vhost)}") if each["name"].startswith("orders")] == []


def test_an_ordinary_exchange_has_no_partitions(ui: Ui, vhost: str) -> None:
    ui.visit("exchanges", vhost, "amq.topic", tab="partitions")
    ui.heading("amq.topic")
    expect(ui.page.locator(".tabs [aria-current]")).to_contain_text("Overview")
    expect(ui.main.get_by_role("button", name="Delete with partitions…")).to_have_count(0)
