"""One Chromium and one broker for all tests of the web UI; a vhost of its own for each test.

1. Without Chromium or Playwright one line says so (`test_tools.py`) and nothing else of this folder is collected.
2. Every page is watched: an error of a script, a breach of the content security policy or a dialog of a script fails
   the test, whatever else it claims.
3. `ui` is one page that starts over for each test; `own_ui` and `open_ui` are for what changes more than the page.
4. Playwright keeps an event loop running in its process, where tests with loops of their own can no longer run:
   `scripts/test` runs this folder on its own.
5. The first login is made through the page by `test_login.py`; all other tests begin with its session.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from broker_process import WarrenProcess
from integration.management.client import EVERYTHING, Api, connect, q
from pika.exceptions import AMQPError

from .tools import CHROMIUM, MISSING

if TYPE_CHECKING:
    import pika
    from playwright.sync_api import Browser

    from .ui import Ui

collect_ignore_glob = [] if MISSING is None else ["test_[!t]*.py", "test_t[!o]*.py"]
_numbers = itertools.count(1)
Connect = Callable[..., "pika.BlockingConnection"]
Open = Callable[..., "Ui"]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    # Shovels and upstreams of the tests lead to the broker itself.
    directory = tmp_path_factory.mktemp("browser")
    settings = {"link_networks": "127.0.0.0/8", "lake_places": directory / "lake"}
    flags = {"mqtt_ws": "127.0.0.1:0", "stomp": "127.0.0.1:0"}
    with WarrenProcess(directory, flags=flags, settings=settings) as process:
        yield process


@pytest.fixture(scope="session")
def api(broker: WarrenProcess) -> Iterator[Api]:
    """The API as guest, an administrator, sees it."""
    guest = Api(broker.http_port)
    yield guest
    guest.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        # As root, in a container, Chromium has no sandbox of its own.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


_sessions: dict[int, Any] = {}


@pytest.fixture
def logged_in(browser: Browser, broker: WarrenProcess) -> Any:
    """A browser's stored session of guest; a restarted broker does not know old sessions."""
    if broker.pid in _sessions:
        return _sessions[broker.pid]
    context = browser.new_context(base_url=f"http://127.0.0.1:{broker.http_port}")
    answer = context.request.post("/api/warren/session", data={"username": "guest", "password": "guest"})
    assert answer.ok, answer.text()
    _sessions[broker.pid] = context.storage_state()
    context.close()
    return _sessions[broker.pid]


@pytest.fixture
def open_ui(browser: Browser, broker: WarrenProcess) -> Iterator[Open]:
    """Open a page in a browser context of its own, at a place; everything about it is watched until the test ends."""
    from .ui import Ui

    opened: list[Ui] = []

    def open_one(at: str = "#/", **options: Any) -> Ui:
        opened.append(Ui.open(browser, f"http://127.0.0.1:{broker.http_port}", at, **options))
        return opened[-1]

    yield open_one
    for ui in opened:
        ui.page.context.close()
    for ui in opened:
        assert ui.trouble == []


_kept: dict[int, Ui] = {}


@pytest.fixture
def ui(browser: Browser, broker: WarrenProcess, logged_in: Any, vhost: str) -> Iterator[Ui]:
    """The UI as guest sees it, at the overview: one page for many tests, as loading one takes longer than most."""
    from .ui import Ui

    if broker.pid not in _kept:
        _kept[broker.pid] = Ui.open(browser, f"http://127.0.0.1:{broker.http_port}", storage_state=logged_in)
    page = _kept[broker.pid]
    page.vhost = vhost
    page.start_over()
    yield page
    trouble, page.trouble = page.trouble, []
    if trouble or page.dialog.count():
        # In any case the next test must not suffer from it.
        _kept.pop(broker.pid).page.context.close()
    assert trouble == []


@pytest.fixture
def own_ui(open_ui: Open, logged_in: Any, vhost: str) -> Ui:
    """The same in a browser context of the test's own, for what outlasts a page."""
    page = open_ui(storage_state=logged_in)
    page.vhost = vhost
    page.heading("Overview")
    return page


@pytest.fixture
def vhost(api: Api) -> Iterator[str]:
    """A vhost that guest may use, with nothing in it."""
    name = f"v/{next(_numbers)}"
    api.put(f"/vhosts/{q(name)}")
    yield name
    if any(each["name"] == name for each in api.get("/vhosts")):
        api.delete(f"/vhosts/{q(name)}")


@pytest.fixture
def amqp(broker: WarrenProcess, vhost: str) -> Iterator[Connect]:
    """Open pika connections into the vhost; they are closed in the end."""
    opened: list[pika.BlockingConnection] = []

    def open_one(user: str = "guest", password: str = "guest", **more: Any) -> pika.BlockingConnection:
        opened.append(connect(broker.amqp_port, more.pop("vhost", vhost), user, password, **more))
        return opened[-1]

    yield open_one
    for connection in opened:
        # The test may have deleted the vhost under it.
        with suppress(AMQPError):
            if connection.is_open:
                connection.close()


@pytest.fixture
def add_user(api: Api, vhost: str) -> Iterator[Callable[[str, str], None]]:
    """Add a user with the password "secret" who may do everything in the vhost; it goes after the test."""
    added: list[str] = []

    def add(name: str, tags: str) -> None:
        api.put(f"/users/{q(name)}", {"password": "secret", "tags": tags})
        api.put(f"/permissions/{q(vhost)}/{q(name)}", EVERYTHING)
        added.append(name)

    yield add
    for name in added:
        api.ask("DELETE", f"/users/{q(name)}")
