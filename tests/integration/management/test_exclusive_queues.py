"""A queue that is exclusive to a connection is described over HTTP; nobody looks into it, or does anything to it."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import pika
import pytest

from warren.mgmt_plugin.plugin import all_routes

from .client import Place
from .conftest import Connect

LOCKED: Final = "locked"
NOT_FOUND: Final = "not found"
SHOWN: Final = "shown"
BODY: Final = b"of the connection alone"
KEY: Final = "once"


class Asked(NamedTuple):
    """A request of a route, and the expected answer."""

    answer: str
    body: Any = None
    query: str = ""


Q: Final = "/api/queues/{vhost}/{queue}"
W: Final = "/api/warren/queues/{vhost}/{queue}"
B: Final = "/api/bindings/{vhost}/e/{exchange}/q/{destination}"
D: Final = "/api/warren/data/{vhost}/{queue}"
S: Final = "/api/warren/snapshots/{vhost}/{queue}"
C: Final = "/api/warren/drains/{vhost}/{queue}/{consumer}"
G: Final = "/api/warren/streams/{vhost}/{queue}"
RANGE: Final = {"from": 0, "to": 1}
# Every route that reaches a queue. Counts and names are shown as in every list.
ROUTES: Final[dict[tuple[str, str], Asked]] = {
    ("GET", Q): Asked(SHOWN),
    ("PUT", Q): Asked(LOCKED, {"durable": False}),
    ("DELETE", Q): Asked(LOCKED),
    ("DELETE", f"{Q}/contents"): Asked(LOCKED),
    ("POST", f"{Q}/actions"): Asked(SHOWN, {"action": "sync"}),
    ("POST", f"{Q}/get"): Asked(LOCKED, {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}),
    ("GET", f"{Q}/bindings"): Asked(SHOWN),
    ("GET", B): Asked(SHOWN),
    ("POST", B): Asked(LOCKED, {"routing_key": "k2"}),
    ("GET", f"{B}/{{key}}"): Asked(SHOWN),
    ("DELETE", f"{B}/{{key}}"): Asked(LOCKED),
    ("GET", f"{W}/messages"): Asked(LOCKED),
    ("GET", f"{W}/held"): Asked(SHOWN),
    ("POST", f"{W}/transfers"): Asked(LOCKED, {"mode": "copy", "destination": {"queue": "to"}}),
    ("PUT", f"{W}/pause"): Asked(LOCKED),
    ("DELETE", f"{W}/pause"): Asked(LOCKED),
    ("POST", f"{W}/held/{{lane}}/release"): Asked(LOCKED, {}),
    ("DELETE", f"{W}/held/{{lane}}"): Asked(LOCKED),
    ("GET", f"{W}/deduplication"): Asked(SHOWN),
    ("DELETE", f"{W}/deduplication"): Asked(LOCKED),
    ("GET", f"{G}/groups"): Asked(LOCKED),
    ("GET", f"{G}/groups/{{group}}"): Asked(LOCKED),
    ("PUT", f"{G}/groups/{{group}}"): Asked(LOCKED, {"offset": "first"}),
    ("DELETE", f"{G}/groups/{{group}}"): Asked(LOCKED),
    ("POST", f"{G}/offset"): Asked(LOCKED, {"offset": "first"}),
    ("GET", D): Asked(LOCKED),
    ("POST", f"{D}/plan"): Asked(LOCKED, RANGE),
    ("POST", f"{D}/token"): Asked(LOCKED, {}),
    ("GET", f"{D}/files"): Asked(LOCKED, query="?from=0&to=1"),
    ("GET", f"{D}/chunks"): Asked(LOCKED, query="?from=0&to=1"),
    ("POST", S): Asked(LOCKED, {}),
    ("GET", f"{S}/{{snapshot}}"): Asked(NOT_FOUND),
    ("DELETE", f"{S}/{{snapshot}}"): Asked(NOT_FOUND),
    ("GET", C): Asked(NOT_FOUND),
    ("POST", f"{C}/open"): Asked(LOCKED, {}),
    ("POST", f"{C}/claim"): Asked(NOT_FOUND, {"epoch": 1, "after": 0, "max_rows": 1}),
    ("POST", f"{C}/mark"): Asked(NOT_FOUND, {"epoch": 1}),
    ("POST", f"{C}/settle"): Asked(NOT_FOUND, {"id": "any", "ranges": [[0, 1]], "how": "ack"}),
    ("POST", f"{C}/fail"): Asked(NOT_FOUND, {"epoch": 1, "first": 0, "end": 1}),
    ("POST", f"{C}/release"): Asked(NOT_FOUND, {}),
    ("DELETE", C): Asked(NOT_FOUND),
}
PARAMETERS: Final = {"queue": "mine", "exchange": "amq.direct", "destination": "mine", "key": "k", "lane": "delayed"}


@pytest.fixture
def owner(place: Place, amqp: Connect) -> Any:
    """The channel of the connection that owns ``mine``, which has a message and a binding."""
    channel: Any = amqp().channel()
    channel.queue_declare("mine", exclusive=True, arguments={"x-message-deduplication": True})
    channel.queue_declare("to")
    channel.queue_bind("mine", "amq.direct", "k")
    channel.confirm_delivery()
    channel.basic_publish("", "mine", BODY, pika.BasicProperties(headers={"x-deduplication-header": KEY}))
    return channel


def test_the_table_has_every_route_that_reaches_a_queue() -> None:
    reaching = {
        (route.method, route.template)
        for route in all_routes()
        if "{queue}" in route.template or "/q/{destination}" in route.template
    }
    assert reaching == set(ROUTES)


def test_every_route_leaves_another_connections_queue_alone(place: Place, owner: Any) -> None:
    wrong: list[object] = []
    for (method, template), asked in ROUTES.items():
        parameters = PARAMETERS | {"vhost": place.v}
        path = template
        for name in re.findall(r"\{([a-z_]+)\}", template):
            path = path.replace(f"{{{name}}}", parameters.get(name, "any"))
        answer = place.api.ask(method, f"/{path}{asked.query}", asked.body)
        locked = answer.status == 400 and "cannot obtain exclusive access to locked queue" in answer.json["reason"]
        found = {400: LOCKED if locked else "", 404: NOT_FOUND}.get(answer.status, SHOWN)
        if found != asked.answer or answer.status >= 500 or (found == SHOWN and KEY.encode() in answer.body):
            wrong.append((method, template, answer.status, answer.body[:200]))
    assert not wrong
    assert [each["name"] for each in place.api.get(f"/warren/data/{place.v}")] == ["to"]
    shown = place.api.get(f"/queues/{place.v}/mine")
    assert shown["paused"] is False and shown["exclusive"] is True
    assert owner.basic_get("mine", auto_ack=True)[2] == BODY
    assert owner.basic_get("to", auto_ack=True)[0] is None


def test_a_drain_neither_takes_from_nor_gives_to_an_exclusive_queue_of_the_same_name(
    place: Place, amqp: Connect
) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("mine")
    channel.confirm_delivery()
    channel.basic_publish("", "mine", b"shared")
    drain = f"/warren/drains/{place.v}/mine/reader"
    epoch = place.api.post(f"{drain}/open", {}).json["epoch"]
    claimed = place.api.post(f"{drain}/claim", {"epoch": epoch, "after": 0, "max_rows": 10}).json
    assert (claimed["first"], claimed["end"]) == (0, 1)
    channel.queue_delete("mine")
    channel.queue_declare("mine", exclusive=True)
    channel.basic_publish("", "mine", BODY)
    assert place.api.ask("POST", f"{drain}/release", {}).refusal[:2] == (404, "no_queue")
    epoch = place.api.get(drain)["epoch"]
    claimed = place.api.post(f"{drain}/claim", {"epoch": epoch, "after": 1, "max_rows": 10}).json
    assert (claimed["first"], claimed["end"]) == (1, 1)
    assert channel.basic_get("mine", auto_ack=True)[2] == BODY
    assert channel.basic_get("mine", auto_ack=True)[0] is None


def test_deduplication_keys_are_shown_to_who_may_read_the_queue_only(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("open", arguments={"x-message-deduplication": True})
    channel.confirm_delivery()
    channel.basic_publish("", "open", b"", pika.BasicProperties(headers={"x-deduplication-header": KEY}))
    path = f"/warren/queues/{place.v}/open/deduplication"
    blind = place.user("d-blind", "management", {"configure": ".*", "write": ".*", "read": "^other$"})
    monitor = place.user("d-monitor", "monitoring", None)
    reader = place.user("d-reader", "management", {"configure": "", "write": "", "read": "^open$"})
    for user in (blind, monitor):
        assert user.get(path)["keys"] == 1 and "oldest" not in user.get(path)
    assert [each["key"] for each in reader.get(path)["oldest"]] == [KEY]
    for user in (blind, monitor, reader):
        user.close()
