"""Exchanges, their bindings, and the page that says where a message would go."""

from __future__ import annotations

import pika
import pytest
from integration.management.client import Api, q
from playwright.sync_api import expect

from .conftest import Connect
from .ui import Ui


@pytest.mark.long
def test_an_exchange_is_added_and_deleted(ui: Ui, api: Api, vhost: str) -> None:
    ui.visit("exchanges", vhost=vhost)
    ui.heading("Exchanges")
    expect(ui.row("(default exchange)")).to_have_count(1)
    ui.press("Add exchange")
    ui.fill(ui.dialog, name="mine")
    ui.dialog.get_by_label("Type", exact=True).select_option("topic")
    ui.dialog.get_by_label("Internal").check()
    ui.argument(1, "alternate-exchange", "string", "amq.fanout", ui.dialog)
    ui.confirm("Add exchange")
    ui.row("mine").get_by_role("link").click()
    ui.heading("mine")
    expect(ui.card("Exchange")).to_contain_text("alternate-exchangeamq.fanout")
    found = api.get(f"/exchanges/{q(vhost)}/mine")
    assert (found["type"], found["internal"], found["durable"]) == ("topic", True, True)
    assert found["arguments"] == {"alternate-exchange": "amq.fanout"}
    ui.press("Delete…")
    ui.confirm("Delete exchange")
    ui.heading("Exchanges")
    expect(ui.row("mine")).to_have_count(0)
    assert api.ask("GET", f"/exchanges/{q(vhost)}/mine").status == 404


def test_what_cannot_be_deleted_has_no_such_button(ui: Ui, vhost: str) -> None:
    for name, title in (("amq.default", "(default exchange)"), ("amq.topic", "amq.topic")):
        ui.visit("exchanges", vhost, name)
        ui.heading(title)
        expect(ui.main.get_by_role("button", name="Delete…")).to_have_count(0)


@pytest.mark.long
def test_an_exchange_is_bound_to_a_queue_to_an_exchange_and_from_one(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    channel = amqp().channel()
    channel.exchange_declare("mine", "direct")
    channel.queue_declare("q")
    ui.visit("exchanges", vhost, "mine", tab="bindings")
    ui.fill(other="q", key="to queue")
    ui.press("Bind")
    outgoing, incoming = ui.card("From this exchange"), ui.card("To this exchange")
    expect(outgoing.locator("tbody tr")).to_contain_text("qto queue")
    ui.main.get_by_label("Direction").select_option("to-exchange")
    ui.fill(other="amq.fanout", key="to exchange")
    ui.press("Bind")
    expect(outgoing.locator("tbody tr")).to_have_count(2)
    ui.main.get_by_label("Direction").select_option("from-exchange")
    ui.fill(other="amq.topic", key="from.*")
    ui.press("Bind")
    expect(incoming.locator("tbody tr")).to_contain_text("amq.topicfrom.*")
    expect(ui.page.locator(".tabs [aria-current]")).to_have_text("Bindings 3")
    ui.press("Remove the binding mine to q")
    ui.confirm("Remove binding")
    ui.press("Remove the binding amq.topic to mine")
    ui.confirm("Remove binding")
    expect(incoming).to_contain_text("No exchange is bound to it.")
    left = [each for each in api.get(f"/bindings/{q(vhost)}") if each["source"]]
    assert [(each["source"], each["destination"], each["routing_key"]) for each in left] == [
        ("mine", "amq.fanout", "to exchange")
    ]


def _orders(amqp: Connect) -> None:
    channel = amqp().channel()
    channel.exchange_declare("orders", "topic")
    channel.exchange_declare("audit", "fanout")
    channel.exchange_declare("selected", "headers")
    for name in ("eu", "us", "log", "acme"):
        channel.queue_declare(name)
    channel.queue_bind("eu", "orders", "order.eu.#")
    channel.queue_bind("us", "orders", "order.us.#")
    channel.exchange_bind("audit", "orders", "order.*.paid")
    channel.queue_bind("log", "audit")
    channel.queue_bind("acme", "selected", "", {"x-match": "all", "tenant": "acme"})


@pytest.mark.long
def test_the_routing_page_says_where_a_message_goes_and_brings_out_its_path(ui: Ui, amqp: Connect, vhost: str) -> None:
    _orders(amqp)
    ui.visit("routing", vhost=vhost)
    ui.heading(f"Routing in {vhost}")
    nodes = ui.main.locator(".graph a.node")
    expect(nodes).to_have_count(7)
    ui.fill(exchange="orders", key="order.eu.paid")
    ui.press("Show")
    expect(ui.main.locator(".route li")).to_have_text(["eu", "log"])
    hits = ui.main.locator(".graph a.node.hit title")
    expect(hits).to_have_count(4)
    assert sorted(hits.all_text_contents()) == ["exchange audit", "exchange orders", "queue eu", "queue log"]
    expect(ui.main.locator(".graph .edge.hit")).to_have_count(3)
    ui.main.locator("summary", has_text="Step by step").click()
    expect(ui.main.locator("ol li")).to_have_count(3)
    ui.press("Clear")
    expect(ui.main.locator(".graph .hit")).to_have_count(0)
    ui.fill(exchange="orders", key="nothing.like.it")
    ui.press("Show")
    expect(ui.main.get_by_text("Nowhere: no queue would take it.")).to_be_visible()
    ui.fill(exchange="selected", key="")
    ui.main.locator("summary", has_text="Headers").click()
    ui.argument(1, "tenant", "string", "acme")
    ui.press("Show")
    expect(ui.main.locator(".route li")).to_have_text(["acme"])
    ui.fill(exchange="missing")
    ui.press("Show")
    expect(ui.main.get_by_role("alert")).to_contain_text("missing")


@pytest.mark.long
def test_a_path_that_was_found_comes_into_sight(ui: Ui, amqp: Connect, vhost: str) -> None:
    _orders(amqp)
    ui.page.set_viewport_size({"width": 1280, "height": 480})
    ui.visit("routing", vhost=vhost)
    ui.heading(f"Routing in {vhost}")
    ui.fill(exchange="orders", key="order.eu.paid")
    ui.press("Show")
    hits = ui.main.locator(".graph a.node.hit")
    expect(hits).to_have_count(4)
    for at in range(4):
        expect(hits.nth(at)).to_be_in_viewport(ratio=0.99)


@pytest.mark.long
def test_the_drawing_is_filtered_shown_as_a_table_moved_and_leads_to_what_it_shows(
    ui: Ui, amqp: Connect, vhost: str
) -> None:
    _orders(amqp)
    ui.visit("exchanges", vhost, "audit")
    ui.main.get_by_role("link", name="Show in routing").click()
    ui.heading(f"Routing in {vhost}")
    expect(ui.main.locator(".graph a.node title")).to_have_text(["exchange audit", "queue log", "exchange orders"])
    ui.press("Table")
    expect(ui.main.locator("tbody tr")).to_have_count(2)
    expect(ui.row("orders")).to_contain_text("order.*.paid")
    ui.press("Drawing")
    ui.press("Only around audit \u00d7")
    expect(ui.main.locator(".graph a.node")).to_have_count(7)
    ui.page.get_by_label("Filter by name").fill("acme")
    expect(ui.main.locator(".graph a.node")).to_have_count(2)
    drawn = ui.main.locator(".graph svg > g")
    before = drawn.get_attribute("transform")
    ui.main.locator(".graph svg").press("ArrowLeft")
    expect(drawn).not_to_have_attribute("transform", before or "")
    ui.press("Larger")
    ui.press("Fit")
    expect(drawn).to_have_attribute("transform", before or "")
    ui.main.locator(".graph a.node.queue").click()
    ui.heading("acme")


@pytest.mark.long
def test_tracing_copies_messages_while_it_is_on(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    channel.queue_declare("trace")
    channel.queue_bind("trace", "amq.rabbitmq.trace", "publish.#")
    channel.confirm_delivery()
    for on in (True, False):
        ui.visit("vhosts", vhost)
        ui.press("Change…")
        ui.dialog.get_by_label("Tracing").set_checked(on)
        ui.confirm("Change")
        expect(ui.card("Vhost")).to_contain_text("Tracingon" if on else "Tracingoff")
        channel.basic_publish("amq.fanout", "k", b"traced")
    api.eventually(f"/queues/{q(vhost)}/trace", lambda it: it["messages"] == 1)
    ui.visit("queues", vhost, "trace", tab="messages")
    expect(ui.main.locator(".message")).to_have_count(1)
    expect(ui.main.locator(".message")).to_contain_text("traced")


@pytest.mark.long
def test_a_connection_is_closed_with_a_reason_that_its_client_gets(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    mine = amqp(client_properties={"connection_name": "to be closed"})
    mine.channel()
    (name,) = (each["name"] for each in api.eventually(f"/vhosts/{q(vhost)}/connections", len))
    ui.visit("connections", vhost=vhost)
    expect(ui.row(name)).to_contain_text("to be closed")
    ui.row(name).get_by_role("link", name="to be closed").click()
    ui.heading("to be closed")
    expect(ui.main).to_contain_text("pika")
    ui.main.get_by_role("link", name="to be closed (1)").click()
    ui.heading("to be closed (1)")
    ui.main.get_by_role("link", name="to be closed", exact=True).click()
    ui.press("Close…")
    ui.fill(ui.dialog, reason="tests are done \u2013 über")
    ui.press("Close connection", ui.dialog)
    with pytest.raises(pika.exceptions.ConnectionClosed) as closed:
        mine.process_data_events(60)
    assert "tests are done ? über" in closed.value.reply_text
    expect(ui.dialog).to_have_count(0)
    ui.heading("Connections")
    expect(ui.row(name)).to_have_count(0)
