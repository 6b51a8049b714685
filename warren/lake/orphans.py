"""Orphans: files of a writer that was killed before its commit, or whose commit failed. They are not in any table.

    TABLE/data/warren-EPOCH/[publish_date=DAY/]*.parquet       of Iceberg: of the writer that had this epoch
    TABLE/metadata/warren-EPOCH/*.avro                         manifests, and lists of them

1. Only files in folders with these names are examined, so files of other programs are safe. Folders of a larger epoch
   belong to a writer that has taken over meanwhile, and are left alone.
2. A writer with a smaller epoch can no longer commit, so its uncommitted files will never be committed. Nevertheless
   files younger than a day are left alone: someone may have taken the table back, and its epochs with it.
3. A file that is in any snapshot is not an orphan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pyarrow import fs
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

_PREFIX: Final = "warren-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d{{1,19}})")


def folder_of(base: str, epoch: int) -> str:
    """Return where the writer with `epoch` puts its files below `base`."""
    return f"{base.rstrip('/')}/{_PREFIX}{epoch}"


class Folders:
    """The folders of writers below `base`; always empty for storage that pyarrow does not know."""

    def __init__(self, io: FileIO, base: str) -> None:
        self._files: Any = None
        if isinstance(io, PyArrowFileIO):
            scheme, host, self._path = io.parse_location(base, io.properties)
            self._files = io.fs_by_scheme(scheme, host)

    def files(self, epoch: int, before_s: float) -> list[str]:
        """Return the paths of files of writers up to `epoch` that were written before a time."""
        return [
            file.path
            for folder in self._of_writers(epoch)
            for file in self._in(folder.path, recursive=True)
            if file.type == fs.FileType.File and _is_before(file, before_s)
        ]

    def delete(self, path: str) -> bool:
        """Delete a file; return whether it was there."""
        try:
            self._files.delete_file(path)
        except FileNotFoundError:
            return False
        return True

    def drop_empty(self, epoch: int, before_s: float) -> None:
        """Remove the folders of writers before `epoch` that have had no file since a time."""
        for folder in self._of_writers(epoch - 1):
            found = self._in(folder.path, recursive=True)
            if all(each.type == fs.FileType.Directory and _is_before(each, before_s) for each in [folder, *found]):
                self._files.delete_dir(folder.path)

    def _of_writers(self, epoch: int) -> Iterator[fs.FileInfo]:
        """Yield the folders of writers up to `epoch`."""
        for found in [] if self._files is None else self._in(self._path, recursive=False):
            name = _NAME.fullmatch(found.base_name)
            if found.type == fs.FileType.Directory and name is not None and int(name[1]) <= epoch:
                yield found

    def _in(self, path: str, *, recursive: bool) -> list[fs.FileInfo]:
        selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        return list(self._files.get_file_info(selector))


def _is_before(found: fs.FileInfo, before_s: float) -> bool:
    """Tell whether it has not changed since then. Folders of object stores are not real, and have no such time."""
    return found.mtime is not None and found.mtime.timestamp() < before_s


def path_of(io: FileIO, location: str) -> str:
    """Return the path of a file that a snapshot names."""
    return str(io.parse_location(location, io.properties)[2]) if isinstance(io, PyArrowFileIO) else location
