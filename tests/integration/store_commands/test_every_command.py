"""The common behaviour of all `warren store` commands: locks, exit codes, and reads that change nothing."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from warren_command import run_warren

from warren.server.data_dir import LOCK_NAME, DataDir

from .stores import run, small_store

READING = [("inspect",), ("verify",), ("dump-queue", "--queue", "orders"), ("repair",)]


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: arguments[0])
def test_a_directory_that_a_broker_uses_is_refused_and_a_copy_is_not(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    store = small_store(tmp_path / "data")
    name, *options = arguments
    store.path.chmod(0o700)
    with DataDir.open(store.path):
        done = run_warren("store", name, store.path, *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"warren store: {store.path}: a broker is running on it: stop it, or copy the directory\n"
        )
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-r", store.path, copy], check=True)
        assert run(name, copy, *options)[0] == 0
    assert run(name, store.path, *options)[0] == 0


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: arguments[0])
def test_reading_changes_nothing(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    store = small_store(tmp_path / "data")
    before = store.snapshot()
    name, *options = arguments
    assert run(name, store.path, *options)[0] == 0
    assert store.snapshot() == before


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: arguments[0])
def test_a_directory_without_a_store_has_exit_code_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    name, *options = arguments
    assert run(name, tmp_path, *options) == (2, [])
    assert run(name, tmp_path / "nowhere", *options) == (2, [])
    assert run(name) == (2, [])
    assert list(tmp_path.iterdir()) == []


def test_a_broker_does_not_start_while_a_command_reads(tmp_path: Path) -> None:
    from warren.server.store_commands import _reading

    store = small_store(tmp_path / "data")
    (store.path / LOCK_NAME).touch()
    with _reading(store.path):
        lock = os.open(store.path / LOCK_NAME, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(lock)


@pytest.mark.long
def test_data_dir_names_the_directory_of_every_command(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data")
    for name, *options in READING:
        by_option = run_warren("store", name, "--data-dir", str(store.path), *options)
        by_word = run_warren("store", name, str(store.path), *options)
        assert (by_option.returncode, by_option.stdout) == (by_word.returncode, by_word.stdout) and by_word.stdout
    for words in ((), (str(store.path), "--data-dir", str(store.path))):
        refused = run_warren("store", "verify", *words)
        assert refused.returncode == 2 and "--data-dir" in refused.stderr
