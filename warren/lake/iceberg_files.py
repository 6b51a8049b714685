"""Files of Iceberg tables: written and read in parts, as pyiceberg writes and reads whole ones.

1. Each row is written into a file once. Partitions of another program by which some rows would be written twice, or not
   at all, are refused.
2. At most `PART_ROWS` or about `PART_BYTES` of the rows are copied at a time, as they are in memory; a file is closed
   after `write.target-file-size-bytes` on the disk.
3. Moments after the year 9999 are kept as they are. For a file with such moments the bounds of the column are left out:
   pyiceberg makes a `datetime` of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import (
    _determine_partitions,
    _to_requested_schema,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from warren.lake.parquet_parts import parts_of
from warren.lake.table_errors import NotOurs

PART_ROWS: Final = 65_536
PART_BYTES: Final = 8 << 20
_BOUNDS: Final = "write.metadata.metrics.column."
_ROW: Final = "_row_of_the_commit"


def data_files(metadata: TableMetadata, rows: pa.Table, io: FileIO) -> list[DataFile]:
    """Write files with `rows`, and return their entries for a snapshot; an empty list without rows.

    Raises:
        NotOurs: the partitions of the table do not have each row once.
    """
    if not rows.num_rows:
        return []
    spec, schema = metadata.spec(), metadata.schema()
    files: list[DataFile] = []
    if spec.is_unpartitioned():
        files += partition_files(metadata, Record(), _slices(rows), io)
    else:
        names = [str(schema.find_column_name(each.source_id)).partition(".")[0] for each in spec.fields]
        numbers = pa.array(range(rows.num_rows), pa.int64())
        keys = rows.select(list(dict.fromkeys(names))).append_column(_ROW, numbers)
        for partition in _determine_partitions(spec, schema, keys):
            wanted = partition.arrow_table_partition.column(_ROW)
            files += partition_files(metadata, partition.partition_key.partition, _slices(rows, wanted), io)
    written = sum(file.record_count for file in files)
    if written != rows.num_rows:
        raise NotOurs(
            f"of {rows.num_rows} rows {written} would be in the partitions that another program has given the table: "
            "it must not be partitioned by numbers that are not whole"
        )
    return files


def partition_files(
    metadata: TableMetadata, partition: Record, parts: Iterable[pa.Table], io: FileIO
) -> Iterator[DataFile]:
    """Write the rows of `parts`, all of one partition, and yield the entry of each file for a snapshot."""
    properties = dict(metadata.properties)
    target = int(
        properties.get(
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        )
    )
    file: _File | None = None
    for part in parts:
        for name in _without_bounds(part):
            properties[_BOUNDS + name] = "counts"
        if file is None:
            file = _File(metadata, properties, partition, io)
        file.write(part)
        if file.size() >= target:
            yield file.done()
            file = None
    if file is not None:
        yield file.done()


def read_parts(io: FileIO, path: str, schema: Schema, metadata: TableMetadata) -> Iterator[pa.Table]:
    """Yield the rows of a file with the columns of `schema`, found by their numbers."""
    with io.new_input(path).open() as source:
        opened = pq.ParquetFile(source)
        there = pyarrow_to_schema(
            opened.schema_arrow,
            name_mapping=metadata.schema().name_mapping,
            format_version=metadata.format_version,
        )
        fields = {there.find_column_name(each) for each in schema.field_ids} - {None}
        names = [name for name in opened.schema_arrow.names if name in {str(each).partition(".")[0] for each in fields}]
        for batch in parts_of(opened, names):
            yield pa.Table.from_batches([_to_requested_schema(schema, there, batch)])


def grouped(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of `parts` in tables of about `PART_BYTES`, for row groups that are not too small."""
    held: list[pa.Table] = []
    size = 0
    for part in parts:
        held.append(part)
        size += part.nbytes
        if size >= PART_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


class _File:
    """A file that is being written."""

    def __init__(self, metadata: TableMetadata, properties: dict[str, str], partition: Record, io: FileIO) -> None:
        form = FileFormat(
            properties.get(TableProperties.WRITE_FILE_FORMAT, TableProperties.WRITE_FILE_FORMAT_DEFAULT).upper()
        )
        model = FileFormatFactory.get(form)
        spec, schema = metadata.spec(), metadata.schema()
        places = load_location_provider(table_location=metadata.location, table_properties=metadata.properties)
        name = f"00000-0-{uuid4()}.{model.file_extension()}"
        folder = "" if spec.is_unpartitioned() else f"{spec.partition_to_path(partition, schema)}/"
        self._path = places.new_data_location(folder + name)
        self._form = form
        self._spec_id = metadata.default_spec_id
        self._partition = partition
        self._schema = sanitize_column_names(schema)
        self._columns = schema_to_pyarrow(self._schema, include_field_ids=True)
        self._output = io.new_output(self._path)
        self._writer: Any = model.create_writer(self._output, self._schema, properties)

    def write(self, rows: pa.Table) -> None:
        """Write rows, which have the columns of the table in their order."""
        self._writer.write(
            pa.Table.from_arrays(
                [column.cast(field.type) for column, field in zip(rows.columns, self._columns, strict=True)],
                schema=self._columns,
            )
        )

    def size(self) -> int:
        return int(self._writer._fos.tell())

    def done(self) -> DataFile:
        statistics = self._writer.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._path,
            file_format=self._form,
            partition=self._partition,
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            spec_id=self._spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _slices(rows: pa.Table, numbers: pa.ChunkedArray | None = None) -> Iterator[pa.Table]:
    """Yield `rows`, or those of them with these numbers, in parts of about `PART_BYTES`."""
    count = rows.num_rows if numbers is None else len(numbers)
    step = max(1, min(PART_ROWS, PART_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for at in range(0, count, step):
        if numbers is None or count == rows.num_rows:
            yield rows.slice(at, step)
        else:
            yield rows.take(numbers.slice(at, step))


def _without_bounds(rows: pa.Table) -> Iterator[str]:
    """Yield the columns with moments that Python does not know."""
    for field in rows.schema:
        if pa.types.is_temporal(field.type):
            try:
                pc.min_max(rows.column(field.name)).as_py()
            except (OverflowError, ValueError):
                yield field.name
