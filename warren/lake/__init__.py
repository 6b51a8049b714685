"""Tables that follow queues: the messages of a stream, or those drained from a queue, in Iceberg and Delta tables.

    source.py      the next messages and their rows           asks the broker
    decoder.py     rows of a table out of rows of messages    decides
    table.py       the operations of any table                a protocol
    iceberg_table.py, delta_table.py                          write
    follower.py    the commits of a step, and their writer    decides; the others do it
    aside.py       what a killed step has refused             reads the table of refused messages
    engine.py      makes rows of the messages                 this process, or executors of Spark (spark_engine.py)

Reading them by SQL, or in a notebook:

    pushdown.py    which columns and rows an engine wants     decides what is not read
    stream_dataset.py, lake_dataset.py                        read
    sql.py         queries by DuckDB over both
    reading.py     `read` and `dataset`

It uses the broker as `warren.spark_bridge` does, by its HTTP API, and runs where no broker is installed.
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
