"""The node and its store: use of memory, charts, and advice for faults."""

from __future__ import annotations

import json
import re

import pytest
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
    captions = ["Memory", "Free disk", "File descriptors and sockets"]
    expect(ui.main.locator(".chart figcaption")).to_have_text(captions)
    memory = ui.card("What takes the memory")
    expect(memory).to_contain_text(re.compile(r"[\d.]+ MiB of resident memory in all"))
    queues = memory.locator("tbody tr").filter(has_text="Classic queues")
    expect(queues).to_contain_text(re.compile(r"[\d.]+ MiB[\d.]+ %"))
    expect(memory.locator("tbody tr").filter(has_text="Program")).to_contain_text("as they were at the start")
    expect(memory.locator("tbody tr").filter(has_text="Statistics")).to_contain_text("iB")
    expect(memory.locator("tbody tr").filter(has_text="Connections and the rest")).to_contain_text("kept for reuse")
    shares = [float(each.split("%")[0]) for each in memory.locator("tbody tr td:last-child").all_inner_texts()]
    assert abs(sum(shares) - 100) < 0.1
    expect(ui.card("Reactor")).to_contain_text("p50")
    expect(ui.card("Reactor")).to_contain_text("p99")


@pytest.mark.long
def test_the_memory_of_the_node_fits_every_screen_whatever_its_numbers(own_ui: Ui, api: Api) -> None:
    ui = own_ui
    large = 1023 * 2**20
    parts = {"code": large, "other_system": large * 7, "queue_procs": large, "mgmt_db": large, "stream_queue_procs": 9}
    answer = json.dumps({"memory": parts | {"quorum_queue_procs": large}})
    ui.page.route("**/api/nodes/*/memory", lambda route: route.fulfill(body=answer, content_type="application/json"))
    ui.visit("nodes", api.get("/overview")["node"])
    memory = ui.card("What takes the memory")
    expect(memory.locator("tbody tr").first.locator("td[data-label=Share]")).to_have_text("63.64 %")
    expect(memory.locator("tbody tr").filter(has_text="Program")).to_contain_text("1,023 MiB")
    for width in (1920, 1440, 1280, 900, 641, 360):
        ui.page.set_viewport_size({"width": width, "height": 760})
        cut = memory.locator(".table-box").evaluate("box => box.scrollWidth - box.clientWidth")
        assert cut <= 0, width
    expect(memory.get_by_label("Sort by").locator("option")).to_have_text(["Part", "Bytes"])


@pytest.mark.long
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


@pytest.mark.long
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


def member(node: str, state: str, **more: object) -> dict[str, object]:
    role = "leader" if state == "leading" else "follower"
    known = {"address": f"{node}:25672", "version": "0.1.0", "lag_bytes": 0, "lag_s": 0.0, "gone_since_ms": None}
    is_running = state in ("leading", "following")
    return {"node": node, "role": role, "state": state, "running": is_running, "in_sync": is_running} | known | more


@pytest.mark.long
def test_the_nodes_of_a_cluster_are_listed_with_what_to_do_about_those_that_are_missing(own_ui: Ui) -> None:
    ui = own_ui
    members = [
        member("rabbit@one", "leading"),
        member("rabbit@two", "following", lag_bytes=2048, lag_s=3.0),
        member("rabbit@three", "gone", gone_since_ms=1_700_000_000_000, lag_bytes=None, lag_s=None),
    ]
    etcd = {"trouble": "http://etcd1:2379: Connection refused"}
    status = {"role": "leader", "node": "rabbit@one", "epoch": 7, "min_in_sync": 2, "trouble": "", "members": members}
    status |= {"in_sync": ["rabbit@one", "rabbit@two"], "election": {"takeovers": 4, "etcd": etcd}}

    def answer(route: Route) -> None:
        rows = [{"name": row["node"]} | row for row in members]
        is_status = route.request.url.endswith("/status")
        route.fulfill(status=200, content_type="application/json", body=json.dumps(status if is_status else rows))

    ui.page.route("**/api/cluster/status", answer)
    ui.page.route("**/api/nodes?columns=*", answer)
    ui.visit("cluster")
    ui.heading("Cluster")
    card = ui.card("Nodes")
    expect(card.locator("tbody tr")).to_have_count(3)
    expect(ui.row("rabbit@one")).to_contain_text("leading")
    expect(ui.row("rabbit@two")).to_contain_text(re.compile("following.*yes.*2 KiB.*3 s"))
    expect(ui.row("rabbit@three")).to_contain_text(re.compile("gone.*no.* ago.*rabbit@three:25672"))
    expect(card.locator(".facts")).to_contain_text("2 of 3, 2 have to be")
    expect(card).to_contain_text("rabbit@three is gone. Start it again")
    expect(card.get_by_role("alert")).to_contain_text("no other node could take over: http://etcd1:2379: Connection")
    ui.refresh()
    banner = ui.page.locator(".banner.alarm")
    expect(banner).to_contain_text("rabbit@three is gone since 14 Nov 2023")
    expect(banner.get_by_role("link", name="Look at the cluster")).to_have_attribute("href", "#/cluster")


@pytest.mark.long
def test_a_set_that_is_short_is_an_alarm_on_every_page_and_a_broker_by_itself_says_so(own_ui: Ui) -> None:
    ui = own_ui
    ui.visit("cluster")
    expect(ui.card("Nodes")).to_contain_text("is a broker by itself")
    row = {"name": "rabbit@one", "running": True, "replicas_alarm": True, "failing_tasks": []}
    ui.page.route(
        "**/api/nodes?columns=*",
        lambda route: route.fulfill(status=200, content_type="application/json", body=json.dumps([row])),
    )
    ui.visit("queues")
    ui.refresh()
    expect(ui.page.locator(".banner.alarm")).to_contain_text("rabbit@one has too few nodes in sync")


@pytest.mark.long
def test_the_log_is_shown_live_and_by_level_text_and_audit(ui: Ui, api: Api) -> None:
    ui.visit("logs", audit="1")
    ui.heading("Logs")
    api.put("/users/noted", {"password": "x", "tags": ""})
    row = ui.row("PUT /api/users/noted")
    expect(row).to_contain_text("user=guest")
    expect(ui.main.locator("tbody tr").first).to_contain_text("noted")
    api.delete("/users/noted")
    expect(ui.row("DELETE /api/users/noted")).to_have_count(1)
    expect(row).to_have_count(1)
    ui.main.get_by_label("From level").select_option("error")
    expect(ui.main).to_contain_text("No such line is kept.")
    ui.main.get_by_label("From level").select_option("debug")
    ui.main.get_by_label("Text in a line").fill("DELETE /api/users/noted")
    expect(row).to_have_count(0)
    expect(ui.row("DELETE /api/users/noted")).to_have_count(1)
    ui.press("Pause")
    expect(ui.main.get_by_role("button", name="Continue")).to_be_visible()
