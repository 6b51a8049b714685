"""The tables of the durable metadata: their columns, and what a change of the metadata is in rows and statements.

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
    warren_exchanges          vhost, name | type, auto_delete, internal, arguments
    warren_queues             vhost, name | auto_delete, arguments, queue_id
    warren_bindings           vhost, source, destination_type, destination, routing_key, arguments_digest
                              | arguments, ordinal
    warren_applied            store_id | changes

1. Arguments and routing keys are client data and stored as bytes. Names are text, so that a person can read the tables;
   PostgreSQL's text has no NUL and UTF-8 no lone surrogates, so `row_of` refuses both for either database. Names with
   NUL are refused where they are declared; other control characters are kept.
2. Names are equal only when they are byte for byte the same UTF-8, on both databases, whatever their collation.
3. A put is an upsert, a delete of what is missing does nothing. A delete takes along what it is documented to
   (`warren.vhosts.metadata`). There are no foreign keys: a row that refers to nothing loads
   and is the engine's to judge.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final, assert_never

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Executable,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Table,
    Text,
    bindparam,
    delete,
    or_,
)

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

METADATA = MetaData()
# The C collation orders by byte and spares the tables every change of the system's locale data.
_Name = Text().with_variant(Text(collation="C"), "postgresql")


def key(name: str, type_: Any = _Name) -> Column[Any]:
    return Column(name, type_, primary_key=True)


def value(name: str, type_: Any = Text) -> Column[Any]:
    return Column(name, type_, nullable=False)


SCHEMA = Table("warren_schema", METADATA, Column("version", Integer, nullable=False))
VHOSTS = Table(
    "warren_vhosts",
    METADATA,
    key("name"),
    value("description"),
    value("tags"),
    value("default_queue_type"),
    value("protected_from_deletion", Boolean),
)
USERS = Table(
    "warren_users",
    METADATA,
    key("name"),
    value("password_hash"),
    value("hashing_algorithm"),
    value("tags"),
)
PERMISSIONS = Table(
    "warren_permissions",
    METADATA,
    key("user_name"),
    key("vhost"),
    value("configure"),
    value("write"),
    value("read"),
    Index("warren_permissions_of_vhost", "vhost"),
)
TOPIC_PERMISSIONS = Table(
    "warren_topic_permissions",
    METADATA,
    key("user_name"),
    key("vhost"),
    key("exchange"),
    value("write"),
    value("read"),
    Index("warren_topic_permissions_of_vhost", "vhost"),
)
VHOST_LIMITS = Table("warren_vhost_limits", METADATA, key("vhost"), value("definition"))
USER_LIMITS = Table("warren_user_limits", METADATA, key("user_name"), value("definition"))
POLICIES = Table(
    "warren_policies",
    METADATA,
    key("vhost"),
    key("operator", Boolean),
    key("name"),
    value("pattern"),
    value("apply_to"),
    value("priority", BigInteger),
    value("definition"),
)
PARAMETERS = Table("warren_parameters", METADATA, key("vhost"), key("component"), key("name"), value("value"))
GLOBAL_PARAMETERS = Table("warren_global_parameters", METADATA, key("name"), value("value"))
EXCHANGES = Table(
    "warren_exchanges",
    METADATA,
    key("vhost"),
    key("name"),
    value("type"),
    value("auto_delete", Boolean),
    value("internal", Boolean),
    value("arguments", LargeBinary),
)
QUEUES = Table(
    "warren_queues",
    METADATA,
    key("vhost"),
    key("name"),
    value("auto_delete", Boolean),
    value("arguments", LargeBinary),
    value("queue_id", BigInteger),
)
# Arguments belong to the identity of a binding but are too long for an index of PostgreSQL: their digest
# stands in.
BINDINGS = Table(
    "warren_bindings",
    METADATA,
    key("vhost"),
    key("source"),
    key("destination_type"),
    key("destination"),
    key("routing_key", LargeBinary),
    key("arguments_digest", LargeBinary),
    value("arguments", LargeBinary),
    # Hash exchanges number their destinations in the order in which they were bound.
    value("ordinal", BigInteger),
    Index("warren_bindings_to", "vhost", "destination_type", "destination"),
)
APPLIED = Table("warren_applied", METADATA, key("store_id", LargeBinary), value("changes", BigInteger))
RowValues = dict[str, object]


def put_statements(dialect: Dialect) -> dict[type, Executable]:
    """Build the upsert of every kind in the words of `dialect`."""
    if dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_for
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_for  # type: ignore[assignment]

    def put(table: Table) -> Executable:
        statement = insert_for(table)
        key = list(table.primary_key)
        # A binding made again keeps its place.
        values = {
            column.name: statement.excluded[column.name]
            for column in table.c
            if not column.primary_key and column.name != "ordinal"
        }
        return statement.on_conflict_do_update(index_elements=key, set_=values)

    return {
        VhostPut: put(VHOSTS),
        UserPut: put(USERS),
        PermissionPut: put(PERMISSIONS),
        TopicPermissionPut: put(TOPIC_PERMISSIONS),
        VhostLimitsPut: put(VHOST_LIMITS),
        UserLimitsPut: put(USER_LIMITS),
        PolicyPut: put(POLICIES),
        ParameterPut: put(PARAMETERS),
        GlobalParameterPut: put(GLOBAL_PARAMETERS),
        ExchangePut: put(EXCHANGES),
        QueuePut: put(QUEUES),
        BindingPut: put(BINDINGS),
    }


def _delete_where(table: Table, **parameters: str) -> Executable:
    """Delete the rows of `table` whose columns (keywords) equal the fields (values) of the change."""
    statement = delete(table)
    for column, parameter in parameters.items():
        statement = statement.where(table.c[column] == bindparam(parameter, type_=table.c[column].type))
    return statement


DELETES: Final[dict[type, tuple[Executable, ...]]] = {
    VhostDelete: (
        _delete_where(BINDINGS, vhost="name"),
        _delete_where(QUEUES, vhost="name"),
        _delete_where(EXCHANGES, vhost="name"),
        _delete_where(PARAMETERS, vhost="name"),
        _delete_where(POLICIES, vhost="name"),
        _delete_where(VHOST_LIMITS, vhost="name"),
        _delete_where(TOPIC_PERMISSIONS, vhost="name"),
        _delete_where(PERMISSIONS, vhost="name"),
        _delete_where(VHOSTS, name="name"),
    ),
    UserDelete: (
        _delete_where(USER_LIMITS, user_name="name"),
        _delete_where(TOPIC_PERMISSIONS, user_name="name"),
        _delete_where(PERMISSIONS, user_name="name"),
        _delete_where(USERS, name="name"),
    ),
    PermissionDelete: (_delete_where(PERMISSIONS, user_name="user_name", vhost="vhost"),),
    TopicPermissionDelete: (
        delete(TOPIC_PERMISSIONS).where(
            TOPIC_PERMISSIONS.c.user_name == bindparam("user_name"),
            TOPIC_PERMISSIONS.c.vhost == bindparam("vhost"),
            or_(TOPIC_PERMISSIONS.c.exchange == bindparam("exchange"), bindparam("exchange") == ""),
        ),
    ),
    VhostLimitsDelete: (_delete_where(VHOST_LIMITS, vhost="vhost"),),
    UserLimitsDelete: (_delete_where(USER_LIMITS, user_name="user_name"),),
    PolicyDelete: (_delete_where(POLICIES, vhost="vhost", operator="operator", name="name"),),
    ParameterDelete: (_delete_where(PARAMETERS, vhost="vhost", component="component", name="name"),),
    GlobalParameterDelete: (_delete_where(GLOBAL_PARAMETERS, name="name"),),
    ExchangeDelete: (
        _delete_where(BINDINGS, vhost="vhost", source="name"),
        _delete_where(BINDINGS, vhost="vhost", destination_type="as_destination", destination="name"),
        _delete_where(EXCHANGES, vhost="vhost", name="name"),
    ),
    QueueDelete: (
        _delete_where(BINDINGS, vhost="vhost", destination_type="as_destination", destination="name"),
        _delete_where(QUEUES, vhost="vhost", name="name"),
    ),
    BindingDelete: (_delete_where(BINDINGS, **{column.name: column.name for column in BINDINGS.primary_key}),),
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


def _binding_put(row: Row[Any]) -> BindingPut:
    # By position: there may be a million of them, and a look-up by name takes as long as all the rest.
    values: Any = row
    vhost, source, destination_type, destination, routing_key, _, arguments, _ = values
    return BindingPut(vhost, source, destination, destination_type, routing_key.decode(), arguments)


def _vhost_put(row: Row[Any]) -> VhostPut:
    tags = tuple(json.loads(row.tags))
    return VhostPut(row.name, row.description, tags, row.default_queue_type, row.protected_from_deletion)


def _policy_put(row: Row[Any]) -> PolicyPut:
    return PolicyPut(row.vhost, row.name, row.pattern, row.apply_to, row.priority, row.definition, row.operator)


LOADING_ORDER: Final[tuple[tuple[Table, Callable[[Row[Any]], MetadataChange]], ...]] = (
    (VHOSTS, _vhost_put),
    (USERS, lambda r: UserPut(r.name, r.password_hash, r.hashing_algorithm, tuple(json.loads(r.tags)))),
    (PERMISSIONS, lambda r: PermissionPut(r.user_name, r.vhost, r.configure, r.write, r.read)),
    (TOPIC_PERMISSIONS, lambda r: TopicPermissionPut(r.user_name, r.vhost, r.exchange, r.write, r.read)),
    (VHOST_LIMITS, lambda r: VhostLimitsPut(r.vhost, r.definition)),
    (USER_LIMITS, lambda r: UserLimitsPut(r.user_name, r.definition)),
    (POLICIES, _policy_put),
    (GLOBAL_PARAMETERS, lambda r: GlobalParameterPut(r.name, r.value)),
    (PARAMETERS, lambda r: ParameterPut(r.vhost, r.component, r.name, r.value)),
    (EXCHANGES, lambda r: ExchangePut(r.vhost, r.name, r.type, r.auto_delete, r.internal, r.arguments)),
    (QUEUES, lambda r: QueuePut(r.vhost, r.name, r.auto_delete, r.arguments, r.queue_id)),
    (BINDINGS, _binding_put),
)
