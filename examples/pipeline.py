"""Seattle's weather through a broker and Spark: aggregates by window into Parquet, alerts back to an exchange.

    make pipeline                                     a broker of its own, results below build/pipeline
    make pipeline ARGS="--out /tmp/weather"

    days --topic exchange--> stream `weather` --Spark Structured Streaming--+--> Parquet: a row per 30 days
                                                                            +--> exchange `alerts` --> queue --> pika

The days of a year are published, then Spark reads what is new, and so on for four years: each run continues at the
checkpoint of the previous one. In the end a consumer takes the alerts, and everything is compared with what plain
Python makes of the same records; the exit code is 1 when it differs.

1. The expected result is computed from the records, never from the output.
2. The broker and Spark run on this machine, and stop when this ends.

Data: `seattle-weather` from the package `vega_datasets` (MIT), read from the installed package, as in `demo.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pika

sys.path.insert(0, str(Path(__file__).parent))
from demo import Day, DemoError, load_days

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM: Final = "weather"
ALERTS: Final = "alerts"
WINDOW_DAYS: Final = 30
STORM_M_S: Final = 8.0
DOWNPOUR_MM: Final = 40.0
SCHEMA: Final = "date date, weather string, rain double, warmest double, coldest double, wind double"
START_DEADLINE_S: Final = 60.0
# Windows are written when time has passed them: this record, of no weather at all, has it pass the last.
END_OF_TIME: Final = date(2020, 1, 1)


def date_of(day: Day) -> date:
    """Return the date of a record: they are numbered from 0, a day after the other."""
    return FIRST_DAY + timedelta(days=day.number)


FIRST_DAY: Final = date(2012, 1, 1)


def body_of(day: Day) -> bytes:
    """Return a record as JSON."""
    return json.dumps(
        {
            "date": date_of(day).isoformat(),
            "weather": day.weather,
            "rain": day.precipitation_mm,
            "warmest": day.temp_max_c,
            "coldest": day.temp_min_c,
            "wind": day.wind_m_s,
        }
    ).encode()


def is_alarming(day: Day) -> bool:
    """Tell whether that day deserves an alert."""
    return day.wind_m_s >= STORM_M_S or day.precipitation_mm >= DOWNPOUR_MM


# --- the broker -------------------------------------------------------------------------------------------------------


@contextmanager
def broker(directory: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[str, str]]:
    """Run a broker on free ports with its data in `directory`; yield its AMQP and its management URL.

    `settings`: variables of its environment besides.

    Raises:
        DemoError: it does not start.
    """
    # -P: use the installed, compiled package, not the source in the working directory.
    command = [sys.executable, "-P", "-m", "warren", "serve", "--prometheus", "off", "--log-level", "warning"]
    command += ["--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", str(directory)]
    environment = {**os.environ, **settings}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment)
    watchdog = threading.Timer(START_DEADLINE_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        announced = next((line for line in process.stdout if line.split()[:1] == ["listening"]), "")
        addresses = [word.strip(",") for word in announced.split() if "://" in word]
        if len(addresses) < 2:
            raise DemoError("the broker did not start; its reason stands above")
        watchdog.cancel()
        amqp = next(address for address in addresses if address.startswith("amqp://"))
        http = next(address for address in addresses if address.startswith("http://"))
        yield amqp.replace("amqp://", "amqp://guest:guest@") + "/%2F", http
    finally:
        watchdog.cancel()
        process.terminate()
        process.wait()


def declare(channel: Any) -> None:
    """Make the exchanges, the stream and the queue."""
    channel.exchange_declare("days", "topic", durable=True)
    channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind(STREAM, "days", "seattle.#")
    channel.exchange_declare(ALERTS, "fanout", durable=True)
    channel.queue_declare(ALERTS, durable=True)
    channel.queue_bind(ALERTS, ALERTS)


def publish(channel: Any, days: Sequence[Day]) -> None:
    """Publish records by topic, each confirmed when it is on disk."""
    for day in days:
        properties = pika.BasicProperties(content_type="application/json", delivery_mode=2)
        channel.basic_publish("days", day.topic, body_of(day), properties, mandatory=True)


def take_alerts(channel: Any) -> list[str]:
    """Consume all alerts there are; return their dates."""
    dates = []
    for method, _, body in channel.consume(ALERTS, inactivity_timeout=1):
        if method is None:
            break
        dates.append(json.loads(body)["date"])
        channel.basic_ack(method.delivery_tag)
    return sorted(dates)


# --- Spark ------------------------------------------------------------------------------------------------------------


def session() -> SparkSession:
    """Start Spark on this machine."""
    from pyspark.sql import SparkSession

    from warren.spark_bridge import register

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("weather")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def days_of(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """Return the stream as rows of weather."""
    from pyspark.sql import functions as F

    raw = spark.readStream.format("warren").options(subscribe=STREAM, startingOffsets="earliest", **options).load()
    parsed = raw.select("offset", F.from_json(F.col("body").cast("string"), SCHEMA).alias("day"))
    return parsed.select("offset", "day.*").withColumn("at", F.col("date").cast("timestamp"))


def run_queries(spark: SparkSession, options: dict[str, str], out: Path) -> None:
    """Read the new messages, once: aggregates to Parquet, alerts to the exchange."""
    from pyspark.sql import functions as F

    days = days_of(spark, options)
    months = (
        days.withWatermark("at", "0 days")
        .groupBy(F.window("at", f"{WINDOW_DAYS} days"))
        .agg(
            F.count("*").alias("days"),
            F.round(F.sum("rain"), 1).alias("rain"),
            F.max("warmest").alias("warmest"),
            F.min("coldest").alias("coldest"),
            F.sum((F.col("coldest") < 0).cast("int")).alias("frosts"),
        )
        .select(F.col("window.start").cast("date").alias("start"), "days", "rain", "warmest", "coldest", "frosts")
    )
    alerts = days.where((F.col("wind") >= STORM_M_S) | (F.col("rain") >= DOWNPOUR_MM)).select(
        F.to_json(F.struct("date", "weather", "wind", "rain")).alias("body"),
        F.lit("application/json").alias("content_type"),
    )
    to_parquet = (
        months.writeStream.format("parquet")
        .option("path", str(out / "windows"))
        .option("checkpointLocation", str(out / "checkpoints" / "windows"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    to_exchange = (
        alerts.writeStream.format("warren")
        .options(exchange=ALERTS, **options)
        .option("checkpointLocation", str(out / "checkpoints" / "alerts"))
        .trigger(availableNow=True)
        .start()
    )
    to_parquet.awaitTermination()
    to_exchange.awaitTermination()


# --- what should come out ---------------------------------------------------------------------------------------------


def expected_windows(days: Sequence[Day]) -> dict[str, tuple[int, float, int]]:
    """Return days, rain and frosts of each window of 30 days since 1970, by its first day."""
    windows: dict[date, list[Day]] = defaultdict(list)
    epoch = date(1970, 1, 1)
    for day in days:
        since = (date_of(day) - epoch).days
        windows[epoch + timedelta(days=since - since % WINDOW_DAYS)].append(day)
    return {
        start.isoformat(): (
            len(found),
            round(sum(day.precipitation_mm for day in found), 1),
            sum(d.frost for d in found),
        )
        for start, found in windows.items()
    }


def plot(rows: Sequence[Any], alerts: Sequence[str], target: Path) -> None:
    """Draw rain and temperatures by window, and the alerts, into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 5), layout="constrained")
    starts = [row["start"] for row in rows]
    upper.fill_between(starts, [row["coldest"] for row in rows], [row["warmest"] for row in rows], alpha=0.35)
    upper.set_ylabel("°C, coldest to warmest")
    lower.bar(starts, [row["rain"] for row in rows], width=WINDOW_DAYS * 0.8)
    lower.set_ylabel("rain in 30 days, mm")
    for alert in alerts:
        lower.axvline(date.fromisoformat(alert), color="tab:red", linewidth=0.7)
    upper.set_title("Seattle, windows of 30 days; alerts in red")
    figure.savefig(target, dpi=110)


def run(out: Path) -> bool:
    """Run the pipeline; return whether the result is as expected."""
    days = load_days()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="warren-pipeline-") as directory, broker(Path(directory) / "data") as urls:
        uri, management_url = urls
        options = {"uri": uri, "managementUrl": management_url}
        parameters = pika.URLParameters(uri)
        parameters.heartbeat = 0  # not answered while Spark runs, which takes minutes on a busy machine
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        declare(channel)
        channel.confirm_delivery()
        spark = session()
        for year in sorted({day.year for day in days}):
            of_year = [day for day in days if day.year == year]
            publish(channel, of_year)
            run_queries(spark, options, out)
            print(f"{year}: {len(of_year)} days published, and read by Spark")
        channel.basic_publish("days", "seattle.end", json.dumps({"date": END_OF_TIME.isoformat()}).encode())
        run_queries(spark, options, out)
        rows = sorted(spark.read.parquet(str(out / "windows")).collect(), key=lambda row: row["start"])
        spark.stop()
        alerts = take_alerts(channel)
        connection.close()
    found = {row["start"].isoformat(): (row["days"], row["rain"], row["frosts"]) for row in rows}
    windows_are_right = found == expected_windows(days)
    alerts_are_right = alerts == sorted(date_of(day).isoformat() for day in days if is_alarming(day))
    plot(rows, alerts, out / "weather.png")
    print(f"{len(rows)} windows in {out / 'windows'}: {'as expected' if windows_are_right else 'NOT as expected'}")
    print(f"{len(alerts)} alerts taken by a consumer: {'as expected' if alerts_are_right else 'NOT as expected'}")
    print(f"drawn in {out / 'weather.png'}")
    return windows_are_right and alerts_are_right


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Weather through a broker and Spark.")
    parser.add_argument(
        "--out", type=Path, default=Path("build/pipeline"), help="where results go; it is emptied first"
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        print("pipeline: Spark needs Java 17: on Debian, install openjdk-17-jre-headless", file=sys.stderr)
        return 2
    try:
        return 0 if run(options.out) else 1
    except DemoError as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
