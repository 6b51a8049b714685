"""Tables on S3, and tables of a REST catalogue: each message once, and one writer. table (1), follower (1) to (3)."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from object_store import ObjectStore
from unit.lake.cluster_here import ClusterHere
from unit.lake.test_tables import DAY_S, KEYS, SCHEMA, Killed, killed, marks, rows
from unit.spark_bridge.chunks import Sent
from unit.spark_bridge.export_broker import ExportBroker

from warren.lake import commands
from warren.lake.commands import follower_of
from warren.lake.job import Job
from warren.lake.lake_dataset import maybe_delta, open_iceberg
from warren.lake.object_stores import catalog_properties, delta_storage
from warren.lake.options import TableOptions
from warren.lake.spark_engine import PieceMade, Work
from warren.lake.table_errors import Conflict, Overtaken
from warren.spark_bridge import commands as bridge
from warren.spark_bridge.commands import BrokerLogin

pytest.importorskip("pyiceberg_core")
pytest.importorskip("deltalake")

from pyiceberg.catalog.sql import SqlCatalog

from .rest_catalog import TOKEN, RestCatalog

_numbers = itertools.count(1)


@pytest.fixture
def bucket(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a bucket, which the environment says how to reach."""
    for variable, text in object_store.environment.items():
        monkeypatch.setenv(variable, text)
    name = f"lake{next(_numbers)}"
    object_store.make_bucket(name)
    return f"s3://{name}"


@pytest.fixture
def rest(tmp_path: Path, bucket: str) -> Iterator[RestCatalog]:
    """Return a REST catalogue whose tables are on S3."""
    properties = catalog_properties({"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"{bucket}/ice"})
    with RestCatalog(SqlCatalog("behind", **properties)) as running:
        yield running


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ExportBroker:
    made = ExportBroker()
    monkeypatch.setattr(bridge, "client_of", lambda: made)
    monkeypatch.setattr(ExportBroker, "__copy__", lambda self: self, raising=False)
    made.stream().messages += [Sent(number, b'{"n": %d}' % number) for number in range(5)]
    made.queues["orders"].messages.append(Sent(5, b"no JSON"))
    return made


def connect(flags: Mapping[str, Any]) -> BrokerLogin:
    raise AssertionError("the test has a broker")


def catalog_of(rest: RestCatalog) -> dict[str, str]:
    return {"type": "rest", "uri": rest.url, "token": TOKEN}


def found_in(rows: Any) -> list[tuple[int, int]]:
    """Return the offsets in a table, and what their bodies say."""
    return sorted((row["offset"], row["n"]) for row in rows.to_table(columns=["offset", "n"]).to_pylist())


def follow(*arguments: str) -> None:
    assert commands.main(["--stream", "orders", "--body", "json", "--once", *arguments], connect) == 0


@pytest.mark.long
def test_a_table_of_a_rest_catalog_on_s3_has_each_message_once(rest: RestCatalog, broker: ExportBroker) -> None:
    table = ("--to", "shop.orders", "--catalog", rest.url, "--property", f"token={TOKEN}", "--compact-files", "2")
    follow(*table)
    broker.queues["orders"].messages += [Sent(number, b'{"n": %d, "new": "x"}' % number) for number in range(6, 9)]
    follow(*table)
    follow(*table)
    wanted = [(number, number) for number in (0, 1, 2, 3, 4, 6, 7, 8)]
    found = open_iceberg(catalog_of(rest), "shop.orders")
    assert found_in(found) == wanted
    assert found.to_table(columns=["new"]).column("new").drop_null().to_pylist() == ["x"] * 3
    refused = open_iceberg(catalog_of(rest), "shop.orders_refused").to_table(columns=["offset"])
    assert refused.column("offset").to_pylist() == [5]


@pytest.mark.long
def test_a_delta_table_on_s3_has_each_message_once(bucket: str, broker: ExportBroker) -> None:
    table = ("--to", f"{bucket}/orders", "--format", "delta", "--compact-files", "2")
    follow(*table)
    broker.queues["orders"].messages += [Sent(number, b'{"n": %d}' % number) for number in range(6, 9)]
    follow(*table)
    follow(*table)
    assert found_in(maybe_delta(f"{bucket}/orders", {})) == [(number, number) for number in (0, 1, 2, 3, 4, 6, 7, 8)]


@pytest.mark.parametrize(("is_made", "status"), [(True, 500), (False, 503)])
def test_a_commit_of_which_nobody_knows_is_looked_for(
    rest: RestCatalog, broker: ExportBroker, is_made: bool, status: int
) -> None:
    made = follower_of(Job(to="shop.orders", stream="orders", catalog=catalog_of(rest)), broker)
    made.open()
    rest.failing = [(is_made, status)]
    with pytest.raises(Exception, match="the test wants it so"):
        made.step()
    before = rest.commits
    assert made.step().moved is not is_made
    assert rest.commits == before + (not is_made)
    found = open_iceberg(catalog_of(rest), "shop.orders").to_table(columns=["offset"])
    assert sorted(found.column("offset").to_pylist()) == list(range(6))


@pytest.mark.long
@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_who_starts_last_has_the_table(rest: RestCatalog, bucket: str, broker: ExportBroker, form: str) -> None:
    job = (
        Job(to="shop.orders", stream="orders", catalog=catalog_of(rest))
        if form == "iceberg"
        else Job(to=f"{bucket}/orders", stream="orders", format=form)
    )
    first, second = follower_of(job, broker), follower_of(job, broker)
    first.open()
    second.open()
    with pytest.raises(Overtaken):
        first.step()
    assert second.step().rows == 6


@pytest.mark.long
@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_tasks_on_other_machines_are_told_where_the_store_is_and_know_no_catalogue(
    rest: RestCatalog, bucket: str, broker: ExportBroker, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    class ClusterElsewhere(ClusterHere):
        """Its machines have the credentials, and nothing else of this environment."""

        def run(self, work: Work) -> list[PieceMade]:
            sent = pickle.dumps((work.rows, work.refused))
            assert TOKEN.encode() not in sent and rest.url.encode() not in sent
            with monkeypatch.context() as patch:
                for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
                    patch.delenv(variable, raising=False)
                rows, refused = pickle.loads(sent)
                return super().run(replace(work, rows=rows, refused=refused))

    job = (
        Job(to="shop.orders", stream="orders", catalog=catalog_of(rest))
        if form == "iceberg"
        else Job(to=f"{bucket}/orders", stream="orders", format=form)
    )
    cluster = ClusterElsewhere()
    made = follower_of(job, broker, cluster)
    made.open()
    assert made.step().rows == 6 and cluster.ran
    made = follower_of(job, broker)
    made.open()
    assert not made.step().moved
    table = open_iceberg(catalog_of(rest), "shop.orders") if form == "iceberg" else maybe_delta(f"{bucket}/orders", {})
    assert table is not None
    assert sorted(table.to_table(columns=["offset"]).column("offset").to_pylist()) == list(range(6))


@pytest.mark.long
@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_of_commits_at_once_one_is_made(rest: RestCatalog, bucket: str, form: str) -> None:
    def opened() -> Any:
        if form == "delta":
            from warren.lake.delta_table import open_table as open_delta

            return open_delta(f"{bucket}/race", delta_storage(bucket, {}), SCHEMA, TableOptions())
        from pyiceberg.catalog import load_catalog

        from warren.lake.iceberg_table import open_table

        return open_table(
            load_catalog("rest", **catalog_properties(catalog_of(rest))), "shop.race", SCHEMA, TableOptions()
        )

    tables = [opened() for _ in range(3)]
    committed: list[int] = []
    errors: list[Exception] = []

    def commit(number: int) -> None:
        for turn in range(3):
            offset = 10 * turn + number
            try:
                tables[number].load(KEYS)
                tables[number].append(rows(offset, offset + 1), marks(1, offset + 1))
                committed.append(offset)
            except Conflict:
                pass
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and committed
    found = maybe_delta(f"{bucket}/race", {}) if form == "delta" else open_iceberg(catalog_of(rest), "shop.race")
    assert found is not None
    assert sorted(found.to_table(columns=["offset"]).column("offset").to_pylist()) == sorted(committed)


@pytest.mark.long
def test_old_files_and_what_the_killed_leave_go_from_s3_as_well(
    rest: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table import Transaction

    from warren.lake.iceberg_table import open_table

    table = open_table(
        load_catalog("rest", **catalog_properties(catalog_of(rest))),
        "shop.orders",
        SCHEMA,
        TableOptions(partition_by="none", compact_files=2, keep_s=0.0),
    )
    for number in range(4):
        table.load(KEYS)
        table.append(rows(number, number + 1), marks(1, number + 1))
    kept = table.maintain(time.time() + 60)
    assert (kept.rewritten, kept.written) == (4, 1) and kept.deleted
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", killed)
        with pytest.raises(Killed):
            table.append(rows(4, 5), marks(1, 5))
    table.load(KEYS)
    assert table.maintain(time.time() + 2 * DAY_S).orphans == 3
    found = open_iceberg(catalog_of(rest), "shop.orders").to_table(columns=["offset"])
    assert sorted(found.column("offset").to_pylist()) == [0, 1, 2, 3]
