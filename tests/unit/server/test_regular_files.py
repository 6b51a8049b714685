"""Names that lead to something else than a file are refused, and nobody waits for them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from warren.server.regular_files import copied, read_regular


def test_a_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "file") == read_regular(str(tmp_path / "link")) == b"content"


@pytest.mark.parametrize("kind", ["pipe", "directory", "socket", "/dev/zero", "/dev/tty", "/dev/stdin"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = Path(kind) if kind.startswith("/") else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    with pytest.raises(OSError, match=r"not a regular file|No such|Permission"):
        read_regular(path)


def test_a_pipe_that_takes_the_place_of_the_file_while_it_is_opened_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"content")
    found = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda *_, **__: found)
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(path)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(101))
    with pytest.raises(OSError, match="larger than 100 bytes"):
        read_regular(path, 100)
    assert len(read_regular(path, 101)) == 101


def test_a_file_without_a_size_is_read_up_to_the_limit() -> None:
    """As those of /proc are."""
    assert read_regular("/proc/self/status").startswith(b"Name:")
    with pytest.raises(OSError, match="larger than 10 bytes"):
        read_regular("/proc/self/status", 10)


def test_a_copy_is_there_as_long_as_it_is_needed() -> None:
    with copied(b"content") as path:
        assert Path(path).read_bytes() == b"content"
        assert Path(path).read_bytes() == b"content"
    assert not Path(path).exists()


def test_where_there_are_no_files_in_memory_a_copy_is_on_disk_for_its_owner_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with copied(b"content") as path:
        assert Path(path).read_bytes() == b"content"
        assert os.stat(path).st_mode & 0o077 == 0
    assert not os.path.exists(path)
