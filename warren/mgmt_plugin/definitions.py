"""Definitions: everything that is configured, or everything of a vhost, as one JSON file out, and in.

1. What is exported has RabbitMQ's keys and forms, so that a RabbitMQ can import it; but passwords that were set here
   are hashed with scrypt, which no RabbitMQ verifies.
2. Left out is what a file cannot bring back: exclusive queues with their bindings, predeclared exchanges, the implicit
   bindings of the default exchange, global parameters that are internal.
3. An import is refused as a whole or planned as a whole; see `warren.server.definitions`. There is one at a time.
4. A name for the downloaded file is made of letters, digits and ``.-_`` before it goes into a header.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Final

import msgspec
import trio

from warren import __version__
from warren.exchanges.exchange import Exchange
from warren.mgmt_plugin.exchanges import describe_binding
from warren.mgmt_plugin.http import BODY_BYTES_MAX, HttpError, Response
from warren.mgmt_plugin.listing import Breather, Described
from warren.mgmt_plugin.names import visible_vhosts
from warren.mgmt_plugin.overview import PRODUCT, RABBITMQ_VERSION
from warren.mgmt_plugin.policies import describe_policy, list_parameters
from warren.mgmt_plugin.queues import queue_type
from warren.mgmt_plugin.routes import Access, Call, Route, bad_request
from warren.mgmt_plugin.terms import table_to_json, text
from warren.mgmt_plugin.users import describe_permission, describe_topic_permission, describe_user
from warren.queues.claims import ClaimQueue
from warren.queues.metadata import UserPut
from warren.queues.queue import Queue
from warren.queues.virtual_host import VirtualHost
from warren.server.definitions.apply import apply_plan
from warren.server.definitions.plan import INTERNAL_PREFIX, Plan, PlannedChange, make_plan
from warren.server.definitions.schema import DefinitionsRefused, hash_to_file, read_definitions
from warren.server.passwords import PasswordHash

MULTIPART: Final = "multipart/form-data"
FILE_FIELD: Final = "file"


# --- export -----------------------------------------------------------------------------------------------------------


async def export_definitions(call: Call) -> Response:
    """Answer with the definitions of everything, or of the vhost of the path."""
    of_vhost = "vhost" in call.params
    broker = call.management.broker
    breather = Breather()
    vhosts = list(visible_vhosts(call))
    head: Described = {"rabbit_version": RABBITMQ_VERSION}
    sections: dict[str, list[Described]] = {}
    if not of_vhost:
        head |= {"rabbitmq_version": RABBITMQ_VERSION, "product_name": PRODUCT, "product_version": __version__}
        access = broker.access
        sections["users"] = [_user(call, access.users[name]) for name in sorted(access.users)]
        sections["vhosts"] = [_vhost(vhost) for vhost in vhosts]
        permissions, topics = access.permissions, access.topic_permissions
        sections["permissions"] = [describe_permission(permissions[key]) for key in sorted(permissions)]
        sections["topic_permissions"] = [describe_topic_permission(topics[key]) for key in sorted(topics)]
    sections["parameters"] = await list_parameters(call)
    if not of_vhost:
        sections["global_parameters"] = [
            {"name": each.name, "value": each.value}
            for each in broker.parameters.global_parameters()
            if not each.name.startswith(INTERNAL_PREFIX)
        ]
    for section in ("policies", "queues", "exchanges", "bindings"):
        sections[section] = []
    for vhost in vhosts:
        policies = vhost.policies.policies
        sections["policies"] += [describe_policy(policies[name]) for name in sorted(policies)]
        await breather.breathe()
        for queue in [vhost.queues[name] for name in sorted(vhost.queues)]:
            if queue.owner is None and not isinstance(queue, ClaimQueue):
                sections["queues"].append(_queue(queue))
                await breather.breathe()
        exchanges = [vhost.exchanges[name] for name in sorted(vhost.exchanges)]
        for exchange in exchanges:
            if exchange.name and not exchange.name.startswith("amq."):
                sections["exchanges"].append(_exchange(exchange, vhost.name))
                await breather.breathe()
        for exchange in exchanges:
            for binding in list(exchange.bindings.values()):
                destination = binding.destination
                if not isinstance(destination, Queue) or destination.owner is None:
                    described = describe_binding(vhost.name, binding)
                    del described["properties_key"]
                    sections["bindings"].append(described)
                await breather.breathe()
    if of_vhost:
        for section in ("queues", "exchanges", "bindings"):
            for described in sections[section]:
                del described["vhost"]
    return Response(200, await _encoded(head, sections, breather), headers=_disposition(call))


def _user(call: Call, record: UserPut) -> Described:
    described = describe_user(call, record)
    described["password_hash"] = hash_to_file(PasswordHash(record.password_hash, record.hashing_algorithm))
    return described


def _vhost(vhost: VirtualHost) -> Described:
    record = vhost.record
    metadata: Described = {"description": record.description, "tags": list(record.tags)}
    if record.default_queue_type:
        metadata["default_queue_type"] = record.default_queue_type
    if record.protected_from_deletion:
        metadata["protected_from_deletion"] = True
    # Flat for RabbitMQ 3.x, nested for 4.x.
    return {"name": vhost.name, **metadata, "metadata": metadata}


def _queue(queue: Queue) -> Described:
    return {
        "name": text(queue.name),
        "vhost": queue.vhost_name,
        "type": queue_type(queue),
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": table_to_json(queue.arguments),
    }


def _exchange(exchange: Exchange, vhost: str) -> Described:
    return {
        "name": text(exchange.name),
        "vhost": vhost,
        "type": exchange.type_name,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": table_to_json(exchange.arguments),
    }


async def _encoded(head: Described, sections: dict[str, list[Described]], breather: Breather) -> bytes:
    parts = [msgspec.json.encode(head)[:-1]]
    for name, items in sections.items():
        rows: list[bytes] = []
        for item in items:
            rows.append(msgspec.json.encode(item))
            await breather.breathe()
        parts.append(b',"%s":[%s]' % (name.encode(), b",".join(rows)))
    return b"".join(parts) + b"}"


def _disposition(call: Call) -> tuple[tuple[str, str], ...]:
    wanted = call.query.get("download")
    if wanted is None:
        return ()
    return (("Content-Disposition", f"attachment; filename={re.sub(r'[^A-Za-z0-9._-]', '_', wanted)[:255]}"),)


# --- import -----------------------------------------------------------------------------------------------------------


async def import_definitions(call: Call) -> Response | None:
    """Import the body: 204, or 200 with what is not imported because of what is there."""
    breathe = Breather().breathe
    async with _planned(call) as plan:
        management = call.management
        ticket = await apply_plan(management.broker, plan, breathe, management.settle, call.operator.name)
    await management.commit(ticket)
    conflicts = plan.conflicts()
    if not conflicts:
        return None
    rows = [msgspec.json.encode(_describe(change)) for change in conflicts]
    return Response(200, b'{"conflicts":[' + b",".join(rows) + b"]}")


async def plan_import(call: Call) -> Response:
    """Answer with what importing the body would do."""
    breather = Breather()
    rows: list[bytes] = []
    async with _planned(call) as plan:
        pass
    for change in plan.changes:
        rows.append(msgspec.json.encode(_describe(change)))
        await breather.breathe()
    conflicts = len(plan.conflicts())
    return Response(200, b'{"changes":[' + b",".join(rows) + b'],"conflicts":%d}' % conflicts)


@asynccontextmanager
async def _planned(call: Call) -> AsyncIterator[Plan]:
    """Plan the import of the body; nobody else imports meanwhile.

    Raises:
        HttpError: 400, with every problem there is.
    """
    breathe = Breather().breathe
    data = await _file(call)
    async with call.services.importing:
        try:
            definitions = await read_definitions(data, call.params.get("vhost"), breathe)
            plan = await make_plan(
                call.management.broker,
                definitions,
                breathe,
                by=call.operator.name,
                overwrite_own=call.flag("overwrite_own"),
            )
        except DefinitionsRefused as refused:
            raise bad_request("\n".join(refused.shown())) from None
        yield plan


def _describe(change: PlannedChange) -> Described:
    return {
        "action": change.action,
        "kind": change.kind,
        "vhost": change.vhost,
        "name": change.name,
        "detail": change.detail,
    }


async def _file(call: Call) -> bytes:
    """Return the file: the body, or the field `FILE_FIELD` of a form.

    Raises:
        HttpError: 400.
    """
    content_type = call.request.headers.get("content-type", "")
    body = await call.request.read_body(BODY_BYTES_MAX)
    if content_type.partition(";")[0].strip().lower() == MULTIPART:
        # The parser is Python, and slow: in a thread it shares the interpreter.
        found = await trio.to_thread.run_sync(_file_of_form, content_type, body)
    else:
        found = body
    if not found.strip():
        raise bad_request("there are no definitions in the request")
    return found


def _file_of_form(content_type: str, body: bytes) -> bytes:
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1")
    form: Any = BytesParser(policy=HTTP).parsebytes(head + body)
    if not form.is_multipart():
        raise HttpError(400, "bad_request", "the form is malformed")
    for part in form.iter_parts():
        if part.get_param("name", header="content-disposition") == FILE_FIELD and not part.is_multipart():
            content: bytes = part.get_payload(decode=True) or b""
            return content
    raise HttpError(400, "bad_request", f"the form has no field {FILE_FIELD}")


_ADMIN: Final = Access.ADMINISTRATOR
_DRY_RUN: Final = "/api/warren/definitions/dry-run"
_OWN: Final = ("overwrite_own",)
ROUTES: Final = (
    Route("GET", "/api/definitions", _ADMIN, export_definitions, "Definitions of everything", query=("download",)),
    Route("GET", "/api/definitions/{vhost}", _ADMIN, export_definitions, "Definitions of a vhost", query=("download",)),
    Route("POST", "/api/definitions", _ADMIN, import_definitions, "Import definitions", query=_OWN),
    Route("POST", "/api/definitions/{vhost}", _ADMIN, import_definitions, "Import them into a vhost", query=_OWN),
    Route("POST", _DRY_RUN, _ADMIN, plan_import, "What importing definitions would change", query=_OWN),
    Route("POST", f"{_DRY_RUN}/{{vhost}}", _ADMIN, plan_import, "The same in a vhost", query=_OWN),
)
