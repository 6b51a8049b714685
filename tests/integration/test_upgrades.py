"""An upgrade under load, from the oldest sources that could be installed, and the way back.

``stores/first_package.tar.xz`` was left behind by the broker of `old_sources.FIRST_PACKAGE`, killed while three
publishers and two consumers were at work; ``ledger.json`` in it has what they had been promised. It was written by

    PYTHONPATH=.. python -m integration.test_upgrades      (in tests/)

The tests that are marked long run old sources themselves (`old_sources.py`).
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from broker_process import WarrenProcess
from free_ports import free_port

from warren import __version__
from warren.server.catalogue.schema import SCHEMA_VERSION
from warren.server.data_dir import LOCK_NAME

from .old_sources import FIRST_PACKAGE, SCHEMA_5, running
from .upgrade_load import Load

STORE = Path(__file__).parent / "stores" / "first_package.tar.xz"
LEDGER = "ledger.json"
# Small enough for several segments and checkpoints.
SETTINGS = {"store.segment_bytes": 1 << 20, "store.checkpoint_bytes": 1 << 20}
MESSAGES = 300


def test_a_store_of_the_first_package_is_taken_over_while_its_clients_connect_again(tmp_path: Path) -> None:
    with tarfile.open(STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    ledger = json.loads((tmp_path / LEDGER).read_text())
    process = WarrenProcess(tmp_path, settings=SETTINGS)
    load = Load([_free_of(process)], ledger)
    load.start()
    try:
        process.start()
        load.await_more(MESSAGES)
        process.kill()
        process.start()
        load.await_more(MESSAGES)
        load.check()
        assert min(client.connections for client in load.publishers) >= 2
    finally:
        load.end()
        process.kill()


@pytest.mark.long
@pytest.mark.parametrize("end", [WarrenProcess.stop, WarrenProcess.kill], ids=["stopped", "killed"])
@pytest.mark.parametrize("commit", [FIRST_PACKAGE, SCHEMA_5], ids=["first_package", "schema_5"])
def test_an_upgrade_under_load_loses_nothing_and_cannot_be_undone_unnoticed(
    tmp_path: Path, commit: str, end: Callable[[WarrenProcess], None]
) -> None:
    old = WarrenProcess(tmp_path, None, SETTINGS, running(commit, tmp_path / "sources"))
    old.start()
    load = Load([old.amqp_port])
    load.start()
    new = WarrenProcess(tmp_path, old.flags, SETTINGS)
    try:
        load.await_more(MESSAGES)
        end(old)
        new.start()
        load.await_more(MESSAGES)
        print(f"{load.check()} confirmed messages from {commit} to {__version__}, nothing lost, all in order")
        load.end()
        new.stop()
        with closing(sqlite3.connect(new.data_directory / "catalogue.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # which any program does that closes it last
        before = _contents(new.data_directory)
        old.log_path.unlink()
        old.spawn()
        assert old.wait() == 1
        assert f"written by a newer Warren (schema version {SCHEMA_VERSION}, " in old.log()
        assert _contents(new.data_directory) == before
        new.start()
        assert new.health() == 200
    finally:
        load.end()
        old.kill()
        new.kill()


def _free_of(process: WarrenProcess) -> int:
    """Choose the port of a broker that is still to be started."""
    port = free_port()
    process.flags["amqp"] = f"127.0.0.1:{port}"
    return port


def _contents(path: Path) -> dict[str, bytes]:
    """Return every file but the lock, which has the id of the last process, and what SQLite puts beside its file."""
    files = [each for each in path.rglob("*") if each.is_file()]
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in files
        if each.name not in {LOCK_NAME, "catalogue.db-wal", "catalogue.db-shm"}
    }


def _write_store() -> None:
    """Write `STORE` from scratch."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        process = WarrenProcess(directory, None, SETTINGS, running(FIRST_PACKAGE, directory / "sources"))
        process.start()
        load = Load([process.amqp_port])
        load.start()
        load.await_more(10 * MESSAGES)
        process.kill()
        load.end()
        (directory / LEDGER).write_text(json.dumps(load.ledger()) + "\n")
        with tarfile.open(STORE, "w:xz") as archive:
            archive.add(directory / "data", "data")
            archive.add(directory / LEDGER, LEDGER)
    print(STORE, STORE.stat().st_size, "bytes")


if __name__ == "__main__":
    _write_store()
