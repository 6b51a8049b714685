"""The schema that Spark gives to a reader: checked, and as Arrow has it."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from warren.spark_bridge.options import OptionError
from warren.spark_bridge.schema import BODY_FORMATS, HEADERS_FORMATS, arrow_type, column


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the only Arrow schema that Spark takes for `schema`."""
    return to_arrow_schema(schema, timezone="UTC")


def check_schema(schema: StructType) -> None:
    """Make sure that a schema, which a user may have given, has columns of messages with types that they can have.

    Raises:
        OptionError: it has not.
    """
    arrow = to_arrow(schema)
    if not len(arrow):
        raise OptionError("the schema has no columns")
    for found in arrow:
        try:
            column(found.name)
        except ValueError as error:
            raise OptionError(f"the schema has {error}") from None
        kinds = [arrow_type(found.name)]
        if found.name == "body":
            kinds = [arrow_type("body", body_as=form) for form in BODY_FORMATS]
        if found.name == "headers":
            kinds = [arrow_type("headers", form) for form in HEADERS_FORMATS]
        if found.type not in kinds:
            raise OptionError(
                f"column {found.name!r} of the schema can be {' or '.join(map(str, kinds))}, not {found.type}"
            )
