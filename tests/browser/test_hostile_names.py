"""Names that try to be markup, addresses or scripts: shown as text, and good for links and actions."""

from __future__ import annotations

import pika
import pytest
from integration.management.client import EVERYTHING, Api, q
from playwright.sync_api import expect

from .conftest import Connect
from .ui import Ui

# Texts that must stand at the beginning do; the others are together, because each name costs seconds of a page.
NAMES = [
    "<img src=x onerror=alert(1)>\"><script>alert(1)</script>'${alert(1)} {{x}} `y`",
    "javascript:alert(1)//a/b//c?d=e&f#g;h 100%25%zz%",
    "../../etc",
    "‮אבג مرحبا‏🐇🥕 ﷽",
    "b" * 255,
]


# Of queues in `make test`: markup, and an address. Everything else has all names there.
OFTEN = 2


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if at >= OFTEN else [], id=str(at)) for at, name in enumerate(NAMES)],
)
def test_a_queue_of_this_name_is_added_found_looked_at_bound_filled_and_deleted(
    ui: Ui, api: Api, vhost: str, name: str
) -> None:
    ui.visit("queues", vhost=vhost)
    ui.press("Add queue")
    ui.fill(ui.dialog, name=name)
    ui.confirm("Add queue")
    expect(ui.main.locator("tbody th")).to_have_text([name])
    ui.main.locator("tbody th a").click()
    expect(ui.page.locator("h1")).to_have_text(name)
    ui.tab("Bindings")
    ui.fill(other="amq.direct", key=name)
    ui.press("Bind")
    expect(ui.main.locator("tbody td").first).to_have_text(name)
    ui.tab("Publish")
    ui.fill(payload=name)
    ui.argument(1, name, "string", name)
    ui.press("Publish")
    expect(ui.main.get_by_role("status")).to_have_text("Published and routed.")
    ui.tab("Messages")
    ui.main.locator(".message summary").click()
    expect(ui.main.get_by_label("Body", exact=True)).to_have_text(name)
    ui.visit("routing", vhost=vhost)
    expect(ui.main.locator(".graph a.node.queue title")).to_have_text(f"queue {name}")
    ui.main.locator(".graph a.node.queue").click()
    expect(ui.page.locator("h1")).to_have_text(name)
    assert ui.overflow() <= 0
    ui.tab("Bindings")
    ui.press(f"Remove the binding amq.direct to {name}")
    ui.confirm("Remove binding")
    ui.press("Delete…")
    expect(ui.dialog).to_contain_text(name)
    ui.confirm("Delete queue")
    ui.heading("Queues and streams")
    assert api.get(f"/queues/{q(vhost)}") == []


PLACES = ("vhosts", "users", "policies", "parameters", "federation", "queues", "exchanges", "connections", "channels")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_everything_else_of_this_name_is_shown_as_text_and_can_be_followed_and_deleted(
    ui: Ui, api: Api, amqp: Connect, name: str
) -> None:
    api.put(f"/vhosts/{q(name)}", {"description": name, "tags": name.replace(",", "")})
    api.put(f"/users/{q(name)}", {"password": "x", "tags": ""})
    api.put(f"/permissions/{q(name)}/{q(name)}", EVERYTHING)
    api.put(f"/policies/{q(name)}/{q(name)}", {"pattern": "x", "definition": {"max-length": 1}})
    api.put(f"/parameters/federation-upstream/{q(name)}/{q(name)}", {"value": {"uri": "amqp://127.0.0.1:1"}})
    properties = {"connection_name": name}
    connection = amqp(user=name, password="x", vhost=name, client_properties=properties)
    channel = connection.channel()
    channel.exchange_declare(name, "topic")
    channel.queue_declare(name, arguments={"mine": name})
    channel.basic_consume(name, lambda *_: None, consumer_tag=name)
    channel.basic_publish("", name, name.encode(), pika.BasicProperties(type=name, headers={name: name}))
    api.eventually(f"/vhosts/{q(name)}/connections", len)
    reader = name if name.isprintable() else "reader"  # one that turns the writing round is refused
    api.post(f"/warren/drains/{q(name)}/{q(name)}/{q(reader)}/open", {"owner": name})
    for place in (
        "vhosts",
        "users",
        "policies",
        "parameters",
        "federation",
        "queues",
        "exchanges",
        "bulk",
        "connections",
        "channels",
    ):
        ui.visit(place)
        expect(ui.main.get_by_text(name, exact=True).first).to_be_visible()
        assert ui.overflow() <= 0, place
    ui.visit("search", q=name[:40])
    expect(ui.main.locator("tbody a").filter(has_text=name[:40]).first).to_be_visible()
    ui.visit("vhosts", name)
    expect(ui.page.locator("h1")).to_have_text(name)
    expect(ui.card("Permissions").locator("tbody tr")).to_have_count(2)  # its own and that of its creator
    ui.press("Delete…")
    ui.confirm("Delete vhost")
    ui.heading("Virtual hosts")
    ui.visit("users", name)
    expect(ui.page.locator("h1")).to_have_text(name)
    ui.press("Delete…")
    ui.confirm("Delete user")
    ui.heading("Users")
    left = [each["name"] for each in [*api.get("/vhosts"), *api.get("/users")]]
    assert name not in left
    assert ui.page.evaluate("document.images.length") == 1  # the broker's own


@pytest.mark.long
def test_what_is_called_by_a_step_between_folders_is_refused_and_nothing_else_is_asked_for(
    ui: Ui, api: Api, vhost: str
) -> None:
    for name in (".", "contents"):
        api.put(f"/queues/{q(vhost)}/{name}", {"durable": True})
    ui.visit("queues", vhost=vhost)
    expect(ui.main.locator("tbody th")).to_have_text([".", "contents"])
    ui.page.get_by_label("Select .", exact=True).check()
    ui.press("Purge…")
    ui.press("Purge", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text("browsers cannot ask for what is called “.”")
    ui.press("Cancel", ui.dialog)
    ui.main.locator("tbody th a").first.click()
    expect(ui.main.get_by_role("alert")).to_contain_text("browsers cannot ask for what is called “.”")
    assert [each["name"] for each in api.get(f"/queues/{q(vhost)}")] == [".", "contents"]
    assert ui.refused == []


@pytest.mark.long
def test_a_key_of_arguments_that_every_object_inherits_is_shown_as_any_other(own_ui: Ui, api: Api, vhost: str) -> None:
    own_ui.visit("queues", vhost=vhost)
    api.put(f"/queues/{q(vhost)}/inherits", {"arguments": {"__proto__": 1, "constructor": 2, "x-max-length": 3}})
    own_ui.refresh()
    expect(own_ui.row("inherits").locator(".mark")).to_have_text(["D", "Lim", "Args"])
    assert own_ui.page.evaluate("Object.keys(Object.prototype)") == []


def test_a_client_that_gives_no_text_as_its_name_is_called_by_its_address(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    amqp(client_properties={"connection_name": True, "product": {"of": "tables"}})
    [connection] = api.eventually(f"/vhosts/{q(vhost)}/connections", len)
    ui.visit("connections", vhost=vhost)
    ui.main.locator("tbody th a").click()
    expect(ui.page.locator("h1")).to_have_text(connection["name"])


def test_a_message_with_a_timestamp_beyond_all_calendars_leaves_the_page_of_its_queue_as_it_is(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    channel = amqp().channel()
    channel.queue_declare("late", durable=True)
    channel.basic_publish("", "late", b"x", pika.BasicProperties(timestamp=2**53))
    api.eventually(f"/queues/{q(vhost)}/late", lambda queue: queue.get("head_message_timestamp") == 2**53)
    ui.visit("queues", vhost, "late")
    expect(ui.card("Contents")).to_contain_text("Oldest ready message\u2013")
    expect(ui.main.get_by_role("button", name="Delete…")).to_be_visible()


@pytest.mark.long
def test_what_is_long_and_has_no_place_to_break_fits_a_narrow_window(
    ui: Ui, api: Api, amqp: Connect, vhost: str
) -> None:
    long = "W" * 200
    api.put(f"/vhosts/{long}")
    api.put(f"/users/{long}", {"password": "x", "tags": long})
    channel = amqp().channel()
    channel.queue_declare("keys", durable=True)
    channel.basic_publish("", "keys", b"x", pika.BasicProperties(headers={long: long}))
    ui.page.set_viewport_size({"width": 360, "height": 740})
    ui.visit("queues", vhost=long)
    ui.heading("Queues and streams")
    assert ui.overflow() <= 0
    ui.visit("users", long)
    expect(ui.main.locator(".mark")).to_have_text([long])
    assert ui.overflow() <= 0
    ui.visit("queues", vhost, "keys", tab="messages")
    ui.main.locator(".message summary").click()
    expect(ui.main.locator(".message dt").filter(has_text=long)).to_be_visible()
    assert ui.overflow() <= 0
    api.delete(f"/users/{long}")
    api.delete(f"/vhosts/{long}")


def test_names_that_differ_in_their_spaces_look_different(ui: Ui, api: Api, vhost: str) -> None:
    for name in (" ", "a  b", "a b"):
        api.put(f"/queues/{q(vhost)}/{q(name)}", {})
    ui.visit("queues", vhost=vhost)
    names = ui.main.locator("tbody th a")
    expect(names).to_have_count(3)
    assert names.all_inner_texts() == [" ", "a  b", "a b"]
