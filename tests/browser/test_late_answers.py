"""Answers of the API that are held back: nothing is sent twice, and nothing is shown of anything else meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from integration.management.client import Api, q
from playwright.sync_api import Route, expect

from .conftest import Connect
from .ui import Ui


@contextmanager
def held(ui: Ui, pattern: str | re.Pattern[str]) -> Iterator[list[Route]]:
    """Hold the requests of the page that match `pattern`, until the block ends."""
    routes: list[Route] = []
    ui.page.route(pattern, lambda route: routes.append(route))
    try:
        yield routes
    finally:
        for route in routes:
            route.continue_()
        ui.page.unroute(pattern)


@pytest.mark.long
def test_a_copy_is_begun_once_however_often_it_is_asked_for(ui: Ui, api: Api, vhost: str, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("from")
    channel.queue_declare("to")
    channel.confirm_delivery()
    channel.basic_publish("", "from", b"one")
    ui.visit("queues", vhost, "from", tab="move")
    form = ui.card("Move or copy messages")
    form.get_by_label("What to do").select_option("copy")
    form.get_by_label("Queue").fill("to")
    with held(ui, "**/transfers") as routes:
        ui.press("Start", form)
        form.get_by_label("Queue").press("Enter")
        expect(form.get_by_role("button", name="Start")).to_be_disabled()
    ui.noticed("The transfer has begun.")
    expect(form.get_by_role("button", name="Start")).to_be_enabled()
    assert len(routes) == 1
    assert len(api.get(f"/warren/transfers/{q(vhost)}")) == 1


@pytest.mark.long
def test_names_are_offered_for_what_was_typed_last(ui: Ui, vhost: str, amqp: Connect) -> None:
    channel = amqp().channel()
    for name in ("from", "first", "second"):
        channel.queue_declare(name)
    ui.visit("queues", vhost, "from", tab="move")
    field = ui.card("Move or copy messages").get_by_label("Queue")
    offered = ui.main.locator("datalist option")
    early = re.compile(r"[?&]name=f&")
    with ui.page.expect_response(early), held(ui, early):
        with ui.page.expect_request(early):
            field.fill("f")
        field.fill("sec")
        expect(offered).to_have_count(1)
    ui.page.wait_for_timeout(100)
    expect(offered).to_have_count(1)
    expect(offered).to_have_attribute("value", "second")


@pytest.mark.long
def test_definitions_go_where_they_were_looked_at(ui: Ui, api: Api, vhost: str) -> None:
    queue = {"name": "fresh", "durable": True, "auto_delete": False, "arguments": {}}
    ui.visit("definitions")
    into = ui.card("Import")
    file = {"name": "a.json", "mimeType": "application/json", "buffer": json.dumps({"queues": [queue]}).encode()}
    with held(ui, "**/api/warren/definitions/dry-run") as routes:
        with ui.page.expect_request("**/api/warren/definitions/dry-run"):
            into.get_by_label("File").set_input_files(file)  # type: ignore[arg-type]
        into.get_by_label("Into").select_option(vhost)
        expect(ui.row("fresh")).to_contain_text("create")
    assert len(routes) == 1
    ui.press("Import…", into)
    expect(ui.dialog).to_contain_text(f"added to the vhost {vhost}.")
    ui.confirm("Import")
    ui.noticed("a.json is imported.")
    assert api.get(f"/queues/{q(vhost)}/fresh")["durable"]


def test_what_is_drawn_is_of_the_vhost_in_the_heading(ui: Ui, vhost: str, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("here")
    channel.queue_bind("here", "amq.topic", "k")
    ui.visit("routing", vhost=vhost, view="table")
    ui.heading(f"Routing in {vhost}")
    expect(ui.row("here")).to_be_visible()
    with held(ui, "**/api/warren/topology/%2F"):
        ui.visit("routing", vhost="/", view="table")
        expect(ui.page.get_by_role("heading", name="Routing in /", exact=True)).to_be_visible()
        expect(ui.page.get_by_text("Loading…")).to_be_visible()
        expect(ui.row("here")).to_have_count(0)
    expect(ui.page.get_by_role("button", name="Show")).to_be_visible()


def test_a_user_is_said_to_have_no_vhost_only_when_that_is_known(ui: Ui) -> None:
    with held(ui, "**/api/permissions"):
        ui.visit("users")
        expect(ui.row("guest")).to_be_visible()
        expect(ui.row("guest")).not_to_contain_text("no vhost")
    expect(ui.row("guest")).to_contain_text("/")


@pytest.mark.long
def test_the_messages_shown_are_in_the_state_that_is_chosen(ui: Ui, vhost: str, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.confirm_delivery()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"in the queue")
    ui.visit("queues", vhost, "q", tab="messages")
    expect(ui.page.get_by_text("in the queue")).to_be_visible()
    with held(ui, re.compile(r"/messages\?state=unacked")):
        ui.page.get_by_role("group", name="State of messages").get_by_role("button", name="Unacked").click()
        expect(ui.page.get_by_text("Loading…")).to_be_visible()
        expect(ui.page.get_by_text("in the queue")).to_have_count(0)
    expect(ui.page.get_by_text("No message is unacked.")).to_be_visible()


@pytest.mark.long
def test_a_result_is_chosen_among_those_that_are_shown(ui: Ui, vhost: str, amqp: Connect) -> None:
    channel = amqp().channel()
    for name in ("shell-first", "shell-second"):
        channel.queue_declare(name)
    ui.visit("queues")
    field = ui.page.get_by_label("Search everything")
    results = ui.page.get_by_role("listbox", name="Results").get_by_role("option")
    field.fill("shell-")
    expect(results).to_have_count(2)
    late = re.compile(r"/search\?q=shell-second&")
    with ui.page.expect_response(late), held(ui, late):
        with ui.page.expect_request(late):
            field.fill("shell-second")
        field.press("ArrowDown")
        expect(results.first).to_have_attribute("aria-selected", "true")
    expect(results).to_have_count(1)
    expect(results.first).to_have_attribute("aria-selected", "false")
    field.press("ArrowDown")
    field.press("Enter")
    ui.heading("shell-second")
