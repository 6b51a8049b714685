"""Data frames into queues: everything of a message, once, whatever fails on the way. writer.py (1) to (3)."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F

from warren.spark_bridge import read
from warren.spark_bridge.bridge_errors import BridgeError

from .messages import DEADLINE_S, Publisher
from .tools import KILLS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ROWS = 20_000  # the broker publishes them in two pieces
FEWER = 4_000


def write(frame: DataFrame, publisher: Publisher, queue: str, **options: object) -> None:
    given = {"managementUrl": publisher.url, "queue": queue} | options
    frame.write.format("warren").options(**{name: str(value) for name, value in given.items()}).mode("append").save()


def confirms(publisher: Publisher) -> dict[str, str]:
    uri = f"amqp://guest:guest@127.0.0.1:{publisher.process.amqp_port}/%2F"
    return {"delivery": "confirms", "uri": uri}


def numbered(spark: SparkSession, rows: int = ROWS, partitions: int = 4) -> DataFrame:
    return spark.range(0, rows, 1, partitions).select(F.col("id").cast("string").alias("body"))


def take_all(publisher: Publisher, queue: str) -> Counter[int]:
    """Take everything out of a queue of numbers; return how often each was there."""
    found: Counter[int] = Counter()
    left = publisher.depth(queue)
    if left:
        for _, _, body in publisher.channel.consume(queue, auto_ack=True):
            found[int(body)] += 1
            if found.total() == left:
                break
        publisher.channel.cancel()
    return found


def once(rows: int) -> Counter[int]:
    return Counter(range(rows))


def stages(publisher: Publisher) -> list[str]:
    with publisher.client as client:
        return [row["name"] for row in client._list("GET", ("warren", "stages"))]


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["staged", "confirms"])
def test_a_row_becomes_a_message_with_all_its_properties(
    spark: SparkSession, publisher: Publisher, name: str, delivery: str
) -> None:
    publisher.queue(name)
    publisher.channel.exchange_declare(f"{name}-x", "topic")
    publisher.channel.queue_bind(name, f"{name}-x", "a.#")
    when = datetime.datetime(2026, 11, 22, 8, 0, tzinfo=datetime.UTC)
    row: dict[str, Any] = {
        "body": b"\x00body\xff",
        "exchange": f"{name}-x",
        "routing_key": "a.b",
        "content_type": "application/json",
        "content_encoding": "gzip",
        "headers": {"one": "1", "none": None},
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "message_timestamp": when,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
        "cluster_id": "k",
    }
    schema = (
        "body binary, exchange string, routing_key string, content_type string, content_encoding string, "
        "headers map<string,string>, delivery_mode int, priority int, correlation_id string, reply_to string, "
        "expiration string, message_id string, message_timestamp timestamp, type string, user_id string, "
        "app_id string, cluster_id string"
    )
    more: dict[str, str] = confirms(publisher) if delivery == "confirms" else {}
    frame = spark.createDataFrame([tuple(row.values())], schema)
    frame.write.format("warren").options(managementUrl=publisher.url, **more).mode("append").save()
    method, properties, body = publisher.channel.basic_get(name, auto_ack=True)
    assert method is not None and properties is not None
    assert (method.exchange, method.routing_key, body) == (f"{name}-x", "a.b", b"\x00body\xff")
    expected = pika.BasicProperties(
        **{
            key: value
            for key, value in row.items()
            if key not in ("body", "exchange", "routing_key", "message_timestamp")
        },
        timestamp=int(when.timestamp()),
    )
    assert vars(properties) == vars(expected)


@pytest.mark.long
def test_what_was_read_is_written_as_it_was(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.stream(name)
    publisher.stream(f"{name}-copy")
    headers: dict[str, Any] = {"i": 5, "big": 1 << 40, "t": True, "n": None, "l": [1, "two"], "d": {"x": {"y": 1}}}
    for properties in (
        pika.BasicProperties(headers=headers, delivery_mode=2, type="t", timestamp=5),
        pika.BasicProperties(),
        pika.BasicProperties(headers={}, message_id="m", delivery_mode=1),
    ):
        publisher.publish(name, b"body", properties)
    source = read(spark, name, managementUrl=publisher.url, headersFormat="typed")
    source.coalesce(1).sortWithinPartitions("offset").write.format("warren").options(
        managementUrl=publisher.url, exchange="", routingKey=f"{name}-copy", persistent="false"
    ).mode("append").save()
    columns = [each for each in source.columns if each not in ("queue", "timestamp", "routing_key")]
    copy = read(spark, f"{name}-copy", managementUrl=publisher.url, headersFormat="typed")
    rows = [frame.select(columns).orderBy("offset").collect() for frame in (source, copy)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3


@pytest.mark.parametrize("delivery", ["staged", pytest.param("confirms", marks=pytest.mark.long)])
def test_two_writes_are_both_there(spark: SparkSession, publisher: Publisher, name: str, delivery: str) -> None:
    publisher.queue(name)
    more: dict[str, str] = confirms(publisher) if delivery == "confirms" else {"partBytes": "64k"}
    for rows in (ROWS, FEWER):
        write(numbered(spark, rows), publisher, name, **more)
    assert take_all(publisher, name) == once(ROWS) + once(FEWER)
    assert stages(publisher) == []


def failing(rows: Iterable[Row]) -> Iterator[Row]:
    """Pass rows on; some attempts of some tasks fail in their midst, or when all rows are gone."""
    context = TaskContext.get()
    assert context is not None
    fails = context.attemptNumber() < context.partitionId() % 4
    for passed, row in enumerate(rows):
        if fails and passed >= 1000 and context.partitionId() % 2:
            raise RuntimeError("a task fails on purpose")
        yield row
    if fails:
        raise RuntimeError("a task fails on purpose, at its end")


def never(rows: Iterable[Row]) -> Iterator[Row]:
    """Pass rows on; one task fails in the end, always."""
    context = TaskContext.get()
    yield from rows
    if context is not None and context.partitionId() == 3:
        raise RuntimeError("it always fails")


def through(frame: DataFrame, each: Callable[[Iterable[Row]], Iterable[Row]]) -> DataFrame:
    return frame.sparkSession.createDataFrame(frame.rdd.mapPartitions(each), frame.schema)


@pytest.mark.long
def test_tasks_that_fail_and_are_tried_again_leave_each_message_once(
    spark: SparkSession, publisher: Publisher, name: str
) -> None:
    publisher.queue(name)
    write(through(numbered(spark, partitions=8), failing), publisher, name, partBytes="16k")
    assert take_all(publisher, name) == once(ROWS)
    assert stages(publisher) == []


def test_a_job_that_fails_leaves_nothing_behind(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.queue(name)
    with pytest.raises(PySparkException, match="it always fails"):
        write(through(numbered(spark), never), publisher, name)
    assert publisher.depth(name) == 0
    wait_until(lambda: stages(publisher) == [], "stages to be removed", DEADLINE_S)


@pytest.mark.parametrize("delivery", ["staged", pytest.param("confirms", marks=pytest.mark.long)])
def test_messages_for_nobody_fail_the_batch_unless_they_may_be_dropped(
    spark: SparkSession, publisher: Publisher, name: str, delivery: str
) -> None:
    other = f"{name}-other"  # tasks of the batch that has failed may still be publishing
    publisher.queue(name)
    publisher.queue(other)
    more: dict[str, str] = confirms(publisher) if delivery == "confirms" else {}

    def send(queue: str, **options: object) -> None:
        frame = numbered(spark, FEWER).withColumn(
            "routing_key", F.when(F.col("body") == "777", "nobody").otherwise(queue)
        )
        given = {"managementUrl": publisher.url, **more, **options}
        frame.write.format("warren").options(**{each: str(value) for each, value in given.items()}).mode(
            "append"
        ).save()

    with pytest.raises(PySparkException, match=r"1 of its messages|routed to no queue"):
        send(name)
    if delivery == "staged":
        assert publisher.depth(name) == 0
    send(other, mandatory="false")
    assert take_all(publisher, other) == once(FEWER) - Counter({777: 1})


def test_overwriting_empties_the_queue_only_when_that_is_asked_for(
    spark: SparkSession, publisher: Publisher, name: str
) -> None:
    publisher.queue(name, 5)
    writer = numbered(spark, 10).write.format("warren").options(managementUrl=publisher.url, queue=name)
    with pytest.raises(PySparkException, match="truncate"):
        writer.mode("overwrite").save()
    assert publisher.depth(name) == 5
    writer.option("truncate", "true").mode("overwrite").save()
    assert take_all(publisher, name) == once(10)


def test_overwriting_that_fails_leaves_the_messages_and_an_empty_frame_leaves_none(
    spark: SparkSession, publisher: Publisher, name: str
) -> None:
    publisher.queue(name, 5, **{"x-max-length": 6, "x-overflow": "reject-publish"})

    def overwrite(rows: int) -> None:
        writer = numbered(spark, rows).write.format("warren").options(managementUrl=publisher.url, queue=name)
        writer.options(truncate="true", commitTimeout="1s").mode("overwrite").save()

    with pytest.raises(PySparkException, match="has no room for the whole batch"):
        overwrite(7)
    assert publisher.depth(name) == 5
    overwrite(6)
    assert publisher.depth(name) == 6
    overwrite(0)
    assert publisher.depth(name) == 0


def test_what_cannot_be_written_is_refused_before_anything_runs(
    spark: SparkSession, publisher: Publisher, name: str
) -> None:
    for frame, options, reason in [
        (numbered(spark, 1).withColumn("id", F.lit(1)), {}, "'id' is no part of a message"),
        (spark.range(1), {}, "no column body"),
        (numbered(spark, 1), {"que": "x"}, "did you mean queue"),
        (numbered(spark, 1).withColumn("priority", F.lit("high")), {}, "it must be an integer"),
    ]:
        with pytest.raises(PySparkException, match=reason):
            write(frame, publisher, name, **options)
    with pytest.raises(PySparkException, match="longer than 255"):
        write(numbered(spark, 5).withColumn("type", F.repeat(F.lit("x"), 256)), publisher, name)


# --- streams ----------------------------------------------------------------------------------------------------------


def batches_on_disk(spark: SparkSession, directory: Path, batches: int, rows: int) -> DataFrame:
    """Return a streaming source of `batches` batches with numbers that continue from one to the next."""
    for batch in range(batches):
        numbers = spark.range(batch * rows, (batch + 1) * rows, 1, 2).select(F.col("id").cast("string").alias("body"))
        numbers.write.mode("append").parquet(str(directory / f"{batch:03d}"))
    return spark.readStream.schema("body string").option("maxFilesPerTrigger", "2").parquet(str(directory / "*"))


def run(frame: DataFrame, publisher: Publisher, queue: str, checkpoint: Path, **options: object) -> str:
    """Write all there is, and return the id of the query."""
    given = {"managementUrl": publisher.url, "queue": queue, "checkpointLocation": str(checkpoint)} | options
    query = (
        frame.writeStream.format("warren")
        .options(**{name: str(value) for name, value in given.items()})
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(int(DEADLINE_S))
    assert not query.isActive
    return query.id


def forget_commits(checkpoint: Path, count: int) -> None:
    """Make Spark believe that it died before it noted its last batches as done."""
    noted = sorted(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    for path in noted[-count:]:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def test_a_batch_that_is_replayed_is_not_written_again(
    spark: SparkSession, publisher: Publisher, name: str, tmp_path: Path
) -> None:
    publisher.queue(name)
    source = batches_on_disk(spark, tmp_path / "source", 3, 1000)
    query = run(source, publisher, name, tmp_path / "checkpoint")
    with publisher.client as client:
        (noted,) = [row for row in client._list("GET", ("warren", "stages", "/", "commits")) if row["query"] == query]
    assert noted["done"] and noted["batch"] == 2
    forget_commits(tmp_path / "checkpoint", 1)
    assert run(source, publisher, name, tmp_path / "checkpoint") == query
    assert take_all(publisher, name) == once(3000)
    assert stages(publisher) == []
    numbers = spark.range(3000, 3100, 1, 1).select(F.col("id").cast("string").alias("body"))
    numbers.write.mode("append").parquet(str(tmp_path / "source" / "100"))
    run(source, publisher, name, tmp_path / "checkpoint")
    assert take_all(publisher, name) == Counter(range(3000, 3100))


@pytest.mark.long
def test_new_rows_under_a_number_that_was_used_are_not_taken_for_a_repetition(
    spark: SparkSession, publisher: Publisher, name: str, tmp_path: Path
) -> None:
    publisher.queue(name)
    place, checkpoint, old = (tmp_path / each for each in ("source", "checkpoint", "old"))

    def add(first: int, end: int) -> DataFrame:
        numbers = spark.range(first, end, 1, 1).select(F.col("id").cast("string").alias("body"))
        numbers.write.mode("append").parquet(str(place / str(first)))
        return spark.readStream.schema("body string").parquet(str(place / "*"))

    run(add(0, 100), publisher, name, checkpoint)
    shutil.copytree(checkpoint, old)
    run(add(100, 200), publisher, name, checkpoint)
    shutil.rmtree(checkpoint)
    old.rename(checkpoint)
    with pytest.raises(StreamingQueryException, match="published with 100 messages, and has 120 now"):
        run(add(200, 220), publisher, name, checkpoint)
    assert take_all(publisher, name) == once(200)
    run(spark.readStream.schema("body string").parquet(str(place / "*")), publisher, name, tmp_path / "new")
    assert take_all(publisher, name) == once(220)


@pytest.mark.long
def test_with_confirms_a_replayed_batch_has_the_same_message_ids(
    spark: SparkSession, publisher: Publisher, name: str, tmp_path: Path
) -> None:
    publisher.queue(name)
    source = batches_on_disk(spark, tmp_path / "source", 2, 50)
    options = {**confirms(publisher), "messageId": "auto"}
    query = run(source, publisher, name, tmp_path / "checkpoint", **options)
    forget_commits(tmp_path / "checkpoint", 1)
    run(source, publisher, name, tmp_path / "checkpoint", **options)
    found: dict[str, set[bytes]] = {}
    total = 0
    while True:
        method, properties, body = publisher.channel.basic_get(name, auto_ack=True)
        if method is None or properties is None or body is None:
            break
        total += 1
        found.setdefault(str(properties.message_id), set()).add(body)
    assert total == 150
    assert len(found) == 100
    assert all(len(bodies) == 1 for bodies in found.values())
    assert all(each.startswith(f"{query}/") for each in found)


@pytest.mark.long
def test_the_broker_may_die_while_batches_are_written(
    spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    with WarrenProcess(tmp_path_factory.mktemp("warren")) as process:
        publisher = Publisher(process)
        publisher.queue(name)
        publisher.close()
        source = batches_on_disk(spark, tmp_path / "source", 4, 500)
        done = threading.Event()

        def last_batch() -> int:
            return max(last_batches(publisher).values(), default=-1)

        def is_past(batch: int) -> bool:
            return done.is_set() or last_batch() >= batch

        def kill_now_and_then() -> None:
            batch = 0
            while not done.is_set():
                # It is committed; at the next look the next batch but one should be staged, or just being committed.
                wait_until(partial(is_past, batch), "a commit", DEADLINE_S)
                batch = last_batch() + 2
                process.kill()
                process.start()

        killer = threading.Thread(target=kill_now_and_then, daemon=True)
        killer.start()
        try:
            # An operator would restart a query that fails.
            for _ in range(10):
                try:
                    run(source, publisher, name, tmp_path / "checkpoint", **{"fetch.retries": 8})
                    break
                except PySparkException as error:
                    print(f"the query is started again: {error}"[:300])
        finally:
            done.set()
            killer.join(DEADLINE_S)
        assert take_all(publisher, name) == once(2000)
        publisher.close()


def last_batches(publisher: Publisher) -> dict[str, int]:
    """Return the last batch of each query that the broker has committed, or is committing; nothing while it is down."""
    try:
        with publisher.client as client:
            rows = client._list("GET", ("warren", "stages", "/", "commits"))
    except BridgeError:
        return {}
    return {row["query"]: int(row["batch"]) for row in rows}


@pytest.mark.long
def test_the_driver_may_die_at_any_moment(spark: SparkSession, publisher: Publisher, name: str, tmp_path: Path) -> None:
    """The driver is a process of its own, killed with all its children while it writes one batch after the other."""
    publisher.queue(name)
    batches, rows = 6 + 3 * KILLS, 400
    batches_on_disk(spark, tmp_path / "source", batches, rows)
    command = [sys.executable, "-m", "spark.writing_driver", str(tmp_path), publisher.url, name]
    others = set(last_batches(publisher))
    committed = 0

    def has_committed() -> bool:
        """Tell whether another batch was committed: the next one is under way, or Spark has not heard of this one."""
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
        return any(batch > committed for query, batch in last_batches(publisher).items() if query not in others)

    for life in range(KILLS + 1):
        with (tmp_path / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                command, cwd=Path(__file__).parents[1], stdout=log, stderr=log, start_new_session=True, env=os.environ
            )
        if life < KILLS:
            wait_until(has_committed, "the driver to commit a batch", DEADLINE_S * 3)
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            committed = max(batch for query, batch in last_batches(publisher).items() if query not in others)
        else:
            assert driver.wait(DEADLINE_S * 3) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert take_all(publisher, name) == once(batches * rows)


def test_spark_refuses_the_output_mode_update(
    spark: SparkSession, publisher: Publisher, name: str, tmp_path: Path
) -> None:
    publisher.queue(name)
    frame = spark.readStream.format("rate").load().select(F.col("value").cast("string").alias("body"))
    writer = frame.writeStream.format("warren").options(managementUrl=publisher.url, queue=name)
    query = writer.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        query.processAllAvailable()
