"""`make bench-streams`: a stream beside a durable queue and beside RabbitMQ's stream; one consumer beside ten.

Persistent messages of 100 B with confirms, 1000 in flight. In every round each load runs once against each broker,
beginning with another one each time, while the other broker is frozen; ratios are taken within one round. Neither
broker is confined: the load tool has what they leave.

Then Warren alone gets a hundred million messages into one stream, is asked which offset was the first at some random
times, killed, started and asked again.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import rabbitmq, results
from benchmarks.brokers import Broker, RabbitBroker, WarrenBroker, started
from benchmarks.load_tool import ROOT, ToolError, perf, say, stop_when_told
from warren.perf.client import BrokerError
from warren.perf.footprint import settled_sample

_CONFIRMED: Final = ("flow", "--durable", "--persistent", "--confirms", "1000", "--size", "100")
_STREAM: Final = ("--queue-argument", "x-queue-type=stream")
_ACKED: Final = ("--ack", "--prefetch", "1000", "--ack-batch", "100")


class Load(NamedTuple):
    """One load, and whether RabbitMQ gets it as well."""

    name: str
    title: str
    arguments: tuple[str, ...]
    of_both: bool = True


LOADS: Final = (
    Load("queue", "durable queue, no consumer", (*_CONFIRMED, "--consumers", "0"), of_both=False),
    Load("stream", "stream, no consumer", (*_CONFIRMED, "--consumers", "0", *_STREAM)),
    Load("stream-1", "stream, one consumer", (*_CONFIRMED, *_ACKED, *_STREAM)),
    Load("stream-10", "stream, ten consumers", (*_CONFIRMED, *_ACKED, "--consumers", "10", *_STREAM)),
)


class Comparison(NamedTuple):
    """A ratio of two loads against two brokers, and what it has to be."""

    title: str
    ours: tuple[str, str]
    theirs: tuple[str, str]
    of_cpu: bool = False  # of the broker's CPU per message, at most `limit`; else of messages confirmed, at least that
    limit: float = 1.0


COMPARISONS: Final = (
    Comparison("stream to durable queue, confirmed per s", ("stream", results.WARREN), ("queue", results.WARREN)),
    Comparison(
        "ten consumers to one, broker CPU per message published",
        ("stream-10", results.WARREN),
        ("stream-1", results.WARREN),
        of_cpu=True,
        limit=3.0,
    ),
    *(
        Comparison(
            f"Warren to RabbitMQ, {load.title}, confirmed per s",
            (load.name, results.WARREN),
            (load.name, results.RABBIT),
        )
        for load in LOADS
        if load.of_both
    ),
)

# A hundred million messages, and their index by time.
LONG_BYTES: Final = 16
LONG_PREFIX: Final = "long"
LONG_FILL_S: Final = 7200.0
LOOKUPS: Final = 1000
LOOKUP_LIMIT_MS: Final = 10.0
CREDENTIALS: Final = "Basic Z3Vlc3Q6Z3Vlc3Q="

# What each load showed against each broker, by round; None where it failed.
Found = dict[tuple[str, str], list[dict[str, Any] | None]]


def published(shown: dict[str, Any]) -> float:
    """Return how many messages were confirmed per second."""
    return float(shown["published_per_s"])


def cpu_us(shown: dict[str, Any]) -> float:
    """Return the broker's CPU per message published, with all its deliveries."""
    return float(shown["broker_cpu_us_per_published"])


def measure(brokers: list[Broker], *, rounds: int, seconds: float) -> tuple[Found, list[str]]:
    """Run all loads; return what they showed, and how those ended that failed."""
    found: Found = {}
    failures: list[str] = []
    for turn in range(rounds):
        for load in LOADS:
            shift = turn % len(brokers)
            for broker in brokers[shift:] + brokers[:shift]:
                if not load.of_both and broker.name == results.RABBIT:
                    continue
                shown: dict[str, Any] | None = None
                broker.resume()
                try:
                    shown = perf(broker, [*load.arguments, "--duration", f"{seconds:g}"])
                    say(f"round {turn + 1}  {load.name:10} {broker.name:10} {published(shown):>10,.0f}/s published")
                except ToolError as error:
                    failures.append(f"{load.name} against {broker.name}: {broker.maybe_death() or error}")
                    say(f"round {turn + 1}  FAILED: {failures[-1]}")
                finally:
                    broker.pause()
                found.setdefault((load.name, broker.name), []).append(shown)
    return found, failures


def ratios(found: Found, compared: Comparison) -> list[float]:
    """Return the ratio of each round in which both were measured."""
    value = cpu_us if compared.of_cpu else published
    pairs = zip(found.get(compared.ours, []), found.get(compared.theirs, []), strict=False)
    return [value(one) / value(other) for one, other in pairs if one and other and value(other) > 0]


class Long(NamedTuple):
    """What a long stream showed. Lookups are in ms, ascending; in `first_ms` those right after the restart."""

    messages: int
    per_s: float
    start_s: float
    memory_bytes: int
    lookups_ms: list[float]
    first_ms: list[float]


def look_up(broker: WarrenBroker, stream: str, begin_ms: int, end_ms: int, count: int) -> list[float]:
    """Ask for the offsets of random times, and return what each answer took.

    Raises BrokerError when an answer is malformed, or a later time has a smaller offset.
    """
    chosen = random.Random(7)
    connection = http.client.HTTPConnection(broker.url.removeprefix("http://"))
    headers = {"Authorization": CREDENTIALS, "Content-Type": "application/json"}
    taken = []
    answers = []
    for _ in range(count):
        time_ms = chosen.randint(begin_ms, end_ms)
        begin = time.perf_counter()
        path = f"/api/warren/streams/%2F/{stream}/offset"
        connection.request("POST", path, json.dumps({"time_ms": time_ms}), headers)
        response = connection.getresponse()
        answer = response.read()
        taken.append(1000 * (time.perf_counter() - begin))
        if response.status != http.client.OK:
            raise BrokerError(f"{path} is answered {response.status}: {answer.decode(errors='replace')}")
        answers.append((time_ms, int(json.loads(answer)["offset"])))
    connection.close()
    offsets = [offset for _, offset in sorted(answers)]
    if offsets != sorted(offsets) or offsets[0] == offsets[-1]:
        raise BrokerError("offsets do not ascend with time")
    return sorted(taken)


def long_stream(broker: WarrenBroker, messages: int) -> Long:
    """Fill a stream, look offsets up by time, and again after kill -9. Raises ToolError, BrokerError."""
    arguments = (*_CONFIRMED, *_STREAM, "--consumers", "0", "--size", str(LONG_BYTES), "--confirms", "5000")
    begin_ms = int(time.time() * 1000)
    say(f"publishing {messages:,} messages into one stream")
    shown = perf(
        broker, [*arguments, "--messages", str(messages), "--keep", "--prefix", LONG_PREFIX], most_s=LONG_FILL_S
    )
    end_ms = int(time.time() * 1000)
    lookups = look_up(broker, f"{LONG_PREFIX}-0", begin_ms, end_ms, LOOKUPS)
    broker.kill()
    start_s = broker.start()
    first = look_up(broker, f"{LONG_PREFIX}-0", begin_ms, end_ms, LOOKUPS // 10)
    memory_bytes = settled_sample(broker.pid).rss_bytes
    found = Long(messages, published(shown), start_s, memory_bytes, lookups, first)
    say(f"{found.per_s:,.0f}/s; started in {start_s:.2f} s; an offset in {lookups[len(lookups) // 2]:.2f} ms")
    return found


def long_table(page: results.Page, found: Long) -> None:
    """Add what the long stream showed to the page."""
    worst = found.lookups_ms[len(found.lookups_ms) * 99 // 100]
    page.text(f"## {found.messages:,} messages of {LONG_BYTES} B in one stream")
    page.table(
        ["", "Warren", "target", ""],
        [
            ["published and confirmed, messages/s", f"{found.per_s:,.0f}", "", ""],
            [
                f"offset by time, over HTTP, median of {LOOKUPS:,}, ms",
                f"{results.median(found.lookups_ms):.2f}",
                "",
                "",
            ],
            [
                "the same, 99th percentile, ms",
                f"{worst:.2f}",
                f"at most {LOOKUP_LIMIT_MS:g}",
                page.verdict(reached=worst <= LOOKUP_LIMIT_MS),
            ],
            ["kill -9, then exec to the first channel, s", f"{found.start_s:.2f}", "", ""],
            ["offset by time then, the slowest of the first hundred, ms", f"{found.first_ms[-1]:.2f}", "", ""],
            ["memory then, MB", f"{found.memory_bytes / 1e6:.0f}", "", ""],
        ],
    )


def markdown(
    found: Found,
    failures: list[str],
    long: Long | None,
    machine: results.Machine,
    products: list[str],
    *,
    rounds: int,
    seconds: float,
) -> str:
    """Return the text of STREAMS.md."""
    page = results.Page()
    rows = []
    for load in LOADS:
        for broker in (results.WARREN, results.RABBIT):
            shown = [one for one in found.get((load.name, broker), []) if one]
            if shown:
                rates = results.median([published(one) for one in shown])
                received = results.median([float(one["received_per_s"]) for one in shown])
                cpu = results.median([cpu_us(one) for one in shown])
                rows.append([load.title, broker, f"{rates:,.0f}", f"{received:,.0f}", f"{cpu:.2f}"])
    page.table(["Load", "", "confirmed per s", "delivered per s", "broker CPU µs per message published"], rows)
    rows = []
    for compared in COMPARISONS:
        found_ratios = ratios(found, compared)
        if found_ratios:
            ratio = results.median(found_ratios)
            reached = ratio <= compared.limit if compared.of_cpu else ratio >= compared.limit
            target = f"at {'most' if compared.of_cpu else 'least'} {compared.limit:g}"
            span = f"{min(found_ratios):.2f} to {max(found_ratios):.2f}"
            rows.append([compared.title, f"{ratio:.2f}", span, target, page.verdict(reached=reached)])
    page.table(["", "median ratio", "over the rounds", "target", ""], rows)
    if long is not None:
        long_table(page, long)
    if failures:
        page.text("Failed:", "\n".join(f"- {failure}" for failure in failures))
    top = [
        "# Streams",
        "Written by `make bench-streams`; do not edit.",
        f"**{sum(page.verdicts)} of {len(page.verdicts)} targets met.**",
        f"- Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}; "
        f"load before the start {machine.load:.2f}.\n"
        f"- {', '.join(products)}; Warren at {results.revision()}, "
        f"Python {machine.python}.\n"
        f"- {rounds} rounds of {seconds:g} s for each load, the brokers in turn; figures are medians over the rounds. "
        "Messages of 100 B, persistent, 1000 unconfirmed in flight; consumers acknowledge, prefetch 1000.\n"
        "- Warren confirms after `fdatasync`; RabbitMQ does not sync streams.",
    ]
    return "\n\n".join([*top, *page.parts]) + "\n"


def streams(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; ratios are medians over them")] = 5,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds measured of each load")] = 4.0,
    messages: Annotated[int, typer.Option(min=0, help="Messages in the long stream; 0: none")] = 100_000_000,
    warren_only: Annotated[bool, typer.Option("--warren-only", help="Without RabbitMQ")] = False,
    directory: Annotated[
        Path | None, typer.Option(help="Where the brokers keep their data meanwhile; default: the temporary directory")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write; default benchmarks/STREAMS.md, with other options nowhere")
    ] = None,
) -> None:
    """Measure streams."""
    machine = results.Machine.look()
    if machine.load > 0.5:
        say(f"the machine is not quiet (load {machine.load:.1f}): the figures will be worse than they are")
    program = None if warren_only else rabbitmq.maybe_install()
    if program is None and not warren_only:
        say("rabbitmq-server is not here and could not be installed: Warren is measured alone")
    with tempfile.TemporaryDirectory(prefix="warren-streams-", dir=directory) as below, ExitStack() as stack:
        try:
            brokers: list[Broker] = [WarrenBroker(results.WARREN, Path(below) / "warren", ROOT, core=None)]
            if program is not None:
                brokers.append(RabbitBroker(results.RABBIT, Path(below) / "rabbitmq", program, core=None))
            for broker in brokers:
                stack.enter_context(started(broker))
                broker.pause()
        except BrokerError as error:
            say(f"a broker does not start: {error}")
            raise typer.Exit(1) from None
        found, failures = measure(brokers, rounds=rounds, seconds=seconds)
        products = [broker.product for broker in brokers]
        stack.close()
        long: Long | None = None
        if messages:
            broker = WarrenBroker(results.WARREN, Path(below) / "long", ROOT, core=None)
            try:
                with started(broker):
                    long = long_stream(broker, messages)
            except (BrokerError, ToolError) as error:
                failures.append(f"the long stream: {error}")
    text = markdown(found, failures, long, machine, products, rounds=rounds, seconds=seconds)
    usual = (rounds, seconds, messages, warren_only) == (5, 4.0, 100_000_000, False)
    target = output or (ROOT / "benchmarks" / "STREAMS.md" if usual else None)
    if target is None:
        print(text)
    else:
        target.write_text(text)
        say(f"written to {target.name}")
    if failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    stop_when_told()
    typer.run(streams)
