"""Files of staged messages: written messages are read, damaged ones are reported. stage_files.py (1) and (2)."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

import pytest

from warren.server.staging.stage_files import Cell, DamagedPart, PartHead, StageFiles

CELLS = [b"one", b"", b"three" * 1000]


def head_of(stage: str = "s", part: int = 0, cells: list[bytes] | None = None, vhost: str = "/") -> PartHead:
    made = [Cell(len(cell), 1, zlib.crc32(cell)) for cell in (CELLS if cells is None else cells)]
    return PartHead(vhost, stage, part, "guest", 1234, made)


def the_file(root: Path) -> Path:
    (found,) = (path for path in root.rglob("*") if path.is_file())
    return found


def test_what_is_written_is_read_cell_by_cell(tmp_path: Path) -> None:
    StageFiles(tmp_path).write(head_of(), b"".join(CELLS))
    files = StageFiles(tmp_path)
    head = files.head("/", "s", 0)
    assert head == head_of()
    assert (head.messages, head.size) == (3, len(b"".join(CELLS)))
    assert files.read(head, 0, 3) == CELLS
    assert files.read(head, 2, 3) == CELLS[2:]
    assert list(files.scan()) == [head]


def test_a_part_replaces_the_one_before(tmp_path: Path) -> None:
    files = StageFiles(tmp_path)
    files.write(head_of(), b"".join(CELLS))
    files.write(head_of(cells=[b"new"]), b"new")
    head = files.head("/", "s", 0)
    assert files.read(head, 0, 1) == [b"new"]
    assert list(files.scan()) == [head]


def test_no_name_is_a_clients_and_nobody_else_can_read(tmp_path: Path) -> None:
    files = StageFiles(tmp_path)
    files.write(head_of("../../x", 7, [b"x"], "/../é"), b"x")
    path = the_file(tmp_path)
    assert path.parent.parent.parent == tmp_path / "stages"
    assert path.name == "0000000007"
    for each in (path, *list(path.parents)[:3]):
        assert each.stat().st_mode & 0o077 == 0


def test_a_removed_stage_is_gone_and_removing_it_again_does_nothing(tmp_path: Path) -> None:
    files = StageFiles(tmp_path)
    for part in range(3):
        files.write(head_of(part=part), b"".join(CELLS))
    files.write(head_of("other"), b"".join(CELLS))
    files.remove("/", "s")
    files.remove("/", "s")
    assert [head.stage for head in files.scan() if isinstance(head, PartHead)] == ["other"]
    with pytest.raises(DamagedPart):
        files.head("/", "s", 0)
    files.write(head_of(), b"".join(CELLS))
    assert files.head("/", "s", 0) == head_of()


def test_a_removal_that_was_interrupted_leaves_no_shorter_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = StageFiles(tmp_path)
    for part in (2, 0, 1):
        files.write(head_of(part=part), b"".join(CELLS))
    listed, unlink = Path.iterdir, Path.unlink
    removed: list[str] = []

    def last_first(directory: Path) -> list[Path]:
        return sorted(listed(directory), reverse=True)

    def fail_later(path: Path, missing_ok: bool = False) -> None:
        if removed:
            raise OSError(errno.EIO, "Input/output error")
        removed.append(path.name)
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", last_first)  # in no order that can be relied on
        patched.setattr(Path, "unlink", fail_later)
        with pytest.raises(OSError, match="Input/output error"):
            files.remove("/", "s")
    left = [head.part for head in StageFiles(tmp_path).scan() if isinstance(head, PartHead)]
    assert left == [1, 2], "part 0 is missing, so the rest is not published"


def test_what_was_being_written_goes_at_a_start(tmp_path: Path) -> None:
    files = StageFiles(tmp_path)
    files.write(head_of(), b"".join(CELLS))
    half = the_file(tmp_path).with_name("0000000001.1.new")
    half.write_bytes(b"WARR")
    assert len(list(files.scan())) == 1
    assert not half.exists()


def test_every_changed_octet_is_noticed(tmp_path: Path) -> None:
    files = StageFiles(tmp_path)
    cells = [b"one", b"two"]
    files.write(head_of(cells=cells), b"".join(cells))
    path = the_file(tmp_path)
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x20]) + good[at + 1 :])
        with pytest.raises(DamagedPart):
            files.read(files.head("/", "s", 0), 0, 2)


@pytest.mark.parametrize("size", [0, 10, 31, 40, -1])
def test_a_part_that_is_cut_is_told_at_a_start(tmp_path: Path, size: int) -> None:
    files = StageFiles(tmp_path)
    files.write(head_of(), b"".join(CELLS))
    path = the_file(tmp_path)
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    (found,) = files.scan()
    assert isinstance(found, DamagedPart)
    assert path.exists()


def test_a_part_in_the_place_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    files = StageFiles(tmp_path)
    files.write(head_of("one"), b"".join(CELLS))
    files.write(head_of("two", 5), b"".join(CELLS))
    first, second = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    os.rename(first, second.parent / "0000000006")
    assert sorted(type(each).__name__ for each in files.scan()) == ["DamagedPart", "PartHead"]


def test_a_part_of_a_newer_form_is_refused(tmp_path: Path) -> None:
    files = StageFiles(tmp_path)
    files.write(head_of(), b"".join(CELLS))
    path = the_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[9] = 2
    path.write_bytes(data)
    (found,) = files.scan()
    assert "newer" in str(found)


def test_a_damaged_note_of_the_epoch_names_none(tmp_path: Path) -> None:
    """Otherwise it would name another leader, and a start would remove the stages of this one."""
    files = StageFiles(tmp_path)
    assert files.maybe_epoch() is None
    files.note_epoch(41)
    assert StageFiles(tmp_path).maybe_epoch() == 41
    note = the_file(tmp_path)
    intact = note.read_bytes()
    flipped = [intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :] for at in range(len(intact))]
    for damaged in (*flipped, b"", b"\0" * len(intact), b"-4\n", intact[:-1]):
        note.write_bytes(damaged)
        with pytest.raises(DamagedPart):
            files.maybe_epoch()


def test_a_note_of_the_epoch_from_an_earlier_version_is_read(tmp_path: Path) -> None:
    files = StageFiles(tmp_path)
    files.note_epoch(1)
    the_file(tmp_path).write_bytes(b"41\n")
    assert files.maybe_epoch() == 41
