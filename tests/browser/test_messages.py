"""Messages of a queue: published, got, looked at, moved."""

from __future__ import annotations

import json
import re

import pika
import pytest
from integration.management.client import Api, q
from playwright.sync_api import expect

from .clients import reject_all
from .conftest import Connect
from .ui import Ui


def _visit_queue(ui: Ui, api: Api, count: int, tab: str, **query: str) -> None:
    api.eventually(f"/queues/{q(ui.vhost)}/q", lambda it: it.get("messages") == count)
    ui.visit("queues", ui.vhost, "q", tab=tab, **query)
    ui.heading("q")


def test_a_message_is_published_with_all_it_can_carry(ui: Ui, api: Api, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("q")
    _visit_queue(ui, api, 0, "publish")
    ui.fill(payload='{"total": 12}')
    ui.argument(1, "tenant", "string", "acme")
    ui.argument(2, "level", "number", "3")
    ui.main.locator("summary", has_text="Properties").click()
    ui.fill(content_type="application/json", priority="4", message_id="m-1", timestamp="1700000000")
    ui.main.get_by_label("Delivery mode").select_option("1")
    ui.press("Publish")
    expect(ui.main.get_by_role("status")).to_have_text("Published and routed.")
    method, properties, body = channel.basic_get("q", auto_ack=True)
    assert method is not None and properties is not None and json.loads(body or b"") == {"total": 12}
    assert (properties.content_type, properties.priority, properties.message_id) == ("application/json", 4, "m-1")
    assert (properties.timestamp, properties.delivery_mode) == (1_700_000_000, 1)
    assert properties.headers == {"tenant": "acme", "level": 3}
    ui.main.get_by_label("The payload is").select_option("base64")
    ui.fill(payload="AAH/")
    ui.press("Publish")
    api.eventually(f"/queues/{q(ui.vhost)}/q", lambda it: it["messages"] == 1)
    assert channel.basic_get("q", auto_ack=True)[2] == b"\x00\x01\xff"


def test_publishing_where_no_queue_takes_it_is_said(ui: Ui) -> None:
    ui.visit("exchanges", ui.vhost, "amq.direct", tab="publish")
    ui.fill(routing_key="nobody", payload="x")
    ui.press("Publish")
    expect(ui.main.get_by_role("status")).to_have_text("Published, but no queue took it. Show in routing")
    ui.main.get_by_role("link", name="Show in routing").last.click()
    ui.wait_for_place("routing", vhost=ui.vhost, exchange="amq.direct")


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "stays", "redelivered", "dead"),
    [
        ("ack_requeue_true", 1, True, 0),
        ("ack_requeue_false", 0, False, 0),
        ("reject_requeue_true", 1, True, 0),
        ("reject_requeue_false", 0, False, 1),
    ],
)
def test_getting_does_to_messages_what_the_mode_says(
    ui: Ui, api: Api, amqp: Connect, mode: str, stays: int, redelivered: bool, dead: int
) -> None:
    channel = amqp().channel()
    channel.queue_declare("dead")
    channel.queue_declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.basic_publish("", "q", b'{"a": "\xc3\xa9"}')
    _visit_queue(ui, api, 1, "get")
    ui.main.get_by_label("Acknowledgement").select_option(mode)
    ui.fill(count="5")
    ui.press("Get")
    if stays == 0:
        expect(ui.dialog).to_contain_text("Take 5 messages out of q?")
        ui.confirm("Take out")
    taken = ui.main.get_by_role("region", name="Messages that were taken")
    expect(taken.get_by_role("status")).to_have_text("1 taken, 0 were left.")
    expect(taken.locator(".payload")).to_have_text('{\n  "a": "é"\n}')
    api.eventually(f"/queues/{q(ui.vhost)}/dead", lambda it: it["messages"] == dead)
    method = channel.basic_get("q", auto_ack=True)[0]
    assert (method is not None) == bool(stays)
    assert method is None or method.redelivered is redelivered
    ui.press("Get")
    if stays == 0:
        ui.confirm("Take out")
    expect(taken.get_by_role("status")).to_have_text("The queue has no ready message.")


@pytest.mark.long
def test_the_browser_shows_bodies_as_json_text_and_hex_and_takes_nothing_out(ui: Ui, api: Api, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b'{"b":[1,2]}', pika.BasicProperties(headers={"n": 1}, app_id="shop"))
    channel.basic_publish("", "q", b"\x00\x01\xffbin")
    channel.basic_publish("", "q", b"")
    _visit_queue(ui, api, 3, "messages")
    messages = ui.main.locator(".message")
    expect(messages).to_have_count(3)
    expect(messages.nth(1)).to_contain_text("(binary)")
    expect(messages.nth(2)).to_contain_text("(empty)")
    first = messages.nth(0)
    first.locator("summary").click()
    body = first.get_by_label("Body", exact=True)
    expect(body).to_have_text('{\n  "b": [\n    1,\n    2\n  ]\n}')
    expect(first).to_contain_text("app_idshop")
    expect(first).to_contain_text("n1")
    ui.press("Text", first)
    expect(body).to_have_text('{"b":[1,2]}')
    ui.press("Hex", first)
    expect(body).to_contain_text("000000  7b 22 62 22 3a 5b 31 2c 32 5d 7d")
    messages.nth(1).locator("summary").click()
    expect(messages.nth(1).get_by_role("group", name="Show the body as").get_by_role("button")).to_have_text(["Hex"])
    expect(messages.nth(1).get_by_label("Body", exact=True)).to_contain_text("00 01 ff 62 69 6e")
    found = channel.basic_get("q", auto_ack=True)[0]
    assert found is not None and not found.redelivered and found.message_count == 2


@pytest.mark.long
def test_dead_letters_show_why_and_when_and_are_sent_back_singly_or_all(ui: Ui, api: Api, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("q")
    channel.queue_declare("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    for number in range(4):
        channel.basic_publish("", "work", b"letter %d" % number, pika.BasicProperties(timestamp=1_700_000_000))
    reject_all(channel, "work", requeue=False)
    channel.basic_publish("", "q", b"no letter", pika.BasicProperties(timestamp=1_700_000_000))
    _visit_queue(ui, api, 5, "messages")
    messages = ui.main.locator(".message")
    expect(messages).to_have_count(5)
    expect(messages.nth(0).locator(".reason")).to_have_text("rejected")
    expect(messages.nth(0).locator(".age")).to_have_text(re.compile("ago|now"))
    expect(messages.nth(4).locator(".reason")).to_have_text("\u2013")
    expect(messages.nth(4).locator(".age")).to_have_text(re.compile(r"\d d .*ago"))
    messages.nth(0).locator("summary").click()
    expect(messages.nth(0)).to_contain_text("14 Nov 2023")
    expect(messages.nth(0).get_by_role("link", name="work", exact=True)).to_be_visible()
    ui.page.get_by_label("Select message 1").check()
    ui.page.get_by_label("Select message 3").check()
    picked = ui.page.get_by_role("group", name="With the selected messages")
    expect(picked).to_contain_text("2 selected")
    ui.press("Send back…", picked)
    ui.confirm("Send back")
    ui.noticed("Sent back 2 of 2.")
    expect(messages).to_have_count(3)
    expect(ui.main).not_to_contain_text("letter 1")
    expect(ui.main).not_to_contain_text("letter 3")
    ui.page.get_by_label("Select message 1").check()
    ui.press("Move…", picked)
    ui.fill(ui.dialog, queue="nowhere")
    ui.press("Move", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text("nowhere")
    ui.fill(ui.dialog, queue="work")
    ui.confirm("Move")
    ui.noticed("Moved 1 of 1.")
    expect(messages).to_have_count(2)
    ui.press("Send back…")
    ui.confirm("Send back")
    ui.noticed("Sent back 1 of 2.")
    ui.noticed("Stay here, as no queue takes them: 1 message.")
    expect(messages).to_have_count(1)
    expect(messages).to_contain_text("no letter")
    assert api.get(f"/queues/{q(ui.vhost)}/work")["messages"] == 4


@pytest.mark.long
def test_the_browser_filters_pages_and_keeps_its_state_in_the_address(ui: Ui, api: Api, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.exchange_declare("x", "fanout")
    channel.queue_declare("q")
    channel.queue_bind("q", "x")
    for number in range(120):
        properties = pika.BasicProperties(headers={"third": number % 3})
        channel.basic_publish("x", "even" if number % 2 == 0 else "odd", b"body %d" % number, properties)
    _visit_queue(ui, api, 120, "messages")
    pager = ui.main.get_by_role("navigation", name="Pages of messages")
    messages = ui.main.locator(".message")
    expect(pager.get_by_role("status")).to_have_text("1\u201350 of 120")
    ui.press("Next", pager)
    expect(pager.get_by_role("status")).to_have_text("51\u2013100 of 120")
    expect(messages.first).to_contain_text("body 50")
    ui.press("Next", pager)
    expect(messages).to_have_count(20)
    expect(pager.get_by_role("button", name="Next")).to_be_disabled()
    ui.wait_for_place("queues", ui.vhost, "q", tab="messages", offset="100")
    ui.fill(key="odd", header="third=0")
    ui.press("Filter")
    expect(messages).to_have_count(20)
    expect(messages.first).to_contain_text("body 3")
    ui.fill(body="body 11")
    ui.press("Filter")
    expect(messages).to_have_count(2)  # 111 and 117
    ui.wait_for_place("queues", ui.vhost, "q", tab="messages", key="odd", header="third=0", body="body 11")
    ui.page.reload()
    expect(messages).to_have_count(2)
    ui.press("Show all")
    expect(pager.get_by_role("status")).to_have_text("1\u201350 of 120")


@pytest.mark.long
def test_the_browser_shows_every_state_a_message_can_be_in(ui: Ui, api: Api, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("q", durable=True, arguments={"x-delivery-limit": 1, "x-delivery-limit-action": "park"})
    channel.basic_publish("", "q", b"failed")
    reject_all(channel, "q", requeue=True)
    channel.basic_publish("", "q", b"later", pika.BasicProperties(headers={"x-delay": 600_000}))
    channel.basic_publish("", "q", b"out", pika.BasicProperties(delivery_mode=2))
    api.eventually(f"/queues/{q(ui.vhost)}/q", lambda it: it.get("messages_ready") == 1)
    channel.basic_get("q")
    channel.basic_publish("", "q", b"waiting")
    api.eventually(
        f"/queues/{q(ui.vhost)}/q", lambda it: (it["messages_ready"], it["messages_unacknowledged"]) == (1, 1)
    )
    ui.visit("queues", ui.vhost, "q", tab="messages")
    message = ui.main.locator(".message")
    for state, body, more in (
        ("Unacked", "out", "persistent"),
        ("Delayed", "later", "in 9 min"),
        ("Parked", "failed", ""),
        ("Ready", "waiting", ""),
    ):
        ui.press(state)
        expect(message).to_have_count(1)
        expect(message).to_contain_text(body)
        expect(message).to_contain_text(more)
    ui.press("Unacked")
    message.locator("summary").click()
    expect(message).to_contain_text("Delivery tag")
    ui.press("Undelivered dead letters")
    expect(ui.main).to_contain_text("No message is undelivered.")


@pytest.mark.long
def test_messages_are_moved_and_copied_to_queues_and_exchanges(ui: Ui, api: Api, amqp: Connect) -> None:
    channel = amqp().channel()
    for name in ("q", "copies", "moved", "bound"):
        channel.queue_declare(name)
    channel.queue_bind("bound", "amq.fanout")
    for number in range(10):
        channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(headers={"odd": number % 2}))
    _visit_queue(ui, api, 10, "move")

    def counts() -> list[int]:
        return [each["messages"] for each in api.get(f"/queues/{q(ui.vhost)}?columns=name,messages&sort=name")]

    ui.main.get_by_label("What to do").select_option("copy")
    ui.fill(queue="copies", count="4")
    ui.press("Start")
    ui.noticed("The transfer has begun.")
    expect(ui.row("copy to queue copies")).to_contain_text("done")
    expect(ui.row("copy to queue copies")).to_contain_text("4 transferred")
    assert counts() == [0, 4, 0, 10]
    ui.main.get_by_label("What to do").select_option("move")
    ui.main.locator("summary", has_text="Only some of them").click()
    ui.fill(queue="moved", count="", header="odd=1")
    ui.press("Start")
    expect(ui.dialog).to_contain_text("The messages that match in state ready go to queue moved.")
    ui.confirm("Move")
    expect(ui.row("move to queue moved")).to_contain_text("5 transferred of 10 looked at")
    assert counts() == [0, 4, 5, 5]
    ui.main.get_by_label("To", exact=True).select_option("exchange")
    ui.fill(exchange="amq.fanout", header="")
    ui.press("Start")
    ui.confirm("Move")
    expect(ui.row("move to exchange amq.fanout")).to_contain_text("done")
    assert counts() == [5, 4, 5, 0]
    ui.press("Forget", ui.row("copy to queue copies"))
    expect(ui.row("copy to queue copies")).to_have_count(0)
    ui.main.get_by_label("To", exact=True).select_option("queue")
    ui.fill(queue="nowhere")
    ui.press("Start")
    ui.press("Move", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text("nowhere")


@pytest.mark.long
def test_dead_letters_are_sent_back_to_where_they_came_from(ui: Ui, api: Api, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    channel.queue_declare("q")
    for _ in range(3):
        channel.basic_publish("", "work", b"x")
    reject_all(channel, "work", requeue=False)
    _visit_queue(ui, api, 3, "move")
    ui.main.get_by_label("To", exact=True).select_option("origin")
    ui.press("Start")
    ui.confirm("Move")
    expect(ui.row("move to where they came from")).to_contain_text("3 transferred")
    api.eventually(f"/queues/{q(ui.vhost)}/work", lambda it: it["messages"] == 3)


@pytest.mark.long
def test_a_long_transfer_shows_its_progress_and_is_stopped(ui: Ui, api: Api, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("q")
    channel.queue_declare("full")
    for _ in range(20_000):
        channel.basic_publish("", "q", b"x")
    _visit_queue(ui, api, 20_000, "move")
    ui.fill(queue="full", rate="100")  # 200 s in all
    ui.press("Start")
    ui.confirm("Move")
    row = ui.row("move to queue full")
    expect(row.get_by_role("progressbar", name="Progress")).to_be_visible()
    ui.press("Stop…", row)
    ui.confirm("Stop transfer")
    expect(row).to_contain_text("stopped")
    (transfer,) = api.get(f"/warren/transfers/{q(ui.vhost)}")
    assert transfer["state"] == "stopped" and transfer["transferred"] < 20_000
    path = f"/queues/{q(ui.vhost)}"
    api.eventually(path, lambda all_: sum(each["messages"] for each in all_) == 20_000)
