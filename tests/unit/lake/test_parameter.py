"""Valid parameters of a table, and valid places for tables. Numbers in parentheses: parameter.py, places.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warren.lake.job import job_of
from warren.lake.parameter import SCHEMA_MAX, check_links, job_of_parameter
from warren.lake.places import Places, places_of
from warren.spark_bridge.bridge_errors import UsageError

PLACES = places_of("/srv/lake, s3://lake/warren,catalog:main,https://catalog.example.org,postgresql+psycopg://lake@db/")
TABLE = {"stream": "orders", "to": "/srv/lake/shop.orders"}
DELTA = {"stream": "orders", "format": "delta"}
IN_CATALOG = {"stream": "orders", "to": "shop.orders"}


def refusal(value: object, places: Places = PLACES, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as refused:
        job_of_parameter(value, places, environment or {})
    return str(refused.value)


def test_a_parameter_says_what_a_table_of_a_file_says() -> None:
    words: dict[str, Any] = {
        **TABLE,
        "body": "json",
        "interval": "5s",
        "max_rows": 10,
        "max_bytes": "64MiB",
        "keep": "7d",
        "columns": ["routing_key"],
        "partition_by": "none",
        "start": "1h",
        "consumer": "lake",
        "skip_lost": True,
    }
    assert job_of_parameter(words, PLACES, {}) == job_of(words, {}, Path(), resolves=False)


@pytest.mark.parametrize(
    "value",
    [
        {**DELTA, "to": "/srv/lake/orders"},
        {**DELTA, "to": "file:///srv/lake/deep/orders"},
        {**DELTA, "to": "s3://lake/warren/orders"},
        {**IN_CATALOG, "catalog": "main"},
        {**IN_CATALOG, "catalog": "https://catalog.example.org"},
        {**IN_CATALOG, "catalog": {"uri": "https://catalog.example.org/api", "warehouse": "main"}},
        {**IN_CATALOG, "catalog": {"uri": "sqlite:////srv/lake/c.db", "warehouse": "s3://lake/warren/w"}},
        {**IN_CATALOG, "catalog": {"uri": "postgresql+psycopg://lake@db/catalog", "warehouse": "file:///srv/lake"}},
    ],
)
def test_what_is_below_an_allowed_place_is_taken(value: dict[str, Any]) -> None:
    assert job_of_parameter(value, PLACES, {}).source == "orders"


@pytest.mark.parametrize(
    "value",
    [
        {**TABLE, "to": "/srv/shop.orders"},
        {**TABLE, "to": "/srv/lakes/shop.orders"},
        {**TABLE, "to": "/srv/lake/../shop.orders"},
        {**TABLE, "to": "/srv/lake/..%2f/shop.orders"},
        {**TABLE, "to": "lake/shop.orders"},
        {**DELTA, "to": "orders"},
        {**DELTA, "to": "/srv/lake"},  # its refused rows would be beside it
        {**DELTA, "to": "/srv/lake/"},
        {**DELTA, "to": "/srv/lake/."},
        {**DELTA, "to": "s3://lake/warren"},
        {**DELTA, "to": "s3://lake/warren2/orders"},
        {**DELTA, "to": "s3://lake/warren/../other"},
        {**DELTA, "to": "s3://lake/warren/%2E%2e/other"},
        {**DELTA, "to": "s3://lake/warren/a?versionId=1"},
        {**DELTA, "to": "s3://lake/warren/a\\..\\b"},
        {**DELTA, "to": "gs://lake/warren/orders"},
        {**DELTA, "to": "file:///etc/orders"},
        {**IN_CATALOG, "catalog": "other"},
        {**IN_CATALOG, "catalog": "https://catalog.example.org.evil.example"},
        {**IN_CATALOG, "catalog": "https://catalog.example.org@evil.example/"},
        {**IN_CATALOG, "catalog": {"uri": "sqlite:///lake/c.db", "warehouse": "file:///srv/lake"}},
        {**IN_CATALOG, "catalog": {"uri": "sqlite:////srv/lake/c.db?uri=true", "warehouse": "file:///srv/lake"}},
        {**IN_CATALOG, "catalog": {"uri": "sqlite:////srv/lake/c.db", "warehouse": "file:///srv"}},
        {**IN_CATALOG, "catalog": {"uri": "sqlite:////srv/lake/c.db", "warehouse": "lake"}},
        {**IN_CATALOG, "catalog": {"uri": "postgresql+psycopg://lake@db/c?host=evil", "warehouse": "file:///srv/lake"}},
        {**IN_CATALOG, "to": "../x.orders", "catalog": "main"},
        {**IN_CATALOG, "to": "..orders", "catalog": "main"},
        {**TABLE, "body": "json", "schema": "/etc/passwd"},
        {**TABLE, "body": "json", "schema": "orders.json"},
        {**TABLE, "body": "avro", "subject": "orders", "registry": "https://evil.example"},
    ],
)
def test_what_is_not_below_one_is_refused_whatever_it_looks_like(value: dict[str, Any]) -> None:
    """places (1)."""
    assert refusal(value)
    assert refusal(value, Places())


def test_a_refusal_names_the_setting_that_would_allow_it() -> None:
    assert refusal(TABLE, Places()) == "to /srv/lake: the setting lake_places allows no directories"
    assert refusal({**DELTA, "to": "s3://lake/x"}, Places()) == "to s3://lake/x: the setting lake_places allows no URLs"
    named = refusal({**IN_CATALOG, "catalog": "other"})
    assert named == "catalog 'other': not allowed by the setting lake_places, which would say catalog:other"


@pytest.mark.parametrize(
    "value",
    [
        {**DELTA, "to": "s3://lake/warren/orders", "storage": {"AWS_SECRET_ACCESS_KEY": "hidden"}},
        {**DELTA, "to": "s3://lake:hidden@warren/orders"},
        {**IN_CATALOG, "catalog": {"uri": "https://catalog.example.org", "token": "hidden"}},
        {**IN_CATALOG, "catalog": {"uri": "https://catalog.example.org", "s3.endpoint": "http://hidden"}},
        {**IN_CATALOG, "catalog": {"uri": "postgresql+psycopg://lake:hidden@db/c", "warehouse": "file:///srv/lake"}},
        {**TABLE, "body": "avro", "subject": "x", "registry": "https://me:hidden@catalog.example.org"},
    ],
)
def test_credentials_are_those_of_the_environment_and_are_not_repeated(value: dict[str, Any]) -> None:
    """(2)."""
    text = refusal(value)
    assert "of the broker's environment" in text
    assert "hidden" not in text


def test_a_registry_of_the_environment_is_used_where_none_is_named() -> None:
    environment = {"WARREN_SCHEMA_REGISTRY": "https://me:secret@registry.example.org"}
    value = {**TABLE, "body": "avro", "subject": "orders"}
    assert job_of_parameter(value, PLACES, environment).registry == environment["WARREN_SCHEMA_REGISTRY"]
    assert "need a schema" in refusal(value)
    plain = job_of_parameter({**TABLE, "body": "json"}, PLACES, environment)
    assert plain.registry is None


def test_a_schema_is_json_itself_or_an_allowed_file() -> None:
    declared = {"properties": {"id": {"type": "integer"}}}
    value: dict[str, Any] = {**TABLE, "body": "json", "schema": declared}
    assert job_of_parameter(value, PLACES, {}).schema == '{"properties": {"id": {"type": "integer"}}}'
    value = {**TABLE, "body": "json", "schema": "/srv/lake/orders.json"}
    assert job_of_parameter(value, PLACES, {}).schema == Path("/srv/lake/orders.json")
    assert "must be the absolute path of a file" in refusal(
        {**TABLE, "body": "protobuf", "message": "shop.Order", "schema": {}}
    )
    assert "a schema is for bodies" in refusal({**TABLE, "schema": {}})
    assert "256KiB at most" in refusal({**TABLE, "body": "json", "schema": {"title": "x" * SCHEMA_MAX}})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"interval": "0s"}, "interval: must be from 50ms to 1d"),
        ({"interval": "9" * 400 + "d"}, "interval: must be from 50ms to 1d"),
        ({"interval": 30}, "30 is not a duration"),
        ({"keep": "99999d"}, "keep: must be 3650d at most"),
        ({"max_rows": 10**30}, "max_rows: must be 5000000 at most"),
        ({"max_rows": 0}, "max_rows must be a number from 1 on"),
        ({"max_bytes": "1024GiB"}, "max_bytes: must be 1024MiB at most"),
        ({"target_file_size": "2GiB"}, "target_file_size: must be 1024MiB at most"),
        ({"compact_files": 1}, "compact_files: must be from 2 to 10000"),
        ({"columns": ["x"] * 101}, "columns: must be 100 names at most"),
        ({"columns": [1]}, "columns must be a text"),
        ({"consumer": "x" * 2049}, "consumer: must be a text of 2048 printable characters at most"),
        ({"consumer": "a\nb"}, "consumer: must be a text of 2048 printable characters at most"),
        ({"x" * 1_000_000: 1}, "there is no setting with a name of 1000000 characters"),
        ({"interval": [1] * 100_000}, "interval: must not be a list"),
        ({"keep": {"x": "y"}}, "keep: must not be an object"),
        ({"catalog": {"x" * 1_000_000: "y"}}, "is not for a parameter"),
        ({"intervall": "5s"}, "no setting 'intervall': did you mean 'interval'?"),
        ({"queue": "jobs"}, "name either a stream or a queue"),
        ({"to": None}, "to must be a text"),
        ({"catalog": 5}, "catalog: must be a URL, a name, or an object with uri and warehouse"),
        ({"catalog": {}}, "catalog: uri is missing"),
        ({"catalog": {"uri": "https://catalog.example.org", "type": "glue"}}, "catalog: type must be one of sql, rest"),
        ({"catalog": {"uri": "sqlite:////srv/lake/c.db"}}, "needs a warehouse"),
    ],
)
def test_absurd_values_are_told_what_is_wrong(more: dict[str, Any], said: str) -> None:
    """(3)."""
    told = refusal({**TABLE, **more})
    assert said in told
    assert len(told) < 500


@pytest.mark.parametrize("value", [None, [], "x", 5, True])
def test_what_is_no_object_is_refused(value: object) -> None:
    assert refusal(value) == "must be an object, with stream or queue, and to"


SQL = {"type": "sql", "uri": "sqlite:////srv/lake/catalog.db", "warehouse": "file:///srv/lake"}


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        (TABLE, {**TABLE, "stream": "others"}, True),
        (TABLE, {**TABLE, "to": "/srv/lake/./shop.orders"}, True),
        (TABLE, {**TABLE, "to": "shop.orders", "catalog": SQL}, True),
        (TABLE, {**TABLE, "to": "shop.orders", "catalog": {**SQL, "warehouse": "file:///srv/lake/more"}}, True),
        ({**TABLE, "body": "json"}, {**TABLE, "to": "/srv/lake/shop.orders_refused"}, True),
        ({**TABLE, "body": "bytes"}, {**TABLE, "to": "/srv/lake/shop.orders_refused"}, False),
        (TABLE, {**TABLE, "to": "/srv/lake/shop.others"}, False),
        (TABLE, {**TABLE, "to": "/srv/lake/more/shop.orders"}, False),
        ({**DELTA, "to": "/srv/lake/orders"}, {**DELTA, "to": "/srv/lake/orders/"}, True),
        ({**DELTA, "to": "/srv/lake/orders"}, {**DELTA, "to": "/srv/lake//./orders"}, True),
        ({**DELTA, "to": "/srv/lake/orders"}, {**DELTA, "to": "file:///srv/lake/orders"}, True),
        ({**DELTA, "to": "/srv/lake/orders"}, {**DELTA, "to": "/srv/lake/orders2"}, False),
        ({**DELTA, "to": "s3://lake/warren/orders"}, {**DELTA, "to": "s3://lake/warren/orders/"}, True),
    ],
)
def test_two_parameters_of_one_table_have_it_in_common_however_it_is_written(
    one: dict[str, Any], other: dict[str, Any], *, are_one: bool
) -> None:
    tables = [job_of_parameter(value, PLACES, {}).tables() for value in (one, other)]
    assert tables[0].isdisjoint(tables[1]) != are_one


def test_links_out_of_an_allowed_directory_are_not_followed(tmp_path: Path) -> None:
    """places (3)."""
    inside, outside = tmp_path / "lake", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    (inside / "out").symlink_to(outside)
    (inside / "in").symlink_to(inside)
    places = places_of(str(inside))
    for name, allowed in (("plain", True), ("in", True), ("out", False)):
        for value in ({**DELTA, "to": f"{inside}/{name}/orders"}, {**TABLE, "to": f"{inside}/{name}/shop.orders"}):
            job = job_of_parameter(value, places, {})
            if allowed:
                check_links(job, places)
            else:
                with pytest.raises(UsageError, match="a link in this path leads to where"):
                    check_links(job, places)
