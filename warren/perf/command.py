"""The command line of the load tool: `warren perf`, or `python -m warren.perf`.

The code of a load is imported when one runs: `warren serve` shares this command line and must not pay for it.
"""

from __future__ import annotations

import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from warren.perf.choices import ExchangeType, LoadProtocol, Mode

_DEFAULT_BACKLOG_MESSAGES: Final = 100_000
_DEFAULT_BACKLOG_BYTES: Final = 128 << 20
PREFIX_MAX_BYTES: Final = 200  # of 255 that a name has; the rest is for what follows it


def default_backlog(size_bytes: int) -> int:
    """Return the backlog bound used when none is given: 100,000 messages, or as many as make 128 MiB."""
    return max(100, min(_DEFAULT_BACKLOG_MESSAGES, _DEFAULT_BACKLOG_BYTES // max(1, size_bytes)))


def parse_queue_arguments(texts: list[str]) -> dict[str, str | bool | int]:
    """Return the arguments that ``KEY=VALUE`` texts mean: integers, ``true`` and ``false``, everything else is text.

    Raises:
        ValueError: a text without a key.
    """
    found: dict[str, str | bool | int] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise ValueError(f"--queue-argument {text}: not of the form KEY=VALUE")
        if value in ("true", "false"):
            found[key] = value == "true"
        elif value.removeprefix("-").isdecimal() and value.isascii():
            number = int(value)
            if not -(1 << 63) <= number < 1 << 63:
                raise ValueError(f"--queue-argument {text}: an integer has at most 64 bits")
            found[key] = number
        else:
            found[key] = value
    return found


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first SIGINT or SIGTERM during the block; a second one acts as usual."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, _: object) -> None:
        signal.signal(number, before[signal.Signals(number)])
        stop()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def perf(
    mode: Annotated[
        Mode,
        typer.Argument(
            help="flow: publishers and consumers; rpc: one request and reply at a time; "
            "connections: idle connections with a channel each; declare: many queues; "
            "fill: leave numbered messages in the queues; drain: receive them and check their order; "
            "through: both at once"
        ),
    ] = Mode.FLOW,
    uri: Annotated[
        str,
        typer.Option(help="The broker: amqp://user:password@host:port/vhost, or mqtt:// and stomp://; this machine's"),
    ] = "",
    protocol: Annotated[
        LoadProtocol,
        typer.Option(
            help="flow: the protocol. amqp10: unsettled deliveries with --confirms and with --ack, --prefetch is the "
            "credit. mqtt: QoS 1 with --confirms and with --ack, lasting sessions with --durable. stomp: receipts with "
            "--confirms, durable subscriptions with --durable. mqtt and stomp have topics instead of queues: each of "
            "their consumers has a copy"
        ),
    ] = LoadProtocol.AMQP,
    publishers: Annotated[int, typer.Option("--publishers", "-x", min=1, help="Publishing connections")] = 1,
    consumers: Annotated[int, typer.Option("--consumers", "-y", min=0, help="Consuming connections")] = 1,
    queues: Annotated[
        int,
        typer.Option("--queues", "-q", min=1, help="Queues; publisher and consumer i use queue i modulo this"),
    ] = 1,
    size: Annotated[int, typer.Option("--size", "-s", min=0, help="Body size in bytes; latency needs 8")] = 16,
    auto_ack: Annotated[bool, typer.Option("--auto-ack/--ack", help="Consume with no_ack, or acknowledge")] = True,
    prefetch: Annotated[
        int, typer.Option(min=0, max=65535, help="Unacknowledged deliveries per consumer, 0: no limit")
    ] = 0,
    ack_batch: Annotated[int, typer.Option(min=1, help="Acknowledge cumulatively after this number of deliveries")] = 1,
    confirms: Annotated[
        int, typer.Option(min=0, help="Unconfirmed messages in flight per publisher, 0: no confirms")
    ] = 0,
    persistent: Annotated[bool, typer.Option("--persistent", help="Publish with delivery mode 2")] = False,
    durable: Annotated[bool, typer.Option("--durable", help="Durable queues and exchange")] = False,
    exchange: Annotated[
        ExchangeType, typer.Option(help="Exchange type; fanout copies to every queue")
    ] = ExchangeType.DEFAULT,
    bindings: Annotated[int, typer.Option(min=0, help="Topic bindings of mixed patterns, spread over the queues")] = 0,
    routing_keys: Annotated[
        int, typer.Option(min=0, help="Different routing keys published with --bindings (0: 1000) or to a fanout")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of bindings and routing keys")] = 1,
    queue_argument: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="flow: queue argument such as x-max-length=1000; repeatable"),
    ] = None,
    expiration: Annotated[
        int, typer.Option(min=0, metavar="MS", help="flow: publish with this expiration; expired ones are missing")
    ] = 0,
    priority_levels: Annotated[
        int, typer.Option(min=0, max=256, metavar="N", help="flow: publish with priorities 0 to N-1 in turn")
    ] = 0,
    delay: Annotated[int, typer.Option(min=0, metavar="MS", help="flow: publish with this x-delay")] = 0,
    rate: Annotated[float, typer.Option(min=0, help="Messages per second of all publishers, 0: flat out")] = 0.0,
    backlog: Annotated[
        int,
        typer.Option(
            min=-1,
            help="Maximum messages published but not received; 0: no bound; -1: 100,000 or 128 MiB",
        ),
    ] = -1,
    duration: Annotated[float, typer.Option("--duration", "-z", min=0.1, help="Seconds measured")] = 10.0,
    warmup: Annotated[float, typer.Option(min=0, help="Seconds before measuring")] = 1.0,
    messages: Annotated[
        int,
        typer.Option(
            "--messages", "-n", min=0, help="Stop after N messages instead of --duration; fill, drain: their number"
        ),
    ] = 0,
    count: Annotated[int, typer.Option(min=1, help="connections, declare: their number")] = 1000,
    pipelined: Annotated[
        bool, typer.Option("--pipelined/--one-by-one", help="declare: do not wait for each answer")
    ] = True,
    keep: Annotated[bool, typer.Option("--keep", help="flow, declare: keep the queues")] = False,
    prefix: Annotated[
        str, typer.Option(help="Names of queues and exchange begin with this; existing ones are replaced")
    ] = "perf",
    pid: Annotated[
        int, typer.Option(min=0, help="Root process of the broker: adds its CPU per message and memory")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Load a broker and report rates, latencies and, with --pid, what it cost."""
    from warren.perf import backlog as long_queues
    from warren.perf import footprint, report, round_trip
    from warren.perf.amqp10_flow import Amqp10
    from warren.perf.client import Address, BrokerError
    from warren.perf.mqtt_flow import Mqtt
    from warren.perf.protocol_run import Dialect, ProtocolRun
    from warren.perf.stomp_flow import Stomp
    from warren.perf.workload import Run, Workload

    if not hasattr(select, "epoll"):
        # Other systems also lack /proc, which the measurement needs as well.
        print("warren perf: only Linux is supported", file=sys.stderr)
        raise typer.Exit(1)
    dialects: dict[LoadProtocol, Dialect] = {
        LoadProtocol.AMQP10: Amqp10(),
        LoadProtocol.MQTT: Mqtt(),
        LoadProtocol.STOMP: Stomp(),
    }
    try:
        if len(prefix.encode()) > PREFIX_MAX_BYTES:
            raise ValueError(f"--prefix of {len(prefix.encode())} bytes: {PREFIX_MAX_BYTES} are allowed")
        dialect = dialects.get(protocol)
        scheme, port = ("amqp", 5672) if dialect is None else (dialect.scheme, dialect.port)
        address = Address.from_uri(uri or f"{scheme}://", scheme, port)
        if dialect is not None and mode is not Mode.FLOW:
            raise ValueError(f"--protocol {protocol} belongs to flow")
        queue_arguments = parse_queue_arguments(queue_argument or [])
        if mode is not Mode.FLOW and (queue_arguments or expiration or priority_levels or delay):
            raise ValueError("--queue-argument, --expiration, --priority-levels and --delay belong to flow")
        with report.live_line(wanted=not json) as line:
            result: report.Reportable
            if mode is Mode.CONNECTIONS:
                result = footprint.idle_connections(address, count, pid=pid)
            elif mode is Mode.DECLARE:
                result = footprint.declared_queues(
                    address, count, durable=durable, pipelined=pipelined, prefix=prefix, keep=keep, pid=pid
                )
            elif mode is Mode.RPC:
                result = round_trip.run(
                    address,
                    size_bytes=size,
                    warmup_s=warmup,
                    duration_s=duration,
                    prefix=prefix,
                    pid=pid,
                    on_tick=line.show,
                )
            elif mode in (Mode.FILL, Mode.DRAIN, Mode.THROUGH):
                numbered = long_queues.Backlog(
                    messages=messages,
                    queues=queues,
                    size_bytes=size,
                    confirms=confirms,
                    prefetch=prefetch,
                    ack_batch=ack_batch,
                    persistent=persistent,
                    durable=durable,
                    prefix=prefix,
                )
                result = long_queues.Run(mode, numbered, address, pid=pid, on_tick=line.show).run()
            else:
                workload = Workload(
                    publishers=publishers,
                    consumers=consumers,
                    queues=queues,
                    size_bytes=size,
                    prefetch=prefetch,
                    auto_ack=auto_ack,
                    ack_batch=ack_batch,
                    confirms=confirms,
                    persistent=persistent,
                    durable=durable,
                    exchange=exchange,
                    bindings=bindings,
                    routing_keys=routing_keys,
                    rate=rate,
                    backlog=default_backlog(size) if backlog < 0 else backlog,
                    warmup_s=warmup,
                    duration_s=duration,
                    messages=messages,
                    prefix=prefix,
                    keep=keep,
                    seed=seed,
                    queue_arguments=queue_arguments,
                    expiration_ms=expiration,
                    priority_levels=priority_levels,
                    delay_ms=delay,
                )
                if dialect is None:
                    run = Run(workload, address, pid=pid, on_tick=line.show)
                else:
                    run = ProtocolRun(dialect, workload, address, pid=pid, on_tick=line.show)
                with _stopped_by_signals(run.stop):
                    result = run.run()
    except (BrokerError, ProcessLookupError, ValueError) as error:
        typer.echo(f"warren perf: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("warren perf: interrupted", err=True)
        raise typer.Exit(130) from None
    report.print_result(result, as_json=json)
