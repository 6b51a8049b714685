"""Fixtures that say where a broker under test keeps its metadata.

`metadata_url` is what WARREN_TEST_METADATA chooses, ``sqlite`` (the default) or ``postgresql``: one database
for the whole session, for tests that share a broker. `fresh_metadata_url` makes an empty one of the same kind
each time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .postgres import PostgresServer

FreshUrl = Callable[[], str]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of our own."""
    from .postgres import running_postgres  # tests without a server do not need its driver

    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def fresh_sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> FreshUrl:
    """Call it for the URL of an SQLite file that does not exist yet."""
    directory = tmp_path_factory.mktemp("metadata")
    numbers = itertools.count(1)
    return lambda: f"sqlite:///{directory / f'catalogue-{next(numbers)}.db'}"


@pytest.fixture(scope="session")
def fresh_metadata_url(request: pytest.FixtureRequest, fresh_sqlite_url: FreshUrl) -> FreshUrl:
    """Call it for the URL of an empty store of the kind WARREN_TEST_METADATA names."""
    kind = os.environ.get("WARREN_TEST_METADATA", "sqlite")
    if kind == "sqlite":
        return fresh_sqlite_url
    assert kind == "postgresql", f"WARREN_TEST_METADATA is sqlite or postgresql, not {kind}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.fresh_url


@pytest.fixture(scope="session")
def metadata_url(fresh_metadata_url: FreshUrl) -> str:
    """The metadata store of the session."""
    return fresh_metadata_url()
