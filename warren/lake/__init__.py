"""Tables that follow queues: what comes into a stream, or is drained from a queue, as rows of Iceberg and Delta tables.

    source.py      what is read next, and its rows            asks the broker
    decoder.py     rows of a table out of rows of messages    decides
    table.py       what any table can do                      a protocol
    iceberg_table.py, delta_table.py                          write
    follower.py    what is committed when, and by whom        decides; the others do it
    engine.py      who makes rows of what was read            this process, or executors of Spark (spark_engine.py)

And what is there by SQL, or in a notebook:

    pushdown.py    which columns and rows an engine wants     decides what is not read
    stream_dataset.py, lake_dataset.py                        read
    sql.py         queries by DuckDB over both
    reading.py     `read` and `dataset`

It knows the broker as `warren.spark_bridge` does, by its HTTP API, and runs where no broker is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warren.lake.reading import dataset, read

__all__ = ["dataset", "read"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from warren.lake import reading

    return getattr(reading, name)
