"""Find out what importing a file of definitions would change in the running broker, before anything is done.

1. Planning changes nothing. It refuses everything that would be refused later: names, patterns, arguments, limits,
   parameters and policies are checked by the code that would apply them. One mistake refuses the whole file; all
   mistakes are reported.
2. Importing adds. Users, permissions, limits, parameters, policies and properties of vhosts replace those with the same
   name. Nothing is deleted.
3. An exchange or queue that exists with other properties stays as it is: a conflict. A binding is a conflict, too, if
   one of its ends does not exist. The rest is imported; RabbitMQ does the same, without a report.
4. Importing users cannot lose access by accident. Another password, fewer tags or fewer permissions of their own are a
   conflict unless they asked for that, and so is any change of a user tagged ``protected``. Additional rights in the
   file are granted.
5. Of two items for the same thing the later one counts. A queue or exchange that is declared in two ways is a mistake.
6. Names beginning with ``amq.``, the default exchange and global parameters beginning with ``internal`` are skipped.
7. The steps are in an order in which each can be applied: an exchange or queue finds its policies in place.
8. A vhost that the import makes is open to the importing user, unless the file sets their permissions there. An
   administrator may import objects that connect to any vhost: shovels, upstreams, tables.

Existing limits apply to the imported objects. Limits in the file do not, so that a vhost with more objects than its
limit can be taken over. Tracing is not durable, so a file cannot switch it on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import AmqpError
from warren.amqp.field_table import EMPTY_TABLE, encode_table, find_tag, with_length
from warren.channels.access import check_patterns
from warren.channels.broker import Broker
from warren.channels.topology import RESERVED_PREFIX, check_name
from warren.exchanges.exchange import Exchange
from warren.exchanges.registry import create_exchange
from warren.queues import seen_keys
from warren.queues.arguments import QueueArguments
from warren.queues.base_queue import BaseQueue
from warren.server.definitions.schema import (
    BindingItem,
    Definitions,
    DefinitionsRefused,
    ExchangeItem,
    ParameterItem,
    Pause,
    PolicyItem,
    QueueItem,
    UserItem,
    VhostItem,
    hash_from_file,
    metadata_of,
    tags_of,
)
from warren.server.json_tables import table_from_json, table_to_json
from warren.server.logins.passwords import PasswordHash, hash_password, verify_password
from warren.server.threads import LOGINS, in_thread
from warren.vhosts.definitions import parse_definition
from warren.vhosts.limits import MAX_QUEUES, USER_LIMITS, VHOST_LIMITS, is_reached, parse_limits
from warren.vhosts.metadata import (
    GlobalParameterPut,
    MetadataChange,
    ParameterPut,
    PermissionPut,
    PolicyPut,
    TopicPermissionPut,
    UserLimitsPut,
    UserPut,
    VhostLimitsPut,
    VhostPut,
    check_storable,
)
from warren.vhosts.parameters import Parameter, own_change
from warren.vhosts.policies import Policy
from warren.vhosts.super_streams import bindings_max
from warren.vhosts.virtual_host import (
    CONTROL_EXCHANGE,
    DEFAULT_QUEUE_TYPES,
    QUEUE_TYPE,
    VirtualHost,
    standard_exchanges,
)

CREATE: Final = "create"
UPDATE: Final = "update"
SAME: Final = "same"
CONFLICT: Final = "conflict"
SKIP: Final = "skip"

INTERNAL_PREFIX: Final = "internal"
PROTECTED_TAG: Final = "protected"
ADMINISTRATOR_TAG: Final = "administrator"

EVERYTHING: Final = ".*"
NOTHING: Final = ("", "^$")

_SHA256: Final = "rabbit_password_hashing_sha256"
_MD5: Final = "rabbit_password_hashing_md5"
_NAMES_HASHING_SINCE: Final = (3, 6)  # files of older versions have MD5 and do not say so
_INDEX_PIECE: Final = 64


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Make an exchange."""

    vhost: str
    declaration: ExchangeDeclaration


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Make a queue. Its type is in its arguments, unless it is classic."""

    vhost: str
    declaration: QueueDeclaration


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind. ``destination_type`` is ``queue`` or ``exchange``."""

    vhost: str
    source: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: bytes


Step = MetadataChange | DeclareExchange | DeclareQueue | Bind


@dataclass(slots=True)
class PlannedChange:
    """The result for one item; `step` carries it out, if there is anything to do. `detail` does not contain secrets."""

    action: str
    kind: str
    vhost: str
    name: str
    detail: str = ""
    step: Step | None = None


@dataclass(slots=True)
class ImportPlan:
    """The changes in the order in which they are made."""

    changes: list[PlannedChange] = field(default_factory=list)

    def conflicts(self) -> list[PlannedChange]:
        """Return the items that are not imported because they conflict with existing ones."""
        return [change for change in self.changes if change.action == CONFLICT]


async def make_plan(
    broker: Broker,
    definitions: Definitions,
    pause: Pause,
    *,
    by: str = "",
    password: bytes = b"",
    overwrite_own: bool = False,
) -> ImportPlan:
    """Plan the import of `definitions` that the user `by` requests, ``""``: the operator of the machine.

    `password`: the password with which `by` has logged in, if known: a hash of it in the file does not change anything.

    Raises:
        DefinitionsRefused: something in it is not valid. The broker stays as it is.
    """
    planner = _Planner(broker, definitions, pause, by, password, overwrite_own)
    await planner.run()
    if planner.problems:
        raise DefinitionsRefused(planner.problems)
    return planner.plan


class _Planner:
    """The unfinished plan, and the state of the broker after it."""

    def __init__(
        self, broker: Broker, definitions: Definitions, pause: Pause, by: str, password: bytes, overwrite_own: bool
    ) -> None:
        self.plan = ImportPlan()
        self.problems: list[str] = []
        self._broker = broker
        self._definitions = definitions
        self._pause = pause
        self._by = by
        self._own_password = password
        self._overwrite_own = overwrite_own
        importer = broker.access.get(by)
        is_administrator = importer is not None and ADMINISTRATOR_TAG in importer.tags
        # the user whose rights the values of parameters are checked for
        self._asked_by = "" if is_administrator else by
        self._puts: dict[tuple[str, ...], object] = {}  # planned puts, by kind and name
        self._users: set[str] = set()
        self._vhosts: dict[str, VhostPut] = {}
        self._fresh: dict[str, dict[str, Exchange]] = {}  # the predeclared exchanges of new vhosts
        self._exchanges: dict[tuple[str, str], tuple[ExchangeDeclaration, Exchange]] = {}
        self._queues: dict[tuple[str, str], QueueDeclaration] = {}
        self._differing: set[tuple[str, str]] = set()  # exchanges that exist with other properties
        self._skipped: set[tuple[str, str, str]] = set()
        self._new_exchanges: Counter[str] = Counter()
        self._new_queues: Counter[str] = Counter()
        self._bound: dict[tuple[str, str], set[tuple[str, str, str, str]]] = {}

    async def run(self) -> None:
        """Plan everything."""
        given = self._definitions
        for place, user in given.users:
            try:
                password = await self._password_of(user)
            except ValueError as error:
                self.problems.append(f"{place} {user.name!a}: {error}")
                continue
            self._try(place, user.name, partial(self._user, user, password))
            await self._pause()
        await self._each(given.vhosts, self._vhost)
        await self._each(given.permissions, self._permission)
        self._open_new_vhosts()
        await self._each(given.topic_permissions, self._topic_permission)
        await self._each(given.global_parameters, self._global_parameter)
        await self._each(given.parameters, self._parameter)
        await self._each(given.policies, self._policy)
        await self._each(given.exchanges, self._exchange)
        await self._each(given.queues, self._queue)
        for place, binding in given.bindings:
            await self._index_bindings(binding)
            self._try(place, f"{binding.source} -> {binding.destination}", partial(self._binding, binding))
            await self._pause()

    async def _each(self, items: list[tuple[str, Any]], plan: Callable[[Any], None]) -> None:
        for place, item in items:
            name: str = item.user if hasattr(item, "user") else item.name
            self._try(place, name, partial(plan, item))
            await self._pause()

    def _try(self, place: str, name: str, plan: Callable[[], None]) -> None:
        shown = f"{place} {name!a}"
        try:
            plan()
        except ValueError as error:
            self.problems += [f"{shown}: {line}" for line in str(error).splitlines() or [""]]
        except AmqpError as error:
            self.problems.append(f"{shown}: {error.explanation}")
        except RecursionError:
            self.problems.append(f"{shown}: nested too deeply")

    # --- users ------------------------------------------------------------------------------------------------------

    async def _password_of(self, item: UserItem) -> PasswordHash:
        """Return the hash for a user; the current hash stays if it fits a given password."""
        if item.password is None or item.password == "":
            algorithm = item.hashing_algorithm
            if algorithm is None:
                old = (0, 0) < self._definitions.rabbit_version < _NAMES_HASHING_SINCE
                algorithm = _MD5 if old else _SHA256
            given = hash_from_file(item.password_hash or "", algorithm)
            record = self._broker.access.users.get(item.name)
            if record is None or item.name != self._by or not self._own_password:
                return given
            # The same password has another hash each time. Importing users keep their hash if it fits.
            if await in_thread(LOGINS, verify_password, self._own_password, given, abandon=True):
                return PasswordHash(record.password_hash, record.hashing_algorithm)
            return given
        if item.password_hash:
            raise ValueError("both password and password_hash are given")
        password = item.password.encode()
        record = self._broker.access.users.get(item.name)
        if record is not None:
            kept = PasswordHash(record.password_hash, record.hashing_algorithm)
            if await in_thread(LOGINS, verify_password, password, kept, abandon=True):
                return kept
        return await in_thread(LOGINS, hash_password, password, abandon=True)

    def _user(self, item: UserItem, password: PasswordHash) -> None:
        _check_given(item.name)
        self._users.add(item.name)
        put = UserPut(item.name, password.text, password.algorithm, tags_of(item.tags or []))
        check_storable(put)
        current: UserPut | None = self._planned(("user", item.name), self._broker.access.users.get(item.name))
        if put.password_hash == "" and current is not None and current.password_hash == "":
            # an empty hash means the same in every algorithm
            put = UserPut(put.name, "", current.hashing_algorithm, put.tags)
        changed: list[str] = []
        if current is not None:
            if (current.password_hash, current.hashing_algorithm) != (put.password_hash, put.hashing_algorithm):
                changed.append("password")
            if current.tags != put.tags:
                changed.append("tags")
        guard = "" if current is None else self._guard_user(current, put)
        guard = f"{guard}: {', '.join(changed)}" if guard else ""
        self._put(("user", item.name), put, "", current, changed, guard)
        self._limits_of_user(item)

    def _guard_user(self, current: UserPut, put: UserPut) -> str:
        """Return why `put` may not replace `current` unless that was asked for (4), or ``""``."""
        if self._overwrite_own or not self._by or current == put:
            return ""
        if PROTECTED_TAG in current.tags:
            return "the user is protected"
        if current.name != self._by:
            return ""
        keeps_password = current.password_hash == put.password_hash
        if keeps_password and ADMINISTRATOR_TAG in put.tags:
            return ""
        return "the user who imports would lose access"

    def _limits_of_user(self, item: UserItem) -> None:
        if not item.limits:
            return
        put = UserLimitsPut(item.name, _object(item.limits, "limits"))
        limits = parse_limits(put.definition, USER_LIMITS, "user-limits")
        access = self._broker.access
        before = access.usage(item.name).limits if item.name in access.users else {}
        self._put_value(("user_limits", item.name), put, "", limits, before or None)

    # --- vhosts and permissions -------------------------------------------------------------------------------------

    def _vhost(self, item: VhostItem) -> None:
        _check_given(item.name)
        there = self._broker.vhosts.get(item.name)
        current: VhostPut | None = self._planned(("vhost", item.name), None if there is None else there.record)
        before = VhostPut(item.name) if current is None else current
        self._vhosts.setdefault(item.name, before)  # it will exist, whatever is wrong with it
        nested = metadata_of(item)
        description = _first(item.description, nested.description, before.description)
        tags = _first(item.tags, nested.tags, before.tags)
        queue_type = _first(item.default_queue_type, nested.default_queue_type, before.default_queue_type)
        protected = _first(item.protected_from_deletion, nested.protected_from_deletion, before.protected_from_deletion)
        if queue_type not in DEFAULT_QUEUE_TYPES:
            raise ValueError(f"default queue type '{queue_type}' is not classic, quorum or stream")
        kept_tags = tags if isinstance(tags, tuple) else tags_of(tags)
        put = VhostPut(item.name, description, kept_tags, DEFAULT_QUEUE_TYPES[queue_type], protected)
        check_storable(put)
        self._vhosts[item.name] = put
        fields = ("description", "tags", "default_queue_type", "protected_from_deletion")
        changed = [name for name in fields if getattr(put, name) != getattr(before, name)]
        self._put(("vhost", item.name), put, item.name, current, changed, "")
        if item.limits:
            self._vhost_limits(VhostLimitsPut(item.name, _object(item.limits, "limits")))

    def _vhost_limits(self, put: VhostLimitsPut) -> None:
        check_storable(put)
        limits = parse_limits(put.definition, VHOST_LIMITS, "limits")
        there = self._broker.vhosts.get(put.vhost)
        before = None if there is None or not there.limits else there.limits
        self._put_value(("vhost_limits", put.vhost), put, put.vhost, limits, before)

    def _permission(self, item: Any) -> None:
        put = PermissionPut(item.user, self._known_vhost(item.vhost), item.configure, item.write, item.read)
        self._check_permission(put)
        current: PermissionPut | None = self._planned(
            ("permission", put.user, put.vhost), self._broker.access.permissions.get((put.user, put.vhost))
        )
        changed = _differences(current, put, ("configure", "write", "read"))
        taken = [name for name in changed if not _is_wider(getattr(current, name), getattr(put, name))]
        guard = self._guard_permissions(put.user, taken)
        self._put(("permission", put.user, put.vhost), put, put.vhost, current, changed, guard)

    def _open_new_vhosts(self) -> None:
        """Give the importing user access to the vhosts that the import makes, as RabbitMQ does (8)."""
        if self._by not in self._broker.access.users:
            return
        for vhost in self._vhosts:
            key = ("permission", self._by, vhost)
            if vhost not in self._broker.vhosts and key not in self._puts:
                put = PermissionPut(self._by, vhost, EVERYTHING, EVERYTHING, EVERYTHING)
                self._put(key, put, vhost, None, [], "")

    def _topic_permission(self, item: Any) -> None:
        put = TopicPermissionPut(item.user, self._known_vhost(item.vhost), item.exchange, item.write, item.read)
        self._check_permission(put)
        key = (put.user, put.vhost, put.exchange)
        there = self._broker.access.topic_permissions.get(key)
        current: TopicPermissionPut | None = self._planned(("topic_permission", *key), there)
        changed = _differences(current, put, ("write", "read"))
        fields = changed
        before = put if current is None else current
        if current is None and (put.user, put.vhost) in self._broker.access.permissions:
            # Without a topic permission every topic is open.
            before, fields = TopicPermissionPut(put.user, put.vhost, put.exchange, ".*", ".*"), ["write", "read"]
        taken = [name for name in fields if not _is_wider(getattr(before, name), getattr(put, name))]
        guard = self._guard_permissions(put.user, taken)
        self._put(("topic_permission", *key), put, put.vhost, current, changed, guard, f"{put.user}, {put.exchange}")

    def _guard_permissions(self, user: str, taken: list[str]) -> str:
        """Return why permissions of `user` may not lose `taken` unless that was asked for (4), or ``""``."""
        if not taken or self._by != user or self._overwrite_own:
            return ""
        return f"the user who imports would lose permissions: {', '.join(taken)}"

    def _check_permission(self, put: PermissionPut | TopicPermissionPut) -> None:
        check_storable(put)
        check_patterns(put)
        if put.user not in self._users and put.user not in self._broker.access.users:
            raise ValueError(f"user '{put.user}' does not exist")

    # --- parameters and policies ------------------------------------------------------------------------------------

    def _global_parameter(self, item: Any) -> None:
        _check_given(item.name)
        if item.name.startswith(INTERNAL_PREFIX):
            self._skip("global_parameter", "", item.name, "internal to the broker that exported the file")
            return
        put = GlobalParameterPut(item.name, json.dumps(item.value))
        check_storable(put)
        parameter = self._broker.parameters.checked(put, self._asked_by)
        self._put_parameter(("global_parameter", item.name), put, "", parameter)

    def _parameter(self, item: ParameterItem) -> None:
        _check_given(item.name)
        put = ParameterPut(self._known_vhost(item.vhost), item.component, item.name, json.dumps(item.value))
        kept = own_change(put)
        if isinstance(kept, VhostLimitsPut):
            self._vhost_limits(kept)
        elif isinstance(kept, PolicyPut):
            self._policy_put(kept)
        else:
            check_storable(put)
            parameter = self._broker.parameters.checked(put, self._asked_by)
            key = ("parameter", put.vhost, put.component, put.name)
            self._put_parameter(key, put, put.vhost, parameter, f"{put.component}/{put.name}")

    def _put_parameter(
        self,
        key: tuple[str, ...],
        put: ParameterPut | GlobalParameterPut,
        vhost: str,
        parameter: Parameter,
        shown: str = "",
    ) -> None:
        book = self._broker.parameters
        there = book.maybe_global(put.name) if isinstance(put, GlobalParameterPut) else None
        if isinstance(put, ParameterPut):
            there = book.maybe_parameter(put.vhost, put.component, put.name)
        current: Parameter | None = self._planned(key, there)
        changed = [] if current is None or parameter.is_same(current) else ["value"]
        self._put(key, put, vhost, current, changed, "", shown, kept=parameter)

    def _policy(self, item: PolicyItem) -> None:
        _check_given(item.name)
        definition = _object(item.definition, "definition")
        vhost = self._known_vhost(item.vhost)
        self._policy_put(PolicyPut(vhost, item.name, item.pattern, item.apply_to, item.priority, definition))

    def _policy_put(self, put: PolicyPut) -> None:
        check_storable(put)
        policy = Policy(put)
        kind = "operator_policy" if put.operator else "policy"
        there: Policy | None = None
        if put.vhost in self._broker.vhosts:
            book = self._broker.vhosts[put.vhost].policies
            there = (book.operator_policies if put.operator else book.policies).get(put.name)
        current: Policy | None = self._planned((kind, put.vhost, put.name), there)
        changed: list[str] = []
        if current is not None:
            changed = _differences(current.put, put, ("pattern", "apply_to", "priority"))
            if _as_json(current.definition) != _as_json(policy.definition):
                changed.append("definition")
        self._put((kind, put.vhost, put.name), put, put.vhost, current, changed, "", kept=policy)

    # --- exchanges, queues, bindings --------------------------------------------------------------------------------

    def _exchange(self, item: ExchangeItem) -> None:
        vhost = self._known_vhost(item.vhost)
        if item.name == "" or item.name.startswith(RESERVED_PREFIX):
            self._skip("exchange", vhost, item.name, "built into every vhost, or not allowed")
            return
        _check_name("exchange", item.name)
        declaration = ExchangeDeclaration(
            item.name,
            item.type,
            durable=item.durable,
            auto_delete=item.auto_delete,
            internal=item.internal,
            arguments=_arguments(item.arguments),
        )
        made = create_exchange(declaration, seed=0, vhost_name=vhost)
        seen_keys.exchange_rules(declaration, vhost)
        planned = self._exchanges.get((vhost, item.name))
        if planned is not None:
            if planned[0] != declaration:
                raise ValueError("the file declares the exchange twice, with different properties")
            return
        there = self._maybe_vhost(vhost)
        existing = None if there is None else there.exchanges.get(item.name)
        if existing is None:
            self._new_exchanges[vhost] += 1
            count = self._new_exchanges[vhost] + (0 if there is None else len(there.exchanges))
            limit = self._broker.limits.exchanges_per_vhost_max
            if count > limit:
                raise ValueError(f"exchange limit in vhost '{vhost}' ({limit}) is reached")
            self._exchanges[(vhost, item.name)] = (declaration, made)
            self._add(CREATE, "exchange", vhost, item.name, item.type, DeclareExchange(vhost, declaration))
            return
        try:
            existing.check_equivalent(declaration, vhost)
            seen_keys.check_equivalent(declaration, vhost, existing.arguments)
        except AmqpError as error:
            self._differing.add((vhost, item.name))
            self._add(CONFLICT, "exchange", vhost, item.name, error.explanation)
        else:
            self._add(SAME, "exchange", vhost, item.name)

    def _queue(self, item: QueueItem) -> None:
        vhost = self._known_vhost(item.vhost)
        if item.name.startswith(RESERVED_PREFIX) or item.exclusive:
            reason = "it belongs to a connection" if item.exclusive else "the name is reserved for brokers"
            self._skip("queue", vhost, item.name, reason)
            return
        _check_name("queue", item.name)
        arguments = self._typed(item, _arguments(item.arguments))
        there = self._maybe_vhost(vhost)
        existing = None if there is None else there.queues.get(item.name)
        if existing is not None:
            # A later declaration in the file is compared with the existing queue as well.
            QueueArguments(_declaration(item, arguments), vhost)
            self._existing_queue(existing, item, arguments)
            return
        declaration = _declaration(item, self._with_default_type(vhost, item, arguments))
        QueueArguments(declaration, vhost)
        planned = self._queues.get((vhost, item.name))
        if planned is not None:
            if planned != declaration:
                raise ValueError("the file declares the queue twice, with different properties")
            return
        self._new_queues[vhost] += 1
        self._check_room_for_queue(vhost, there)
        self._queues[(vhost, item.name)] = declaration
        self._add(CREATE, "queue", vhost, item.name, "", DeclareQueue(vhost, declaration))

    def _typed(self, item: QueueItem, arguments: bytes) -> bytes:
        """Return `arguments` with the type of the item itself, unless a missing type in them means classic."""
        named = _as_dict(item.arguments).get(QUEUE_TYPE)
        if item.type is None:
            return arguments
        if named is not None and named != item.type:
            raise ValueError(f"type '{item.type}' contradicts the argument {QUEUE_TYPE}")
        return arguments if named is not None or item.type == "classic" else _with_type(arguments, item.type)

    def _with_default_type(self, vhost: str, item: QueueItem, arguments: bytes) -> bytes:
        """Return `arguments` with the type that the vhost, after the import, would give the queue."""
        record = self._vhosts.get(vhost)
        if record is None:
            record = self._broker.vhosts[vhost].record
        default = DEFAULT_QUEUE_TYPES.get(record.default_queue_type, "")
        if default == "" or find_tag(arguments, QUEUE_TYPE):
            return arguments
        if item.type is not None:
            return _with_type(arguments, item.type)
        if default != "classic" and (not item.durable or item.auto_delete):
            return arguments
        return _with_type(arguments, default)

    def _existing_queue(self, existing: BaseQueue, item: QueueItem, arguments: bytes) -> None:
        vhost = existing.vhost_name
        if existing.owner is not None:
            self._add(CONFLICT, "queue", vhost, item.name, "a connection has an exclusive queue of this name")
            return
        if item.type is None and not find_tag(arguments, QUEUE_TYPE) and find_tag(existing.arguments, QUEUE_TYPE):
            arguments = self._with_default_type(vhost, item, arguments)
        elif item.type == "classic" and not find_tag(arguments, QUEUE_TYPE):
            arguments = _with_type(arguments, "classic") if find_tag(existing.arguments, QUEUE_TYPE) else arguments
        try:
            QueueArguments.check_equivalent(existing, _declaration(item, arguments))
        except AmqpError as error:
            self._add(CONFLICT, "queue", vhost, item.name, error.explanation)
        else:
            self._add(SAME, "queue", vhost, item.name)

    def _check_room_for_queue(self, vhost: str, there: VirtualHost | None) -> None:
        count = self._new_queues[vhost] + (0 if there is None else len(there.queues))
        limit = self._broker.limits.queues_per_vhost_max
        held = {} if there is None or ("vhost_limits", vhost) in self._puts else there.limits
        if is_reached(held, MAX_QUEUES, count - 1):
            limit = held[MAX_QUEUES]
        if count > limit:
            raise ValueError(f"queue limit in vhost '{vhost}' ({limit}) is reached")

    def _binding(self, item: BindingItem) -> None:
        vhost = self._known_vhost(item.vhost)
        kind = item.destination_type
        name = f"{item.source} -> {item.destination}" + (f" ({item.routing_key})" if item.routing_key else "")
        if kind not in ("queue", "exchange"):
            raise ValueError(f"destination_type '{kind}' is neither queue nor exchange")
        if CONTROL_EXCHANGE in (item.source, item.destination if kind == "exchange" else ""):
            raise ValueError(f"operation not permitted on '{CONTROL_EXCHANGE}'")
        if len(item.routing_key.encode()) > NAME_MAX_BYTES:
            raise ValueError(f"routing_key is longer than {NAME_MAX_BYTES} bytes")
        arguments = _arguments(item.arguments)
        ends = (("exchange", item.source), (kind, item.destination))
        if item.source == "" or (kind == "exchange" and item.destination == ""):
            self._skip("binding", vhost, name, "the default exchange cannot have bindings")
            return
        if any(
            (end, vhost, end_name) in self._skipped and not self._exists(end, vhost, end_name) for end, end_name in ends
        ):
            self._skip("binding", vhost, name, "its source or destination is skipped")
            return
        for end, end_name in ends:
            if not self._exists(end, vhost, end_name):
                self._add(CONFLICT, "binding", vhost, name, f"no {end} '{end_name}' in vhost '{vhost}'")
                return
        step = Bind(vhost, item.source, item.destination, kind, item.routing_key, arguments)
        source = self._source(vhost, item.source)
        try:
            source.check_binding(item.routing_key, arguments)
        except AmqpError as error:
            if (vhost, item.source) not in self._differing:
                raise
            self._add(CONFLICT, "binding", vhost, name, error.explanation)
            return
        bound = self._bound.setdefault((vhost, item.source), set())
        identity = (kind, item.destination, item.routing_key, _table_text(arguments))
        if identity in bound:
            self._add(SAME, "binding", vhost, name)
            return
        there = self._maybe_vhost(vhost)
        owned = None if there is None or kind == "exchange" else there.queues.get(item.destination)
        if owned is not None and owned.owner is not None:
            self._add(CONFLICT, "binding", vhost, name, "the queue belongs to a connection")
            return
        limit = bindings_max(source, self._broker.limits.bindings_per_exchange_max)
        if len(bound) >= limit:
            raise ValueError(f"cannot bind from exchange '{item.source}': its limit of {limit} bindings is reached")
        bound.add(identity)
        self._add(CREATE, "binding", vhost, name, "", step)

    def _exists(self, kind: str, vhost: str, name: str) -> bool:
        """Tell whether there will be an exchange or queue (`kind`) of this name."""
        there = self._maybe_vhost(vhost)
        if kind == "queue":
            return (vhost, name) in self._queues or (there is not None and name in there.queues)
        if (vhost, name) in self._exchanges or (there is not None and name in there.exchanges):
            return True
        return there is None and name in self._born_with(vhost)

    def _source(self, vhost: str, name: str) -> Exchange:
        planned = self._exchanges.get((vhost, name))
        if planned is not None:
            return planned[1]
        there = self._maybe_vhost(vhost)
        return self._born_with(vhost)[name] if there is None else there.exchanges[name]

    def _born_with(self, vhost: str) -> dict[str, Exchange]:
        found = self._fresh.get(vhost)
        if found is None:
            found = {each.name: each for each in standard_exchanges(vhost)}
            self._fresh[vhost] = found
        return found

    async def _index_bindings(self, item: BindingItem) -> None:
        """Make sure that `_bound` has the existing bindings of the source of `item`."""
        key = (item.vhost or "", item.source)
        if key in self._bound:
            return
        found: set[tuple[str, str, str, str]] = set()
        self._bound[key] = found
        there = self._maybe_vhost(key[0])
        source = None if there is None else there.exchanges.get(item.source)
        if source is None:
            return
        for number, binding in enumerate(list(source.bindings.values())):
            kind = binding.destination.kind
            found.add((kind, binding.destination.name, binding.routing_key, _table_text(binding.arguments)))
            if number % _INDEX_PIECE == 0:
                await self._pause()

    # --- the plan ---------------------------------------------------------------------------------------------------

    def _maybe_vhost(self, name: str) -> VirtualHost | None:
        return self._broker.vhosts.get(name)

    def _known_vhost(self, name: str | None) -> str:
        assert name is not None  # the schema has checked
        if name not in self._vhosts and name not in self._broker.vhosts:
            raise ValueError(f"vhost '{name}' does not exist")
        return name

    def _planned(self, key: tuple[str, ...], there: Any) -> Any:
        """Return the planned object under `key`: `there`, the current one, or its replacement."""
        return self._puts.get(key, there)

    def _put(
        self,
        key: tuple[str, ...],
        put: MetadataChange,
        vhost: str,
        current: object,
        changed: list[str],
        guard: str,
        shown: str = "",
        *,
        kept: object = None,
    ) -> None:
        """Plan `put` in place of `current`; `changed` names the differences. A `guard` forbids it."""
        name = shown or (key[1] if len(key) == 2 or key[0].endswith("permission") else key[-1])
        if current is not None and not changed:
            self._add(SAME, key[0], vhost, name)
            return
        if guard:
            self._add(CONFLICT, key[0], vhost, name, guard)
            return
        if current is None:
            self._add(CREATE, key[0], vhost, name, "", put)
        else:
            self._add(UPDATE, key[0], vhost, name, ", ".join(changed), put)
        self._puts[key] = put if kept is None else kept

    def _put_value(self, key: tuple[str, ...], put: MetadataChange, vhost: str, value: object, before: object) -> None:
        current = self._planned(key, before)
        self._put(key, put, vhost, current, [] if current == value else ["value"], "", kept=value)

    def _skip(self, kind: str, vhost: str, name: str, reason: str) -> None:
        self._skipped.add((kind, vhost, name))
        self._add(SKIP, kind, vhost, name, reason)

    def _add(self, action: str, kind: str, vhost: str, name: str, detail: str = "", step: Step | None = None) -> None:
        self.plan.changes.append(PlannedChange(action, kind, vhost, name, detail, step))


def _check_given(name: str) -> None:
    if not name:
        raise ValueError("a name is empty")


def _check_name(kind: str, name: str) -> None:
    _check_given(name)
    check_name(kind, name)
    if len(name.encode()) > NAME_MAX_BYTES:
        raise ValueError(f"name is longer than {NAME_MAX_BYTES} bytes")


def _first(*values: Any) -> Any:
    """Return the first value that is given."""
    return next(value for value in values if value is not None)


def _differences(current: object, put: object, fields: tuple[str, ...]) -> list[str]:
    return [] if current is None else [name for name in fields if getattr(current, name) != getattr(put, name)]


def _is_wider(before: str, after: str) -> bool:
    """Tell whether pattern `after` certainly matches all that `before` matches."""
    return after in (before, EVERYTHING) or before in NOTHING


def _as_dict(given: object) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _object(given: object, what: str) -> str:
    """Return a JSON object as text; an empty array is an empty object.

    Raises:
        ValueError: it is not an object.
    """
    if given is None or given == []:
        given = {}
    if not isinstance(given, dict):
        raise ValueError(f"{what} must be an object")
    text = json.dumps(given)
    parse_definition(text)
    return text


def _arguments(given: object) -> bytes:
    try:
        return table_from_json(given)
    except ValueError as error:
        raise ValueError(f"arguments: {error}") from None


def _declaration(item: QueueItem, arguments: bytes) -> QueueDeclaration:
    return QueueDeclaration(item.name, durable=item.durable, auto_delete=item.auto_delete, arguments=arguments)


def _with_type(arguments: bytes, queue_type: str) -> bytes:
    return with_length(arguments[4:] + encode_table({QUEUE_TYPE: queue_type})[4:])


def _as_json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _table_text(arguments: bytes) -> str:
    """Return arguments in a form that does not depend on the width of integers or the order of keys."""
    return "" if arguments == EMPTY_TABLE else _as_json(table_to_json(arguments))
