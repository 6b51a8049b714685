"""Hold links: the shovels, federation links and tables of a broker do not run until an operator releases them.

A restored or copied data directory has the links of the original broker. If both brokers ran, these links would empty
queues of the original and take over its tables.

    mark in the directory (``links_mark.py``) -> the broker starts -> a global parameter, durable -> the mark goes
    released: no mark -> no parameter, durable

1. Links are held while the mark or the parameter exists. Only a release ends that: a crash, a restart or an unreadable
   mark does not.
2. The parameter is part of the metadata. Followers have it, so links are held when another node leads, too.
3. A release is announced like every change of a parameter, so the code that watches links learns of it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warren.server import links_mark
from warren.server.links_mark import HeldMark, mark_of
from warren.server.logs import get_logger
from warren.server.threads import LINKS, in_thread
from warren.vhosts.metadata import GlobalParameterDelete, GlobalParameterPut, MetadataChange
from warren.vhosts.parameters import ParameterBook

if TYPE_CHECKING:
    from warren.engine_view.parameters import Parameters

PARAMETER: Final = "internal_links_held"

log = get_logger("links")

Administer = Callable[[MetadataChange, str], Awaitable[None]]


def told_by(parameters: ParameterBook | Parameters) -> HeldMark | None:
    """Return why links are held, as the metadata say."""
    parameter = parameters.maybe_global(PARAMETER)
    return None if parameter is None else mark_of(parameter.value)


class HeldLinks:
    """Whether the links of a broker are held. `directory`: its data directory, if there is one."""

    def __init__(self, parameters: ParameterBook, directory: Path | None) -> None:
        self._parameters = parameters
        self._directory = directory
        self._mark = None if directory is None else links_mark.maybe_mark(directory)

    def maybe_mark(self) -> HeldMark | None:
        """Return why links are held; None if they are not."""
        return told_by(self._parameters) or self._mark

    @property
    def reason(self) -> str:
        """Why links are held; empty when they are not."""
        mark = self.maybe_mark()
        return "" if mark is None else mark.reason

    async def begin(self, administer: Administer, *, with_links: bool) -> None:
        """Make the mark of the directory a part of the metadata; with `with_links`, release held links instead.

        Raises:
            CommitTimeout: that is not durable yet; the next start does it again.
        """
        if with_links:
            if await self.release(administer, ""):
                log.warning("links are released: with_links is set")
            return
        if self._mark is not None and told_by(self._parameters) is None:
            await administer(GlobalParameterPut(PARAMETER, json.dumps(self._mark.document())), "")
        if self._mark is not None:
            await self._remove_mark()
        if self.reason:
            log.warning(
                "links are held: shovels, federation links and tables are stopped",
                reason=self.reason,
                advice="warren ctl release_links",
            )

    async def release(self, administer: Administer, by: str) -> bool:
        """Release the links, for good; tell whether they were held. `by`: the user who requests that.

        Raises:
            CommitTimeout: they run, but that is not durable yet.
        """
        was_held = self.maybe_mark() is not None
        await self._remove_mark()
        if told_by(self._parameters) is not None:
            await administer(GlobalParameterDelete(PARAMETER), by)
        elif was_held:
            self._parameters.tell(GlobalParameterDelete(PARAMETER))
        if was_held:
            log.info("links are released", user=by)
        return was_held

    async def _remove_mark(self) -> None:
        if self._directory is not None:
            await in_thread(LINKS, partial(links_mark.release, self._directory))
        self._mark = None
