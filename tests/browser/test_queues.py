"""Queues: adding, looking, purging and deleting one or many, pausing, what they hold back, duplicates."""

from __future__ import annotations

import pika
import pytest
from integration.management.client import Api, q
from playwright.sync_api import expect

from .clients import reject_all
from .conftest import Connect
from .ui import Ui


def test_a_queue_is_added_with_arguments_of_every_type(ui: Ui, api: Api, vhost: str) -> None:
    ui.visit("queues", vhost=vhost)
    ui.heading("Queues and streams")
    expect(ui.main).to_contain_text("There is no queue.")
    ui.press("Add queue")
    ui.fill(ui.dialog, name="mine")
    ui.dialog.get_by_label("Durable").uncheck()
    ui.press("Show known keys", ui.dialog)
    ui.dialog.locator(".hints").get_by_role("button", name="x-max-length", exact=True).click()
    ui.argument(1, "x-max-length", "number", "5", ui.dialog)
    ui.argument(2, "x-single-active-consumer", "boolean", "true", ui.dialog)
    ui.argument(3, "x-overflow", "string", "reject-publish", ui.dialog)
    ui.argument(4, "my-own", "json", '{"a": [1, "b"]}', ui.dialog)
    ui.confirm("Add queue")
    ui.noticed("Queue mine is declared.")
    ui.row("mine").get_by_role("link").click()
    ui.heading("mine")
    expect(ui.page.locator("h1")).to_be_focused()
    expect(ui.card("Queue")).to_contain_text('my-own{"a":[1,"b"]}')
    found = api.get(f"/queues/{q(vhost)}/mine")
    assert found["arguments"] == {
        "x-max-length": 5,
        "x-single-active-consumer": True,
        "x-overflow": "reject-publish",
        "my-own": {"a": [1, "b"]},
    }
    assert found["durable"] is False


@pytest.mark.long
def test_a_mistyped_argument_is_told_of_before_it_is_sent(ui: Ui, api: Api, vhost: str) -> None:
    ui.visit("queues", vhost=vhost)
    ui.press("Add queue")
    ui.fill(ui.dialog, name="mine")
    ui.argument(1, "x_mesage-ttl", "string", "5", ui.dialog)
    expect(ui.dialog).to_contain_text("The broker keeps this key. It has no effect. Did you mean x-message-ttl?")
    ui.press("x-message-ttl", ui.dialog)
    expect(ui.dialog).not_to_contain_text("It has no effect")
    expect(ui.dialog.get_by_label("Type of value 1")).to_have_value("number")
    ui.argument(2, "owner", "string", "shop", ui.dialog)
    expect(ui.dialog).to_contain_text("The broker keeps this key. It has no effect.")
    expect(ui.dialog).not_to_contain_text("Did you mean")
    ui.dialog.get_by_label("Type of value 1").select_option("string")
    expect(ui.dialog).to_contain_text("Choose the type Number.")
    ui.press("Add queue", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text("x-message-ttl")
    ui.dialog.get_by_label("Type of value 1").select_option("number")
    ui.confirm("Add queue")
    assert api.get(f"/queues/{q(vhost)}/mine")["arguments"] == {"x-message-ttl": 5, "owner": "shop"}


@pytest.mark.long
def test_a_binding_is_offered_names_that_exist(ui: Ui, api: Api, vhost: str) -> None:
    for name in ("orders.eu", "orders.us", "events"):
        api.put(f"/queues/{q(vhost)}/{name}")
    ui.visit("exchanges", vhost, "amq.topic", tab="bindings")
    field = ui.main.get_by_label("To queue")
    field.press_sequentially("orders")
    offered = ui.main.locator(f"datalist[id='{field.get_attribute('list')}'] option")
    expect(offered).to_have_count(2)
    assert sorted(str(each.get_attribute("value")) for each in offered.all()) == ["orders.eu", "orders.us"]
    ui.main.get_by_label("Direction").select_option("to-exchange")
    field = ui.main.get_by_label("To exchange")
    field.fill("amq.fan")
    expect(ui.main.locator(f"datalist[id='{field.get_attribute('list')}'] option")).to_have_count(1)


@pytest.mark.long
def test_a_quorum_queue_is_added(ui: Ui, api: Api, vhost: str) -> None:
    ui.visit("queues", vhost=vhost)
    ui.press("Add queue")
    ui.fill(ui.dialog, name="voted")
    ui.dialog.get_by_label("Type", exact=True).select_option("quorum")
    expect(ui.dialog.get_by_label("Durable")).to_have_count(0)
    ui.confirm("Add queue")
    expect(ui.row("voted")).to_contain_text("quorum")
    assert api.get(f"/queues/{q(vhost)}/voted")["durable"] is True


@pytest.mark.long
def test_purging_and_deleting_ask_first_and_escape_leaves_everything(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    channel = amqp().channel()
    channel.queue_declare("q")
    for _ in range(3):
        channel.basic_publish("", "q", b"x")
    api.eventually(f"/queues/{q(vhost)}/q", lambda it: it["messages"] == 3)
    ui.visit("queues", vhost, "q")
    ui.heading("q")
    ui.press("Purge…")
    expect(ui.dialog).to_contain_text("(3 now)")
    ui.page.keyboard.press("Escape")
    expect(ui.dialog).to_have_count(0)
    expect(ui.main.get_by_role("button", name="Purge…")).to_be_focused()
    assert api.get(f"/queues/{q(vhost)}/q")["messages"] == 3
    ui.press("Purge…")
    ui.confirm("Purge queue")
    expect(ui.card("Contents")).to_contain_text("Ready0")
    ui.press("Delete…")
    ui.confirm("Delete queue")
    ui.heading("Queues and streams")
    assert api.ask("GET", f"/queues/{q(vhost)}/q").status == 404


@pytest.mark.long
def test_many_queues_are_purged_and_deleted_at_once(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    for name in ("a1", "a2", "a3", "b"):
        channel.queue_declare(name)
        channel.basic_publish("", name, b"x")
    api.eventually(f"/queues/{q(vhost)}", lambda all_: [each.get("messages") for each in all_] == [1, 1, 1, 1])
    ui.visit("queues", vhost=vhost, name="a")
    expect(ui.main.locator("tbody tr")).to_have_count(3)
    ui.page.get_by_label("Select all rows of this page").check()
    picked = ui.page.get_by_role("group", name="With the selected rows")
    expect(picked).to_contain_text("3 selected")
    ui.press("Purge…", picked)
    expect(ui.dialog).to_contain_text("Purge 3 queues?")
    expect(ui.dialog).to_contain_text("a1, a2, a3")
    ui.confirm("Purge")
    ui.noticed("Purged 3 of 3.")
    assert [each["messages"] for each in api.get(f"/queues/{q(vhost)}")] == [0, 0, 0, 1]
    ui.page.get_by_label("Select a1").check()
    ui.page.get_by_label("Select a3").check()
    ui.press("Delete…", picked)
    ui.confirm("Delete")
    ui.noticed("Deleted 2 of 2.")
    expect(ui.main.locator("tbody tr")).to_have_count(1)
    assert [each["name"] for each in api.get(f"/queues/{q(vhost)}")] == ["a2", "b"]


@pytest.mark.long
def test_what_some_of_many_queues_refuse_is_said(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    owner = amqp().channel()
    owner.queue_declare("locked", exclusive=True)
    owner.queue_declare("open")
    ui.visit("queues", vhost=vhost)
    ui.page.get_by_label("Select all rows of this page").check()
    ui.press("Delete…", ui.page.get_by_role("group", name="With the selected rows"))
    ui.confirm("Delete")
    ui.noticed("Deleted 1 of 2.")
    ui.noticed("Not all: locked:")
    expect(ui.main.locator("tbody tr")).to_have_count(1)


@pytest.mark.long
def test_a_paused_queue_takes_messages_and_delivers_none_until_it_is_resumed(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    channel = amqp().channel()
    channel.queue_declare("q")
    ui.visit("queues", vhost, "q")
    ui.press("Pause")
    expect(ui.main.get_by_role("button", name="Resume")).to_be_visible()
    expect(ui.main.locator("header .state")).to_have_text("paused")
    assert api.get(f"/queues/{q(vhost)}/q")["paused"] is True
    channel.basic_publish("", "q", b"x")
    assert channel.basic_get("q", auto_ack=True)[0] is None
    ui.press("Resume")
    expect(ui.main.get_by_role("button", name="Pause")).to_be_visible()
    assert channel.basic_get("q", auto_ack=True)[2] == b"x"


def _park(channel: pika.adapters.blocking_connection.BlockingChannel, count: int) -> None:
    """Fill the queue "held" with messages that failed once too often."""
    arguments = {"x-delivery-limit": 1, "x-delivery-limit-action": "park"}
    channel.queue_declare("held", durable=True, arguments=arguments)
    for number in range(count):
        channel.basic_publish("", "held", b"%d" % number)
    reject_all(channel, "held", requeue=True)


@pytest.mark.long
def test_what_a_queue_holds_back_is_shown_browsed_released_and_dropped(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    channel = amqp().channel()
    _park(channel, 3)
    for _ in range(2):
        channel.basic_publish("", "held", b"later", pika.BasicProperties(headers={"x-delay": 600_000}))
    path = f"/warren/queues/{q(vhost)}/held/held"
    api.eventually(path, lambda it: (it["parked"]["messages"], it["delayed"]["messages"]) == (3, 2))
    ui.visit("queues", vhost, "held")
    held = ui.card("Held back")
    expect(held.locator("tbody th")).to_have_text(["Delayed", "Parked"])
    ui.press("Release…", ui.row("Parked"))
    ui.fill(ui.dialog, count="1")
    ui.confirm("Release")
    ui.noticed("1 released into held.")
    expect(ui.row("Parked").locator("td").first).to_have_text("2")
    api.eventually(f"/queues/{q(vhost)}/held", lambda it: it["messages_ready"] == 1)
    ui.press("Drop…", ui.row("Parked"))
    ui.confirm("Drop messages")
    expect(ui.row("Parked")).to_have_count(0)
    ui.press("Release…", ui.row("Delayed"))
    ui.confirm("Release")
    expect(held).to_have_count(0)
    now = api.get(path)
    assert (now["parked"]["messages"], now["delayed"]["messages"]) == (0, 0)


@pytest.mark.long
def test_the_keys_of_a_queue_that_knows_duplicates_are_forgotten(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    channel.queue_declare("once", arguments={"x-message-deduplication": True, "x-cache-ttl": 60_000})
    for key in ("a", "b", "a"):
        channel.basic_publish("", "once", b"", pika.BasicProperties(headers={"x-deduplication-header": key}))
    path = f"/warren/queues/{q(vhost)}/once/deduplication"
    api.eventually(path, lambda it: it["keys"] == 2)
    ui.visit("queues", vhost, "once")
    card = ui.card("Duplicates")
    expect(card).to_contain_text("Keys remembered2")
    expect(card).to_contain_text("For1 min")
    ui.press("Forget keys…", card)
    ui.confirm("Forget keys")
    expect(card).to_contain_text("Keys remembered0")
    assert api.get(path)["keys"] == 0


@pytest.mark.long
def test_consumers_and_bindings_of_a_queue_are_shown_and_bindings_made_and_removed(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    channel = amqp().channel()
    channel.queue_declare("q")
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("q", lambda *_: None, consumer_tag="reader")
    ui.visit("queues", vhost, "q", tab="consumers")
    expect(ui.row("reader")).to_contain_text("guest")
    expect(ui.row("reader")).to_contain_text("7")
    ui.tab("Bindings")
    ui.fill(other="amq.topic", key="a.*.#")
    ui.press("Bind")
    expect(ui.row("amq.topic")).to_contain_text("a.*.#")
    expect(ui.main.locator("[name=other]")).to_have_value("")
    ui.fill(other="nowhere", key="")
    ui.press("Bind")
    expect(ui.main.get_by_role("alert")).to_contain_text("nowhere")
    ui.fill(other="amq.headers", key="")
    ui.argument(1, "x-match", "string", "any")
    ui.argument(2, "level", "number", "3")
    ui.press("Bind")
    expect(ui.row("amq.headers")).to_contain_text("level3")
    ui.press("Remove the binding amq.topic to q")
    ui.confirm("Remove binding")
    expect(ui.row("amq.topic")).to_have_count(0)
    left = [each for each in api.get(f"/queues/{q(vhost)}/q/bindings") if each["source"]]
    assert [(each["source"], each["arguments"]) for each in left] == [("amq.headers", {"x-match": "any", "level": 3})]


@pytest.mark.long
def test_a_queue_that_goes_while_it_is_looked_at_is_said_to_be_gone(ui: Ui, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    channel.queue_declare("short")
    ui.visit("queues", vhost, "short")
    ui.heading("short")
    channel.queue_delete("short")
    ui.refresh()
    expect(ui.main.get_by_role("alert")).to_have_text("There is no such queue.")
    expect(ui.page.locator(".banner.warning")).to_have_count(0)


@pytest.mark.long
def test_an_idle_queue_is_idle_in_the_list_and_on_its_page(ui: Ui, api: Api, vhost: str) -> None:
    api.put(f"/queues/{q(vhost)}/quiet")
    api.eventually(f"/queues/{q(vhost)}/quiet", lambda it: it["idle_since"])
    ui.visit("queues", vhost=vhost)
    expect(ui.row("quiet").locator(".state")).to_have_text("idle")
    ui.row("quiet").get_by_role("link").click()
    ui.heading("quiet")
    expect(ui.main.locator(".page-head .state")).to_have_text("idle")


def test_a_queue_says_how_many_bytes_are_unacked_and_persistent(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    channel.queue_declare("kept", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "kept", bytes(1024), pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("", "kept", bytes(512))
    assert channel.basic_get("kept")[0]
    ui.visit("queues", vhost, "kept")
    ui.heading("kept")
    expect(ui.card("Contents")).to_contain_text("Unacked1 1 KiB")
    expect(ui.card("Contents")).to_contain_text("Persistent1 1 KiB")
    expect(ui.page.get_by_role("navigation", name="You are in")).to_have_text(f"Queuesvhost {vhost}")


@pytest.mark.long
def test_a_list_of_queues_shows_how_long_each_was_lately(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    channel.queue_declare("still")
    channel.queue_declare("growing")
    api.eventually(f"/queues/{q(vhost)}/growing", lambda it: it["idle_since"])
    for _ in range(4):
        channel.basic_publish("", "growing", b"x")
    query = "?lengths_age=60&lengths_incr=5"
    api.eventually(
        f"/queues/{q(vhost)}/growing{query}",
        lambda it: {0, 4} <= {each["sample"] for each in it["messages_details"]["samples"]},
    )
    ui.visit("queues", vhost=vhost)
    expect(ui.row("growing").get_by_role("img")).to_have_accessible_name("0 to 4 messages")
    expect(ui.row("still").get_by_role("img")).to_have_accessible_name("0 messages all the time")
    # The page does not ask for hidden trends.
    ui.main.locator("summary", has_text="Columns").click()
    with ui.page.expect_request(lambda request: "/api/queues" in request.url and "lengths_age" not in request.url):
        ui.page.get_by_label("Trend").uncheck()
    expect(ui.main.locator(".sparkline")).to_have_count(0)


@pytest.mark.long
def test_a_field_says_what_it_means_when_it_is_asked(ui: Ui, api: Api, vhost: str) -> None:
    api.put(f"/queues/{q(vhost)}/plain")
    ui.visit("queues", vhost=vhost)
    expect(ui.main.get_by_role("button", name="Unacked")).to_have_attribute(
        "title", "Messages that were delivered and that their consumers have not acknowledged yet."
    )
    ui.row("plain").get_by_role("link").click()
    ui.heading("plain")
    field = ui.card("Contents").get_by_role("button", name="Persistent")
    text = ui.card("Contents").get_by_text("Messages that are on disk and survive a restart")
    expect(text).to_be_hidden()
    field.press("Enter")
    expect(field).to_have_attribute("aria-expanded", "true")
    expect(text).to_be_visible()
    field.click()
    expect(text).to_be_hidden()
