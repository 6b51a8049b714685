"""What a user may see and do, by its tags."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from .conftest import Connect, Open

EVERYBODY = [
    "Overview",
    "Connections",
    "Channels",
    "Consumers",
    "MQTT sessions",
    "Queues and streams",
    "Exchanges",
    "Super streams",
    "Retained messages",
    "Bulk data",
    "Routing",
]
POLICIES = ["Policies", "Parameters", "Shovels", "Federation", "Lake"]
NODE = ["Cluster", "Store", "Node"]
# The pages that only some may see, by their places.
TITLES = {
    "users": "Users",
    "vhosts": "Virtual hosts",
    "policies": "Policies",
    "limits": "Limits",
    "parameters": "Parameters",
    "shovels": "Shovels",
    "federation": "Federation",
    "lake": "Lake",
    "definitions": "Definitions",
    "logs": "Logs",
    "cluster": "Cluster",
    "store": "Store",
}
ADMIN = [title for title in TITLES.values() if title not in ("Cluster", "Store")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("tags", "menu"),
    [
        ("management", EVERYBODY),
        ("policymaker", EVERYBODY + POLICIES),
        ("monitoring", EVERYBODY + NODE),
        ("administrator", EVERYBODY + ADMIN + NODE),
    ],
)
def test_a_user_sees_the_pages_of_its_tags_and_the_broker_refuses_none_of_them(
    open_ui: Open, amqp: Connect, add_user: Callable[[str, str], None], vhost: str, tags: str, menu: list[str]
) -> None:
    channel = amqp().channel()
    channel.queue_declare("q")
    add_user(f"a {tags}", tags)
    ui = open_ui()
    ui.log_in(f"a {tags}", "secret")
    ui.heading("Overview")
    links = ui.page.get_by_role("navigation", name="Pages", exact=True).locator(".menu-group a")
    expect(links).to_have_text([*menu, "HTTP API"])
    ui.refused.clear()
    for place in ("connections", "channels", "consumers", "mqtt-sessions", "queues", "exchanges", "retained", "bulk"):
        ui.visit(place)
        expect(ui.main.locator(".list .loading")).to_have_count(0)
        expect(ui.main.locator(".trouble")).to_have_count(0)
    for tab in ("overview", "messages", "consumers", "bindings", "publish", "get", "move"):
        ui.visit("queues", vhost, "q", tab=tab)
        ui.heading("q")
        expect(ui.main.locator(".trouble")).to_have_count(0)
    for place, title in TITLES.items():
        ui.visit(place)
        ui.heading(title if title in menu else "Not here")
        expect(ui.main.locator(".trouble")).to_have_count(0)
    ui.visit("queues")
    ui.heading("Queues and streams")
    expect(ui.page.locator(".banner.warning")).to_have_count(0)
    assert ui.refused == []


def test_who_may_not_use_a_vhost_sees_nothing_of_it(
    open_ui: Open, amqp: Connect, add_user: Callable[[str, str], None], vhost: str
) -> None:
    amqp(vhost="/").channel().queue_declare("not for everybody")
    add_user("small", "management")
    ui = open_ui("#/queues")
    ui.log_in("small", "secret")
    ui.heading("Queues and streams")
    expect(ui.main).to_contain_text("There is no queue.")
    expect(ui.page.get_by_label("Vhost").locator("option")).to_have_text(["all", vhost])
    ui.visit("queues", "/", "not for everybody")
    expect(ui.main.get_by_role("alert")).to_have_text("Your user may not see this.")
    expect(ui.page.locator(".shell")).to_be_visible()
    amqp(vhost="/").channel().queue_delete("not for everybody")
