"""Users, vhosts, permissions, limits, policies, parameters, the name of the cluster."""

from __future__ import annotations

import pytest
from integration.management.client import Api, q
from playwright.sync_api import Route, expect

from .conftest import Connect
from .ui import Ui


@pytest.mark.long
def test_a_user_is_added_changed_and_deleted(ui: Ui, api: Api, vhost: str) -> None:
    name = f"amy {vhost}"
    ui.visit("users")
    ui.heading("Users")
    ui.press("Add user")
    ui.fill(ui.dialog, name=name, password="one", again="two", others="team-a, team-b")
    ui.dialog.get_by_label("monitoring", exact=True).check()
    ui.press("Add user", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_have_text("The two passwords differ.")
    ui.fill(ui.dialog, again="one")
    ui.confirm("Add user")
    ui.noticed("needs permissions for a vhost")
    expect(ui.row(name)).to_contain_text("no vhost")
    assert api.get(f"/users/{q(name)}")["tags"] == ["monitoring", "team-a", "team-b"]
    assert api.as_user(name, "one").ask("GET", "/whoami").status == 200

    ui.main.get_by_role("link", name=name).click()
    ui.heading(name)
    ui.press("Change password or tags…")
    api.put(f"/users/{q(name)}", {"password": "three", "tags": "monitoring"})  # while the dialog is open
    ui.dialog.get_by_label("monitoring", exact=True).uncheck()
    ui.dialog.get_by_label("policymaker", exact=True).check()
    ui.confirm("Change")
    expect(ui.card("User")).to_contain_text("policymaker")
    assert api.as_user(name, "three").ask("GET", "/whoami").status == 200, "the password stays as it is"
    ui.press("Change password or tags…")
    ui.dialog.get_by_label("Password", exact=True).select_option("none")
    ui.confirm("Change")
    expect(ui.card("User").locator(".facts")).to_contain_text("Passwordno")
    assert api.as_user(name, "three").ask("GET", "/whoami").status == 401

    ui.press("Delete…")
    ui.confirm("Delete user")
    ui.heading("Users")
    expect(ui.row(name)).to_have_count(0)


def test_a_user_is_added_with_permissions_for_a_vhost_in_one_form(ui: Ui, api: Api, vhost: str) -> None:
    name = "dora"
    ui.visit("users")
    ui.heading("Users")
    ui.press("Add user")
    ui.fill(ui.dialog, name=name, password="x", again="x")
    expect(ui.dialog.get_by_label("Configure")).to_have_count(0)
    ui.dialog.get_by_label("Vhost").select_option(vhost)
    ui.fill(ui.dialog, configure="")
    ui.confirm("Add user")
    ui.noticed(f"It may use {vhost}.")
    expect(ui.row(name)).to_contain_text(vhost)
    expect(ui.row(name)).not_to_contain_text("no vhost")
    given = api.get(f"/permissions/{q(vhost)}/{q(name)}")
    assert [given[each] for each in ("configure", "write", "read")] == ["", ".*", ".*"]
    api.delete(f"/users/{q(name)}")


@pytest.mark.long
def test_permissions_and_topic_permissions_are_set_edited_and_cleared_for_a_user(ui: Ui, api: Api, vhost: str) -> None:
    name = f"bob {vhost}"
    api.put(f"/users/{q(name)}", {"password": "x", "tags": ""})
    ui.visit("users", name)
    ui.heading(name)
    ui.press("Set…", ui.card("Permissions"))
    ui.dialog.get_by_label("Vhost").select_option(vhost)
    ui.fill(ui.dialog, configure="", write="^a", read="^b")
    ui.confirm("Set permissions")
    row = ui.card("Permissions").locator("tbody tr")
    expect(row).to_contain_text(f"{vhost}(nothing)^a^b")
    ui.press("Edit…", row)
    expect(ui.dialog.locator("[name=write]")).to_have_value("^a")
    ui.fill(ui.dialog, configure="^c")
    ui.confirm("Set permissions")
    expect(row).to_contain_text(f"{vhost}^c^a^b")
    ui.press("Set…", ui.card("Topic permissions"))
    ui.dialog.get_by_label("Vhost").select_option(vhost)
    ui.fill(ui.dialog, exchange="amq.topic", write="^{username}", read="")
    ui.confirm("Set topic permissions")
    topic = ui.card("Topic permissions").locator("tbody tr")
    expect(topic).to_contain_text("amq.topic^{username}(nothing)")
    path = f"/{q(vhost)}/{q(name)}"
    assert api.get(f"/permissions{path}")["configure"] == "^c"
    assert [each["write"] for each in api.get(f"/topic-permissions{path}")] == ["^{username}"]
    ui.press("Clear…", topic)
    ui.confirm("Clear")
    expect(topic).to_have_count(0)
    ui.press("Clear…", row)
    ui.confirm("Clear")
    expect(row).to_have_count(0)
    assert api.ask("GET", f"/permissions{path}").status == 404
    api.delete(f"/users/{q(name)}")


@pytest.mark.long
def test_permissions_are_set_from_the_page_of_the_vhost_as_well(ui: Ui, api: Api, vhost: str) -> None:
    ui.visit("vhosts", vhost)
    ui.heading(vhost)
    ui.press("Clear…", ui.card("Permissions").locator("tbody tr"))
    ui.confirm("Clear")
    expect(ui.card("Permissions")).to_contain_text("No permissions. A vhost cannot be used without them.")
    ui.press("Set…", ui.card("Permissions"))
    ui.fill(ui.dialog, user="guest")
    ui.confirm("Set permissions")
    expect(ui.card("Permissions").locator("tbody tr")).to_contain_text("guest.*.*.*")
    assert api.get(f"/permissions/{q(vhost)}/guest")["read"] == ".*"


@pytest.mark.long
def test_a_vhost_is_added_changed_traced_and_deleted(ui: Ui, api: Api, vhost: str) -> None:
    name = f"{vhost} new"
    ui.visit("vhosts")
    ui.heading("Virtual hosts")
    ui.press("Add vhost")
    ui.fill(ui.dialog, name=name, description="for tests", tags="a,b")
    ui.dialog.get_by_label("Default queue type").select_option("quorum")
    ui.confirm("Add vhost")
    expect(ui.row(name)).to_contain_text("for tests")
    users = ui.main.locator("tbody tr", has=ui.page.get_by_role("link", name=vhost, exact=True))
    expect(users.locator("td[data-label=Users]")).to_have_text("guest")
    ui.main.get_by_role("link", name=name).click()
    ui.heading(name)
    captions = ["Queued messages", "Message rates", "Bytes on the wire"]
    expect(ui.main.locator(".chart figcaption")).to_have_text(captions)
    ui.press("Change…")
    ui.dialog.get_by_label("Tracing").check()
    ui.fill(ui.dialog, description="traced")
    ui.confirm("Change")
    expect(ui.main.locator("header .mark", has_text="tracing")).to_be_visible()
    found = api.get(f"/vhosts/{q(name)}")
    assert (found["tracing"], found["description"], found["tags"]) == (True, "traced", ["a", "b"])
    assert found["default_queue_type"] == "quorum"
    ui.press("Change…")
    ui.dialog.get_by_label("Tracing").uncheck()
    ui.dialog.get_by_label("Default queue type").select_option("")
    ui.confirm("Change")
    expect(ui.main.locator("header .mark", has_text="tracing")).to_have_count(0)
    found = api.get(f"/vhosts/{q(name)}")
    assert (found["tracing"], found["default_queue_type"]) == (False, "undefined")
    ui.press("Delete…")
    ui.confirm("Delete vhost")
    ui.heading("Virtual hosts")
    expect(ui.row(name)).to_have_count(0)


def test_a_name_that_the_broker_refuses_keeps_the_form_and_says_why(ui: Ui, api: Api) -> None:
    ui.visit("queues", vhost=ui.vhost)
    ui.press("Add queue")
    ui.fill(ui.dialog, name="amq.mine")
    ui.press("Add queue", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text("amq.mine")
    expect(ui.dialog.locator("[name=name]")).to_have_value("amq.mine")
    ui.press("Cancel", ui.dialog)
    expect(ui.dialog).to_have_count(0)


@pytest.mark.long
def test_a_form_is_not_sent_without_a_vhost_when_the_names_come_late(ui: Ui, api: Api) -> None:
    # With a vhost chosen for all pages a form has it at once; without one the browser asks for it.
    held: list[Route] = []
    ui.page.route("**/api/vhosts?columns=name", lambda route: held.append(route))
    ui.visit("queues", vhost=ui.vhost)
    ui.press("Add queue")
    expect(ui.dialog.get_by_label("Vhost")).to_have_value(ui.vhost)
    ui.fill(ui.dialog, name="early")
    ui.confirm("Add queue")
    assert api.get(f"/queues/{q(ui.vhost)}/early")["name"] == "early"
    ui.visit("queues")
    ui.press("Add queue")
    ui.fill(ui.dialog, name="homeless")
    ui.press("Add queue", ui.dialog)
    expect(ui.dialog.get_by_label("Vhost")).to_be_focused()
    for route in held:
        route.continue_()
    ui.page.unroute("**/api/vhosts?columns=name")
    ui.dialog.get_by_label("Vhost").select_option(ui.vhost)
    ui.confirm("Add queue")
    assert ui.refused == []
    assert api.get(f"/queues/{q(ui.vhost)}/homeless")["name"] == "homeless"


@pytest.mark.long
def test_limits_of_vhosts_and_users_are_set_and_cleared(ui: Ui, api: Api, vhost: str) -> None:
    ui.visit("limits")
    ui.heading("Limits")
    vhosts, users = ui.card("Limits of vhosts"), ui.card("Limits of users")
    ui.press("Set…", vhosts)
    ui.dialog.get_by_label("Vhost").select_option(vhost)
    ui.dialog.get_by_label("Limit", exact=True).select_option("max-queues")
    ui.fill(ui.dialog, value="7")
    ui.confirm("Set limit")
    mine = vhosts.locator("tbody tr", has_text=vhost)
    expect(mine).to_contain_text("max-queues7")
    assert api.get(f"/vhost-limits/{q(vhost)}")[0]["value"] == {"max-queues": 7}
    ui.press("Set…", users)
    ui.fill(ui.dialog, whose="guest", value="100")
    ui.dialog.get_by_label("Limit", exact=True).select_option("max-channels")
    ui.confirm("Set limit")
    expect(users.locator("tbody tr")).to_contain_text("guestmax-channels100")
    ui.press("Clear…", users.locator("tbody tr"))
    ui.confirm("Clear limit")
    expect(users).to_contain_text("No limits.")
    assert api.get("/user-limits/guest") == []
    ui.press("Clear…", mine)
    ui.confirm("Clear limit")
    expect(mine).to_have_count(0)


@pytest.mark.long
def test_a_policy_is_added_matches_is_edited_and_deleted(ui: Ui, api: Api, amqp: Connect, vhost: str) -> None:
    channel = amqp().channel()
    for name in ("orders.eu", "orders.us", "events"):
        channel.queue_declare(name)
    ui.visit("policies", vhost=vhost)
    ui.heading("Policies")
    ui.press("Add policy")
    ui.fill(ui.dialog, name="limit", pattern="^orders\\.", priority="3")
    ui.argument(1, "max-length", "number", "many", ui.dialog)
    ui.press("Set policy", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_have_text('max-length: "many" is not a number')
    expect(ui.dialog.get_by_role("alert")).to_be_in_viewport(ratio=1)
    expect(ui.dialog.get_by_role("button", name="Set policy")).to_be_in_viewport(ratio=1)
    ui.argument(1, "max-length", "number", "10", ui.dialog)
    ui.dialog.locator(".hints").get_by_role("button", name="overflow", exact=True).click()
    ui.argument(2, "overflow", "string", "reject-publish", ui.dialog)
    ui.confirm("Set policy")
    expect(ui.row("limit")).to_contain_text("reject-publish")
    (policy,) = api.get(f"/policies/{q(vhost)}")
    assert policy["definition"] == {"max-length": 10, "overflow": "reject-publish"}
    assert (policy["pattern"], policy["priority"], policy["apply-to"]) == ("^orders\\.", 3, "all")
    ui.press("Matches", ui.row("limit"))
    expect(ui.dialog.locator("tbody th")).to_have_text(["orders.eu", "orders.us"])
    ui.press("Close", ui.dialog)
    ui.press("Edit…", ui.row("limit"))
    ui.argument(1, "max-length", "number", "20", ui.dialog)
    ui.confirm("Set policy")
    expect(ui.row("limit")).to_contain_text("20")
    ui.visit("queues", vhost, "orders.eu")
    ui.heading("orders.eu")
    ui.main.get_by_role("link", name="limit").click()
    ui.heading("Policies")
    ui.press("Delete…", ui.row("limit"))
    ui.confirm("Delete policy")
    expect(ui.row("limit")).to_have_count(0)
    assert api.get(f"/policies/{q(vhost)}") == []


@pytest.mark.long
def test_an_operator_policy_is_added_and_deleted(ui: Ui, api: Api, vhost: str) -> None:
    ui.visit("policies", vhost=vhost)
    ui.press("Add operator policy")
    ui.fill(ui.dialog, name="ceiling", pattern=".*")
    ui.argument(1, "max-length", "number", "1_000", ui.dialog)
    ui.confirm("Set policy")
    expect(ui.row("ceiling")).to_contain_text("1000")
    (policy,) = api.get(f"/operator-policies/{q(vhost)}")
    assert (policy["definition"], policy["apply-to"]) == ({"max-length": 1000}, "queues")
    ui.press("Delete…", ui.row("ceiling"))
    ui.confirm("Delete policy")
    expect(ui.row("ceiling")).to_have_count(0)


@pytest.mark.long
def test_parameters_are_added_changed_and_deleted(ui: Ui, api: Api, vhost: str) -> None:
    ui.visit("parameters", vhost=vhost)
    ui.heading("Parameters")
    ui.press("Add global parameter")
    ui.fill(ui.dialog, name="motd", value="{no json")
    ui.press("Set parameter", ui.dialog)
    expect(ui.dialog.get_by_role("alert")).to_contain_text("The value is not JSON")
    ui.fill(ui.dialog, value='{"text": "hello"}')
    ui.confirm("Set parameter")
    expect(ui.row("motd")).to_contain_text('{"text":"hello"}')
    ui.press("Edit…", ui.row("motd"))
    ui.fill(ui.dialog, value="[1, 2]")
    ui.confirm("Set parameter")
    expect(ui.row("motd")).to_contain_text("[1,2]")
    assert api.get("/global-parameters/motd")["value"] == [1, 2]
    ui.press("Delete…", ui.row("motd"))
    ui.confirm("Delete parameter")
    expect(ui.row("motd")).to_have_count(0)

    ui.press("Add parameter")
    ui.fill(ui.dialog, component="federation-upstream", name="there", value='{"uri": "amqp://me:secret@127.0.0.1:1"}')
    ui.confirm("Set parameter")
    expect(ui.row("there")).to_contain_text("federation-upstream")
    expect(ui.row("there")).to_contain_text('{"uri":"amqp://me@127.0.0.1:1"}')
    ui.press("Delete…", ui.row("there"))
    ui.confirm("Delete parameter")
    expect(ui.row("there")).to_have_count(0)
    assert api.get(f"/parameters/federation-upstream/{q(vhost)}") == []


@pytest.mark.long
def test_the_name_of_the_cluster_is_changed(ui: Ui, api: Api) -> None:
    before = api.get("/cluster-name")["name"]
    ui.visit("cluster")
    ui.heading("Cluster")
    ui.fill(name="warren@tests")
    ui.press("Change the name")
    ui.noticed("The cluster is called warren@tests.")
    expect(ui.main.locator("[name=name]")).to_have_value("warren@tests")
    assert api.get("/cluster-name")["name"] == "warren@tests"
    ui.refresh()
    expect(ui.page.locator(".brand")).to_contain_text("warren@tests")
    api.put("/cluster-name", {"name": before})
