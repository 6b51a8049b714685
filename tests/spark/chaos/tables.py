"""The tables that `warren lake` keeps here, its process, and the catalogues and stores that they are in.

    rest-iceberg     a stream, in a REST catalogue, with its files on S3
    s3-delta         the same stream, on S3
    sql-iceberg      a queue, in a catalogue in PostgreSQL, with its files in a directory
    file-delta       another queue, in a directory

S3 and the REST catalogue are behind proxies that can lose requests, for `warren lake` alone: the judge goes around
them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from .flows import EVENTS
from .ledger import Row

JOBS: Final = "jobs"
TASKS: Final = "tasks"
DEADLINE_S: Final = 300.0
BUCKET: Final = "lake"
_COLUMNS: Final = ["offset", "body"]


class Table(NamedTuple):
    """A table: its source, and whether that is a queue."""

    name: str
    form: str
    source: str
    to: str
    catalog: str | None = None

    @property
    def is_of_queue(self) -> bool:
        return self.source != EVENTS


def tables_in(directory: Path) -> dict[str, Table]:
    """Return all tables, by name."""
    made = [
        Table("rest-iceberg", "iceberg", EVENTS, "shop.events", "rest"),
        Table("s3-delta", "delta", EVENTS, f"s3://{BUCKET}/events"),
        Table("sql-iceberg", "iceberg", JOBS, "shop.jobs", "sql"),
        Table("file-delta", "delta", TASKS, str(directory / "tasks")),
    ]
    return {table.name: table for table in made}


class Lake:
    """The process. `catalogs`: as it sees them; `environment`: by which it finds S3."""

    def __init__(
        self, directory: Path, url: str, catalogs: Mapping[str, Mapping[str, str]], environment: Mapping[str, str]
    ) -> None:
        self.directory = directory
        self.tables = tables_in(directory)
        self.log = directory / "lake.log"
        self._file = directory / "lake.toml"
        self._command = [sys.executable, "-P", "-m", "warren", "lake", "--file", str(self._file), "--url", url]
        own = {name: text for name, text in os.environ.items() if not name.startswith(("WARREN_", "AWS_"))}
        self._environment = own | dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        lines = ['interval = "3s"', "max_rows = 500", "compact_files = 8", 'keep = "5s"']
        for name, properties in catalogs.items():
            lines += [f"[catalogs.{name}]", *(f'"{key}" = "{value}"' for key, value in properties.items())]
        for table in self.tables.values():
            lines += ["[[tables]]", f'{"queue" if table.is_of_queue else "stream"} = "{table.source}"']
            lines += [f'to = "{table.to}"', f'format = "{table.form}"', 'body = "bytes"', 'partition_by = "none"']
            lines += [] if table.catalog is None else [f'catalog = "{table.catalog}"']
        self._file.write_text("\n".join(lines) + "\n")

    def start(self, *more: str) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *more], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        """Raise when it has ended by itself."""
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-5000:]

    def catch_up(self) -> None:
        """Run until the tables have what there is."""
        self.start("--once")
        assert self._process is not None
        assert self._process.wait(DEADLINE_S) == 0, self.log.read_text()[-5000:]

    def commits(self, table: Table) -> int:
        """Return how many commits of a table the processes have spoken of."""
        if not self.log.exists():
            return 0
        lines = self.log.read_text().splitlines()
        return sum(line.startswith(f"{table.to}: ") and line.endswith(" waiting") for line in lines)


def rows_of(table: Table, catalogs: Mapping[str, Mapping[str, str]], storage: Mapping[str, str]) -> Iterator[Row]:
    """Yield what is in a table, read as others read it."""
    found: Any
    if table.form == "iceberg":
        from pyiceberg.catalog import load_catalog

        assert table.catalog is not None
        loaded = load_catalog(table.catalog, **catalogs[table.catalog]).load_table(table.to)
        found = loaded.scan(selected_fields=tuple(_COLUMNS)).to_arrow()
    else:
        from deltalake import DeltaTable

        options = dict(storage) if table.to.startswith("s3:") else None
        found = DeltaTable(table.to, storage_options=options).to_pyarrow_table(columns=_COLUMNS)
    for offset, body in zip(found["offset"].to_pylist(), found["body"].to_pylist(), strict=True):
        yield Row(body, offset)
