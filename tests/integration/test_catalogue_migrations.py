"""Stores that earlier versions made, statement by statement as they made them, open with this one."""

from __future__ import annotations

import logging
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from warren.server.catalogue.catalogue import Catalogue, CatalogueError
from warren.server.catalogue.schema import SCHEMA_VERSION
from warren.vhosts.metadata import (
    BindingPut,
    ExchangePut,
    GlobalParameterPut,
    MetadataChange,
    ParameterPut,
    PermissionPut,
    PolicyPut,
    QueueDelete,
    QueuePut,
    TopicPermissionPut,
    UserLimitsPut,
    UserPut,
    VhostDelete,
    VhostLimitsPut,
    VhostPut,
)

from .metadata_urls import FreshUrl

EMPTY = bytes(4)
ARGUMENTS = b"\x00\x00\x00\x03\x01xV"
DIGEST = b"\xd1" * 32

# The statements of version 1. {name} is how a database writes a text column compared by byte, {bytes} one of bytes.
VERSION_1 = """
CREATE TABLE warren_schema (version INTEGER NOT NULL);
CREATE TABLE warren_vhosts (
    name {name} NOT NULL, description TEXT NOT NULL, tags TEXT NOT NULL, default_queue_type TEXT NOT NULL,
    PRIMARY KEY (name));
CREATE TABLE warren_users (
    name {name} NOT NULL, password_hash TEXT NOT NULL, hashing_algorithm TEXT NOT NULL, tags TEXT NOT NULL,
    PRIMARY KEY (name));
CREATE TABLE warren_permissions (
    user_name {name} NOT NULL, vhost {name} NOT NULL, configure TEXT NOT NULL, write TEXT NOT NULL, read TEXT NOT NULL,
    PRIMARY KEY (user_name, vhost));
CREATE INDEX warren_permissions_of_vhost ON warren_permissions (vhost);
CREATE TABLE warren_topic_permissions (
    user_name {name} NOT NULL, vhost {name} NOT NULL, exchange {name} NOT NULL, write TEXT NOT NULL, read TEXT NOT NULL,
    PRIMARY KEY (user_name, vhost, exchange));
CREATE INDEX warren_topic_permissions_of_vhost ON warren_topic_permissions (vhost);
CREATE TABLE warren_exchanges (
    vhost {name} NOT NULL, name {name} NOT NULL, type TEXT NOT NULL, auto_delete BOOLEAN NOT NULL,
    internal BOOLEAN NOT NULL, arguments {bytes} NOT NULL,
    PRIMARY KEY (vhost, name));
CREATE TABLE warren_queues (
    vhost {name} NOT NULL, name {name} NOT NULL, auto_delete BOOLEAN NOT NULL, arguments {bytes} NOT NULL,
    PRIMARY KEY (vhost, name));
CREATE TABLE warren_bindings (
    vhost {name} NOT NULL, source {name} NOT NULL, destination_type {name} NOT NULL, destination {name} NOT NULL,
    routing_key {bytes} NOT NULL, arguments_digest {bytes} NOT NULL, arguments {bytes} NOT NULL,
    ordinal BIGINT NOT NULL,
    PRIMARY KEY (vhost, source, destination_type, destination, routing_key, arguments_digest));
CREATE INDEX warren_bindings_to ON warren_bindings (vhost, destination_type, destination);
INSERT INTO warren_schema VALUES (1);
"""

# The statements of version 2: the same with ids of queues.
VERSION_2 = VERSION_1.replace(
    """arguments {bytes} NOT NULL,
    PRIMARY KEY (vhost, name));
CREATE TABLE warren_bindings""",
    """arguments {bytes} NOT NULL, queue_id BIGINT NOT NULL,
    PRIMARY KEY (vhost, name));
CREATE TABLE warren_bindings""",
).replace("INTO warren_schema VALUES (1)", "INTO warren_schema VALUES (2)")

# The statements of version 3: the same with limits and policies.
VERSION_3 = VERSION_2.replace(
    "INSERT INTO warren_schema VALUES (2)",
    """CREATE TABLE warren_vhost_limits (vhost {name} NOT NULL, definition TEXT NOT NULL, PRIMARY KEY (vhost));
CREATE TABLE warren_user_limits (user_name {name} NOT NULL, definition TEXT NOT NULL, PRIMARY KEY (user_name));
CREATE TABLE warren_policies (
    vhost {name} NOT NULL, operator BOOLEAN NOT NULL, name {name} NOT NULL, pattern TEXT NOT NULL,
    apply_to TEXT NOT NULL, priority BIGINT NOT NULL, definition TEXT NOT NULL,
    PRIMARY KEY (vhost, operator, name));
INSERT INTO warren_schema VALUES (3)""",
)

# Declared in this order, which is not the order of their names. PostgreSQL's server locale would sort "a" before "B".
QUEUES = [("w", "q"), ("/", "\u00e9"), ("/", "z"), ("/", "a"), ("/", "B"), ("/", "\U0001f407"), ("/", "\uffee")]
NUMBERED = [("/", "B"), ("/", "a"), ("/", "z"), ("/", "\u00e9"), ("/", "\uffee"), ("/", "\U0001f407"), ("w", "q")]


class Database:
    """An empty database that statements are sent to without Warren."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._is_sqlite = url.startswith("sqlite")

    def execute(self, statement: str, rows: Sequence[tuple[object, ...]] = ((),)) -> list[tuple[object, ...]]:
        """Execute `statement`, with ``?`` for each value, once per row; return what the last one gave."""
        if self._is_sqlite:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as database:
                for row in rows:
                    cursor = database.execute(statement, row)
                given = cursor.fetchall()
                database.commit()
                return given
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            for row in rows:
                done = connection.execute(statement.replace("?", "%s").encode(), row)
            return done.fetchall() if done.description is not None else []

    def columns_and_indexes(self) -> set[tuple[object, ...]]:
        """Return what there is of tables, as the database describes it, without the defaults that SQLite keeps."""
        if self._is_sqlite:
            statements = [
                'SELECT t.name, c.name, c.type, c."notnull", c.pk FROM sqlite_master t, pragma_table_info(t.name) c',
                "SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'index'",
            ]
        else:
            statements = [
                "SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name"
                " FROM information_schema.columns WHERE table_schema = 'public'",
                "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
            ]
        described = {row for statement in statements for row in self.execute(statement)}
        assert len(described) > 30
        return described

    def make_version_1(self, queues: Sequence[tuple[str, str]]) -> None:
        """Create the tables of version 1 with a row in each, and `queues` (vhost, name)."""
        self._make(VERSION_1)
        rows = [(vhost, name, name == "z", ARGUMENTS) for vhost, name in queues]
        if rows:
            self.execute("INSERT INTO warren_queues VALUES (?, ?, ?, ?)", rows)

    def make_version_2(self, queues: Sequence[tuple[str, str, int]]) -> None:
        """Create the tables of version 2 with a row in each, and `queues` (vhost, name, id)."""
        self._make_numbered(VERSION_2, queues)

    def make_version_3(self, queues: Sequence[tuple[str, str, int]]) -> None:
        """Create the tables of version 3 with a row in each, and `queues` (vhost, name, id)."""
        self._make_numbered(VERSION_3, queues)
        self.execute("INSERT INTO warren_vhost_limits VALUES (?, ?)", [("/", '{"max-queues":1}')])
        self.execute("INSERT INTO warren_user_limits VALUES (?, ?)", [("alice", '{"max-channels":1}')])
        policy = ("/", False, "p", "^q", "queues", -3, '{"expires":1}')
        self.execute("INSERT INTO warren_policies VALUES (?, ?, ?, ?, ?, ?, ?)", [policy])

    def _make_numbered(self, statements: str, queues: Sequence[tuple[str, str, int]]) -> None:
        self._make(statements)
        rows = [(vhost, name, name == "z", ARGUMENTS, queue_id) for vhost, name, queue_id in queues]
        self.execute("INSERT INTO warren_queues VALUES (?, ?, ?, ?, ?)", rows)

    def _make(self, statements: str) -> None:
        words = {"name": "TEXT", "bytes": "BLOB"} if self._is_sqlite else {"name": 'TEXT COLLATE "C"', "bytes": "BYTEA"}
        for statement in statements.format(**words).split(";")[:-1]:
            self.execute(statement)
        self.execute("INSERT INTO warren_vhosts VALUES (?, ?, ?, ?)", [("/", "of old", '["t"]', "classic")])
        self.execute("INSERT INTO warren_users VALUES (?, ?, ?, ?)", [("alice", "hash", "scrypt", "[]")])
        self.execute("INSERT INTO warren_permissions VALUES (?, ?, ?, ?, ?)", [("alice", "/", "c", "w", "r")])
        self.execute("INSERT INTO warren_topic_permissions VALUES (?, ?, ?, ?, ?)", [("alice", "/", "x", "w", "r")])
        exchange = ("/", "x", "topic", False, False, EMPTY)
        self.execute("INSERT INTO warren_exchanges VALUES (?, ?, ?, ?, ?, ?)", [exchange])
        binding = ("/", "x", "queue", "z", b"k\x00", DIGEST, ARGUMENTS, 7)
        self.execute("INSERT INTO warren_bindings VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [binding])


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh_url(request: pytest.FixtureRequest) -> FreshUrl:
    """Empty databases of either kind."""
    if request.param == "sqlite":
        made: FreshUrl = request.getfixturevalue("fresh_sqlite_url")
        return made
    return request.getfixturevalue("postgres").fresh_url  # type: ignore[no-any-return]


def loaded(url: str) -> list[MetadataChange]:
    catalogue = Catalogue.open(url)
    try:
        return list(catalogue.load())
    finally:
        catalogue.close()


@pytest.mark.long
def test_queues_of_version_1_get_ids_in_the_order_of_vhost_and_name_and_all_else_stays(fresh_url: FreshUrl) -> None:
    database = Database(fresh_url())
    database.make_version_1(QUEUES)
    contents = loaded(database.url)
    assert contents == [
        VhostPut("/", "of old", ("t",), "classic"),
        UserPut("alice", "hash", "scrypt"),
        PermissionPut("alice", "/", "c", "w", "r"),
        TopicPermissionPut("alice", "/", "x", "w", "r"),
        ExchangePut("/", "x", "topic", auto_delete=False, internal=False, arguments=EMPTY),
        *(QueuePut(vhost, name, name == "z", ARGUMENTS, n) for n, (vhost, name) in enumerate(NUMBERED, start=1)),
        BindingPut("/", "x", "z", "queue", "k\x00", ARGUMENTS),
    ]
    assert database.execute("SELECT version FROM warren_schema") == [(SCHEMA_VERSION,)]
    assert loaded(database.url) == contents


def test_a_migrated_store_takes_changes_like_a_new_one(fresh_url: FreshUrl) -> None:
    database = Database(fresh_url())
    database.make_version_1([("/", "kept"), ("/", "redeclared"), ("/", "deleted")])
    catalogue = Catalogue.open(database.url)
    catalogue.commit(
        [
            QueueDelete("/", "deleted"),
            QueueDelete("/", "redeclared"),
            QueuePut("/", "redeclared", True, EMPTY, 4),
            QueuePut("/", "new", False, EMPTY, 5),
        ]
    )
    catalogue.close()
    assert [change for change in loaded(database.url) if isinstance(change, QueuePut)] == [
        QueuePut("/", "kept", False, ARGUMENTS, 2),
        QueuePut("/", "new", False, EMPTY, 5),
        QueuePut("/", "redeclared", True, EMPTY, 4),
    ]


def test_a_store_of_version_2_keeps_everything_and_takes_limits_and_policies(fresh_url: FreshUrl) -> None:
    database = Database(fresh_url())
    database.make_version_2([("/", "z", 9), ("w", "q", 4)])
    old: list[MetadataChange] = [
        VhostPut("/", "of old", ("t",), "classic"),
        UserPut("alice", "hash", "scrypt"),
        PermissionPut("alice", "/", "c", "w", "r"),
        TopicPermissionPut("alice", "/", "x", "w", "r"),
    ]
    new: list[MetadataChange] = [
        VhostLimitsPut("/", '{"max-queues":1}'),
        UserLimitsPut("alice", '{"max-channels":1}'),
        PolicyPut("/", "p", "^q", "queues", -3, '{"expires":1}'),
    ]
    declared: list[MetadataChange] = [
        ExchangePut("/", "x", "topic", auto_delete=False, internal=False, arguments=EMPTY),
        QueuePut("/", "z", True, ARGUMENTS, 9),
        QueuePut("w", "q", False, ARGUMENTS, 4),
        BindingPut("/", "x", "z", "queue", "k\x00", ARGUMENTS),
    ]
    assert loaded(database.url) == old + declared
    catalogue = Catalogue.open(database.url)
    catalogue.commit(new)
    catalogue.close()
    assert loaded(database.url) == old + new + declared
    assert database.execute("SELECT version FROM warren_schema") == [(SCHEMA_VERSION,)]


def test_a_store_of_version_3_keeps_everything_and_takes_parameters_and_protection(fresh_url: FreshUrl) -> None:
    database = Database(fresh_url())
    database.make_version_3([("/", "z", 9)])
    administered: list[MetadataChange] = [
        UserPut("alice", "hash", "scrypt"),
        PermissionPut("alice", "/", "c", "w", "r"),
        TopicPermissionPut("alice", "/", "x", "w", "r"),
        VhostLimitsPut("/", '{"max-queues":1}'),
        UserLimitsPut("alice", '{"max-channels":1}'),
        PolicyPut("/", "p", "^q", "queues", -3, '{"expires":1}'),
    ]
    new: list[MetadataChange] = [
        GlobalParameterPut("cluster_name", '"c"'),
        ParameterPut("/", "shovel", "s", '{"src-queue":"a"}'),
    ]
    declared: list[MetadataChange] = [
        ExchangePut("/", "x", "topic", auto_delete=False, internal=False, arguments=EMPTY),
        QueuePut("/", "z", True, ARGUMENTS, 9),
        BindingPut("/", "x", "z", "queue", "k\x00", ARGUMENTS),
    ]
    vhost = VhostPut("/", "of old", ("t",), "classic")
    assert loaded(database.url) == [vhost, *administered, *declared]
    protected = VhostPut("/", "of old", ("t",), "classic", protected_from_deletion=True)
    catalogue = Catalogue.open(database.url)
    catalogue.commit([protected, *new])
    catalogue.close()
    assert loaded(database.url) == [protected, *administered, *new, *declared]
    assert database.execute("SELECT version FROM warren_schema") == [(SCHEMA_VERSION,)]
    catalogue = Catalogue.open(database.url)
    catalogue.commit([VhostDelete("/")])
    catalogue.close()
    assert database.execute("SELECT name FROM warren_parameters") == []


def test_a_store_of_version_1_without_queues_is_migrated(fresh_url: FreshUrl) -> None:
    database = Database(fresh_url())
    database.make_version_1([])
    assert not any(isinstance(change, QueuePut) for change in loaded(database.url))
    assert database.execute("SELECT version FROM warren_schema") == [(SCHEMA_VERSION,)]


def test_a_migration_that_cannot_be_finished_leaves_version_1(fresh_url: FreshUrl) -> None:
    database = Database(fresh_url())
    database.make_version_1(QUEUES)
    # Someone's own column: the migration cannot add its.
    database.execute("ALTER TABLE warren_queues ADD COLUMN queue_id TEXT")
    with pytest.raises(CatalogueError, match="queue_id"):
        Catalogue.open(database.url)
    assert database.execute("SELECT version FROM warren_schema") == [(1,)]
    assert database.execute("SELECT DISTINCT queue_id FROM warren_queues") == [(None,)]


def test_thousands_of_queues_are_numbered_alike_on_both_databases(fresh_url: FreshUrl) -> None:
    database = Database(fresh_url())
    names = [f"q{n}" for n in range(3000)]
    database.make_version_1([("/", name) for name in names])
    queues = [change for change in loaded(database.url) if isinstance(change, QueuePut)]
    assert {queue.name: queue.queue_id for queue in queues} == {name: n for n, name in enumerate(sorted(names), 1)}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_migrated_store_has_the_tables_columns_and_indexes_of_a_new_one(fresh_url: FreshUrl, version: int) -> None:
    migrated, new = Database(fresh_url()), Database(fresh_url())
    if version == 1:
        migrated.make_version_1(QUEUES)
    elif version == 2:
        migrated.make_version_2([("/", "q", 1)])
    else:
        migrated.make_version_3([("/", "q", 1)])
    for database in (migrated, new):
        Catalogue.open(database.url).close()
    assert migrated.columns_and_indexes() == new.columns_and_indexes()


def test_it_is_said_before_a_migration_that_no_copy_is_made(
    fresh_url: FreshUrl, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a file there is one."""
    database = Database(fresh_url())
    database.make_version_3([("/", "q", 1)])
    with caplog.at_level(logging.WARNING, logger="warren"):
        loaded(database.url)
        loaded(database.url)
    said = [record.getMessage() for record in caplog.records]
    text = "the metadata store is migrated without a copy of its old contents"
    assert said == ([] if database.url.startswith("sqlite") else [text])


def test_a_file_of_an_older_version_is_copied_beside_before_it_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.db"
    database = Database(f"sqlite:///{path}")
    database.make_version_3([("/", "z", 9)])
    kept = tmp_path / "catalogue.db.schema-3"
    catalogue = Catalogue.open(database.url)
    catalogue.commit([QueueDelete("/", "z")])
    catalogue.close()
    copy = Database(f"sqlite:///{kept}")
    assert copy.execute("SELECT version FROM warren_schema") == [(3,)]
    assert copy.execute("SELECT name FROM warren_queues") == [("z",)]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    before = kept.read_bytes()
    Catalogue.open(database.url).close()
    assert kept.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["catalogue.db", "catalogue.db.schema-3"]


def test_a_file_that_cannot_be_copied_is_not_migrated(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'catalogue.db'}")
    database.make_version_3([("/", "z", 9)])
    (tmp_path / "catalogue.db.schema-3").mkdir()
    with pytest.raises(CatalogueError, match="Is a directory"):
        Catalogue.open(database.url)
    assert database.execute("SELECT version FROM warren_schema") == [(3,)]
