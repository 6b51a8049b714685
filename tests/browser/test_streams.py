"""Streams: added, looked at and copied from, with what only queues can do left out, and how far consumers are."""

from __future__ import annotations

from typing import Any

import pytest
from integration.management.client import Api, q
from playwright.sync_api import expect

from .conftest import Connect
from .ui import Ui

STREAM = {"x-queue-type": "stream"}


def fill(amqp: Connect, count: int) -> None:
    """Make a stream "s" with `count` messages."""
    channel: Any = amqp().channel()
    channel.queue_declare("s", durable=True, arguments=STREAM)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", "s", b"%d" % number)


@pytest.mark.long
def test_a_stream_is_added_with_arguments_of_streams(ui: Ui, api: Api, vhost: str) -> None:
    ui.visit("queues", vhost=vhost)
    ui.press("Add queue")
    ui.fill(ui.dialog, name="s")
    ui.dialog.get_by_label("Type", exact=True).select_option("stream")
    expect(ui.dialog).to_contain_text("every message stored and kept")
    for only_of_queues in ("Durable", "Auto-delete"):
        expect(ui.dialog.get_by_label(only_of_queues)).to_have_count(0)
    ui.press("Show known keys", ui.dialog)
    hints = ui.dialog.locator(".hints")
    expect(hints.get_by_role("button", name="x-max-length", exact=True)).to_have_count(0)
    hints.get_by_role("button", name="x-max-age", exact=True).click()
    ui.argument(1, "x-max-age", "string", "7D", ui.dialog)
    ui.confirm("Add queue")
    ui.noticed("Queue s is declared.")
    expect(ui.row("s")).to_contain_text("stream")
    found = api.get(f"/queues/{q(vhost)}/s")
    assert (found["type"], found["durable"], found["auto_delete"]) == ("stream", True, False)
    assert found["arguments"] == STREAM | {"x-max-age": "7D"}


@pytest.mark.long
def test_a_stream_is_shown_with_its_offsets_and_without_what_it_does_not_do(ui: Ui, amqp: Connect, vhost: str) -> None:
    fill(amqp, 3)
    ui.visit("queues", vhost, "s")
    ui.heading("s")
    expect(ui.main).to_contain_text("First offset0")
    expect(ui.main).to_contain_text("Next offset3")
    tabs = ui.page.get_by_role("navigation", name="Parts of this page")
    for name, count in (("Messages", 1), ("Groups", 1), ("Copy", 1), ("Get", 0), ("Move", 0)):
        expect(tabs.get_by_role("link", name=name)).to_have_count(count)
    expect(ui.main.get_by_role("button", name="Delete…")).to_be_visible()
    expect(ui.main.get_by_role("button", name="Purge…")).to_have_count(0)
    ui.tab("Messages")
    expect(ui.main.locator(".message")).to_have_count(3)
    ui.visit("queues", vhost, "s", tab="get")
    expect(ui.page.locator(".tabs [aria-current]")).to_contain_text("Overview")


@pytest.mark.long
def test_messages_of_a_stream_are_copied(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    fill(amqp, 3)
    amqp().channel().queue_declare("to")
    ui.visit("queues", vhost, "s", tab="move")
    ui.heading("s")
    card = ui.card("Copy messages")
    expect(card.get_by_label("What to do").locator("option")).to_have_count(1)
    ui.fill(card, queue="to")
    ui.press("Start", card)
    ui.noticed("The transfer has begun.")
    expect(ui.card("Transfers from this queue")).to_contain_text("3 transferred")
    assert api.get(f"/queues/{q(vhost)}/s")["messages"] == 3
    api.eventually(f"/queues/{q(vhost)}/to", lambda it: it["messages"] == 3)


def test_consumers_of_a_stream_are_shown_with_the_offset_that_each_gets_next(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    fill(amqp, 5)
    channel: Any = amqp().channel()
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("s", lambda *_: None, consumer_tag="alone", arguments={"x-stream-offset": 1})
    for tag in ("served", "second"):
        arguments = {"x-stream-offset": "next", "x-group": "g"}
        channel.basic_consume("s", lambda *_: None, consumer_tag=tag, arguments=arguments)
    api.eventually(f"/queues/{q(vhost)}/s", lambda it: it["messages_unacknowledged"] == 2)
    ui.visit("queues", vhost, "s", tab="consumers")
    expect(ui.row("alone")).to_be_visible()
    at = ui.main.get_by_role("columnheader").all_text_contents().index("Next offset")
    for tag, offset in (("alone", "3"), ("served", "5"), ("second", "\u2013")):
        expect(ui.row(tag).locator("th, td").nth(at)).to_have_text(offset)
    expect(ui.row("second")).to_contain_text("waiting")


@pytest.mark.long
def test_a_group_is_shown_set_to_another_place_and_forgotten(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    fill(amqp, 5)
    connection = amqp()
    channel: Any = connection.channel()
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("s", lambda *_: None, arguments={"x-stream-offset": 1, "x-group": "billing"})
    groups = f"/warren/streams/{q(vhost)}/s/groups"
    api.eventually(groups, lambda it: [each["committed_offset"] for each in it] == [1])
    ui.visit("queues", vhost, "s", tab="groups")
    expect(ui.row("billing")).to_be_visible()
    at = ui.main.get_by_role("columnheader").all_text_contents().index("Behind")
    expect(ui.row("billing").locator("th, td").nth(at)).to_have_text("4")
    expect(ui.row("billing").get_by_role("button", name="Forget…")).to_be_disabled()
    ui.row("billing").get_by_role("button", name="Set…").click()
    ui.fill(ui.dialog, position="nowhere")
    ui.press("Set", ui.dialog)
    expect(ui.dialog).to_contain_text("offset must be a number")
    ui.fill(ui.dialog, position="3")
    ui.confirm("Set")
    ui.noticed("Group billing continues there.")
    assert [each["committed_offset"] for each in api.get(groups)] == [3]
    connection.close()
    api.eventually(groups, lambda it: it[0]["consumers"] == 0)
    ui.page.reload()
    ui.row("billing").get_by_role("button", name="Forget…").click()
    ui.confirm("Forget group")
    ui.noticed("Group billing is forgotten.")
    assert api.get(groups) == []
