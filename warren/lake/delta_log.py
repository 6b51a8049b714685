"""The log of a Delta table, for the commits of other programs: JSON in ``_delta_log/00000000000000000042.json``.

    {"remove": {"path": …, "dataChange": false, …}}     a file that is no longer in the table
    {"add": {"path": …, …}}                             a file that is in it now

1. A compaction that began before another one and commits after it removes files that are no longer in the table. Their
   rows are in the files of both then: twice. Such a commit is called late. deltalake makes them silently; Spark does
   not.
2. A later compaction may have put such files together with others. So these files are suspected: all that are in the
   table now and were added by the first late commit or by a later one that removes files as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec


class Commit(NamedTuple):
    """A commit: the files that it takes out of the table and that it puts in."""

    version: int
    removed: frozenset[str]
    added: frozenset[str]


def commits_between(files: Any, since: int, until: int) -> Iterator[Commit]:
    """Yield the commits after version `since` up to `until`. `files`: the handler of the table's storage.

    Raises:
        FileNotFoundError: one of them is not in the log any longer.
    """
    for version in range(since + 1, until + 1):
        with files.open_input_file(f"_delta_log/{version:020}.json") as opened:
            yield commit_of(version, bytes(opened.read()))


def commit_of(version: int, content: bytes) -> Commit:
    """Return the content of a file of the log."""
    removed: set[str] = set()
    added: set[str] = set()
    for line in content.splitlines():
        action = msgspec.json.decode(line) if line.strip() else {}
        if "remove" in action:
            removed.add(action["remove"]["path"])
        elif "add" in action:
            added.add(action["add"]["path"])
    return Commit(version, frozenset(removed), frozenset(added))


def suspects(commits: Sequence[Commit], before: Callable[[], Iterable[str]]) -> frozenset[str]:
    """Return the files that may have rows a second time after `commits`; `before`: returns the files before them."""
    if not any(commit.removed for commit in commits):
        return frozenset()
    there = set(before())
    found: set[str] = set()
    is_late = False
    for commit in commits:
        is_late = is_late or not commit.removed <= there
        there = (there - commit.removed) | commit.added
        if is_late and commit.removed:
            found |= commit.added
    return frozenset(found & there)
