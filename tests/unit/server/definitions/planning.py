"""A broker without a shell, and documents that are imported into it."""

from __future__ import annotations

import json
from typing import Any

import trio
from following_sql import take_durable_changes
from memory_store import MemoryStore, memory_log

from warren.channels.broker import Broker, Limits
from warren.server.definitions.apply import apply_plan
from warren.server.definitions.plan import ImportPlan, make_plan
from warren.server.definitions.schema import Definitions, DefinitionsRefused, read_definitions
from warren.vhosts.metadata import MetadataChange, PermissionPut, UserPut, VhostPut

SHA256 = "rabbit_password_hashing_sha256"
HASH = "FExDJUkwl8Ma3QKKnfA7lVPI/EotGLWgCWU5iYkZAXZSmIjv"
OTHER_HASH = "UkEYRfrb1vOxaIhVLgCsZ2JT9XqAyTyh7+pQ76wZd8BXyUwS"
ADMIN = "root"
Document = dict[str, Any]


async def no_pause() -> None:
    pass


def broker_with(limits: Limits | None = None) -> Broker:
    """Return a broker with the vhost ``/`` and an administrator."""
    broker = Broker(Limits() if limits is None else limits, lambda: bytes(16), 1, memory_log())
    broker.restore(VhostPut("/"))
    broker.restore(UserPut(ADMIN, HASH, SHA256, ("administrator",)))
    broker.restore(PermissionPut(ADMIN, "/", ".*", ".*", ".*"))
    return broker


def read(document: Document | bytes, vhost: str | None = None) -> Definitions:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return trio.run(read_definitions, data, vhost, no_pause)


def plan(
    broker: Broker,
    document: Document,
    vhost: str | None = None,
    *,
    by: str = ADMIN,
    password: bytes = b"",
    overwrite_own: bool = False,
) -> ImportPlan:
    """Plan the import of `document`; nothing of `broker` may change by that."""
    before = broker.journal.last_ticket
    definitions = read(document, vhost)

    async def run() -> ImportPlan:
        return await make_plan(broker, definitions, no_pause, by=by, password=password, overwrite_own=overwrite_own)

    made = trio.run(run)
    assert broker.journal.last_ticket == before
    return made


def problems(broker: Broker, document: Document | bytes, vhost: str | None = None) -> list[str]:
    """Return why `document` is refused."""
    before = broker.journal.last_ticket

    async def run() -> list[str]:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        try:
            await make_plan(broker, await read_definitions(data, vhost, no_pause), no_pause, by=ADMIN)
        except DefinitionsRefused as refused:
            return refused.problems
        raise AssertionError("it was not refused")

    found = trio.run(run)
    assert broker.journal.last_ticket == before
    return found


def apply(broker: Broker, planned: ImportPlan) -> ImportPlan:
    trio.run(apply_plan, broker, planned, no_pause, lambda: None, ADMIN)
    return planned


def journalled(broker: Broker) -> list[MetadataChange]:
    """Return the changes that `broker` has journalled, when they are durable."""
    disk = MemoryStore(broker)
    broker.end_turn()
    disk.run()
    return take_durable_changes(broker, disk)


def shown(planned: ImportPlan) -> list[tuple[str, str, str]]:
    return [(change.action, change.kind, change.name) for change in planned.changes]


def queue(name: str, vhost: str = "/", **rest: Any) -> Document:
    return {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}, **rest}


def exchange(name: str, type_name: str = "direct", vhost: str = "/", **rest: Any) -> Document:
    said = {"name": name, "vhost": vhost, "type": type_name, "durable": True, "auto_delete": False, "internal": False}
    return {**said, "arguments": {}, **rest}


def binding(source: str, destination: str, key: str = "", vhost: str = "/", **rest: Any) -> Document:
    said = {"source": source, "vhost": vhost, "destination": destination, "destination_type": "queue"}
    return {**said, "routing_key": key, "arguments": {}, **rest}
