"""The load that rows of a drain come from: their numbers alone do not say whose session claimed them.

    load()           schema: the column `offset` has the load in its metadata, which selects, filters and files keep
    the query        opens the session as an owner that names the load
    Claims(...)      compares the load of a data frame with the owner of the session, before it settles rows

1. A frame without a load, as one made of other columns or with a schema of the user's own, is not compared.
"""

from __future__ import annotations

from typing import Any, Final

_COLUMN: Final = "offset"
_KEY: Final = "warren.load"
_OWNER: Final = "Spark"


def marked(schema: Any, load: str) -> Any:
    """Return a Spark schema whose rows come from `load`."""
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(each.name, each.dataType, each.nullable, {_KEY: load}) if each.name == _COLUMN else each
            for each in schema.fields
        ]
    )


def maybe_load_of(schema: Any) -> str | None:
    """Return the load that rows of a Spark schema come from; None: the schema does not say."""
    for field in schema.fields:
        if field.name == _COLUMN:
            found = (field.metadata or {}).get(_KEY)
            return found if isinstance(found, str) else None
    return None


def owner_of(load: str | None) -> str:
    """Return the owner of a session that is opened for `load`."""
    return _OWNER if load is None else f"{_OWNER} {load}"
