"""A data directory in which no message could be kept: one line that says so, and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_process import WarrenProcess
from compat.broker import DEADLINE_S

from .small_disk import SmallDisk

MIB = 1 << 20


def _refusal(process: WarrenProcess) -> str:
    """Start a broker that cannot; return the one line it says."""
    process.spawn()
    try:
        assert process.wait(DEADLINE_S) == 1
    finally:
        process.kill()
    said = process.log()
    assert said.startswith("warren: "), said
    assert said.count("\n") == 1, said
    assert process.out() == ""
    return said


def test_a_read_only_data_directory_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "data", MIB) as disk:
        disk.make_read_only()
        said = _refusal(WarrenProcess(tmp_path, wrapper=disk.wrapper))
    assert str(tmp_path / "data") in said


def test_a_read_only_message_directory_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with SmallDisk(data / "messages", MIB) as disk:
        disk.make_read_only()
        said = _refusal(WarrenProcess(tmp_path, wrapper=disk.wrapper))
    assert "message store" in said


@pytest.mark.parametrize("name", ["messages", "messages/log", "messages/checkpoint"])
def test_something_else_in_the_place_of_the_store_is_one_line_and_exit_code_1(tmp_path: Path, name: str) -> None:
    place = tmp_path / "data" / name
    place.parent.mkdir(parents=True)
    (tmp_path / "data").chmod(0o700)
    if name == "messages/checkpoint":
        place.mkdir()
    else:
        place.write_text("not a directory")
    assert "message store" in _refusal(WarrenProcess(tmp_path))


def test_a_limit_on_file_sizes_below_a_segment_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    said = _refusal(WarrenProcess(tmp_path, wrapper=["prlimit", f"--fsize={4 * MIB}"]))
    assert "message store" in said
