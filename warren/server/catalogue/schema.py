"""The schema of the durable metadata: its versions, and how the tables of an older one become those of this one.

Schema versions: 1, the first; 2, queues have a `queue_id`, under which their messages are in the message store;
3, limits of vhosts and users, and policies; 4, parameters, and vhosts that are protected from deletion; 5, what is
applied.

A migration names tables and columns itself: those in `tables` are the newest, not the ones it meets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import (
    BigInteger,
    Connection,
    MetaData,
    Table,
    bindparam,
    insert,
    inspect,
    select,
    update,
)

from warren.server.catalogue.tables import GLOBAL_PARAMETERS, METADATA, SCHEMA, key, value
from warren.server.errors import CatalogueError as CatalogueError
from warren.server.logs import get_logger

log = get_logger("catalogue")

SCHEMA_VERSION: Final = 5
# The global parameter that says which file of definitions was imported last, and, in a new store, that none was yet.
DEFINITIONS_HASH: Final = "internal_definitions_hash"
_UNFILLED: Final = '""'


def prepare_schema(connection: Connection) -> None:
    if not inspect(connection).has_table(SCHEMA.name):
        METADATA.create_all(connection)
        connection.execute(insert(SCHEMA).values(version=SCHEMA_VERSION))
        connection.execute(insert(GLOBAL_PARAMETERS).values(name=DEFINITIONS_HASH, value=_UNFILLED))
        return
    version = connection.execute(select(SCHEMA.c.version)).scalar_one()
    if version > SCHEMA_VERSION:
        raise CatalogueError(
            f"written by a newer Warren (schema version {version}, this one knows {SCHEMA_VERSION}); "
            "start that version, or restore a backup made before the upgrade"
        )
    if version < SCHEMA_VERSION:
        if connection.dialect.name != "sqlite":
            log.warning(
                "the metadata store is migrated without a copy of what it was",
                schema=version,
                becomes=SCHEMA_VERSION,
                advice="only a dump from before leads back to an older Warren: pg_dump --table='warren_*'",
            )
        for migrate in MIGRATIONS[version - 1 :]:
            migrate(connection)
        connection.execute(update(SCHEMA).values(version=SCHEMA_VERSION))


def _number_queues(connection: Connection) -> None:
    """Lead from version 1 to 2: give the queues the ids 1, 2, 3 ... in the order of vhost and name."""
    _add_column(connection, "warren_queues", "queue_id", "BIGINT", "0")
    queues = Table("warren_queues", MetaData(), key("vhost"), key("name"), value("queue_id", BigInteger))
    ordered = connection.execute(select(queues.c.vhost, queues.c.name).order_by(queues.c.vhost, queues.c.name)).all()
    numbering = (
        update(queues)
        .where(queues.c.vhost == bindparam("of_vhost"), queues.c.name == bindparam("of_name"))
        .values(queue_id=bindparam("number"))
    )
    if ordered:
        connection.execute(
            numbering,
            [{"of_vhost": row.vhost, "of_name": row.name, "number": n} for n, row in enumerate(ordered, start=1)],
        )


def _add_limits_and_policies(connection: Connection) -> None:
    """Lead from version 2 to 3: three tables more, empty."""
    name = 'TEXT COLLATE "C"' if connection.dialect.name == "postgresql" else "TEXT"
    for table, column in (("warren_vhost_limits", "vhost"), ("warren_user_limits", "user_name")):
        connection.exec_driver_sql(
            f"CREATE TABLE {table} ({column} {name} NOT NULL, definition TEXT NOT NULL, PRIMARY KEY ({column}))"
        )
    connection.exec_driver_sql(
        f"CREATE TABLE warren_policies (vhost {name} NOT NULL, operator BOOLEAN NOT NULL, name {name} NOT NULL, "
        "pattern TEXT NOT NULL, apply_to TEXT NOT NULL, priority BIGINT NOT NULL, definition TEXT NOT NULL, "
        "PRIMARY KEY (vhost, operator, name))"
    )


def _add_parameters_and_protection(connection: Connection) -> None:
    """Lead from version 3 to 4: two tables more, empty, and no vhost is protected."""
    name = 'TEXT COLLATE "C"' if connection.dialect.name == "postgresql" else "TEXT"
    _add_column(connection, "warren_vhosts", "protected_from_deletion", "BOOLEAN", "FALSE")
    connection.exec_driver_sql(
        f"CREATE TABLE warren_parameters (vhost {name} NOT NULL, component {name} NOT NULL, name {name} NOT NULL, "
        "value TEXT NOT NULL, PRIMARY KEY (vhost, component, name))"
    )
    connection.exec_driver_sql(
        f"CREATE TABLE warren_global_parameters (name {name} NOT NULL, value TEXT NOT NULL, PRIMARY KEY (name))"
    )


def _add_applied(connection: Connection) -> None:
    """Lead from version 4 to 5: a table more, empty, since no change was in a log before."""
    binary = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
    connection.exec_driver_sql(
        f"CREATE TABLE warren_applied (store_id {binary} NOT NULL, changes BIGINT NOT NULL, PRIMARY KEY (store_id))"
    )


def _add_column(connection: Connection, table: str, column: str, type_: str, value: str) -> None:
    """Add a column that may not be null and is `value` in the rows there are."""
    connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column} {type_} NOT NULL DEFAULT {value}")
    if connection.dialect.name == "postgresql":
        # SQLite cannot take a default back; there it stays, unused, since every insert names the column.
        connection.exec_driver_sql(f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT")


# Entry n leads from schema version n + 1 to n + 2. A release that changes a table appends one.
MIGRATIONS: Final[list[Callable[[Connection], None]]] = [
    _number_queues,
    _add_limits_and_policies,
    _add_parameters_and_protection,
    _add_applied,
]


def is_unfilled(connection: Connection) -> bool:
    """Tell whether this store is new, or what was to fill it did not come; not: whether it was emptied since."""
    parameters = GLOBAL_PARAMETERS.c
    row = connection.execute(select(parameters.value).where(parameters.name == DEFINITIONS_HASH)).first()
    return row is not None and row.value == _UNFILLED
