"""The data source as a sink: rows become messages, once each.

    staged      task: rows -> frames -> parts of a stage, not visible yet          (any number of attempts)
                driver: commit(query, batch, stages) -> published and remembered   (any number of times)
    confirms    task: rows -> frames -> a connection with confirms; the driver has nothing to do

1. With `staged` every message of a committed batch is in its queues once, whatever is repeated: tasks, commits, whole
   batches after a crash. The only condition is that a query keeps its id, which is in its checkpoint. A batch write is
   a query of its own. A query whose checkpoint is an older copy uses numbers of batches again. Such a batch fails if it
   has more or fewer messages than were published under its number; it is not mistaken for a repetition.
2. Each attempt of a task has a stage of its own. Stages of attempts that Spark does not commit are removed by the
   driver, or later by the broker.
3. With `confirms` a message that was confirmed is in its queues; it may be there twice when a task or a batch is
   repeated.
4. Processes share only what is pickled: the driver makes a writer, tasks have copies.

`batch_writer` and `stream_writer` are the functions that ``source`` calls.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from warren.spark_bridge.amqp_publisher import Publisher
from warren.spark_bridge.api_connection import ClientTls
from warren.spark_bridge.bridge_errors import BridgeError, BrokerError, NotFound, Refused, Unreachable
from warren.spark_bridge.control import BrokerClient, Committed
from warren.spark_bridge.frames import PART_BYTES_MOST, bounds_of, content_of, too_large
from warren.spark_bridge.options import OptionError
from warren.spark_bridge.spark_types import to_arrow
from warren.spark_bridge.write_columns import Field, RowEncoder, row_encoder
from warren.spark_bridge.writer_options import CONFIRMS, STAGED, WriteOptions, write_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# How long the broker remembers a batch write, so that its commit can be asked for again.
BATCH_KEPT_S: Final = 7 * 24 * 3600

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_PAUSE_S: Final = 1.0
_OTHER_BATCH: Final = "other_batch"
_NO_SUCH_CALL: Final = 405
_RESTORED: Final = (
    "The checkpoint is an older copy, or the plan makes another number of rows each time. Start the query with a new "
    "checkpoint: nothing is lost, and what the source still has from there on is published again. Give startingOffsets "
    "behind what was published to leave that out"
)
_QUERY_CHARACTERS: Final = 50  # of the names of stages, which have 100: all that Spark's ids have, and ours


class WriteFailed(BridgeError):
    """A batch was not published; nothing of it is in any queue, unless the reason says otherwise."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of a task. `stage` None: it had no rows, or published them itself."""

    query: str
    stage: str | None
    rows: int


@dataclass(frozen=True)
class _Task:
    """The identity of a write: `query` and `batch` name the batch, `partition` the task, `attempt` this try of it."""

    query: str
    batch: int
    partition: int
    attempt: int

    @property
    def prefix(self) -> str:
        """The beginning of message ids of this task; the same in each attempt."""
        return f"{self.query}/{self.batch}/{self.partition}/"


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of one ``df.write``.

    Raises:
        OptionError: options or columns are invalid.
    """
    made, encoder = _checked(options, schema)
    if overwrite:
        if not made.truncates:
            raise OptionError(
                'mode("overwrite") would empty the queue: use mode("append"), or set the option truncate to true'
            )
        if made.delivery != STAGED or made.exchange not in (None, "") or not made.routing_key:
            raise OptionError('mode("overwrite") needs the option queue, and delivery staged')
    return BatchWriter(made, encoder, overwrite)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a streaming query.

    Raises:
        OptionError: options or columns are invalid, or the output mode is complete.
    """
    if overwrite:
        raise OptionError('outputMode("complete") would empty the queue each time: use append')
    made, encoder = _checked(options, schema)
    return StreamWriter(made, encoder)


def _checked(options: Mapping[str, str], schema: StructType) -> tuple[WriteOptions, RowEncoder]:
    made = write_options(options)
    encoder = row_encoder([Field(found.name, found.type) for found in to_arrow(schema)], made)
    # A file with a password is read here, on the driver: executors may not have it.
    return made.with_password(), encoder


class _Writer:
    """The part of both kinds of writers that runs in tasks."""

    def __init__(self, options: WriteOptions, encoder: RowEncoder) -> None:
        self.options = options
        self.encoder = encoder

    def write_rows(self, batches: Iterator[pa.RecordBatch], task: _Task) -> Written:
        """Encode and send the rows of one task.

        Raises:
            BridgeError: the broker cannot be reached, or refuses. ValueError: a value cannot be sent.
        """
        if self.options.delivery == CONFIRMS:
            return self._publish(batches, task)
        stage = f"{_stage_prefix(task.query)}{task.batch}-{task.partition}-{task.attempt}-{uuid.uuid4().hex[:12]}"
        with self.options.connection.client() as client:
            upload = _Upload(client, stage, self.options.part_bytes)
            try:
                rows = 0
                for batch in batches:
                    for messages in self.encoder.encode(batch, prefix=task.prefix, first_row=rows):
                        upload.add(messages)
                    rows += batch.num_rows
                upload.finish()
            except BaseException:
                upload.forget()
                raise
        return Written(task.query, stage if upload.parts else None, rows)

    def _publish(self, batches: Iterator[pa.RecordBatch], task: _Task) -> Written:
        rows = 0
        publisher: Publisher | None = None
        try:
            for batch in batches:
                if publisher is None:
                    publisher = _publisher(self.options)
                encoded = self.encoder.encode(
                    batch,
                    prefix=task.prefix,
                    first_row=rows,
                    mandatory=self.options.mandatory,
                    frame_bytes_max=publisher.frame_bytes_max,
                )
                for messages in encoded:
                    publisher.publish(messages)
                rows += batch.num_rows
            if publisher is not None:
                publisher.finish()
        except BaseException:
            if publisher is not None:
                publisher.close(in_order=False)
            raise
        if publisher is not None:
            publisher.close()
        return Written(task.query, None, rows)

    def commit_stages(
        self, messages: list[Written], batch: int, kept_s: int | None, *, purge: str | None = None
    ) -> None:
        """Publish the stages of the tasks in the broker. `purge`: a queue whose waiting messages they replace.

        Raises:
            WriteFailed: it does not. BridgeError: the result is unknown.
        """
        stages = [each.stage for each in messages if each.stage is not None]
        options = self.options
        # An empty batch of a query is committed as well: batches that are missing are an error to the broker.
        if not messages or options.delivery == CONFIRMS or (kept_s is not None and not stages and purge is None):
            return
        query = messages[0].query
        with options.connection.client() as client:
            give_up_s = time.monotonic() + options.commit_timeout_s
            while True:
                try:
                    found = client.commit_stages(
                        query,
                        batch,
                        stages,
                        mandatory=options.mandatory,
                        kept_s=kept_s,
                        # A query has one batch at a time: its remaining stages are of tasks that were killed.
                        supersedes=_stage_prefix(query),
                        compare=kept_s is None,
                        purge=purge,
                    )
                    break
                except NotFound as error:
                    if purge is None or error.status != _NO_SUCH_CALL:
                        raise
                    raise WriteFailed(
                        'the broker is too old for mode("overwrite"), and nothing was published: upgrade it, or append'
                    ) from None
                except (Unreachable, Refused) as error:
                    # A commit continues in the broker when its answer is late; a queue that is full may get room.
                    if isinstance(error, Refused) and error.error == _OTHER_BATCH:
                        raise WriteFailed(f"{error}. {_RESTORED}") from None
                    is_over = isinstance(error, Refused) and error.error != "queue_full"
                    if is_over or time.monotonic() >= give_up_s:
                        raise
                time.sleep(_PAUSE_S)
        _check_committed(found, batch)

    def remove_stages(self, messages: list[Written | None]) -> None:
        """Remove the stages of tasks; the broker removes the others later by itself."""
        with self.options.connection.client() as client:
            for each in messages:
                if each is not None and each.stage is not None:
                    _forget(client, each.stage)


def _stage_prefix(query: str) -> str:
    """Return the common beginning of the names of all stages of a query."""
    return f"{query[:_QUERY_CHARACTERS]}-"


def _check_committed(found: Committed, batch: int) -> None:
    if not found.committed and not found.duplicate:
        raise WriteFailed(
            f"batch {batch} was not published: {found.unroutable} of its messages would go to no queue "
            "(set the option mandatory to false to drop them)"
        )


class BatchWriter(DataSourceArrowWriter):
    """Writes one data frame."""

    def __init__(self, options: WriteOptions, encoder: RowEncoder, overwrite: bool) -> None:
        self.writer = _Writer(options, encoder)
        self.overwrite = overwrite
        self.query = f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage or publish the rows of one task."""
        context = _context()
        return self.writer.write_rows(iterator, _Task(self.query, 0, context.partitionId(), context.attemptNumber()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the staged messages."""
        written, purge = _written(messages), None
        if self.overwrite:
            written.append(Written(self.query, None, 0))  # so that there is one: no row may be left of a queue either
            purge = self.writer.options.routing_key
        self.writer.commit_stages(written, 0, BATCH_KEPT_S, purge=purge)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged messages."""
        self.writer.remove_stages([each for each in messages if isinstance(each, Written)])


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: WriteOptions, encoder: RowEncoder) -> None:
        self.writer = _Writer(options, encoder)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage or publish the rows of one task."""
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise WriteFailed("Spark does not name the query and the batch of this task")
        return self.writer.write_rows(
            iterator, _Task(query, int(batch), context.partitionId(), context.attemptNumber())
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the staged messages, unless that was done before."""
        self.writer.commit_stages(_written(messages), batchId, None)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged messages."""
        self.writer.remove_stages([each for each in messages if isinstance(each, Written)])


def _written(messages: list[WriterCommitMessage | None]) -> list[Written]:
    return [each for each in messages if isinstance(each, Written)]


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise WriteFailed("rows are written by Spark's tasks")
    return context


@dataclass
class _Upload:
    """Stores messages as parts of a stage."""

    client: BrokerClient
    stage: str
    part_bytes: int
    parts: int = 0
    _pieces: list[memoryview] = field(default_factory=list)
    _size: int = 0
    _rows: int = 0  # before those that are added

    def add(self, messages: pa.Array) -> None:
        """Store `messages`, or keep them until a part is full."""
        bounds = bounds_of(messages)
        content = content_of(messages)
        at = 0
        while at < len(messages):
            if int(bounds[at + 1] - bounds[at]) > PART_BYTES_MOST:
                raise WriteFailed(too_large(self._rows + at, int(bounds[at + 1] - bounds[at])))
            limit = int(bounds[at]) + self.part_bytes - self._size
            stop = int(bounds.searchsorted(limit, side="right")) - 1
            if stop <= at:
                if self._size:
                    self.finish()
                    continue
                stop = at + 1  # one message is more than a part
            self._pieces.append(content[int(bounds[at]) : int(bounds[stop])])
            self._size += int(bounds[stop] - bounds[at])
            at = stop
            if self._size >= self.part_bytes:
                self.finish()
        self._rows += len(messages)

    def finish(self) -> None:
        """Store the kept messages."""
        if self._size:
            self.client.put_stage(self.stage, self.parts, b"".join(self._pieces))
            self.parts += 1
        self._pieces, self._size = [], 0

    def forget(self) -> None:
        """Remove the stored messages."""
        if self.parts:
            _forget(self.client, self.stage)


def _forget(client: BrokerClient, stage: str) -> None:
    try:
        client.delete_stage(stage)
    except BrokerError:
        pass  # the broker removes it when it finds that it was not committed


def _publisher(options: WriteOptions) -> Publisher:
    connection = options.connection
    files = (connection.ca_file, connection.certificate_file, connection.key_file)
    context = ClientTls(*files, connection.insecure).context() if options.amqp_tls else None
    return Publisher(
        options.amqp_host,
        options.amqp_port,
        connection.vhost,
        connection.username,
        connection.password or "",
        context=context,
        max_in_flight=options.max_in_flight,
        timeout_s=connection.connect_timeout_s,
        confirm_timeout_s=options.confirm_timeout_s,
    )
