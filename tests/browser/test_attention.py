"""What the overview says about queues that need an operator, and how it uses a wide screen."""

from __future__ import annotations

import pytest
from integration.management.client import Api, q
from playwright.sync_api import expect

from .conftest import Connect
from .ui import Ui


@pytest.mark.long
def test_the_overview_says_why_a_queue_grows_and_leads_to_its_consumers(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    channel = amqp().channel()
    channel.basic_qos(prefetch_count=1)
    for name in ("left", "slow", "stopped"):
        channel.queue_declare(name)
    api.eventually(f"/queues/{q(vhost)}", lambda rows: all(each.get("idle_since") for each in rows))
    channel.basic_consume("slow", lambda *_: None)
    api.put(f"/warren/queues/{q(vhost)}/stopped/pause")
    for name, count in (("left", 120), ("slow", 110), ("stopped", 100)):
        for _ in range(count):
            channel.basic_publish("", name, b"x")
    api.eventually(f"/warren/attention/{q(vhost)}", lambda it: it["growing"]["count"] == 3)
    ui.visit(vhost=vhost)
    growing = ui.main.get_by_role("region", name="Queues: Growing").locator("tbody tr")
    expect(growing).to_have_count(3)
    expect(growing.nth(0)).to_contain_text("no consumer")
    expect(growing.nth(1)).to_contain_text("its consumer is full")
    expect(growing.nth(2)).to_contain_text("paused")
    growing.nth(1).get_by_role("link", name="its consumer is full").click()
    ui.wait_for_place("queues", vhost, "slow", tab="consumers")
    expect(ui.main.locator("tbody tr")).to_contain_text("full")


def test_the_charts_of_the_overview_fill_a_wide_screen(ui: Ui) -> None:
    ui.page.set_viewport_size({"width": 2560, "height": 1300})
    expect(ui.main.locator("canvas").nth(1)).to_be_visible()
    boxes = [
        ui.main.locator("section.card", has=ui.page.locator("figcaption", has_text=title)).bounding_box()
        for title in ("Queued messages", "Message rates")
    ]
    nodes = ui.card("Nodes").bounding_box()
    assert nodes is not None and boxes[0] is not None and boxes[1] is not None
    assert boxes[0]["y"] == boxes[1]["y"]
    assert abs(boxes[1]["x"] + boxes[1]["width"] - nodes["x"] - nodes["width"]) < 1
    assert ui.overflow() == 0
