"""Tables of each format, opened again as often as a test likes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

from warren.lake.options import TableOptions
from warren.lake.table import Table

from .memory_table import MemoryTable, Stored


class OpenTable(Protocol):
    """Opens the table of the test, and reads it as other programs do."""

    def __call__(self, columns: pa.Schema | None = None, options: TableOptions | None = None) -> Table: ...

    def rows(self) -> pa.Table: ...


class OpenOnDisk(OpenTable, Protocol):
    """The same of a table that has files."""

    def rows_of_now(self) -> Callable[[], pa.Table]:
        """Return what reads the table later as it is now."""


class _Memory:
    def __init__(self) -> None:
        self.stored: Stored | None = None

    def __call__(self, columns: pa.Schema | None = None, options: TableOptions | None = None) -> Table:
        self.stored = self.stored or Stored(columns)
        return MemoryTable("shop.orders", self.stored)

    def rows(self) -> pa.Table:
        assert self.stored is not None
        return pa.Table.from_pylist(self.stored.rows, self.stored.schema)


class Iceberg:
    """A table of a catalogue in SQLite."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        place = f"sqlite:///{self.directory}/catalog.db"
        return load_catalog("warren", type="sql", uri=place, warehouse=f"file://{self.directory}")

    def __call__(self, columns: pa.Schema | None = None, options: TableOptions | None = None) -> Table:
        from warren.lake.iceberg_table import open_table

        return open_table(self.catalog(), "shop.orders", columns, options or TableOptions())

    def rows(self) -> pa.Table:
        return self.rows_of_now()()

    def rows_of_now(self) -> Callable[[], pa.Table]:
        found = self.catalog().load_table("shop.orders")
        return lambda: found.scan().to_arrow()


class Delta:
    """A table in a directory."""

    def __init__(self, directory: Path) -> None:
        self.place = str(directory / "orders")

    def __call__(self, columns: pa.Schema | None = None, options: TableOptions | None = None) -> Table:
        from warren.lake.delta_table import open_table

        return open_table(self.place, {}, columns, options or TableOptions())

    def rows(self) -> pa.Table:
        return self.rows_of_now()()

    def rows_of_now(self) -> Callable[[], pa.Table]:
        from deltalake import DeltaTable

        found = DeltaTable(self.place)
        return lambda: found.to_pyarrow_table()


@pytest.fixture
def iceberg(tmp_path: Path) -> Iceberg:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("pyiceberg_core")
    return Iceberg(tmp_path)


@pytest.fixture
def delta(tmp_path: Path) -> Delta:
    pytest.importorskip("deltalake")
    return Delta(tmp_path)


@pytest.fixture(params=["memory", "iceberg", "delta"])
def opened(request: pytest.FixtureRequest) -> OpenTable:
    """Return a table of each kind: the same tests hold for all."""
    if request.param == "memory":
        return _Memory()
    made: OpenTable = request.getfixturevalue(request.param)
    return made


@pytest.fixture(params=["iceberg", "delta"])
def on_disk(request: pytest.FixtureRequest) -> OpenOnDisk:
    """Return a table of each kind that has files."""
    made: OpenOnDisk = request.getfixturevalue(request.param)
    return made
