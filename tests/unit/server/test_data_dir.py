"""The data directory is private, and one broker's at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from warren.server.data_dir import LOCK_NAME, DataDir
from warren.server.start_errors import StartError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_missing_directory_is_made_private_with_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with DataDir.open(path) as opened:
        assert opened.path == path
        assert mode(path) == 0o700
        assert mode(path / LOCK_NAME) == 0o600


def test_a_second_broker_is_refused_naming_the_first(tmp_path: Path) -> None:
    with (
        DataDir.open(tmp_path / "d"),
        pytest.raises(StartError, match=rf"another broker uses it \(process {os.getpid()}\)"),
    ):
        DataDir.open(tmp_path / "d")


def test_a_closed_directory_can_be_opened_again(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path / "d")
    first.close()
    first.close()
    DataDir.open(tmp_path / "d").close()


_OPEN_AND_DIE = """
import os, signal, sys
from pathlib import Path
from warren.server.data_dir import DataDir
held = DataDir.open(Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_broker_leaves_no_lock(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _OPEN_AND_DIE, str(tmp_path / "d")])
    assert (tmp_path / "d" / LOCK_NAME).exists()
    DataDir.open(tmp_path / "d").close()


def test_a_child_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    opened = DataDir.open(tmp_path / "d")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        opened.close()
        DataDir.open(tmp_path / "d").close()
        child.communicate(b"\n")


def test_an_empty_directory_others_can_read_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "volume"
    (path / "lost+found").mkdir(parents=True)
    path.chmod(0o755)
    DataDir.open(path).close()
    assert mode(path) == 0o700


def test_a_data_directory_that_was_opened_up_is_made_private_again(tmp_path: Path) -> None:
    DataDir.open(tmp_path / "d").close()
    (tmp_path / "d").chmod(0o755)
    DataDir.open(tmp_path / "d").close()
    assert mode(tmp_path / "d") == 0o700


def test_a_shared_directory_with_other_files_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "home"
    path.mkdir()
    path.chmod(0o755)
    (path / "letter").write_text("dear")
    with pytest.raises(StartError, match="has files that are not Warren's"):
        DataDir.open(path)
    assert mode(path) == 0o755
    assert sorted(os.listdir(path)) == ["letter"]


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="a file of that name is in the way"):
        DataDir.open(tmp_path / "file")
    with pytest.raises(StartError, match="Not a directory"):
        DataDir.open(tmp_path / "file" / "below")


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.mkdir(mode=0o700)
    (tmp_path / "victim").write_text("precious")
    (path / LOCK_NAME).symlink_to(tmp_path / "victim")
    with pytest.raises(StartError):
        DataDir.open(path)
    assert (tmp_path / "victim").read_text() == "precious"


_OPEN_UNPRIVILEGED = """
import os, sys
from pathlib import Path
from warren.server.data_dir import DataDir
from warren.server.start_errors import StartError
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    DataDir.open(Path("warren"))
except StartError as error:
    print(error)
"""


def test_a_place_this_user_cannot_write_is_one_clear_line(tmp_path: Path) -> None:
    place = tmp_path / "read-only"
    place.mkdir(mode=0o555)
    command = [sys.executable, "-c", _OPEN_UNPRIVILEGED, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "data directory warren: not writable by this user\n"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_second_broker_is_refused_when_the_lock_file_has_been_deleted(tmp_path: Path, replaced: bool) -> None:
    with DataDir.open(tmp_path / "d"):
        (tmp_path / "d" / LOCK_NAME).unlink()
        if replaced:
            (tmp_path / "d" / LOCK_NAME).touch()
        with pytest.raises(StartError, match=r"another broker uses it \(process \?\)"):
            DataDir.open(tmp_path / "d")
    DataDir.open(tmp_path / "d").close()


def test_where_directories_cannot_be_locked_the_lock_file_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with DataDir.open(tmp_path / "d"), pytest.raises(StartError, match="another broker uses it"):
        DataDir.open(tmp_path / "d")


def test_a_lock_file_that_is_deleted_while_it_is_being_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    locked: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        real(descriptor, operation)
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            locked.append(descriptor)
            if len(locked) == 1:
                (tmp_path / "d" / LOCK_NAME).unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    with DataDir.open(tmp_path / "d"):
        assert (tmp_path / "d" / LOCK_NAME).read_text() == f"{os.getpid()}\n"
    assert len(locked) == 2


def test_what_is_open_is_closed_when_a_directory_is_refused(tmp_path: Path) -> None:
    with DataDir.open(tmp_path / "d"):
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(StartError):
            DataDir.open(tmp_path / "d")
        assert set(os.listdir("/proc/self/fd")) <= before
