"""Definitions: the whole configuration, or that of a vhost, exported and imported as one JSON file.

1. An export has RabbitMQ's keys and forms, so that a RabbitMQ can import it. But passwords that were set here are
   hashed with scrypt, which a RabbitMQ cannot verify.
2. An export leaves out everything that a file cannot restore: exclusive queues with their bindings, predeclared
   exchanges, the implicit bindings of the default exchange, global parameters that are internal.
3. An import is refused as a whole or planned as a whole; see `warren.server.definitions`. There is one at a time.
4. A name for the downloaded file is made of letters, digits and ``.-_`` before it goes into a header.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final

import trio

from warren import __version__
from warren.engine_view.engine_view import EngineView
from warren.engine_view.offsets import CLAIMS
from warren.engine_view.permissions import Permissions
from warren.engine_view.queues import QueueDeclared
from warren.engine_view.vhosts import VhostRow
from warren.mgmt_plugin.http.json_bodies import BodyLimits
from warren.mgmt_plugin.http.json_pieces import Rows, encode_json, json_pieces
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import BODY_BYTES_MAX, HttpError, Response
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import sorted_queues, visible_vhost_names
from warren.mgmt_plugin.operators import own_password
from warren.mgmt_plugin.resources.exchanges import describe_binding
from warren.mgmt_plugin.resources.overview import PRODUCT, RABBITMQ_VERSION
from warren.mgmt_plugin.resources.policies import describe_policy, parameter_rows
from warren.mgmt_plugin.resources.queues import describe_declared
from warren.mgmt_plugin.resources.users import describe_permission, describe_topic_permission, describe_user
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, measure, too_large
from warren.mgmt_plugin.terms import exchange_to_json
from warren.server.definitions.apply import Importer
from warren.server.definitions.plan import INTERNAL_PREFIX, ImportPlan, PlannedChange
from warren.server.definitions.schema import DefinitionsRefused, ItemTooLarge, hash_to_file, read_definitions
from warren.server.logins.passwords import PasswordHash
from warren.server.threads import DEFINITIONS, in_thread
from warren.vhosts.metadata import UserPut

MULTIPART: Final = "multipart/form-data"
FILE_FIELD: Final = "file"
OF_VHOST: Final = ("queues", "exchanges", "bindings")
BLOCK_ROWS: Final = 256
ROW_BYTES: Final = 40  # memory of a row in addition to its bytes


def _user(access: Permissions, record: UserPut) -> Described:
    described = describe_user(record, access.limits(record.name))
    described["password_hash"] = hash_to_file(PasswordHash(record.password_hash, record.hashing_algorithm))
    return described


def _vhost(vhost: VhostRow) -> Described:
    record = vhost.record
    metadata: Described = {"description": record.description, "tags": list(record.tags)}
    if record.default_queue_type:
        metadata["default_queue_type"] = record.default_queue_type
    if record.protected_from_deletion:
        metadata["protected_from_deletion"] = True
    # Flat for RabbitMQ 3.x, nested for 4.x.
    return {"name": record.name, **metadata, "metadata": metadata}


def _queue(queue: QueueDeclared) -> Described:
    described = describe_declared(queue)
    del described["exclusive"]  # none is in a file
    return described


class _Sections:
    """The sections of a file, each row encoded as soon as it is described; `hold` is called with their sizes.

    Rows of queues, exchanges and bindings are `without` one of their fields.
    """

    def __init__(self, hold: Callable[[int], None], *, without: str) -> None:
        self._hold = hold
        self._without = without
        self._rows: dict[str, list[bytes]] = {}

    def begin(self, *names: str) -> None:
        """Begin sections, which stand in the file in this order."""
        for name in names:
            self._rows[name] = []

    async def add(self, name: str, *described: Described) -> None:
        """Add rows to a section."""
        rows = self._rows[name]
        for each in described:
            if name in OF_VHOST:
                each.pop(self._without, None)
            rows.append((b"," if rows else b"") + encode_json(each))
            self._hold(len(rows[-1]) + ROW_BYTES)
            await give_way()

    async def blocks(self, head: Described) -> list[bytes]:
        """Return the file."""
        blocks: list[bytes] = []
        opening = encode_json(head)[:-1]
        for name, rows in self._rows.items():
            opening += b',"%s":[' % name.encode()
            for at in range(0, len(rows), BLOCK_ROWS):
                blocks.append(opening + b"".join(rows[at : at + BLOCK_ROWS]))
                opening = b""
                await give_way()
            opening += b"]"
        return [*blocks, opening + b"}"]


def _disposition(call: Call) -> tuple[tuple[str, str], ...]:
    wanted = call.query.get("download")
    if wanted is None:
        return ()
    return (("Content-Disposition", f"attachment; filename={re.sub(r'[^A-Za-z0-9._-]', '_', wanted)[:255]}"),)


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
    body = await call.request.read_body(call.limits.size)
    if content_type.partition(";")[0].strip().lower() == MULTIPART:
        # The parser is Python, and slow: in a thread it shares the interpreter.
        found = await in_thread(DEFINITIONS, _file_of_form, content_type, body, abandon=True)
    else:
        found = body
    if not found or found.isspace():
        raise bad_request("there are no definitions in the request")
    await measure(found, call.limits)
    return found


def _file_of_form(content_type: str, body: bytes) -> bytes:
    # Imported here: it takes half a megabyte, and only forms need it.
    from email.parser import BytesParser
    from email.policy import HTTP

    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1")
    form: Any = BytesParser(policy=HTTP).parsebytes(head + body)
    if not form.is_multipart():
        raise HttpError(400, "bad_request", "the form is malformed")
    for part in form.iter_parts():
        if part.get_param("name", header="content-disposition") == FILE_FIELD and not part.is_multipart():
            content: bytes = part.get_payload(decode=True) or b""
            return content
    raise HttpError(400, "bad_request", f"the form has no field {FILE_FIELD}")


# Large ones have a value or key for each 6 bytes.
LIMITS: Final = BodyLimits(BODY_BYTES_MAX, BODY_BYTES_MAX // 5)
_ADMIN: Final = Access.ADMINISTRATOR
_DRY_RUN: Final = "/api/warren/definitions/dry-run"
_OWN: Final = ("overwrite_own",)


class DefinitionHandlers(Handlers):
    """Handlers of definitions. `commit` waits for a change to be committed."""

    def __init__(
        self,
        view: EngineView,
        importer: Importer,
        commit: Callable[[int], Awaitable[None]],
    ) -> None:
        self._view = view
        self._importer = importer
        self._commit = commit
        self._importing = trio.Lock()  # a plan has to hold when it is applied

    # --- export -------------------------------------------------------------------------------------------------------

    async def export_definitions(self, call: Call) -> Response:
        """Answer with the definitions of everything, or of the vhost of the path.

        The file is made before it is sent: if a slow reader took minutes for it, its parts would not fit together.
        """
        await call.request.begin_work()
        of_vhost = "vhost" in call.params
        view = self._view
        vhosts = visible_vhost_names(call)
        head: Described = {"rabbit_version": RABBITMQ_VERSION}
        sections = _Sections(call.request.hold, without="vhost" if of_vhost else "")
        if not of_vhost:
            head |= {"rabbitmq_version": RABBITMQ_VERSION, "product_name": PRODUCT, "product_version": __version__}
            access = view.permissions
            sections.begin("users", "vhosts", "permissions", "topic_permissions")
            users = sorted(access.users(), key=lambda user: user.name)
            # At one moment, as they name each other.
            described = {
                "users": [_user(access, record) for record in users],
                "vhosts": [_vhost(row) for row in view.vhosts.rows(vhosts)],
                "permissions": [describe_permission(put) for put in access.of(None)],
                "topic_permissions": [describe_topic_permission(put) for put in access.topics_of(None)],
            }
            for section, rows in described.items():
                await sections.add(section, *rows)
        sections.begin("parameters", *(() if of_vhost else ("global_parameters",)), "policies", *OF_VHOST)
        await sections.add("parameters", *parameter_rows(call, view))
        if not of_vhost:
            for each in view.parameters.all_global():
                if not each.name.startswith(INTERNAL_PREFIX):
                    await sections.add("global_parameters", {"name": each.name, "value": each.value})
        for vhost in vhosts:
            await sections.add("policies", *map(describe_policy, view.policies.of(vhost)))
            for queue in await sorted_queues(call, view, vhost):
                if view.queues.is_shared(queue) and view.offsets.kind(queue) != CLAIMS:
                    await sections.add("queues", _queue(view.queues.declared(queue)))
            exchanges = view.exchanges.in_order(vhost)
            for _, exchange in exchanges:
                declared = view.exchanges.declaration(exchange)
                if declared.name and not declared.name.startswith("amq."):
                    await sections.add("exchanges", exchange_to_json(vhost, declared))
            for _, exchange in exchanges:
                for binding in view.bindings.of(exchange):
                    if view.bindings.is_shared(binding):
                        shown = describe_binding(view, (vhost, binding))
                        del shown["properties_key"]
                        await sections.add("bindings", shown)
                    await give_way()
        return Response(200, blocks=await sections.blocks(head), headers=_disposition(call))

    # --- import -------------------------------------------------------------------------------------------------------

    async def import_definitions(self, call: Call) -> Response | None:
        """Import the body: 204, or 200 with the objects that are not imported because of existing ones."""
        async with self._planned(call) as plan:
            ticket = await self._importer.apply(plan, give_way, call.operator.name)
        await self._commit(ticket)
        conflicts = plan.conflicts()
        if not conflicts:
            return None
        return Response(200, pieces=json_pieces({"conflicts": Rows(conflicts, _describe)}))

    async def plan_import(self, call: Call) -> Response:
        """Answer with the changes that importing the body would make."""
        async with self._planned(call) as plan:
            pass
        shown = {"changes": Rows(plan.changes, _describe), "conflicts": len(plan.conflicts())}
        return Response(200, pieces=json_pieces(shown))

    @asynccontextmanager
    async def _planned(self, call: Call) -> AsyncIterator[ImportPlan]:
        """Plan the import of the body; no other import runs meanwhile.

        Raises:
            HttpError: 400, with all problems.
        """
        data = await _file(call)
        async with self._importing:
            try:
                definitions = await read_definitions(data, call.params.get("vhost"), give_way)
                plan = await self._importer.plan(
                    definitions,
                    give_way,
                    by=call.operator.name,
                    password=own_password(call.request),
                    overwrite_own=call.flag("overwrite_own"),
                )
            except ItemTooLarge as refused:
                raise too_large("\n".join(refused.shown())) from None
            except DefinitionsRefused as refused:
                raise bad_request("\n".join(refused.shown())) from None
            yield plan

    ROUTES: ClassVar = (
        Route("GET", "/api/definitions", _ADMIN, export_definitions, "All definitions", query=("download",)),
        Route(
            "GET", "/api/definitions/{vhost}", _ADMIN, export_definitions, "Definitions of a vhost", query=("download",)
        ),
        Route("POST", "/api/definitions", _ADMIN, import_definitions, "Import definitions", query=_OWN, limits=LIMITS),
        Route(
            "POST",
            "/api/definitions/{vhost}",
            _ADMIN,
            import_definitions,
            "Import definitions into a vhost",
            query=_OWN,
            limits=LIMITS,
        ),
        Route(
            "POST",
            _DRY_RUN,
            _ADMIN,
            plan_import,
            "Changes that an import of definitions would make",
            query=_OWN,
            limits=LIMITS,
            is_audited=False,
        ),
        Route(
            "POST",
            f"{_DRY_RUN}/{{vhost}}",
            _ADMIN,
            plan_import,
            "The same in a vhost",
            query=_OWN,
            limits=LIMITS,
            is_audited=False,
        ),
    )
