"""The most memory that a process takes which reads by size: tables, exports, and the tasks of Spark.

Bodies compress 20 times, so that a limit that counts compressed bytes exceeds the bound by far. The peak is that of the
child itself (VmHWM), with its imports, which alone take 90 to 110 MB. Each table has more commits than it has files
before they are compacted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from broker_process import WarrenProcess

LIMIT_BYTES = 8 << 20
MOST_BYTES = 4 * LIMIT_BYTES + 200_000_000
MESSAGES = 20_000
BODY_BYTES = 2000
STREAM, QUEUES = "orders", ("jobs", "tasks", "letters")
DEADLINE_S = 900.0

# The interpreter tells its peak at its end; `getrusage` would have that of the process that started it, if larger.
TELL = """
import atexit, pathlib, sys
def tell(to=sys.argv.pop(1)):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    pathlib.Path(to).write_text(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
atexit.register(tell)
"""
COMMAND = TELL + "import runpy; runpy.run_module('warren', run_name='__main__')"
READ = (
    TELL
    + """
from warren.spark_bridge.options import read_options
from warren.spark_bridge.schema import spark_schema
mode, url, name, limit = sys.argv[1:]
given = {"managementUrl": url, "subscribe": name}
if mode == "batch":
    from warren.spark_bridge.batch import BatchReader
    reader = BatchReader(read_options(given | {"targetPartitionBytes": limit}), spark_schema(), "load")
    rows = sum(batch.num_rows for piece in reader.partitions() for batch in reader.read(piece))
else:
    from warren.spark_bridge.drain import DrainReader
    from warren.spark_bridge.stream import StreamReader
    more = {"startingOffsets": "earliest"} if mode == "stream" else {"mode": "drain", "consumerName": "reader"}
    options = read_options(given | more | {"maxBytesPerTrigger": limit}, streaming=True)
    reader = (StreamReader if mode == "stream" else DrainReader)(options, spark_schema())
    at, rows = reader.initialOffset(), 0
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        rows += sum(batch.num_rows for piece in reader.partitions(at, end) for batch in reader.read(piece))
        reader.commit(end)
        at = end
print(rows)
"""
)


def body_of(number: int) -> bytes:
    line = "the same thing happened again and nobody looked at it; "
    return json.dumps({"number": number, "text": (line * 100)[: BODY_BYTES - 40]}).encode()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    assert len(zlib.compress(b"".join(map(body_of, range(1000))))) * 20 < 1000 * BODY_BYTES
    with WarrenProcess(tmp_path_factory.mktemp("broker")) as process:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", process.amqp_port, heartbeat=0, blocked_connection_timeout=None)
        )
        channel = connection.channel()
        channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
        for name in QUEUES:
            channel.queue_declare(name, durable=True)
        channel.exchange_declare("all", "fanout")
        for name in (STREAM, *QUEUES):
            channel.queue_bind(name, "all")
        properties = pika.BasicProperties(delivery_mode=2, content_type="application/json")
        for number in range(MESSAGES - 1):
            channel.basic_publish("all", "", body_of(number), properties)
        channel.confirm_delivery()  # the confirm of the last one comes after all of them are stored
        channel.basic_publish("all", "", body_of(MESSAGES - 1), properties)
        connection.close()
        yield process


def peak_bytes(directory: Path, code: str, *arguments: str) -> tuple[int, str]:
    """Run a program to its end; return the most memory that it had, and what it printed."""
    told = directory / "peak"
    done = subprocess.run(
        [sys.executable, "-c", code, str(told), *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = 1024 * int(told.read_text())
    print(f"{found / 1e6:.0f} MB, allowed {MOST_BYTES / 1e6:.0f} MB")
    return found, done.stdout


@pytest.mark.long
@pytest.mark.parametrize("body", ["bytes", "json"])
@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_table_takes_what_its_commits_may_have(broker: WarrenProcess, tmp_path: Path, form: str, body: str) -> None:
    to = tmp_path / ("orders" if form == "delta" else "shop.orders")
    words = f"lake --stream {STREAM} --to {to} --format {form} --body {body} --once --compact-files 3"
    url = f"http://127.0.0.1:{broker.http_port}"
    found, _ = peak_bytes(tmp_path, COMMAND, *words.split(), "--max-bytes", str(LIMIT_BYTES), "--url", url)
    assert found <= MOST_BYTES


@pytest.mark.long
def test_a_table_of_a_queue_likewise(broker: WarrenProcess, tmp_path: Path) -> None:
    words = f"lake --queue jobs --to {tmp_path / 'jobs'} --format delta --once --compact-files 3"
    url = f"http://127.0.0.1:{broker.http_port}"
    found, _ = peak_bytes(tmp_path, COMMAND, *words.split(), "--max-bytes", str(LIMIT_BYTES), "--url", url)
    assert found <= MOST_BYTES


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "json", "delta"])
@pytest.mark.parametrize("name", [STREAM, "letters"])
def test_an_export_likewise(broker: WarrenProcess, tmp_path: Path, name: str, form: str) -> None:
    words = f"export {name} --to {tmp_path / 'files'} --format {form}"
    url = f"http://127.0.0.1:{broker.http_port}"
    found, _ = peak_bytes(tmp_path, COMMAND, *words.split(), "--max-file-size", str(LIMIT_BYTES), "--url", url)
    assert found <= MOST_BYTES


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "name"), [("batch", STREAM), ("batch", "letters"), ("stream", STREAM), ("drain", "tasks")]
)
def test_a_task_of_spark_likewise(broker: WarrenProcess, tmp_path: Path, mode: str, name: str) -> None:
    pytest.importorskip("pyspark")
    url = f"http://127.0.0.1:{broker.http_port}"
    found, printed = peak_bytes(tmp_path, READ, mode, url, name, str(LIMIT_BYTES))
    assert int(printed) == MESSAGES
    assert found <= MOST_BYTES
