"""Warren and Spark: queues and streams as Arrow columns, for PySpark and for files.

Stands alone: of Warren it knows the HTTP API and the chunk format only, so that it works where no broker is installed.
PySpark is imported only when a function needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warren.spark_bridge.claims import Claims
    from warren.spark_bridge.helpers import (
        dlq_summary,
        infer_json_schema,
        lag_of,
        make_archive,
        read,
        read_stream,
        register,
        to_kafka_shape,
        view,
        with_avro,
        with_deaths,
        with_json,
        with_protobuf,
    )
    from warren.spark_bridge.schema_registry import SchemaRegistry

__all__ = [
    "Claims",
    "SchemaRegistry",
    "dlq_summary",
    "infer_json_schema",
    "lag_of",
    "make_archive",
    "read",
    "read_stream",
    "register",
    "to_kafka_shape",
    "view",
    "with_avro",
    "with_deaths",
    "with_json",
    "with_protobuf",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "SchemaRegistry":
        from warren.spark_bridge.schema_registry import SchemaRegistry

        return SchemaRegistry
    from warren.spark_bridge import helpers

    return getattr(helpers, name)
