"""Feed four years of Seattle's weather through four kinds of exchange, and check who received what.

    make demo                                    the broker on 127.0.0.1:5672, or one of its own
    make demo ARGS="--url amqp://user:password@host:5672/vhost"

A record is a day. It is published to a topic, a direct, a headers and a fanout exchange, each time as a
mandatory message with a publisher confirm. Consumers in threads, each with a connection and a prefetch of its
own, take the messages from ten queues and acknowledge each. At the end a table says what every queue was to
get and what its consumers got; the exit code is 1 when they differ.

1. A condition on the records selects the expected messages of a queue. It stands beside its bindings and is never
   derived from them: the broker's routing is checked against something that is not routing.
2. A queue with one consumer must deliver exactly these records in the order of publishing; a queue with two
   must deliver each of them once.
3. At the end everything declared is deleted, and a broker that was started here is stopped.

Data: `seattle-weather` from the package `vega_datasets` (MIT), read from the installed package, not fetched.
By that package's description the data is drawn from public-domain data of NOAA; the `weather` column was
derived for teaching.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, UnroutableError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

DEFAULT_URL: Final = "amqp://guest:guest@127.0.0.1:5672/%2F"
END: Final = "end"  # the message type that tells a consumer that nothing more comes
START_DEADLINE_S: Final = 15.0
STOP_DEADLINE_S: Final = 15.0
CONSUME_DEADLINE_S: Final = 60.0
PLAIN_WIDTH: Final = 120


class DemoError(Exception):
    """The demo cannot run; the text is for the person who started it."""


@dataclass(frozen=True, slots=True)
class Day:
    """One record."""

    number: int
    year: int
    month: int
    weather: str
    precipitation_mm: float
    temp_max_c: float
    temp_min_c: float
    wind_m_s: float

    @property
    def topic(self) -> str:
        return f"seattle.{self.year}.{self.month:02}.{self.weather}"

    @property
    def frost(self) -> bool:
        return self.temp_min_c < 0

    @property
    def storm(self) -> bool:
        return self.wind_m_s >= 6

    @property
    def headers(self) -> dict[str, bool | int | str]:
        return {"year": self.year, "frost": self.frost, "storm": self.storm, "weather": self.weather}


@dataclass(frozen=True, slots=True)
class Route:
    """One exchange of the demo and how a record is published to it."""

    type: str
    routing_key: Callable[[Day], str]


@dataclass(frozen=True, slots=True)
class Subscription:
    """One queue: its bindings, its expected records, and its consumers."""

    name: str
    exchange: str
    bindings: tuple[str | Mapping[str, object], ...]
    wants: Callable[[Day], bool]
    prefetch: int
    consumers: int = 1

    @property
    def shown_bindings(self) -> str:
        lines = [
            binding or "(no key)"
            if isinstance(binding, str)
            else " ".join(f"{key}={value}".lower() for key, value in binding.items())
            for binding in self.bindings
        ]
        return "\n".join(lines)


ROUTES: Final = (
    Route("topic", lambda day: day.topic),
    Route("direct", lambda day: day.weather),
    Route("headers", lambda day: ""),
    Route("fanout", lambda day: ""),
)

SUBSCRIPTIONS: Final = (
    Subscription("december", "topic", ("seattle.*.12.#",), lambda day: day.month == 12, prefetch=50),
    Subscription("snow", "topic", ("#.snow",), lambda day: day.weather == "snow", prefetch=1),
    Subscription("2015", "topic", ("seattle.2015.#",), lambda day: day.year == 2015, prefetch=50),
    Subscription("dry", "direct", ("sun", "fog"), lambda day: day.weather in ("sun", "fog"), prefetch=100),
    Subscription(
        "wet",
        "direct",
        ("rain", "drizzle", "snow"),
        lambda day: day.weather in ("rain", "drizzle", "snow"),
        prefetch=100,
    ),
    Subscription(
        "frost in sunshine",
        "headers",
        ({"x-match": "all", "frost": True, "weather": "sun"},),
        lambda day: day.temp_min_c < 0 and day.weather == "sun",
        prefetch=10,
    ),
    Subscription(
        "frost or storm",
        "headers",
        ({"x-match": "any", "frost": True, "storm": True},),
        lambda day: day.temp_min_c < 0 or day.wind_m_s >= 6,
        prefetch=10,
    ),
    Subscription(
        "wet 2012",
        "headers",
        ({"x-match": "all", "year": 2012, "weather": "rain"}, {"year": 2012, "weather": "snow"}),
        lambda day: day.year == 2012 and day.weather in ("rain", "snow"),
        prefetch=10,
    ),
    Subscription("archive", "fanout", ("",), lambda day: True, prefetch=200),
    Subscription("two workers", "fanout", ("",), lambda day: True, prefetch=20, consumers=2),
)


@dataclass(slots=True)
class Consumption:
    """What one consumer received: numbers of records, in order."""

    subscription: Subscription
    received: list[int] = field(default_factory=list)
    redelivered: int = 0
    failure: str = ""


@dataclass(slots=True)
class Publication:
    """What the publisher was told about one exchange."""

    confirmed: int = 0
    returned: list[int] = field(default_factory=list)


def load_days() -> list[Day]:
    """Read the records from the installed package, without importing it (it would import pandas).

    Raises:
        DemoError: it is not installed.
    """
    package = importlib.util.find_spec("vega_datasets")
    if package is None or not package.submodule_search_locations:
        raise DemoError("the package vega_datasets is not installed; `make demo` installs it")
    path = Path(package.submodule_search_locations[0]) / "_data" / "seattle-weather.csv"
    with path.open(newline="") as file:
        return [
            Day(
                number=number,
                year=int(row["date"][:4]),
                month=int(row["date"][5:7]),
                weather=row["weather"],
                precipitation_mm=float(row["precipitation"]),
                temp_max_c=float(row["temp_max"]),
                temp_min_c=float(row["temp_min"]),
                wind_m_s=float(row["wind"]),
            )
            for number, row in enumerate(csv.DictReader(file))
        ]


# --- the broker -------------------------------------------------------------------------------------------


def is_listening(parameters: pika.URLParameters) -> bool:
    """Tell whether anybody accepts connections there."""
    try:
        with socket.create_connection((parameters.host, parameters.port), timeout=2):
            return True
    except OSError:
        return False


@contextmanager
def broker_of_our_own() -> Iterator[str]:
    """Run a broker on a free port with a temporary data directory; yield its URL.

    Raises:
        DemoError: it does not start.
    """
    # The installed command, not `python -m warren`, which would run the source in the working directory.
    command = [
        str(Path(sys.executable).with_name("warren")),
        "serve",
        "--amqp",
        "127.0.0.1:0",
        "--http",
        "off",
        "--prometheus",
        "off",
    ]
    with tempfile.TemporaryDirectory(prefix="warren-demo-") as directory:
        command += ["--data-dir", f"{directory}/data", "--log-level", "warning"]
        # A session of its own: Ctrl-C reaches the demo, which then stops the broker.
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        except OSError as error:
            raise DemoError(f"cannot run {command[0]}: {error.strerror}; `make setup` installs it") from None
        watchdog = threading.Timer(START_DEADLINE_S, process.kill)
        watchdog.start()
        try:
            yield _announced_url(process)
        finally:
            watchdog.cancel()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _announced_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if words[:1] == ["listening"]:
            return words[1].rstrip(",").replace("amqp://", "amqp://guest:guest@") + "/%2F"
    raise DemoError("the broker did not start; its reason stands above")


def parameters_of(url: str) -> pika.URLParameters:
    """Return pika's connection parameters for `url`.

    Raises:
        DemoError: it is not an AMQP URL.
    """
    try:
        return pika.URLParameters(url)
    except (ValueError, KeyError, TypeError) as error:
        raise DemoError(f"not an AMQP URL: {error}") from None


def described(connection: pika.BlockingConnection) -> str:
    """Return what the broker says of itself."""
    # The blocking connection keeps the announcement to itself.
    announced: dict[str, object] = connection._impl.server_properties or {}  # type: ignore[attr-defined]
    if "warren_version" in announced:
        return f"Warren {announced['warren_version']}"
    return f"{announced.get('product', 'an unnamed broker')} {announced.get('version', '')}".strip()


def close(connection: pika.BlockingConnection) -> None:
    """Close `connection` unless the broker has."""
    if connection.is_open:
        connection.close()


# --- topology ---------------------------------------------------------------------------------------------


@contextmanager
def topology(channel: BlockingChannel, prefix: str) -> Iterator[None]:
    """Declare and bind everything under `prefix`; delete it all afterwards."""
    try:
        for route in ROUTES:
            channel.exchange_declare(prefix + route.type, route.type)
        for subscription in SUBSCRIPTIONS:
            queue = prefix + subscription.name
            channel.queue_declare(queue)
            for binding in subscription.bindings:
                if isinstance(binding, str):
                    channel.queue_bind(queue, prefix + subscription.exchange, binding)
                else:
                    channel.queue_bind(queue, prefix + subscription.exchange, arguments=dict(binding))
        yield
    finally:
        if channel.is_open:
            for subscription in SUBSCRIPTIONS:
                channel.queue_delete(prefix + subscription.name)
            for route in ROUTES:
                channel.exchange_delete(prefix + route.type)


# --- publishing and consuming -----------------------------------------------------------------------------


def publish(
    channel: BlockingChannel, prefix: str, days: Sequence[Day], advance: Callable[[], None]
) -> dict[str, Publication]:
    """Publish every record to every exchange, one confirm at a time; then an end to each consumer."""
    publications = {route.type: Publication() for route in ROUTES}
    channel.confirm_delivery()
    for day in days:
        body = json.dumps({name: getattr(day, name) for name in Day.__slots__}).encode()
        properties = pika.BasicProperties(
            content_type="application/json", message_id=str(day.number), headers=day.headers
        )
        for route in ROUTES:
            publication = publications[route.type]
            try:
                channel.basic_publish(prefix + route.type, route.routing_key(day), body, properties, mandatory=True)
            except UnroutableError:
                # Returned, then confirmed: no queue of this exchange wants the record.
                publication.returned.append(day.number)
            publication.confirmed += 1
            advance()
    for subscription in SUBSCRIPTIONS:
        for _ in range(subscription.consumers):
            channel.basic_publish("", prefix + subscription.name, b"", pika.BasicProperties(type=END))
    return publications


def consume(parameters: pika.URLParameters, prefix: str, consumption: Consumption, advance: Callable[[], None]) -> None:
    """Receive and acknowledge until the end comes."""
    subscription = consumption.subscription
    try:
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=subscription.prefetch)
        for method, properties, body in channel.consume(prefix + subscription.name):
            assert method is not None
            assert properties is not None
            delivery_tag = method.delivery_tag or 0
            if properties.type == END:
                channel.basic_ack(delivery_tag)
                break
            number = json.loads(body or b"{}")["number"]
            assert properties.message_id == str(number), "a body came with another message's properties"
            consumption.received.append(number)
            consumption.redelivered += method.redelivered
            channel.basic_ack(delivery_tag)
            advance()
        # Closing requeues prefetched messages that were not taken: the end that belongs to another consumer.
        connection.close()
    except (AMQPError, AssertionError, ValueError, KeyError) as error:
        consumption.failure = f"{type(error).__name__}: {error}"


class Counters:
    """Two progress bars on a terminal, nothing elsewhere."""

    def __init__(self, progress: Progress | None, publishes: int, deliveries: int) -> None:
        self._progress = progress
        self._published: TaskID | None = None
        self._received: TaskID | None = None
        if progress is not None:
            self._published = progress.add_task("published and confirmed", total=publishes)
            self._received = progress.add_task("received and acknowledged", total=deliveries)

    def published(self) -> None:
        if self._progress is not None and self._published is not None:
            self._progress.advance(self._published)

    def received(self) -> None:
        if self._progress is not None and self._received is not None:
            self._progress.advance(self._received)


def run(
    parameters: pika.URLParameters,
    connection: pika.BlockingConnection,
    days: Sequence[Day],
    counters: Counters,
) -> tuple[dict[str, Publication], list[Consumption]]:
    """Publish everything while the consumers consume; return what both sides saw."""
    prefix = f"demo-{uuid.uuid4().hex[:8]}-"
    channel = connection.channel()
    consumptions = [Consumption(subscription) for subscription in SUBSCRIPTIONS for _ in range(subscription.consumers)]
    threads = [
        threading.Thread(target=consume, args=(parameters, prefix, each, counters.received), daemon=True)
        for each in consumptions
    ]
    with topology(channel, prefix):
        for thread in threads:
            thread.start()
        publications = publish(channel, prefix, days, counters.published)
        for thread, consumption in zip(threads, consumptions, strict=True):
            thread.join(CONSUME_DEADLINE_S)
            if thread.is_alive():
                consumption.failure = f"no end came within {CONSUME_DEADLINE_S:.0f} s"
    return publications, consumptions


# --- the verdict ------------------------------------------------------------------------------------------


def expected_of(subscription: Subscription, days: Sequence[Day]) -> list[int]:
    """Return the numbers of the records that `subscription` should get, in order."""
    return [day.number for day in days if subscription.wants(day)]


def problem_of(expected: list[int], consumptions: Sequence[Consumption]) -> str:
    """Return the errors in the messages that the consumers of one queue received, or ``""``."""
    for consumption in consumptions:
        if consumption.failure:
            return consumption.failure
    received = [number for consumption in consumptions for number in consumption.received]
    if len(consumptions) > 1:
        received.sort()
    if received == expected:
        return ""
    missing = len(set(expected) - set(received))
    foreign = len(set(received) - set(expected))
    twice = len(received) - len(set(received))
    if missing or foreign or twice:
        return f"{missing} missing, {foreign} not expected, {twice} twice"
    return "not in the order of publishing"


def returns_of(days: Sequence[Day], exchange: str) -> list[int]:
    """Return the numbers of the records that no queue bound to `exchange` wants."""
    wanting = [subscription for subscription in SUBSCRIPTIONS if subscription.exchange == exchange]
    return [day.number for day in days if not any(subscription.wants(day) for subscription in wanting)]


def report(
    console: Console,
    days: Sequence[Day],
    publications: Mapping[str, Publication],
    consumptions: Sequence[Consumption],
) -> bool:
    """Print the tables; return whether everything agrees."""
    agrees = True
    queues = Table("Exchange", "Queue", "Bound by", box=None, header_style="bold", pad_edge=False)
    for heading in ("Prefetch", "Expected", "Received"):
        queues.add_column(heading, justify="right")
    queues.add_column("")
    for subscription in SUBSCRIPTIONS:
        own = [each for each in consumptions if each.subscription is subscription]
        expected = expected_of(subscription, days)
        problem = problem_of(expected, own)
        agrees = agrees and not problem
        queues.add_row(
            subscription.exchange,
            subscription.name,
            Text(subscription.shown_bindings),
            str(subscription.prefetch),
            f"{len(expected):,}",
            " + ".join(f"{len(each.received):,}" for each in own),
            Text(problem, "red") if problem else Text("ok", "green"),
        )
    console.print(queues)
    console.print()
    exchanges = Table("Exchange", box=None, header_style="bold", pad_edge=False)
    for heading in ("Published", "Confirmed", "Returned", "Expected to return"):
        exchanges.add_column(heading, justify="right")
    exchanges.add_column("")
    for route in ROUTES:
        publication = publications[route.type]
        unwanted = returns_of(days, route.type)
        right = publication.returned == unwanted and publication.confirmed == len(days)
        agrees = agrees and right
        exchanges.add_row(
            route.type,
            f"{len(days):,}",
            f"{publication.confirmed:,}",
            f"{len(publication.returned):,}",
            f"{len(unwanted):,}",
            Text("ok", "green") if right else Text("differs", "red"),
        )
    console.print(exchanges)
    return agrees


def demo(url: str | None, console: Console) -> bool:
    """Run the demo against `url`, by default the local broker or one of our own; return whether all agrees.

    Raises:
        DemoError: no broker answers.
    """
    days = load_days()
    with ExitStack() as stack:
        parameters = parameters_of(url or DEFAULT_URL)
        if not is_listening(parameters):
            if url is not None:
                raise DemoError(f"nothing listens on {parameters.host}:{parameters.port}")
            console.print(f"No broker on {parameters.host}:{parameters.port}: starting one.")
            parameters = parameters_of(stack.enter_context(broker_of_our_own()))
        try:
            connection = pika.BlockingConnection(parameters)
        except AMQPError as error:
            raise DemoError(f"the broker on {parameters.host}:{parameters.port} refuses: {error!r}") from None
        stack.callback(close, connection)
        console.print(f"{described(connection)} on {parameters.host}:{parameters.port}")
        console.print(
            f"{len(days):,} days of weather in Seattle (NOAA, public domain), each to {len(ROUTES)} exchanges"
        )
        console.print()
        progress = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            progress = stack.enter_context(Progress(*columns, console=console))
        deliveries = sum(len(expected_of(subscription, days)) for subscription in SUBSCRIPTIONS)
        counters = Counters(progress, len(days) * len(ROUTES), deliveries)
        publications, consumptions = run(parameters, connection, days, counters)
        if progress is not None:
            progress.stop()
            console.print()
        return report(console, days, publications, consumptions)


def main() -> int:
    """Parse the command line and run the demo; return the exit code."""
    parser = argparse.ArgumentParser(description="Feed real records through four exchange types.")
    parser.add_argument("--url", help=f"the broker (default: {DEFAULT_URL}, or one started here)")
    options = parser.parse_args()
    console = Console(highlight=False)
    if not console.is_terminal:
        # Without a terminal lines are not folded: keep each row of the table on one.
        console = Console(highlight=False, width=PLAIN_WIDTH)
    try:
        agrees = demo(options.url, console)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    console.print()
    console.print(
        Text("Everybody received exactly what was sent to them.", "bold green")
        if agrees
        else Text("What was received differs from what was sent.", "bold red")
    )
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
