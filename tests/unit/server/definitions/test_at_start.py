"""The wait for definitions that a start imports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from engine_harness import Harness

from warren.server.definitions.at_start import wait_until_durable
from warren.server.management import COMMIT_TIMEOUT_S, Management
from warren.vhosts.metadata import VhostPut

FILE = Path("all.json")


def waiting(harness: Harness) -> Management:
    """Return what waits for changes of a broker."""
    return cast(Management, SimpleNamespace(broker=harness.broker, _committed=trio.Event()))


@pytest.mark.parametrize("stops", [False, True])
def test_a_start_waits_as_long_as_the_disk_takes_unless_it_has_to_stop(
    caplog: pytest.LogCaptureFixture, stops: bool
) -> None:
    harness = Harness()
    harness.hold_commits = True
    ticket = harness.broker.administer(VhostPut("v"))
    harness.settle()
    management: Any = waiting(harness)
    management.commit = lambda *given: Management.commit(management, *given)
    is_over = False

    async def end_of_wait() -> None:
        nonlocal is_over
        await trio.sleep(2 * COMMIT_TIMEOUT_S)
        is_over = True
        if not stops:
            harness.hold_commits = False
            harness.settle()
            management._committed.set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_of_wait)
            await wait_until_durable(FILE, management, ticket, lambda: stops and is_over)
            assert is_over

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    fields: list[Any] = [record.__dict__["fields"] for record in caplog.records]
    assert len(fields) >= 10
    assert fields[0] == {"file": "all.json", "changes": 1}
