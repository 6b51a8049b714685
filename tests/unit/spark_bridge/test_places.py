"""Places of files by their URLs: places.py (2), (3). Integration tests try a real object store."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from warren.spark_bridge import places
from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.places import Directory, ObjectPrefix, note_at, place_of


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://lake/a/b/", "s3://lake/a/b"),
        ("s3://lake", "s3://lake"),
        ("S3://key:secret@lake/a?region=eu-west-1", "s3://lake/a"),
        ("gs://lake/a", "gs://lake/a"),
        ("abfss://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
        ("abfss://c:secret@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
    ],
)
def test_a_url_is_shown_without_passwords_and_nobody_is_asked(url: str, shown: str) -> None:
    place = place_of(url)
    assert isinstance(place, ObjectPrefix)
    assert (str(place), place.identity[0]) == (shown, shown)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3:///lake", "names no bucket"),
        ("s3://", "names no bucket"),
        ("gs://?a=b", "names no bucket"),
        ("abfss://container/lake", "names no container"),
        ("abfss://@account.dfs.core.windows.net/lake", "names no container"),
        ("s3://lake/a#b", "%23"),
        ("https://lake/a", "must be a directory, or a URL"),
        ("file://host/a", "file:///DIRECTORY"),
        ("file:a://b", "must be a directory, or a URL"),
    ],
)
def test_a_url_that_is_no_place_is_refused(url: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        place_of(url)


def test_an_option_in_the_query_that_nobody_knows_is_refused_before_anybody_is_asked() -> None:
    with pytest.raises(UsageError, match="colour"):
        place_of("s3://lake/a?colour=red&region=eu-west-1").begin()


def test_directories_that_are_made_are_on_disk_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drained messages are acknowledged when their file is synced: it must not go with a directory above it."""
    synced: set[Path] = set()
    monkeypatch.setattr(places, "sync_directory", synced.add)
    Directory(tmp_path / "a" / "b").begin()
    assert synced == {tmp_path, tmp_path / "a"}
    note_at(tmp_path / "c" / "d" / "state.json").replace(b"{}")
    assert {tmp_path / "c", tmp_path / "c" / "d"} <= synced
    synced.clear()
    Directory(tmp_path / "a" / "b").begin()
    assert not synced


def test_paths_and_file_urls_are_directories(tmp_path: Path) -> None:
    for where in (tmp_path, str(tmp_path), f"file://{tmp_path}", f"file://localhost{tmp_path}"):
        place = place_of(where)
        assert isinstance(place, Directory) and place.path == tmp_path
    assert isinstance(place_of(Path("s3://lake")), Directory), "a path is a path, whatever it looks like"


def test_only_one_exports_to_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(locks))
    prefix = f"s3://lake/{os.getpid()}"
    for first, second in ((place_of(tmp_path), place_of(f"{tmp_path}/")), (place_of(prefix), place_of(f"{prefix}/"))):
        with first.only_one(), pytest.raises(UsageError, match="another export"), second.only_one():
            pass
        with second.only_one():
            pass
    assert list(locks.iterdir()) == []


def test_the_same_bucket_of_another_store_is_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"s3://lake/{os.getpid()}"
    first, second = place_of(f"{prefix}?endpoint_override=one:9000"), place_of(f"{prefix}?endpoint_override=two:9000")
    with first.only_one(), second.only_one():
        pass
    identities = {first.identity, second.identity}
    with ExitStack() as stack:
        for port in (9000, 9001):
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            stack.enter_context(place_of(prefix).only_one())
            identities.add(place_of(prefix).identity)
    assert len(identities) == 4
    assert {shown for shown, *_ in identities} == {prefix}


def test_names_that_readers_pass_over_are_no_files_of_a_directory(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    for name in ("b/x.json", "a.json", "_manifest/export.json", ".hidden/y.json", "b/_z.json"):
        place.replace(name, b"1")
    assert list(place.names()) == ["a.json", "b/x.json"]
    assert place.maybe_content("_manifest/export.json") == b"1" and place.maybe_content("c") is None
    assert place.maybe_size("a.json") == 1 and place.maybe_size("c") is None
