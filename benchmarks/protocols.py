"""`make bench-protocols`: AMQP 1.0, MQTT and STOMP beside RabbitMQ and mosquitto, messages of 100 bytes; PROTOCOLS.md.

1. Each broker runs all the time, with fresh data, and one load is under way at a time. In every round each load runs
   against each broker that speaks its protocol; a ratio is taken within a round, and shown is the median of them.
2. The clients are this process (``amqp10.py``, ``mqtt.py``, ``stomp.py``): raw sockets, frames made beforehand. CPU is
   that of all processes of the broker.
3. A load that failed is a miss and is shown with its error.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import amqp10, mqtt, rabbitmq, results, stomp
from benchmarks.brokers import Server, free_port
from benchmarks.load_tool import ROOT, say, stop_when_told
from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE
from warren.perf.client import Address, BrokerError, PerfConnection

MOSQUITTO: Final = "mosquitto"
PLUGINS: Final = "[rabbitmq_amqp1_0,rabbitmq_mqtt,rabbitmq_stomp]."
PAGE: Final = "PROTOCOLS.md"


@dataclass
class Place:
    """A broker that runs, and where it is. `queue`: the address of the queue of AMQP 1.0."""

    server: Server
    product: str = ""
    amqp: int = 0
    mqtt: int = 0
    stomp: int = 0
    queue: str = "/queues/bench"


Flow = Callable[[Place, float], tuple[float, float]]


class Load(NamedTuple):
    """A kind of traffic: `port` is the attribute of `Place` that it goes to.

    `at_most`: CPU per message in that of each other broker; `rate_at_least`: the rate in that of RabbitMQ.
    """

    name: str
    title: str
    port: str
    flow: Flow
    at_most: dict[str, float]
    rate_at_least: float | None = None


def _amqp10(place: Place, seconds: float, *, durable: bool = False, presettled: bool = False) -> tuple[float, float]:
    pid = place.server.pid
    return amqp10.flow_1_0(place.amqp, pid, durable, seconds, address=place.queue, presettled=presettled)


def _amqp_0_9_1(place: Place, seconds: float, *, durable: bool = False) -> tuple[float, float]:
    return amqp10.flow_0_9_1(place.amqp, place.server.pid, durable, seconds)


def _mqtt(place: Place, seconds: float, *, load: mqtt.Load) -> tuple[float, float]:
    return mqtt.flow(place.mqtt, place.server.pid, load, seconds)


def _stomp(place: Place, seconds: float) -> tuple[float, float]:
    return stomp.flow(place.stomp, place.server.pid, seconds)


RABBIT: Final = results.RABBIT
LOADS: Final = (
    Load("amqp-0-9-1", "AMQP 0-9-1, confirms and acks, 1,000 on their way", "amqp", _amqp_0_9_1, {}),
    Load(
        "amqp-0-9-1-durable",
        "the same, persistent in a durable queue",
        "amqp",
        partial(_amqp_0_9_1, durable=True),
        {},
    ),
    Load("amqp10", "AMQP 1.0, unsettled, credit 1,000", "amqp", _amqp10, {RABBIT: 1 / 20}, 8),
    Load("amqp10-settled", "AMQP 1.0, settled", "amqp", partial(_amqp10, presettled=True), {RABBIT: 1 / 20}, 8),
    Load(
        "amqp10-durable",
        "AMQP 1.0, unsettled, durable, accepted after fdatasync",
        "amqp",
        partial(_amqp10, durable=True),
        {RABBIT: 1 / 15},
    ),
    Load(
        "mqtt-0",
        "MQTT, QoS 0, 1 to 1",
        "mqtt",
        partial(_mqtt, load=mqtt.Load("", 0, 1)),
        {RABBIT: 1 / 20, MOSQUITTO: 1 / 8},
    ),
    Load(
        "mqtt-1",
        "MQTT, QoS 1 both ways, 1 to 1",
        "mqtt",
        partial(_mqtt, load=mqtt.Load("", 1, 1)),
        {RABBIT: 1 / 20, MOSQUITTO: 1 / 4},
    ),
    Load(
        "mqtt-fanout",
        "MQTT, QoS 0, 1 to 100, per delivery",
        "mqtt",
        partial(_mqtt, load=mqtt.Load("", 0, 100)),
        {RABBIT: 1 / 40, MOSQUITTO: 1 / 15},
    ),
    Load(
        "mqtt-1-fanout",
        "MQTT, QoS 1 both ways, 1 to 1,000, per delivery",
        "mqtt",
        partial(_mqtt, load=mqtt.Load("", 1, 1000)),
        {RABBIT: 1 / 3, MOSQUITTO: 1 / 3},
    ),
    Load("stomp", "STOMP, a topic, ack:auto", "stomp", _stomp, {RABBIT: 1 / 15}),
)
NAMES: Final = tuple(load.name for load in LOADS)


@dataclass
class Measured:
    """What the loads showed, by load, broker and round: CPU in us per message, messages per second; None: it failed."""

    found: dict[str, dict[str, list[tuple[float, float] | None]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


# --- brokers ----------------------------------------------------------------------------------------------------------


def warren(directory: Path) -> Place:
    """Return Warren as it is installed beside this interpreter."""
    ports = [free_port() for _ in range(3)]
    command = [sys.executable, "-P", "-m", "warren", "serve", "--data-dir", str(directory / "data")]
    command += ["--http", "off", "--prometheus", "off"]
    for option, port in zip(("--amqp", "--mqtt", "--stomp"), ports, strict=True):
        command += [option, f"127.0.0.1:{port}"]
    return Place(mqtt.ProcessServer(command, directory), amqp=ports[0], mqtt=ports[1], stomp=ports[2])


def rabbit(program: Path, directory: Path) -> Place:
    """Return a RabbitMQ with its plugins for the other protocols."""
    ports = [free_port() for _ in range(3)]
    (directory / "enabled_plugins").write_text(PLUGINS + "\n")
    listeners = [f"mqtt.listeners.tcp.1 = 127.0.0.1:{ports[1]}", f"stomp.listeners.tcp.1 = 127.0.0.1:{ports[2]}"]
    (directory / "rabbitmq.conf").write_text("\n".join([*listeners, ""]))
    server = rabbitmq.RabbitMQ(
        [str(program)], directory, amqp_port=ports[0], dist_port=free_port(), epmd_port=free_port()
    )
    return Place(server, amqp=ports[0], mqtt=ports[1], stomp=ports[2])


def mosquitto(program: str, directory: Path) -> Place:
    """Return a mosquitto that drops nothing."""
    port = free_port()
    return Place(mqtt.mosquitto_server(program, directory, port), MOSQUITTO, mqtt=port)


def prepare(place: Place, *, is_rabbit: bool) -> None:
    """Wait until a broker of AMQP answers, learn what it is, and declare the queue."""
    sock, reader = amqp10.channel(place.amqp)
    amqp10.call(sock, reader, m.QueueDeclare(0, "bench", False, True, False, False, False, EMPTY_TABLE))
    sock.close()
    with PerfConnection.open(Address(port=place.amqp)) as connection:
        told = connection.server_properties
    version = str(told.get("version", "?"))
    place.product = f"{told.get('product', '?')} {version}"
    if is_rabbit and version.partition(".")[0] == "3":  # Warren tells clients of 0-9-1 that it is such a one, too
        place.queue = "/amq/queue/bench"


# --- loads and page ---------------------------------------------------------------------------------------------------


def measure(places: dict[str, Place], loads: list[Load], *, rounds: int, seconds: float) -> Measured:
    """Run the loads in rounds."""
    measured = Measured()
    for turn in range(rounds):
        for load in loads:
            for name, place in places.items():
                if not getattr(place, load.port):
                    continue
                shown: tuple[float, float] | None = None
                try:
                    shown = load.flow(place, seconds)
                    say(f"round {turn + 1}  {load.name:20} {name:10} {shown[0]:9.2f} us {shown[1]:>12,.0f}/s")
                except (OSError, AssertionError, BrokerError) as error:
                    measured.failures.append(f"{load.name}, {name}: {error or type(error).__name__}")
                    say(f"round {turn + 1}  FAILED: {measured.failures[-1]}")
                measured.found.setdefault(load.name, {}).setdefault(name, []).append(shown)
    return measured


def ratio(ours: list[tuple[float, float] | None], theirs: list[tuple[float, float] | None], at: int) -> float | None:
    """Return the median of our figure in theirs, round by round; None without figures."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    return results.median([a[at] / max(b[at], 1e-9) for a, b in pairs]) if pairs else None


def markdown(
    measured: Measured,
    places: dict[str, Place],
    loads: list[Load],
    machine: results.Machine,
    *,
    rounds: int,
    seconds: float,
) -> str:
    """Return the text of PROTOCOLS.md."""
    page = results.Page()
    for other in (name for name in places if name != results.WARREN):
        rows = []
        for load in loads:
            found = measured.found[load.name]
            if other in found:
                rows.append(_row(page, load, found[results.WARREN], found[other], other))
        page.text(f"## Beside {places[other].product}")
        header = ["CPU per message", "Warren, µs", f"{other}, µs", "ratio", "at most", ""]
        page.table([*header, "Warren, per s", f"{other}, per s", "ratio", "at least", ""], rows)
    if len(places) == 1:
        alone = [[load.title, *_figures(measured.found[load.name][results.WARREN])] for load in loads]
        page.table(["", "CPU per message, µs", "messages per s"], alone)
    if measured.failures:
        page.text("## What failed", "\n".join(f"- {failure}" for failure in measured.failures))
    top = [
        "# AMQP 1.0, MQTT and STOMP",
        "Written by `make bench-protocols`; do not edit.",
        f"**{sum(page.verdicts)} of {len(page.verdicts)} targets met.**",
        f"- Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}; "
        f"load before the start {machine.load:.2f}.\n"
        f"- Warren at {results.revision()}, engine {results.engine()}, Python {machine.python}.\n"
        f"- {rounds} rounds of {seconds:g} s for each load, medians. Messages of 100 bytes; one publisher, one "
        "consumer, and as many as are named. Broker and clients share the cores, so rates are those of both.",
    ]
    return "\n\n".join([*top, *page.parts]) + "\n"


def _figures(found: list[tuple[float, float] | None]) -> list[str]:
    shown = [each for each in found if each is not None]
    if not shown:
        return ["failed", "failed"]
    return [f"{results.median([each[0] for each in shown]):.2f}", f"{results.median([each[1] for each in shown]):,.0f}"]


def _row(
    page: results.Page,
    load: Load,
    ours: list[tuple[float, float] | None],
    theirs: list[tuple[float, float] | None],
    other: str,
) -> list[str]:
    (our_cpu, our_rate), (their_cpu, their_rate) = _figures(ours), _figures(theirs)
    cpu, rate = ratio(ours, theirs, 0), ratio(ours, theirs, 1)
    row = [load.title, our_cpu, their_cpu, "-" if cpu is None else f"1/{1 / cpu:.1f}"]
    at_most = load.at_most.get(other)
    if at_most is None:
        row += ["", ""]
    else:
        row += [f"1/{1 / at_most:.0f}", page.verdict(reached=cpu is not None and cpu <= at_most)]
    row += [our_rate, their_rate, "-" if rate is None else f"{rate:.1f}"]
    if load.rate_at_least is not None and other == RABBIT:
        row += [f"{load.rate_at_least:g}", page.verdict(reached=rate is not None and rate >= load.rate_at_least)]
    return row


def protocols(
    only: Annotated[list[str] | None, typer.Option(help=f"Run only these loads, of: {', '.join(NAMES)}")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; ratios are medians over them")] = 5,
    seconds: Annotated[float, typer.Option(min=0.2, help="Seconds of each load")] = 3.0,
    warren_only: Annotated[bool, typer.Option("--warren-only", help="Leave the other brokers out")] = False,
    rabbitmq_program: Annotated[
        Path | None, typer.Option("--rabbitmq", help="rabbitmq-server; default: the installed one")
    ] = None,
    mosquitto_program: Annotated[
        str | None, typer.Option("--mosquitto", help="mosquitto; default: the installed one")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Where the brokers keep their data meanwhile; default: the temporary directory")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help=f"Where to write; default benchmarks/{PAGE}, with --only or --warren-only nowhere"),
    ] = None,
) -> None:
    """Measure AMQP 1.0, MQTT and STOMP."""
    unknown = sorted(set(only or []) - set(NAMES))
    if unknown:
        raise typer.BadParameter(f"no load {unknown[0]}", param_hint="--only")
    loads = [load for load in LOADS if not only or load.name in only]
    machine = results.Machine.look()
    with tempfile.TemporaryDirectory(prefix="warren-protocols-", dir=directory) as below, ExitStack() as stack:
        places: dict[str, Place] = {}
        for name in (results.WARREN, RABBIT, MOSQUITTO):
            (Path(below) / name).mkdir()
        places[results.WARREN] = warren(Path(below) / results.WARREN)
        if not warren_only:
            program = rabbitmq_program or rabbitmq.maybe_program()
            if program is not None:
                places[RABBIT] = rabbit(program, Path(below) / RABBIT)
            found = mosquitto_program or shutil.which(MOSQUITTO) or shutil.which(MOSQUITTO, path="/usr/sbin")
            if found is not None:
                places[MOSQUITTO] = mosquitto(found, Path(below) / MOSQUITTO)
        for name, place in places.items():
            say(f"starting {name}")
            place.server.start()
            stack.callback(place.server.stop)
            if place.amqp:
                prepare(place, is_rabbit=name == RABBIT)
            mqtt.connected(place.mqtt, "first").close()
        measured = measure(places, loads, rounds=rounds, seconds=seconds)
    text = markdown(measured, places, loads, machine, rounds=rounds, seconds=seconds)
    usual = ROOT / "benchmarks" / PAGE if not only and not warren_only else None
    target = output or usual
    if target is None:
        print(text)
    else:
        target.write_text(text)
        say(f"written to {os.path.relpath(target)}")
    if measured.failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    stop_when_told()
    typer.run(protocols)
