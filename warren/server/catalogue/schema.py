"""Migrate the tables of the durable metadata from older schema versions to the current one.

Schema versions: 1, the first; 2, queues have a `queue_id`, under which their messages are in the message store; 3,
limits of vhosts and users, and policies; 4, parameters, and vhosts that are protected from deletion; 5, the applied
position; 6, the users that declared exchanges.

A migration names tables and columns itself: those in `tables` are the newest, not the ones it meets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warren.server.catalogue.database import Transaction
from warren.server.catalogue.tables import BIGINT, BYTES, GLOBAL_PARAMETERS, NAME, SCHEMA, TABLES, type_in
from warren.server.errors import CatalogueError as CatalogueError
from warren.server.logs import get_logger

log = get_logger("catalogue")

SCHEMA_VERSION: Final = 6
# The global parameter with the file of definitions that was imported last. A new store says with it: none yet.
DEFINITIONS_HASH: Final = "internal_definitions_hash"
_UNFILLED: Final = '""'


def maybe_version(transaction: Transaction) -> int | None:
    """Return the version of the tables, None without tables. Raises CatalogueError when the tables do not tell it."""
    found = {
        "sqlite": f"SELECT count(*) FROM sqlite_master WHERE name = '{SCHEMA}'",
        "postgresql": f"SELECT count(to_regclass('{SCHEMA}'))",
    }
    if not _value(transaction, found[transaction.kind]):
        return None
    version = _value(transaction, f"SELECT max(version) FROM {SCHEMA}")
    if not isinstance(version, int):
        raise CatalogueError(f"its table {SCHEMA} is empty")
    return version


def prepare_schema(transaction: Transaction) -> None:
    """Make the tables, or migrate those of an older version. Raises CatalogueError for a newer one."""
    version = maybe_version(transaction)
    if version is None:
        transaction.execute(f"CREATE TABLE {SCHEMA} (version INTEGER NOT NULL)")
        for table in TABLES:
            for statement in table.create(transaction.kind):
                transaction.execute(statement)
        transaction.execute(f"INSERT INTO {SCHEMA} VALUES ({SCHEMA_VERSION})")
        transaction.execute(GLOBAL_PARAMETERS.put, [{"name": DEFINITIONS_HASH, "value": _UNFILLED}])
        return
    if version > SCHEMA_VERSION:
        raise CatalogueError(
            f"written by a newer Warren (schema version {version}, this one knows {SCHEMA_VERSION}); "
            "start that version, or restore a backup made before the upgrade"
        )
    if version < SCHEMA_VERSION:
        if transaction.kind != "sqlite":
            log.warning(
                "the metadata store is migrated without a copy of what it was",
                schema=version,
                becomes=SCHEMA_VERSION,
                advice="only a dump from before leads back to an older Warren: pg_dump --table='warren_*'",
            )
        for migrate in MIGRATIONS[version - 1 :]:
            migrate(transaction)
        transaction.execute(f"UPDATE {SCHEMA} SET version = {SCHEMA_VERSION}")


def _value(transaction: Transaction, statement: str) -> object:
    ((value,),) = transaction.rows(statement)
    return value


def _number_queues(transaction: Transaction) -> None:
    """Migrate from version 1 to 2: give the queues the ids 1, 2, 3 ... in the order of vhost and name."""
    _add_column(transaction, "warren_queues", "queue_id", BIGINT, "0")
    ordered = list(transaction.rows("SELECT vhost, name FROM warren_queues ORDER BY vhost, name"))
    if ordered:
        transaction.execute(
            "UPDATE warren_queues SET queue_id = :number WHERE vhost = :vhost AND name = :name",
            [{"vhost": vhost, "name": name, "number": n} for n, (vhost, name) in enumerate(ordered, start=1)],
        )


def _add_limits_and_policies(transaction: Transaction) -> None:
    """Migrate from version 2 to 3: three additional tables, empty."""
    name = type_in(transaction.kind, NAME)
    for table, column in (("warren_vhost_limits", "vhost"), ("warren_user_limits", "user_name")):
        transaction.execute(
            f"CREATE TABLE {table} ({column} {name} NOT NULL, definition TEXT NOT NULL, PRIMARY KEY ({column}))"
        )
    transaction.execute(
        f"CREATE TABLE warren_policies (vhost {name} NOT NULL, operator BOOLEAN NOT NULL, name {name} NOT NULL, "
        "pattern TEXT NOT NULL, apply_to TEXT NOT NULL, priority BIGINT NOT NULL, definition TEXT NOT NULL, "
        "PRIMARY KEY (vhost, operator, name))"
    )


def _add_parameters_and_protection(transaction: Transaction) -> None:
    """Migrate from version 3 to 4: two additional tables, empty; vhosts are not protected."""
    name = type_in(transaction.kind, NAME)
    _add_column(transaction, "warren_vhosts", "protected_from_deletion", "BOOLEAN", "FALSE")
    transaction.execute(
        f"CREATE TABLE warren_parameters (vhost {name} NOT NULL, component {name} NOT NULL, name {name} NOT NULL, "
        "value TEXT NOT NULL, PRIMARY KEY (vhost, component, name))"
    )
    transaction.execute(
        f"CREATE TABLE warren_global_parameters (name {name} NOT NULL, value TEXT NOT NULL, PRIMARY KEY (name))"
    )


def _add_applied(transaction: Transaction) -> None:
    """Migrate from version 4 to 5: an additional table, empty, since earlier changes were not in a log."""
    transaction.execute(
        f"CREATE TABLE warren_applied (store_id {type_in(transaction.kind, BYTES)} NOT NULL, changes BIGINT NOT NULL, "
        "PRIMARY KEY (store_id))"
    )


def _add_declaring_users(transaction: Transaction) -> None:
    """Migrate from version 5 to 6: the users that declared the existing exchanges are not known."""
    _add_column(transaction, "warren_exchanges", "declared_by", type_in(transaction.kind, NAME), "''")


def _add_column(transaction: Transaction, table: str, column: str, type_: str, value: str) -> None:
    """Add a column that may not be null and is `value` in existing rows."""
    transaction.execute(f"ALTER TABLE {table} ADD COLUMN {column} {type_} NOT NULL DEFAULT {value}")
    if transaction.kind == "postgresql":
        # SQLite cannot remove a default again; there it stays, unused, since every insert names the column.
        transaction.execute(f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT")


# Entry n leads from schema version n + 1 to n + 2. A release that changes a table appends one.
MIGRATIONS: Final[list[Callable[[Transaction], None]]] = [
    _number_queues,
    _add_limits_and_policies,
    _add_parameters_and_protection,
    _add_applied,
    _add_declaring_users,
]


def is_unfilled(transaction: Transaction) -> bool:
    """Tell whether this store never got its first contents; a store that was emptied later does not count."""
    select = "SELECT value FROM warren_global_parameters WHERE name = :name"
    return list(transaction.rows(select, {"name": DEFINITIONS_HASH})) == [(_UNFILLED,)]
