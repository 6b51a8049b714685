"""A visitor of the web UI: goes to places, presses what is there, and notices everything that goes wrong."""

from __future__ import annotations

import os
from typing import Any, Self
from urllib.parse import quote, urlencode

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Error, Locator, Page, Response, ViewportSize, expect

WIDE: ViewportSize = {"width": 1280, "height": 800}
# ``LEAST-MOST``: the delay of every answer of the API in milliseconds, as on a slow network.
DELAY_MS = os.environ.get("WARREN_TEST_API_DELAY_MS")
_LATE_ANSWERS = """(() => {
    const [least, most] = '%s'.split('-').map(Number);
    const ask = window.fetch;
    window.fetch = async (...asked) => {
        const answer = await ask(...asked);
        await new Promise((go) => setTimeout(go, least + Math.random() * (most - least)));
        asked[1]?.signal?.throwIfAborted();
        return answer;
    };
})()"""


class Ui:
    """One page. `trouble` collects what must never happen; `refused` the requests that the broker refused."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.vhost = ""
        self.trouble: list[str] = []
        self.refused: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", self._crashed)
        page.on("dialog", self._asked)
        page.on("response", self._answered)

    @classmethod
    def open(cls, browser: Browser, url: str, at: str = "#/", **options: Any) -> Self:
        """Open a page in a browser context of its own."""
        context = browser.new_context(base_url=url, **({"viewport": WIDE} | options))
        context.set_default_timeout(60_000)
        if DELAY_MS is not None:
            context.add_init_script(_LATE_ANSWERS % DELAY_MS)
        page = context.new_page()
        # Before the page is asked for: its first request already counts.
        visitor = cls(page)
        page.goto(f"/{at}")
        return visitor

    def start_over(self) -> None:
        """Be at the overview on a wide screen, with nothing remembered, said or refused."""
        if self.page.viewport_size != WIDE:
            self.page.set_viewport_size(WIDE)
        self.page.evaluate(
            """() => {
                localStorage.clear();
                for (const button of document.querySelectorAll('.notice button')) button.click();
                document.activeElement.blur();
                location.hash = '#/';
            }"""
        )
        self.heading("Overview")
        expect(self.page.locator(".notice")).to_have_count(0)
        self.refused.clear()

    def _heard(self, message: ConsoleMessage) -> None:
        # A request that fails is said here too, without a word about which: `refused` knows.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.trouble.append(message.text)

    def _answered(self, answer: Response) -> None:
        if answer.status >= 400:
            self.refused.append(f"{answer.status} {answer.url}")

    def _crashed(self, error: Error) -> None:
        self.trouble.append(f"{error.message}\n{error.stack}")

    def _asked(self, dialog: Dialog) -> None:
        self.trouble.append(f"a script asked: {dialog.message}")
        dialog.dismiss()

    # --- places -------------------------------------------------------------------------------------------------

    @staticmethod
    def address(*segments: str, **query: str) -> str:
        """Return the hash of a place."""
        return "#/" + "/".join(quote(each, safe="") for each in segments) + (f"?{urlencode(query)}" if query else "")

    def visit(self, *segments: str, **query: str) -> None:
        """Go to a place by its address."""
        self.page.evaluate("hash => { location.hash = hash }", self.address(*segments, **query))

    @property
    def place(self) -> str:
        """The hash of the page."""
        return str(self.page.evaluate("location.hash"))

    def wait_for_place(self, *segments: str, **query: str) -> None:
        """Wait until the address is that of a place."""
        self.page.wait_for_function("hash => location.hash === hash", arg=self.address(*segments, **query))

    def heading(self, text: str) -> None:
        """Expect the page with this heading, with everything on it loaded."""
        expect(self.page.locator("h1")).to_have_text(text)
        expect(self.page.locator("main .loading")).to_have_count(0)

    @property
    def main(self) -> Locator:
        return self.page.locator("main")

    def log_in(self, user: str, password: str) -> None:
        """Fill in the login page and send it."""
        self.page.get_by_label("Username").fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()

    # --- parts of pages -----------------------------------------------------------------------------------------

    @property
    def dialog(self) -> Locator:
        return self.page.locator("dialog[open]")

    def card(self, title: str) -> Locator:
        """The card with this heading."""
        heading = self.page.get_by_role("heading", name=title, exact=True)
        return self.main.locator("section", has=heading).last

    def row(self, text: str) -> Locator:
        """The rows of tables of the page that say `text`."""
        return self.main.locator("tbody tr").filter(has_text=text)

    def tab(self, name: str) -> None:
        """Turn to a tab of the page."""
        self.page.get_by_role("navigation", name="Parts of this page").get_by_role("link", name=name).click()
        expect(self.page.locator(".tabs [aria-current]")).to_contain_text(name)

    def press(self, name: str, within: Locator | None = None) -> None:
        """Press the button with exactly this name, of the page unless a part is given."""
        (within or self.main).get_by_role("button", name=name, exact=True).click()

    def fill(self, within: Locator | None = None, /, **fields: str) -> None:
        """Fill in fields by their names in the form."""
        for name, text in fields.items():
            (within or self.main).locator(f"[name={name}]").fill(text)

    def confirm(self, action: str) -> None:
        """Press the button of the dialog that does it, and see the dialog go."""
        self.press(action, self.dialog)
        expect(self.dialog).to_have_count(0)

    def noticed(self, text: str) -> None:
        """Expect a short message that says `text`."""
        expect(self.page.locator(".notice").filter(has_text=text).first).to_be_visible()

    def refresh(self) -> None:
        """Fetch the contents of the page again."""
        self.page.get_by_role("button", name="Refresh now").click()

    def argument(self, at: int, key: str, kind: str, value: str, within: Locator | None = None) -> None:
        """Fill in a row of an editor of arguments, adding it when it is not there."""
        part = within or self.main
        if part.get_by_label(f"Key {at}", exact=True).count() == 0:
            self.press("Add a row", part)
        part.get_by_label(f"Key {at}", exact=True).fill(key)
        part.get_by_label(f"Type of value {at}", exact=True).select_option(kind)
        if kind == "boolean":
            part.get_by_label(f"Value {at}", exact=True).select_option(value)
        else:
            part.get_by_label(f"Value {at}", exact=True).fill(value)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        root = "document.documentElement"
        return int(self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))
