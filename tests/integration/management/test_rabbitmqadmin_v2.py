"""rabbitmqadmin 2.35 reads the API into typed records: what it calls is there, and so is each field that it needs.

The program is not run here. Its calls and its records were read in its source and in that of its client,
rabbitmq_http_client 0.91. A field that is missing from one row makes its whole listing fail.
"""

from __future__ import annotations

from typing import Any

import pytest

from .client import Place
from .conftest import Connect

TEXT, NUMBER, FLAG, OBJECT, LIST = str, int, bool, dict, list

# Path below /api; the fields of each row that have no default there, with their types.
RECORDS: dict[str, dict[str, type]] = {
    "whoami": {"name": TEXT},
    "nodes": {
        "name": TEXT,
        "uptime": NUMBER,
        "run_queue": NUMBER,
        "processors": NUMBER,
        "os_pid": TEXT,
        "fd_total": NUMBER,
        "proc_total": NUMBER,
        "mem_limit": NUMBER,
        "mem_alarm": FLAG,
        "disk_free_limit": NUMBER,
        "disk_free_alarm": FLAG,
        "rates_mode": TEXT,
    },
    "vhosts": {"name": TEXT},
    "users": {"name": TEXT, "password_hash": TEXT},
    "channels": {
        "number": NUMBER,
        "name": TEXT,
        "connection_details": OBJECT,
        "vhost": TEXT,
        "state": TEXT,
        "consumer_count": NUMBER,
        "confirm": FLAG,
        "prefetch_count": NUMBER,
        "messages_unacknowledged": NUMBER,
        "messages_unconfirmed": NUMBER,
    },
    "connections": {"name": TEXT, "node": TEXT, "state": TEXT, "protocol": TEXT, "user": TEXT, "connected_at": NUMBER},
    "consumers": {
        "consumer_tag": TEXT,
        "active": FLAG,
        "ack_required": FLAG,
        "prefetch_count": NUMBER,
        "exclusive": FLAG,
        "arguments": OBJECT,
        "consumer_timeout": NUMBER,
        "queue": OBJECT,
        "channel_details": OBJECT,
    },
    "queues": {"name": TEXT, "vhost": TEXT, "type": TEXT, "durable": FLAG, "auto_delete": FLAG, "arguments": OBJECT},
    "exchanges": {"name": TEXT, "vhost": TEXT, "type": TEXT, "durable": FLAG, "auto_delete": FLAG, "arguments": OBJECT},
    "bindings": {
        "vhost": TEXT,
        "source": TEXT,
        "destination": TEXT,
        "destination_type": TEXT,
        "routing_key": TEXT,
        "arguments": OBJECT,
        "properties_key": TEXT,
    },
    "permissions": {"user": TEXT, "vhost": TEXT, "configure": TEXT, "read": TEXT, "write": TEXT},
    "policies": {
        "name": TEXT,
        "vhost": TEXT,
        "pattern": TEXT,
        "apply-to": TEXT,
        "priority": NUMBER,
        "definition": OBJECT,
    },
    "feature-flags": {"name": TEXT, "state": TEXT, "stability": TEXT, "provided_by": TEXT},
}
EMPTY_OR_LISTS = (
    *("topic-permissions", "user-limits", "vhost-limits", "parameters", "global-parameters", "operator-policies"),
    *("shovels", "federation-links", "deprecated-features", "deprecated-features/used", "queues/detailed"),
    *("users/without-permissions", "parameters/shovel", "parameters/federation-upstream"),
)


def rows_of(place: Place, path: str) -> list[dict[str, Any]]:
    found = place.api.get(f"/{path}")
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize("path", RECORDS)
def test_each_row_has_the_fields_that_it_needs(place: Place, amqp: Connect, path: str) -> None:
    api, v = place.api, place.v
    assert api.put(f"/queues/{v}/q", {"durable": True, "arguments": {"x-queue-type": "quorum"}}) == 201
    assert api.put(f"/policies/{v}/p", {"pattern": "^q", "definition": {"max-length": 9}}) == 201
    channel: Any = amqp().channel()
    for queue in ("q", "plain"):
        channel.queue_declare(queue, durable=True, passive=queue == "q")
        channel.basic_consume(queue, lambda *_: None)
    for row in rows_of(place, path):
        wrong = {key: row.get(key) for key, kind in RECORDS[path].items() if not isinstance(row.get(key), kind)}
        assert wrong == {}, row


@pytest.mark.parametrize("path", EMPTY_OR_LISTS)
def test_other_listings_are_lists(place: Place, path: str) -> None:
    assert isinstance(place.api.get(f"/{path}"), list)


def test_a_consumer_tells_how_long_a_delivery_may_be_unanswered(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    kinds = {"classic": {}, "quorum": {"x-queue-type": "quorum"}, "own": {"x-consumer-timeout": 60_000}}
    for name, arguments in kinds.items():
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.basic_consume(name, lambda *_: None)
    told = {row["queue"]["name"]: row["consumer_timeout"] for row in place.api.get(f"/consumers/{place.v}")}
    assert told == {"classic": 0, "quorum": 1_800_000, "own": 60_000}


def test_what_it_changes_is_changed(place: Place) -> None:
    api, v = place.api, place.v
    assert api.put(f"/queues/{v}/q", {"name": "q", "durable": True, "auto_delete": False, "exclusive": False}) == 201
    assert api.put(f"/exchanges/{v}/e", {"name": "e", "type": "topic", "durable": True, "auto_delete": False}) == 201
    bound = api.ask("POST", f"/bindings/{v}/e/e/q/q", {"routing_key": "k", "arguments": {}})
    assert bound.status == 201
    assert api.delete(f"/bindings/{v}/e/e/q/q/k") == 204
    assert api.ask("POST", f"/vhosts/{v}/deletion/protection").status == 204
    assert api.ask("DELETE", f"/vhosts/{v}").status != 204
    assert api.ask("DELETE", f"/vhosts/{v}/deletion/protection").status == 204
    assert api.put(f"/vhost-limits/{v}/max-queues", {"value": 500}) == 204
    assert api.delete(f"/vhost-limits/{v}/max-queues") == 204
    assert api.delete(f"/queues/{v}/q/contents") == 204
    assert api.delete(f"/queues/{v}/q?if-unused=true&if-empty=true") == 204
    assert api.delete(f"/exchanges/{v}/e?if-unused=true") == 204
    assert api.ask("POST", "/rebalance/queues", {}).status == 204
