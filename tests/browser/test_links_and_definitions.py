"""Shovels, federation, and definitions as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from broker_process import WarrenProcess
from integration.management.client import Api, q
from playwright.sync_api import FilePayload, expect

from .conftest import Connect
from .ui import Ui


def _uri(broker: WarrenProcess, vhost: str) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/{q(vhost)}"


@pytest.mark.long
def test_a_shovel_is_added_moves_messages_is_edited_restarted_and_deleted(
    ui: Ui, api: Api, amqp: Connect, broker: WarrenProcess, vhost: str
) -> None:
    channel = amqp().channel()
    channel.queue_declare("from", durable=True)
    channel.queue_declare("to", durable=True)
    channel.basic_publish("", "from", b"carried")
    ui.visit("shovels", vhost=vhost)
    ui.heading("Shovels")
    ui.press("Add shovel")
    uri = _uri(broker, vhost)
    source = {"src-uri": uri, "src-queue": "from", "src-prefetch-count": "5"}
    ui.fill(ui.dialog, name="mover", **source)
    ui.dialog.get_by_label("Kind").nth(1).select_option("exchange")
    ui.fill(ui.dialog, **{"dest-uri": uri, "dest-exchange": "", "dest-exchange-key": "to"})
    ui.confirm("Set shovel")
    value = api.get(f"/parameters/shovel/{q(vhost)}/mover")["value"]
    assert (value["src-queue"], value["dest-exchange-key"], value["src-prefetch-count"]) == ("from", "to", 5)
    api.eventually(f"/queues/{q(vhost)}/to", lambda it: it.get("messages") == 1)
    api.eventually(
        "/shovels", lambda them: any(each["name"] == "mover" and each["state"] == "running" for each in them)
    )
    ui.refresh()
    expect(ui.row("mover")).to_contain_text("running")
    expect(ui.row("mover")).to_contain_text("amqp://guest@127.0.0.1")
    expect(ui.row("mover")).not_to_contain_text("guest:guest")
    ui.press("Edit…", ui.row("mover"))
    expect(ui.dialog.locator("[name=src-queue]")).to_have_value("from")
    ui.dialog.get_by_label("Acknowledges").select_option("on-publish")
    ui.fill(ui.dialog, **{"src-prefetch-count": ""})
    ui.confirm("Set shovel")
    value = api.get(f"/parameters/shovel/{q(vhost)}/mover")["value"]
    assert value["ack-mode"] == "on-publish" and "src-prefetch-count" not in value
    ui.press("Restart…", ui.row("mover"))
    ui.confirm("Restart")
    ui.noticed("The shovel mover is restarted.")
    ui.press("Delete…", ui.row("mover"))
    ui.confirm("Delete shovel")
    expect(ui.row("mover")).to_have_count(0)
    assert api.get(f"/parameters/shovel/{q(vhost)}") == []


@pytest.mark.long
def test_an_upstream_is_added_federates_by_a_policy_and_is_deleted(
    ui: Ui, api: Api, amqp: Connect, broker: WarrenProcess, vhost: str
) -> None:
    there = f"{vhost} there"
    api.put(f"/vhosts/{q(there)}")
    amqp(vhost=there).channel().exchange_declare("shared", "topic", durable=True)
    channel = amqp().channel()
    channel.exchange_declare("shared", "topic", durable=True)
    channel.queue_declare("q")
    channel.queue_bind("q", "shared", "#")
    ui.visit("federation", vhost=vhost)
    ui.heading("Federation")
    ui.press("Add upstream")
    ui.fill(ui.dialog, name="up", uri=_uri(broker, there))
    ui.fill(ui.dialog, **{"prefetch-count": "10"})
    ui.confirm("Set upstream")
    expect(ui.row("up")).to_contain_text("amqp://guest@")
    api.put(f"/policies/{q(vhost)}/fed", {"pattern": "^shared$", "definition": {"federation-upstream": "up"}})
    links = f"/federation-links/{q(vhost)}"
    api.eventually(links, lambda them: [each["status"] for each in them] == ["running"])
    ui.refresh()
    expect(ui.card("Links").locator("tbody tr")).to_contain_text("running")
    amqp(vhost=there).channel().basic_publish("shared", "k", b"came over")
    api.eventually(f"/queues/{q(vhost)}/q", lambda it: it.get("messages") == 1)
    ui.press("Edit…", ui.row("up").first)
    expect(ui.dialog.locator("[name=prefetch-count]")).to_have_value("10")
    ui.fill(ui.dialog, **{"max-hops": "2"})
    ui.confirm("Set upstream")
    assert api.get(f"/parameters/federation-upstream/{q(vhost)}/up")["value"]["max-hops"] == 2
    api.delete(f"/policies/{q(vhost)}/fed")
    api.eventually(links, lambda them: them == [])
    ui.press("Delete…", ui.main.get_by_role("region", name="Upstreams").locator("tbody tr"))
    ui.confirm("Delete upstream")
    expect(ui.main).to_contain_text("No upstream.")
    api.delete(f"/vhosts/{q(there)}")


@pytest.mark.long
def test_a_table_is_added_follows_is_edited_restarted_and_deleted(
    ui: Ui, api: Api, amqp: Connect, broker: WarrenProcess, vhost: str
) -> None:
    pytest.importorskip("pyiceberg_core")
    channel = amqp().channel()
    channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "stream"})
    channel.basic_publish("", "orders", b'{"id": 1}')
    channel.basic_publish("", "orders", b"no JSON")
    ui.visit("lake", vhost=vhost)
    ui.heading("Lake")
    expect(ui.main).to_contain_text("No table.")
    ui.press("Add table")
    directory = broker.data_directory.parent / "lake"
    ui.fill(ui.dialog, name="shop", source="orders", to="/etc/shop.orders", interval="100ms")
    ui.dialog.get_by_label("Bodies").select_option("json")
    ui.press("Set table", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text("the setting lake_places allows directories below")
    ui.fill(ui.dialog, to=f"{directory}/shop.orders", schema='{"properties": {"id": {"type": "integer"}}}')
    ui.confirm("Set table")
    value = api.get(f"/parameters/lake/{q(vhost)}/shop")["value"]
    assert value == {
        "stream": "orders",
        "to": f"{directory}/shop.orders",
        "format": "iceberg",
        "body": "json",
        "interval": "100ms",
        "schema": {"properties": {"id": {"type": "integer"}}},
    }
    api.eventually(f"/lake/{q(vhost)}", lambda them: [each["rows"] for each in them] == [1])
    ui.refresh()
    expect(ui.row("shop")).to_contain_text("running")
    expect(ui.row("shop").get_by_role("link", name="orders")).to_be_visible()
    expect(ui.row("shop")).to_contain_text("1 refused")
    ui.page.set_viewport_size({"width": 1280, "height": 800})
    tables = ui.main.get_by_role("region", name="Tables")
    assert tables.evaluate("each => each.scrollWidth - each.clientWidth") == 0, "one has to scroll to the buttons"
    ui.press("Edit…", ui.row("shop"))
    expect(ui.dialog.locator("[name=source]")).to_have_value("orders")
    ui.fill(ui.dialog, keep="7d")
    ui.confirm("Set table")
    assert api.get(f"/parameters/lake/{q(vhost)}/shop")["value"] == {**value, "keep": "7d"}
    ui.press("Restart…", ui.row("shop"))
    ui.confirm("Restart")
    ui.noticed("The table shop is restarted.")
    ui.press("Delete…", ui.row("shop"))
    ui.confirm("Delete")
    expect(ui.row("shop")).to_have_count(0)
    assert api.get(f"/parameters/lake/{q(vhost)}") == []


def _file(definitions: object) -> FilePayload:
    return {"name": "changed.json", "mimeType": "application/json", "buffer": json.dumps(definitions).encode()}


def test_definitions_are_exported_tried_and_imported(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    channel.queue_declare("kept", durable=True)
    channel.queue_declare("mine", durable=True)
    ui.visit("definitions", vhost=vhost)
    ui.heading("Definitions")
    export, into = ui.card("Export"), ui.card("Import")
    export.get_by_label("Of").select_option(vhost)
    with ui.page.expect_download() as download:
        export.get_by_role("link", name="Download").click()
    definitions = json.loads(Path(download.value.path()).read_text())
    assert sorted(each["name"] for each in definitions["queues"]) == ["kept", "mine"]
    assert download.value.suggested_filename.startswith("definitions-v_")

    into.get_by_label("Into").select_option(vhost)
    into.get_by_label("File").set_input_files(_file(definitions))
    expect(into).to_contain_text("Everything in the file is here already.")
    kept, mine = sorted(definitions["queues"], key=lambda each: str(each["name"]))
    kept["arguments"] = {"x-max-length": 9}
    definitions["queues"] = [kept, mine, mine | {"name": "fresh"}]
    into.get_by_label("File").set_input_files(_file(definitions))
    expect(into).to_contain_text("1 conflict")
    expect(into).to_contain_text("Conflicts exist already and differ.")
    expect(ui.row("kept")).to_contain_text("conflict")
    expect(ui.row("fresh")).to_contain_text("create")
    assert api.ask("GET", f"/queues/{q(vhost)}/fresh").status == 404, "looking changes nothing"
    ui.press("Import…", into)
    ui.confirm("Import")
    ui.noticed("changed.json is imported.")
    assert api.ask("GET", f"/queues/{q(vhost)}/fresh").status == 200
    assert api.get(f"/queues/{q(vhost)}/kept")["arguments"] == {}


def test_a_file_that_is_no_definitions_is_refused_before_anything_is_imported(ui: Ui) -> None:
    ui.visit("definitions")
    into = ui.card("Import")
    into.get_by_label("File").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"no json"})
    expect(into.get_by_role("alert")).to_contain_text("a.txt is not JSON")
    expect(into.get_by_role("button", name="Import…")).to_have_count(0)
    into.get_by_label("File").set_input_files(_file({"queues": 3}))
    expect(into.get_by_role("alert")).not_to_be_empty()
    expect(into.get_by_role("button", name="Import…")).to_have_count(0)


@pytest.mark.long
def test_an_import_sends_what_the_file_has_with_numbers_beyond_those_of_browsers(ui: Ui, api: Api, vhost: str) -> None:
    policy = {"name": "large", "pattern": "^x", "definition": {"max-length": 2**53 + 1}, "apply-to": "queues"}
    ui.visit("definitions")
    into = ui.card("Import")
    into.get_by_label("Into").select_option(vhost)
    into.get_by_label("File").set_input_files(_file({"policies": [policy]}))
    ui.press("Import…", into)
    ui.confirm("Import")
    assert api.get(f"/policies/{q(vhost)}/large")["definition"] == {"max-length": 2**53 + 1}


@pytest.mark.long
def test_a_form_refuses_a_number_that_a_browser_would_change(ui: Ui, api: Api, vhost: str) -> None:
    definition = {"max-length": 2**53 + 1}
    api.put(f"/policies/{q(vhost)}/large", {"pattern": "^x", "definition": definition, "apply-to": "queues"})
    ui.visit("policies", vhost=vhost)
    ui.press("Edit…", ui.row("large"))
    ui.press("Set policy", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text("max-length: browsers cannot send")
    ui.press("Cancel", ui.dialog)
    assert api.get(f"/policies/{q(vhost)}/large")["definition"] == definition
