"""Migrate the tables of the durable metadata from older schema versions to the current one.

Schema versions: 1, the first; 2, queues have a `queue_id`, under which their messages are in the message store; 3,
limits of vhosts and users, and policies; 4, parameters, and vhosts that are protected from deletion; 5, the applied
position; 6, the users that declared exchanges.

A migration names tables and columns itself: those in `tables` are the newest, not the ones it meets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    LargeBinary,
    MetaData,
    Table,
    bindparam,
    column,
    func,
    insert,
    inspect,
    select,
    table,
    text,
    update,
)
from sqlalchemy.schema import CreateColumn

from warren.server.catalogue.tables import GLOBAL_PARAMETERS, METADATA, NAME, SCHEMA, key, value
from warren.server.logs import get_logger
from warren.server.start_errors import CatalogueError as CatalogueError

log = get_logger("catalogue")

SCHEMA_VERSION: Final = 6
# The global parameter with the file of definitions that was imported last. A new store says with it: none yet.
DEFINITIONS_HASH: Final = "internal_definitions_hash"
_UNFILLED: Final = '""'


def maybe_version(connection: Connection) -> int | None:
    """Return the version of the tables, None without tables. Raises CatalogueError when the tables do not tell it."""
    if not inspect(connection).has_table(SCHEMA.name):
        return None
    version = connection.scalar(select(func.max(SCHEMA.c.version)))
    if not isinstance(version, int):
        raise CatalogueError(f"its table {SCHEMA.name} is empty")
    return version


def prepare_schema(connection: Connection) -> None:
    """Make the tables, or migrate those of an older version. Raises CatalogueError for a newer one."""
    version = maybe_version(connection)
    if version is None:
        METADATA.create_all(connection, checkfirst=False)
        connection.execute(insert(SCHEMA).values(version=SCHEMA_VERSION))
        connection.execute(insert(GLOBAL_PARAMETERS).values(name=DEFINITIONS_HASH, value=_UNFILLED))
        return
    if version > SCHEMA_VERSION:
        raise CatalogueError(f"written by a newer Warren (schema version {version}, this one knows {SCHEMA_VERSION})")
    if version < SCHEMA_VERSION:
        if connection.dialect.name != "sqlite":
            log.warning(
                "the metadata store is migrated without a copy of its old contents",
                schema=version,
                becomes=SCHEMA_VERSION,
                advice="an older Warren needs a dump from before the migration: pg_dump --table='warren_*'",
            )
        for migrate in MIGRATIONS[version - 1 :]:
            migrate(connection)
        connection.execute(update(SCHEMA).values(version=SCHEMA_VERSION))


def _number_queues(connection: Connection) -> None:
    """Migrate from version 1 to 2: give the queues the ids 1, 2, 3 ... in the order of vhost and name."""
    _add_column(connection, "warren_queues", Column("queue_id", BigInteger, server_default=text("0"), nullable=False))
    queues = table("warren_queues", column("vhost"), column("name"), column("queue_id"))
    ordered = connection.execute(select(queues.c.vhost, queues.c.name).order_by(queues.c.vhost, queues.c.name)).all()
    if ordered:
        connection.execute(
            update(queues)
            .where(queues.c.vhost == bindparam("of_vhost"), queues.c.name == bindparam("of_name"))
            .values(queue_id=bindparam("number")),
            [{"of_vhost": vhost, "of_name": name, "number": n} for n, (vhost, name) in enumerate(ordered, start=1)],
        )


def _add_limits_and_policies(connection: Connection) -> None:
    """Migrate from version 2 to 3: three additional tables, empty."""
    _add_table(connection, "warren_vhost_limits", key("vhost"), value("definition"))
    _add_table(connection, "warren_user_limits", key("user_name"), value("definition"))
    _add_table(
        connection,
        "warren_policies",
        key("vhost"),
        key("operator", Boolean),
        key("name"),
        value("pattern"),
        value("apply_to"),
        value("priority", BigInteger),
        value("definition"),
    )


def _add_parameters_and_protection(connection: Connection) -> None:
    """Migrate from version 3 to 4: two additional tables, empty; vhosts are not protected."""
    protected = Column("protected_from_deletion", Boolean, server_default=text("FALSE"), nullable=False)
    _add_column(connection, "warren_vhosts", protected)
    _add_table(connection, "warren_parameters", key("vhost"), key("component"), key("name"), value("value"))
    _add_table(connection, "warren_global_parameters", key("name"), value("value"))


def _add_applied(connection: Connection) -> None:
    """Migrate from version 4 to 5: an additional table, empty, since earlier changes were not in a log."""
    _add_table(connection, "warren_applied", key("store_id", LargeBinary), value("changes", BigInteger))


def _add_declaring_users(connection: Connection) -> None:
    """Migrate from version 5 to 6: the users that declared the existing exchanges are not known."""
    declared_by = Column("declared_by", NAME, server_default=text("''"), nullable=False)
    _add_column(connection, "warren_exchanges", declared_by)


def _add_table(connection: Connection, name: str, *columns: Column[Any]) -> None:
    Table(name, MetaData(), *columns).create(connection, checkfirst=False)


def _add_column(connection: Connection, name: str, added: Column[Any]) -> None:
    """Add a column that may not be null and has its default in existing rows."""
    Table(name, MetaData(), added)
    described = CreateColumn(added).compile(dialect=connection.dialect)
    connection.execute(text(f"ALTER TABLE {name} ADD COLUMN {described}"))
    if connection.dialect.name == "postgresql":
        # SQLite cannot remove a default again; there it stays, unused, since every insert names the column.
        connection.execute(text(f"ALTER TABLE {name} ALTER COLUMN {added.name} DROP DEFAULT"))


# Entry n leads from schema version n + 1 to n + 2. A release that changes a table appends one.
MIGRATIONS: Final[list[Callable[[Connection], None]]] = [
    _number_queues,
    _add_limits_and_policies,
    _add_parameters_and_protection,
    _add_applied,
    _add_declaring_users,
]


def is_unfilled(connection: Connection) -> bool:
    """Tell whether this store never got its first contents; a store that was emptied later does not count."""
    found = select(GLOBAL_PARAMETERS.c.value).where(GLOBAL_PARAMETERS.c.name == DEFINITIONS_HASH)
    return connection.scalar(found) == _UNFILLED
