"""JSON Schemas as columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warren.lake import kinds
from warren.lake.body_schema import read_schema, schema_of
from warren.spark_bridge.bridge_errors import UsageError


def test_types_and_formats_are_kinds_of_columns() -> None:
    found = schema_of(
        {
            "properties": {
                "a": {"type": "integer"},
                "b": {"type": "integer", "format": "int32"},
                "c": {"type": ["null", "number"]},
                "d": {"type": "number", "format": "float"},
                "e": {"type": "string", "format": "date-time"},
                "f": {"type": "string", "format": "date"},
                "g": {"type": "string", "format": "uuid", "minLength": 3},
                "h": {"type": "object"},
                "i": {"type": "boolean"},
            },
            "required": ["a"],
            "additionalProperties": False,
        }
    )
    assert list(found.kinds.values()) == [
        *(kinds.LONG, kinds.INT, kinds.DOUBLE, kinds.FLOAT, kinds.TIMESTAMP),
        *(kinds.DATE, kinds.STRING, kinds.STRING, kinds.BOOLEAN),
    ]
    assert found.required == {"a"} and not found.is_open
    assert schema_of({}).is_open


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "must be that of an object"),
        ({"type": "array"}, "not of 'array'"),
        ({"properties": {"a": {}}}, "'a': type must be"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "'a': type must be"),
        ({"properties": {"a": {"type": "strange"}}}, "'a': type must be"),
        ({"properties": {"a": {"anyOf": []}}}, "'a' has anyOf"),
        ({"$ref": "#/x"}, r"has \$ref"),
        ({"properties": {"a": True}}, "must be an object"),
        ({"required": "a"}, "list of names"),
        ({"additionalProperties": {"type": "string"}}, "true or false"),
    ],
)
def test_what_makes_no_columns_is_refused(document: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        schema_of(document)


def test_a_file_that_is_no_schema_is_named(tmp_path: Path) -> None:
    path = tmp_path / "orders.schema.json"
    with pytest.raises(UsageError, match=r"orders\.schema\.json: No such file"):
        read_schema(path)
    path.write_text("{")
    with pytest.raises(UsageError, match=r"orders\.schema\.json: Expecting"):
        read_schema(path)
    path.write_text(json.dumps({"properties": {"n": {"type": "integer"}}}))
    assert read_schema(path).kinds == {"n": kinds.LONG}
