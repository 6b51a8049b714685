"""The command `warren sql`: the places of tables, the format of the rows, its end.

A query changes only the file of ``--to``, and the files that it writes itself by COPY, with the rights of its user.
Consumers, offsets and tables of the lake do not notice a query.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warren.lake import commands as lake
from warren.spark_bridge import commands as bridge
from warren.spark_bridge.commands import Connect, ExitCode

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from warren.lake.job import Job
    from warren.lake.sql import OpenTable

INSTALL: Final = "pip install './warren[sql,lake]'"
EXAMPLES: Final = (
    """warren sql "SELECT count(*) FROM stream('events')\"""",
    """warren sql "SELECT routing_key, count(*) FROM lake('./lake/raw.weather') GROUP BY 1" --to counts.csv""",
)


def main(arguments: Sequence[str], connect: Connect) -> int:
    """Run the command and return its exit code."""
    return bridge.main("sql", arguments, connect, sql, INSTALL, "interrupted", EXAMPLES)


@bridge.asks_broker
def sql(
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY", help="SQL of DuckDB; FROM stream('NAME') or lake('TABLE'); - reads it", show_default=False
        ),
    ],
    form: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="table (default), csv, json or parquet")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the rows go; default: shown")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Tables of warren lake, by their names")
    ] = None,
    catalog: Annotated[
        str | None, typer.Option(metavar="URL|NAME", help="Of Iceberg: sqlite://…, https://…, or a name")
    ] = None,
    warehouse: Annotated[str | None, typer.Option(metavar="URL", help="Of that catalog")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="KEY=VALUE", help="Of that catalog, or of Delta's storage")
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Of DuckDB; what does not fit goes to temporary files")
    ] = "1GiB",
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Go on when messages are gone that should be there")
    ] = False,
) -> int:
    """Ask streams and tables of the lake by SQL; nothing is consumed."""
    bridge.size_of(memory)
    from warren.lake.interruptible import interruptible
    from warren.lake.sql import Query
    from warren.lake.sql_output import form_of, write

    form = form_of(form, to)
    text = sys.stdin.read() if query == "-" else query
    with bridge.client_of() as client:
        open_table = _opener(file, catalog, warehouse, lake.pairs(properties or []))
        asked = Query(client, open_table, memory=memory, skip_lost=skip_lost)

        def work() -> int:
            with asked.run(text) as rows:
                return write(rows, form, to)

        count = interruptible(work, asked.interrupt)
    for warning in asked.warnings():
        print(f"warren sql: {warning}", file=sys.stderr)
    if to is not None:
        print(f"{to}: {count} row{'s' * (count != 1)}")
    return ExitCode.OK


def _opener(file: Path | None, catalog: str | None, warehouse: str | None, properties: Mapping[str, str]) -> OpenTable:
    """Return the function that opens tables: those of a file, those of a catalogue, or any by their place."""
    from warren.lake import job as jobs
    from warren.lake.lake_dataset import maybe_delta, open_iceberg
    from warren.spark_bridge.bridge_errors import NotFound, UsageError

    if file is not None and (catalog is not None or warehouse is not None or properties):
        raise UsageError("with --file the tables are described there, and by no other options")
    if warehouse is not None and catalog is None:
        raise UsageError("--warehouse is for a --catalog")
    wanted: Sequence[Job] = () if file is None else jobs.jobs_of(file)

    def open_delta(url: str, storage: Mapping[str, str]) -> ds.Dataset:
        found = maybe_delta(url, storage)
        if found is None:
            raise NotFound(f"there is no Delta table {url}")
        return found

    def open_table(name: str) -> ds.Dataset:
        for job in wanted:
            if name in (job.to, job.refused):
                return open_delta(name, job.storage) if job.format == jobs.DELTA else open_iceberg(job.catalog, name)
        if catalog is not None:
            return open_iceberg(jobs.catalog_of(catalog, warehouse, properties), name)
        if wanted:
            raise NotFound(f"{file} has no table {name!r}: there are {', '.join(job.to for job in wanted)}")
        place = jobs.maybe_local_catalog(name)
        if place is not None and place.has_catalog():
            return open_iceberg(place.properties(), place.table)
        found = maybe_delta(name, properties)
        if found is None:
            raise NotFound(f"there is no table {name}: as for warren lake --to, or the NAMESPACE.TABLE of a --catalog")
        return found

    return open_table
