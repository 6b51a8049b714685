"""A directory with something that a newer Warren has written is refused in one line, at once, and left as it is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from broker_process import WarrenProcess
from store_directory import StoreDirectory, checkpoint_queue, epoch, message, queue

from warren import __version__
from warren.queues.lanes import METADATA
from warren.replication import cluster_state
from warren.server.catalogue.catalogue import Catalogue
from warren.server.catalogue.sqlite_url import sqlite_url
from warren.server.data_dir import LOCK_NAME
from warren.server.links_mark import PLACE
from warren.server.store_versions import NAME, note
from warren.vhosts.metadata import ExchangePut

NEWER = "9.8.7"
ADVICE = "start the newer version, or restore a backup that was made before the upgrade"
# A start that is refused may make these: they decide nothing, and an older version makes them as well.
MADE_BY_EVERY_START = {LOCK_NAME, PLACE, "catalogue.db-wal", "catalogue.db-shm"}


def newer_schema(path: Path) -> None:
    _execute(path, "UPDATE warren_schema SET version = 999")


def newer_exchange(path: Path) -> None:
    catalogue = Catalogue.open(sqlite_url(path / "catalogue.db"))
    list(catalogue.load())
    catalogue.commit([ExchangePut("/", "x", "x-of-the-future", auto_delete=False, internal=False, arguments=bytes(4))])
    catalogue.close()


def newer_checkpoint(path: Path) -> None:
    store = StoreDirectory(path)
    store.frame(epoch(1), queue(1, "orders"), message((1, 0)))
    store.checkpoint(checkpoint_queue(1, "orders", next_number=1), live_refs={})
    store.checkpoint_of_version(1, 4)


def newer_change_of_the_metadata(path: Path) -> None:
    store = StoreDirectory(path)
    change = json.dumps({"v": 2, "change": "QueuePut"}).encode()
    store.frame(epoch(1), queue(1, "", "", lane=METADATA), message((1, 0), body=change))


def _execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path / "catalogue.db")) as database:
        database.execute(statement)
        database.commit()


def contents(path: Path) -> dict[str, bytes]:
    """Return every file of a directory but those of every start."""
    files = [each for each in path.rglob("*") if each.is_file() and each.name not in MADE_BY_EVERY_START]
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


def prepared(tmp_path: Path, change: Callable[[Path], None]) -> WarrenProcess:
    """Return a broker whose directory was written last by a newer Warren, with what `change` makes in it."""
    process = WarrenProcess(tmp_path)
    path = process.data_directory
    path.mkdir(mode=0o700)
    if change in (newer_schema, newer_exchange):
        Catalogue.open(sqlite_url(path / "catalogue.db")).close()
        (path / "messages").mkdir(mode=0o700)
    change(path)
    if not (path / "catalogue.db").exists():
        Catalogue.open(sqlite_url(path / "catalogue.db"), first_contents=False).close()
    note(path / "messages", is_new=True, version=NEWER)
    return process


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (newer_schema, "written by a newer Warren (schema version 999, this one knows "),
        (newer_exchange, "ExchangePut x cannot be restored: "),
        (newer_checkpoint, "it has format version 1.4, this Warren reads 1.3; a newer Warren has written this store"),
        (newer_change_of_the_metadata, "a change of the metadata was written by a newer Warren (QueuePut, version 2)"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_newer_format_is_refused_with_both_versions_and_nothing_changes(
    tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    process = prepared(tmp_path, change)
    before = contents(process.data_directory)
    for _ in range(2):
        process.log_path.unlink(missing_ok=True)
        process.spawn()
        assert process.wait() == 1
        (line,) = process.log().splitlines()
        assert line.startswith("warren: ") and reason in line
        assert line.endswith(
            f"; this is Warren {__version__}, and Warren {NEWER} has written the message store last; {ADVICE}"
        )
        assert contents(process.data_directory) == before
    assert json.loads(before[f"messages/{NAME}"])["last_written_by"] == NEWER


def test_a_follower_refuses_a_newer_schema_with_both_versions(tmp_path: Path) -> None:
    process = prepared(tmp_path, newer_schema)
    secret = tmp_path / "secret"
    secret.write_text("what the nodes of this test share")
    process.flags |= {"follow": "127.0.0.1:1", "cluster-secret-file": str(secret)}
    before = contents(process.data_directory)
    process.spawn()
    assert process.wait() == 1
    (line,) = process.log().splitlines()
    assert "newer Warren (schema version 999" in line and f"Warren {NEWER} has written" in line and ADVICE in line
    after = contents(process.data_directory)
    assert {name: content for name, content in after.items() if name != cluster_state.NAME} == before
