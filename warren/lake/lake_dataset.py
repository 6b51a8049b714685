"""Tables of the lake, written by any program, as datasets for SQL and notebooks.

1. A dataset is the table as it was when it was opened; `refs` of Iceberg and versions of Delta cannot be chosen.
2. Of Iceberg, files are left out by the bounds that their manifests have of offsets and times. Rows that other programs
   have deleted are not in the dataset. Delta tables are pyarrow's own datasets, by deltalake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from warren.lake.object_stores import delta_storage
from warren.lake.pushdown import PushdownDataset, between, may_hold
from warren.spark_bridge.bridge_errors import NotFound

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def maybe_delta(url: str, storage: Mapping[str, str]) -> ds.Dataset | None:
    """Return the Delta table at `url`; None: not a Delta table."""
    from deltalake import DeltaTable

    options = delta_storage(url, storage) or None
    if not DeltaTable.is_deltatable(url, options):
        return None
    return DeltaTable(url, storage_options=options).to_pyarrow_dataset()


def open_iceberg(catalog: Mapping[str, str], name: str) -> IcebergDataset:
    """Return the table `name` of a catalogue.

    Raises:
        NotFound: it has none of this name.
    """
    from pyiceberg.exceptions import NoSuchTableError

    from warren.lake.catalogs import open_catalog

    try:
        return IcebergDataset(open_catalog(catalog).load_table(name))
    except NoSuchTableError:
        raise NotFound(f"no table {name!r} in the catalog") from None


class IcebergDataset(PushdownDataset):
    """An Iceberg table."""

    def __init__(self, table: Table) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        super().__init__(schema_to_pyarrow(table.schema(), include_field_ids=False))
        self._table = table

    def batches(self, columns: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        table = self._table
        tasks = [task for task in table.scan().plan_files() if may_hold(filter, self.schema, self._guarantee(task))]
        if not tasks:
            return
        projected = table.schema().select(*(columns.names or [self.schema.names[0]]))
        scan = ArrowScan(table.metadata, table.io, projected, AlwaysTrue())
        for batch in scan.to_record_batches(tasks):
            yield batch.select(columns.names).cast(columns)

    def _guarantee(self, task: FileScanTask) -> pc.Expression:
        """Return the manifest's guarantee for the rows of a file."""
        from pyiceberg.conversions import from_bytes
        from pyiceberg.types import PrimitiveType

        found = pc.scalar(True)
        for name in ("offset", "partition", "timestamp"):
            if name not in self.schema.names:
                continue
            field = self._table.schema().find_field(name)
            assert isinstance(field.field_type, PrimitiveType)
            low = (task.file.lower_bounds or {}).get(field.field_id)
            high = (task.file.upper_bounds or {}).get(field.field_id)
            if low is None or high is None or (task.file.null_value_counts or {}).get(field.field_id) != 0:
                continue
            values = [_moment(from_bytes(field.field_type, each)) for each in (low, high)]
            found = found & between(self.schema.field(name), *values)
        return found


def _moment(value: Any) -> Any:
    """Return a time as microseconds since the epoch, anything else as it is."""
    return (value - _EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value
