"""Syncing is the system's own call where that means the disk, and F_FULLFSYNC where it does not."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from warren.msgstore.files.syncing import all_sync, content_sync, sync_all, sync_content

F_FULLFSYNC = 51  # of macOS
asked: list[object] = []


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of errors that F_FULLFSYNC meets, one for each call; without any it succeeds."""
    errors: list[int] = []
    asked.clear()

    def control(handle: int, command: int) -> int:
        asked.append(command)
        if errors:
            raise OSError(errors.pop(0), "injected")
        return 0

    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda handle: asked.append("fsync"))
    return errors


def test_linux_is_asked_by_its_own_calls_and_nothing_stands_between() -> None:
    assert sync_content is os.fdatasync
    assert sync_all is os.fsync


def test_macos_is_asked_to_have_the_disk_write(answers: list[int]) -> None:
    content_sync(F_FULLFSYNC)(7)
    all_sync(F_FULLFSYNC)(7)
    assert asked == [F_FULLFSYNC, F_FULLFSYNC]


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOTTY, errno.EINVAL])
def test_a_file_system_without_that_command_is_synced_as_far_as_it_can_be(answers: list[int], number: int) -> None:
    answers.append(number)
    content_sync(F_FULLFSYNC)(7)
    assert asked == [F_FULLFSYNC, "fsync"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_is_not_asked_in_another_way(answers: list[int], number: int) -> None:
    answers.append(number)
    with pytest.raises(OSError, match="injected"):
        content_sync(F_FULLFSYNC)(7)
    assert asked == [F_FULLFSYNC]


def test_a_unix_with_neither_has_fsync(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "fdatasync")
    assert content_sync(None) is os.fsync
