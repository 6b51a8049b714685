"""The parts around every page: search, refresh, keys, theme, columns, the address bar."""

from __future__ import annotations

import pytest
from integration.management.client import Api, q
from playwright.sync_api import Request, expect

from .conftest import Connect
from .ui import Ui


@pytest.mark.long
def test_the_search_box_finds_and_the_arrow_keys_choose(ui: Ui, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    channel.queue_declare("needle/1")
    channel.exchange_declare("needle 2", "fanout")
    ui.page.keyboard.press("/")
    box = ui.page.get_by_role("combobox", name="Search everything")
    expect(box).to_be_focused()
    box.fill("needle")
    options = ui.page.get_by_role("listbox", name="Results").get_by_role("option")
    expect(options).to_have_count(2)
    box.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    chosen = options.first.locator(".name").inner_text()
    box.press("Enter")
    ui.heading(chosen)
    expect(box).to_have_value("")


@pytest.mark.long
def test_enter_shows_everything_that_was_found_on_a_page(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    channel.queue_declare("wanted")
    channel.basic_consume("wanted", lambda *_: None, consumer_tag="wanted.reader")
    api.eventually("/warren/search?q=wanted", lambda it: len(it["items"]) == 2)
    box = ui.page.get_by_role("combobox", name="Search everything")
    box.fill("wanted")
    box.press("Enter")
    ui.heading("Search")
    expect(ui.main.locator("tbody tr")).to_have_count(2)
    ui.row("wanted.reader").get_by_role("link").click()
    ui.wait_for_place("queues", vhost, "wanted", tab="consumers")
    expect(ui.row("wanted.reader")).to_have_count(1)


@pytest.mark.long
def test_refreshing_is_done_by_hand_while_it_is_off_and_rests_while_the_page_is_hidden(
    own_ui: Ui, amqp: Connect, vhost: str
) -> None:
    ui = own_ui
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/api/queues" in request.url:
            asked.append(request.url)

    # The clock of the page is ours: hours pass at once.
    ui.page.clock.install()
    ui.visit("queues", vhost=vhost)
    ui.heading("Queues and streams")
    every = ui.page.get_by_label("Refresh every")
    every.select_option("0")
    ui.page.reload()
    ui.heading("Queues and streams")
    expect(every).to_have_value("0")
    amqp().channel().queue_declare("late")
    ui.page.on("request", note)
    ui.page.clock.run_for(3_600_000)
    assert asked == []
    expect(ui.main.locator("tbody tr")).to_have_count(0)
    ui.page.keyboard.press("r")
    expect(ui.main.locator("tbody tr")).to_have_count(1)
    assert len(asked) == 1
    every.select_option("5")
    with ui.page.expect_request(lambda request: "/api/queues" in request.url):
        ui.page.clock.run_for(5_000)
    assert len(asked) == 2
    hide = """
        hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }
    """
    ui.page.evaluate(hide, True)
    ui.page.clock.run_for(3_600_000)
    assert len(asked) == 2
    with ui.page.expect_request(lambda request: "/api/queues" in request.url):
        ui.page.evaluate(hide, False)


@pytest.mark.long
def test_keys_lead_to_pages_and_the_help_names_them(ui: Ui) -> None:
    ui.page.keyboard.press("?")
    expect(ui.dialog.get_by_role("heading")).to_have_text("Keyboard shortcuts")
    keys = dict(
        zip(
            ui.dialog.locator("dd").all_inner_texts(),
            ui.dialog.locator("dt").all_inner_texts(),
            strict=True,
        )
    )
    ui.page.keyboard.press("Escape")
    expect(ui.dialog).to_have_count(0)
    assert keys["Queues and streams"].split() == ["g", "q"]
    for label in ("Queues and streams", "Exchanges", "Users", "Overview"):
        for key in keys[label].split():
            ui.page.keyboard.press(key)
        ui.heading(label)
    ui.page.keyboard.press("g")
    ui.page.keyboard.press("q")
    ui.heading("Queues and streams")
    ui.page.keyboard.press("f")
    expect(ui.page.get_by_label("Filter by name")).to_be_focused()
    ui.page.keyboard.type("g?t")
    expect(ui.page.get_by_label("Filter by name")).to_have_value("g?t")
    expect(ui.dialog).to_have_count(0)


@pytest.mark.long
def test_the_theme_is_switched_and_remembered(own_ui: Ui) -> None:
    ui = own_ui

    def background() -> str:
        return str(ui.page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    ui.page.emulate_media(color_scheme="light")
    light = background()
    ui.page.keyboard.press("t")
    dark = background()
    assert light != dark
    ui.page.reload()
    ui.heading("Overview")
    assert background() == dark
    ui.page.locator("summary", has_text="guest").click()
    ui.page.get_by_label("As the system").check()
    assert background() == light
    ui.page.emulate_media(color_scheme="dark")
    assert background() == dark


@pytest.mark.long
def test_columns_are_chosen_and_remembered(own_ui: Ui, amqp: Connect, vhost: str) -> None:
    ui = own_ui
    amqp().channel().queue_declare("q")
    ui.visit("queues", vhost=vhost)
    headings = ui.main.locator("thead th")
    expect(headings.filter(has_text="Bytes ready")).to_have_count(0)
    ui.main.locator("summary", has_text="Columns").click()
    ui.page.get_by_label("Bytes ready").check()
    ui.page.get_by_label("Type", exact=True).uncheck()
    ui.page.keyboard.press("Escape")
    ui.page.reload()
    expect(headings.filter(has_text="Bytes ready")).to_have_count(1)
    expect(headings.filter(has_text="Type")).to_have_count(0)
    ui.main.locator("summary", has_text="Columns").click()
    ui.press("Default columns")
    expect(headings.filter(has_text="Bytes ready")).to_have_count(0)
    expect(headings.filter(has_text="Type")).to_have_count(1)


@pytest.mark.long
def test_sorting_filtering_and_pages_are_in_the_address(ui: Ui, api: Api, vhost: str) -> None:
    queues = [{"name": f"q{at:03}", "durable": False, "auto_delete": False, "arguments": {}} for at in range(60)]
    api.post(f"/definitions/{q(vhost)}", {"queues": queues})
    message = {"routing_key": "q033", "payload": "x", "payload_encoding": "string", "properties": {}}
    api.post(f"/exchanges/{q(vhost)}/amq.default/publish", message)
    api.eventually(f"/queues/{q(vhost)}/q033", lambda it: it["messages"] == 1)
    ui.visit("queues", vhost=vhost)
    rows = ui.main.locator("tbody th")
    pager = ui.page.get_by_role("navigation", name="Pages of this list")
    expect(pager.get_by_role("status")).to_have_text("1\u201350 of 60")
    ui.press("Next", pager)
    expect(rows.first).to_have_text("q050")
    ui.wait_for_place("queues", vhost=vhost, page="2")
    ui.main.get_by_role("button", name="Name").click()
    expect(rows.first).to_have_text("q059")
    ui.wait_for_place("queues", vhost=vhost, sort="name", desc="1")
    ui.main.get_by_role("button", name="Total").click()
    expect(rows.first).to_have_text("q033")
    expect(ui.main.locator("th[aria-sort=descending]")).to_contain_text("Total")
    pager.get_by_label("Rows").select_option("25")
    expect(pager).to_contain_text("Page 1 of 3")
    filter_ = ui.page.get_by_label("Filter by name")
    filter_.fill("^q01[0-4]$")
    expect(ui.main).to_contain_text("No name matches the filter.")
    ui.main.get_by_label("Regex").check()
    expect(rows).to_have_count(5)
    expect(pager.get_by_role("status")).to_have_text("1\u20135 of 5, 60 in all")
    ui.page.reload()
    expect(rows).to_have_count(5)
    expect(filter_).to_have_value("^q01[0-4]$")
    filter_.fill("(")
    expect(ui.main.get_by_role("alert")).to_contain_text("This cannot be shown")
    filter_.fill("q00")
    expect(rows).to_have_count(10)


@pytest.mark.long
def test_the_chosen_vhost_stays_on_the_way_through_the_menu(ui: Ui, vhost: str) -> None:
    ui.page.get_by_label("Vhost").select_option(vhost)
    ui.wait_for_place(vhost=vhost)
    menu = ui.page.get_by_role("navigation", name="Pages", exact=True)
    menu.get_by_role("link", name="Exchanges").click()
    ui.wait_for_place("exchanges", vhost=vhost)
    ui.main.get_by_role("link", name="amq.topic").click()
    ui.heading("amq.topic")
    menu.get_by_role("link", name="Queues and streams").click()
    ui.wait_for_place("queues", vhost=vhost)
    ui.page.go_back()
    ui.heading("amq.topic")


@pytest.mark.long
def test_connections_are_found_by_the_names_of_their_clients(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    connection = amqp(client_properties={"connection_name": "rarely seen"})
    for number in range(9):
        connection.channel().queue_declare(f"rarely seen {number}")
    box = ui.page.get_by_role("combobox", name="Search everything")
    box.fill("rarely seen")
    options = ui.page.get_by_role("listbox", name="Results").get_by_role("option")
    expect(options.filter(has_text="guest rarely seen")).to_have_count(1)
    expect(options.filter(has_text="rarely seen 0")).to_have_count(1)
    options.filter(has_text="guest rarely seen").get_by_role("link").click()
    ui.heading("rarely seen")


@pytest.mark.long
def test_an_address_without_its_hash_leads_to_the_page(own_ui: Ui, vhost: str) -> None:
    own_ui.page.goto(f"/queues?vhost={q(vhost)}")
    own_ui.heading("Queues and streams")
    own_ui.wait_for_place("queues", vhost=vhost)


def test_a_phone_has_room_for_the_vhost(ui: Ui, vhost: str) -> None:
    ui.page.set_viewport_size({"width": 390, "height": 844})
    box = ui.page.get_by_label("Vhost").bounding_box()
    assert box is not None and box["width"] > 150
    assert ui.overflow() == 0
