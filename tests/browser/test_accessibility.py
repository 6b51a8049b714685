"""axe-core finds nothing serious on any page, light and dark, on a wide and on a narrow screen.

1. axe-core comes with the other npm packages of the tests (`compat/node/package.json`), into the ignored .cache folder.
2. Without it the test is skipped by hand and fails under CI=true.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compat.broker import in_ci
from integration.management.client import Api, q
from playwright.sync_api import expect

from .conftest import Connect, Open

AXE = Path(__file__).resolve().parents[2] / ".cache" / "node" / "node_modules" / "axe-core" / "axe.min.js"
# Rule, its weight, and the first element that breaks it.
SERIOUS = """async () => {
    const { violations } = await axe.run(document, { resultTypes: ['violations'] });
    return violations
        .filter((each) => ['serious', 'critical'].includes(each.impact))
        .map((each) => `${each.id}: ${each.help}: ${each.nodes[0].html}`);
}"""


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    if not AXE.exists():
        reason = "axe-core is not installed: `make setup-test` installs it, with npm"
        if in_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    return AXE.read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "colours"),
    [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")],
)
def test_no_page_has_a_serious_finding(
    open_ui: Open, api: Api, amqp: Connect, logged_in: Any, vhost: str, axe: str, width: int, colours: str
) -> None:
    channel = amqp(client_properties={"connection_name": "a client"}).channel()
    channel.queue_declare("long", durable=True, arguments={"x-max-priority": 5})
    channel.queue_bind("long", "amq.topic", "a.#")
    channel.basic_publish("", "long", b'{"a": 1}')
    api.put(f"/policies/{q(vhost)}/p", {"pattern": "^long$", "definition": {"max-length": 10}, "apply-to": "queues"})
    (client,) = (each["name"] for each in api.eventually(f"/vhosts/{q(vhost)}/connections", len))
    node = api.get("/overview")["node"]
    places: list[tuple[str, list[str], dict[str, str]]] = [
        ("Overview", [], {}),
        ("Connections", ["connections"], {}),
        ("a client", ["connections", client], {}),
        ("a client", ["applications", "a client"], {}),
        ("Channels", ["channels"], {}),
        ("Exchanges", ["exchanges"], {}),
        ("amq.topic", ["exchanges", vhost, "amq.topic"], {"tab": "bindings"}),
        ("Queues and streams", ["queues"], {}),
        *(("long", ["queues", vhost, "long"], {"tab": tab}) for tab in ("", "messages", "get", "move", "publish")),
        (f"Routing in {vhost}", ["routing"], {"vhost": vhost}),
        ("Bulk data", ["bulk"], {}),
        ("Search", ["search"], {"q": "long"}),
        ("Users", ["users"], {}),
        ("Virtual hosts", ["vhosts"], {}),
        ("Policies", ["policies"], {}),
        ("Shovels", ["shovels"], {}),
        ("Lake", ["lake"], {}),
        ("Definitions", ["definitions"], {}),
        (node, ["nodes", node], {}),
        ("Store", ["store"], {}),
    ]
    ui = open_ui(storage_state=logged_in, viewport={"width": width, "height": 760}, color_scheme=colours)
    ui.heading("Overview")
    ui.page.evaluate(axe)
    for title, segments, query in places:
        ui.visit(*segments, **query)
        ui.heading(title)
        assert ui.overflow() <= 0, f"{title} {query}"
        assert ui.page.evaluate(SERIOUS) == [], f"{title} {query}"
    ui.visit("queues")
    ui.press("Add queue")
    expect(ui.dialog).to_be_visible()
    assert ui.page.evaluate(SERIOUS) == []
