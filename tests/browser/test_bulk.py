"""State of programs that read and write in bulk: drains, snapshots and stages, viewed and deleted."""

from __future__ import annotations

import re
from collections.abc import Callable

import pika
import pytest
from integration.management.client import Api, q
from integration.staging import Stager, to_queue
from playwright.sync_api import expect

from .conftest import Connect, Open
from .ui import Ui

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def fill(amqp: Connect, queue: str, count: int) -> pika.adapters.blocking_connection.BlockingChannel:
    """Declare a queue with messages in it, and return the channel."""
    channel = amqp().channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
    return channel


def claim(api: Api, vhost: str, queue: str, name: str, rows: int, lease_s: int | None = None) -> str:
    """Open a drain, claim `rows` messages, and return its path."""
    path = f"/warren/drains/{q(vhost)}/{q(queue)}/{q(name)}"
    epoch = api.post(f"{path}/open", {"owner": "the nightly load", "lease_s": lease_s}).json["epoch"]
    api.post(f"{path}/claim", {"epoch": epoch, "after": 0, "max_rows": rows})
    return path


def test_there_is_nothing_in_a_vhost_before_a_program_has_made_something(ui: Ui, api: Api, vhost: str) -> None:
    api.put("/queues/%2F/elsewhere", {"durable": True})
    path = api.post("/warren/snapshots/%2F/elsewhere").headers["location"]
    ui.visit("bulk", vhost=vhost)
    ui.heading("Bulk data")
    expect(ui.card("Drains")).to_contain_text("No queue is being drained.")
    expect(ui.card("Snapshots")).to_contain_text("There is no snapshot.")
    expect(ui.card("Stages")).to_contain_text("Nothing is staged.")
    ui.visit("bulk")
    expect(ui.card("Snapshots").get_by_role("row", name="elsewhere")).to_be_visible()
    api.delete(path.removeprefix("/api"))
    api.delete("/queues/%2F/elsewhere")


@pytest.mark.long
def test_a_drain_is_shown_released_and_deleted(own_ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    ui = own_ui
    ui.page.get_by_label("Refresh every").select_option("0")
    channel = fill(amqp, "orders", 5)
    path = claim(api, vhost, "orders", "a/b", 3, lease_s=600)
    epoch = api.get(path)["epoch"]
    ui.visit("bulk", vhost=vhost)
    ui.heading("Bulk data")
    row = ui.card("Drains").get_by_role("row", name="orders")
    cells = row.locator("th, td")
    expect(cells.nth(0)).to_have_text("orders")
    expect(cells.nth(1)).to_have_text("a/b")
    expect(cells.nth(2)).to_have_text(vhost)
    expect(cells.nth(3)).to_have_text("the nightly load")
    expect(cells.nth(4)).to_have_text("3")
    expect(cells.nth(5)).to_have_text(str(epoch))
    expect(cells.nth(6)).to_have_text(re.compile("now|ago"))
    expect(cells.nth(7)).to_have_text("10 min")
    ui.press("Release…", row)
    expect(ui.dialog).to_contain_text("Queue orders gets 3 messages back")
    ui.confirm("Release")
    ui.noticed("Released 3 messages of a/b.")
    expect(cells.nth(4)).to_have_text("0")
    expect(row.get_by_role("button", name="Release…")).to_be_disabled()
    assert channel.queue_declare("orders", passive=True).method.message_count == 5
    assert api.get(path)["epoch"] > epoch
    ui.press("Delete…", row)
    expect(ui.dialog).to_contain_text("It has claimed nothing.")
    ui.confirm("Delete drain")
    ui.noticed("Drain a/b is deleted.")
    expect(ui.card("Drains")).to_contain_text("No queue is being drained.")
    assert api.get(f"/warren/drains/{q(vhost)}") == []


@pytest.mark.long
def test_claims_are_looked_at_and_lost_only_when_that_is_said(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = fill(amqp, "orders", 3)
    claim(api, vhost, "orders", "lake", 2)
    ui.visit("bulk", vhost=vhost)
    row = ui.card("Drains").get_by_role("row", name="orders")
    expect(row).to_contain_text("none")
    row.get_by_role("link", name="2", exact=True).click()
    ui.heading("amq.drain/orders/lake")
    expect(ui.main.locator(".pager")).to_contain_text("of 2")
    expect(ui.main.locator(".tabs a")).to_have_text(["Overview", "Messages 2"])
    expect(ui.main.get_by_role("button", name="Purge…")).to_have_count(0)
    ui.main.get_by_role("link", name="Its drain").click()
    ui.heading("Bulk data")
    channel.queue_delete("orders")
    ui.visit("bulk", vhost=vhost)
    expect(row).to_contain_text("gone")
    expect(row.get_by_role("button", name="Release…")).to_be_disabled()
    ui.press("Delete…", row)
    expect(ui.dialog).to_contain_text("What it has claimed is lost: 2 messages.")
    ui.press("Cancel", ui.dialog)
    assert len(api.get(f"/warren/drains/{q(vhost)}")) == 1
    ui.press("Delete…", row)
    ui.confirm("Delete with what is claimed")
    expect(ui.card("Drains")).to_contain_text("No queue is being drained.")


@pytest.mark.long
def test_what_is_claimed_meanwhile_is_not_lost_by_a_page_that_did_not_know(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    fill(amqp, "orders", 3)
    path = f"/warren/drains/{q(vhost)}/orders/lake"
    epoch = api.post(f"{path}/open", {}).json["epoch"]
    ui.visit("bulk", vhost=vhost)
    ui.press("Delete…", ui.card("Drains").get_by_role("row", name="orders"))
    api.post(f"{path}/claim", {"epoch": epoch, "after": 0, "max_rows": 2})
    ui.press("Delete drain", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text("2 messages are claimed")
    ui.press("Cancel", ui.dialog)
    assert api.get(path)["claimed"] == 2


@pytest.mark.long
def test_a_drain_that_was_opened_again_is_neither_deleted_nor_released_by_a_page_that_did_not_know(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    fill(amqp, "orders", 3)
    path = claim(api, vhost, "orders", "lake", 2)
    ui.visit("bulk", vhost=vhost)
    ui.press("Delete…", ui.card("Drains").get_by_role("row", name="orders"))
    epoch = api.post(f"{path}/open", {}).json["epoch"]
    ui.press("Delete with what is claimed", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text(f"has epoch {epoch} now")
    ui.press("Cancel", ui.dialog)
    ui.visit("bulk", vhost=vhost)
    ui.press("Release…", ui.card("Drains").get_by_role("row", name="orders"))
    later = api.post(f"{path}/open", {}).json["epoch"]
    ui.press("Release", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text(f"has epoch {later} now")
    ui.press("Cancel", ui.dialog)
    assert (api.get(path)["claimed"], api.get(path)["epoch"]) == (2, later)


@pytest.mark.long
def test_a_snapshot_is_shown_and_deleted(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    fill(amqp, "orders", 4)
    made = api.post(f"/warren/snapshots/{q(vhost)}/orders", {"ttl_s": 7200}).json
    ui.visit("bulk", vhost=vhost)
    card = ui.card("Snapshots")
    cells = card.get_by_role("row", name="orders").locator("th, td")
    for at, text in enumerate(("orders", made["snapshot"], vhost, "ready", "4", "4 B", "guest")):
        expect(cells.nth(at)).to_have_text(text)
    expect(cells.nth(8)).to_contain_text("in 1 h 59 min")
    ui.press("Delete…", card)
    ui.confirm("Delete snapshot")
    ui.noticed(f"Snapshot {made['snapshot']} is deleted.")
    expect(card).to_contain_text("There is no snapshot.")
    assert api.get(f"/warren/snapshots/{q(vhost)}") == []


@pytest.mark.long
def test_stages_are_discarded_by_their_user_and_by_administrators_only(
    ui: Ui, open_ui: Open, api: Api, amqp: Connect, add_user: Callable[[str, str], None], vhost: str
) -> None:
    fill(amqp, "orders", 0)
    for name, tags in (("writer", "management"), ("watcher", "monitoring"), ("other", "management")):
        add_user(name, tags)
    Stager(api.as_user("writer", "secret"), vhost).put("of-writer", 0, to_queue("orders", [b"a", b"b"]))
    Stager(api, vhost).put("of-guest", 0, to_queue("orders", [b"c"]))
    stages = f"/warren/stages/{q(vhost)}"

    def page_of(user: str) -> Ui:
        page = open_ui(Ui.address("bulk", vhost=vhost))
        page.log_in(user, "secret")
        page.heading("Bulk data")
        return page

    other = page_of("other")
    expect(other.card("Stages")).to_contain_text("Nothing is staged.")
    assert other.refused[1:] == []  # the first asks whether there is a session
    watcher = page_of("watcher")
    expect(watcher.card("Stages").locator("tbody tr")).to_have_count(2)
    expect(watcher.card("Stages").get_by_role("button", name="Discard…")).to_have_count(0)
    writer = page_of("writer")
    card = writer.card("Stages")
    cells = card.get_by_role("row", name="of-writer").locator("th, td")
    for at, text in enumerate(("of-writer", vhost, "writer", "1", "2")):
        expect(cells.nth(at)).to_have_text(text)
    expect(card.locator("tbody tr")).to_have_count(1)
    writer.press("Discard…", card)
    expect(writer.dialog).to_contain_text("What is staged will not be published: 2 messages.")
    writer.confirm("Discard stage")
    writer.noticed("Stage of-writer is discarded.")
    assert [each["name"] for each in api.get(stages)] == ["of-guest"]
    Stager(api.as_user("writer", "secret"), vhost).put("again", 0, to_queue("orders", [b"a"]))
    ui.visit("bulk", vhost=vhost)
    ui.press("Discard…", ui.card("Stages").get_by_role("row", name="again"))
    ui.confirm("Discard stage")
    ui.noticed("Stage again is discarded.")
    ui.press("Discard…", ui.card("Stages").get_by_role("row", name="of-guest"))
    ui.confirm("Discard stage")
    expect(ui.card("Stages")).to_contain_text("Nothing is staged.")
    assert api.get(stages) == []
