"""A broker that goes away, and one with very many queues."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest
from broker_process import WarrenProcess
from integration.management.client import Api, q
from playwright.sync_api import Route, expect

from .ui import Ui


@pytest.mark.long
def test_ten_thousand_queues_make_a_list_a_search_and_no_drawing(ui: Ui, api: Api, vhost: str) -> None:
    count = 10_000
    queues = [{"name": f"q{at:05}", "durable": False, "auto_delete": False, "arguments": {}} for at in range(count)]
    binding = {"source": "amq.fanout", "destination_type": "queue", "routing_key": "", "arguments": {}}
    bindings = [binding | {"destination": each["name"]} for each in queues[:400]]
    api.post(f"/definitions/{q(vhost)}", {"queues": queues, "bindings": bindings})
    ui.visit("queues", vhost=vhost)
    pager = ui.page.get_by_role("navigation", name="Pages of this list")
    expect(pager).to_contain_text("of 10,000")
    expect(ui.main.locator("tbody tr")).to_have_count(50)
    ui.page.get_by_label("Filter by name").fill("q09999")
    expect(ui.main.locator("tbody th")).to_have_text(["q09999"])
    ui.page.get_by_role("combobox", name="Search everything").fill("q0777")
    expect(ui.page.get_by_role("listbox", name="Results").get_by_role("option")).to_have_count(8)
    ui.visit("routing", vhost=vhost)
    expect(ui.main).to_contain_text("401 exchanges and queues are too many to draw.")


@pytest.mark.long
def test_a_refresh_that_fails_says_so_keeps_what_was_there_and_recovers(
    own_ui: Ui, api: Api, broker: WarrenProcess, vhost: str
) -> None:
    ui = own_ui
    api.put(f"/queues/{q(vhost)}/kept", {"durable": True})
    ui.visit("queues", vhost=vhost)
    expect(ui.row("kept")).to_have_count(1)
    # Or it recovers by itself before somebody tries again.
    ui.page.get_by_label("Refresh every").select_option("0")
    banner = ui.page.locator(".banner.warning")
    api.close()
    broker.stop()
    ui.refresh()
    expect(banner).to_contain_text("This page is not up to date: the broker does not answer.")
    expect(ui.row("kept")).to_have_count(1)
    ui.press("Add queue")
    ui.fill(ui.dialog, name="lost")
    ui.press("Add queue", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text("the broker does not answer")
    ui.press("Cancel", ui.dialog)
    broker.start()
    ui.press("Try again", banner)
    # Sessions are in memory: a broker that was started again knows none.
    ui.log_in("guest", "guest")
    ui.heading("Queues and streams")
    expect(ui.row("kept")).to_have_count(1)
    expect(banner).to_have_count(0)


@pytest.mark.long
def test_a_refresh_recovers_by_itself_once_the_broker_answers(ui: Ui, vhost: str) -> None:
    ui.visit("queues", vhost=vhost)
    ui.heading("Queues and streams")
    banner = ui.page.locator(".banner.warning")
    ui.page.context.set_offline(True)
    ui.refresh()
    expect(banner).to_be_visible()
    ui.page.context.set_offline(False)
    expect(banner).to_have_count(0)


@pytest.mark.long
def test_a_broker_that_takes_requests_and_answers_none_is_told_of_and_recovers(own_ui: Ui, vhost: str) -> None:
    ui = own_ui
    ui.visit("queues", vhost=vhost)
    ui.heading("Queues and streams")
    banner = ui.page.locator(".banner.warning")
    held: list[Route] = []
    ui.page.route("**/api/queues/**", lambda route: held.append(route))
    ui.page.clock.install()
    with ui.page.expect_request("**/api/queues/**"):
        ui.refresh()
    ui.page.clock.fast_forward(6000)
    ui.refresh()
    expect(banner).to_contain_text("This page is not up to date: the broker has not answered yet.")
    assert len(held) == 1  # nothing is asked for twice at a time
    held[0].continue_()
    ui.page.unroute("**/api/queues/**")
    expect(banner).to_have_count(0)


@pytest.mark.long
def test_thousands_of_bindings_are_shown_part_by_part(ui: Ui, api: Api, vhost: str) -> None:
    binding = {"source": "amq.topic", "destination": "many", "destination_type": "queue", "arguments": {}}
    queue = {"name": "many", "durable": True, "auto_delete": False, "arguments": {}}
    bindings = [binding | {"routing_key": f"key.{at:04}"} for at in range(1200)]
    api.post(f"/definitions/{q(vhost)}", {"queues": [queue], "bindings": bindings})
    ui.visit("exchanges", vhost, "amq.topic", tab="bindings")
    rows = ui.main.get_by_role("region", name="Bindings from this exchange").locator("tbody tr")
    expect(rows).to_have_count(500)
    expect(ui.main).to_contain_text("The first 500 of 1,200")
    ui.press("Show more")
    expect(rows).to_have_count(1000)
    ui.press("Show more")
    expect(rows).to_have_count(1200)
    expect(ui.main.get_by_role("button", name="Show more")).to_have_count(0)
    ui.main.get_by_label("Filter by name or key").fill("KEY.077")
    expect(rows).to_have_count(10)


def test_bindings_are_followed_only_where_they_are_shown(own_ui: Ui, vhost: str) -> None:
    ui = own_ui
    asked: list[str] = []
    ui.page.on("request", lambda request: asked.append(request.url))
    ui.page.clock.install()

    def refreshed(tab: str, *awaited: str) -> list[str]:
        ui.visit("exchanges", vhost, "amq.topic", tab=tab)
        ui.heading("amq.topic")
        expect(ui.page.locator(".tabs", has_text="Bindings 0")).to_be_visible()
        asked.clear()
        with ExitStack() as waits:
            waits.enter_context(ui.page.expect_response(lambda answer: "amq.topic?" in answer.url))
            for end in awaited:
                waits.enter_context(ui.page.expect_request(re.compile(f"/bindings/{end}$")))
            ui.page.clock.run_for(5_000)
        return [each.rpartition("/")[2] for each in asked if "/bindings/" in each]

    assert refreshed("publish") == []
    assert sorted(refreshed("bindings", "destination", "source")) == ["destination", "source"]
