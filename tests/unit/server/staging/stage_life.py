"""One process with stages over an engine on a simulated disk, and how it ends.

A crash ends everything at the nth time that the engine is settled or a file is touched, before or after that step. The
next life has what was written by then, as after kill -9.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
import trio
from durable_harness import DurableHarness
from engine_harness import publish_frames

from warren.engine_view.engine_view import EngineView
from warren.msgstore.files.store import wall_time_ms
from warren.server.direct_clients import DirectClients
from warren.server.management import Management
from warren.server.settings import Settings, StoreSettings
from warren.server.staging import staged_batch, stages
from warren.server.staging.commit_notes import Note
from warren.server.staging.staged_batch import (
    Order,
    Outcome,
)
from warren.server.staging.stages import Stages
from warren.server.supervision import Supervision

T = TypeVar("T")
USER = "guest"
PERSISTENT = {"delivery_mode": 2}


class Crash(BaseException):
    """The process is gone."""


class Life:
    """One process: an engine, stages, and when it dies. `steps` counts the moments at which it could."""

    def __init__(self, directory: Path, harness: DurableHarness, crash_at: int = 0, *, behind: bool = False) -> None:
        directory.mkdir(exist_ok=True)
        self.harness = harness
        self.steps = 0
        self._crash_at = crash_at
        self._behind = behind
        self.dead = False
        self._has_run = False
        self.clients = DirectClients(harness.broker.open_direct, self.settle)
        settings = Settings(data_dir=directory, store=StoreSettings(disk_free_min_bytes=0))
        self.management: Any = SimpleNamespace(
            view=EngineView(harness.broker, self.settle),
            settings=settings,
            messages=SimpleNamespace(deleted=self._synced),
            replication=None,
            clients=self.clients,
            settle=self.settle,
            commit=self._commit,
            tasks=Supervision(),
            clock_ms=wall_time_ms,
        )
        self.stages = Stages(cast(Management, self.management), directory)
        for name in ("write", "remove"):
            files: Any = self.stages._files
            setattr(files, name, self._stepping(getattr(files, name)))

    def _stepping(self, work: Callable[..., T]) -> Callable[..., T]:
        def step(*arguments: Any) -> T:
            self._die_if_due(behind=False)
            done = work(*arguments)
            self._die_if_due(behind=True)
            return done

        return step

    def _die_if_due(self, *, behind: bool) -> None:
        if not behind:
            self.steps += 1
        if self.dead or (self.steps == self._crash_at and self._behind == behind):
            self.dead = True
            raise Crash

    def settle(self) -> None:
        self._die_if_due(behind=False)
        self.harness.settle()
        self._die_if_due(behind=True)

    async def _synced(self) -> None:
        self.harness.broker.log.force()
        self.settle()
        await trio.lowlevel.checkpoint()

    async def _commit(self, ticket: int) -> None:
        await trio.lowlevel.checkpoint()

    def run(self, work: Callable[[Stages], Awaitable[T]]) -> T:
        """Do something with the stages, which run meanwhile. Once: at its start a process looks for what there is."""
        assert not self._has_run
        self._has_run = True

        async def main() -> T:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.stages.run)
                done = await work(self.stages)
                nursery.cancel_scope.cancel()
            return done

        return trio.run(main)

    def dies(self, work: Callable[[Stages], Awaitable[object]]) -> bool:
        """Do something; tell whether the process died of it."""
        try:
            self.run(work)
        except BaseExceptionGroup as group:
            if group.split(Crash)[1] is not None:
                raise
            return True
        except Crash:
            return True
        return False

    def after_a_crash(self, directory: Path, **more: Any) -> Life:
        return Life(directory, self.harness.restart(clean=False), **more)

    def bodies(self, queue: str = "q") -> list[bytes]:
        """Take everything out of a queue."""
        client = self.harness.channel()
        found: list[bytes] = []
        while (message := client.get(queue, no_ack=True)) is not None:
            assert message.content is not None
            found.append(message.content.body)
        return found


def with_queue(directory: Path, **more: Any) -> Life:
    harness = DurableHarness()
    harness.channel().declare("q", durable=True)
    return Life(directory, harness, **more)


def content(*bodies: bytes, queue: str = "q") -> bytes:
    return b"".join(publish_frames("", queue, body, properties=PERSISTENT) for body in bodies)


async def put(stages: Stages, name: str, *parts: bytes, user: str = USER) -> str:
    for number, part in enumerate(parts):
        await stages.put("/", name, number, user, part, lambda exchange: None)
    return name


async def commit(life: Life, batch: int, *names: str, query: str = "query", user: str = USER, **more: Any) -> Outcome:
    return await life.stages.commit("/", user, Order(query, batch, list(names), **more))


async def names_of(stages: Stages) -> list[str]:
    return [each.name for each in await stages.listed(["/"], None)]


def note(batch: int, at_ms: int, until_ms: int | None = None, *, done: bool = True) -> Note:
    return Note(batch, USER, done=done, at_ms=at_ms, until_ms=until_ms)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces of three messages."""
    monkeypatch.setattr(staged_batch, "PIECE_MESSAGES", 3)
    monkeypatch.setattr(stages, "PIECE_MESSAGES", 3)
    monkeypatch.setattr(stages, "CELL_MESSAGES", 2)
