"""No single peer ends, blocks or bloats the broker: each attack beside an innocent client.

The innocent client gets all its answers, however late. The test prints its worst waits; ``python -m abuse`` prints them
for a quiet machine. How much work an input may cause is asserted by counting, in `work`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import WarrenProcess

from . import scene
from .attacks import ATTACKS

# Above the watermark of the memory alarm (`scene.SETTINGS`) by what is under way when it is raised.
PEAK_BYTES_MAX = 3 << 30
REST_BYTES_MAX = 1 << 30

# Each of them takes more than a second and a half of a processor.
LONG = frozenset(
    {
        "carbon-copies",
        "certificates-of-devices",
        "commit-for-many-queues",
        "commit-of-large-messages",
        "commit-of-many-acks",
        "commit-of-many-messages",
        "commit-of-requeues",
        "commits-of-very-many-queries",
        "consumers-of-all-priorities",
        "cookies",
        "deep-json",
        "endless-numbers",
        "exclusive-queues",
        "expiries-with-dead-letters",
        "federation-of-every-queue",
        "filters-of-everything",
        "handshakes-byte-by-byte",
        "idle-amqp-connections",
        "key-updates",
        "large-messages-expire",
        "large-messages-rejected",
        "large-messages-remembered",
        "letters-of-a-megabyte",
        "many-bindings",
        "many-filters-of-everything",
        "many-unacked",
        "one-byte-chunks",
        "one-byte-records",
        "parts-for-very-many-exchanges",
        "plain-text-on-tls-ports",
        "quorum-consumer-leaves",
        "remembered-messages",
        "shovels-in-circles",
        "snapshot-of-what-is-unacked",
        "staged-batch-for-very-many-places",
        "thousands-of-drains",
        "tls-peers-that-do-not-read",
        "transactions-without-end",
        "unfinished-bodies",
        "unread-listings",
        "uploads-that-stop",
        "wide-publishes",
        "wrong-passwords",
    }
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """The broker of all attacks but those that are long or have limits of their own."""
    with scene.broker(tmp_path_factory.mktemp("abuse"), is_executed=False) as process:
        scene.admit(process)
        yield process


@contextlib.contextmanager
def _own(directory: Path, name: str) -> Iterator[WarrenProcess]:
    with scene.broker(directory, name, is_executed=name == "wrong-passwords") as process:
        scene.admit(process)
        yield process


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in ATTACKS]
)
def test_an_innocent_client_is_served_beside_it_and_the_broker_outlives_it(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_own = name in LONG or name in scene.NARROW
    with _own(tmp_path, name) if is_own else contextlib.nullcontext(request.getfixturevalue("shared")) as process:
        outcome = scene.run(process, name)
        print(outcome)
        assert outcome.failures == []
        assert set(outcome.times) == {"confirm", "login", "health"}
        limits = scene.NARROW.get(name)
        if limits is None:
            assert outcome.peak_bytes < PEAK_BYTES_MAX
        else:
            assert outcome.peak_bytes < limits.memory_bytes * scene.MEMORY_SLACK
            assert outcome.store_bytes < limits.disk_bytes + scene.DISK_SLACK_BYTES
        assert outcome.rest_bytes < REST_BYTES_MAX
        assert process.is_running()
        assert process.health() == 200
