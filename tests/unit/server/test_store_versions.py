"""Which Warren has made and written a message store, and what is told when two versions meet."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from warren import __version__
from warren.server import store_versions
from warren.server.start_errors import CatalogueError, StartError
from warren.server.store_versions import NAME, Versions, explained, maybe_read, note, told


def test_a_new_store_remembers_who_made_it_and_who_wrote_it_last(tmp_path: Path) -> None:
    assert maybe_read(tmp_path) is None
    made = note(tmp_path, is_new=True, version="0.1.0")
    assert (made.created_by, made.last_written_by) == ("0.1.0", "0.1.0")
    written = (tmp_path / NAME).stat().st_mtime_ns
    assert note(tmp_path, is_new=False, version="0.1.0") == made
    assert (tmp_path / NAME).stat().st_mtime_ns == written, "nothing is written when nothing changes"
    later = note(tmp_path, is_new=False, version="0.2.0")
    assert (later.created_by, later.last_written_by) == ("0.1.0", "0.2.0")
    assert maybe_read(tmp_path) == later


def test_of_a_store_of_an_older_warren_it_is_not_known_who_made_it(tmp_path: Path) -> None:
    assert note(tmp_path, is_new=False, version="0.2.0").created_by is None


def test_an_emptied_directory_is_a_new_store(tmp_path: Path) -> None:
    note(tmp_path, is_new=True, version="0.1.0")
    assert note(tmp_path, is_new=True, version="0.2.0").created_by == "0.2.0"


def test_a_full_disk_keeps_no_broker_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_versions, "replace_file", full)
    assert note(tmp_path, is_new=True, version="0.2.0").last_written_by == "0.2.0"
    assert maybe_read(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"created_by": 1, "last_written_by": "a", "since_ms": 1}'])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert maybe_read(tmp_path) is None
    note(tmp_path, is_new=False, version="0.2.0")
    assert isinstance(maybe_read(tmp_path), Versions)


def test_a_refusal_of_a_newer_format_names_both_versions(tmp_path: Path) -> None:
    note(tmp_path, is_new=True, version="9.8.7")
    with pytest.raises(CatalogueError) as caught, told(tmp_path):
        raise CatalogueError("written by a newer Warren (schema version 99)")
    advice = "start the newer version, or restore a backup that was made before the upgrade"
    both = f"; this is Warren {__version__}, and Warren 9.8.7 has written the message store last; {advice}"
    assert str(caught.value) == f"written by a newer Warren (schema version 99){both}"
    with pytest.raises(StartError, match=r"^the disk is full$"), told(tmp_path):
        raise StartError("the disk is full")
    reason = "a newer Warren has written it"
    assert explained(reason, tmp_path / "nothing") == f"{reason}; this is Warren {__version__}; {advice}"


def test_metadata_that_a_version_does_not_know_name_the_version_that_wrote_last(tmp_path: Path) -> None:
    reason = "metadata store: ExchangePut x cannot be restored: unknown type"
    note(tmp_path, is_new=True)
    assert explained(reason, tmp_path) == reason, "this very version has written it"
    note(tmp_path, is_new=False, version="9.8.7")
    assert explained(reason, tmp_path).startswith(f"{reason}; this is Warren {__version__}, and Warren 9.8.7 has")
