"""The schema, as Spark and as Arrow have it."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from warren.spark_bridge.schema import BODY_FORMATS, COLUMN_NAMES, HEADERS_FORMATS, arrow_schema, spark_schema


@pytest.mark.parametrize("headers_format", HEADERS_FORMATS)
@pytest.mark.parametrize("body_as", BODY_FORMATS)
def test_arrow_types_are_those_that_spark_wants(headers_format: str, body_as: str) -> None:
    wanted = to_arrow_schema(spark_schema(headers_format, body_as), timezone="UTC")
    assert wanted.equals(arrow_schema(None, headers_format, body_as), check_metadata=True)


def test_the_order_is_fixed_and_columns_may_be_asked_for_in_another() -> None:
    assert spark_schema().fieldNames() == list(COLUMN_NAMES)
    assert (
        " ".join(COLUMN_NAMES)
        == "queue partition offset timestamp exchange routing_key redelivered delivery_count body "
        "content_type content_encoding delivery_mode priority correlation_id reply_to expiration message_id "
        "message_timestamp type user_id app_id cluster_id headers"
    )
    assert spark_schema(columns=["body", "queue"]).fieldNames() == ["body", "queue"]


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'routing_key'"):
        arrow_schema(["routingkey"])
    with pytest.raises(ValueError, match="headers format 'maps'"):
        arrow_schema(headers_format="maps")
    with pytest.raises(ValueError, match="body format 'text'"):
        spark_schema(body_as="text")
