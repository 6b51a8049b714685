"""Queries by DuckDB over streams of a broker and tables of the lake.

    stream('orders')                    a stream or super stream, with the columns of messages
      since => '1h', until => '10m'       from and to where: as of `warren export --from`
      json => true                        a column for each field of the bodies, found in a sample
      json => 'orders.schema.json'        those of a JSON Schema
    lake('lake/shop.orders')            an Iceberg or Delta table, named as for `warren lake --to`

1. Equal calls have the same rows in all of a query: those from its beginning. Reading leaves no trace in the broker.
2. Rows come in batches: memory holds a few of these, and what DuckDB needs to group, join and sort. Of that DuckDB
   keeps at most `memory`, and writes the rest to temporary files.
3. DuckDB loads nothing from the network by itself.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from warren.lake.body_schema import read_schema
from warren.lake.json_bodies import SAMPLE_ROWS, declared, found_in
from warren.lake.pushdown import PushdownDataset
from warren.lake.ranges import Range, rows_of
from warren.lake.sql_text import Call, Value, replaced
from warren.lake.stream_dataset import FIRST, NEXT, StreamDataset, ranges_of
from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.schema import arrow_schema

if TYPE_CHECKING:
    import duckdb

    from warren.spark_bridge.control import BrokerClient

BATCH_ROWS: Final = 8192
MEMORY: Final = "1GiB"
_STREAM_ARGUMENTS: Final = ("since", "until", "json")

OpenTable = Callable[[str], ds.Dataset]


def stream_dataset(
    client: BrokerClient,
    name: str,
    *,
    since: str = FIRST,
    until: str = NEXT,
    json: bool | str | Path = False,
    skip_lost: bool = False,
) -> StreamDataset:
    """Return the messages of a stream or super stream. `json`: their bodies as columns, by a schema if it is a file.

    Raises:
        UsageError: it is not a stream, or a position or the schema is invalid. BridgeError: the broker cannot say.
    """
    ranges = ranges_of(client, name, since, until)
    bodies = None
    if json is True:
        bodies = found_in(_sample(client, ranges, skip_lost=skip_lost))
    elif json is not False:
        bodies = declared(read_schema(Path(json)))
    return StreamDataset(client, ranges, bodies=bodies, skip_lost=skip_lost)


def _sample(client: BrokerClient, ranges: list[Range], *, skip_lost: bool) -> Iterator[bytes]:
    """Yield bodies of the oldest and of the newest messages of each stream."""
    for each in ranges:
        middle = min(each.end, each.first + SAMPLE_ROWS)
        newest = max(middle, each.end - SAMPLE_ROWS)
        for part in (each._replace(end=middle), each._replace(first=newest)):
            for batches, _ in rows_of(client, part, arrow_schema(["body"]), skip_lost=skip_lost):
                for batch in batches:
                    yield from batch.column("body").to_pylist()


class Query:
    """One query. `open_table`: returns a table of the lake by the name that `lake()` is given."""

    def __init__(
        self, client: BrokerClient, open_table: OpenTable, *, memory: str = MEMORY, skip_lost: bool = False
    ) -> None:
        self._client = client
        self._open_table = open_table
        self._memory = memory
        self._skip_lost = skip_lost
        self._datasets: dict[str, ds.Dataset] = {}
        self._connection: duckdb.DuckDBPyConnection | None = None
        # A connection that is closed, or just being closed, cannot be interrupted.
        self._closing = threading.Lock()

    def interrupt(self) -> None:
        """Interrupt the query, if it runs: it ends with an error. Any thread."""
        with self._closing:
            if self._connection is not None:
                self._connection.interrupt()

    @contextmanager
    def run(self, query: str) -> Iterator[pa.RecordBatchReader]:
        """Return the rows that `query` is answered with, in batches.

        Raises:
            UsageError: DuckDB cannot make anything of it. BridgeError: something that it reads cannot be read.
        """
        import duckdb

        text = replaced(query, self._name)
        with tempfile.TemporaryDirectory(prefix="warren-sql-") as directory:
            config: dict[str, Any] = {
                "memory_limit": self._memory,
                "temp_directory": directory,
                "autoinstall_known_extensions": "false",
                "TimeZone": "UTC",
            }
            try:
                with self._connected(duckdb.connect(":memory:", config=config)) as connection:
                    for name, dataset in self._datasets.items():
                        connection.register(name, dataset)
                    found = connection.sql(text)
                    if found is None:
                        raise UsageError("the query has no rows: it must be a SELECT")
                    yield found.to_arrow_reader(BATCH_ROWS)
            except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
                raise self._reason(error) from None

    @contextmanager
    def _connected(self, connection: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
        """Pass interruptions of the query to `connection`, until it is closed."""
        self._connection = connection
        try:
            yield connection
        finally:
            with self._closing:
                self._connection = None
            connection.close()

    def _reason(self, error: Exception) -> BaseException:
        """Return the real reason: the failure of a scan, or DuckDB's error for the query."""
        for dataset in self._datasets.values():
            failure = dataset.failure if isinstance(dataset, PushdownDataset) else None
            if failure is not None:
                return failure
        if isinstance(error, OSError | RuntimeError):
            return error
        return UsageError(" ".join(str(error).partition("\n\nLINE ")[0].split()))

    def warnings(self) -> list[str]:
        """Return the warnings about the rows of the query."""
        found = []
        for name, dataset in self._datasets.items():
            if isinstance(dataset, StreamDataset):
                if dataset.lost:
                    found.append(f"{name}: messages that are gone, or cannot be read: {dataset.lost}")
                if dataset.unfit:
                    found.append(
                        f"{name}: bodies and values that do not fit the columns, and are null: {dataset.unfit}"
                    )
        return found

    def _name(self, call: Call) -> str:
        name = str(call)
        if name not in self._datasets:
            arguments = dict(call.arguments)
            first = arguments.pop("0", None)
            if not isinstance(first, str):
                raise UsageError(f"{call.function}() needs a name, as in {call.function}('orders')")
            self._datasets[name] = (
                self._stream(first, arguments) if call.function == "stream" else self._table(first, arguments)
            )
        return name

    def _table(self, name: str, arguments: dict[str, Value]) -> ds.Dataset:
        if arguments:
            raise UsageError("lake() takes the name of a table and nothing else")
        return self._open_table(name)

    def _stream(self, name: str, arguments: dict[str, Value]) -> StreamDataset:
        for key, value in arguments.items():
            if key not in _STREAM_ARGUMENTS:
                raise UsageError(f"stream() has no argument {key}: there are {', '.join(_STREAM_ARGUMENTS)}")
            if isinstance(value, bool) and key != "json":
                raise UsageError(f"stream(): {key} must be a text, as in {key} => '1h'")
        json = arguments.get("json", False)
        return stream_dataset(
            self._client,
            name,
            since=str(arguments.get("since", FIRST)),
            until=str(arguments.get("until", NEXT)),
            json=json if isinstance(json, bool) else str(json),
            skip_lost=self._skip_lost,
        )
