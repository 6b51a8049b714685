"""The node and its store: what takes the memory, charts, and what to do when something is wrong."""

from __future__ import annotations

import json
import re

from integration.management.client import Api, q
from playwright.sync_api import Route, expect

from .conftest import Connect
from .ui import Ui


def test_the_memory_of_the_node_is_told_by_part_with_its_share(ui: Ui, api: Api, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("large")
    for _ in range(20):
        channel.basic_publish("", "large", bytes(100_000))
    node = api.get("/overview")["node"]
    api.eventually(f"/nodes/{node}/memory", lambda it: it["memory"]["queue_procs"] > 2_000_000)
    ui.visit("nodes", node)
    memory = ui.card("What takes the memory")
    expect(memory).to_contain_text(re.compile(r"[\d.]+ MiB of resident memory in all"))
    queues = memory.locator("tbody tr").filter(has_text="Classic queues")
    expect(queues).to_contain_text(re.compile(r"[\d.]+ MiB[\d.]+ %"))
    expect(memory.locator("tbody tr").filter(has_text="Everything else")).to_contain_text("The program")
    shares = [float(each.split("%")[0]) for each in memory.locator("tbody tr td:last-child").all_inner_texts()]
    assert abs(sum(shares) - 100) < 0.1
    expect(ui.card("Reactor")).to_contain_text("p50")
    expect(ui.card("Reactor")).to_contain_text("p99")


def test_the_store_has_charts_of_its_size_and_what_it_writes(ui: Ui, api: Api, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("stored", durable=True)
    api.eventually("/nodes?node_stats_age=60&node_stats_incr=5", lambda it: it[0]["io_write_bytes_details"]["samples"])
    ui.visit("store", range="60")
    ui.heading("Store")
    charts = ui.main.locator(".chart")
    expect(charts.locator("figcaption")).to_have_text(["Size on disk", "Written", "Operations"])
    expect(charts.locator("canvas")).to_have_count(3)
    expect(charts.first).to_contain_text(re.compile(r"Segments [\d.]+ MiB"))
    expect(charts.last).to_contain_text(re.compile("Batches.*Syncs.*Reads"))
    expect(ui.card("Commits")).to_contain_text("p99")
    ui.press("1 h")
    ui.wait_for_place("store", range="3600")


def test_an_alarm_says_on_every_page_what_to_do(own_ui: Ui) -> None:
    ui = own_ui
    trouble = {"name": "rabbit@here", "mem_alarm": True, "disk_free_alarm": True, "inbound_alarm": False}
    task = {"name": "links", "need": "useful", "state": "waiting", "failures": 3, "reason": "a bug"}

    def answer(route: Route) -> None:
        route.fulfill(
            status=200, content_type="application/json", body=json.dumps([trouble | {"failing_tasks": [task]}])
        )

    ui.page.route("**/api/nodes?columns=*", answer)
    ui.visit("queues")
    ui.refresh()
    banners = ui.page.locator(".banner.alarm")
    expect(banners).to_have_count(3)
    expect(banners.nth(0)).to_contain_text("is short of memory. Publishers are blocked.")
    expect(banners.nth(0)).to_contain_text("raise limits.memory_high_watermark")
    expect(banners.nth(1)).to_contain_text("Make room on the disk")
    expect(banners.nth(2)).to_contain_text("a bug")
    expect(banners.nth(0).get_by_role("link", name="Look at the node")).to_have_attribute(
        "href", f"#/nodes/{q('rabbit@here')}"
    )
