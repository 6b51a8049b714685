"""The data source "warren": which reader and which writer it takes.

1. Nothing here asks the broker: sources are made in several processes, and readers unpickled in more.
2. All options are checked when a data frame is made or, if the user brings a schema of his own, the names of options
   then and the rest when it is planned.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from warren.spark_bridge.batch import BatchReader, FilteringReader
from warren.spark_bridge.drain import DrainReader
from warren.spark_bridge.loads import marked
from warren.spark_bridge.options import CONNECTION_OPTIONS, DRAIN, READ_OPTIONS, ReadOptions, check_names, read_options
from warren.spark_bridge.schema import spark_schema
from warren.spark_bridge.spark_types import check_schema
from warren.spark_bridge.stream import StreamReader
from warren.spark_bridge.writer_options import WRITE_OPTIONS

FORMAT: Final = "warren"
# Whether one reads or writes is not known yet. The last ones Spark itself hands on.
_KNOWN: Final = (*CONNECTION_OPTIONS, *READ_OPTIONS, *WRITE_OPTIONS, "checkpointLocation", "queryName", "path")


class WarrenDataSource(DataSource):
    """Queues and streams of a broker."""

    #: Whether filters are pushed down when the options leave that open: where the session allows it, and never unasked.
    #: Spark 4.3 keeps pushed-down filters with the data frame: another use of the frame has those filters, too.
    pushdown = False

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_names(options, _KNOWN)
        self.load_id = uuid4().hex
        self._for_tasks = False

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends the source along with a reader, and no task needs its options.
        return {**self.__dict__, "options": {}} if self._for_tasks else self.__dict__

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of a message, as the options want them."""
        options = read_options(self.options)
        found = spark_schema(options.headers_format, options.body_as, options.columns)
        return marked(found, self.load_id) if options.mode == DRAIN else found

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for a batch."""
        options = self._checked(schema, streaming=False)
        pushdown = self.pushdown if options.pushdown is None else options.pushdown
        kind = FilteringReader if pushdown else BatchReader
        return kind(options, schema, self.load_id)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader for a streaming query."""
        options = self._checked(schema, streaming=True)
        if options.mode == DRAIN:
            return DrainReader(options, schema)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer for a batch."""
        from warren.spark_bridge import writer

        return writer.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer for a streaming query."""
        from warren.spark_bridge import writer

        return writer.stream_writer(self.options, schema, overwrite)

    def _checked(self, schema: StructType, *, streaming: bool) -> ReadOptions:
        check_schema(schema)
        self._for_tasks = True
        options = read_options(self.options, streaming=streaming)
        # A file with a password is read here, on the driver: executors may not have it.
        return options.with_password()


class PushingDataSource(WarrenDataSource):
    """The same where ``register`` has had Spark push filters down."""

    pushdown = True
