"""Logging in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from integration.management.client import Api, q
from playwright.sync_api import expect

from .conftest import Open
from .ui import Ui


def test_a_wrong_password_is_refused_and_the_right_one_shows_the_place_that_was_asked_for(
    open_ui: Open, vhost: str
) -> None:
    ui = open_ui(Ui.address("queues", vhost=vhost, name="x"))
    expect(ui.page.get_by_label("Username")).to_be_focused()
    ui.log_in("guest", "wrong")
    expect(ui.page.get_by_role("alert")).to_contain_text("No user has this name and password")
    assert [refusal.split()[0] for refusal in ui.refused] == ["401", "401"]  # no session yet, then the password
    ui.log_in("guest", "guest")
    ui.heading("Queues and streams")
    ui.wait_for_place("queues", vhost=vhost, name="x")
    expect(ui.page).to_have_title("Queues and streams \u2013 Warren")


@pytest.mark.long
def test_logging_out_ends_the_session_at_the_broker(open_ui: Open) -> None:
    ui = open_ui()
    ui.log_in("guest", "guest")
    ui.heading("Overview")
    cookies = ui.page.context.cookies()
    assert [(each.get("httpOnly"), each.get("sameSite")) for each in cookies] == [(True, "Strict")]
    ui.page.locator("summary", has_text="guest").click()
    ui.press("Log out", ui.page.locator(".topbar"))
    expect(ui.page.get_by_text("You are logged out.")).to_be_visible()
    ui.page.context.add_cookies([{"name": c["name"], "value": c["value"], "url": ui.page.url} for c in cookies])
    ui.page.reload()
    expect(ui.page.get_by_label("Username")).to_be_visible()


@pytest.mark.long
def test_when_a_session_ends_logging_in_leads_back_to_the_same_place(open_ui: Open, logged_in: Any, vhost: str) -> None:
    ui = open_ui(Ui.address("queues", vhost=vhost, sort="messages", desc="1"), storage_state=logged_in)
    ui.heading("Queues and streams")
    ui.press("Add queue")
    expect(ui.dialog).to_be_visible()
    ui.page.context.clear_cookies()
    ui.fill(ui.dialog, name="q")
    ui.press("Add queue", ui.dialog)
    expect(ui.page.get_by_text("The session has ended.")).to_be_visible()
    expect(ui.dialog).to_have_count(0)
    ui.log_in("guest", "guest")
    ui.heading("Queues and streams")
    ui.wait_for_place("queues", vhost=vhost, sort="messages", desc="1")


@pytest.mark.parametrize("user", ["guest", "another"])
def test_what_one_user_asks_for_is_not_done_as_another_who_has_logged_in_since(
    open_ui: Open, logged_in: Any, add_user: Callable[[str, str], None], api: Api, vhost: str, user: str
) -> None:
    """In another tab: all tabs have the cookie of the last login."""
    add_user("another", "administrator")
    ui = open_ui(Ui.address("queues", vhost=vhost), storage_state=logged_in)
    ui.heading("Queues and streams")
    ui.press("Add queue")
    ui.fill(ui.dialog, name="mine")
    password = "guest" if user == "guest" else "secret"
    assert ui.page.context.request.post("/api/warren/session", data={"username": user, "password": password}).ok
    ui.press("Add queue", ui.dialog)
    if user == "guest":
        expect(ui.row("mine")).to_have_count(1)
        return
    expect(ui.dialog).to_contain_text("another user has logged in")
    expect(ui.page.locator(".topbar")).to_contain_text("another")
    assert api.get(f"/queues/{q(vhost)}") == []


@pytest.mark.parametrize("tags", ["", "impersonator"])
def test_a_user_whose_tags_allow_no_management_is_refused(
    open_ui: Open, add_user: Callable[[str, str], None], tags: str
) -> None:
    add_user("nobody", tags)
    ui = open_ui()
    ui.log_in("nobody", "secret")
    expect(ui.page.get_by_role("alert")).to_contain_text("may not manage the broker")


@pytest.mark.long
def test_nobody_is_told_to_be_logged_out_while_the_session_goes_on(open_ui: Open) -> None:
    ui = open_ui()
    ui.log_in("guest", "guest")
    ui.heading("Overview")
    ui.page.context.set_offline(True)
    ui.page.locator("summary", has_text="guest").click()
    ui.press("Log out", ui.page.locator(".topbar"))
    ui.noticed("You are still logged in: the broker does not answer.")
    ui.page.context.set_offline(False)
    ui.press("Log out", ui.page.locator(".topbar"))
    expect(ui.page.get_by_text("You are logged out.")).to_be_visible()
