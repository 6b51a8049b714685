"""Properties of each database: files and locks of SQLite, servers that go away for PostgreSQL."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import trio
from broker_process import wait_until
from journalled_log import STORE_ID, JournalledLog

from warren.server.catalogue.catalogue import Catalogue, CatalogueError
from warren.server.catalogue.postgresql import PostgreSQL
from warren.server.catalogue.sqlite_file import SqliteFile
from warren.server.catalogue.sqlite_url import path_of, sqlite_url
from warren.server.catalogue.writer import CatalogueWriter
from warren.vhosts.metadata import BindingPut, QueuePut

from .postgres import PostgresServer

EMPTY = b"\x00\x00\x00\x00"


def queues_of(catalogue: Catalogue) -> list[str]:
    return [change.name for change in catalogue.load() if isinstance(change, QueuePut)]


def test_the_files_of_sqlite_belong_to_their_owner_only(tmp_path: Path) -> None:
    catalogue = Catalogue.open(f"sqlite:///{tmp_path / 'catalogue.db'}")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("catalogue.db", "catalogue.db-wal", "catalogue.db-shm"), 0o600)
    catalogue.close()


def test_sqlite_commits_are_synced_and_transactions_lock_the_file_from_their_beginning(tmp_path: Path) -> None:
    catalogue = Catalogue.open(f"sqlite:///{tmp_path / 'catalogue.db'}")
    database = catalogue._database
    assert isinstance(database, SqliteFile)
    names = ("journal_mode", "synchronous", "fullfsync", "journal_size_limit", "locking_mode", "busy_timeout")
    with database.transaction() as connection:
        settings = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names}
        assert database._connection is not None
        assert database._connection.in_transaction
        other = sqlite3.connect(tmp_path / "catalogue.db", timeout=0)
        with closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    assert not database._connection.in_transaction
    assert database._connection.isolation_level is None
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "fullfsync": 1,
        "journal_size_limit": 16 << 20,
        "locking_mode": "normal",
        "busy_timeout": 5000,
    }
    catalogue.close()


def test_a_link_to_a_file_that_is_not_there_yet_makes_that_file_private(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "data" / "catalogue.db").symlink_to(tmp_path / "there" / "cat.db")
    catalogue = Catalogue.open(f"sqlite:///{tmp_path / 'data' / 'catalogue.db'}")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "there").iterdir()}
    assert modes == dict.fromkeys(("cat.db", "cat.db-wal", "cat.db-shm"), 0o600)
    catalogue.close()


def test_a_file_of_sqlite_serves_one_broker_and_lets_others_read(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.db"
    catalogue = Catalogue.open(f"sqlite:///{path}")
    catalogue.commit([QueuePut("/", "q", False, EMPTY, 1)])
    (tmp_path / "link.db").symlink_to(path)
    for other in (path, tmp_path / "link.db"):
        with pytest.raises(CatalogueError, match="another broker has it open"):
            Catalogue.open(f"sqlite:///{other}")
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("SELECT name FROM warren_queues").fetchall() == [("q",)]
    catalogue.commit([QueuePut("/", "r", False, EMPTY, 2)])
    catalogue.close()
    catalogue = Catalogue.open(f"sqlite:///{path}")
    assert queues_of(catalogue) == ["q", "r"]
    catalogue.close()


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.db"
    Catalogue.open(f"sqlite:///{path}").close()
    path.unlink()
    path.mkdir()  # root may write whatever its mode says
    with pytest.raises(CatalogueError, match="Is a directory"):
        Catalogue.open(f"sqlite:///{path}")


_COMMIT_AND_DIE = """
import os, signal, sys
from warren.vhosts.metadata import BindingPut, QueuePut
from warren.server.catalogue.catalogue import Catalogue
catalogue = Catalogue.open(sys.argv[1])
catalogue.commit([QueuePut("/", "committed", False, bytes(4), 1)])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_is_committed_survives_kill_9_at_once_and_the_store_opens_again(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path / 'catalogue.db'}"
    else:
        url = request.getfixturevalue("postgres").fresh_url()
    died = subprocess.run([sys.executable, "-c", _COMMIT_AND_DIE, url], capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    catalogue = Catalogue.open(url)
    assert queues_of(catalogue) == ["committed"]
    catalogue.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(CatalogueError, match=r"catalogue\.db: file is not a database"):
        Catalogue.open(f"sqlite:///{path}")
    assert path.read_bytes() == b"not a database" * 100


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"missing/catalogue\.db: No such file or directory"):
        Catalogue.open(f"sqlite:///{tmp_path / 'missing' / 'catalogue.db'}")


def test_a_path_with_characters_special_in_urls_works(tmp_path: Path) -> None:
    from warren.server.settings import Settings

    directory = tmp_path / "a b?c#d%20e:@é"
    directory.mkdir()
    Catalogue.open(Settings(data_dir=directory).catalogue_url()).close()
    assert (directory / "catalogue.db").exists()


@pytest.mark.parametrize("name", [b"\xff\xfe", b"a%42", "\N{SNOWMAN}?#".encode()])
def test_a_path_of_any_bytes_is_found_again(name: bytes, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    assert path_of(sqlite_url(path)) == path
    Catalogue.open(sqlite_url(path)).close()
    assert path.exists()


@pytest.mark.parametrize("name", [":memory:", "file:x.db"])
def test_names_that_sqlite_takes_for_something_else_are_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ([], ["q"]):
        catalogue = Catalogue.open(f"sqlite:///{name}")
        assert queues_of(catalogue) == expected
        catalogue.commit([QueuePut("/", "q", False, EMPTY, 1)])
        catalogue.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE warren_users SET tags = '3'", r"warren_users \('guest'\) cannot be read"),
        ("UPDATE warren_users SET tags = 'no JSON'", r"warren_users \('guest'\) cannot be read"),
        ("UPDATE warren_vhosts SET tags = x'ff'", r"warren_vhosts \('/'\) cannot be read"),
        ("UPDATE warren_bindings SET routing_key = 'text'", r"warren_bindings \('/, x, queue, q.*'\) cannot be read"),
        ("UPDATE warren_bindings SET routing_key = x'ff'", r"warren_bindings \('/, x, queue, q.*'\) cannot be read"),
        ("UPDATE warren_bindings SET ordinal = 'text'", "warren_bindings: ordinal 'text' was not written by a broker"),
        (
            "UPDATE warren_bindings SET ordinal = 9223372036854775807",
            "ordinal '9223372036854775807' was not written by a broker",
        ),
        ("UPDATE warren_queues SET queue_id = 1e30", r"warren_queues: queue_id '1e\+30' was not written by a broker"),
        ("UPDATE warren_applied SET changes = 'many'", "warren_applied: changes 'many' was not written by a broker"),
        ("UPDATE warren_applied SET changes = -1", "warren_applied: changes '-1' was not written by a broker"),
    ],
)
def test_what_no_broker_has_written_is_an_error_with_its_table(change: str, reason: str, tmp_path: Path) -> None:
    """catalogue.py (5): a file that was damaged, or edited."""
    url = f"sqlite:///{tmp_path / 'catalogue.db'}"
    with closing(Catalogue.open(url)) as catalogue:
        list(catalogue.load())
        binding = BindingPut("/", "x", "q", "queue", "k", EMPTY)
        catalogue.commit([QueuePut("/", "q", False, EMPTY, 1), binding], STORE_ID, 2)
    with closing(sqlite3.connect(tmp_path / "catalogue.db")) as editor, editor:
        editor.execute(change)

    def start() -> None:
        with closing(Catalogue.open(url)) as catalogue:
            catalogue.applied(STORE_ID)
            list(catalogue.load())

    with pytest.raises(CatalogueError, match=reason) as caught:
        start()
    assert "\n" not in str(caught.value)


def test_a_number_that_is_too_large_for_sqlite_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    with closing(Catalogue.open(f"sqlite:///{tmp_path / 'catalogue.db'}")) as catalogue:
        with pytest.raises(CatalogueError, match="too large"):
            catalogue.commit([QueuePut("/", "q", False, EMPTY, 1), QueuePut("/", "r", False, EMPTY, 1 << 63)])
        assert queues_of(catalogue) == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite:////tmp/a%00b.db", "no file has a NUL"),
        ("nonsense", "cannot be parsed"),
        ("mysql://u:secret@h/d", "mysql is not supported"),
        ("sqlite://", "needs a file"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/d", r"u:\*\*\*@127.0.0.1:1/d: .*refused"),
    ],
)
def test_a_url_that_leads_nowhere_is_one_line_without_the_password(url: str, reason: str) -> None:
    with pytest.raises(CatalogueError, match=reason) as caught:
        Catalogue.open(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_driver_of_postgresql_that_is_not_installed_is_named_with_what_installs_it() -> None:
    program = """
import sys
sys.modules["psycopg"] = None
from warren.server.catalogue.catalogue import Catalogue
try:
    Catalogue.open("postgresql://u:secret@127.0.0.1:1/d")
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "metadata store: psycopg is not installed: pip install './warren[postgresql]'\n"


def test_sqlite_options_in_a_url_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="has no options"):
        Catalogue.open(f"sqlite:///{tmp_path / 'catalogue.db'}?timeout=3")
    assert list(tmp_path.iterdir()) == []


def test_a_database_locked_by_another_process_is_unavailable_not_fatal(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.db"
    catalogue = Catalogue.open(f"sqlite:///{path}")
    assert isinstance(catalogue._database, SqliteFile)
    assert catalogue._database._connection is not None
    catalogue._database._connection.execute("PRAGMA busy_timeout = 0")
    intruder = sqlite3.connect(path, isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    with pytest.raises(CatalogueError, match="locked"):
        catalogue.commit([QueuePut("/", "q", False, EMPTY, 1)])
    intruder.execute("ROLLBACK")
    catalogue.commit([QueuePut("/", "q", False, EMPTY, 1)])
    assert queues_of(catalogue) == ["q"]
    intruder.close()
    catalogue.close()


def test_a_postgresql_database_serves_one_broker(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.fresh_url()
    first = Catalogue.open(url)
    with monkeypatch.context() as patched:
        patched.setattr("warren.server.catalogue.postgresql._LOCK_WAIT_MS", 50)
        with pytest.raises(CatalogueError, match="another broker uses this database"):
            Catalogue.open(url)
    first.close()
    # PostgreSQL releases the lock once it has noticed the end of the connection.
    Catalogue.open(url).close()


def test_a_table_of_postgresql_that_somebody_locks_is_unavailable_not_waited_for(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """postgresql (4)"""
    import psycopg

    url = postgres.fresh_url()
    monkeypatch.setattr("warren.server.catalogue.postgresql._LOCK_WAIT_MS", 50)
    catalogue = Catalogue.open(url)
    with psycopg.connect(postgres.conninfo(url.rsplit("/", 1)[1])) as intruder:
        intruder.execute("LOCK TABLE warren_queues IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(CatalogueError, match="lock timeout"):
            catalogue.commit([QueuePut("/", "q", False, EMPTY, 1)])
        with pytest.raises(CatalogueError, match="lock timeout"):
            queues_of(catalogue)
    catalogue.commit([QueuePut("/", "q", False, EMPTY, 1)])
    assert queues_of(catalogue) == ["q"]
    catalogue.close()


def test_a_call_that_takes_long_is_ended_by_who_does_not_want_to_wait(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    url = postgres.fresh_url()
    monkeypatch.setattr("warren.server.catalogue.postgresql._LOCK_WAIT_MS", 3_600_000)
    catalogue = Catalogue.open(url)
    catalogue.interrupt()  # nothing is under way
    with psycopg.connect(postgres.conninfo(url.rsplit("/", 1)[1]), autocommit=True) as intruder:
        intruder.execute("BEGIN")
        intruder.execute("LOCK TABLE warren_queues IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor(1) as threads:
            committed = threads.submit(catalogue.commit, [QueuePut("/", "q", False, EMPTY, 1)])
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            wait_until(lambda: intruder.execute(waiting).fetchone() == (1,), "the commit to wait for the table")
            catalogue.interrupt()
            with pytest.raises(CatalogueError):
                committed.result()
        intruder.execute("ROLLBACK")
    catalogue.commit([QueuePut("/", "q", False, EMPTY, 1)])
    assert queues_of(catalogue) == ["q"]
    catalogue.close()


def test_a_database_in_another_encoding_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(CatalogueError, match="must be encoded in UTF8, not SQL_ASCII"):
        Catalogue.open(postgres.fresh_url(encoding="SQL_ASCII"))


def test_the_plain_postgresql_scheme_means_the_same_driver(postgres: PostgresServer) -> None:
    Catalogue.open(postgres.fresh_url().replace("postgresql+psycopg", "postgresql")).close()


def test_asynchronous_commit_is_turned_on_again(postgres: PostgresServer) -> None:
    import psycopg

    url = postgres.fresh_url()
    name = url.rsplit("/", 1)[1]
    with psycopg.connect(postgres.conninfo("postgres"), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off".encode())
    catalogue = Catalogue.open(url)
    assert isinstance(catalogue._database, PostgreSQL)
    with catalogue._database._engine.connect() as opened:
        assert opened.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
    catalogue.close()


@pytest.mark.long
def test_changes_wait_in_the_log_while_postgresql_is_away_and_are_applied_when_it_is_back() -> None:
    from .postgres import running_postgres

    with running_postgres() as server:
        catalogue = Catalogue.open(server.fresh_url())
        log = JournalledLog()
        writer = CatalogueWriter(catalogue, log.journal, log.settle)
        log.journal.on_durable = writer.note_durable

        async def until(reached: bool) -> None:
            while writer.healthy is not reached:
                await trio.sleep(0.01)

        async def outage() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.run)
                log.make_durable(QueuePut("/", "before", False, EMPTY, 1))
                assert await writer.drain(trio.current_time() + 30)
                await trio.to_thread.run_sync(server.stop)
                log.make_durable(QueuePut("/", "meanwhile", False, EMPTY, 2))
                await until(False)
                assert log.journal.committed_ticket == 2
                assert writer.reason
                await trio.to_thread.run_sync(server.start)
                await until(True)
                assert await writer.drain(trio.current_time() + 30)
                assert catalogue.applied(STORE_ID) == 2
                nursery.cancel_scope.cancel()

        trio.run(outage)
        assert queues_of(catalogue) == ["before", "meanwhile"]
        catalogue.close()
