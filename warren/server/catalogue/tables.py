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
4. The statements are built by SQLAlchemy for both databases. Only the upsert has a form of its own for each (`upsert`).
5. Values are read as the database returns them, and `put_of` converts them: an error can then name the row.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import methodcaller
from typing import Any, Final, get_args

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Delete,
    Dialect,
    Executable,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    Table,
    Text,
    bindparam,
    delete,
    or_,
    select,
)

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

METADATA: Final = MetaData()
# The C collation orders by byte, so that new locale data of the system does not affect the tables.
NAME: Final = Text().with_variant(Text(collation="C"), "postgresql")


class Bytes(LargeBinary):
    """Bytes that go to the drivers as they are: both take them, and a wrapper for each would cost."""

    def bind_processor(self, dialect: Dialect) -> None:
        """Return the conversion of parameters: none."""


def key(name: str, type_: Any = NAME) -> Column[Any]:
    """Return a column of the primary key."""
    return Column(name, type_, primary_key=True)


def value(name: str, type_: Any = Text) -> Column[Any]:
    """Return a column beside the key; it is never NULL."""
    return Column(name, type_, nullable=False)


SCHEMA: Final = Table("warren_schema", METADATA, value("version", Integer))
VHOSTS: Final = Table(
    "warren_vhosts",
    METADATA,
    key("name"),
    value("description"),
    value("tags"),
    value("default_queue_type"),
    value("protected_from_deletion", Boolean),
)
USERS: Final = Table(
    "warren_users", METADATA, key("name"), value("password_hash"), value("hashing_algorithm"), value("tags")
)
PERMISSIONS: Final = Table(
    "warren_permissions",
    METADATA,
    key("user_name"),
    key("vhost"),
    value("configure"),
    value("write"),
    value("read"),
    Index("warren_permissions_of_vhost", "vhost"),
)
TOPIC_PERMISSIONS: Final = Table(
    "warren_topic_permissions",
    METADATA,
    key("user_name"),
    key("vhost"),
    key("exchange"),
    value("write"),
    value("read"),
    Index("warren_topic_permissions_of_vhost", "vhost"),
)
VHOST_LIMITS: Final = Table("warren_vhost_limits", METADATA, key("vhost"), value("definition"))
USER_LIMITS: Final = Table("warren_user_limits", METADATA, key("user_name"), value("definition"))
POLICIES: Final = Table(
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
PARAMETERS: Final = Table("warren_parameters", METADATA, key("vhost"), key("component"), key("name"), value("value"))
GLOBAL_PARAMETERS: Final = Table("warren_global_parameters", METADATA, key("name"), value("value"))
EXCHANGES: Final = Table(
    "warren_exchanges",
    METADATA,
    key("vhost"),
    key("name"),
    value("type"),
    value("auto_delete", Boolean),
    value("internal", Boolean),
    value("arguments", Bytes),
    value("declared_by", NAME),
)
QUEUES: Final = Table(
    "warren_queues",
    METADATA,
    key("vhost"),
    key("name"),
    value("auto_delete", Boolean),
    value("arguments", Bytes),
    value("queue_id", BigInteger),
)
# Arguments belong to the identity of a binding but are too long for an index of PostgreSQL: the index has their digest.
# Hash exchanges number their destinations in the order of binding: a binding made again keeps its place.
BINDINGS: Final = Table(
    "warren_bindings",
    METADATA,
    key("vhost"),
    key("source"),
    key("destination_type"),
    key("destination"),
    key("routing_key", Bytes),
    key("arguments_digest", Bytes),
    value("arguments", Bytes),
    value("ordinal", BigInteger),
    Index("warren_bindings_to", "vhost", "destination_type", "destination"),
)
# Follows the id of a store in the row with the LSN up to which its log was known to be synced.
LSN: Final = b"lsn"
# Follows it in another row with that LSN. The id of the life that had written the log up to there is at the end.
LIFE: Final = b"life"
APPLIED: Final = Table("warren_applied", METADATA, key("store_id", Bytes), value("changes", BigInteger))

# The table of each kind that is put, in the order in which they can be loaded.
TABLES: Final[dict[type, Table]] = {
    VhostPut: VHOSTS,
    UserPut: USERS,
    PermissionPut: PERMISSIONS,
    TopicPermissionPut: TOPIC_PERMISSIONS,
    VhostLimitsPut: VHOST_LIMITS,
    UserLimitsPut: USER_LIMITS,
    PolicyPut: POLICIES,
    GlobalParameterPut: GLOBAL_PARAMETERS,
    ParameterPut: PARAMETERS,
    ExchangePut: EXCHANGES,
    QueuePut: QUEUES,
    BindingPut: BINDINGS,
}


def _delete_where(table: Table, **parameters: str) -> Delete:
    """Delete the rows whose columns (keywords) equal the parameters of these names."""
    return delete(table).where(*(table.c[column] == bindparam(name) for column, name in parameters.items()))


def _delete_row(table: Table) -> Delete:
    return _delete_where(table, **{column.name: column.name for column in table.primary_key})


def _unbind(destination_type: str) -> Delete:
    bindings = _delete_where(BINDINGS, vhost="vhost", destination="name")
    return bindings.where(BINDINGS.c.destination_type == destination_type)


DELETES: Final[dict[type, tuple[Executable, ...]]] = {
    VhostDelete: (
        *(_delete_where(table, vhost="name") for table in TABLES.values() if "vhost" in table.c),
        _delete_row(VHOSTS),
    ),
    UserDelete: (
        *(_delete_where(table, user_name="name") for table in TABLES.values() if "user_name" in table.c),
        _delete_row(USERS),
    ),
    PermissionDelete: (_delete_row(PERMISSIONS),),
    TopicPermissionDelete: (
        _delete_where(TOPIC_PERMISSIONS, user_name="user_name", vhost="vhost").where(
            # Of all exchanges, when none is named.
            or_(TOPIC_PERMISSIONS.c.exchange == bindparam("exchange"), bindparam("exchange", type_=Text) == "")
        ),
    ),
    VhostLimitsDelete: (_delete_row(VHOST_LIMITS),),
    UserLimitsDelete: (_delete_row(USER_LIMITS),),
    PolicyDelete: (_delete_row(POLICIES),),
    ParameterDelete: (_delete_row(PARAMETERS),),
    GlobalParameterDelete: (_delete_row(GLOBAL_PARAMETERS),),
    ExchangeDelete: (
        _delete_where(BINDINGS, vhost="vhost", source="name"),
        _unbind("exchange"),
        _delete_row(EXCHANGES),
    ),
    QueueDelete: (_unbind("queue"), _delete_row(QUEUES)),
    BindingDelete: (_delete_row(BINDINGS),),
}


def upsert(table: Table, dialect: Dialect) -> Executable:
    """Return the statement that puts rows, in the words of `dialect`; an existing binding keeps its ordinal."""
    # Each database needs the module of its own dialect only.
    if dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite as words
    else:
        from sqlalchemy.dialects import postgresql as words  # type: ignore[no-redef]
    statement = words.insert(table)
    replaced = {
        column.name: statement.excluded[column.name]
        for column in table.c
        if not column.primary_key and column is not BINDINGS.c.ordinal
    }
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=replaced)


# The columns of each kind of change, with the fields that they hold.
_COLUMNS: Final[dict[type, list[tuple[str, str]]]] = {
    kind: [("user_name" if field.name == "user" else field.name, field.name) for field in fields(kind)]
    for kind in get_args(MetadataChange)
}
# Fields that have another form in their columns.
_READ: Final[dict[str, Callable[[Any], object]]] = {
    "tags": lambda text: tuple(json.loads(text)),
    "routing_key": methodcaller("decode"),
    "declared_by": sys.intern,  # few users declare all exchanges: one text for all of a user's
}


def row_of(change: MetadataChange) -> RowValues:
    """Return the parameters of the statements of `change`. Raises ValueError for unstorable text (1)."""
    row: RowValues = {column: getattr(change, field) for column, field in _COLUMNS[type(change)]}
    if isinstance(change, VhostPut | UserPut):
        row["tags"] = json.dumps(change.tags)
    elif isinstance(change, BindingPut | BindingDelete):
        row["routing_key"] = change.routing_key.encode()
        row["arguments_digest"] = hashlib.sha256(change.arguments).digest()
    for column, stored in row.items():
        if isinstance(stored, str) and not _is_storable(stored):
            raise ValueError(f"{type(change).__name__}.{column} holds a character no database stores: {stored!a}")
    return row


def _is_storable(text: str) -> bool:
    if text.isascii():
        return "\x00" not in text
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False


def rows_of(kind: type) -> Select[Any]:
    """Return the statement that selects all puts of `kind`, a row of their fields each, in the order of loading."""
    table = TABLES[kind]
    order = [BINDINGS.c.ordinal] if table is BINDINGS else table.primary_key
    return select(*(table.c[column] for column, _ in _COLUMNS[kind])).order_by(*order)


def put_of(kind: type) -> Callable[[Sequence[Any]], MetadataChange]:
    """Return the function that makes a put of `kind` from a row of `rows_of`."""
    converted = [(place, _READ[field]) for place, (field, _) in enumerate(_COLUMNS[kind]) if field in _READ]
    if not converted:
        return lambda row: kind(*row)

    def put(row: Sequence[Any]) -> MetadataChange:
        values = list(row)
        for place, convert in converted:
            values[place] = convert(values[place])
        made: MetadataChange = kind(*values)
        return made

    return put
