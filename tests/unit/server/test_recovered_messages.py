"""Missing or damaged parts of a message store that a start finds and reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from integration.store_commands.stores import StreamStore, checkpointed_store
from store_directory import ack

from warren.msgstore.files.file_system import OsFileSystem
from warren.server.recovered_messages import recover_messages
from warren.server.settings import Settings


def losses(directory: Path) -> list[dict[str, object]]:
    """Recover the store of a data directory; return what is told."""
    files = OsFileSystem(str(directory / "messages"))
    found = recover_messages(Settings(data_dir=directory), files, 100)
    found.store.close()
    return [{name: value for name, value in loss.items() if name != "advice"} for loss in found.losses.found]


def test_nothing_is_told_of_a_whole_store(tmp_path: Path) -> None:
    StreamStore(tmp_path / "streams")
    checkpointed_store(tmp_path / "queues")
    assert losses(tmp_path / "streams") == losses(tmp_path / "queues") == []


def test_a_segment_that_the_checkpoint_refers_to_is_told_when_it_is_missing(tmp_path: Path) -> None:
    checkpointed_store(tmp_path).file(1).unlink()
    assert losses(tmp_path) == [{"what": "a segment of the message log is missing", "segment": 1, "messages": 1}]


def in_the_middle(store: StreamStore) -> None:
    store.seal(range(20, 22), 20, 0)
    store.file(10).unlink()


def at_the_end(store: StreamStore) -> None:
    store.file(10).unlink()


def behind_what_is_sealed(store: StreamStore) -> None:
    store.log.frame(ack(2, (17, 4)))


@pytest.mark.parametrize(
    ("damage", "first", "count"), [(in_the_middle, 10, 10), (at_the_end, 10, 7), (behind_what_is_sealed, 20, 1)]
)
def test_what_is_neither_sealed_nor_in_the_log_is_told(
    tmp_path: Path, damage: Callable[[StreamStore], None], first: int, count: int
) -> None:
    store = StreamStore(tmp_path)
    damage(store)
    what = "messages of a stream are missing: neither sealed nor in the log"
    where = {"vhost": "/", "stream": "events", "first_offset": first, "messages": count}
    assert losses(tmp_path) == [{"what": what, **where}]


def test_what_retention_has_removed_is_not_missing(tmp_path: Path) -> None:
    StreamStore(tmp_path).file(0).unlink()
    assert losses(tmp_path) == []
