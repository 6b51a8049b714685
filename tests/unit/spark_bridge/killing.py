"""Processes that are killed at each place, one after the other, where something becomes visible or safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warren.spark_bridge import export_targets, places
from warren.spark_bridge.table_files import TableFile

from .export_broker import ExportBroker


class Killed(BaseException):
    """The process is gone."""


class Killer:
    """Kills at the `at`th of the places where something becomes visible or safe."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, *others: tuple[Any, str]) -> None:
        self.left = at
        for owner, name in others:
            self._wrap(patch, owner, name)
        self._wrap(patch, places, "replace_file")
        self._wrap(patch, TableFile, "close")
        self._wrap(patch, Path, "replace")
        self._wrap(patch, Path, "unlink")
        self._wrap(patch, ExportBroker, "claim")
        self._wrap(patch, ExportBroker, "read")
        self._wrap(patch, ExportBroker, "make_snapshot")
        self._wrap(patch, ExportBroker, "delete_snapshot")
        self._wrap(patch, ExportBroker, "delete_drain")
        self._wrap(patch, ExportBroker, "put_stage")
        self._wrap(patch, ExportBroker, "commit_stages")
        # A killed process does not tidy up.
        patch.setattr(export_targets.FileTarget, "abandon", lambda self: None)

    def _wrap(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.step()
            made = original(*args, **kwargs)
            self.step()
            return made

        patch.setattr(owner, name, wrapped)

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


def killed_everywhere(work: Callable[[], object], *others: tuple[Any, str]) -> Iterator[int]:
    """Call `work` again and again, killed one step later each time, until it ends by itself."""
    at = 1
    while True:
        with pytest.MonkeyPatch.context() as patch:
            Killer(patch, at, *others)
            try:
                work()
            except Killed:
                yield at
            else:
                assert at > 10, "nothing was in the way"
                return
        at += 1
