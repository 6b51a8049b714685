"""The commands of docs/lake.md for bodies in Avro and Protobuf, with and without a registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pika
import pytest
from broker_process import WarrenProcess
from unit.spark_bridge.fake_registry import FakeRegistry
from unit.spark_bridge.typed_messages import ORDER, avro, framed, order_file, protobuf, record, set_of

pytest.importorskip("pyiceberg_core")


def lake(process: WarrenProcess, *arguments: str, **environment: str) -> str:
    url = f"http://127.0.0.1:{process.http_port}"
    command = [sys.executable, "-m", "warren", "lake", *arguments, "--once", "--url", url]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def rows(directory: Path, table: str, *columns: str) -> list[tuple[object, ...]]:
    from pyiceberg.catalog import load_catalog

    place = directory / "lake"
    catalog = load_catalog("warren", type="sql", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
    found = catalog.load_table(table).scan(selected_fields=columns).to_arrow().to_pylist()
    return [tuple(row[column] for column in columns) for row in found]


def publish(process: WarrenProcess, stream: str, bodies: list[bytes]) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", stream, body)


@pytest.mark.long
def test_tables_have_the_fields_of_bodies(tmp_path: Path) -> None:
    older = record(("id", "int"), name="shop.Order")
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "order.binpb").write_bytes(set_of(order_file()))
    with WarrenProcess(tmp_path / "broker") as process, FakeRegistry() as registry:
        publish(process, "orders-avro", [avro(ORDER, {"id": 1, "note": "x"}), b"?"])
        avro_table = ("--stream", "orders-avro", "--to", f"{tmp_path}/lake/shop.orders_avro", "--body", "avro")
        lake(process, *avro_table, "--schema", f"{tmp_path}/order.avsc")
        assert rows(tmp_path, "shop.orders_avro", "id", "note") == [(1, "x")]
        assert rows(tmp_path, "shop.orders_avro_refused", "body") == [(b"?",)]

        publish(process, "orders-pb", [protobuf(order_file(), "shop.Order", id=2, tags=["a"])])
        protobuf_table = ("--stream", "orders-pb", "--to", f"{tmp_path}/lake/shop.orders_pb", "--body", "protobuf")
        lake(process, *protobuf_table, "--schema", f"{tmp_path}/order.binpb", "--message", "shop.Order")
        assert rows(tmp_path, "shop.orders_pb", "id", "note", "tags") == [(2, None, '["a"]')]

        registry.register(1, "orders-value", json.dumps(older))
        publish(process, "orders-framed", [framed(1, avro(older, {"id": 3}))])
        framed_table = ("--stream", "orders-framed", "--to", f"{tmp_path}/lake/shop.framed", "--body", "avro")
        newest = ("--subject", "orders-value")
        lake(process, *framed_table, *newest, WARREN_SCHEMA_REGISTRY=registry.url)
        registry.register(2, "orders-value", json.dumps(ORDER), version=2)
        publish(process, "orders-framed", [framed(2, avro(ORDER, {"id": 4, "note": "y"}))])
        registry.failures = [503]  # a registry that is busy is asked again
        lake(process, *framed_table, *newest, "--registry", registry.url)
        assert sorted(rows(tmp_path, "shop.framed", "id", "note")) == [(3, None), (4, "y")]
