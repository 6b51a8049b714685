"""The command `warren lake check`: the messages that a table has twice, and those that it lacks.

1. It does not ask a broker, and reads three columns of each file. A process that follows the table need not stop.
2. `--repair` takes out rows that are the same as another one. Before that it prints the number for each file. It
   commits like a compaction: the epoch stays, so a process that follows continues.
3. Missing messages are reported and not repaired: the table does not say whether they were deleted, skipped or lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warren.spark_bridge.commands import ExitCode, Json

if TYPE_CHECKING:
    from warren.lake.doubled import Found, Part, Span
    from warren.lake.job import Job
    from warren.lake.table import Table

SPANS_SHOWN: Final = 20
TRIES: Final = 5
ADVICE: Final = (
    "missing messages were skipped (--skip-lost), deleted by another program, or lost: take the table back to a state "
    "that has them, or follow the stream into a new table"
)


def check(
    to: Annotated[str, typer.Argument(metavar="TABLE", help="The table, as in --to of warren lake")],
    form: Annotated[str | None, typer.Option("--format", metavar="FORMAT", help="iceberg (default) or delta")] = None,
    catalog: Annotated[str | None, typer.Option(metavar="URL|NAME", help="As of warren lake")] = None,
    warehouse: Annotated[str | None, typer.Option(metavar="URL", help="As of warren lake")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="KEY=VALUE", help="As of warren lake")
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Remove duplicate rows")] = False,
    as_json: Json = False,
) -> int:
    """Find messages that a table has twice, or lacks."""
    job = _job(to, form, catalog, warehouse, properties or [])
    from warren.lake.doubled import look, take_out
    from warren.lake.table_errors import Conflict

    say = _Says(as_json=as_json)
    for attempt in range(TRIES):
        table, refused = _existing(job)
        found = look(table)
        aside = None if refused is None else look(refused)
        missing = found.missing() if aside is None else found.missing(aside)
        if attempt == 0:
            say.table(job.to, found, missing)
            if aside is not None:
                say.table(job.refused, aside, {})
        doubled = [(each, what) for each, what in ((table, found), (refused, aside)) if what and what.doubled]
        if not repair or not doubled:
            break
        try:
            for each, what in doubled:
                assert each is not None
                say.plan(each.name, what)
                say.done(each.name, take_out(each, what))
            doubled = []
            break
        except Conflict as error:
            if attempt == TRIES - 1:
                raise
            say.line({"event": "conflict", "table": job.to}, f"{error}: looks again")
    if missing:
        say.line({"event": "advice", "text": ADVICE}, ADVICE)
        return ExitCode.DATA_LOSS
    return ExitCode.FAILED if doubled else ExitCode.OK


class _Says:
    """Reports the findings, to people or to programs."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def line(self, event: Mapping[str, Any], text: str) -> None:
        print(json.dumps(event) if self._as_json else text, flush=True)

    def table(self, name: str, found: Found, missing: Mapping[Part, Sequence[Span]]) -> None:
        doubled: dict[Part, list[Span]] = {}
        for each in found.doubled.values():
            for part, span in each:
                doubled.setdefault(part, []).append(span)
        for part, held in found.held.items():
            spans = list(held)
            told = f"{name}: {part.queue}, partition {part.number}: offsets {spans[0].first} to {spans[-1].end - 1}"
            twice, lacks = sorted(doubled.get(part, ())), list(missing.get(part, ()))
            self.line(
                {
                    "event": "checked",
                    "table": name,
                    "queue": part.queue,
                    "partition": part.number,
                    "first": spans[0].first,
                    "last": spans[-1].end - 1,
                    "doubled": [[span.first, span.end - 1] for span in twice],
                    "missing": [[span.first, span.end - 1] for span in lacks],
                },
                "\n".join([told, *_listed("there more than once", twice), *_listed("missing", lacks)]),
            )
        if not found.held:
            self.line({"event": "empty", "table": name}, f"{name}: no rows")

    def plan(self, name: str, found: Found) -> None:
        count = sum(span.length for spans in found.doubled.values() for _, span in spans)
        files = sorted(found.doubled)
        self.line(
            {"event": "repair", "table": name, "rows": count, "files": files},
            f"{name}: writes {len(files)} files again, without up to {count} duplicate rows: "
            + ", ".join(files[:SPANS_SHOWN])
            + (" and others" if len(files) > SPANS_SHOWN else ""),
        )

    def done(self, name: str, count: int) -> None:
        self.line({"event": "repaired", "table": name, "rows": count}, f"{name}: {count} rows were taken out")


def _listed(what: str, spans: Sequence[Span]) -> list[str]:
    """Return lines about spans."""
    if not spans:
        return []
    total = sum(span.length for span in spans)
    shown = ", ".join(_text(span) for span in spans[:SPANS_SHOWN])
    return [f"  {total} {what}: {shown}" + (" and others" if len(spans) > SPANS_SHOWN else "")]


def _text(span: Span) -> str:
    return f"{span.first}" if span.length == 1 else f"{span.first} to {span.end - 1}"


def _job(to: str, form: str | None, catalog: str | None, warehouse: str | None, properties: Sequence[str]) -> Job:
    """Return a job of which only the place of the table counts."""
    from warren.lake import job as jobs
    from warren.lake.commands import place_of

    given: dict[str, Any] = {"stream": "any", "to": to} | ({} if form is None else {"format": form})
    catalogs = place_of(given, form, catalog, warehouse, properties)
    return jobs.job_of(given, catalogs, Path())


def _existing(job: Job) -> tuple[Table, Table | None]:
    """Return the table, and the one of refused messages if there is one, loaded.

    Raises:
        UsageError: no such table. NotOurs: another program has made it.
    """
    from warren.lake import job as jobs
    from warren.lake.marks import EPOCH, SOURCE
    from warren.spark_bridge.bridge_errors import UsageError

    opened = _maybe_delta if job.format == jobs.DELTA else _maybe_iceberg
    table, refused = opened(job, job.to), opened(job, job.refused)
    if table is None:
        raise UsageError(f"{job.to}: no such table")
    for each in (table, refused):
        if each is not None:
            each.load([EPOCH, SOURCE])
            each.marks()
    return table, refused


def _maybe_delta(job: Job, name: str) -> Table | None:
    from deltalake import DeltaTable as DeltaTableOfDeltalake

    from warren.lake.delta_table import DeltaTable
    from warren.lake.object_stores import delta_storage

    storage = delta_storage(name, job.storage)
    if not DeltaTableOfDeltalake.is_deltatable(name, storage or None):
        return None
    return DeltaTable(name, storage, job.table)


def _maybe_iceberg(job: Job, name: str) -> Table | None:
    from pyiceberg.exceptions import NoSuchTableError

    from warren.lake.catalogs import open_catalog
    from warren.lake.iceberg_table import IcebergTable
    from warren.spark_bridge.bridge_errors import UsageError

    uri = job.catalog.get("uri", "")
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise UsageError(f"{job.to}: no catalogue at {uri}")
    try:
        return IcebergTable(open_catalog(job.catalog).load_table(name), job.table)
    except NoSuchTableError:
        return None
