"""`warren export` and `warren import` against a broker: no kill loses or doubles a message."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pyarrow.parquet as pq
import pytest
from broker_process import WarrenProcess
from pika.adapters.blocking_connection import BlockingChannel

from .commands import command, run

SEED = int(os.environ.get("WARREN_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
KILLS = 4


def run_until(broker: WarrenProcess, commits: int, *arguments: object) -> bool:
    """Run a command and kill it when it has reported `commits` commits; tell whether it was killed."""
    with subprocess.Popen(command(broker, *arguments, "--json"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "committed":
                commits -= 1
            if commits <= 0:
                process.kill()
                break
        process.stdout.read()
        return process.wait() == -signal.SIGKILL


def publish(channel: BlockingChannel, queue: str, bodies: Iterator[int] | range) -> None:
    for number in bodies:
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2, message_id=str(number)))


def take_all(channel: BlockingChannel, queue: str) -> list[tuple[Any, bytes]]:
    found: list[tuple[Any, bytes]] = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None or body is None:
            return found
        found.append((properties, body))


def bodies_in(directory: Path) -> list[int]:
    """Return what is in the files that the manifest names."""
    document = json.loads((directory / "_manifest" / "export.json").read_text())
    found: list[int] = []
    for entry in document["files"]:
        found += [int(body) for body in pq.read_table(directory / entry["path"]).column("body").to_pylist()]
    parts = {path.relative_to(directory).as_posix() for path in directory.rglob("part-*")}
    assert parts == {entry["path"] for entry in document["files"]}
    return found


TRICKY = [
    (b"", pika.BasicProperties()),
    (b"\x00\xff" * 100, pika.BasicProperties(content_type="application/octet-stream", content_encoding="identity")),
    ('{"ü": "\\u2028"}\n'.encode(), pika.BasicProperties(content_type="application/json", delivery_mode=2)),
    (
        b"x" * 300_000,
        pika.BasicProperties(
            priority=9,
            correlation_id='a "quoted", one',
            reply_to="back",
            message_id="line\nbreak",
            timestamp=1_700_000_000,
            type="",
            app_id="app",
            cluster_id="c",
        ),
    ),
    (
        b"headers",
        pika.BasicProperties(
            headers={
                "text": "ü",
                "int": -5,
                "long": 1 << 40,
                "bool": True,
                "none": None,
                "decimal": Decimal("-3.140"),
                "time": datetime(2026, 11, 22, 8, tzinfo=UTC),
                "bytes": b"\xff\x00",
                "list": [1, "two", {"three": [None]}],
                "table": {"nested": {"deeper": Decimal("0.5")}},
                "": "empty key",
            }
        ),
    ),
]


# Each form by itself is a matter of `unit/spark_bridge`.
@pytest.mark.parametrize(
    "form", ["parquet", "csv", *(pytest.param(each, marks=pytest.mark.long) for each in ("arrow", "json"))]
)
def test_a_stream_comes_back_as_it_was(
    broker: WarrenProcess, channel: BlockingChannel, tmp_path: Path, form: str
) -> None:
    stream, back = f"tricky-{form}", f"back-{form}"
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare(back, durable=True)
    for body, properties in TRICKY:
        channel.basic_publish("", stream, body, properties)
    assert f"{stream}: 5 rows in 1 file" in run(broker, "export", stream, "--to", tmp_path, "--format", form)
    assert "5 messages published" in run(broker, "import", tmp_path, "--queue", back)
    assert "5 of them by earlier runs" in run(broker, "import", tmp_path, "--queue", back)
    found = take_all(channel, back)
    assert [body for _, body in found] == [body for body, _ in TRICKY]
    for (got, _), (_, sent) in zip(found, TRICKY, strict=True):
        assert got == sent


def test_a_queue_is_copied_and_stays_as_it_is(broker: WarrenProcess, channel: BlockingChannel, tmp_path: Path) -> None:
    channel.queue_declare("copied", durable=True)
    publish(channel, "copied", range(50))
    assert "copied: 50 rows" in run(broker, "export", "copied", "--to", tmp_path)
    assert bodies_in(tmp_path) == list(range(50))
    method, _, body = channel.basic_get("copied", auto_ack=False)
    assert method is not None and method.delivery_tag is not None
    assert (body, method.redelivered, method.message_count) == (b"0", False, 49)
    channel.basic_nack(method.delivery_tag, requeue=True)
    channel.queue_delete("copied")


@pytest.mark.long
def test_a_stream_goes_on_where_the_last_run_ended_although_each_is_killed(
    broker: WarrenProcess, channel: BlockingChannel, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    print("seed", SEED)
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    sent = 0
    options = ("export", "log", "--to", tmp_path, "--max-file-size", "1B", "--columns", "offset,body,message_id")
    for _ in range(KILLS):
        publish(channel, "log", range(sent, sent + 300))
        sent += 300
        run_until(broker, chance.randrange(3), *options)
    run(broker, *options)
    assert bodies_in(tmp_path) == list(range(sent))


@pytest.mark.long
def test_a_queue_is_drained_once_although_exports_are_killed_and_producers_go_on(
    broker: WarrenProcess, channel: BlockingChannel, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    print("seed", SEED)
    channel.queue_declare("drained", durable=True)
    sent = 0
    options = ("export", "drained", "--to", tmp_path, "--mode", "drain", "--max-file-size", "2kB", "--columns", "body")
    for _ in range(KILLS):
        publish(channel, "drained", range(sent, sent + 1500))
        sent += 1500
        run_until(broker, chance.randrange(4), *options)
    run(broker, *options)
    assert Counter(bodies_in(tmp_path)) == Counter(range(sent))
    assert channel.queue_declare("drained", passive=True).method.message_count == 0


@pytest.mark.long
def test_a_drain_survives_its_broker(tmp_path: Path) -> None:
    options = ("export", "jobs", "--to", tmp_path / "out", "--mode", "drain", "--max-file-size", "2kB")
    with WarrenProcess(tmp_path) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("jobs", durable=True)
        publish(channel, "jobs", range(2000))
        connection.close()
        arguments = command(broker, *options, "--columns", "body", "--json")
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            committed = 0
            for line in process.stdout:
                committed += json.loads(line)["event"] == "committed"
                if committed == 2:
                    broker.kill()
                    broker.start()
                    committed += 1
            assert process.wait() in (0, 4)
        run(broker, *options, "--columns", "body")
        assert Counter(bodies_in(tmp_path / "out")) == Counter(range(2000))


@pytest.mark.long
def test_an_import_that_is_killed_publishes_everything_once(
    broker: WarrenProcess, channel: BlockingChannel, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    print("seed", SEED)
    channel.queue_declare("back", durable=True)
    count = 24_000
    with (tmp_path / "rows.json").open("w") as file:
        for number in range(count):
            file.write(json.dumps({"body": f"{number:2000}", "message_id": str(number)}) + "\n")
    options = ("import", tmp_path, "--queue", "back")
    killed = sum(run_until(broker, chance.randrange(3), *options) for _ in range(KILLS))
    print("killed", killed, "times")
    assert f"{count} messages published" in run(broker, *options)
    assert channel.queue_declare("back", passive=True).method.message_count == count
    assert [int(body) for _, body in take_some(channel, "back", count)] == list(range(count))


def take_some(channel: BlockingChannel, queue: str, count: int) -> Iterator[tuple[Any, bytes]]:
    channel.basic_qos(prefetch_count=5000)
    for method, properties, body in channel.consume(queue, auto_ack=True):
        assert method is not None
        yield properties, body
        count -= 1
        if count == 0:
            break
    channel.cancel()


@pytest.mark.long
def test_who_may_not_read_or_is_not_there_is_told(
    broker: WarrenProcess, channel: BlockingChannel, tmp_path: Path
) -> None:
    channel.queue_declare("secret", durable=True)
    run(broker, "ctl", "add_user", "ann", "pw")
    user = ("--username", "ann", "--password", "pw")
    assert "refused" in run(broker, "export", "secret", "--to", tmp_path / "x", *user, code=1)
    run(broker, "ctl", "set_permissions", "ann", "^$", "^$", "^secret$")
    assert "secret: 0 rows" in run(broker, "export", "secret", "--to", tmp_path / "y", *user)
    assert "refused" in run(broker, "export", "secret", "--to", tmp_path / "z", "--password", "no", code=1)
    assert "no queue 'nothing' in vhost '/'" in run(broker, "export", "nothing", "--to", tmp_path / "v", code=1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        arguments = [sys.executable, "-P", "-m", "warren", "export", "q", "--to", str(tmp_path / "w"), "--url", url]
        ended = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == 4 and f"cannot reach {url}" in ended.stderr


def test_what_no_queue_would_get_is_not_published(
    broker: WarrenProcess, channel: BlockingChannel, tmp_path: Path
) -> None:
    (tmp_path / "rows.json").write_text('{"body": "x"}\n')
    text = run(broker, "import", tmp_path, "--exchange", "amq.direct", "--routing-key", "nowhere", code=1)
    assert "1 of the messages from row 0 to 1 would go to no queue" in text
    options = ("--exchange", "amq.direct", "--routing-key", "nowhere", "--unroutable", "drop")
    assert "0 messages published, 1 unroutable" in run(broker, "import", tmp_path, *options)


def test_the_partitions_of_a_super_stream_are_exported_together(
    broker: WarrenProcess, channel: BlockingChannel, tmp_path: Path
) -> None:
    channel.exchange_declare("sup", "x-super-stream", durable=True, arguments={"x-super-stream": 2})
    for number in range(20):
        channel.basic_publish("sup", f"key {number}", b"%d" % number)
    run(broker, "export", "sup", "--to", tmp_path)
    document = json.loads((tmp_path / "_manifest" / "export.json").read_text())
    table = pq.read_table(tmp_path / document["files"][0]["path"], columns=["queue", "partition", "body"])
    rows = table.to_pylist()
    assert {row["queue"] for row in rows} == {"sup"} and {row["partition"] for row in rows} == {0, 1}
    assert sorted(int(row["body"]) for row in rows) == list(range(20))
