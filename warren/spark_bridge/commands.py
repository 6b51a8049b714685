"""The commands `warren export` and `warren import`: options, progress, how they end.

1. Exit codes are for scripts: see `ExitCode`. The same command continues a run that was stopped or killed.
2. Progress is on standard error, drawn on a terminal and otherwise a line every 5 s; with ``--json`` there are lines of
   JSON on standard output instead.
3. A reason may be a peer's words, or a name: no control characters of it reach a terminal.
4. This module alone of the package needs typer and rich, which come with the broker; what does the work is imported
   when it is wanted. `Connect` finds the address of the broker and the user.
5. Memory that is freed goes back to the system: Arrow's own pools keep as much as they ever had, and so does glibc once
   it has seen large blocks. A limit of bytes would be exceeded. The variables of the environment win.
"""

from __future__ import annotations

import ctypes
import inspect
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
import typer.main

from warren.ctl.help_pages import finish
from warren.ctl.progress import Progress
from warren.ctl.words import counted

if TYPE_CHECKING:
    from warren.spark_bridge.control import BrokerClient
    from warren.spark_bridge.export import Export, ExportOptions
    from warren.spark_bridge.import_files import ImportState
    from warren.spark_bridge.manifest import Manifest

INSTALL: Final = "pip install './warren[spark]'"
ARROW_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
SYSTEM_POOL: Final = "system"
MALLOC_THRESHOLD: Final = "MALLOC_MMAP_THRESHOLD_"
LARGE_BYTES: Final = 1 << 19  # blocks of this size are mapped, and unmapped when they are freed
_M_MMAP_THRESHOLD: Final = -3
INTERRUPTED: Final = "interrupted: the same command continues where it stopped"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class ExitCode(IntEnum):
    """How a command ends."""

    OK = 0
    FAILED = 1  # the broker refused, the files cannot be written, or a count is not what it should be
    USAGE = 2  # the command line, or what is in the directory, does not fit; nothing was done
    DATA_LOSS = 3  # messages that should be there are gone
    UNREACHABLE = 4  # no broker, or it does not answer as one
    INTERRUPTED = 130  # the same command continues
    UNREAD = 141  # the reader of the output has closed the pipe, as `head` does: the code of SIGPIPE


class BrokerLogin(NamedTuple):
    """The address of the broker and the user."""

    url: str
    username: str
    password: str
    vhost: str
    cacert: str | None
    insecure: bool
    timeout_s: float


Connect = Callable[[Mapping[str, Any]], BrokerLogin]

Json = Annotated[bool, typer.Option("--json", help="Lines of JSON instead of text")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done")]

_PANEL: Final = "Connection"


def _connection(
    url: Annotated[str | None, typer.Option("--url", "-u", metavar="URL", rich_help_panel=_PANEL, help="Of the API")],
    vhost: Annotated[str | None, typer.Option("--vhost", "-p", metavar="VHOST", rich_help_panel=_PANEL)],
    username: Annotated[str | None, typer.Option(metavar="NAME", rich_help_panel=_PANEL)],
    password: Annotated[
        str | None,
        typer.Option(metavar="TEXT", rich_help_panel=_PANEL, help="Visible in the process list; prefer a file"),
    ],
    password_file: Annotated[str | None, typer.Option(metavar="FILE", rich_help_panel=_PANEL)],
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", rich_help_panel=_PANEL, help="Of the configuration file of warren ctl")
    ],
    config: Annotated[str | None, typer.Option(metavar="FILE", rich_help_panel=_PANEL)],
    cacert: Annotated[str | None, typer.Option(metavar="FILE", rich_help_panel=_PANEL)],
    insecure: Annotated[bool, typer.Option("--insecure", rich_help_panel=_PANEL, help="Take any certificate")],
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", rich_help_panel=_PANEL, help="For each answer")],
) -> None:
    """Hold the options of commands that ask a broker; never called."""


def asks_broker(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of a connection, which `client_of` looks at."""
    options = [
        each.replace(kind=each.KEYWORD_ONLY, default=False if each.annotation.__origin__ is bool else None)
        for each in inspect.signature(_connection, eval_str=True).parameters.values()
    ]

    def run(**given: Any) -> int:
        flags = {each.name: given.pop(each.name) for each in options}
        _run.flags = {name: value for name, value in flags.items() if value is not None and value is not False}
        return command(**given)

    own = inspect.signature(command, eval_str=True).parameters.values()
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    return run


def main(
    name: str,
    arguments: Sequence[str],
    connect: Connect,
    function: Callable[..., int] | None = None,
    install: str = INSTALL,
    interrupted: str = INTERRUPTED,
    examples: Sequence[str] | None = None,
) -> int:
    """Run the command `name` and return its exit code. `function`: the command, if it is not in `COMMANDS`.

    `examples`: lines for the shell at the end of its help, if they are not in `EXAMPLES`.
    `install` and `interrupted`: what is said when a library is missing, and when somebody has interrupted it.
    """
    _give_memory_back()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(function or COMMANDS[name])
    command = typer.main.get_command(app)
    finish(command, EXAMPLES[name] if examples is None else examples)
    _run.connect = connect
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what its encoding does not have is no reason to fail
    previous = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    for each, handler in previous.items():
        if handler is not signal.SIG_IGN:  # as by nohup
            signal.signal(each, _interrupted)
    try:
        ended = command.main(args=list(arguments), prog_name=f"warren {name}", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        ended = ExitCode.INTERRUPTED
    except SystemExit:  # so typer and rich end when a pipe is closed, with the code of a command that failed
        return ExitCode.UNREAD
    except Exception as error:
        return _ended_badly(name, error, install)
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
    if ended == ExitCode.INTERRUPTED:  # typer makes that of KeyboardInterrupt
        return _fail(name, interrupted, ExitCode.INTERRUPTED)
    return ended if isinstance(ended, int) else ExitCode.OK


def _give_memory_back() -> None:
    """Return memory that this process frees to the system (5); call this before pyarrow is imported."""
    os.environ.setdefault(ARROW_POOL, SYSTEM_POOL)
    if MALLOC_THRESHOLD not in os.environ:
        try:
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        except (AttributeError, OSError):
            pass  # not glibc


def _interrupted(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _ended_badly(name: str, error: Exception, install: str) -> int:
    """Say what went wrong in one line; what nobody foresaw is raised again."""
    message = getattr(error, "format_message", None)
    if message is not None:  # typer's: the command line is wrong
        reason = " ".join(message().split())
        return _fail(name, reason[:1].lower() + reason[1:], ExitCode.USAGE) if reason else ExitCode.USAGE
    if isinstance(error, ModuleNotFoundError):
        missing = str(error.name).partition(".")[0]
        return _fail(name, f"{missing} is not installed: {install}", ExitCode.USAGE)
    from warren.spark_bridge.bridge_errors import BridgeError, DamagedChunk, DataLoss, Unreachable, UsageError

    if isinstance(error, UsageError):
        return _fail(name, str(error), ExitCode.USAGE)
    if isinstance(error, DataLoss | DamagedChunk):
        return _fail(name, str(error), ExitCode.DATA_LOSS)
    if isinstance(error, Unreachable):
        return _fail(name, str(error), ExitCode.UNREACHABLE)
    if isinstance(error, BridgeError):
        return _fail(name, str(error), ExitCode.FAILED)
    if isinstance(error, OSError):
        return _fail(name, f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), ExitCode.FAILED)
    raise error


def _fail(name: str, reason: str, code: ExitCode) -> int:
    if _run.as_json:
        print(json.dumps({"event": "failed", "reason": reason, "exit_code": int(code)}), flush=True)
    shown = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), reason)
    print(f"warren {name}: {shown}", file=sys.stderr)
    return code


class _Run:
    """What a command has from outside, and how it talks."""

    connect: Connect
    as_json = False
    flags: Mapping[str, Any] = {}  # the options of the connection that are given

    def connection(self) -> BrokerLogin:
        """Return what the options, the environment and the profiles say."""
        return self.connect(self.flags)


_run = _Run()


def client_of() -> BrokerClient:
    """Return the client that the options of a connection stand for, with the environment and the profiles."""
    from warren.spark_bridge.bridge_errors import UsageError
    from warren.spark_bridge.control import BrokerClient

    found = _run.connection()
    try:
        return BrokerClient(
            found.url,
            found.username,
            found.password,
            vhost=found.vhost,
            cacert=found.cacert,
            insecure=found.insecure,
            timeout_s=found.timeout_s,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


class _Progress:
    """Shows how far it is: a bar on a terminal, JSON lines, or nothing."""

    def __init__(self, what: str, *, as_json: bool) -> None:
        self._what = what
        self._as_json = as_json
        self._bar: Any = None
        self._task: Any = None
        self._bytes = 0
        self._lines: Progress | None = None

    def planned(self, rows: int, bytes: int) -> None:
        """Take the expected amount of work."""
        self.event("planned", rows=rows, bytes=bytes)
        if self._as_json:
            return
        if not sys.stderr.isatty():
            self._lines = Progress(self._what, bytes)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
        )
        self._bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self._what, total=rows, rate="")

    def advanced(self, rows: int, bytes: int) -> None:
        """Show that this much more was done."""
        if self._lines is not None:
            self._lines.advance(bytes)
        if self._bar is None:
            return
        self._bytes += bytes
        elapsed = self._bar.tasks[0].elapsed or 0.0
        rate = f"{self._bytes / elapsed / 1e6:.0f} MB/s" if elapsed > 0 else ""
        self._bar.update(self._task, advance=rows, rate=rate)

    def committed(self, state: Manifest | ImportState) -> None:
        """Report what is safe now."""
        self.event("committed", rows=state.rows, files=len(state.files))

    def event(self, name: str, **values: Any) -> None:
        """Print a line of JSON, if that is wanted."""
        if self._as_json:
            print(json.dumps({"event": name, **values}), flush=True)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def size_of(text: str) -> int:
    """Return the bytes that a text such as 256MB or 64MiB stands for."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"{text!r} is not a size such as 256MB or 64MiB")
    return int(found[1]) * int((1024 if found[3] else 1000) ** _POWERS[found[2].lower()])


@asks_broker
def _export(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="A queue, a stream or a super stream")],
    to: Annotated[
        str,
        typer.Option(
            metavar="DIR|URL",
            help="Directory of the files, or s3://, gs:// or abfss://",
            show_default=False,
        ),
    ],
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="parquet, json, csv, arrow or delta")
    ] = "parquet",
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="log (of streams), snapshot (of queues) or drain (takes the messages out)"),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help="Of a stream: first, an offset, an age (1h), a time (2026-11-22)"
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to-offset", metavar="POSITION", help="Of a stream, likewise; default: its end")
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="NAME,...", help="Default: all")] = None,
    headers: Annotated[
        str, typer.Option(metavar="FORM", help="typed (nothing is lost), map (texts) or json")
    ] = "typed",
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="""Only some rows: "routing_key like 'eu.%'" """)
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(metavar="date|COLUMN", help="A directory for each day, or for each value")
    ] = None,
    max_file_size: Annotated[str, typer.Option(metavar="SIZE", help="Size of a complete file")] = "256MB",
    compression: Annotated[
        str | None, typer.Option(metavar="NAME", help="none, zstd, snappy, gzip or lz4, as the format has it")
    ] = None,
    consumer: Annotated[str | None, typer.Option(metavar="NAME", help="Of the session, when draining")] = None,
    skip_lost: Annotated[bool, typer.Option("--skip-lost", help="Continue although messages are missing")] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The manifest; default: _manifest/export.json there")
    ] = None,
    engine: Annotated[str, typer.Option(metavar="NAME", help="arrow, or spark")] = "arrow",
    master: Annotated[str | None, typer.Option(metavar="URL", help="Of Spark; default: local[*]")] = None,
    sql: Annotated[str | None, typer.Option(metavar="QUERY", help="With Spark: SELECT ... FROM queue")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Export a queue or a stream to files; the same command continues where the last run ended."""
    _run.as_json = as_json
    most = size_of(max_file_size)
    from warren.spark_bridge.bridge_errors import UsageError
    from warren.spark_bridge.export import Export, ExportOptions

    options = ExportOptions(
        queue=queue,
        to=to,
        form=form,
        mode=mode,
        start=start,
        end=end,
        columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
        headers_format=headers,
        where=where,
        partition_by=partition_by,
        max_file_bytes=most,
        compression=compression,
        consumer=consumer,
        skip_lost=skip_lost,
        checkpoint=checkpoint,
    )
    if engine not in ("arrow", "spark"):
        raise UsageError(f"engine {engine!r}: must be arrow or spark")
    if engine == "arrow" and (sql is not None or master is not None):
        raise UsageError("--sql and --master are for --engine spark")
    with client_of() as client:
        progress = _Progress(queue, as_json=as_json)
        if engine == "spark":
            export = _spark_export(client, options, progress, _run.connection(), master, sql)
        else:
            export = Export(client, options, progress)
        if dry_run:
            return _say_plan(export, progress)
        try:
            state = export.run()
        finally:
            progress.stop()
    counts = {name: getattr(state, name) for name in ("rows", "read", "filtered", "missing", "lost")}
    progress.event(
        "done",
        **counts,
        rows_before=export.rows_before,
        files=len(state.files),
        bytes=sum(entry.bytes for entry in state.files),
    )
    if not as_json:
        left_out = "".join(f", {counts[name]} {name}" for name in ("filtered", "missing", "lost") if counts[name])
        files = f" in {counted(len(state.files), 'file')}" if state.files else ""
        earlier = f", {export.rows_before} of them by earlier runs" if export.rows_before else ""
        print(f"{queue}: {counted(state.rows, 'row')}{files} in {export.place}{earlier}{left_out}")
    return ExitCode.OK


def _spark_export(
    client: BrokerClient,
    options: ExportOptions,
    progress: _Progress,
    found: BrokerLogin,
    master: str | None,
    sql: str | None,
) -> Export:
    from warren.spark_bridge.spark_export import SparkExport

    connection = {"managementUrl": found.url, "vhost": found.vhost}
    connection |= {"username": found.username, "password": found.password}
    if found.cacert is not None:
        connection["tls.caFile"] = found.cacert
    if found.insecure:
        connection["tls.insecure"] = "true"
    return SparkExport(client, options, progress, connection=connection, master=master, sql=sql)


def _say_plan(export: Export, progress: _Progress) -> int:
    planned = export.plan()
    progress.event(
        "plan",
        mode=planned.mode,
        rows=planned.rows,
        bytes=planned.bytes,
        sources=[{"name": name, "from": first, "to": end} for name, first, end in planned.sources],
    )
    if not _run.as_json:
        for name, first, end in planned.sources:
            print(f"{name}: offsets {first} to {end}" if planned.mode == "log" else f"{name}: {end} messages")
        print(f"{planned.mode}: about {planned.rows} rows, {planned.bytes / 1e6:.1f} MB, to {export.place}")
    return ExitCode.OK


@asks_broker
def _import(
    source: Annotated[
        str, typer.Argument(metavar="DIR|URL", help="What warren export wrote, or files like those", show_default=False)
    ],
    exchange: Annotated[
        str | None, typer.Option(metavar="NAME", help="Exchange for all rows; default: that of each row")
    ] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Publish all to this queue")] = None,
    routing_key: Annotated[str | None, typer.Option(metavar="KEY", help="Default: that of each row")] = None,
    routing_key_column: Annotated[
        str | None, typer.Option("--routing-key-col", metavar="COLUMN", help="Column with the routing key")
    ] = None,
    without: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Properties to leave out, such as user_id,expiration")
    ] = None,
    unroutable: Annotated[str, typer.Option(metavar="fail|drop", help="Unroutable messages")] = "fail",
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Progress file; default: below _manifest there")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Publish the rows of files, each once; the same command continues where the last run ended."""
    _run.as_json = as_json
    from warren.spark_bridge.bridge_errors import UsageError
    from warren.spark_bridge.import_files import Import, ImportOptions

    if unroutable not in ("fail", "drop"):
        raise UsageError(f"--unroutable {unroutable}: must be fail or drop")
    if queue is not None and (exchange is not None or routing_key is not None or routing_key_column is not None):
        raise UsageError("--queue excludes --exchange and --routing-key")
    options = ImportOptions(
        source=source,
        exchange="" if queue is not None else exchange,
        routing_key=queue if queue is not None else routing_key,
        routing_key_column=routing_key_column,
        without=() if without is None else tuple(name.strip() for name in without.split(",")),
        mandatory=unroutable == "fail",
        checkpoint=checkpoint,
    )
    with client_of() as client:
        progress = _Progress(source.rstrip("/").rpartition("/")[2], as_json=as_json)
        work = Import(client, options, progress)
        if dry_run:
            planned = work.plan()
            progress.event("plan", files=planned.files, rows=planned.rows, done=planned.done)
            if not as_json:
                rows = "" if planned.rows is None else f", {counted(planned.rows, 'row')}"
                print(f"{work.place}: {counted(planned.files, 'file')}{rows}, {planned.done} of them published")
            return ExitCode.OK
        try:
            state = work.run()
        finally:
            progress.stop()
    progress.event(
        "done",
        rows=state.rows,
        published=state.published,
        published_before=state.before,
        unroutable=state.unroutable,
    )
    if not as_json:
        dropped = f", {state.unroutable} unroutable" if state.unroutable else ""
        earlier = f", {state.before} of them by earlier runs" if state.before else ""
        print(f"{work.place}: {counted(state.published, 'message')} published{earlier}{dropped}")
    return ExitCode.OK


COMMANDS: Final[dict[str, Callable[..., int]]] = {"export": _export, "import": _import}
EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "export": (
        "warren export events --to /data/events --from 1h",
        "warren export orders --to /data/orders --mode drain --format json",
        "warren export events --to s3://bucket/events --partition-by date --where \"routing_key like 'eu.%'\"",
    ),
    "import": (
        "warren import /data/events --dry-run",
        "warren import /data/orders --queue orders.again --without expiration,user_id",
    ),
}
