"""Draw the pictures of docs/management.md: a shop's broker with traffic, seen by Chromium.

make screenshots                        # about a minute and a half, writes docs/images/
make screenshots ARGS="--seconds 20"    # shorter charts
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pika
from broker_process import WarrenProcess
from integration.management.client import Api, connect, q
from pika.adapters.blocking_connection import BlockingChannel
from playwright.sync_api import Browser, expect, sync_playwright

from .tools import CHROMIUM
from .ui import Ui

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
LARGEST_BYTES = 150_000
VHOST = "shop"
COUNTRIES = ("de", "fr", "it", "us")
TICK_S = 0.25


def declare(api: Api, channel: BlockingChannel) -> None:
    """Make the shop's exchanges, queues, bindings and policy."""
    for name, kind in (("orders", "topic"), ("paid", "fanout"), ("tenants", "headers"), ("payments", "direct")):
        channel.exchange_declare(name, kind, durable=True)
    channel.exchange_declare("dead", "fanout", durable=True)
    retried = {"x-dead-letter-exchange": "dead", "x-delivery-limit": 3}
    for name, arguments in (
        ("orders.europe", retried),
        ("orders.us", retried),
        ("orders.all", {}),
        ("mail.receipts", {"x-message-deduplication": True, "x-cache-ttl": 600_000}),
        ("search.index", {"x-single-active-consumer": True}),
        ("audit.acme", {}),
        ("payments.card", {"x-max-priority": 5}),
        ("payments.bank", {}),
        ("dead.letters", {}),
    ):
        channel.queue_declare(name, durable=True, arguments=arguments)
    for country in COUNTRIES:
        channel.queue_bind("orders.us" if country == "us" else "orders.europe", "orders", f"order.{country}.#")
    channel.queue_bind("orders.all", "orders", "order.#")
    channel.exchange_bind("paid", "orders", "order.*.paid")
    channel.queue_bind("mail.receipts", "paid")
    channel.queue_bind("search.index", "paid")
    channel.exchange_bind("tenants", "paid")
    channel.queue_bind("audit.acme", "tenants", "", {"x-match": "all", "tenant": "acme"})
    channel.queue_bind("payments.card", "payments", "card")
    channel.queue_bind("payments.bank", "payments", "bank")
    channel.queue_bind("dead.letters", "dead")
    policy = {"pattern": r"^orders\.", "definition": {"max-length": 50_000, "overflow": "reject-publish"}}
    api.put(f"/policies/{q(VHOST)}/bounded", policy | {"apply-to": "queues", "priority": 1})


def publish(channel: BlockingChannel, number: int, dice: random.Random) -> None:
    """Publish one order or payment."""
    body = {"order": 48_000 + number, "total": round(dice.uniform(5, 400), 2), "items": dice.randint(1, 6)}
    headers = {"tenant": dice.choice(("acme", "globex")), "x-deduplication-header": str(number)}
    properties = pika.BasicProperties("application/json", headers=headers, delivery_mode=2, app_id="checkout")
    event = dice.choice(("placed", "placed", "paid", "shipped"))
    payload = json.dumps(body, indent=1).encode()
    channel.basic_publish("orders", f"order.{dice.choice(COUNTRIES)}.{event}", payload, properties)
    if event == "paid":
        channel.basic_publish("payments", dice.choice(("card", "bank")), payload, properties)


class Traffic:
    """A publisher and four consumers, a thread and a connection each, until `stop`."""

    def __init__(self, connection: Callable[[str], pika.BlockingConnection]) -> None:
        self._ended = threading.Event()
        self._connection = connection
        self._threads = [threading.Thread(target=self._publish)]
        for queue in ("orders.europe", "orders.us", "mail.receipts", "payments.card"):
            self._threads.append(threading.Thread(target=self._consume, args=(queue,)))
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        dice = random.Random(7)
        with self._connection("checkout") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            number = 0
            while not self._ended.wait(TICK_S):
                for _ in range(dice.randint(10, 40)):
                    publish(channel, number := number + 1, dice)

    def _consume(self, queue: str) -> None:
        dice = random.Random(queue)
        with self._connection(f"worker of {queue}") as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=20)
            for method, _, _ in channel.consume(queue, inactivity_timeout=TICK_S):
                if self._ended.wait(dice.uniform(0, 0.03)):
                    return
                if method is None or method.delivery_tag is None:
                    continue
                if dice.random() < 0.01:
                    channel.basic_reject(method.delivery_tag, requeue=False)
                else:
                    channel.basic_ack(method.delivery_tag)

    def run(self, seconds: float) -> None:
        """Run it, so that charts have something to show."""
        self._ended.wait(seconds)

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def visitor(chromium: Browser, url: str, width: int, height: int, colours: str) -> Ui:
    """Return a visitor who has logged in."""
    size = {"width": width, "height": height}
    context = chromium.new_context(base_url=url, viewport=size, color_scheme=colours)  # type: ignore[arg-type]
    ui = Ui(context.new_page())
    ui.page.goto("/")
    ui.log_in("guest", "guest")
    ui.heading("Overview")
    return ui


def take(ui: Ui, name: str) -> None:
    """Write a picture of the page, once everything on it is drawn."""
    ui.page.wait_for_load_state("networkidle")
    ui.page.evaluate("document.fonts.ready")
    path = IMAGES / f"{name}.png"
    ui.page.screenshot(path=path, animations="disabled")
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    assert size < LARGEST_BYTES, f"{path.name} is too large for the repository"


def draw(chromium: Browser, url: str) -> None:
    """Write all pictures."""
    ui = visitor(chromium, url, 1280, 800, "light")
    ui.page.get_by_label("Vhost").select_option(VHOST)
    ui.visit(vhost=VHOST, range="60")
    expect(ui.main.locator("canvas").first).to_be_visible()
    take(ui, "overview")
    ui.visit("queues", vhost=VHOST)
    expect(ui.main.locator("tbody tr")).to_have_count(9)
    take(ui, "queues")
    ui.visit("queues", VHOST, "orders.europe", range="60")
    expect(ui.main.locator("canvas").first).to_be_visible()
    take(ui, "queue")
    ui.visit("queues", VHOST, "orders.all", tab="messages")
    ui.main.locator(".message summary").nth(1).click()
    expect(ui.main.locator(".payload")).to_be_visible()
    take(ui, "messages")
    ui.page.set_viewport_size({"width": 1280, "height": 1100})
    ui.visit("routing", vhost=VHOST)
    ui.heading(f"Routing in {VHOST}")
    ui.fill(exchange="orders", key="order.fr.paid")
    ui.press("Show")
    expect(ui.main.locator(".graph .hit").first).to_be_visible()
    take(ui, "routing")
    dark = visitor(chromium, url, 1280, 800, "dark")
    dark.visit("queues", VHOST, "orders.us", range="60")
    expect(dark.main.locator("canvas").first).to_be_visible()
    take(dark, "dark")
    phone = visitor(chromium, url, 360, 740, "light")
    phone.visit("queues", VHOST, "orders.europe", range="60")
    expect(phone.main.locator("canvas").first).to_be_visible()
    take(phone, "phone")
    assert ui.trouble + dark.trouble + phone.trouble == []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=75, help="how long traffic runs before the first picture")
    seconds = parser.parse_args().seconds
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, WarrenProcess(Path(directory)) as broker:
        api = Api(broker.http_port)
        api.put(f"/vhosts/{q(VHOST)}", {"description": "The web shop"})
        api.put("/cluster-name", {"name": "warren@shop"})

        def connection(name: str) -> pika.BlockingConnection:
            return connect(broker.amqp_port, VHOST, client_properties={"connection_name": name})

        with connection("setup") as setup:
            declare(api, setup.channel())
        traffic = Traffic(connection)
        try:
            traffic.run(seconds)
            with sync_playwright() as playwright:
                chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                draw(chromium, f"http://127.0.0.1:{broker.http_port}")
                chromium.close()
        finally:
            traffic.stop()
            api.close()


if __name__ == "__main__":
    main()
