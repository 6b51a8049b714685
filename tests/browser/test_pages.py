"""Every page there is, on a wide and on a narrow screen, light and dark: whole, silent, within its width, and named."""

from __future__ import annotations

import socket
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess
from integration.management.client import Api, q
from mqtt_harness import publish_packet
from mqtt_socket import MqttSocket, subscribe
from mqtt_socket import connect as mqtt_connect
from playwright.sync_api import expect
from web_socket_peer import WebSocketOn

from .conftest import Connect, Open
from .ui import Ui

UNNAMED = """
() => {
    const shown = (node) => node.checkVisibility();
    const text = (node) => (node?.textContent ?? '').trim();
    const name = (node) =>
        node.getAttribute('aria-label') || (node.labels && [...node.labels].map(text).join(' ')) || node.title ||
        text(node) || node.querySelector('img[alt]')?.alt;
    const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
    const levels = [...document.querySelectorAll('h1, h2, h3')].filter(shown).map((node) => Number(node.tagName[1]));
    return [
        ...[...document.querySelectorAll('input, select, textarea, button, a[href], summary, svg[tabindex]')]
            .filter((node) => shown(node) && !name(node)).map((node) => `no name: ${node.outerHTML}`),
        ...[...document.querySelectorAll('img:not([alt])')].map((node) => `no alt: ${node.outerHTML}`),
        ...[...document.querySelectorAll('table')].filter((node) => !text(node.caption)).map(() => 'no caption'),
        ...[...document.querySelectorAll('[aria-describedby], [aria-labelledby]')].filter(shown)
            .flatMap((node) => [node.getAttribute('aria-describedby'), node.getAttribute('aria-labelledby')])
            .flatMap((said) => (said ?? '').split(' '))
            .filter((id) => id && !document.getElementById(id)).map((id) => `nothing is called ${id}`),
        ...ids.filter((id, at) => ids.indexOf(id) !== at).map((id) => `two are called ${id}`),
        ...(levels.filter((level) => level === 1).length === 1 ? [] : ['not one h1']),
        ...(document.querySelectorAll('main').length === 1 ? [] : ['not one main']),
        ...(levels.some((level, at) => at > 0 && level > levels[at - 1] + 1) ? [`levels of headings: ${levels}`] : []),
    ];
}
"""


# Tables whose columns do not all fit; a name is wider than a telephone at times.
CUT = """() => [...document.querySelectorAll('main .table-box')]
    .filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.getAttribute('aria-label'))"""


def _fill(channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
    channel.queue_declare("a queue with a name that is longer than a telephone is wide", durable=True)
    channel.queue_declare("q", arguments={"x-message-deduplication": True, "x-max-priority": 5})
    channel.queue_bind("q", "amq.topic", "a.long.routing.key.that.has.many.words.#")
    channel.exchange_declare("x", "headers")
    channel.exchange_bind("x", "amq.topic", "k", {"tenant": "acme", "level": 3})
    channel.exchange_declare("super", "x-super-stream", durable=True, arguments={"x-super-stream": 3})
    channel.basic_publish("amq.topic", "a.long.routing.key.that.has.many.words.x", b'{"a": 1}')
    channel.basic_publish("", "q", b"later", pika.BasicProperties(headers={"x-delay": 600_000}))
    channel.basic_publish("", "a queue with a name that is longer than a telephone is wide", bytes(range(256)) * 20)
    channel.basic_consume("a queue with a name that is longer than a telephone is wide", lambda *_: None)


@pytest.mark.parametrize(
    ("width", "colours"),
    [
        # test_accessibility.py has a wide screen and light colours.
        pytest.param(1280, "light", marks=pytest.mark.long),
        pytest.param(1280, "dark", marks=pytest.mark.long),
        pytest.param(360, "light", marks=pytest.mark.long),
        (360, "dark"),
    ],
)
def test_every_page_is_whole_silent_and_within_its_width(
    open_ui: Open,
    api: Api,
    amqp: Connect,
    broker: WarrenProcess,
    logged_in: Any,
    vhost: str,
    width: int,
    colours: str,
) -> None:
    away = MqttSocket(WebSocketOn(socket.create_connection(("127.0.0.1", broker.mqtt_ws_port)), "mqtt"))
    away.call(mqtt_connect("a client id of some length", clean=False, user=f"{vhost}:guest"))
    away.call(subscribe("a/topic/with/many/levels/+/and/a/long/filter/#"))
    away.call(publish_packet("a/topic/with/many/levels/and/something/retained", b"{}", 1, retain=True))
    away.close()
    api.eventually(f"/vhosts/{q(vhost)}/connections", lambda rows: not rows)
    called = "a client with a name of some length"
    connection = amqp(client_properties={"connection_name": called})
    _fill(connection.channel())
    v = q(vhost)
    api.put(f"/policies/{v}/p", {"pattern": "^a queue", "definition": {"max-length": 100, "overflow": "drop-head"}})
    api.put(f"/parameters/federation-upstream/{v}/up", {"value": {"uri": "amqp://127.0.0.1:1"}})
    shovel = {"src-uri": "amqp://127.0.0.1:1", "src-queue": "q", "dest-uri": "amqp://127.0.0.1:1", "dest-queue": "q"}
    api.put(f"/parameters/shovel/{v}/s", {"value": shovel})
    api.put(f"/vhost-limits/{v}/max-queues", {"value": 100})
    drain = f"/warren/drains/{v}/{q('a queue with a name that is longer than a telephone is wide')}/spark"
    api.post(f"{drain}/open", {"owner": "a table with a name of some length", "lease_s": 86400})
    api.post(f"/warren/snapshots/{v}/q")
    (client,) = (each["name"] for each in api.eventually(f"/vhosts/{v}/connections", len))
    (channel,) = (each["name"] for each in api.eventually(f"/vhosts/{v}/channels", len))
    node = api.get("/overview")["node"]
    long = "a queue with a name that is longer than a telephone is wide"
    places: list[tuple[str, list[str], dict[str, str]]] = [
        ("Overview", [], {}),
        ("Overview", [], {"vhost": vhost}),
        ("Connections", ["connections"], {}),
        (called, ["connections", client], {}),
        (called, ["applications", called], {}),
        ("Channels", ["channels"], {}),
        ("Consumers", ["consumers"], {}),
        (f"{called} (1)", ["channels", channel], {}),
        ("Exchanges", ["exchanges"], {}),
        *(("amq.topic", ["exchanges", vhost, "amq.topic"], {"tab": tab}) for tab in ("", "bindings", "publish")),
        ("Queues and streams", ["queues"], {}),
        *((long, ["queues", vhost, long], {"tab": tab}) for tab in ("", "messages", "consumers", "get", "move")),
        *(("q", ["queues", vhost, "q"], {"tab": tab}) for tab in ("", "bindings", "publish")),
        ("Super streams", ["super-streams"], {}),
        ("MQTT sessions", ["mqtt-sessions"], {}),
        ("a client id of some length", ["mqtt-sessions", vhost, "a client id of some length"], {}),
        (f"Retained messages in {vhost}", ["retained"], {"vhost": vhost}),
        ("super", ["exchanges", vhost, "super"], {"tab": "partitions"}),
        ("Bulk data", ["bulk"], {"vhost": vhost}),
        (f"Routing in {vhost}", ["routing"], {"vhost": vhost}),
        (f"Routing in {vhost}", ["routing"], {"vhost": vhost, "view": "table"}),
        ("Search", ["search"], {"q": "a"}),
        ("Users", ["users"], {}),
        ("guest", ["users", "guest"], {}),
        ("Virtual hosts", ["vhosts"], {}),
        (vhost, ["vhosts", vhost], {}),
        ("Policies", ["policies"], {}),
        ("Limits", ["limits"], {}),
        ("Parameters", ["parameters"], {}),
        ("Shovels", ["shovels"], {}),
        ("Federation", ["federation"], {}),
        ("Lake", ["lake"], {}),
        ("Definitions", ["definitions"], {}),
        ("Cluster", ["cluster"], {}),
        (node, ["nodes", node], {}),
        ("Store", ["store"], {}),
        ("Not here", ["no", "such", "page"], {}),
    ]
    ui = open_ui(storage_state=logged_in, viewport={"width": width, "height": 760}, color_scheme=colours)
    ui.heading("Overview")
    for title, segments, query in places:
        ui.visit(*segments, **query)
        ui.heading(title)
        where = f"{title} {query}"
        assert ui.overflow() <= 0, where
        assert ui.page.evaluate(CUT) == [], where
        expect(ui.main.locator(".trouble")).to_have_count(0)
        expect(ui.page.locator(".banner.warning")).to_have_count(0)
        expect(ui.page).to_have_title(f"{title} \u2013 Warren")
        assert ui.page.evaluate(UNNAMED) == [], where
        assert ui.page.evaluate("document.activeElement.tagName") in ("H1", "BODY"), where
    assert (ui.refused, ui.trouble) == ([], [])


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 360])
def test_the_reference_of_the_api_is_whole_and_filtered(open_ui: Open, width: int) -> None:
    ui = open_ui(viewport={"width": width, "height": 760})
    ui.page.goto("/api/docs")
    operations = ui.page.locator(".operation")
    expect(operations.first).to_be_visible()
    ui.page.get_by_label("Filter operations").fill("/warren/transfers")
    expect(operations.filter(has_not_text="transfers")).to_have_count(0)
    operations.first.locator("summary").click()
    expect(operations.first).to_contain_text("Needs one of the tags")
    assert ui.overflow() <= 0
    assert ui.page.evaluate(UNNAMED) == []


@pytest.mark.long
def test_the_pages_may_load_nothing_from_elsewhere(open_ui: Open) -> None:
    ui = open_ui()
    answer = ui.page.goto("/")
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert ui.page.evaluate("fetch('http://127.0.0.2:1/').then(() => 'let', () => 'refused')") == "refused"
    assert any("Content Security Policy" in each for each in ui.trouble)
    ui.trouble.clear()


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 360])
def test_a_dialog_keeps_the_focus_and_gives_it_back(ui: Ui, width: int) -> None:
    ui.page.set_viewport_size({"width": width, "height": 760})
    ui.visit("queues", vhost=ui.vhost)
    # The heading of a page that comes takes the focus, and would take it from the button.
    expect(ui.page.get_by_role("heading", name="Queues and streams", level=1)).to_be_focused()
    add = ui.main.get_by_role("button", name="Add queue")
    add.press("Enter")
    expect(ui.dialog).to_be_visible()
    assert ui.page.evaluate(UNNAMED) == []
    assert ui.overflow() <= 0
    inside = (
        "document.querySelector('dialog').contains(document.activeElement) || document.activeElement === document.body"
    )
    expect(ui.dialog.locator("[name=name]")).to_be_focused()
    for key in ("Tab",) * 14 + ("Shift+Tab",) * 14:
        ui.page.keyboard.press(key)
        assert ui.page.evaluate(inside), key
    ui.page.keyboard.press("Escape")
    expect(ui.dialog).to_have_count(0)
    expect(add).to_be_focused()


def test_the_focus_goes_back_to_what_a_dialog_was_opened_with(ui: Ui) -> None:
    ui.visit("queues", vhost=ui.vhost)
    ui.heading("Queues and streams")
    add = ui.main.get_by_role("button", name="Add queue")
    # The heading takes the focus between the press and the dialog, as that of a page that has just come.
    add.evaluate("add => { add.focus(); add.click(); document.querySelector('h1').focus(); }")
    expect(ui.dialog).to_be_visible()
    ui.page.keyboard.press("Escape")
    expect(ui.dialog).to_have_count(0)
    expect(add).to_be_focused()


@pytest.mark.long
def test_the_first_tab_stop_leads_past_the_menu(own_ui: Ui) -> None:
    ui = own_ui
    ui.page.keyboard.press("Tab")
    expect(ui.page.get_by_role("link", name="Skip to the page")).to_be_focused()
    ui.page.keyboard.press("Enter")
    expect(ui.main).to_be_focused()
    ui.heading("Overview")


@pytest.mark.long
def test_the_menu_of_a_narrow_screen_opens_takes_the_focus_and_closes(ui: Ui) -> None:
    ui.page.set_viewport_size({"width": 360, "height": 760})
    button = ui.page.get_by_role("button", name="Menu")
    menu = ui.page.get_by_role("navigation", name="Pages", exact=True)
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(menu.get_by_role("link", name="Overview")).to_be_focused()
    ui.page.keyboard.press("Escape")
    expect(button).to_be_focused()
    expect(button).to_have_attribute("aria-expanded", "false")
    button.click()
    menu.get_by_role("link", name="Exchanges").click()
    ui.heading("Exchanges")
    expect(button).to_have_attribute("aria-expanded", "false")


@pytest.mark.long
def test_a_list_on_a_narrow_screen_begins_with_depth_and_rates(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    channel.queue_declare("short")
    channel.queue_declare("long", arguments={"x-max-priority": 5, "x-message-ttl": 3_600_000, "x-max-length": 1000})
    for _ in range(3):
        channel.basic_publish("", "long", b"x")
    api.eventually(f"/queues/{q(vhost)}/long", lambda it: it["messages"] == 3)
    ui.page.set_viewport_size({"width": 360, "height": 760})
    ui.visit("queues", vhost=vhost)
    row = ui.row("long")
    expect(row.locator("td[data-label=Ready]")).to_have_text("3")
    card = row.bounding_box()
    assert card is not None and card["x"] + card["width"] <= 360
    below = 0.0
    for label in ("Ready", "Unacked", "Total", "Trend", "In", "Out"):
        cell = row.locator(f"td[data-label='{label}']")
        box = cell.bounding_box()
        assert box is not None and card["x"] <= box["x"] and box["x"] + box["width"] <= card["x"] + card["width"], label
        below = max(below, box["y"])
    for label in ("Type", "Features", "State"):
        box = row.locator(f"td[data-label='{label}']").bounding_box()
        assert box is not None and box["y"] > below, label
    # Without headings there is another way to sort, and to select.
    ui.main.get_by_label("Sort by").select_option("Total")
    expect(ui.main.locator("tbody th")).to_have_text(["long", "short"])
    ui.press("descending")
    expect(ui.main.locator("tbody th")).to_have_text(["short", "long"])
    ui.wait_for_place("queues", vhost=vhost, sort="messages")
    ui.main.get_by_label("Select all rows of this page").check()
    expect(ui.main.get_by_text("2 selected")).to_be_visible()


def test_the_menu_of_an_administrator_is_whole_on_a_screen_of_800_pixels(ui: Ui) -> None:
    menu = ui.page.get_by_role("navigation", name="Pages", exact=True)
    assert menu.evaluate("menu => menu.scrollHeight - menu.clientHeight") <= 0


def test_the_chosen_tab_is_in_sight_on_a_narrow_screen(ui: Ui, api: Api, vhost: str) -> None:
    api.put(f"/queues/{q(vhost)}/q")
    ui.page.set_viewport_size({"width": 360, "height": 760})
    ui.visit("queues", vhost, "q", tab="move")
    ui.heading("q")
    box = ui.page.locator(".tabs [aria-current]").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360


@pytest.mark.long
def test_an_address_that_is_mistyped_says_so_and_leads_home(open_ui: Open, logged_in: Any) -> None:
    ui = open_ui(storage_state=logged_in)
    ui.page.goto("/no/such/page")
    expect(ui.page.locator("h1")).to_have_text("There is no such page")
    assert ui.page.evaluate(UNNAMED) == []
    ui.page.get_by_role("link", name="Go to the overview").click()
    ui.heading("Overview")
