"""The queues and tables to follow, from a file or from options."""

from __future__ import annotations

from pathlib import Path

import pytest

from warren.lake.job import Job, bytes_of, catalog_of, job_of, jobs_of, seconds_of
from warren.spark_bridge.bridge_errors import UsageError

FILE = """
interval = "30s"

[catalogs.main]
type = "sql"
uri = "sqlite:////srv/lake/catalog.db"
warehouse = "file:///srv/lake"

[[tables]]
stream = "orders"
to = "shop.orders"
catalog = "main"
body = "json"
schema = "orders.schema.json"
max_bytes = "64MiB"

[[tables]]
queue = "jobs"
to = "s3://lake/jobs"
format = "delta"
storage = { AWS_REGION = "eu-central-1" }
interval = "5m"
keep = "1d"
partition_by = "none"
"""


def test_a_file_names_tables_with_what_they_have_in_common(tmp_path: Path) -> None:
    path = tmp_path / "lake.toml"
    path.write_text(FILE)
    orders, jobs = jobs_of(path)
    assert (orders.source, orders.interval_s, orders.limits.bytes) == ("orders", 30.0, 64 << 20)
    assert orders.catalog == {
        "name": "main",
        "type": "sql",
        "uri": "sqlite:////srv/lake/catalog.db",
        "warehouse": "file:///srv/lake",
    }
    assert orders.schema == tmp_path / "orders.schema.json"
    assert (jobs.queue, jobs.format, jobs.interval_s, jobs.refused) == (
        "jobs",
        "delta",
        300.0,
        "s3://lake/jobs_refused",
    )
    assert (jobs.storage, jobs.table.keep_s, jobs.table.partition_by) == (
        {"AWS_REGION": "eu-central-1"},
        86400.0,
        "none",
    )
    assert orders.identity("/") != Job("x", queue="orders").identity("/") != jobs.identity("/")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at least one"),
        ("[[tables]]\nto = 'd/a.b'", "either a stream or a queue"),
        ("[[tables]]\nto = 'd/a.b'\nstream = 's'\nqueue = 'q'", "either a stream or a queue"),
        ("[[tables]]\nstream = 's'", 'missing "to"'),
        ("[[tables]]\nto = 'd/a.b'\nstreem = 's'", "no setting 'streem': did you mean 'stream'"),
        ("[[tables]]\nto = 'd/a.b'\nstream = 's'\nformat = 'hudi'", "format 'hudi' must be one of iceberg, delta"),
        ("[[tables]]\nto = 'd/a.b'\nstream = 's'\ninterval = 'soon'", "'soon' is not a duration"),
        ("[[tables]]\nto = 'd/a.b'\nstream = 's'\nmax_bytes = 'much'", "'much' is not a size"),
        ("[[tables]]\nto = 'd/a.b'\nstream = 's'\nmax_rows = 0", "max_rows must be a number from 1 on"),
        ("[[tables]]\nto = 'd/a.b'\nstream = 's'\nschema = 'x'", "schema is for bodies that are json"),
        ("[[tables]]\nto = 'orders'\nstream = 's'", r"DIRECTORY/NAMESPACE\.TABLE"),
        ("[[tables]]\nto = 's3://x/a.b'\nstream = 's'", r"DIRECTORY/NAMESPACE\.TABLE"),
        ("[[tables]]\nto = 'a.b'\nqueue = 's'\nstart = 'next'\ncatalog = 'c'", "drained from its head"),
        ("[[tables]]\nto = 'd'\nstream = 's'\nformat = 'delta'\ncatalog = 'c'", "a catalog is for iceberg"),
        ("[[tables]]\nto = 'a.b'\nstream = 's'\nstorage = {a = 'b'}", "storage is for delta"),
        ("[[tables]]\nto = 'd/a.b'\nstream = 's'\n[[tables]]\nto = 'd/a.b'\nstream = 't'", "two tables are a.b"),
        (
            "[[tables]]\nto = 'd/a.b'\nstream = 's'\nbody = 'json'\n[[tables]]\nto = 'd/a.b_refused'\nstream = 's'",
            "one is that of what the other one refuses",
        ),
        ("[[tables]", "Expected"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_opened(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "lake.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=reason):
        jobs_of(path)


def test_without_a_catalog_an_iceberg_table_has_one_in_its_directory(tmp_path: Path) -> None:
    job = job_of({"to": f"{tmp_path}/lake/shop.orders", "stream": "orders"}, {}, tmp_path)
    assert job.to == "shop.orders" and job.refused == "shop.orders_refused"
    assert job.catalog == {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/lake/catalog.db",
        "warehouse": f"file://{tmp_path}/lake",
    }


def test_a_catalog_is_a_url_or_a_name() -> None:
    assert catalog_of("https://x/catalog", "s3://w", {"token": "t"}) == {
        "type": "rest",
        "uri": "https://x/catalog",
        "warehouse": "s3://w",
        "token": "t",
    }
    assert catalog_of("postgresql://x/y", None, {})["type"] == "sql"
    assert catalog_of("prod", None, {}) == {"name": "prod"}


def test_durations_and_sizes() -> None:
    assert [seconds_of(text) for text in ("500ms", "1.5s", "2 m", "1h", "7d")] == [0.5, 1.5, 120, 3600, 604800]
    assert [bytes_of(text) for text in ("5", "1k", "1KiB", "2MB", "1 GiB")] == [5, 1000, 1024, 2_000_000, 1 << 30]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"to": "lake/shop.a#1"}, r"without / \\ \? and #"),
        ({"to": "lake/shop.a?1"}, r"without / \\ \? and #"),
        ({"to": "lake/shop."}, r"NAMESPACE\.TABLE"),
        ({"to": "lake/shop..a"}, r"NAMESPACE\.TABLE"),
        ({"to": "a#1/shop.orders"}, "the directory of a catalogue"),
        ({"to": "a?b/shop.orders"}, "the directory of a catalogue"),
        ({"to": "a%20b/shop.orders"}, "the directory of a catalogue"),
        ({"to": "orders", "catalog": "main"}, r"NAMESPACE\.TABLE"),
        ({"to": "shop.a/../b", "catalog": "main"}, r"NAMESPACE\.TABLE"),
        ({"to": "shop.a#1", "catalog": "main"}, r"without / \\ \? and #"),
        ({"to": "lake/a%20b", "format": "delta"}, "cannot have a %"),
    ],
)
def test_names_that_libraries_would_take_for_others_are_refused(values: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        job_of({"stream": "orders", **values}, {}, Path())


@pytest.mark.parametrize("to", ["é lake/shop.a b", 'it\'s/shop."é"', "lake/shop.a%20b"])
def test_other_names_are_taken(to: str) -> None:
    assert job_of({"stream": "orders", "to": to}, {}, Path()).to == to.rpartition("/")[2]
