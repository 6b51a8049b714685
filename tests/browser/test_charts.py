"""The functions of charts, and whether they can be read."""

from __future__ import annotations

import re

import pytest
from integration.management.client import Api, q
from playwright.sync_api import expect

from .conftest import Connect
from .ui import Ui

# Every text that is drawn on a canvas from here on.
LISTEN = """() => {
    const fill = CanvasRenderingContext2D.prototype.fillText;
    window.drawn = new Set();
    CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
        window.drawn.add(text);
        return fill.call(this, text, ...where);
    };
}"""
# Pixels of a canvas that are as red as the total, beneath another line or not.
REDDISH = """canvas => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue, alpha] = data.slice(at, at + 4);
        if (alpha > 40 && red - green > 60 && Math.abs(green - blue) < 15) count += 1;
    }
    return count;
}"""


def test_a_queue_offers_the_ranges_that_the_broker_keeps_of_queues(ui: Ui, api: Api, vhost: str) -> None:
    api.put(f"/queues/{q(vhost)}/kept")
    api.put(f"/exchanges/{q(vhost)}/kept", {"type": "direct"})
    offered = ui.page.get_by_role("group", name="How far charts go back").get_by_role("button")
    expect(offered).to_have_text(["1 min", "10 min", "1 h", "8 h", "1 day"])
    # A link that was copied from another page may ask for more.
    ui.visit("exchanges", vhost, "kept", range="86400")
    ui.heading("kept")
    expect(offered).to_have_text(["1 min", "10 min", "1 h"])
    expect(ui.page.get_by_role("button", name="10 min")).to_have_attribute("aria-pressed", "true")
    ui.visit("queues", vhost, "kept", range="86400")
    expect(offered).to_have_text(["1 min", "10 min", "1 h", "8 h", "1 day"])
    expect(ui.page.get_by_role("button", name="1 day")).to_have_attribute("aria-pressed", "true")
    expect(ui.main.locator("canvas")).to_be_visible()
    expect(ui.main).not_to_contain_text("No samples yet")


@pytest.mark.long
def test_the_total_is_seen_beneath_what_is_ready(own_ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    ui = own_ui
    channel = amqp().channel()
    channel.queue_declare("full", durable=True)
    for _ in range(10):
        channel.basic_publish("", "full", b"x")
    api.eventually(f"/queues/{q(vhost)}/full", lambda it: it["idle_since"])
    ui.page.evaluate(LISTEN)
    ui.visit("queues", vhost, "full")
    chart = ui.main.locator(".chart", has_text="Queued messages")
    expect(chart.locator(".legend")).to_contain_text("Total 10")
    chart.get_by_role("button", name="Unacked").click()
    canvas = chart.locator("canvas")
    expect(canvas).to_be_visible()
    ui.page.wait_for_function("window.drawn.has('10')")
    assert canvas.evaluate(REDDISH) > 200
    times = [each for each in ui.page.evaluate("[...window.drawn]") if re.fullmatch(r"\d\d:\d\d", each)]
    assert len(times) >= 4


@pytest.mark.long
def test_an_axis_of_messages_has_whole_numbers(own_ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    ui = own_ui
    channel = amqp().channel()
    channel.queue_declare("one", durable=True)
    channel.basic_publish("", "one", b"x")
    api.eventually(f"/queues/{q(vhost)}/one", lambda it: it["idle_since"])
    ui.page.evaluate(LISTEN)
    ui.visit("queues", vhost, "one")
    expect(ui.main.locator(".chart", has_text="Queued messages").locator(".legend")).to_contain_text("Total 1")
    ui.page.wait_for_function("window.drawn.has('1')")
    assert [each for each in ui.page.evaluate("[...window.drawn]") if re.fullmatch(r"\d+\.\d+", each)] == []


def test_an_axis_has_one_unit_and_the_legend_all_digits(ui: Ui) -> None:
    shown = ui.page.evaluate(
        """async () => {
            const format = await import('/js/format.js');
            return [
                format.formatTicks(format.formatCount, [0, 50_000, 100_000, 150_000]),
                format.formatTicks(format.formatCount, [0, 5e6, 1e7]),
                format.formatTicks(format.formatFullRate, [0, 90_000, 120_000]),
                format.formatTicks(format.formatBytes, [0, 2 ** 29, 2 ** 30]),
                format.formatTicks(format.formatByteRate, [0, 512, 2 ** 10]),
                [format.formatCount(1_234_567), format.formatFullRate(123_456.7), format.formatFullRate(0.5)],
            ];
        }"""
    )
    assert shown == [
        ["0", "50,000", "100,000", "150,000"],
        ["0 M", "5 M", "10 M"],
        ["0/s", "90,000/s", "120,000/s"],
        ["0 GiB", "0.5 GiB", "1 GiB"],
        ["0 KiB/s", "0.5 KiB/s", "1 KiB/s"],
        ["1,234,567", "123,457/s", "0.5/s"],
    ]
