"""Streaming queries over streams: every message once in the table, whatever happens between."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
from broker_process import WarrenProcess, wait_until

from warren.spark_bridge import read

from .lake import DEADLINE_S, Lake
from .messages import Publisher
from .session import children_of, command_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def rows_of_batches(query: StreamingQuery) -> list[int]:
    """Return how many rows each batch of a query had."""
    return [int(progress["numInputRows"]) for progress in query.recentProgress]


@pytest.mark.long
def test_batches_are_small_enough_and_the_same_again_when_they_were_not_committed(
    publisher: Publisher, name: str, lake: Lake
) -> None:
    publisher.stream(name, 250)
    query = lake.run(startingOffsets="earliest", maxOffsetsPerTrigger=100, consumerName="lake")
    assert lake.numbers() == list(range(250))
    assert [(row[1], row[2]) for row in lake.rows()] == [(0, number) for number in range(250)]
    assert max(rows_of_batches(query)) == 100
    progress = query.lastProgress
    assert progress is not None
    assert '"next": 250' in progress["sources"][0]["latestOffset"]
    with publisher.client as client:  # the last batch, too, is told to the broker
        group = client._object("GET", ("warren", "streams", "/", name, "groups", "lake"))
        assert (group["committed_offset"], group["lag"]) == (250, 0)

    last = lake.batches("offsets")[-1]
    planned = lake.offset(last)
    publisher.numbers(name, range(250, 260))
    # Written, and the driver died before it was committed: the sink knows the batch and drops it.
    lake.forget("commits", last)
    lake.run(maxOffsetsPerTrigger=1000)
    assert lake.offset(last) == planned
    assert lake.numbers() == list(range(260))
    # Planned, and the driver died before anything was written.
    last = lake.batches("offsets")[-1]
    lake.forget("commits", last)
    metadata = lake.table / "_spark_metadata"
    written = sorted(metadata.glob("[0-9]*"), key=lambda path: int(path.name.split(".")[0]))[-1]
    assert written.name == str(last)
    written.unlink()
    (metadata / f".{last}.crc").unlink(missing_ok=True)
    publisher.numbers(name, range(260, 265))
    lake.run()
    assert lake.numbers() == list(range(265))


def test_available_now_ends_while_producers_go_on(publisher: Publisher, name: str, lake: Lake) -> None:
    publisher.stream(name, 300)
    done = threading.Event()

    def produce() -> None:
        own = Publisher(publisher.process)
        number = 300
        while not done.wait(0.05):
            own.numbers(name, range(number, number + 20))
            number += 20
        own.close()

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        publisher.wait_for_end(name, 340)
        query = lake.run(startingOffsets="earliest", maxOffsetsPerTrigger=200)
    finally:
        done.set()
        producer.join()
    numbers = lake.numbers()
    with publisher.client as client:
        assert 340 <= len(numbers) < client.describe(name).end
    assert numbers == list(range(len(numbers)))
    assert max(rows_of_batches(query)) <= 200


@pytest.mark.long
def test_a_crash_in_the_first_batch_loses_nothing_of_what_came_since(
    publisher: Publisher, name: str, lake: Lake
) -> None:
    publisher.stream(name, 10)
    lake.run()  # from the latest offset on: an empty batch, which pins it
    publisher.numbers(name, range(10, 15))
    assert lake.offset(0)["p"][name]["base"] == 10
    # The driver died before the batch was committed: Spark asks for the initial offset again.
    for batch in lake.batches("commits"):
        lake.forget("commits", batch)
    assert lake.batches("offsets") == [0]
    lake.run()
    assert lake.numbers() == list(range(10, 15))


@pytest.mark.long
def test_python_workers_that_are_killed_cost_nothing_but_time(
    spark: SparkSession, publisher: Publisher, name: str, lake: Lake
) -> None:
    publisher.stream(name, 1000)
    killed = 0
    query = lake.start(startingOffsets="earliest", maxRecordsPerPartition=50, maxOffsetsPerTrigger=500)

    def kill_one() -> bool:
        nonlocal killed
        for pid in workers():
            if killed < 3:
                os.kill(pid, signal.SIGKILL)
                killed += 1
                return killed == 3
        return not query.isActive

    wait_until(kill_one, "workers to kill", DEADLINE_S)
    lake.wait_for_rows(1000)
    assert killed == 3
    assert lake.numbers() == list(range(1000))


def workers() -> list[int]:
    """Return the Python processes that run tasks now."""
    found = []
    for pid in children_of(os.getpid()):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if "pyspark.daemon" in command_of(pid) and "pyspark.daemon" in command_of(parent):
            found.append(pid)
    return found


def runners() -> set[int]:
    """Return the processes that plan streaming queries now."""
    return {pid for pid in children_of(os.getpid()) if "python_streaming_source_runner" in command_of(pid)}


@pytest.mark.long
def test_the_process_that_plans_is_killed_and_the_query_goes_on_when_it_is_started_again(
    publisher: Publisher, name: str, lake: Lake
) -> None:
    publisher.stream(name, 20)
    before = runners()
    query = lake.start(startingOffsets="earliest")
    lake.wait_for_rows(20)
    (runner,) = runners() - before
    os.kill(runner, signal.SIGKILL)
    publisher.numbers(name, range(20, 30))
    wait_until(lambda: not query.isActive, "the query to fail", DEADLINE_S)
    assert query.exception() is not None
    lake.run()
    assert lake.numbers() == list(range(30))


@pytest.mark.long
def test_the_broker_is_killed_under_running_queries(spark: SparkSession, tmp_path: Path) -> None:
    with WarrenProcess(tmp_path / "broker") as process:
        publisher = Publisher(process)
        lakes = [Lake(spark, publisher.url, name, tmp_path / name) for name in ("orders", "work")]
        publisher.stream("orders", 100)
        publisher.queue("work", 100)
        options: dict[str, Any] = {"maxOffsetsPerTrigger": 30, "fetch.retries": 20}
        lakes[0].start(startingOffsets="earliest", **options)
        lakes[1].start(mode="drain", consumerName="lake", **options)
        try:
            for lake in lakes:
                lake.wait_for_rows(30)
            process.kill()
            publisher.close()
            process.start()
            for lake in lakes:
                publisher.numbers(lake.queue, range(100, 160))
            for lake in lakes:
                lake.wait_for_rows(160)
        finally:
            for lake in lakes:
                lake.stop()
            publisher.close()
        for lake in lakes:
            assert lake.numbers() == list(range(160))


@pytest.mark.long
def test_a_stream_that_was_made_anew_ends_the_query(publisher: Publisher, name: str, lake: Lake) -> None:
    publisher.stream(name, 10)
    lake.run(startingOffsets="earliest")
    publisher.channel.queue_delete(name)
    publisher.stream(name)
    publisher.numbers(name, range(100, 105))
    with pytest.raises(Exception, match="deleted and created again"):
        lake.run()


@pytest.mark.long
def test_messages_that_retention_has_removed_end_the_query_unless_loss_is_allowed(
    publisher: Publisher, name: str, lake: Lake
) -> None:
    publisher.stream(name, 10, **{"x-max-length-bytes": 1_000_000})
    lake.run(startingOffsets="earliest")
    body = bytes(100_000)
    with publisher.client as client:

        def is_trimmed() -> bool:
            publisher.bodies(name, [body] * 50)
            return client.describe(name).first > 10

        wait_until(is_trimmed, "retention to remove something", DEADLINE_S)
    with pytest.raises(Exception, match="are gone, by its retention"):
        lake.run()
    query = lake.run(failOnDataLoss="false")
    with publisher.client as client:
        found = client.describe(name)
    rows = [row[2] for row in lake.rows()]
    assert rows == [*range(10), *range(rows[10], found.end)]
    assert 10 < rows[10] <= found.first
    progress = query.lastProgress
    assert progress is not None
    assert f'"lost": {rows[10] - 10}' in progress["sources"][0]["endOffset"]


def test_a_queue_that_is_no_stream_is_not_emptied_unasked(publisher: Publisher, name: str, lake: Lake) -> None:
    publisher.queue(name, 3)
    with pytest.raises(Exception, match=r'option\("mode", "drain"\)'):
        lake.run()
    assert publisher.depth(name) == 3


@pytest.mark.long
def test_a_super_stream_is_its_partitions_and_what_joins_a_pattern_is_read_from_its_beginning(
    publisher: Publisher, name: str, lake: Lake
) -> None:
    publisher.channel.exchange_declare(name, "x-super-stream", durable=True, arguments={"x-super-stream": 3})
    stored = pika.BasicProperties(delivery_mode=2)
    for number in range(60):
        publisher.channel.basic_publish(name, f"key-{number % 10}", b"%d" % number, stored)
    publisher.settled()
    lake.queue = ""
    lake.run(subscribePattern=f"{name}(-.*)?", startingOffsets="earliest", maxOffsetsPerTrigger=40)
    rows = lake.rows()
    assert lake.numbers() == list(range(60))
    assert {row[0] for row in rows} == {name} and {row[1] for row in rows} <= {0, 1, 2}
    for partition in {row[1] for row in rows}:
        of_one = [row for row in rows if row[1] == partition]
        assert [row[2] for row in of_one] == list(range(len(of_one)))
        # One key is in one partition, in order.
        assert [int(row[3]) for row in of_one] == sorted(int(row[3]) for row in of_one)
    frame = read(lake.spark, name, managementUrl=publisher.url)
    assert sorted(int(row.body) for row in frame.collect()) == list(range(60))
    publisher.stream(f"{name}-more", 5)
    lake.run()
    assert [row for row in lake.rows() if row[0] != name] == [
        (f"{name}-more", 0, number, b"%d" % number) for number in range(5)
    ]
