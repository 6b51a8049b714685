"""Define the tables of the durable metadata: their columns, and the rows and statements for each change.

    warren_schema             version
    warren_vhosts             name | description, tags, default_queue_type, protected_from_deletion
    warren_users              name | password_hash, hashing_algorithm, tags
    warren_permissions        user_name, vhost | configure, write, read
    warren_topic_permissions  user_name, vhost, exchange | write, read
    warren_vhost_limits       vhost | definition
    warren_user_limits        user_name | definition
    warren_policies           vhost, operator, name | pattern, apply_to, priority, definition
    warren_parameters         vhost, component, name | value
    warren_global_parameters  name | value
    warren_exchanges          vhost, name | type, auto_delete, internal, arguments, declared_by
    warren_queues             vhost, name | auto_delete, arguments, queue_id
    warren_bindings           vhost, source, destination_type, destination, routing_key, arguments_digest
                              | arguments, ordinal
    warren_applied            store_id | changes; beside it a row of store_id and `LSN`, whose number is one, and
                              a row of store_id, `LIFE` and the id of a life, with the same number

1. Arguments and routing keys are client data and stored as bytes. Names are text, so that a person can read the tables;
   PostgreSQL's text has no NUL and UTF-8 no lone surrogates, so `row_of` refuses both for either database. Names with
   NUL are refused where they are declared; other control characters are kept.
2. Names are equal only when they are byte for byte the same UTF-8, on both databases, whatever their collation.
3. A put is an upsert, and deleting a missing row does nothing. A delete takes along what its documentation says
   (`warren.vhosts.metadata`). The tables have no foreign keys: a row that refers to a missing one loads, and the engine
   judges it.
4. Statements and most types are those that both databases understand, with parameters by name (``:name``). Where they
   differ, `Table.create` has the form for each.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, assert_never

from warren.server.errors import CatalogueError as CatalogueError
from warren.vhosts.metadata import (
    BindingDelete,
    BindingPut,
    ExchangeDelete,
    ExchangePut,
    GlobalParameterDelete,
    GlobalParameterPut,
    MetadataChange,
    ParameterDelete,
    ParameterPut,
    PermissionDelete,
    PermissionPut,
    PolicyDelete,
    PolicyPut,
    QueueDelete,
    QueuePut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
    VhostDelete,
    VhostLimitsDelete,
    VhostLimitsPut,
    VhostPut,
)

RowValues = dict[str, object]
Row = tuple[Any, ...]

# Types of columns. The C collation orders by byte, so that new locale data of the system does not affect the tables.
NAME: Final = "name"
TEXT: Final = "TEXT"
BOOLEAN: Final = "BOOLEAN"
INTEGER: Final = "INTEGER"
BIGINT: Final = "BIGINT"
BYTES: Final = "bytes"
_IN_WORDS_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {NAME: "TEXT", BYTES: "BLOB"},
    "postgresql": {NAME: 'TEXT COLLATE "C"', BYTES: "BYTEA"},
}


def type_in(database: str, type_: str) -> str:
    """Return a type of columns as ``sqlite`` or ``postgresql`` names it."""
    return _IN_WORDS_OF[database].get(type_, type_)


class Table:
    """A table: its columns with their types, those of the key first, and the statements about it.

    `index` has the columns of an additional index, and the end of its name. `kept`: columns whose value a put of an
    existing row keeps; `unread`: columns that loading does not need.
    """

    def __init__(
        self,
        name: str,
        key: Mapping[str, str],
        values: Mapping[str, str],
        index: tuple[str, tuple[str, ...]] | None = None,
        kept: frozenset[str] = frozenset(),
        unread: frozenset[str] = frozenset(),
        order: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.key = tuple(key)
        self._columns = {**key, **values}
        self._index = index
        names = ", ".join(self._columns)
        parameters = ", ".join(f":{column}" for column in self._columns)
        replaced = ", ".join(f"{column} = excluded.{column}" for column in values if column not in kept)
        self.put: Final = (
            f"INSERT INTO {name} ({names}) VALUES ({parameters}) "
            f"ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {replaced}"
        )
        read = ", ".join(column for column in self._columns if column not in unread)
        self.select: Final = f"SELECT {read} FROM {name} ORDER BY {', '.join(order or self.key)}"
        self.clear: Final = f"DELETE FROM {name}"

    def create(self, database: str) -> list[str]:
        """Return the statements that make it, for ``sqlite`` or ``postgresql``."""
        columns = [f"{name} {type_in(database, type_)} NOT NULL" for name, type_ in self._columns.items()]
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(self.key)})")
        statements = [f"CREATE TABLE {self.name} ({', '.join(columns)})"]
        if self._index is not None:
            name, indexed = self._index
            statements.append(f"CREATE INDEX {self.name}_{name} ON {self.name} ({', '.join(indexed)})")
        return statements

    def delete_where(self, **parameters: str) -> str:
        """Return the statement that deletes the rows whose columns (keywords) equal the parameters of these names."""
        return f"{self.clear} WHERE " + " AND ".join(f"{column} = :{name}" for column, name in parameters.items())


SCHEMA: Final = "warren_schema"
VHOSTS = Table(
    "warren_vhosts",
    {"name": NAME},
    {"description": TEXT, "tags": TEXT, "default_queue_type": TEXT, "protected_from_deletion": BOOLEAN},
)
USERS = Table("warren_users", {"name": NAME}, {"password_hash": TEXT, "hashing_algorithm": TEXT, "tags": TEXT})
PERMISSIONS = Table(
    "warren_permissions",
    {"user_name": NAME, "vhost": NAME},
    {"configure": TEXT, "write": TEXT, "read": TEXT},
    index=("of_vhost", ("vhost",)),
)
TOPIC_PERMISSIONS = Table(
    "warren_topic_permissions",
    {"user_name": NAME, "vhost": NAME, "exchange": NAME},
    {"write": TEXT, "read": TEXT},
    index=("of_vhost", ("vhost",)),
)
VHOST_LIMITS = Table("warren_vhost_limits", {"vhost": NAME}, {"definition": TEXT})
USER_LIMITS = Table("warren_user_limits", {"user_name": NAME}, {"definition": TEXT})
POLICIES = Table(
    "warren_policies",
    {"vhost": NAME, "operator": BOOLEAN, "name": NAME},
    {"pattern": TEXT, "apply_to": TEXT, "priority": BIGINT, "definition": TEXT},
)
PARAMETERS = Table("warren_parameters", {"vhost": NAME, "component": NAME, "name": NAME}, {"value": TEXT})
GLOBAL_PARAMETERS = Table("warren_global_parameters", {"name": NAME}, {"value": TEXT})
EXCHANGES = Table(
    "warren_exchanges",
    {"vhost": NAME, "name": NAME},
    {"type": TEXT, "auto_delete": BOOLEAN, "internal": BOOLEAN, "arguments": BYTES, "declared_by": NAME},
)
QUEUES = Table(
    "warren_queues",
    {"vhost": NAME, "name": NAME},
    {"auto_delete": BOOLEAN, "arguments": BYTES, "queue_id": BIGINT},
)
# Arguments belong to the identity of a binding but are too long for an index of PostgreSQL: the index has their digest.
# Hash exchanges number their destinations in the order of binding: a binding made again keeps its place.
BINDINGS = Table(
    "warren_bindings",
    {
        "vhost": NAME,
        "source": NAME,
        "destination_type": NAME,
        "destination": NAME,
        "routing_key": BYTES,
        "arguments_digest": BYTES,
    },
    {"arguments": BYTES, "ordinal": BIGINT},
    index=("to", ("vhost", "destination_type", "destination")),
    kept=frozenset({"ordinal"}),
    unread=frozenset({"arguments_digest", "ordinal"}),
    order=("ordinal",),
)
# Follows the id of a store in the row with the LSN up to which its log was known to be synced.
LSN: Final = b"lsn"
# Follows it in another row with that LSN, with the id of the life behind it that had written the log up to there.
LIFE: Final = b"life"
APPLIED = Table("warren_applied", {"store_id": BYTES}, {"changes": BIGINT})

PUTS: Final[dict[type, str]] = {
    VhostPut: VHOSTS.put,
    UserPut: USERS.put,
    PermissionPut: PERMISSIONS.put,
    TopicPermissionPut: TOPIC_PERMISSIONS.put,
    VhostLimitsPut: VHOST_LIMITS.put,
    UserLimitsPut: USER_LIMITS.put,
    PolicyPut: POLICIES.put,
    ParameterPut: PARAMETERS.put,
    GlobalParameterPut: GLOBAL_PARAMETERS.put,
    ExchangePut: EXCHANGES.put,
    QueuePut: QUEUES.put,
    BindingPut: BINDINGS.put,
}

DELETES: Final[dict[type, tuple[str, ...]]] = {
    VhostDelete: (
        BINDINGS.delete_where(vhost="name"),
        QUEUES.delete_where(vhost="name"),
        EXCHANGES.delete_where(vhost="name"),
        PARAMETERS.delete_where(vhost="name"),
        POLICIES.delete_where(vhost="name"),
        VHOST_LIMITS.delete_where(vhost="name"),
        TOPIC_PERMISSIONS.delete_where(vhost="name"),
        PERMISSIONS.delete_where(vhost="name"),
        VHOSTS.delete_where(name="name"),
    ),
    UserDelete: (
        USER_LIMITS.delete_where(user_name="name"),
        TOPIC_PERMISSIONS.delete_where(user_name="name"),
        PERMISSIONS.delete_where(user_name="name"),
        USERS.delete_where(name="name"),
    ),
    PermissionDelete: (PERMISSIONS.delete_where(user_name="user_name", vhost="vhost"),),
    TopicPermissionDelete: (
        # Of all exchanges, when none is named.
        TOPIC_PERMISSIONS.delete_where(user_name="user_name", vhost="vhost")
        + " AND (exchange = :exchange OR CAST(:exchange AS TEXT) = '')",
    ),
    VhostLimitsDelete: (VHOST_LIMITS.delete_where(vhost="vhost"),),
    UserLimitsDelete: (USER_LIMITS.delete_where(user_name="user_name"),),
    PolicyDelete: (POLICIES.delete_where(vhost="vhost", operator="operator", name="name"),),
    ParameterDelete: (PARAMETERS.delete_where(vhost="vhost", component="component", name="name"),),
    GlobalParameterDelete: (GLOBAL_PARAMETERS.delete_where(name="name"),),
    ExchangeDelete: (
        BINDINGS.delete_where(vhost="vhost", source="name"),
        BINDINGS.delete_where(vhost="vhost", destination_type="as_destination", destination="name"),
        EXCHANGES.delete_where(vhost="vhost", name="name"),
    ),
    QueueDelete: (
        BINDINGS.delete_where(vhost="vhost", destination_type="as_destination", destination="name"),
        QUEUES.delete_where(vhost="vhost", name="name"),
    ),
    BindingDelete: (BINDINGS.delete_where(**dict(zip(BINDINGS.key, BINDINGS.key, strict=True))),),
}


def row_of(change: MetadataChange) -> RowValues:
    """Return the parameters of the statements of `change`. Raises ValueError for unstorable text (1)."""
    row: RowValues
    match change:
        case VhostPut():
            row = {
                "name": change.name,
                "description": change.description,
                "tags": json.dumps(change.tags),
                "default_queue_type": change.default_queue_type,
                "protected_from_deletion": change.protected_from_deletion,
            }
        case UserPut():
            row = {
                "name": change.name,
                "password_hash": change.password_hash,
                "hashing_algorithm": change.hashing_algorithm,
                "tags": json.dumps(change.tags),
            }
        case PermissionPut():
            row = {
                "user_name": change.user,
                "vhost": change.vhost,
                "configure": change.configure,
                "write": change.write,
                "read": change.read,
            }
        case TopicPermissionPut():
            row = {
                "user_name": change.user,
                "vhost": change.vhost,
                "exchange": change.exchange,
                "write": change.write,
                "read": change.read,
            }
        case VhostLimitsPut():
            row = {"vhost": change.vhost, "definition": change.definition}
        case UserLimitsPut():
            row = {"user_name": change.user, "definition": change.definition}
        case PolicyPut():
            row = {
                "vhost": change.vhost,
                "operator": change.operator,
                "name": change.name,
                "pattern": change.pattern,
                "apply_to": change.apply_to,
                "priority": change.priority,
                "definition": change.definition,
            }
        case ParameterPut():
            row = {
                "vhost": change.vhost,
                "component": change.component,
                "name": change.name,
                "value": change.value,
            }
        case GlobalParameterPut():
            row = {"name": change.name, "value": change.value}
        case ExchangePut():
            row = {
                "vhost": change.vhost,
                "name": change.name,
                "type": change.type,
                "auto_delete": change.auto_delete,
                "internal": change.internal,
                "arguments": change.arguments,
                "declared_by": change.declared_by,
            }
        case QueuePut():
            row = {
                "vhost": change.vhost,
                "name": change.name,
                "auto_delete": change.auto_delete,
                "arguments": change.arguments,
                "queue_id": change.queue_id,
            }
        case BindingPut():
            row = {**_binding_key(change), "arguments": change.arguments}
        case BindingDelete():
            row = _binding_key(change)
        case VhostDelete() | UserDelete() | GlobalParameterDelete():
            row = {"name": change.name}
        case PermissionDelete():
            row = {"user_name": change.user, "vhost": change.vhost}
        case TopicPermissionDelete():
            row = {"user_name": change.user, "vhost": change.vhost, "exchange": change.exchange}
        case VhostLimitsDelete():
            row = {"vhost": change.vhost}
        case UserLimitsDelete():
            row = {"user_name": change.user}
        case PolicyDelete():
            row = {"vhost": change.vhost, "operator": change.operator, "name": change.name}
        case ParameterDelete():
            row = {"vhost": change.vhost, "component": change.component, "name": change.name}
        case ExchangeDelete():
            row = {"vhost": change.vhost, "name": change.name, "as_destination": "exchange"}
        case QueueDelete():
            row = {"vhost": change.vhost, "name": change.name, "as_destination": "queue"}
        case _:
            assert_never(change)
    for column, value in row.items():
        if isinstance(value, str) and not _is_storable(value):
            raise ValueError(f"{type(change).__name__}.{column} holds a character no database stores: {value!a}")
    return row


def _binding_key(binding: BindingPut | BindingDelete) -> RowValues:
    return {
        "vhost": binding.vhost,
        "source": binding.source,
        "destination_type": binding.destination_type,
        "destination": binding.destination,
        "routing_key": binding.routing_key.encode(),
        "arguments_digest": hashlib.sha256(binding.arguments).digest(),
    }


def _is_storable(text: str) -> bool:
    if text.isascii():
        return "\x00" not in text
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False


def _vhost_put(row: Row) -> VhostPut:
    name, description, tags, default_queue_type, protected = row
    return VhostPut(name, description, tuple(json.loads(tags)), default_queue_type, bool(protected))


def _user_put(row: Row) -> UserPut:
    name, password_hash, hashing_algorithm, tags = row
    return UserPut(name, password_hash, hashing_algorithm, tuple(json.loads(tags)))


def _policy_put(row: Row) -> PolicyPut:
    vhost, operator, name, pattern, apply_to, priority, definition = row
    return PolicyPut(vhost, name, pattern, apply_to, priority, definition, bool(operator))


def _exchange_put(row: Row) -> ExchangePut:
    vhost, name, type_, auto_delete, internal, arguments, declared_by = row
    # Few users declare all exchanges: one text for all of a user's.
    return ExchangePut(vhost, name, type_, bool(auto_delete), bool(internal), arguments, sys.intern(declared_by))


def _queue_put(row: Row) -> QueuePut:
    vhost, name, auto_delete, arguments, queue_id = row
    return QueuePut(vhost, name, bool(auto_delete), arguments, queue_id)


def _binding_put(row: Row) -> BindingPut:
    vhost, source, destination_type, destination, routing_key, arguments = row
    return BindingPut(vhost, source, destination, destination_type, routing_key.decode(), arguments)


# In dependency order, each with the function that makes a put of a row. SQLite has numbers for booleans.
LOADING_ORDER: Final[tuple[tuple[Table, Callable[[Row], MetadataChange]], ...]] = (
    (VHOSTS, _vhost_put),
    (USERS, _user_put),
    (PERMISSIONS, lambda row: PermissionPut(*row)),
    (TOPIC_PERMISSIONS, lambda row: TopicPermissionPut(*row)),
    (VHOST_LIMITS, lambda row: VhostLimitsPut(*row)),
    (USER_LIMITS, lambda row: UserLimitsPut(*row)),
    (POLICIES, _policy_put),
    (GLOBAL_PARAMETERS, lambda row: GlobalParameterPut(*row)),
    (PARAMETERS, lambda row: ParameterPut(*row)),
    (EXCHANGES, _exchange_put),
    (QUEUES, _queue_put),
    (BINDINGS, _binding_put),
)
# With the tables beside the contents: the schema version, and the applied positions.
TABLES: Final = (*(table for table, _ in LOADING_ORDER), APPLIED)
