"""Directories of backups. The numbers in parentheses are those in the header of ``warren/backup/directory.py``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Barrier

import pytest

from warren.backup.directory import FILES, MARKER, BackupDirectory, BackupError, Cleared, Manifest, StoredFile, check

STORE = "0123456789abcdef" * 2
LOG = "messages/log/0000000001"


def manifest(number: int, *files: StoredFile) -> Manifest:
    return Manifest(number, "0.1.0", STORE, 1000, 4096, 7, 1, 1, files)


def written(path: Path, *contents: bytes) -> list[StoredFile]:
    """Write a backup for each content, of one file."""
    stored = []
    with BackupDirectory.writing(path, STORE) as directory:
        for content in contents:
            number = max(directory.numbers(), default=0) + 1
            stored.append(directory.put(LOG, len(content), "x", [content[:2], content[2:]]))
            directory.add(manifest(number, stored[-1]))
    return stored


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    (stored,) = written(tmp_path / "new" / "deep", b"content")
    assert stored == StoredFile(LOG, 7, "x", sha256(b"content").hexdigest())
    with BackupDirectory.reading(tmp_path / "new" / "deep") as directory:
        assert directory.numbers() == [1]
        assert directory.manifest(1) == manifest(1, stored)
        assert b"".join(directory.read(stored)) == b"content"
        check(directory, [stored])
    assert (tmp_path / "new" / "deep").stat().st_mode & 0o077 == 0


def test_backups_have_in_common_what_is_the_same(tmp_path: Path) -> None:
    written(tmp_path, b"same", b"same")
    assert len(os.listdir(tmp_path / FILES)) == 1


def test_a_directory_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    with pytest.raises(BackupError, match=r"it holds other files \(photo.jpg\)"):
        BackupDirectory.writing(tmp_path, STORE)
    assert os.listdir(tmp_path) == ["photo.jpg"]
    with pytest.raises(BackupError, match="there are no backups here"):
        BackupDirectory.reading(tmp_path)


def test_a_directory_that_cannot_be_looked_into_is_said(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="File name too long"):
        BackupDirectory.reading(tmp_path / ("x" * 300))
    written(tmp_path / "gone", b"x")
    with BackupDirectory.reading(tmp_path / "gone") as directory:
        (tmp_path / "gone").rename(tmp_path / "elsewhere")
        with pytest.raises(BackupError, match="gone: No such file or directory"):
            directory.numbers()


def test_a_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    written(tmp_path, b"x")
    with pytest.raises(BackupError, match="backups of another broker"):
        BackupDirectory.writing(tmp_path, "f" * 32)


def test_one_writes_at_a_time_and_nobody_while_one_is_read(tmp_path: Path) -> None:
    with BackupDirectory.writing(tmp_path, STORE):
        with pytest.raises(BackupError, match="another backup is being written"):
            BackupDirectory.writing(tmp_path, STORE)
        with pytest.raises(BackupError, match="another backup is being written"):
            BackupDirectory.reading(tmp_path)
    with (
        BackupDirectory.reading(tmp_path),
        BackupDirectory.reading(tmp_path),
        pytest.raises(BackupError, match="or one is being restored"),
    ):
        BackupDirectory.writing(tmp_path, STORE)


def test_of_two_that_begin_in_a_new_directory_one_writes(tmp_path: Path) -> None:
    together = Barrier(2)

    def maybe_writing(path: Path) -> BackupDirectory | str:
        together.wait()
        try:
            return BackupDirectory.writing(path, STORE)
        except BackupError as error:
            return str(error)

    with ThreadPoolExecutor(2) as threads:
        for number in range(20):
            path = tmp_path / str(number)
            answers = list(threads.map(maybe_writing, [path, path]))
            (writer,) = (answer for answer in answers if isinstance(answer, BackupDirectory))
            writer.close()
            (refusal,) = (answer for answer in answers if isinstance(answer, str))
            assert "another backup is being written" in refusal


def test_a_directory_whose_marker_was_never_written_is_new(tmp_path: Path) -> None:
    (tmp_path / MARKER).touch()
    written(tmp_path, b"x")
    with BackupDirectory.reading(tmp_path) as directory:
        assert (directory.store_id, directory.numbers()) == (STORE, [1])
    # With backups in it an empty marker is damage: nobody knows whose they are.
    (tmp_path / MARKER).write_bytes(b"")
    with pytest.raises(BackupError, match="it holds other files"):
        BackupDirectory.writing(tmp_path, STORE)
    with pytest.raises(BackupError, match="it is damaged"):
        BackupDirectory.reading(tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"cOntent", "is damaged"), (b"conten", "is damaged"), (b"content and more", "is damaged"), (None, "is missing")],
)
def test_a_damaged_file_is_named_with_what_it_is(tmp_path: Path, content: bytes | None, told: str) -> None:
    """(2)"""
    (stored,) = written(tmp_path, b"content")
    path = tmp_path / FILES / stored.sha256
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with BackupDirectory.reading(tmp_path) as directory:
        with pytest.raises(BackupError, match=f"{stored.sha256} {told}: it is {LOG}"):
            check(directory, [stored])
        assert told in directory.fault(stored, whole=True)
        assert bool(directory.fault(stored, whole=False)) == (content is None or len(content) != 7)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"manifest": {}, "sha256": ""}', b"\xff"])
def test_a_damaged_manifest_is_named(tmp_path: Path, damage: bytes) -> None:
    written(tmp_path, b"content")
    (tmp_path / "0000000001.json").write_bytes(damage)
    with BackupDirectory.reading(tmp_path) as directory:
        with pytest.raises(BackupError, match=r"0000000001.json: the manifest is damaged"):
            directory.manifest(1)
        with pytest.raises(BackupError, match="there is no backup 2"):
            directory.manifest(2)


def test_any_changed_byte_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    written(tmp_path, b"content")
    path = tmp_path / "0000000001.json"
    whole = path.read_bytes()
    with BackupDirectory.reading(tmp_path) as directory:
        good = directory.manifest(1)
        for at in range(len(whole)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            try:
                assert directory.manifest(1) == good
            except BackupError:
                continue


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "messages/log/../x", "messages/log/1", "stages/a/b/c", "catalogue.db/x", ""]
)
def test_a_manifest_that_names_something_else_is_refused(tmp_path: Path, name: str) -> None:
    """(4)"""
    (stored,) = written(tmp_path, b"content")
    with BackupDirectory.writing(tmp_path, STORE) as directory:
        directory.add(manifest(2, replace(stored, name=name)))
        with pytest.raises(BackupError, match="names a file that no data directory has"):
            directory.manifest(2)
        directory.add(manifest(3, replace(stored, sha256="../../x")))
        with pytest.raises(BackupError, match="names a file"):
            directory.manifest(3)


def test_a_manifest_that_is_of_something_else_is_refused(tmp_path: Path) -> None:
    """(1)"""
    (tmp_path / "other").mkdir()
    written(tmp_path / "mine", b"x")
    with BackupDirectory.writing(tmp_path / "other", "f" * 32) as directory:
        stored = directory.put(LOG, 1, "x", [b"y"])
        directory.add(replace(manifest(1, stored), number=3, store_id="f" * 32))
    own = (tmp_path / "mine" / "0000000001.json").read_bytes()
    foreign = (tmp_path / "other" / "0000000003.json").read_bytes()
    for content, told in ((own, f"of backup 1 of store {STORE}"), (foreign, f"of backup 3 of store {'f' * 32}")):
        (tmp_path / "mine" / "0000000003.json").write_bytes(content)
        with BackupDirectory.reading(tmp_path / "mine") as directory, pytest.raises(BackupError, match=told):
            directory.manifest(3)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    written(tmp_path, b"x")
    (tmp_path / MARKER).write_text(json.dumps({"format": 2, "store_id": STORE}))
    with pytest.raises(BackupError, match=r"a newer Warren has written it \(format 2\)"):
        BackupDirectory.reading(tmp_path)
    (tmp_path / MARKER).write_text("nonsense")
    with pytest.raises(BackupError, match="it is damaged"):
        BackupDirectory.reading(tmp_path)


def test_only_what_no_backup_has_is_removed(tmp_path: Path) -> None:
    """(3)"""
    first, second, third = written(tmp_path, b"first", b"second", b"third")
    with BackupDirectory.writing(tmp_path, STORE) as directory:
        directory.put(LOG, 4, "x", [b"left"])  # of a backup that came to no end
        assert directory.clear(None) == Cleared([], [])
        assert sorted(os.listdir(tmp_path / FILES)) == sorted([first.sha256, second.sha256, third.sha256])
        assert directory.clear(1) == Cleared([1, 2], [])
        assert os.listdir(tmp_path / FILES) == [third.sha256]
        assert directory.numbers() == [3]


def test_no_content_is_removed_while_a_manifest_cannot_be_read(tmp_path: Path) -> None:
    """(3)"""
    written(tmp_path, b"first", b"second", b"third")
    (tmp_path / "0000000002.json").write_bytes(b"?")
    with BackupDirectory.writing(tmp_path, STORE) as directory:
        # It is not one of the two that are kept.
        cleared = directory.clear(2)
        assert (cleared.removed, directory.numbers()) == ([], [1, 2, 3])
        assert ["0000000002.json: the manifest is damaged" in fault for fault in cleared.faults] == [True]
        (tmp_path / "0000000002.json").rename(tmp_path / "0000000004.json")
        cleared = directory.clear(1)
        assert (cleared.removed, len(cleared.faults), directory.numbers()) == ([1], 1, [3, 4])
        assert len(os.listdir(tmp_path / FILES)) == 3
        (tmp_path / "0000000004.json").rename(tmp_path / "0000000002.json")
        assert directory.clear(1) == Cleared([2], [])
        assert len(os.listdir(tmp_path / FILES)) == 1
        (tmp_path / "0000000003.json").write_bytes(b"?")
        assert directory.clear(1).removed == []
        assert (directory.numbers(), len(os.listdir(tmp_path / FILES))) == ([3], 1)


def test_a_file_that_comes_in_part_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"begun"
        raise RuntimeError("the broker is gone")

    with BackupDirectory.writing(tmp_path, STORE) as directory, pytest.raises(RuntimeError):
        directory.put(LOG, 10, "x", pieces())
    assert os.listdir(tmp_path / FILES) == []
    (tmp_path / FILES / "1.part").write_bytes(b"of a process that was killed")
    BackupDirectory.writing(tmp_path, STORE).close()
    assert os.listdir(tmp_path / FILES) == []


def test_what_came_in_part_and_cannot_be_removed_does_not_hide_why(tmp_path: Path) -> None:
    with BackupDirectory.writing(tmp_path, STORE) as directory:
        # Neither to be written nor to be unlinked, as everything is on a disk that has become read-only.
        (tmp_path / FILES / "1.part").mkdir()
        with pytest.raises(BackupError, match="the backups that were there before are whole"):
            directory.put(LOG, 1, "x", [b"x"])
