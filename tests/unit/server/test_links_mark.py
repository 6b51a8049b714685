"""The mark of links that are held, and how a copied directory is told from one that was only mounted elsewhere."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from warren.server import links_mark
from warren.server.data_dir import DataDir
from warren.server.links_mark import COPIED, KEEPS_INODES, MARK, PLACE, hold, maybe_mark, note_place, release


def copy(source: Path, target: Path) -> Path:
    """Copy a directory as ``cp -a`` does."""
    shutil.copytree(source, target, symlinks=True)
    return target


def test_a_mark_says_why_and_since_when_until_it_is_removed(tmp_path: Path) -> None:
    assert maybe_mark(tmp_path) is None
    hold(tmp_path, "restored from backup 2")
    found = maybe_mark(tmp_path)
    assert found is not None
    assert (found.reason, found.since_ms > 0) == ("restored from backup 2", True)
    release(tmp_path)
    release(tmp_path)
    assert maybe_mark(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"reason": 1, "since_ms": []}', b"\xff"])
def test_a_mark_that_cannot_be_read_holds_all_the_same(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MARK).write_bytes(content)
    found = maybe_mark(tmp_path)
    assert found is not None
    assert found.reason


@pytest.mark.parametrize("kind", sorted(KEEPS_INODES))
def test_a_copy_is_held_once_it_is_started(tmp_path: Path, kind: str) -> None:
    """(1)"""
    first = tmp_path / "first"
    first.mkdir()
    assert not note_place(first, kind), "an older Warren has left no place"
    assert not note_place(first, kind)
    second = copy(first, tmp_path / "second")
    assert note_place(second, kind)
    found = maybe_mark(second)
    assert found is not None
    assert found.reason == COPIED
    release(second)
    assert not note_place(second, kind), "it is told once"
    assert not note_place(first, kind), "the original is none"
    assert maybe_mark(first) is maybe_mark(second) is None


def test_a_full_disk_keeps_no_broker_from_starting_but_a_copy_that_cannot_be_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(3)"""

    def full(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "first").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(links_mark, "replace_file", full)
        assert not note_place(tmp_path / "first", "ext4")
    note_place(tmp_path / "first", "ext4")
    second = copy(tmp_path / "first", tmp_path / "second")
    with monkeypatch.context() as patch:
        patch.setattr(links_mark, "replace_file", full)
        with pytest.raises(OSError, match="No space left"):
            note_place(second, "ext4")
    assert note_place(second, "ext4")


def test_a_moved_directory_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    note_place(tmp_path / "here", "ext4")
    there = (tmp_path / "here").rename(tmp_path / "there")
    assert not note_place(there, "ext4")


@pytest.mark.parametrize("kind", ["", "overlay", "fuse.s3fs", "9p", "virtiofs", "vfat", "cifs"])
def test_other_inodes_mean_nothing_where_the_file_system_makes_them_up(tmp_path: Path, kind: str) -> None:
    """(2)"""
    (tmp_path / "first").mkdir()
    note_place(tmp_path / "first", kind)
    second = copy(tmp_path / "first", tmp_path / "second")
    assert not note_place(second, kind)
    assert maybe_mark(second) is None
    assert not note_place(second, "ext4"), "from then on it is the place"


@pytest.mark.parametrize("content", [b"", b"7", b"{}", b"{"])
def test_a_place_that_cannot_be_read_is_written_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PLACE).write_bytes(content)
    assert not note_place(tmp_path, "ext4")
    assert not note_place(tmp_path, "ext4")
    assert note_place(copy(tmp_path, tmp_path / "copy"), "ext4")


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = tmp_path / "a b" / "data"
    spaced.mkdir(parents=True)
    mounts = tmp_path / "mounts"
    shown = str(tmp_path / "a b").replace(" ", "\\040")
    mounts.write_text(f"disk / overlay rw 0 0\nbad\ndisk {shown} xfs rw 0 0\ndisk {shown}bc ext4 rw 0 0\n")
    monkeypatch.setattr(links_mark, "MOUNTS", mounts)
    assert links_mark.type_of_file_system(spaced) == "xfs"
    assert links_mark.type_of_file_system(tmp_path) == "overlay"
    monkeypatch.setattr(links_mark, "MOUNTS", tmp_path / "none")
    assert links_mark.type_of_file_system(spaced) == ""


def test_an_opened_directory_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_mark, "type_of_file_system", lambda path: "ext4")
    DataDir.open(tmp_path / "d").close()
    assert (tmp_path / "d" / PLACE).exists()
    copied = copy(tmp_path / "d", tmp_path / "copy")
    DataDir.open(copied).close()
    assert maybe_mark(copied) is not None
    assert maybe_mark(tmp_path / "d") is None
