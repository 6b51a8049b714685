"""Exports into one prefix of an object store from several machines: manifest.py (3).

The store is a directory, and nothing keeps a second export out.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from warren.spark_bridge import export_targets, manifest, table_files
from warren.spark_bridge.bridge_errors import BridgeError, NoDrain, UsageError
from warren.spark_bridge.export import Export, ExportOptions
from warren.spark_bridge.import_files import Import, ImportOptions
from warren.spark_bridge.places import Note, ObjectPrefix, place_of
from warren.spark_bridge.table_files import ARROW, CSV, JSON, PARQUET, TableFile

from .export_broker import ExportBroker, Watched

URL = "s3://lake/orders"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bucket" / "_manifest").mkdir(parents=True)
    monkeypatch.setattr(ObjectPrefix, "_open", lambda place: (fs.LocalFileSystem(), str(tmp_path / "bucket")))
    monkeypatch.setattr(ObjectPrefix, "only_one", lambda place: nullcontext())
    return tmp_path / "bucket"


def export(broker: ExportBroker, **options: Any) -> Export:
    return Export(broker, ExportOptions("orders", URL, columns=("offset", "body"), **options), Watched())


def numbers(bucket: Path) -> list[int]:
    """Return the bodies in the files of the manifest that counts, and check that other files do not exist."""
    _, state = manifest.load_in(place_of(URL))
    assert state is not None
    assert sorted(entry.path for entry in state.files) == [each for each in names(bucket) if "part-" in each]
    found: list[int] = []
    for entry in state.files:
        assert (bucket / entry.path).stat().st_size == entry.bytes
        found += [int(body) for body in pq.read_table(bucket / entry.path).column("body").to_pylist()]
    return found


def names(bucket: Path) -> list[str]:
    return sorted(path.relative_to(bucket).as_posix() for path in bucket.rglob("*") if path.is_file())


def pause(
    work: Export | Import, name: str, at: int, meanwhile: Callable[[], object], patch: pytest.MonkeyPatch
) -> None:
    """Make something happen before the call number `at` that `work` makes of its place."""
    call, count = getattr(work.place, name), itertools.count(1)

    def paused(*arguments: Any) -> Any:
        if next(count) == at:
            meanwhile()
        return call(*arguments)

    patch.setattr(work.place, name, paused)


@pytest.mark.parametrize(("name", "at"), [("put", 1), *(("replace", at) for at in range(1, 5)), ("put", 2)])
def test_what_an_export_has_acknowledged_is_named_whatever_an_earlier_one_still_writes(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    broker = ExportBroker()
    queue = broker.queue("orders", 6)
    first = export(broker, mode="drain", max_file_bytes=1)

    def another() -> None:
        queue.add(5)
        export(broker, mode="drain").run()

    pause(first, name, at, another, monkeypatch)
    with pytest.raises((UsageError, NoDrain)):
        first.run()
    assert sorted(numbers(bucket)) == list(range(11)) and not queue.messages
    queue.add(2)
    assert export(broker, mode="drain").run().rows == 13
    assert sorted(numbers(bucket)) == list(range(13))
    assert len([each for each in names(bucket) if each.startswith("_manifest/")]) == 1


@pytest.mark.parametrize(
    ("name", "at"),
    [("own_names", 1), *(("replace", at) for at in range(1, 5)), *(("own_names", at) for at in range(2, 8))],
)
@pytest.mark.parametrize("other", ["orders", "others"])
def test_no_drain_of_another_session_acknowledges_what_no_manifest_names(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int, other: str
) -> None:
    """Two that begin at once do not fence each other: they have other consumers, or queues, or brokers."""
    broker = ExportBroker()
    broker.queue("orders", 6)
    broker.queue("others", 3)
    acknowledged: list[bytes] = []
    broker.acked = acknowledged.extend
    first = export(broker, mode="drain", consumer="first", max_file_bytes=1)
    ended: list[str] = []

    def another() -> None:
        columns = ("offset", "body")
        options = ExportOptions(other, URL, mode="drain", consumer="second", columns=columns)
        with suppress(UsageError):
            Export(broker, options, Watched()).run()
            ended.append("second")

    pause(first, name, at, another, monkeypatch)
    with suppress(UsageError):
        first.run()
        ended.append("first")
    assert sorted(numbers(bucket)) == sorted(int(body) for body in acknowledged)
    assert ended
    assert "drain-" not in "".join(names(bucket))


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_drain_that_was_killed_when_it_began_keeps_other_sessions_out(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, is_noted: bool
) -> None:
    broker = ExportBroker()
    broker.queue("orders", 6)
    first = export(broker, mode="drain", consumer="first")
    monkeypatch.setattr(first.place, "delete", lambda name: None)
    pause(first, "replace" if is_noted else "own_names", 3, lambda: 1 / 0, monkeypatch)
    with pytest.raises(ZeroDivisionError):
        first.run()
    (left,) = (name for name in names(bucket) if "drain-" in name)
    with pytest.raises(UsageError, match="consumer" if is_noted else f"has left {left}"):
        export(broker, mode="drain", consumer="second").run()
    assert export(broker, mode="drain", consumer="first").run().rows == 6
    assert (left in names(bucket)) is not is_noted
    if not is_noted:
        assert export(broker, mode="drain", consumer="first").run().rows == 6
        assert left not in names(bucket)


def test_an_export_of_a_stream_that_another_one_has_overtaken_ends(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = ExportBroker()
    broker.stream("orders", 9)
    export(broker, end="3").run()
    first = export(broker)
    pause(first, "put", 1, lambda: export(broker).run(), monkeypatch)
    with pytest.raises(UsageError, match="another export"):
        first.run()
    assert numbers(bucket) == list(range(9))
    assert len(names(bucket)) == 3


@pytest.mark.parametrize(
    ("name", "at"), [*(("maybe_content", at) for at in range(1, 8)), ("own_names", 2), ("replace", 1), ("replace", 2)]
)
def test_imports_that_begin_at_once_publish_once(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    """On several machines: a state in the prefix is begun by one of them."""
    monkeypatch.setattr(Note, "only_one", lambda note, refusal: nullcontext())
    broker = ExportBroker()
    broker.stream("orders", 6)
    export(broker, end="6").run()
    options = ImportOptions(URL, exchange="", routing_key="q")
    first = Import(broker, options, Watched())

    def another() -> None:
        with suppress(UsageError):
            Import(broker, options, Watched()).run()

    pause(first, name, at, another, monkeypatch)
    with suppress(UsageError):
        first.run()
    state = Import(broker, options, Watched()).run()
    assert (len(broker.published), state.rows, state.published) == (6, 6, 6)
    assert not any("begins" in each for each in names(bucket))


def test_a_manifest_of_an_earlier_version_is_continued_and_replaced(bucket: Path) -> None:
    broker = ExportBroker()
    stream = broker.stream("orders", 4)
    export(broker).run()
    (own,) = (bucket / "_manifest").iterdir()
    own.rename(bucket / manifest.NAME)
    stream.add(2)
    export(broker).run()
    assert numbers(bucket) == list(range(6))
    (own,) = (bucket / "_manifest").iterdir()
    assert own.name.startswith("export-00000001-")
    export(broker).run()
    (own,) = (bucket / "_manifest").iterdir()
    assert own.name.startswith("export-00000002-")


def test_a_checkpoint_is_of_one_export_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = ExportBroker()
    broker.stream("orders", 3)
    checkpoint = tmp_path / "checkpoint.json"
    first, second = (
        Export(broker, ExportOptions("orders", tmp_path / name, checkpoint=checkpoint), Watched()) for name in "ab"
    )
    pause(first, "put", 1, second.run, monkeypatch)
    with pytest.raises(UsageError, match="another export is using"):
        first.run()
    assert second.run().rows == 3


@pytest.mark.parametrize("form", [PARQUET, ARROW, JSON, CSV])
def test_a_full_disk_is_left_as_it_was(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Each run has a temporary directory of its own: what it leaves there nobody deletes."""

    class OnFullDisk(TableFile):
        def __init__(self, path: Path, *more: Any) -> None:
            path.symlink_to("/dev/full")
            super().__init__(path, *more)

    broker = ExportBroker()
    queue = broker.queue("orders", 6)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(table_files, "GROUP_ROWS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(export_targets, "TableFile", OnFullDisk)
        with pytest.raises(OSError, match="No space left"):
            export(broker, mode="drain", form=form).run()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert export(broker, mode="drain", form=form).run().rows == 6 and not queue.messages


def test_a_manifest_that_is_replaced_while_it_is_read_is_looked_for_again(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = ExportBroker()
    broker.stream("orders", 3)
    export(broker).run()
    place = place_of(URL)
    content = place.maybe_content
    later = [export(broker)]

    def read(name: str) -> bytes | None:
        if later:
            later.pop().run()
        return content(name)

    monkeypatch.setattr(place, "maybe_content", read)
    _, state = manifest.load_in(place)
    assert state is not None and state.rows == 3
    monkeypatch.setattr(place, "maybe_content", lambda name: None)
    with pytest.raises(BridgeError, match="is listed"):
        manifest.load_in(place)
