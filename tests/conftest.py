"""Settings of all suites: the place of a broker's metadata, the cost of passwords, and hypothesis.

The time to make an example depends on the load of the machine, not on the code: it does not fail tests.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from cheap_passwords import make_passwords_cheap
from example_counts import examples
from hypothesis import HealthCheck, settings
from kept_environment import kept_environment

# Before anything imports the hash that is verified for nobody.
make_passwords_cheap()

from integration.metadata_urls import fresh_metadata_url, fresh_sqlite_url, metadata_url, postgres  # noqa: E402

__all__ = ["fresh_metadata_url", "fresh_sqlite_url", "metadata_url", "postgres"]

settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Heed Ctrl-C, which a shell has its jobs in the background ignore, and their children with them: it is tested."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def environment_as_before() -> Iterator[None]:
    """Take back changes of the environment that a test has made: a command called in a test sets variables for good."""
    with kept_environment():
        yield


@pytest.fixture(scope="module", autouse=True)
def seen_by_the_collector() -> Iterator[None]:
    """Keep what a module of tests has imported and kept out of later collections: see `pytest_collection_finish`."""
    yield
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Keep thousands of tests and what they import out of every later collection: many tests collect, some often."""
    gc.collect()
    gc.freeze()
