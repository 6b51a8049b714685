"""Settings of all suites: the place of a broker's metadata, the cost of passwords, and hypothesis.

The time to make an example depends on the load of the machine, not on the code: it does not fail tests.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import hard_limit
import mypy_extensions
import pytest
from cheap_passwords import make_passwords_cheap
from example_counts import examples
from hard_limit import (
    pytest_runtest_protocol,
    pytest_runtest_setup,
    pytest_timeout_cancel_timer,
    pytest_timeout_set_timer,
)
from hypothesis import HealthCheck, settings
from kept_process import kept_process
from shared_empties import filled_empties

if "WARREN_TEST_INTERPRETED" in os.environ:
    # Interpreted, `i64(x)` calls a function in Python that calls `int(x)`: a twentieth of the time of the simulation.
    for native in ("i64", "i32", "i16", "u8"):
        setattr(mypy_extensions, native, int)

# Before anything imports the hash that is verified for nobody.
make_passwords_cheap()

from integration.metadata_urls import fresh_metadata_url, fresh_sqlite_url, metadata_url, postgres  # noqa: E402

__all__ = [
    "fresh_metadata_url",
    "fresh_sqlite_url",
    "metadata_url",
    "postgres",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "pytest_timeout_cancel_timer",
    "pytest_timeout_set_timer",
]

# Most tests make more objects than the default 700 and keep none. Collections take a twentieth of all time with that.
gc.set_threshold(10_000, 10, 10)

settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Heed Ctrl-C, and keep the stderr of the process: here, output is not captured yet.

    A shell has its jobs in the background ignore Ctrl-C, and their children with them; it is tested.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hard_limit.begin()


def pytest_unconfigure() -> None:
    hard_limit.end()


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Take back what a test has done to its process: a command called in a test sets variables and signals for good."""
    with kept_process():
        yield


@pytest.fixture(scope="module", autouse=True)
def shared_empties_are_empty() -> Iterator[None]:
    """Fail where it happened, not where another test finds what is not its own."""
    yield
    assert filled_empties() == []


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
