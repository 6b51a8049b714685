"""Tables that the broker keeps: after any kill each message is in its table once; and permissions for tables.

WARREN_TEST_LAKE_KILLS is the number of kills.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from object_store import ObjectStore

from integration.management.client import Api, q
from warren.lake.lake_dataset import maybe_delta
from warren.spark_bridge.control import BrokerClient

from .harness import PERSISTENT, QUEUES, TABLES, Lake, Publisher, declare, judge

pytest.importorskip("pyiceberg_core")
pytest.importorskip("deltalake")

KILLS = int(os.environ.get("WARREN_TEST_LAKE_KILLS", "3"))
DEADLINE_S = 120.0
LAKE = "/parameters/lake/%2F"


def rows_of(api: Api) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in api.get("/lake")}


def commits(api: Api) -> int:
    return sum(row["commits"] for row in rows_of(api).values())


def follow(api: Api, lake: Lake, max_rows: int) -> None:
    """Make the broker keep the tables of the harness."""
    for table in TABLES:
        is_queue = table.source in QUEUES
        value: dict[str, Any] = {
            ("queue" if is_queue else "stream"): table.source,
            "body": "bytes" if is_queue else "json",
            "interval": "50ms",
            "max_rows": max_rows,
            "compact_files": 4,
            "keep": "1s",
            "format": table.form,
        }
        if table.form == "iceberg":
            value |= {"to": table.name, "catalog": "main"}
        else:
            value |= {"to": f"{lake.directory}/{table.name}", "partition_by": "none"}
        api.put(f"{LAKE}/{table.name}", {"value": value})


def wait_for_more(api: Api, count: int) -> None:
    """Wait for `count` more commits."""
    more = commits(api) + count
    wait_until(lambda: commits(api) >= more, "commits", DEADLINE_S)


def kill_tables(api: Api) -> None:
    """Kill the process that follows, and wait for the next one."""
    pid = next(iter(rows_of(api).values()))["os_pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(row["os_pid"] not in (None, pid) for row in rows_of(api).values()), "another", DEADLINE_S)


@pytest.mark.long
@pytest.mark.timeout(300 + 60 * KILLS)
def test_each_message_is_in_its_table_once_whoever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("WARREN_TEST_LAKE_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    lake = Lake(tmp_path / "lake", "")
    for key, value in lake.catalog.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__MAIN__{key.upper()}", value)
    settings = {"lake_places": f"{lake.directory},catalog:main", "store.disk_free_min_bytes": 0}
    killed = {"tables": 0, "broker": 0}
    with WarrenProcess(tmp_path, settings=settings) as process:
        declare(process)
        api = Api(process.http_port)
        publisher = Publisher(process.amqp_port, seed)
        publisher.start()
        follow(api, lake, chance.choice([20, 150, 1000]))
        for _ in range(KILLS):
            wait_for_more(api, chance.randrange(1, 2 * len(TABLES)))
            if chance.random() < 0.5:
                kill_tables(api)
                killed["tables"] += 1
            else:
                process.kill()
                process.start()
                api = Api(process.http_port)
                killed["broker"] += 1
        publisher.end()
        client = BrokerClient(f"http://127.0.0.1:{process.http_port}")

        def has_all() -> bool:
            rows = rows_of(api).values()
            return all(row["state"] == "running" and row["waiting"] == 0 for row in rows) and not any(
                verdict["lost"] for verdict in judge(lake, client, publisher).values()
            )

        wait_until(has_all, "everything to be in its table", DEADLINE_S)
        verdicts = judge(lake, client, publisher)
    print(f"killed {killed}, {publisher.sent} messages to each source")
    for table, verdict in verdicts.items():
        print(table, verdict)
        assert (verdict["lost"], verdict["doubled"], verdict["wrong"]) == (0, 0, 0), (table, verdict)
        assert verdict["rows"] > 0, table


def table_rows(directory: Path, name: str) -> int:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("warren", type="sql", uri=f"sqlite:///{directory}/catalog.db")
    return int(catalog.load_table(name).scan().to_arrow().num_rows)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_table_begins_stops_begins_again_and_goes_with_its_parameter(tmp_path: Path) -> None:
    directory = tmp_path / "lake"
    directory.mkdir()
    settings = {"lake_places": directory}
    with WarrenProcess(tmp_path, settings=settings) as process:
        api = Api(process.http_port)
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port))
        channel = connection.channel()
        channel.confirm_delivery()
        value = {"stream": "orders", "to": f"{directory}/shop.orders", "interval": "50ms"}
        api.put(f"{LAKE}/orders", {"value": value})
        wait_until(lambda: rows_of(api)["orders"]["state"] == "failing", "the stream to be missed", DEADLINE_S)
        assert rows_of(api)["orders"]["reason"] == "no queue 'orders' in vhost '/'"
        assert [row["name"] for row in api.get("/lake/state/down")] == ["orders"]

        channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "stream"})
        for _ in range(5):
            channel.basic_publish("", "orders", b"x", PERSISTENT)
        wait_until(lambda: rows_of(api)["orders"]["rows"] == 5, "rows", DEADLINE_S)
        assert table_rows(directory, "shop.orders") == 5
        assert api.get("/lake/state/down") == []
        row = api.get("/lake/vhost/%2F/orders")
        assert (row["state"], row["table"], row["source"], row["waiting"]) == ("running", "shop.orders", "orders", 0)
        assert row["lag_s"] == 0
        assert row["committed_at"]

        since = row["since"]
        assert api.ask("DELETE", "/lake/vhost/%2F/orders/restart").status == 204
        wait_until(
            lambda: rows_of(api)["orders"]["since"] > since and rows_of(api)["orders"]["state"] == "running",
            "it to follow anew",
            DEADLINE_S,
        )
        channel.basic_publish("", "orders", b"x", PERSISTENT)
        wait_until(lambda: rows_of(api)["orders"]["rows"] == 6, "rows", DEADLINE_S)
        assert api.ask("DELETE", "/lake/vhost/%2F/nobody/restart").status == 404

        exported = api.get("/definitions")
        assert [each["value"] for each in exported["parameters"]] == [value]
        pid = rows_of(api)["orders"]["os_pid"]
        assert api.ask("DELETE", "/lake/vhost/%2F/orders").status == 204
        assert api.ask("DELETE", "/lake/vhost/%2F/orders").status == 404
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the process to end with the last table", DEADLINE_S)
        assert api.get("/lake") == []
        channel.basic_publish("", "orders", b"x", PERSISTENT)
        connection.close()

        imported = {"parameters": exported["parameters"]}
        assert api.ask("POST", "/definitions", imported).status == 204
        wait_until(lambda: rows_of(api).get("orders", {}).get("rows") == 1, "the one that was missed", DEADLINE_S)
        assert table_rows(directory, "shop.orders") == 7


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_table_in_an_object_store_is_reached_with_the_credentials_of_the_broker(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, text in object_store.environment.items():
        monkeypatch.setenv(variable, text)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-key")
    object_store.make_bucket("served")
    with WarrenProcess(tmp_path, settings={"lake_places": "s3://served/tables"}) as process:
        api = Api(process.http_port)
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port))
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True)
        for _ in range(5):
            channel.basic_publish("", "jobs", b"x", PERSISTENT)
        value = {"queue": "jobs", "format": "delta", "to": "s3://served/tables/jobs", "interval": "50ms"}
        api.put(f"{LAKE}/jobs", {"value": value})
        wait_until(lambda: rows_of(api)["jobs"]["rows"] == 5, "rows", DEADLINE_S)
        api.eventually("/queues/%2F/jobs", lambda queue: queue.get("messages") == 0)
        connection.close()
        for path in ("/lake", "/definitions", "/parameters"):
            assert "hidden-key" not in str(api.get(path))
    found = maybe_delta("s3://served/tables/jobs", {})
    assert found is not None
    assert found.to_table(columns=["offset"]).num_rows == 5


@pytest.mark.timeout(300)
def test_only_administrators_have_tables_and_only_where_the_operator_allows_it(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, settings={"lake_places": tmp_path / "lake"}) as process:
        api = Api(process.http_port)
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        for name in ("policymaker", "monitoring", "management"):
            api.put(f"/users/{name}", {"password": "x", "tags": name})
            api.put(f"/permissions/%2F/{name}", everything)
        value = {"stream": "orders", "to": f"{tmp_path}/lake/shop.orders"}
        denied = api.as_user("policymaker").ask("PUT", f"{LAKE}/t", {"value": value})
        assert denied.status == 400
        assert 'user "policymaker" needs the tag administrator' in denied.refusal[2]
        for name in ("monitoring", "management"):
            assert api.as_user(name).ask("PUT", f"{LAKE}/t", {"value": value}).status == 401
        outside = api.ask("PUT", f"{LAKE}/t", {"value": {**value, "to": f"{tmp_path}/shop.orders"}})
        assert (outside.status, "the setting lake_places allows" in outside.refusal[2]) == (400, True)
        secret = api.ask("PUT", f"{LAKE}/t", {"value": {**value, "storage": {"AWS_SECRET_ACCESS_KEY": "hidden"}}})
        assert (secret.status, "hidden" in secret.refusal[2]) == (400, False)
        assert api.get("/lake") == []

        api.put(f"{LAKE}/t", {"value": value})
        assert api.as_user("monitoring").get("/lake")[0]["name"] == "t"
        assert api.as_user("management").ask("GET", "/lake").status == 401
        assert api.as_user("management").ask("DELETE", "/lake/vhost/%2F/t").status == 401
        assert api.as_user("monitoring").ask("DELETE", "/lake/vhost/%2F/t/restart").status == 401
        assert api.as_user("policymaker").ask("DELETE", "/lake/vhost/%2F/t/restart").status == 204
        assert api.as_user("policymaker").ask("DELETE", "/lake/vhost/%2F/t").status == 204


@pytest.mark.timeout(300)
def test_the_way_in_for_the_process_is_closed_to_everybody_else(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, settings={"lake_places": tmp_path / "lake"}) as process:
        api = Api(process.http_port)
        api.put(f"{LAKE}/t", {"value": {"stream": "orders", "to": f"{tmp_path}/lake/shop.orders"}})
        wait_until(lambda: bool(rows_of(api)["t"]["os_pid"]), "the process", DEADLINE_S)
        port = local_port(process)
        guest = Api(port)
        assert guest.ask("GET", "/warren/data/%2F/orders").status == 401, "a login opens nothing"
        guest.headers["Authorization"] = "Bearer " + "x" * 43
        assert guest.ask("GET", "/warren/data/%2F/orders").status == 401
        for path in ("/overview", "/users", "/definitions", "/", f"/queues/{q('/')}"):
            assert guest.ask("GET", path).status == 404


def local_port(process: WarrenProcess) -> int:
    """Return the port on the loopback interface that the broker listens on and has told nobody of."""
    inodes = {
        os.readlink(entry).removeprefix("socket:[").removesuffix("]")
        for entry in Path(f"/proc/{process.pid}/fd").iterdir()
        if os.readlink(entry).startswith("socket:[")
    }
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            found.append(int(fields[1].partition(":")[2], 16))
    (port,) = set(found) - {process.amqp_port, process.http_port}
    return port
